//! Weights that were codes become those again.

use crate::catalog::Checkpoint;
use crate::encoding::{
    Affine, Encoding, FloatType, Fp4, GgmlType, RowsAt, Scheme, former_codes, there_and_back,
};
use crate::testing::{TinyCheckpoint, golden, golden_gguf_path, open, tensors};

/// What some weights were.
#[derive(Clone, Copy)]
struct Were {
    bits: u32,
    /// How many share a scale of their own.
    group: usize,
    /// Whether each group has the code that is furthest from zero, as those have that some quantizers make.
    furthest: bool,
}

/// A model whose matrices, but for one, were such codes.
fn widened(were: Were) -> (TinyCheckpoint, Checkpoint) {
    let Were { bits, group, furthest } = were;
    let mut tiny = TinyCheckpoint::single(2);
    for (field, value) in
        [("hidden_size", 192), ("intermediate_size", 256), ("num_attention_heads", 3)]
    {
        tiny.config[field] = value.into();
    }
    let mut tensors = tensors(&tiny.config);
    for (seed, made) in tensors.iter_mut().enumerate() {
        let is_plain = made.0 == PLAIN;
        let weight = |index: usize| {
            let at = index / group + seed;
            let scale = 0.01 + (at * 7 % 13) as f32 * 1e-3;
            // Many groups of 32 have none of the largest codes.
            let code = (index + 1).wrapping_mul(0x9e37_79b9) >> 20 & ((1 << bits) - 1);
            let largest =
                (1 << bits) - 1 - if group == 32 { at % 5 * bits as usize / 2 } else { 0 };
            let code = match index % group {
                7 if furthest => 0,
                _ => code.clamp(usize::from(!furthest), largest),
            };
            match is_plain {
                true => {
                    ((index + 1).wrapping_mul(0x9e37_79b9) >> 16 & 0xffff) as f32 / 65536.0 - 0.5
                }
                false => scale * (code as f32 - (1 << (bits - 1)) as f32),
            }
        };
        let numbers: Vec<f32> = (0..made.3.len() / 2).map(weight).collect();
        FloatType::BF16.narrow(&numbers, &mut made.3).unwrap();
    }
    tiny.files.insert("model.safetensors".into(), tensors);
    let checkpoint = tiny.open().unwrap();
    (tiny, checkpoint)
}

/// A model whose matrices have been such blocks, where their rows are whole ones.
fn decoded(kind: GgmlType) -> (TinyCheckpoint, Checkpoint) {
    let (mut tiny, _) = widened(Were { bits: 5, group: 64, furthest: false });
    let mut tensors = tensors(&tiny.config);
    for made in tensors.iter_mut().filter(|made| made.2.len() == 2 && made.2[1] % 256 == 0) {
        let mixed = |index: usize| (index as u32 + 1).wrapping_mul(0x9e37_79b9) >> 8;
        let numbers: Vec<f32> = (0..made.3.len() / 2)
            .map(|index| mixed(index) as f32 / (1 << 24) as f32 - 0.5)
            .collect();
        let numbers = there_and_back(Encoding::Ggml(kind), FloatType::F32, &numbers, None).unwrap();
        FloatType::BF16.narrow(&numbers, &mut made.3).unwrap();
    }
    tiny.files.insert("model.safetensors".into(), tensors);
    let checkpoint = tiny.open().unwrap();
    (tiny, checkpoint)
}

/// One that never were.
const PLAIN: &str = "model.layers.1.mlp.down_proj.weight";
const EMBEDDING: &str = "model.embed_tokens.weight";

/// What a matrix of the first layer becomes.
fn becomes(checkpoint: &Checkpoint, scheme: Scheme) -> Option<Encoding> {
    checkpoint.becomes("model.layers.0.self_attn.q_proj.weight", scheme)
}

