//! Receiving a blob: a chunk that is not what the manifest says is cut off again.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::SystemTime;

use cake_checkpoint::{CHUNK_BYTES, Digest, Hasher, Manifest};

use super::reuse::{self, Segment};
use super::{Error, HeldBlob, PartialBlob, Store, Transfer};

/// Bytes after which the system is asked to write to the disk what it has, so that the flush at the
/// end of a blob is short.
const WRITEBACK_BYTES: u64 = 64 << 20;
/// Bytes after which a write waits for the flush under way, so that a slow disk never has a backlog
/// that takes minutes.
const MOST_UNFLUSHED_BYTES: u64 = 128 << 20;

/// Writes one blob, in order, from where an earlier transfer ended.
///
/// Dropped before [`Writer::finish`], what was verified stays for the next writer.
#[derive(Debug)]
pub struct Writer {
    manifest: Manifest,
    /// Where each chunk ends.
    chunk_ends: Vec<u64>,
    name: Digest,
    /// Whole chunks that matched their digests, in bytes; the length of the part on disk.
    verified_bytes: u64,
    /// The beginning of the next chunk, which is in the part as well.
    begun: Hasher,
    /// Whether bytes of the chunk under way were copied from another blob.
    copied: bool,
    /// The whole blob, by where its bytes come from; empty if it was held already.
    segments: Vec<Segment>,
    /// `None` if the blob was held already.
    part: Option<Part>,
}

/// The file being written.
#[derive(Debug)]
struct Part {
    file: PartFile,
    path: PathBuf,
    writeback: Writeback,
    claim: Claim,
}

/// A partial blob on disk; the chunk under way is cut off when it is dropped.
#[derive(Debug)]
struct PartFile {
    file: File,
    verified_bytes: u64,
}

/// The right to write one blob, given back when dropped.
#[derive(Debug)]
struct Claim {
    store: Store,
    name: Digest,
    transfer: Arc<Transfer>,
}

impl Writer {
    /// See [`Store::begin`].
    pub(super) fn begin(store: &Store, manifest: Manifest) -> Result<Writer, Error> {
        let name = manifest.name();
        let Some(claim) = Claim::take(store, name)? else {
            let verified_bytes = manifest.file_bytes;
            let segments = Vec::new();
            return Ok(Writer {
                manifest,
                chunk_ends: Vec::new(),
                name,
                verified_bytes,
                begun: Hasher::default(),
                copied: false,
                segments,
                part: None,
            });
        };
        let folders = &store.inner.folders;
        let path = folders.part(&name);
        let verified_bytes = verified_bytes(&path, &manifest)?;
        let whole = || vec![Segment { range: 0..manifest.file_bytes, source: None }];
        let sent_whole = store.state().sent_whole.contains(&name);
        let mut segments = if sent_whole { whole() } else { reuse::segments(store, &manifest) };
        let make_room = || store.make_room(&claim.transfer, manifest.file_bytes, verified_bytes);
        if let Err(error) = make_room() {
            let Error::StoreFull { .. } = error else { return Err(error) };
            // Blobs that are copied from are spared; without them there may be room.
            segments = whole();
            make_room()?;
        }
        folders.write_part_manifest(&name, &manifest)?;
        let open = || {
            let mut options = File::options();
            options.read(true).write(true).create(true).truncate(false);
            let mut file = PartFile { file: options.open(&path)?, verified_bytes };
            file.cut()?;
            Ok(file)
        };
        let missing_bytes = manifest.file_bytes - verified_bytes;
        let file =
            open().map_err(|cause| Error::write(&folders.root, &path, missing_bytes, cause))?;
        let part = Some(Part { file, path, writeback: Writeback::default(), claim });
        let (chunk_ends, begun, copied) = (manifest.chunk_ends(), Hasher::default(), false);
        let mut writer =
            Writer { manifest, chunk_ends, name, verified_bytes, begun, copied, segments, part };
        writer.copy_held()?;
        Ok(writer)
    }

