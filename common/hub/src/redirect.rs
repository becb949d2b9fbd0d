//! Following answers that lead elsewhere.

use ureq::http::Uri;

use crate::error::Error;
use crate::url::{follow, same_origin, shown};

/// Most answers in a row that lead elsewhere.
const MAX_HOPS: usize = 8;

/// A way through answers that lead elsewhere.
pub(crate) struct Hops {
    uri: Uri,
    left: usize,
}

impl Hops {
    pub(crate) fn from(uri: Uri) -> Hops {
        Hops { uri, left: MAX_HOPS }
    }

    /// Where the way is now.
    pub(crate) fn uri(&self) -> &Uri {
        &self.uri
    }

    pub(crate) fn into_uri(self) -> Uri {
        self.uri
    }

    /// Goes on to `location`.
    ///
    /// # Errors
    /// [`Error::Redirect`] if nobody should.
    pub(crate) fn follow(&mut self, location: Option<&str>) -> Result<(), Error> {
        let location = location.unwrap_or_default();
        let refused = |reason| {
            let to = location.split('?').next().unwrap_or_default().to_owned();
            Error::Redirect { url: shown(&self.uri), location: to, reason }
        };
        let left = self.left.checked_sub(1).ok_or_else(|| refused("that goes in circles"))?;
        let uri = follow(&self.uri, location).map_err(refused)?;
        *self = Hops { uri, left };
        Ok(())
    }
}

/// Whether an answer at `from` leads to another host.
pub(crate) fn leads_elsewhere(from: &Uri, location: Option<&str>) -> bool {
    let to = location.and_then(|location| follow(from, location).ok());
    !to.is_some_and(|to| same_origin(from, &to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn circles_have_an_end() {
        let mut hops = Hops::from("http://a.example/x".parse().unwrap());
        for _ in 0..MAX_HOPS {
            hops.follow(Some("/x")).unwrap();
        }
        let error = hops.follow(Some("/x?secret")).unwrap_err().to_string();
        assert_eq!(error, "http://a.example/x leads to \"/x\": that goes in circles");
        assert!(hops.follow(None).is_err());
    }

    #[test]
    fn another_host_is_told_from_another_path() {
        let hub: Uri = "https://a.example/x".parse().unwrap();
        assert!(!leads_elsewhere(&hub, Some("/y")));
        assert!(leads_elsewhere(&hub, Some("https://b.example/y")));
        assert!(leads_elsewhere(&hub, None));
    }
}
