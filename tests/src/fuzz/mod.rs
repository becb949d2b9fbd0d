//! What hostile bytes may reach: one function per kind of input, for a mutator of ours on any compiler and
//! for `cargo fuzz` (`fuzz/`).
//!
//! A target must neither panic nor allocate more than it says, whatever the bytes are.
mod apr;
mod gguf;
mod golden;
mod model;
mod mutate;
mod requests;
mod wire;

use std::sync::LazyLock;

use cake_checkpoint::container::safetensors::header::Header;
use cake_checkpoint::container::safetensors::index::Index;
use cake_checkpoint::{BlobSource, Checkpoint, GenerationConfig, Manifest, ModelSpec};
use cake_identity::{Authority, DEFAULT_LIFETIME, JoinToken, hostile};

use crate::programs;
use golden::golden_files;
pub use mutate::Mutator;

/// A kind of input.
#[derive(Debug)]
pub struct Target {
    /// Its name, also of its program under `fuzz/`.
    pub name: &'static str,
    /// Takes the bytes as the programs take them.
    pub run: fn(&[u8]),
    /// Inputs that are well-formed, to begin with.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Most bytes that may be allocated at a time, in addition to so many for each byte of input.
    pub most_bytes: usize,
    /// How many are tried where nobody says for how long.
    pub inputs: usize,
}

/// Inputs of a target in the tests,
const INPUTS: usize = 100_000;
/// and of one that does much with each.
const FEWER_INPUTS: usize = 25_000;

/// For each byte of input: a token of JSON becomes a value with a name and room to grow.
pub const BYTES_PER_BYTE: usize = 256;

/// All of them.
pub const TARGETS: &[Target] = &[
    // What is asked of the process that renders, and the longest text in some copies. It takes longest, and the others are
    // tried meanwhile.
    Target {
        name: "template",
        run: |bytes| cake_master::text::hostile::template(&programs().master, bytes),
        seeds: templates,
        most_bytes: 8 << 20,
        inputs: FEWER_INPUTS,
    },
    Target { name: "header", run: header, seeds: headers, most_bytes: 64 << 10, inputs: INPUTS },
    // A configuration may have thousands of layers, as below.
    Target { name: "apr", run: apr::run, seeds: apr::seeds, most_bytes: 8 << 20, inputs: INPUTS },
    Target {
        name: "gguf",
        run: gguf::run,
        seeds: gguf::seeds,
        most_bytes: 8 << 20,
        inputs: INPUTS,
    },
    Target {
        name: "index",
        run: |bytes| drop(Index::parse(bytes)),
        seeds: || golden_files("model.safetensors.index.json"),
        most_bytes: 64 << 10,
        inputs: INPUTS,
    },
    // Thousands of layers, each some hundreds of bytes, of one number.
    Target {
        name: "config",
        run: |bytes| drop(ModelSpec::parse(bytes)),
        seeds: || golden_files("config.json"),
        most_bytes: 4 << 20,
        inputs: INPUTS,
    },
    // One layer may have thousands of experts, each with names of its own.
    Target {
        name: "model",
        run: model::run,
        seeds: model::seeds,
        most_bytes: 24 << 20,
        inputs: INPUTS,
    },
    Target {
        name: "generation",
        run: |bytes| drop(GenerationConfig::parse(bytes)),
        seeds: || vec![br#"{"do_sample": true, "eos_token_id": [1, 2], "top_k": 50}"#.to_vec()],
        most_bytes: 64 << 10,
        inputs: INPUTS,
    },
    Target {
        name: "manifest",
        run: manifest,
        seeds: manifests,
        most_bytes: 64 << 10,
        inputs: INPUTS,
    },
    // A step may be as large as the stage that it is for expects.
    Target {
        name: "messages",
        run: wire::run,
        seeds: wire::seeds,
        most_bytes: 1 << 20,
        inputs: INPUTS,
    },
    Target { name: "token", run: token, seeds: tokens, most_bytes: 64 << 10, inputs: INPUTS },
    Target {
        name: "certificate",
        run: hostile::certificate,
        seeds: hostile::seeds,
        most_bytes: 256 << 10,
        inputs: INPUTS,
    },
    Target {
        name: "join",
        run: hostile::request,
        seeds: hostile::request_seeds,
        most_bytes: 64 << 10,
        inputs: INPUTS,
    },
    Target {
        name: "signing",
        run: |bytes| hostile::signing_request(&AUTHORITY, bytes),
        seeds: hostile::signing_seeds,
        most_bytes: 256 << 10,
        inputs: INPUTS,
    },
    Target {
        name: "chat",
        run: cake_master::api::hostile::request,
        seeds: requests::bodies,
        most_bytes: 256 << 10,
        inputs: INPUTS,
    },
    // A compilation has tables of its own, whatever the schema is.
    Target {
        name: "schema",
        run: requests::schema,
        seeds: requests::schemas,
        most_bytes: 32 << 20,
        inputs: INPUTS,
    },
    Target {
        name: "tools",
        run: requests::tool_calls,
        seeds: requests::written,
        most_bytes: 64 << 10,
        inputs: FEWER_INPUTS,
    },
    Target {
        name: "stop",
        run: requests::stop_strings,
        seeds: requests::stops,
        most_bytes: 64 << 10,
        inputs: INPUTS,
    },
];

/// Whom certificates are asked of.
static AUTHORITY: LazyLock<Authority> = LazyLock::new(|| {
    // Signing needs nothing of what is kept there.
    let directory = tempfile::tempdir().expect("a temporary folder");
    Authority::create(directory.path(), DEFAULT_LIFETIME).expect("made")
});

fn header(bytes: &[u8]) {
    // The file is as long as its header says, or as long as the input.
    for file_bytes in [bytes.len() as u64, 1 << 20] {
        if let Ok(header) = Header::parse(bytes, file_bytes) {
            assert!(
                header.tensors.iter().all(|tensor| header.data_start + tensor.end <= file_bytes)
            );
        }
    }
}

fn headers() -> Vec<Vec<u8>> {
    let json = r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},
        "b":{"dtype":"F32","shape":[5],"data_offsets":[12,32]}}"#;
    let header = [&(json.len() as u64).to_le_bytes()[..], json.as_bytes()].concat();
    let whole = [&header[..], &[0; 32]].concat();
    vec![header, whole]
}

