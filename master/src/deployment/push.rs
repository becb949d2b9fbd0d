//! A plan's blobs to the workers that lack them.
use std::sync::Arc;

use tokio::sync::oneshot;

use super::Error;
use super::facts::PushReport;
use super::prepared::Prepared;
use crate::distributor::{self, Progress, WorkerProgress};

impl Prepared {
    /// Pushes what is missing; whoever observes follows how far it is.
    ///
    /// # Errors
    /// Disks without room, workers that do not take their blobs.
    pub(crate) async fn push(&self) -> Result<PushReport, Error> {
        let started = std::time::Instant::now();
        let assignments = self.assignments();
        distributor::check_disk(&assignments, &self.manifests)?;
        let total = |layers: cake_checkpoint::LayerRange| {
            layers.iter().map(|layer| self.manifests.blob_bytes(layer)).sum()
        };
        let workers = assignments
            .iter()
            .map(|one| WorkerProgress::new(one.member.name(), total(one.layers)))
            .collect();
        let progress = Arc::new(Progress { workers });
        if let Some(monitor) = &self.monitor {
            monitor.pushing(&progress);
        }
        let (end, ended) = oneshot::channel();
        let push = async {
            let pushed = distributor::push_all(&assignments, &self.manifests, &progress).await;
            drop(end);
            pushed
        };
        let (workers, ()) = tokio::join!(push, self.observer.follow(progress.clone(), ended));
        let workers = workers?;
        Ok(PushReport {
            pushed_bytes: workers.iter().map(|one| one.pushed_bytes).sum(),
            reused_bytes: workers.iter().map(|one| one.reused_bytes).sum(),
            seconds: started.elapsed().as_secs_f64(),
            workers,
        })
    }
}
