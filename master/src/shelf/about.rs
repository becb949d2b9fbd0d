//! What a model is, for whoever asks: nothing that changes an answer.

use cake_checkpoint::Error;

use crate::model::Model;

/// What is told of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// As in `architectures` of `config.json`.
    pub architecture: String,
    /// How its files end, such as `safetensors`; empty if they have no ending.
    pub format: String,
    /// Its weights and whatever else it has learnt, as numbers, however they are stored.
    pub parameters: u64,
    /// Bytes of its tensors in the files.
    pub bytes: u64,
    /// How most weights are stored where they are computed with, such as `BF16` or `ggml-q4_k`.
    pub encoding: String,
    /// 64 hexadecimal digits that are others for other files and for another encoding.
    pub digest: String,
    /// How many decoder layers.
    pub layers: usize,
    /// Width of the activations between layers, and of embeddings.
    pub hidden_size: usize,
    /// How many tokens it may know.
    pub vocab_size: usize,
}

impl About {
    /// What is told of `model`.
    ///
    /// # Errors
    /// If the checkpoint's files cannot be examined.
    pub fn of(model: &Model) -> Result<Self, Error> {
        let checkpoint = &model.checkpoint;
        let spec = checkpoint.whole();
        let of_layers = spec.layers.iter().flat_map(|layer| layer.tensors()).map(|it| it.shape);
        let shapes = of_layers.chain(spec.outer_tensors().into_iter().map(|(_, _, shape)| shape));
        let ending = checkpoint.files.first().and_then(|file| file.path.extension());
        Ok(Self {
            architecture: spec.architecture.to_string(),
            format: ending.map_or_else(String::new, |it| it.to_string_lossy().into_owned()),
            parameters: shapes.map(|shape| shape.iter().product::<u64>()).sum(),
            bytes: checkpoint.total_bytes(),
            encoding: model.weight_encoding().to_string(),
            digest: model.identity()?,
            layers: spec.layers.len(),
            hidden_size: spec.hidden_size,
            vocab_size: spec.vocab_size,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use cake_checkpoint::{Checkpoint, Scheme};

    use super::*;

    #[test]
    fn the_demo_model_is_what_its_configuration_says() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("demo-model");
        let checkpoint = Checkpoint::open(path.to_str().expect("a path")).expect("opens");
        let stored = checkpoint.total_bytes();
        let model = Model::new(Arc::new(checkpoint), Scheme::AsStored);
        let about = About::of(&model).expect("its files are there");
        assert_eq!(
            (about.architecture.as_str(), about.format.as_str()),
            ("Qwen2ForCausalLM", "safetensors")
        );
        assert_eq!((about.layers, about.hidden_size, about.vocab_size), (12, 192, 1024));
        assert_eq!(about.encoding, "BF16");
        // Each number of a bf16 checkpoint is two bytes.
        assert_eq!((about.bytes, about.parameters), (stored, stored / 2));
        assert!(about.digest.len() == 64 && about.digest.bytes().all(|b| b.is_ascii_hexdigit()));
        let other = Model::new(model.checkpoint, "q4".parse().expect("a scheme"));
        let other = About::of(&other).expect("its files are there");
        assert!(other.digest != about.digest && other.encoding != about.encoding);
    }
}
