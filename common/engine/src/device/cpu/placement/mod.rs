//! Where the weights lie: in mapped files, or in a copy in huge pages where that pays; and whether the
//! system may drop them.
//!
//! A mapped file costs no memory of its own: its pages are clean, and the system drops them under
//! pressure. A copy in huge pages is read somewhat faster on systems where walking the page tables
//! of small pages holds up the memory, and where in its file a tensor does not begin with a cache line. [`Placement`]
//! knows when; what it measures it measures once for each kind of tensor. Before that, `tune` measures how they are read
//! fastest.
mod measure;
mod pages;
mod tuning;

use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use cake_checkpoint::units::format_rate;
use cake_checkpoint::{HUGE_PAGE_BYTES, MappedTensor};

pub use measure::Measured;
pub use pages::LockError;
pub(crate) use tuning::tune;
pub use tuning::{Tuning, set_tuning, tuning};

use measure::{Kind, measure, sample};
use pages::{gives_huge_pages, lock, unlock};

/// A copy must be read this much faster (in hundredths) to be made.
const GAIN_PERCENT: f64 = 5.0;

/// Tensors are copied and gathered in groups of at most as many bytes, or one that has more: of each group, less than
/// a huge page lies in small ones. Those gathered are resident twice for a moment.
const TOGETHER_BYTES: usize = 32 << 20;

/// Where the person wants the weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Weights {
    /// Used in the mapped files, whose pages the system may drop under pressure.
    Map,
    /// Copied into memory of the process, in huge pages where the system gives them.
    Copy,
    /// A copy where huge pages are available and a short measurement says that it pays.
    #[default]
    Auto,
}

impl fmt::Display for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Weights::Map => "map",
            Weights::Copy => "copy",
            Weights::Auto => "auto",
        })
    }
}

impl FromStr for Weights {
    type Err = Unknown;

    fn from_str(text: &str) -> Result<Self, Unknown> {
        match text {
            "map" => Ok(Weights::Map),
            "copy" => Ok(Weights::Copy),
            "auto" => Ok(Weights::Auto),
            _ => Err(Unknown { found: text.to_owned() }),
        }
    }
}

/// A place for weights that does not exist.
#[derive(Debug, thiserror::Error)]
#[error("{found:?} is no place for weights; write one of map, copy, auto")]
pub struct Unknown {
    /// As given.
    pub found: String,
}

/// Why weights cannot be where they shall be.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// They cannot be copied.
    #[error(transparent)]
    Copy(#[from] cake_checkpoint::Error),
    /// They cannot be kept in memory.
    #[error(transparent)]
    Lock(#[from] LockError),
}

/// What was chosen, and why. Its text is for people.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Choice {
    /// The mapped files, as asked.
    MapAsked,
    /// A copy, as asked.
    CopyAsked,
    /// The system gives no huge pages.
    NoHugePages,
    /// The large tensors are too few to compare anything.
    TooSmall,
    /// There is no room for one piece twice.
    NoRoom,
    /// A copy is not read enough faster.
    DoesNotPay(Measured),
    /// A copy is read enough faster.
    Pays(Measured),
    /// The system gave no memory for the measurement.
    NotMeasured,
}

impl Choice {
    /// Whether the weights are to be copied.
    pub fn copies(&self) -> bool {
        matches!(self, Self::CopyAsked | Self::Pays(_))
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.copies() { "copied" } else { "mapped" })?;
        let speeds = |f: &mut fmt::Formatter<'_>, Measured { map, copy }: &Measured| {
            write!(f, ": read at {} mapped, {} copied", format_rate(*map), format_rate(*copy))
        };
        match self {
            Self::MapAsked | Self::CopyAsked => f.write_str(", as asked"),
            Self::NoHugePages => f.write_str(": the system gives no huge pages"),
            Self::TooSmall => f.write_str(": there is little to copy"),
            Self::NoRoom => f.write_str(": there is no room to copy in"),
            Self::NotMeasured => f.write_str(": the system gives no memory to measure with"),
            Self::DoesNotPay(measured) | Self::Pays(measured) => speeds(f, measured),
        }
    }
}

