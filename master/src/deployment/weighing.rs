//! A text that says where errors of a model's weights count, and what it is refused for: before anything is encoded.
use std::sync::Arc;

use cake_checkpoint::Checkpoint;
use tokio::task::spawn_blocking;

use super::{Error, WrongArgument};
use crate::calibration::{self, Reading, Sample};
use crate::state::State;
use crate::text::Text;

/// How often it is said how far a text is, until it is through all layers.
const TOLD: usize = 10;

/// What the model reads of a text; `is_hollow` says whether there are headers without weights.
///
/// # Errors
/// Nothing would come of that, or [`calibration::Error`].
pub(crate) fn reading(
    checkpoint: &Checkpoint,
    sample: &Sample,
    is_hollow: bool,
) -> Result<Arc<Reading>, Error> {
    let refused = |expected: &str| {
        Err(WrongArgument::new("--calibrate", sample.path.display(), expected.to_owned()).into())
    };
    if is_hollow {
        return refused("nothing, as the model's files have no weights");
    }
    if !checkpoint.has_plain_matrices() {
        return refused("nothing, as the model's weights are packed already and stay so");
    }
    let text = Text::of(&checkpoint.texts).map_err(calibration::Error::from)?;
    Ok(Arc::new(Reading::of(sample, &text)?))
}

/// Has weights be off where a text needs them least. Whoever waits no longer ends it. `tell` hears now and then how many layers
/// are done, and of how many.
///
/// # Errors
/// [`calibration::Error`].
pub(crate) async fn weigh(
    checkpoint: &Arc<Checkpoint>,
    reading: &Arc<Reading>,
    state: &State,
    tell: impl Fn(usize, usize) + Send + 'static,
) -> Result<(), Error> {
    let waited_for = Arc::new(());
    let waits = Arc::downgrade(&waited_for);
    let (of, reading) = (checkpoint.clone(), reading.clone());
    let directory = state.directory().to_owned();
    let work = move || {
        let layers = of.config.layers.len();
        let each = layers.div_ceil(TOLD).max(1);
        let mut next = 0; // Layers that cannot be parted are done together.
        calibration::calibrate(&of, &reading, &directory, &mut |done| {
            let is_waited_for = waits.strong_count() > 0;
            if is_waited_for && done >= next {
                tell(done, layers);
                next = done + each;
            }
            is_waited_for
        })
    };
    let importance = match spawn_blocking(work).await {
        Ok(importance) => importance?,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => return Err(calibration::Error::Unwanted.into()), // The program ends.
        },
    };
    drop(waited_for);
    checkpoint.weigh(Arc::new(importance));
    Ok(())
}
