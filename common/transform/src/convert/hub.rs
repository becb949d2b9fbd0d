//! To the Hub's form, for transformers or for MLX, in any encoding that it has.

use std::collections::HashSet;
use std::sync::Arc;

use cake_checkpoint::container::safetensors::CONFIG;
use cake_checkpoint::{
    Affine, Checkpoint, Counts, Dtype, Encoding, FloatType, LayerSpec, ModelSpec, Op, Part, Scheme,
};

use super::stacks::Stacks;
use super::{Encode, config};
use crate::error::{Error, PLAIN_FIRST, Unsupported};
use crate::foreign::Foreign;
use crate::form::{FloatForm, Form, PackedForm, WeighedForm};
use crate::gather::as_stored;
use crate::hub::{Files, Filled, Group, lay_out};
use crate::job::{Job, Output, Target};
use crate::numbers::Numbers;
use crate::piece::{Piece, Place, Rows};
use crate::safetensors::TensorToWrite;
use crate::source::Source;
use crate::texts::add_texts;

/// For whom the files are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HubFormat {
    /// For transformers and what reads the same.
    Safetensors,
    /// For MLX: the same tensors, an index in any case, and what MLX looks for in metadata and configuration.
    Mlx,
}

impl HubFormat {
    const fn name(self) -> &'static str {
        match self {
            HubFormat::Safetensors => "safetensors",
            HubFormat::Mlx => "MLX",
        }
    }
}

/// The model in a directory: weights in files of at most `most_bytes` (but for larger tensors), its configuration, which
/// says how they are stored now, and its texts. Errors of what is packed count as the checkpoint was told to have them
/// ([`Checkpoint::weigh`]), which comes first.
///
/// # Errors
/// [`Unsupported`] for an encoding that the format does not have, or a model that it has in another form; [`Error::Io`] if
/// a text cannot be read.
pub fn to_hub(
    mut source: Source,
    checkpoint: &Checkpoint,
    format: HubFormat,
    encode: Encode,
    target: Target,
    most_bytes: u64,
) -> Result<Job, Error> {
    let foreign = Foreign::of(&source, checkpoint)?;
    let spec = &checkpoint.config;
    Source::refuse_made(checkpoint, format.name())?;
    source.unstack(spec)?;
    let mlx = format == HubFormat::Mlx;
    keeps_form(spec, format, encode)?;
    let packed = matches!(encode, Encode::Affine(_) | Encode::Blocks(_));
    // Packed ones are not read that way, and those of MLX would have names that nobody reads.
    if mlx || packed || spec.quantization.is_some() || !source.is_turned(spec) {
        source.refuse_turned(spec, format.name())?;
    }
    let mut all = Numbers::of(&source, Some(checkpoint));
    foreign.retain_named(&mut all);
    let mut groups = Vec::with_capacity(all.len());
    let mut stacks = Stacks::default();
    let mut modules = Vec::new();
    // What belongs to no module is small, and more exact than the rest where it is: it stays what it is.
    let parameters: HashSet<String> = spec.parameters().collect();
    // The embedding once more, left as it was beside one in another form, would be a head of its own.
    let head = spec.head.strip_suffix(Part::Weight.ending());
    let is_copy = |numbers: &Numbers| {
        let module = Part::split(&numbers.name).map(|(module, _)| module);
        let is_head = module.is_some() && module == head;
        spec.tie_word_embeddings && numbers.is_ignored && is_head
    };
    for numbers in all.iter().filter(|it| encode == Encode::AsStored || !is_copy(it)) {
        let becomes = match parameters.contains(&numbers.name) {
            true => Becomes::Same,
            false => becomes(checkpoint, numbers, encode, format)?,
        };
        let becomes = becomes.changed(numbers, foreign.changes(numbers));
        let add = foreign.added(numbers);
        let slice = |name: &str| spec.expert_slice(name).filter(|_| mlx && !numbers.is_ignored);
        if let (true, Some(module)) = (numbers.is_matrix, module(&numbers.name)) {
            let packed = becomes.packed(numbers);
            match slice(module) {
                None => modules.push((module.to_owned(), packed)),
                Some(all) if all.index == 0 => modules.push((all.name, packed)),
                Some(_) => {} // The first spoke for all.
            }
        }
        let counts = checkpoint.counts_of(&numbers.name, numbers.matrix_shape()[1]);
        for mut group in becomes.groups(&source, numbers, add, counts) {
            let mut place = None;
            for tensor in &mut group.tensors {
                if let Some(all) = slice(&tensor.name) {
                    (tensor.name, place) = (all.name, Some((all.index, all.count)));
                }
            }
            match place {
                None => groups.push(group),
                Some(place) => stacks.add(group, place, &mut groups)?,
            }
        }
    }
    stacks.fill(&mut groups)?;
    let names: Vec<String> =
        groups.iter().flat_map(|group| &group.tensors).map(|tensor| tensor.name.clone()).collect();
    let metadata = [("format".to_owned(), if mlx { "mlx" } else { "pt" }.to_owned())].into();
    let files = Files { metadata, most_bytes, always_index: mlx };
    let (mut outputs, mut pieces) = lay_out(groups, files);
    if mlx {
        pieces.sort_by_key(Piece::source); // Experts of one tensor may lie apart.
    }
    let mut config = config::read(&source.texts)?;
    let before = config::to_text(&config);
    match encode {
        Encode::AsStored if mlx => {
            config::rename_modules(&mut config, |module| Some(spec.expert_slice(module)?.name));
        }
        Encode::AsStored => {}
        Encode::Float(float) => config::say_plain(&mut config, float),
        Encode::Affine(scheme) => {
            if let Some(usual) = most_common(&modules).or(scheme.of_layers().and_then(affine)) {
                modules.retain(|(_, packed)| *packed != Some(usual));
                config::say_packed(&mut config, usual, &modules);
            }
        }
        Encode::Blocks(_) => {} // Refused above, unless there was nothing to refuse.
    }
    if mlx {
        config::say_in_older_keys(&mut config, spec)?;
    }
    let bytes = config::to_text(&config);
    let names = names.iter().map(String::as_str).collect();
    says_the_same([&before, &bytes], &names, spec, format)?;
    let place = Place { output: outputs.len(), offset: 0 };
    outputs.push(Output { name: CONFIG.to_owned(), bytes: bytes.len() as u64 });
    pieces.push(Piece::Known { bytes, place });
    add_texts(&mut source, &[CONFIG], &mut outputs, &mut pieces)?;
    Ok(Job { source, target, outputs, pieces })
}