/// A tensor with its name, which is for messages.
pub type Named<'a> = (String, &'a mut MappedTensor);

/// Decides where weights lie; remembers what it measured.
#[derive(Debug, Default)]
pub struct Placement {
    wanted: Weights,
    lock: bool,
    measured: Mutex<Vec<(Kind, Measured)>>,
}

impl Placement {
    /// Nothing measured yet. `lock` keeps the system from dropping or swapping the weights' pages.
    pub fn new(wanted: Weights, lock: bool) -> Self {
        Self { wanted, lock, measured: Mutex::default() }
    }

    /// Bytes that copying takes beside the weights, if it was asked for.
    pub fn copy_bytes(&self) -> u64 {
        if self.wanted == Weights::Copy { HUGE_PAGE_BYTES as u64 } else { 0 }
    }

    /// Puts tensors where they shall lie: copies those that are mapped, some at a time, if that was asked for or pays,
    /// gathers those that lie in small pieces of memory, and keeps all of them in memory if that was asked for.
    /// Returns what was chosen.
    ///
    /// * `parts`: tensors that are dropped together, such as those of a blob: memory is shared within a part alone,
    ///   as all of it stays for as long as one tensor in it does. Mapped ones were just read.
    /// * `room_bytes`: what may be used beside them before anything else is allocated.
    /// * `threads`: how many will compute with them.
    /// * `go_on`: asked before each copy.
    ///
    /// # Errors
    /// [`Error`], and whatever `go_on` fails with; tensors copied until then stay copied, and all of
    /// them are usable.
    pub fn settle<E: From<Error>>(
        &self,
        parts: &mut [Vec<Named<'_>>],
        room_bytes: u64,
        threads: usize,
        go_on: &mut dyn FnMut() -> Result<(), E>,
    ) -> Result<Choice, E> {
        go_on()?;
        let all = parts.iter().flatten().map(|(_, tensor)| &**tensor);
        let mapped = all.filter(|tensor| tensor.is_mapped());
        if self.lock {
            // For now: those of a stage that ended may be kept, and pages that are copied are to be given back.
            mapped.clone().for_each(|tensor| unlock(tensor.bytes()));
        }
        tune(parts.iter().flatten().map(|(_, tensor)| &**tensor), threads);
        let choice = self.choose(mapped, room_bytes, threads);
        tracing::info!(weights = %choice, "weights placed");
        let gathers = gives_huge_pages() && room_bytes >= TOGETHER_BYTES as u64;
        let moved = |tensor: &MappedTensor| match tensor.is_mapped() {
            true => choice.copies(),
            false => gathers && tensor.in_small_pages(),
        };
        for group in parts.iter_mut().flat_map(|part| groups(part, moved)) {
            go_on()?;
            let bytes = group.iter().map(|(_, tensor)| tensor.bytes().len()).sum();
            let (names, mut group): (Vec<&str>, Vec<_>) = group.into_iter().unzip();
            match MappedTensor::gather(&mut group) {
                Ok(()) => {}
                Err(cause) if choice == Choice::CopyAsked => {
                    let error = cake_checkpoint::Error::memory(&listed(&names), bytes, cause);
                    return Err(Error::Copy(error).into());
                }
                Err(error) => {
                    tracing::warn!(%error, "the rest of the weights stays where it is");
                    break;
                }
            }
        }
        let settled = parts.iter().flatten().map(|(_, tensor)| &**tensor);
        self.keep(settled).map_err(|error| E::from(error.into()))?;
        Ok(choice)
    }

    /// Keeps tensors in memory, where they are, if that was asked for.
    ///
    /// # Errors
    /// If the system does not; some of them may be kept then.
    pub fn keep<'a>(
        &self,
        tensors: impl Iterator<Item = &'a MappedTensor>,
    ) -> Result<(), LockError> {
        if !self.lock {
            return Ok(());
        }
        let parts: Vec<&[u8]> = tensors.map(MappedTensor::bytes).collect();
        lock(&parts)
    }

