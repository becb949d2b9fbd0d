//! From the bytes of a `config.json` to a specification.

use super::error::ConfigError;
use super::family;
use super::fields::Fields;
use super::limit::MAX_CONFIG_BYTES;
use super::quantization;
use super::whole::ModelSpec;

impl ModelSpec {
    /// Reads a `config.json` as written by transformers 4 or 5.
    ///
    /// The bytes may come from anywhere: no input panics, every size is bounded, and workers take what is returned.
    ///
    /// # Errors
    /// [`ConfigError`], naming the field, for what is malformed and for what is not supported.
    pub fn parse(config_json: &[u8]) -> Result<ModelSpec, ConfigError> {
        if config_json.len() > MAX_CONFIG_BYTES {
            return Err(ConfigError::TooLarge { bytes: config_json.len() });
        }
        let value = serde_json::from_slice(config_json).map_err(ConfigError::Json)?;
        let fields = Fields::new(&value)?;
        let family = family::of(&fields)?;
        let mut spec = (family.read)(&fields)?;
        spec.quantization = quantization::read(&fields)?;
        let bos = fields.token_ids("bos_token_id")?.first().copied();
        spec.bos_token_id = bos.or(spec.bos_token_id);
        let eos = fields.token_ids("eos_token_id")?;
        if !eos.is_empty() {
            spec.eos_token_ids = eos;
        }
        fields.refuse_others(family.architecture)?;
        spec.check()?;
        Ok(spec)
    }
}
