//! From a schema to a parser: on a thread of its own, one small and one large schema at a time, within what may be spent.
//!
//! Nothing can end a thread from outside. So each part of the work has a bound of its own: what comes before the lexer
//! is bounded by [`bounds`](super::bounds), the lexer by fuel, and where the library builds it without any, that part is
//! rehearsed with fuel first.

use std::fmt::Display;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use cake_platform::give_way;
use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use llguidance::earley::lexerspec::LexerSpec;
use llguidance::panic_utils::catch_unwind;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{ParserFactory, TokenParser};
use serde_json::{Value, json};
use tokio::sync::{AcquireError, Semaphore, oneshot};
use tokio::time::timeout;

use super::bounds::{self, MAX_EXPANDED};
use super::closed::close;
use super::enforce::Grammar;
use super::error::{Error, first_line};
use crate::aside::leaves_memory;

/// The stack of a thread that compiles: enough for [`bounds::MAX_SCHEMAS`] in each other. Only what is used is memory.
pub const STACK_BYTES: usize = 256 << 20;
/// Compilations at once, of small schemas and of large ones: they take from the processors what the engine needs.
pub(super) const AT_ONCE: usize = 1;
/// Longest that a request waits for those before it.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest that a request waits for its own. The work itself is bounded, so that this is for slow machines.
const DEADLINE: Duration = Duration::from_secs(10);
/// Schemas that count as one unit of memory: each takes up to 8 KiB, and a grammar of a few some 200.
const SCHEMAS_PER_UNIT: u64 = 100;
/// Most units of a small grammar: four times as many schemas as any that people write.
const SMALL_UNITS: u32 = 4;
/// Units that small grammars in use may have together: some 100 MiB of them, as many as wait and run.
const UNITS: usize = 128;
/// Units that large ones may have together: some 160 MiB, one of the largest.
pub(super) const LARGE_UNITS: usize = 208;
const _: () = assert!(MAX_EXPANDED / SCHEMAS_PER_UNIT < LARGE_UNITS as u64);

/// What a grammar may take. A unit of fuel is about 0.1 µs and some bytes.
fn limits() -> ParserLimits {
    ParserLimits {
        // The largest schema of the library's own collection takes 500,000; all that people write 20,000.
        initial_lexer_fuel: 400_000,
        // Of each token: ordinary schemas take some thousands, an enumeration of 2,000 names 90,000.
        step_lexer_fuel: 100_000,
        step_max_items: 50_000,
        max_items_in_row: 2_000,
        max_lexer_states: 20_000,
        max_grammar_size: 60_000,
        precompute_large_lexemes: true,
        // Errors are for clients, who do not want a dump.
        verbose_errors: false,
    }
}

/// Compiles schemas to parsers over the tokens of one model.
pub(super) struct Compiler {
    factory: ParserFactory,
    /// For small schemas.
    pub(super) small: Lane,
    /// For large ones.
    pub(super) large: Lane,
}

/// What schemas of a size wait for: those of the other size never do.
pub(super) struct Lane {
    pub(super) room: Arc<Semaphore>,
    pub(super) turns: Arc<Semaphore>,
}

impl Lane {
    fn new(units: usize) -> Self {
        let [room, turns] = [units, AT_ONCE].map(|permits| Arc::new(Semaphore::new(permits)));
        Self { room, turns }
    }
}

