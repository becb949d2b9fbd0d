//! What is known of whole numbers as an encoding.

use super::decode::{Stored, decode_rows};
use super::format::{Integer, Order, Zero};
use super::unpack::unpack_rows;
use crate::codec::{Codec, MatrixShape, ModuleFormat, ModuleTensors, RowsAt, Unpacked};
use crate::dtype::Dtype;
use crate::float::element::{FLOATS, FloatType};
use crate::part::{Part, PartSpec};
use crate::tag::Encoding;

/// The codec of whole numbers.
pub(crate) struct IntegerCodec;

impl Codec for IntegerCodec {
    /// Its tensors are made of a file's, and whoever makes them says what they are.
    fn recognise(&self, _: &ModuleTensors<'_>, _: Option<ModuleFormat>) -> Option<Encoding> {
        None
    }

    fn all(&self) -> Vec<Encoding> {
        Integer::all().map(Encoding::Integer).collect()
    }

    fn parts(&self, encoding: Encoding, [rows, columns]: MatrixShape) -> Option<Vec<PartSpec>> {
        let Encoding::Integer(format) = encoding else { return None };
        let (groups, bits) = (format.groups(columns)?, format.bits() as u64);
        let part = |part, types, shape, must| PartSpec { part, types, shape, must };
        let words = vec![rows, columns / (32 / bits)];
        let mut parts = vec![
            part(Part::Weight, &[Dtype::U32][..], words, "packed weights must be of 32 bits"),
            part(Part::Scales, &FLOATS[..], vec![rows, groups], "scales must be F32, F16 or BF16"),
        ];
        if format.zero() != Zero::Middle {
            let bytes = groups.div_ceil(8 / bits);
            parts.push(part(Part::Zeros, &[Dtype::U8], vec![rows, bytes], "zeros must be bytes"));
        }
        if format.order() == Order::Chosen {
            let must = "the groups of columns must be of 32 bits";
            parts.push(part(Part::Groups, &[Dtype::U32], vec![columns], must));
        }
        Some(parts)
    }

    fn columns(&self, encoding: Encoding, elements: u64) -> u64 {
        let Encoding::Integer(format) = encoding else { return elements };
        elements.saturating_mul(32 / format.bits() as u64)
    }

    fn decode_rows(
        &self,
        encoding: Encoding,
        at: RowsAt,
        parts: &[(Dtype, &[u8])],
        out: &mut [f32],
    ) {
        let (format, stored) = stored(encoding, parts);
        decode_rows(format, &stored, at.columns, out);
    }

    /// Columns that chose their groups would have to change places, and activations with them.
    fn unpacked_group(&self, encoding: Encoding, columns: usize) -> Option<usize> {
        let Encoding::Integer(format) = encoding else { return None };
        let group = match format.group() {
            Some(group) if columns.is_multiple_of(group) => group,
            _ => 32, // Of a group that is larger, or the row.
        };
        let whole = columns.is_multiple_of(group) && format.order() == Order::Neighbours;
        whole.then_some(group)
    }

    fn largest_code(&self, encoding: Encoding) -> u8 {
        let Encoding::Integer(format) = encoding else { return u8::MAX };
        u8::MAX >> (8 - format.bits())
    }

    fn unpack_rows(
        &self,
        encoding: Encoding,
        at: RowsAt,
        parts: &[(Dtype, &[u8])],
        out: Unpacked<'_>,
    ) {
        let (format, stored) = stored(encoding, parts);
        unpack_rows(format, &stored, at.columns, out);
    }
}

/// The parts of a matrix.
///
/// # Panics
/// If it has others.
fn stored<'a>(encoding: Encoding, parts: &[(Dtype, &'a [u8])]) -> (Integer, Stored<'a>) {
    let Encoding::Integer(format) = encoding else { panic!("not in whole numbers: {encoding}") };
    let &[(_, codes), (dtype, scales), ref others @ ..] = parts else {
        panic!("a matrix of whole numbers has codes and scales")
    };
    let mut others = others.iter().map(|&(_, bytes)| bytes);
    let zeros = (format.zero() != Zero::Middle).then(|| others.next().expect("it has zeros"));
    let groups = (format.order() == Order::Chosen).then(|| others.next().expect("it has groups"));
    let params = FloatType::of(dtype).expect("scales are numbers");
    (format, Stored { codes, scales, params, zeros, groups })
}
