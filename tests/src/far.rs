//! The demo's model on a worker so far away that a long answer takes many seconds, however fast the machine is.
use std::path::PathBuf;
use std::time::Duration;

use crate::{Link, Master, TestWorker, Weather, demo_model};

/// One way.
const LATENCY: Duration = Duration::from_millis(10);
const LAYERS: usize = 12;

/// The worker, which holds the blobs already, and a master that has none but it.
#[derive(Debug)]
pub struct Far {
    /// The master.
    pub master: Master,
    /// The model.
    pub model: PathBuf,
    _link: Link,
    _worker: TestWorker,
}

impl Far {
    /// Arguments that place all layers there.
    pub const PLACE: [&str; 2] = ["--place", "far=0..12"];

    /// Starts the worker.
    ///
    /// # Panics
    /// If that fails, or the push to it.
    #[track_caller]
    pub fn start() -> Self {
        let model = demo_model();
        let worker = TestWorker::new("far");
        Master::over([&worker]).push(&model, &[("far", 0, LAYERS)]); // Not from far away.
        let link = Link::start(&worker.address, 1);
        link.set(Weather { latency: LATENCY, ..Weather::default() });
        let master = Master::at([link.address.clone()]);
        Self { master, model, _link: link, _worker: worker }
    }
}
