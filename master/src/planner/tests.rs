//! Each rule of the planner by example; refusals and random cases in modules of their own.

mod random;
mod refusals;

use super::*;
use random::assert_sound;

const MIB: u64 = 1 << 20;

/// `count` equal layers of 100 MiB of weights and 10 MiB of KV cache.
fn model(count: usize) -> Input {
    Input {
        layers: vec![
            LayerCost {
                bytes: 100 * MIB,
                kv_bytes: 10 * MIB,
                state_bytes: 0,
                joined: false
            };
            count
        ],
        devices: Vec::new(),
        parallel: 1,
        pins: Vec::new(),
        activation_bytes: 8192,
        slack: 0.0,
        context_tokens: 4096,
        ends_seconds: 0.0,
    }
}

impl Input {
    /// With one more device: its budget in MiB, of which 30 are its own, and milliseconds per
    /// layer.
    fn device(mut self, name: &str, budget_mib: u64, layer_ms: u64) -> Input {
        let layers = self.layers.len();
        self.devices.push(Device {
            name: name.into(),
            budget_bytes: budget_mib * MIB,
            overhead_bytes: 20 * MIB,
            scratch_bytes: 10 * MIB,
            layer_resident_bytes: self.layers.iter().map(|layer| layer.bytes).collect(),
            layer_time: vec![layer_ms as f64 / 1e3; layers],
            hop: 0.0005,
            push_bytes_per_second: Some(100.0 * MIB as f64),
            held: vec![false; layers],
            local: false,
        });
        self
    }

    fn parallel(self, parallel: usize) -> Input {
        Input { parallel, ..self }
    }

    fn pin(mut self, device: &str, start: usize, end: usize) -> Input {
        let layers = LayerRange::new(start, end);
        self.pins.push(Pin { device: device.into(), layers });
        self
    }

    /// The device added last holds these layers.
    fn holding(mut self, layers: std::ops::Range<usize>) -> Input {
        self.devices.last_mut().unwrap().held[layers].fill(true);
        self
    }

    /// The device added last is the master.
    fn local(mut self) -> Input {
        self.devices.last_mut().unwrap().local = true;
        self
    }
}

fn placed(plan: &Plan) -> Vec<String> {
    plan.stages.iter().map(|stage| format!("{} {}", stage.device, stage.layers)).collect()
}

#[test]
fn a_slower_device_gets_fewer_layers() {
    // With as many sequences as stages the slowest stage counts: 4 × 8 ms is as long as 16 × 2 ms.
    let input = model(20).device("laptop", 4000, 2).device("phone", 4000, 8).parallel(2);
    assert_eq!(placed(&plan(&input).unwrap()), ["laptop 0..16", "phone 16..20"]);
}

#[test]
fn one_sequence_goes_to_the_fastest_device_that_has_room() {
    let input = model(10).device("laptop", 4000, 2).device("phone", 4000, 8);
    let alone = plan(&input).unwrap();
    assert_eq!(placed(&alone), ["laptop 0..10"]);
    assert!((alone.step_seconds - 0.021).abs() < 1e-12, "{alone:?}"); // 10 layers, there and back.
    let input = model(10).device("laptop", 30 + 7 * 110, 2).device("phone", 4000, 8);
    assert_eq!(placed(&plan(&input).unwrap()), ["laptop 0..7", "phone 7..10"]);
}

#[test]
fn the_masters_own_part_of_a_token_is_predicted_and_moves_no_layer() {
    let input = model(20).device("laptop", 4000, 2).device("phone", 4000, 8).parallel(2);
    let without = plan(&input).unwrap();
    let with = plan(&Input { ends_seconds: 0.5, ..input }).unwrap();
    assert!((with.step_seconds - without.step_seconds - 0.5).abs() < 1e-12, "{with:?}");
    assert_eq!(with.ends_seconds, 0.5);
    assert_eq!((with.cost_seconds, &with.stages), (without.cost_seconds, &without.stages));
}

#[test]
fn a_budget_may_be_filled_to_the_last_byte() {
    let input = model(4).device("phone", 30 + 4 * 110, 2);
    assert_eq!(plan(&input).unwrap().stages[0].memory.free(), 0);
    let mut input = input;
    input.devices[0].budget_bytes -= 1;
    assert!(matches!(plan(&input), Err(Refusal::DoesNotFit { placed: 3, .. })));
}

#[test]
fn equal_plans_go_to_the_fewest_devices_then_to_the_first_names() {
    let input = model(4).device("b", 4000, 2).device("c", 4000, 2).device("a", 4000, 2);
    assert_eq!(placed(&plan(&input).unwrap()), ["a 0..4"]);
    let input = model(4).device("b", 250, 2).device("c", 250, 2).device("a", 250, 2);
    assert_eq!(placed(&plan(&input).unwrap()), ["a 0..2", "b 2..4"]);
}

#[test]
fn equal_plans_go_where_the_blobs_are() {
    let input = model(4).device("a", 4000, 2).device("b", 4000, 2).holding(0..1);
    let plan = plan(&input).unwrap();
    assert_eq!(placed(&plan), ["b 0..4"]);
    assert_eq!(plan.push_bytes, 300 * MIB);
    assert_eq!(plan.stages[0].push_seconds, Some(3.0));
}

