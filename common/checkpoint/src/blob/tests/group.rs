//! How many neighbours share a scale, by what weights were before.

use crate::catalog::Checkpoint;
use crate::encoding::{Affine, Encoding, FloatType, Group, Scheme};
use crate::testing::{TinyCheckpoint, golden, tensors};

/// A model whose weights were codes of `bits` in groups of so many, of which each has a scale of its own.
fn widened(bits: u32, group: usize) -> (TinyCheckpoint, Checkpoint) {
    let mut tiny = TinyCheckpoint::single(2);
    for (field, value) in
        [("hidden_size", 192), ("intermediate_size", 256), ("num_attention_heads", 3)]
    {
        tiny.config[field] = value.into();
    }
    let mut tensors = tensors(&tiny.config);
    for (seed, made) in tensors.iter_mut().enumerate() {
        let weight = |index: usize| {
            let at = index / group + seed;
            let scale = 0.01 + (at * 7 % 13) as f32 * 1e-3;
            // Many groups of 32 have none of the largest codes.
            let code = (index + 1).wrapping_mul(0x9e37_79b9) >> 20 & ((1 << bits) - 1);
            let largest =
                (1 << bits) - 1 - if group == 32 { at % 5 * bits as usize / 2 } else { 0 };
            let code = code.min(largest);
            scale * (code as f32 - (1 << (bits - 1)) as f32)
        };
        let numbers: Vec<f32> = (0..made.3.len() / 2).map(weight).collect();
        FloatType::BF16.narrow(&numbers, &mut made.3).unwrap();
    }
    tiny.files.insert("model.safetensors".into(), tensors);
    let checkpoint = tiny.open().unwrap();
    (tiny, checkpoint)
}

#[test]
fn weights_that_were_codes_in_groups_of_32_are_packed_in_such() {
    for bits in [4, 5] {
        let (_directory, checkpoint) = widened(bits, 32);
        assert_eq!(checkpoint.group(), Group::Of32, "{bits} bits");
        let becomes = |scheme| checkpoint.layers_become(scheme);
        for (scheme, format) in
            [(Scheme::Q6, Affine::Q6_32), (Scheme::Q5, Affine::Q5_32), (Scheme::Q4, Affine::Q4_32)]
        {
            assert_eq!(becomes(scheme), Some(Encoding::Affine(format)));
            let loss = checkpoint.encoding_loss(1, scheme).unwrap();
            let keeps = format.bits() >= bits as usize;
            assert_eq!(loss < 1e-4, keeps, "{scheme} of {bits} bits: {loss}");
        }
        assert_eq!(becomes(Scheme::Q8), Some(Encoding::Affine(Affine::Q8)), "as small as it gets");
        assert_eq!(becomes(Scheme::AsStored), None);
    }
}

#[test]
fn all_others_are_packed_in_groups_of_64() {
    let [(_four, of_four), (_five, of_five)] = [widened(4, 64), widened(5, 64)];
    for checkpoint in [of_four, of_five, golden("llama"), golden("qwen2-mlx4")] {
        assert_eq!(checkpoint.group(), Group::Of64);
        assert_eq!(checkpoint.layers_become(Scheme::Q4), Some(Encoding::Affine(Affine::Q4)));
    }
}
