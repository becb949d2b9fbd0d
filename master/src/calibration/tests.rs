//! Which matrices are seen, and which texts are read.

use super::*;

fn opened(model: &str) -> Checkpoint {
    let path = format!("{}/{model}", env!("CARGO_MANIFEST_DIR"));
    Checkpoint::open(&path).expect("a model")
}

/// Tokens of no text.
fn reading() -> Reading {
    Reading { lead: vec![0], ids: (0..200).map(|at| at * 37 % 300).collect() }
}

#[test]
fn every_matrix_is_seen_and_the_same_each_time() {
    for name in [
        "llama",
        "gemma3",
        "qwen3_5",
        "gemma3n",
        "deepseek-v3",
        "phi3",
        "kimi-linear",
        "nemotron-h",
    ] {
        let checkpoint = opened(&format!("../tests/golden/{name}"));
        let mut told = Vec::new();
        let mut tell = |layer| {
            told.push(layer);
            true
        };
        let found = measure(&checkpoint, &reading(), &mut tell).expect("measured");
        assert!(told.is_sorted() && told[0] == 0, "{name}: {told:?}");
        for layer in 0..checkpoint.config.layers.len() {
            for matrix in checkpoint.layer_tensors(layer) {
                let counts = found.counts(&matrix.name);
                if let Some(counts) = &counts {
                    assert_eq!(counts.len() as u64, matrix.shape[1], "{name} {}", matrix.name);
                }
                // Nobody may have gone to an expert.
                let is_linear = matrix.encoding.is_some() && matrix.shape.len() == 2;
                let may_be_unseen = matrix.name.contains(".experts.");
                assert!(counts.is_some() || !is_linear || may_be_unseen, "{name} {}", matrix.name);
                assert!(is_linear || counts.is_none(), "{name} {}", matrix.name);
            }
        }
        let again = measure(&checkpoint, &reading(), &mut |_| true).expect("measured");
        assert_eq!(again, found, "{name}");
    }
}

#[test]
fn experts_that_nobody_went_to_have_nothing_of_their_own() {
    let checkpoint = opened("../tests/golden/qwen3-moe");
    let found = measure(&checkpoint, &reading(), &mut |_| true).expect("measured");
    let name = |expert, leaf| format!("model.layers.1.mlp.experts.{expert}.{leaf}_proj.weight");
    let of =
        |leaf| (0..8).filter_map(|expert| found.counts(&name(expert, leaf))).collect::<Vec<_>>();
    let (up, down) = (of("up"), of("down"));
    assert!(
        up.len() == 8 && up.iter().all(|counts| *counts == up[0]),
        "hidden states are of one kind"
    );
    assert!(
        down.len() > 2 && down.windows(2).all(|pair| pair[0] != pair[1]),
        "what is inside is not"
    );
}

#[test]
fn nobody_computes_what_nobody_waits_for() {
    let stopped = measure(&opened("../tests/golden/llama"), &reading(), &mut |done| done < 2);
    assert!(matches!(stopped, Err(Error::Unwanted)), "{stopped:?}");
}

#[test]
fn each_piece_begins_as_a_text_does() {
    let reading = Reading { lead: vec![7], ids: (0..10).collect() };
    let pieces = reading.pieces(5);
    assert_eq!(pieces, [vec![7, 0, 1, 2, 3], vec![7, 4, 5, 6, 7], vec![7, 8, 9]]);
    assert_eq!(reading.pieces(0).len(), 10, "no room is room for one");
}

#[test]
fn a_text_is_read_once_and_anything_else_is_refused() {
    let home = tempfile::tempdir().expect("a folder");
    let (checkpoint, state) = (opened("demo-model"), home.path().join("state"));
    let words = Text::of(&checkpoint.texts).expect("a tokenizer");
    let path = home.path().join("text");
    assert!(matches!(Sample::read(&path), Err(Error::Read { .. })));
    let sample = |bytes: &[u8]| {
        std::fs::write(&path, bytes).expect("written");
        Sample::read(&path)
    };
    assert!(matches!(sample(&b"a\xffb".repeat(99)), Err(Error::NotText { at: 1, .. })));
    assert!(matches!(sample(b"cut: \xc3"), Err(Error::NotText { at: 5, .. })));
    let short = Reading::of(&sample(b"too short").expect("a text"), &words);
    assert!(matches!(short, Err(Error::Short { .. })), "{short:?}");
    // A character of two bytes lies across the bound.
    let long = format!("a{}", "é".repeat(TEXT_BYTES as usize / 2));
    let reading = Reading::of(&sample(long.as_bytes()).expect("a text"), &words).expect("read");
    assert_eq!(reading.ids.len(), TOKENS);

    let run = || {
        let mut layers = 0;
        let found = calibrate(&checkpoint, &reading, &state, &mut |_| {
            layers += 1;
            true
        });
        (found.expect("found"), layers)
    };
    let all = checkpoint.config.layers.len();
    let (first, layers) = run();
    assert_eq!((layers, run()), (all, (first.clone(), 0)), "remembered");
    for damaged in ["cut of", "{}"] {
        for kept in std::fs::read_dir(state.join(FOLDER)).expect("a folder") {
            std::fs::write(kept.expect("a file").path(), damaged).expect("written");
        }
        assert_eq!(run(), (first.clone(), all), "nothing that is damaged counts");
    }
}
