//! `cake-master token`: what lets a worker join.
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cake_identity::Authority;
use qrcode::QrCode;
use qrcode::render::unicode::Dense1x2;
use serde::Serialize;

use super::{Error, door, out, report};
use crate::membership::{self, DOOR_PORT, Membership};

/// How often it is looked whether somebody has joined.
const LOOK: Duration = Duration::from_millis(200);
/// Longest time a token may be good for.
const MOST_TTL: Duration = Duration::from_secs(30 * 24 * 3600);
/// Most workers that may join with one token.
const MOST_USES: u32 = 10_000;

/// Arguments of `token`.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// How long workers may join with it (such as 1h), by this machine's clock.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, default_value = "1h")]
    ttl: Duration,
    /// How many workers may join with it.
    #[arg(long, value_name = "N", default_value_t = 1)]
    uses: u32,
    /// Open the door and wait until so many have joined. A running `serve` has its door open anyway.
    #[arg(long)]
    wait: bool,
    /// Address of that door (HOST:PORT). Default: 0.0.0.0:7116
    #[arg(long, value_name = "ADDR", requires = "wait")]
    join: Option<String>,
    /// Do not let that door be found on the network by multicast DNS.
    #[arg(long, requires = "wait")]
    no_discovery: bool,
    /// Do not draw the QR code.
    #[arg(long)]
    no_qr: bool,
    /// Print JSON.
    #[arg(long)]
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
        let door = match self.wait {
            true => door::open(&membership, self.join.as_deref(), !self.no_discovery).await?,
            false => None,
        };
        let members = joined(&authority)?;
        let token = authority.issue_token(self.ttl, self.uses).map_err(membership::Error::from)?;
        let token = token.to_string();
        let port = door.as_ref().map_or(DOOR_PORT, |door| door.address.port());
        let listens = door.as_ref().map(|door| door.address.ip()).filter(|ip| !ip.is_unspecified());
        let host = listens.or_else(door::own_address);
        let master =
            host.map_or(format!("MASTER:{port}"), |host| SocketAddr::new(host, port).to_string());
        if self.json {
            let (ttl_seconds, uses) = (self.ttl.as_secs(), self.uses);
            report::print_json(&Issued { token: &token, ttl_seconds, uses, master: &master })?;
        } else {
            self.print(&token, &master)?;
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
        Ok(())
    }
}

/// How many ever joined.
fn joined(authority: &Authority) -> Result<usize, Error> {
    Ok(authority.book().read().map_err(membership::Error::from)?.workers.len())
}
