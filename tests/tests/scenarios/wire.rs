//! Activations in fewer bytes: bf16 and 8 bits by choice, close to f32, and the same for any prompt chunk.
use cake_tests::master::{Answer, path};
use cake_tests::{CountingProxy, Golden, Master, ModelShape, TestWorker, golden, model};

/// Formats, the largest distance of a log-probability from f32's (natural logarithm), and the part
/// of f32's bytes that they take at least and at most.
///
/// The distances are about three times those found over three hops of models of random weights: a
/// value keeps 8 bits in bf16, and one part in 254 of the largest of its 64 in q8, which is about
/// seven times coarser. The bytes of a hop are 1/2 and 17/64 of f32's, and what does not shrink
/// (configuration, heads, control) adds a percent or so.
const FORMATS: [(&str, f32, f64, f64); 2] = [("bf16", 0.06, 0.5, 0.52), ("q8", 0.4, 0.265, 0.28)];

/// Log-probabilities up to the first token that `alone` does not have as well: later ones are of
/// other texts.
fn comparable(found: &Answer, alone: &Answer) -> Vec<(f32, f32)> {
    let same = found.output_ids.iter().zip(&alone.output_ids).take_while(|(a, b)| a == b).count();
    let values = |answer: &Answer| answer.logprob_bits.clone().into_iter().map(f32::from_bits);
    values(found).zip(values(alone)).take(same).collect()
}

fn closeness(golden: &Golden) {
    let workers = TestWorker::several(&["a", "b"]);
    let master = Master::over(&workers);
    let place = [("a", 0, 2), ("b", 2, golden.num_layers)];
    let alone = Master::alone().answer(golden, &[], &[]);
    let split = master.answer(golden, &place, &["--wire", "f32"]);
    assert_eq!(split.output_ids, alone.output_ids);
    assert_eq!(split.logprob_bits, alone.logprob_bits);
    for (format, bound, ..) in FORMATS {
        let found = master.answer(golden, &place, &["--wire", format]);
        let finite = |bits: &u32| f32::from_bits(*bits).is_finite();
        assert!(found.logprob_bits.iter().all(finite), "{format}: {found:?}");
        assert_ne!(found.logprob_bits, alone.logprob_bits, "{format}: nothing was rounded");
        let pairs = comparable(&found, &alone);
        let distance = pairs.iter().map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        println!("{format}: {} tokens, at most {distance} from f32", pairs.len());
        assert!(pairs.len() >= 2, "{format}: {:?} and {:?}", found.output_ids, alone.output_ids);
        assert!(distance <= bound, "{format}: {pairs:?}");
        for chunk in ["1", "3", "64"] {
            let again = master.answer(golden, &place, &["--wire", format, "--chunk", chunk]);
            assert_eq!(again.output_ids, found.output_ids, "{format}, chunk {chunk}");
            assert_eq!(again.logprob_bits, found.logprob_bits, "{format}, chunk {chunk}");
        }
    }
}

#[test]
fn fewer_bits_on_the_wire_stay_close_to_f32() {
    closeness(&golden("llama-sharded"));
    closeness(&golden("qwen2"));
}

#[test]
fn alone_nothing_travels_and_nothing_is_rounded() {
    let golden = golden("llama-sharded");
    let alone = Master::alone().answer(&golden, &[], &[]);
    for (format, ..) in FORMATS {
        let found = Master::alone().answer(&golden, &[], &["--wire", format]);
        assert_eq!(found.logprob_bits, alone.logprob_bits, "{format}");
    }
}

#[test]
fn bytes_of_every_hop_shrink_with_the_format() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let directory = home.path().join("model");
    let shape = ModelShape { layers: 2, ..ModelShape::small() };
    model::make(&directory, &shape, 7).expect("the model can be written");
    let workers = TestWorker::several(&["a", "b"]);
    let proxies = [0, 1].map(|index| CountingProxy::start(&workers[index].address));
    let master = Master::at(proxies.iter().map(|proxy| &proxy.address));
    let place = [("a", 0, 1), ("b", 1, 2)];
    let prompt: Vec<u32> = (0..500).map(|index| index * 7 % 384).collect();
    let logits = path(&home.path().join("logits.safetensors"));
    // All rows come back where the logits of all are asked for, so that every hop carries the prompt.
    let bytes = |format: &str| {
        proxies.iter().for_each(CountingProxy::reset);
        let more = ["--wire", format, "--logits-out", &logits];
        let answer = master.answer_of(&directory, &prompt, 1, &place, &more);
        assert!(answer.stages.iter().all(|(_, _, direct)| *direct), "{:?}", answer.stages);
        [proxies[0].to_worker(), proxies[1].to_worker(), proxies[1].to_master()]
    };
    bytes("f32"); // Measures the workers and pushes the layers.
    let whole = bytes("f32");
    let rows = (prompt.len() * shape.hidden_size * 4) as u64;
    assert!(whole.iter().all(|bytes| (rows..rows + rows / 20).contains(bytes)), "{whole:?}");
    for (format, _, least, most) in FORMATS {
        let found = bytes(format);
        let parts = found.iter().zip(whole).map(|(found, whole)| *found as f64 / whole as f64);
        let parts: Vec<f64> = parts.collect();
        println!("{format}: {parts:.3?} of {whole:?} bytes");
        assert!(parts.iter().all(|part| (least..=most).contains(part)), "{format}: {parts:?}");
    }
}

#[test]
fn the_plan_counts_the_bytes_of_the_format() {
    let workers = TestWorker::several(&["a", "b"]);
    let master = Master::over(&workers);
    let golden = golden("llama-sharded");
    let model = path(&golden.path);
    let place = ["--place", "a=0..5", "--place", "b=5..12"];
    let bytes = |wire: &str| {
        let args = [&["plan", &model, "--wire", wire, "--json"], &place[..]].concat();
        master.json(&args)["plan"]["wire_bytes_per_row"].as_u64().expect("a number")
    };
    let whole = bytes("f32");
    assert_eq!(bytes("bf16") * 2, whole);
    let width = whole / 4; // Values of all messages together, each of whole groups of 64.
    assert_eq!(bytes("q8"), width + width / 64 * 4);
}
