//! Every message that a master or a worker takes, and what is made of it.
use cake_master::cluster::Offer;
use cake_proto::{Assembler, StateSlots, Step, StepItem, WireFormat, shut_out, wire};
use cake_worker::load::Load;
use prost::Message;

const HIDDEN: usize = 16;
const ROWS: usize = 8;

/// The first byte says which message the others are.
pub(super) fn run(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    match kind % 10 {
        0 => frames(bytes),
        1 => drop(wire::LoadRequest::decode(bytes).map(Load::try_from)),
        2 => drop(wire::Description::decode(bytes).map(Offer::try_from)),
        3 => drop(wire::HoldRequest::decode(bytes).map(|hold| shut_out::unpack(&hold.shut_out))),
        4 => drop(wire::PushFrame::decode(bytes)),
        5 => drop(wire::PushEvent::decode(bytes)),
        6 => drop(wire::LoadEvent::decode(bytes)),
        7 => drop(wire::RouteRequest::decode(bytes)),
        8 => drop(wire::QueryRequest::decode(bytes)),
        _ => {
            drop(wire::ShutOutRequest::decode(bytes).map(|list| shut_out::unpack(&list.worker_ids)))
        }
    }
}

/// A stream of steps: length-delimited frames, as far as they can be read.
fn frames(mut bytes: &[u8]) {
    let mut assembler = Assembler::new(HIDDEN, ROWS);
    while let Ok(frame) = wire::StepFrame::decode_length_delimited(&mut bytes) {
        if assembler.push(frame).is_err() {
            return; // The stream would be closed.
        }
    }
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let mut all = vec![with_kind(1, load().encode_to_vec())];
    for format in [WireFormat::F32, WireFormat::Bf16, WireFormat::Q8] {
        let mut stream = Vec::new();
        for frame in step().into_frames(false, format) {
            frame.encode_length_delimited(&mut stream).expect("a vector grows");
        }
        all.push(with_kind(0, stream));
    }
    let description = wire::Description {
        worker_id: "0123456789abcdef".repeat(2),
        name: "phone".to_owned(),
        blobs: vec!["0123456789abcdef".repeat(4); 3],
        partial: [("0123456789abcdef".repeat(4), 7)].into(),
        devices: ["cpu", "cuda"].map(device).into(),
        ..wire::Description::default()
    };
    all.push(with_kind(2, description.encode_to_vec()));
    let hold = wire::HoldRequest {
        master_name: "desk".to_owned(),
        shut_out: vec![7_u8; 48].into(),
        beside: "lease".to_owned(),
    };
    all.push(with_kind(3, hold.encode_to_vec()));
    let push = wire::PushFrame {
        manifest: vec![b'{'; 20].into(),
        data: vec![7; 40].into(),
        manifest_bytes: 20,
    };
    all.push(with_kind(4, push.encode_to_vec()));
    let wanted = vec![wire::ByteRange { start: 5, end: 1 << 40 }; 3];
    all.push(with_kind(5, wire::PushEvent { wanted, ..Default::default() }.encode_to_vec()));
    let route =
        wire::RouteRequest { next_address: "10.0.0.7:7117".to_owned(), ..Default::default() };
    all.push(with_kind(7, route.encode_to_vec()));
    all
}

fn with_kind(kind: u8, message: Vec<u8>) -> Vec<u8> {
    [vec![kind], message].concat()
}

fn device(name: &str) -> wire::Device {
    wire::Device {
        name: name.to_owned(),
        budget_bytes: 1 << 30,
        resident_permille: [("affine-4-64".to_owned(), 1000), ("BF16".to_owned(), 3000)].into(),
        arithmetic: "neon".to_owned(),
        kv_dtypes: vec!["f16".to_owned(), "q8".to_owned()],
    }
}

fn load() -> wire::LoadRequest {
    wire::LoadRequest {
        generation: 7,
        model: super::golden::golden("llama").to_wire().into(),
        layer_start: 0,
        layer_end: 1,
        blobs: vec!["0123456789abcdef".repeat(4)],
        kv_dtype: "f16".to_owned(),
        kv_blocks: 4,
        max_positions: 64,
        max_rows: 8,
        numerics: "fast".to_owned(),
        device: "cpu".to_owned(),
        ..wire::LoadRequest::default()
    }
}

fn step() -> Step {
    let item = StepItem {
        sequence: 3,
        position: 0,
        rows: 2,
        blocks: vec![0, 1],
        prompt: true,
        known: 1,
        state: Some(StateSlots { from: Some(2), to: 1 }),
        trace: None,
    };
    Step {
        step: 1,
        generation: 7,
        items: vec![item],
        rows: 2,
        wanted: vec![1],
        stage_us: vec![5],
        idle_us: vec![6],
        hidden: (0..2 * HIDDEN).map(|at| at as f32).collect(),
    }
}
