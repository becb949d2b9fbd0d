//! The texts of a model, which go where its weights go.

use std::path::Path;

use cake_checkpoint::TextFiles;
use cake_checkpoint::container::safetensors::INDEX_EXTENSION;

use crate::error::Error;
use crate::job::Output;
use crate::piece::{Piece, Place, Stretch};
use crate::source::Source;

/// What names of a model's texts end in.
const TEXTS: [&str; 8] = [".json", ".jinja", ".txt", ".model", ".tiktoken", ".md", ".py", ".spm"];
/// What names of texts without an ending begin with.
const PAPERS: [&str; 3] = ["LICENSE", "NOTICE", "README"];
/// Folders of a checkpoint that have texts.
const FOLDERS: [&str; 1] = ["additional_chat_templates"];

/// Adds the texts of the source to the outputs of a directory, but for those whose names `but` has.
///
/// # Errors
/// [`Error::Io`] if one cannot be opened.
pub(crate) fn add_texts(
    source: &mut Source,
    but: &[&str],
    outputs: &mut Vec<Output>,
    pieces: &mut Vec<Piece>,
) -> Result<(), Error> {
    let place = |outputs: &[Output]| Place { output: outputs.len(), offset: 0 };
    match source.texts.clone() {
        TextFiles::Inside { texts, .. } => {
            for (name, bytes) in texts.into_iter().filter(|(name, _)| !but.contains(&&**name)) {
                let place = place(outputs);
                outputs.push(Output { name, bytes: bytes.len() as u64 });
                pieces.push(Piece::Known { bytes, place });
            }
        }
        TextFiles::Directory(directory) => {
            for name in names(&directory)?.into_iter().filter(|name| !but.contains(&&**name)) {
                let place = place(outputs);
                let file = source.add(&directory.join(&name))?;
                let bytes = source.files[file].bytes;
                outputs.push(Output { name, bytes });
                pieces.push(Piece::Copy { from: Stretch { file, offset: 0, bytes }, place });
            }
        }
    }
    Ok(())
}

/// The texts of a directory, by what their names say, ascending, with those of its folders of texts.
fn names(directory: &Path) -> Result<Vec<String>, Error> {
    let mut names = files(directory)?;
    for folder in FOLDERS.iter().filter(|folder| directory.join(folder).is_dir()) {
        let inside = files(&directory.join(folder))?;
        names.extend(inside.into_iter().map(|name| format!("{folder}/{name}")));
    }
    Ok(names)
}

fn files(directory: &Path) -> Result<Vec<String>, Error> {
    let failed = |cause| Error::io("read", directory, cause);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        // What has no name in UTF-8 is none of the Hub's.
        let Ok(name) = entry.map_err(failed)?.file_name().into_string() else { continue };
        let ends = TEXTS.iter().any(|ending| name.ends_with(ending));
        let begins = PAPERS.iter().any(|beginning| name.starts_with(beginning));
        let is_text =
            !name.starts_with('.') && !name.ends_with(INDEX_EXTENSION) && (ends || begins);
        if is_text && directory.join(&name).is_file() {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}
