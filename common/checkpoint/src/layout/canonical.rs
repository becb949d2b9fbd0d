//! From the tensors of files to those that everybody else knows.

use std::collections::{BTreeMap, HashMap};

use super::format::Layout;
use super::list::layout;
use super::module::{Module, ReadBytes};
use super::word::Word;
use crate::container::StoredTensor;
use crate::encoding::ModuleFormat;
use crate::error::Error;
use crate::model::ModelSpec;

/// Tensors as everybody knows them.
#[derive(Debug)]
pub struct Canonical {
    /// The tensors, by file and offset.
    pub tensors: Vec<StoredTensor>,
    /// What the files call those that got other names, by these.
    pub called: BTreeMap<String, String>,
}

/// The tensors of a model's files as everybody knows them: those of packed matrices under their usual names, in the types and
/// shapes of their encoding. Several experts may still be in one.
///
/// # Errors
/// What a layout refuses: [`Error`], naming the tensor as the file does.
pub fn canonical(
    tensors: Vec<StoredTensor>,
    spec: &ModelSpec,
    read: &ReadBytes<'_>,
) -> Result<Canonical, Error> {
    let mut called = BTreeMap::new();
    let Some(quantization) = &spec.quantization else {
        return Ok(Canonical { tensors, called });
    };
    let layout = layout(quantization.packing());
    let words = layout.words();
    let mut modules: Vec<(String, Vec<(Word, StoredTensor)>)> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    let mut all = Vec::with_capacity(tensors.len());
    // What is for something else than text may be packed as nobody here has to know.
    let is_other =
        |name: &str| spec.other_prefixes.iter().any(|prefix| name.starts_with(&**prefix));
    for tensor in tensors {
        let module = split(&*layout, &tensor.name).filter(|_| !is_other(&tensor.name));
        let Some((path, word)) = module else {
            all.push(tensor);
            continue;
        };
        let place = *places.entry(path.to_owned()).or_insert_with(|| {
            modules.push((path.to_owned(), Vec::new()));
            modules.len() - 1
        });
        modules[place].1.push((word, tensor));
    }
    for (path, tensors) in modules {
        let said = spec.module_format(&path).unwrap_or(ModuleFormat::Plain);
        let (path, called) = (&*path, &mut called);
        all.extend(layout.canonical(Module { path, said, tensors, words, called, read })?);
    }
    all.sort_by_key(|tensor| (tensor.file, tensor.offset));
    Ok(Canonical { tensors: all, called })
}

/// The path of the module that has a tensor of this name, and what it is there: by the longest word that the name ends in.
fn split<'a>(layout: &dyn Layout, name: &'a str) -> Option<(&'a str, Word)> {
    let fits = layout.words().iter().filter(|(ending, _)| name.ends_with(ending));
    let (ending, word) = fits.max_by_key(|(ending, _)| ending.len())?;
    Some((name.strip_suffix(ending)?, *word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container::Lies;
    use crate::dtype::Dtype;
    use crate::testing::golden;

    #[test]
    fn what_is_for_something_else_is_left_as_it_is() {
        let mut spec = golden("llama-nf4").config.clone();
        let tensor = |name: &str, shape: &[u64]| StoredTensor {
            name: name.to_owned(),
            file: 0,
            dtype: Dtype::U8,
            shape: shape.to_vec(),
            offset: 0,
            bytes: shape.iter().product(),
            lies: Lies::Together,
            encoding: None,
        };
        // Rows that are no whole blocks, and nothing that says so.
        let tensors = vec![tensor("vision.fc2.weight", &[8 * 4304 / 2, 1])];
        let read = |_: &StoredTensor, _, _: &mut [u8]| unreachable!("nothing of it is read");
        assert!(canonical(tensors.clone(), &spec, &read).is_err());
        spec.other_prefixes = vec!["vision.".into()];
        assert_eq!(canonical(tensors.clone(), &spec, &read).unwrap().tensors, tensors);
    }
}
