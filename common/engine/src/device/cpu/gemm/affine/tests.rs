//! Every tier and shape against f64, and what must not change a bit.

use cake_checkpoint::FloatType;

use super::exact::dequantize;
use super::plain::Words;
use crate::device::cpu::element::{Bf16, Element, F16, F32};
use crate::device::cpu::gemm::case::RowClass;
use crate::device::cpu::gemm::table::choose;
use crate::device::cpu::gemm::weight::{Acts, AffineMatrix, Bits, Weight};
use crate::device::cpu::isa::tier::Tier;
use crate::device::cpu::pool::Pool;
use crate::options::Numerics;
use crate::testing::{Random, digest, product, rounded, some_of, widened};

/// Relative to the sum of absolute products: 2^-24 per rounding, some hundred in a row at most.
const TOLERANCE: f64 = 1e-5;

/// A random matrix at odd addresses.
struct Stored {
    codes: Vec<u8>,
    scales: Vec<u8>,
    biases: Vec<u8>,
    params: FloatType,
    bits: Bits,
    acts: Acts,
    group: usize,
    inputs: usize,
}

/// Width of codes, and what they are multiplied with; codes of a group; the type of scales and biases.
type Kind = ((Bits, Acts), usize, FloatType);

fn store(float: FloatType, values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; 1 + values.len() * float.bytes()];
    match float {
        FloatType::F32 => F32::store(values, &mut bytes[1..]),
        FloatType::F16 => F16::store(values, &mut bytes[1..]),
        FloatType::BF16 => Bf16::store(values, &mut bytes[1..]),
    }
    bytes
}

fn signed(random: &mut Random, len: usize) -> Vec<f32> {
    (0..len).map(|_| random.signed()).collect()
}

impl Stored {
    fn random(
        random: &mut Random,
        (outputs, inputs): (usize, usize),
        ((bits, acts), group, params): Kind,
    ) -> Stored {
        let code_bytes = outputs * inputs / bits.per_byte();
        let below = if bits == Bits::Six { 64 } else { 256 };
        let codes = (0..1 + code_bytes).map(|_| random.below(below) as u8).collect();
        let param_count = outputs * inputs / group;
        let scales = store(params, &signed(random, param_count));
        let biases = store(params, &signed(random, param_count));
        Stored { codes, scales, biases, params, bits, acts, group, inputs }
    }

    fn matrix(&self) -> AffineMatrix<'_> {
        AffineMatrix {
            codes: &self.codes[1..],
            scales: &self.scales[1..],
            biases: &self.biases[1..],
            params: self.params,
            bits: self.bits,
            acts: self.acts,
            group: self.group,
            inputs: self.inputs,
        }
    }

    /// Code, scale and bias of every weight, from the definition.
    fn weights(&self) -> Vec<(f64, f64, f64)> {
        let widen = |bytes: &[u8]| widened(self.params, &bytes[1..]);
        let (scales, biases) = (widen(&self.scales), widen(&self.biases));
        let code = |at: usize| match self.bits {
            Bits::Four => (self.codes[1 + at / 2] >> (4 * (at % 2))) & 0xf,
            Bits::Six | Bits::Eight => self.codes[1 + at],
        };
        let count = scales.len() * self.group;
        let params = |at: usize| (scales[at / self.group], biases[at / self.group]);
        (0..count)
            .map(|at| (f64::from(code(at)), f64::from(params(at).0), f64::from(params(at).1)))
            .collect()
    }
}

/// Every kind of matrix.
fn kinds() -> impl Iterator<Item = Kind> {
    let floats = [FloatType::F32, FloatType::F16, FloatType::BF16];
    let narrow = [Bits::Four, Bits::Six].into_iter();
    let codes = narrow.flat_map(|bits| [(bits, Acts::Bytes), (bits, Acts::Words)]);
    codes.chain([(Bits::Eight, Acts::Words)]).flat_map(move |bits| {
        [32, 64, 128]
            .into_iter()
            .flat_map(move |group| floats.into_iter().map(move |float| (bits, group, float)))
    })
}

