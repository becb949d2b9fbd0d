//! Seeded simulations of the core over a small model of stages: steps in flight, answers that come late and out of
//! order, losses of the pipeline at any moment, steps that fail, cancels, full pools, ends of context, embeddings beside
//! answers, and prefixes that several scopes share, with recurrent layers and without.
//!
//! Whatever happens, no token is lost, repeated or another one; no block and no slot is lost; whoever asked is heard in
//! order of arrival, and nobody waits for ever.

mod asked;
mod heard;
mod model;
mod seen;
mod slots;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use super::{ComposedStep, Core, Effect, PipelineShape};
use crate::pipeline;
use crate::scheduler::cache::Scope;
use crate::scheduler::request::{Error, Limits, OnLoss};
use crate::scheduler::want::{Chosen, Failed};
use asked::{Asked, Dice, ids, pipeline, request};
use model::{Stages, check, mix};
use seen::{Seen, What};
use slots::Before;

/// Simulations; each takes a millisecond where nothing is optimized.
const SEEDS: u64 = 12_000;
/// Things that may go wrong in one of them.
const MOST_FAULTS: usize = 14;
/// Things that happen in one of them before it is said that it will never end.
const MOST_MOMENTS: usize = 50_000;
/// How often a step that has come back may wait while a later one is taken in.
const MOST_OVERTAKEN: usize = 4;

#[test]
fn whatever_happens_every_answer_is_what_it_has_to_be_and_comes() {
    let seen = (0..SEEDS).fold(Seen::default(), |seen, seed| {
        let run = || Simulation::new(seed).run();
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(more) => seen.with(&more),
            Err(panic) => {
                eprintln!("the simulation with seed {seed} failed");
                resume_unwind(panic);
            }
        }
    });
    for what in What::ALL {
        assert!(seen.0[what as usize] > 100, "{what:?} is not tried: {seen:?}");
    }
}

/// A step that has come back and was not taken in yet.
struct Arrived {
    number: u64,
    pipeline: u64,
    chosen: Result<Vec<Chosen>, Failed>,
    overtaken: usize,
}

