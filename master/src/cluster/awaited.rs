//! Workers that the next model may be loaded over: asked who they are, and held by nobody here.
use std::collections::HashSet;

use cake_proto::ConnectError;
use futures_util::future::join_all;
use serde::Serialize;

use super::{ALIVE_TIMEOUT, Whereabouts, free_name, look};

/// A worker at an address that a person gave, as it was when it was last asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Awaited {
    /// Its name, or its address where nothing that can be used answers there.
    pub name: String,
    /// Its id, if it answers.
    pub worker_id: Option<String>,
    /// Whether it answers, as a worker that can be used.
    pub online: bool,
    /// Which other master holds it.
    pub held_by: Option<String>,
    /// Bytes that it offers, of the device that it would rather use.
    pub memory_bytes: Option<u64>,
    /// Names of what computes there, that device first.
    pub devices: Vec<String>,
    /// Threads that it computes with.
    pub threads: Option<usize>,
    /// Why it cannot be used.
    pub why: Option<String>,
}

impl Whereabouts {
    /// Asks those at the addresses given who they are, for the master called `master`, and holds none; those that joined are
    /// not asked. May be dropped at any time.
    pub async fn ask(&self, master: &str) -> Vec<Awaited> {
        if self.is_of_members() {
            return Vec::new();
        }
        let (security, addresses) = (self.membership.security(), self.addresses());
        let looks = join_all(addresses.iter().map(|address| async move {
            let said = tokio::time::timeout(ALIVE_TIMEOUT, look(security, address)).await;
            let reason = "no answer in time".to_owned();
            let silent = || ConnectError::Unreachable { address: address.clone(), reason };
            said.unwrap_or_else(|_| Err(silent().into()))
        }));
        let (mut awaited, mut instances, mut taken) = (Vec::new(), HashSet::new(), HashSet::new());
        for (said, address) in looks.await.into_iter().zip(&addresses) {
            let mut one = match said {
                // One worker may have two addresses.
                Ok((_, offer)) if !instances.insert(offer.instance.clone()) => continue,
                Ok((_, offer)) => Awaited {
                    memory_bytes: Some(offer.budget_bytes()),
                    devices: offer.devices.iter().map(|device| device.name.clone()).collect(),
                    threads: Some(offer.threads),
                    held_by: offer.held_by_another(master),
                    name: self.membership.name_given(&offer.worker_id).unwrap_or(offer.name),
                    worker_id: Some(offer.worker_id),
                    online: true,
                    why: None,
                },
                Err(error) => Awaited {
                    name: address.clone(),
                    worker_id: None,
                    online: false,
                    held_by: None,
                    memory_bytes: None,
                    devices: Vec::new(),
                    threads: None,
                    why: Some(error.to_string()),
                },
            };
            one.name = free_name(&one.name, taken.clone()); // As plans will call it.
            taken.insert(one.name.clone());
            awaited.push(one);
        }
        awaited
    }
}
