//! Receiving a blob: a chunk that is not what the manifest says is cut off again.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use cake_checkpoint::{CHUNK_BYTES, Digest, Hasher, Manifest};

use super::folder::For;
use super::part::{self, PartFile, Writeback};
use super::reuse::{self, Segment};
use super::{Error, HeldBlob, PartialBlob, Store, Transfer};

/// Writes one blob, in order, from where an earlier transfer ended.
///
/// Dropped before [`Writer::finish`], what was verified stays for the next writer.
#[derive(Debug)]
pub struct Writer {
    manifest: Manifest,
    /// Where each chunk ends.
    chunk_ends: Vec<u64>,
    name: Digest,
    /// Whole chunks that matched their digests, in bytes.
    verified_bytes: u64,
    /// The beginning of the next chunk, which is in the part on disk as well.
    begun: Hasher,
    /// Whether the chunk under way is copied from another blob. As chunks do not cross the bounds
    /// of tensors, all of it is or none.
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

/// The right to write one blob, given back when dropped.
#[derive(Debug)]
struct Claim {
    store: Store,
    name: Digest,
    transfer: Arc<Transfer>,
}

impl Store {
    /// Starts or continues a blob. Makes room first, by evicting blobs least recently used where
    /// the limit asks for it. For a held blob the writer is complete from the start.
    ///
    /// # Errors
    /// [`Error::Busy`] if someone else writes this blob, [`Error::StoreFull`] and
    /// [`Error::DiskFull`] if there is no room for it (nothing is evicted then), [`Error::Io`] if
    /// its files cannot be made.
    pub fn begin(&self, manifest: Manifest) -> Result<Writer, Error> {
        Writer::begin(self, manifest)
    }
}

impl Writer {
    /// See [`Store::begin`].
    fn begin(store: &Store, manifest: Manifest) -> Result<Writer, Error> {
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
        let verified_bytes = part::verified_bytes(folders, &name, &manifest)?;
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
        let missing_bytes = manifest.file_bytes - verified_bytes;
        let opened = folders.open(&path, For::WritingOrNew);
        let file = opened
            .and_then(|file| PartFile::over(file, verified_bytes))
            .map_err(|cause| Error::write(&folders.root, &path, missing_bytes, cause))?;
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
    /// caller may send again from it what is wanted.
    ///
    /// [`Error::Spoilt`] if what another blob holds does not come out right, [`Error::Torn`] if the
    /// end of a chunk that was given up could not be cut off. This writer takes no more bytes then;
    /// one begun anew does, and after the first of the two it wants the whole rest of the blob.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if self.part.as_ref().is_some_and(|part| part.file.torn()) {
            return Err(self.torn());
        }
        self.copy_held()?; // Whatever stopped an earlier copy may be over.
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

    fn torn(&self) -> Error {
        Error::Torn { blob: self.name, verified_bytes: self.verified_bytes }
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
        let written = part.file.append(bytes);
        let written = written.and_then(|()| part.writeback.wrote(&part.file.file, bytes.len()));
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
        self.copied = false;
        if let Some(part) = &mut self.part {
            let _ = part.file.cut(); // If that fails, the file is torn, and the next write says so.
        }
    }

    /// Makes the complete blob durable and held, and returns its name.
    ///
    /// # Errors
    /// [`Error::Incomplete`] if bytes are missing, [`Error::Torn`] if the file on disk is longer
    /// or shorter than the blob, [`Error::WrongHeader`] if the file is not the one its tensors make
    /// (it is removed: no transfer could complete it), [`Error::DiskFull`] or [`Error::Io`] if it
    /// cannot be read, flushed or renamed.
    pub fn finish(self) -> Result<Digest, Error> {
        let (blob, blob_bytes) = (self.name, self.manifest.file_bytes);
        if self.offset() != blob_bytes {
            return Err(Error::Incomplete { blob, have_bytes: self.offset(), blob_bytes });
        }
        let torn = self.torn();
        let Some(mut part) = self.part else {
            return Ok(blob);
        };
        let length = part.file.length().map_err(|cause| Error::io("read", &part.path, cause))?;
        if length != blob_bytes {
            return Err(torn);
        }
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

#[cfg(test)]
mod tests {
    use super::super::tests::{TestBlob, open, parts_blob, receive, send};
    use super::*;

    #[test]
    fn a_copy_that_could_not_be_written_is_made_up_for_by_the_next_write() {
        let directory = tempfile::tempdir().unwrap();
        let store = open(&directory);
        let (held, other) = (parts_blob(0), parts_blob(4));
        receive(&store, &held);
        let mut writer = store.begin(other.manifest.clone()).unwrap();
        let header = writer.wanted()[0].clone();
        let part = writer.part.as_mut().unwrap();
        part.writeback = Writeback::failing_after(header.end + 1);
        let error = writer.write(&other.bytes[..header.end as usize]).unwrap_err();
        assert!(matches!(error, Error::Io { .. }), "{error}");
        assert_eq!(writer.offset(), header.end, "of the copy that follows, nothing is there");
        assert!(!writer.copied);
        assert!(writer.wanted()[0].start > header.end);
        send(&mut writer, &other).unwrap();
        writer.finish().unwrap();
        let bytes = std::fs::read(store.inner.folders.blob(&other.name())).unwrap();
        assert!(bytes == other.bytes);
    }

    #[test]
    fn a_writer_whose_part_cannot_be_cut_takes_no_more_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let store = open(&directory);
        let blob = TestBlob::new(0, 3 << 20);
        let half = blob.after(1) as usize + 1000;
        let mut writer = store.begin(blob.manifest.clone()).unwrap();
        writer.write(&blob.bytes[..half]).unwrap();
        let part = writer.part.as_mut().unwrap();
        part.file.file = File::open(&part.path).unwrap(); // Neither written nor cut through this.
        let error = writer.write(&blob.bytes[half..]).unwrap_err();
        assert!(matches!(error, Error::Io { .. }), "{error}");
        let verified = blob.after(1);
        assert_eq!(writer.offset(), verified);
        let error = writer.write(&blob.bytes[verified as usize..]).unwrap_err();
        let Error::Torn { verified_bytes, .. } = error else { panic!("{error}") };
        assert_eq!(verified_bytes, verified);
        drop(writer);

        let mut writer = store.begin(blob.manifest.clone()).unwrap();
        assert_eq!(writer.offset(), verified, "the torn end is cut off now");
        send(&mut writer, &blob).unwrap();
        writer.finish().unwrap();
        let bytes = std::fs::read(store.inner.folders.blob(&blob.name())).unwrap();
        assert!(bytes == blob.bytes);
    }

    #[test]
    fn a_part_of_another_length_is_not_finished() {
        let directory = tempfile::tempdir().unwrap();
        let store = open(&directory);
        let blob = TestBlob::new(0, 1000);
        for change in [-1, 1] {
            let mut writer = store.begin(blob.manifest.clone()).unwrap();
            send(&mut writer, &blob).unwrap();
            let length = writer.blob_bytes().checked_add_signed(change).unwrap();
            writer.part.as_ref().unwrap().file.file.set_len(length).unwrap();
            assert!(matches!(writer.finish(), Err(Error::Torn { .. })));
            assert!(!store.holds(&blob.name()));
        }
        let mut writer = store.begin(blob.manifest.clone()).unwrap();
        send(&mut writer, &blob).unwrap();
        writer.finish().unwrap();
    }
}
