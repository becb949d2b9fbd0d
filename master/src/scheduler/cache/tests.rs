//! What is shared, promised, kept and forgotten, block by block.

use proptest::prelude::*;

use super::*;

const B: usize = BLOCK_POSITIONS;

fn ids(len: usize) -> Vec<u32> {
    (0..len as u32).collect()
}

/// Admits and covers a sequence, and says that its whole prompt is computed.
fn begin(cache: &mut KvCache, prompt: &[u32], more: usize) -> (Lease, usize) {
    let (mut lease, reused) = cache.admit(Scope::ALL, prompt, prompt.len() + more).expect("room");
    cache.cover(&mut lease, prompt.len());
    cache.publish(&mut lease, prompt);
    (lease, reused)
}

#[test]
fn a_prefix_is_shared_with_running_sequences_and_ended_ones() {
    let mut cache = KvCache::new(10, 0);
    let prompt = ids(3 * B + 5);
    let (first, reused) = begin(&mut cache, &prompt, 0);
    assert_eq!((reused, first.blocks.len()), (0, 4));
    let (second, reused) = begin(&mut cache, &prompt, 0);
    assert_eq!(reused, 3 * B);
    assert_eq!(second.blocks[..3], first.blocks[..3]);
    assert_ne!(second.blocks[3], first.blocks[3]);
    assert_eq!(cache.usage(), Usage { total: 10, held: 5, idle: 0, free: 5 });
    cache.release(first);
    cache.release(second);
    assert_eq!(cache.usage(), Usage { total: 10, held: 0, idle: 3, free: 7 });
    let other: Vec<u32> = [&prompt[..2 * B], &[7; 40]].concat();
    let (third, reused) = begin(&mut cache, &other, 0);
    assert_eq!(reused, 2 * B);
    cache.release(third);
}

#[test]
fn a_scope_finds_its_own_prefixes_and_nobody_elses() {
    let mut cache = KvCache::new(20, 0);
    let prompt = ids(2 * B + 1);
    let scopes = [Scope::ALL, Scope::of_key(0), Scope::of_key(1)];
    for scope in scopes {
        let (mut lease, reused) = cache.admit(scope, &prompt, prompt.len()).expect("room");
        assert_eq!(reused, 0, "{scope:?}");
        cache.cover(&mut lease, prompt.len());
        cache.publish(&mut lease, &prompt);
        cache.release(lease);
    }
    assert_eq!(cache.usage().idle, 3 * 2, "each has its own");
    for scope in scopes {
        let (lease, reused) = cache.admit(scope, &prompt, prompt.len()).expect("room");
        assert_eq!(reused, 2 * B, "{scope:?}");
        cache.release(lease);
    }
}

#[test]
fn the_last_prompt_token_is_always_computed() {
    let mut cache = KvCache::new(10, 0);
    let (lease, _) = begin(&mut cache, &ids(2 * B), 0);
    cache.release(lease);
    let (lease, reused) = begin(&mut cache, &ids(2 * B), 0);
    assert_eq!(reused, B);
    cache.release(lease);
    let (lease, reused) = begin(&mut cache, &ids(2 * B + 1), 0);
    assert_eq!(reused, 2 * B);
    cache.release(lease);
}

#[test]
fn what_is_generated_is_known_too_once_a_block_is_full() {
    let mut cache = KvCache::new(10, 0);
    let all = ids(3 * B);
    let (mut lease, _) = begin(&mut cache, &all[..B + 3], 2 * B);
    cache.cover(&mut lease, 3 * B);
    cache.publish(&mut lease, &all[..2 * B - 1]);
    assert_eq!(lease.known.len(), 1);
    cache.publish(&mut lease, &all);
    assert_eq!(lease.known.len(), 3);
    cache.release(lease);
    assert_eq!(cache.admit(Scope::ALL, &all, 3 * B).expect("room").1, 2 * B);
}

#[test]
fn a_block_that_is_promised_is_there_when_it_is_needed() {
    let mut cache = KvCache::new(4, 0);
    let (mut first, _) = cache.admit(Scope::ALL, &ids(3), 2 * B).expect("room");
    let (mut second, _) = cache.admit(Scope::ALL, &[9, 9], 2 * B).expect("room");
    assert_eq!(cache.admit(Scope::ALL, &[5], 1).expect_err("all are promised"), Full);
    cache.cover(&mut first, 2 * B);
    cache.cover(&mut second, 2 * B);
    cache.release(first);
    let (third, _) = cache.admit(Scope::ALL, &[5], 1).expect("room again");
    cache.release(second);
    cache.release(third);
    assert_eq!(cache.usage().free, 4);
    assert_eq!(cache.promised, 0);
}

