//! All GEMM and GEMV kernels. The first entry that takes a case computes it, for one row of activations as for many:
//!
//! | kernel | processor | weights | rows | numerics | activations | bits |
//! |---|---|---|---|---|---|---|
//! | `bf16-tiles` | AMX | bf16 | prefill, one bf16 | fast | tiles of one bf16 | tiles |
//! | `bf16x2-tiles` | AMX | bf16 | prefill, two bf16 | fast | tiles of two bf16 | tiles |
//! | `narrow-bf16-tiles` | AMX | bf16 | decode | fast | narrow tiles of two bf16 | tiles |
//! | `rounded-affine-tiles` | AMX | affine, rounded to bf16 | prefill, one bf16, as are the weights | fast | tiles of one bf16 | tiles |
//! | `bf16-pairs` | AVX512-BF16 | bf16 | prefill, one bf16 | fast | pairs of one bf16 | pairs |
//! | `bf16x2-pairs` | AVX512-BF16 | bf16 | prefill, two bf16 | fast | pairs of two bf16 | pairs |
//! | `affine-tiles` | AMX | affine | any | fast | codes of 16 bits as bytes, as tiles from four rows on | common |
//! | `affine-avx2` | AVX2, AVX-512; wider with AVX512-VNNI | affine | any | fast | codes of 16 bits, in the order of vectors of words or as bytes | common |
//! | `affine-words` | any; on ARM with dot products of bytes where there are | affine | any | fast | codes of 16 bits | common |
//! | `affine-dequantized` | any | affine | any | exact | f32 | common |
//! | `in-place` | as `affine-avx2`; AMX beside rows of decode, and groups of 16 | GGUF's blocks, MXFP4, NVFP4, affine streams of 2, 3, 5 and 6 bits | any | fast | as there | common |
//! | `unpacked-tiles` | AMX | others, as codes with a scale per 32 | any | fast | codes of 16 bits as bytes, as tiles from four rows on | common |
//! | `unpacked-avx2` | as `affine-avx2`, AMX | others, as codes | any | fast | as there | common |
//! | `unpacked-words` | as `affine-words` | others, as codes | any | fast | codes of 16 bits | common |
//! | `fp8` | any | FP8 (E4M3) with scales | any | any | f32 | common |
//! | `decoded` | any | others | any | any | f32 | common |
//! | `float` | any | f32, f16, bf16 | any | any | f32 | common |
//!
//! Where numerics are `int8`, which takes what `fast` does here, codes of activations have 8 bits instead of 16 in MLPs
//! beside codes of weights that are below 64.
//!
//! How many rows travel together chooses nothing here: it may change the loops inside of a kernel, not one bit.

use cake_checkpoint::FloatType;

#[cfg(target_arch = "x86_64")]
use super::affine::{avx2, tiles};
use super::affine::{exact, plain};
#[cfg(target_arch = "x86_64")]
use super::amx::float::{few::NarrowTiles, prompt::PromptTiles};
use super::case::{Case, RowClass};
use super::coded::{Decoded, UNPACKED, Unpacked};
use super::float;
use super::fp8::Fp8;
#[cfg(target_arch = "x86_64")]
use super::panel;
use super::product::{Gemm, Scratch};
use super::weight::{SHORT_GROUP, WeightKind};
use crate::device::cpu::isa::instructions::Isa;
use crate::device::cpu::isa::tier::Tier;
use crate::options::{Numerics, Precision};

/// Kernels whose products have the same bits, on processors whose multiply-add rounds once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BitClass {
    /// Products that every such processor computes alike.
    Common,
    /// Products by `vdpbf16ps`, which multiplies pairs of bf16.
    Pairs,
    /// Products by `tdpbf16ps`, which multiplies tiles of bf16.
    Tiles,
}

/// One GEMM kernel.
pub(crate) struct Entry {
    #[cfg_attr(not(test), allow(dead_code, reason = "for people who debug, and for tests"))]
    pub(crate) name: &'static str,
    takes: fn(&Case) -> bool,
    pub(crate) bits: BitClass,
    /// Nothing where this program's architecture lacks the instructions: other processors of a plan may have them, and
    /// [`Entry::bits`] is asked about them.
    kernel: Option<&'static dyn Gemm>,
}

/// A kernel that only processors of x86-64 have.
macro_rules! x86 {
    ($kernel:expr) => {{
        #[cfg(target_arch = "x86_64")]
        let kernel: Option<&'static dyn Gemm> = Some(&$kernel);
        #[cfg(not(target_arch = "x86_64"))]
        let kernel: Option<&'static dyn Gemm> = None;
        kernel
    }};
}

