//! Products of one strip of outputs with one tile of rows.

use std::arch::asm;
use std::arch::x86_64::*;

use super::super::super::amx::{TILE_ROWS, Tiles};
use super::super::super::x86::{Line, prefetch};
use super::super::vnni::Params;
use super::{STEP, STRIP, Tile};

/// One strip of one block with one tile of rows.
pub(super) struct Block<'a> {
    /// `[tile of the strip, step, line]`.
    pub(super) codes: [&'a [Line]; STRIP],
    /// `[step, plane]`.
    pub(super) planes: &'a [Tile],
    /// Scales and sums of the rows, for each group.
    pub(super) x_params: &'a [[Line; 2]],
    pub(super) params: &'a [Params<1>; STRIP],
    pub(super) group: usize,
    /// What to ask memory for, a line per group.
    pub(super) ahead: [*const u8; STRIP],
}

/// Sums of products of a strip with both planes: `[tile of the strip, plane]`.
type Dots = [[Tile; 2]; STRIP];

/// Outputs whose chains go on between two instructions on tiles: what keeps both kinds of units busy,
/// since the processor does not look far enough ahead to find the one kind behind the other.
const PART: usize = TILE_ROWS * STRIP / 8;

/// Instructions on tile registers that lie `s` bytes apart in memory. Nothing but this module uses the
/// registers, so they keep what they hold from one to the next.
macro_rules! tile {
    ($($line:literal),+; $($name:ident = $value:expr),*) => {
        asm!(
            $($line,)+
            $($name = in(reg) $value,)*
            s = in(reg) size_of::<Line>(),
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack, preserves_flags),
        )
    };
}

/// Where tiles to be multiplied are, each with those of further steps after it.
#[derive(Clone, Copy)]
struct Place {
    /// Codes of the first tile of a strip.
    first: *const u8,
    /// Codes of the second one.
    second: *const u8,
    /// Both planes of activations.
    planes: *const u8,
}

impl Place {
    /// The next step of the same group.
    #[inline(always)]
    fn step(self) -> Place {
        let tile = size_of::<Tile>();
        Place {
            first: self.first.wrapping_add(tile),
            second: self.second.wrapping_add(tile),
            planes: self.planes.wrapping_add(2 * tile),
        }
    }
}

/// Sets all sums to zero.
#[inline(always)]
fn zero(_: &Tiles) {
    // SAFETY: there are tile registers, and nothing else is touched.
    unsafe {
        asm!(
            "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            options(nostack, nomem, preserves_flags),
        );
    }
}

/// Loads the tiles at a place.
///
/// # Safety
/// They can be read with the shapes that the registers are set up for.
#[inline(always)]
unsafe fn load(_: &Tiles, at: Place) {
    let Place { first, second, planes } = at;
    // SAFETY: there are tile registers; the caller's promise.
    unsafe {
        tile!(
            "tileloadd tmm4, [{v} + {s}]", "tileloadd tmm6, [{x} + {s}]",
            "tileloadd tmm7, [{x} + {s} + 1024]", "tileloadd tmm5, [{w} + {s}]";
            v = first, w = second, x = planes
        );
    }
}

/// Adds the product of the tiles loaded to one of the sums: two of codes with two planes each.
///
/// As far as the compiler is told, this touches memory: so what stands before it stays there.
#[inline(always)]
fn multiply<const SUM: usize>(_: &Tiles) {
    // SAFETY: there are tile registers, and nothing else is touched.
    unsafe {
        match SUM {
            0 => asm!("tdpbusd tmm0, tmm4, tmm6", out("tmm0") _, options(nostack, preserves_flags)),
            1 => asm!("tdpbusd tmm1, tmm4, tmm7", out("tmm1") _, options(nostack, preserves_flags)),
            2 => asm!("tdpbusd tmm2, tmm5, tmm6", out("tmm2") _, options(nostack, preserves_flags)),
            _ => asm!("tdpbusd tmm3, tmm5, tmm7", out("tmm3") _, options(nostack, preserves_flags)),
        }
    }
}