/// Every kind of codes in groups of every size, with scales of one type each, in turn.
fn a_third() -> impl Iterator<Item = Kind> {
    let is_one = |i: usize| (i / 9 + i / 3) % 3 == i % 3;
    kinds().enumerate().filter(move |(i, _)| is_one(*i)).map(|(_, kind)| kind)
}

fn multiply(
    tier: Tier,
    numerics: Numerics,
    stored: &Stored,
    bias: Option<&[f32]>,
    x: &[f32],
) -> Vec<f32> {
    let weight = Weight::Affine(stored.matrix());
    let kernel = choose(tier, weight.kind(), RowClass::Decode, numerics);
    product(kernel, tier, weight, bias, x)
}

#[test]
fn agrees_with_f64_for_odd_shapes_kinds_and_addresses() {
    let mut random = Random::new(21);
    for case in some_of(0..8) {
        for kind in kinds() {
            let shape = (1 + random.below(90), kind.1 * (1 + random.below(40)));
            let rows = 1 + random.below(20);
            let (outputs, inputs) = shape;
            let stored = Stored::random(&mut random, shape, kind);
            let bias = signed(&mut random, outputs);
            let x = signed(&mut random, rows * inputs);
            let weights = stored.weights();
            for numerics in [Numerics::Exact, Numerics::Fast] {
                let seen: Vec<f64> = match numerics {
                    Numerics::Exact => x.iter().map(|&x| f64::from(x)).collect(),
                    Numerics::Fast | Numerics::Int8 => rounded(&x, kind.1, kind.0.1),
                };
                let results: Vec<Vec<f32>> = Tier::all()
                    .into_iter()
                    .map(|tier| multiply(tier, numerics, &stored, Some(&bias), &x))
                    .collect();
                for at in 0..rows * outputs {
                    let (row, output) = (at / outputs, at % outputs);
                    let mut exact = f64::from(bias[output]);
                    let mut size = exact.abs();
                    for input in 0..inputs {
                        let (code, scale, bias) = weights[output * inputs + input];
                        let x = seen[row * inputs + input];
                        exact += (scale * code + bias) * x;
                        size += (scale * code * x).abs() + (bias * x).abs();
                    }
                    for (result, tier) in results.iter().zip(Tier::all()) {
                        assert!(
                            (f64::from(result[at]) - exact).abs() <= TOLERANCE * size,
                            "case {case} {numerics:?} {kind:?} {shape:?} {tier:?} {at}: {} {exact}",
                            result[at],
                        );
                    }
                }
            }
        }
    }
}

/// Numbers of threads, and of rows that they share: one of these for each kind, in turn.
const SHARED_OUT: [(usize, &[usize]); 3] = [(2, &[1, 6, 110]), (3, &[1, 6]), (5, &[6, 100, 110])];

#[test]
fn tiers_rows_and_threads_do_not_change_a_bit() {
    let mut random = Random::new(22);
    for (index, kind) in some_of(a_third()).enumerate() {
        // Three kinds in turn have groups of each size, and scales of each type: each meets each of these.
        let (threads, shared) = SHARED_OUT[(index + 2 * (index / 3)) % SHARED_OUT.len()];
        // Several strips of outputs for every task, one way or the other.
        let (outputs, inputs) = match kind.1 {
            64 => (597, kind.1 * 17),
            _ => (149, kind.1 * 35),
        };
        let stored = Stored::random(&mut random, (outputs, inputs), kind);
        let bias = signed(&mut random, outputs);
        let x = signed(&mut random, 110 * inputs);
        for numerics in [Numerics::Exact, Numerics::Fast] {
            let product = |tier, x: &[f32]| multiply(tier, numerics, &stored, Some(&bias), x);
            let mut fused = None;
            for tier in Tier::all() {
                let together = product(tier, &x);
                for rows in [1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 40] {
                    let some = product(tier, &x[..rows * inputs]);
                    assert!(together[..rows * outputs] == some, "{tier:?} {kind:?} {rows} rows");
                }
                let pool = Pool::new(threads).unwrap();
                for &rows in shared {
                    let again = pool.install(|| product(tier, &x[..rows * inputs]));
                    let same = together[..rows * outputs] == again;
                    assert!(same, "{tier:?} {kind:?} {threads} threads, {rows} rows");
                }
                if tier.is_fused() {
                    let first = fused.get_or_insert_with(|| together.clone());
                    assert!(*first == together, "{tier:?} {numerics:?} {kind:?}");
                }
            }
        }
    }
}