/// The table.
pub(crate) static GEMMS: &[Entry] = &[
    Entry {
        name: "bf16-tiles",
        takes: |case| case.isa == Isa::Amx && is_bf16(case) && one_bf16(case),
        bits: BitClass::Tiles,
        kernel: x86!(PromptTiles { precision: Precision::Bf16 }),
    },
    Entry {
        name: "bf16x2-tiles",
        takes: |case| case.isa == Isa::Amx && is_bf16(case) && two_bf16(case),
        bits: BitClass::Tiles,
        kernel: x86!(PromptTiles { precision: Precision::Bf16x2 }),
    },
    Entry {
        name: "narrow-bf16-tiles",
        takes: |case| case.isa == Isa::Amx && is_bf16(case) && is_fast(case),
        bits: BitClass::Tiles,
        kernel: x86!(NarrowTiles),
    },
    Entry {
        name: "rounded-affine-tiles",
        takes: |case| {
            let rounded = RowClass::Prefill(Precision::Bf16Both);
            case.isa == Isa::Amx && is_affine(case) && is_fast(case) && case.rows == rounded
        },
        bits: BitClass::Tiles,
        kernel: x86!(PromptTiles { precision: Precision::Bf16 }),
    },
    Entry {
        name: "bf16-pairs",
        takes: |case| has_pairs(case) && is_bf16(case) && one_bf16(case),
        bits: BitClass::Pairs,
        kernel: x86!(panel::Pairs { precision: Precision::Bf16 }),
    },
    Entry {
        name: "bf16x2-pairs",
        takes: |case| has_pairs(case) && is_bf16(case) && two_bf16(case),
        bits: BitClass::Pairs,
        kernel: x86!(panel::Pairs { precision: Precision::Bf16x2 }),
    },
    Entry {
        name: "affine-tiles",
        takes: |case| case.isa == Isa::Amx && is_affine(case) && is_fast(case),
        bits: BitClass::Common,
        kernel: x86!(tiles::ByteTiles),
    },
    Entry {
        name: "affine-avx2",
        takes: |case| has_avx2(case) && is_affine(case) && is_fast(case),
        bits: BitClass::Common,
        kernel: x86!(avx2::WordPairs),
    },
    Entry {
        name: "affine-words",
        takes: |case| is_affine(case) && is_fast(case),
        bits: BitClass::Common,
        kernel: Some(&plain::Words),
    },
    Entry {
        name: "affine-dequantized",
        takes: is_affine,
        bits: BitClass::Common,
        kernel: Some(&exact::Dequantized),
    },
    Entry {
        name: "in-place",
        takes: |case| {
            // Unpacking is far slower than memory; rows of a prompt share it. Short groups are for no tiles.
            let is_short = unpacked(case) == Some(SHORT_GROUP);
            let untiled = case.isa == Isa::Amx && (case.rows == RowClass::Decode || is_short);
            (has_avx2(case) || untiled) && is_fast(case) && is_in_place(case)
        },
        bits: BitClass::Common,
        kernel: x86!(avx2::InPlacePairs),
    },
    Entry {
        name: "unpacked-tiles",
        takes: |case| {
            case.isa == Isa::Amx && is_fast(case) && unpacked(case).is_some_and(|group| group >= 32)
        },
        bits: BitClass::Common,
        // Tile registers multiply so fast that activations, read once for all of these, are what they wait for.
        kernel: x86!(Unpacked { kernel: tiles::ByteTiles, outputs: 2 * UNPACKED }),
    },
    Entry {
        name: "unpacked-avx2",
        takes: |case| {
            (case.isa == Isa::Amx || has_avx2(case)) && is_fast(case) && unpacked(case).is_some()
        },
        bits: BitClass::Common,
        kernel: x86!(Unpacked { kernel: avx2::WordPairs, outputs: UNPACKED }),
    },
    Entry {
        name: "unpacked-words",
        takes: |case| is_fast(case) && unpacked(case).is_some(),
        bits: BitClass::Common,
        kernel: Some(&Unpacked { kernel: plain::Words, outputs: UNPACKED }),
    },
    Entry {
        name: "fp8",
        takes: |case| case.weight == WeightKind::Fp8,
        bits: BitClass::Common,
        kernel: Some(&Fp8),
    },
    Entry {
        name: "decoded",
        takes: |case| matches!(case.weight, WeightKind::Coded { .. }),
        bits: BitClass::Common,
        kernel: Some(&Decoded),
    },
    Entry { name: "float", takes: is_float, bits: BitClass::Common, kernel: Some(&float::Float) },
];

fn is_fast(case: &Case) -> bool {
    case.numerics.rounds()
}

/// Whether rows of a prompt may be rounded to one bf16. Beside weights in bf16 there is nothing more to round.
fn one_bf16(case: &Case) -> bool {
    let one = RowClass::Prefill(Precision::Bf16);
    is_fast(case) && (case.rows == one || case.rows == RowClass::Prefill(Precision::Bf16Both))
}

