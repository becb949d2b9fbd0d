//! How fast runs were, and the middle of several.
use anyhow::{Context, Result};

use super::cluster::Run;
use super::peers::Rates;

/// What a run said of its speed.
pub(super) fn rates(run: &Run) -> Result<Rates> {
    let report = run.json()?;
    let rate = |name: &str| {
        report["timing"][name].as_f64().with_context(|| format!("no {name} in the report"))
    };
    Ok(Rates {
        prefill: rate("prefill_tokens_per_second")?,
        decode: rate("decode_tokens_per_second")?,
    })
}

/// The median of each.
pub(super) fn medians(rates: &[Rates]) -> Rates {
    let of = |rate: fn(&Rates) -> f64| median(rates.iter().map(rate).collect());
    Rates { prefill: of(|rates| rates.prefill), decode: of(|rates| rates.decode) }
}

/// The middle one, or what is between the two in the middle; 0 of none.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.get(middle) {
        Some(upper) if values.len().is_multiple_of(2) => f64::midpoint(values[middle - 1], *upper),
        Some(only) => *only,
        None => 0.0,
    }
}
