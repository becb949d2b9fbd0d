//! Why something was not done that the owner of the devices alone may do.

use cake_identity::NameError;

use crate::membership;
use crate::wonder;

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotDone {
    /// Whoever asks is not known to be the owner.
    #[error(
        "only the owner of the devices may do that: ask from the machine that the server runs on, from its own page, or \
         start the server with --api-key-file and bring a key"
    )]
    NotOwner,
    /// The authority is not there, or does not do it.
    #[error(transparent)]
    Membership(#[from] membership::Error),
    /// Nobody is meant, or the name cannot be had.
    #[error(transparent)]
    Name(#[from] NameError),
    /// No worker of this id is there.
    #[error("no worker with the id {worker_id:?} is there")]
    Nobody { worker_id: String },
    /// Nobody can say what would be.
    #[error(transparent)]
    Wonder(#[from] wonder::Error),
}
