//! What a stage takes of memory during a step, counted from outside, is what plans count.
//!
//! Everything that Rust's allocator asks the C library for comes by here, so that what [`Reuse`] keeps is counted as
//! well as what the stage holds.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

mod counted;
#[path = "../../../tests/golden/names.rs"]
mod found;
mod made;

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use cake_checkpoint::{
    Affine, Checkpoint, Encoding, FloatType, GgmlType, KvDtype, MappedTensor, ModelSpec,
};
use cake_engine::{
    Batch, BatchItem, DeviceKind, EngineOptions, Numerics, Reuse, StateSlots, copied_bytes,
    scratch_bytes,
};

use counted::Count;
use made::{Made, hidden};

#[global_allocator]
static ALLOCATOR: Reuse = Reuse;

const THREADS: usize = 2;
const CANDLE: DeviceKind = DeviceKind::Candle;
const BF16: Encoding = Encoding::Float(FloatType::BF16);
const Q4: Encoding = Encoding::Affine(Affine::Q4);
/// Steps: so many rows, how they are shared out, and how many positions there were before.
const STEPS: [(usize, Layout, usize); 6] = [
    (1, Layout::Mixed, 1100),
    (1, Layout::Prompt, 0),
    (33, Layout::Mixed, 0),
    (33, Layout::Prompt, 1100),
    (MANY, Layout::Mixed, 1100),
    (MANY, Layout::Prompt, 0),
];
/// Rows for which a plan is held to what is taken.
const MANY: usize = 512;
/// The most rows of a step on candle, which computes for each sequence apart.
const MANY_ON_CANDLE: usize = 128;
/// Of a tiny model on candle what is held for each tensor, however small: what says where it lies, and norms and biases in f32.
const TENSOR_BYTES: u64 = 1 << 10;
/// What may be resident of a layer beside its bytes, as a divisor of these: a twentieth.
const BESIDE: u64 = 20;
/// The most that may be planned for each byte that a step of many rows takes, what threads keep aside: plans count
/// processors with other kernels, too, and experts that all rows go to.
const MOST: f64 = 4.0;

/// One of each kind of operation.
const GOLDEN: [&str; 17] = [
    "llama",
    "gemma3",
    "qwen2-mlx4",
    "llama-mlx8",
    "qwen3-moe",
    "deepseek-v3",
    "lfm2-moe",
    "qwen3_5",
    "qwen3-next",
    "nemotron-h",
    "nemotron-h-latent",
    "kimi-linear",
    "falcon-h1",
    "gpt-oss",
    "llama4",
    "gemma4-e",
    "gemma3n",
];

/// A model of so many layers, dense if no experts are said: how many, how many a row goes to, and their width.
fn model(layers: usize, hidden_size: usize, experts: Option<[usize; 3]>) -> ModelSpec {
    let (architecture, experts) = match experts {
        None => ("Qwen3ForCausalLM", String::new()),
        Some([count, chosen, inner]) => (
            "Qwen3MoeForCausalLM",
            format!(
                r#","num_experts":{count},"num_experts_per_tok":{chosen},
                "moe_intermediate_size":{inner},"norm_topk_prob":true"#
            ),
        ),
    };
    // Queries are wider than hidden states, so that no two sizes are one.
    let (heads, inner_size) = (hidden_size / 64 + 2, 3 * hidden_size);
    let config = format!(
        r#"{{"architectures":["{architecture}"],"hidden_size":{hidden_size},
        "num_hidden_layers":{layers},"num_attention_heads":{heads},"num_key_value_heads":2,
        "head_dim":64,"intermediate_size":{inner_size},"vocab_size":64,"rms_norm_eps":1e-6,
        "max_position_embeddings":4096{experts}}}"#
    );
    ModelSpec::parse(config.as_bytes()).unwrap()
}

/// One of delta rules and attention at widths of a model.
fn hybrid() -> ModelSpec {
    let config = r#"{"architectures":["Qwen3_5ForCausalLM"],"model_type":"qwen3_5_text","hidden_size":512,
        "num_hidden_layers":4,"num_attention_heads":10,"num_key_value_heads":2,"head_dim":64,
        "intermediate_size":1536,"vocab_size":64,"rms_norm_eps":1e-6,"max_position_embeddings":4096,
        "linear_num_key_heads":4,"linear_num_value_heads":8,"linear_key_head_dim":64,
        "linear_value_head_dim":64}"#;
    ModelSpec::parse(config.as_bytes()).unwrap()
}

