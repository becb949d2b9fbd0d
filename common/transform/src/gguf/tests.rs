//! Golden models written as GGUF, by the simplest way to run a job, and read again.

mod again;
mod oracle;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cake_checkpoint::{Checkpoint, FloatType, GgmlType, Op, RowsAt};

use self::oracle::{File, Value};
use super::{GgufOptions, GgufType, convert};
use crate::error::Error;
use crate::job::{Job, Options, Target};
use crate::piece::{Order, Piece};
use crate::source::Source;
use crate::testing::{GOLDEN, Quiet};

/// Models of every family, packed ones, and one in several files, each with its architecture there.
const MODELS: &[(&str, &str)] = &[
    ("llama", "llama"),
    ("llama-mlx8", "llama"),
    ("llama-sharded", "llama"),
    ("llama3-tied", "llama"),
    ("mistral", "llama"),
    ("qwen2", "qwen2"),
    ("qwen2-mlx4", "qwen2"),
    ("qwen3", "qwen3"),
    ("qwen3-moe", "qwen3moe"),
    ("qwen3-moe-mlx4", "qwen3moe"),
    ("gemma3", "gemma3"),
    ("phi3", "phi3"),
];

/// Those with matrices whose rows are multiples of 256.
const LARGE: &[&str] = &["llama-mlx8", "qwen2-mlx4"];

fn golden(name: &str) -> PathBuf {
    Path::new(GOLDEN).join(name)
}

fn job(model: &Path, to: GgufType, target: &Path) -> Result<(Job, Vec<String>), Error> {
    job_of(model, Some(to), target)
}

fn job_of(model: &Path, to: Option<GgufType>, target: &Path) -> Result<(Job, Vec<String>), Error> {
    let source = Source::open(&model.display().to_string()).unwrap();
    let checkpoint = source.checkpoint().unwrap();
    let target = Target::File(target.to_owned());
    convert(source, &checkpoint, to, target, GgufOptions::default())
}

#[test]
fn matrices_stay_what_they_are_where_nobody_says_what_they_become() {
    let home = tempfile::tempdir().unwrap();
    let stays = [
        ("llama", GgufType::F32),
        ("mistral", GgufType::F16),
        ("qwen3-moe", GgufType::BF16),
        ("qwen2-mlx4", GgufType::F16),
    ];
    for (name, to) in stays {
        let bytes = [None, Some(to)].map(|to| {
            let path = home.path().join(format!("{name}.gguf"));
            let (job, _) = job_of(&golden(name), to, &path).unwrap();
            job.run(Options { force: true, threads: 2 }, &Quiet).unwrap();
            std::fs::read(path).unwrap()
        });
        assert!(bytes[0] == bytes[1], "{name}");
    }
}

/// What a vector or matrix is multiplied with, added to, and where it lies is said in another way here than there.
fn expected(checkpoint: &Checkpoint, name: &str) -> Vec<f32> {
    let tensor = checkpoint.tensor(name).unwrap_or_else(|| panic!("{name}"));
    let read = |name: &str| {
        let tensor = checkpoint.tensor(name).unwrap();
        let mut bytes = vec![0; tensor.bytes as usize];
        checkpoint.read_at(tensor, 0, &mut bytes).unwrap();
        (tensor.dtype, bytes)
    };
    match tensor.encoding {
        Some(encoding) => {
            let module = name.strip_suffix(".weight").unwrap();
            let columns: u64 = match checkpoint.tensor(&format!("{module}.scales")) {
                Some(scales) => {
                    let width = oracle::group(encoding);
                    scales.shape[1] * width
                }
                None => tensor.shape[1],
            };
            let shape = [tensor.shape[0], columns];
            let parts = encoding.parts(shape).unwrap();
            let parts: Vec<_> =
                parts.iter().map(|it| read(&format!("{module}{}", it.part.ending()))).collect();
            let parts: Vec<_> = parts.iter().map(|(dtype, bytes)| (*dtype, &bytes[..])).collect();
            let mut values = vec![0.0; (shape[0] * shape[1]) as usize];
            encoding.decode_rows(RowsAt::start(columns as usize), &parts, &mut values);
            values
        }
        None => {
            let (dtype, bytes) = read(name);
            let float = FloatType::of(dtype).unwrap();
            let mut values = vec![0.0; bytes.len() / float.bytes()];
            float.widen(&bytes, &mut values);
            values
        }
    }
}

