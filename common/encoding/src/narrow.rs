//! Numbers of a byte and less, as the Open Compute Project defines them (OCP 8-bit Floating Point, OCP Microscaling
//! Formats): what each of their bit patterns is as f32, exactly.

/// E4M3, of which there is no infinity: 3 bits of fraction, exponents of bias 7; all ones but for the sign is no number.
pub(crate) static E4M3: [f32; 256] = {
    let mut table = [0.0; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = e4m3(byte as u32);
        byte += 1;
    }
    table
};

/// E2M1: 1 bit of fraction, exponents of bias 1; all are numbers.
pub(crate) static E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

const fn e4m3(byte: u32) -> f32 {
    let (exponent, fraction) = (byte >> 3 & 15, byte & 7);
    let magnitude = match (exponent, fraction) {
        (15, 7) => f32::NAN,
        (0, _) => fraction as f32 / 512.0,
        _ => f32::from_bits((exponent + 127 - 7) << 23 | fraction << 20),
    };
    if byte & 0x80 == 0 { magnitude } else { -magnitude }
}

/// E8M0: a power of two, `2^(byte - 127)`; all ones is no number.
#[inline]
pub fn e8m0(byte: u8) -> f32 {
    match byte {
        0 => f32::from_bits(1 << 22), // Below the least normal number.
        0xff => f32::NAN,
        _ => f32::from_bits(u32::from(byte) << 23),
    }
}

/// Twice the number that 4 bits of E2M1 are, 12 more; without a table, so that compilers do it for many at once.
#[inline(always)]
pub(super) fn twice_and_12(code: u8) -> u8 {
    let n = code & 7;
    let twice = n + u8::from(n >= 5) + u8::from(n >= 6) + 3 * u8::from(n >= 7);
    if code & 8 == 0 { 12 + twice } else { 12 - twice }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the bits mean, in f64.
    fn defined(byte: usize, exponent_bits: i32, fraction_bits: i32, bias: i32) -> f64 {
        let fraction = (byte % (1 << fraction_bits)) as f64 / f64::from(1 << fraction_bits);
        let exponent = (byte >> fraction_bits) as i32 % (1 << exponent_bits);
        let magnitude = match exponent {
            0 => fraction * 2f64.powi(1 - bias),
            _ => (1.0 + fraction) * 2f64.powi(exponent - bias),
        };
        if byte >> (exponent_bits + fraction_bits) == 0 { magnitude } else { -magnitude }
    }

    #[test]
    fn every_pattern_is_the_number_that_is_defined() {
        for (byte, found) in E4M3.iter().enumerate() {
            if byte & 0x7f == 0x7f {
                assert!(found.is_nan(), "{byte:#x}");
            } else {
                assert_eq!(f64::from(*found), defined(byte, 4, 3, 7), "{byte:#x}");
            }
        }
        for (code, found) in E2M1.iter().enumerate() {
            assert_eq!(f64::from(*found), defined(code, 2, 1, 1), "{code}");
        }
        for byte in 0..255u8 {
            assert_eq!(f64::from(e8m0(byte)), 2f64.powi(i32::from(byte) - 127), "{byte}");
        }
        assert!(e8m0(255).is_nan());
        // What tables of the formats say.
        assert_eq!(
            [0x38, 0x3c, 0x7e, 0x01, 0xc0].map(|byte| E4M3[byte]),
            [1.0, 1.5, 448.0, 2f32.powi(-9), -2.0]
        );
    }
}