/// Whether rows of a prompt may be rounded to the sum of two bf16.
fn two_bf16(case: &Case) -> bool {
    is_fast(case) && case.rows == RowClass::Prefill(Precision::Bf16x2)
}

fn is_float(case: &Case) -> bool {
    matches!(case.weight, WeightKind::Float(_))
}

fn is_bf16(case: &Case) -> bool {
    case.weight == WeightKind::Float(FloatType::BF16)
}

fn is_affine(case: &Case) -> bool {
    matches!(case.weight, WeightKind::Affine(_))
}

/// Weights that share a scale and a bias where they are unpacked.
fn unpacked(case: &Case) -> Option<usize> {
    match case.weight {
        WeightKind::Coded { group, .. } => group,
        _ => None,
    }
}

/// What has an [`InPlace`](super::weight::InPlace): all of these there are kernels for.
fn is_in_place(case: &Case) -> bool {
    matches!(case.weight, WeightKind::Coded { in_place: Some(_), .. })
}

fn has_pairs(case: &Case) -> bool {
    matches!(case.isa, Isa::Avx512 { bf16: true, .. })
}

/// Processors with AVX-512 have AVX2, too.
fn has_avx2(case: &Case) -> bool {
    matches!(case.isa, Isa::Avx2 | Isa::Avx512 { .. })
}

/// The entry that computes such products.
pub(crate) fn entry(case: &Case) -> &'static Entry {
    let found = GEMMS.iter().find(|entry| (entry.takes)(case));
    found.expect("the last entries take whatever is affine, whatever is a number, and all else")
}

/// The kernel of this processor for such products.
pub(crate) fn choose(
    tier: Tier,
    weight: WeightKind,
    rows: RowClass,
    numerics: Numerics,
) -> &'static dyn Gemm {
    let entry = entry(&Case { isa: tier.isa(), weight, rows, numerics });
    entry.kernel.expect("a program has the kernels for all processors that can run it")
}

/// Upper bounds for all kernels of this program: of the bytes of activations prepared in any one form, and of what a
/// thread keeps that computed with every kernel.
pub(crate) fn scratch(inputs: u64, rows: u64) -> Scratch {
    merged(GEMMS.iter().filter_map(|entry| Some(entry.kernel?.scratch(inputs, rows))))
}

/// The activations of one kernel, those with the most, and the buffers of all: of kernels that share theirs, the
/// largest.
fn merged(all: impl Iterator<Item = Scratch>) -> Scratch {
    let mut kept: Vec<Scratch> = Vec::new();
    let mut most = Scratch::default();
    for scratch in all {
        most.activations = most.activations.max(scratch.activations);
        match kept.iter_mut().find(|other| other.buffers == scratch.buffers) {
            Some(shared) => shared.thread = shared.thread.max(scratch.thread),
            None => kept.push(scratch),
        }
    }
    most.thread = kept.iter().map(|scratch| scratch.thread).fold(0, u64::saturating_add);
    most
}

#[cfg(test)]
mod tests {
    use cake_checkpoint::{Fp4, GgmlType};

    use super::*;
    use crate::device::cpu::gemm::weight::{Acts, Bits, CodeForm, InPlace};

    const PREFILL: [RowClass; 3] = [
        RowClass::Prefill(Precision::Bf16),
        RowClass::Prefill(Precision::Bf16Both),
        RowClass::Prefill(Precision::Bf16x2),
    ];

