//! The codecs against their definition.

use std::path::Path;

use safetensors::SafeTensors;

use super::{
    Affine, Dtype, EncodeError, Encoding, FloatType, ModuleFormat, ModuleTensors, Packed, Part,
    RowsAt, decode_rows, encode_rows, recognise,
};

const TYPES: [FloatType; 3] = [FloatType::F32, FloatType::F16, FloatType::BF16];

fn formats() -> Vec<Affine> {
    let all =
        [2, 3, 4, 5, 6, 8].into_iter().flat_map(|bits| [32, 64, 128].map(|group| (bits, group)));
    all.map(|(bits, group)| Affine::new(bits, group).unwrap()).collect()
}

/// Numbers of that type that look like weights: xorshift64, some large, some tiny.
fn weights(count: usize, seed: u64, params: FloatType) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    let value = |index: usize| {
        let magnitude = [1.0, -0.02, 3.0, -1e-3, -1.0][index / 128 % 5];
        let offset = [0.0, 0.0, 2.5, -0.01][index / 32 % 4];
        let value = magnitude * (next() * next() + offset);
        // Fewer bits, so that every type has the number.
        let coarse = f32::from_bits(value.to_bits() & 0xffff_0000);
        if params == FloatType::F32 { value } else { coarse }
    };
    (0..count).map(value).map(|v| if v.abs() < 1e-4 { 0.0 } else { v }).collect()
}

/// Every weight by the definition: codes as a bit stream, f64 arithmetic.
fn by_definition(packed: &Packed, format: Affine, params: FloatType) -> Vec<f64> {
    let number = |bytes: &[u8], index: usize| {
        let mut value = [0.0];
        params.widen(&bytes[index * params.bytes()..][..params.bytes()], &mut value);
        f64::from(value[0])
    };
    let weight = |index: usize| {
        let bit = |bit: usize| u32::from(packed.codes[bit / 8] >> (bit % 8) & 1);
        let start = index * format.bits();
        let code: u32 = (0..format.bits()).map(|at| bit(start + at) << at).sum();
        let group = index / format.group();
        number(&packed.scales, group) * f64::from(code) + number(&packed.biases, group)
    };
    (0..packed.codes.len() * 8 / format.bits()).map(weight).collect()
}

fn decoded(packed: &Packed, format: Affine, params: FloatType) -> Vec<f32> {
    let mut out = vec![0.0; packed.codes.len() * 8 / format.bits()];
    decode_rows(&packed.codes, &packed.scales, &packed.biases, format, params, &mut out);
    out
}

/// The squared error of a group in codes from 0 to `largest` between the edges of its range, scale and bias not rounded.
fn error_between_edges(group: &[f32], largest: u8) -> f64 {
    let edge = |of: fn(f64, f64) -> f64| group.iter().map(|&it| f64::from(it)).reduce(of).unwrap();
    let (low, high) = (edge(f64::min), edge(f64::max));
    let step = (high - low) / f64::from(largest);
    let missed = |weight: &f32| {
        let exact = (f64::from(*weight) - low) / step.max(f64::MIN_POSITIVE);
        (exact.round() - exact) * step
    };
    group.iter().map(|weight| missed(weight).powi(2)).sum()
}

fn squared_error(values: &[f32], found: &[f64]) -> f64 {
    values.iter().zip(found).map(|(&value, found)| (found - f64::from(value)).powi(2)).sum()
}

#[test]
fn narrow_codes_miss_by_less_than_those_between_the_edges() {
    for format in formats().into_iter().filter(|it| it.bits() < 8) {
        for params in TYPES {
            let values = weights(64 * 128, format.bits() as u64 + 40, params);
            let packed = encode_rows(&values, format, params).unwrap();
            let back = by_definition(&packed, format, params);
            let groups = || values.chunks(format.group()).zip(back.chunks(format.group()));
            let edges = |group| error_between_edges(group, format.largest_code());
            let (mut found, mut usual) = (0.0, 0.0);
            for (group, back) in groups() {
                let (missed, between) = (squared_error(group, back), edges(group));
                (found, usual) = (found + missed, usual + between);
                // Scale and bias are rounded here, by a part in 128 at most: of the largest weight, and of its range.
                let largest = group.iter().fold(0f64, |all, it| all.max(f64::from(it.abs())));
                let rounded = largest * largest / 1024.0 * group.len() as f64;
                assert!(missed <= between + rounded, "{format} {params:?}: {missed} {between}");
            }
            if params == FloatType::F32 {
                assert!(found < 0.95 * usual, "{format}: {found} of {usual}");
            }
        }
    }
}

