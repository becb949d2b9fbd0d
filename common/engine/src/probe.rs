//! Measuring how long a device takes for what a generated token costs: layers of a given shape, and the head.
//!
//! What is timed is what a stage does, on the device that would do it: several layers one after the other, more bytes
//! than caches hold, in pages of the size that weights lie in, with some of a conversation behind the token. And it is
//! timed when nothing else runs here, as far as that can be had: what is taken beside other work says so.

mod quiet;
mod stored;

use std::collections::HashMap;
use std::ffi::OsString;
use std::time::{Duration, Instant};

use cake_checkpoint::{
    Dtype, Encoding, KvDtype, LayerRange, LayerSpec, MappedMatrix, MappedTensor, ModelSpec,
    TensorKind, TensorSpec,
};

use crate::batch::{Batch, BatchItem, StateSlots};
use crate::device::cpu::placement::tune;
use crate::error::Error;
use crate::head::Head;
use crate::memory::{blocks_for, copied_bytes, kv_bytes, state_bytes};
use crate::options::{DeviceKind, DeviceMemory, EngineOptions};
use crate::stage::Stage;
use quiet::Watch;
use stored::{Stored, scratch_weights, stored};

/// Time that a measurement takes. Longer than the 100 ms in which a system hands out a
/// process's share of a CPU: in less, a process held to a quarter of one may look as fast as any.
const WINDOW: Duration = Duration::from_millis(150);
/// Names another, in milliseconds, where nobody relies on what is measured,
const WINDOW_MS: &str = "CAKE_PROBE_MS";
/// at most.
const MOST_MS: u64 = 10_000;
/// Measurements before one beside other work counts for want of a better one,
const TRIES: usize = 3;
/// the part by which two of them may differ if a third would say nothing new,
const STEADY: f64 = 0.05;
/// and the time after which none is begun any more.
const PATIENCE: Duration = Duration::from_secs(2);

/// Weights that are read one after the other until the first come again: many times what processors' last caches
/// hold, since layers that stay in them look faster than they are. Caches do not forget in order: of 192 MiB, one of
/// 32 MiB keeps a sixth, and what is computed with 4 bits was predicted to be a sixth faster than it is.
pub const PROBED_BYTES: u64 = 512 << 20;
/// Tokens before the one that is timed: the middle of a short conversation.
const POSITION: usize = 255;

/// Widths of narrowed layers are multiples of this: whole groups of packed weights.
const GRANULE: usize = 128;

/// What one layer costs here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LayerProbe {
    /// Time for one row.
    pub decode: Duration,
    /// Bytes of the layer's weights that one token reads.
    pub bytes: u64,
    /// Whether nothing else ran here: otherwise a layer may take less.
    pub quiet: bool,
}

/// What the head costs here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeadProbe {
    /// Time for the logits of one row.
    pub decode: Duration,
    /// As [`LayerProbe::quiet`].
    pub quiet: bool,
}

