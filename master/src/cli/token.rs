//! `cake-master token`: what lets a worker join.
use std::io::IsTerminal;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cake_identity::Authority;
use qrcode::QrCode;
use qrcode::render::unicode::Dense1x2;
use serde::Serialize;
use tokio::task::block_in_place;

use super::told::Words;
use super::{Error, out, report};
use crate::deployment::door;
use crate::membership::{self, DOOR_PORT, Membership};

/// How often it is looked whether somebody has joined.
const LOOK: Duration = Duration::from_millis(200);
/// How long the last worker may take to be told that it has joined.
const ANSWER: Duration = Duration::from_secs(5);
/// Longest time a token may be good for.
const MOST_TTL: Duration = Duration::from_secs(30 * 24 * 3600);
/// Most workers that may join with one token.
const MOST_USES: u32 = 10_000;

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

/// What programs are told.
#[derive(Serialize)]
struct Issued<'a> {
    token: &'a str,
    ttl_seconds: u64,
    uses: u32,
    /// Where workers join, as far as this machine knows.
    master: &'a str,
    /// Whether a door is open there now.
    door_open: bool,
}

impl Args {
    /// Prints a token; with `--wait` also lets workers in.
    pub(super) async fn run(self) -> Result<(), Error> {
        if !(Duration::from_secs(1)..=MOST_TTL).contains(&self.ttl) {
            let found = humantime::format_duration(self.ttl);
            return Err(Error::argument("--ttl", found, "1s to 30d"));
        }
        if !(1..=MOST_USES).contains(&self.uses) {
            return Err(Error::argument("--uses", self.uses, format!("1 to {MOST_USES}")));
        }
        let membership = Membership::open()?;
        let authority = membership.authority().ok_or_else(Membership::missing)?.clone();
        let open = block_in_place(|| membership.doors());
        // One that is open lets them in as well.
        let opens = self.wait && (self.join.is_some() || open.is_empty());
        let door = match opens {
            true => {
                let told = Arc::new(Words::loud());
                door::open(&membership, self.join.as_deref(), !self.no_discovery, told).await?
            }
            false => None,
        };
        let members = joined(&authority)?;
        let token = authority.issue_token(self.ttl, self.uses).map_err(membership::Error::from)?;
        let token = token.to_string();
        let door = door.map(|door| (door.address, Some(door)));
        let door = door.or_else(|| usual_first(open).map(|address| (address, None)));
        let master = place(door.as_ref().map(|(address, _)| *address), door::own_address());
        let door_open = door.is_some();
        if self.json {
            let (ttl_seconds, uses, master) = (self.ttl.as_secs(), self.uses, master.as_str());
            report::print_json(&Issued { token: &token, ttl_seconds, uses, master, door_open })?;
        } else {
            self.print(&token, &master)?;
        }
        if !door_open && !self.wait {
            out::note(
                "note: no door is open yet: it is while `cake-master serve` runs, or with `cake-master token --wait`",
            );
        }
        match self.wait {
            true => self.wait(&authority, members).await,
            false => Ok(()),
        }
    }

    fn print(&self, token: &str, master: &str) -> Result<(), Error> {
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
        out::line(format_args!(
            "  cake-worker --listen 0.0.0.0:7117 --master {master} --token {token}"
        ))
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

/// Of the doors that are open, the one that is found without being told, or else any.
fn usual_first(mut open: Vec<SocketAddr>) -> Option<SocketAddr> {
    open.sort_by_key(|address| (address.port() != DOOR_PORT, *address));
    open.into_iter().next()
}

/// What a worker is told of where to join: at the door that is open, or else at the usual one. A door on every
/// address of this machine is at its `own` one for others.
fn place(door: Option<SocketAddr>, own: Option<IpAddr>) -> String {
    let port = door.map_or(DOOR_PORT, |door| door.port());
    let listens = door.map(|door| door.ip()).filter(|ip| !ip.is_unspecified());
    let host = listens.or(own);
    host.map_or(format!("MASTER:{port}"), |host| SocketAddr::new(host, port).to_string())
}

/// How many ever joined.
fn joined(authority: &Authority) -> Result<usize, Error> {
    Ok(authority.book().read().map_err(membership::Error::from)?.workers.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_sent_to_the_door_that_is_open() {
        let address = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let own = Some("192.168.1.2".parse().expect("an address"));
        assert_eq!(place(None, own), "192.168.1.2:7116");
        assert_eq!(place(None, None), "MASTER:7116");
        assert_eq!(place(Some(address("0.0.0.0:7200")), own), "192.168.1.2:7200");
        assert_eq!(place(Some(address("127.0.0.1:9")), own), "127.0.0.1:9");
        let open = ["127.0.0.1:9", "0.0.0.0:7116"].map(address).to_vec();
        assert_eq!(usual_first(open), Some(address("0.0.0.0:7116")));
        assert_eq!(usual_first(Vec::new()), None);
    }
}
