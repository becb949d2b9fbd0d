//! Models and tokenizers that must be refused, each by what is wrong, in files that are well-formed.

use super::made::{F32, I32, LIST, Made, Q, TEXT, U32, all_refused, list, text};

#[test]
fn what_is_no_model_of_ours_is_refused() {
    all_refused(&[
        (
            "no architecture",
            |it| it.drop("general.architecture"),
            "metadata lack \"general.architecture\"",
        ),
        (
            "a number for one",
            |it| it.put("general.architecture", U32, [7, 0, 0, 0]),
            "\"general.architecture\" in the metadata must be a text",
        ),
        (
            "an unknown one",
            |it| it.put("general.architecture", TEXT, text(b"mamba9")),
            "architecture \"mamba9\" is not run; of GGUF files these are: llama,",
        ),
        (
            "another one",
            |it| it.put("general.architecture", TEXT, text(b"qwen2")),
            "metadata lack \"qwen2.block_count\"",
        ),
        (
            "no block_count",
            |it| it.drop("llama.block_count"),
            "metadata lack \"llama.block_count\"",
        ),
        (
            "no embedding_length",
            |it| it.drop("llama.embedding_length"),
            "metadata lack \"llama.embedding_length\"",
        ),
        (
            "no head_count",
            |it| it.drop("llama.attention.head_count"),
            "metadata lack \"llama.attention.head_count\"",
        ),
        (
            "no epsilon",
            |it| it.drop("llama.attention.layer_norm_rms_epsilon"),
            "metadata lack \"llama.attention.layer_norm_rms_epsilon\"",
        ),
        (
            "no feed_forward_length",
            |it| it.drop("llama.feed_forward_length"),
            "metadata lack \"llama.feed_forward_length\"",
        ),
        (
            "no context_length",
            |it| it.drop("llama.context_length"),
            "metadata lack \"llama.context_length\"",
        ),
        (
            "no layers",
            |it| it.put("llama.block_count", U32, [0; 4]),
            "\"llama.block_count\" in the metadata is 0, expected more than 0",
        ),
        ("more layers", |it| it.put("llama.block_count", U32, [99, 0, 0, 0]), "layers"),
        (
            "fewer layers",
            |it| it.put("llama.block_count", U32, [1, 0, 0, 0]),
            "belongs to a layer past the 1",
        ),
        (
            "2^32 layers",
            |it| it.put("llama.block_count", U32, [255; 4]),
            "\"llama.block_count\" in the metadata is 4294967295",
        ),
        (
            "layers in words",
            |it| it.put("llama.block_count", TEXT, text(b"3")),
            "\"llama.block_count\" in the metadata must be a whole number",
        ),
        (
            "no heads",
            |it| it.put("llama.attention.head_count", U32, [0; 4]),
            "\"llama.attention.head_count\" in the metadata is 0",
        ),
        (
            "seven heads",
            |it| it.put("llama.attention.head_count", U32, [7, 0, 0, 0]),
            "self_attn.o_proj.weight",
        ),
        (
            "three heads of keys",
            |it| it.put("llama.attention.head_count_kv", U32, [3, 0, 0, 0]),
            "num_key_value_heads",
        ),
        (
            "heads of one layer",
            |it| it.put("llama.attention.head_count_kv", LIST, list(U32, &[vec![2, 0, 0, 0]])),
            "\"llama.attention.head_count_kv\" in the metadata is a list",
        ),
        ("another width", |it| it.put("llama.embedding_length", U32, [96, 0, 0, 0]), "has shape"),
        (
            "an epsilon that is no number",
            |it| it.put("llama.attention.layer_norm_rms_epsilon", F32, f32::NAN.to_le_bytes()),
            "expected a finite number",
        ),
        (
            "a base of 0",
            |it| it.put("llama.rope.freq_base", F32, [0; 4]),
            "\"llama.rope.freq_base\" in the metadata is 0, expected more than 0",
        ),
        (
            "seven numbers that rotate",
            |it| it.put("llama.rope.dimension_count", U32, [7, 0, 0, 0]),
            "\"llama.rope.dimension_count\" in the metadata is 7, expected",
        ),
        (
            "an unknown scaling",
            |it| it.put("llama.rope.scaling.type", TEXT, text(b"spiral")),
            "\"llama.rope.scaling.type\" in the metadata is \"spiral\"",
        ),
        (
            "an unknown key",
            |it| it.put("llama.attention.twist", F32, 2f32.to_le_bytes()),
            "\"llama.attention.twist\" in the metadata is 2; nothing is known",
        ),
        (
            "a stray tensor",
            |it| it.info(Q).name = b"blk.0.attn_qq.weight".into(),
            "\"blk.0.attn_qq.weight\" is none that llama has",
        ),
        (
            "another shape",
            |it| {
                let rows = &mut it.info(Q).dims;
                rows[1] /= 2;
                rows.push(2);
            },
            "self_attn.q_proj.weight",
        ),
        (
            "no norm",
            |it| it.info("output_norm.weight").name = b"output_norx.weight".into(),
            "\"output_norx.weight\"",
        ),
    ]);
}