    /// The bytes of the blob that must be sent, from [`Writer::offset`] on, in order; what lies
    /// between them is copied from other blobs of the store.
    pub fn wanted(&self) -> Vec<Range<u64>> {
        let from = self.offset();
        let sent = self.segments.iter().filter(|segment| segment.source.is_none());
        let rest = sent.map(|segment| segment.range.start.max(from)..segment.range.end);
        rest.filter(|range| !range.is_empty()).collect()
    }

    /// Name of the blob being written.
    pub fn name(&self) -> Digest {
        self.name
    }

    /// Size of the whole blob.
    pub fn blob_bytes(&self) -> u64 {
        self.manifest.file_bytes
    }

    /// The byte of the blob that [`Writer::write`] expects next.
    pub fn offset(&self) -> u64 {
        self.verified_bytes + self.begun.bytes()
    }

    /// Appends the next of the bytes that are [`Writer::wanted`]. Each chunk is compared with the
    /// manifest when it is whole, and cut off again unless it matches.
    ///
    /// # Errors
    /// [`Error::WrongDigest`] if a chunk is not what the manifest says, [`Error::TooLong`] if there
    /// are more bytes than the blob has, [`Error::DiskFull`] or [`Error::Io`] if a chunk cannot be
    /// written. The part then ends after the last good chunk and [`Writer::offset`] is there: a
    /// caller may send again from it.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let missing_bytes = self.wanted().iter().map(|range| range.end - range.start).sum();
        let extra_bytes = (bytes.len() as u64).saturating_sub(missing_bytes);
        if extra_bytes > 0 {
            self.give_up_chunk();
            let (blob, blob_bytes) = (self.name, self.manifest.file_bytes);
            return Err(Error::TooLong { blob, blob_bytes, extra_bytes });
        }
        let mut rest = bytes;
        while let Some(range) = self.wanted().first().filter(|_| !rest.is_empty()).cloned() {
            let length = rest.len().min((range.end - range.start) as usize);
            let (next, after) = rest.split_at(length);
            self.append(next)?;
            rest = after;
            self.copy_held()?;
        }
        Ok(())
    }

    /// Copies what other blobs of the store hold, as far as nothing must be sent before it.
    fn copy_held(&mut self) -> Result<(), Error> {
        let mut buffer = Vec::new();
        loop {
            let at = self.offset();
            let held = self.segments.iter().find(|segment| segment.range.contains(&at));
            let Some(Segment { range, source: Some(source) }) = held else { return Ok(()) };
            buffer.resize((range.end - at).min(CHUNK_BYTES) as usize, 0);
            let read = read_at(&source.file, &mut buffer, source.offset + (at - range.start));
            if read.is_err() {
                return Err(self.spoilt());
            }
            self.copied = true;
            self.append(&buffer)?;
        }
    }

    /// A copy did not come out right: from now on this blob is sent whole.
    fn spoilt(&mut self) -> Error {
        self.give_up_chunk();
        if let Some(part) = &self.part {
            part.claim.store.state().sent_whole.insert(self.name);
        }
        Error::Spoilt { blob: self.name, offset: self.verified_bytes }
    }

    /// Index of the chunk under way.
    fn chunk(&self) -> usize {
        self.chunk_ends.partition_point(|&end| end <= self.verified_bytes)
    }

    /// Its bytes; 0 after the last.
    fn chunk_bytes(&self) -> u64 {
        let end = self.chunk_ends.get(self.chunk()).copied().unwrap_or(self.verified_bytes);
        end - self.verified_bytes
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let missing = self.chunk_bytes() - self.begun.bytes();
            let (next, after) = rest.split_at((rest.len() as u64).min(missing) as usize);
            rest = after;
            self.put(next)?;
            if next.len() as u64 == missing {
                self.commit()?;
            }
        }
        Ok(())
    }

    /// Writes the next bytes of the chunk under way.
    fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        // A held blob has no room for a single byte more, so there is a part whenever one arrives.
        let Some(part) = &mut self.part else {
            return Ok(());
        };
        let file = &mut part.file.file;
        let written = file.write_all(bytes).and_then(|()| part.writeback.wrote(file, bytes.len()));
        if let Err(cause) = written {
            let missing_bytes = self.manifest.file_bytes - self.verified_bytes;
            let root = &part.claim.store.inner.folders.root;
            let error = Error::write(root, &part.path, missing_bytes, cause);
            self.give_up_chunk();
            return Err(error);
        }
        self.begun.update(bytes);
        Ok(())
    }

    /// Verifies the chunk under way, which is written whole.
    fn commit(&mut self) -> Result<(), Error> {
        let (index, bytes) = (self.chunk(), self.begun.bytes());
        if self.manifest.chunks.get(index) != Some(&self.begun.finish()) {
            if self.copied {
                return Err(self.spoilt());
            }
            self.give_up_chunk();
            let offset = self.verified_bytes;
            return Err(Error::WrongDigest { blob: self.name, chunk: index, offset });
        }
        self.verified_bytes += bytes;
        self.copied = false;
        if let Some(part) = &mut self.part {
            part.file.verified_bytes = self.verified_bytes;
            part.claim.transfer.verified_bytes.store(self.verified_bytes, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Cuts off what there is of the chunk under way.
    fn give_up_chunk(&mut self) {
        self.begun = Hasher::default();
        if let Some(part) = &mut self.part {
            // Best effort: a torn end is found out when the blob is resumed.
            let _ = part.file.cut();
        }
    }

    /// Makes the complete blob durable and held, and returns its name.
    ///
    /// # Errors
    /// [`Error::Incomplete`] if bytes are missing, [`Error::WrongHeader`] if the file is not the
    /// one its tensors make (it is removed: no transfer could complete it), [`Error::DiskFull`] or
    /// [`Error::Io`] if it cannot be flushed or renamed.
    pub fn finish(self) -> Result<Digest, Error> {
        let (blob, blob_bytes) = (self.name, self.manifest.file_bytes);
        if self.offset() != blob_bytes {
            return Err(Error::Incomplete { blob, have_bytes: self.offset(), blob_bytes });
        }
        let Some(mut part) = self.part else {
            return Ok(blob);
        };
        let folders = &part.claim.store.inner.folders;
        let expected = self.manifest.header();
        let mut found = vec![0; expected.len()];
        let file = &mut part.file.file;
        file.seek(SeekFrom::Start(0))
            .and_then(|_| file.read_exact(&mut found))
            .map_err(|cause| Error::io("read", &part.path, cause))?;
        if found != expected {
            folders.remove_partial(&blob)?;
            return Err(Error::WrongHeader { blob });
        }
        part.writeback
            .complete(&part.file.file)
            .map_err(|cause| Error::write(&folders.root, &part.path, 0, cause))?;
        let Part { file, claim, .. } = part;
        drop(file); // Some systems do not rename an open file.
        claim.promote(&self.manifest)?;
        Ok(blob)
    }
}

impl PartFile {
    /// Leaves what is verified, and goes on from there.
    fn cut(&mut self) -> io::Result<()> {
        self.file.set_len(self.verified_bytes)?;
        self.file.seek(SeekFrom::End(0)).map(drop)
    }
}

impl Drop for PartFile {
    fn drop(&mut self) {
        if self.file.metadata().is_ok_and(|metadata| metadata.len() > self.verified_bytes) {
            let _ = self.cut(); // Best effort, as above.
        }
    }
}

/// Bytes at the start of a partial blob that match the manifest, in whole chunks; 0 if there is no
/// such file.
///
/// # Errors
/// [`Error::Io`] if the file exists and cannot be read.
pub(super) fn verified_bytes(part: &Path, manifest: &Manifest) -> Result<u64, Error> {
    let mut file = match File::open(part) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        result => result.map_err(|cause| Error::io("open", part, cause))?,
    };
    let mut verified_bytes = 0;
    let mut chunk = Vec::new();
    for (expected, end) in manifest.chunks.iter().zip(manifest.chunk_ends()) {
        chunk.resize((end - verified_bytes) as usize, 0); // At most CHUNK_BYTES.
        match file.read_exact(&mut chunk) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            result => result.map_err(|cause| Error::io("read", part, cause))?,
        }
        if Digest::of(&chunk) != *expected {
            break;
        }
        verified_bytes = end;
    }
    Ok(verified_bytes)
}

