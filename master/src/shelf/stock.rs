//! Which models are at hand, by the names that clients have for them.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use cake_checkpoint::{Checkpoint, Location, Scheme, hub_caches, keeper, kept, locate};

use super::about::About;
use crate::model::Model;

/// Where models come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// One that a person named: what [`locate()`] finds.
    Named(String),
    /// Each directory and each file in a directory that is a model.
    Folder(PathBuf),
    /// The Hub's cache.
    Hub,
    /// What other programs keep on this machine, by the names that it has there.
    Kept,
}

/// A model that can be loaded, or that there is and that cannot.
#[derive(Clone, Debug)]
pub struct AtHand {
    /// What clients call it.
    pub name: String,
    /// What opens it.
    pub model: String,
    /// Where it lies.
    path: PathBuf,
    /// When it came there, as far as the file system notes that; else 1970.
    pub since: SystemTime,
    /// What is told of it, or why it cannot be opened.
    pub about: Result<About, Arc<cake_checkpoint::Error>>,
}

impl AtHand {
    fn new(
        name: String,
        model: String,
        location: Location,
        about: Result<About, Arc<cake_checkpoint::Error>>,
    ) -> Self {
        let path = location.path;
        let since = path.metadata().and_then(|meta| meta.modified()).unwrap_or(UNIX_EPOCH);
        Self { name, model, path, since, about }
    }

    /// Whether it is opened by its name, as what is in the Hub's cache is.
    pub fn is_by_name(&self) -> bool {
        self.name == self.model
    }
}

/// Why a model cannot be loaded, for all who wait for it.
pub type WhyNot = Arc<dyn std::error::Error + Send + Sync>;

