//! Whole sequences over the model that ships inside, on this machine alone.

use std::collections::HashSet;
use std::time::Duration;

use cake_checkpoint::{Checkpoint, KvDtype, LayerRange, Scheme};
use cake_engine::{DeviceKind, EngineOptions, Numerics, Stage};
use cake_proto::WireFormat;

use super::*;
use crate::generate;
use crate::model::Model;
use crate::pipeline::{Opening, open};
use crate::sizing::Promise;

/// Longest that anything here may take.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
const CHUNK: usize = 64;

/// The model, and what is promised of it.
pub(crate) struct Bench {
    model: Model,
    promise: Promise,
}

impl Bench {
    pub(crate) fn new(parallel: usize, context: usize) -> Self {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/demo-model");
        let checkpoint = Arc::new(Checkpoint::open(path).expect("the demo's model"));
        let promise = Promise {
            context,
            parallel,
            kv: KvDtype::F32,
            state_slots: 0,
            numerics: Numerics::Exact,
            chunk: CHUNK,
            wire: WireFormat::default(),
        };
        Self { model: Model::new(checkpoint, Scheme::AsStored), promise }
    }

    fn options(&self) -> EngineOptions {
        EngineOptions {
            kv: self.promise.kv,
            kv_blocks: self.promise.kv_blocks(),
            block_positions: cake_engine::BLOCK_POSITIONS,
            state_slots: self.promise.state_slots,
            max_positions: self.promise.context,
            threads: 2,
            device: DeviceKind::from_env().expect("known"),
            numerics: self.promise.numerics,
            tally: None,
        }
    }

    /// A pipeline of one stage, whose cache is empty.
    async fn pipeline(&self) -> Pipeline {
        let config = &self.model.checkpoint.config;
        let layers = LayerRange::new(0, config.layers.len());
        let mapped = |layer| self.model.mapped_layer(layer).expect("mapped");
        let weights: Vec<_> = layers.iter().flat_map(mapped).collect();
        let find = |name: &str| {
            weights.iter().find(|(known, _)| known == name).map(|(_, tensor)| tensor.clone())
        };
        let stage = Stage::load(config, layers, &find, &self.options()).expect("loaded");
        let opening = Opening {
            generation: 1,
            model: config,
            promise: self.promise,
            step_seconds: 0.0,
            local: Some((stage, layers)),
            remotes: Vec::new(),
        };
        open(opening).await.expect("opened")
    }

    fn ends(&self) -> Ends {
        let weights = self.model.ends().expect("mapped");
        Ends::new(&self.model.checkpoint.config, weights, &self.options()).expect("made")
    }

    pub(crate) async fn scheduler(&self) -> Scheduler {
        let ends = self.ends();
        let limits = Limits::of(&self.promise, Chunk::exactly(CHUNK), 64);
        let pipeline = self.pipeline().await;
        Scheduler::start(pipeline, ends, limits, OnLoss::Wait, Arc::default())
    }
}

impl Scheduler {
    /// Has its task panic, as it would at a mistake of ours.
    pub(crate) fn panic(&self) {
        self.commands.send(Command::Panic).expect("it runs");
    }
}

/// A greedy answer of so many tokens to a prompt.
fn request(prompt: Vec<u32>, max_tokens: usize) -> Request {
    let goal = Goal::Answer(Box::default());
    Request { prompt, max_tokens, stop_ids: Arc::default(), goal, scope: Scope::ALL }
}

/// So many ids, which begin with `first`.
fn prompt(first: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|at| if at == 0 { first } else { 5 + at % 37 }).collect()
}

async fn next(generation: &mut Generation) -> Event {
    let event = tokio::time::timeout(LIMIT, generation.next()).await;
    event.expect("in time").expect("not the last one yet")
}

/// The ids of an answer up to its end.
async fn ids(generation: &mut Generation) -> Vec<u32> {
    let mut ids = Vec::new();
    loop {
        match next(generation).await {
            Event::Begun { .. } => {}
            Event::Token(token) => ids.push(token.id),
            Event::Ended(Finish::Length) => return ids,
            other => panic!("{other:?} after {ids:?}"),
        }
    }
}

