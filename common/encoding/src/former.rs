//! The codes that weights were before somebody widened them.

use super::affine::Affine;
use super::codec::{MatrixShape, RowsAt};
use super::encode_error::EncodeError;
use super::float::FloatType;
use super::ggml::GgmlType;
use super::tag::Encoding;
use crate::dtype::Dtype;

/// What is looked for, the fewest bits for each weight first (4.5, 4.5, 4.5, 5, 5, 5.5, 5.5, 5.5, 6, 6, 6.6 and 8.5), and the squared
/// error for each squared weight below which weights were such codes before. What was rounded to BF16 and is encoded again made 8e-6
/// of it at most; weights that never were codes make some 2e-3 in 5 bits, 2e-4 in 6, and from 1.3e-5 on in 8.
const CODES: [(Encoding, f64); 12] = [
    (Encoding::Affine(Affine::Q4), 1e-4),
    (Encoding::Ggml(GgmlType::Q4_0), 1e-4),
    (Encoding::Ggml(GgmlType::Q4K), 5e-5),
    (Encoding::Ggml(GgmlType::Q4_1), 1e-4),
    (Encoding::Affine(Affine::Q4_32), 1e-4),
    (Encoding::Affine(Affine::Q5), 1e-4),
    (Encoding::Ggml(GgmlType::Q5_0), 1e-4),
    (Encoding::Ggml(GgmlType::Q5K), 5e-5),
    (Encoding::Ggml(GgmlType::Q5_1), 1e-4),
    (Encoding::Affine(Affine::Q5_32), 1e-4),
    (Encoding::Ggml(GgmlType::Q6K), 5e-5),
    (Encoding::Ggml(GgmlType::Q8_0), 1e-5),
];

impl Encoding {
    /// Groups with a scale and a bias that are as exact, for who has no blocks; `None` where there are none.
    pub fn as_affine(self) -> Option<Affine> {
        match self {
            Encoding::Affine(format) => Some(format),
            Encoding::Ggml(GgmlType::Q4_0 | GgmlType::Q4_1 | GgmlType::Q4K) => Some(Affine::Q4_32),
            Encoding::Ggml(GgmlType::Q5_0 | GgmlType::Q5_1 | GgmlType::Q5K) => Some(Affine::Q5_32),
            _ => None,
        }
    }

    /// As [`Encoding::as_affine`], of what weights become that were `were`: blocks that are not what they were have nothing
    /// that is as exact, and groups of as many bits are as good.
    pub fn in_groups(self, were: Option<Encoding>) -> Option<Affine> {
        match self {
            Encoding::Ggml(GgmlType::Q5K) if were != Some(self) => Some(Affine::Q5),
            _ => self.as_affine(),
        }
    }
}

/// Which codes a matrix of that shape was, by stretches of its weights; `None` if none of those that are looked for. A stretch
/// of zeros shows nothing.
pub fn former_codes(stretches: &[Vec<f32>], shape: MatrixShape) -> Option<Encoding> {
    let is_exact = |to: Encoding, most: f64, weights: &[f32]| {
        to.parts([1, weights.len() as u64])?;
        // Scales of 32 bits where there is a choice: what 16 would round is no error of the codes.
        let found = there_and_back(to, FloatType::F32, weights, None).ok()?;
        let missed = weights.iter().zip(&found).map(|(weight, it)| f64::from(weight - it).powi(2));
        Some(missed.sum::<f64>() < squares(weights) * most)
    };
    let shown: Vec<_> = stretches.iter().filter(|weights| squares(weights) > 0.0).collect();
    let are_exact = |&(to, most): &(Encoding, f64)| {
        !shown.is_empty()
            && to.parts(shape).is_some()
            && shown.iter().all(|weights| is_exact(to, most, weights) == Some(true))
    };
    CODES.into_iter().find(are_exact).map(|(were, _)| were)
}

fn squares(weights: &[f32]) -> f64 {
    weights.iter().map(|&weight| f64::from(weight).powi(2)).sum()
}

