//! The model that files hold, as everybody else knows models.

use serde_json::Value;

use super::arch::{self, Arch, DIVISORS, Fields, Owner};
use super::error::GgufError;
use super::files::Opened;
use super::header::Head;
use super::kind::Kind;
use super::tensors::TensorInfo;
use super::tokenizer;
use crate::container::tensor::{Lies, StoredTensor};
use crate::dtype::Dtype;
use crate::error::Error;
use crate::file::read_exact_at;
use crate::model::ModelSpec;

/// Most divisors of frequencies: a head has no more pairs.
const MAX_DIVISORS: u64 = 1 << 13;

/// What the files say that their model is.
pub(super) struct Model {
    arch: &'static Arch,
    /// How many layers there are, and how many blocks.
    layers: [u64; 2],
    /// Query heads, and heads of keys.
    heads: [u64; 2],
    /// Its configuration, as the Hub has it.
    pub(super) config: Vec<u8>,
}

impl Model {
    /// Reads what the files of a model say; the first one has all but tensors.
    ///
    /// # Errors
    /// [`Error::Gguf`] for a model that does not run, or is not said as the format says it; [`Error::Io`].
    pub(super) fn of(files: &[Opened]) -> Result<Model, Error> {
        let first = &files[0]; // Whoever opened them opened one at least.
        let metadata = &first.head.metadata;
        let wrong = |cause: GgufError| first.wrong(cause);
        let arch = arch::of(metadata).map_err(wrong)?;
        let tensors: Vec<&TensorInfo> = files.iter().flat_map(|it| &it.head.tensors).collect();
        let mut fields = arch::config(arch, metadata, &tensors).map_err(wrong)?;
        for opened in files {
            let found = opened.head.tensors.iter().find(|tensor| tensor.name == DIVISORS);
            if let Some(tensor) = found {
                scale_rotation(opened, tensor, &mut fields)?;
            }
        }
        let keys = arch.keys(metadata).map_err(wrong)?;
        let config = text_of(&fields);
        Ok(Model {
            arch,
            layers: [keys.layers, keys.blocks],
            heads: [keys.heads, keys.kv_heads],
            config,
        })
    }

    /// Says of the model that its configuration describes how `files` have it: norms with what is added to them elsewhere, and
    /// what else the architecture has in a form of its own.
    pub(super) fn form(&self, files: &[Opened], spec: &mut ModelSpec) {
        spec.fold_norms();
        let all = files.iter().flat_map(|opened| &opened.head.tensors);
        (self.arch.form)(&|name| all.clone().any(|tensor| tensor.name == name), spec);
    }

    /// The tensor as everybody else knows it; `None` if it was read already, and is none of these.
    ///
    /// # Errors
    /// [`GgufError`] for one that the model does not have.
    fn stored(&self, tensor: &TensorInfo, file: usize) -> Result<Option<StoredTensor>, GgufError> {
        if tensor.name == DIVISORS {
            return Ok(None);
        }
        let place = arch::place(self.arch, &tensor.name, self.layers)?;
        let mut stored = StoredTensor { name: place.name, ..as_it_is(tensor, file) };
        if let Some(at) = place.one.filter(|at| stored.shape.len() == at + 1) {
            stored.shape.insert(at, 1);
        }
        let heads = match place.owner {
            Owner::Queries => self.heads[0],
            Owner::Keys => self.heads[1],
            Owner::Other => return Ok(Some(stored)),
        };
        let rows = stored.shape.first().copied().unwrap_or(0);
        // Where there are other rows the shape is wrong, and whoever checks it says so.
        if self.arch.pairs && heads.checked_mul(2).is_some_and(|halves| rows.is_multiple_of(halves))
        {
            stored.lies = Lies::InPairs { heads };
        }
        Ok(Some(stored))
    }
}

