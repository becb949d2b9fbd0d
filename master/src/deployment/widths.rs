//! How wide each layer's weights stay, where devices have memory to spare: what is left of it goes to the layers that lose most.
use std::sync::Arc;

use cake_checkpoint::{Checkpoint, LayerRange, Scheme};
use serde::Serialize;

use crate::model::Model;

/// What a layer loses in each width.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct LayerLoss {
    /// The layer.
    pub layer: usize,
    /// What it is turned into.
    pub encoding: String,
    /// The squared error for each squared weight, both as they count if a text said so, in every width that it may be turned
    /// into, widest first.
    pub loss: Vec<(String, f64)>,
}

/// What layers may become, narrowest first, and what they lose by it.
#[derive(Clone, Debug)]
pub(crate) struct Losses {
    schemes: Vec<Scheme>,
    /// Of each layer, in each of these.
    loss: Vec<Vec<f64>>,
}

/// A layer in one width.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Width {
    bytes: u64,
    loss: f64,
}

impl Losses {
    /// Encodes a sample of each layer's rows in each of the schemes.
    ///
    /// # Errors
    /// Weights that cannot be read or encoded.
    pub(crate) fn measure(
        checkpoint: &Checkpoint,
        schemes: &[Scheme],
    ) -> Result<Losses, cake_checkpoint::Error> {
        let mut schemes: Vec<Scheme> = schemes.to_vec();
        schemes.reverse(); // They come widest first.
        let layers = 0..checkpoint.config.layers.len();
        let of_layer = |layer| -> Result<Vec<f64>, cake_checkpoint::Error> {
            schemes.iter().map(|scheme| checkpoint.encoding_loss(layer, *scheme)).collect()
        };
        let loss = layers.map(of_layer).collect::<Result<Vec<_>, _>>()?;
        Ok(Losses { schemes, loss })
    }

    /// What each layer becomes, `fits` at least, in which all of them fit, so that the layers of each stage take no more
    /// bytes than it has beside those. `None` where all are alike.
    pub(crate) fn spend(
        &self,
        checkpoint: &Arc<Checkpoint>,
        fits: Scheme,
        stages: &[(LayerRange, u64)],
    ) -> Option<Vec<Scheme>> {
        let first = self.schemes.iter().position(|scheme| *scheme == fits)?;
        let schemes = &self.schemes[first..];
        let models: Vec<Model> =
            schemes.iter().map(|it| Model::new(checkpoint.clone(), *it)).collect();
        let width = |layer: usize, at: usize| Width {
            bytes: models[at].blob_bytes(layer),
            loss: self.loss[layer][first + at],
        };
        let mut chosen = vec![fits; self.loss.len()];
        for (layers, spare) in stages {
            let widths: Vec<Vec<Width>> = layers
                .iter()
                .map(|layer| (0..models.len()).map(|at| width(layer, at)).collect())
                .collect();
            for (layer, at) in layers.iter().zip(widen(&widths, *spare)) {
                chosen[layer] = schemes[at];
            }
        }
        let is_mixed = chosen.windows(2).any(|pair| pair[0] != pair[1]);
        is_mixed.then_some(chosen)
    }

    /// The table, for people and programs.
    pub(crate) fn table(&self, model: &Model) -> Vec<LayerLoss> {
        let layers = self.loss.iter().enumerate();
        layers
            .map(|(layer, loss)| LayerLoss {
                layer,
                encoding: model.scheme_of(layer).to_string(),
                loss: self
                    .schemes
                    .iter()
                    .map(Scheme::to_string)
                    .zip(loss.iter().copied())
                    .rev()
                    .collect(),
            })
            .collect()
    }
}

/// What each stage may spend of the bytes that its device has left, `(all that it may take, what the plan takes of that)` of
/// each: all of them, but where the plan without its largest device would still fit into the others, no more than that leaves,
/// in equal parts of each, so that a loss can still be made up for.
pub(crate) fn spare(stages: &[(u64, u64)]) -> Vec<u64> {
    let left = stages.iter().map(|(budget, taken)| budget.saturating_sub(*taken));
    let all: u64 = left.clone().fold(0, u64::saturating_add);
    let budgets = stages.iter().map(|(budget, _)| *budget);
    let largest = budgets.clone().max().unwrap_or(0);
    let others = budgets.fold(0, u64::saturating_add).saturating_sub(largest);
    let taken = stages.iter().map(|(_, taken)| *taken).fold(0, u64::saturating_add);
    match others.checked_sub(taken) {
        Some(beside) if beside < all => left
            .map(|left| (u128::from(left) * u128::from(beside) / u128::from(all)) as u64)
            .collect(),
        _ => left.collect(),
    }
}

