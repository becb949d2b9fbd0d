//! Hostile bytes: a bounded run of the fuzz targets. Longer ones: `CAKE_FUZZ_SECONDS=600 cargo test --release -p
//! cake-tests --test slow fuzz:: -- --nocapture`, so much of a processor's time for each target, or of those that
//! `CAKE_FUZZ_TARGETS=NAME,NAME` names; or `cargo fuzz run TARGET`.
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::num::NonZero;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use cake_tests::fuzz::{BYTES_PER_BYTE, Mutator, TARGETS, Target};
use rustix::time::{ClockId, clock_gettime};

/// How many times as long as it is to have a processor a target may run by the clock: one whose work another process
/// does has little of its own.
const MOST_TIMES: u32 = 3;
const SEED: u64 = 2026;

/// Counts what each thread holds, and the most that it held.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
    /// Whether this thread feeds targets.
    static FEEDS: Cell<bool> = const { Cell::new(false) };
}

fn count(bytes: isize) {
    // A thread that ends has nothing to count any more.
    let held = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        held.get()
    });
    if let Ok(held) = held {
        MOST.try_with(|most| most.set(most.get().max(held))).ok();
    }
}

// SAFETY: every call goes to the system's allocator as it is; the counters allocate nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most that running this holds at a time beside what is held already.
fn held_by(run: impl FnOnce()) -> usize {
    let before = HELD.get();
    MOST.set(before);
    run();
    (MOST.get() - before).max(0) as usize
}

/// What this thread has had of a processor: it counts for a long run, whatever else the machine does.
fn spent() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn feed(target: &Target) {
    let seconds = std::env::var("CAKE_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    let wanted = seconds.map(Duration::from_secs);
    let (spent_before, began) = (spent(), Instant::now());
    let goes_on =
        |wanted: Duration| spent() - spent_before < wanted && began.elapsed() < wanted * MOST_TIMES;
    let seeds = (target.seeds)();
    assert!(!seeds.is_empty() && seeds.iter().all(|seed| !seed.is_empty()), "{}", target.name);
    let mut inputs = Mutator::new(SEED, seeds.clone());
    let (mut fed, mut most) = (0, 0);
    let mut feed = |input: &[u8]| {
        let held = held_by(|| {
            let run = std::panic::catch_unwind(|| (target.run)(input));
            assert!(run.is_ok(), "{} panics at {:?}", target.name, String::from_utf8_lossy(input));
        });
        let bound = target.most_bytes + BYTES_PER_BYTE * input.len();
        let (name, len) = (target.name, input.len());
        assert!(held <= bound, "{name} holds {held} of {bound} bytes for {len}: {input:?}");
        most = most.max(held);
    };
    seeds.iter().for_each(|seed| feed(seed));
    while wanted.map_or(fed < target.inputs, goes_on) {
        for _ in 0..100 {
            feed(&inputs.input());
        }
        fed += 100;
    }
    println!("{}: {fed} inputs of seed {SEED}, {most} bytes held at most", target.name);
}

#[test]
fn no_bytes_panic_or_allocate_beyond_their_bound() {
    let _machine = crate::alone(); // There is a thread for every processor.
    // What a target catches is told as well, but without a backtrace: that takes a hundred megabytes of its own.
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| match FEEDS.get() {
        true => eprintln!("{panic}"),
        false => usual(panic),
    }));
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    let named = std::env::var("CAKE_FUZZ_TARGETS").ok();
    let named: Option<Vec<&str>> = named.as_deref().map(|names| names.split(',').collect());
    for name in named.iter().flatten() {
        assert!(TARGETS.iter().any(|target| target.name == *name), "no target is {name:?}");
    }
    let is_wanted = |target: &&Target| named.as_ref().is_none_or(|it| it.contains(&target.name));
    let targets = Mutex::new(TARGETS.iter().filter(is_wanted));
    let next = || targets.lock().expect("nobody panics with it").next();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            // Schemas are compiled on a stack of this size; of it, only what is used is memory.
            let thread = std::thread::Builder::new().stack_size(cake_master::grammar::STACK_BYTES);
            let feed = || {
                FEEDS.set(true);
                std::iter::from_fn(&next).for_each(feed);
            };
            thread.spawn_scoped(scope, feed).expect("a thread");
        }
    });
}
