//! A container that is no safetensors: all that the rest of the house needs of one.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use tempfile::TempDir;

use super::{CheckpointFile, Container, Contents, Lies, Stored, StoredTensor, TextFiles};
use crate::blob::BlobSource;
use crate::catalog::{CatalogError, Checkpoint};
use crate::dtype::Dtype;
use crate::error::Error;
use crate::locate::Location;
use crate::model::ModelSpec;
use crate::testing::{TinyCheckpoint, made};

/// Bytes before the first tensor: an odd number, so that nothing is aligned.
const PREFACE: &[u8] = b"flat!";

/// Its defaults for generation.
const DEFAULTS: &str = r#"{"eos_token_id":[4,3,4]}"#;

/// The tensors of a tiny checkpoint behind each other in one file, last first; what they are is known beforehand.
#[derive(Debug)]
struct Flat(fn() -> TinyCheckpoint);

static PLAIN: Flat = Flat(|| TinyCheckpoint::single(2));
static PACKED: Flat = Flat(TinyCheckpoint::packed);
static WITHOUT_A_NORM: Flat = Flat(|| {
    let mut tiny = TinyCheckpoint::single(2);
    tiny.file("model.safetensors").retain(|made| made.0 != "model.norm.weight");
    tiny
});
static WITH_A_STRANGER: Flat = Flat(|| {
    let mut tiny = TinyCheckpoint::single(2);
    tiny.file("model.safetensors").push(made("model.stranger", &[2]));
    tiny
});

/// What it says of its tensors, changed as a faulty container would: the second one is the first again, or its file, or its
/// beginning is another.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Twice,
    NoFile,
    PastTheEnd,
    PastAllNumbers,
}

/// A flat file whose container is wrong.
#[derive(Debug)]
struct Faulty(Fault);

impl Container for Faulty {
    fn recognise(&self, path: &Path) -> bool {
        PLAIN.recognise(path)
    }

    fn open(&self, path: &Path) -> Result<Contents, Error> {
        let mut contents = PLAIN.open(path)?;
        let bytes = contents.stored.files[0].0.bytes;
        let first = contents.stored.tensors[0].name.clone();
        let second = &mut contents.stored.tensors[1];
        match self.0 {
            Fault::Twice => second.name = first,
            Fault::NoFile => second.file = 1,
            Fault::PastTheEnd => second.offset = bytes - second.bytes + 1,
            Fault::PastAllNumbers => second.offset = u64::MAX,
        }
        Ok(contents)
    }

    fn stored(&self, path: &Path) -> Result<Stored, Error> {
        PLAIN.stored(path)
    }
}

impl Flat {
    /// Writes the file and opens it.
    fn checkpoint(&'static self, directory: &TempDir) -> Result<Checkpoint, Error> {
        let path = directory.path().join("model.flat");
        let tensors = (self.0)().files.into_values().flatten().rev();
        let data: Vec<u8> = tensors.flat_map(|(_, _, _, bytes)| bytes).collect();
        std::fs::write(&path, [PREFACE, &data].concat()).unwrap();
        let (directory, name) = (directory.path().to_owned(), "flat".to_owned());
        Checkpoint::open_at(Location { path, container: self, directory, name })
    }
}

impl Container for Flat {
    fn recognise(&self, path: &Path) -> bool {
        std::fs::read(path).is_ok_and(|bytes| bytes.starts_with(PREFACE))
    }

    fn open(&self, path: &Path) -> Result<Contents, Error> {
        let spec = ModelSpec::parse((self.0)().config.to_string().as_bytes()).unwrap();
        Ok(Contents { spec, stored: self.stored(path)? })
    }

