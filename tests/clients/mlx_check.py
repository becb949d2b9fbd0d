#!/usr/bin/env python3
"""Loads what `cake-master convert --to mlx` wrote with MLX, and compares it with the model that it was made of.

    mlx_check.py {WRITTEN_DIRECTORY MODEL_DIRECTORY}...

Plain tensors must be equal. Packed ones are unpacked by MLX; the sum of their squared errors is compared with that of what
`mlx.core.quantize` makes of the same numbers: over all tensors it must not be larger. The largest errors are shown beside
it: in 8 bits ours must not be larger, too; with fewer, a scale that cuts the furthest weights off often makes the sum smaller,
and ours must not be larger than one and a half of MLX's.

Needs mlx, numpy and safetensors. Ends with 1 if anything differs.
"""

import glob
import json
import os
import re
import sys

import mlx.core as mx
import numpy as np


def load(directory):
    tensors = {}
    for path in sorted(glob.glob(os.path.join(directory, "*.safetensors"))):
        if not path.endswith("expected.safetensors"):
            tensors.update(mx.load(path))
    return tensors


def stacked(tensors):
    """The same with the experts of a layer in one tensor, as MLX has them."""
    found, experts = {}, {}
    for name, array in tensors.items():
        expert = re.fullmatch(r"(.*\.)experts\.(\d+)\.(.*)", name)
        if expert:
            before, number, after = expert.groups()
            experts.setdefault(f"{before}switch_mlp.{after}", {})[int(number)] = array
        else:
            found[name] = array
    for name, arrays in experts.items():
        found[name] = mx.stack([arrays[number] for number in range(len(arrays))])
    return found


def numbers(array):
    return np.array(array.astype(mx.float32), copy=False).astype(np.float64)


def is_wrong(written, model):
    ours, before = load(written), stacked(load(model))
    with open(os.path.join(written, "config.json")) as file:
        said = json.load(file).get("quantization", {})
    bad = packed = 0
    bits = set()
    errors = {"ours": [0.0, 0.0], "mlx": [0.0, 0.0]}
    for name, array in before.items():
        module = name.removesuffix(".weight")
        if f"{module}.scales" not in ours:
            same = name in ours and mx.array_equal(ours[name], array, equal_nan=True)
            if not same:
                bad += 1
                print(f"{name} is not what it was")
            continue
        packed += 1
        form = said.get(module, said)
        form = {"group_size": form["group_size"], "bits": form["bits"]}
        parts = [ours[f"{module}.{part}"] for part in ("weight", "scales", "biases")]
        theirs = mx.quantize(array, **form)
        for who, stored in (("ours", parts), ("mlx", theirs)):
            off = numbers(mx.dequantize(*stored, **form)) - numbers(array)
            errors[who][0] = max(errors[who][0], np.abs(off).max())
            errors[who][1] += (off**2).sum()
        bits.add(form["bits"])
    extra = [name for name in ours if name not in before and name.rpartition(".")[2] not in ("scales", "biases")]
    if extra:
        bad += len(extra)
        print("not in the model:", ", ".join(extra[:5]))
    if packed:
        for index, what in enumerate(("largest", "sum of squares")):
            mine, other = errors["ours"][index], errors["mlx"][index]
            print(f"{what} error of {packed} packed tensors: {mine:.6g}, MLX's own {other:.6g}")
            most = other if what != "largest" or bits == {8} else 1.5 * other
            bad += int(mine > most)
    told = f"{len(before)} tensors, {bad} of them wrong" if bad else f"all {len(before)} tensors are what they were"
    print(f"{written}: {told}")
    return bad > 0


def main():
    words = sys.argv[1:]
    wrong = [is_wrong(*pair) for pair in zip(words[::2], words[1::2], strict=True)]
    sys.exit(1 if any(wrong) or not wrong else 0)


if __name__ == "__main__":
    main()
