//! The requests that a service computes now, for people who watch them: never what is asked or answered.

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::chronicle::{Chronicle, Kind};
use crate::request_id::RequestId;

tokio::task_local! {
    static ASKER: Asker;
}

/// Who asks, and the list that its request belongs to.
#[derive(Clone, Debug)]
pub struct Asker {
    /// Requests of the service.
    pub running: Arc<Running>,
    /// Where it is written down if it fails.
    pub chronicle: Arc<Chronicle>,
    /// The client as it calls itself, and which key it has.
    pub client: String,
}

impl Asker {
    /// Does `work` in its name.
    pub fn scope<F: Future>(self, work: F) -> impl Future<Output = F::Output> {
        ASKER.scope(self, work)
    }
}

/// Every request that is computed.
#[derive(Debug, Default)]
pub struct Running {
    tickets: Mutex<Vec<Weak<Ticket>>>,
}

/// One of them, which is on the list until its last holder drops it.
#[derive(Debug)]
pub struct Ticket {
    id: String,
    model: String,
    client: String,
    chronicle: Arc<Chronicle>,
    answers: usize,
    prompt_tokens: usize,
    cached_tokens: AtomicU64,
    /// How many of its answers have begun.
    begun: AtomicU64,
    generated_tokens: AtomicU64,
    since: Instant,
    since_ms: u64,
    /// Milliseconds from there to the first token; 0 before.
    first_token_ms: AtomicU64,
}

/// How far a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// It waits for room, or for its model.
    Waiting,
    /// Its prompt is read.
    Reading,
    /// Its answer is written.
    Writing,
}

/// A request at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestNow {
    /// As in `x-request-id`.
    pub id: String,
    /// Name of the model.
    pub model: String,
    /// Who asks.
    pub client: String,
    /// How far it is.
    pub stage: Stage,
    /// How many answers it asks for.
    pub answers: usize,
    /// Tokens of its prompts.
    pub prompt_tokens: usize,
    /// Of these, how many need not be computed.
    pub cached_tokens: u64,
    /// Tokens of its answers so far.
    pub generated_tokens: u64,
    /// Of these, how many in a second since the first; none before the second.
    pub tokens_per_second: Option<f64>,
    /// When it came, in milliseconds since 1970.
    pub since_ms: u64,
    /// For how long it has been here.
    pub seconds: f64,
}

impl Running {
    /// All of them, the oldest first.
    pub fn now(&self) -> Vec<RequestNow> {
        let mut tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        tickets.retain(|ticket| ticket.strong_count() > 0);
        tickets.iter().filter_map(Weak::upgrade).map(|ticket| ticket.now()).collect()
    }

    fn add(&self, ticket: &Arc<Ticket>) {
        let mut tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        tickets.retain(|ticket| ticket.strong_count() > 0);
        tickets.push(Arc::downgrade(ticket));
    }
}

/// Puts the request for which this task works on the list, if it works for one: for so many answers of `model`, to
/// prompts of so many tokens together.
pub fn enter(model: &str, answers: usize, prompt_tokens: usize) -> Option<Arc<Ticket>> {
    let Asker { running, chronicle, client } = ASKER.try_with(Clone::clone).ok()?;
    let since_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let ticket = Arc::new(Ticket {
        id: RequestId::current().map_or_else(String::new, |id| id.to_string()),
        model: model.to_owned(),
        client,
        chronicle,
        answers,
        prompt_tokens,
        cached_tokens: AtomicU64::new(0),
        begun: AtomicU64::new(0),
        generated_tokens: AtomicU64::new(0),
        since: Instant::now(),
        since_ms: since_ms as u64,
        first_token_ms: AtomicU64::new(0),
    });
    running.add(&ticket);
    Some(ticket)
}

impl Ticket {
    /// One of its answers has left the queue, and so many tokens of its prompt need not be computed.
    pub fn begun(&self, cached_tokens: usize) {
        self.cached_tokens.fetch_add(cached_tokens as u64, Ordering::Relaxed);
        self.begun.fetch_add(1, Ordering::Relaxed);
    }

    /// One of its answers has one more token.
    pub fn token(&self) {
        if self.generated_tokens.fetch_add(1, Ordering::Relaxed) == 0 {
            let now = self.since.elapsed().as_millis() as u64;
            self.first_token_ms.store(now.max(1), Ordering::Relaxed);
        }
    }

    /// One of its answers breaks off.
    pub fn failed(&self, why: &impl Display) {
        let Self { id, client, .. } = self;
        self.chronicle.add(Kind::Request, format!("request {id} of {client} failed: {why}"));
    }

    fn now(&self) -> RequestNow {
        let seconds = self.since.elapsed().as_secs_f64();
        let generated_tokens = self.generated_tokens.load(Ordering::Relaxed);
        let first_seconds = self.first_token_ms.load(Ordering::Relaxed) as f64 / 1e3;
        let rate = || (generated_tokens - 1) as f64 / (seconds - first_seconds).max(1e-3);
        RequestNow {
            id: self.id.clone(),
            model: self.model.clone(),
            client: self.client.clone(),
            stage: match (self.begun.load(Ordering::Relaxed), generated_tokens) {
                (0, 0) => Stage::Waiting,
                (_, 0) => Stage::Reading,
                _ => Stage::Writing,
            },
            answers: self.answers,
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens.load(Ordering::Relaxed),
            generated_tokens,
            tokens_per_second: (generated_tokens > 1).then(rate),
            since_ms: self.since_ms,
            seconds,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_request_is_on_the_list_as_long_as_somebody_works_for_it() {
        assert!(enter("m", 1, 1).is_none(), "nobody asks");
        let running = Arc::new(Running::default());
        let chronicle = Arc::<Chronicle>::default();
        let (listed, kept) = (running.clone(), chronicle.clone());
        let asker = Asker { running: listed, chronicle: kept, client: "curl".to_owned() };
        let ticket = asker.scope(async { enter("m", 2, 40).expect("listed") }).await;
        let only = || running.now().pop().expect("one");
        assert_eq!((only().stage, only().prompt_tokens, only().answers), (Stage::Waiting, 40, 2));
        ticket.begun(32);
        assert_eq!((only().stage, only().cached_tokens), (Stage::Reading, 32));
        ticket.token();
        assert_eq!((only().stage, only().tokens_per_second), (Stage::Writing, None));
        ticket.token();
        assert!(only().tokens_per_second.is_some_and(|rate| rate > 0.0));
        ticket.failed(&"a stage is gone");
        assert!(chronicle.after(0)[0].words.ends_with("of curl failed: a stage is gone"));
        drop(ticket);
        assert_eq!(running.now(), []);
    }
}