/// Refuses to write a model whose convolutions are not in the form that its files would have: MLX's in packed ones and in those for
/// MLX, the Hub's in all others.
fn keeps_form(spec: &ModelSpec, format: HubFormat, encode: Encode) -> Result<(), Error> {
    let convolutions = spec.layers.iter().flat_map(LayerSpec::ops).flat_map(Op::convolutions);
    let packed = match encode {
        Encode::AsStored => spec.quantization.is_some(),
        Encode::Affine(scheme) => scheme != Scheme::AsStored,
        Encode::Float(_) | Encode::Blocks(_) => false,
    };
    let of_mlx = packed || format == HubFormat::Mlx;
    match convolutions.into_iter().all(|it| it.taps_first == of_mlx) {
        true => Ok(()),
        false => Err(refused(spec, format, IN_ANOTHER_FORM)),
    }
}

/// Refuses it where the configuration `after` says another model of tensors called `names` than the one `before` did, but for how
/// matrices are stored: in plain files some tensors have other names or another form than MLX's have.
fn says_the_same(
    [before, after]: [&[u8]; 2],
    names: &HashSet<&str>,
    spec: &ModelSpec,
    format: HubFormat,
) -> Result<(), Error> {
    let said = |config| {
        let spec = ModelSpec::parse(config).ok()?.of_files(config, names);
        Some(ModelSpec { quantization: None, ..spec })
    };
    match (said(before), said(after)) {
        (Some(before), Some(after)) if before == after => Ok(()),
        (Some(_), None) => Err(refused(spec, format, UNSAID)),
        _ => Err(refused(spec, format, IN_ANOTHER_FORM)),
    }
}

const IN_ANOTHER_FORM: &str =
    ": some tensors would be in the form of another program, which is not written";
const UNSAID: &str = ": its configuration would not be one that is read";

fn refused(spec: &ModelSpec, format: HubFormat, hint: &'static str) -> Error {
    let (architecture, format) = (spec.architecture.to_string(), format.name());
    Unsupported::Architecture { architecture, format, hint }.into()
}

/// What a tensor becomes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Becomes {
    Same,
    Float(FloatType),
    Packed(PackedForm),
}

impl Becomes {
    /// The tensors that it is then, those of one form together; `counts` says how much errors of a column count.
    fn groups(
        self,
        source: &Source,
        numbers: &Numbers,
        add: f32,
        counts: Option<Counts>,
    ) -> Vec<Group> {
        match self {
            Becomes::Same => {
                numbers.parts.iter().map(|&part| as_stored(&source.tensors[part])).collect()
            }
            Becomes::Float(float) => {
                let tensors = vec![tensor(&numbers.name, float.dtype(), numbers.shape.clone())];
                vec![rows(source, numbers, add, Arc::new(FloatForm(float)), tensors)]
            }
            Becomes::Packed(form) => {
                let tensors = parts(numbers, form);
                let form: Arc<dyn Form> = match counts {
                    Some(counts) => Arc::new(WeighedForm { packed: form, counts }),
                    None => Arc::new(form),
                };
                vec![rows(source, numbers, add, form, tensors)]
            }
        }
    }

