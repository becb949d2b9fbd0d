//! Checkpoints of any size with random weights, written as they are made up.
//!
//! Start with [`ModelShape`] and [`make`]; [`Published`] are models that others published, whose weights are holes.
//!
//! Invariants:
//! - What a tensor holds depends on its name and the seed alone, however many files it is spread over.
//! - Nothing is held but a buffer and one table, whatever the size.
//! - Nothing of the harness is named here: this crate is optimized where the others of the tests are not.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use cake_checkpoint::units::format_bytes;
use serde_json::{Map, Value, json};

mod gguf;
mod packed;
mod published;
mod random;
mod shape;
mod tensors;

pub use gguf::GgufModel;
pub use packed::Packing;
pub use published::Published;
pub use shape::{Delta, Experts, ModelShape};

use random::Weights;
use tensors::{Content, Tensor};

/// Files beside the weights, taken from a golden checkpoint.
const TEXT_FILES: &[&str] =
    &["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"];
/// Bits of a byte with which numbers of any kind are finite and small: their exponents are below the middle.
const SMALL: u8 = 0x1f;
/// Bytes written at once.
const BUFFER: usize = 1 << 20;

/// Writes a checkpoint into `directory`, which is made. The same shape and seed give the same
/// tensors, however many files they are spread over.
///
/// # Errors
/// If the directory cannot be written, or the dtype is none that weights can have.
pub fn make(directory: &Path, shape: &ModelShape, seed: u64) -> io::Result<()> {
    write(directory, shape, Some(Weights::new(seed)))
}

/// Writes a checkpoint whose weights are zeros, which are holes in its files: whatever its size, it takes little disk.
///
/// # Errors
/// If the directory cannot be written.
pub fn make_hollow(directory: &Path, shape: &ModelShape) -> io::Result<()> {
    write(directory, shape, None)
}

/// Writes a published model as [`make_hollow`] does.
///
/// # Errors
/// If the directory cannot be written.
pub fn make_published(directory: &Path, model: Published) -> io::Result<()> {
    write_files(directory, &model.config(), &model.files(), None)
}

/// Writes a Llama of that shape, or a model of the family that has the packing, with its layers' matrices packed so.
///
/// # Errors
/// If the directory cannot be written.
pub fn make_packed(
    directory: &Path,
    shape: &ModelShape,
    packing: Packing,
    seed: u64,
) -> io::Result<()> {
    let (config, tensors) = (packing.config(shape), packing.tensors(shape));
    write_files(directory, &config, &[tensors], Some(Weights::new(seed)))
}

/// Writes a checkpoint with these weights, or with holes in place of them.
fn write(directory: &Path, shape: &ModelShape, weights: Option<Weights>) -> io::Result<()> {
    write_files(directory, &shape.config(), &files(shape), weights)
}

/// Writes a checkpoint of that configuration and these tensors, file by file.
fn write_files(
    directory: &Path,
    config: &Value,
    files: &[Vec<Tensor>],
    mut weights: Option<Weights>,
) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    std::fs::write(directory.join("config.json"), serde_json::to_vec_pretty(config)?)?;
    let golden = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../golden/llama"));
    for name in TEXT_FILES {
        std::fs::copy(golden.join(name), directory.join(name))?;
    }
    let mut map = Map::new();
    for (index, tensors) in files.iter().enumerate() {
        let name = match files.len() {
            1 => "model.safetensors".to_owned(),
            count => format!("model-{:05}-of-{count:05}.safetensors", index + 1),
        };
        write_file(&directory.join(&name), tensors, weights.as_mut())?;
        map.extend(tensors.iter().map(|tensor| (tensor.name.clone(), json!(name))));
    }
    if files.len() > 1 {
        let total: u64 = files.iter().flatten().map(Tensor::bytes).sum();
        let index = json!({ "metadata": { "total_size": total }, "weight_map": map });
        let path = directory.join("model.safetensors.index.json");
        std::fs::write(path, serde_json::to_vec_pretty(&index)?)?;
    }
    Ok(())
}

/// One line for people.
pub fn describe(shape: &ModelShape) -> String {
    let packed = shape.packed.map(|format| format!(", packed with {format}")).unwrap_or_default();
    let bytes = format_bytes(shape.bytes());
    format!("{} layers, {bytes}, {}{packed}", shape.layers, shape.dtype)
}

