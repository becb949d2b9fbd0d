//! Hosts on a network of our own: network namespaces that a bridge joins, in which the real programs run.
//!
//! ```text
//! host a  10.77.0.1 ──veth──┐
//! host b  10.77.0.2 ──veth──┤ bridge, in the namespace of the switch (10.77.0.254)
//! host c  10.77.0.3 ──veth──┘
//! ```
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Where the system keeps names of namespaces.
const NAMESPACES: &str = "/run/netns";
/// What names of our namespaces begin with; the process that made them follows.
const PREFIX: &str = "cake-";
/// The first three numbers of all addresses.
const NET: &str = "10.77.0";
/// The switch's own last number.
const SWITCH: u8 = 254;

/// Hosts and the switch between them. Removed when dropped, which is to come after what runs on them.
#[derive(Debug)]
pub struct Lan {
    switch: String,
    hosts: Vec<String>,
}

/// One host's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its namespace.
    pub namespace: String,
    /// Its address.
    pub ip: String,
    /// The bridge's end of its cable, in the switch's namespace.
    port: String,
    switch: String,
}

impl Lan {
    /// So many hosts on one network, where the one at place 0 is `10.77.0.1`.
    ///
    /// # Errors
    /// Why there can be none here, in words.
    pub fn new(hosts: u8) -> Result<(Self, Vec<Host>), String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        clear_leftovers();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = |what: &str| format!("{PREFIX}{}-{number}-{what}", std::process::id());
        let switch = name("switch");
        ip(&["netns", "add", &switch])?;
        let mut lan = Self { switch: switch.clone(), hosts: Vec::new() };
        // Bytes of tests meet no filter of the system's: a namespace has none.
        let on_switch = |args: &[&str]| ip(&[&["-n", &switch], args].concat());
        on_switch(&["link", "set", "lo", "up"])?;
        on_switch(&[
            "link",
            "add",
            "bridge0",
            "type",
            "bridge",
            "forward_delay",
            "0",
            "mcast_snooping",
            "0",
        ])?;
        on_switch(&["addr", "add", &format!("{NET}.{SWITCH}/24"), "dev", "bridge0"])?;
        on_switch(&["link", "set", "bridge0", "up"])?;
        on_switch(&["route", "add", "224.0.0.0/4", "dev", "bridge0"])?;
        let mut made = Vec::new();
        for place in 1..=hosts {
            let (namespace, port) = (name(&place.to_string()), format!("port{place}"));
            ip(&["netns", "add", &namespace])?;
            lan.hosts.push(namespace.clone());
            on_switch(&[
                "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &namespace,
            ])?;
            on_switch(&["link", "set", &port, "master", "bridge0", "up"])?;
            let host =
                Host { namespace, ip: format!("{NET}.{place}"), port, switch: switch.clone() };
            host.run(&["link", "set", "lo", "up"])?;
            host.run(&["link", "set", "eth0", "up"])?;
            host.run(&["addr", "add", &format!("{}/24", host.ip), "dev", "eth0"])?;
            made.push(host);
        }
        Ok((lan, made))
    }

    /// The switch's own address.
    pub fn ip(&self) -> String {
        format!("{NET}.{SWITCH}")
    }

    /// Puts the present thread, and those that it will start, on the switch, from where every host is reached,
    /// until the result is dropped.
    ///
    /// # Panics
    /// If the system refuses what it allowed when the network was made.
    pub fn enter(&self) -> Entered {
        let before = File::open("/proc/thread-self/ns/net").expect("every thread is somewhere");
        move_into(&File::open(Path::new(NAMESPACES).join(&self.switch)).expect("made by us"));
        Entered { before }
    }
}

/// A thread on a switch.
#[derive(Debug)]
pub struct Entered {
    before: File,
}

impl Drop for Entered {
    fn drop(&mut self) {
        move_into(&self.before);
    }
}

fn move_into(namespace: &File) {
    let kind = Some(LinkNameSpaceType::Network);
    move_into_link_name_space(namespace.as_fd(), kind).expect("root may");
}

impl Drop for Lan {
    fn drop(&mut self) {
        for namespace in self.hosts.iter().chain([&self.switch]) {
            ip(&["netns", "del", namespace]).ok();
        }
    }
}

impl Host {
    /// A command that runs on this host as `command` would here.
    pub fn command(&self, command: &Command) -> Command {
        let mut there = Command::new("ip");
        there.args(["netns", "exec", &self.namespace]).arg(command.get_program());
        there.args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => there.env(name, value),
                None => there.env_remove(name),
            };
        }
        command.get_current_dir().map(|directory| there.current_dir(directory));
        there
    }

    /// Has another address from now on, and not the present one.
    ///
    /// # Panics
    /// If the system refuses.
    pub fn move_to(&mut self, last: u8) {
        let ip = format!("{NET}.{last}");
        let all = |result: Result<(), String>| result.expect("as when the host was made");
        // The second address of a network goes with the first one: so that one has to go before.
        all(self.run(&["addr", "del", &format!("{}/24", self.ip), "dev", "eth0"]));
        all(self.run(&["addr", "add", &format!("{ip}/24"), "dev", "eth0"]));
        self.ip = ip;
    }

    /// Has this address, too, to which no other host knows a way.
    ///
    /// # Panics
    /// If the system refuses.
    pub fn add_private(&self, ip: &str) {
        self.run(&["addr", "add", &format!("{ip}/32"), "dev", "lo"]).expect("as root");
    }

    /// Packets from here to `other` are lost from now on; all other ways stay.
    ///
    /// # Panics
    /// If the system refuses.
    pub fn cut_from(&self, other: &Host) {
        self.run(&["route", "add", "blackhole", &format!("{}/32", other.ip)]).expect("as root");
    }

    /// What comes to this host comes with so many bits in a second, at most.
    ///
    /// # Errors
    /// What the system lacks for that.
    pub fn limit(&self, megabits: u32) -> Result<(), String> {
        let rate = format!("{megabits}mbit");
        let args = ["qdisc", "add", "dev", &self.port, "root", "tbf", "rate", &rate];
        let bucket = ["burst", "16kb", "latency", "200ms"];
        run("tc", &[&["-n", &self.switch], &args[..], &bucket].concat())
    }

    fn run(&self, args: &[&str]) -> Result<(), String> {
        ip(&[&["-n", &self.namespace], args].concat())
    }
}

fn ip(args: &[&str]) -> Result<(), String> {
    run("ip", args)
}

fn run(program: &str, args: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(args).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(format!("{program} {}: {}", args.join(" "), said.trim()))
        }
    }
}

/// Removes what tests left that were killed.
fn clear_leftovers() {
    for entry in std::fs::read_dir(NAMESPACES).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()?.parse().ok());
        if pid.is_some_and(|pid: u32| !crate::process::alive(pid)) {
            ip(&["netns", "del", &name]).ok();
        }
    }
}