    /// The same for numbers that change, or change places: plain ones of the same type instead of the same bytes.
    fn changed(self, numbers: &Numbers, changes: bool) -> Becomes {
        match (self, numbers.encoding) {
            (Becomes::Same, Some(Encoding::Float(float))) if changes => Becomes::Float(float),
            (becomes, _) => becomes,
        }
    }

    /// How the matrix is packed then; `None` if it is not.
    fn packed(self, numbers: &Numbers) -> Option<Affine> {
        match (self, numbers.encoding) {
            (Becomes::Packed(form), _) => affine(form.encoding),
            (Becomes::Same, Some(Encoding::Affine(format))) => Some(format),
            _ => None,
        }
    }
}

fn becomes(
    checkpoint: &Checkpoint,
    numbers: &Numbers,
    encode: Encode,
    format: HubFormat,
) -> Result<Becomes, Error> {
    let refused = |found: String, hint| {
        let (tensor, format) = (numbers.name.clone(), format.name());
        Err(Unsupported::Encoding { tensor, found, format, hint }.into())
    };
    Ok(match (encode, numbers.encoding) {
        (Encode::Blocks(_), _) => {
            return refused(encode.to_string(), "; q8, q6, q5 and q4 are what it has of that kind");
        }
        // What nobody computes with stays, too, whatever it is.
        (_, None) => Becomes::Same,
        _ if numbers.is_ignored => Becomes::Same,
        (Encode::AsStored, Some(Encoding::Float(_) | Encoding::Affine(_))) => Becomes::Same,
        (Encode::Float(float), Some(Encoding::Float(found))) if float == found => Becomes::Same,
        (Encode::Float(float), Some(_)) => Becomes::Float(float),
        (Encode::Affine(scheme), Some(Encoding::Float(params))) => {
            let shape = numbers.matrix_shape();
            let packable = |encoding: &Encoding| encoding.parts(shape).is_some();
            let is_module = numbers.is_matrix && module(&numbers.name).is_some();
            match packed_as(checkpoint, numbers, scheme).filter(packable) {
                Some(encoding) if is_module => Becomes::Packed(PackedForm { encoding, params }),
                _ => Becomes::Same,
            }
        }
        (Encode::Affine(_), Some(Encoding::Affine(_))) => Becomes::Same,
        (_, Some(found)) => {
            return refused(found.to_string(), PLAIN_FIRST);
        }
    })
}

/// What a matrix becomes by that scheme.
fn packed_as(checkpoint: &Checkpoint, numbers: &Numbers, scheme: Scheme) -> Option<Encoding> {
    let format = match numbers.is_end {
        true => checkpoint.end_becomes_affine(&numbers.name, scheme),
        false => checkpoint.becomes_affine(&numbers.name, scheme),
    };
    format.map(Encoding::Affine)
}

/// How the configuration says an encoding of grouped affine codes; `None` for others.
fn affine(encoding: Encoding) -> Option<Affine> {
    match encoding {
        Encoding::Affine(format) => Some(format),
        _ => None,
    }
}

/// The format that most modules have; `None` if none is packed.
fn most_common(modules: &[(String, Option<Affine>)]) -> Option<Affine> {
    let mut counts: Vec<(Affine, usize)> = Vec::new();
    for format in modules.iter().filter_map(|(_, format)| *format) {
        match counts.iter_mut().find(|(known, _)| *known == format) {
            Some((_, count)) => *count += 1,
            None => counts.push((format, 1)),
        }
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(format, _)| format)
}

/// The path of the module whose weight has that name.
fn module(name: &str) -> Option<&str> {
    name.strip_suffix(Part::Weight.ending())
}

/// The tensors of a packed matrix.
fn parts(numbers: &Numbers, form: PackedForm) -> Vec<TensorToWrite> {
    let specs = form.encoding.parts(numbers.matrix_shape()).unwrap_or_default();
    let module = module(&numbers.name).unwrap_or(&numbers.name);
    let part = |spec: cake_checkpoint::PartSpec| {
        let name = format!("{module}{}", spec.part.ending());
        tensor(&name, spec.dtype(form.params.dtype()), spec.shape)
    };
    specs.into_iter().map(part).collect()
}

fn tensor(name: &str, dtype: Dtype, shape: Vec<u64>) -> TensorToWrite {
    // Smaller than eight times a tensor that is in a file.
    let bytes = dtype.tensor_bytes(&shape).unwrap_or(u64::MAX);
    TensorToWrite { name: name.to_owned(), dtype, shape, bytes }
}

fn rows(
    source: &Source,
    numbers: &Numbers,
    add: f32,
    form: Arc<dyn Form>,
    tensors: Vec<TensorToWrite>,
) -> Group {
    let rows = Rows {
        name: numbers.name.clone(),
        encoding: numbers.encoding.expect("only what is known is written in another form"),
        parts: numbers.stretches(source),
        shape: numbers.matrix_shape(),
        order: numbers.order,
        add,
        form,
        places: Vec::new(),
    };
    Group { tensors, filled: vec![Filled::Rows(rows)] }
}
