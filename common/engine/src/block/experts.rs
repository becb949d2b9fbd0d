//! A mixture of experts: many gated networks of which a router chooses some for each row.

use cake_checkpoint::{ExpertsSpec, RouterChoice};

use super::mlp::Mlp;
use crate::batch::RowKinds;
use crate::device::Device;
use crate::error::Error;
use crate::loader::LayerLoader;
use crate::options::Precision;

/// A router and its experts, following `Qwen3MoeSparseMoeBlock` in Hugging Face transformers.
///
/// An expert's weights are read only in steps with a row that goes to it, and once in each of these. A row's result is
/// summed up in the order of its experts' numbers, so that it depends on nothing but the row.
pub(crate) struct Experts<D: Device> {
    router: D::Weight,
    choice: RouterChoice,
    /// How many experts a row goes to.
    chosen: usize,
    experts: Vec<Mlp<D>>,
}

/// One expert's part of a step.
#[derive(Default)]
struct Share {
    /// Rows of the step that go to the expert, ascending.
    rows: Vec<usize>,
    /// The router's weight of each of these rows.
    weights: Vec<f32>,
}

impl<D: Device> Experts<D> {
    pub(crate) fn load(loader: &LayerLoader<'_, D>, spec: &ExpertsSpec) -> Result<Self, Error> {
        let router = loader.linear(&spec.router(), Precision::Bf16x2)?;
        let expert = |index| Mlp::load(loader, &spec.expert(index));
        let experts = (0..spec.count).map(expert).collect::<Result<Vec<_>, Error>>()?;
        Ok(Experts { router, choice: spec.router.choice, chosen: spec.chosen, experts })
    }

    /// The first product of a step.
    pub(crate) fn first(&self) -> &D::Weight {
        &self.router
    }

    /// `hidden` is `[rows, hidden_size]`, its rows of these `kinds`, and so is the result.
    pub(crate) fn forward(
        &self,
        device: &D,
        hidden: &D::Rows,
        kinds: &RowKinds,
    ) -> Result<D::Rows, Error> {
        // A choice between experts that are nearly alike turns on the last bits: no row is rounded as a prompt's.
        let unrounded = RowKinds::generated(kinds.rows());
        let [scores] = device.linear([&self.router], hidden, &unrounded)?; // [rows, experts]
        let shares = self.shares(&device.softmax(scores)?);
        let mut sums = device.zeros_like(hidden)?;
        for (expert, Share { rows, weights }) in self.experts.iter().zip(shares) {
            if rows.is_empty() {
                continue;
            }
            device.apart(|| {
                let gathered = device.gather(hidden, &rows)?;
                let results = expert.forward(device, &gathered, &kinds.select(&rows))?;
                device.scatter_add(&mut sums, &rows, &weights, &results)
            })?;
        }
        Ok(sums)
    }

    /// Each expert's rows in a step with these router probabilities, `[rows, experts]`, and the rows' weights.
    fn shares(&self, probabilities: &[f32]) -> Vec<Share> {
        let mut shares: Vec<Share> = self.experts.iter().map(|_| Share::default()).collect();
        for (row, probabilities) in probabilities.chunks_exact(self.experts.len()).enumerate() {
            for (expert, weight) in choose(self.choice, self.chosen, probabilities) {
                shares[expert].rows.push(row);
                shares[expert].weights.push(weight);
            }
        }
        shares
    }
}

/// The top-k experts of a row with these router probabilities, each with its weight. Of equal experts the first is
/// chosen.
fn choose(choice: RouterChoice, chosen: usize, probabilities: &[f32]) -> Vec<(usize, f32)> {
    let RouterChoice::SoftmaxThenTopK { renormalise } = choice;
    let mut order: Vec<usize> = (0..probabilities.len()).collect();
    order.sort_by(|&a, &b| probabilities[b].total_cmp(&probabilities[a])); // Stable: ties stay in order.
    order.truncate(chosen);
    let sum: f32 = order.iter().map(|&expert| probabilities[expert]).sum();
    let divisor = if renormalise { sum } else { 1.0 };
    order.into_iter().map(|expert| (expert, probabilities[expert] / divisor)).collect()
}

#[cfg(all(test, target_os = "linux"))]
mod touched;

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(renormalise: bool, probabilities: &[f32]) -> Vec<(usize, f32)> {
        choose(RouterChoice::SoftmaxThenTopK { renormalise }, 2, probabilities)
    }

    #[test]
    fn the_likeliest_experts_are_chosen_with_their_part_of_all() {
        let probabilities = [0.125, 0.5, 0.125, 0.25];
        assert_eq!(chosen(false, &probabilities), [(1, 0.5), (3, 0.25)]);
        assert_eq!(chosen(true, &probabilities), [(1, 0.5 / 0.75), (3, 0.25 / 0.75)]);
    }

    #[test]
    fn of_equal_experts_the_first_is_chosen_and_what_is_no_number_ends_nothing() {
        let experts = |probabilities: &[f32]| -> Vec<usize> {
            chosen(true, probabilities).into_iter().map(|(expert, _)| expert).collect()
        };
        assert_eq!(experts(&[0.0, 1.0, 1.0, 1.0]), [1, 2]);
        assert_eq!(experts(&[f32::NAN; 4]).len(), 2);
        assert_eq!(experts(&[f32::NEG_INFINITY; 4]).len(), 2);
    }
}