#[test]
fn wrong_tokenizers_are_refused() {
    fn types(it: &Made, change: impl Fn(Vec<u8>) -> Vec<u8>) -> Vec<u8> {
        let numbers = change(it.value("tokenizer.ggml.token_type")[12..].to_vec());
        let numbers: Vec<Vec<u8>> = numbers.chunks(4).map(<[u8]>::to_vec).collect();
        list(I32, &numbers)
    }
    fn all(it: &Made, token: impl Fn(usize) -> Vec<u8>) -> Vec<u8> {
        let count = it.value("tokenizer.ggml.token_type").len() / 4 - 3;
        list(TEXT, &(0..count).map(|id| text(&token(id))).collect::<Vec<_>>())
    }
    all_refused(&[
        (
            "no tokens",
            |it| it.drop("tokenizer.ggml.tokens"),
            "metadata lack \"tokenizer.ggml.tokens\"",
        ),
        (
            "no model",
            |it| it.drop("tokenizer.ggml.model"),
            "metadata lack \"tokenizer.ggml.model\"",
        ),
        (
            "an unknown model",
            |it| it.put("tokenizer.ggml.model", TEXT, text(b"wordsalad")),
            "\"wordsalad\"",
        ),
        (
            "a type less",
            |it| {
                let fewer = types(it, |numbers| numbers[4..].to_vec());
                it.put("tokenizer.ggml.token_type", LIST, fewer);
            },
            "\"tokenizer.ggml.token_type\" in the metadata has",
        ),
        (
            "types with a point",
            |it| {
                let bytes = it.value("tokenizer.ggml.token_type")[4..].to_vec();
                it.put(
                    "tokenizer.ggml.token_type",
                    LIST,
                    [&F32.to_le_bytes()[..], &bytes].concat(),
                );
            },
            "\"tokenizer.ggml.token_type\" in the metadata must be a list of whole numbers",
        ),
        (
            "tokens that are numbers",
            |it| it.put("tokenizer.ggml.tokens", LIST, list(U32, &[vec![1; 4]])),
            "\"tokenizer.ggml.tokens\" in the metadata must be a list of texts",
        ),
        (
            "fewer tokens",
            |it| it.put("tokenizer.ggml.tokens", LIST, list(TEXT, &[text(b"a")])),
            "there are 1 tokens, and token_embd has",
        ),
        (
            "one token for all",
            |it| {
                let same = all(it, |_| b"same".to_vec());
                it.put("tokenizer.ggml.tokens", LIST, same);
            },
            "are both \"same\"",
        ),
        (
            "an unknown way to cut text",
            |it| it.put("tokenizer.ggml.pre", TEXT, text(b"gpt-99")),
            "\"gpt-99\"",
        ),
        (
            "no merges",
            |it| it.drop("tokenizer.ggml.merges"),
            "metadata lack \"tokenizer.ggml.merges\"",
        ),
        (
            "merges of one",
            |it| it.put("tokenizer.ggml.merges", LIST, list(TEXT, &[text(b"ab")])),
            "merge 0 is \"ab\"",
        ),
    ]);
}
