//! What people are told of a plan and of its push, before and after.
use super::out::{self, Tell};
use super::{Error, report};
use crate::deployment::Prepared;
use crate::deployment::facts::{Note, Outlook, PushReport};

/// Where `run` and `chat` tell of plan and push: nowhere if nobody asked or no worker takes part.
pub(super) fn tell_of(prepared: &Prepared, json: bool) -> Tell {
    if json || prepared.remotes().is_empty() { Tell::Nobody } else { Tell::Notes }
}

/// Tells, once, what people should know of whom the plan is made for.
pub(super) fn notes(prepared: &Prepared) {
    for note in prepared.take_notes() {
        match note {
            Note::Without(missing) => out::note(format_args!("note: going on without {missing}")),
            Note::Alone { has_authority } => {
                let more = match has_authority {
                    true => "`cake-master token` lets a worker in",
                    false => "`cake-master init` makes a cluster",
                };
                out::note(format_args!(
                    "note: there are no workers, so this machine computes everything: {more}, --alone is the same \
                     without this note"
                ));
            }
            Note::Hollow { file, count } => {
                let files = match count {
                    1 => format!("{} holds", file.display()),
                    count => format!("{} and {} more hold", file.display(), count - 1),
                };
                out::note(format_args!(
                    "note: {files} headers and no weights: this model can be planned, and cannot run"
                ));
            }
        }
    }
}

/// Tells the plan and what is (or `would` be) pushed: bytes, time and free disk of each worker.
pub(super) fn announce(prepared: &Prepared, tell: Tell, would: &str) -> Result<(), Error> {
    notes(prepared);
    outlook(&prepared.outlook(), tell, would)
}

/// The same without what people should know of whom the plan is made for.
pub(super) fn outlook(outlook: &Outlook<'_>, tell: Tell, would: &str) -> Result<(), Error> {
    tell.line(report::plan_text(outlook))?;
    let forecast = report::push_forecast(outlook);
    forecast.iter().try_for_each(|line| tell.line(format_args!("{would}{line}")))
}

/// Tells the plan, pushes what is missing, and tells how that went.
pub(super) async fn announce_and_push(
    prepared: &Prepared,
    tell: Tell,
) -> Result<PushReport, Error> {
    announce(prepared, tell, "")?;
    let pushed = prepared.push().await?;
    tell.line(report::push_summary(&pushed))?;
    Ok(pushed)
}
