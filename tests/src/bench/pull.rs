//! A model from a hub: how much faster several connections are than one, and what dropped connections cost.
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use cake_checkpoint::units::{format_bytes, format_rate};
use cake_tests::{Hub, Manners, Master, Running};

use super::lab::Lab;
use super::table::{Measured, Table};

pub(crate) const RATE_BAR: &str = "≥ 4";
pub(crate) const DROPS_BAR: &str = "≤ 1.01";

const REPO: &str = "org/large";
/// What the hub gives each connection.
const BYTES_PER_SECOND: u64 = 50_000_000;
const DROPS: u64 = 10;
/// Bytes of the model, unless `CAKE_PULL_MIB` says otherwise.
const MIB: u64 = 2048;
const DEADLINE: std::time::Duration = std::time::Duration::from_secs(600);

/// The same pull over one connection and over as many as there are without being told.
pub(crate) fn rate(lab: &Lab, table: &mut Table) -> Result<()> {
    let hub = hub(lab)?;
    hub.behave(Manners { rate: Some(BYTES_PER_SECOND), ..Manners::default() });
    let one = pull(lab, &hub, &["--connections", "1"])?;
    let all = pull(lab, &hub, &[])?;
    let rate = |seconds: f64| format_rate(hub.bytes() as f64 / seconds);
    let made_of = format!("{} at {} and {}", format_bytes(hub.bytes()), rate(all), rate(one));
    let ratio = one / all;
    table.judged(
        "pull: rate of 8 connections ÷ that of one, 50 MB/s each, digests checked",
        Measured::ratio(ratio, &made_of),
        RATE_BAR,
        ratio >= 4.0,
    );
    Ok(())
}

/// Connections that are dropped at random.
pub(crate) fn drops(lab: &Lab, table: &mut Table) -> Result<()> {
    let hub = hub(lab)?;
    // A fixed sequence that looks like chance: the same drops each time.
    let place =
        |i: u64| (i.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1) >> 11) % hub.bytes();
    let mut drops: Vec<u64> = (1..=DROPS).map(place).collect();
    drops.sort_unstable();
    hub.behave(Manners { rate: Some(BYTES_PER_SECOND), drops, ..Manners::default() });
    pull(lab, &hub, &[])?;
    let (served, bytes) = (hub.served(), hub.bytes());
    table.at_most(
        "pull: bytes served ÷ bytes of the model, 10 connections dropped",
        Measured::ratio(served as f64 / bytes as f64, &format!("{served} of {bytes} B")),
        1.01,
        DROPS_BAR,
    );
    Ok(())
}

fn hub(lab: &Lab) -> Result<Hub> {
    let said = std::env::var("CAKE_PULL_MIB").ok();
    let mib = said
        .map(|text| text.parse().context("CAKE_PULL_MIB is no number"))
        .transpose()?
        .unwrap_or(MIB);
    lab.need_disk(mib << 20)?;
    Ok(Hub::made(REPO, mib << 20))
}

/// Pulls into an empty cache. Returns how long that took, from outside.
fn pull(lab: &Lab, hub: &Hub, more: &[&str]) -> Result<f64> {
    lab.prepare(&[])?;
    let (master, home) = (Master::alone(), lab.scratch()?);
    let mut command = master.bare(&[&["pull", REPO, "--json"], more].concat());
    command.env("HF_ENDPOINT", &hub.url).env("HF_HOME", home.path());
    let started = Instant::now();
    let finished = Running::start(&mut command).finish(DEADLINE);
    let seconds = started.elapsed().as_secs_f64();
    ensure!(finished.status.success(), "{}", finished.stderr.trim());
    Ok(seconds)
}
