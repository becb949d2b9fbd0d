//! Measuring how long this machine takes for one layer of a given shape.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use cake_checkpoint::{Affine, Dtype, LayerRange, MappedTensor, ModelConfig};

use crate::batch::{Batch, BatchItem};
use crate::error::Error;
use crate::memory::resident_bytes;
use crate::options::{EngineOptions, WeightEncoding};
use crate::random::mix;
use crate::stage::Stage;

/// Time that a measurement takes. Longer than the 100 ms in which a system hands out a
/// process's share of a CPU: in less, a process held to a quarter of one may look as fast as any.
const WINDOW: Duration = Duration::from_millis(150);

/// Widths of narrowed layers are multiples of this: whole groups of packed weights.
const GRANULE: usize = 128;

/// What one layer costs here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LayerProbe {
    /// Time for one row.
    pub decode: Duration,
    /// Bytes of the layer's weights.
    pub bytes: u64,
}

/// Times one layer shaped like those of `config` with weights stored as `encoding` on `threads` threads
/// (0 as in [`EngineOptions::threads`]), using scratch memory of at most `max_bytes` for the weights.
///
/// A layer that does not fit is measured with fewer heads and a narrower MLP, and the times are
/// scaled by the bytes left out. Takes about a third of a second beside filling the memory.
///
/// # Errors
/// [`Error::ProbeMemory`] if `max_bytes` is too little for even the narrowest layer, and the errors of
/// [`Stage::load`].
pub fn probe_layer(
    config: &ModelConfig,
    encoding: WeightEncoding,
    threads: usize,
    max_bytes: u64,
) -> Result<LayerProbe, Error> {
    let bytes = layer_bytes(config, encoding);
    let narrow = narrowed(config, encoding, max_bytes)?;
    let scale = bytes as f64 / layer_bytes(&narrow, encoding).max(1) as f64;
    let weights: HashMap<String, MappedTensor> = layer_names(&narrow)
        .flat_map(|(name, shape)| stored(&name, &shape, encoding))
        .map(|(name, dtype, shape)| (name, scratch_weights(dtype, &shape)))
        .collect();
    let options = EngineOptions { threads, ..EngineOptions::new(1) };
    let layers = LayerRange::new(0, 1);
    let mut stage = Stage::load(&narrow, layers, &|name| weights.get(name).cloned(), &options)?;
    Ok(LayerProbe { decode: sustained_time(&mut stage, &narrow)?.mul_f64(scale), bytes })
}

fn layer_names(config: &ModelConfig) -> impl Iterator<Item = (String, Vec<u64>)> {
    let prefix = config.family.layer_prefix;
    let tensors = config.family.layer_tensors(config);
    tensors.into_iter().map(move |(leaf, shape)| (format!("{prefix}0.{leaf}"), shape))
}

/// The tensors that one of this shape is stored in: itself, or codes, scales and biases.
fn stored(name: &str, shape: &[u64], encoding: WeightEncoding) -> Vec<(String, Dtype, Vec<u64>)> {
    let packed = |format: Affine| {
        let &[rows, columns] = shape else { return None };
        let (codes, params) = format.packed_shapes(rows, columns)?;
        let module = name.strip_suffix(".weight")?;
        let part = |part: &str| (format!("{module}.{part}"), Dtype::BF16, params.clone());
        Some(vec![(name.to_owned(), Dtype::U32, codes), part("scales"), part("biases")])
    };
    match encoding {
        WeightEncoding::Float(dtype) => vec![(name.to_owned(), dtype, shape.to_vec())],
        WeightEncoding::Affine(format) => {
            packed(format).unwrap_or_else(|| vec![(name.to_owned(), Dtype::BF16, shape.to_vec())])
        }
    }
}

fn layer_bytes(config: &ModelConfig, encoding: WeightEncoding) -> u64 {
    layer_names(config)
        .flat_map(|(name, shape)| stored(&name, &shape, encoding))
        .map(|(_, dtype, shape)| resident_bytes(dtype, shape.iter().product()))
        .sum()
}

/// `config` with as many heads and as wide an MLP as fit in `max_bytes`, in equal proportion.
fn narrowed(
    config: &ModelConfig,
    encoding: WeightEncoding,
    max_bytes: u64,
) -> Result<ModelConfig, Error> {
    let group = config.num_heads / config.num_kv_heads;
    let mut share = 1.0;
    loop {
        let part = |whole: usize| ((whole as f64 * share) as usize).max(1);
        let num_kv_heads = part(config.num_kv_heads);
        let narrow = ModelConfig {
            num_layers: 1,
            num_kv_heads,
            num_heads: num_kv_heads * group,
            intermediate_size: part(config.intermediate_size).next_multiple_of(GRANULE),
            sliding_window: vec![None],
            ..config.clone()
        };
        let need = layer_bytes(&narrow, encoding);
        if need <= max_bytes {
            return Ok(narrow);
        }
        if narrow.num_kv_heads == 1 && narrow.intermediate_size == GRANULE {
            return Err(Error::ProbeMemory { need, max_bytes });
        }
        share /= 2.0;
    }
}

