//! Attention against its definition, and what must not change a bit.

use cake_checkpoint::{FloatType, KvDtype};

use super::*;
use crate::batch::AttendRow;
use crate::device::cpu::pool::Pool;
use crate::device::kv_codes::decode;
use crate::testing::{Random, digest, some_of, widened};

const BLOCK: usize = 4;
/// Positions of a sequence at most: more than two spans.
const POSITIONS: usize = 1200;

struct Case {
    keys: Vec<u8>,
    values: Vec<u8>,
    kv: KvDtype,
    kv_heads: usize,
    head_dim: usize,
    heads: usize,
    window: Option<usize>,
    segment: Option<usize>,
    sinks: Option<Vec<f32>>,
    blocks: Vec<Vec<u32>>,
    /// One per row: position and sequence, an index into `blocks`.
    rows: Vec<(usize, usize)>,
    q: Vec<f32>,
}

impl Case {
    /// In plain numbers.
    fn random(random: &mut Random) -> Case {
        Case::kept(random, &[KvDtype::F32, KvDtype::F16])
    }

    /// In codes.
    fn coded(random: &mut Random) -> Case {
        Case::kept(random, &[KvDtype::Q8])
    }

    fn kept(random: &mut Random, kinds: &[KvDtype]) -> Case {
        let (kv_heads, head_dim) = (1 + random.below(3), 2 * (1 + random.below(35)));
        let heads = kv_heads * (1 + random.below(7));
        let kv = kinds[random.below(kinds.len())];
        let pool = 2 * POSITIONS / BLOCK;
        let elements = pool * BLOCK * kv_heads * head_dim;
        let mut cache = || {
            let values: Vec<f32> = (0..elements).map(|_| random.signed()).collect();
            stored(kv, &values, head_dim)
        };
        let (keys, values) = (cache(), cache());
        let blocks = (0..3)
            .map(|_| {
                let first = random.below(pool);
                (0..pool / 2).map(|i| ((first + 7 * i) % pool) as u32).collect()
            })
            .collect();
        let mut rows = Vec::new();
        for _ in 0..1 + random.below(3) {
            let (sequence, count) = (random.below(3), 1 + random.below(20));
            let first = match random.below(3) {
                0 => random.below(40),
                1 => SPAN - 10 + random.below(20),
                _ => random.below(POSITIONS - count),
            };
            rows.extend((first..first + count).map(|position| (position, sequence)));
        }
        let window = [None, Some(1 + random.below(12)), Some(600)][random.below(3)];
        let q = (0..rows.len() * heads * head_dim).map(|_| random.signed()).collect();
        let (segment, sinks) = (None, None);
        Case {
            keys,
            values,
            kv,
            kv_heads,
            head_dim,
            heads,
            window,
            segment,
            sinks,
            blocks,
            rows,
            q,
        }
    }

    /// The same with segments and sinks, of which some are larger than any score and some smaller.
    fn with_more(self, random: &mut Random) -> Case {
        let segment = [None, Some(1 + random.below(12)), Some(SPAN), Some(700)][random.below(4)];
        let sinks = (0..self.heads).map(|_| random.signed() * 12.0).collect();
        Case { segment, sinks: Some(sinks), ..self }
    }

    /// `rows` rows of one prompt from `first` on.
    fn prompt(random: &mut Random, first: usize, rows: usize) -> Case {
        Case::random(random).of_prompt(random, first, rows)
    }

    /// The same cache with `rows` rows of one prompt from `first` on.
    fn of_prompt(self, random: &mut Random, first: usize, rows: usize) -> Case {
        let case = self;
        let q = (0..rows * case.heads * case.head_dim).map(|_| random.signed()).collect();
        Case { rows: (first..first + rows).map(|position| (position, 0)).collect(), q, ..case }
    }

    fn run(&self, tier: Tier) -> Vec<f32> {
        self.run_rows(tier, 0..self.rows.len())
    }