/// Fills `buffer` from `offset` on.
fn read_at(mut file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    file.seek(SeekFrom::Start(offset))?;
    file.read_exact(buffer)
}

impl Claim {
    /// The right to write this blob; `None` if it is held already.
    fn take(store: &Store, name: Digest) -> Result<Option<Claim>, Error> {
        let mut state = store.state();
        if state.held.contains_key(&name) {
            return Ok(None);
        }
        if state.writing.contains_key(&name) {
            return Err(Error::Busy { blob: name });
        }
        let transfer = Arc::new(Transfer::default());
        state.writing.insert(name, transfer.clone());
        state.partial.remove(&name);
        Ok(Some(Claim { store: store.clone(), name, transfer }))
    }

    /// Makes the flushed part a held blob. The claim ends either way.
    fn promote(self, manifest: &Manifest) -> Result<(), Error> {
        let mut state = self.store.state();
        self.store.inner.folders.promote(&self.name)?;
        state.held.insert(self.name, HeldBlob::new(self.name, manifest, SystemTime::now()));
        state.tensors.add(self.name, manifest);
        state.sent_whole.remove(&self.name);
        drop(state); // Dropping the claim takes it again.
        Ok(())
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut state = self.store.state();
        state.writing.remove(&self.name);
        if !state.held.contains_key(&self.name)
            && let Some(partial) = self.store.inner.folders.partial(&self.name)
        {
            // By the same clock as held blobs: file times of the system lag behind it by a tick.
            let partial = PartialBlob { last_used: SystemTime::now(), ..partial };
            state.partial.insert(self.name, partial);
        }
    }
}