/// Why there is no shelf.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A model that was named cannot be used.
    #[error(transparent)]
    Checkpoint(#[from] cake_checkpoint::Error),
    /// Two that were named would have one name.
    #[error(
        "{one:?} and {other:?} would both be called {name:?}: name one of them, or a directory of another name"
    )]
    SameName {
        /// What both are called.
        name: String,
        /// The first.
        one: String,
        /// The second.
        other: String,
    },
    /// A folder cannot be read.
    #[error("cannot read the folder {path}: {source}", path = path.display())]
    Folder {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// The models at hand.
#[derive(Debug)]
pub struct Shelf {
    sources: Vec<Source>,
    /// What clients call the only one, if not what it calls itself.
    alias: Option<String>,
    known: Mutex<Vec<Arc<AtHand>>>,
    /// Held by whoever looks at disks: one at a time.
    looking: Mutex<()>,
}

impl Shelf {
    /// The models of these sources. Those that are named must be there and open; blocks.
    ///
    /// # Errors
    /// [`Error`].
    pub fn open(sources: Vec<Source>, alias: Option<String>) -> Result<Self, Error> {
        let (known, looking) = (Mutex::default(), Mutex::default());
        let shelf = Self { sources, alias, known, looking };
        let mut named: Vec<AtHand> = Vec::new();
        for source in &shelf.sources {
            match source {
                Source::Named(model) => {
                    let location = locate(model).map_err(cake_checkpoint::Error::from)?;
                    let name = shelf.alias.clone().unwrap_or_else(|| location.name.clone());
                    if let Some(one) = named.iter().find(|one| one.name == name) {
                        let (one, other) = (one.model.clone(), model.clone());
                        return Err(Error::SameName { name, one, other });
                    }
                    let about = About::of(&Model::new(opened(model)?, Scheme::AsStored))?;
                    named.push(AtHand::new(name, model.clone(), location, Ok(about)));
                }
                Source::Folder(path) => {
                    let failed = |source| Error::Folder { path: path.clone(), source };
                    std::fs::read_dir(path).map_err(failed)?;
                }
                Source::Hub | Source::Kept => {}
            }
        }
        *shelf.known() = named.into_iter().map(Arc::new).collect();
        Ok(shelf)
    }

    /// The model, if one alone is at hand for as long as the process lives.
    pub fn only(&self) -> Option<Arc<AtHand>> {
        match self.sources[..] {
            [Source::Named(_)] => self.known().first().cloned(),
            _ => None,
        }
    }

    /// Whether what is in the Hub's cache is at hand.
    pub fn has_hub(&self) -> bool {
        self.sources.contains(&Source::Hub)
    }

    /// All of them, also those that cannot be opened, in the order of their sources. Looks at disks: blocks.
    pub fn all(&self) -> Vec<Arc<AtHand>> {
        let _looking = self.looking.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<Arc<AtHand>> = Vec::new();
        for source in &self.sources {
            for (name, model, location) in self.of(source) {
                let is_free = |name: &str| all.iter().all(|one| one.name != name);
                if is_free(&name) {
                    all.push(self.at_hand(name, model, location));
                } else if *source == Source::Kept && is_free(&model) {
                    all.push(self.at_hand(model.clone(), model, location));
                }
            }
        }
        self.known().clone_from(&all);
        all
    }

    /// The one of this name, or that another program keeps under it, as `ollama:NAME`. Looks at disks if it is not known:
    /// blocks.
    pub fn find(&self, name: &str) -> Option<Arc<AtHand>> {
        let is_kept = keeper(name).is_some();
        let of_name = |all: &[Arc<AtHand>]| {
            let kept = || all.iter().find(|one| is_kept && one.model == name);
            all.iter().find(|one| one.name == name).or_else(kept).cloned()
        };
        let known = of_name(&self.known());
        // It is another one by now, or there is nothing any more, where a path says something else.
        known.filter(|one| one.about.is_ok() && one.path.exists()).or_else(|| of_name(&self.all()))
    }

    /// The names of those that open, as they were when somebody last looked.
    pub fn known_names(&self) -> Vec<String> {
        names(&self.known())
    }

    /// The names of those that open. Looks at disks: blocks.
    pub fn names(&self) -> Vec<String> {
        names(&self.all())
    }

    /// The names of a source's models, what opens each, and where each is. What cannot be found is none.
    fn of(&self, source: &Source) -> Vec<(String, String, Location)> {
        match source {
            Source::Named(model) => {
                let found = locate(model).ok().into_iter();
                let name = |location: &Location| {
                    self.alias.clone().unwrap_or_else(|| location.name.clone())
                };
                found.map(|location| (name(&location), model.clone(), location)).collect()
            }
            Source::Folder(path) => {
                let mut paths: Vec<PathBuf> = std::fs::read_dir(path)
                    .into_iter()
                    .flatten()
                    .flatten()
                    .map(|entry| entry.path())
                    .collect();
                paths.sort();
                let found = paths.into_iter().filter_map(|path| {
                    // Of two files that call themselves the same each is to be had.
                    let name = if path.is_dir() { path.file_name() } else { path.file_stem() };
                    let name = name?.to_str().filter(|name| !name.starts_with('.'))?.to_owned();
                    let model = path.to_str()?.to_owned();
                    let location = locate(&model).ok()?;
                    Some((name, model, location))
                });
                found.collect()
            }
            Source::Hub => {
                let models = hub_caches().into_iter().flat_map(|cache| cake_hub::list(&cache));
                let found = models.filter_map(|model| {
                    let location = locate(&model.repo).ok()?;
                    Some((model.repo.clone(), model.repo, location))
                });
                found.collect()
            }
            Source::Kept => {
                let found = kept().into_iter();
                found.map(|one| (one.location.name.clone(), one.model, one.location)).collect()
            }
        }
    }

    /// What is known of it, or is found out now.
    fn at_hand(&self, name: String, model: String, location: Location) -> Arc<AtHand> {
        let is_same =
            |one: &&Arc<AtHand>| one.name == name && one.path == location.path && one.about.is_ok();
        if let Some(known) = self.known().iter().find(is_same) {
            return known.clone();
        }
        let about = opened(&model).and_then(|it| About::of(&Model::new(it, Scheme::AsStored)));
        Arc::new(AtHand::new(name, model, location, about.map_err(Arc::new)))
    }

    fn known(&self) -> MutexGuard<'_, Vec<Arc<AtHand>>> {
        // Each change leaves it whole.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The names of those that open.
fn names(all: &[Arc<AtHand>]) -> Vec<String> {
    all.iter().filter(|one| one.about.is_ok()).map(|one| one.name.clone()).collect()
}

fn opened(model: &str) -> Result<Arc<Checkpoint>, cake_checkpoint::Error> {
    Checkpoint::open(model).map(Arc::new)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn demo() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("demo-model")
    }

    /// A copy of the demo's model.
    fn copy_to(target: &Path) {
        std::fs::create_dir(target).unwrap();
        for entry in std::fs::read_dir(demo()).unwrap().flatten() {
            std::fs::copy(entry.path(), target.join(entry.file_name())).unwrap();
        }
    }

    fn named(path: &Path) -> Source {
        Source::Named(path.to_str().unwrap().to_owned())
    }

    #[test]
    fn the_models_of_a_folder_come_and_go() {
        let folder = tempfile::tempdir().unwrap();
        let shelf = Shelf::open(vec![Source::Folder(folder.path().to_owned())], None).unwrap();
        assert!(shelf.all().is_empty() && shelf.find("a").is_none() && shelf.only().is_none());
        copy_to(&folder.path().join("a"));
        std::fs::create_dir(folder.path().join("empty")).unwrap();
        std::fs::write(folder.path().join("notes.txt"), "x").unwrap();
        let found = shelf.find("a").expect("it is looked for");
        assert!(found.about.as_ref().is_ok_and(|about| about.layers == 12));
        assert_eq!(shelf.names(), ["a"]);
        let empty = shelf.find("empty").expect("there is something of that name");
        assert!(empty.about.is_err());
        std::fs::remove_dir_all(folder.path().join("a")).unwrap();
        assert!(shelf.find("a").is_none());
    }

    #[test]
    fn models_that_are_named_open_and_have_names_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (folder.path().join("x/demo-model"), demo());
        std::fs::create_dir(folder.path().join("x")).unwrap();
        copy_to(&one);
        let refused = Shelf::open(vec![named(&one), named(&other)], None).unwrap_err();
        assert!(matches!(refused, Error::SameName { .. }), "{refused}");
        let shelf = Shelf::open(vec![named(&other)], Some("x".to_owned())).unwrap();
        assert_eq!(shelf.only().expect("one").name, "x");
        assert!(shelf.find("x").is_some() && shelf.find("demo-model").is_none());
        assert!(shelf.find(other.to_str().unwrap()).is_none(), "clients know no paths");
        std::fs::write(one.join("config.json"), "{").unwrap();
        let refused = Shelf::open(vec![named(&one)], None).unwrap_err();
        assert!(matches!(refused, Error::Checkpoint(_)), "{refused}");
        let nowhere = Source::Folder(folder.path().join("y"));
        let refused = Shelf::open(vec![nowhere], None).unwrap_err();
        assert!(matches!(refused, Error::Folder { .. }), "{refused}");
    }
}
