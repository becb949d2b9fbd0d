//! Integer GEMM and GEMV with AVX2, which multiplies 16 pairs of words, or 32 of bytes, and adds up neighbours; and
//! with AVX512-VNNI, which multiplies and accumulates at once.
//!
//! Codes are unpacked in registers, to bytes (`codes`). In the GEMV, and in the GEMM of few rows (`direct`,
//! `wide_direct`), they are multiplied in place and the accumulators are transposed; in the GEMM of many (`panel`) they
//! are packed, transposed, and all rows pass over them, on processors with AVX512-VNNI in register tiles of their own
//! (`wide`). How the codes, scales and biases of an encoding come into registers is a type of its own (`Stored`);
//! nothing else depends on it. Of affine matrices whose codes are bytes or halves of them, few rows have a kernel of
//! their own there (`vnni`), which takes a line of each output at a time.
//!
//! In functions with instructions of their own, adapters that are given closures (`map` of arrays and options) may stay
//! calls, and vectors go through memory to them. Loops do not.

mod blocks;
mod codes;
mod direct;
mod fp4;
mod lanes;
mod narrow;
mod packed;
mod panel;
mod pattern;
mod product;
mod stored;
mod stream;
mod task;
mod wide;
mod wide_direct;

use self::blocks::Blocks;
use self::fp4::{Mx, Nv};
use self::packed::{Bytes, Narrow, Nibbles};
use self::product::Product;
use self::stream::Stream;
use cake_checkpoint::{Fp4, GgmlType};

use super::activations::{Activations, Layout, row_bytes};
use super::call::Call;
use super::vnni::direct as vnni;
use crate::device::cpu::gemm::product::{Form, Gemm, Prepared, Scratch};
use crate::device::cpu::gemm::target::Target;
use crate::device::cpu::gemm::weight::{
    Acts, AffineMatrix, Bits, CodeForm, Coded, InPlace, SHORT_GROUP, Weight, WeightKind,
};
use crate::device::cpu::isa::tier::Tier;
use crate::device::cpu::isa::x86::Avx512;
use crate::device::cpu::pool::Tasks;

/// The integer GEMM and GEMV with packed matrices, by instructions that multiply words or bytes.
#[derive(Clone, Copy)]
pub(crate) struct WordPairs;

// SAFETY: `Product::tasks` gives the tasks all rows of all outputs, and each writes all of its own.
unsafe impl Gemm for WordPairs {
    fn form(&self, kind: WeightKind) -> Form {
        form(kind.affine())
    }

    fn prepare<'x>(&self, tier: Tier, weight: &Weight<'_>, x: &'x [f32]) -> Prepared<'x> {
        prepare(tier, weight, x, weight.kind().affine())
    }

    fn tasks<'a>(
        &self,
        tier: Tier,
        weight: Weight<'a>,
        bias: Option<&'a [f32]>,
        x: &'a Prepared<'a>,
        y: Target<'a>,
    ) -> Tasks<'a> {
        let (rows, _, parallel) = weight.check(x.values(), bias);
        let codes = x.made(form(weight.kind().affine()));
        if let Some(vnni) =
            tier.avx512().and_then(Avx512::vnni).filter(|_| rows <= wide_direct::ROWS)
        {
            return vnni::matmul(vnni, Call::new(weight, bias, x.values()), codes, y);
        }
        let weight = weight.affine();
        let call = product(tier, (rows, parallel), weight.acts, bias, codes, y);
        match (weight.bits, weight.group) {
            (Bits::Four, 32) => call.tasks(Nibbles::<32>(weight)),
            (Bits::Four, 64) => call.tasks(Nibbles::<64>(weight)),
            (Bits::Four, _) => call.tasks(Nibbles::<128>(weight)),
            (Bits::Six, SHORT_GROUP) => call.tasks(Narrow::<SHORT_GROUP>(weight)),
            (Bits::Six, 32) => call.tasks(Narrow::<32>(weight)),
            (Bits::Six, 64) => call.tasks(Narrow::<64>(weight)),
            (Bits::Six, _) => call.tasks(Narrow::<128>(weight)),
            (Bits::Eight, SHORT_GROUP) => call.tasks(Bytes::<SHORT_GROUP>(weight)),
            (Bits::Eight, 32) => call.tasks(Bytes::<32>(weight)),
            (Bits::Eight, 64) => call.tasks(Bytes::<64>(weight)),
            (Bits::Eight, _) => call.tasks(Bytes::<128>(weight)),
        }
    }

    fn scratch(&self, inputs: u64, rows: u64) -> Scratch {
        scratch(inputs, rows)
    }
}

/// The same with matrices whose codes are not bytes or halves of them, in place.
pub(crate) struct InPlacePairs;

// SAFETY: as above.
unsafe impl Gemm for InPlacePairs {
    fn form(&self, kind: WeightKind) -> Form {
        form(codes_in_place(kind))
    }

    fn prepare<'x>(&self, tier: Tier, weight: &Weight<'_>, x: &'x [f32]) -> Prepared<'x> {
        prepare(tier, weight, x, codes_in_place(weight.kind()))
    }