    /// Where `tensors` shall lie, which are mapped and were just read. `room_bytes` is what may be used
    /// beside them before anything else is allocated; `threads` will compute with them.
    ///
    /// Blocks the first time that it measures tensors of a kind: for as long as it takes to copy half a GiB and to read
    /// it a few times.
    fn choose<'a>(
        &self,
        tensors: impl Iterator<Item = &'a MappedTensor>,
        room_bytes: u64,
        threads: usize,
    ) -> Choice {
        match self.wanted {
            Weights::Map => return Choice::MapAsked,
            Weights::Copy => return Choice::CopyAsked,
            Weights::Auto => {}
        }
        if !gives_huge_pages() {
            return Choice::NoHugePages;
        }
        if room_bytes < HUGE_PAGE_BYTES as u64 {
            return Choice::NoRoom;
        }
        let mut known = self.measured.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(sample) = sample(tensors) else {
            return known.last().map_or(Choice::TooSmall, |(_, measured)| verdict(*measured));
        };
        let kind = Kind::of(&sample);
        if let Some((_, measured)) = known.iter().find(|(of, _)| *of == kind) {
            return verdict(*measured);
        }
        match measure(&sample, threads) {
            Ok(measured) => {
                known.push((kind, measured));
                verdict(measured)
            }
            Err(_) => Choice::NotMeasured,
        }
    }
}

/// Those of `tensors` that are to be moved: first those that are copied together, in the order of their names, then
/// those that are gathered, in that order. Groups of at most [`TOGETHER_BYTES`], or of one tensor, and none that is
/// smaller than a huge page.
fn groups<'a>(
    tensors: &'a mut [Named<'_>],
    moved: impl Fn(&MappedTensor) -> bool,
) -> Vec<Vec<(&'a str, &'a mut MappedTensor)>> {
    let moved = tensors.iter_mut().filter(|(_, tensor)| moved(tensor));
    let mut moved: Vec<_> = moved.map(|(name, tensor)| (&**name, &mut **tensor)).collect();
    moved.sort_by_key(|(name, tensor)| (!tensor.is_mapped(), *name));
    let mut groups = Vec::<Vec<_>>::new();
    let mut last = (false, 0); // Whether the tensors of the last group are mapped, and their bytes.
    for (name, tensor) in moved {
        let (mapped, bytes) = (tensor.is_mapped(), tensor.bytes().len());
        let fits = last.0 == mapped && last.1 + bytes <= TOGETHER_BYTES;
        match groups.last_mut().filter(|_| fits) {
            Some(group) => {
                group.push((name, tensor));
                last.1 += bytes;
            }
            None => {
                groups.push(vec![(name, tensor)]);
                last = (mapped, bytes);
            }
        }
    }
    let large = |group: &Vec<(&str, &mut MappedTensor)>| {
        let bytes = group.iter().map(|(_, tensor)| tensor.bytes().len());
        bytes.sum::<usize>() >= HUGE_PAGE_BYTES
    };
    groups.retain(large);
    groups
}

/// Names of tensors for messages, of which there is at least one.
fn listed(names: &[&str]) -> String {
    match names {
        [name] => (*name).to_owned(),
        [first, others @ ..] => format!("{first} and {} more", others.len()),
        [] => String::new(),
    }
}

fn verdict(measured: Measured) -> Choice {
    if measured.copy > measured.map * (1.0 + GAIN_PERCENT / 100.0) {
        Choice::Pays(measured)
    } else {
        Choice::DoesNotPay(measured)
    }
}

#[cfg(test)]
mod tests {
    use cake_checkpoint::Dtype;

    use super::*;

    fn tensor(bytes: usize) -> MappedTensor {
        MappedTensor::from_vec(vec![1; bytes], Dtype::U8, vec![bytes as u64])
    }

    #[test]
    fn what_was_asked_for_is_chosen() {
        let choose = |wanted| Placement::new(wanted, false).choose([].iter(), 0, 1);
        assert_eq!(choose(Weights::Map), Choice::MapAsked);
        assert_eq!(choose(Weights::Copy), Choice::CopyAsked);
        assert!(!choose(Weights::Auto).copies(), "there is no room");
        assert_eq!(Placement::new(Weights::Copy, false).copy_bytes(), 2 << 20);
        assert_eq!(Placement::new(Weights::Auto, false).copy_bytes(), 0);
    }

