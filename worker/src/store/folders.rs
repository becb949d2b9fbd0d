//! The store's files: their names, the lock, and what a restart finds.
//!
//! ```text
//! DIR/lock                            held by the worker that has the store open
//! DIR/blobs/<digest>.safetensors      a whole blob, every chunk verified before it was named so
//! DIR/blobs/<digest>.json             its manifest; its modification time is the blob's last use
//! DIR/partial/<digest>.part           the beginning of a blob
//! DIR/partial/<digest>.json           its manifest
//! ```
//!
//! A worker may be killed at any instant, so a restart trusts names for nothing but this: a blob
//! counts as held if its manifest is the one it is named by and its length is right (its content is
//! hashed again when it is loaded). Anything less is kept as a partial blob, whose every chunk is
//! hashed before it counts, unless its manifest has the layout of another version: nobody will ask
//! for that name again, so it goes. Files that are not named like ours are left alone, and a link is none of our files,
//! whatever its name.

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::SystemTime;

use cake_checkpoint::{Digest, MAX_MANIFEST_BYTES, Manifest, ManifestError};
use serde_json::Value;

use super::folder::{Folder, For};
use super::{Error, HeldBlob, PartialBlob};

const BLOB: &str = "safetensors";
const PART: &str = "part";
const MANIFEST: &str = "json";
/// Of files being written, renamed when complete.
const UNFINISHED: &str = "tmp";

/// Where the store's files are.
#[derive(Debug)]
pub(super) struct Folders {
    pub(super) root: PathBuf,
    /// The root itself.
    top: Folder,
    blobs: Folder,
    partial: Folder,
}

/// What a store holds.
#[derive(Debug, Default)]
pub(super) struct Contents {
    pub(super) held: Vec<HeldBlob>,
    pub(super) partial: Vec<PartialBlob>,
}

impl Folders {
    pub(super) fn new(root: &Path) -> Folders {
        let inside = |name| Folder::new(&root.join(name), false);
        let (blobs, partial) = (inside("blobs"), inside("partial"));
        Folders { root: root.to_owned(), top: Folder::new(root, true), blobs, partial }
    }

    pub(super) fn blob(&self, name: &Digest) -> PathBuf {
        self.blobs.path().join(format!("{name}.{BLOB}"))
    }

    pub(super) fn manifest(&self, name: &Digest) -> PathBuf {
        self.blobs.path().join(format!("{name}.{MANIFEST}"))
    }

    pub(super) fn part(&self, name: &Digest) -> PathBuf {
        self.partial.path().join(format!("{name}.{PART}"))
    }

    fn part_manifest(&self, name: &Digest) -> PathBuf {
        self.partial.path().join(format!("{name}.{MANIFEST}"))
    }

    /// Makes the folders and shows that files can be created in both.
    pub(super) fn create(&self) -> Result<(), Error> {
        let probe = format!("probe.{UNFINISHED}");
        for folder in [&self.blobs, &self.partial] {
            let unusable = |cause| Error::Unusable { path: folder.path().to_owned(), cause };
            folder.create().map_err(unusable)?;
            folder.remove(&probe).ok(); // Of one that was killed just there.
            folder.open(&probe, For::New).map_err(unusable)?;
            folder.remove(&probe).map_err(unusable)?;
        }
        Ok(())
    }

