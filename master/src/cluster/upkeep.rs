//! What goes on beside the work for as long as a worker is held: who is shut out, and its certificate.
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use cake_proto::shut_out::pack;
use cake_proto::{Client, wire};
use tokio::sync::watch;
use tonic::Streaming;
use tracing::error;

use super::ANSWER_TIMEOUT;
use super::word::Word;
use crate::membership::Membership;

/// Pause before a list that did not arrive is sent again.
const RETRY: Duration = Duration::from_secs(1);
/// How often it is asked whether a certificate ends soon, at most and at least.
const LOOK: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(3600));

/// Follows the stream that a lease lives as long as to its end.
pub(super) async fn hold(
    mut stream: Streaming<wire::HoldEvent>,
    mut client: Client,
    membership: Membership,
    worker_id: String,
    word: Arc<Word>,
) {
    let lifetime = membership.authority().map_or(LOOK.1, |authority| authority.lifetime());
    let mut look = tokio::time::interval((lifetime / 12).clamp(LOOK.0, LOOK.1));
    let mut revoked = membership.security().revoked().map(|revoked| revoked.watch());
    // It may have changed since the lease was asked for: tell it once more.
    revoked.iter_mut().for_each(|revoked| revoked.mark_changed());
    loop {
        tokio::select! {
            event = stream.message() => match event {
                Ok(Some(event)) => {
                    word.hear(&event);
                    membership.news.notify_one();
                }
                _ => return,
            },
            list = changed(&mut revoked) => {
                let list: Vec<String> = list.into_iter().collect();
                let worker_ids = match pack(&list) {
                    Ok(worker_ids) => worker_ids,
                    Err(error) => {
                        // It must not go on as if it knew.
                        error!(%worker_id, %error, "a worker that cannot be told who is shut out is let go");
                        return;
                    }
                };
                let call = client.shut_out(wire::ShutOutRequest { worker_ids });
                if !matches!(tokio::time::timeout(ANSWER_TIMEOUT, call).await, Ok(Ok(_))) {
                    tokio::time::sleep(RETRY).await;
                    revoked.iter_mut().for_each(|revoked| revoked.mark_changed());
                }
            }
            _ = look.tick() => {
                let renewal = membership.renew(&mut client, &worker_id);
                tokio::time::timeout(ANSWER_TIMEOUT, renewal).await.ok(); // Tried again at the next tick.
            }
        }
    }
}

/// The list, once it has changed.
async fn changed(revoked: &mut Option<watch::Receiver<BTreeSet<String>>>) -> BTreeSet<String> {
    if let Some(revoked) = revoked
        && revoked.changed().await.is_ok()
    {
        return revoked.borrow_and_update().clone();
    }
    std::future::pending().await
}