    #[test]
    fn a_copy_must_pay() {
        let verdict = |copy| verdict(Measured { map: 100.0, copy });
        assert!(!verdict(90.0).copies() && !verdict(104.0).copies());
        assert!(verdict(106.0).copies());
        assert!(verdict(106.0).to_string().starts_with("copied: read at"));
    }

    #[test]
    fn what_lies_in_small_pieces_is_gathered_in_the_order_of_names() {
        let sizes = [12, 1, 1, 18, 1].map(|mib| mib << 20);
        let mut tensors = sizes.map(tensor);
        let named = |names: [&str; 5], tensors: &mut [MappedTensor; 5]| {
            let mut named: Vec<_> =
                names.into_iter().map(str::to_owned).zip(tensors.iter_mut()).collect();
            let groups = groups(&mut named, |_| true);
            let names =
                |group: &Vec<(&str, _)>| group.iter().map(|(name, _)| *name).collect::<String>();
            groups.iter().map(names).collect::<Vec<_>>()
        };
        assert_eq!(named(["b", "e", "c", "d", "a"], &mut tensors), ["abcd"], "1 MiB is left");
        assert_eq!(named(["e", "a", "b", "d", "c"], &mut tensors), ["abcd", "e"]);
        let mut large = sizes.map(|size| tensor(2 * size));
        assert_eq!(named(["a", "b", "c", "d", "e"], &mut large), ["abc", "d", "e"], "one has more");

        let before = tensors[1].bytes().as_ptr();
        let mut settle = |room: usize| {
            let names = ["a", "b", "c", "d", "e"].into_iter().map(str::to_owned);
            let named: Vec<_> = names.zip(&mut tensors).collect();
            let go_on = &mut || Ok::<_, Error>(());
            let mut parts = [named];
            Placement::default().settle(&mut parts, room as u64, 1, go_on).expect("settled");
            parts[0].iter().filter(|(_, tensor)| tensor.in_small_pages()).count()
        };
        assert_eq!(settle(TOGETHER_BYTES - 1), 5, "no room");
        assert_eq!(settle(TOGETHER_BYTES), if gives_huge_pages() { 1 } else { 5 });
        assert_eq!(tensors[1].bytes().as_ptr() == before, !gives_huge_pages());
    }

    #[test]
    fn what_was_measured_is_remembered_of_its_kind_and_of_what_is_too_small_to_measure() {
        let [few, bytes] = [vec![tensor(2 << 20)], vec![tensor(64 << 20)]];
        let floats = MappedTensor::from_vec(vec![0; 64 << 20], Dtype::F32, vec![4096, 4096]);
        let placement = Placement::new(Weights::Auto, false);
        let known = Measured { map: 1.0, copy: 2.0 };
        *placement.measured.lock().unwrap() = vec![(Kind::of(&bytes), known)];
        let choose = |all: &[MappedTensor], room| placement.choose(all.iter(), room, 1);
        if gives_huge_pages() {
            assert_eq!(choose(&bytes, 2 << 20), Choice::Pays(known));
            assert_eq!(choose(&few, 2 << 20), Choice::Pays(known));
            assert_eq!(choose(&few, 1 << 20), Choice::NoRoom);
            assert_eq!(placement.measured.lock().unwrap().len(), 1);
            choose(std::slice::from_ref(&floats), 2 << 20);
            assert_eq!(placement.measured.lock().unwrap().len(), 2, "of another kind");
        }
    }

    #[test]
    fn places_are_named_as_on_the_command_line() {
        for weights in [Weights::Map, Weights::Copy, Weights::Auto] {
            assert_eq!(weights.to_string().parse::<Weights>().ok(), Some(weights));
        }
        let refusal = "disk".parse::<Weights>().expect_err("no such place").to_string();
        assert!(refusal.contains("disk") && refusal.contains("map, copy, auto"), "{refusal}");
    }
}