#[test]
fn files_hold_what_the_checkpoint_holds() {
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path();
    for (index, (model, arch)) in MODELS.iter().enumerate() {
        // Large blocks stay what was asked for where rows are multiples of 256 alone. Others are renamed and reordered,
        // and have one in three of the other types: each is some model's.
        let has_large = LARGE.contains(model);
        let types = GgufType::ALL.into_iter().enumerate();
        let some =
            types.filter(|(at, to)| has_large || *to == GgufType::F32 || (at + index) % 3 == 0);
        for (_, to) in some {
            let path = out.join(format!("{model}-{to}.gguf"));
            let (job, _) = job(&golden(model), to, &path).unwrap();
            oracle::check_tiles(&job);
            let options = Options { force: true, threads: 2 };
            job.run(options, &Quiet).unwrap();
            let bytes = std::fs::read(&path).unwrap();
            assert!(bytes == oracle::run(&job), "{model} {to}");
            let file = File::parse(bytes);
            assert_eq!(file.keys["general.architecture"], Value::Text((*arch).into()));
            check_tensors(&file, &golden(model), to);
        }
    }
}

/// Compares every tensor of the checkpoint with what the file has of it.
fn check_tensors(file: &File, model: &Path, to: GgufType) {
    let checkpoint = Checkpoint::open(&model.display().to_string()).unwrap();
    let spec = &checkpoint.config;
    let Some(Op::Attention(attention)) = spec.layers[0].ops().next() else { panic!() };
    let is_llama = file.keys["general.architecture"] == Value::Text("llama".into());
    let mut seen = BTreeMap::new();
    let matrices = checkpoint.tensors.iter();
    for tensor in matrices.filter(|it| !it.name.ends_with("scales") && !it.name.ends_with("biases"))
    {
        let (name, expert) = hub_to_gguf(&tensor.name, &spec.architecture);
        let mut values = expected(&checkpoint, &tensor.name);
        let found = file.values(&name, expert);
        let heads = match (is_llama, name.contains("attn_q."), name.contains("attn_k.")) {
            (true, true, _) => attention.heads,
            (true, _, true) => attention.kv_heads,
            _ => 0,
        };
        if heads > 0 {
            // [heads, 2, half, columns] to [heads, half, 2, columns].
            let columns = values.len() / (heads * attention.head_dim);
            let half = attention.head_dim / 2;
            let from = |index: usize| {
                let (column, row) = (index % columns, index / columns);
                let (head, inside) = (row / attention.head_dim, row % attention.head_dim);
                let row = head * attention.head_dim + inside % 2 * half + inside / 2;
                row * columns + column
            };
            values = (0..values.len()).map(|index| values[from(index)]).collect();
        }
        if file.keys["general.architecture"] == Value::Text("gemma3".into())
            && name.contains("norm")
        {
            values.iter_mut().for_each(|value| *value += 1.0);
        }
        let largest = values.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
        let (kind, _) = file.tensors[&name];
        let allowed = match kind {
            GgufType::F32 => 0.0,
            GgufType::F16 => largest / 1024.0,
            GgufType::BF16 => largest / 128.0,
            GgufType::Q8_0 => largest / 127.0,
            GgufType::Q4_0 | GgufType::Blocks(GgmlType::Q4K) => largest / 7.0,
            GgufType::Blocks(_) => largest / 15.0, // Of 5 bits.
        };
        let is_small = tensor.shape.len() == 1 || name.contains("ffn_gate_inp");
        let columns = values.len() as u64 / tensor.shape[0];
        let is_end =
            name == "output.weight" || (name == "token_embd.weight" && spec.tie_word_embeddings);
        match (is_small, to) {
            (true, _) => assert_eq!(kind, GgufType::F32, "{name}"),
            (_, GgufType::Blocks(_)) if !columns.is_multiple_of(32) => {
                assert_eq!(kind, GgufType::F16, "{name}");
            }
            (_, GgufType::Blocks(_)) if is_end => assert_eq!(kind, GgufType::Q8_0, "{name}"),
            _ if columns.is_multiple_of(256) => assert_eq!(kind, to, "{name}"),
            (_, GgufType::Blocks(GgmlType::Q4K)) => assert_eq!(kind.to_string(), "q5_0", "{name}"),
            (_, GgufType::Blocks(GgmlType::Q5K)) => assert_eq!(kind.to_string(), "q5_1", "{name}"),
            (_, GgufType::Blocks(GgmlType::Q6K)) => assert_eq!(kind, GgufType::Q8_0, "{name}"),
            _ => assert_eq!(kind, to, "{name}"),
        }
        assert_eq!(values.len(), found.len(), "{name}");
        for (index, (value, found)) in values.iter().zip(&found).enumerate() {
            let text = format!("{name} {index}: {value} {found}");
            assert!((value - found).abs() <= allowed, "{text}");
        }
        *seen.entry(name).or_insert(0) += values.len();
    }
    for (name, (_, count)) in &file.tensors {
        let is_divisors = name == "rope_freqs.weight";
        assert!(is_divisors || seen.get(name) == Some(count), "{name} is not all there");
    }
}