#[test]
fn idle_blocks_that_a_sequence_shares_are_not_promised_to_it_twice() {
    let mut cache = KvCache::new(3, 0);
    let (lease, _) = begin(&mut cache, &ids(3 * B), 0);
    cache.release(lease);
    assert_eq!(cache.usage().idle, 3);
    // Two blocks are shared, so that one is left, but two more are needed.
    assert_eq!(cache.admit(Scope::ALL, &ids(2 * B + 1), 4 * B).expect_err("no room"), Full);
    assert_eq!(cache.admit(Scope::ALL, &ids(2 * B + 1), 3 * B).expect("room").1, 2 * B);
}

#[test]
fn the_least_recently_used_prefix_goes_first_and_from_its_end() {
    let mut cache = KvCache::new(4, 0);
    let (old, _) = begin(&mut cache, &[vec![1; B], vec![2; B]].concat(), 0);
    let (new, _) = begin(&mut cache, &[vec![3; B], vec![4; B]].concat(), 0);
    cache.release(old);
    cache.release(new);
    let (lease, _) = begin(&mut cache, &[5; 3], 0);
    let reused = |cache: &KvCache, first: u32| {
        cache.known_prefix(Scope::ALL, &[vec![first; B], vec![first + 1; B]].concat()).len()
    };
    assert_eq!((reused(&cache, 1), reused(&cache, 3)), (1, 2));
    cache.release(lease);
}

#[test]
fn two_that_compute_the_same_at_once_leave_one_copy() {
    let mut cache = KvCache::new(10, 0);
    let prompt = ids(2 * B + 1);
    let (mut one, _) = cache.admit(Scope::ALL, &prompt, prompt.len()).expect("room");
    let (mut other, _) = cache.admit(Scope::ALL, &prompt, prompt.len()).expect("room");
    for lease in [&mut one, &mut other] {
        cache.cover(lease, prompt.len());
        cache.publish(lease, &prompt);
    }
    cache.release(one);
    cache.release(other);
    assert_eq!(cache.usage(), Usage { total: 10, held: 0, idle: 2, free: 8 });
}

#[test]
fn what_is_forgotten_is_not_found_and_comes_back_as_free() {
    let mut cache = KvCache::new(6, 0);
    let (ended, _) = begin(&mut cache, &[vec![1; B], vec![2; B]].concat(), 0);
    cache.release(ended);
    let (running, _) = begin(&mut cache, &[7; B], 0);
    cache.forget();
    assert_eq!(cache.usage(), Usage { total: 6, held: 1, idle: 0, free: 5 });
    let (again, reused) = begin(&mut cache, &[7; B + 1], 0);
    assert_eq!(reused, 0);
    cache.release(running);
    cache.release(again);
    let usage = cache.usage();
    assert_eq!((usage.held, usage.free + usage.idle), (0, 6));
}

/// Computes a sequence up to the end of `ids`, and keeps its state there as `keep` says.
fn go_on(cache: &mut KvCache, lease: &mut Lease, ids: &[u32], keep: Keep) -> StateSlots {
    cache.cover(lease, ids.len());
    cache.publish(lease, ids);
    cache.advance(lease, ids.len(), keep).expect("there are slots")
}

/// Admits a sequence of a model with a state, and says how many positions it shares and how many it need not compute.
fn recurrent(cache: &mut KvCache, prompt: &[u32]) -> (Lease, usize, usize) {
    let (lease, reused) = cache.admit(Scope::ALL, prompt, prompt.len() + 8 * B).expect("room");
    let shared = lease.shared();
    (lease, shared, reused)
}