/// Flushes a growing file on a thread of its own, so that disk and network work at the same time.
#[derive(Debug, Default)]
struct Writeback {
    /// Bytes written since the last flush began.
    unflushed_bytes: u64,
    running: Option<JoinHandle<io::Result<()>>>,
}

impl Writeback {
    /// Notes a write, and starts a flush if there is enough to flush and none is running.
    fn wrote(&mut self, file: &File, bytes: usize) -> io::Result<()> {
        self.unflushed_bytes += bytes as u64;
        if self.unflushed_bytes < WRITEBACK_BYTES {
            return Ok(());
        }
        let busy = self.running.as_ref().is_some_and(|thread| !thread.is_finished());
        if busy && self.unflushed_bytes < MOST_UNFLUSHED_BYTES {
            return Ok(());
        }
        self.join()?; // Waits if the disk is slower than the network.
        let same_file = file.try_clone()?;
        let flush = move || same_file.sync_data();
        // Without a thread the flush at the end does all the work.
        self.running = std::thread::Builder::new().name("store-flush".into()).spawn(flush).ok();
        self.unflushed_bytes = 0;
        Ok(())
    }

    /// Flushes everything. A failure that the thread saw is reported here: the system tells it once.
    fn complete(&mut self, file: &File) -> io::Result<()> {
        self.join()?;
        file.sync_all()
    }

    fn join(&mut self) -> io::Result<()> {
        match self.running.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            // Flushing does not panic; if it did, the flush at the end still counts.
            Some(Err(_)) | None => Ok(()),
        }
    }
}
