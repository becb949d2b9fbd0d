//! `cake-master doctor`: what keeps a cluster from working, and what to do about it, line by line.
use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cake_checkpoint::units::{format_bytes, format_rate};
use cake_identity::{WorkerEntry, lines};
use cake_proto::{VERSION, limits, wire};
use serde::Serialize;
use tokio::task::block_in_place;

use super::args::ClusterArgs;
use super::{Error, out, report};
use crate::cluster::{self, Member, Offer, OfferedDevice, Whereabouts, look, within};
use crate::deployment::master_name;
use crate::membership::Membership;
use crate::sightings::Sighting;
use crate::sign::{self, ServiceSign};
use crate::state::State;

/// How reports call the master's own machine.
const THIS: &str = "this machine";

/// Less free disk than this is worth a warning.
const LITTLE_DISK: u64 = 1 << 30;
/// Clocks further apart than this confuse logs, and certificates later (milliseconds).
const CLOCK_SKEW_MS: u64 = 5_000;

/// Arguments of `doctor`.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Output")]
pub(super) struct Args {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Print JSON.
    #[arg(long, help_heading = "Output")]
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

/// Who is examined.
struct Patient {
    /// What its owner calls it, if it has joined.
    name: Option<String>,
    worker_id: Option<String>,
    address: String,
    last_seen: Option<Duration>,
}

impl Args {
    /// Checks everything, prints a line for each, fails if one failed.
    pub(super) async fn run(self) -> Result<(), Error> {
        let (cluster, _door) = self.cluster.whereabouts().await?;
        let patients = patients(&cluster).await;
        let mut checks = Vec::new();
        if patients.is_empty() {
            if cluster.is_alone() {
                return Err(self.cluster.nobody("examine", &cluster));
            }
            checks.push(beginning(&cluster));
        }
        let own = block_in_place(Own::find);
        let mut members = Vec::new();
        for patient in &patients {
            if let Some(member) = examine(&cluster.membership, patient, &own, &mut checks).await {
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

/// Those that joined, with their names, or those at the addresses that were given.
async fn patients(cluster: &Whereabouts) -> Vec<Patient> {
    if !cluster.is_of_members() {
        let patient = |address| Patient { name: None, worker_id: None, address, last_seen: None };
        return cluster.addresses().into_iter().map(patient).collect();
    }
    let sightings = cluster.membership.sightings().await;
    let patient = |entry: WorkerEntry| Patient {
        last_seen: sightings.get(&entry.worker_id).map(Sighting::ago),
        name: Some(entry.name),
        worker_id: Some(entry.worker_id),
        address: entry.address,
    };
    cluster.membership.members().into_iter().map(patient).collect()
}

/// What to do where there is nobody to examine yet.
fn beginning(cluster: &Whereabouts) -> Check {
    match cluster.membership.authority() {
        None => Check::bad(
            THIS,
            "cluster",
            "this master has no cluster yet, and no --worker is given".to_owned(),
            "`cake-master init`, then `cake-master token --wait` lets a device join; or start `cake-worker` on \
             this machine and name it with --worker 127.0.0.1:7117, on others with --insecure on both sides",
        ),
        Some(_) => Check::bad(
            THIS,
            "cluster",
            "nobody has joined yet, and no --worker is given".to_owned(),
            "`cake-master token --wait`, and on the device the command that it shows",
        ),
    }
}

/// Services of this master that run beside this command, and what was measured for them.
struct Own {
    services: Vec<ServiceSign>,
    state: Option<State>,
}

impl Own {
    fn find() -> Self {
        let state = State::open().ok();
        let services = state.as_ref().map_or(Vec::new(), |state| sign::all(state.directory()));
        Self { services, state }
    }

    /// The service that holds a worker which says that it is held by `holder`.
    fn holder(&self, holder: Option<&str>) -> Option<&ServiceSign> {
        // Long names are cut by those who pass them on.
        let is_it =
            |service: &&ServiceSign| holder.is_some_and(|name| service.master.starts_with(name));
        self.services.iter().find(is_it)
    }

    /// The link to a worker as it was measured when its service planned.
    fn link(&self, offer: &Offer) -> String {
        let state = self.state.as_ref();
        let known = state.and_then(|state| state.link(&offer.worker_id, Some(&offer.instance)));
        match known {
            Some(known) => format!(
                "{:.2} ms, {}, as that `serve` measured it",
                known.rtt_seconds * 1e3,
                format_rate(known.bytes_per_second)
            ),
            None => "not measured by that `serve`, which assumed a usual one".to_owned(),
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

/// What computes on a worker, for people.
fn devices(devices: &[OfferedDevice]) -> String {
    let each = devices.iter().map(|OfferedDevice { name, budget_bytes, arithmetic, .. }| {
        let arithmetic = arithmetic.as_deref().unwrap_or("unknown");
        format!("{} on {name} (arithmetic {arithmetic})", format_bytes(*budget_bytes))
    });
    each.collect::<Vec<_>>().join(", ")
}

/// Checks one worker; returns it if the others can be asked whether they reach it.
async fn examine(
    membership: &Membership,
    patient: &Patient,
    own: &Own,
    checks: &mut Vec<Check>,
) -> Option<Member> {
    let address = patient.address.as_str();
    let called = patient.called();
    let offer = match look(membership.security(), address).await {
        Ok((_, offer)) => offer,
        Err(error @ (cluster::Error::Protocol { .. } | cluster::Error::Offer { .. })) => {
            let fix = "install the same version on both";
            checks.push(Check::bad(&called, "version", error.to_string(), fix));
            return None;
        }
        Err(error) => {
            checks.push(patient.unreachable(&error, own));
            return None;
        }
    };
    if let Some(expected) = &patient.worker_id
        && *expected != offer.worker_id
    {
        let detail = format!("{} is at {address} now", offer.name);
        checks.push(Check::bad(&called, "reach", detail, &patient.start()));
        return None;
    }
    let offers = [(offer.worker_id.clone(), Some(offer.budget_bytes()))];
    if membership.authority().is_some() {
        membership.seen(offers.to_vec()).await;
    }
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
        format!("offers {}, {} threads", devices(&offer.devices), offer.threads),
    ));
    let measured = offer.prefetch.as_ref().map_or_else(
        || "what to prefetch is measured with the first weights".to_owned(),
        |what| format!("prefetches {what}, as measured"),
    );
    checks.push(Check::good(name, "processor", format!("{}: {measured}", offer.processor)));
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
    if let Some(service) = own.holder(offer.held_by.as_deref()) {
        let detail = format!("at work for your own `serve` at {}", service.url);
        checks.push(Check::good(name, "free", detail));
        checks.push(Check::good(name, "link", own.link(&offer)));
        return None;
    }
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

impl Patient {
    /// How reports call it before it has answered.
    fn called(&self) -> String {
        match &self.name {
            Some(name) => label(name, &self.address),
            None => self.address.clone(),
        }
    }

    /// One that does not answer.
    fn unreachable(&self, error: &cluster::Error, own: &Own) -> Check {
        let called = self.called();
        let line = lines::worker_at(&self.address).is_some();
        if let (true, Some(service)) = (line, own.services.first()) {
            let detail = format!(
                "connects by itself, and so to your own `serve` at {}, which shows whether it is there",
                service.url
            );
            return Check::good(&called, "reach", detail);
        }
        let seen = self
            .last_seen
            .map_or(String::new(), |ago| format!("; last seen {}", cluster::ago_text(ago)));
        Check::bad(&called, "reach", format!("{error}{seen}"), &self.start())
    }

    /// The command that starts it on its device.
    fn start(&self) -> String {
        let Some(name) = &self.name else {
            return start_stranger(&self.address);
        };
        let on = format!("on that device: `cake-worker --name {name}");
        let firewall = "with the --store that it had, if it had one";
        match self.address.rsplit_once(':') {
            _ if lines::worker_at(&self.address).is_some() => {
                format!("{on} --no-listen`, {firewall}")
            }
            Some((host, port)) if is_loopback(host) => {
                format!(
                    "start it on this machine: `cake-worker --name {name} --listen {host}:{port}`, {firewall}"
                )
            }
            Some((_, port)) => format!(
                "{on} --listen 0.0.0.0:{port}`, {firewall}; its firewall has to let that port pass"
            ),
            None => format!("{on}`"),
        }
    }
}

/// The command that starts a worker that is known by its address alone.
fn start_stranger(address: &str) -> String {
    match address.rsplit_once(':') {
        Some((host, port)) if is_loopback(host) => {
            format!("start it on this machine: `cake-worker --listen {host}:{port}`")
        }
        _ => {
            "start it there with `cake-worker --listen 0.0.0.0:7117` and what `cake-master token` \
              prints, and let the firewall pass that port; or with --no-listen instead of --listen"
                .to_owned()
        }
    }
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
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

#[cfg(test)]
mod tests {
    use super::*;

    fn patient(name: Option<&str>, address: &str) -> Patient {
        let name = name.map(str::to_owned);
        Patient { name, worker_id: None, address: address.to_owned(), last_seen: None }
    }

    #[test]
    fn who_is_down_is_started_as_it_was() {
        let start = |name: Option<&str>, address: &str| patient(name, address).start();
        let tablet = Some("tablet");
        assert!(
            start(tablet, "192.168.1.7:7200")
                .contains("`cake-worker --name tablet --listen 0.0.0.0:7200`")
        );
        assert!(
            start(tablet, "127.0.0.1:7200")
                .contains("`cake-worker --name tablet --listen 127.0.0.1:7200`")
        );
        let line = lines::address("0123456789abcdef0123456789abcdef");
        assert!(start(tablet, &line).contains("`cake-worker --name tablet --no-listen`"));
        assert!(start(None, "[::1]:7").contains("`cake-worker --listen [::1]:7`"));
        assert!(
            start(None, "192.168.1.7:7117").contains("cake-master token"),
            "it may never have joined"
        );
    }

    #[test]
    fn a_worker_that_ones_own_service_holds_is_at_work() {
        let service =
            ServiceSign { url: "http://a:1".to_owned(), master: "host (process 7)".to_owned() };
        let own = Own { services: vec![service], state: None };
        assert!(own.holder(Some("host (process 7)")).is_some());
        assert!(own.holder(Some("host (process 8)")).is_none());
        assert!(own.holder(None).is_none());
        let line = patient(Some("phone"), &lines::address("0123456789abcdef0123456789abcdef"));
        let away = cluster::Error::Elsewhere { address: String::new() };
        assert!(line.unreachable(&away, &own).ok, "its connection is the service's");
        assert!(!patient(Some("phone"), "127.0.0.1:7").unreachable(&away, &own).ok);
    }
}