    fn run_rows(&self, tier: Tier, rows: Range<usize>) -> Vec<f32> {
        let width = self.heads * self.head_dim;
        let q = &self.q[rows.start * width..rows.end * width];
        let rows: Vec<_> = self.rows[rows]
            .iter()
            .map(|&(position, sequence)| AttendRow {
                position,
                blocks: &self.blocks[sequence],
                is_known: false,
            })
            .collect();
        let kv = KvView {
            keys: &self.keys,
            values: &self.values,
            kv: self.kv,
            block_positions: BLOCK,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
        };
        let spec = Attending {
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            keys_alone: false,
            scale: 0.5,
            softcap: None,
            has_sinks: self.sinks.is_some(),
            window: self.window,
            segment: self.segment,
        };
        attend(tier, &Attend { kv, rows: &rows, spec: &spec, sinks: self.sinks.as_deref() }, q)
    }

    /// Where a head of the cache starts, in elements.
    fn element(&self, sequence: usize, position: usize, kv_head: usize) -> usize {
        let block = self.blocks[sequence][position / BLOCK] as usize;
        ((block * self.kv_heads + kv_head) * BLOCK + position % BLOCK) * self.head_dim
    }

    /// The numbers that a part of the cache holds.
    fn widened(&self, cache: &[u8]) -> Vec<f32> {
        let plain = match self.kv {
            KvDtype::F32 => FloatType::F32,
            KvDtype::F16 => FloatType::F16,
            KvDtype::Q8 => {
                let heads = cache.chunks_exact(self.kv.head_bytes(self.head_dim));
                let parts = heads.map(|head| head.split_at(self.head_dim));
                return parts.flat_map(|(codes, scales)| decode(codes, scales)).collect();
            }
        };
        widened(plain, cache)
    }

    /// The same in f64, from the definition.
    fn exact(&self) -> Vec<f64> {
        let (keys, values) = (self.widened(&self.keys), self.widened(&self.values));
        let mut out = Vec::new();
        for (row, &(position, sequence)) in self.rows.iter().enumerate() {
            for head in 0..self.heads {
                let kv_head = head / (self.heads / self.kv_heads);
                let q = &self.q[(row * self.heads + head) * self.head_dim..][..self.head_dim];
                let sink = self.sinks.as_ref().map_or(0.0, |sinks| f64::from(sinks[head]).exp());
                let (mut total, mut sums) = (sink, vec![0.0; self.head_dim]);
                for j in 0..=position {
                    if self.window.is_some_and(|window| j + window <= position)
                        || self.segment.is_some_and(|size| j / size != position / size)
                    {
                        continue;
                    }
                    let at = self.element(sequence, j, kv_head);
                    let score: f64 =
                        (0..q.len()).map(|d| f64::from(q[d]) * f64::from(keys[at + d])).sum();
                    let weight = (score * 0.5).exp();
                    total += weight;
                    for (d, sum) in sums.iter_mut().enumerate() {
                        *sum += weight * f64::from(values[at + d]);
                    }
                }
                out.extend(sums.iter().map(|sum| sum / total));
            }
        }
        out
    }
}

fn stored(kv: KvDtype, values: &[f32], head_dim: usize) -> Vec<u8> {
    let heads = values.chunks_exact(head_dim);
    let mut bytes = vec![0; heads.len() * kv.head_bytes(head_dim)];
    for (head, bytes) in heads.zip(bytes.chunks_exact_mut(kv.head_bytes(head_dim))) {
        store(kv, head, bytes);
    }
    bytes
}

fn with_threads<R>(threads: usize, work: impl FnOnce() -> R) -> R {
    Pool::new(threads).unwrap().install(work)
}

#[test]
fn agrees_with_f64_for_random_shapes_windows_and_blocks() {
    for seed in some_of(0..120) {
        let kept = if seed < 80 { Case::random } else { Case::coded };
        let case = kept(&mut Random::new(seed));
        let exact = case.exact();
        for tier in Tier::all() {
            for (found, exact) in case.run(tier).into_iter().zip(&exact) {
                let error = (f64::from(found) - exact).abs();
                assert!(error < 1e-5, "seed {seed} {tier:?}: {found} {exact}");
            }
        }
    }
}