#[test]
fn instructions_for_bytes_do_not_change_a_bit() {
    let mut random = Random::new(23);
    for kind in kinds() {
        let stored = Stored::random(&mut random, (77, kind.1 * 19), kind);
        let x = signed(&mut random, 13 * stored.inputs);
        for tier in Tier::all().iter().copied().filter(|tier| tier.is_fused()) {
            let with = multiply(tier, Numerics::Fast, &stored, None, &x);
            let weight = Weight::Affine(stored.matrix());
            let without = product(&Words, tier, weight, None, &x);
            assert!(with == without, "{tier:?} {kind:?}");
            // Where there are tiles the table does not give it affine matrices.
            #[cfg(target_arch = "x86_64")]
            if tier.avx2().is_some() {
                let lanes = product(&super::avx2::WordPairs, tier, weight, None, &x);
                assert!(lanes == without, "{tier:?} {kind:?}");
            }
        }
    }
}

#[test]
fn the_largest_sums_of_products_do_not_overflow() {
    for kind in kinds() {
        let mut stored = Stored::random(&mut Random::new(27), (33, 2 * kind.1), kind);
        let (byte, code) = match kind.0.0 {
            Bits::Four => (255, 15.0),
            Bits::Six => (63, 63.0),
            Bits::Eight => (255, 255.0),
        };
        stored.codes.fill(byte);
        stored.scales = store(kind.2, &[1.0; 66]);
        stored.biases = store(kind.2, &[0.0; 66]);
        for one in [1.0, -1.0] {
            let x = vec![one; 5 * stored.inputs];
            let expected = one * code * stored.inputs as f32;
            for tier in Tier::all() {
                let y = multiply(tier, Numerics::Fast, &stored, None, &x);
                let near = |y: &f32| (y - expected).abs() <= expected.abs() * TOLERANCE as f32;
                assert!(y.iter().all(near), "{tier:?} {kind:?}: {} {expected}", y[0]);
            }
        }
    }
}

#[test]
fn what_is_not_finite_stays_so_and_stays_in_its_row() {
    let mut random = Random::new(24);
    for kind in kinds() {
        let stored = Stored::random(&mut random, (33, kind.1 * 3), kind);
        let mut x = signed(&mut random, 3 * stored.inputs);
        x[stored.inputs + 70 % stored.inputs] = f32::INFINITY;
        x[2 * stored.inputs + 5] = f32::NAN;
        for tier in Tier::all() {
            for numerics in [Numerics::Exact, Numerics::Fast] {
                let y = multiply(tier, numerics, &stored, None, &x);
                assert!(y[..33].iter().all(|y| y.is_finite()), "{tier:?} {kind:?}");
                assert!(y[33..].iter().all(|y| !y.is_finite()), "{tier:?} {kind:?}");
            }
        }
    }
}

#[test]
fn more_rows_than_pass_at_a_time_do_not_change_a_bit() {
    let mut random = Random::new(26);
    for acts in [Acts::Words, Acts::Bytes] {
        let stored =
            Stored::random(&mut random, (150, 128), ((Bits::Four, acts), 32, FloatType::F16));
        // 32 tiles of 16 rows, two more, and a row.
        let x = signed(&mut random, 545 * stored.inputs);
        for tier in Tier::all().iter().copied().filter(|tier| tier.is_fused()) {
            let found = multiply(tier, Numerics::Fast, &stored, None, &x);
            let plain = product(&Words, tier, Weight::Affine(stored.matrix()), None, &x);
            assert!(found == plain, "{tier:?} {acts:?}");
        }
    }
}

