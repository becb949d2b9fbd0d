//! Jobs that run whole, that end early and go on, and that find what they did not write.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use cake_checkpoint::{Dtype, Encoding, FloatType};

use super::outputs::beside;
use super::units::Units;
use crate::testing::{GOLDEN, Quiet, StopsAfter, golden};
use crate::{
    Error, FloatForm, Form, Job, Observer, Options, Order, Output, Piece, Place, Rows, Source,
    Stretch, Target, merge, split,
};

const OPTIONS: Options = Options { force: false, threads: 2 };

fn merged(name: &str, path: PathBuf) -> Job {
    merge(golden(name), Target::File(path)).unwrap()
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_merged_file_is_what_the_reference_writes() {
    let home = tempfile::tempdir().unwrap();
    for name in ["llama-sharded", "qwen3-moe", "qwen2-mlx4"] {
        let path = home.path().join(name);
        merged(name, path.clone()).run(OPTIONS, &Quiet).unwrap();
        let source = golden(name);
        let bytes = fs::read(&path).unwrap();
        let found = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(found.len(), source.tensors.len());
        for tensor in &source.tensors {
            let mut expected = vec![0; tensor.bytes as usize];
            source.files[tensor.file].read_at(tensor.offset, &mut expected).unwrap();
            let view = found.tensor(&tensor.name).unwrap();
            assert_eq!(view.data(), expected, "{}", tensor.name);
            let shape: Vec<u64> = view.shape().iter().map(|&size| size as u64).collect();
            assert_eq!(shape, tensor.shape);
        }
        // Byte for byte what its own writer makes of the same tensors.
        let metadata = source.files[0].metadata.clone().into_iter().collect();
        let reference = safetensors::serialize(found.tensors(), Some(metadata)).unwrap();
        assert!(reference == bytes, "{name}");
    }
    assert_eq!(names(home.path()), ["llama-sharded", "qwen2-mlx4", "qwen3-moe"]);
}

#[test]
fn files_say_of_themselves_what_all_of_the_source_say() {
    let home = tempfile::tempdir().unwrap();
    for (name, format) in [("llama-sharded", "pt"), ("qwen2-mlx4", "mlx")] {
        let path = home.path().join(format!("{name}.safetensors"));
        let mut source = golden(name);
        source.files[0].metadata.insert("own".into(), "of one file".into());
        let many = source.files.len() > 1;
        merge(source, Target::File(path.clone())).unwrap().run(OPTIONS, &Quiet).unwrap();
        let found = Source::open(path.to_str().unwrap()).unwrap();
        let metadata = &found.files[0].metadata;
        assert_eq!((metadata["format"].as_str(), metadata.contains_key("own")), (format, !many));
    }
}

#[test]
fn split_files_have_an_index_and_all_texts() {
    let home = tempfile::tempdir().unwrap();
    let target = home.path().join("parts");
    let whole = golden("llama");
    let largest = whole.tensors.iter().map(|tensor| tensor.bytes).max().unwrap();
    let job = split(golden("llama"), Target::Directory(target.clone()), largest).unwrap();
    job.run(OPTIONS, &Quiet).unwrap();
    let parts = Source::open(target.to_str().unwrap()).unwrap();
    assert!(parts.files.len() > 2 && parts.warnings.is_empty(), "{:?}", parts.warnings);
    for file in &parts.files {
        let inside =
            parts.tensors.iter().filter(|tensor| parts.files[tensor.file].path == file.path);
        assert!(inside.map(|tensor| tensor.bytes).sum::<u64>() <= largest);
    }
    // Together again they are what they were, texts too.
    let again = home.path().join("again");
    let job = merge(parts, Target::Directory(again.clone())).unwrap();
    job.run(OPTIONS, &Quiet).unwrap();
    let path = home.path().join("once");
    merged("llama", path.clone()).run(OPTIONS, &Quiet).unwrap();
    assert_eq!(fs::read(path).unwrap(), fs::read(again.join("model.safetensors")).unwrap());
    for text in ["config.json", "tokenizer.json"] {
        let before = Path::new(GOLDEN).join("llama").join(text);
        assert_eq!(fs::read(again.join(text)).unwrap(), fs::read(before).unwrap());
    }
    // What is larger than a file may be has one of its own.
    let job = split(whole, Target::Directory(target), largest - 1).unwrap();
    let alone = |output: &Output| output.bytes > largest;
    assert!(job.outputs.iter().any(alone), "{largest}");
}

#[test]
fn a_job_that_is_stopped_anywhere_goes_on_to_the_same_bytes() {
    let home = tempfile::tempdir().unwrap();
    let whole = home.path().join("whole");
    merged("llama", whole.clone()).run(OPTIONS, &Quiet).unwrap();
    let whole = fs::read(whole).unwrap();
    let units = u64::from(Units::of(&merged("llama", home.path().join("x"))).unwrap().count());
    assert!(units > 20, "{units} units");
    for stop in (1..units).step_by(3) {
        let path = home.path().join(format!("stopped-{stop}"));
        let job = merged("llama", path.clone());
        let stopped = job.run(OPTIONS, &StopsAfter(AtomicU64::new(stop))).unwrap_err();
        assert!(matches!(stopped, Error::Stopped { done, total } if done <= total), "{stopped}");
        assert!(!path.exists() && beside(&path, ".part").exists());
        let outcome = job.run(OPTIONS, &Quiet).unwrap();
        assert!(outcome.resumed > 0 || stop == 1, "{outcome:?} after {stop}");
        assert!(fs::read(&path).unwrap() == whole, "stopped after {stop}");
        assert!(!beside(&path, ".part").exists() && !beside(&path, ".part.journal").exists());
        fs::remove_file(path).unwrap();
    }
}

/// A job that was stopped in the middle, and the file that it was writing.
fn stopped(home: &Path) -> (Job, PathBuf) {
    let path = home.join("out");
    let job = merged("llama", path.clone());
    job.run(OPTIONS, &StopsAfter(AtomicU64::new(10))).unwrap_err();
    (job, beside(&path, ".part"))
}

fn journal(part: &Path) -> PathBuf {
    beside(part, ".journal")
}

#[test]
fn what_was_changed_meanwhile_is_said_and_not_built_upon() {
    let home = tempfile::tempdir().unwrap();
    let (job, part) = stopped(home.path());
    let length = fs::metadata(&part).unwrap().len();
    fs::write(&part, vec![7; length as usize]).unwrap();
    let error = job.run(OPTIONS, &Quiet).unwrap_err();
    assert!(matches!(error, Error::Changed { .. }), "{error}");
    // Without it, the job begins again.
    fs::remove_file(&part).unwrap();
    assert_eq!(job.run(OPTIONS, &Quiet).unwrap().resumed, 0);
}

#[test]
fn what_was_lost_as_the_machine_went_down_is_done_again() {
    let home = tempfile::tempdir().unwrap();
    let (job, part) = stopped(home.path());
    let text = fs::read_to_string(journal(&part)).unwrap();
    let (first, rest) = text.split_once('\n').unwrap();
    let before = first.rsplit_once(' ').unwrap().0;
    fs::write(journal(&part), format!("{before} another-boot\n{rest}")).unwrap();
    // All of it is lost.
    let length = fs::metadata(&part).unwrap().len();
    fs::write(&part, vec![0; length as usize]).unwrap();
    let outcome = job.run(OPTIONS, &Quiet).unwrap();
    assert_eq!(outcome.resumed, 0);
    let whole = home.path().join("whole");
    merged("llama", whole.clone()).run(OPTIONS, &Quiet).unwrap();
    assert!(fs::read(whole).unwrap() == fs::read(job.target.path()).unwrap());
}

#[test]
fn another_job_at_the_same_place_begins_anew() {
    let home = tempfile::tempdir().unwrap();
    let (_, part) = stopped(home.path());
    let other = merged("qwen2", home.path().join("out"));
    assert_eq!(other.run(OPTIONS, &Quiet).unwrap().resumed, 0);
    assert!(!part.exists());
}

#[test]
fn what_is_there_is_replaced_only_by_force_and_never_a_directory() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("out");
    fs::write(&path, "mine").unwrap();
    let job = merged("llama", path.clone());
    let error = job.run(OPTIONS, &Quiet).unwrap_err();
    assert!(error.to_string().contains("--force"), "{error}");
    assert_eq!(fs::read(&path).unwrap(), b"mine");
    job.run(Options { force: true, ..OPTIONS }, &Quiet).unwrap();
    assert!(fs::metadata(&path).unwrap().len() > 1000);
    let directory = merge(golden("llama"), Target::Directory(home.path().into())).unwrap();
    let error = directory.run(Options { force: true, ..OPTIONS }, &Quiet).unwrap_err();
    assert!(matches!(error, Error::Exists { .. }), "{error}");
    assert_eq!(names(home.path()), ["out"]);
}

