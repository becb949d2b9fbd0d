#!/usr/bin/env python3
"""What the `gguf` package for Python makes of some blocks: writes `blocks.bin` and `decoded.bin` beside this file.

    python3 -m venv DIR/venv && DIR/venv/bin/pip install gguf==0.19.0
    DIR/venv/bin/python make_blocks.py

`blocks.bin` has, for each block, 32 numbers as F32, then the block as Q8_0, Q4_0, Q4_1, Q5_0 and Q5_1. `decoded.bin` has, for each kind of block,
its number and how many blocks there are (4 bytes each), then each block, of random bytes, with its weights as F32.
"""

import os

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGML_QUANT_SIZES as SIZES
from gguf.quants import dequantize, quantize

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

KINDS = (Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1)
blocks = np.array(blocks, dtype=f32)
with np.errstate(all="ignore"):
    encoded = [quantize(blocks, kind) for kind in KINDS]
here = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(here, "blocks.bin"), "wb") as file:
    for block, *made in zip(blocks, *encoded):
        file.write(block.tobytes() + b"".join(one.tobytes() for one in made))
print(f"{len(blocks)} blocks")

# Where the f16 numbers of a block are; of Mxfp4, its first byte is an exponent.
HALVES = {
    Type.Q4_0: [0], Type.Q4_1: [0, 2], Type.Q5_0: [0], Type.Q5_1: [0, 2], Type.Q8_0: [0],
    Type.Q2_K: [80, 82], Type.Q3_K: [108], Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208],
    Type.IQ4_NL: [0], Type.IQ4_XS: [0], Type.MXFP4: [],
}
EXPONENTS = [0, 1, 2, 3, 100, 126, 127, 128, 253, 254, 255]
with open(os.path.join(here, "decoded.bin"), "wb") as file:
    for kind, places in HALVES.items():
        weights, size = SIZES[kind]
        bytes_ = random.integers(0, 256, (16 if weights == 32 else 8, size), dtype=np.uint8)
        for place in places:
            numbers = random.standard_normal(len(bytes_)).astype(np.float16)
            numbers[:4] = [0.0, -0.0, 3e-7, 6e4]  # Nothing, a subnormal number, one near the largest.
            bytes_[:, place : place + 2] = numbers.view(np.uint8).reshape(-1, 2)
        if kind == Type.MXFP4:
            bytes_[: len(EXPONENTS), 0] = EXPONENTS
        file.write(np.array([kind, len(bytes_)], dtype="<u4").tobytes())
        with np.errstate(all="ignore"):
            for block in bytes_:
                file.write(block.tobytes() + dequantize(block, kind).astype("<f4").tobytes())
