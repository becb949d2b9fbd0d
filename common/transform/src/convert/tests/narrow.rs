//! Numbers of a byte and of 4 bits: they become plain ones, or are refused.

use cake_checkpoint::{Checkpoint, RowsAt};

use super::*;

/// The numbers of a matrix of a checkpoint, as its encoding defines them.
fn numbers(checkpoint: &Checkpoint, module: &str, shape: [u64; 2]) -> Vec<f32> {
    let weight = checkpoint.tensor(&format!("{module}.weight")).unwrap();
    let encoding = weight.encoding.unwrap();
    let parts = encoding.parts(shape).unwrap().into_iter();
    let map = |name: String| checkpoint.map(checkpoint.tensor(&name).unwrap()).unwrap();
    let parts: Vec<_> = parts.map(|it| map(format!("{module}{}", it.part.ending()))).collect();
    let parts: Vec<_> = parts.iter().map(|it| (it.dtype(), it.bytes())).collect();
    let mut out = vec![0.0; (shape[0] * shape[1]) as usize];
    encoding.decode_rows(RowsAt::start(shape[1] as usize), &parts, &mut out);
    out
}

#[test]
fn they_become_plain_numbers_of_the_same_value() {
    let home = tempfile::tempdir().unwrap();
    for name in [
        "qwen2-fp8-block",
        "qwen3-moe-fp8",
        "mistral3-fp8",
        "llama-nvfp4",
        "llama-modelopt",
        "qwen2-nf4-plain",
    ] {
        let path = home.path().join(name);
        let wide = converted(name, HubFormat::Safetensors, Encode::Float(FloatType::F32), &path);
        let wide = wide.checkpoint().unwrap();
        assert!(wide.config.quantization.is_none(), "{name}");
        let before = golden(name).checkpoint().unwrap();
        let mut seen = 0;
        for (index, layer) in before.config.layers.iter().enumerate() {
            for tensor in layer.tensors() {
                let &[rows, columns] = &tensor.shape[..] else { continue };
                let weight = before.config.layer_tensor_name(index, &tensor.leaf());
                let Some(module) = weight.strip_suffix(".weight") else { continue };
                let [before, wide] =
                    [&before, &wide].map(|it| numbers(it, module, [rows, columns]));
                assert!(before == wide, "{name} {module}");
                seen += 1;
            }
        }
        assert!(seen >= 2 * 7, "{name}: {seen} matrices"); // The smallest has two layers.
    }
}

#[test]
fn they_stay_in_no_format_that_has_other_names_for_them() {
    let home = tempfile::tempdir().unwrap();
    for name in ["qwen2-fp8-block", "llama-nvfp4", "llama-modelopt", "llama-nf4"] {
        for encode in [Encode::AsStored, Encode::Affine(Scheme::Q4)] {
            let error = job(name, HubFormat::Safetensors, encode, home.path()).unwrap_err();
            assert!(matches!(error, Error::Unsupported(Unsupported::Encoding { .. })), "{error}");
        }
    }
    // Their experts' rows are in turn, or in the form of another program.
    for name in ["gpt-oss-mxfp4", "gpt-oss-mlx"] {
        for encode in [Encode::AsStored, Encode::Float(FloatType::F32)] {
            for format in [HubFormat::Safetensors, HubFormat::Mlx] {
                let error = job(name, format, encode, home.path()).unwrap_err();
                let is_refused =
                    matches!(error, Error::Unsupported(Unsupported::Architecture { .. }));
                assert!(is_refused, "{name} {encode}: {error}");
            }
        }
    }
}