#[test]
fn weights_that_were_codes_become_those_again() {
    let [q4, q4_32, q5, q5_32] =
        [Affine::Q4, Affine::Q4_32, Affine::Q5, Affine::Q5_32].map(Encoding::Affine);
    let [q6, q8] = [Affine::Q6, Affine::Q8].map(Encoding::Affine);
    let [q4_0, q5_0] = [GgmlType::Q4_0, GgmlType::Q5_0].map(Encoding::Ggml);
    for (bits, group, furthest, were, in_four) in [
        (4, 64, false, q4, q4),
        (4, 32, true, q4_0, q4_0),
        (4, 32, false, q4_32, q4_32),
        (5, 64, false, q5, q5),
        (5, 32, true, q5_0, q5_0),
        // Six bits for each weight are too many for a scheme of four.
        (5, 32, false, q5_32, q4_32),
    ] {
        let (_directory, checkpoint) = widened(Were { bits, group, furthest });
        for (scheme, expected, usual) in [
            (Scheme::Q8, were, q8),
            (Scheme::Q6, were, q6),
            (Scheme::Q5, were, q5),
            (Scheme::Q4, in_four, q4),
        ] {
            assert_eq!(becomes(&checkpoint, scheme), Some(expected), "{scheme} of {bits} bits");
            assert_eq!(checkpoint.becomes(PLAIN, scheme), Some(usual), "never were codes");
            let loss = checkpoint.encoding_loss(0, scheme).unwrap();
            assert_eq!(loss < 1e-4, expected == were, "{scheme} of {bits} bits: {loss}");
        }
        assert_eq!(checkpoint.end_becomes(EMBEDDING, Scheme::Q4), Some(were));
        assert_eq!(becomes(&checkpoint, Scheme::AsStored), None);
        assert_eq!(becomes(&checkpoint, Scheme::Mxfp4), Some(Encoding::Fp4(Fp4::Mx)));
    }
}

#[test]
fn files_without_blocks_get_what_is_as_exact() {
    for (bits, expected) in [(4, Affine::Q4_32), (5, Affine::Q5_32)] {
        let (_directory, checkpoint) = widened(Were { bits, group: 32, furthest: true });
        let name = "model.layers.0.self_attn.q_proj.weight";
        assert_eq!(checkpoint.becomes_affine(name, Scheme::Q4), Some(expected));
        assert_eq!(checkpoint.becomes_affine(PLAIN, Scheme::Q4), Some(Affine::Q4));
        assert_eq!(checkpoint.becomes_affine(name, Scheme::AsStored), None);
        // Embedding and head are kept as exactly, and stay where nothing is packed.
        assert_eq!(checkpoint.end_becomes_affine(EMBEDDING, Scheme::Q4), Some(expected));
        assert_eq!(checkpoint.end_becomes_affine(EMBEDDING, Scheme::AsStored), None);
    }
}

#[test]
fn blocks_stay_unless_they_take_far_more_bits() {
    let schemes = [Scheme::Q8, Scheme::Q6, Scheme::Q5, Scheme::Q4];
    // How many of the schemes keep them, what the others make of them, and what files get that have no blocks.
    let affine = Encoding::Affine;
    for (was, kept, narrower, without_blocks) in [
        (GgmlType::Q4_1, 4, None, [Affine::Q4_32; 4]),
        (GgmlType::Q4K, 4, None, [Affine::Q4_32; 4]),
        (GgmlType::Q5K, 4, None, [Affine::Q5_32; 4]),
        (GgmlType::Q5_1, 3, Some(affine(Affine::Q4_32)), {
            [Affine::Q5_32, Affine::Q5_32, Affine::Q5_32, Affine::Q4_32]
        }),
        // Others that are as exact there are none of: what all get, but for 4 bits.
        (GgmlType::Q6K, 3, Some(Encoding::Ggml(GgmlType::Q5K)), {
            [Affine::Q8, Affine::Q6, Affine::Q5, Affine::Q5]
        }),
        (GgmlType::Q8_0, 1, None, [Affine::Q8, Affine::Q6, Affine::Q5, Affine::Q4]),
    ] {
        let (_directory, checkpoint) = decoded(was);
        let name = "model.layers.0.mlp.down_proj.weight";
        for (at, (scheme, groups)) in schemes.into_iter().zip(without_blocks).enumerate() {
            let usual = narrower.unwrap_or(affine(groups));
            let expected = if at < kept { Encoding::Ggml(was) } else { usual };
            assert_eq!(checkpoint.becomes(name, scheme), Some(expected), "{was:?}, {scheme}");
            assert_eq!(checkpoint.becomes_affine(name, scheme), Some(groups), "{was:?}, {scheme}");
        }
    }
}

