//! Reproducible numbers without a generator that lives on.

/// The output function of splitmix64 (Steele, Lea and Flood, 2014): a bijection that mixes well.
pub(crate) fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// A number in `[0, 1)` that depends on nothing but its arguments.
pub(crate) fn unit(seed: u64, position: u64) -> f64 {
    let bits = mix(mix(seed) ^ position);
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mix_is_splitmix64() {
        assert_eq!(mix(0), 0xe220_a839_7b1d_cdaf); // First output of the reference for seed 0.
    }

    #[test]
    fn unit_is_spread_over_the_interval() {
        let mut bins = [0; 10];
        for position in 0..10_000 {
            bins[(unit(3, position) * 10.0) as usize] += 1;
        }
        assert!(bins.iter().all(|&count| (900..1100).contains(&count)), "{bins:?}");
    }
}
