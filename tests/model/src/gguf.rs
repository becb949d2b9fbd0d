//! A Llama as a GGUF file with random weights in blocks of any kind, or with holes in place of them.
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use cake_checkpoint::{Dtype, GgmlType};

use super::random::Weights;
use super::shape::ModelShape;
use super::{BUFFER, SMALL};

/// What tensors begin at multiples of, where a file does not say otherwise.
const ALIGNMENT: u64 = 32;
/// The numbers by which the format knows kinds of values, and the type of plain numbers of four bytes.
const U32: u32 = 4;
const I32: u32 = 5;
const F32: u32 = 6;
const TEXT: u32 = 8;
const LIST: u32 = 9;
const PLAIN: u32 = 0;
/// What a token may be: text, or one that controls.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;

/// A model to be written.
#[derive(Debug)]
pub struct GgufModel {
    /// Everything before the tensors' bytes.
    head: Vec<u8>,
    tensors: Vec<Tensor>,
}

#[derive(Debug)]
struct Tensor {
    name: String,
    /// Rows and columns; columns alone for a norm.
    shape: Vec<u64>,
    /// Plain numbers of four bytes if `None`.
    kind: Option<GgmlType>,
    /// From the first tensor's first byte on.
    offset: u64,
}

impl GgufModel {
    /// A Llama of that shape, whose matrices of that name are of that kind. Frequencies are not scaled, and the embedding is the
    /// head where the shape says so.
    pub fn new(shape: &ModelShape, kind: impl Fn(&str) -> GgmlType) -> Self {
        let mut tensors: Vec<Tensor> = Vec::new();
        let mut end = 0;
        for (name, shape) in names(shape) {
            let kind = (shape.len() == 2).then(|| kind(&name));
            let tensor = Tensor { name, shape, kind, offset: end };
            end = (end + tensor.bytes()).next_multiple_of(ALIGNMENT);
            tensors.push(tensor);
        }
        Self { head: head(shape, &tensors), tensors }
    }

    /// Bytes of all layers' tensors.
    pub fn layers_bytes(&self) -> u64 {
        self.tensors.iter().filter(|it| it.name.starts_with("blk.")).map(Tensor::bytes).sum()
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        let last = self.tensors.last().map_or(0, |last| last.offset + last.bytes());
        (self.head.len() as u64).next_multiple_of(ALIGNMENT) + last
    }

    /// Writes the file: with weights by that seed, or with holes, which take no disk.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, file: &Path, seed: Option<u64>) -> io::Result<()> {
        let mut out = BufWriter::with_capacity(BUFFER, File::create(file)?);
        out.write_all(&self.head)?;
        let Some(seed) = seed else {
            return out.into_inner()?.set_len(self.bytes());
        };
        let mut weights = Weights::new(seed);
        let mut written = self.head.len() as u64;
        let start = written.next_multiple_of(ALIGNMENT);
        for tensor in &self.tensors {
            let pad = start + tensor.offset - written;
            out.write_all(&vec![0; pad as usize])?;
            match tensor.kind {
                Some(_) => weights.write_codes(&mut out, &tensor.name, tensor.bytes(), SMALL)?,
                None => {
                    let near_one = [1.0, 0.1];
                    weights.write(&mut out, &tensor.name, Dtype::F32, tensor.shape[0], near_one)?;
                }
            }
            written += pad + tensor.bytes();
        }
        out.flush()
    }
}

impl Tensor {
    fn bytes(&self) -> u64 {
        let elements = self.shape.iter().product();
        match self.kind {
            Some(kind) => kind.bytes(elements).expect("widths of whole blocks"),
            None => 4 * elements,
        }
    }
}

/// The names of a Llama's tensors with their shapes: rows and columns, or the width of a norm.
fn names(shape: &ModelShape) -> Vec<(String, Vec<u64>)> {
    let [hidden, inner, vocabulary] =
        [shape.hidden_size, shape.intermediate_size, shape.vocab_size].map(|it| it as u64);
    let [queries, keys] = [shape.heads, shape.kv_heads].map(|it| (it * shape.head_dim) as u64);
    let layer = [
        ("attn_norm", vec![hidden]),
        ("attn_q", vec![queries, hidden]),
        ("attn_k", vec![keys, hidden]),
        ("attn_v", vec![keys, hidden]),
        ("attn_output", vec![hidden, queries]),
        ("ffn_norm", vec![hidden]),
        ("ffn_gate", vec![inner, hidden]),
        ("ffn_up", vec![inner, hidden]),
        ("ffn_down", vec![hidden, inner]),
    ];
    let layers = (0..shape.layers).flat_map(|number| {
        let named = move |(name, shape): &(&str, Vec<u64>)| {
            (format!("blk.{number}.{name}.weight"), shape.clone())
        };
        layer.iter().map(named).collect::<Vec<_>>()
    });
    let outer = |name: &str, shape: &[u64]| (format!("{name}.weight"), shape.to_vec());
    let head = (!shape.tied).then(|| outer("output", &[vocabulary, hidden]));
    let embedding = [outer("token_embd", &[vocabulary, hidden])];
    let norm = [outer("output_norm", &[hidden])];
    embedding.into_iter().chain(layers).chain(norm).chain(head).collect()
}

