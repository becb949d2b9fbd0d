//! Workers that are held, as people are told.

use serde::Serialize;

use crate::cluster::Battery;

/// What a worker that is held is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Duty {
    /// It has layers.
    Layers,
    /// It has none.
    Spare,
    /// Its owner wants it free: its layers go elsewhere, or have gone.
    Draining,
    /// It asked to go itself.
    Leaving,
    /// It gets no layers for a short while, for what it did.
    Paused,
    /// It gets none for long, for what it did.
    Quarantined,
}

/// A worker that is held.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Present {
    /// Its id.
    pub worker_id: String,
    /// Its name in plans.
    pub name: String,
    /// What it is there for.
    pub duty: Duty,
    /// Why it has no layers, if that is known.
    pub why: Option<String>,
    /// Bytes that it offers, on the device that it would rather use.
    pub budget_bytes: u64,
    /// Operating system and architecture.
    pub system: String,
    /// Model of its processor.
    pub processor: String,
    /// Threads that it computes with.
    pub threads: usize,
    /// Version of its build.
    pub version: String,
    /// Names of what computes there.
    pub devices: Vec<String>,
    /// Free bytes where its store is.
    pub free_disk_bytes: u64,
    /// Bytes in its store.
    pub stored_bytes: u64,
    /// Its battery, if it has one and tells.
    pub battery: Option<Battery>,
    /// How warm its processor is, in °C, if it tells.
    pub celsius: Option<u8>,
}

/// Who came and who went between two looks, in words.
pub(crate) fn changes(before: &[Present], now: &[Present]) -> Vec<String> {
    let lacks = |all: &[Present], one: &Present| all.iter().all(|it| it.worker_id != one.worker_id);
    let came = now.iter().filter(|one| lacks(before, one));
    let went = before.iter().filter(|one| lacks(now, one));
    let came = came.map(|one| format!("{} is there", one.name));
    came.chain(went.map(|one| format!("{} is gone", one.name))).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A worker with nothing to do.
    pub(crate) fn spare(name: &str) -> Present {
        Present {
            worker_id: format!("id of {name}"),
            name: name.to_owned(),
            duty: Duty::Spare,
            why: None,
            budget_bytes: 1 << 30,
            system: "linux x86_64".to_owned(),
            processor: String::new(),
            threads: 2,
            version: "1".to_owned(),
            devices: vec!["cpu".to_owned()],
            free_disk_bytes: 7,
            stored_bytes: 0,
            battery: None,
            celsius: None,
        }
    }

    #[test]
    fn who_comes_and_goes_is_told_once() {
        let (kitchen, attic) = (spare("kitchen"), spare("attic"));
        let both = [kitchen.clone(), attic];
        assert_eq!(changes(&both[..1], &both), ["attic is there"]);
        assert_eq!(changes(&both, &both[..1]), ["attic is gone"]);
        assert_eq!(changes(&both, &both), [""; 0]);
        let renamed = Present { name: "cellar".to_owned(), ..kitchen };
        assert_eq!(changes(&both[..1], &[renamed]), [""; 0]);
    }
}
