//! Everyone who could hold layers: workers with their measured rates, imagined ones, the master itself.
use std::collections::HashSet;

use cake_engine::{DeviceKind, DeviceMemory, Placement};

use super::rates::{Asking, Rates};
use super::{Error, PlanRequest, WrongArgument};
use crate::cluster::{Measured, Member, OfferedDevice};
use crate::sizing::{self, Candidate, LOCAL, OwnMemory, Promise};

/// Who a candidate is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seat {
    /// The master itself.
    Master,
    /// A worker, on one of its devices.
    Worker {
        /// Its place among the members.
        member: usize,
        /// The device's place among those that it offers.
        device: usize,
    },
    /// A worker that does not exist (`--what-if`).
    Imagined,
}

impl Seat {
    /// The worker among `members`, and the device that it computes on, if it is one.
    pub(crate) fn device(self, members: &[Member]) -> Option<(&Member, &OfferedDevice)> {
        let Self::Worker { member, device } = self else { return None };
        let member = members.get(member)?;
        Some((member, member.offer.devices.get(device)?))
    }
}

/// The candidates, in the order in which the planner sees them.
pub(crate) struct Candidates {
    /// What the planner is told.
    pub all: Vec<Candidate>,
    /// Who each of them is.
    pub seats: Vec<Seat>,
    /// What went wrong and does not matter if there is a plan, one sentence each.
    pub warnings: Vec<String>,
    /// Seconds of the master's own part of a token; 0 where that is not known.
    pub ends_seconds: f64,
    /// Where the number comes from that the master offers, if no person named it.
    pub own_offer: Option<String>,
}

impl Candidates {
    fn add(&mut self, seat: Seat, candidate: Candidate) {
        self.seats.push(seat);
        self.all.push(candidate);
    }

    /// Rates that could not be measured are a warning: usual ones are assumed. So are those that were measured beside
    /// other work, if somebody is told what to expect.
    fn known(&mut self, name: &str, rates: Rates, told: bool) -> Option<Measured> {
        match rates {
            Ok(rates) => {
                if told && !rates.quiet {
                    self.warnings.push(format!(
                        "{name} was timed while other work went on there: it may be faster than is predicted, and \
                         is timed again for the next plan"
                    ));
                }
                Some(rates)
            }
            Err(reason) => {
                self.warnings.push(format!("{reason}; a usual speed is assumed"));
                None
            }
        }
    }
}

/// Checks the names given, measures the workers, and lists who could hold layers.
///
/// # Errors
/// A name that is not known or is taken; a worker that is gone.
pub(crate) async fn gather(
    asking: &Asking<'_>,
    members: &[Member],
    request: &PlanRequest,
    promise: &Promise,
) -> Result<Candidates, Error> {
    let names: Vec<&str> = members.iter().map(Member::name).collect();
    check_names(&names, request)?;
    let kept = |name: &str| request.exclude.iter().all(|excluded| excluded != name);
    let used: Vec<usize> = (0..members.len()).filter(|index| kept(names[*index])).collect();
    let wished: Vec<_> = request.what_if.iter().filter(|(name, _)| kept(name)).collect();
    let with_devices = used.iter().filter_map(|&member| {
        // Of those that a worker offers, plans use the one that it would rather use.
        Some((&members[member], members[member].offer.devices.first()?))
    });
    let with_devices: Vec<_> = with_devices.collect();
    let measured = asking.workers(&with_devices).await?;
    let mut found = Candidates {
        all: Vec::new(),
        seats: Vec::new(),
        warnings: Vec::new(),
        ends_seconds: asking.ends(request.predict),
        own_offer: None,
    };
    let alone = used.is_empty() && wished.is_empty();
    // What the master offers, and what of that its own part takes beside layers.
    let own = match request.local_memory {
        Some(bytes) => Some((bytes, 0)).filter(|_| bytes > 0),
        None if alone => {
            let own = own_memory(asking.device)?;
            found.own_offer = Some(format!("{}; --local-memory says otherwise", own.why));
            Some((own.bytes, sizing::ends_bytes(asking.model, promise)))
        }
        None => None,
    };
    if let Some((local, ends)) = own {
        // Alone there is nobody to compare with.
        let rates = asking.own(local, !alone || request.predict);
        let rates = rates.and_then(|rates| found.known("the master", rates, request.predict));
        let copy_bytes = Placement::new(request.weights, false).copy_bytes();
        found.add(Seat::Master, Candidate::local(local, asking.threads, rates, copy_bytes, ends));
    }
    for ((member, (worker, device)), rates) in used.into_iter().zip(with_devices).zip(measured) {
        let rates = found.known(worker.name(), rates, request.predict);
        found.add(Seat::Worker { member, device: 0 }, Candidate::worker(worker, device, rates));
    }
    for (name, bytes) in wished {
        found.add(Seat::Imagined, Candidate::what_if(name, *bytes));
    }
    Ok(found)
}

