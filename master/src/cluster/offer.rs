//! What a worker says of itself, made fit for numbers and terminals.
use std::collections::{HashMap, HashSet};

use cake_checkpoint::{Digest, Encoding, KvDtype};
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
    /// Model of its processor.
    pub processor: String,
    /// What was measured to help that to read weights, if that was measured.
    pub prefetch: Option<String>,
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
    /// What keys and values may be kept as there.
    #[serde(rename = "kv_dtypes", serialize_with = "kv_by_name")]
    pub kv: Vec<KvDtype>,
}

/// What a device has to do for a model.
#[derive(Clone, Copy, Debug)]
pub struct Demands<'a> {
    /// How the matrices are stored that it multiplies with.
    pub encodings: &'a [Encoding],
    /// What it keeps keys and values as.
    pub kv: KvDtype,
}

/// What a master's name has beside letters and digits.
const HOLDER: &str = "-_. ()";
/// What every worker keeps keys and values as, also one that says nothing of that.
const KV_OF_ALL: [KvDtype; 2] = [KvDtype::F32, KvDtype::F16];

impl Demands<'_> {
    /// Those that not every worker meets, for people.
    pub fn names(&self) -> Vec<String> {
        names(self.encodings, (!KV_OF_ALL.contains(&self.kv)).then_some(self.kv))
    }

    /// Those that this device does not meet, for people.
    fn not_met(&self, device: &OfferedDevice) -> Vec<String> {
        let kv = (!device.kv.contains(&self.kv)).then_some(self.kv);
        names(&device.resident.lacks(self.encodings), kv)
    }
}

fn names(encodings: &[Encoding], kv: Option<KvDtype>) -> Vec<String> {
    let kv = kv.map(|kv| format!("{kv} keys and values"));
    encodings.iter().map(Encoding::to_string).chain(kv).collect()
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

    /// Which master holds it other than the one called `own`: a worker may not have heard yet that it was let go.
    pub fn held_by_another(&self, own: &str) -> Option<String> {
        self.held_by.clone().filter(|holder| *holder != plain(own.to_owned(), HOLDER))
    }

    /// The place of the device that plans use where so much is demanded: the first that does all of it.
    ///
    /// # Errors
    /// What the first device does not do, for people, if none does all.
    pub fn device_for(&self, demands: Demands<'_>) -> Result<usize, Vec<String>> {
        let lacks = |device: &OfferedDevice| demands.not_met(device);
        let able = self.devices.iter().position(|device| lacks(device).is_empty());
        able.ok_or_else(|| self.devices.first().map_or_else(|| demands.names(), lacks))
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
            held_by: Some(plain(said.held_by, HOLDER)).filter(|holder| !holder.is_empty()),
            blobs: said.blobs.iter().filter_map(|name| name.parse().ok()).collect(),
            instance: said.instance,
            system: plain(said.system, "-_. "),
            processor: plain(said.processor, "-_. @()"),
            prefetch: Some(plain(said.prefetch, "+-")).filter(|it| !it.is_empty()),
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
            kv: match said.kv_dtypes.is_empty() {
                true => KV_OF_ALL.to_vec(),
                // Those that are not known here are passed over.
                false => said.kv_dtypes.iter().filter_map(|name| name.parse().ok()).collect(),
            },
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

fn kv_by_name<S: Serializer>(kinds: &[KvDtype], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(kinds.iter().map(KvDtype::to_string))
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
        let device_for = |encodings: &[Encoding], kv| offer.device_for(Demands { encodings, kv });
        assert_eq!(device_for(&[plain], KvDtype::F16), Ok(0));
        assert_eq!(device_for(&[plain, packed], KvDtype::F16), Ok(1));
        let f32 = Encoding::Float(cake_checkpoint::FloatType::F32);
        let lacking = vec!["affine-4-64".to_owned(), "F32".to_owned()];
        assert_eq!(device_for(&[plain, packed, f32], KvDtype::F16), Err(lacking));
    }

    #[test]
    fn a_worker_that_says_nothing_of_keys_and_values_keeps_what_the_first_ones_did() {
        let with = |name: &str, kinds: &[&str]| {
            let kv_dtypes = kinds.iter().map(|kind| (*kind).to_owned()).collect();
            wire::Device { kv_dtypes, ..device(name) }
        };
        let device_for = |offer: &Offer, kv| offer.device_for(Demands { encodings: &[], kv });
        let old = described(vec![device("cpu")]).expect("one");
        assert_eq!(device_for(&old, KvDtype::F32), Ok(0));
        assert_eq!(device_for(&old, KvDtype::F16), Ok(0));
        let lacking = Err(vec!["q8 keys and values".to_owned()]);
        assert_eq!(device_for(&old, KvDtype::Q8), lacking);
        let new = described(vec![with("cpu", &["f16"]), with("cuda", &["q2", "q8"])]).expect("two");
        assert_eq!(device_for(&new, KvDtype::Q8), Ok(1));
        assert_eq!(device_for(&new, KvDtype::F32), Err(vec!["f32 keys and values".to_owned()]));
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
