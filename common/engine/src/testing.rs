//! What tests of this crate share.

use std::mem::MaybeUninit;

use cake_checkpoint::{FloatType, GgmlType};

use crate::device::cpu::gemm::product::{Gemm, Prepared};
use crate::device::cpu::gemm::target::Target;
use crate::device::cpu::gemm::weight::{Acts, Weight};
use crate::device::cpu::isa::tier::Tier;
use crate::device::cpu::pool::run_all;
use crate::random::mix;

/// Says that a test could not run here, and why, past what captures the output of tests that pass: a failure of
/// continuous integration unless `tests/not-shown.txt` has the name. Tests of x86's kernels alone ask for it.
#[cfg(target_arch = "x86_64")]
pub(crate) fn not_shown(name: &str, why: &str) {
    use std::io::Write;
    std::io::stderr().write_all(format!("NOT SHOWN: {name}: {why}\n").as_bytes()).ok();
}

/// All of these cases; or one of so many in a row as `CAKE_TEST_ONE_OF` says, each time at the next place, where time is dear, as on
/// an emulator.
pub(crate) fn some_of<T>(all: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
    let one_of =
        std::env::var("CAKE_TEST_ONE_OF").map_or(1, |text| text.parse().expect("a number"));
    let is_one = move |at: &usize| at % one_of == at / one_of % one_of;
    all.into_iter().enumerate().filter(move |(at, _)| is_one(at)).map(|(_, case)| case)
}

/// A seeded stream of numbers.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(mix(seed))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0)
    }

    /// Below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// In `[-1, 1)`.
    pub(crate) fn signed(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// Numbers of this type, little-endian and at any address, in single precision.
pub(crate) fn widened(float: FloatType, bytes: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; bytes.len() / float.bytes()];
    float.widen(bytes, &mut values);
    values
}

/// `x · weightᵀ + bias` by one kernel: `x` is `[rows, inputs]`, the result `[rows, outputs]`.
pub(crate) fn product(
    kernel: &dyn Gemm,
    tier: Tier,
    weight: Weight<'_>,
    bias: Option<&[f32]>,
    x: &[f32],
) -> Vec<f32> {
    prepared_product(kernel, tier, weight, bias, &kernel.prepare(tier, &weight, x))
}

/// The same with activations that some kernel prepared in the form that this one takes.
pub(crate) fn prepared_product(
    kernel: &dyn Gemm,
    tier: Tier,
    weight: Weight<'_>,
    bias: Option<&[f32]>,
    x: &Prepared<'_>,
) -> Vec<f32> {
    let outputs = weight.outputs();
    let rows = x.values().len() / weight.inputs();
    let mut y = vec![MaybeUninit::new(f32::NAN); rows * outputs];
    run_all(&[kernel.tasks(tier, weight, bias, x, Target::new(&mut y, rows, outputs))]);
    // SAFETY: all of them were set, if not by the kernel.
    y.into_iter().map(|value| unsafe { value.assume_init() }).collect()
}

/// A number that tells bits of results apart (FNV-1a): what processors of another kind computed, too,
/// which no test has beside it.
pub(crate) fn digest(values: &[f32]) -> u64 {
    values.iter().fold(0xcbf2_9ce4_8422_2325, |hash, value| {
        (hash ^ u64::from(value.to_bits())).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Asserts that `y` is `x · weightsᵀ + bias`, to within `tolerance` of the sum of the magnitudes that
/// are added up: `x` is `[rows, inputs]`, `weights` is `[outputs, inputs]`.
pub(crate) fn assert_product(
    y: &[f32],
    x: &[f64],
    (weights, bias): (&[f32], &[f32]),
    tolerance: f64,
    what: &str,
) {
    let (outputs, inputs) = (bias.len(), weights.len() / bias.len());
    assert_eq!(y.len(), x.len() / inputs * outputs, "{what}");
    for (at, &found) in y.iter().enumerate() {
        let (row, output) = (at / outputs, at % outputs);
        let mut exact = f64::from(bias[output]);
        let mut scale = exact.abs();
        let weights = &weights[output * inputs..][..inputs];
        for (x, &weight) in x[row * inputs..][..inputs].iter().zip(weights) {
            exact += x * f64::from(weight);
            scale += (x * f64::from(weight)).abs();
        }
        let close = (f64::from(found) - exact).abs() <= tolerance * scale;
        assert!(close, "{what} at {row},{output}: {found}, not {exact}");
    }
}

/// `x` as fast numerics see it beside codes of which `group` share a scale, from the definition.
pub(crate) fn rounded(x: &[f32], group: usize, acts: Acts) -> Vec<f64> {
    let most = match acts {
        Acts::Words => 32639.0,
        Acts::Bytes => 127.0,
    };
    let round = |x: &[f32]| {
        let scale = x.iter().fold(0f32, |largest, x| largest.max(x.abs())) / most;
        let inverse = 1.0 / scale;
        let code = move |x: &f32| f64::from(scale) * f64::from((x * inverse).round_ties_even());
        x.iter().map(code).collect::<Vec<_>>()
    };
    x.chunks(group).flat_map(round).collect()
}

/// Where the upper bytes of the numbers of half precision are in a block of this type: some bits of one make an infinity.
pub(crate) fn half_ends(kind: GgmlType) -> &'static [usize] {
    use GgmlType::{Iq4Nl, Iq4Xs, Mxfp4, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
    match kind {
        Q4_0 | Q5_0 | Q8_0 | Iq4Nl | Iq4Xs => &[1],
        Q4_1 | Q5_1 | Q4K | Q5K => &[1, 3],
        Q2K => &[81, 83],
        Q3K => &[109],
        Q6K => &[209],
        Mxfp4 => &[],
    }
}
