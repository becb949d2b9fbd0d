//! A mixture of experts: many gated networks of which a router chooses some for each row.

use cake_checkpoint::{
    Activation, ExpertsSpec, LinearSpec, RouterGroups, RouterScores, RouterSpec,
};

use super::mlp::Mlp;
use crate::batch::RowKinds;
use crate::device::{Device, StoredNorm};
use crate::error::Error;
use crate::loader::LayerLoader;
use crate::options::Precision;

/// A router and its experts, following `Qwen3MoeSparseMoeBlock` in Hugging Face transformers.
///
/// An expert's weights are read only in steps with a row that goes to it, and once in each of these. A row's result is
/// summed up in the order of its experts' numbers, so that it depends on nothing but the row.
pub(crate) struct Experts<D: Device> {
    router: D::Weight,
    /// What rows go through before the router,
    router_norm: Option<D::Norm>,
    /// and before the experts.
    norm: Option<D::Norm>,
    /// Around the experts, if their rows have another width.
    projections: Option<Projections<D>>,
    choice: Choice,
    /// The number of the first expert that is here.
    start: usize,
    /// Those that are.
    experts: Vec<Mlp<D>>,
}

/// The projections around experts.
struct Projections<D: Device> {
    /// To their rows, `[rows, width]`.
    input: D::Weight,
    /// From their sum; `None` where later experts add to it first.
    output: Option<D::Weight>,
    /// How many numbers the experts' rows have.
    width: usize,
    /// How many hidden states have beside as many.
    rest: usize,
}

/// What is done with a router's products.
struct Choice {
    router: RouterSpec,
    /// What is added to each expert's score where experts are chosen.
    correction: Option<Vec<f32>>,
    /// What each expert's weight is multiplied with.
    scale: Option<Vec<f32>>,
    /// How many experts there are, here or elsewhere,
    count: usize,
    /// and how many of them a row goes to.
    chosen: usize,
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
        let experts = spec.here().map(expert).collect::<Result<Vec<_>, Error>>()?;
        let correction = spec.correction().map(|tensor| loader.parameter(&tensor)).transpose()?;
        let scale = spec.expert_scale().map(|tensor| loader.parameter(&tensor)).transpose()?;
        let &ExpertsSpec { count, chosen, .. } = spec;
        let choice = Choice { router: spec.router.clone(), correction, scale, count, chosen };
        let router_norm = match (&spec.router.norm, spec.router_scale()) {
            (Some(norm), Some(tensor)) => {
                let mut weight = loader.parameter(&tensor)?;
                weight.iter_mut().for_each(|weight| *weight *= norm.factor as f32);
                Some(loader.device.norm_weight(StoredNorm::rms(weight, norm.eps as f32))?)
            }
            _ => None,
        };
        let norm = spec.norm.as_ref().map(|norm| loader.norm(norm)).transpose()?;
        let projections =
            spec.input().map(|input| Projections::load(loader, spec, &input)).transpose()?;
        Ok(Experts {
            router,
            router_norm,
            norm,
            projections,
            choice,
            start: spec.here().start,
            experts,
        })
    }

    /// The first product of a step.
    pub(crate) fn first(&self) -> &D::Weight {
        &self.router
    }

    /// `hidden` is `[rows, hidden_size]`, its rows of these `kinds`, and so is the result; `sums` are of the experts before
    /// those that are here.
    pub(crate) fn forward(
        &self,
        device: &D,
        hidden: &D::Rows,
        kinds: &RowKinds,
        sums: Option<D::Rows>,
    ) -> Result<D::Rows, Error> {
        // A choice between experts that are nearly alike turns on the last bits: no row is rounded as a prompt's.
        let unrounded = RowKinds::generated(kinds.rows());
        let normed = |norm: &Option<D::Norm>| {
            norm.as_ref().map(|norm| device.norm(norm, hidden)).transpose()
        };
        let seen = normed(&self.router_norm)?;
        let seen = seen.as_ref().unwrap_or(hidden);
        let [products] = device.linear([&self.router], seen, &unrounded)?; // [rows, experts]
        let normed = normed(&self.norm)?;
        let hidden = normed.as_ref().unwrap_or(hidden);
        let shares = self.choice.shares(device, products)?;
        match &self.projections {
            None => self.sum(device, hidden, kinds, shares, sums),
            Some(around) => {
                let before = sums.map(|sums| around.sums(device, &sums)).transpose()?;
                let [rows] = device.linear([&around.input], hidden, kinds)?; // [rows, width]
                let sums = self.sum(device, &rows, kinds, shares, before)?;
                around.result(device, hidden, sums, kinds)
            }
        }
    }

    /// What the experts that are here add to `sums`, or to nothing: of the rows of `hidden`, `[rows, width of experts]`, each
    /// has its own `shares`.
    fn sum(
        &self,
        device: &D,
        hidden: &D::Rows,
        kinds: &RowKinds,
        shares: Vec<Share>,
        sums: Option<D::Rows>,
    ) -> Result<D::Rows, Error> {
        let mut sums = sums.map_or_else(|| device.zeros_like(hidden), Ok)?;
        let shares = shares.into_iter().skip(self.start);
        for (expert, Share { rows, weights }) in self.experts.iter().zip(shares) {
            if rows.is_empty() {
                continue;
            }
            device.apart(|| {
                let mut gathered = device.gather(hidden, &rows)?;
                let mut weights = weights;
                if self.choice.router.weighs_inputs {
                    gathered = device.scale_rows(gathered, &weights)?;
                    weights.fill(1.0);
                }
                let results = expert.forward(device, &gathered, &kinds.select(&rows))?;
                device.scatter_add(&mut sums, &rows, &weights, &results)
            })?;
        }
        Ok(sums)
    }
}