/// The names, said a second time: by what each part of them becomes.
fn hub_to_gguf(name: &str, architecture: &str) -> (String, Option<usize>) {
    let mut name =
        name.replace("model.layers.", "blk.").replace("model.embed_tokens", "token_embd");
    name = name.replace("model.norm", "output_norm").replace("lm_head", "output");
    name = name.replace("self_attn.o_proj", "attn_output").replace("self_attn.", "attn_");
    if architecture.starts_with("Gemma3") {
        name = name.replace("post_attention_layernorm", "post_attention_norm");
        name = name.replace("post_feedforward_layernorm", "post_ffw_norm");
    }
    for (from, to) in [
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("pre_feedforward_layernorm", "ffn_norm"),
        ("mlp.gate.", "ffn_gate_inp."),
        ("gate_up_proj", "up"),
        ("_proj", ""),
    ] {
        name = name.replace(from, to);
    }
    let Some((before, rest)) = name.split_once("mlp.experts.") else {
        return (name.replace("mlp.", "ffn_"), None);
    };
    let [expert, leaf, ending] = rest.splitn(3, '.').collect::<Vec<_>>()[..] else { panic!() };
    (format!("{before}ffn_{leaf}_exps.{ending}"), Some(expert.parse().unwrap()))
}

#[test]
fn rows_move_and_grow_only_where_they_must() {
    let pieces = |model: &str, to: GgufType| {
        let (job, _) = job(&golden(model), to, Path::new("unused.gguf")).unwrap();
        job.pieces
    };
    let copies = |pieces: &[Piece]| {
        pieces.iter().filter(|piece| matches!(piece, Piece::Copy { .. })).count()
    };
    // All of a layer but queries and keys, and the ends.
    assert_eq!(copies(&pieces("llama", GgufType::F32)), 5 * 7 + 3);
    // No norms and biases, which are F32, in a file of BF16.
    assert_eq!(copies(&pieces("qwen2", GgufType::BF16)), 5 * 7 + 1);
    assert_eq!(copies(&pieces("qwen2", GgufType::F16)), 0);
    assert_eq!(copies(&pieces("qwen2-mlx4", GgufType::Q4_0)), 0);
    for piece in pieces("gemma3", GgufType::F16) {
        let Piece::Rows(rows) = piece else { continue };
        assert_eq!(rows.add, if rows.name.contains("norm") { 1.0 } else { 0.0 }, "{}", rows.name);
        assert_eq!(rows.order, Order::Same);
    }
}