#[test]
fn names_beside_the_target_are_left_alone_unless_they_are_a_jobs() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("out");
    fs::write(beside(&path, ".part"), "a download of somebody else's").unwrap();
    let error = merged("llama", path.clone()).run(OPTIONS, &Quiet).unwrap_err();
    assert!(matches!(&error, Error::Exists { path, .. } if path.ends_with("out.part")), "{error}");
    assert_eq!(fs::read(beside(&path, ".part")).unwrap().len(), 29);
}

#[test]
fn a_directory_may_be_named_with_a_slash_and_not_by_dots() {
    let home = tempfile::tempdir().unwrap();
    let named = format!("{}/out/", home.path().display());
    fs::create_dir(&named).unwrap();
    let job = merge(golden("llama"), Target::Directory(named.into())).unwrap();
    job.run(OPTIONS, &Quiet).unwrap();
    assert_eq!(names(home.path()), ["out"]);
    assert!(names(&home.path().join("out")).contains(&"config.json".to_owned()));
    let job = merge(golden("llama"), Target::Directory(home.path().join(".."))).unwrap();
    let error = job.run(OPTIONS, &Quiet).unwrap_err();
    assert!(matches!(error, Error::Exists { .. }), "{error}");
    #[cfg(unix)]
    {
        let link = home.path().join("link");
        fs::create_dir(home.path().join("empty")).unwrap();
        std::os::unix::fs::symlink(home.path().join("empty"), &link).unwrap();
        let job = merge(golden("llama"), Target::Directory(link)).unwrap();
        let error = job.run(OPTIONS, &Quiet).unwrap_err().to_string();
        assert!(error.contains("it is a link"), "{error}");
    }
}

