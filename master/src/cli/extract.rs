//! `cake-master extract MODEL --layers 4..8 --out F`: some layers as a file of their own.
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use cake_checkpoint::units::format_bytes;
use tempfile::NamedTempFile;

use cake_checkpoint::{BlobSource, Checkpoint, LayerRange};

use super::Error;

/// Arguments of `extract`.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// A checkpoint directory, a .safetensors file, or org/name in the local Hub cache.
    model: String,
    /// Which layers, counted from 0, the end not included (such as 4..8).
    #[arg(long, value_name = "A..B")]
    layers: LayerRange,
    /// The safetensors file to write.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

impl Args {
    /// Writes the file, streaming; a file that could not be completed is not left behind.
    pub(super) fn run(self) -> Result<(), Error> {
        let checkpoint = Checkpoint::open(&self.model)?;
        let layers = checkpoint.config.num_layers;
        if self.layers.is_empty() || self.layers.end > layers {
            let expected = format!("layers within 0..{layers}");
            return Err(Error::argument("--layers", self.layers, expected));
        }
        let failed = |source| Error::File { action: "write", path: self.out.clone(), source };
        let directory = self.out.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = directory.unwrap_or(Path::new("."));
        let file = temporary(directory).map_err(failed)?;
        let mut writer = BufWriter::with_capacity(1 << 20, file);
        let source = BlobSource::of_layers(&checkpoint, self.layers);
        source.write_to(&mut writer)?;
        writer.flush().map_err(failed)?;
        let file = writer.into_inner().map_err(|error| failed(error.into_error()))?;
        file.persist(&self.out).map_err(|error| failed(error.error))?;
        println!(
            "wrote layers {} to {} ({})",
            self.layers,
            self.out.display(),
            format_bytes(source.file_bytes())
        );
        Ok(())
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
