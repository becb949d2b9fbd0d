//! Latent attention of one decoder layer: what is kept of a position is its latent, and scores are taken of latents.

use cake_checkpoint::{LatentKeys, LatentQueries, LatentSpec, LinearSpec};

use crate::device::{Attending, Device};
use crate::error::Error;
use crate::loader::LayerLoader;
use crate::options::Precision;
use crate::step::Step;

/// Multi-head latent attention (arXiv:2405.04434), following `DeepseekV3Attention` in Hugging Face transformers.
///
/// That makes keys and values of all latents in each step. The products are the same if each head's query is multiplied
/// with what makes keys of latents, and the weighted latents with what makes values of them: then all heads share one key,
/// the latent and its rotating part, whose latent is the value, too.
pub(crate) struct Latent<D: Device> {
    queries: Queries<D>,
    down: D::Weight,
    norm: D::Norm,
    /// Of each head: what makes keys of latents, transposed.
    keys: Vec<D::Weight>,
    /// Of each head: what makes values of latents.
    values: Vec<D::Weight>,
    output: D::Weight,
    spec: LatentSpec,
    attending: Attending,
    kept: D::Kept,
}

/// What queries are made of.
enum Queries<D: Device> {
    /// The input.
    Whole(D::Weight),
    /// A short vector with a norm.
    Short { down: D::Weight, norm: D::Norm, up: D::Weight },
}

impl<D: Device> Latent<D> {
    /// Loads the projections, whose activations keep two bf16 of each number as attention's do.
    pub(crate) fn load(loader: &LayerLoader<'_, D>, spec: &LatentSpec) -> Result<Self, Error> {
        const PRECISION: Precision = Precision::Bf16x2;
        let linear = |spec: &LinearSpec| loader.linear(spec, PRECISION);
        let of_queries = spec.queries();
        let queries = match (&of_queries[..], &spec.queries) {
            ([down, up], LatentQueries::Short { norm, .. }) => {
                let (mut down, up) = (linear(down)?, linear(up)?);
                loader.device.precede(&mut down, &[&up]);
                Queries::Short { down, norm: loader.norm(norm)?, up }
            }
            ([whole], LatentQueries::Whole(_)) => Queries::Whole(linear(whole)?),
            _ => unreachable!("as many projections as the queries have"),
        };
        let heads = 0..spec.heads;
        let key = |head| match spec.keys_of(head) {
            LatentKeys::Rows(keys) => loader.transposed(&keys, PRECISION),
            LatentKeys::Turned(keys) => linear(&keys),
        };
        let value = |head| linear(&spec.values_of(head));
        let attending = Attending::from(spec);
        Ok(Latent {
            queries,
            down: linear(&spec.down())?,
            norm: loader.norm(&spec.norm)?,
            keys: heads.clone().map(key).collect::<Result<_, Error>>()?,
            values: heads.map(value).collect::<Result<_, Error>>()?,
            output: linear(&spec.output())?,
            spec: spec.clone(),
            attending,
            kept: loader.device.kept(&attending, loader.options)?,
        })
    }

    /// The first products of a step.
    pub(crate) fn first(&self) -> [&D::Weight; 2] {
        let (Queries::Whole(queries) | Queries::Short { down: queries, .. }) = &self.queries;
        [queries, &self.down]
    }

    /// Says whose products come after the last one of a step.
    pub(crate) fn precede(&mut self, device: &D, later: &[&D::Weight]) {
        device.precede(&mut self.output, later);
    }

    /// The operation on `hidden`, `[rows, hidden_size]`, which is already normalised; the result has the same shape.
    ///
    /// What is kept of the rows is written first.
    pub(crate) fn forward(
        &mut self,
        device: &D,
        hidden: &D::Rows,
        step: &Step<'_>,
    ) -> Result<D::Rows, Error> {
        let LatentSpec { heads, plain_dim, rotary_dim, rank, value_dim, rotation, .. } = self.spec;
        let kept_dim = self.spec.kept_dim();
        let [queries, down] = device.linear(self.first(), hidden, &step.kinds)?;
        let queries = match &self.queries {
            Queries::Whole(_) => queries,
            Queries::Short { norm, up, .. } => {
                let short = device.norm(norm, &queries)?;
                let [queries] = device.linear([up], &short, &step.kinds)?;
                queries
            }
        };
        // [rows, rank], and [rows, rotary_dim]
        let latent = device.norm(&self.norm, &device.columns(&down, kept_dim, 0..rank)?)?;
        let mut key = device.columns(&down, kept_dim, rank..kept_dim)?;
        drop(down);
        // [rows, heads × plain_dim], and [rows, heads × rotary_dim]
        let query_dim = self.spec.query_dim();
        let plain = device.columns(&queries, query_dim, 0..plain_dim)?;
        let mut turning = device.columns(&queries, query_dim, plain_dim..query_dim)?;
        drop(queries);
        if let Some(rotation) = rotation {
            let angles = step.rotation(rotation)?;
            key = device.rotate(key, angles, 1, rotary_dim)?;
            turning = device.rotate(turning, angles, heads, rotary_dim)?;
        }
        let keys = device.join(&[(&latent, rank), (&key, rotary_dim)])?; // [rows, kept_dim]
        device.keep(&mut self.kept, step, &keys, None)?;
        drop((latent, key, keys));
        let plain = by_head(device, &self.keys, &plain, (plain_dim, rank), step)?;
        let queries = device.join(&[(&plain, rank), (&turning, rotary_dim)])?; // [rows, heads × kept_dim]
        drop((plain, turning));
        let attended = device.attend(&self.kept, &self.attending, step, &queries, None)?;
        drop(queries);
        let latents = device.columns(&attended, kept_dim, 0..rank)?; // [rows, heads × rank]
        drop(attended);
        let values = by_head(device, &self.values, &latents, (rank, value_dim), step)?;
        drop(latents);
        let [output] = device.linear([&self.output], &values, &step.kinds)?;
        Ok(output)
    }
}

/// Each head's part of `x`, `[rows, heads × from]`, times the head's own weight: `[rows, heads × to]`.
fn by_head<D: Device>(
    device: &D,
    weights: &[D::Weight],
    x: &D::Rows,
    (from, to): (usize, usize),
    step: &Step<'_>,
) -> Result<D::Rows, Error> {
    let width = weights.len() * from;
    let product = |(head, weight)| {
        let own = device.columns(x, width, head * from..(head + 1) * from)?;
        let [product] = device.linear([weight], &own, &step.kinds)?;
        Ok(product)
    };
    let products = weights.iter().enumerate().map(product).collect::<Result<Vec<_>, Error>>()?;
    let parts: Vec<_> = products.iter().map(|product| (product, to)).collect();
    device.join(&parts)
}
