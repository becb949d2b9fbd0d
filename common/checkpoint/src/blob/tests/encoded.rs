//! Blobs of layers that are encoded on the way.

use std::sync::Arc;

use ::safetensors::SafeTensors;

use super::super::{BlobSource, encoded_tensors};
use super::{Blob, CHUNK_BYTES, bytes_of};
use crate::catalog::{Checkpoint, Tensor};
use crate::dtype::Dtype;
use crate::encoding::{
    Affine, ColumnSquares, Encoding, FloatType, Importance, Scheme, there_and_back,
};
use crate::error::Error;
use crate::testing::{TinyCheckpoint, golden, tensors};

/// Numbers of the longest rows of layers one of whose matrices takes more than a chunk in 8 bits, and of smaller ones.
const WIDE: u64 = 5568;
const NARROW: u64 = 1088;

/// Two layers with rows of 192 and 5568 numbers: groups, pieces and chunks all cut each other.
fn wide() -> (TinyCheckpoint, Checkpoint) {
    with_rows_of(WIDE)
}

/// Two layers with rows of 192 and so many numbers.
fn with_rows_of(numbers: u64) -> (TinyCheckpoint, Checkpoint) {
    let mut tiny = TinyCheckpoint::single(2);
    for (field, value) in
        [("hidden_size", 192), ("intermediate_size", numbers), ("num_attention_heads", 3)]
    {
        tiny.config[field] = value.into();
    }
    let mut tensors = tensors(&tiny.config);
    for made in &mut tensors {
        let bytes = made.3.as_chunks_mut::<2>().0.iter_mut().enumerate();
        // Every weight a number, and each of its own kind.
        bytes.for_each(|(index, bytes)| bytes[1] = 0x3c | ((index * 37) as u8 & 0x83));
    }
    tiny.files.insert("model.safetensors".into(), tensors);
    let checkpoint = tiny.open().unwrap();
    (tiny, checkpoint)
}

/// What weights are turned into.
fn narrower() -> impl Iterator<Item = Scheme> {
    Scheme::ALL.into_iter().filter(|scheme| *scheme != Scheme::AsStored)
}

/// Each with the numbers of the longest rows of the layers to try it on: one of them with matrices of several chunks.
fn narrower_each() -> impl Iterator<Item = (Scheme, u64)> {
    narrower().map(|scheme| (scheme, if scheme == Scheme::Q8 { WIDE } else { NARROW }))
}

/// What the codec makes of a whole matrix at once: the bytes of each part, by what its name ends in.
fn encoded_at_once(
    checkpoint: &Checkpoint,
    name: &str,
    scheme: Scheme,
) -> Vec<(&'static str, Vec<u8>)> {
    let mapped = checkpoint.map(checkpoint.tensor(name).unwrap()).unwrap();
    let float = FloatType::of(mapped.dtype()).unwrap();
    let mut values = vec![0.0; mapped.bytes().len() / float.bytes()];
    float.widen(mapped.bytes(), &mut values);
    let encoding = scheme.of_layers().unwrap();
    let groups = values.len() / encoding.encoded_group().unwrap();
    let units = encoding.encoded_bytes(float).into_iter();
    let mut parts: Vec<Vec<u8>> = units.map(|unit| vec![0; groups * unit]).collect();
    let mut out: Vec<Option<&mut [u8]>> = parts.iter_mut().map(|it| Some(&mut it[..])).collect();
    let counts = checkpoint.counts(checkpoint.tensor(name).unwrap());
    let counts: Option<Vec<f32>> =
        counts.map(|of_row| of_row.into_iter().cycle().take(values.len()).collect());
    encoding.encode(&values, counts.as_deref(), float, &mut out).unwrap();
    let specs = encoding.parts([1, 4096]).unwrap().into_iter();
    specs.map(|spec| spec.part.ending()).zip(parts).collect()
}

#[test]
fn an_encoded_blob_holds_what_the_codec_makes_of_each_matrix() {
    for (scheme, numbers) in narrower_each() {
        let (_directory, checkpoint) = with_rows_of(numbers);
        let bytes = bytes_of(&BlobSource::encoded(&checkpoint, 1, scheme));
        let blob = SafeTensors::deserialize(&bytes).unwrap();
        let parts = if scheme == Scheme::Mxfp4 { 2 } else { 3 };
        assert_eq!(blob.len(), 2 + 7 * parts);
        for tensor in checkpoint.layer_tensors(1) {
            let data = |name: &str| blob.tensor(name).unwrap().data().to_vec();
            if tensor.shape.len() == 1 {
                assert_eq!(data(&tensor.name), checkpoint.map(tensor).unwrap().bytes());
                continue;
            }
            let module = tensor.name.strip_suffix(".weight").unwrap();
            let expected = encoded_at_once(&checkpoint, &tensor.name, scheme);
            assert_eq!(expected.len(), parts);
            for (ending, expected) in expected {
                assert!(
                    data(&format!("{module}{ending}")) == expected,
                    "{scheme} {module}{ending}"
                );
            }
        }
    }
}