impl<D: Device> Projections<D> {
    /// Loads both. Their activations keep two bf16 of each number, as those of projections outside of MLPs do: what is lost
    /// here all experts of a row lose.
    fn load(
        loader: &LayerLoader<'_, D>,
        spec: &ExpertsSpec,
        input: &LinearSpec,
    ) -> Result<Self, Error> {
        let output = spec.output();
        let output = output.map(|it| loader.linear(&it, Precision::Bf16x2)).transpose()?;
        let width = input.rows.len();
        let (input, rest) = (loader.linear(input, Precision::Bf16x2)?, spec.hidden_size() - width);
        Ok(Projections { input, output, width, rest })
    }

    /// The experts' sums among what goes with hidden states, as wide as these.
    fn sums(&self, device: &D, beside: &D::Rows) -> Result<D::Rows, Error> {
        device.columns(beside, self.width + self.rest, 0..self.width)
    }

    /// What becomes of the experts' sums: hidden states, or what goes with those.
    fn result(
        &self,
        device: &D,
        hidden: &D::Rows,
        sums: D::Rows,
        kinds: &RowKinds,
    ) -> Result<D::Rows, Error> {
        let Some(output) = &self.output else {
            if self.rest == 0 {
                return Ok(sums);
            }
            let columns = self.width + self.rest;
            let zeros = device.columns(&device.zeros_like(hidden)?, columns, 0..self.rest)?;
            return device.join(&[(&sums, self.width), (&zeros, self.rest)]);
        };
        let [result] = device.linear([output], &sums, kinds)?;
        Ok(result)
    }
}

