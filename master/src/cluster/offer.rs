//! What a worker says of itself, made fit for numbers and terminals.
use std::collections::{HashMap, HashSet};

use cake_checkpoint::{Digest, Encoding};
use cake_proto::{limits, wire};
use cake_stage::ResidentCosts;
use serde::{Serialize, Serializer};

/// What a worker says of itself, checked.
#[derive(Clone, Debug, Serialize)]
pub struct Offer {
    /// The id that stays with its store.
    pub worker_id: String,
    /// Name for people.
    pub name: String,
    /// Version of its build.
    pub version: String,
    /// What computes there, at least one and no two of one name, in the order in which it would rather be used.
    pub devices: Vec<OfferedDevice>,
    /// Bytes of the process alone.
    pub overhead_bytes: u64,
    /// Threads it computes with.
    pub threads: usize,
    /// Free bytes where its store is.
    pub free_disk_bytes: u64,
    /// Most bytes its store keeps, if there is a limit.
    pub store_limit_bytes: Option<u64>,
    /// Bytes in its store.
    pub stored_bytes: u64,
    /// Half-pushed blobs in its store, and the bytes that are there of each.
    #[serde(skip)]
    pub partial: HashMap<Digest, u64>,
    /// Its clock, in milliseconds since 1970.
    pub clock_ms: u64,
    /// Master that holds it, if any.
    pub held_by: Option<String>,
    /// Blobs in its store.
    #[serde(skip)]
    pub blobs: HashSet<Digest>,
    /// Differs each time its process starts.
    #[serde(skip)]
    pub instance: String,
    /// Operating system and architecture.
    pub system: String,
}

/// Something that computes stages on a worker.
#[derive(Clone, Debug, Serialize)]
pub struct OfferedDevice {
    /// What it is, as `CAKE_DEVICE` names it there.
    pub name: String,
    /// Bytes for weights, KV cache, scratch and process together.
    pub budget_bytes: u64,
    /// What its memory holds of each encoding that it runs.
    #[serde(rename = "resident_permille", serialize_with = "by_name")]
    pub resident: ResidentCosts,
    /// Its arithmetic, as [`cake_engine::arithmetic_of`] names it, if it says.
    pub arithmetic: Option<String>,
}

/// A description that no worker gives.
#[derive(Debug, thiserror::Error)]
pub enum OfferError {
    /// It computes with nothing, or with more than any worker has.
    #[error("it describes {found} devices, expected 1 to {}", limits::DEVICES)]
    Devices {
        /// How many.
        found: usize,
    },
    /// A device could not be told from another one.
    #[error("it describes device {name:?} twice")]
    SameDevice {
        /// Its name.
        name: String,
    },
}

impl Offer {
    /// Bytes that the device offers which it would rather use.
    pub fn budget_bytes(&self) -> u64 {
        self.devices.first().map_or(0, |device| device.budget_bytes)
    }

    /// The place of the device that plans use for matrices in these encodings: the first that computes with all of them.
    ///
    /// # Errors
    /// The encodings that the first device does not compute with, if none computes with all.
    pub fn device_for(&self, encodings: &[Encoding]) -> Result<usize, Vec<Encoding>> {
        let lacks = |device: &OfferedDevice| device.resident.lacks(encodings);
        let able = self.devices.iter().position(|device| lacks(device).is_empty());
        able.ok_or_else(|| self.devices.first().map_or_else(|| encodings.to_vec(), lacks))
    }
}

impl TryFrom<wire::Description> for Offer {
    type Error = OfferError;

