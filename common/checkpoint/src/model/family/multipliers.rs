//! What Granite's families multiply with.

use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::limit;

/// What Granite multiplies with.
pub(super) struct Multipliers {
    pub(super) embedding: f64,
    /// Of products of queries and keys.
    pub(super) scale: f64,
    /// Of what a branch adds.
    pub(super) residual: f64,
    /// What logits are divided by.
    pub(super) divisor: f64,
}

/// Each of them is one where that is not said.
///
/// # Errors
/// If one is out of range.
pub(super) fn multipliers(fields: &Fields<'_>) -> Result<Multipliers, ConfigError> {
    let factor = |field| {
        let given = fields.optional_number(field, 0.0, limit::FACTOR)?;
        Ok::<_, ConfigError>(given.unwrap_or(1.0))
    };
    Ok(Multipliers {
        embedding: factor("embedding_multiplier")?,
        scale: factor("attention_multiplier")?,
        residual: factor("residual_multiplier")?,
        divisor: factor("logits_scaling")?,
    })
}