    fn tasks<'a>(
        &self,
        tier: Tier,
        weight: Weight<'a>,
        bias: Option<&'a [f32]>,
        x: &'a Prepared<'a>,
        y: Target<'a>,
    ) -> Tasks<'a> {
        let (rows, _, parallel) = weight.check(x.values(), bias);
        let x = x.made(form(codes_in_place(weight.kind())));
        let coded = weight.coded();
        let Coded { bytes, scales, biases, float, global, .. } = coded;
        let Coded { outputs, inputs, group, in_place, acts, .. } = coded;
        let product = product(tier, (rows, parallel), acts, bias, x, y);
        let (parts, shape) = ([bytes, scales], [outputs, inputs]);
        macro_rules! blocks {
            ($block:ident) => {
                product.tasks(Blocks::<blocks::$block>::new(bytes, outputs, inputs))
            };
        }
        macro_rules! stream {
            ($bits:ident, $short:literal) => {{
                let params = ([scales, biases], float);
                match group {
                    Some(32) => {
                        product.tasks(Stream::<32, $short>::new($bits, bytes, params, shape))
                    }
                    Some(64) => {
                        product.tasks(Stream::<64, $short>::new($bits, bytes, params, shape))
                    }
                    _ => product.tasks(Stream::<128, $short>::new($bits, bytes, params, shape)),
                }
            }};
        }
        match in_place.expect("the table gives other matrices to other kernels") {
            InPlace::Stream { bits: bits @ ..4 } => stream!(bits, true),
            InPlace::Stream { bits } => stream!(bits, false),
            InPlace::Blocks(GgmlType::Q4_0) => blocks!(Q4_0),
            InPlace::Blocks(GgmlType::Q4_1) => blocks!(Q4_1),
            InPlace::Blocks(GgmlType::Q5_0) => blocks!(Q5_0),
            InPlace::Blocks(GgmlType::Q5_1) => blocks!(Q5_1),
            InPlace::Blocks(GgmlType::Q8_0) => blocks!(Q8_0),
            InPlace::Blocks(GgmlType::Q2K) => blocks!(Q2K),
            InPlace::Blocks(GgmlType::Q3K) => blocks!(Q3K),
            InPlace::Blocks(GgmlType::Q4K) => blocks!(Q4K),
            InPlace::Blocks(GgmlType::Q5K) => blocks!(Q5K),
            InPlace::Blocks(GgmlType::Q6K) => blocks!(Q6K),
            InPlace::Blocks(GgmlType::Iq4Nl) => blocks!(Iq4Nl),
            InPlace::Blocks(GgmlType::Iq4Xs) => blocks!(Iq4Xs),
            InPlace::Blocks(GgmlType::Mxfp4) => blocks!(Mxfp4),
            InPlace::Fp4(Fp4::Mx) => product.tasks(Mx::new(parts, shape)),
            InPlace::Fp4(Fp4::Nv | Fp4::NvDivided | Fp4::NvMultiplied) => {
                product.tasks(Nv::new(parts, shape, global))
            }
        }
    }

    fn scratch(&self, inputs: u64, rows: u64) -> Scratch {
        scratch(inputs, rows)
    }
}

/// The form of codes as they lie: numbers of 4 bits that follow each other are read as affine codes are, all else is
/// made bytes of in registers.
fn codes_in_place(kind: WeightKind) -> CodeForm {
    let form = kind.affine();
    match kind {
        WeightKind::Coded { in_place: Some(InPlace::Fp4(Fp4::Mx)), .. } => {
            CodeForm { bits: Bits::Four, ..form }
        }
        _ => form,
    }
}

fn form(codes: CodeForm) -> Form {
    Form::Lanes(codes)
}

/// Quantizes `x` for a product with a matrix whose codes have this form: with AVX512-VNNI as planes of bytes if rows
/// are few and in tiles if they are many, else in lanes. All kernels here take them so, whichever prepares them.
fn prepare<'x>(tier: Tier, weight: &Weight<'_>, x: &'x [f32], codes: CodeForm) -> Prepared<'x> {
    let call = Call::new(*weight, None, x);
    let layout = match tier.avx512().and_then(Avx512::vnni) {
        Some(_) if call.rows() <= wide_direct::ROWS => Layout::Planes,
        Some(_) => Layout::Tiles(wide::ROWS),
        _ => Layout::Lanes,
    };
    let weight = AffineMatrix { bits: codes.bits, ..call.weight };
    let made = Activations::quantize(tier, &Call { weight, ..call }, layout);
    Prepared::new(x, form(codes), made)
}

fn scratch(inputs: u64, rows: u64) -> Scratch {
    let activations = row_bytes(inputs).saturating_mul(rows);
    // A panel stays when rows become few.
    let thread = panel::PANEL_BYTES.saturating_add(vnni::sorted_bytes(inputs));
    Scratch { activations, thread, buffers: "word panel" }
}

/// A GEMM or GEMV with `rows` rows, by the best instructions that the tier has.
fn product<'a>(
    tier: Tier,
    (rows, parallel): (usize, bool),
    acts: Acts,
    bias: Option<&'a [f32]>,
    x: &'a Activations,
    y: Target<'a>,
) -> Product<'a> {
    let proof = tier.avx2();
    let proof = proof.expect("the table gives these kernels to processors that multiply words");
    let vnni = tier.avx512().and_then(Avx512::vnni);
    Product { proof, vnni, rows, parallel, acts, bias, x, y }
}
