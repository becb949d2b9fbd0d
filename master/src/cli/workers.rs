//! `cake-master workers`: who joined, who of them is there, and who is shut out.
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cake_checkpoint::units::format_bytes;
use cake_identity::{WorkerEntry, lines};
use clap::Subcommand;

use super::{Error, out, report};
use crate::cluster::ago_text;
use crate::deployment::master_name;
use crate::membership::{self, Membership};
use crate::roll::{self, Known};
use crate::sightings::Sighting;

/// Arguments of `workers`.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the workers that joined: whether each is there, when it was last seen, what it offers.
    #[command(after_help = super::examples::WORKERS_LIST)]
    List {
        /// Print JSON.
        #[arg(long, help_heading = "Output")]
        json: bool,
    },
    /// Call a worker otherwise, whatever it calls itself. Plans use the name from when it is held the next time.
    #[command(after_help = super::examples::WORKERS_RENAME)]
    Rename {
        /// Its name, its id, or the beginning of its id.
        name: String,
        /// What it is to be called: letters, digits, `-`, `_` and `.`.
        new: String,
    },
    /// Shut a worker out: its connections end within seconds, and it cannot make new ones.
    #[command(after_help = super::examples::WORKERS_REVOKE)]
    Revoke {
        /// Its name, its id, or the beginning of its id.
        name: String,
    },
    /// Take a worker off the list that will not come back. It is shut out; to come back it joins with a new token.
    #[command(after_help = super::examples::WORKERS_FORGET)]
    Forget {
        /// Its name, its id, or the beginning of its id.
        name: String,
    },
}

impl Args {
    /// Whether it was asked to print JSON.
    pub(super) fn json(&self) -> bool {
        matches!(self.action, Action::List { json: true })
    }

    /// Does it.
    pub(super) async fn run(self) -> Result<(), Error> {
        let membership = Membership::open()?;
        let authority = membership.authority().ok_or_else(Membership::missing)?;
        let failed = membership::Error::from;
        match self.action {
            Action::List { json } => {
                let workers = authority.book().read().map_err(failed)?.workers;
                let known = roll::call(&membership, workers, &master_name()).await;
                match json {
                    true => report::print_json(&known),
                    false => list(&known),
                }
            }
            Action::Rename { name, new } => {
                let renamed = authority.book().update(|book| book.rename(&name, &new));
                let WorkerEntry { name: called, worker_id, .. } = renamed.map_err(failed)??;
                out::line(format_args!("{name} ({worker_id}) is called {called}"))
            }
            Action::Revoke { name } => {
                let revoked = authority.book().update(|book| book.revoke(&name));
                let WorkerEntry { name, worker_id, .. } = revoked.map_err(failed)??;
                out::line(format_args!("{name} ({worker_id}) is shut out"))
            }
            Action::Forget { name } => {
                let forgotten = authority.book().update(|book| book.forget(&name));
                let WorkerEntry { name, worker_id, .. } = forgotten.map_err(failed)??;
                membership.forget_sighting(&worker_id).await;
                out::line(format_args!(
                    "{name} ({worker_id}) is forgotten; its certificate is shut out, a new token lets it join again"
                ))
            }
        }
    }
}

fn list(workers: &[Known]) -> Result<(), Error> {
    if workers.is_empty() {
        return out::line("nobody has joined yet: `cake-master token` lets a worker in");
    }
    let width = workers.iter().map(|worker| worker.entry.name.len()).max().unwrap_or(0).max(4);
    out::line(format_args!(
        "{:<width$}  {:<32}  {:<21}  {:<10}  {:<10}  {:<9}  {:<23}  {}",
        "name", "id", "address", "joined", "valid to", "memory", "last seen", "state"
    ))?;
    workers.iter().try_for_each(|worker| {
        let WorkerEntry { name, worker_id, address, .. } = &worker.entry;
        let address = match lines::worker_at(address) {
            Some(_) => "connects by itself",
            None => address,
        };
        let (joined, end) = (day(worker.entry.joined_seconds), day(worker.entry.expires_seconds));
        let memory = worker.memory_bytes.map_or("-".to_owned(), format_bytes);
        let state = state(worker);
        let seen = seen_text(worker);
        out::line(format_args!(
            "{name:<width$}  {worker_id:<32}  {address:<21}  {joined:<10}  {end:<10}  {memory:<9}  {seen:<23}  {state}"
        ))
    })
}

fn seen_text(worker: &Known) -> String {
    let ago = |seen_seconds| Sighting { seen_seconds, memory_bytes: None }.ago();
    match (worker.online, worker.seen_seconds) {
        (Some(true), _) => "now".to_owned(),
        (_, Some(seconds)) => ago_text(ago(seconds)),
        (_, None) => "not known".to_owned(),
    }
}

/// In a few words.
fn state(worker: &Known) -> String {
    match (worker.entry.revoked, worker.online, &worker.held_by) {
        (true, ..) => "shut out".to_owned(),
        (_, Some(true), Some(master)) => format!("online, at work for {master}"),
        (_, Some(true), None) => "online".to_owned(),
        (_, Some(false), _) => "offline".to_owned(),
        (_, None, _) => "member".to_owned(),
    }
}

/// A date, in UTC.
fn day(seconds: u64) -> String {
    let time: SystemTime = UNIX_EPOCH + Duration::from_secs(seconds.min(1 << 36));
    let mut text = humantime::format_rfc3339_seconds(time).to_string();
    text.truncate(10);
    text
}