impl Block<'_> {
    /// Continues the chains of a strip, which has a line of 16 rows for each output.
    #[target_feature(enable = "avx512f")]
    pub(super) fn multiply(&self, tiles: &Tiles, sums: &mut [Tile; STRIP]) {
        let groups = self.x_params.len();
        let [mut even, mut odd] = [[[[Line::ZERO; TILE_ROWS]; 2]; STRIP]; 2];
        // SAFETY: as in `round`.
        unsafe { load(tiles, self.tiles_of(0)) };
        self.round::<true, false>(tiles, 0, &mut even, &odd, sums);
        for group in 1..=groups {
            let (next, last) = if group % 2 == 0 { (&mut even, &odd) } else { (&mut odd, &even) };
            if group < groups {
                self.round::<true, true>(tiles, group, next, last, sums);
            } else {
                self.round::<false, true>(tiles, group, next, last, sums);
            }
        }
    }

    /// Where the first tiles of a group are: of the codes of both tiles of the strip, and of the planes.
    #[inline(always)]
    fn tiles_of(&self, group: usize) -> Place {
        let steps = (self.group / STEP).max(1);
        // Of a group of half a step, the second half of a line of codes, and of the lines of a plane.
        let (step, half) = (group * self.group / STEP, group * self.group % STEP);
        let lines = step * TILE_ROWS..(step + steps) * TILE_ROWS;
        let planes = &self.planes[step * 2..(step + steps) * 2];
        let half_planes = half / 4 * size_of::<Line>();
        Place {
            first: self.codes[0][lines.clone()].as_ptr().cast::<u8>().wrapping_add(half),
            second: self.codes[1][lines].as_ptr().cast::<u8>().wrapping_add(half),
            planes: planes.as_ptr().cast::<u8>().wrapping_add(half_planes),
        }
    }

    /// With `NEXT`, multiplies `group`, whose first tiles are loaded, into `next` and loads those of the
    /// group after; with `LAST`, continues the chains with the group before, whose products are `last`.
    /// The two take turns.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn round<const NEXT: bool, const LAST: bool>(
        &self,
        tiles: &Tiles,
        group: usize,
        next: &mut Dots,
        last: &Dots,
        sums: &mut [Tile; STRIP],
    ) {
        if NEXT {
            for ahead in self.ahead {
                prefetch(ahead.wrapping_add(group * size_of::<Line>()));
            }
            zero(tiles);
            let mut at = self.tiles_of(group);
            for _ in 1..self.group / STEP {
                multiply::<0>(tiles);
                multiply::<1>(tiles);
                multiply::<2>(tiles);
                multiply::<3>(tiles);
                at = at.step();
                // SAFETY: as below; a group that has a further step has all of its tiles there.
                unsafe { load(tiles, at) };
            }
        }
        // After the last group there is none: its own again does no harm.
        let after = (group + 1).min(self.x_params.len() - 1);
        let Place { first: v, second: w, planes: x } = self.tiles_of(after);
        let to = next.as_mut_ptr().cast::<u8>();
        // One instruction or two on tiles, then a part of the chains: written out, as a loop might stay
        // one.
        macro_rules! turn {
            ($part:literal, $tiles:expr) => {
                if NEXT {
                    $tiles
                }
                if LAST {
                    self.chain(group - 1, $part, last, sums);
                }
            };
        }
        turn!(0, multiply::<0>(tiles));
        turn!(1, multiply::<1>(tiles));
        turn!(2, multiply::<2>(tiles));
        turn!(3, multiply::<3>(tiles));
        // SAFETY: `tiles_of` has all tiles of its group inside the slices, for the tile registers that
        // are set up for whole or half steps by the group of the same weight; `next` has four tiles.
        unsafe {
            turn!(4, {
                tile!("tilestored [{d} + {s}], tmm0"; d = to);
                tile!("tileloadd tmm4, [{v} + {s}]"; v = v);
            });
            turn!(5, {
                tile!("tilestored [{d} + {s} + 1024], tmm1"; d = to);
                tile!("tileloadd tmm6, [{x} + {s}]"; x = x);
            });
            turn!(6, {
                tile!("tilestored [{d} + {s} + 2048], tmm2"; d = to);
                tile!("tileloadd tmm7, [{x} + {s} + 1024]"; x = x);
            });
            turn!(7, {
                tile!("tilestored [{d} + {s} + 3072], tmm3"; d = to);
                tile!("tileloadd tmm5, [{w} + {s}]"; w = w);
            });
        }
    }

    /// Continues the chains of one of eight parts of the outputs with the products of a group.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn chain(&self, group: usize, part: usize, dots: &Dots, sums: &mut [Tile; STRIP]) {
        let (tile, first) = (part * PART / TILE_ROWS, part * PART % TILE_ROWS);
        let [high, low] = &dots[tile];
        let [scale, sum] = &self.x_params[group];
        let (scale, sum) = (_mm512_castsi512_ps(scale.read()), _mm512_castsi512_ps(sum.read()));
        let [[scales], [biases]] = self.params[tile].group(group);
        for output in first..first + PART {
            let high = _mm512_slli_epi32::<8>(high[output].read());
            let dot = _mm512_cvtepi32_ps(_mm512_add_epi32(high, low[output].read()));
            let scale = _mm512_mul_ps(_mm512_set1_ps(scales.lane(output)), scale);
            let y = &mut sums[tile][output];
            let chain = _mm512_fmadd_ps(scale, dot, _mm512_castsi512_ps(y.read()));
            let bias = _mm512_set1_ps(biases.lane(output));
            y.write(_mm512_castps_si512(_mm512_fmadd_ps(bias, sum, chain)));
        }
    }
}