/// Small numbers of no meaning, written so that every page is really there.
fn scratch_weights(dtype: Dtype, shape: &[u64]) -> MappedTensor {
    /// Longer than a page and no multiple of one, so that pages differ.
    const PATTERN_WORDS: u64 = 1031;
    let pattern: Vec<u8> = (0..PATTERN_WORDS)
        .flat_map(|word| {
            // Exponent bits of about 2^-7 whether read as one f32, two bf16 or two f16.
            let bits = (mix(word) as u32 & 0x83ff_83ff) | 0x3c00_3c00;
            bits.to_le_bytes()
        })
        .collect();
    let mut left = resident_bytes(dtype, shape.iter().product()) as usize;
    let mut bytes = Vec::with_capacity(left);
    while left > 0 {
        let piece = left.min(pattern.len());
        bytes.extend_from_slice(&pattern[..piece]);
        left -= piece;
    }
    MappedTensor::from_vec(bytes, dtype, shape.to_vec())
}

/// The mean over a window, after one run to warm up: what the layer costs when it runs for long. The
/// median would overlook the pauses of a process that may not always run.
fn sustained_time(stage: &mut Stage, config: &ModelConfig) -> Result<Duration, Error> {
    let item = BatchItem { sequence: 0, position: 0, rows: 1, prompt: false, blocks: vec![0] };
    let batch = Batch { items: vec![item] };
    let hidden = vec![0.01; config.hidden_size];
    stage.forward(&batch, hidden.clone())?;
    let begin = Instant::now();
    let mut runs = 0;
    while runs == 0 || begin.elapsed() < WINDOW {
        stage.forward(&batch, hidden.clone())?;
        runs += 1;
    }
    Ok(begin.elapsed() / runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> ModelConfig {
        let json = r#"{"architectures":["LlamaForCausalLM"],"hidden_size":256,
            "num_hidden_layers":8,"num_attention_heads":8,"num_key_value_heads":4,
            "intermediate_size":1024,"vocab_size":384,"rms_norm_eps":1e-5,
            "max_position_embeddings":256}"#;
        ModelConfig::parse(json.as_bytes()).unwrap()
    }

    const BF16: WeightEncoding = WeightEncoding::Float(Dtype::BF16);

    /// Weights of one layer in bf16: two norms, attention with half as many KV heads, the MLP.
    const BYTES: u64 = 2 * (2 * 256 + 3 * 256 * 256 + 3 * 256 * 1024);

    #[test]
    fn times_a_whole_layer_when_it_fits() {
        let probe = probe_layer(&config(), BF16, 1, u64::MAX).unwrap();
        assert_eq!(probe.bytes, BYTES);
        assert!(probe.decode > Duration::ZERO);
    }

    #[test]
    fn times_packed_layers() {
        for format in [Affine::Q8, Affine::Q4] {
            let probe =
                probe_layer(&config(), WeightEncoding::Affine(format), 1, u64::MAX).unwrap();
            let matrices = (BYTES - 2 * 2 * 256) / 2;
            let packed = matrices * format.bits() as u64 / 8 + matrices / 64 * 4;
            assert_eq!(probe.bytes, packed + 2 * 2 * 256);
            let narrow = narrowed(&config(), WeightEncoding::Affine(format), BYTES / 8).unwrap();
            assert!(layer_bytes(&narrow, WeightEncoding::Affine(format)) <= BYTES / 8);
        }
    }

    #[test]
    fn scales_what_does_not_fit() {
        let narrow = narrowed(&config(), BF16, BYTES / 3).unwrap();
        assert!((1..=2).contains(&narrow.num_kv_heads));
        assert!(layer_bytes(&narrow, BF16) <= BYTES / 3);
        let probe = probe_layer(&config(), BF16, 1, BYTES / 3).unwrap();
        assert_eq!(probe.bytes, BYTES);
    }

    #[test]
    fn refuses_memory_for_less_than_the_narrowest_layer() {
        let error = probe_layer(&config(), WeightEncoding::Float(Dtype::F32), 1, 1000).unwrap_err();
        assert!(matches!(error, Error::ProbeMemory { max_bytes: 1000, .. }));
    }
}