/// Times up to `most_layers` layers shaped like those of `config` with weights stored as `encoding` on a `device` with
/// `threads` threads (0 as in [`EngineOptions::threads`]), using scratch memory of at most `max_bytes` for weights, with
/// what the device keeps beside them, and KV cache. Fewer, if so many are more than caches hold.
///
/// A layer that does not fit is measured with fewer heads and a narrower MLP, and the times are
/// scaled by the bytes left out. Takes about a third of a second beside filling the memory, and three times as long
/// where other work goes on.
///
/// # Errors
/// [`Error::ProbeMemory`] if `max_bytes` is too little for even the narrowest layer, and the errors of
/// [`Stage::load`].
pub fn probe_layer(
    device: DeviceKind,
    config: &ModelSpec,
    encoding: Encoding,
    threads: usize,
    max_bytes: u64,
    most_layers: usize,
) -> Result<LayerProbe, Error> {
    let layers = LayerRange::new(0, 1);
    let whole = config.layers.first().ok_or(Error::NoSuchLayers { layers, num_layers: 0 })?;
    let whole = whole.active(); // What no token reads takes no time.
    let bytes = layer_bytes(&whole, encoding);
    let alone = std::slice::from_ref(&whole);
    let kv = kv_bytes(alone, POSITION + 1, 1, KvDtype::F16).saturating_add(state_bytes(alone, 1));
    let held = |layer: &LayerSpec| {
        let copied = copied_bytes(std::slice::from_ref(layer));
        held_bytes(device, layer, encoding).saturating_add(copied)
    };
    let narrow =
        narrowed(&whole, held, max_bytes.saturating_sub(kv)).map_err(|error| match error {
            Error::ProbeMemory { need, .. } => no_memory(need.saturating_add(kv), max_bytes),
            error => error,
        })?;
    let narrow_bytes = layer_bytes(&narrow, encoding).max(1);
    let layers = config.layers.len().min(most_layers);
    let depth = depth(held(&narrow).max(1), kv, max_bytes, layers);
    let narrow = ModelSpec { layers: vec![narrow; depth], ..config.clone() };
    let mut weights: HashMap<String, MappedTensor> = HashMap::new();
    for (layer, tensor) in narrow.layers.iter().enumerate().flat_map(numbered) {
        let name = narrow.layer_tensor_name(layer, &tensor.leaf());
        for stored in stored(&name, tensor.kind, &tensor.shape, encoding) {
            let tensor = stored.filled().map_err(|_| no_memory(bytes, max_bytes))?;
            weights.insert(stored.name, tensor);
        }
    }
    if device.memory() == DeviceMemory::System {
        tune(weights.values(), threads);
    }
    let options = options(device, threads);
    let layers = LayerRange::new(0, depth);
    let mut stage = Stage::load(&narrow, layers, &|name| weights.get(name).cloned(), &options)?;
    let blocks = (0..options.kv_blocks as u32).collect();
    let item = BatchItem {
        sequence: 0,
        position: POSITION,
        rows: 1,
        prompt: false,
        blocks,
        known: 0,
        state: Some(StateSlots { from: Some(0), to: 0 }),
    };
    let batch = Batch { items: vec![item] };
    let hidden = vec![0.01; narrow.row_width(0)];
    let Timed { each, quiet } =
        sustained(device, || stage.forward(&batch, hidden.clone()).map(drop))?;
    let scale = bytes as f64 / narrow_bytes as f64 / depth as f64;
    Ok(LayerProbe { decode: each.mul_f64(scale), bytes, quiet })
}

/// Times the final norm and an output head like that of `config`, stored as `encoding`, on a `device` with `threads`
/// threads. Of a head that takes more than `max_bytes` there, or than caches hold, some rows are timed, and the time is
/// scaled.
///
/// # Errors
/// [`Error::ProbeMemory`] if `max_bytes` is too little for a row, and the errors of [`Head::new`].
pub fn probe_head(
    device: DeviceKind,
    config: &ModelSpec,
    encoding: Encoding,
    threads: usize,
    max_bytes: u64,
) -> Result<HeadProbe, Error> {
    let width = config.hidden_size as u64;
    let tensors = |rows: u64| stored("head.weight", TensorKind::Matrix, &[rows, width], encoding);
    let row_bytes = tensors(1).iter().map(|it| it.held_bytes(device)).sum::<u64>().max(1);
    let rows = (max_bytes.min(PROBED_BYTES) / row_bytes).min(config.vocab_size as u64);
    if rows == 0 {
        return Err(no_memory(row_bytes, max_bytes));
    }
    let filled =
        |stored: &Stored| stored.filled().map_err(|_| no_memory(row_bytes * rows, max_bytes));
    let parts = tensors(rows).iter().map(filled).collect::<Result<Vec<_>, _>>()?;
    let encoding = parts.first().and_then(MappedTensor::encoding).unwrap_or(encoding);
    let norm =
        scratch_weights(Dtype::F32, &[width]).map_err(|_| no_memory(4 * width, max_bytes))?;
    let mut narrow = ModelSpec { vocab_size: rows as usize, ..config.clone() };
    (narrow.final_norm.bias, narrow.given, narrow.streams) = (false, None, None); // No time.
    let options = options(device, threads);
    let head = Head::new(&narrow, norm, MappedMatrix { encoding, parts }, &|_| None, &options)?;
    let hidden = vec![0.01; config.hidden_size];
    let Timed { each, quiet } = sustained(device, || head.forward(hidden.clone(), 1).map(drop))?;
    Ok(HeadProbe { decode: each.mul_f64(config.vocab_size as f64 / rows as f64), quiet })
}