#[test]
fn weights_that_were_codes_of_4_bits_stay_what_they_are() {
    let mut codes = weights(64 * 128, 5, FloatType::F32).into_iter();
    let mut values = Vec::new();
    for group in 0..64 {
        // Some reach both ends of their range, others neither.
        let (least, most) = (group % 3, 15 - group % 4);
        let (scale, bias) = (0.01 + group as f32 * 1e-3, -0.11 + group as f32 * 2e-3);
        for at in 0..128 {
            let code = (codes.next().unwrap().abs() * 977.0) as usize % (most - least + 1) + least;
            let code = if at < 2 { [least, most][at] } else { code };
            values.push(scale * code as f32 + bias);
        }
    }
    for format in formats().into_iter().filter(|it| (4..8).contains(&it.bits())) {
        let all: f64 = values.iter().map(|&it| f64::from(it).powi(2)).sum();
        let loss = |values: &[f32], params| {
            let packed = encode_rows(values, format, params).unwrap();
            squared_error(values, &by_definition(&packed, format, params)) / all
        };
        assert!(loss(&values, FloatType::F32) < 1e-12, "{format}");
        assert!(loss(&values, FloatType::F16) < 1e-6, "{format}");
        // Widened to numbers that have less of a fraction than the codes' scale.
        let coarse = |value: &f32| FloatType::BF16.nearest(*value);
        let coarse: Vec<f32> = values.iter().map(coarse).collect();
        assert!(loss(&coarse, FloatType::BF16) < 1e-4, "{format}");
    }
}

#[test]
fn no_weight_in_8_bits_moves_by_more_than_half_a_step() {
    for (seed, format) in formats().into_iter().filter(|it| it.bits() == 8).enumerate() {
        for params in TYPES {
            let values = weights(5 * 3 * 128, seed as u64 + 1, params);
            let packed = encode_rows(&values, format, params).unwrap();
            let back = by_definition(&packed, format, params);
            let mut scales = vec![0.0; values.len() / format.group()];
            params.widen(&packed.scales, &mut scales);
            assert!(scales.iter().any(|&s| s < 0.0) && scales.iter().any(|&s| s > 0.0));
            for (index, (&value, &found)) in values.iter().zip(&back).enumerate() {
                let step = f64::from(scales[index / format.group()].abs());
                let error = (found - f64::from(value)).abs();
                // The quotient that is rounded to a code is itself rounded to f32.
                let bound = step * (0.5 + 1e-4);
                assert!(error <= bound, "{format} {params:?} {index}: {value} became {found}");
            }
        }
    }
}

#[test]
fn the_edge_of_larger_magnitude_is_exact_and_both_edges_have_the_outer_codes() {
    let mut values = weights(64, 3, FloatType::BF16);
    (values[5], values[9]) = (-4.0, 3.5);
    let packed = encode_rows(&values, Affine::Q8, FloatType::BF16).unwrap();
    let back = by_definition(&packed, Affine::Q8, FloatType::BF16);
    assert_eq!((back[5], packed.codes[5]), (-4.0, 0));
    assert!(packed.codes[9] >= 253, "the scale is rounded up by less than one part in 128");
    (values[5], values[9]) = (-3.5, 4.0);
    let packed = encode_rows(&values, Affine::Q8, FloatType::BF16).unwrap();
    assert_eq!(packed.codes[9], 0);
    assert_eq!(by_definition(&packed, Affine::Q8, FloatType::BF16)[9], 4.0);
    assert_eq!(packed.scales[1] >> 7, 1, "from the largest down");
}

