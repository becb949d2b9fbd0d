//! Rows as grouped affine codes.

use cake_checkpoint::encoding::{ENCODER_VERSION, Sink, encode_into};
use cake_checkpoint::{Affine, EncodeError, FloatType};

use crate::form::Form;

/// Codes, scales and biases; these two of the type `params`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct AffineForm {
    pub(super) format: Affine,
    pub(super) params: FloatType,
}

impl Form for AffineForm {
    fn identity(&self) -> String {
        format!("affine {} {:?} {ENCODER_VERSION}", self.format, self.params)
    }

    fn row_bytes(&self, columns: u64) -> Vec<u64> {
        let groups = columns / self.format.group() as u64;
        let params = groups * self.params.bytes() as u64;
        vec![groups * self.format.group_bytes() as u64, params, params]
    }

    fn write(
        &self,
        rows: &[f32],
        _: usize,
        _: f32,
        out: &mut [&mut [u8]],
    ) -> Result<(), EncodeError> {
        let [codes, scales, biases] = out else { panic!("affine weights have three parts") };
        let sink = Sink { codes: Some(codes), scales: Some(scales), biases: Some(biases) };
        encode_into(rows, self.format, self.params, sink)
    }
}
