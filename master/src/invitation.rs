//! What lets another worker join: a token, and where and how it is used.
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use cake_identity::Authority;
use qrcode::{Color, QrCode};
use serde::Serialize;

use crate::membership::{DOOR_PORT, Error, Membership};

/// Shortest and longest time a token may be good for.
pub const TTL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30 * 24 * 3600));
/// Most workers that may join with one token.
pub const MOST_USES: u32 = 10_000;

/// A token, and what is to be done with it.
#[derive(Clone, Debug, Serialize)]
pub struct Invitation {
    /// What the worker shows.
    pub token: String,
    /// How long it may join with it.
    pub ttl_seconds: u64,
    /// How many workers may.
    pub uses: u32,
    /// Where workers join, as far as this machine knows.
    pub master: String,
    /// Whether a door is open there now.
    pub door_open: bool,
}

impl Invitation {
    /// Makes a token for so many workers, which is good for so long. `door` is where they join if one is open, and `own`
    /// where others find this machine. Waits for a disk.
    ///
    /// # Errors
    /// [`Error::Identity`] if the token cannot be remembered.
    pub fn make(
        authority: &Authority,
        (ttl, uses): (Duration, u32),
        door: Option<SocketAddr>,
        own: Option<IpAddr>,
    ) -> Result<Self, Error> {
        let token = authority.issue_token(ttl, uses)?.to_string();
        let (master, door_open) = (place(door, own), door.is_some());
        Ok(Self { token, ttl_seconds: ttl.as_secs(), uses, master, door_open })
    }

    /// What is typed on the device that is to join, where the worker is installed.
    pub fn command(&self) -> String {
        let Self { token, master, .. } = self;
        format!("cake-worker --listen 0.0.0.0:7117 --master {master} --token {token}")
    }

    /// What is typed on one to which nobody can connect, as most phones, whose system says more is free than it gives.
    pub fn command_of_phones(&self) -> String {
        let Self { token, master, .. } = self;
        format!("cake-worker --no-listen --master {master} --token {token} --memory 2GiB")
    }

    /// The token as a QR code: its rows, `true` where it is dark; none if it is too long for one.
    pub fn code(&self) -> Option<Vec<Vec<bool>>> {
        let code = QrCode::new(&self.token).ok()?;
        let dark: Vec<bool> =
            code.to_colors().into_iter().map(|color| color == Color::Dark).collect();
        Some(dark.chunks(code.width()).map(<[bool]>::to_vec).collect())
    }
}

/// A door that processes of this master have open: the one that is found without being told, or else any. Waits for a
/// disk.
pub fn open_door(membership: &Membership) -> Option<SocketAddr> {
    usual_first(membership.doors())
}

fn usual_first(mut open: Vec<SocketAddr>) -> Option<SocketAddr> {
    open.sort_by_key(|address| (address.port() != DOOR_PORT, *address));
    open.into_iter().next()
}

/// What a worker is told of where to join: at the door that is open, or else at the usual one. A door on every
/// address of this machine is at its `own` one for others.
fn place(door: Option<SocketAddr>, own: Option<IpAddr>) -> String {
    let port = door.map_or(DOOR_PORT, |door| door.port());
    let listens = door.map(|door| door.ip()).filter(|ip| !ip.is_unspecified());
    let host = listens.or(own);
    host.map_or(format!("MASTER:{port}"), |host| SocketAddr::new(host, port).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_sent_to_the_door_that_is_open() {
        let address = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let own = Some("192.168.1.2".parse().expect("an address"));
        assert_eq!(place(None, own), "192.168.1.2:7116");
        assert_eq!(place(None, None), "MASTER:7116");
        assert_eq!(place(Some(address("0.0.0.0:7200")), own), "192.168.1.2:7200");
        assert_eq!(place(Some(address("127.0.0.1:9")), own), "127.0.0.1:9");
        let open = ["127.0.0.1:9", "0.0.0.0:7116"].map(address).to_vec();
        assert_eq!(usual_first(open), Some(address("0.0.0.0:7116")));
        assert_eq!(usual_first(Vec::new()), None);
    }

    #[test]
    fn a_token_is_a_square_of_dark_and_light() {
        let invitation = Invitation {
            token: "cake-join-abc".to_owned(),
            ttl_seconds: 60,
            uses: 1,
            master: "a:1".to_owned(),
            door_open: true,
        };
        let rows = invitation.code().expect("short");
        assert!(rows.len() >= 21 && rows.iter().all(|row| row.len() == rows.len()));
        // The corner that a camera looks for: a dark frame of seven.
        assert_eq!(rows[0][..8], [true, true, true, true, true, true, true, false]);
        let long = Invitation { token: "x".repeat(5000), ..invitation };
        assert_eq!(long.code(), None);
        assert!(long.command().contains("--listen 0.0.0.0:7117 --master a:1 --token xxx"));
        assert!(long.command_of_phones().contains("--no-listen --master a:1 --token xxx"));
    }
}