/// What the master may take unasked of the memory that it computes in.
///
/// # Errors
/// Nothing tells how much of that memory is free.
fn own_memory(device: DeviceKind) -> Result<OwnMemory, WrongArgument> {
    match device.memory() {
        DeviceMemory::System => Ok(OwnMemory::of(cake_platform::free_memory())),
        DeviceMemory::Own => {
            let expected = format!(
                "how much memory of {} to take, since nothing here tells how much of it is free",
                device.name()
            );
            Err(WrongArgument::new("--local-memory", "not given", expected))
        }
    }
}

/// Refuses names that nobody has, that somebody has already, and leaving everybody out.
fn check_names(workers: &[&str], request: &PlanRequest) -> Result<(), WrongArgument> {
    let PlanRequest { what_if, exclude, .. } = request;
    let mut taken: HashSet<&str> = workers.iter().copied().chain([LOCAL]).collect();
    for (name, _) in what_if {
        if name.is_empty() || !taken.insert(name) {
            let expected = format!("a name other than {}", list(workers.iter().chain([&LOCAL])));
            return Err(WrongArgument::new("--what-if", format!("{name:?}"), expected));
        }
    }
    let wished = what_if.iter().map(|(name, _)| name.as_str());
    let known: Vec<&str> = workers.iter().copied().chain(wished).collect();
    if let Some(unknown) = exclude.iter().find(|name| !known.contains(&name.as_str())) {
        let expected = match known.is_empty() {
            true => "nothing, since there is no worker".to_owned(),
            false => format!("the name of a worker: {}", list(&known)),
        };
        return Err(WrongArgument::new("--exclude", unknown, expected));
    }
    let left = known.iter().any(|name| exclude.iter().all(|excluded| excluded != name));
    if !left && !known.is_empty() && request.local_memory.is_none() {
        let expected = "at least one worker left, or --local-memory for the master itself";
        return Err(WrongArgument::new("--exclude", "every worker", expected));
    }
    Ok(())
}

fn list<'a>(names: impl IntoIterator<Item = &'a &'a str>) -> String {
    names.into_iter().copied().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(workers: &[&str], exclude: &[&str], what_if: &[&str]) -> Option<String> {
        let exclude = exclude.iter().map(|name| (*name).to_owned()).collect();
        let what_if = what_if.iter().map(|name| ((*name).to_owned(), 1 << 30)).collect();
        let request = PlanRequest { exclude, what_if, ..PlanRequest::default() };
        check_names(workers, &request).err().map(|error| error.to_string())
    }

    #[test]
    fn an_imagined_worker_needs_a_name_of_its_own() {
        assert_eq!(refusal(&["phone"], &[], &["tablet", "laptop"]), None);
        for name in ["master", "phone", ""] {
            let said = refusal(&["phone"], &[], &[name]).expect("refused");
            assert_eq!(
                said,
                format!("--what-if is {name:?}, expected a name other than phone, master")
            );
        }
        assert!(refusal(&[], &[], &["a", "a"]).is_some(), "twice the same");
    }

    #[test]
    fn leaving_out_every_worker_is_refused() {
        assert_eq!(refusal(&["phone", "tablet"], &["phone"], &[]), None);
        assert_eq!(refusal(&["phone"], &["phone"], &["tablet"]), None);
        let said = refusal(&["phone", "tablet"], &["phone", "tablet"], &[]).expect("refused");
        assert!(said.contains("--local-memory"), "{said}");
        let exclude = vec!["phone".to_owned()];
        let request = PlanRequest { exclude, local_memory: Some(1), ..PlanRequest::default() };
        assert!(check_names(&["phone"], &request).is_ok(), "the master was named instead");
    }

    #[test]
    fn leaving_out_somebody_unknown_is_refused() {
        let said = refusal(&["phone"], &["attic"], &[]).expect("refused");
        assert_eq!(said, "--exclude is attic, expected the name of a worker: phone");
        assert!(refusal(&[], &["attic"], &[]).expect("refused").contains("no worker"));
    }
}
