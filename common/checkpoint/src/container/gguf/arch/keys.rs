//! Typed access to the keys of an architecture; one that nobody asked for is refused, as a field of a configuration is.

use std::cell::RefCell;
use std::collections::BTreeSet;

use crate::container::gguf::error::GgufError;
use crate::container::gguf::value::{Metadata, Value, ValueError};

/// Most layers that anybody asks about: many more than any model has.
const MAX_LAYERS: u64 = 1 << 16;

/// How many layers predict further tokens.
const PREDICTING: &str = "nextn_predict_layers";

/// How many heads of keys there are.
pub(super) const HEADS_OF_KEYS: &str = "attention.head_count_kv";

/// Keys that change nothing of what is computed, or say what tensors do.
const HARMLESS: &[&str] =
    &["pooling_type", "rope.scaling.finetuned", "tensor_data_layout", "vocab_size"];

/// The keys of a file's architecture.
pub(crate) struct Keys<'a> {
    /// What the architecture is called: its keys begin so.
    arch: &'static str,
    /// Whether a part of a head may rotate.
    pub(super) partial: bool,
    metadata: &'a Metadata,
    understood: RefCell<BTreeSet<String>>,
    /// How many layers there are,
    pub(crate) layers: u64,
    /// and with those behind them that predict further tokens, and are not used.
    pub(crate) blocks: u64,
    /// Query heads.
    pub(crate) heads: u64,
    /// Key and value heads, in layers that attend.
    pub(crate) kv_heads: u64,
    /// Which layers attend.
    pub(super) attends: Vec<bool>,
    /// Width of a head; of one whose rotating part is by itself, of that part.
    pub(crate) head_dim: u64,
}

impl<'a> Keys<'a> {
    /// Those of a file.
    ///
    /// # Errors
    /// [`GgufError`] if the file does not say how many layers and heads there are.
    pub(crate) fn of(
        arch: &'static str,
        partial: bool,
        read_heads: fn(&mut Keys<'_>) -> Result<(), GgufError>,
        metadata: &'a Metadata,
    ) -> Result<Self, GgufError> {
        let understood = RefCell::default();
        let mut keys = Keys {
            arch,
            partial,
            metadata,
            understood,
            layers: 0,
            blocks: 0,
            heads: 0,
            kv_heads: 0,
            attends: Vec::new(),
            head_dim: 0,
        };
        keys.blocks = keys.size("block_count")?;
        if keys.blocks > MAX_LAYERS {
            return Err(keys.unsupported("block_count", "far fewer layers"));
        }
        let predicting = keys.unsigned(PREDICTING)?.unwrap_or(0);
        keys.layers = match keys.blocks.checked_sub(predicting) {
            None | Some(0) => return Err(keys.unsupported(PREDICTING, "fewer than all layers")),
            Some(layers) => layers,
        };
        keys.attends = vec![true; keys.layers as usize]; // Bounded just above.
        keys.heads = keys.of_layers("attention.head_count")?;
        read_heads(&mut keys)?;
        Ok(keys)
    }

    /// Reads how wide a head is, which is one number of queries, keys and values.
    fn read_width(&mut self) -> Result<(), GgufError> {
        let even = self.size("embedding_length")? / self.heads;
        let widths = ["attention.key_length", "attention.value_length"];
        let [keys_width, values_width] = widths.map(|key| self.unsigned(key));
        self.head_dim = keys_width?.unwrap_or(even);
        match values_width? {
            Some(found) if found != self.head_dim => {
                Err(self.unsupported(widths[1], &self.head_dim.to_string()))
            }
            None if self.head_dim != even => {
                Err(ValueError::Missing { key: self.name(widths[1]) }.into())
            }
            _ if self.head_dim == 0 => Err(self.unsupported(widths[0], "more than 0")),
            _ => Ok(()),
        }
    }

    /// The whole key.
    pub(super) fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.arch)
    }

    fn asked(&self, key: &str) -> String {
        let name = self.name(key);
        self.understood.borrow_mut().insert(name.clone());
        name
    }

    /// Whether there is anything under the key.
    pub(super) fn has(&self, key: &str) -> bool {
        self.metadata.get(&self.name(key)).is_some()
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>, GgufError> {
        Ok(self.metadata.text(&self.asked(key))?.map(String::as_str))
    }

    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>, GgufError> {
        Ok(self.metadata.bool(&self.asked(key))?.copied())
    }

    pub(super) fn unsigned(&self, key: &str) -> Result<Option<u64>, GgufError> {
        Ok(self.metadata.unsigned(&self.asked(key))?)
    }

    /// A list of whole numbers.
    pub(super) fn integers(&self, key: &str) -> Result<Option<&'a [i64]>, GgufError> {
        Ok(self.metadata.integers(&self.asked(key))?.map(Vec::as_slice))
    }

    /// A whole number from 1 on, which must be there.
    pub(super) fn size(&self, key: &str) -> Result<u64, GgufError> {
        let name = self.asked(key);
        match Metadata::required(&name, self.metadata.unsigned(&name))? {
            0 => Err(self.unsupported(key, "more than 0")),
            number => Ok(number),
        }
    }

    /// A finite number.
    pub(super) fn number(&self, key: &str) -> Result<Option<f64>, GgufError> {
        match self.metadata.number(&self.asked(key))? {
            Some(number) if !number.is_finite() => Err(self.unsupported(key, "a finite number")),
            number => Ok(number),
        }
    }

    /// A finite number, which must be there.
    pub(super) fn needed(&self, key: &str) -> Result<f64, GgufError> {
        let missing = || ValueError::Missing { key: self.name(key) }.into();
        self.number(key)?.ok_or_else(missing)
    }

    /// A whole number from 1 on, which must be there: one for all layers, or a list with the same one for each.
    pub(super) fn of_layers(&self, key: &str) -> Result<u64, GgufError> {
        let found = self.number_of_layers(key)?;
        let missing = || ValueError::Missing { key: self.name(key) };
        match found.ok_or_else(missing)? {
            0 => Err(self.unsupported(key, "more than 0")),
            number => Ok(number),
        }
    }

    fn of_layers_or(&self, key: &str, default: u64) -> Result<u64, GgufError> {
        match self.number_of_layers(key)?.unwrap_or(default) {
            0 => Err(self.unsupported(key, "more than 0")),
            number => Ok(number),
        }
    }

    fn number_of_layers(&self, key: &str) -> Result<Option<u64>, GgufError> {
        let name = self.asked(key);
        let Some(Value::Integers(list)) = self.metadata.get(&name) else {
            return Ok(self.metadata.unsigned(&name)?);
        };
        let alike = list.len() as u64 == self.blocks && list.windows(2).all(|two| two[0] == two[1]);
        let number = list.first().and_then(|first| u64::try_from(*first).ok());
        match number.filter(|_| alike) {
            Some(number) => Ok(Some(number)),
            None => {
                let expected = format!("one number, or {} of the same", self.blocks);
                Err(self.unsupported(key, &expected))
            }
        }
    }

    /// A list with one yes or no for each layer; `None` if there is no list.
    pub(super) fn flags_of_layers(&self, key: &str) -> Result<Option<Vec<bool>>, GgufError> {
        let flags: Vec<bool> = match self.metadata.get(&self.asked(key)) {
            Some(Value::Bools(list)) => list.clone(),
            Some(Value::Integers(list)) => list.iter().map(|it| *it != 0).collect(),
            _ => return Ok(None),
        };
        match flags.len() as u64 == self.blocks {
            true => Ok(Some(flags.into_iter().take(self.layers as usize).collect())),
            false => Err(self.unsupported(key, &format!("one for each of {} layers", self.blocks))),
        }
    }

    /// The refusal of the value of a key that is there.
    pub(super) fn unsupported(&self, key: &str, expected: &str) -> GgufError {
        let key = self.name(key);
        let found = self.metadata.get(&key).map_or("missing".to_owned(), Value::to_string);
        GgufError::Unsupported { key, found, expected: expected.to_owned() }
    }

    /// Refuses a key of the architecture that is switched on and that nobody asked for: nothing is computed as something else.
    ///
    /// # Errors
    /// [`GgufError::UnknownKey`]
    pub(super) fn refuse_others(&self) -> Result<(), GgufError> {
        let prefix = self.name("");
        let understood = self.understood.borrow();
        for key in self.metadata.keys() {
            let Some(own) = key.strip_prefix(&prefix) else { continue };
            let Some(value) = self.metadata.get(key) else { continue };
            if !understood.contains(key) && !HARMLESS.contains(&own) && !is_off(value) {
                let (key, found) = (key.to_owned(), value.to_string());
                return Err(GgufError::UnknownKey { key, found, architecture: self.arch });
            }
        }
        Ok(())
    }
}

