//! Who waits for models, in the order in which they came.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use tokio::sync::mpsc;

use crate::api::{Served, Want};
use crate::shelf::{AtHand, WhyNot};

/// Requests that wait for models.
pub(super) struct Queue {
    wanted: mpsc::UnboundedReceiver<Want>,
    waiting: VecDeque<Want>,
}

impl Queue {
    pub(super) fn new(wanted: mpsc::UnboundedReceiver<Want>) -> Self {
        Self { wanted, waiting: VecDeque::new() }
    }

    /// The model that whoever came first wants, once somebody waits; none when nobody can come any more. May be dropped.
    pub(super) async fn next(&mut self) -> Option<Arc<AtHand>> {
        loop {
            self.look();
            if let Some(first) = self.waiting.front() {
                return Some(first.model.clone());
            }
            let want = self.wanted.recv().await?;
            self.waiting.push_back(want);
        }
    }

    /// Completes when nobody waits for the model of this name. May be dropped.
    pub(super) async fn nobody_wants(&mut self, name: &str) {
        loop {
            self.look();
            let Self { wanted, waiting } = self;
            let Some(first) = waiting.iter_mut().find(|want| want.model.name == name) else {
                return;
            };
            tokio::select! {
                () = first.answer.closed() => {}
                Some(want) = wanted.recv() => waiting.push_back(want),
            }
        }
    }

    /// Takes in who comes and lets go of who goes, for as long as it is polled.
    pub(super) async fn tend(&mut self) -> Infallible {
        loop {
            self.look();
            match self.wanted.recv().await {
                Some(want) => self.waiting.push_back(want),
                None => std::future::pending().await,
            }
        }
    }

    /// Whether somebody waits for the model of this name.
    pub(super) fn is_wanted(&mut self, name: &str) -> bool {
        self.look();
        self.waiting.iter().any(|want| want.model.name == name)
    }

    /// Tells all who wait for the model of this name what came of it: a lease for each, as `give` makes one.
    pub(super) fn answer(
        &mut self,
        name: &str,
        give: impl Fn(&Want) -> Result<Arc<Served>, WhyNot>,
    ) {
        self.look();
        let of_name = |want: &Want| want.model.name == name;
        let (theirs, others) = std::mem::take(&mut self.waiting).into_iter().partition(of_name);
        self.waiting = others;
        let theirs: VecDeque<Want> = theirs;
        for want in theirs {
            let given = give(&want);
            want.answer.send(given).ok(); // Perhaps it went away a moment ago.
        }
    }

    /// Takes in who came, and lets go of who went.
    fn look(&mut self) {
        while let Ok(want) = self.wanted.try_recv() {
            self.waiting.push_back(want);
        }
        self.waiting.retain(|want| !want.answer.is_closed());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;
    use tokio::sync::oneshot;

    use super::*;
    use crate::shelf::{Shelf, Source};

    type Answer = oneshot::Receiver<Result<Arc<Served>, WhyNot>>;

    fn model(name: &str) -> Arc<AtHand> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/demo-model");
        let shelf = Shelf::open(vec![Source::Named(path.to_owned())], Some(name.to_owned()));
        shelf.expect("it opens").only().expect("one")
    }

    fn queue(names: &[&str]) -> (Queue, mpsc::UnboundedSender<Want>, Vec<Answer>) {
        let (wants, wanted) = mpsc::unbounded_channel();
        let want = |name: &&str| {
            let (answer, answered) = oneshot::channel();
            assert!(wants.send(Want { model: model(name), keep: None, answer }).is_ok());
            answered
        };
        let answers = names.iter().map(want).collect();
        (Queue::new(wanted), wants, answers)
    }

    #[tokio::test]
    async fn who_came_first_has_the_next_model_and_all_who_want_it_are_told() {
        let (mut queue, wants, mut answers) = queue(&["a", "b", "a"]);
        assert_eq!(queue.next().await.expect("somebody waits").name, "a");
        let failed = |_: &Want| Err(Arc::new(std::fmt::Error) as WhyNot);
        queue.answer("a", failed);
        assert!(answers.remove(2).await.expect("told").is_err());
        assert!(answers.remove(0).await.expect("told").is_err());
        assert!(answers[0].try_recv().is_err(), "it waits for another one");
        assert_eq!(queue.next().await.expect("somebody waits").name, "b");
        drop(answers);
        assert!(queue.next().now_or_never().is_none(), "it went away");
        drop(wants);
        assert!(queue.next().await.is_none());
    }

    #[tokio::test]
    async fn nobody_wants_a_model_once_all_have_gone() {
        let (mut queue, _wants, mut answers) = queue(&["a", "b", "a"]);
        assert!(queue.nobody_wants("a").now_or_never().is_none());
        answers.pop();
        assert!(queue.nobody_wants("a").now_or_never().is_none(), "one has not");
        let first = answers.remove(0);
        let gone = async {
            tokio::task::yield_now().await;
            drop(first);
        };
        let both = futures_util::future::join(queue.nobody_wants("a"), gone);
        tokio::time::timeout(Duration::from_secs(20), both).await.expect("it is noticed");
        assert_eq!(queue.next().await.expect("the other waits").name, "b");
    }
}