impl Choice {
    /// Each expert's rows in a step with these products, `[rows, experts]`, and the rows' weights.
    fn shares<D: Device>(&self, device: &D, products: D::Rows) -> Result<Vec<Share>, Error> {
        let mut shares: Vec<Share> = (0..self.count).map(|_| Share::default()).collect();
        let mut give = |row: usize, (expert, weight): (usize, f32)| {
            shares[expert].rows.push(row);
            shares[expert].weights.push(weight);
        };
        let scores = match self.router.scores {
            RouterScores::Softmax => device.softmax(products)?,
            RouterScores::Sigmoid => sigmoid(device, products)?,
            RouterScores::SoftmaxOfChosen | RouterScores::SigmoidOfChosen => {
                let of_rows = self.of_chosen(device, &device.values(products)?)?;
                let rows = (0..).flat_map(|row| std::iter::repeat_n(row, self.chosen));
                rows.zip(of_rows).for_each(|(row, it)| give(row, it));
                return Ok(shares);
            }
        };
        for (row, scores) in scores.chunks_exact(self.count).enumerate() {
            self.of(scores).into_iter().for_each(|it| give(row, it));
        }
        Ok(shares)
    }

    /// The experts of rows with these products, those of a row behind each other, where only those that are chosen, by their
    /// products, have scores: these are made as all scores are, so that they have the same bits everywhere.
    fn of_chosen<D: Device>(
        &self,
        device: &D,
        products: &[f32],
    ) -> Result<Vec<(usize, f32)>, Error> {
        let best = |products: &[f32]| descending(products).into_iter().take(self.chosen);
        let rows = products.chunks_exact(self.count);
        let chosen: Vec<usize> = rows.clone().flat_map(best).collect();
        let of_row = |(products, chosen): (&[f32], &[usize])| -> Vec<f32> {
            chosen.iter().map(|&expert| products[expert]).collect()
        };
        let products = rows.zip(chosen.chunks(self.chosen)).flat_map(of_row).collect();
        let products = device.rows(products, self.chosen)?;
        let scores = match self.router.scores {
            RouterScores::SoftmaxOfChosen => device.softmax(products)?,
            _ => sigmoid(device, products)?,
        };
        let weight = |(expert, score)| (expert, score * self.multiplier(expert));
        Ok(chosen.into_iter().zip(scores).map(weight).collect())
    }

    /// What the weight of an expert is multiplied with.
    fn multiplier(&self, expert: usize) -> f32 {
        self.router.multiplier * self.scale.as_ref().map_or(1.0, |scale| scale[expert])
    }

    /// The experts of a row with these scores, the best first, each with its weight. Of equal experts the first is chosen.
    fn of(&self, scores: &[f32]) -> Vec<(usize, f32)> {
        let mut corrected = scores.to_vec();
        for (score, by) in corrected.iter_mut().zip(self.correction.iter().flatten()) {
            *score += by;
        }
        if let Some(groups) = self.router.groups {
            keep_groups(&mut corrected, groups);
        }
        let mut order = descending(&corrected);
        order.truncate(self.chosen);
        let sum: f32 = order.iter().map(|&expert| scores[expert]).sum();
        let divisor = self.router.renormalise.map_or(1.0, |least| sum.max(least));
        let scale = |expert: usize| self.scale.as_ref().map_or(1.0, |scale| scale[expert]);
        let weight =
            |expert: usize| scores[expert] / divisor * self.router.multiplier * scale(expert);
        order.into_iter().map(|expert| (expert, weight(expert))).collect()
    }
}

/// The sigmoid of each number, brought back.
fn sigmoid<D: Device>(device: &D, x: D::Rows) -> Result<Vec<f32>, Error> {
    device.values(device.activate(Activation::Sigmoid, x)?)
}

/// Indices of the largest first.
fn descending(scores: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a])); // Stable: ties stay in order.
    order
}

/// Leaves only the scores of the best groups.
fn keep_groups(scores: &mut [f32], RouterGroups { count, chosen }: RouterGroups) {
    let size = (scores.len() / count).max(1);
    let of_group =
        |scores: &[f32]| descending(scores).into_iter().take(2).map(|it| scores[it]).sum();
    let of_groups: Vec<f32> = scores.chunks(size).map(of_group).collect();
    for group in descending(&of_groups).into_iter().skip(chosen) {
        scores[group * size..][..size].fill(f32::NEG_INFINITY);
    }
}

