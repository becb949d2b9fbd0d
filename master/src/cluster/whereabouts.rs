//! Which workers a command is about, and where they are now.
use tracing::warn;

use super::{Error, Member, hold_all};
use crate::membership::Membership;

/// Workers at the addresses that a person gave, or else those that joined.
#[derive(Clone, Debug, Default)]
pub struct Whereabouts {
    /// How they are reached, and who joined.
    pub membership: Membership,
    /// The addresses given.
    typed: Vec<String>,
    alone: bool,
}

impl Whereabouts {
    /// `typed` are the addresses given; with `alone` not even those that joined are meant.
    pub fn new(membership: Membership, typed: Vec<String>, alone: bool) -> Self {
        Self { membership, typed, alone }
    }

    /// Where they were last known to be.
    pub fn addresses(&self) -> Vec<String> {
        if self.alone {
            return Vec::new();
        }
        if !self.typed.is_empty() {
            return self.typed.clone();
        }
        self.membership.members().into_iter().map(|member| member.address).collect()
    }

    /// Holds them for the master called `master`. All that were named have to be there; of those that joined, the
    /// ones that are.
    ///
    /// # Errors
    /// As [`hold_all`].
    pub async fn hold(&self, master: &str) -> Result<Vec<Member>, Error> {
        let addresses = self.addresses();
        if !self.typed.is_empty() {
            return hold_all(&self.membership, &addresses, master).await;
        }
        let looks = addresses.iter().map(|address| {
            let security = self.membership.security();
            async move { (address, super::look(security, address).await) }
        });
        let mut there = Vec::new();
        for (address, look) in futures_util::future::join_all(looks).await {
            match look {
                Ok(_) => there.push(address.clone()),
                Err(error) => warn!(%error, "a member is not there"),
            }
        }
        hold_all(&self.membership, &there, master).await
    }
}
