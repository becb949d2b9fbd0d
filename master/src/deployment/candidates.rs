//! Everyone who could hold layers: workers with their measured rates, imagined ones, the master itself.
use std::collections::HashSet;

use cake_engine::{DeviceKind, DeviceMemory, PROBED_BYTES};
use cake_stage::{Account, memory_of};

use super::rates::{Asking, Rates};
use super::{Error, PlanRequest, WrongArgument};
use crate::cluster::{Demands, Measured, Member, Memory, Offer, OfferedDevice};
use crate::planner::{Idle, Pin, Refusal, Why};
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

/// What a plan may take of the devices.
#[derive(Clone, Copy)]
pub(crate) struct Room<'a> {
    /// Where it is written down what models take.
    pub account: &'a Account<Memory>,
    /// Whether what others take is planned with as well, as if they were gone.
    pub whole: bool,
}

/// The candidates, in the order in which the planner sees them.
pub(crate) struct Candidates {
    /// What the planner is told.
    pub all: Vec<Candidate>,
    /// Who each of them is.
    pub seats: Vec<Seat>,
    /// The memory of each, and the bytes that it offers to all models together.
    pub memories: Vec<(Memory, u64)>,
    /// What went wrong and does not matter if there is a plan, one sentence each.
    pub warnings: Vec<String>,
    /// Seconds of the master's own part of a token; 0 where that is not known.
    pub ends_seconds: f64,
    /// Who is there and cannot compute with the model, and why.
    pub unable: Vec<Idle>,
    /// Where the number comes from that the master offers, if no person named it.
    pub own_offer: Option<String>,
}

