//! A master's door that is open, and what workers need to come in.
use std::time::Duration;

use serde_json::Value;

use crate::{Master, Running};

const LIMIT: Duration = Duration::from_secs(120);

/// `cake-master token --wait`: ends when the token is used up.
#[derive(Debug)]
pub struct Invitation {
    /// Where the door is (HOST:PORT).
    pub master: String,
    /// The token.
    pub token: String,
    door: Running,
}

impl Invitation {
    /// Makes a token for so many workers and opens the door. The master has an authority.
    ///
    /// # Panics
    /// If that takes too long.
    #[track_caller]
    pub fn from(master: &Master, uses: usize) -> Self {
        let uses = uses.to_string();
        let join = format!("{}:0", master.ip());
        let args = ["token", "--wait", "--join", &join, "--json", "--uses", &uses];
        let mut door = Running::start(&mut master.bare(&args));
        door.wait_for("}", LIMIT);
        let issued: Value = serde_json::from_str(&door.stdout()).expect("JSON");
        let text = |name: &str| issued[name].as_str().expect("a text").to_owned();
        Self { master: text("master"), token: text("token"), door }
    }

    /// What a worker is started with.
    pub fn args(&self) -> Vec<String> {
        ["--master", &self.master, "--token", &self.token].map(str::to_owned).to_vec()
    }

    /// Waits until all have come in.
    ///
    /// # Panics
    /// If they do not.
    #[track_caller]
    pub fn used_up(self) {
        self.door.finish(LIMIT).success();
    }
}
