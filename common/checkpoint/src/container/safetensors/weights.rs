//! Which files hold the weights, and which tensor of which file counts.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use super::error::WeightsError;
use super::header::{FileError, Header, TensorInfo};
use super::index::{EXTENSION, INDEX, Index, MAX_INDEX_BYTES};
use crate::error::Error;
use crate::file::{directory_of, read_first};
use crate::listed::listed;
use crate::model::{ModelSpec, Names};

/// The only file of a model.
pub const SINGLE: &str = "model.safetensors";
/// What the name of an index ends with.
pub const INDEX_EXTENSION: &str = ".index.json";

/// The opened files of a checkpoint and the tensors in them that count.
pub(super) struct Weights {
    pub(super) files: Vec<OpenFile>,
    /// File index and tensor, by file and offset.
    pub(super) tensors: Vec<(usize, TensorInfo)>,
}

pub(super) struct OpenFile {
    /// As the index calls it.
    name: String,
    pub(super) path: PathBuf,
    pub(super) handle: File,
    pub(super) bytes: u64,
    pub(super) header: Header,
}

/// Whether a path says by itself which files it means: a directory, a file of weights, or an index.
pub(super) fn is_named(path: &Path) -> bool {
    path.is_dir() || ends_with(path, EXTENSION) || ends_with(path, INDEX_EXTENSION)
}

/// Opens the files that a path means: whatever is in a directory, those of an index, or else this one file.
///
/// Where both forms are there the single file counts, as in the reference, if it has the whole model. Without a `spec`
/// nobody knows what is needed: then it counts in any case, and what an index maps wrongly is a warning.
pub(super) fn gather(
    path: &Path,
    spec: Option<&ModelSpec>,
    warnings: &mut Vec<String>,
) -> Result<Weights, Error> {
    if !path.is_dir() {
        return match ends_with(path, INDEX_EXTENSION) {
            true => from_index(path, &read_index(path)?, spec, warnings),
            false => from_single(&directory_of(path), path),
        };
    }
    let (single, index) = (path.join(SINGLE), path.join(INDEX));
    // A link that leads nowhere is there too: it is a file that is missing.
    match (is_there(&single), is_there(&index)) {
        (true, false) => from_single(path, &single),
        (false, true) => from_index(&index, &read_index(&index)?, spec, warnings),
        (false, false) => Err(no_weights(path).into()),
        (true, true) => from_either(path, &single, &index, spec, warnings),
    }
}

fn from_single(directory: &Path, path: &Path) -> Result<Weights, Error> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if !path.is_file() {
        let (directory, files) = (directory.into(), vec![name]);
        return Err(WeightsError::FilesMissing { directory, expected: 1, files }.into());
    }
    let file = open_file(name, path.into())?;
    let tensors = file.header.tensors.iter().map(|tensor| (0, tensor.clone())).collect();
    Ok(Weights { files: vec![file], tensors })
}

/// Both a single file and an index are there.
fn from_either(
    directory: &Path,
    single: &Path,
    index_path: &Path,
    spec: Option<&ModelSpec>,
    warnings: &mut Vec<String>,
) -> Result<Weights, Error> {
    let weights = from_single(directory, single)?;
    let index = match read_index(index_path) {
        Ok(index) => index,
        Err(error) => {
            warnings.push(format!("{SINGLE} is used; the index beside it is not usable: {error}"));
            return Ok(weights);
        }
    };
    let files = index.files();
    if files == [SINGLE] || files.iter().any(|file| !directory.join(file).is_file()) {
        return Ok(weights);
    }
    let names: HashSet<&str> = weights.tensors.iter().map(|(_, t)| t.name.as_str()).collect();
    let spec = spec.map(|spec| spec.named_as(names.iter().copied()));
    let spec = spec.as_deref();
    let missing = spec.map(|spec| spec.missing_in(&names)).unwrap_or_default();
    if !missing.is_empty() {
        return Err(WeightsError::Ambiguous { directory: directory.into(), missing }.into());
    }
    warnings.push(format!(
        "both {SINGLE} and an index of other files are there; the single file is used"
    ));
    Ok(weights)
}

fn from_index(
    index_path: &Path,
    index: &Index,
    spec: Option<&ModelSpec>,
    warnings: &mut Vec<String>,
) -> Result<Weights, Error> {
    let directory = index_path.parent().unwrap_or(Path::new(""));
    let names = index.files();
    let absent = |name: &&&str| !directory.join(name).is_file();
    let missing: Vec<String> = names.iter().filter(absent).map(ToString::to_string).collect();
    if !missing.is_empty() {
        let (directory, expected) = (directory.into(), names.len());
        return Err(WeightsError::FilesMissing { directory, expected, files: missing }.into());
    }
    let open = |name: &&str| open_file(name.to_string(), directory.join(name));
    let files = names.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let tensors = choose(index, &files, spec, warnings)?;
    let total: u64 = tensors.iter().map(|(_, tensor)| tensor.end - tensor.start).sum();
    if let Some(claimed) = index.total_size.filter(|&claimed| claimed != total as f64) {
        warnings.push(format!(
            "the index says the tensors have {claimed} bytes in all, they have {total}"
        ));
    }
    Ok(Weights { files, tensors })
}