#[test]
fn with_a_state_a_sequence_shares_more_than_it_need_not_compute() {
    let mut cache = KvCache::new(40, 6);
    let prompt = ids(3 * B + 5);
    let (mut first, shared, reused) = recurrent(&mut cache, &prompt);
    assert_eq!((shared, reused), (0, 0));
    assert_eq!(go_on(&mut cache, &mut first, &prompt[..B], Keep::No).from, None);
    let kept = go_on(&mut cache, &mut first, &prompt[..2 * B], Keep::Long).to;
    let on = go_on(&mut cache, &mut first, &prompt, Keep::Long);
    assert_eq!(on.from, Some(kept));
    assert_ne!(on.to, kept);
    let (mut second, shared, reused) = recurrent(&mut cache, &prompt);
    assert_eq!((shared, reused), (3 * B, 2 * B));
    assert_eq!(second.blocks[..3], first.blocks[..3]);
    let slots = go_on(&mut cache, &mut second, &prompt, Keep::Long);
    assert_eq!(slots.from, Some(kept));
    assert!(![kept, on.to].contains(&slots.to));
    assert_eq!(cache.state_usage(), Usage { total: 6, held: 2, idle: 1, free: 3 });
    cache.release(first);
    cache.release(second);
    assert_eq!(cache.state_usage(), Usage { total: 6, held: 0, idle: 1, free: 5 });
}

#[test]
fn who_parts_from_others_leaves_a_snapshot_for_those_who_come_later() {
    let mut cache = KvCache::new(40, 6);
    let [first, second, third] = [7, 8, 9].map(|own| [&ids(2 * B)[..], &[own; 2 * B + 1]].concat());
    let (mut lease, _, _) = recurrent(&mut cache, &first);
    go_on(&mut cache, &mut lease, &first[..4 * B], Keep::Long);
    cache.release(lease);
    let (mut lease, shared, reused) = recurrent(&mut cache, &second);
    assert_eq!(
        (shared, reused),
        (2 * B, 0),
        "the first one kept its state after its own blocks alone"
    );
    assert_eq!(go_on(&mut cache, &mut lease, &second[..shared], Keep::Long).from, None);
    go_on(&mut cache, &mut lease, &second, Keep::No);
    cache.release(lease);
    let (lease, shared, reused) = recurrent(&mut cache, &third);
    assert_eq!((shared, reused), (2 * B, 2 * B));
    cache.release(lease);
    let (lease, shared, reused) = recurrent(&mut cache, &first);
    assert_eq!((shared, reused), (4 * B, 4 * B));
    cache.release(lease);
}

#[test]
fn of_an_answer_the_last_border_is_kept_and_the_prompts_own() {
    let mut cache = KvCache::new(40, 6);
    let all = ids(6 * B);
    let (mut lease, _, _) = recurrent(&mut cache, &all[..B + 3]);
    go_on(&mut cache, &mut lease, &all[..B], Keep::Long);
    for end in B + 1..=4 * B {
        go_on(&mut cache, &mut lease, &all[..end], Keep::UntilNext);
    }
    assert_eq!(cache.state_usage(), Usage { total: 6, held: 1, idle: 1, free: 4 });
    // Somebody begins at the last border, which stays for that as the answer goes on.
    let (other, shared, reused) = recurrent(&mut cache, &all);
    assert_eq!((shared, reused), (4 * B, 4 * B));
    for end in 4 * B + 1..=5 * B {
        go_on(&mut cache, &mut lease, &all[..end], Keep::UntilNext);
    }
    assert_eq!(cache.state_usage(), Usage { total: 6, held: 2, idle: 1, free: 3 });
    cache.release(other);
    cache.release(lease);
    let (lease, shared, reused) = recurrent(&mut cache, &all);
    assert_eq!((shared, reused), (5 * B, 5 * B));
    cache.release(lease);
    let (lease, _, reused) = recurrent(&mut cache, &all[..3 * B]);
    assert_eq!(reused, B, "what the answer kept on its way is gone");
    cache.release(lease);
}

#[test]
fn what_is_no_known_block_has_no_snapshot() {
    let mut cache = KvCache::new(40, 6);
    let prompt = ids(2 * B + 1);
    let (mut one, _, _) = recurrent(&mut cache, &prompt);
    let (mut other, _, _) = recurrent(&mut cache, &prompt);
    go_on(&mut cache, &mut one, &prompt, Keep::Long);
    assert!(!one.is_at_snapshot(), "within a block");
    go_on(&mut cache, &mut other, &prompt[..2 * B], Keep::Long);
    assert!(
        !other.is_at_snapshot(),
        "the same is known of another sequence, and this one's blocks are its own"
    );
    cache.release(one);
    cache.release(other);
    assert_eq!(cache.state_usage().free, 6);
}