    fn stored(&self, path: &Path) -> Result<Stored, Error> {
        let mut offset = PREFACE.len() as u64;
        let mut stored = |(name, dtype, shape, bytes): (String, &str, Vec<u64>, Vec<u8>)| {
            let (start, bytes) = (offset, bytes.len() as u64);
            offset += bytes;
            let dtype = Dtype::parse(dtype).unwrap();
            StoredTensor {
                name,
                file: 0,
                dtype,
                shape,
                offset: start,
                bytes,
                lies: Lies::Together,
                encoding: None,
            }
        };
        let tensors = (self.0)().files.into_values().flatten().rev().map(&mut stored).collect();
        let file = CheckpointFile {
            path: path.into(),
            bytes: offset,
            header_digest: [0; 32],
            metadata: BTreeMap::new(),
            checksum: None,
        };
        let handle = File::open(path).map_err(|cause| Error::io("open", path, cause))?;
        Ok(Stored {
            texts: TextFiles::Inside {
                file: path.into(),
                texts: BTreeMap::from([("generation_config.json".into(), DEFAULTS.into())]),
            },
            files: vec![(file, handle)],
            tensors,
            warnings: vec!["it is flat".into()],
        })
    }
}

fn bytes_of(source: &BlobSource<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    source.write_to(&mut bytes).unwrap();
    bytes
}

#[test]
fn blobs_are_the_same_whatever_the_container() {
    for flat in [&PLAIN, &PACKED] {
        let directory = TempDir::new().unwrap();
        let tiny = (flat.0)();
        let (there, here) = (tiny.open().unwrap(), flat.checkpoint(&directory).unwrap());
        assert_eq!(here.config, there.config);
        assert_eq!(here.warnings, ["it is flat"]);
        assert_eq!((here.stop_token_ids(), there.stop_token_ids()), (vec![3, 4], vec![1]));
        for layer in 0..there.config.layers.len() {
            let (there, here) = (BlobSource::new(&there, layer), BlobSource::new(&here, layer));
            assert_eq!(here.manifest().unwrap(), there.manifest().unwrap());
            assert_eq!(bytes_of(&here), bytes_of(&there));
        }
        let outer = |checkpoint: &Checkpoint| {
            let embedding = checkpoint.embedding_matrix().parts;
            let head = checkpoint.head_matrix().expect("not tied").parts;
            let all = embedding.into_iter().chain(head).chain([checkpoint.final_norm()]);
            all.map(|tensor| checkpoint.map(tensor).unwrap().bytes().to_vec()).collect::<Vec<_>>()
        };
        assert_eq!(outer(&here), outer(&there));
    }
}

#[test]
fn what_a_container_lacks_or_has_too_much_is_refused_by_name() {
    let directory = TempDir::new().unwrap();
    let refusal = |flat: &'static Flat| match flat.checkpoint(&directory).unwrap_err() {
        Error::Catalog(error) => error,
        other => panic!("{other}"),
    };
    let error = refusal(&WITHOUT_A_NORM);
    assert!(
        matches!(&error, CatalogError::MissingTensors { tensors } if tensors[..] == ["model.norm.weight"]),
        "{error}"
    );
    let error = refusal(&WITH_A_STRANGER);
    let stranger = |tensor: &str| tensor == "model.stranger";
    assert!(
        matches!(&error, CatalogError::UnknownTensor { tensor, .. } if stranger(tensor)),
        "{error}"
    );
}

#[test]
fn what_a_container_says_of_places_is_checked() {
    static FAULTS: [Faulty; 4] = [
        Faulty(Fault::Twice),
        Faulty(Fault::NoFile),
        Faulty(Fault::PastTheEnd),
        Faulty(Fault::PastAllNumbers),
    ];
    for faulty in &FAULTS {
        let home = tempfile::tempdir().unwrap();
        PLAIN.checkpoint(&home).unwrap();
        let (directory, name) = (home.path().to_owned(), "flat".to_owned());
        let path = home.path().join("model.flat");
        let error = Checkpoint::open_at(Location { path, container: faulty, directory, name });
        let error = error.unwrap_err();
        let outside = matches!(error, Error::Catalog(CatalogError::TensorOutside { .. }));
        let twice = matches!(error, Error::Catalog(CatalogError::TensorTwice { .. }));
        assert!(if matches!(faulty.0, Fault::Twice) { twice } else { outside }, "{error}");
    }
}