    /// Takes the store for this process until the returned file is closed. The system releases it
    /// when the process ends, however it ends.
    pub(super) fn lock(&self) -> Result<File, Error> {
        let path = self.root.join("lock");
        let unusable = |cause| Error::Unusable { path: path.clone(), cause };
        let mut file = self.top.open("lock", For::WritingOrNew).map_err(unusable)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                // Whoever has the lock may be writing its number just now; then it stays unknown.
                let holder = (&mut file).take(32).read_to_string(&mut text).ok();
                let holder = holder.and_then(|_| text.trim().parse().ok());
                return Err(Error::Locked { path: self.root.clone(), holder });
            }
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {
                tracing::warn!(store = %self.root.display(), "file locks are not supported here");
            }
            Err(TryLockError::Error(error)) => return Err(unusable(error)),
        }
        file.set_len(0)
            .and_then(|()| writeln!(file, "{}", std::process::id()))
            .map_err(unusable)?;
        Ok(file)
    }

    /// What is in the folders, without changing anything; also while another process writes.
    pub(super) fn survey(&self) -> Result<Contents, Error> {
        let mut contents = Contents::default();
        for name in self.names()? {
            match self.classify(&name) {
                Form::Held(held, _) => contents.held.push(held),
                Form::Partial(partial) => contents.partial.push(partial),
                Form::Outdated(_) | Form::Remains => {}
            }
        }
        Ok(contents)
    }

    /// What is in the folders after putting them in order: each digest either a held blob, a
    /// partial blob, or gone. Only called before anything is mapped.
    pub(super) fn recover(&self) -> Result<Contents, Error> {
        self.remove_unfinished()?;
        let mut contents = Contents::default();
        for name in self.names()? {
            match self.classify(&name) {
                Form::Held(held, place) => {
                    if place == ManifestPlace::Partial {
                        self.rename(&self.part_manifest(&name), &self.manifest(&name))?;
                    }
                    self.remove_partial(&name)?;
                    contents.held.push(held);
                }
                Form::Partial(partial) => {
                    self.remove(&self.manifest(&name))?;
                    if self.file_of(&self.part(&name)).is_none() {
                        self.rename(&self.blob(&name), &self.part(&name))?;
                    }
                    self.remove(&self.blob(&name))?;
                    contents.partial.push(partial);
                }
                Form::Outdated(bytes) => {
                    self.remove(&self.blob(&name))?;
                    self.remove(&self.part(&name))?;
                    // Last: bytes without a manifest would count as damaged, and stay.
                    self.remove(&self.manifest(&name))?;
                    self.remove(&self.part_manifest(&name))?;
                    tracing::info!(blob = %name, bytes, "blob of another version dropped");
                }
                Form::Remains => {
                    self.remove(&self.manifest(&name))?;
                    self.remove(&self.part_manifest(&name))?;
                }
            }
        }
        Ok(contents)
    }

    /// The manifest of a held blob, or `None` if it cannot be read or is not the one it is named
    /// by.
    pub(super) fn read_manifest(&self, name: &Digest) -> Option<Manifest> {
        self.read(&self.manifest(name), name).ok()
    }

    /// Writes the manifest of a blob about to be received.
    pub(super) fn write_part_manifest(
        &self,
        name: &Digest,
        manifest: &Manifest,
    ) -> Result<(), Error> {
        let path = self.part_manifest(name);
        let unfinished = path.with_extension(UNFINISHED);
        let json = manifest.to_json();
        self.remove(&unfinished)?; // Of a transfer that was killed just there.
        self.open(&unfinished, For::New)
            .and_then(|mut file| file.write_all(&json).and_then(|()| file.sync_all()))
            .map_err(|cause| Error::write(&self.root, &unfinished, json.len() as u64, cause))?;
        self.rename(&unfinished, &path)
    }

    /// Turns a received and flushed part into a held blob. Its manifest goes first; a crash in
    /// between leaves a part whose every chunk is there.
    pub(super) fn promote(&self, name: &Digest) -> Result<(), Error> {
        self.set_last_use(&self.part_manifest(name), SystemTime::now());
        self.rename(&self.part_manifest(name), &self.manifest(name))?;
        self.rename(&self.part(name), &self.blob(name))?;
        for folder in [&self.blobs, &self.partial] {
            folder.sync().map_err(|cause| Error::io("flush", folder.path(), cause))?;
        }
        Ok(())
    }

    /// Removes a held blob. The file goes, not its content: who has it mapped keeps it.
    pub(super) fn remove_blob(&self, name: &Digest) -> Result<(), Error> {
        self.remove(&self.blob(name))?;
        self.remove(&self.manifest(name))
    }

    /// Removes a partial blob.
    pub(super) fn remove_partial(&self, name: &Digest) -> Result<(), Error> {
        self.remove(&self.part(name))?;
        self.remove(&self.part_manifest(name))
    }

    /// The partial blob of this name, if there is one.
    pub(super) fn partial(&self, name: &Digest) -> Option<PartialBlob> {
        let facts = self.file_of(&self.part(name))?;
        Some(PartialBlob { name: *name, bytes: facts.len(), last_used: modified(&facts) })
    }

    /// Opens one of the files, which is a file of the store's own.
    pub(super) fn open(&self, path: &Path, purpose: For) -> io::Result<File> {
        let (folder, name) = self.place(path)?;
        folder.open(name, purpose)
    }

    /// The facts of one of the files, if it is there and no link.
    pub(super) fn file_of(&self, path: &Path) -> Option<fs::Metadata> {
        fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file)
    }

    /// Notes a use of the blob whose manifest this is. Best effort: a missed note costs an eviction in
    /// the wrong order.
    pub(super) fn set_last_use(&self, manifest: &Path, time: SystemTime) {
        let touched = self.open(manifest, For::Writing);
        if let Err(error) = touched.and_then(|file| file.set_modified(time)) {
            tracing::debug!(path = %manifest.display(), %error, "last use not noted");
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), Error> {
        let rename = || {
            let ((folder, name), (other, new)) = (self.place(from)?, self.place(to)?);
            folder.rename(name, other, new)
        };
        rename().map_err(|cause| Error::io("rename", from, cause))
    }

    /// Removes a file; that it is not there is as good.
    fn remove(&self, path: &Path) -> Result<(), Error> {
        match self.place(path).and_then(|(folder, name)| folder.remove(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::io("remove", path, error))
            }
            _ => Ok(()),
        }
    }

    fn read(&self, path: &Path, name: &Digest) -> Result<Manifest, Refused> {
        let read = || {
            let file = self.open(path, For::Reading)?;
            let mut json = Vec::new();
            // One byte more, so that one that is too long is seen to be.
            file.take(MAX_MANIFEST_BYTES as u64 + 1).read_to_end(&mut json).map(|_| json)
        };
        let json = read().map_err(|_: io::Error| Refused::Damaged)?;
        let readable = || serde_json::from_slice(&json).is_ok_and(|it: Value| it.is_object());
        match Manifest::from_json(&json) {
            Ok(manifest) if manifest.name() == *name => Ok(manifest),
            Ok(manifest) if manifest.former_name() == *name => Err(Refused::Outdated),
            Ok(_) | Err(ManifestError::TooLarge { .. }) => Err(Refused::Damaged),
            Err(_) if readable() => Err(Refused::Outdated),
            Err(_) => Err(Refused::Damaged),
        }
    }

    /// The folder that one of the files is in, and its name there.
    fn place<'a>(&self, path: &'a Path) -> io::Result<(&Folder, &'a str)> {
        let folders = [&self.blobs, &self.partial].into_iter();
        let folder = folders.into_iter().find(|folder| path.parent() == Some(folder.path()));
        let name = path.file_name().and_then(|name| name.to_str());
        folder.zip(name).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Digests that any of our files is named by.
    fn names(&self) -> Result<BTreeSet<Digest>, Error> {
        let mut names = BTreeSet::new();
        for folder in [&self.blobs, &self.partial] {
            for path in entries(folder.path())? {
                if let Some((name, BLOB | PART | MANIFEST)) = parse_name(&path) {
                    names.insert(name);
                }
            }
        }
        Ok(names)
    }

    fn remove_unfinished(&self) -> Result<(), Error> {
        for path in entries(self.partial.path())? {
            if let Some((_, UNFINISHED)) = parse_name(&path) {
                self.remove(&path)?;
            }
        }
        Ok(())
    }

    fn classify(&self, name: &Digest) -> Form {
        let blob = self.file_of(&self.blob(name));
        let part = self.partial(name);
        if blob.is_none() && part.is_none() {
            return Form::Remains;
        }
        let places = [
            (self.manifest(name), ManifestPlace::Blobs),
            (self.part_manifest(name), ManifestPlace::Partial),
        ];
        let manifests = places.map(|(path, place)| (self.read(&path, name), path, place));
        if let Some(blob) = &blob {
            for (manifest, path, place) in &manifests {
                let Some(manifest) =
                    manifest.as_ref().ok().filter(|it| it.file_bytes == blob.len())
                else {
                    continue;
                };
                let last_used = path.metadata().map_or(modified(blob), |facts| modified(&facts));
                return Form::Held(HeldBlob::new(*name, manifest, last_used), *place);
            }
        }
        let found = |wanted: fn(&Result<Manifest, Refused>) -> bool| {
            manifests.iter().any(|(manifest, ..)| wanted(manifest))
        };
        if found(|it| matches!(it, Err(Refused::Outdated))) && !found(Result::is_ok) {
            let part_bytes = part.map_or(0, |part| part.bytes);
            return Form::Outdated(part_bytes + blob.map_or(0, |blob| blob.len()));
        }
        let of_blob = || {
            let blob = blob.as_ref()?;
            Some(PartialBlob { name: *name, bytes: blob.len(), last_used: modified(blob) })
        };
        part.or_else(of_blob).map_or(Form::Remains, Form::Partial)
    }
}

