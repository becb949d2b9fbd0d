//! The micro-kernel of the GEMM of many rows: the strips of a task times a batch of rows, which is one tile of them, or
//! two where activations have one plane.

use std::arch::asm;
use std::arch::x86_64::*;

use super::super::vnni::task::Params;
use super::shape::{STEP, STRIP, Tile};
use crate::device::cpu::gemm::amx::ahead::Ahead;
use crate::device::cpu::isa::x86::Line;
use crate::device::cpu::isa::x86::tiles::{TILE_ROWS, Tiles, tile, zero};

/// Two tiles of activations, which are multiplied with the same codes: both planes of one tile of rows, or the lower
/// ones, where they have no others, of two.
pub(crate) const PLANES: usize = 2;
/// The f32 accumulators of a strip with `ROWS` tiles of rows.
pub(crate) type Strip<const ROWS: usize> = [[Tile; ROWS]; STRIP];
/// Writes the finished accumulators of a strip, whose index comes first.
pub(crate) type Write<'a, const ROWS: usize> = dyn Fn(usize, &Strip<ROWS>) + 'a;

/// Some groups of `ROWS` tiles of rows, one or two, which go over all strips of a task.
pub(crate) struct Block<'a, const ROWS: usize> {
    /// `[strip, tile of the strip, step, line]`.
    pub(crate) codes: &'a [Line],
    /// For each strip and tile.
    pub(crate) params: &'a [[Params<1>; STRIP]],
    /// `[step, plane]`.
    pub(crate) planes: &'a [Tile],
    /// Scales and sums of the rows of each tile, for each group.
    pub(crate) x_params: [&'a [[Line; 2]]; ROWS],
    /// Whether accumulators begin with these groups, at zero.
    pub(crate) begin: bool,
    /// Codes in a group.
    pub(crate) group: usize,
    /// Writes the accumulators of a strip, if those groups are the last ones.
    pub(crate) finish: Option<&'a Write<'a, ROWS>>,
}

/// The integer accumulators of a strip with a batch, for one group: `[tile of the strip, plane]`.
type Sums = [[Tile; PLANES]; STRIP];

/// Buffers for the integer accumulators of two rounds, of which one is scaled while the other is made.
pub(crate) struct Dots([Sums; 2]);

impl Default for Dots {
    fn default() -> Self {
        Dots([[[[Line::ZERO; TILE_ROWS]; PLANES]; STRIP]; 2])
    }
}

/// Outputs whose accumulators are added to between two instructions on tiles: what keeps both kinds of units
/// busy, since the processor does not look far enough ahead to find the one kind behind the
/// other.
const OUTPUTS: usize = TILE_ROWS * STRIP / 8;

/// Where tiles to be multiplied are, each with those of further steps after it.
#[derive(Clone, Copy)]
struct Place {
    /// Codes of the first tile of a strip.
    first: *const u8,
    /// Codes of the second one.
    second: *const u8,
    /// Of activations.
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
            planes: self.planes.wrapping_add(PLANES * tile),
        }
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

/// Adds the product of the tiles loaded to one of the four accumulators: two tiles of codes times two planes.
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

/// A group of a strip, both of those of the block.
#[derive(Clone, Copy)]
struct Round {
    strip: usize,
    group: usize,
}

