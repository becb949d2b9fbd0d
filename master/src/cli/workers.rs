//! `cake-master workers`: who joined, and who is shut out.
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cake_identity::{WorkerEntry, lines};
use clap::Subcommand;

use super::{Error, out, report};
use crate::membership::{self, Membership};

/// Arguments of `workers`.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the workers that joined.
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Shut a worker out: its connections end within seconds, and it cannot make new ones.
    Revoke {
        /// Its name, or its id.
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
                match json {
                    true => report::print_json(&workers),
                    false => list(&workers),
                }
            }
            Action::Revoke { name } => {
                let revoked = authority.book().update(|book| book.revoke(&name));
                let WorkerEntry { name, worker_id, .. } = revoked.map_err(failed)??;
                out::line(format_args!("{name} ({worker_id}) is shut out"))
            }
        }
    }
}

fn list(workers: &[WorkerEntry]) -> Result<(), Error> {
    if workers.is_empty() {
        return out::line("nobody has joined yet: `cake-master token` lets a worker in");
    }
    let width = workers.iter().map(|worker| worker.name.len()).max().unwrap_or(0).max(4);
    out::line(format_args!(
        "{:<width$}  {:<32}  {:<21}  {:<10}  {:<10}  {}",
        "name", "id", "address", "joined", "valid to", "state"
    ))?;
    workers.iter().try_for_each(|worker| {
        let WorkerEntry { name, worker_id, address, revoked, .. } = worker;
        let address = match lines::worker_at(address) {
            Some(_) => "connects by itself",
            None => address,
        };
        let (joined, end) = (day(worker.joined_seconds), day(worker.expires_seconds));
        let state = if *revoked { "shut out" } else { "member" };
        out::line(format_args!(
            "{name:<width$}  {worker_id:<32}  {address:<21}  {joined:<10}  {end:<10}  {state}"
        ))
    })
}

/// A date, in UTC.
fn day(seconds: u64) -> String {
    let time: SystemTime = UNIX_EPOCH + Duration::from_secs(seconds.min(1 << 36));
    let mut text = humantime::format_rfc3339_seconds(time).to_string();
    text.truncate(10);
    text
}