#[test]
fn reads_of_any_range_encode_the_same_bytes() {
    const READS: usize = 24;
    // Codes that fill bytes and some that do not, and parts of another kind.
    for (scheme, numbers) in narrower_each() {
        let (_directory, checkpoint) = with_rows_of(numbers);
        weighed(&checkpoint, 0);
        let source = BlobSource::encoded(&checkpoint, 0, scheme);
        let whole = bytes_of(&source);
        assert_eq!(source.file_bytes(), whole.len() as u64);
        let blob = SafeTensors::deserialize(&whole).unwrap();
        let largest = blob.iter().map(|(_, it)| it.data().len() as u64).max().unwrap();
        assert_eq!(largest > CHUNK_BYTES, numbers == WIDE, "{scheme}: {largest}");
        // From nothing to most, more of the short ones: what is read is encoded anew each time.
        for seed in 0..READS {
            let start = seed * 7919 * 131 % whole.len();
            let length = seed.pow(3) * whole.len() / READS.pow(3) + seed % 3;
            let length = length.min(whole.len() - start);
            let mut piece = vec![0; length];
            source.read(start as u64, &mut piece).unwrap();
            assert!(piece == whole[start..start + length], "{scheme} {seed}: {start} + {length}");
        }
        let past = source.read(source.file_bytes() - 1, &mut [0; 2]);
        assert!(matches!(past, Err(Error::OutOfRange { .. })));
    }
}

/// The numbers of a matrix's first row.
fn first_row(checkpoint: &Checkpoint, matrix: &Tensor) -> Vec<f32> {
    let float = FloatType::of(matrix.dtype).unwrap();
    let mut row = vec![0.0; matrix.shape[1] as usize];
    let mut bytes = vec![0; row.len() * float.bytes()];
    checkpoint.read_at(matrix, 0, &mut bytes).unwrap();
    float.widen(&bytes, &mut row);
    row
}

/// Has errors of some columns count more than those of others, in all matrices of a layer.
fn weighed(checkpoint: &Checkpoint, layer: usize) {
    let matrices = checkpoint.layer_tensors(layer).into_iter().filter(|it| it.shape.len() == 2);
    let square = |column: u64| (column * 7919 % 1013) as f64;
    let met = matrices.map(|matrix| {
        let squares = (0..matrix.shape[1]).map(square).collect();
        (&*matrix.name, ColumnSquares { rows: 1 << 20, squares })
    });
    let met: Vec<_> = met.collect();
    let mut importance = Importance::default();
    importance.add(met.iter().map(|(name, met)| (*name, met)), checkpoint.config.hidden_size);
    checkpoint.weigh(Arc::new(importance));
}

#[test]
fn errors_are_where_they_count_least() {
    let (_plain, plain) = with_rows_of(NARROW);
    let (_directory, checkpoint) = with_rows_of(NARROW);
    weighed(&checkpoint, 1);
    for scheme in [Scheme::Q6, Scheme::Q5, Scheme::Q4] {
        let bytes = bytes_of(&BlobSource::encoded(&checkpoint, 1, scheme));
        let blob = SafeTensors::deserialize(&bytes).unwrap();
        let data = |name: &str| blob.tensor(name).unwrap().data().to_vec();
        let (mut counted, mut plainly) = (0.0, 0.0);
        for tensor in checkpoint.layer_tensors(1).into_iter().filter(|it| it.shape.len() == 2) {
            let module = tensor.name.strip_suffix(".weight").unwrap();
            for (ending, expected) in encoded_at_once(&checkpoint, &tensor.name, scheme) {
                assert!(data(&format!("{module}{ending}")) == expected, "{scheme} {module}");
            }
            let to = scheme.of_layers().unwrap();
            let (row, counts) =
                (first_row(&checkpoint, tensor), checkpoint.counts(tensor).unwrap());
            let error = |counted: Option<&[f32]>| {
                let found = there_and_back(to, FloatType::BF16, &row, counted).unwrap();
                let missed = row.iter().zip(found).map(|(it, found)| f64::from(it - found).powi(2));
                missed.zip(&counts).map(|(missed, count)| missed * f64::from(*count)).sum::<f64>()
            };
            counted += error(Some(&counts));
            plainly += error(None);
        }
        // The error that counts is smaller than without knowing what counts.
        println!("{scheme}: {counted:e} of {plainly:e}");
        assert!(counted < plainly, "{scheme}: {counted:e} of {plainly:e}");
        // Another layer was told nothing of.
        assert!(
            bytes_of(&BlobSource::encoded(&checkpoint, 0, scheme))
                == bytes_of(&BlobSource::encoded(&plain, 0, scheme))
        );
    }
    let identity = |checkpoint: &Checkpoint| checkpoint.identity_encoded(Scheme::Q4).unwrap();
    let before = identity(&plain);
    let wide = plain.identity_encoded(Scheme::Q8).unwrap();
    weighed(&plain, 0);
    assert_ne!(identity(&plain), before);
    assert_eq!(plain.identity_encoded(Scheme::Q8).unwrap(), wide, "the same bytes");
    for scheme in Scheme::ALL {
        let bytes = |of: &Checkpoint| bytes_of(&BlobSource::encoded(of, 1, scheme));
        assert_eq!(bytes(&checkpoint) != bytes(&plain), scheme.weighs_errors(), "{scheme}");
    }
}