/// A row as it is once it was encoded, and decoded again; errors count as `counts` says. It must be whole groups of what it
/// becomes.
///
/// # Errors
/// If a weight is not finite, or does not fit.
pub fn there_and_back(
    to: Encoding,
    float: FloatType,
    weights: &[f32],
    counts: Option<&[f32]>,
) -> Result<Vec<f32>, EncodeError> {
    let columns = weights.len();
    let specs = to.parts([1, columns as u64]).unwrap_or_default();
    let dtypes: Vec<Dtype> = specs.iter().map(|spec| spec.dtype(float.dtype())).collect();
    let groups = columns / to.encoded_group().unwrap_or(columns.max(1));
    let units = to.encoded_bytes(float).into_iter();
    let mut parts: Vec<Vec<u8>> = units.map(|unit| vec![0; groups * unit]).collect();
    let mut out: Vec<Option<&mut [u8]>> = parts.iter_mut().map(|it| Some(&mut it[..])).collect();
    to.encode(weights, counts, float, &mut out)?;
    let parts: Vec<(Dtype, &[u8])> =
        dtypes.into_iter().zip(parts.iter().map(|part| &part[..])).collect();
    let mut found = vec![0.0; columns];
    to.decode_rows(RowsAt::start(columns), &parts, &mut found);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ENCODER_VERSION, Fp4};

    /// Sums of four numbers of an even distribution: nearly normal.
    fn normal(at: u32) -> f32 {
        let mixed = |at: u32| (at ^ at >> 15).wrapping_mul(0x85eb_ca6b);
        let number = |at: u32| mixed(at.wrapping_mul(0x9e37_79b9)) as f32 / u32::MAX as f32;
        (1..=4).map(|it| number(at * 4 + it) - 0.5).sum()
    }

    /// Whether codes are known, or what is as exact: in larger blocks a group without its outer codes may hide the scales of all.
    fn is_known(known: Option<Encoding>, were: Encoding) -> bool {
        let is_large = matches!(were, Encoding::Ggml(GgmlType::Q4K | GgmlType::Q5K));
        known == Some(were) || is_large && known == were.as_affine().map(Encoding::Affine)
    }

    #[test]
    fn what_was_encoded_and_widened_is_known_again_and_nothing_else() {
        let shape = [4, 1024];
        for seed in 0..8u32 {
            // Where scales lie among powers of two decides how BF16 rounds them.
            let size = 0.1 * (f32::from(seed as u16) / 8.0).exp2();
            let weights: Vec<f32> = (0..1024).map(|at| normal(seed * 1024 + at) * size).collect();
            assert_eq!(former_codes(std::slice::from_ref(&weights), shape), None, "seed {seed}");
            for (were, _) in CODES {
                let codes = there_and_back(were, FloatType::BF16, &weights, None).unwrap();
                for float in [FloatType::F32, FloatType::F16, FloatType::BF16] {
                    let mut bytes = vec![0; codes.len() * float.bytes()];
                    float.narrow(&codes, &mut bytes).unwrap();
                    let mut widened = vec![0.0; codes.len()];
                    float.widen(&bytes, &mut widened);
                    let known = former_codes(&[vec![0.0; 256], widened.clone()], shape);
                    assert!(is_known(known, were), "{were}: {known:?}, seed {seed}, {float:?}");
                    let mixed = [widened, weights.clone()];
                    assert_eq!(former_codes(&mixed, shape), None, "but for a part of it");
                }
            }
        }
        assert_eq!(former_codes(&[vec![0.0; 256]], shape), None, "nothing to see");
    }

    /// What was made once is found again by its version: who changes these bytes changes that.
    #[test]
    fn bytes_of_blocks_change_with_their_version() {
        let weights: Vec<f32> = (0..256 * 24).map(normal).collect();
        let mut all = Vec::new();
        for to in CODES.map(|(to, _)| to).into_iter().chain([Encoding::Fp4(Fp4::Mx)]) {
            let units = to.encoded_bytes(FloatType::BF16).into_iter();
            let groups = weights.len() / to.encoded_group().unwrap();
            let mut parts: Vec<Vec<u8>> = units.map(|unit| vec![0; groups * unit]).collect();
            let mut out: Vec<_> = parts.iter_mut().map(|it| Some(&mut it[..])).collect();
            to.encode(&weights, None, FloatType::BF16, &mut out).unwrap();
            parts.iter().for_each(|part| all.extend_from_slice(part));
        }
        let seen = blake3::hash(&all).to_hex()[..16].to_owned();
        assert_eq!((ENCODER_VERSION, &*seen), (3, "40516ef6b7bd7ec3"));
    }
}
