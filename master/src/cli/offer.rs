//! What happens where a command is given a model of the Hub's that is not here: the person is asked whether to pull it.
use cake_checkpoint::units::format_bytes;
use cake_checkpoint::{LocateError, locate};
use cake_hub::{Choice, Wanted};
use tokio::task::block_in_place;
use tracing::info;

use super::ctrl_c::CtrlC;
use super::pulling::Pulling;
use super::{Error, ask};
use crate::shelf::CONNECTIONS;

/// Set where the Hub must not be asked, as its own tools have it.
const OFFLINE: &str = "HF_HUB_OFFLINE";

/// Offers to pull `model` if it is not here, is one of the Hub's, and somebody can be asked. Whatever becomes of that,
/// the command then looks for the model itself, and says what it finds.
///
/// # Errors
/// [`Error`] if it shall be pulled and cannot.
pub(super) async fn offer(model: &str, ctrl_c: &CtrlC) -> Result<(), Error> {
    let is_offline =
        std::env::var_os(OFFLINE).is_some_and(|value| !value.is_empty() && value != "0");
    let Some(wanted) = absent(model).filter(|_| !is_offline && ask::somebody()) else {
        return Ok(());
    };
    let plan = Pulling::plan(wanted, Choice::default(), &mut ctrl_c.take_over()).await;
    let pulling = match plan {
        Ok(pulling) => pulling,
        Err(Error::Interrupted) => return Err(Error::Interrupted),
        Err(error) => {
            // It was perhaps never meant to be one of the Hub's.
            info!(model, %error, "not offered to be pulled");
            return Ok(());
        }
    };
    let plan = pulling.what();
    let (files, missing) = (plan.files(), format_bytes(plan.missing_bytes()));
    if !ask::yes(format!("{model} is not here: pull it now ({files} files, {missing})?")).await {
        return Ok(());
    }
    pulling.run(CONNECTIONS, true, &mut ctrl_c.take_over()).await.map(drop)
}

/// The model, if it may be one of the Hub's and is not here.
fn absent(model: &str) -> Option<Wanted> {
    let wanted = model.parse().ok()?;
    match block_in_place(|| locate(model)) {
        Err(LocateError::NotFound { is_of_hub: true, .. }) => Some(wanted),
        // Begun, and not finished.
        Err(LocateError::NoSnapshot { .. }) => Some(wanted),
        _ => None,
    }
}
