use super::*;
use crate::present::tests::spare;

fn device(name: &str, local: bool, (start, end): (usize, usize)) -> Device {
    Device {
        name: name.to_owned(),
        worker_id: (!local).then(|| format!("id of {name}")),
        local,
        state: DeviceState::Waiting,
        layers: LayerRange::new(start, end),
        direct: true,
        memory: StageMemory { weights: 1, kv: 2, state: 0, scratch: 3, overhead: 4, budget: 20 },
        hop_seconds: (!local).then_some(0.001),
    }
}

fn monitor() -> Monitor {
    let monitor = Monitor::new("m", Metrics::default(), Arc::default());
    monitor.planned(Planned {
        encoding: "q8".into(),
        context: 64,
        parallel: 2,
        layers: 5,
        parts_of: None,
        devices: vec![device("master", true, (0, 2)), device("a", false, (2, 5))],
        members: vec![Present { duty: Duty::Layers, ..spare("a") }],
    });
    monitor
}

#[test]
fn a_service_comes_up_and_loses_a_worker() {
    let monitor = monitor();
    assert_eq!(monitor.phase(), (Phase::Planning, None));
    let progress = Progress { workers: vec![WorkerProgress::new("a", 100)] };
    monitor.pushing(&Arc::new(progress));
    let pushing = monitor.snapshot();
    let push = Push { total_bytes: 100, sent_bytes: 0, reused_bytes: 0, finished: false };
    assert_eq!((pushing.devices[0].push, pushing.devices[1].push), (None, Some(push)));
    assert_eq!(pushing.devices[1].device.state, DeviceState::Pushing);
    monitor.loading();
    let stage = |worker: &str, direct| StageInfo {
        worker: worker.into(),
        layers: LayerRange::new(0, 1),
        direct,
    };
    monitor.wired(&[stage("master", true), stage("a", false)]);
    monitor.ready();
    let ready = monitor.snapshot();
    assert!(ready.phase == Phase::Ready && !ready.devices[1].device.direct);
    let lost = pipeline::Error::Lost { worker: "a".into(), reason: "it is gone".into() };
    monitor.lost(&lost);
    let without = monitor.snapshot();
    assert_eq!(without.phase, Phase::Recovering);
    assert_eq!(without.reason.as_deref(), Some("lost worker \"a\": it is gone"));
    let states = without.devices.iter().map(|now| now.device.state).collect::<Vec<_>>();
    assert_eq!(states, [DeviceState::Ready, DeviceState::Lost]);
    monitor.members(Vec::new());
    let more = monitor.snapshot().devices;
    let states = more.iter().map(|now| now.device.state).collect::<Vec<_>>();
    assert_eq!(states, [DeviceState::Ready, DeviceState::Lost], "the master itself is there");
    monitor.broken("nobody has room");
    assert_eq!(monitor.phase(), (Phase::Broken, Some("nobody has room".to_owned())));
    monitor.ready();
    assert_eq!(monitor.phase(), (Phase::Ready, None));
}

#[test]
fn who_is_set_aside_is_told_with_the_reason() {
    let monitor = monitor();
    assert_eq!(monitor.aside(), "");
    let set_aside = |quarantine| SetAside {
        worker: "a".into(),
        quarantine,
        seconds: 7,
        reason: "it answered 3 rows".into(),
    };
    monitor.set_aside(vec![set_aside(true)]);
    assert_eq!(monitor.aside(), "; \"a\" is in quarantine: it answered 3 rows");
    let text = monitor.metrics.text();
    assert!(text.contains("cake_workers_set_aside{state=\"quarantine\"} 1\n"), "{text}");
    monitor.set_aside(vec![set_aside(false)]);
    assert_eq!(monitor.aside(), "; \"a\" gets no layers for 7 s: it answered 3 rows");
    let json = serde_json::to_value(monitor.snapshot()).unwrap();
    assert_eq!(json["set_aside"][0]["worker"], "a");
    assert_eq!(json["set_aside"][0]["quarantine"], false);
    assert_eq!(json["members"][0]["duty"], "paused");
    assert_eq!(json["members"][0]["why"], "it answered 3 rows");
}

#[test]
fn a_model_that_is_loaded_anew_has_no_plan_yet() {
    let monitor = monitor();
    monitor.ready();
    monitor.begins();
    let begun = monitor.snapshot();
    assert_eq!((begun.model.as_str(), begun.phase, begun.devices.len()), ("m", Phase::Planning, 0));
    assert_eq!(begun.reason.as_deref(), Some("loading m"));
    monitor.idle(Some("it is damaged"));
    let idle = serde_json::to_value(monitor.snapshot()).unwrap();
    assert_eq!((&idle["phase"], &idle["model"]), (&"idle".into(), &"".into()));
    assert_eq!(idle["reason"], "no model is loaded: it is damaged");
}

#[test]
fn who_has_no_layers_is_spare_and_who_comes_is_told() {
    let monitor = monitor();
    let (a, b) = (spare("a"), spare("b"));
    monitor.members(vec![a.clone(), b]);
    assert_eq!(monitor.snapshot().spares, ["b"]);
    monitor.members(vec![a]);
    monitor.chronicle.add(Kind::Layers, "layers move");
    let happened = monitor.snapshot().happened;
    let words: Vec<&str> = happened.iter().map(|it| &*it.words).collect();
    assert_eq!(words, ["b is there", "b is gone", "layers move"]);
}

#[test]
fn the_page_reads_these_names() {
    let json = serde_json::to_value(monitor().snapshot()).unwrap();
    assert_eq!(json["phase"], "planning");
    assert_eq!(json["devices"][1]["layers"], "2..5");
    assert_eq!(json["devices"][1]["state"], "waiting");
    assert_eq!(json["devices"][1]["memory"]["budget"], 20);
    assert_eq!(json["devices"][0]["hop_seconds"], serde_json::Value::Null);
    assert_eq!(json["devices"][0]["step_seconds"], serde_json::Value::Null);
}