fn manifest(bytes: &[u8]) {
    if let Ok(manifest) = Manifest::from_json(bytes) {
        // What a store makes of it: it lays out the file that the bytes will go to.
        let ranges = manifest.tensor_ranges();
        assert!(ranges.iter().all(|range| range.end <= manifest.file_bytes));
        assert_eq!(manifest.chunk_ends().len(), manifest.chunks.len());
        let again = Manifest::from_json(&manifest.to_json()).expect("it was accepted before");
        assert_eq!(again.name(), manifest.name());
    }
}

fn manifests() -> Vec<Vec<u8>> {
    let model = crate::golden::directory().join("llama");
    let checkpoint =
        Checkpoint::open(model.to_str().expect("UTF-8")).expect("golden data is there");
    let layers = 0..checkpoint.config.layers.len().min(2);
    let manifest =
        |layer| BlobSource::new(&checkpoint, layer).manifest().expect("readable").to_json();
    layers.map(manifest).collect()
}

fn token(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(token) = text.parse::<JoinToken>()
    {
        assert_eq!(token.to_string(), text.trim());
    }
}

fn tokens() -> Vec<Vec<u8>> {
    hostile::token_seeds()
}

/// Templates, each with a conversation.
fn templates() -> Vec<Vec<u8>> {
    const TOOLS: &str = r#"{%- macro show(v) %}{% if v is mapping %}{% for k, w in v|dictsort %}{{ k }}={{ show(w) }};
        {%- endfor %}{% else %}{{ v|tojson(indent=2) }}{% endif %}{% endmacro -%}
        {%- set ns = namespace(last=0, text='') %}{% for m in messages[::-1] %}{% set ns.last = loop.index %}
        {%- set ns.text = m['role']|upper ~ m.content.split('</think>')[-1].strip() %}
        {{- bos_token + ns.text|replace('a', 'b')|trim }}{% endfor %}{% for c in messages|selectattr('tool_calls', 'defined') %}
        {{- show(c) }}{% if loop.last %}{{ raise_exception('end') }}{% endif %}{% endfor %}{{ range(3)|join(', ') }}"#;
    const MESSAGES: &[u8] = br#"[{"role": "system", "content": "Be brief."}, {"role": "user", "content":
        "a <|im_end|> b"}, {"role": "assistant", "content": "<think>x</think>y", "tool_calls": [{"function":
        {"name": "f", "arguments": {"a": [1, null, 2.5]}}}]}]"#;
    let mut sources = golden_files("chat_template.jinja");
    sources.dedup();
    sources.push(TOOLS.as_bytes().to_vec());
    sources.into_iter().map(|source| [&source, &[0][..], MESSAGES].concat()).collect()
}

/// Feeds the target of this name.
///
/// # Panics
/// If there is none, and where the target does.
pub fn run(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    (target.unwrap_or_else(|| panic!("no target {name}")).run)(bytes);
}