#[test]
fn constant_groups_and_zeros_are_exact() {
    for format in formats() {
        for (constant, params) in
            [(0.0, FloatType::F16), (-0.75, FloatType::BF16), (1e-30, FloatType::F32)]
        {
            let packed = encode_rows(&[constant; 256], format, params).unwrap();
            assert!(packed.codes.iter().all(|&code| code == 0));
            assert_eq!(decoded(&packed, format, params), [constant; 256]);
        }
    }
    assert_eq!(encode_rows(&[], Affine::Q4, FloatType::F16).unwrap(), Packed::default());
}

#[test]
fn the_smallest_and_largest_numbers_survive() {
    let mut values = vec![0.0; 64];
    (values[0], values[1]) = (f32::MAX, f32::MIN);
    let packed = encode_rows(&values, Affine::Q4, FloatType::F32).unwrap();
    let back = by_definition(&packed, Affine::Q4, FloatType::F32);
    assert_eq!(back[0], f64::from(f32::MAX));
    (values[0], values[1]) = (f32::from_bits(1), f32::from_bits(3));
    for params in TYPES {
        let packed = encode_rows(&values, Affine::Q8, params).unwrap();
        let back = by_definition(&packed, Affine::Q8, params);
        assert!(back.iter().all(|weight| weight.abs() < 1e-6), "{params:?} {back:?}");
    }
}

#[test]
fn numbers_that_cannot_be_encoded_are_named() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for place in [0, 70, 127] {
            let mut values = weights(128, 9, FloatType::F32);
            values[place] = bad;
            match encode_rows(&values, Affine::Q4, FloatType::F32).unwrap_err() {
                EncodeError::NotFinite { index, .. } => assert_eq!(index, place),
                other => panic!("{other}"),
            }
        }
    }
    let values = [1e5; 64];
    let error = encode_rows(&values, Affine::Q4, FloatType::F16).unwrap_err();
    assert!(matches!(error, EncodeError::TooLarge { index: 0, .. }), "{error}");
    assert!(encode_rows(&values, Affine::Q4, FloatType::BF16).is_ok());
}

#[test]
fn decoding_is_the_definition_at_any_address() {
    for (seed, format) in formats().into_iter().enumerate() {
        for params in TYPES {
            let values = weights(3 * 128, seed as u64 + 77, params);
            let packed = encode_rows(&values, format, params).unwrap();
            let expected = by_definition(&packed, format, params);
            let moved = |bytes: &[u8]| [&[0xff], bytes].concat();
            let parts = [&packed.codes, &packed.scales, &packed.biases].map(|p| moved(p));
            let mut found = vec![0.0; values.len()];
            let [codes, scales, biases] = [&parts[0][1..], &parts[1][1..], &parts[2][1..]];
            decode_rows(codes, scales, biases, format, params, &mut found);
            let mut biases = vec![0.0; values.len() / format.group()];
            params.widen(&packed.biases, &mut biases);
            for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
                // Product and sum are each rounded to f32; neither exceeds twice the bias.
                let bound = f64::from(biases[index / format.group()].abs()) * 2f64.powi(-22);
                let error = (f64::from(*found) - expected).abs();
                assert!(error <= bound, "{format} {params:?} {index}: {found} {expected}");
            }
        }
    }
}

#[test]
fn the_documented_examples_decode() {
    let half = |value: f32| ((value.to_bits() >> 16) as u16).to_le_bytes();
    let mut codes = vec![0x10, 0x32, 0x54, 0xf6];
    codes.resize(32, 0);
    let packed = Packed { codes, scales: half(0.5).into(), biases: half(-2.0).into() };
    let back = decoded(&packed, Affine::Q4, FloatType::BF16);
    assert_eq!(back[..8], [-2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 5.5]);
    let mut codes = vec![0x01, 0x80, 0xff, 0x00]; // The word 0x00ff8001.
    codes.resize(64, 0);
    let packed = Packed { codes, scales: half(1.0).into(), biases: half(0.0).into() };
    assert_eq!(decoded(&packed, Affine::Q8, FloatType::BF16)[..4], [1.0, 128.0, 255.0, 0.0]);
}

