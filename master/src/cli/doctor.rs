//! `cake-master doctor`: what keeps a cluster from working, and what to do about it, line by line.
use std::time::{SystemTime, UNIX_EPOCH};

use cake_checkpoint::units::{format_bytes, format_rate};
use cake_identity::lines;
use cake_proto::{VERSION, limits, wire};
use serde::Serialize;

use super::args::ClusterArgs;
use super::prepare::master_name;
use super::{Error, out, report};
use crate::cluster::{self, Member, look, within};
use crate::membership::Membership;

/// Less free disk than this is worth a warning.
const LITTLE_DISK: u64 = 1 << 30;
/// Clocks further apart than this confuse logs, and certificates later (milliseconds).
const CLOCK_SKEW_MS: u64 = 5_000;

/// Arguments of `doctor`.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

/// One check.
#[derive(Debug, Serialize)]
struct Check {
    /// NAME@ADDRESS, since two workers may have one name; the address alone of one that did not answer.
    worker: String,
    check: &'static str,
    ok: bool,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

impl Args {
    /// Checks everything, prints a line for each, fails if one failed.
    pub(super) async fn run(self) -> Result<(), Error> {
        let (cluster, _door) = self.cluster.whereabouts().await?;
        let (membership, addresses) = (&cluster.membership, cluster.addresses());
        if addresses.is_empty() {
            return Err(Error::argument("--worker", "missing", "at least one worker to examine"));
        }
        let mut checks = Vec::new();
        let mut members = Vec::new();
        for address in &addresses {
            if let Some(member) = examine(membership, address, &mut checks).await {
                members.push(member);
            }
        }
        for from in &members {
            for to in members.iter().filter(|to| to.address != from.address) {
                checks.push(peer(from, to).await);
            }
        }
        let problems = checks.iter().filter(|check| !check.ok).count();
        if self.json {
            report::print_json(&checks)?;
        } else {
            let width = checks.iter().map(|check| check.worker.len()).max().unwrap_or(0);
            checks.iter().try_for_each(|check| out::line(check.text(width)))?;
        }
        match problems {
            0 => Ok(()),
            problems => Err(Error::Unwell { problems, checks: checks.len() }),
        }
    }
}

impl Check {
    fn good(worker: &str, check: &'static str, detail: String) -> Self {
        Self { worker: worker.to_owned(), check, ok: true, detail, fix: None }
    }

    fn bad(worker: &str, check: &'static str, detail: String, fix: &str) -> Self {
        Self { worker: worker.to_owned(), check, ok: false, detail, fix: Some(fix.to_owned()) }
    }