/// Who keeps what the journal at this path has after the last unit.
struct KeepsJournal(PathBuf, Mutex<Vec<u8>>);

impl Observer for KeepsJournal {
    fn progress(&self, _: u64, _: u64) {
        *self.1.lock().unwrap() = fs::read(&self.0).unwrap();
    }
}

#[test]
fn a_run_that_was_killed_when_all_was_done_is_no_failure() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("out");
    let journal = beside(&path, ".part.journal");
    let job = merged("llama", path.clone());
    let keeps = KeepsJournal(journal.clone(), Mutex::default());
    job.run(Options { threads: 1, ..OPTIONS }, &keeps).unwrap();
    let (text, whole) = (keeps.1.into_inner().unwrap(), fs::read(&path).unwrap());
    // The journal of a run that ended between its last two steps.
    fs::write(&journal, &text).unwrap();
    job.check_target(false).unwrap();
    let outcome = job.run(OPTIONS, &Quiet).unwrap();
    assert_eq!((outcome.resumed, journal.exists()), (outcome.bytes, false));
    assert!(matches!(job.check_target(false), Err(Error::Exists { .. })));
    // Of one that ended before these, of which somebody deleted what was not finished: what has the name is another file.
    fs::write(&journal, &text).unwrap();
    fs::write(&path, vec![1; whole.len()]).unwrap();
    assert!(matches!(job.run(OPTIONS, &Quiet).unwrap_err(), Error::Exists { .. }));
    let outcome = job.run(Options { force: true, ..OPTIONS }, &Quiet).unwrap();
    assert_eq!((outcome.resumed, fs::read(&path).unwrap() == whole), (0, true));
    assert_eq!(names(home.path()), ["out"]);
}