#[test]
fn what_mlx_packed_decodes_by_the_definition_and_encodes_again_within_half_a_step() {
    let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
    for (name, bits, group) in [("qwen2-mlx4", 4, 64), ("llama-mlx8", 8, 32)] {
        let (params, format) = (FloatType::BF16, Affine::new(bits, group).unwrap());
        let file = std::fs::read(goldens.join(name).join("model.safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&file).unwrap();
        let views = ["weight", "scales", "biases"]
            .map(|part| tensors.tensor(&format!("model.embed_tokens.{part}")).unwrap());
        let [codes, scales, biases] = views.each_ref().map(|view| view.data().to_vec());
        let packed = Packed { codes, scales, biases };
        let expected = by_definition(&packed, format, params);
        let mut found = vec![0.0; 384 * 128];
        let bytes = [&packed.codes, &packed.scales, &packed.biases];
        let dtypes = [Dtype::U32, Dtype::BF16, Dtype::BF16];
        let names = views.each_ref().map(|view| view.dtype().to_string());
        assert_eq!(names, dtypes.map(|dtype| dtype.to_string()), "{name}");
        let parts: Vec<_> = dtypes.into_iter().zip(bytes.map(Vec::as_slice)).collect();
        Encoding::Affine(format).decode_rows(RowsAt::start(128), &parts, &mut found);
        // Products are exact, sums are rounded once.
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(*found, *expected as f32, "{name}");
        }
        let again = encode_rows(&found, format, params).unwrap();
        let back = by_definition(&again, format, params);
        let mut scales = vec![0.0; found.len() / format.group()];
        params.widen(&again.scales, &mut scales);
        for (index, (&found, &back)) in found.iter().zip(&back).enumerate() {
            let step = f64::from(scales[index / format.group()].abs());
            assert!((back - f64::from(found)).abs() <= 0.5001 * step, "{name} {index}");
        }
    }
}

#[test]
fn a_packed_row_says_how_many_weights_it_has() {
    for encoding in Encoding::all() {
        let mut shapes = 0;
        for columns in (1..=256).map(|groups| groups * 32) {
            let Some(parts) = encoding.parts([3, columns]) else { continue };
            let [3, elements] = parts[0].shape[..] else { panic!("{encoding}: {parts:?}") };
            assert_eq!(encoding.columns(elements), columns, "{encoding}");
            shapes += 1;
        }
        assert!(shapes > 1, "{encoding}");
        encoding.columns(u64::MAX); // However large, it is a number.
    }
}

#[test]
fn what_is_only_said_is_what_nobody_recognises_by_its_tensors() {
    for encoding in Encoding::all() {
        let parts = encoding.parts([3, 4096]).unwrap();
        let dtype = |part: Part| Some(parts.iter().find(|it| it.part == part)?.types[0]);
        let found =
            recognise(&ModuleTensors { dtype: &dtype }, Some(ModuleFormat::IfPacked(encoding)));
        assert_eq!(found, (!encoding.is_only_said()).then_some(encoding));
    }
}

#[test]
fn encodings_have_names() {
    let affine = Affine::new(4, 128).map(Encoding::Affine).unwrap();
    assert!(Encoding::all().contains(&affine));
    for encoding in Encoding::all() {
        assert_eq!(encoding.to_string().parse::<Encoding>().unwrap(), encoding);
    }
    for text in [
        "",
        "affine-7-64",
        "affine-4",
        "affine-4-64-1",
        "B16",
        "I8",
        "ggml-q5_2",
        "ggml-Q4_K",
        "apr-q5",
        "int-4",
        "int-4-0",
        "int-4-16",
        "int-3-64",
        "int-4-64-zeros+2",
        "int-4-row-ordered",
    ] {
        let refused = text.parse::<Encoding>().unwrap_err();
        assert_eq!(refused.text, text);
    }
}