    fn names(isa: Isa, weight: WeightKind, numerics: Numerics) -> Vec<&'static str> {
        let rows = PREFILL.into_iter().chain([RowClass::Decode]);
        rows.map(|rows| entry(&Case { isa, weight, rows, numerics }).name).collect()
    }

    #[test]
    fn every_case_has_the_kernel_that_the_documentation_says() {
        let (fast, exact) = (Numerics::Fast, Numerics::Exact);
        let bf16 = WeightKind::Float(FloatType::BF16);
        let acts = Acts::Words;
        let affine = WeightKind::Affine(CodeForm { bits: Bits::Four, group: 64, acts });
        let avx512 = |bf16, vnni| Isa::Avx512 { bf16, vnni };
        let tiles = ["bf16-tiles", "bf16-tiles", "bf16x2-tiles", "narrow-bf16-tiles"];
        assert_eq!(names(Isa::Amx, bf16, fast), tiles);
        let pairs = ["bf16-pairs", "bf16-pairs", "bf16x2-pairs", "float"];
        assert_eq!(names(avx512(true, false), bf16, fast), pairs);
        let bytes = ["affine-tiles", "rounded-affine-tiles", "affine-tiles", "affine-tiles"];
        assert_eq!(names(Isa::Amx, affine, fast), bytes);
        assert_eq!(names(avx512(false, true), affine, fast), ["affine-avx2"; 4]);
        assert_eq!(names(avx512(true, false), affine, fast), ["affine-avx2"; 4]);
        for isa in [Isa::Avx2, avx512(false, false)] {
            assert_eq!(names(isa, bf16, fast), ["float"; 4]);
            assert_eq!(names(isa, affine, fast), ["affine-avx2"; 4]);
        }
        for isa in [Isa::Portable { fused: false }, Isa::Neon] {
            assert_eq!(names(isa, bf16, fast), ["float"; 4]);
            assert_eq!(names(isa, affine, fast), ["affine-words"; 4]);
        }
        let coded = |group, in_place| WeightKind::Coded { group, is_narrow: true, acts, in_place };
        let [long, short, none] = [Some(32), Some(16), None].map(|group| coded(group, None));
        assert_eq!(names(Isa::Amx, long, fast), ["unpacked-tiles"; 4]);
        assert_eq!(names(Isa::Amx, short, fast), ["unpacked-avx2"; 4]);
        assert_eq!(names(avx512(true, true), long, fast), ["unpacked-avx2"; 4]);
        assert_eq!(names(avx512(true, false), short, fast), ["unpacked-avx2"; 4]);
        assert_eq!(names(Isa::Neon, long, fast), ["unpacked-words"; 4]);
        assert_eq!(names(Isa::Amx, none, fast), ["decoded"; 4]);
        assert_eq!(names(Isa::Avx2, short, fast), ["unpacked-avx2"; 4]);
        let blocks = coded(Some(32), Some(InPlace::Blocks(GgmlType::Q4K)));
        let apart = coded(Some(16), Some(InPlace::Fp4(Fp4::Nv)));
        let stream = coded(Some(64), Some(InPlace::Stream { bits: 6 }));
        // Unpacking is for rows of a prompt, which share it.
        let beside_one = ["unpacked-tiles", "unpacked-tiles", "unpacked-tiles", "in-place"];
        assert_eq!(names(Isa::Amx, stream, fast), beside_one);
        assert_eq!(names(Isa::Amx, blocks, fast), beside_one);
        assert_eq!(names(Isa::Amx, apart, fast), ["in-place"; 4]);
        for kind in [blocks, apart, stream] {
            assert_eq!(names(Isa::Avx2, kind, fast), ["in-place"; 4]);
            assert_eq!(names(avx512(true, false), kind, fast), ["in-place"; 4]);
            assert_eq!(names(avx512(false, true), kind, fast), ["in-place"; 4]);
            assert_eq!(names(Isa::Neon, kind, fast), ["unpacked-words"; 4]);
            assert_eq!(names(Isa::Avx2, kind, exact), ["decoded"; 4]);
        }
        for isa in [Isa::Amx, avx512(true, true), Isa::Neon] {
            assert_eq!(names(isa, long, exact), ["decoded"; 4]);
            for numerics in [fast, exact] {
                assert_eq!(names(isa, WeightKind::Fp8, numerics), ["fp8"; 4]);
            }
            assert_eq!(names(isa, bf16, exact), ["float"; 4]);
            assert_eq!(names(isa, affine, exact), ["affine-dequantized"; 4]);
            for float in [FloatType::F32, FloatType::F16] {
                assert_eq!(names(isa, WeightKind::Float(float), fast), ["float"; 4]);
            }
        }
    }

    #[test]
    fn kernels_that_share_buffers_count_as_the_largest() {
        let scratch = |activations, thread, buffers| Scratch { activations, thread, buffers };
        let all = [scratch(3, 5, "a"), scratch(8, 7, "b"), scratch(4, 6, "a"), scratch(1, 2, "b")];
        let merged = merged(all.into_iter());
        assert_eq!((merged.activations, merged.thread), (8, 13));
    }

    #[test]
    fn the_table_of_the_documentation_has_the_entries_in_their_order() {
        let rows = include_str!("table.rs").lines().filter_map(|line| line.strip_prefix("//! | `"));
        let documented: Vec<&str> = rows.filter_map(|row| Some(row.split_once('`')?.0)).collect();
        let entries: Vec<&str> = GEMMS.iter().map(|entry| entry.name).collect();
        assert_eq!(documented, entries);
    }

    #[test]
    fn every_tier_of_this_processor_has_every_kernel_that_it_is_given() {
        let (bits, acts) = (Bits::Eight, Acts::Words);
        let affine = WeightKind::Affine(CodeForm { bits, group: 32, acts });
        for tier in Tier::all() {
            for kind in [WeightKind::Float(FloatType::BF16), affine] {
                for rows in PREFILL.into_iter().chain([RowClass::Decode]) {
                    for numerics in [Numerics::Exact, Numerics::Fast] {
                        choose(tier, kind, rows, numerics);
                    }
                }
            }
        }
    }
}
