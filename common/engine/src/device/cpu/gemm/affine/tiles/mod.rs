//! Integer GEMM and GEMV with tile registers (AMX), which multiply 16 outputs with 16 rows at a
//! time.
//!
//! The GEMV, and up to three rows (`vnni`), take weights in place, by instructions that multiply bytes; a few more
//! (`few`) do so with tiles, where codes are bytes. With many (`many`), the codes of some groups of some outputs are
//! packed, widened to bytes, into tiles; all rows pass over them. A group takes a product with each plane of the
//! activations, whose accumulators are joined and scaled while the next group is multiplied; of activations of 8 bits,
//! which have one plane, two tiles of rows take the places of both.

pub(crate) mod block;
pub(crate) mod few;
pub(crate) mod many;
pub(crate) mod shape;

use self::few::{FEW_ROWS, FewPacked};
use self::many::Packed;
use super::activations::{Activations, Layout, row_bytes};
use super::call::Call;
use super::vnni::direct::{self, FEW_ROWS as DIRECT_ROWS};
use crate::device::cpu::gemm::product::{Form, Gemm, Prepared, Scratch};
use crate::device::cpu::gemm::target::Target;
use crate::device::cpu::gemm::weight::{Weight, WeightKind};
use crate::device::cpu::isa::tier::Tier;
use crate::device::cpu::isa::x86::Amx;
use crate::device::cpu::pool::Tasks;

/// The integer GEMM and GEMV, by tile registers where there are rows enough.
#[derive(Clone, Copy)]
pub(crate) struct ByteTiles;

/// Activations as one of the three kernels takes them, which the number of rows chooses.
struct Ready {
    activations: Activations,
    tiles: Tiled,
}

enum Tiled {
    /// At most [`DIRECT_ROWS`] rows.
    None,
    /// At most [`FEW_ROWS`].
    Few(FewPacked),
    /// More.
    Many(Packed),
}

// SAFETY: in each of the three a task writes all rows of its outputs, and `by_outputs` gives the tasks all outputs.
unsafe impl Gemm for ByteTiles {
    fn form(&self, kind: WeightKind) -> Form {
        Form::ByteTiles(kind.affine())
    }

    fn prepare<'x>(&self, tier: Tier, weight: &Weight<'_>, x: &'x [f32]) -> Prepared<'x> {
        let (proof, call) = (proof(tier), Call::new(*weight, None, x));
        let activations = Activations::quantize(tier, &call, Layout::Planes);
        let tiles = match call.rows() {
            rows if rows <= DIRECT_ROWS => Tiled::None,
            rows if rows <= FEW_ROWS => Tiled::Few(FewPacked::new(proof, &call, &activations)),
            _ => Tiled::Many(Packed::new(proof, &call, &activations)),
        };
        Prepared::new(x, self.form(weight.kind()), Ready { activations, tiles })
    }

    fn tasks<'a>(
        &self,
        tier: Tier,
        weight: Weight<'a>,
        bias: Option<&'a [f32]>,
        x: &'a Prepared<'a>,
        y: Target<'a>,
    ) -> Tasks<'a> {
        let (proof, call) = (proof(tier), Call::new(weight, bias, x.values()));
        let Ready { activations, tiles } = x.made(self.form(weight.kind()));
        match tiles {
            Tiled::None => {
                let vnni = proof.avx512().vnni();
                let vnni = vnni.expect("processors with tile registers multiply bytes, too");
                direct::matmul(vnni, call, activations, y)
            }
            Tiled::Few(packed) => few::matmul(proof, call, (activations, packed), y),
            Tiled::Many(packed) => many::matmul(proof, call, (activations, packed), y),
        }
    }

    fn scratch(&self, inputs: u64, rows: u64) -> Scratch {
        let (tiles, thread) = many::product_bytes(inputs, rows);
        let activations = row_bytes(inputs).saturating_mul(rows).saturating_add(tiles);
        Scratch { activations, thread, buffers: "affine tiles" }
    }
}

/// Proof of the instructions.
fn proof(tier: Tier) -> Amx {
    tier.amx().expect("the table gives this kernel to processors with tile registers")
}