/// Waits until the scheduler is so busy.
async fn until(scheduler: &Scheduler, what: &str, is: impl Fn(Load) -> bool) {
    let waited = tokio::time::timeout(LIMIT, async {
        while !is(scheduler.load()) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("waited for {what}: {:?}", scheduler.load()));
}

fn submit(scheduler: &Scheduler, request: Request) -> Generation {
    scheduler.submit(vec![request]).expect("taken").remove(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_sequences_run_beside_as_many_as_were_promised() {
    const TOKENS: usize = 40;
    // 16 blocks: two of the longest, or five that need three each.
    let scheduler = Bench::new(2, 8 * cake_engine::BLOCK_POSITIONS).scheduler().await;
    let mut alone = Vec::new();
    for first in 1..=6 {
        let mut generation = submit(&scheduler, request(prompt(first, 4), TOKENS));
        alone.push(ids(&mut generation).await);
    }
    let requests = (1..=6).map(|first| request(prompt(first, 4), TOKENS)).collect();
    let mut together = scheduler.submit(requests).expect("taken");
    until(&scheduler, "five to run and the sixth to wait", |load| {
        (load.running, load.waiting) == (5, 1)
    })
    .await;
    for (generation, alone) in together.iter_mut().zip(&alone) {
        assert_eq!(&ids(generation).await, alone);
    }
    let embed = Request { goal: Goal::Embedding, ..request(prompt(9, 20), 0) };
    let mut embedding = submit(&scheduler, embed);
    assert!(matches!(next(&mut embedding).await, Event::Begun { reused_tokens: 0 }));
    assert!(matches!(next(&mut embedding).await, Event::Embedding(_)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_sequences_are_within_the_rows_that_stages_have_room_for() {
    const TOKENS: usize = 12;
    // A step has six rows at most, of which prompts may have four.
    let mut bench = Bench::new(2, 16 * cake_engine::BLOCK_POSITIONS);
    bench.promise.chunk = 4;
    let scheduler = bench.scheduler().await;
    let requests = (1..=12).map(|first| request(prompt(first, 7), TOKENS)).collect();
    let mut together = scheduler.submit(requests).expect("taken");
    for (generation, first) in together.iter_mut().zip(1..) {
        let said = ids(generation).await;
        let mut alone = submit(&scheduler, request(prompt(first, 7), TOKENS));
        assert_eq!(said, ids(&mut alone).await);
    }
}

/// What sequences shared before a loss they hold for themselves after it: who finds no room waits, and none is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_loss_sequences_that_shared_blocks_wait_for_their_own() {
    const TOKENS: usize = 30;
    let block = cake_engine::BLOCK_POSITIONS;
    let bench = Bench::new(1, 16 * block);
    let requests = [1, 2, 3].map(|last| {
        let prompt: Vec<u32> = prompt(4, 10 * block).into_iter().chain([last]).collect();
        request(prompt, TOKENS)
    });
    let scheduler = bench.scheduler().await;
    let mut alone = Vec::new();
    for request in requests.clone() {
        alone.push(ids(&mut submit(&scheduler, request)).await);
    }

    let scheduler = bench.scheduler().await;
    let [first, second, third] = requests;
    let mut generations = vec![submit(&scheduler, first)];
    assert!(matches!(next(&mut generations[0]).await, Event::Begun { reused_tokens: 0 }));
    let mut said = vec![vec![token(&mut generations[0]).await]];
    for request in [second, third] {
        let mut generation = submit(&scheduler, request);
        let begun = next(&mut generation).await;
        assert!(matches!(begun, Event::Begun { reused_tokens } if reused_tokens == 10 * block));
        generations.push(generation);
        said.push(Vec::new());
    }
    scheduler.suspend().await;
    assert_eq!(scheduler.load().running, 3, "none has ended meanwhile");
    assert!(scheduler.resume(bench.pipeline().await, Chunk::exactly(CHUNK), CHUNK));
    until(&scheduler, "two to wait for room", |load| (load.running, load.waiting) == (1, 2)).await;
    for ((generation, mut said), alone) in generations.iter_mut().zip(said).zip(alone) {
        said.extend(ids(generation).await);
        assert_eq!(said, alone);
    }
    assert_eq!(scheduler.load().waiting, 0);
}

/// What the model says of a token is the same, to the bit, whether it was chosen or a prompt has it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompt_is_scored_as_its_tokens_were_when_they_were_chosen() {
    // More rows than go into a step, and more than are scored at once.
    const TOKENS: usize = 2 * CHUNK + 22;
    let scheduler = Bench::new(3, 4 * CHUNK).scheduler().await;
    let asked = |prompt: Vec<u32>, max_tokens: usize, scores_prompt: bool| {
        let choice = Choice { scores_prompt, top_logprobs: 2, ..Choice::default() };
        Request { goal: Goal::Answer(Box::new(choice)), ..request(prompt, max_tokens) }
    };
    let begin = prompt(7, 20);
    let mut generation = submit(&scheduler, asked(begin.clone(), TOKENS, false));
    let mut chosen = Vec::new();
    while let Some(event) = generation.next().await {
        chosen.extend(if let Event::Token(token) = event { Some(token) } else { None });
    }
    assert_eq!(chosen.len(), TOKENS);
    let ids: Vec<u32> = begin.iter().copied().chain(chosen.iter().map(|one| one.id)).collect();
    // Its blocks are known: it is computed all the same, beside another one and an answer.
    let cut = ids.len() - 3;
    let requests = vec![
        asked(prompt(9, 30), 40, false),
        asked(ids.clone(), 0, true),
        asked(ids[..cut].to_vec(), 3, true),
    ];
    let mut together = scheduler.submit(requests).expect("taken");
    let mut scored = Vec::new();
    for generation in &mut together[1..] {
        assert!(matches!(next(generation).await, Event::Begun { reused_tokens: 0 }));
        let Event::Scored(mut tokens) = next(generation).await else { panic!("not scored") };
        loop {
            match next(generation).await {
                Event::Token(token) => tokens.push(token),
                Event::Ended(Finish::Length) => break,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(tokens.iter().map(|token| token.id).collect::<Vec<_>>(), ids[1..]);
        scored.push(tokens);
    }
    let [whole, with_answer] = &scored[..] else { panic!() };
    assert_eq!(whole, with_answer, "{cut} tokens of it, and three chosen once more");
    assert_eq!(whole[begin.len() - 1..], chosen);
    // One token has nothing before it that could say anything of it.
    let mut one = submit(&scheduler, asked(vec![5], 0, true));
    assert!(matches!(next(&mut one).await, Event::Begun { .. }));
    assert!(matches!(next(&mut one).await, Event::Scored(tokens) if tokens.is_empty()));
}

async fn token(generation: &mut Generation) -> u32 {
    match next(generation).await {
        Event::Token(token) => token.id,
        other => panic!("{other:?}"),
    }
}

/// What a command for one sequence says of a prompt, and what the scheduler of many does.
async fn both(bench: &Bench, prompt: Vec<u32>, max_tokens: usize) -> [(Vec<u32>, String); 2] {
    let Promise { context, .. } = bench.promise;
    let (pipeline, ends) = (bench.pipeline().await, bench.ends());
    let generator = Generator { pipeline: &pipeline, ends: &ends, promise: &bench.promise };
    let options = generate::Options {
        sampling: Default::default(),
        max_tokens,
        stop_ids: HashSet::new(),
        chunk: Chunk::exactly(CHUNK),
        context,
        keep_prompt_logits: false,
    };
    let mut shown = Vec::new();
    let told = generator.generate(&prompt, &options, |id| {
        shown.push(id);
        true
    });
    let one = match told.await {
        Ok(answer) => {
            assert_eq!(answer.output_ids, shown);
            (shown, answer.finish.name().to_owned())
        }
        Err(error) => (shown, error.to_string()),
    };
    let scheduler = bench.scheduler().await;
    let (mut ids, mut said) = (Vec::new(), String::new());
    match scheduler.submit(vec![request(prompt, max_tokens)]) {
        Ok(mut generations) => {
            while said.is_empty() {
                match next(&mut generations[0]).await {
                    Event::Token(token) => ids.push(token.id),
                    Event::Ended(finish) => said.push_str(finish.name()),
                    _ => {}
                }
            }
        }
        Err(refusal) => said = format!("{refusal}: give a larger --context"),
    }
    [one, (ids, said)]
}

/// Neither takes a prompt without room for a token after it, and both end where the context does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_sequence_and_many_agree_about_the_end_of_the_context() {
    const CONTEXT: usize = 100;
    let bench = Bench::new(1, CONTEXT);
    for (len, max_tokens, tokens, end) in [
        (CONTEXT - 9, 30, 9, "context"),
        (CONTEXT - 9, 9, 9, "length"),
        (CONTEXT - 1, 30, 1, "context"),
        (CONTEXT - 1, 1, 1, "length"),
        (CONTEXT, 0, 0, "length"),
        (
            CONTEXT,
            1,
            0,
            "the prompt has 100 tokens, and with one to come that is more than the context of 100: \
             give a larger --context",
        ),
    ] {
        let [one, many] = both(&bench, prompt(3, len), max_tokens).await;
        assert_eq!(one, many, "{len} tokens of prompt");
        assert_eq!((one.0.len(), one.1.as_str()), (tokens, end));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_the_task_is_told_to_everybody() {
    let scheduler = Bench::new(1, 128).scheduler().await;
    let mut running = submit(&scheduler, request(prompt(1, 4), 100));
    let mut waiting = submit(&scheduler, request(prompt(2, 4), 100));
    assert!(matches!(next(&mut running).await, Event::Begun { .. }));
    scheduler.panic();
    let said = scheduler.ended().await.to_string();
    assert!(said.ends_with("ended unexpectedly: as it was told to"), "{said}");
    let is_end = |event: &Event| matches!(event, Event::Failed(Error::Ended(_)));
    let told = next(&mut waiting).await;
    assert!(is_end(&told), "{told:?}");
    while !is_end(&next(&mut running).await) {}
    assert!(running.next().await.is_none(), "that was the last event");
    let mut later = submit(&scheduler, request(prompt(3, 4), 1));
    let told = next(&mut later).await;
    assert!(is_end(&told), "{told:?}");
}
