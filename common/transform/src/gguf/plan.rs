//! From a checkpoint to the job that writes it as one GGUF file.

use std::collections::HashMap;

use cake_checkpoint::Checkpoint;

use super::form::GgufType;
use super::reader::Reader;
use super::writer::{Info, Value, lay_out};
use super::{FORMAT, arch, keys, names, rope, tokenizer};
use crate::error::Error;
use crate::job::{Job, Output, Target};
use crate::piece::{Piece, Place};
use crate::source::Source;

/// What the only file is called in a directory.
const FILE: &str = "model.gguf";

/// How a model is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GgufOptions {
    /// Whether a tokenizer that splits text in a way for which llama.cpp has no name is written as if it split it in the
    /// default way, instead of refused.
    pub guess_pre_tokenizer: bool,
}

/// The job that writes the checkpoint, which is `source`'s, as one GGUF file; with it, as sentences, what the file will not say
/// of the model. Most matrices become `to`; without it they stay what they are, and those in codes become f16.
///
/// # Errors
/// [`Error::Unsupported`] for a model that GGUF or this program has no way to say, [`Error::Text`] or [`Error::Io`] for a
/// tokenizer that cannot be used.
pub fn convert(
    mut source: Source,
    checkpoint: &Checkpoint,
    to: Option<GgufType>,
    target: Target,
    options: GgufOptions,
) -> Result<(Job, Vec<String>), Error> {
    source.refuse_other_form(FORMAT)?;
    let spec = &checkpoint.config;
    Source::refuse_made(checkpoint, super::FORMAT)?;
    source.unstack(spec)?;
    let arch = arch::of(&spec.architecture)?;
    let mut lost = Vec::new();
    if to == Some(GgufType::Q4_0) && checkpoint.head().is_some() {
        lost.push("the output matrix is written as q8_0, where llama-quantize writes q6_k".into());
    }

    let divisors = spec.rotations.first().and_then(rope::divisors);
    let mut infos = Vec::new();
    if let Some(divisors) = &divisors {
        let (name, shape) = (names::DIVISORS.to_owned(), vec![divisors.len() as u64]);
        infos.push(Info { name, shape, kind: GgufType::F32 });
    }
    let mut slots: HashMap<String, usize> = HashMap::new();
    let mut matrices = Vec::new();
    for matrix in Reader::new(&source, checkpoint, arch).all()? {
        let info = matrix.info(to, checkpoint.head().is_none());
        let slot = *slots.entry(info.name.clone()).or_insert_with(|| {
            infos.push(info.clone());
            infos.len() - 1
        });
        if infos[slot].kind != info.kind {
            infos[slot].kind = GgufType::F32; // Experts of several types, of which none is to lose anything.
        }
        matrices.push((matrix, slot));
    }

    lost.extend(fallback(&infos, to));
    let mostly = to.unwrap_or_else(|| mostly(&infos));
    let mut keys = keys::keys(arch, spec, &checkpoint.location.name, mostly, &mut lost)?;
    keys.extend(tokenizer::keys(checkpoint, options.guess_pre_tokenizer, &mut lost)?);
    drop_name_of_phi(&mut keys);
    let layout = lay_out(&keys, &infos)?;
    let mut pieces = vec![Piece::Known { bytes: layout.header, place: at(0) }];
    if let Some(divisors) = divisors {
        let bytes = divisors.iter().flat_map(|it| it.to_le_bytes()).collect();
        pieces.push(Piece::Known { bytes, place: at(layout.offsets[0]) });
    }
    for (matrix, slot) in matrices {
        pieces.push(matrix.piece(infos[slot].kind, layout.offsets[slot])?);
    }
    let name = match &target {
        Target::File(path) => path.file_name().map(|it| it.to_string_lossy().into_owned()),
        Target::Directory(_) => None,
    };
    let name = name.unwrap_or_else(|| FILE.to_owned());
    let outputs = vec![Output { name, bytes: layout.bytes }];
    Ok((Job { source, target, outputs, pieces }, lost))
}

/// What is said of matrices whose rows are no whole blocks of what was asked for, and that are blocks of another kind.
fn fallback(infos: &[Info], to: Option<GgufType>) -> Option<String> {
    let to = to?;
    let is_whole =
        |info: &&Info| info.shape.last().is_some_and(|columns| to.of_row(*columns) == to);
    let is_matrix = |info: &&Info| info.shape.len() > 1 && info.kind != GgufType::F32;
    let others = infos.iter().filter(|info| is_matrix(info) && !is_whole(info));
    let mut kinds: Vec<String> = others.clone().map(|info| info.kind.to_string()).collect();
    kinds.sort();
    kinds.dedup();
    let (count, kinds) = (others.count(), kinds.join(" or "));
    (count > 0).then(|| {
        format!("{count} tensors whose rows are no whole blocks of {to} are written as {kinds}")
    })
}

/// The type that most bytes of the tensors have.
fn mostly(infos: &[Info]) -> GgufType {
    let bytes = |kind: GgufType| -> u64 {
        infos.iter().filter(|info| info.kind == kind).filter_map(Info::bytes).sum()
    };
    GgufType::ALL.into_iter().max_by_key(|kind| bytes(*kind)).unwrap_or(GgufType::F32)
}

/// Drops the model's name if it is Phi-3's and the tokens are not: llama.cpp takes these for granted by that name, and does
/// not open a file without them.
fn drop_name_of_phi(keys: &mut Vec<(String, Value)>) {
    const GRANTED: [&str; 4] = ["</s>", "<unk>", "<s>", "<|endoftext|>"];
    let has_all = keys.iter().any(|(_, value)| {
        let Value::Texts(texts) = value else { return false };
        GRANTED.iter().all(|token| texts.iter().any(|text| text == token))
    });
    let is_phi = |value: &Value| {
        let Value::Text(name) = value else { return false };
        let name = name.to_lowercase();
        name.contains("phi3") || name.contains("phi-3")
    };
    keys.retain(|(key, value)| has_all || key != keys::NAME || !is_phi(value));
}

fn at(offset: u64) -> Place {
    Place { output: 0, offset }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_mostly_what_most_of_its_bytes_are() {
        let info = |shape: &[u64], kind| Info { name: "w".into(), shape: shape.into(), kind };
        let infos = [info(&[4, 32], GgufType::F32), info(&[12, 32], GgufType::BF16)];
        assert_eq!(mostly(&infos), GgufType::BF16);
        assert_eq!(mostly(&infos[..1]), GgufType::F32);
    }
}