/// Decides which tensors count where the index and the headers disagree. Headers say what exists, the
/// index says which of two counts; what the model needs must be where the index says.
fn choose(
    index: &Index,
    files: &[OpenFile],
    spec: Option<&ModelSpec>,
    warnings: &mut Vec<String>,
) -> Result<Vec<(usize, TensorInfo)>, WeightsError> {
    let mut holders: HashMap<&str, Vec<usize>> = HashMap::new();
    for (number, file) in files.iter().enumerate() {
        for tensor in &file.header.tensors {
            holders.entry(&tensor.name).or_default().push(number);
        }
    }
    let holds = |tensor: &str| holders.get(tensor).map(Vec::as_slice).unwrap_or_default();
    let file_number: BTreeMap<&str, usize> =
        files.iter().enumerate().map(|(number, file)| (file.name.as_str(), number)).collect();

    let spec = spec.map(|spec| spec.named_as(index.weight_map.keys().map(String::as_str)));
    let names = spec.as_deref().map(Names::of);
    let needs = |tensor: &str| names.as_ref().is_some_and(|names| names.needs(tensor));
    let mut unneeded = Vec::new();
    for (tensor, mapped) in &index.weight_map {
        let found = holds(tensor);
        if found.iter().any(|&number| files[number].name == *mapped) {
            continue;
        }
        let (tensor, file) = (tensor.clone(), mapped.clone());
        match found.first() {
            _ if !needs(&tensor) => unneeded.push(tensor),
            None => return Err(WeightsError::IndexTensorMissing { tensor, file }),
            Some(&number) => {
                let found = files[number].name.clone();
                return Err(WeightsError::IndexWrongFile { tensor, mapped: file, found });
            }
        }
    }
    if !unneeded.is_empty() {
        warnings.push(format!(
            "the index maps {} tensors to files that do not hold them{}: {}",
            unneeded.len(),
            if spec.is_some() { "; the model does not need them" } else { "" },
            listed(&unneeded)
        ));
    }

    let mut chosen = Vec::new();
    let (mut unindexed, mut doubled) = (Vec::new(), Vec::new());
    for (number, file) in files.iter().enumerate() {
        for tensor in &file.header.tensors {
            let found = holds(&tensor.name);
            let mapped =
                index.weight_map.get(&tensor.name).and_then(|f| file_number.get(f.as_str()));
            match mapped {
                Some(mapped) if *mapped == number => {}
                Some(mapped) if found.contains(mapped) => {
                    doubled.push(format!("{} (in {})", tensor.name, file.name));
                    continue;
                }
                _ if found.len() > 1 => {
                    let name = |position: usize| files[found[position]].name.clone();
                    let (tensor, first, second) = (tensor.name.clone(), name(0), name(1));
                    return Err(WeightsError::DuplicateTensor { tensor, first, second });
                }
                _ => unindexed.push(tensor.name.clone()),
            }
            chosen.push((number, tensor.clone()));
        }
    }
    if !unindexed.is_empty() {
        warnings.push(format!(
            "{} tensors are not in the index: {}",
            unindexed.len(),
            listed(&unindexed)
        ));
    }
    if !doubled.is_empty() {
        warnings.push(format!(
            "{} tensors are in two files; the index decides, and these are not used: {}",
            doubled.len(),
            listed(&doubled)
        ));
    }
    Ok(chosen)
}

fn open_file(name: String, path: PathBuf) -> Result<OpenFile, FileError> {
    let handle = File::open(&path).map_err(|cause| FileError::Io { path: path.clone(), cause })?;
    let (header, bytes) = Header::read_from(&handle, &path)?;
    Ok(OpenFile { name, path, handle, bytes, header })
}

fn read_index(path: &Path) -> Result<Index, Error> {
    // One byte more than allowed is enough to tell that it is too long.
    let json =
        read_first(path, MAX_INDEX_BYTES + 1).map_err(|cause| Error::io("read", path, cause))?;
    Index::parse(&json).map_err(|cause| Error::Index { path: path.into(), cause })
}

fn ends_with(path: &Path, ending: &str) -> bool {
    path.as_os_str().as_encoded_bytes().ends_with(ending.as_bytes())
}

fn is_there(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

fn no_weights(directory: &Path) -> WeightsError {
    let others = [
        (
            "pytorch_model.bin",
            "; there are pickled PyTorch weights, convert them to safetensors first",
        ),
        (
            "pytorch_model.bin.index.json",
            "; there are pickled PyTorch weights, convert them to safetensors first",
        ),
        (
            "consolidated.safetensors",
            "; consolidated.safetensors has other tensor names and is not supported",
        ),
    ];
    let hint = others.iter().find(|(name, _)| is_there(&directory.join(name)));
    WeightsError::NoWeights { directory: directory.into(), hint: hint.map_or("", |(_, hint)| hint) }
}