impl Candidates {
    /// Adds one that offers its budget to all models together, of which it has what others leave.
    fn add(&mut self, seat: Seat, memory: Memory, candidate: Candidate, room: Room<'_>) {
        let offered = candidate.budget_bytes;
        let taken = if room.whole { 0 } else { room.account.others(&memory) };
        let budget_bytes = offered.saturating_sub(taken);
        self.seats.push(seat);
        self.memories.push((memory, offered));
        self.all.push(Candidate { budget_bytes, ..candidate });
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

/// Scratch memory (bytes) in which the head is timed where no device of the plan exists, or nothing is computed after it:
/// enough for a figure that is about right, in a process that stays small.
const ROUGH_SCRATCH: u64 = 64 << 20;

/// Checks the names given, measures the workers, and lists who could hold layers.
///
/// # Errors
/// A name that is not known or is taken; a worker that is gone.
pub(crate) async fn gather(
    asking: &Asking<'_>,
    room: Room<'_>,
    members: &[Member],
    request: &PlanRequest,
    promise: &Promise,
) -> Result<Candidates, Error> {
    let names: Vec<&str> = members.iter().map(Member::name).collect();
    check_names(&names, request)?;
    let kept = |name: &str| request.exclude.iter().all(|excluded| excluded != name);
    let used: Vec<usize> = (0..members.len()).filter(|index| kept(names[*index])).collect();
    let wished: Vec<_> = request.what_if.iter().filter(|(name, _)| kept(name)).collect();
    let encodings = asking.model.encodings();
    let offers = used.into_iter().map(|member| (member, names[member], &members[member].offer));
    let demands = Demands { encodings: &encodings, kv: promise.kv };
    let (able, unable) = who_runs(demands, offers);
    check_pins(&request.pins, &unable)?;
    let with_devices = able.iter().filter_map(|seat| seat.device(members));
    let with_devices: Vec<_> = with_devices.collect();
    let measured = asking.workers(&with_devices).await?;
    // Where nobody is there whose layers' speed is known, the head's need not be known better.
    let imagined = able.is_empty() && request.local_memory.unwrap_or(0) == 0 && !wished.is_empty();
    let roughly = imagined || request.ends_roughly;
    let scratch = if roughly { ROUGH_SCRATCH } else { PROBED_BYTES };
    let mut found = Candidates {
        all: Vec::new(),
        seats: Vec::new(),
        memories: Vec::new(),
        warnings: Vec::new(),
        ends_seconds: asking.ends(request.predict.then_some(scratch)),
        unable,
        own_offer: None,
    };
    // Also where nobody who is there can compute with the model.
    let alone = able.is_empty() && wished.is_empty();
    // In a hurry nobody is timed again for the next plan.
    let told = request.predict && !request.hurry;
    // What the master offers, and what of that its own part takes beside layers.
    let own = match request.local_memory {
        Some(bytes) => Some((bytes, 0)).filter(|_| bytes > 0),
        None if alone => {
            let own = own_memory(asking.device.name(), asking.device.memory())?;
            found.own_offer = Some(format!("{}; --local-memory says otherwise", own.why));
            let taken = room.account.others(&own_place(asking.device));
            let bytes = own.bytes.saturating_add(taken.min(in_use()));
            Some((bytes, sizing::ends_bytes(asking.model, promise)))
        }
        None => None,
    };
    if let Some((local, ends)) = own {
        // Alone there is nobody to compare with.
        let rates = asking.own(local, !alone || request.predict);
        let rates = rates.and_then(|rates| found.known("the master", rates, told));
        let device = (asking.device, asking.threads);
        let copy_bytes = request.own_weights.copy_bytes();
        let candidate = Candidate::local(local, device, rates, copy_bytes, ends);
        found.add(Seat::Master, own_place(asking.device), candidate, room);
    }
    for ((seat, (worker, device)), rates) in able.into_iter().zip(with_devices).zip(measured) {
        let rates = found.known(worker.name(), rates, told);
        let memory = memory_of(DeviceKind::alike(&device.name));
        let place = (worker.offer.worker_id.clone(), memory);
        found.add(seat, place, Candidate::worker(worker, device, rates), room);
    }
    for (name, bytes) in wished {
        let nowhere = (String::new(), ""); // Nothing is ever taken of it.
        found.add(Seat::Imagined, nowhere, Candidate::what_if(name, *bytes), room);
    }
    if found.all.is_empty() && !found.unable.is_empty() {
        return Err(nobody_runs(found.unable).into());
    }
    Ok(found)
}

/// The seats of those workers (their places among the members, their names and what they offer) that do all that is
/// demanded, each on the device that plans use; the others, with what they do not do.
fn who_runs<'a>(
    demands: Demands<'_>,
    workers: impl Iterator<Item = (usize, &'a str, &'a Offer)>,
) -> (Vec<Seat>, Vec<Idle>) {
    let (mut able, mut unable) = (Vec::new(), Vec::new());
    for (member, name, offer) in workers {
        match offer.device_for(demands) {
            Ok(device) => able.push(Seat::Worker { member, device }),
            Err(lacking) => {
                let why = Why::DoesNotRun { encodings: lacking };
                unable.push(Idle { device: name.to_owned(), why });
            }
        }
    }
    (able, unable)
}

/// The refusal where none of those who are there does all that is demanded.
fn nobody_runs(unable: Vec<Idle>) -> Refusal {
    let (mut lacking, mut devices) = (Vec::new(), Vec::new());
    for Idle { device, why } in unable {
        devices.push(device);
        if let Why::DoesNotRun { encodings } = why {
            for name in encodings {
                if !lacking.contains(&name) {
                    lacking.push(name);
                }
            }
        }
    }
    Refusal::NobodyRuns { encodings: lacking, devices }
}

/// Refuses layers that people gave to who cannot compute with them.
fn check_pins(pins: &[Pin], unable: &[Idle]) -> Result<(), Refusal> {
    for Pin { device, layers } in pins {
        if let Some(Idle { why: Why::DoesNotRun { encodings }, .. }) =
            unable.iter().find(|idle| idle.device == *device)
        {
            let (device, layers, encodings) = (device.clone(), *layers, encodings.clone());
            return Err(Refusal::PinNotRun { device, layers, encodings });
        }
    }
    Ok(())
}

/// The memory that the master computes in with this device.
pub(super) fn own_place(device: DeviceKind) -> Memory {
    (LOCAL.to_owned(), memory_of(device))
}

/// Bytes of memory that this process has and would give back: what models take beyond them still counts as free.
pub(super) fn in_use() -> u64 {
    cake_platform::process_memory().anonymous_bytes
}

/// What the master may take unasked of the memory that it computes in.
///
/// # Errors
/// Nothing tells how much of that memory is free.
pub(super) fn own_memory(device: &str, memory: DeviceMemory) -> Result<OwnMemory, WrongArgument> {
    match memory {
        DeviceMemory::System => Ok(OwnMemory::of(cake_platform::free_memory())),
        DeviceMemory::Own => {
            let expected = format!(
                "how much memory of {device} to take, since nothing tells how much of it is free"
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
    use cake_checkpoint::{Affine, Encoding, FloatType, KvDtype, LayerRange};
    use cake_proto::wire;

    use super::*;

    const PACKED: Encoding = Encoding::Affine(Affine::Q4);
    const PLAIN: Encoding = Encoding::Float(FloatType::BF16);

    /// A worker with devices that compute with these encodings.
    fn offer(devices: &[(&str, &[Encoding])]) -> Offer {
        let devices = devices.iter().map(|(name, encodings)| wire::Device {
            name: (*name).to_owned(),
            resident_permille: encodings.iter().map(|it| (it.to_string(), 1000)).collect(),
            ..wire::Device::default()
        });
        let said = wire::Description { devices: devices.collect(), ..wire::Description::default() };
        said.try_into().expect("devices")
    }

    #[test]
    fn who_does_not_run_an_encoding_of_the_model_gets_no_layers() {
        let kitchen = offer(&[("cpu", &[PLAIN])]);
        let attic = offer(&[("cpu", &[PLAIN]), ("cuda", &[PLAIN, PACKED])]);
        let who = |encodings: &[Encoding]| {
            let workers = [(0, "kitchen", &kitchen), (4, "attic", &attic)];
            who_runs(Demands { encodings, kv: KvDtype::F16 }, workers.into_iter())
        };
        let (able, unable) = who(&[PLAIN]);
        let seat = |member, device| Seat::Worker { member, device };
        assert_eq!((able, unable), (vec![seat(0, 0), seat(4, 0)], vec![]));
        let (able, unable) = who(&[PLAIN, PACKED]);
        assert_eq!(able, [seat(4, 1)]);
        let said: Vec<_> = unable.iter().map(|it| (&*it.device, it.why.to_string())).collect();
        assert_eq!(said, [("kitchen", "it does not run affine-4-64".to_owned())]);
    }

    #[test]
    fn a_gpus_memory_is_not_guessed() {
        let refused = own_memory("cuda", DeviceMemory::Own).expect_err("nobody tells").to_string();
        assert!(refused.starts_with("--local-memory is not given, expected"), "{refused}");
        assert!(refused.contains("memory of cuda"), "{refused}");
        assert!(own_memory("cpu", DeviceMemory::System).is_ok_and(|own| own.bytes > 0));
    }

    #[test]
    fn layers_are_not_placed_on_who_does_not_run_them() {
        let kitchen = offer(&[("cpu", &[])]);
        let demands = Demands { encodings: &[PACKED], kv: KvDtype::Q8 };
        let (_, unable) = who_runs(demands, [(0, "kitchen", &kitchen)].into_iter());
        let pin = |device: &str| Pin { device: device.to_owned(), layers: LayerRange::new(0, 4) };
        assert_eq!(check_pins(&[pin("attic")], &unable), Ok(()));
        let error = check_pins(&[pin("attic"), pin("kitchen")], &unable).expect_err("refused");
        let said =
            "layers 0..4 are placed on kitchen, which does not run affine-4-64, q8 keys and values";
        assert_eq!(error.to_string(), said);
    }

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
