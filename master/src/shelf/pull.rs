//! A model of the Hub's becomes one at hand.

use cake_checkpoint::hub_caches;
use cake_hub::{Choice, Error, Hub, Observer, Options, Pulled, Wanted};

/// How many files or parts of files are fetched at once, unless told otherwise.
pub const CONNECTIONS: usize = 8;

/// Fetches a model into the Hub's cache; what is there already is not fetched again. Blocks.
///
/// # Errors
/// As [`cake_hub::plan()`] and [`cake_hub::pull()`]; [`Error::Stopped`] if the observer said so.
pub fn pull(wanted: &Wanted, observer: &dyn Observer) -> Result<Pulled, Error> {
    let cache = hub_caches().into_iter().next().ok_or(Error::NoCache)?;
    let hub = Hub::new(Options::from_environment())?;
    let plan = cake_hub::plan(&hub, wanted, &Choice::default(), &cache, observer)?;
    cake_hub::pull(&hub, &plan, CONNECTIONS, observer)
}
