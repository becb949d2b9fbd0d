//! A hop that two workers cannot make themselves goes through the master, and is said to.
use cake_tests::{CountingProxy, Master, TestWorker, golden};

/// Lets in as many connections as a master alone makes, so that the worker before finds no way.
///
/// Returns how many more there are when the worker before connects as well.
fn keep_peers_out(proxy: &CountingProxy, push: impl Fn(), run: impl Fn()) -> u64 {
    let count = |act: &dyn Fn()| {
        let before = proxy.connections();
        act();
        proxy.connections() - before
    };
    let (pushing, running) = (count(&push), count(&run));
    proxy.allow_more(pushing);
    running.saturating_sub(pushing)
}

#[test]
fn an_unreachable_next_stage_is_reached_through_the_master() {
    let golden = golden("llama-sharded");
    let workers = TestWorker::several(&["a", "b"]);
    let proxy = CountingProxy::start(&workers[1].address);
    let master = Master::at([&workers[0].address, &proxy.address]);
    let place = [("a", 0, 5), ("b", 5, 12)];
    let push = || drop(master.push(&golden.path, &place));
    let run = || drop(master.answer(&golden, &place, &[]));
    // What a relayed hop rounds again is rounded already: no format changes by it.
    for format in ["f32", "bf16", "q8"] {
        let more = ["--chunk", "4", "--wire", format];
        proxy.heal();
        let direct = master.answer(&golden, &place, &more);
        assert!(direct.stages.iter().all(|(_, _, direct)| *direct), "{:?}", direct.stages);
        assert_eq!(keep_peers_out(&proxy, push, run), 1, "the worker before makes one connection");
        let relayed = master.answer(&golden, &place, &more);
        let ways: Vec<bool> = relayed.stages.iter().map(|(_, _, direct)| *direct).collect();
        assert_eq!(ways, [false, true], "the first hop is relayed: {:?}", relayed.stages);
        assert_eq!(relayed.output_ids, direct.output_ids, "{format}");
        assert_eq!(relayed.logprob_bits, direct.logprob_bits, "{format}");
        if format == "f32" {
            assert_eq!(relayed.output_ids, golden.greedy_ids);
        }
    }
}

#[test]
fn only_the_hop_that_needs_it_is_relayed() {
    let golden = golden("llama-sharded");
    let workers = TestWorker::several(&["a", "b", "c", "d"]);
    let proxy = CountingProxy::start(&workers[2].address);
    let addresses = [&workers[0].address, &workers[1].address, &proxy.address, &workers[3].address];
    let master = Master::at(addresses);
    let place = [("a", 0, 3), ("b", 3, 6), ("c", 6, 9), ("d", 9, 12)];
    let push = || drop(master.push(&golden.path, &place));
    let run = || drop(master.answer(&golden, &place, &[]));
    push(); // Measured now, so that later pushes make the connections of any later run.
    assert_eq!(keep_peers_out(&proxy, push, run), 1, "the worker before makes one connection");
    let relayed = master.answer(&golden, &place, &[]);
    let ways: Vec<bool> = relayed.stages.iter().map(|(_, _, direct)| *direct).collect();
    assert_eq!(ways, [true, false, true, true], "{:?}", relayed.stages);
    assert_eq!(relayed.output_ids, golden.greedy_ids);
}

#[test]
fn doctor_says_which_workers_do_not_reach_each_other() {
    let workers = TestWorker::several(&["kitchen", "attic"]);
    let proxy = CountingProxy::start(&workers[1].address);
    let master = Master::at([&workers[0].address, &proxy.address]);
    master.run(&["doctor"]).success();
    proxy.allow_more(proxy.connections() - 1); // All but the one from the kitchen, which is the last.
    let finished = master.run(&["doctor"]);
    let failed: Vec<&str> =
        finished.stdout.lines().filter(|line| line.starts_with("FAIL")).collect();
    assert_eq!(failed.len(), 1, "{}", finished.stdout);
    assert!(failed[0].contains("does not reach attic"), "{}", failed[0]);
    assert!(failed[0].contains("detour over the master"), "{}", failed[0]);
    assert!(finished.refusal().contains("1 of"));
}