impl<const ROWS: usize> Block<'_, ROWS> {
    /// Adds the products of the block to the accumulators of the strips, which have a line for each output; those of
    /// the first groups begin, and those that end are written. Prefetches `ahead` meanwhile.
    #[target_feature(enable = "avx512f")]
    pub(crate) fn multiply(
        &self,
        tiles: &Tiles,
        sums: &mut [Strip<ROWS>],
        Dots([even, odd]): &mut Dots,
        ahead: &mut Ahead,
    ) {
        let first = Round { strip: 0, group: 0 };
        let mut rounds = [first, first, self.after(first)];
        // SAFETY: as in `round`.
        unsafe { load(tiles, self.tiles_of(first)) };
        self.round::<true, false>(tiles, rounds, even, odd, sums);
        let count = self.params.len() * self.groups();
        for round in 1..=count {
            let (next, last) =
                if round % 2 == 0 { (&mut *even, &*odd) } else { (&mut *odd, &*even) };
            rounds = [rounds[1], rounds[2], self.after(rounds[2])];
            if round < count {
                ahead.prefetch_round();
                self.round::<true, true>(tiles, rounds, next, last, sums);
            } else {
                self.round::<false, true>(tiles, rounds, next, last, sums);
            }
            let Round { strip, group } = rounds[0];
            if group + 1 == self.groups()
                && let Some(finish) = &self.finish
            {
                finish(strip, &sums[strip]);
            }
        }
    }

    fn groups(&self) -> usize {
        self.x_params[0].len()
    }

    /// The next round; after the last one there is none: its own again does no harm.
    #[inline(always)]
    fn after(&self, Round { strip, group }: Round) -> Round {
        if group + 1 < self.groups() {
            Round { strip, group: group + 1 }
        } else if strip + 1 < self.params.len() {
            Round { strip: strip + 1, group: 0 }
        } else {
            Round { strip, group }
        }
    }

    /// Where the first tiles of a round are: of the codes of both tiles of the strip, and of the
    /// planes.
    #[inline(always)]
    fn tiles_of(&self, round: Round) -> Place {
        let steps = (self.group / STEP).max(1);
        // Of a group of half a step, the second half of a line of codes, and of the lines of a
        // plane.
        let at = round.group * self.group;
        let (step, half) = (at / STEP, at % STEP);
        let planes = &self.planes[step * PLANES..(step + steps) * PLANES];
        let half_planes = half / 4 * size_of::<Line>();
        let tile_lines = self.codes.len() / (self.params.len() * STRIP);
        let first = round.strip * STRIP * tile_lines + step * TILE_ROWS;
        let codes = |line: usize| &self.codes[line..line + steps * TILE_ROWS];
        Place {
            first: codes(first).as_ptr().cast::<u8>().wrapping_add(half),
            second: codes(first + tile_lines).as_ptr().cast::<u8>().wrapping_add(half),
            planes: planes.as_ptr().cast::<u8>().wrapping_add(half_planes),
        }
    }

    /// Of three rounds: with `NEXT`, multiplies the group of the second, whose first tiles are loaded, into `next` and
    /// loads those of the third; with `LAST`, scales the products of the first, which are `last`, and adds them to the
    /// f32 accumulators. The two take turns.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn round<const NEXT: bool, const LAST: bool>(
        &self,
        tiles: &Tiles,
        [before, now, after]: [Round; 3],
        next: &mut Sums,
        last: &Sums,
        sums: &mut [Strip<ROWS>],
    ) {
        if NEXT {
            zero(tiles);
            let mut at = self.tiles_of(now);
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
        let Place { first: v, second: w, planes: x } = self.tiles_of(after);
        let to = next.as_mut_ptr().cast::<u8>();
        let mut chain = Chain::new(self, before, last, &mut sums[before.strip]);
        // One instruction or two on tiles, then a part of the accumulators: written out, as a loop
        // might stay one.
        macro_rules! turn {
            ($part:literal, $tiles:expr) => {
                if NEXT {
                    $tiles
                }
                if LAST {
                    chain.extend::<$part>();
                }
            };
        }
        turn!(0, multiply::<0>(tiles));
        turn!(1, multiply::<1>(tiles));
        turn!(2, multiply::<2>(tiles));
        turn!(3, multiply::<3>(tiles));
        // SAFETY: `tiles_of` has all tiles of its group inside the slices, for the tile registers
        // that are set up for whole or half steps by the group of the same weight; `next` has
        // four tiles.
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
}

/// The f32 accumulators of a strip with the tiles of rows, and what is added to them for one group.
struct Chain<'a, const ROWS: usize> {
    sums: &'a mut Strip<ROWS>,
    /// Whether they begin.
    begin: bool,
    dots: &'a Sums,
    /// Of the group, and the scales and sums of the rows.
    params: [[&'a Line; 2]; STRIP],
    x_params: [[__m512; 2]; ROWS],
}

impl<'a, const ROWS: usize> Chain<'a, ROWS> {
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn new(
        block: &'a Block<'_, ROWS>,
        round: Round,
        dots: &'a Sums,
        sums: &'a mut Strip<ROWS>,
    ) -> Chain<'a, ROWS> {
        let [first, second] = &block.params[round.strip];
        let params = [first.group(round.group), second.group(round.group)].map(|[[a], [b]]| [a, b]);
        let mut x_params = [[_mm512_setzero_ps(); 2]; ROWS];
        for (to, from) in x_params.iter_mut().zip(block.x_params) {
            let [scale, sum] = &from[round.group];
            *to = [_mm512_castsi512_ps(scale.read()), _mm512_castsi512_ps(sum.read())];
        }
        Chain { sums, begin: block.begin && round.group == 0, dots, params, x_params }
    }

    /// Adds to those of one of eight parts of the outputs.
    #[allow(clippy::needless_range_loop, reason = "lines and tiles are indexed throughout")]
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn extend<const PART: usize>(&mut self) {
        let (tile, first) = (PART * OUTPUTS / TILE_ROWS, PART * OUTPUTS % TILE_ROWS);
        let (dots, [scales, biases]) = (&self.dots[tile], self.params[tile]);
        if self.begin {
            for sums in &mut self.sums[tile] {
                sums[first..first + OUTPUTS].fill(Line::ZERO);
            }
        }
        for output in first..first + OUTPUTS {
            let weight_scale = _mm512_set1_ps(scales.lane(output));
            let bias = _mm512_set1_ps(biases.lane(output));
            for rows in 0..ROWS {
                let mut dot = dots[rows][output].read();
                if ROWS == 1 {
                    dot = _mm512_add_epi32(_mm512_slli_epi32::<8>(dot), dots[1][output].read());
                }
                let [scale, sum] = self.x_params[rows];
                let scale = _mm512_mul_ps(weight_scale, scale);
                let y = &mut self.sums[tile][rows][output];
                let chain = _mm512_castsi512_ps(y.read());
                let chain = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(dot), chain);
                y.write(_mm512_castps_si512(_mm512_fmadd_ps(bias, sum, chain)));
            }
        }
    }
}
