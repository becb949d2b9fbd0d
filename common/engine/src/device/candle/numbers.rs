//! Keys, or values, as candle's tensors have them.

use cake_checkpoint::KvDtype;
use candle_core::{DType, Device, Result, Tensor};

use crate::device::kv_codes;

/// What is added to a code, since candle has no signed bytes.
const OFFSET: u8 = 128;

/// Keys, or values, of all positions.
pub(super) enum Numbers {
    /// `[positions, kv_heads × head_dim]`.
    Plain(Tensor),
    /// [`KvDtype::Q8`].
    Coded {
        /// Codes and [`OFFSET`], `[positions, kv_heads × head_dim]`.
        codes: Tensor,
        /// In bf16, `[positions, kv_heads × groups]`.
        scales: Tensor,
        /// Numbers of a head.
        head_dim: usize,
    },
}

impl Numbers {
    /// As many zeros, of heads of so many numbers.
    pub(super) fn zeros(
        kv: KvDtype,
        positions: usize,
        (heads, head_dim): (usize, usize),
        device: &Device,
    ) -> Result<Numbers> {
        let zeros = |width, dtype| Tensor::zeros((positions, width), dtype, device);
        Ok(match kv {
            KvDtype::F32 => Numbers::Plain(zeros(heads * head_dim, DType::F32)?),
            KvDtype::F16 => Numbers::Plain(zeros(heads * head_dim, DType::F16)?),
            KvDtype::Q8 => Numbers::Coded {
                codes: zeros(heads * head_dim, DType::U8)?,
                scales: zeros(heads * KvDtype::groups(head_dim), DType::BF16)?,
                head_dim,
            },
        })
    }

    /// Those of `places`, in f32: `[places, kv_heads × head_dim]`.
    pub(super) fn read(&self, places: &Tensor) -> Result<Tensor> {
        match self {
            Numbers::Plain(all) => all.index_select(places, 0)?.to_dtype(DType::F32),
            Numbers::Coded { codes, scales, head_dim } => {
                let width = codes.dim(1)?;
                let codes = codes.index_select(places, 0)?.to_dtype(DType::F32)?;
                let codes = (codes - f64::from(OFFSET))?;
                let groups = KvDtype::groups(*head_dim);
                let group = |at: usize| at / head_dim * groups + at % head_dim / KvDtype::GROUP;
                let of_number: Vec<u32> = (0..width).map(|at| group(at) as u32).collect();
                let of_number = Tensor::new(of_number, codes.device())?;
                let scales = scales.index_select(places, 0)?.to_dtype(DType::F32)?;
                codes * scales.index_select(&of_number, 1)?
            }
        }
    }

    /// Writes rows of `new`, `[rows, kv_heads × head_dim]`: those with the first number of each pair, to the position with
    /// the second one.
    pub(super) fn write(&self, new: &Tensor, places: &[(usize, usize)]) -> Result<()> {
        let set = |all: &Tensor, new: Tensor| -> Result<()> {
            for (row, position) in places {
                all.slice_set(&new.narrow(0, *row, 1)?, 0, *position)?;
            }
            Ok(())
        };
        match self {
            Numbers::Plain(all) => set(all, new.to_dtype(all.dtype())?.contiguous()?),
            Numbers::Coded { codes, scales, head_dim } => {
                let (rows, device) = (new.dim(0)?, new.device());
                let numbers: Vec<f32> = new.flatten_all()?.to_vec1()?;
                let (coded, of_groups) = coded(&numbers, *head_dim);
                set(codes, Tensor::from_vec(coded, (rows, codes.dim(1)?), device)?)?;
                set(scales, Tensor::from_vec(of_groups, (rows, scales.dim(1)?), device)?)
            }
        }
    }
}

/// Codes and [`OFFSET`], and scales, of heads of so many numbers.
fn coded(numbers: &[f32], head_dim: usize) -> (Vec<u8>, Vec<half::bf16>) {
    let mut codes = vec![0; numbers.len()];
    let mut scales =
        Vec::with_capacity(numbers.len().div_ceil(head_dim) * KvDtype::groups(head_dim));
    let mut of_head = vec![0; KvDtype::groups(head_dim) * KvDtype::Q8.scale_bytes()];
    for (head, codes) in numbers.chunks_exact(head_dim).zip(codes.chunks_exact_mut(head_dim)) {
        kv_codes::encode(head, codes, &mut of_head);
        codes.iter_mut().for_each(|code| *code = code.wrapping_add(OFFSET));
        scales.extend(of_head.as_chunks().0.iter().map(|bytes| half::bf16::from_le_bytes(*bytes)));
    }
    (codes, scales)
}
