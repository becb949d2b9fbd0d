//! `cake-master extract MODEL --layers 4..8 --out F`: some layers as a file of their own.
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cake_checkpoint::units::format_bytes;
use cake_checkpoint::{BlobSource, Checkpoint, LayerRange};
use serde::Serialize;
use tempfile::NamedTempFile;

use super::args::MODEL;
use super::ctrl_c::Interrupts;
use super::{Error, out, report};

/// Arguments of `extract`.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Output")]
pub(super) struct Args {
    #[arg(help = MODEL)]
    pub(super) model: String,
    /// Which layers, counted from 0, the end not included (such as 4..8).
    #[arg(long, value_name = "A..B")]
    layers: LayerRange,
    /// The safetensors file to write.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Print JSON.
    #[arg(long, help_heading = "Output")]
    pub(super) json: bool,
}

/// What was written.
#[derive(Debug, PartialEq, Serialize)]
struct Written<'a> {
    out: &'a Path,
    layers: LayerRange,
    bytes: u64,
}

impl Args {
    /// Writes the file, streaming. Neither an error nor an interrupt leaves anything behind.
    pub(super) async fn run(self, mut interrupts: Interrupts) -> Result<(), Error> {
        let cancelled = Arc::new(AtomicBool::new(false));
        let (model, layers, path) = (self.model.clone(), self.layers, self.out.clone());
        let seen = cancelled.clone();
        let mut writing =
            tokio::task::spawn_blocking(move || extract(&model, layers, &path, &seen));
        let written = tokio::select! {
            written = &mut writing => written,
            () = interrupts.next() => {
                cancelled.store(true, Ordering::Relaxed);
                writing.await // At most one piece later; then nothing is left, or it was done.
            }
        };
        let bytes = written.map_err(|_| Error::Task { path: self.out.clone() })??;
        if self.json {
            return report::print_json(&Written { out: &self.out, layers, bytes });
        }
        out::line(format_args!(
            "wrote layers {layers} to {} ({})",
            self.out.display(),
            format_bytes(bytes)
        ))
    }
}

/// Writes the layers beside `path`, then puts the file in its place. Returns its length.
fn extract(
    model: &str,
    layers: LayerRange,
    path: &Path,
    cancelled: &AtomicBool,
) -> Result<u64, Error> {
    let checkpoint = Checkpoint::open(model)?;
    let num_layers = checkpoint.config.layers.len();
    if layers.is_empty() || layers.end > num_layers {
        let expected = format!("layers within 0..{num_layers}");
        return Err(Error::argument("--layers", layers, expected));
    }
    if !checkpoint.location.container.is_in_hub_form() {
        let expected = "a model whose rows and norms are as the Hub has them, not a GGUF file";
        return Err(Error::argument("MODEL", model, expected));
    }
    let tensors = (layers.start..layers.end).flat_map(|layer| checkpoint.layer_tensors(layer));
    if let Some(encoding) =
        tensors.filter_map(|tensor| tensor.encoding).find(|encoding| encoding.is_only_said())
    {
        let expected = format!("a model whose matrices such a file can name, not {encoding}");
        return Err(Error::argument("MODEL", model, expected));
    }
    let failed = |source| match cancelled.load(Ordering::Relaxed) {
        true => Error::Interrupted,
        false => Error::File { action: "write", path: path.to_owned(), source },
    };
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let mut file = temporary(directory.unwrap_or(Path::new("."))).map_err(failed)?;
    let source = BlobSource::of_layers(&checkpoint, layers);
    let mut pieces = Cancellable { file: &mut file, cancelled };
    source.write_to(&mut pieces).map_err(|error| match error {
        cake_checkpoint::Error::Write(source) => failed(source),
        error => error.into(),
    })?;
    pieces.flush().map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    Ok(source.file_bytes())
}

/// A file that takes nothing more once it is cancelled.
struct Cancellable<'a> {
    file: &'a mut NamedTempFile,
    cancelled: &'a AtomicBool,
}

impl Cancellable<'_> {
    fn check(&self) -> std::io::Result<()> {
        match self.cancelled.load(Ordering::Relaxed) {
            true => Err(std::io::Error::other("cancelled")), // `Interrupted` would be tried again.
            false => Ok(()),
        }
    }
}

impl Write for Cancellable<'_> {
    fn write(&mut self, piece: &[u8]) -> std::io::Result<usize> {
        self.check()?;
        self.file.write(piece)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.check()?;
        self.file.flush()
    }
}

/// A file beside the one to be written, with the permissions that any new file gets.
fn temporary(directory: &Path) -> std::io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(std::fs::Permissions::from_mode(0o666)); // The umask takes its part.
    }
    builder.tempfile_in(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/demo-model");

    fn extract_to(directory: &Path, cancelled: bool) -> Result<u64, Error> {
        let path = directory.join("layers.safetensors");
        extract(MODEL, LayerRange::new(2, 4), &path, &AtomicBool::new(cancelled))
    }

    fn entries(directory: &Path) -> usize {
        std::fs::read_dir(directory).expect("it is there").count()
    }

    #[test]
    fn a_cancelled_file_is_not_left_behind() {
        let home = tempfile::tempdir().expect("a temporary folder");
        let error = extract_to(home.path(), true).expect_err("cancelled");
        assert!(matches!(error, Error::Interrupted), "{error}");
        assert_eq!(entries(home.path()), 0);
    }

    #[test]
    fn a_whole_file_is_all_that_is_left() {
        let home = tempfile::tempdir().expect("a temporary folder");
        let bytes = extract_to(home.path(), false).expect("written");
        let file = home.path().join("layers.safetensors");
        assert_eq!(file.metadata().expect("written").len(), bytes);
        assert_eq!(entries(home.path()), 1);
    }
}
