//! Layers in parts: attention, and experts in slices, say what whole layers say.

use super::*;

#[test]
fn experts_in_slices_do_not_change_a_bit() {
    let mut mixtures = 0;
    for name in &names() {
        let open = || Checkpoint::open(directory(name).to_str().unwrap()).unwrap();
        let Some(parted) = open().sliced(3) else { continue };
        mixtures += 1;
        let prompt = expected(name).prompt_ids;
        let whole = Model::load(name, &[], &fast(1)).chunked(&prompt, 21);
        let parts = parted.config.layers.len();
        // All parts in one stage, each in one of its own, and stages that begin and end within layers.
        let each: Vec<usize> = (1..parts).collect();
        let some: Vec<usize> = (1..parts).filter(|part| part % 3 == 2).collect();
        for (cuts, chunk) in [(&[][..], 21), (&each, 21), (&some, 5)] {
            let mut model = Model::of(&parted, cuts, &fast(2));
            let same = model.chunked(&prompt, chunk) == whole;
            assert!(same, "{name} in {parts} parts, cuts {cuts:?}, chunks of {chunk}");
        }
    }
    assert!(mixtures > 0, "no model has experts");
}

#[test]
#[cfg(feature = "candle")]
fn the_reference_device_takes_experts_in_slices() {
    for name in ["qwen3-moe", "gemma4-moe", "nemotron-h-latent"] {
        let candle = options(DeviceKind::Candle, 1);
        let prompt = expected(name).prompt_ids;
        let whole = Model::load(name, &[], &candle).logits(0, &prompt);
        let parted = Checkpoint::open(directory(name).to_str().unwrap()).unwrap();
        let parted = parted.sliced(2).expect("it has experts");
        let cuts: Vec<usize> = (1..parted.config.layers.len()).collect();
        let found = Model::of(&parted, &cuts, &candle).logits(0, &prompt);
        assert!(found == whole, "{name}");
    }
}