struct Simulation {
    dice: Dice,
    limits: Limits,
    on_loss: OnLoss,
    core: Core,
    now: Duration,
    /// None from the loss of the pipeline on.
    stages: Option<Stages>,
    pipelines: u64,
    arrived: Vec<Arrived>,
    /// Who has a row in each step that was not taken in yet.
    in_flight: BTreeMap<u64, Vec<u64>>,
    /// Beginnings that prompts share.
    prefixes: Vec<Vec<u32>>,
    asked: BTreeMap<u64, Asked>,
    /// The scope of each that was asked for so far, and its ids if it comes to its end.
    history: Vec<(Scope, Vec<u32>)>,
    last_asked: u64,
    last_begun: u64,
    /// Sequences still to be asked for, and things that may still go wrong.
    to_ask: usize,
    faults: usize,
    /// The number of the step that leaves next.
    next_step: u64,
    /// Who has to fail with the step that is being taken in, and nobody else.
    to_fail: BTreeSet<u64>,
    gave_up: bool,
    seen: Seen,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let mut dice = Dice(mix(seed, 0));
        let (context, parallel) = (dice.between(4, 90), dice.between(1, 3));
        let (most_running, prompt_rows) = (parallel.max(dice.between(1, 8)), dice.between(1, 24));
        let kv_blocks = parallel * cake_engine::blocks_for(context);
        let pipeline = pipeline(&mut dice, prompt_rows);
        let PipelineShape { chunk, prompt_rows, .. } = pipeline;
        let limits = Limits {
            context,
            parallel,
            most_running,
            kv_blocks,
            state_slots: if dice.one_in(3) { 0 } else { dice.between(1, 3 * parallel) },
            chunk,
            prompt_rows,
            queue: usize::MAX,
        };
        let on_loss = if dice.one_in(8) { OnLoss::Fail } else { OnLoss::Wait };
        let prefixes = (0..3).map(|_| ids(&mut dice, 70)).collect();
        let (to_ask, calm) = (dice.between(1, 10), dice.one_in(3));
        Self {
            faults: if calm { 0 } else { dice.between(1, MOST_FAULTS) },
            dice,
            limits,
            on_loss,
            core: Core::new(limits, on_loss, pipeline),
            now: Duration::ZERO,
            stages: Some(Stages::new(pipeline, &limits, seed)),
            pipelines: 0,
            arrived: Vec::new(),
            in_flight: BTreeMap::new(),
            prefixes,
            asked: BTreeMap::new(),
            history: Vec::new(),
            last_asked: 0,
            last_begun: 0,
            to_ask,
            next_step: 0,
            to_fail: BTreeSet::new(),
            gave_up: false,
            seen: Seen::default(),
        }
    }

    /// Lets things happen until everything is over.
    fn run(mut self) -> Seen {
        let mut moments = 0;
        while self.to_ask > 0 || !self.asked.is_empty() || !self.in_flight.is_empty() {
            moments += 1;
            assert!(moments < MOST_MOMENTS, "some answer never ends");
            self.fill();
            self.happen();
        }
        assert!(self.core.is_idle() && self.core.ready.is_empty());
        assert_eq!(self.core.prompt_rows_out, 0);
        let Limits { kv_blocks: total, state_slots, .. } = self.limits;
        let (blocks, slots) = (self.core.cache.usage(), self.core.cache.state_usage());
        assert_eq!((blocks.held, blocks.idle + blocks.free), (0, total), "every block comes back");
        assert_eq!((slots.held, slots.idle + slots.free), (0, state_slots), "and every slot");
        let all = self.core.cache.admit(Scope::ALL, &[], total * cake_engine::BLOCK_POSITIONS);
        self.core.cache.release(all.expect("nothing is promised to anybody any more").0);
        self.core.cache.forget();
        assert_eq!(self.core.cache.usage().free, total);
        assert_eq!(self.core.cache.state_usage().free, state_slots);
        self.seen
    }

    /// One thing out of those that may happen now.
    fn happen(&mut self) {
        self.now += Duration::from_micros(self.dice.between(1, 5000) as u64);
        match self.dice.below(24) {
            0..3 if self.to_ask > 0 => self.ask(),
            3..10 => self.compute(),
            10..18 => self.take_in(),
            18 if self.dice.one_in(8) => self.cancel(),
            19 | 20 if self.faults > 0 => self.fault(),
            21 | 22 => self.resume(),
            23 if self.stages.is_none() && self.dice.one_in(40) => self.give_up(),
            _ => {}
        }
    }

    fn ask(&mut self) {
        self.to_ask -= 1;
        self.last_asked += 1;
        let context = self.limits.context;
        let request = request(&mut self.dice, context, &self.prefixes, &self.history);
        let asked = Asked::new(&request, context, self.is_recurrent());
        self.history.push((request.scope, [&request.prompt[..], &asked.tokens].concat()));
        self.asked.insert(self.last_asked, asked);
        self.core.submit(self.last_asked, request, self.now);
    }

    /// As the actor does it: steps leave until enough are in flight.
    fn fill(&mut self) {
        while self.core.has_room() {
            let effects = self.core.admit(self.now);
            self.hear(effects);
            self.nobody_is_placed_before_earlier_ones();
            self.seen.note(What::FullPool, usize::from(!self.core.waiting.is_empty()));
            let unplaced = self.core.running.iter().any(|one| one.lease.is_none());
            self.seen.note(What::Unplaced, usize::from(unplaced));
            let before = Before::of(&self.core);
            let Some(step) = self.core.compose(self.now) else { return };
            before.note(&self.core, &step, &mut self.seen);
            self.leave(step);
        }
    }

    /// Positions whose keys and values are there as a sequence begins.
    fn shared_by(&self, sequence: u64) -> usize {
        let one = self.core.running.iter().find(|one| one.sequence == sequence).expect("it runs");
        one.lease.as_ref().expect("it has begun").shared()
    }

    fn is_recurrent(&self) -> bool {
        self.limits.state_slots > 0
    }

    fn leave(&mut self, step: ComposedStep) {
        let stages = self.stages.as_mut().expect("only a pipeline has room for steps");
        check(&step, stages.pipeline.prompt_rows + self.limits.parallel, &self.limits);
        for item in &step.items {
            let asked = &self.asked[&item.sequence];
            let prompt = item.position < asked.prompt_len;
            assert_eq!(item.prompt, prompt, "what a row is decides its arithmetic");
            assert!(!prompt || item.position + item.rows <= asked.prompt_len);
            // What it shares others have written, perhaps in another arithmetic.
            assert_eq!(item.known, item.position.max(self.shared_by(item.sequence)));
        }
        let sequences: Vec<u64> = step.items.iter().map(|item| item.sequence).collect();
        self.in_flight.insert(step.number, sequences);
        self.next_step = step.number + 1;
        self.nobody_is_passed_over(&step);
        let stages = self.stages.as_mut().expect("as above");
        match stages.broken {
            false => stages.queue.push_back(step),
            true => {
                let chosen = Err(Failed { error: lost(), wants: step.wants });
                self.apply(Arrived {
                    number: step.number,
                    pipeline: self.pipelines,
                    chosen,
                    overtaken: 0,
                });
            }
        }
    }

    /// Those that run are in order of arrival, and whoever lost its blocks has others before anybody who came later.
    fn nobody_is_placed_before_earlier_ones(&self) {
        let running = &self.core.running;
        let (sequences, placed): (Vec<u64>, Vec<bool>) =
            running.iter().map(|one| (one.sequence, one.lease.is_some())).unzip();
        let is_sorted = sequences.is_sorted() && placed.is_sorted_by(|one, next| one >= next);
        assert!(is_sorted, "{sequences:?} have places: {placed:?}");
    }

    /// Whoever has a place has a row in flight or in this step, or somebody who was admitted earlier is read in it; else
    /// it was not so for a few steps alone.
    fn nobody_is_passed_over(&mut self, step: &ComposedStep) {
        let steps = self.stages.as_ref().map_or(1, |stages| stages.pipeline.steps);
        let most = self.limits.most_running + 4 * MOST_OVERTAKEN * steps;
        let mut earlier_is_read = false;
        for one in self.core.running.iter().filter(|one| one.lease.is_some()) {
            let item = step.items.iter().find(|item| item.sequence == one.sequence);
            let in_flight = self.in_flight.values().flatten().any(|other| *other == one.sequence);
            let asked = self.asked.get_mut(&one.sequence).expect("it runs");
            asked.passed_over = match in_flight || earlier_is_read {
                true => 0,
                false => asked.passed_over + 1,
            };
            assert!(asked.passed_over <= most, "{} steps without a row", asked.passed_over);
            // Read for the first time, or once more.
            let is_read = |rows: usize, prompt: bool| prompt || rows > 1 || one.unread() > 0;
            earlier_is_read |= item.is_some_and(|item| is_read(item.rows, item.prompt));
        }
    }

    /// The stages compute the step that left first.
    fn compute(&mut self) {
        let pipeline = self.pipelines;
        if let Some((number, chosen)) = self.stages.as_mut().and_then(Stages::compute) {
            self.arrived.push(Arrived { number, pipeline, chosen: Ok(chosen), overtaken: 0 });
        }
    }

    /// Takes in a step that has come back: one of the first ones.
    fn take_in(&mut self) {
        if self.arrived.is_empty() {
            return;
        }
        // Tokens are chosen on threads, which may overtake each other; that a stage failed is known at once, before what
        // came of later steps.
        let is_failure = |one: &Arrived| one.chosen.as_ref().is_err_and(is_stages);
        let failure = self.arrived.iter().position(is_failure);
        let index = match self.arrived[0].overtaken < MOST_OVERTAKEN {
            true => self.dice.below(failure.map_or(self.arrived.len(), |failure| failure + 1)),
            false => 0,
        };
        self.arrived[..index].iter_mut().for_each(|other| other.overtaken += 1);
        let arrived = self.arrived.remove(index);
        self.apply(arrived);
    }

    fn apply(&mut self, Arrived { number, pipeline, chosen, .. }: Arrived) {
        let sequences = self.in_flight.remove(&number).expect("it left and was not taken in");
        match &chosen {
            Err(Failed { error, .. }) if !error.is_loss() || self.on_loss == OnLoss::Fail => {
                // Whoever began later and shares blocks may have been to read what this step was to write.
                let reads = |asked: &Asked| asked.shares_from.is_some_and(|step| step > number);
                let fails = |(sequence, asked): &(&u64, &Asked)| {
                    sequences.contains(sequence) || reads(asked)
                };
                let fail = self.asked.iter().filter(fails).map(|(sequence, _)| *sequence);
                self.to_fail = fail.collect();
            }
            Ok(chosen) if pipeline < self.pipelines => {
                let is_token = |one: &&Chosen| matches!(one, Chosen::Token { token: Some(_), .. });
                self.seen.note(What::LateToken, chosen.iter().filter(is_token).count());
            }
            _ => {}
        }
        let effects = self.core.apply(number, chosen, self.now);
        self.hear(effects);
        assert!(self.to_fail.is_empty(), "{:?} go on after a step that failed", self.to_fail);
    }

    fn cancel(&mut self) {
        let index = self.dice.below(self.asked.len());
        if let Some(sequence) = self.asked.keys().nth(index).copied() {
            self.asked.remove(&sequence);
            let effects = self.core.cancel(sequence);
            let over = |effect: &Effect| match effect {
                Effect::Over { sequence: over, event: None, .. } => *over == sequence,
                _ => false,
            };
            assert!(effects.len() == 1 && over(&effects[0]), "{effects:?}");
            self.seen.note(What::Cancel, 1);
        }
    }

    /// Something goes wrong.
    fn fault(&mut self) {
        let Some(stages) = &mut self.stages else { return };
        self.faults -= 1;
        match self.dice.below(8) {
            0 => {
                self.core.lose_pipeline();
                self.close();
            }
            1 => {
                // A stage says that it cannot do a step.
                if let Some(ComposedStep { number, wants, .. }) = stages.queue.pop_front() {
                    let (worker, message) = ("a".to_owned(), "no".to_owned());
                    let error = Error::Pipeline(pipeline::Error::Stage { worker, message });
                    let chosen = Err(Failed { error, wants });
                    let pipeline = self.pipelines;
                    self.arrived.push(Arrived { number, pipeline, chosen, overtaken: 0 });
                }
            }
            2 => {
                // The master's own thread panics, and what was to be chosen goes with it.
                let (sides, pipeline) = (self.arrived.len(), self.pipelines);
                if let Some(arrived) = self.arrived.get_mut(self.dice.below(sides))
                    && arrived.pipeline == pipeline
                    && arrived.chosen.is_ok()
                {
                    arrived.chosen = Err(Failed { error: Error::Panicked, wants: Vec::new() });
                }
            }
            _ => {
                stages.broken = true;
                self.drain();
            }
        }
        if self.dice.one_in(3) {
            self.now += Duration::from_secs(self.dice.between(1, 40) as u64);
        }
    }

    /// Steps that the stages have not computed come to nothing.
    fn drain(&mut self) {
        let pipeline = self.pipelines;
        let Some(stages) = &mut self.stages else { return };
        for ComposedStep { number, wants, .. } in stages.queue.drain(..) {
            let chosen = Err(Failed { error: lost(), wants });
            self.arrived.push(Arrived { number, pipeline, chosen, overtaken: 0 });
        }
    }

    fn close(&mut self) {
        self.drain();
        self.stages = None;
        self.seen.note(What::LostLine, 1);
    }

    fn resume(&mut self) {
        if self.stages.is_some() {
            return;
        }
        let pipeline = pipeline(&mut self.dice, self.limits.prompt_rows);
        self.pipelines += 1;
        let litter = mix(self.pipelines, self.now.as_nanos() as u64);
        self.stages = Some(Stages::new(pipeline, &self.limits, litter));
        for asked in self.asked.values_mut() {
            (asked.passed_over, asked.shares_from) = (0, None);
            if asked.losses == 0 {
                asked.lost_since = self.now;
            }
            asked.losses += 1;
        }
        let effects = self.core.resume(pipeline, self.now);
        self.hear(effects);
        self.nobody_is_placed_before_earlier_ones();
    }

    fn give_up(&mut self) {
        self.gave_up = true;
        let effects = self.core.give_up(&Error::Unrecovered("nobody is left".to_owned()));
        self.hear(effects);
        assert!(self.asked.is_empty(), "all that waited for a pipeline have ended");
        self.gave_up = false;
    }
}

/// Whether a stage said that it could not do a step.
fn is_stages(failed: &Failed) -> bool {
    matches!(failed.error, Error::Pipeline(pipeline::Error::Stage { .. }))
}

fn lost() -> Error {
    Error::Pipeline(pipeline::Error::Closed)
}
