//! What the door for clients counts.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::label::Label;

/// Connections, requests and their bodies.
#[derive(Clone, Debug, Default)]
pub struct Http {
    connections: Gauge,
    ended: Family<Label, Counter>,
    answers: Family<Label, Counter>,
    bodies: Gauge,
}

/// Why the server ended a connection, or did not take it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Not taken: all places were taken by requests.
    Full,
    /// Not taken: the system had no file for it.
    Files,
    /// It had nothing to do, and another one needed its place.
    Room,
    /// It said nothing for too long, or not all of what it had begun to say.
    Late,
}

impl Http {
    pub(super) fn register(&self, to: &mut Registry) {
        let help = "Connections of clients";
        to.register("http_connections", help, self.connections.clone());
        let help = "Connections of clients that the server ended or did not take, by why";
        to.register("http_connections_ended", help, self.ended.clone());
        let help = "Answers to requests, by status";
        to.register("http_answers", help, self.answers.clone());
        let help = "Bytes kept for bodies of requests that are being read";
        to.register_with_unit("http_bodies", help, Unit::Bytes, self.bodies.clone());
    }

    /// There are so many connections.
    pub fn connected(&self, connections: usize) {
        self.connections.set(i64::try_from(connections).unwrap_or(i64::MAX));
    }

    /// A connection ended by the server's will, or was not taken.
    pub fn ended(&self, why: Ended) {
        let why = match why {
            Ended::Full => "full",
            Ended::Files => "files",
            Ended::Room => "room",
            Ended::Late => "late",
        };
        self.ended.get_or_create(&[("why", why.to_owned())]).inc();
    }

    /// A request was answered with this status.
    pub fn answered(&self, status: u16) {
        self.answers.get_or_create(&[("status", status.to_string())]).inc();
    }

    /// So many bytes are kept for bodies.
    pub fn bodies(&self, bytes: usize) {
        self.bodies.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }
}
