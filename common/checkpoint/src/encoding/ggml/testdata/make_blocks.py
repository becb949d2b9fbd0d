#!/usr/bin/env python3
"""What the `gguf` package for Python makes of some blocks of 32 numbers: writes `blocks.bin` beside this file.

    python3 -m venv DIR/venv && DIR/venv/bin/pip install gguf==0.19.0
    DIR/venv/bin/python make_blocks.py

The file has, for each block, 32 numbers as F32, then the block as Q8_0, then as Q4_0.
"""

import os

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf.quants import quantize

random = np.random.default_rng(19)
f32 = np.float32
ramp = np.arange(32, dtype=f32)


def with_largest(value, others):
    """Halves of steps in Q8_0: the scale is exactly `value / 127`."""
    block = np.resize(np.array(others, dtype=f32), 32)
    block[5] = value
    return block


blocks = [
    np.zeros(32),
    -np.zeros(32),
    np.where(ramp % 2 == 0, 0.0, -0.0),
    np.where(ramp % 2 == 0, -0.0, 0.0),
    np.ones(32),
    -np.ones(32),
    ramp - 16,  # Each magnitude twice, the largest once.
    16 - ramp,
    -1 - ramp,  # All negative.
    with_largest(127, [0.5, 1.5, -0.5, -1.5, 2.5, -2.5, 126.5, -126.5]),  # Halves away from zero.
    with_largest(-127, [0.5, 1.5, -0.5, -1.5, 2.5, -2.5, 126.5, -126.5]),
    with_largest(127, [np.nextafter(f32(0.5), f32(0)), -np.nextafter(f32(0.5), f32(0)), 0.0]),
    with_largest(8, [0.5, 1.5, -0.5, -1.5, 7.5, -7.5, 3.5, -3.5]),  # And of Q4_0.
    with_largest(-8, [0.5, 1.5, -0.5, -1.5, 7.5, -7.5, 3.5, -3.5]),
    np.where(ramp == 3, 2.0, np.where(ramp == 9, -2.0, 0.25)),  # The first of two largest decides.
    np.where(ramp == 9, 2.0, np.where(ramp == 3, -2.0, 0.25)),
    (ramp - 16) * f32(2.0**-149),  # Subnormal numbers; a scale without an inverse.
    (ramp - 16) * f32(2.0**-130),
    (ramp - 16) * f32(2.0**-126),
    (ramp - 16) * f32(1e-37),
    (ramp - 16) * f32(1e-7),  # A scale that half precision has as a subnormal number only,
    (ramp - 16) * f32(1e-8),  # or not at all.
    (16 - ramp) * f32(1e-6),
    (ramp - 16) * f32(2.0**14),  # Scales near the largest of half precision.
    (ramp - 15.5) * f32(33000),
    np.where(ramp == 0, f32(65519 * 8), 1.0),
    np.where(ramp == 0, f32(-65519 * 8), 1.0),
]
for spread in (1e-6, 0.02, 1.0, 300.0):
    blocks += list(random.standard_normal((40, 32)) * spread)
# As bf16 has them: few bits, so that ties occur.
coarse = random.standard_normal((40, 32)).astype(f32)
blocks += list((coarse.view(np.uint32) & 0xFFFF0000).view(f32))
blocks += list(random.integers(-16, 17, (40, 32)) / 2)

blocks = np.array(blocks, dtype=f32)
with np.errstate(all="ignore"):
    encoded = [quantize(blocks, kind) for kind in (Type.Q8_0, Type.Q4_0)]
path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "blocks.bin")
with open(path, "wb") as file:
    for block, *made in zip(blocks, *encoded):
        file.write(block.tobytes() + b"".join(one.tobytes() for one in made))
print(f"{len(blocks)} blocks")