#[test]
fn an_encoded_manifest_describes_the_bytes_and_the_blob_opens() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("blob.safetensors");
    for (scheme, numbers) in narrower_each() {
        let (_directory, checkpoint) = with_rows_of(numbers);
        let plain = BlobSource::new(&checkpoint, 0).manifest().unwrap();
        let source = BlobSource::encoded(&checkpoint, 0, scheme);
        let manifest = source.manifest().unwrap();
        manifest.check().unwrap();
        std::fs::write(&path, bytes_of(&source)).unwrap();
        let blob = Blob::open(&path, &manifest).unwrap();
        blob.verify(&mut |_| {}).unwrap();
        let scales = blob.tensor("model.layers.0.mlp.down_proj.scales").unwrap();
        let (dtype, columns) = match scheme {
            Scheme::Mxfp4 => (Dtype::F8E8M0, numbers / 32),
            _ => (Dtype::BF16, numbers / 64),
        };
        assert_eq!((scales.dtype(), scales.shape()), (dtype, &[192, columns][..]));
        assert_ne!(plain.name(), manifest.name());
    }
}

#[test]
fn what_cannot_or_need_not_be_packed_stays() {
    let names = |checkpoint: &Checkpoint, encoding| {
        let tensors = checkpoint.layer_tensors(0);
        let encoded = encoded_tensors(checkpoint, &tensors, encoding);
        encoded.iter().map(|tensor| (tensor.name.clone(), tensor.dtype)).collect::<Vec<_>>()
    };
    // Already packed; rows of 4 and 6 numbers.
    for checkpoint in [golden("qwen2-mlx4"), TinyCheckpoint::single(1).open().unwrap()] {
        let stored = names(&checkpoint, Scheme::AsStored);
        assert_eq!(names(&checkpoint, Scheme::Q4), stored);
    }
    let qwen2 = golden("qwen2"); // hidden 64, inner 160: only the rows of down_proj do not fit.
    let packed = names(&qwen2, Scheme::Q4);
    let plain: Vec<_> = packed.iter().filter(|(_, dtype)| *dtype != Dtype::U32).collect();
    assert!(plain.iter().any(|(name, _)| name.ends_with("mlp.down_proj.weight")));
    assert!(plain.iter().any(|(name, _)| name.ends_with("q_proj.bias")));
    assert_eq!(packed.len(), 12 + 6 * 2);
}

#[test]
fn a_weight_that_is_not_finite_is_named() {
    let (mut tiny, _) = wide();
    let name = "model.layers.1.mlp.up_proj.weight";
    let place = 2 * 70_000;
    tiny.tensor(name).3[place..place + 2].copy_from_slice(&[0xc0, 0x7f]);
    let checkpoint = tiny.open().unwrap();
    let error = BlobSource::encoded(&checkpoint, 1, Scheme::Q4).manifest().unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Encode { .. }), "{text}");
    assert!(text.contains(name) && text.contains("weight 70000 is NaN"), "{text}");
}