#[test]
fn keys_and_values_that_heads_share_get_more_bits() {
    // Two heads of keys for four of queries.
    let shared = golden("llama");
    let becomes = |checkpoint: &Checkpoint, leaf: &str, scheme| {
        checkpoint.becomes(&format!("model.layers.1.{leaf}.weight"), scheme)
    };
    for leaf in ["self_attn.k_proj", "self_attn.v_proj", "self_attn.q_proj", "mlp.up_proj"] {
        let is_shared = leaf.contains("k_proj") || leaf.contains("v_proj");
        for (scheme, wider, usual) in [
            (Scheme::Q8, Affine::Q8, Affine::Q8),
            (Scheme::Q6, Affine::Q8, Affine::Q6),
            (Scheme::Q5, Affine::Q8, Affine::Q5),
            (Scheme::Q4, Affine::Q6, Affine::Q4),
        ] {
            let expected = if is_shared { wider } else { usual };
            assert_eq!(becomes(&shared, leaf, scheme), Some(Encoding::Affine(expected)), "{leaf}");
        }
    }
    let alone = TinyCheckpoint::single(2).open().unwrap();
    let expected = Some(Encoding::Affine(Affine::Q4));
    assert_eq!(becomes(&alone, "self_attn.v_proj", Scheme::Q4), expected, "a head each");
}

#[test]
fn all_others_are_packed_in_groups_of_64() {
    for checkpoint in [golden("llama"), golden("qwen2-mlx4")] {
        assert_eq!(becomes(&checkpoint, Scheme::Q4), Some(Encoding::Affine(Affine::Q4)));
    }
}

#[test]
fn what_other_programs_packed_is_known_again() {
    for (name, kind) in [
        ("llama-q4_0", GgmlType::Q4_0),
        ("qwen2-q4_1", GgmlType::Q4_1),
        ("gemma3-q4_k_m", GgmlType::Q4K),
        ("qwen3-q5_0", GgmlType::Q5_0),
        ("gemma3-q5_1", GgmlType::Q5_1),
        ("qwen3-q5_k_m", GgmlType::Q5K),
        ("llama-q6_k", GgmlType::Q6K),
        ("qwen3-q8_0", GgmlType::Q8_0),
    ] {
        let checkpoint = open(&golden_gguf_path(name)).unwrap();
        let were = Encoding::Ggml(kind);
        let all = checkpoint.tensors.iter().filter(|it| it.encoding == Some(were));
        let all: Vec<_> = all.filter(|it| it.shape.len() == 2 && it.shape[0] > 1).collect();
        let (count, mut known) = (all.len(), 0);
        for tensor in all {
            let map = checkpoint.map(tensor).unwrap();
            let columns = tensor.shape[1] as usize * kind.block() / kind.block_bytes();
            let mut weights = vec![0.0; tensor.shape[0] as usize * columns];
            let part = [(tensor.dtype, map.bytes())];
            were.decode_rows(RowsAt::start(columns), &part, &mut weights);
            let mut bytes = vec![0; weights.len() * 2];
            FloatType::BF16.narrow(&weights, &mut bytes).unwrap();
            FloatType::BF16.widen(&bytes, &mut weights);
            let stretches: Vec<_> = weights.chunks_exact(1024).map(<[f32]>::to_vec).collect();
            let shape = [tensor.shape[0], columns as u64];
            let found = former_codes(&stretches, shape);
            // In larger blocks a group without its outer codes may hide the scales of all.
            let is_large = matches!(kind, GgmlType::Q4K | GgmlType::Q5K);
            let as_exact = is_large && found == were.as_affine().map(Encoding::Affine);
            assert!(found == Some(were) || as_exact, "{name}, {}: {found:?}", tensor.name);
            known += usize::from(found == Some(were));
        }
        assert!(count > 2 && known * 2 > count, "{name}: {known} of {count}");
    }
}
