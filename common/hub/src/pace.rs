//! How slow a connection may be before it is given up.

use std::io::{Error, ErrorKind, Read, Result};
use std::time::{Duration, Instant};

/// Bytes that have to come within [`PERIOD`]: 273 a second, less than a connection has of any line that is worth waiting for.
pub(crate) const LEAST_BYTES: u64 = 16 << 10;
/// Long enough that a line which stalls now and then is not taken for a slow one.
const PERIOD: Duration = Duration::from_secs(60);

/// A body that comes at some pace or fails. A server from which nothing comes is noticed where it is waited for, one that
/// sends a byte now and then is noticed here.
pub(crate) struct Paced<R> {
    body: R,
    /// Since when it is counted.
    since: Instant,
    /// What came since.
    bytes: u64,
}

impl<R: Read> Paced<R> {
    pub(crate) fn new(body: R) -> Paced<R> {
        Paced { body, since: Instant::now(), bytes: 0 }
    }

    fn arrived(&mut self, bytes: usize, now: Instant) -> Result<()> {
        self.bytes += bytes as u64;
        let passed = now.duration_since(self.since);
        if passed < PERIOD {
            return Ok(());
        }
        if self.bytes < LEAST_BYTES {
            let text = format!("only {} bytes came in {} seconds", self.bytes, passed.as_secs());
            return Err(Error::new(ErrorKind::TimedOut, text));
        }
        (self.since, self.bytes) = (now, 0);
        Ok(())
    }
}

impl<R: Read> Read for Paced<R> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let read = self.body.read(buffer)?;
        if read > 0 {
            self.arrived(read, Instant::now())?;
        }
        Ok(read) // The end may be late.
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_now_and_then_is_too_slow() {
        let mut body = Paced::new(&b""[..]);
        let start = body.since;
        for seconds in (0..60).step_by(20) {
            body.arrived(1, start + Duration::from_secs(seconds)).unwrap();
        }
        let error = body.arrived(1, start + PERIOD).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert_eq!(error.to_string(), "only 4 bytes came in 60 seconds");
    }

    #[test]
    fn a_slow_line_is_patiently_read() {
        let mut body = Paced::new(&b""[..]);
        let start = body.since;
        for seconds in (0..3600).step_by(29) {
            body.arrived(9_000, start + Duration::from_secs(seconds)).unwrap();
        }
    }

    #[test]
    fn what_comes_at_once_is_read_to_its_end() {
        let mut text = Vec::new();
        Paced::new(&b"abc"[..]).read_to_end(&mut text).unwrap();
        assert_eq!(text, b"abc");
    }
}
