//! The list of workers that are shut out of a cluster, as it travels: their ids behind each other, 16 bytes each.
//!
//! A list that cannot be told, or cannot be read, is never taken for a shorter one.
use bytes::Bytes;

use crate::limits;

/// Bytes of an id, which is twice as many hexadecimal digits.
const ID_BYTES: usize = 16;

/// A list that cannot be told or read.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// More than [`limits::SHUT_OUT`].
    #[error("{found} workers are shut out, at most {} can be", limits::SHUT_OUT)]
    TooMany {
        /// How many there are.
        found: usize,
    },
    /// Something in it is no worker's id.
    #[error("{id:?} is shut out, which is no worker's id: expected {} hexadecimal digits", 2 * ID_BYTES)]
    NoId {
        /// What is there.
        id: String,
    },
    /// The bytes end inside an id.
    #[error("a list of those that are shut out has {bytes} bytes, expected {ID_BYTES} for each")]
    Torn {
        /// How many there are.
        bytes: usize,
    },
}

/// The list as bytes.
///
/// # Errors
/// [`Error::TooMany`] or [`Error::NoId`].
pub fn pack(ids: &[String]) -> Result<Bytes, Error> {
    check(ids.len())?;
    let mut packed = Vec::with_capacity(ids.len() * ID_BYTES);
    for id in ids {
        // No sign, and no digit in another way: an id has one spelling.
        let digits = id.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
        let number = u128::from_str_radix(id, 16).ok();
        let number = number.filter(|_| digits && id.len() == 2 * ID_BYTES);
        let number = number.ok_or_else(|| Error::NoId { id: id.clone() })?;
        packed.extend(number.to_be_bytes());
    }
    Ok(packed.into())
}

/// The list from its bytes.
///
/// # Errors
/// [`Error::TooMany`] or [`Error::Torn`].
pub fn unpack(packed: &[u8]) -> Result<Vec<String>, Error> {
    let (ids, rest) = packed.as_chunks::<ID_BYTES>();
    if !rest.is_empty() {
        return Err(Error::Torn { bytes: packed.len() });
    }
    check(ids.len())?;
    Ok(ids.iter().map(|id| format!("{:032x}", u128::from_be_bytes(*id))).collect())
}

fn check(found: usize) -> Result<(), Error> {
    if found > limits::SHUT_OUT { Err(Error::TooMany { found }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_as_may_be_come_back_as_they_were_and_fit_one_message() {
        let ids: Vec<String> =
            (0..limits::SHUT_OUT).map(|index| format!("{:032x}", index as u128 * 7)).collect();
        let packed = pack(&ids).expect("told");
        assert!(packed.len() < limits::MESSAGE_BYTES / 2 + limits::FRAME_BYTES);
        assert_eq!(unpack(&packed), Ok(ids.clone()));
        let one_more = [ids, vec!["f".repeat(32)]].concat();
        assert_eq!(pack(&one_more), Err(Error::TooMany { found: limits::SHUT_OUT + 1 }));
        let long = [&packed[..], &[0; 16]].concat();
        assert_eq!(unpack(&long), Err(Error::TooMany { found: limits::SHUT_OUT + 1 }));
        assert_eq!(unpack(&packed[..17]), Err(Error::Torn { bytes: 17 }));
        assert_eq!(unpack(&[]), Ok(Vec::new()));
    }

    #[test]
    fn what_is_no_id_is_not_told_as_one() {
        let long = "a".repeat(33);
        let signed = format!("+{}", "a".repeat(31));
        let capital = "A".repeat(32);
        for id in ["", "a", &long, &signed, &capital, "../../etc"] {
            assert_eq!(pack(&[id.to_owned()]), Err(Error::NoId { id: id.to_owned() }));
        }
    }
}