impl Compiler {
    pub(super) fn new(words: &[Vec<u8>], end_ids: &[u32]) -> Result<Self, Error> {
        let Some(&first_end) = end_ids.first() else {
            return Err(Error::Tokenizer("no token ends an answer".to_owned()));
        };
        let info = TokRxInfo::new(words.len() as u32, first_end);
        let trie = TokTrie::from(&info, words).with_eos_tokens(end_ids);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&env)
            .map_err(|error| Error::Tokenizer(first_line(&error)))?;
        factory.quiet();
        *factory.limits_mut() = limits();
        Ok(Self { factory, small: Lane::new(UNITS), large: Lane::new(LARGE_UNITS) })
    }

    /// Compiles in turn with others. Whoever no longer waits for it has no turn, or ends it after the part that runs.
    pub(super) async fn in_turn(self: Arc<Self>, schema: Value) -> Result<Grammar, Error> {
        let asked = bounds::check(&schema)?;
        let units = 1 + (asked.expanded / SCHEMAS_PER_UNIT) as u32;
        let is_large = units > SMALL_UNITS;
        let waited = timeout(PATIENCE, async {
            let lane = if is_large { &self.large } else { &self.small };
            let room = lane.room.clone().acquire_many_owned(units).await?;
            let turn = lane.turns.clone().acquire_owned().await?;
            Ok::<_, AcquireError>((room, turn))
        });
        let Ok(Ok((room, turn))) = waited.await else { return Err(Error::Busy) };
        let (tell, told) = oneshot::channel();
        let compile = move || {
            let _turn = turn; // Until this thread ends, whether anybody waits or not.
            if is_large {
                give_way();
            }
            let parser = self.compile(schema, &|| tell.is_closed());
            tell.send(parser.map(|parser| Grammar::new(parser, Some(room)))).ok();
            leaves_memory();
        };
        let thread = thread::Builder::new().name("grammar".to_owned()).stack_size(STACK_BYTES);
        thread.spawn(compile).map_err(|_| Error::Busy)?;
        match timeout(DEADLINE, told).await {
            Ok(Ok(compiled)) => compiled,
            Ok(Err(_)) | Err(_) => Err(Error::TooMuch),
        }
    }

    /// Compiles a schema that is within bounds, on this thread, unless it is not wanted any more.
    pub(super) fn compile(
        &self,
        mut schema: Value,
        is_unwanted: &dyn Fn() -> bool,
    ) -> Result<TokenParser, Error> {
        let wanted = || if is_unwanted() { Err(Error::TooMuch) } else { Ok(()) };
        close(&mut schema);
        let Some(fields) = schema.as_object_mut() else {
            return Err(Error::Unsupported("it is none: expected an object".to_owned()));
        };
        let style = json!({
            "whitespace_flexible": false, "item_separator": ", ?", "key_separator": ": ?",
        });
        fields.insert("x-guidance".to_owned(), style);
        let limits = self.factory.limits();
        wanted()?;
        let init = GrammarInit::Serialized(TopLevelGrammar::from_json_schema(schema));
        let env = Some(self.factory.tok_env().clone());
        let parts = catch_unwind(AssertUnwindSafe(|| init.to_internal(env, limits.clone())));
        let (grammar, lexer) = parts.map_err(|error| refused(&error))?;
        wanted()?;
        rehearse(&lexer, limits)?;
        wanted()?;
        let init = GrammarInit::Internal(grammar, lexer);
        let parser = self.factory.create_parser_from_init_default(init);
        let mut parser = parser.map_err(|error| refused(&error))?;
        parser.start_without_prompt();
        Ok(parser)
    }
}

/// Makes the lexer's first states with fuel: the library makes the same ones without, and searches for as long as it
/// takes whether anything can follow them.
fn rehearse(lexer: &LexerSpec, limits: &ParserLimits) -> Result<(), Error> {
    let mut limits = limits.clone();
    let rehearsed = catch_unwind(AssertUnwindSafe(|| {
        let states = lexer.to_regex_vec(&mut limits);
        states.map(|mut states| {
            states.set_fuel(limits.initial_lexer_fuel);
            let first = states.initial_state(&lexer.all_lexemes());
            (0..=u8::MAX).all(|byte| {
                states.transition(first, byte);
                !states.has_error()
            })
        })
    }));
    match rehearsed {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::TooMuch),
        Err(error) => Err(refused(&error)),
    }
}

/// What the library says of a schema, without its insides.
fn refused(error: &impl Display) -> Error {
    let said = first_line(error);
    let is_too_much =
        ["fuel", "too big", "too large", "too many", "panic", "precomputation", "exceeded"];
    match is_too_much.iter().any(|word| said.contains(word)) {
        true => Error::TooMuch,
        false => Error::Unsupported(said),
    }
}
