//! `cake-master token`: what lets a worker join.
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cake_identity::Authority;
use qrcode::QrCode;
use qrcode::render::unicode::Dense1x2;
use tokio::task::block_in_place;

use super::told::Words;
use super::{Error, out, report};
use crate::deployment::door;
use crate::invitation::{Invitation, MOST_USES, TTL, open_door};
use crate::membership::{self, Membership};

/// How often it is looked whether somebody has joined.
const LOOK: Duration = Duration::from_millis(200);
/// How long the last worker may take to be told that it has joined.
const ANSWER: Duration = Duration::from_secs(5);

/// Arguments of `token`.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Token")]
pub(super) struct Args {
    /// How long workers may join with it (such as 1h), by this machine's clock.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, default_value = "1h")]
    ttl: Duration,
    /// How many workers may join with it.
    #[arg(long, value_name = "N", default_value_t = 1)]
    uses: u32,
    /// Wait until so many have joined, with the door open: that of a running `serve` if there is one.
    #[arg(long, help_heading = "Door")]
    wait: bool,
    /// Address of that door (HOST:PORT). Default: 0.0.0.0:7116
    #[arg(long, value_name = "ADDR", requires = "wait", help_heading = "Door")]
    join: Option<String>,
    /// Do not let that door be found on the network by multicast DNS.
    #[arg(long, requires = "wait", help_heading = "Door")]
    no_discovery: bool,
    /// Do not draw the QR code.
    #[arg(long, help_heading = "Output")]
    no_qr: bool,
    /// Print JSON.
    #[arg(long, help_heading = "Output")]
    pub(super) json: bool,
}

impl Args {
    /// Prints a token; with `--wait` also lets workers in.
    pub(super) async fn run(self) -> Result<(), Error> {
        if !(TTL.0..=TTL.1).contains(&self.ttl) {
            let found = humantime::format_duration(self.ttl);
            return Err(Error::argument("--ttl", found, "1s to 30d"));
        }
        if !(1..=MOST_USES).contains(&self.uses) {
            return Err(Error::argument("--uses", self.uses, format!("1 to {MOST_USES}")));
        }
        let membership = Membership::open()?;
        let authority = membership.authority().ok_or_else(Membership::missing)?.clone();
        let open = block_in_place(|| open_door(&membership));
        // One that is open lets them in as well.
        let opens = self.wait && (self.join.is_some() || open.is_none());
        let door = match opens {
            true => {
                let told = Arc::new(Words::loud());
                door::open(&membership, self.join.as_deref(), !self.no_discovery, told).await?
            }
            false => None,
        };
        let members = joined(&authority)?;
        let at = door.as_ref().map(|door| door.address).or(open);
        let own = door::own_address();
        let made = block_in_place(|| Invitation::make(&authority, (self.ttl, self.uses), at, own))?;
        match self.json {
            true => report::print_json(&made)?,
            false => self.print(&made)?,
        }
        if !made.door_open && !self.wait {
            out::note(
                "note: no door is open yet: it is while `cake-master serve` runs, or with `cake-master token --wait`",
            );
        }
        match self.wait {
            true => self.wait(&authority, members).await,
            false => Ok(()),
        }
    }

    fn print(&self, made: &Invitation) -> Result<(), Error> {
        let token = &made.token;
        out::line(token)?;
        // A program that reads this wants the token.
        if !std::io::stdout().is_terminal() {
            return Ok(());
        }
        if !self.no_qr
            && let Ok(code) = QrCode::new(token)
        {
            out::line(code.render::<Dense1x2>().build())?;
        }
        let (ttl, uses) = (humantime::format_duration(self.ttl), self.uses);
        out::line(format_args!(
            "for {uses} worker{}, within {ttl}; on the device:",
            if uses == 1 { "" } else { "s" }
        ))?;
        out::line(format_args!("  {}", made.command()))
    }

    /// Returns once so many more than `members` have joined, or the token has ended.
    async fn wait(&self, authority: &Arc<Authority>, members: usize) -> Result<(), Error> {
        let end = Instant::now() + self.ttl;
        let wanted = members + self.uses as usize;
        while joined(authority)? < wanted {
            if Instant::now() >= end {
                return Err(Error::NobodyJoined { missing: wanted - joined(authority)? });
            }
            tokio::time::sleep(LOOK).await;
        }
        // The door closes with this command. Whoever does not take its answer keeps nobody.
        tokio::time::timeout(ANSWER, authority.has_told()).await.ok();
        Ok(())
    }
}

/// How many ever joined.
fn joined(authority: &Authority) -> Result<usize, Error> {
    Ok(authority.book().read().map_err(membership::Error::from)?.workers.len())
}