/// What the files of one digest amount to.
enum Form {
    Held(HeldBlob, ManifestPlace),
    /// A part, or a blob file that has to be proven again.
    Partial(PartialBlob),
    /// So many bytes under a name that no manifest of this version has.
    Outdated(u64),
    /// Manifests without bytes.
    Remains,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ManifestPlace {
    Blobs,
    Partial,
}

/// The digest and the extension of a file named like ours: 64 lower-case hexadecimal digits.
fn parse_name(path: &Path) -> Option<(Digest, &str)> {
    let (stem, extension) = path.file_name()?.to_str()?.split_once('.')?;
    let name = Digest::from_str(stem).ok()?;
    (name.to_string() == stem).then_some((name, extension))
}

/// Why there is no manifest to go by.
enum Refused {
    /// It is readable JSON, but no manifest as this version writes them.
    Outdated,
    /// It is not there, it cannot be read, or it is the manifest of another name.
    Damaged,
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let list = |entries: fs::ReadDir| entries.map(|entry| Ok(entry?.path())).collect();
    match fs::read_dir(folder).and_then(list) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        result => result.map_err(|cause| Error::io("list", folder, cause)),
    }
}

fn modified(facts: &fs::Metadata) -> SystemTime {
    facts.modified().unwrap_or(SystemTime::UNIX_EPOCH)
}
