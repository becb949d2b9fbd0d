"""What transformers answers with the weights of a real GGUF file, and whether our programs answer the same.

    python3 -m venv DIR/venv
    DIR/venv/bin/pip install torch transformers safetensors gguf
    DIR/venv/bin/python tests/real/reference.py make FILE.gguf tests/real/NAME.json
    DIR/venv/bin/python tests/real/reference.py compare FILE.gguf tests/real/NAME.json target/release/cake-master

`make` has the `gguf` package dequantize the file and transformers continue six plain prompts by 48 tokens, greedily and in
f32, end tokens or not; NAME.json keeps ids and texts, the file's SHA-256, and how near the closest call was.
`compare` has `cake-master run` do the same straight from the file, or from a directory in its place such as the one that
`tests/golden-gguf/gguf_to_hf.py` makes of it, and fails if one token differs. README.md says where the files come from.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "golden-gguf"))

TOKENS = 48
PROMPTS = [
    "The capital of France is",
    "Once upon a time there was a small baker who",
    "Water boils at a lower temperature in the mountains because",
    "Dear Sir or Madam,\n\nI am writing to you about",
    "def fibonacci(n):\n    ",
    "Die drei größten Städte Deutschlands sind",
]


def make(file, out):
    import torch
    import transformers
    from gguf_to_hf import hf_tokenizer, write
    from transformers import AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as directory:
        tokenizer = hf_tokenizer(write(str(file), directory))
        model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    answers = [answer(model, tokenizer, prompt) for prompt in PROMPTS]
    said = {
        "file": file.name,
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        "made_with": f"transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}",
        "answers": answers,
    }
    out.write_text(json.dumps(said, ensure_ascii=False).replace('{"prompt":', '\n{"prompt":') + "\n")
    print(f"{out}: {len(answers)} answers, the closest call by {min(a['closest'] for a in answers):.4f}")


def answer(model, tokenizer, prompt):
    """The greedy answer to one prompt: ids, text, and the least distance of a chosen logit from the next one."""
    import torch

    prompt_ids = tokenizer.encode(prompt).ids
    output_ids, closest = [], float("inf")
    with torch.no_grad():
        for _ in range(TOKENS):
            # All of it anew for each token: no cache, of which releases have thought differently.
            logits = model(torch.tensor([prompt_ids + output_ids]), logits_to_keep=1).logits[0, -1]
            (first, second), ids = logits.topk(2)
            closest = min(closest, float(first - second))
            output_ids.append(int(ids[0]))
    text = tokenizer.decode(output_ids)
    print(f"{prompt!r}: {text!r}", flush=True)
    return {"prompt": prompt, "prompt_ids": prompt_ids, "output_ids": output_ids, "text": text, "closest": closest}


def compare(model, reference, master, numerics):
    wrong = 0
    for expected in json.loads(reference.read_text())["answers"]:
        command = [master, "run", model, "--alone", "--raw", "--temperature", "0", "--ignore-eos", "--json"]
        command += ["--max-tokens", str(TOKENS), "--numerics", numerics, "--", expected["prompt"]]
        said = subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True)
        said = json.loads(said.stdout)
        same = all(said[ids] == expected[ids] for ids in ["prompt_ids", "output_ids"])
        equal = sum(a == b for a, b in zip(said["output_ids"], expected["output_ids"]))
        print(f"{equal} of {TOKENS} tokens equal: {expected['prompt']!r}", flush=True)
        if not same:
            wrong += 1
            print(f"  expected {expected['prompt_ids']} -> {expected['output_ids']}")
            print(f"  found {said['prompt_ids']} -> {said['output_ids']}")
    if wrong:
        sys.exit(f"{wrong} answers differ")
    print("all equal")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ["make", "compare"]:
        command = commands.add_parser(name)
        command.add_argument("model", type=Path)
        command.add_argument("reference", type=Path)
    command.add_argument("master", type=Path)
    command.add_argument("--numerics", choices=["exact", "fast"], default="exact")
    arguments = parser.parse_args()
    if arguments.command == "make":
        make(arguments.model, arguments.reference)
    else:
        compare(arguments.model, arguments.reference, arguments.master, arguments.numerics)


if __name__ == "__main__":
    main()
