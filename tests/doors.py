#!/usr/bin/env python3
"""Says where a fact is said beside its own door.

Each rule is a pattern and the files that may have it; it is looked for in the sources of each crate (that of families in
their folder), without comments and without tests (`#[cfg(test)]` modules, in a file of their own or at the end of
another). What it finds elsewhere is a fact that is said a second time: what a device, an encoding or a container is would
have to be changed there, too.

    tests/doors.py       # ends with 1 if there is anything
"""

import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ENGINE, CHECKPOINT, ENCODING = "common/engine/src/", "common/checkpoint/src/", "common/encoding/src/"

RULES = [
    (
        "a device of candle's",
        r"\bcandle_core\b|\bDevice::(Cpu|new_cuda|new_metal)\b",
        [ENGINE + "device/candle.rs", ENGINE + "device/candle/"],
    ),
    (
        "which device computes",
        r"\bDeviceKind::(Cpu|Candle|Cuda|Metal)\b",
        [ENGINE + "options.rs", ENGINE + "device/choice.rs", ENGINE + "device/cpu/agreement.rs"],
    ),
    (
        "what is the processor's own",
        r"\bdevice::cpu\b",
        # What others are given, and what the processor computes whichever device runs the layers: rows that are looked up,
        # what is sampled of logits; and what is measured before its first product.
        [ENGINE + "device/cpu/", ENGINE + "lib.rs", *(ENGINE + name + ".rs" for name in ("embedding", "first", "head", "sampling", "probe"))],
    ),
    (
        "a configuration's text",
        r"\bconfig_json\b",
        # An APR file has it under a key of that name.
        [CHECKPOINT + "model/parse.rs", CHECKPOINT + "container/apr/"],
    ),
    (
        "what the files of a model are called",
        r"\bconfig\.json\b|\bmodel\.safetensors\b|\.index\.json\b",
        # `locate` says what a person may name and tells a model from a folder of the Hub's cache, `demo.rs` writes a model.
        # APR and GGUF files have the configuration as a text under its name on the Hub.
        [CHECKPOINT + "container/safetensors/", CHECKPOINT + "container/apr/", CHECKPOINT + "container/gguf/", CHECKPOINT + "locate", "master/src/cli/demo.rs"],
    ),
    (
        "how a matrix is packed, from shapes or numbers",
        r"\bpacked_shapes\b|\bpacked_format\b|\bAffine::new\(",
        [ENCODING, CHECKPOINT + "model/quantization/"],
    ),
    (
        # Plain and affine are what others become, too, on their way; these are known by those who make them or take them.
        "which encodings there are",
        r"\bEncoding::(Ggml|Apr|Fp8|Fp4|Integer|Bnb)\b",
        [
            ENCODING,
            # What formats of files, layouts and configurations call them,
            CHECKPOINT + "container/",
            CHECKPOINT + "layout/",
            CHECKPOINT + "model/quantization/",
            # which of them have kernels,
            ENGINE + "device/cpu/operand.rs",
            ENGINE + "device/cpu/gemm/",
            ENGINE + "device/candle/blocks.rs",
            # what they cost on a GPU,
            ENGINE + "options.rs",
            # what other formats write of them, and which of them no file has as they are.
            "common/transform/src/apr/plan.rs",
            "common/transform/src/gguf/form.rs",
            "common/transform/src/source.rs",
        ],
    ),
    (
        "what the parts of a matrix are called",
        r'"[^"]*\.?\b(scales|biases)"',
        [ENCODING],
    ),
    (
        "which processor has which kernel",
        r"\b(Tier|Isa)::(Portable|Avx2|Avx512|Avx512Bf16|Amx|Neon)\b",
        # `small.rs` is what Miri runs.
        [ENGINE + "device/cpu/isa/", ENGINE + "device/cpu/gemm/table.rs", ENGINE + "device/cpu/small.rs"],
    ),
]


def of_families():
    """The rule for files of families, which may have no line of another family; what several share has files that are none."""
    folder = CHECKPOINT + "model/family/"
    listed = re.findall(r"^    (\w+)::[A-Z]\w*,$", text_of(folder + "mod.rs"), re.MULTILINE)
    # A model whose text is one of several families' reads it as that family does: whole.
    pattern = rf"\b({'|'.join(sorted(set(listed)))})::(?!read\b)"
    return "what a family is", pattern, [folder + "mod.rs"], folder


def sources():
    for crate in ["common", "master", "worker", "proto"]:
        for folder, _, files in os.walk(os.path.join(ROOT, crate)):
            for name in sorted(files):
                path = os.path.relpath(os.path.join(folder, name), ROOT)
                if name.endswith(".rs") and "/src/" in path and not is_of_tests(path):
                    yield path


def is_of_tests(path):
    stem = path.removesuffix(".rs").split("/")
    return any(part in ("tests", "testing") or part.endswith("_tests") for part in stem) or is_a_test_of(path)


def is_a_test_of(path):
    """Whether the module above declares this file for tests only."""
    folder, name = os.path.split(path.removesuffix(".rs"))
    declared = re.compile(rf"^#\[cfg\((all\()?test\b.*\n(pub(\(\w+\))? )?mod {name};", re.MULTILINE)
    above = [folder + ".rs", *(os.path.join(folder, file) for file in ("mod.rs", "lib.rs", "main.rs"))]
    return any(declared.search(text_of(file)) for file in above if os.path.exists(os.path.join(ROOT, file)))


def text_of(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def lines(path):
    text = text_of(path)
    end = re.search(r"^#\[cfg\((all\()?test\b.*\n(pub(\(\w+\))? )?mod \w+ \{", text, re.MULTILINE)
    for number, line in enumerate(text[: end.start() if end else None].split("\n"), 1):
        yield number, re.sub(r"//.*", "", line)


def main():
    rules = [(*rule, "") for rule in RULES] + [of_families()]
    found, seen = 0, [0] * len(rules)
    for path in sources():
        for number, line in lines(path):
            for index, (what, pattern, homes, within) in enumerate(rules):
                if not path.startswith(within) or not re.search(pattern, line):
                    continue
                if any(path.startswith(home) for home in homes):
                    seen[index] += 1
                else:
                    found += 1
                    print(f"{path}:{number}: {what}, which only {', '.join(homes)} may say: {line.strip()}")
    for (what, pattern, *_), count in zip(rules, seen):
        if count == 0:
            found += 1
            print(f"nothing says {what}: the rule looks for {pattern}, which is nowhere")
    print(f"{found} facts beside their doors" if found else "every fact at its door")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