/// One of experts between projections.
fn projected() -> ModelSpec {
    let config = r#"{"architectures":["NemotronHForCausalLM"],"model_type":"nemotron_h","hidden_size":1024,
        "hybrid_override_pattern":"EE","num_attention_heads":8,"num_key_value_heads":2,"head_dim":64,
        "intermediate_size":64,"vocab_size":64,"layer_norm_epsilon":1e-5,"max_position_embeddings":4096,
        "mlp_hidden_act":"relu2","n_routed_experts":16,"num_experts_per_tok":4,"moe_intermediate_size":64,
        "moe_latent_size":512,"moe_shared_expert_intermediate_size":64}"#;
    ModelSpec::parse(config.as_bytes()).unwrap()
}

/// How the rows of a step are shared out.
#[derive(Clone, Copy, Debug)]
enum Layout {
    /// All are of one prompt.
    Prompt,
    /// Half of them are of a prompt, and the others are generated, each of a sequence of its own.
    Mixed,
}

impl Layout {
    /// A step of so many rows, the last of each sequence at the end of the context.
    fn batch(self, rows: usize, context: usize) -> Batch {
        // All in the same blocks: what is computed is of no interest.
        let blocks: Vec<u32> = (0..context.div_ceil(16) as u32).collect();
        let item = |sequence, rows, prompt| {
            let (position, blocks) = (context - rows, blocks.clone());
            let (slot, known) = (sequence as u32, 0);
            let state = Some(StateSlots { from: (position > 0).then_some(slot), to: slot });
            BatchItem { sequence, position, rows, prompt, blocks, known, state }
        };
        let prompt = match self {
            Layout::Prompt => rows,
            Layout::Mixed => rows / 2,
        };
        let generated = (prompt..rows).map(|row| item(row as u64, 1, false));
        Batch { items: [item(rows as u64, prompt, true)].into_iter().chain(generated).collect() }
    }
}

/// What one step of a stage takes, on a thread of its own: neither it nor the stage's others have computed before.
fn step(made: &Made, batch: &Batch, options: &EngineOptions) -> Count {
    let rows = batch.items.iter().map(|item| item.rows).sum();
    let blocks = batch.items.iter().map(|item| item.blocks.len()).max().unwrap_or(0);
    let state_slots = rows + 1; // By the numbers of sequences.
    let EngineOptions { threads, device, numerics, kv, .. } = *options;
    let options =
        EngineOptions { threads, device, numerics, kv, state_slots, ..EngineOptions::new(blocks) };
    let run = || {
        let mut stage = made.stage(&options);
        counted::count(|| stage.forward(batch, hidden(rows, made.model.row_width(0))).unwrap())
    };
    std::thread::scope(|scope| scope.spawn(run).join().unwrap())
}

/// Where golden checkpoints lie.
fn directory(kind: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests").join(kind)
}

/// A golden checkpoint.
fn golden(name: &str) -> Made {
    opened(&directory("golden").join(name))
}

fn opened(directory: &Path) -> Made {
    let checkpoint = Checkpoint::open(directory.to_str().unwrap()).unwrap();
    let tensors = checkpoint.tensors.iter();
    let tensors = tensors.map(|it| (it.name.clone(), checkpoint.map(it).unwrap())).collect();
    Made { model: checkpoint.config.clone(), tensors }
}

/// Steps of all kinds and sizes take no more than is planned, and of a model that is not tiny many rows take not much
/// less; returns the large blocks that each of them took of the system.
fn check(
    name: &str,
    made: &Made,
    numerics: Numerics,
    tiny: bool,
    threads: usize,
) -> [usize; STEPS.len()] {
    STEPS.map(|(rows, layout, past)| {
        let context = rows + past;
        let options = EngineOptions { threads, numerics, ..EngineOptions::new(0) };
        let count = step(made, &layout.batch(rows, context), &options);
        let planned = |rows| scratch_bytes(DeviceKind::Cpu, &made.model, rows, context, threads);
        let (taken, all) = (count.peak, planned(rows));
        let ratio = (all - planned(0)) as f64 / taken as f64;
        let step = format!("{name} {numerics}, {rows} rows of {layout:?} after {past}");
        let what = format!("{step}: {taken} bytes, {all} planned, {ratio:.2}");
        println!("{what}");
        assert!(taken <= all, "{what}");
        assert!(tiny || rows < MANY || ratio <= MOST, "{what}");
        count.large
    })
}