/// Heads as most files say them: all layers have as many.
pub(super) fn alike(keys: &mut Keys<'_>) -> Result<(), GgufError> {
    keys.kv_heads = keys.of_layers_or(HEADS_OF_KEYS, keys.heads)?;
    keys.read_width()
}

/// Heads of which layers that do not attend have none of keys; the other layers have as many as each other.
pub(super) fn of_some(keys: &mut Keys<'_>) -> Result<(), GgufError> {
    let name = keys.asked(HEADS_OF_KEYS);
    let Some(Value::Integers(list)) = keys.metadata.get(&name) else { return alike(keys) };
    let some = list.iter().copied().find(|heads| *heads != 0);
    let all_alike = list.iter().all(|heads| *heads == 0 || Some(*heads) == some);
    let number = some.and_then(|some| u64::try_from(some).ok());
    match number.filter(|_| all_alike && list.len() as u64 == keys.blocks) {
        Some(number) => {
            keys.kv_heads = number;
            keys.attends = list.iter().map(|heads| *heads != 0).take(keys.attends.len()).collect();
            keys.read_width()
        }
        None => {
            let expected = format!("one number, or {} that are 0 or all the same", keys.blocks);
            Err(keys.unsupported(HEADS_OF_KEYS, &expected))
        }
    }
}

/// Whether a value says that what it is about is not there.
fn is_off(value: &Value) -> bool {
    match value {
        Value::Bool(on) => !on,
        Value::Text(text) => text.is_empty() || text == "none",
        Value::Texts(list) => list.is_empty(),
        Value::Integers(list) => list.iter().all(|it| *it == 0),
        Value::Floats(list) => list.iter().all(|it| *it == 0.0),
        Value::Bools(list) => !list.contains(&true),
        number => number.number() == Some(0.0),
    }
}