#[test]
fn zeros_give_the_bias_and_no_rows_give_nothing() {
    let mut random = Random::new(25);
    let stored =
        Stored::random(&mut random, (20, 64), ((Bits::Four, Acts::Bytes), 32, FloatType::F16));
    let bias = signed(&mut random, 20);
    for tier in Tier::all() {
        for numerics in [Numerics::Exact, Numerics::Fast] {
            let product = |x: &[f32]| multiply(tier, numerics, &stored, Some(&bias), x);
            assert_eq!(product(&[0.0; 64]), bias);
            assert_eq!(product(&[]), [0.0; 0]);
        }
    }
}

#[test]
fn widens_as_documented() {
    // Codes 0 1 2 3 4 5 6 15 and so on, scale 0.5, bias -2.
    let mut codes = vec![0x10, 0x32, 0x54, 0xf6];
    codes.resize(16, 0);
    let (scales, biases) = (0.5f32.to_le_bytes(), (-2f32).to_le_bytes());
    let matrix = AffineMatrix {
        codes: &codes,
        scales: &scales,
        biases: &biases,
        params: FloatType::F32,
        bits: Bits::Four,
        acts: Acts::Words,
        group: 32,
        inputs: 32,
    };
    for tier in Tier::all() {
        let values = dequantize(tier, matrix);
        assert_eq!(values[..9], [-2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 5.5, -2.0]);
        let eight =
            AffineMatrix { codes: &[1, 128, 255, 0].repeat(8), bits: Bits::Eight, ..matrix };
        assert_eq!(dequantize(tier, eight)[..4], [-1.5, 62.0, 125.5, -2.0]);
    }
}

#[test]
fn some_rows_are_those_rows() {
    let mut random = Random::new(26);
    for kind in kinds() {
        let stored = Stored::random(&mut random, (9, 2 * kind.1), kind);
        let tier = Tier::detect();
        let all = dequantize(tier, stored.matrix());
        let some = stored.matrix().rows(3..7);
        assert_eq!(some.outputs(), 4);
        assert_eq!(dequantize(tier, some), all[3 * stored.inputs..7 * stored.inputs]);
        for (found, (code, scale, bias)) in all.iter().zip(stored.weights()) {
            assert!((f64::from(*found) - (scale * code + bias)).abs() < 1e-4);
        }
    }
}

#[test]
fn fused_tiers_agree_to_the_bit() {
    for (numerics, expected) in
        [(Numerics::Exact, 0xbbfa_4b6d_d4f3_5fea), (Numerics::Fast, 0x5d4c_4f6c_73ea_6648)]
    {
        let mut random = Random::new(27);
        let mut cases = Vec::new();
        for kind in kinds() {
            let shape = (37, kind.1 * 5);
            let stored = Stored::random(&mut random, shape, kind);
            cases.push((stored, signed(&mut random, 6 * shape.1)));
        }
        for tier in Tier::fused() {
            let product =
                |(stored, x): &(Stored, Vec<f32>)| multiply(tier, numerics, stored, None, x);
            let found = digest(&cases.iter().flat_map(product).collect::<Vec<_>>());
            assert_eq!(found, expected, "{numerics:?} {tier:?}: {found:#018x}");
        }
    }
}

#[test]
fn what_a_thread_computed_before_does_not_matter() {
    let mut random = Random::new(28);
    // Its last tile of outputs, its last group and its rows fill no tile.
    let kinds = [((Bits::Eight, Acts::Words), 32), ((Bits::Four, Acts::Bytes), 64)];
    for (bits, group) in kinds {
        let large = Stored::random(&mut random, (300, group * 40), (bits, group, FloatType::F16));
        let small = Stored::random(&mut random, (37, group * 3), (bits, group, FloatType::F16));
        let infinite = vec![f32::INFINITY; 21 * group * 40];
        let x = signed(&mut random, 21 * group * 3);
        for tier in Tier::all() {
            let product =
                |stored: &Stored, x: &[f32]| multiply(tier, Numerics::Fast, stored, None, x);
            let on_a_new_thread = |dirty: bool| {
                std::thread::scope(|scope| {
                    let run = scope.spawn(|| {
                        if dirty {
                            product(&large, &infinite);
                        }
                        product(&small, &x)
                    });
                    run.join().unwrap()
                })
            };
            assert_eq!(on_a_new_thread(true), on_a_new_thread(false), "{tier:?} {bits:?} {group}");
        }
    }
}
