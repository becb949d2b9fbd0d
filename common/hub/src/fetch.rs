//! Bringing the bytes of a file: its parts by ranges, or all of it at once where a server knows no ranges.

use std::io::Read;
use std::sync::PoisonError;

use ureq::http::header::{CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE};
use ureq::http::{Response, StatusCode};
use ureq::{Body, BodyReader};

use crate::client::{Hub, Subject, header};
use crate::error::{Cause, Error};
use crate::item::{Item, POINTER};
use crate::listing::parsed;
use crate::names::Wanted;
use crate::pace::{LEAST_BYTES, Paced};
use crate::retry::{Tries, Trouble};

/// What is written to a file at once: what a process that is killed may have to fetch again, for each connection.
const WRITE_BYTES: usize = 256 << 10;
/// What of an answer tells what it is.
const TASTE_BYTES: u64 = 64;

/// Who brings bytes. Shared by all connections.
pub(crate) struct Fetch<'a> {
    pub(crate) hub: &'a Hub,
    pub(crate) wanted: &'a Wanted,
    /// Whether to stop.
    pub(crate) stop: &'a (dyn Fn() -> bool + Sync),
    /// Told how many bytes arrived.
    pub(crate) arrived: &'a (dyn Fn(u64) + Sync),
}

/// What came of asking for a range.
#[derive(PartialEq, Eq)]
enum Outcome {
    /// The range.
    Range,
    /// All of the file.
    Everything,
}

