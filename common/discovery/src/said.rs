//! What is said about whoever takes part, and what of it is believed enough to be looked at.

use std::net::{IpAddr, SocketAddr};

use mdns_sd::ResolvedService;

/// Longest id or name of a cluster that is looked at.
const WORD: usize = 32;
/// Most addresses of one sighting: what a device with some networks has.
const ADDRESSES: usize = 8;

pub(crate) const ROLE: &str = "role";
pub(crate) const CLUSTER: &str = "cluster";
pub(crate) const ID: &str = "id";

/// What somebody is in a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The master, whose door workers come to.
    Master,
    /// A worker, which its master calls on.
    Worker,
}

impl Role {
    /// As it is said on the network.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Role::Master => "master",
            Role::Worker => "worker",
        }
    }

    /// Whom this one looks for.
    pub(crate) fn other(self) -> Self {
        match self {
            Role::Master => Role::Worker,
            Role::Worker => Role::Master,
        }
    }
}

/// Where somebody is said to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// Who, as it is said.
    pub id: String,
    /// Where, those of IPv4 first; at least one and not many.
    pub addresses: Vec<SocketAddr>,
}

impl Sighting {
    /// What a service record says, if it is about the role that is looked for in this cluster.
    pub(crate) fn of(service: &ResolvedService, wanted: Role, cluster: &str) -> Option<Self> {
        let said = |key| service.get_property_val_str(key).unwrap_or_default();
        if said(ROLE) != wanted.word() || said(CLUSTER) != cluster {
            return None;
        }
        let ips = service.get_addresses().iter().map(mdns_sd::ScopedIp::to_ip_addr);
        Self::checked(said(ID), ips, service.get_port())
    }

    /// With what can be used of it, if that is enough.
    fn checked(id: &str, ips: impl Iterator<Item = IpAddr>, port: u16) -> Option<Self> {
        let usable = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if id.is_empty() || id.len() > WORD || !id.chars().all(usable) || port == 0 {
            return None;
        }
        let mut ips: Vec<IpAddr> = ips.filter(can_be_called).collect();
        ips.sort(); // IPv4 comes first.
        ips.dedup();
        ips.truncate(ADDRESSES);
        let addresses: Vec<_> = ips.into_iter().map(|ip| SocketAddr::new(ip, port)).collect();
        (!addresses.is_empty()).then(|| Self { id: id.to_owned(), addresses })
    }
}

/// Whether another device can be there, at an address that means the same to all devices of the network.
fn can_be_called(ip: &IpAddr) -> bool {
    let ip = ip.to_canonical();
    let one = !ip.is_unspecified() && !ip.is_loopback() && !ip.is_multicast();
    match ip {
        IpAddr::V4(v4) => one && !v4.is_broadcast(),
        // One of a link is of use with the name that the link has on a device.
        IpAddr::V6(v6) => one && !v6.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use mdns_sd::ServiceInfo;

    use super::*;

    fn checked(id: &str, ips: &[&str], port: u16) -> Option<Vec<String>> {
        let ips = ips.iter().map(|ip| ip.parse().expect("an address"));
        let addresses = Sighting::checked(id, ips, port)?.addresses;
        Some(addresses.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn of_addresses_those_are_kept_that_another_device_can_have() {
        let own = ["127.0.0.1", "::1", "0.0.0.0", "fe80::1", "224.0.0.251", "255.255.255.255"];
        assert_eq!(checked("ab", &own, 7), None);
        let two = checked("ab", &["fd00::1", "10.0.0.2", "10.0.0.2"], 7).expect("two");
        assert_eq!(two, ["10.0.0.2:7", "[fd00::1]:7"]);
        let many: Vec<String> = (1..100).map(|last| format!("10.0.0.{last}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(checked("ab", &many, 7).map(|kept| kept.len()), Some(ADDRESSES));
    }

    #[test]
    fn refuses_ids_that_nobody_has_and_port_zero() {
        for id in ["", "a b", "../x", "a\u{1b}[2J", &"f".repeat(WORD + 1)] {
            assert_eq!(checked(id, &["10.0.0.2"], 7), None, "{id:?}");
        }
        assert_eq!(checked("ab", &["10.0.0.2"], 0), None);
    }

    #[test]
    fn other_clusters_and_the_own_role_are_not_seen() {
        let said = |role: &str, cluster: &str| {
            let words = [(ROLE, role), (CLUSTER, cluster), (ID, "ab")];
            let made =
                ServiceInfo::new("_cake._tcp.local.", "x", "x.local.", "10.0.0.2", 7, &words[..]);
            made.expect("a service").as_resolved_service()
        };
        let seen = |role, cluster| {
            Sighting::of(&said(role, cluster), Role::Worker, "c1").map(|sighting| sighting.id)
        };
        assert_eq!(seen("worker", "c1").as_deref(), Some("ab"));
        assert_eq!(seen("worker", "c2"), None);
        assert_eq!(seen("master", "c1"), None);
        assert_eq!(seen("", ""), None);
    }
}
