//! What rests, how long it counts, and what a stage waits for.

use std::pin::pin;

use cake_stage::Share;
use futures_util::FutureExt;
use tokio::sync::mpsc;

use super::*;
use crate::store::tests::{TestBlob, open, receive};

#[test]
fn what_rests_stays_until_it_is_let_go() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    let runtime = Runtime::new("a", Arc::default());
    let names = [0, 1].map(|layer| receive(&store, &TestBlob::new(layer, 1000)));
    for name in &names {
        runtime.rest(store.open_blob(name).unwrap());
    }
    runtime.unload(); // Nothing is loaded.
    store.discard(&names[0]).unwrap();
    assert!(runtime.let_go_unless(|name| store.holds(name)));
    assert!(!runtime.let_go_unless(|name| store.holds(name)), "there is nothing more to let go");
    let rest: Vec<Digest> = runtime.take().iter().map(|(manifest, _)| manifest.name()).collect();
    assert_eq!(rest, [names[1]]);
    assert!(runtime.take().is_empty());
}

#[test]
fn what_rests_counts_until_somebody_needs_its_room() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    let ledger = Arc::<Ledger<String>>::default();
    let (runtime, other) = (Runtime::new("a", ledger.clone()), Account::new(ledger));
    let share = |bytes| [Share { device: "system".to_owned(), bytes, offered: 10 }];
    runtime.account().take(&share(8)).unwrap();
    runtime.rest(store.open_blob(&receive(&store, &TestBlob::new(0, 1000))).unwrap());
    runtime.unload();
    assert!(other.take(&share(3)).is_err(), "it rests");
    assert!(runtime.let_rest_go() && !runtime.let_rest_go());
    assert!(other.take(&share(10)).is_ok());
    // A stage that is being loaded has nothing that rests, and keeps its room.
    other.give_back();
    runtime.account().take(&share(8)).unwrap();
    assert!(!runtime.let_rest_go() && other.take(&share(3)).is_err());
    runtime.clear();
    assert!(other.take(&share(10)).is_ok());
    // Of what a push has evicted nothing rests.
    other.give_back();
    runtime.account().take(&share(8)).unwrap();
    assert!(!runtime.let_go_unless(|_| false) && other.take(&share(3)).is_err());
    runtime.rest(store.open_blob(&receive(&store, &TestBlob::new(0, 1000))).unwrap());
    runtime.unload();
    assert!(runtime.let_go_unless(|_| false));
    assert!(other.take(&share(3)).is_ok());
}

/// A step of so many rows, all of them wanted.
fn step(number: u64, rows: usize, row_width: usize) -> Step {
    Step {
        step: number,
        generation: 1,
        items: Vec::new(),
        rows,
        wanted: (0..).take(rows).collect(),
        stage_us: Vec::new(),
        idle_us: Vec::new(),
        hidden: vec![0.5; rows * row_width],
    }
}

#[tokio::test]
async fn a_stage_does_not_wait_until_its_largest_result_has_left() {
    for (max_rows, row_width) in [(1, 8), (600, 2048), (1024, 2048)] {
        let layers = LayerRange { start: 0, end: 1 };
        let wire = WireFormat::F32;
        let about =
            About { generation: 1, layers, row_width, widest_row: row_width, max_rows, wire };
        let routes = Routes::new("a", wire, about.frames_queued());
        let (master, frames) = mpsc::channel(about.frames_queued());
        routes.set_master(master);
        let sending = routes.send(step(1, max_rows, row_width));
        assert!(sending.now_or_never().is_some(), "{max_rows} rows of {row_width}");
        assert_eq!(frames.len(), (max_rows * row_width * 4).div_ceil(limits::FRAME_BYTES));
    }
}

#[tokio::test]
async fn a_result_waits_for_a_link_that_takes_nothing_no_longer_than_its_stage_is_loaded() {
    let routes = Routes::new("a", WireFormat::F32, 1);
    let (master, mut frames) = mpsc::channel(1);
    routes.set_master(master);
    let step = |number| step(number, 1, 4);
    let (ended, end) = watch::channel(());
    send(&routes, step(1), end.clone()).await;
    {
        let mut sending = pin!(send(&routes, step(2), end));
        assert!(sending.as_mut().now_or_never().is_none(), "the link takes one frame");
        drop(ended);
        assert!(sending.now_or_never().is_some(), "it ends with its stage");
    }
    drop(routes); // So that no more frames can come.
    assert_eq!(frames.recv().await.expect("a frame").expect("no status").step, 1);
    assert!(frames.recv().await.is_none(), "the second was not sent");
}
