//! A master with an authority, and workers that joined it.
use cake_identity::{Authority, Security};
use serde_json::Value;

use crate::{Invitation, Master, TestWorker, WorkerOptions};

/// Members of one cluster.
#[derive(Debug)]
pub struct Cluster {
    /// Its master.
    pub master: Master,
    /// Those that joined, in the order of joining.
    pub workers: Vec<TestWorker>,
}

impl Cluster {
    /// Of workers of these names.
    ///
    /// # Panics
    /// If they cannot join.
    #[track_caller]
    pub fn new(names: &[&str]) -> Self {
        Self::with(names, &[])
    }

    /// The same; the authority is made with these arguments.
    ///
    /// # Panics
    /// As [`Cluster::new`].
    #[track_caller]
    pub fn with(names: &[&str], init: &[&str]) -> Self {
        let master = Master::alone();
        master.run(&[&["init"], init].concat()).success();
        let mut cluster = Self { master, workers: Vec::new() };
        let join = names.iter().map(|name| (*name, WorkerOptions::default()));
        cluster.join(join.collect());
        cluster
    }

    /// Lets these workers join, too.
    ///
    /// # Panics
    /// If they cannot.
    #[track_caller]
    pub fn join(&mut self, workers: Vec<(&str, WorkerOptions<'_>)>) {
        if workers.is_empty() {
            return; // No token is for nobody.
        }
        let invitation = Invitation::from(&self.master, workers.len());
        for (name, mut options) in workers {
            options.args.extend(invitation.args());
            self.workers.push(TestWorker::start(name, options));
        }
        invitation.used_up();
    }

    /// What `workers list` says.
    ///
    /// # Panics
    /// If it is no list.
    #[track_caller]
    pub fn list(&self) -> Vec<Value> {
        let list = self.master.json(&["workers", "list", "--json"]);
        list.as_array().expect("a list").clone()
    }

    /// The master's authority.
    ///
    /// # Panics
    /// If it cannot be opened.
    #[track_caller]
    pub fn authority(&self) -> Authority {
        let directory = self.master.state().join("authority");
        Authority::open(&directory).expect("readable").expect("made at first")
    }

    /// How a process of the master connects.
    ///
    /// # Panics
    /// If the authority gives no certificate.
    #[track_caller]
    pub fn security(&self) -> Security {
        let identity = self.authority().master_identity().expect("made");
        Security::mutual(&identity).expect("usable")
    }

    /// Lets the master look for a member at another address from now on, such as that of a proxy.
    ///
    /// # Panics
    /// If there is no such member.
    #[track_caller]
    pub fn look_for(&self, name: &str, address: &str) {
        let found = self.authority().book().update(|book| {
            let worker = book.workers.iter_mut().find(|worker| worker.name == name);
            worker.map(|worker| address.clone_into(&mut worker.address))
        });
        found.expect("the book can be written").expect("a member of this name");
    }
}
