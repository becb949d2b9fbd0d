//! Rotations that go by how long sequences may be, where they may be long; the other side is as every golden model is.

use cake_checkpoint::ModelSpec;

use super::*;

const NAME: &str = "phi3-longrope";
/// Of which context the reference's other answers are that the prompt does not fit in.
const SHORT: usize = 16;

#[test]
fn longer_contexts_have_the_factors_of_long_sequences_wherever_a_step_begins() {
    let directory = directory(NAME);
    let mut checkpoint = Checkpoint::open(directory.to_str().unwrap()).unwrap();
    let config = std::fs::read(directory.join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_slice(&config).unwrap();
    config["original_max_position_embeddings"] = SHORT.into();
    checkpoint.config = ModelSpec::parse(config.to_string().as_bytes()).unwrap();
    assert_eq!(checkpoint.config.short_context(), Some(SHORT));

    let file = std::fs::read(directory.join("expected.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
    let long = tensors.tensor("logits_past_16").unwrap();
    let long: Vec<f32> = long.data().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    let prompt = expected(NAME).prompt_ids;
    assert!(prompt.len() > SHORT);
    let width = long.len() / prompt.len();
    let logits = |max_positions: usize, chunk: usize| {
        let options = EngineOptions { max_positions, ..options(DeviceKind::Cpu, 2) };
        let ids = &prompt[..prompt.len().min(max_positions)];
        Model::of(&checkpoint, &[2], &options).chunked(ids, chunk)
    };
    for (context, chunk) in [(SHORT + 5, 21), (256, 7), (256, 1)] {
        let difference = largest_difference(&logits(context, chunk), &long);
        assert!(difference <= LOGIT_TOLERANCE, "{context}: logits differ by {difference}");
    }
    // In a context of short sequences the first positions have other rotations: this test would see it.
    let moved = largest_difference(&logits(SHORT, 7), &long[..SHORT * width]);
    assert!(moved > 10.0 * LOGIT_TOLERANCE, "{moved}");
}