#[test]
fn keys_say_what_the_model_is() {
    let file = |model: &str| {
        let (job, lost) = job(&golden(model), GgufType::F16, Path::new("unused.gguf")).unwrap();
        (File::parse(oracle::run(&job)), lost)
    };
    let (gemma, lost) = file("gemma3");
    assert!(lost.is_empty(), "{lost:?}");
    let slides = [true, true, false, true, true, false, true];
    let pattern = Value::List(slides.iter().map(|it| Value::Whole(i64::from(*it))).collect());
    assert_eq!(gemma.keys["gemma3.attention.sliding_window_pattern"], pattern);
    assert_eq!(gemma.keys["gemma3.attention.sliding_window"], Value::Whole(8));
    assert_eq!(gemma.keys["gemma3.rope.freq_base"], Value::Number(1e6));
    assert_eq!(gemma.keys["gemma3.rope.freq_base_swa"], Value::Number(1e4));
    let (moe, lost) = file("qwen3-moe");
    assert!(lost.is_empty(), "{lost:?}");
    assert_eq!(moe.keys["qwen3moe.expert_count"], Value::Whole(8));
    assert_eq!(moe.keys["qwen3moe.expert_used_count"], Value::Whole(2));
    assert_eq!(moe.keys["tokenizer.ggml.pre"], Value::Text("gpt-2".into()));
    assert_eq!(moe.keys["tokenizer.ggml.add_bos_token"], Value::Whole(0));
    let Value::List(tokens) = &moe.keys["tokenizer.ggml.tokens"] else { panic!() };
    assert_eq!((tokens.len(), &tokens[383]), (384, &Value::Text("[PAD383]".into())));
    let (_, lost) = file("mistral");
    assert!(
        matches!(&lost[..], [only] if only.contains("5 layers see 8 positions only")),
        "{lost:?}"
    );
    let (llama3, _) = file("llama3-tied");
    let divisors = llama3.values("rope_freqs.weight", None);
    assert_eq!((divisors.len(), divisors[0], divisors[15]), (16, 1.0, 8.0));
}

#[test]
fn what_gguf_does_not_have_is_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let with = |model: &str, file: &str, from: &str, to: &str| {
        let copy = tempfile::tempdir_in(scratch.path()).unwrap();
        for entry in std::fs::read_dir(golden(model)).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
        let path = copy.path().join(file);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{file} has no {from}");
        std::fs::write(&path, text.replacen(from, to, 1)).unwrap();
        job(copy.path(), GgufType::F16, Path::new("unused.gguf")).map(|(_, lost)| lost)
    };
    let refused = |model: &str, file: &str, from: &str, to: &str| {
        with(model, file, from, to).unwrap_err().to_string()
    };
    let tokenizer = "tokenizer.json";
    let error = refused("llama", tokenizer, "\"use_regex\": true", "\"use_regex\": false");
    assert!(error.contains("splits text by []"), "{error}");
    let error = refused("llama", tokenizer, "\"type\": \"BPE\"", "\"type\": \"Unigram\"");
    assert!(error.contains("Unigram"), "{error}");
    let error = refused("llama", tokenizer, "{", "[");
    assert!(error.contains("tokenizer.json: it is not the JSON"), "{error}");
    let lost = with("llama", tokenizer, "\"lstrip\": false", "\"lstrip\": true").unwrap();
    assert!(matches!(&lost[..], [only] if only.contains("1 added tokens")), "{lost:?}");
    let config = "config.json";
    let yes = ("\"norm_topk_prob\": true", "\"norm_topk_prob\": false");
    let lost = with("qwen3-moe", config, yes.0, yes.1).unwrap();
    assert!(matches!(&lost[..], [only] if only.contains("are not divided")), "{lost:?}");
    let scalar = "\"query_pre_attn_scalar\": ";
    let lost = with("gemma3", config, &format!("{scalar}32"), &format!("{scalar}64")).unwrap();
    assert!(matches!(&lost[..], [only] if only.contains("queries are scaled")), "{lost:?}");
}