#[test]
fn a_snapshot_goes_with_its_block() {
    let mut cache = KvCache::new(2, 3);
    let (mut lease, _) = cache.admit(Scope::ALL, &ids(B), B).expect("room");
    go_on(&mut cache, &mut lease, &ids(B), Keep::Long);
    cache.release(lease);
    assert_eq!(cache.state_usage(), Usage { total: 3, held: 0, idle: 1, free: 2 });
    let (mut lease, _) = cache.admit(Scope::ALL, &[7], 2 * B).expect("room");
    cache.cover(&mut lease, 2 * B);
    assert_eq!(cache.state_usage().free, 3);
    cache.release(lease);
}

#[test]
fn as_many_sequences_run_as_there_are_slots_and_nothing_is_taken_by_others() {
    let mut cache = KvCache::new(40, 2);
    let (first, second) = (recurrent(&mut cache, &[1]).0, recurrent(&mut cache, &[2]).0);
    let usage = cache.usage();
    assert_eq!(cache.admit(Scope::ALL, &[3], 1).expect_err("no slot"), Full);
    assert_eq!((cache.usage(), cache.promised), (usage, first.promised + second.promised));
    cache.release(first);
    cache.release(second);
    assert_eq!(cache.promised, 0);
}

#[test]
fn after_what_is_forgotten_nobody_begins_and_who_is_there_goes_on() {
    let mut cache = KvCache::new(40, 2);
    let prompt = ids(2 * B + 1);
    let (mut lease, _, _) = recurrent(&mut cache, &prompt);
    let kept = go_on(&mut cache, &mut lease, &prompt[..2 * B], Keep::Long).to;
    cache.forget();
    let (late, shared, reused) = recurrent(&mut cache, &prompt);
    assert_eq!((shared, reused), (0, 0));
    assert_eq!(go_on(&mut cache, &mut lease, &prompt, Keep::No).from, Some(kept));
    cache.release(lease);
    cache.release(late);
    assert_eq!(cache.state_usage().free, 2);
}

proptest! {
    /// Whatever sequences come and go: no block is lost, none is held twice but as a shared prefix.
    #[test]
    fn no_block_is_lost_or_given_twice(
        moves in prop::collection::vec(
            (0..4usize, 0..3u32, 1..90usize, 0..60usize, 0..2usize), 1..60)
    ) {
        let mut cache = KvCache::new(12, 0);
        let mut running: Vec<(Lease, Vec<u32>)> = Vec::new();
        for (what, first, len, more, key) in moves {
            let scope = Scope::of_key(key);
            let prompt: Vec<u32> = (0..len as u32).map(|at| at / 20 * first).collect();
            if what == 0 && !running.is_empty() {
                let (lease, _) = running.remove(len % running.len());
                cache.release(lease);
            } else if what == 3 && more == 0 {
                cache.forget();
            } else if let Ok((mut lease, reused)) = cache.admit(scope, &prompt, len + more) {
                prop_assert!(reused < len);
                cache.cover(&mut lease, len + more);
                let ids: Vec<u32> = prompt.iter().copied().chain((0..more as u32).map(|at| at % 3)).collect();
                cache.publish(&mut lease, &ids);
                running.push((lease, ids));
            }
            let usage = cache.usage();
            let mut held: Vec<u32> = running.iter().flat_map(|(lease, _)| lease.blocks.clone()).collect();
            held.sort_unstable();
            held.dedup();
            prop_assert_eq!(held.len(), usage.held);
            // Who shares a block is of the same scope and has the same tokens up to its end.
            for (index, (lease, ids)) in running.iter().enumerate() {
                for (other, other_ids) in &running[..index] {
                    for (at, block) in lease.blocks.iter().enumerate() {
                        if let Some(there) = other.blocks.iter().position(|b| b == block) {
                            prop_assert_eq!(there, at);
                            prop_assert_eq!(lease.scope, other.scope);
                            let end = (at + 1) * B;
                            prop_assert!(ids.len() >= end && other_ids.len() >= end);
                            prop_assert_eq!(&ids[..end], &other_ids[..end]);
                        }
                    }
                }
            }
        }
        for (lease, _) in running {
            cache.release(lease);
        }
        let usage = cache.usage();
        prop_assert_eq!((usage.held, usage.free + usage.idle), (0, 12));
    }
}
