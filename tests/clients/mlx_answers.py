#!/usr/bin/env python3
"""Has mlx-lm load what `cake-master convert --to mlx` wrote, by its configuration, and answer with it.

    mlx_answers.py {WRITTEN_DIRECTORY GOLDEN_DIRECTORY as-stored|q8|q4}...

The logits of the golden model's prompt, computed in float32, must be the reference's but for rounding, and so must be the
tokens that are most likely from there on. Of weights that were packed in 8 or 4 bits the logits may be off by what that
does to them, which is a part of their spread.

Needs mlx-lm. Ends with 1 if anything differs.
"""

import json
import os
import sys
from pathlib import Path

import mlx.core as mx
import mlx_lm.utils

# Sums in another order: about what our own engine differs by.
MOST = 2e-3
# Root of the mean square of the differences of packed weights' logits, in parts of the logits' own: what is computed with
# other weights, or in another order of layers, is off by more than one.
MOST_PACKED = {"q8": 0.2, "q4": 0.9}


def is_wrong(written, golden, encode):
    with open(os.path.join(golden, "expected.json")) as file:
        expected = json.load(file)
    logits = mx.load(os.path.join(golden, "expected.safetensors"))["logits"].astype(mx.float32)
    model, _ = mlx_lm.utils.load_model(Path(written))
    model.set_dtype(mx.float32)
    ids = list(expected["prompt_ids"])
    difference = model(mx.array([ids]))[0].astype(mx.float32) - logits
    if encode in MOST_PACKED:
        error = (mx.sqrt(mx.mean(difference**2)) / mx.std(logits)).item()
        print(f"{written}: logits differ by {error:.4f} of their spread")
        return not error <= MOST_PACKED[encode]
    error = mx.abs(difference).max().item()
    answer = []
    for _ in expected["greedy_ids"]:
        answer.append(mx.argmax(model(mx.array([ids + answer]))[0, -1]).item())
    same = answer == expected["greedy_ids"]
    told = "all equal" if same else f"{answer}, expected {expected['greedy_ids']}"
    print(f"{written}: logits differ by at most {error:.1e}; {len(answer)} tokens: {told}")
    return not (same and error <= MOST)


def main():
    words = sys.argv[1:]
    wrong = [is_wrong(*three) for three in zip(words[::3], words[1::3], words[2::3], strict=True)]
    sys.exit(1 if any(wrong) or not wrong else 0)


if __name__ == "__main__":
    main()