#[test]
fn each_encoding_is_remembered_apart() {
    let checkpoint = golden("llama");
    let identity = |encoding| checkpoint.identity_encoded(encoding).unwrap();
    assert_eq!(identity(Scheme::AsStored), checkpoint.identity().unwrap());
    let all = Scheme::ALL.map(identity);
    for (at, one) in all.iter().enumerate() {
        assert!(!all[..at].contains(one), "{}", Scheme::ALL[at]);
    }
}

#[test]
fn the_ends_are_encoded_into_memory_with_8_bits() {
    let (_directory, checkpoint) = wide();
    let embedding = checkpoint.embedding_matrix();
    let expected = encoded_at_once(&checkpoint, "model.embed_tokens.weight", Scheme::Q8);
    for encoding in narrower() {
        let matrix = checkpoint.encoded_matrix(&embedding, encoding).unwrap();
        assert_eq!(matrix.encoding, Encoding::Affine(Affine::Q8));
        let [codes, _, biases] = &matrix.parts[..] else { panic!("three parts") };
        assert_eq!(codes.shape(), [5, 48]);
        for (part, (ending, expected)) in matrix.parts.iter().zip(&expected) {
            assert!(part.bytes() == expected, "{encoding} {ending}");
        }
        assert_eq!((biases.dtype(), biases.shape()), (Dtype::BF16, &[5, 3][..]));
    }
    let stored = checkpoint.encoded_matrix(&embedding, Scheme::AsStored).unwrap();
    assert_eq!(stored.encoding, Encoding::Float(FloatType::BF16));
    assert_eq!(stored.parts.len(), 1);

    let mlx = golden("llama-mlx8");
    let head = mlx.head_matrix().unwrap();
    let matrix = mlx.encoded_matrix(&head, Scheme::Q4).unwrap();
    assert_eq!(matrix.encoding, head.encoding);
    assert_eq!(matrix.parts[0].bytes(), mlx.map(head.parts[0]).unwrap().bytes());
}

#[test]
fn experts_that_are_stored_column_by_column_are_sent_and_encoded_row_by_row() {
    for (name, layer, of_experts) in
        [("gpt-oss", 2, "mlp.experts"), ("llama4", 3, "feed_forward.experts")]
    {
        let checkpoint = golden(name);
        let module = format!("model.layers.{layer}.{of_experts}");
        let stored = bytes_of(&BlobSource::new(&checkpoint, layer));
        let blob = SafeTensors::deserialize(&stored).unwrap();
        // Number by number, of what the file has.
        let path = &checkpoint.files[0].path;
        let whole = std::fs::read(path).unwrap();
        let whole = SafeTensors::deserialize(&whole).unwrap();
        let both = whole.tensor(&format!("{module}.gate_up_proj")).unwrap();
        let &[_, inputs, outputs] = both.shape() else { panic!("three axes") };
        let (inner, expert) = (outputs / 2, 1);
        for (part, leaf) in ["gate", "up"].into_iter().enumerate() {
            let found = blob.tensor(&format!("{module}.{expert}.{leaf}_proj.weight")).unwrap();
            assert_eq!(found.shape(), [inner, inputs]);
            for (row, column) in [(0, 0), (1, 0), (0, 1), (inner - 1, inputs - 1), (5, 17)] {
                let at = if name == "gpt-oss" { 2 * row + part } else { part * inner + row };
                let from = ((expert * inputs + column) * outputs + at) * 2;
                let to = (row * inputs + column) * 2;
                assert_eq!(found.data()[to..to + 2], both.data()[from..from + 2], "{leaf}");
            }
        }
        let bytes = bytes_of(&BlobSource::encoded(&checkpoint, layer, Scheme::Q4));
        let blob = SafeTensors::deserialize(&bytes).unwrap();
        let up = format!("{module}.{expert}.up_proj");
        let expected = encoded_at_once(&checkpoint, &format!("{up}.weight"), Scheme::Q4);
        for (ending, expected) in expected {
            assert!(blob.tensor(&format!("{up}{ending}")).unwrap().data() == expected, "{ending}");
        }
    }
}

#[test]
fn reads_of_any_range_gather_the_same_bytes() {
    for scheme in [Scheme::AsStored, Scheme::Q8] {
        let checkpoint = golden("gpt-oss");
        let source = BlobSource::encoded(&checkpoint, 1, scheme);
        let whole = bytes_of(&source);
        for seed in 0..200usize {
            let start = seed * 7919 * 31 % whole.len();
            let length = (seed * seed + seed % 3).min(whole.len() - start);
            let mut piece = vec![0; length];
            source.read(start as u64, &mut piece).unwrap();
            assert!(piece == whole[start..start + length], "{scheme} {start} + {length}");
        }
    }
}