#[test]
fn a_step_takes_what_is_planned() {
    let _alone = counted::alone();
    for name in GOLDEN {
        check(name, &golden(name), Numerics::Fast, true, THREADS);
        check_on_candle(name, &golden(name));
    }
    for name in ["llama", "gemma3", "deepseek-v3", "gpt-oss"] {
        check_kept_on_candle(name, &golden(name), KvDtype::Q8);
    }
    check_kept_on_candle("dense", &Made::new(model(2, 512, None), BF16), KvDtype::Q8);
    let hybrid = Made::new(hybrid(), BF16);
    check("hybrid", &hybrid, Numerics::Fast, false, THREADS);
    check_on_candle("hybrid", &hybrid);
    for model in [projected(), projected().sliced(2).unwrap()] {
        let layers = model.layers.len();
        let projected = Made::new(model, BF16);
        check(&format!("projected experts, {layers}"), &projected, Numerics::Fast, false, THREADS);
        check_on_candle(&format!("projected experts, {layers}"), &projected);
    }
    check_on_candle("dense", &Made::new(model(2, 512, None), BF16));
    check_on_candle("wide experts", &Made::new(model(2, 256, Some([4, 1, 1024])), BF16));
    check_on_candle("many experts", &Made::new(model(1, 1024, Some([128, 8, 64])), BF16));
    for encoding in [BF16, Q4] {
        let [two, three] = [2, 3].map(|layers| Made::new(model(layers, 512, None), encoding));
        let wide = Made::new(model(3, 256, Some([4, 1, 1024])), encoding);
        let many = Made::new(model(1, 1024, Some([128, 8, 64])), encoding);
        let all_to_one = Made::new(model(2, 256, Some([1, 1, 1024])), encoding);
        for numerics in [Numerics::Fast, Numerics::Exact] {
            let dense =
                |made, threads| check(&format!("dense {encoding}"), made, numerics, false, threads);
            // A thread that had nothing to do yet, as others were faster, takes its own blocks later, once.
            let (of_one, of_several) = (dense(&three, 1), dense(&three, THREADS));
            assert_eq!(of_one, dense(&two, 1), "a layer's blocks are those of the layer before");
            for (of_one, of_several) in of_one.into_iter().zip(of_several) {
                assert!(
                    of_several <= THREADS * of_one,
                    "{of_several} blocks, {of_one} of a thread"
                );
            }
            check(&format!("an expert for all {encoding}"), &all_to_one, numerics, false, THREADS);
            check(&format!("wide experts {encoding}"), &wide, numerics, false, THREADS);
            check(&format!("many experts {encoding}"), &many, numerics, false, THREADS);
        }
    }
}

/// Candle takes memory as it likes and keeps none.
fn check_on_candle(name: &str, made: &Made) {
    check_kept_on_candle(name, made, KvDtype::F32);
}

fn check_kept_on_candle(name: &str, made: &Made, kv: KvDtype) {
    let (device, numerics, threads) = (CANDLE, Numerics::Exact, THREADS);
    let options = EngineOptions { threads, device, numerics, kv, ..EngineOptions::new(0) };
    for (rows, layout, past) in STEPS {
        let rows = rows.min(MANY_ON_CANDLE);
        let context = rows + past;
        let batch = layout.batch(rows, context);
        let taken = step(made, &batch, &options).peak;
        let planned = scratch_bytes(CANDLE, &made.model, rows, context, THREADS);
        let what = format!("{name} in {kv} on candle, {rows} rows of {layout:?} after {past}");
        assert!(taken <= planned, "{what}: {taken} bytes, {planned} planned");
    }
}

#[test]
fn weights_on_candle_are_resident_as_they_are_stored() {
    let _alone = counted::alone();
    let mut encodings = HashSet::new();
    for kind in ["golden", "golden-gguf"] {
        for name in found::names(&directory(kind)) {
            let made = opened(&directory(kind).join(&name));
            encodings.extend(made.tensors.values().filter_map(MappedTensor::encoding));
            check_resident(&format!("{kind}/{name}"), &made, TENSOR_BYTES);
        }
    }
    assert!(GgmlType::ALL.into_iter().all(|kind| encodings.contains(&Encoding::Ggml(kind))));
    for encoding in [BF16, Q4] {
        check_resident("dense", &Made::new(model(4, 512, None), encoding), 0);
        check_resident("many experts", &Made::new(model(1, 1024, Some([128, 8, 64])), encoding), 0);
    }
}

/// What a stage holds once it is loaded, in a process that has its weights mapped: a twentieth of their bytes at most, and
/// so many bytes for each tensor.
fn check_resident(name: &str, made: &Made, tensor_bytes: u64) {
    let bytes: u64 = made.tensors.values().map(|it| it.bytes().len() as u64).sum();
    let beside = bytes / BESIDE + made.tensors.len() as u64 * tensor_bytes;
    for numerics in [Numerics::Exact, Numerics::Fast] {
        let (device, threads, state_slots) = (CANDLE, THREADS, 2);
        let options =
            EngineOptions { device, numerics, threads, state_slots, ..EngineOptions::new(0) };
        let kept = counted::count(|| made.stage(&options)).kept;
        let most = copied_bytes(&made.model.layers) + beside;
        let what = format!("{name} {numerics}: {kept} beside {bytes} bytes, {most} may be");
        println!("{what}");
        assert!(kept <= most, "{what}");
    }
}