/// Which tensors go into which file.
fn files(shape: &ModelShape) -> Vec<Vec<Tensor>> {
    if let Some(count) = shape.dealt_files {
        let mut files: Vec<Vec<Tensor>> = (0..count).map(|_| Vec::new()).collect();
        let dealt = shape.tensors().into_iter().enumerate();
        dealt.for_each(|(index, tensor)| files[index % count].push(tensor));
        return files;
    }
    let limit = shape.shard_bytes.unwrap_or(u64::MAX);
    let mut files: Vec<Vec<Tensor>> = vec![Vec::new()];
    let mut bytes = 0;
    for tensor in shape.tensors() {
        let size = tensor.bytes();
        if bytes > 0 && bytes + size > limit {
            files.push(Vec::new());
            bytes = 0;
        }
        bytes += size;
        files.last_mut().expect("there is always one").push(tensor);
    }
    files
}

fn write_file(path: &Path, tensors: &[Tensor], weights: Option<&mut Weights>) -> io::Result<()> {
    let mut header = Map::new();
    header.insert("__metadata__".into(), json!({ "format": "pt" }));
    let mut start = 0;
    for tensor in tensors {
        let end = start + tensor.bytes();
        let entry = json!({
            "dtype": tensor.dtype.name(), "shape": tensor.shape, "data_offsets": [start, end],
        });
        header.insert(tensor.name.clone(), entry);
        start = end;
    }
    let mut header = serde_json::to_vec(&header)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut out = BufWriter::with_capacity(BUFFER, File::create(path)?);
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;
    let Some(weights) = weights else {
        return out.into_inner()?.set_len((8 + header.len()) as u64 + start);
    };
    for tensor in tensors {
        write_tensor(&mut out, tensor, weights)?;
    }
    out.flush()
}