fn no_memory(need: u64, max_bytes: u64) -> Error {
    Error::ProbeMemory { need, max_bytes }
}

fn options(device: DeviceKind, threads: usize) -> EngineOptions {
    let blocks = blocks_for(POSITION + 1);
    let (kv, state_slots) = (KvDtype::F16, 1);
    EngineOptions { device, threads, kv, state_slots, ..EngineOptions::new(blocks) }
}

/// How many layers to time one after the other.
fn depth(layer_bytes: u64, kv_bytes: u64, max_bytes: u64, layers: usize) -> usize {
    let fit = max_bytes / layer_bytes.saturating_add(kv_bytes).max(1);
    let wanted = PROBED_BYTES.div_ceil(layer_bytes).min(fit).min(layers as u64);
    wanted.max(1) as usize // No more than the model's layers, which are a `usize`.
}

/// The tensors of a layer, with its number.
fn numbered(
    (layer, spec): (usize, &LayerSpec),
) -> impl Iterator<Item = (usize, TensorSpec)> + use<> {
    spec.tensors().into_iter().map(move |tensor| (layer, tensor))
}

/// Bytes of a layer stored so.
fn layer_bytes(layer: &LayerSpec, encoding: Encoding) -> u64 {
    layer_stored(layer, encoding).map(|it| it.bytes()).sum()
}

/// Bytes that a layer stored so takes on a device.
fn held_bytes(device: DeviceKind, layer: &LayerSpec, encoding: Encoding) -> u64 {
    layer_stored(layer, encoding).map(|it| it.held_bytes(device)).fold(0, u64::saturating_add)
}

fn layer_stored(layer: &LayerSpec, encoding: Encoding) -> impl Iterator<Item = Stored> {
    let tensors = layer.tensors().into_iter();
    tensors.flat_map(move |it| stored(&it.leaf(), it.kind, &it.shape, encoding))
}

/// `layer` with as many heads and as wide an MLP as need no more than `max_bytes`, in equal proportion, seeing all of
/// the past.
fn narrowed(
    layer: &LayerSpec,
    need: impl Fn(&LayerSpec) -> u64,
    max_bytes: u64,
) -> Result<LayerSpec, Error> {
    let mut share = 1.0;
    loop {
        let narrow = layer.narrowed(share, GRANULE);
        let need = need(&narrow);
        if need <= max_bytes {
            return Ok(narrow);
        }
        if narrow == layer.narrowed(0.0, GRANULE) {
            return Err(Error::ProbeMemory { need, max_bytes });
        }
        share /= 2.0;
    }
}

/// The mean over a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Timed {
    each: Duration,
    quiet: bool,
}

/// How long `run` takes when it runs for long, after one run to warm up: the mean over a window, as the median would
/// overlook the pauses of a process that may not always run. Tries again where something else went on.
fn sustained(
    device: DeviceKind,
    mut run: impl FnMut() -> Result<(), Error>,
) -> Result<Timed, Error> {
    let length = length(std::env::var_os(WINDOW_MS))?;
    run()?;
    let begin = Instant::now();
    let mut seen = Vec::new();
    loop {
        let (watch, window) = (Watch::start(device), Instant::now());
        let mut runs = 0;
        while runs == 0 || window.elapsed() < length {
            run()?;
            runs += 1;
        }
        let each = window.elapsed() / runs;
        seen.push(Timed { each, quiet: watch.is_quiet() });
        let enough = seen.len() == TRIES || begin.elapsed() > PATIENCE;
        if let Some(timed) = settled(&seen, enough) {
            return Ok(timed);
        }
    }
}