    fn try_from(said: wire::Description) -> Result<Self, OfferError> {
        let found = said.devices.len();
        if !(1..=limits::DEVICES).contains(&found) {
            return Err(OfferError::Devices { found });
        }
        let devices: Vec<OfferedDevice> = said.devices.into_iter().map(From::from).collect();
        let mut names = HashSet::new();
        if let Some(double) = devices.iter().find(|device| !names.insert(&device.name)) {
            return Err(OfferError::SameDevice { name: double.name.clone() });
        }
        Ok(Self {
            worker_id: said.worker_id,
            name: plain(said.name, "-_."),
            devices,
            version: plain(said.version, "-.+"),
            overhead_bytes: said.overhead_bytes,
            threads: said.threads as usize,
            free_disk_bytes: said.free_disk_bytes,
            store_limit_bytes: Some(said.store_limit_bytes).filter(|limit| *limit > 0),
            stored_bytes: said.stored_bytes,
            partial: said
                .partial
                .iter()
                .filter_map(|(name, bytes)| Some((name.parse().ok()?, *bytes)))
                .collect(),
            clock_ms: said.clock_ms,
            held_by: Some(plain(said.held_by, "-_. ()")).filter(|holder| !holder.is_empty()),
            blobs: said.blobs.iter().filter_map(|name| name.parse().ok()).collect(),
            instance: said.instance,
            system: plain(said.system, "-_. "),
        })
    }
}

impl From<wire::Device> for OfferedDevice {
    fn from(said: wire::Device) -> Self {
        Self {
            name: plain(said.name, "-_."),
            budget_bytes: said.budget_bytes,
            resident: ResidentCosts::from_names(&said.resident_permille),
            arithmetic: Some(plain(said.arithmetic, "-")).filter(|name| !name.is_empty()),
        }
    }
}

/// What of a word of a worker's may go to a terminal: letters, digits and `others`.
pub(super) fn plain(mut word: String, others: &str) -> String {
    word.retain(|c| c.is_ascii_alphanumeric() || others.contains(c));
    word.truncate(63);
    word
}

fn by_name<S: Serializer>(costs: &ResidentCosts, to: S) -> Result<S::Ok, S::Error> {
    costs.names().serialize(to)
}

#[cfg(test)]
mod tests {
    use cake_checkpoint::Affine;

    use super::*;

    fn device(name: &str) -> wire::Device {
        wire::Device { name: name.to_owned(), budget_bytes: 7, ..wire::Device::default() }
    }

    fn described(devices: Vec<wire::Device>) -> Result<Offer, OfferError> {
        Offer::try_from(wire::Description { devices, ..wire::Description::default() })
    }

    #[test]
    fn a_worker_describes_every_device_that_it_has() {
        let offer = described(vec![device("cpu"), device("cuda")]).expect("two");
        let names: Vec<&str> = offer.devices.iter().map(|device| &*device.name).collect();
        assert_eq!((names, offer.budget_bytes()), (vec!["cpu", "cuda"], 7));
    }

    #[test]
    fn plans_use_the_first_device_that_computes_with_the_whole_model() {
        let (packed, plain) =
            (Encoding::Affine(Affine::Q4), Encoding::Float(cake_checkpoint::FloatType::BF16));
        let with = |name: &str, encodings: &[Encoding]| {
            let names = encodings.iter().map(|encoding| (encoding.to_string(), 1000));
            wire::Device { resident_permille: names.collect(), ..device(name) }
        };
        let devices = vec![with("cpu", &[plain]), with("cuda", &[plain, packed])];
        let offer = described(devices).expect("two");
        assert_eq!(offer.device_for(&[plain]), Ok(0));
        assert_eq!(offer.device_for(&[plain, packed]), Ok(1));
        let f32 = Encoding::Float(cake_checkpoint::FloatType::F32);
        assert_eq!(offer.device_for(&[plain, packed, f32]), Err(vec![packed, f32]));
    }

    #[test]
    fn a_worker_without_devices_or_with_too_many_is_refused() {
        for count in [0, limits::DEVICES + 1, 100_000] {
            let devices = (0..count).map(|index| device(&index.to_string())).collect();
            let error = described(devices).expect_err("refused").to_string();
            assert_eq!(error, format!("it describes {count} devices, expected 1 to 8"));
        }
        let error = described(vec![device("cpu"), device("c\np\u{7}u")]).expect_err("refused");
        assert_eq!(error.to_string(), "it describes device \"cpu\" twice");
    }
}
