//! Integer GEMM and GEMV: some outputs at a time are unpacked to codes of a byte with a scale and a bias per group, and
//! multiplied as affine matrices are.

use std::cell::RefCell;
use std::ops::Range;

use cake_checkpoint::FloatType;

use crate::device::cpu::buffer::kept;
use crate::device::cpu::element::{Element, F32};
use crate::device::cpu::gemm::product::{Form, Gemm, Prepared, Scratch};
use crate::device::cpu::gemm::target::Target;
use crate::device::cpu::gemm::weight::{
    AffineMatrix, CodeForm, Coded, SHORT_GROUP, Weight, WeightKind,
};
use crate::device::cpu::isa::simd::LANES;
use crate::device::cpu::isa::tier::Tier;
use crate::device::cpu::pool::{Tasks, current_threads};

/// Outputs unpacked at once beside few rows: they stay in a core's first caches until they are multiplied.
const FEW_OUTPUTS: usize = LANES;
/// The same beside many rows, which all pass over them.
pub(crate) const UNPACKED: usize = 4 * LANES;
/// Rows that are few.
const FEW_ROWS: usize = 3;
/// Tasks per thread, so that a thread that is held up leaves its share to others.
const TASKS_PER_THREAD: usize = 8;

/// A thread's unpacked outputs: codes `[outputs, inputs]`, the others `[outputs, inputs / group]`.
#[derive(Default)]
struct Held {
    codes: Vec<u8>,
    /// Scales and biases as numbers,
    scales: Vec<f32>,
    biases: Vec<f32>,
    /// and as the bytes that kernels read.
    params: [Vec<u8>; 2],
}

thread_local! {
    /// The outputs that a thread works on.
    static HELD: RefCell<Held> = RefCell::default();
}

/// The GEMM and GEMV with weights that are unpacked to codes of a byte.
pub(crate) struct Unpacked<G> {
    /// The kernel that multiplies these.
    pub(crate) kernel: G,
    /// How many outputs are unpacked at once beside many rows: a multiple of [`UNPACKED`].
    pub(crate) outputs: usize,
}

// SAFETY: the kernel writes all rows of the outputs that it is given, and these are all outputs.
unsafe impl<G: Gemm + Copy + Send + 'static> Gemm for Unpacked<G> {
    fn form(&self, kind: WeightKind) -> Form {
        self.kernel.form(kind)
    }

    fn prepare<'x>(&self, tier: Tier, weight: &Weight<'_>, x: &'x [f32]) -> Prepared<'x> {
        self.kernel.prepare(tier, weight, x)
    }

    fn tasks<'a>(
        &self,
        tier: Tier,
        weight: Weight<'a>,
        bias: Option<&'a [f32]>,
        x: &'a Prepared<'a>,
        y: Target<'a>,
    ) -> Tasks<'a> {
        let (rows, outputs, parallel) = weight.check(x.values(), bias);
        let (weight, kernel, many) = (weight.coded(), self.kernel, self.outputs);
        let (at_once, each, least) = match rows <= FEW_ROWS {
            true => (FEW_OUTPUTS, TASKS_PER_THREAD, LANES),
            false => (many, 2, UNPACKED),
        };
        let share = outputs.div_ceil(current_threads() * each);
        let share = share.next_multiple_of(least).clamp(least, many);
        let run = move |task: usize| {
            let all = task * share..((task + 1) * share).min(outputs);
            HELD.with_borrow_mut(|held| {
                for start in all.clone().step_by(at_once) {
                    let range = start..(start + at_once).min(all.end);
                    let bias = bias.map(|bias| &bias[range.clone()]);
                    let weight = Weight::Affine(held.unpack(weight, range.clone()));
                    kernel.tasks(tier, weight, bias, x, y.columns(range)).run_here();
                }
            });
        };
        Tasks::new(outputs.div_ceil(share), weight.bytes.len(), parallel, run)
    }

    fn scratch(&self, inputs: u64, rows: u64) -> Scratch {
        let Scratch { activations, .. } = self.kernel.scratch(inputs, rows);
        let groups = inputs.div_ceil(SHORT_GROUP as u64);
        // Codes, and scales and biases as numbers and as bytes.
        let held = inputs.saturating_add(groups.saturating_mul(4 * size_of::<f32>() as u64));
        let held = held.saturating_mul(self.outputs as u64);
        // What the kernel itself keeps, its own entry counts.
        Scratch { activations, thread: held, buffers: "unpacked outputs" }
    }
}

impl Held {
    /// Some outputs as an affine matrix with a code in each byte.
    fn unpack(&mut self, weight: Coded<'_>, outputs: Range<usize>) -> AffineMatrix<'_> {
        let CodeForm { bits, group, acts } = Weight::Coded(weight).kind().affine();
        let (count, groups) =
            (outputs.len() * weight.inputs, outputs.len() * weight.inputs / group);
        let codes = kept(&mut self.codes, count, 0);
        let scales = kept(&mut self.scales, groups, 0.0);
        let biases = kept(&mut self.biases, groups, 0.0);
        weight.unpack(outputs, cake_checkpoint::Unpacked { codes, scales, biases });
        let [first, second] = &mut self.params;
        let [first, second] = [first, second].map(|to| kept(to, groups * F32::BYTES, 0));
        F32::store(scales, first);
        F32::store(biases, second);
        let (params, inputs) = (FloatType::F32, weight.inputs);
        AffineMatrix { codes, scales: first, biases: second, params, bits, acts, group, inputs }
    }
}