fn write_tensor(out: &mut dyn Write, tensor: &Tensor, weights: &mut Weights) -> io::Result<()> {
    let name = &tensor.name;
    match &tensor.content {
        Content::Numbers { centre, spread } => {
            let (dtype, elements) = (tensor.dtype, tensor.elements());
            weights.write(out, name, dtype, elements, [*centre, *spread])
        }
        Content::Codes => weights.write_codes(out, name, tensor.bytes(), u8::MAX),
        Content::Small => weights.write_codes(out, name, tensor.bytes(), SMALL),
        Content::Bytes(bytes) => out.write_all(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cake_checkpoint::{Affine, Checkpoint, Dtype, Encoding};

    fn made(shape: &ModelShape, seed: u64) -> (tempfile::TempDir, Checkpoint) {
        let home = tempfile::tempdir().expect("a temporary folder");
        make(home.path(), shape, seed).expect("written");
        let checkpoint =
            Checkpoint::open(&home.path().display().to_string()).expect("a checkpoint");
        (home, checkpoint)
    }

    fn layer(checkpoint: &Checkpoint, layer: usize) -> Vec<u8> {
        let source = cake_checkpoint::BlobSource::new(checkpoint, layer);
        let mut bytes = Vec::new();
        source.write_to(&mut bytes).expect("read");
        bytes
    }

    #[test]
    fn the_same_seed_gives_the_same_tensors_in_one_file_or_in_several() {
        let shape = ModelShape::tiny();
        let spread = ModelShape { shard_bytes: Some(200_000), ..shape.clone() };
        let (_one, a) = made(&shape, 3);
        let (several, b) = made(&spread, 3);
        let (_other, c) = made(&shape, 4);
        assert!(several.path().join("model.safetensors.index.json").exists());
        assert_eq!(a.total_bytes(), shape.bytes());
        for number in 0..shape.layers {
            assert_eq!(layer(&a, number), layer(&b, number));
            assert_ne!(layer(&a, number), layer(&c, number));
        }
    }

    #[test]
    fn a_hollow_model_has_the_same_tensors_full_of_zeros() {
        let shape = ModelShape { shard_bytes: Some(200_000), ..ModelShape::tiny() };
        let home = tempfile::tempdir().expect("a temporary folder");
        make_hollow(home.path(), &shape).expect("written");
        let hollow = Checkpoint::open(&home.path().display().to_string()).expect("a checkpoint");
        let (_full, full) = made(&shape, 3);
        assert_eq!(hollow.total_bytes(), full.total_bytes());
        let bytes = layer(&hollow, 4);
        let data = bytes.len() - shape.layer_bytes() as usize;
        assert_eq!(bytes[..data], layer(&full, 4)[..data], "the same header");
        assert!(bytes[data..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn every_dtype_is_read_as_what_it_says() {
        for dtype in [Dtype::F32, Dtype::F16, Dtype::BF16] {
            let shape = ModelShape { dtype, tied: false, ..ModelShape::tiny() };
            let (_home, checkpoint) = made(&shape, 1);
            assert_eq!(checkpoint.layer_tensors(0)[0].dtype, dtype);
        }
    }

    #[test]
    fn a_packed_model_is_what_mlx_writes() {
        let shape = ModelShape {
            qwen2: true,
            packed: Affine::new(4, 32),
            tied: false,
            ..ModelShape::tiny()
        };
        let (_home, checkpoint) = made(&shape, 5);
        assert_eq!(checkpoint.total_bytes(), shape.bytes());
        assert_eq!(checkpoint.layer_tensors(0).len(), 26);
        let head = checkpoint.head_matrix().expect("one of its own");
        assert_eq!(Some(head.encoding), shape.packed.map(Encoding::Affine));
    }

    /// As small as every packing can be.
    fn packable() -> ModelShape {
        let (hidden_size, intermediate_size, head_dim) = (256, 512, 64);
        ModelShape { hidden_size, intermediate_size, head_dim, layers: 2, ..ModelShape::tiny() }
    }

    #[test]
    fn a_model_in_every_packing_opens_as_what_it_is() {
        let shape = packable();
        for packing in Packing::ALL {
            let home = tempfile::tempdir().expect("a temporary folder");
            make_packed(home.path(), &shape, packing, 3).expect("written");
            let name = packing.name();
            let checkpoint = Checkpoint::open(&home.path().display().to_string());
            let checkpoint = checkpoint.unwrap_or_else(|error| panic!("{name}: {error}"));
            let encodings: Vec<String> = checkpoint
                .layer_tensors(1)
                .iter()
                .filter_map(|it| it.encoding)
                .map(|it| it.to_string())
                .collect();
            let plain = ["f32", "bf16", "f16"].map(str::to_owned);
            let packed = encodings.iter().filter(|it| !plain.contains(it)).count();
            assert!(packed >= 7, "{name}: {encodings:?}");
            let files = home.path().join("model.safetensors").metadata().expect("a file").len();
            assert!(packing.layers_bytes(&shape) < files, "{name}");
        }
    }

    #[test]
    fn a_gguf_model_opens_with_its_vocabulary_and_weights_or_holes() {
        let shape = packable();
        for kind in cake_checkpoint::GgmlType::ALL {
            let home = tempfile::tempdir().expect("a temporary folder");
            let model = GgufModel::new(&shape, |_| kind);
            let (full, hollow) = (home.path().join("full.gguf"), home.path().join("hollow.gguf"));
            model.write(&full, Some(3)).expect("written");
            model.write(&hollow, None).expect("written");
            let open = |path: &Path| Checkpoint::open(&path.display().to_string());
            let (full, hollow) = (open(&full).expect("a model"), open(&hollow).expect("a model"));
            assert_eq!(full.total_bytes(), hollow.total_bytes());
            let bytes = |layer| full.layer_tensors(layer).iter().map(|it| it.bytes).sum::<u64>();
            let layers: u64 = (0..shape.layers).map(bytes).sum();
            assert_eq!(layers, model.layers_bytes(), "{kind}");
            assert_ne!(layer(&full, 0), layer(&hollow, 0));
            assert_ne!(layer(&full, 0), layer(&full, 1));
        }
    }

    #[test]
    fn a_mixture_has_its_experts() {
        let experts = Some(Experts { count: 8, chosen: 2, inner_size: 48 });
        let (_home, checkpoint) = made(&ModelShape { experts, ..ModelShape::tiny() }, 5);
        assert_eq!(checkpoint.layer_tensors(0).len(), 8 + 1 + 3 * 8);
    }

    #[test]
    fn the_7b_shape_has_the_size_of_mlx_communitys_qwen() {
        let shape = ModelShape::qwen_7b_mlx4();
        assert_eq!((shape.bytes(), shape.layer_bytes()), (4_284_263_424, 131_111_936));
    }

    #[test]
    fn the_1b_shape_has_the_size_of_llama_3_2_1b() {
        // 1,235,814,400 parameters in bf16.
        assert_eq!(ModelShape::llama_1b().bytes(), 2 * 1_235_814_400);
    }
}