/// How long a measurement is to take, if the environment says that.
fn length(named: Option<OsString>) -> Result<Duration, Error> {
    let Some(named) = named.filter(|named| !named.is_empty()) else { return Ok(WINDOW) };
    let millis = named.to_str().and_then(|text| text.parse().ok());
    match millis.filter(|millis| (1..=MOST_MS).contains(millis)) {
        Some(millis) => Ok(Duration::from_millis(millis)),
        None => {
            Err(Error::ProbeTime { found: named.to_string_lossy().into_owned(), most: MOST_MS })
        }
    }
}

/// What counts of some windows: one without anything else, else the fastest once there are `enough`, or two that
/// agree. What goes on beside makes them slower, never faster.
fn settled(seen: &[Timed], enough: bool) -> Option<Timed> {
    let agree = |pair: &[Timed]| {
        let (one, other) = (pair[0].each, pair[1].each);
        one.abs_diff(other) <= one.min(other).mul_f64(STEADY)
    };
    let enough = enough || seen.windows(2).any(agree);
    let quiet = seen.iter().find(|timed| timed.quiet);
    let fastest = || seen.iter().min_by_key(|timed| timed.each).filter(|_| enough);
    quiet.or_else(fastest).copied()
}

#[cfg(test)]
mod tests {
    use cake_checkpoint::{Affine, Op};

    use cake_checkpoint::FloatType;

    use super::*;