#[test]
fn a_plan_that_is_held_stays_until_another_is_15_percent_faster() {
    let held = |other_ms: u64| {
        let mut input =
            model(10).device("new", 4000, other_ms).device("old", 4000, 115).holding(0..10);
        input.devices.iter_mut().for_each(|device| device.hop = 0.0);
        plan(&input).unwrap()
    };
    let stays = held(101);
    assert_eq!((placed(&stays), stays.kept, stays.push_bytes), (vec!["old 0..10".into()], true, 0));
    let moves = held(99);
    assert_eq!((placed(&moves), moves.kept), (vec!["new 0..10".into()], false));
    let faster = held(120);
    assert_eq!((placed(&faster), faster.kept), (vec!["old 0..10".into()], false));
}

#[test]
fn the_master_is_first_and_is_pushed_nothing() {
    let input = model(10).device("phone", 700, 2).device("master", 700, 8).local();
    let plan = plan(&input).unwrap();
    assert_eq!(placed(&plan), ["master 0..4", "phone 4..10"]);
    assert_eq!(plan.push_bytes, 600 * MIB);
    assert_eq!(plan.stages[0].hop_seconds, 0.0);
    assert_eq!(plan.wire_bytes_per_row, 2 * 8192);
}

#[test]
fn the_master_alone_uses_no_network() {
    let alone = plan(&model(4).device("master", 700, 8).local()).unwrap();
    assert_eq!((alone.step_seconds, alone.wire_bytes_per_row, alone.push_bytes), (0.032, 0, 0));
    assert!(!alone.kept);
}

#[test]
fn layers_that_share_what_they_keep_are_on_one_device() {
    let joined = |mut input: Input, joined: std::ops::Range<usize>| {
        input.layers[joined].iter_mut().for_each(|layer| layer.joined = true);
        input
    };
    // Layers 4 to 9 in one stage: more than either device would get.
    let input = model(10).device("laptop", 30 + 7 * 110, 2).device("phone", 30 + 7 * 110, 2);
    let input = joined(input.parallel(2), 5..10);
    assert_eq!(placed(&plan(&input).unwrap()), ["laptop 0..4", "phone 4..10"]);
    let small = model(10).device("laptop", 30 + 7 * 110, 2).device("phone", 30 + 5 * 110, 2);
    let small = joined(small, 3..10);
    let refusal = plan(&small).unwrap_err();
    assert!(matches!(refusal, Refusal::DoesNotFit { placed: 2, .. }), "{refusal:?}");
    let said = refusal.to_string();
    assert!(said.contains("one device must have all of layers 2..10"), "{said}");
    assert!(said.contains("room for 2 layers"), "of which each is at a place to cut: {said}");
    for (start, end) in [(0, 6), (6, 10)] {
        let refusal = plan(&input.clone().pin("laptop", start, end)).unwrap_err();
        let together = LayerRange::new(4, 10);
        assert!(matches!(&refusal, Refusal::PinCuts { together: it, .. } if *it == together));
        assert!(refusal.to_string().contains("must have all of 4..10"), "{refusal}");
    }
    assert!(plan(&input.clone().pin("laptop", 4, 10)).is_ok());
}

#[test]
fn pins_are_honoured() {
    let input = model(8)
        .device("a", 4000, 1)
        .device("b", 4000, 2)
        .device("c", 4000, 9)
        .pin("c", 2, 4)
        .pin("a", 6, 8);
    let Err(Refusal::PinGap { gaps, free_devices }) = plan(&input) else { panic!("two gaps") };
    assert_eq!((gaps.len(), free_devices), (2, 1));
    let input =
        model(8).device("a", 4000, 1).device("b", 4000, 2).device("c", 4000, 9).pin("c", 0, 4);
    assert_eq!(placed(&plan(&input).unwrap()), ["c 0..4", "a 4..8"]);
}

#[test]
fn sixteen_devices_share_eighty_layers() {
    let mut input = model(80).parallel(16);
    for device in 0..16 {
        input = input.device(&format!("device {device:02}"), 30 + 8 * 110, 10);
    }
    let plan = plan(&input).unwrap();
    assert_sound(&input, &plan, 0);
    assert_eq!(plan.stages.len(), 16);
    assert!(plan.stages.iter().all(|stage| stage.layers.len() == 5), "{plan:?}");
}

#[test]
fn a_plan_over_many_devices_is_kept_when_planned_again() {
    let mut input = model(40).parallel(4);
    for device in 0..12 {
        input = input.device(&format!("device {device:02}"), 700, 5 + device * 7 % 5);
    }
    let first = plan(&input).unwrap();
    for stage in &first.stages {
        input.devices[stage.device_index].held[stage.layers.start..stage.layers.end].fill(true);
    }
    let again = plan(&input).unwrap();
    assert_eq!((placed(&again), again.push_bytes), (placed(&first), 0));
}

#[test]
fn the_table_is_aligned() {
    let input = model(12).device("phone", 700, 2).device("tablet", 1000, 4).parallel(2);
    let plan = plan(&input).unwrap();
    let expected = "\
device  layers  weights      KV  scratch + process      total of budget  time
phone     0..6  600 MiB  60 MiB             30 MiB   690 MiB of 700 MiB  32 %
tablet   6..12  600 MiB  60 MiB             30 MiB  690 MiB of 1000 MiB  64 %
";
    assert_eq!(table::render(&plan), expected);
    assert_eq!(
        table::summary(&plan),
        "38 ms per token (26.7 tok/s), 2 steps in flight; 1.2 GiB to push"
    );
}