impl Head {
    /// What a file that has all of a model says of it, as the configuration that the Hub has; but for what its tensors say of
    /// rotations.
    ///
    /// # Errors
    /// [`GgufError`] for a model that does not run, or is not said as the format says it.
    pub fn config(&self) -> Result<Vec<u8>, GgufError> {
        let arch = arch::of(&self.metadata)?;
        let tensors: Vec<&TensorInfo> = self.tensors.iter().collect();
        let fields = arch::config(arch, &self.metadata, &tensors)?;
        let keys = arch.keys(&self.metadata)?;
        for tensor in tensors.into_iter().filter(|tensor| tensor.name != DIVISORS) {
            arch::place(arch, &tensor.name, [keys.layers, keys.blocks])?;
        }
        Ok(text_of(&fields))
    }

    /// The texts that are made of what the file says, each under the name that its file has on the Hub.
    ///
    /// # Errors
    /// [`GgufError::Tokenizer`]
    pub fn texts(&self) -> Result<Vec<(String, Vec<u8>)>, GgufError> {
        Ok(tokenizer::texts(&self.metadata)?)
    }
}

fn text_of(fields: &Fields) -> Vec<u8> {
    serde_json::to_vec(fields).expect("strings and numbers always serialise")
}

/// Every tensor of the files, by file and place: under its name on the Hub if it is known what model they are, else as it is
/// called.
///
/// # Errors
/// [`Error::Gguf`] for a tensor that the model does not have.
pub(super) fn tensors(files: &[Opened], model: Option<&Model>) -> Result<Vec<StoredTensor>, Error> {
    let mut all = Vec::new();
    for (index, opened) in files.iter().enumerate() {
        for tensor in &opened.head.tensors {
            all.extend(match model {
                None => Some(as_it_is(tensor, index)),
                Some(model) => model.stored(tensor, index).map_err(|cause| opened.wrong(cause))?,
            });
        }
    }
    Ok(all)
}

fn as_it_is(tensor: &TensorInfo, file: usize) -> StoredTensor {
    let TensorInfo { name, kind, shape, start, bytes } = tensor;
    let (dtype, shape) = kind.stored(shape);
    StoredTensor {
        name: name.clone(),
        file,
        dtype,
        shape,
        offset: *start,
        bytes: *bytes,
        lies: Lies::Together,
        encoding: kind.encoding(),
    }
}

/// Reads divisors of frequencies, and says the scaling that has them.
fn scale_rotation(opened: &Opened, tensor: &TensorInfo, fields: &mut Fields) -> Result<(), Error> {
    let form = || {
        let (tensor, kind, shape) = (tensor.name.clone(), tensor.kind, tensor.shape.clone());
        GgufError::TensorForm { tensor, expected: "a short vector of F32", kind, shape }
    };
    let is_short = |length: &u64| *length <= MAX_DIVISORS;
    let (Kind::Plain(Dtype::F32), [_]) = (tensor.kind, &tensor.shape[..]) else {
        return Err(opened.wrong(form()));
    };
    if !tensor.shape.first().is_some_and(is_short) {
        return Err(opened.wrong(form()));
    }
    let mut bytes = vec![0; tensor.bytes as usize]; // Bounded just above.
    read_exact_at(&opened.file, &mut bytes, tensor.start)
        .map_err(|cause| Error::io("read", &opened.path, cause))?;
    let (numbers, _) = bytes.as_chunks();
    let divisors: Vec<f32> = numbers.iter().map(|it| f32::from_le_bytes(*it)).collect();
    let base = fields.get("rope_theta").and_then(Value::as_f64);
    let pairs = fields.get("head_dim").and_then(Value::as_u64).map(|width| width / 2);
    let scaling = base.and_then(|base| arch::scaling_of(&divisors, base));
    match scaling.filter(|_| pairs == Some(divisors.len() as u64)) {
        Some(Value::Null) => Ok(()),
        Some(scaling) if !fields.contains_key("rope_scaling") => {
            fields.insert("rope_scaling".to_owned(), scaling);
            Ok(())
        }
        _ => Err(opened.wrong(GgufError::Divisors { tensor: tensor.name.clone() })),
    }
}