/// Which of its widths (narrowest first) each layer gets, of so many bytes beyond the narrowest of all: again and again the
/// step from one layer's width to a wider one of it that saves most for each byte, as long as there is room for one.
fn widen(layers: &[Vec<Width>], mut spare: u64) -> Vec<usize> {
    let mut chosen = vec![0; layers.len()];
    loop {
        let mut best: Option<(f64, usize, usize, u64)> = None;
        for (layer, widths) in layers.iter().enumerate() {
            let now = widths[chosen[layer]];
            for (at, wider) in widths.iter().enumerate().skip(chosen[layer] + 1) {
                let more = wider.bytes.saturating_sub(now.bytes);
                let saved = (now.loss - wider.loss) / more.max(1) as f64;
                if more <= spare && saved > best.map_or(0.0, |(saved, ..)| saved) {
                    best = Some((saved, layer, at, more));
                }
            }
        }
        let Some((_, layer, at, more)) = best else { return chosen };
        chosen[layer] = at;
        spare -= more;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn width(bytes: u64, loss: f64) -> Width {
        Width { bytes, loss }
    }

    #[test]
    fn what_saves_most_for_its_bytes_comes_first() {
        let calm = vec![width(4, 0.010), width(5, 0.002), width(8, 0.0)];
        let touchy = vec![width(4, 0.040), width(5, 0.010), width(8, 0.0)];
        let layers = [calm, touchy];
        let of = |spare| widen(&layers, spare);
        assert_eq!(of(0), [0, 0]);
        assert_eq!(of(1), [0, 1]);
        assert_eq!(of(2), [1, 1]);
        assert_eq!(of(4), [1, 1]);
        assert_eq!(of(5), [1, 2]);
        assert_eq!(of(8), [2, 2]);
        assert_eq!(of(u64::MAX), [2, 2]);
    }

    #[test]
    fn room_for_the_layers_of_a_lost_device_is_not_spent() {
        assert_eq!(spare(&[(100, 60)]), [40], "nobody could take its layers anyway");
        assert_eq!(spare(&[(100, 60), (100, 70)]), [40, 30], "and here not");
        // Two of three hold 200: of the 150 beside what is taken, 50 may be spent.
        assert_eq!(spare(&[(100, 50), (100, 50), (100, 50)]), [16, 16, 16]);
        assert_eq!(spare(&[(300, 10), (50, 20), (50, 30)]), [34, 3, 2]);
        assert_eq!(spare(&[]), [0u64; 0]);
        assert_eq!(spare(&[(u64::MAX, 1), (u64::MAX, 1)]).len(), 2);
    }

    #[test]
    fn no_choice_takes_more_than_there_is_and_none_that_saves_is_left_out() {
        for seed in 0..500u64 {
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let mut next = |below: u64| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state % below
            };
            let layers: Vec<Vec<Width>> = (0..1 + next(6))
                .map(|_| {
                    let (base, step) = (4 + next(9), 1 + next(5));
                    let loss = (1 + next(100)) as f64;
                    (0..4).map(|at| width(base + at * step, loss / 4f64.powi(at as i32))).collect()
                })
                .collect();
            let least: u64 = layers.iter().map(|widths| widths[0].bytes).sum();
            let spare = next(60);
            let (bytes, chosen) = (least + spare, widen(&layers, spare));
            let taken: u64 = layers.iter().zip(&chosen).map(|(widths, &at)| widths[at].bytes).sum();
            assert!(taken <= bytes, "seed {seed}: {taken} of {bytes}");
            for (widths, &at) in layers.iter().zip(&chosen) {
                let wider = widths.get(at + 1).map(|wider| wider.bytes - widths[at].bytes);
                assert!(wider.is_none_or(|more| taken + more > bytes), "seed {seed}");
            }
        }
    }
}
