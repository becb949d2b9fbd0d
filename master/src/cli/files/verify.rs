//! `cake-master verify MODEL`: whether the files of a checkpoint are whole, and hold what they should.
use std::io::Write;
use std::path::{Path, PathBuf};

use cake_checkpoint::units::format_bytes;
use cake_transform::Source;
use cake_transform::digests::{self, Digests, DigestsDiffer, MAX_DIGESTS_BYTES, digests};
use serde::Serialize;
use tokio::task::block_in_place;

use super::{MOST_ASKED, Progress, open, threads, watched};
use crate::cli::args::MODEL;
use crate::cli::ctrl_c::Interrupts;
use crate::cli::{Error, out, report};

/// Arguments of `verify`.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Digests")]
pub(crate) struct Args {
    #[arg(help = MODEL)]
    pub(in crate::cli) model: String,
    /// Compare with the digests in this file: a line for each tensor, BLAKE3 in hexadecimal, two spaces, its name.
    /// Default: nothing to compare with.
    #[arg(long, value_name = "FILE")]
    digests: Option<PathBuf>,
    /// Write the digests to this file, which must not exist; nothing is written if --digests finds a difference. Default:
    /// nowhere.
    #[arg(long, value_name = "FILE")]
    write_digests: Option<PathBuf>,
    /// How many threads read, 64 at most. Default: one for each processor, 16 at most.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MOST_ASKED))]
    threads: Option<u64>,
    /// Print JSON.
    #[arg(long, help_heading = "Output")]
    pub(in crate::cli) json: bool,
}

/// What was found.
#[derive(Debug, Serialize)]
struct Verdict<'a> {
    ok: bool,
    files: usize,
    tensors: usize,
    bytes: u64,
    /// Why it is no model that runs here; nothing if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_run: Option<String>,
    warnings: &'a [String],
    /// How digests differ from those that were expected, if any were.
    #[serde(skip_serializing_if = "Option::is_none")]
    differ: Option<&'a DigestsDiffer>,
    digests: &'a Digests,
}

impl Args {
    /// Checks structure, then reads every byte.
    pub(in crate::cli) async fn run(self, interrupts: Interrupts) -> Result<(), Error> {
        let (source, not_run, expected) = block_in_place(|| self.open())?;
        let bytes: u64 = source.tensors.iter().map(|tensor| tensor.bytes).sum();
        let (files, tensors) = (source.files.len(), source.tensors.len());
        let checksums = source.files.iter().filter(|file| file.checksum.is_some()).count();
        let warnings = source.warnings.clone();
        let place = source.location.path.clone();
        let threads = threads(self.threads);
        let read = move |progress: &Progress| digests(&source, threads, progress);
        let found = watched(&place, "read", self.json, interrupts, read).await??;
        let differ = expected.map(|expected| DigestsDiffer::between(&found, &expected));
        let wrong = differ.as_ref().map_or(0, DigestsDiffer::count);
        if let (Some(path), 0) = (&self.write_digests, wrong) {
            block_in_place(|| write_digests(path, &found))
                .map_err(|source| file("write", path, source))?;
        }
        if self.json {
            report::print_json(&Verdict {
                ok: wrong == 0,
                files,
                tensors,
                bytes,
                not_run,
                warnings: &warnings,
                differ: differ.as_ref(),
                digests: &found,
            })?;
        } else {
            let size = format_bytes(bytes);
            let whole = match files {
                1 => "1 file is whole".to_owned(),
                files => format!("{files} files are whole"),
            };
            let as_written = match checksums {
                0 => "",
                _ => ", with the checksum that it ends in",
            };
            out::line(format_args!("{whole}{as_written}: {tensors} tensors, {size}, all read"))?;
            if let Some(why) = not_run {
                out::line(format_args!("not a model that runs here: {why}"))?;
            }
            match &differ {
                None => {}
                Some(_) if wrong == 0 => out::line("every digest is the expected one")?,
                Some(differ) => out::text(list(differ))?,
            }
        }
        match wrong {
            0 => Ok(()),
            tensors => Err(Error::DigestsDiffer { tensors, path: place }),
        }
    }

    /// Opens everything that is to be read.
    fn open(&self) -> Result<(Source, Option<String>, Option<Digests>), Error> {
        if let Some(path) =
            self.write_digests.as_ref().filter(|path| path.symlink_metadata().is_ok())
        {
            let expected = "a name that is not taken";
            return Err(Error::argument("--write-digests", path.display(), expected));
        }
        let source = open(&self.model)?;
        let not_run = source.checkpoint().err().map(|error| error.to_string());
        let expected = self.digests.as_deref().map(read_digests).transpose()?;
        Ok((source, not_run, expected))
    }
}

/// Writes a list under a name that nobody has.
fn write_digests(path: &Path, digests: &Digests) -> std::io::Result<()> {
    let written = std::fs::File::create_new(path)?.write_all(digests::to_text(digests).as_bytes());
    written.inspect_err(|_| drop(std::fs::remove_file(path))) // A part of a list is none.
}

fn read_digests(path: &Path) -> Result<Digests, Error> {
    let bytes = path.metadata().map_err(|source| file("read", path, source))?.len();
    if bytes > MAX_DIGESTS_BYTES {
        let expected = format!("a list of at most {}", format_bytes(MAX_DIGESTS_BYTES));
        return Err(Error::argument("--digests", path.display(), expected));
    }
    let text = std::fs::read_to_string(path).map_err(|source| file("read", path, source))?;
    let malformed = |line| {
        let expected = format!("64 hexadecimal digits, two spaces and a name in line {line}");
        Error::argument("--digests", path.display(), expected)
    };
    digests::from_text(&text).map_err(malformed)
}

fn list(differ: &DigestsDiffer) -> String {
    let DigestsDiffer { changed, missing, added } = differ;
    let line =
        |what: &'static str| move |name: &String| format!("{what:<8} {}\n", name.escape_debug());
    let lines = changed.iter().map(line("changed")).chain(missing.iter().map(line("missing")));
    lines.chain(added.iter().map(line("added"))).collect()
}

fn file(action: &'static str, path: &Path, source: std::io::Error) -> Error {
    Error::File { action, path: path.to_owned(), source }
}