#[test]
fn a_run_that_was_killed_before_its_first_unit_goes_on() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("out");
    let job = merged("llama", path.clone());
    // With a journal alone, and with one that has a line, and a file that is not as long as it shall be.
    let first = format!("cake-transform 3 {} boot\n", job.identity().unwrap());
    for (journal, part) in [("", None), (&*first, None), (&*first, Some(""))] {
        fs::write(beside(&path, ".part.journal"), journal).unwrap();
        if let Some(part) = part {
            fs::write(beside(&path, ".part"), part).unwrap();
        }
        job.run(OPTIONS, &Quiet).unwrap();
        assert_eq!(names(home.path()), ["out"]);
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_refusal_leaves_nothing_behind() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("out");
    fs::write(beside(&path, ".part"), "somebody else's").unwrap();
    merged("llama", path.clone()).run(OPTIONS, &Quiet).unwrap_err();
    assert_eq!(names(home.path()), ["out.part"]);
}

/// What the whole of a matrix decides about: the largest magnitude, then each number as one byte of its sign.
#[derive(Debug)]
struct Signs;

impl Form for Signs {
    fn identity(&self) -> String {
        "signs".to_owned()
    }

    fn row_bytes(&self, columns: u64) -> Vec<u64> {
        vec![columns]
    }

    fn head_bytes(&self) -> u64 {
        4
    }

    fn needs_largest(&self) -> bool {
        true
    }

    fn head(&self, largest: f32) -> Vec<u8> {
        largest.to_le_bytes().into()
    }

    fn write(
        &self,
        rows: &[f32],
        columns: usize,
        largest: f32,
        out: &mut [&mut [u8]],
    ) -> Result<(), cake_checkpoint::EncodeError> {
        assert!(rows.len().is_multiple_of(columns) && rows.iter().all(|row| row.abs() <= largest));
        out[0].iter_mut().zip(rows).for_each(|(out, row)| *out = u8::from(*row < 0.0));
        Ok(())
    }
}

/// A matrix of 6 rows and 3 columns in a file of its own, written in some form.
fn matrix(home: &Path, order: Order, form: Arc<dyn Form>, output_bytes: u64) -> (Job, Vec<f32>) {
    let numbers: Vec<f32> = (0..18).map(|index| index as f32 * 1.5 - 9.0).collect();
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    fs::write(home.join("numbers"), &bytes).unwrap();
    let mut source = golden("llama");
    let file = source.add(&home.join("numbers")).unwrap();
    let from = Stretch { file, offset: 0, bytes: bytes.len() as u64 };
    let rows = Rows {
        name: "numbers".into(),
        encoding: Encoding::Float(FloatType::F32),
        parts: vec![(Dtype::F32, from)],
        shape: [6, 3],
        order,
        add: 1.0,
        form,
        places: vec![Place { output: 0, offset: 2 }],
    };
    let target = Target::File(home.join("out"));
    let outputs = vec![Output { name: "out".into(), bytes: output_bytes }];
    (Job { source, target, outputs, pieces: vec![Piece::Rows(rows)] }, numbers)
}

#[test]
fn rows_are_written_in_order_with_what_is_added_to_them() {
    let home = tempfile::tempdir().unwrap();
    let form = Arc::new(FloatForm(FloatType::BF16));
    let order = Order::HalvesToPairs { head_rows: 6 };
    let (job, numbers) = matrix(home.path(), order, form, 2 + 36);
    job.run(OPTIONS, &Quiet).unwrap();
    let expected: Vec<u8> = [0usize, 3, 1, 4, 2, 5]
        .iter()
        .flat_map(|&row| &numbers[row * 3..row * 3 + 3])
        .map(|number| ((number + 1.0).to_bits() >> 16) as u16)
        .flat_map(u16::to_le_bytes)
        .collect();
    assert_eq!(fs::read(home.path().join("out")).unwrap(), [&[0, 0], &expected[..]].concat());
}

