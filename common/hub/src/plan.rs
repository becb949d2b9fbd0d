//! What is fetched of a repository, before a byte of it is.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use cake_checkpoint::LayerRange;
use cake_checkpoint::container::safetensors::index::{INDEX, Index, MAX_INDEX_BYTES};

use crate::cache::Folder;
use crate::client::{Hub, Subject};
use crate::error::Error;
use crate::layers::files_of_layers;
use crate::listing::{Entry, Listing, RemoteFile, fetch};
use crate::names::Wanted;
use crate::observer::Observer;
use crate::partial::left_bytes;
use crate::select::{fitting, is_weights, needed, patterns, summary};

/// Which files of a repository.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// Those whose names fit one of these patterns; without any, what a model needs.
    pub include: Vec<String>,
    /// Of the weights, those files alone that have something of these layers.
    pub layers: Option<LayerRange>,
}

/// What is to be fetched.
#[derive(Debug)]
pub struct Plan {
    pub(crate) wanted: Wanted,
    pub(crate) commit: String,
    pub(crate) folder: Folder,
    cache: PathBuf,
    pub(crate) files: Vec<RemoteFile>,
    left_out: Vec<Entry>,
}

/// Asks the hub what there is, and chooses.
///
/// # Errors
/// [`Error`]: the hub cannot be reached or refuses, or nothing is chosen.
pub fn plan(
    hub: &Hub,
    wanted: &Wanted,
    choice: &Choice,
    cache: &Path,
    observer: &dyn Observer,
) -> Result<Plan, Error> {
    let patterns = patterns(&choice.include)?; // First what needs no network.
    let stop = || observer.is_cancelled();
    let listing = Listing::ask(hub, wanted, &stop)?;
    let names: Vec<&str> = listing.files.iter().map(|file| file.name.as_str()).collect();
    let mut chosen: BTreeSet<&str> = match patterns.is_empty() {
        true => needed(&names).into_iter().collect(),
        false => fitting(&names, &patterns).into_iter().collect(),
    };
    let repo = || wanted.repo.clone();
    if patterns.is_empty() && !chosen.iter().any(|name| is_weights(name)) {
        return Err(Error::NoWeights { repo: repo(), there: summary(names) });
    }
    if chosen.is_empty() {
        let patterns = choice.include.clone();
        return Err(Error::NothingChosen { repo: repo(), patterns, there: summary(names) });
    }
    if let Some(layers) = choice.layers {
        let holders = holders(hub, wanted, &listing, layers, &stop)?;
        if let Some(file) = holders.iter().find(|file| !names.contains(&file.as_str())) {
            return Err(Error::FileMissing { repo: repo(), file: file.clone() });
        }
        chosen.retain(|name| !is_weights(name) || holders.contains(*name));
    }
    let (chosen, left_out): (Vec<_>, Vec<_>) =
        listing.files.iter().partition(|file| chosen.contains(file.name.as_str()));
    let complete = |entry| listing.complete(hub, wanted, entry, &stop);
    let files = chosen.into_iter().map(complete).collect::<Result<Vec<_>, _>>()?;
    Ok(Plan {
        folder: Folder::of(cache, wanted),
        wanted: wanted.clone(),
        cache: cache.to_owned(),
        files,
        left_out: left_out.into_iter().cloned().collect(),
        commit: listing.commit,
    })
}

/// The files that have something of these layers, as the repository's index says.
fn holders(
    hub: &Hub,
    wanted: &Wanted,
    listing: &Listing,
    layers: LayerRange,
    stop: &dyn Fn() -> bool,
) -> Result<BTreeSet<String>, Error> {
    let repo = || wanted.repo.clone();
    if !listing.files.iter().any(|file| file.name == INDEX) {
        return Err(Error::NoIndex { repo: repo() });
    }
    let url = hub.file_url(wanted, &listing.commit, INDEX);
    let subject = Subject { wanted, file: Some(INDEX) };
    let json = fetch(hub, &url, subject, MAX_INDEX_BYTES, stop)?;
    // One that is too long is refused by the same words as one on the disk.
    let json = json.unwrap_or_else(|| vec![0; MAX_INDEX_BYTES as usize + 1]);
    let index = Index::parse(&json).map_err(|cause| Error::Index { repo: repo(), cause })?;
    files_of_layers(&index, layers).map_err(|count| Error::NoLayers { repo: repo(), layers, count })
}

impl Plan {
    /// What was asked for.
    pub fn wanted(&self) -> &Wanted {
        &self.wanted
    }

    /// The commit that the revision is.
    pub fn commit(&self) -> &str {
        &self.commit
    }

    /// The cache that it is fetched into.
    pub fn cache(&self) -> &Path {
        &self.cache
    }

    /// How many files it has.
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Bytes that are still to be fetched.
    pub fn missing_bytes(&self) -> u64 {
        self.absent().iter().map(|file| file.bytes - left_bytes(&self.folder, file)).sum()
    }

    /// Files that are not there, in the order of their names; of those with the same bytes the first.
    pub(crate) fn absent(&self) -> Vec<RemoteFile> {
        let mut seen = HashSet::new();
        let is_absent =
            |file: &&RemoteFile| !self.folder.has(file) && seen.insert(file.hash.clone());
        self.files.iter().filter(is_absent).cloned().collect()
    }

    /// How many files of the repository are left out, their bytes as far as they are known, and a few names.
    pub fn left_out(&self) -> (usize, u64, String) {
        let bytes = self.left_out.iter().filter_map(|file| file.bytes).sum();
        // The largest are what people ask about.
        let mut files: Vec<&Entry> = self.left_out.iter().collect();
        files.sort_by_key(|file| std::cmp::Reverse(file.bytes));
        (files.len(), bytes, summary(files.into_iter().map(|file| file.name.as_str())))
    }
}