#[cfg(all(test, target_os = "linux"))]
mod touched;

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(renormalise: bool) -> Choice {
        let router = RouterSpec {
            path: "gate".into(),
            bias: false,
            scores: RouterScores::Softmax,
            correction: None,
            groups: None,
            renormalise: renormalise.then_some(0.0),
            multiplier: 1.0,
            weighs_inputs: false,
            norm: None,
            expert_scale: None,
        };
        Choice { router, correction: None, scale: None, count: 4, chosen: 2 }
    }

    fn chosen(renormalise: bool, probabilities: &[f32]) -> Vec<(usize, f32)> {
        choice(renormalise).of(probabilities)
    }

    #[test]
    fn a_correction_decides_who_is_chosen_and_not_with_what_weight() {
        let scores = [0.125, 0.5, 0.25, 0.375];
        let mut corrected = choice(true);
        corrected.correction = Some(vec![1.0, 0.0, 0.0, 0.0]);
        corrected.router.multiplier = 2.5;
        let weights = [(0, 0.125 / 0.625 * 2.5), (1, 0.5 / 0.625 * 2.5)];
        assert_eq!(corrected.of(&scores), weights);
        corrected.router.renormalise = Some(2.0);
        assert_eq!(corrected.of(&scores), [(0, 0.125 / 2.0 * 2.5), (1, 0.5 / 2.0 * 2.5)]);
    }

    #[test]
    fn those_chosen_by_their_products_share_what_all_would() {
        let options = crate::EngineOptions { threads: 1, ..crate::EngineOptions::new(1) };
        let device = crate::device::cpu::Cpu::new(&options).unwrap();
        let of = |scores: RouterScores, products: Vec<f32>| {
            let mut choice = choice(false);
            choice.router.scores = scores;
            choice.router.multiplier = 2.0;
            let products = device.rows(products, 4).unwrap();
            let shares = choice.shares(&device, products).unwrap();
            shares.into_iter().map(|share| (share.rows, share.weights)).collect::<Vec<_>>()
        };
        // Two rows; of sigmoids of the second's first two, f32 knows no larger one.
        let products = vec![1.0, -2.0, 3.0, 0.5, 40.0, 30.0, 41.0, -1.0];
        let found = of(RouterScores::SigmoidOfChosen, products.clone());
        let rows = |found: &[(Vec<usize>, Vec<f32>)]| -> Vec<Vec<usize>> {
            found.iter().map(|(rows, _)| rows.clone()).collect()
        };
        assert_eq!(rows(&found), [vec![0, 1], vec![], vec![0, 1], vec![]]);
        let near = |found: f32, expected: f64| (f64::from(found) - expected).abs() < 1e-6;
        let sigmoid = |x: f64| 2.0 / (1.0 + (-x).exp());
        assert!(near(found[0].1[0], sigmoid(1.0)) && near(found[2].1[0], sigmoid(3.0)));
        assert_eq!((found[0].1[1], found[2].1[1]), (2.0, 2.0));
        let found = of(RouterScores::SoftmaxOfChosen, products);
        assert_eq!(rows(&found), [vec![0, 1], vec![], vec![0, 1], vec![]]);
        let part = |x: f64, other: f64| 2.0 / (1.0 + (other - x).exp());
        assert!(near(found[0].1[0], part(1.0, 3.0)) && near(found[2].1[0], part(3.0, 1.0)));
        assert!(near(found[0].1[1], part(40.0, 41.0)) && near(found[2].1[1], part(41.0, 40.0)));
    }

    #[test]
    fn experts_are_chosen_of_the_groups_whose_two_best_are_best() {
        let mut grouped = choice(false);
        grouped.router.groups = Some(RouterGroups { count: 2, chosen: 1 });
        // The best alone is in the first group.
        let scores = [0.75, 0.125, 0.0, 0.5, 0.0, 0.625];
        assert_eq!(grouped.of(&scores), [(5, 0.625), (3, 0.5)]);
        grouped.router.groups = Some(RouterGroups { count: 2, chosen: 2 });
        assert_eq!(grouped.of(&scores), [(0, 0.75), (5, 0.625)]);
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