/// Magic, counts, metadata and the list of tensors.
fn head(shape: &ModelShape, tensors: &[Tensor]) -> Vec<u8> {
    let mut keys = Keys::default();
    keys.text("general.architecture", "llama");
    keys.text("general.name", "made up");
    for (key, value) in [
        ("block_count", shape.layers),
        ("context_length", shape.max_positions),
        ("embedding_length", shape.hidden_size),
        ("feed_forward_length", shape.intermediate_size),
        ("attention.head_count", shape.heads),
        ("attention.head_count_kv", shape.kv_heads),
        ("attention.key_length", shape.head_dim),
        ("attention.value_length", shape.head_dim),
        ("rope.dimension_count", shape.head_dim),
        ("vocab_size", shape.vocab_size),
    ] {
        keys.number(&format!("llama.{key}"), value);
    }
    keys.float("llama.rope.freq_base", shape.rope_theta as f32);
    keys.float("llama.attention.layer_norm_rms_epsilon", 1e-5);
    vocabulary(&mut keys, shape.vocab_size);
    let mut head = [&b"GGUF"[..], &3u32.to_le_bytes()].concat();
    head.extend((tensors.len() as u64).to_le_bytes());
    head.extend(keys.count.to_le_bytes());
    head.extend(keys.bytes);
    for Tensor { name, shape, kind, offset } in tensors {
        head.extend(text(name));
        head.extend((shape.len() as u32).to_le_bytes());
        // The format has the fastest dimension first.
        head.extend(shape.iter().rev().flat_map(|axis| axis.to_le_bytes()));
        head.extend(kind.map_or(PLAIN, GgmlType::id).to_le_bytes());
        head.extend(offset.to_le_bytes());
    }
    head
}

/// A vocabulary of so many tokens: bytes, what is merged of an earlier token and a byte, and one that ends an answer.
fn vocabulary(keys: &mut Keys, count: usize) {
    let mut tokens: Vec<String> = byte_letters().map(String::from).collect();
    let mut merges = Vec::new();
    for index in 0..count.saturating_sub(tokens.len() + 1) {
        let (left, right) = (&tokens[index / 256], &tokens[index % 256]);
        let (merge, token) = (format!("{left} {right}"), format!("{left}{right}"));
        merges.push(merge);
        tokens.push(token);
    }
    let mut kinds = vec![NORMAL; tokens.len()];
    tokens.push("<|end|>".to_owned());
    kinds.push(CONTROL);
    keys.text("tokenizer.ggml.model", "gpt2");
    keys.text("tokenizer.ggml.pre", "llama-bpe");
    keys.texts("tokenizer.ggml.tokens", &tokens);
    let kinds: Vec<u8> = kinds.iter().flat_map(|kind| kind.to_le_bytes()).collect();
    keys.list("tokenizer.ggml.token_type", I32, tokens.len(), &kinds);
    keys.texts("tokenizer.ggml.merges", &merges);
    keys.number("tokenizer.ggml.bos_token_id", tokens.len() - 1);
    keys.number("tokenizer.ggml.eos_token_id", tokens.len() - 1);
}

/// The letters that stand for the 256 bytes in a vocabulary: themselves where they are visible, else those after all bytes.
/// Follows `bytes_to_unicode` of GPT-2's tokenizer.
fn byte_letters() -> impl Iterator<Item = char> {
    let visible = |byte: &u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let others = (0..256).filter(move |byte| !visible(byte)).enumerate();
    let others = others.map(|(index, _)| 256 + index as u32);
    let letters = (0..256).filter(visible).chain(others);
    letters.map(|letter| char::from_u32(letter).expect("below the surrogates"))
}

/// Metadata as it is written.
#[derive(Default)]
struct Keys {
    count: u64,
    bytes: Vec<u8>,
}

impl Keys {
    fn put(&mut self, key: &str, kind: u32, value: &[u8]) {
        self.count += 1;
        self.bytes.extend(text(key));
        self.bytes.extend(kind.to_le_bytes());
        self.bytes.extend(value);
    }

    fn number(&mut self, key: &str, value: usize) {
        self.put(key, U32, &(value as u32).to_le_bytes());
    }

    fn float(&mut self, key: &str, value: f32) {
        self.put(key, F32, &value.to_le_bytes());
    }

    fn text(&mut self, key: &str, value: &str) {
        self.put(key, TEXT, &text(value));
    }

    fn texts(&mut self, key: &str, values: &[String]) {
        let items: Vec<u8> = values.iter().flat_map(|value| text(value)).collect();
        self.list(key, TEXT, values.len(), &items);
    }

    fn list(&mut self, key: &str, of: u32, count: usize, items: &[u8]) {
        let value = [&of.to_le_bytes()[..], &(count as u64).to_le_bytes(), items].concat();
        self.put(key, LIST, &value);
    }
}

/// A text with its length before it.
fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_a_letter_of_its_own() {
        let letters: std::collections::BTreeSet<char> = byte_letters().collect();
        assert_eq!(letters.len(), 256);
        assert!(letters.contains(&'Ġ') && letters.contains(&'A'));
        assert!(letters.iter().all(|letter| !letter.is_whitespace()));
    }
}
