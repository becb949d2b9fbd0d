//! The worker's end of a line.
use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{HERE, TAKE};
use crate::{Security, Stream};

/// How long a master may take to let a line in.
const OPEN: Duration = Duration::from_secs(10);

/// A line that this worker has opened.
pub struct Line(Stream);

/// Opens a line to the master whose door is at `address` (HOST:PORT).
///
/// # Errors
/// What the system or the TLS library said, or that it took too long.
pub async fn open(address: &str, security: &Security) -> io::Result<Line> {
    let open = security.open_line(address);
    let late = |_| io::Error::from(io::ErrorKind::TimedOut);
    Ok(Line(tokio::time::timeout(OPEN, open).await.map_err(late)??))
}

impl Line {
    /// Waits until the master calls; from then on the result is a connection that it opened.
    ///
    /// # Errors
    /// The line ended, or the master said something else.
    pub async fn called(self) -> io::Result<Stream> {
        let Self(mut stream) = self;
        match stream.read_u8().await? {
            TAKE => {
                stream.write_u8(HERE).await?;
                stream.flush().await?;
                Ok(stream)
            }
            other => {
                let said = format!("the master said {other} on a line that waits, expected {TAKE}");
                Err(io::Error::new(io::ErrorKind::InvalidData, said))
            }
        }
    }
}
