//! Numbers side by side, so that the compiler makes vectors of them and every machine adds them up in one order.

/// Lanes of what is joined over a group; each group is a multiple.
pub(super) const LANES: usize = 16;
/// 2²³: added to a number from 0 to 2²², it leaves the nearest whole number in the lowest bits.
pub(super) const ROUNDER: f32 = 8_388_608.0;

/// Lanes joined in halves.
#[inline(always)]
pub(super) fn reduce(mut lanes: [f32; LANES], join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] = join(lanes[lane], lanes[lane + half]);
        }
        half /= 2;
    }
    lanes[0]
}