impl Fetch<'_> {
    /// Brings what is missing of a part; returns early if it is to stop.
    pub(crate) fn part(&self, item: &Item, part: usize) -> Result<(), Error> {
        let mut tries = Tries::many();
        while !(self.stop)() && !item.partial.is_complete(part) {
            let before = item.partial.missing(part).0;
            let outcome = {
                let _turn = item.turns.read().unwrap_or_else(PoisonError::into_inner);
                self.range(item, part)
            };
            // A few bytes each time are no progress: that would never end.
            if item.partial.missing(part).0 >= before + LEAST_BYTES {
                tries.progressed();
            }
            match outcome {
                Ok(Outcome::Range) => {}
                Ok(Outcome::Everything) => self.whole(item)?,
                Err(_) if (self.stop)() => {}
                Err(trouble) => tries.again(&item.url, trouble, self.stop)?,
            }
        }
        Ok(())
    }

    fn range(&self, item: &Item, part: usize) -> Result<Outcome, Trouble> {
        let (start, end) = item.partial.missing(part);
        // A file of one part is asked for as it is: then it does not matter what a server knows of ranges.
        let range = (start > 0 || end < item.remote.bytes).then_some((start, end));
        let response = self.answer(item, range)?;
        let is_part = response.status() == StatusCode::PARTIAL_CONTENT;
        if range.is_some() && !is_part {
            return Ok(Outcome::Everything);
        }
        let mut body = self.checked(item, response, start)?;
        self.stream(&mut body, end - start, &mut |bytes| {
            item.partial.append(part, bytes)?;
            Ok(bytes.len() as u64)
        })?;
        Ok(Outcome::Range)
    }

    /// Brings all of a file over one connection, from its start, as the server knows no ranges. Who had to wait for
    /// another to do so finds it done.
    fn whole(&self, item: &Item) -> Result<(), Error> {
        let _alone = item.turns.write().unwrap_or_else(PoisonError::into_inner);
        let mut tries = Tries::many();
        let bytes = item.remote.bytes;
        while !(self.stop)() && item.partial.there() < bytes {
            let before = item.partial.there();
            let outcome = self.answer(item, None).and_then(|response| {
                let mut body = self.checked(item, response, 0)?;
                let mut at = 0;
                self.stream(&mut body, bytes, &mut |piece| {
                    let filled = item.partial.fill(at, piece)?;
                    at += piece.len() as u64;
                    Ok(filled)
                })
            });
            if item.partial.there() >= before + LEAST_BYTES {
                tries.progressed();
            }
            match outcome {
                Ok(()) => {}
                Err(_) if (self.stop)() => {}
                Err(trouble) => tries.again(&item.url, trouble, self.stop)?,
            }
        }
        Ok(())
    }

    /// Asks where the hub led to the last time, or else the hub.
    fn answer(&self, item: &Item, range: Option<(u64, u64)>) -> Result<Response<Body>, Trouble> {
        let location = || item.location.lock().unwrap_or_else(PoisonError::into_inner);
        let known = location().clone();
        let uri = match known {
            Some(uri) => uri,
            None => parsed(&item.url)?,
        };
        let subject = Subject { wanted: self.wanted, file: Some(&item.remote.name) };
        match self.hub.get(&uri, range, subject) {
            Ok(answer) => {
                *location() = (!self.hub.is_own(&answer.uri)).then_some(answer.uri);
                Ok(answer.response)
            }
            Err(trouble) => {
                *location() = None; // What leads elsewhere is good for some time only.
                match trouble {
                    // There is no such range: then the file is shorter than it should be.
                    Trouble::Lasting(Error::Status { status: 416, .. }) => Err(self.taste(item)),
                    trouble => Err(trouble),
                }
            }
        }
    }

    /// The body of an answer with bytes of a file from `start` on, if it can be that.
    fn checked(
        &self,
        item: &Item,
        response: Response<Body>,
        start: u64,
    ) -> Result<Paced<BodyReader<'static>>, Trouble> {
        let (file, bytes) = (&item.remote.name, item.remote.bytes);
        let headers = response.headers();
        if is_page(file, header(headers, CONTENT_TYPE.as_str())) {
            return Err(Error::WebPage { file: file.clone() }.into());
        }
        let whole = match response.status() {
            StatusCode::PARTIAL_CONTENT => {
                let said = header(headers, CONTENT_RANGE.as_str()).and_then(content_range);
                let (found, whole) = said.unwrap_or((start, None));
                if found != start {
                    let file = file.clone();
                    return Err(Error::WrongRange { file, expected: start, found }.into());
                }
                whole
            }
            _ => header(headers, CONTENT_LENGTH.as_str()).and_then(|text| text.parse().ok()),
        };
        if whole.is_some_and(|whole: u64| whole != bytes) {
            return Err(self.taste(item));
        }
        Ok(Paced::new(response.into_body().into_reader()))
    }

    /// What is wrong with a file that does not have the length it should have.
    fn taste(&self, item: &Item) -> Trouble {
        let (file, expected) = (item.remote.name.clone(), item.remote.bytes);
        let subject = Subject { wanted: self.wanted, file: Some(&file) };
        let answer = parsed(&item.url)
            .map_err(Trouble::from)
            .and_then(|uri| self.hub.get(&uri, None, subject));
        let response = match answer {
            Ok(answer) => answer.response,
            Err(trouble) => return trouble,
        };
        let said = header(response.headers(), CONTENT_LENGTH.as_str());
        let found = said.and_then(|text| text.parse().ok()).unwrap_or(0);
        let mut text = Vec::new();
        let body = Paced::new(response.into_body().into_reader());
        body.take(TASTE_BYTES).read_to_end(&mut text).ok();
        let text = text.trim_ascii_start().to_ascii_lowercase();
        Trouble::Lasting(if text.starts_with(POINTER) {
            Error::LfsPointer { file }
        } else if text.starts_with(b"<!doctype html") || text.starts_with(b"<html") {
            Error::WebPage { file }
        } else {
            Error::Size { file, expected, found }
        })
    }

    /// Hands on `wanted` bytes of a body in pieces. What came before the connection broke off is handed on, too.
    fn stream(
        &self,
        body: &mut impl Read,
        wanted: u64,
        write: &mut dyn FnMut(&[u8]) -> Result<u64, Error>,
    ) -> Result<(), Trouble> {
        let mut buffer = vec![0; WRITE_BYTES];
        let mut left = wanted;
        loop {
            let mut filled = 0;
            // Read to its end, so that the connection can be used again.
            let end = loop {
                match body.read(&mut buffer[filled..]) {
                    Ok(0) => break Some(Ok(())),
                    Ok(read) => filled += read,
                    Err(cause) => break Some(Err(cause)),
                }
                if filled == buffer.len() || (self.stop)() {
                    break None;
                }
            };
            let piece = &buffer[..filled.min(usize::try_from(left).unwrap_or(usize::MAX))];
            (self.arrived)(write(piece)?);
            left -= piece.len() as u64;
            let broke = |cause| Err(Trouble::Passing { cause, after: None });
            match end {
                Some(Ok(())) if left > 0 => return broke(Cause::CutShort { missing: left }),
                Some(Ok(())) => return Ok(()),
                Some(Err(_)) if left == 0 => return Ok(()),
                Some(Err(cause)) => return broke(Cause::Read(cause)),
                None if left == 0 && filled > piece.len() => return Ok(()), // More than was asked for.
                None if (self.stop)() => return Ok(()),
                None => {}
            }
        }
    }
}

/// Whether a server sends a page for people where a file was asked for.
fn is_page(file: &str, content_type: Option<&str>) -> bool {
    let html = content_type.is_some_and(|text| text.trim_start().starts_with("text/html"));
    html && !(file.ends_with(".html") || file.ends_with(".htm"))
}

/// First byte, and length of the whole where it is said, of `bytes 5-9/100`.
fn content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, whole) = text.strip_prefix("bytes ")?.split_once('/')?;
    Some((range.split_once('-')?.0.trim().parse().ok()?, whole.trim().parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_says_where_it_begins() {
        assert_eq!(content_range("bytes 5-9/100"), Some((5, Some(100))));
        assert_eq!(content_range("bytes 5-9/*"), Some((5, None)));
        for text in ["", "bytes", "bytes */100", "items 5-9/100", "bytes -9/100"] {
            assert_eq!(content_range(text), None, "{text}");
        }
    }

    #[test]
    fn a_page_is_one_where_none_was_asked_for() {
        assert!(is_page("config.json", Some("text/html; charset=utf-8")));
        assert!(!is_page("readme.html", Some("text/html")));
        assert!(!is_page("config.json", Some("text/plain")) && !is_page("config.json", None));
    }
}