#[test]
fn segments_and_sinks_agree_with_f64_and_no_chunk_or_thread_changes_a_bit() {
    for seed in some_of(0..40) {
        let mut random = Random::new(seed);
        let case = Case::random(&mut random).with_more(&mut random);
        let exact = case.exact();
        for tier in Tier::all() {
            for (found, exact) in case.run(tier).into_iter().zip(&exact) {
                let error = (f64::from(found) - exact).abs();
                assert!(error < 1e-5, "seed {seed} {tier:?}: {found} {exact}");
            }
        }
        let case = Case::prompt(&mut random, SPAN - 30, 60).with_more(&mut random);
        let whole = with_threads(1, || case.run(Tier::detect()));
        assert!(with_threads(3, || case.run(Tier::detect())) == whole, "seed {seed}");
        let rows = |row: usize| case.run_rows(Tier::detect(), row..(row + 7).min(60));
        assert!((0..60).step_by(7).flat_map(rows).collect::<Vec<_>>() == whole, "seed {seed}");
    }
}

#[test]
fn fused_tiers_agree_to_the_bit() {
    type Made = fn(&mut Random) -> Case;
    let kinds: [(Made, u64); 2] =
        [(Case::random, 0xbfca_22ea_b024_4dc0), (Case::coded, 0x54e4_fdd1_357f_7bac)];
    for (kept, expected) in kinds {
        let cases: Vec<Case> = (0..50).map(|seed| kept(&mut Random::new(seed))).collect();
        for tier in Tier::fused() {
            let all: Vec<f32> = cases.iter().flat_map(|case| case.run(tier)).collect();
            let found = digest(&all);
            assert_eq!(found, expected, "{tier:?}: {found:#018x}");
        }
    }
}

#[test]
fn chunks_and_threads_do_not_change_a_bit() {
    let all = [(1, 0), (2, 3), (3, SPAN - 50), (4, 2 * SPAN - 1), (5, SPAN - 50)];
    for (seed, first) in some_of(all) {
        let mut random = Random::new(seed);
        let case = if seed < 5 { Case::random(&mut random) } else { Case::coded(&mut random) };
        let case = case.of_prompt(&mut random, first, 150);
        for tier in Tier::all() {
            let whole = with_threads(1, || case.run(tier));
            for threads in [2, 3, 16] {
                let same = with_threads(threads, || case.run(tier)) == whole;
                assert!(same, "seed {seed} {tier:?}: {threads} threads");
            }
            for chunk in [1, 2, 7, 16, 64] {
                let cut: Vec<f32> = (0..150)
                    .step_by(chunk)
                    .flat_map(|row| case.run_rows(tier, row..(row + chunk).min(150)))
                    .collect();
                assert!(cut == whole, "seed {seed} {tier:?}: chunks of {chunk}");
            }
        }
    }
}

#[test]
fn rows_of_different_sequences_do_not_change_a_bit() {
    for seed in some_of(0..40) {
        let kept = if seed < 30 { Case::random } else { Case::coded };
        let case = kept(&mut Random::new(seed));
        for tier in Tier::all() {
            let alone = (0..case.rows.len()).flat_map(|row| case.run_rows(tier, row..row + 1));
            assert!(case.run(tier) == alone.collect::<Vec<_>>(), "seed {seed} {tier:?}");
        }
    }
}

#[test]
fn what_lies_past_a_row_or_before_its_window_is_not_seen() {
    let mut case = Case::prompt(&mut Random::new(5), 60, 20);
    case.window = Some(30);
    let rows = 5..15;
    let before = case.run_rows(Tier::detect(), rows.clone());
    let (mut keys, mut values) = (case.widened(&case.keys), case.widened(&case.values));
    for position in (0..=65 - 30).chain(75..POSITIONS) {
        for kv_head in 0..case.kv_heads {
            let start = case.element(0, position, kv_head);
            keys[start..start + case.head_dim].fill(f32::NAN);
            values[start..start + case.head_dim].fill(f32::NAN);
        }
    }
    let again = |numbers: &[f32]| stored(case.kv, numbers, case.head_dim);
    (case.keys, case.values) = (again(&keys), again(&values));
    assert_eq!(case.run_rows(Tier::detect(), rows), before);
    assert!(case.run_rows(Tier::detect(), 15..16).iter().any(|value| value.is_nan()));
}