    /// A line for people, the worker in a column of `width`.
    fn text(&self, width: usize) -> String {
        let mark = if self.ok { "ok  " } else { "FAIL" };
        let fix = self.fix.as_ref().map_or(String::new(), |fix| format!(" -> {fix}"));
        format!("{mark} {:<width$} {:<8} {}{fix}", self.worker, self.check, self.detail)
    }
}

/// Checks one worker; returns it if the others can be asked whether they reach it.
async fn examine(
    membership: &Membership,
    address: &str,
    checks: &mut Vec<Check>,
) -> Option<Member> {
    let offer = match look(membership.security(), address).await {
        Ok((_, offer)) => offer,
        Err(error @ cluster::Error::Protocol { .. }) => {
            let fix = "install the same version on both";
            checks.push(Check::bad(address, "version", error.to_string(), fix));
            return None;
        }
        Err(error) => {
            let fix = "start it there with `cake-worker --listen 0.0.0.0:7117` and what `cake-master token` \
                       prints, and let the firewall pass that port; or with --no-listen instead of --listen";
            checks.push(Check::bad(address, "reach", error.to_string(), fix));
            return None;
        }
    };
    let label = label(&offer.name, address);
    let name = label.as_str();
    checks.push(Check::good(name, "reach", offer.system.clone()));
    checks.push(if offer.version == VERSION {
        Check::good(name, "version", VERSION.to_owned())
    } else {
        let detail = format!("{} there, {VERSION} here", offer.version);
        Check::bad(name, "version", detail, "install the same version on both")
    });
    checks.push(Check::good(
        name,
        "memory",
        format!(
            "offers {}, {} threads, arithmetic {}",
            format_bytes(offer.budget_bytes),
            offer.threads,
            offer.arithmetic.as_deref().unwrap_or("unknown"),
        ),
    ));
    let disk = format!("{} free", format_bytes(offer.free_disk_bytes));
    checks.push(if offer.free_disk_bytes >= LITTLE_DISK {
        Check::good(name, "disk", disk)
    } else {
        let fix = "stop it there, then `cake-worker store prune --keep SIZE`, or give --store on \
                   another disk";
        Check::bad(name, "disk", disk, fix)
    });
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
    let skew = now.abs_diff(offer.clock_ms);
    checks.push(if skew <= CLOCK_SKEW_MS {
        Check::good(name, "clock", format!("{skew} ms apart"))
    } else {
        let detail = format!("{} s apart", skew / 1000);
        Check::bad(name, "clock", detail, "set its clock, best by NTP")
    });
    match Member::hold(membership, address, &master_name()).await {
        Ok(member) => {
            checks.push(Check::good(name, "free", "no other master holds it".to_owned()));
            checks.push(link(&member).await);
            Some(member)
        }
        Err(error) => {
            let fix = "stop that master, or wait until it is done";
            checks.push(Check::bad(name, "free", error.to_string(), fix));
            None
        }
    }
}

/// How reports call a worker.
fn label(name: &str, address: &str) -> String {
    match lines::worker_at(address) {
        Some(worker_id) => format!("{name}@{worker_id}"),
        None => format!("{name}@{address}"),
    }
}

/// Round trip and throughput of the master's own link.
async fn link(member: &Member) -> Check {
    let mut client = member.client.clone();
    let label = label(member.name(), &member.address);
    let name = label.as_str();
    let started = std::time::Instant::now();
    let empty = client.probe_link(wire::ProbeLinkRequest::default());
    if let Err(error) = within(name, "answer a link probe", empty).await {
        return Check::bad(name, "link", error.to_string(), "check the network between you and it");
    }
    let trip = started.elapsed();
    let payload = vec![0; limits::FRAME_BYTES].into();
    let started = std::time::Instant::now();
    let full = client.probe_link(wire::ProbeLinkRequest { payload, reply_bytes: 0 });
    match within(name, "answer a link probe", full).await {
        Ok(_) => {
            let rate = limits::FRAME_BYTES as f64 / started.elapsed().as_secs_f64();
            let detail = format!("{:.2} ms, {}", trip.as_secs_f64() * 1e3, format_rate(rate));
            Check::good(name, "link", detail)
        }
        Err(error) => {
            Check::bad(name, "link", error.to_string(), "check the network between you and it")
        }
    }
}

/// Whether `from` can open a connection to `to`, and finds the same worker there.
async fn peer(from: &Member, to: &Member) -> Check {
    let mut client = from.client.clone();
    let (name, other) = (label(from.name(), &from.address), label(to.name(), &to.address));
    let Some(address) = to.address_for_others().map(str::to_owned) else {
        let detail =
            format!("reaches {other} through the master, to which that connects by itself");
        return Check::good(&name, "peer", detail);
    };
    let request = wire::ProbePeerRequest { address };
    let fix = "hidden states take a detour over the master until these two can connect: \
               check the firewall between them";
    let detail = match within(&name, "try to reach another", client.probe_peer(request)).await {
        Ok(reply) if reply.reachable && reply.worker_id == to.offer.worker_id => {
            return Check::good(&name, "peer", format!("reaches {other}"));
        }
        Ok(reply) if reply.reachable => format!("finds another worker at {}", to.address),
        Ok(reply) => format!("does not reach {other}: {}", reply.detail),
        Err(error) => error.to_string(),
    };
    Check::bad(&name, "peer", detail, fix)
}
