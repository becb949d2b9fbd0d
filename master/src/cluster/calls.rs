//! Calls to workers, none without a deadline.
use std::time::Duration;

use tonic::Status;

use super::Error;

/// How long a worker may take to answer a small question.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// A call with a deadline, its failure put in a sentence.
///
/// # Errors
/// [`Error::Call`].
pub async fn within<T>(
    name: &str,
    action: &'static str,
    call: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, Error> {
    within_time(ANSWER_TIMEOUT, name, action, call).await
}

/// As [`within`], with a deadline of the caller's choice.
///
/// # Errors
/// [`Error::Call`].
pub async fn within_time<T>(
    limit: Duration,
    name: &str,
    action: &'static str,
    call: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, Error> {
    match tokio::time::timeout(limit, call).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(Error::call(name, action, &status)),
        Err(_) => Err(Error::silent(name, action)),
    }
}