    fn config() -> ModelSpec {
        let json = r#"{"architectures":["LlamaForCausalLM"],"hidden_size":256,
            "num_hidden_layers":8,"num_attention_heads":8,"num_key_value_heads":4,
            "intermediate_size":1024,"vocab_size":384,"rms_norm_eps":1e-5,
            "max_position_embeddings":256}"#;
        ModelSpec::parse(json.as_bytes()).unwrap()
    }

    #[test]
    fn a_window_without_noise_counts_else_the_fastest_of_some() {
        let timed = |millis, quiet| Timed { each: Duration::from_millis(millis), quiet };
        let noisy = [timed(9, false), timed(5, false), timed(7, false)];
        assert_eq!(settled(&noisy, false), None, "there may be a better one");
        assert_eq!(settled(&noisy, true), Some(timed(5, false)));
        let steady = [timed(100, false), timed(103, false)];
        assert_eq!(settled(&steady, false), Some(timed(100, false)), "the load is always there");
        let quiet = [timed(5, false), timed(6, true)];
        assert_eq!(settled(&quiet, false), Some(timed(6, true)));
    }

    #[test]
    fn measurements_take_as_long_as_the_environment_says() {
        assert_eq!(length(None).unwrap(), WINDOW);
        assert_eq!(length(Some("".into())).unwrap(), WINDOW);
        assert_eq!(length(Some("5".into())).unwrap(), Duration::from_millis(5));
        for wrong in ["0", "10001", "-1", "fast"] {
            let error = length(Some(wrong.into())).unwrap_err().to_string();
            assert!(error.starts_with(&format!("CAKE_PROBE_MS is {wrong:?}")), "{error}");
        }
    }

    #[test]
    fn as_many_layers_as_no_cache_holds_are_timed_if_there_are_as_many_and_room() {
        let mib = |mib: u64| mib << 20;
        assert_eq!(depth(mib(122), 0, u64::MAX, 16), 5);
        assert_eq!(depth(mib(17), 0, u64::MAX, 60), 31);
        assert_eq!(depth(mib(7), 0, u64::MAX, 12), 12);
        assert_eq!(depth(mib(7), mib(1), mib(42), 30), 5);
        assert_eq!(depth(mib(7), mib(1), mib(3), 30), 1, "narrowed to fit");
        assert_eq!(depth(mib(600), 0, u64::MAX, 80), 1);
    }

    /// An encoding of each kind.
    fn one_of_each() -> Vec<Encoding> {
        let mut all = Encoding::all();
        all.dedup_by_key(|encoding| std::mem::discriminant(encoding));
        all
    }

    #[test]
    fn times_a_head_and_what_of_it_fits() {
        for encoding in one_of_each() {
            for max_bytes in [u64::MAX, 100 * 2 * 256] {
                let probe = probe_head(CPU, &config(), encoding, 1, max_bytes).unwrap();
                assert!(probe.decode > Duration::ZERO);
            }
            let error = probe_head(CPU, &config(), encoding, 1, 10).unwrap_err();
            assert!(matches!(error, Error::ProbeMemory { max_bytes: 10, .. }));
        }
    }

    const CPU: DeviceKind = DeviceKind::Cpu;
    const BF16: Encoding = Encoding::Float(FloatType::BF16);

    /// Weights of one layer in bf16: two norms, attention with half as many KV heads, the MLP.
    const BYTES: u64 = 2 * (2 * 256 + 3 * 256 * 256 + 3 * 256 * 1024);

    #[test]
    fn times_a_whole_layer_when_it_fits() {
        let probe = probe_layer(CPU, &config(), BF16, 1, u64::MAX, 2).unwrap();
        assert_eq!(probe.bytes, BYTES);
        assert!(probe.decode > Duration::ZERO);
    }

    #[test]
    fn times_layers_in_every_encoding() {
        for encoding in one_of_each() {
            let probe = probe_layer(CPU, &config(), encoding, 1, u64::MAX, 1).unwrap();
            assert!(probe.decode > Duration::ZERO, "{encoding}");
        }
    }

    #[test]
    fn times_packed_layers() {
        for format in [Affine::Q8, Affine::Q4] {
            let probe =
                probe_layer(CPU, &config(), Encoding::Affine(format), 1, u64::MAX, 2).unwrap();
            let matrices = (BYTES - 2 * 2 * 256) / 2;
            let packed = matrices * format.bits() as u64 / 8 + matrices / 64 * 4;
            assert_eq!(probe.bytes, packed + 2 * 2 * 256);
            let layer = &config().layers[0];
            let need = |layer: &LayerSpec| layer_bytes(layer, Encoding::Affine(format));
            let narrow = narrowed(layer, need, BYTES / 8).unwrap();
            assert!(layer_bytes(&narrow, Encoding::Affine(format)) <= BYTES / 8);
        }
    }

    #[test]
    fn scales_what_does_not_fit() {
        let need = |layer: &LayerSpec| layer_bytes(layer, BF16);
        let narrow = narrowed(&config().layers[0], need, BYTES / 3).unwrap();
        let is_narrow = |op: &Op| matches!(op, Op::Attention(it) if (1..=2).contains(&it.kv_heads));
        assert!(narrow.ops().any(is_narrow));
        assert!(layer_bytes(&narrow, BF16) <= BYTES / 3);
        let probe = probe_layer(CPU, &config(), BF16, 1, BYTES / 3, 2).unwrap();
        assert_eq!(probe.bytes, BYTES);
    }

    #[test]
    fn every_device_is_timed_within_what_it_takes_of_memory() {
        let config = config();
        let held = |device, layer: &LayerSpec| held_bytes(device, layer, BF16);
        let layer = &config.layers[0];
        for device in DeviceKind::on_processor() {
            assert_eq!(held(device, layer), BYTES, "{device:?}");
            for max_bytes in [u64::MAX, 2 * BYTES] {
                let probe = probe_layer(device, &config, BF16, 1, max_bytes, 2).unwrap();
                assert_eq!(probe.bytes, BYTES, "{device:?}");
                assert!(probe.decode > Duration::ZERO, "{device:?}");
                let head = probe_head(device, &config, BF16, 1, max_bytes).unwrap();
                assert!(head.decode > Duration::ZERO, "{device:?}");
            }
        }
    }

    #[test]
    fn refuses_memory_for_less_than_the_narrowest_layer() {
        let error =
            probe_layer(CPU, &config(), Encoding::Float(FloatType::F32), 1, 1000, 2).unwrap_err();
        assert!(matches!(error, Error::ProbeMemory { max_bytes: 1000, .. }));
    }
}