#[test]
fn a_form_that_needs_all_of_a_matrix_sees_it_first() {
    let home = tempfile::tempdir().unwrap();
    let (job, numbers) = matrix(home.path(), Order::Same, Arc::new(Signs), 2 + 4 + 18);
    job.run(OPTIONS, &Quiet).unwrap();
    let signs = numbers.iter().map(|&number| u8::from(number + 1.0 < 0.0));
    let largest = 18.0f32 * 1.5 - 1.5 - 9.0 + 1.0;
    let head = [0, 0].into_iter().chain(largest.to_le_bytes());
    let expected: Vec<u8> = head.chain(signs).collect();
    assert_eq!(fs::read(home.path().join("out")).unwrap(), expected);
}

#[test]
fn a_matrix_that_is_seen_first_and_a_checksum_go_on_where_they_stopped() {
    let home = tempfile::tempdir().unwrap();
    let (rows, columns) = (3000, 64);
    let numbers: Vec<f32> =
        (0..rows * columns).map(|index| (index * 7919 % 10_007) as f32 - 5000.0).collect();
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    fs::write(home.path().join("all"), bytes).unwrap();
    let job = |name: &str| {
        let (mut job, _) = matrix(home.path(), Order::Same, Arc::new(Signs), 0);
        let mut source = golden("llama");
        let file = source.add(&home.path().join("all")).unwrap();
        let Piece::Rows(matrix) = &mut job.pieces[0] else { unreachable!() };
        matrix.parts[0].1 = Stretch { file, offset: 0, bytes: 4 * (rows * columns) as u64 };
        matrix.shape = [rows as u64, columns as u64];
        let end = 2 + 4 + (rows * columns) as u64 + 3;
        job.pieces.push(Piece::Checksum { place: Place { output: 0, offset: end } });
        job.outputs[0].bytes = end + 4;
        Job { source, target: Target::File(home.path().join(name)), ..job }
    };
    let largest = numbers.iter().fold(0f32, |most, number| most.max((number + 1.0).abs()));
    let signs = numbers.iter().map(|&number| u8::from(number + 1.0 < 0.0));
    let head = [0, 0].into_iter().chain(largest.to_le_bytes());
    let mut expected: Vec<u8> = head.chain(signs).chain([0; 3]).collect();
    expected.extend(crc32fast::hash(&expected).to_le_bytes());
    let units = Units::of(&job("units")).unwrap().count() as u64;
    assert!(units >= 20, "{units}");
    for stop in [1, 2, units / 2 - 2, units / 2, units / 2 + 3, units - 2] {
        let job = job(&format!("out-{stop}"));
        let error = job.run(OPTIONS, &StopsAfter(AtomicU64::new(stop))).unwrap_err();
        assert!(matches!(error, Error::Stopped { .. }), "{error}");
        let observed = StopsAfter(AtomicU64::new(u64::MAX));
        job.run(OPTIONS, &observed).unwrap();
        assert!(fs::read(job.target.path()).unwrap() == expected, "stopped after {stop}");
        let again = u64::MAX - observed.0.into_inner();
        assert!(again <= units - stop + 4, "{again} of {units} units after {stop}");
    }
}

#[test]
fn a_number_that_a_form_does_not_have_is_named() {
    let home = tempfile::tempdir().unwrap();
    let form = Arc::new(FloatForm(FloatType::F16));
    let (mut job, _) = matrix(home.path(), Order::Same, form, 2 + 36);
    let Piece::Rows(rows) = &mut job.pieces[0] else { unreachable!() };
    rows.add = 7e4;
    let error = job.run(Options { threads: 1, ..OPTIONS }, &Quiet).unwrap_err();
    assert!(error.to_string().contains("tensor \"numbers\": weight 0 is 69991"), "{error}");
}
