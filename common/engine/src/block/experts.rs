//! A mixture of experts: many gated networks of which a router chooses some for each row.

use cake_checkpoint::{ExpertsSpec, RouterChoice};
use candle_core::Tensor;

use super::mlp::Mlp;
use crate::batch::RowKinds;
use crate::device::cpu::elementwise::softmax;
use crate::device::cpu::gemm::precision::Precision;
use crate::device::cpu::isa::tier::Tier;
use crate::error::Error;
use crate::linear::Linear;
use crate::loader::LayerLoader;
use crate::tensors;

/// A router and its experts, following `Qwen3MoeSparseMoeBlock` in Hugging Face transformers.
///
/// An expert's weights are read only in steps with a row that goes to it, and once in each of these. A row's result is
/// summed up in the order of its experts' numbers, so that it depends on nothing but the row.
pub(crate) struct Experts {
    router: Linear,
    choice: RouterChoice,
    /// How many experts a row goes to.
    chosen: usize,
    experts: Vec<Mlp>,
    tier: Tier,
}

/// One expert's part of a step.
#[derive(Default)]
struct Share {
    /// Rows of the step that go to it, ascending,
    rows: Vec<usize>,
    /// and what its results are multiplied with, one for each.
    weights: Vec<f32>,
}

impl Experts {
    pub(crate) fn load(loader: &LayerLoader<'_>, spec: &ExpertsSpec) -> Result<Experts, Error> {
        let router = loader.linear(&spec.router(), Precision::Bf16x2)?;
        let expert = |index| Mlp::load(loader, &spec.expert(index));
        let experts = (0..spec.count).map(expert).collect::<Result<Vec<_>, Error>>()?;
        let (choice, chosen) = (spec.router.choice, spec.chosen);
        Ok(Experts { router, choice, chosen, experts, tier: Tier::detect() })
    }

    /// The first product of a step.
    pub(crate) fn first(&self) -> &Linear {
        &self.router
    }

    /// `hidden` is `[rows, hidden_size]`, its rows of these `kinds`, and so is the result.
    pub(crate) fn forward(&self, hidden: &Tensor, kinds: &RowKinds) -> candle_core::Result<Tensor> {
        let (rows, width) = hidden.dims2()?;
        // A choice between experts that are nearly alike turns on the last bits: no row is rounded as a prompt's.
        let scores = self.router.forward_values(hidden, &RowKinds::generated(rows))?;
        let mut sums = vec![0.0; rows * width];
        for (expert, share) in self.experts.iter().zip(self.shares(&scores)) {
            if share.rows.is_empty() {
                continue;
            }
            let gathered =
                tensors::with_values(hidden, |hidden| gather(hidden, width, &share.rows))?;
            let gathered = tensors::matrix(gathered, share.rows.len(), width)?;
            let results = expert.forward(&gathered, &kinds.select(&share.rows))?;
            tensors::with_values(&results, |results| {
                let results = results.chunks_exact(width);
                for ((&row, weight), result) in share.rows.iter().zip(share.weights).zip(results) {
                    let sums = &mut sums[row * width..][..width];
                    sums.iter_mut().zip(result).for_each(|(sum, value)| *sum += weight * value);
                }
            })?;
        }
        tensors::matrix(sums, rows, width)
    }

    /// What of a step whose router gave these scores, `[rows, experts]`, each expert gets.
    fn shares(&self, scores: &[f32]) -> Vec<Share> {
        let mut shares: Vec<Share> = self.experts.iter().map(|_| Share::default()).collect();
        for (row, scores) in scores.chunks_exact(self.experts.len()).enumerate() {
            for (expert, weight) in choose(self.tier, self.choice, self.chosen, scores) {
                shares[expert].rows.push(row);
                shares[expert].weights.push(weight);
            }
        }
        shares
    }
}

/// The experts of a row with these scores, each with its weight. Of experts with the same weight the first is chosen.
fn choose(tier: Tier, choice: RouterChoice, chosen: usize, scores: &[f32]) -> Vec<(usize, f32)> {
    let RouterChoice::SoftmaxThenTopK { renormalise } = choice;
    let weights = softmax(tier, scores);
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by(|&a, &b| weights[b].total_cmp(&weights[a])); // Stable: ties stay in order.
    order.truncate(chosen);
    let sum: f32 = order.iter().map(|&expert| weights[expert]).sum();
    let divisor = if renormalise { sum } else { 1.0 };
    order.into_iter().map(|expert| (expert, weights[expert] / divisor)).collect()
}

/// The named rows of `[any, width]`, behind each other.
fn gather(values: &[f32], width: usize, rows: &[usize]) -> Vec<f32> {
    let mut gathered = Vec::with_capacity(rows.len() * width);
    rows.iter().for_each(|row| gathered.extend_from_slice(&values[row * width..][..width]));
    gathered
}

#[cfg(all(test, target_os = "linux"))]
mod touched;

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(renormalise: bool, count: usize, scores: &[f32]) -> Vec<(usize, f32)> {
        choose(Tier::detect(), RouterChoice::SoftmaxThenTopK { renormalise }, count, scores)
    }

    #[test]
    fn the_likeliest_experts_are_chosen_with_their_part_of_all() {
        // Exponentials of 1, 4, 2 and 3 parts of ten.
        let scores = [1f32, 4.0, 2.0, 3.0].map(f32::ln);
        let near = |found: Vec<(usize, f32)>, expected: [(usize, f32); 2]| {
            assert_eq!(found.len(), 2);
            for (found, expected) in found.into_iter().zip(expected) {
                assert_eq!(found.0, expected.0);
                assert!((found.1 - expected.1).abs() < 1e-6, "{found:?}, expected {expected:?}");
            }
        };
        near(chosen(false, 2, &scores), [(1, 0.4), (3, 0.3)]);
        near(chosen(true, 2, &scores), [(1, 4.0 / 7.0), (3, 3.0 / 7.0)]);
    }

    #[test]
    fn of_equal_experts_the_first_is_chosen_and_what_is_no_number_ends_nothing() {
        let experts = |scores: &[f32]| -> Vec<usize> {
            chosen(true, 2, scores).into_iter().map(|(expert, _)| expert).collect()
        };
        assert_eq!(experts(&[0.0, 1.0, 1.0, 1.0]), [1, 2]);
        assert_eq!(experts(&[f32::NAN; 4]).len(), 2);
        assert_eq!(experts(&[f32::NEG_INFINITY; 4]).len(), 2);
    }
}
