//! Somebody on the network who says by multicast DNS whatever there is to say.
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};

use crate::Lan;

/// Where multicast DNS is spoken, and the only port from which answers are taken.
const GROUP: &str = "224.0.0.251:5353";
const PORT: u16 = 5353;
/// Types and the class of records; an answer with authority.
const A: u16 = 1;
const PTR: u16 = 12;
const TXT: u16 = 16;
const SRV: u16 = 33;
const IN: u16 = 1;
const ANSWER: u16 = 0x8400;
/// How long what is said is good for (seconds).
const TTL: u32 = 4500;

/// A liar at the switch.
#[derive(Debug)]
pub struct Liar(UdpSocket);

impl Liar {
    /// One on this network, whose switch the present thread has entered.
    ///
    /// # Panics
    /// If the thread is elsewhere.
    pub fn on(lan: &Lan) -> Self {
        let socket = UdpSocket::bind((lan.ip().as_str(), PORT)).expect("the switch's address");
        Self(socket)
    }

    /// Says that a member of `cluster` called `id` is in this role, at `port` of the liar's own address.
    ///
    /// # Panics
    /// If the network takes nothing.
    pub fn say(&self, cluster: &str, role: &str, id: &str, port: u16) {
        let ip = match self.0.local_addr().expect("bound").ip() {
            std::net::IpAddr::V4(ip) => ip,
            std::net::IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED, // A switch has none.
        };
        self.say_at(cluster, role, id, SocketAddrV4::new(ip, port));
    }

    /// The same, but at an address that somebody else has.
    ///
    /// # Panics
    /// If the network takes nothing.
    pub fn say_at(&self, cluster: &str, role: &str, id: &str, address: SocketAddrV4) {
        let service = ["_cake", "_tcp", "local"];
        let instance = [&[id], &service[..]].concat();
        let host = [id, "local"];
        let words = [format!("role={role}"), format!("cluster={cluster}"), format!("id={id}")];
        let text = words.iter().flat_map(|word| [&[word.len() as u8], word.as_bytes()].concat());
        let place = [&[0; 4], &address.port().to_be_bytes()[..], &name(&host)].concat();
        let records = [
            record(&service, PTR, &name(&instance)),
            record(&instance, SRV, &place),
            record(&instance, TXT, &text.collect::<Vec<u8>>()),
            record(&host, A, &address.ip().octets()),
        ];
        let header = [0, ANSWER, 0, records.len() as u16, 0, 0].map(u16::to_be_bytes).concat();
        let message = [header, records.concat()].concat();
        self.0.send_to(&message, GROUP).expect("sent");
    }
}

/// Labels, each after its length.
fn name(labels: &[&str]) -> Vec<u8> {
    let label = |label: &&str| [&[label.len() as u8], label.as_bytes()].concat();
    labels.iter().flat_map(label).chain([0]).collect()
}

fn record(owner: &[&str], kind: u16, data: &[u8]) -> Vec<u8> {
    let (kind, class, len) = (kind.to_be_bytes(), IN.to_be_bytes(), data.len() as u16);
    [&name(owner), &kind[..], &class, &TTL.to_be_bytes(), &len.to_be_bytes(), data].concat()
}
