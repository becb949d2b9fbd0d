#!/usr/bin/env python3
"""Reads GGUF files with the `gguf` package and compares them with the models in the Hub's layout that they were made of:
every tensor, and the keys that follow from `config.json`; with --llama also what llama.cpp answers with golden ids.

    gguf_check.py [--llama] FILE.gguf MODEL_DIRECTORY
    gguf_check.py [--llama] --golden DIRECTORY    # of files NAME-TYPE.gguf, each of a model of tests/golden

Needs numpy and gguf, for --llama also llama-cpp-python. Numbers of quantized tensors may be off by what their blocks
allow; llama.cpp computes with other roundings of its own unless all is F32, so its ids count for F32 and F16 only.
Ends with 1 if anything differs.
"""

import json
import os
import struct
import sys

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFReader
from gguf.quants import dequantize

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden")

ARCHS = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3moe",
    "Gemma3ForCausalLM": "gemma3",
    "Phi3ForCausalLM": "phi3",
}
KEYS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "vocab_size": "vocab_size",
    "expert_count": "num_local_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}
LEAVES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
}
OF_ARCH = {
    "gemma3": {
        "ffn_norm": "pre_feedforward_layernorm",
        "post_attention_norm": "post_attention_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
    "phi3": {"ffn_up": "mlp.gate_up_proj"},
}
OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
# How far a number may be off, in parts of the largest of its tensor.
ALLOWED = {Type.F32: 1e-6, Type.F16: 1 / 1024, Type.BF16: 1 / 128, Type.Q8_0: 1 / 127, Type.Q4_0: 1 / 7}


class Hub:
    """A model in the Hub's layout: tensors as F32, packed ones unpacked."""

    def __init__(self, directory):
        with open(os.path.join(directory, "config.json"), encoding="utf-8") as file:
            self.config = json.load(file)
        self.config.setdefault("num_local_experts", self.config.get("num_experts"))
        self.stored = {}
        for name in sorted(os.listdir(directory)):
            if name.startswith("model") and name.endswith(".safetensors"):
                self.read(os.path.join(directory, name))

    def read(self, path):
        with open(path, "rb") as file:
            bytes_ = file.read()
        (length,) = struct.unpack("<Q", bytes_[:8])
        for name, info in json.loads(bytes_[8 : 8 + length]).items():
            if name != "__metadata__":
                start, end = (8 + length + at for at in info["data_offsets"])
                self.stored[name] = (info["dtype"], info["shape"], bytes_[start:end])

    def plain(self, name):
        dtype, shape, bytes_ = self.stored[name]
        if dtype == "BF16":
            wide = np.frombuffer(bytes_, "<u2").astype("<u4") << 16
            return wide.view("<f4").reshape(shape)
        return np.frombuffer(bytes_, {"F32": "<f4", "F16": "<f2", "U32": "<u4"}[dtype]).reshape(shape)

    def tensor(self, name):
        module = name.removesuffix(".weight")
        if f"{module}.scales" not in self.stored:
            return self.plain(name).astype(np.float32)
        quantization = self.config["quantization"]
        quantization = quantization.get(module) or quantization
        bits, group = quantization["bits"], quantization["group_size"]
        words = self.plain(name)
        codes = words[..., None] >> np.arange(0, 32, bits, dtype=np.uint32) & (2**bits - 1)
        codes = codes.reshape(*words.shape[:-1], -1, group).astype(np.float32)
        scales, biases = (self.plain(f"{module}.{part}").astype(np.float32) for part in ("scales", "biases"))
        return (codes * scales[..., None] + biases[..., None]).reshape(*words.shape[:-1], -1)

    def experts(self, prefix, leaf):
        """What all experts of a layer have there, and in how many tensors."""
        of_all = f"{prefix}mlp.switch_mlp.{leaf}.weight"
        if of_all in self.stored:
            return self.tensor(of_all), 1
        names = [f"{prefix}mlp.experts.{index}.{leaf}.weight" for index in range(self.config["num_local_experts"])]
        return np.stack([self.tensor(name) for name in names]), len(names)


class File:
    """A GGUF file."""

    def __init__(self, path):
        reader = GGUFReader(path)
        self.keys = {key: field.contents() for key, field in reader.fields.items()}
        self.arch = self.keys["general.architecture"]
        self.tensors = reader.tensors

    def key(self, key):
        return self.keys.get(f"{self.arch}.{key}")

    def values(self, tensor):
        shape = [int(size) for size in reversed(tensor.shape)]
        return dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(shape)


def halves(values, heads):
    """Rows of heads from pairs to halves."""
    half = len(values) // heads // 2
    return values.reshape(heads, half, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def of_hub(file, hub, name):
    """What the file's tensor of that name is in the Hub's layout, and which tensors it takes."""
    module, ending = name.rsplit(".", 1)
    if not module.startswith("blk."):
        return hub.tensor(f"{OUTER[module]}.{ending}"), 1
    _, layer, leaf = module.split(".")
    prefix = f"model.layers.{layer}."
    if leaf.endswith("_exps"):
        return hub.experts(prefix, f"{leaf[4:-5]}_proj")
    leaf = {**LEAVES, **OF_ARCH.get(file.arch, {})}[leaf]
    return hub.tensor(f"{prefix}{leaf}.{ending}"), 1


def check_tensors(file, hub):
    taken = 0
    for tensor in file.tensors:
        name, found = tensor.name, file.values(tensor)
        if name == "rope_freqs.weight":
            yield from check_divisors(file, hub, found)
            continue
        expected, count = of_hub(file, hub, name)
        taken += count
        if file.arch == "llama" and name.startswith("blk.") and name.split(".")[2] in ("attn_q", "attn_k"):
            of_keys = "_kv" if ".attn_k." in name else ""
            found = halves(found, file.key(f"attention.head_count{of_keys}"))
        if file.arch == "gemma3" and "norm" in name:
            found = found - 1
        if found.shape != expected.shape:
            yield f"{name} has the shape {found.shape}, not {expected.shape}"
            continue
        off = float(np.abs(found - expected).max() / max(np.abs(expected).max(), 1.0 if "norm" in name else 0))
        if not off <= ALLOWED[tensor.tensor_type]:
            yield f"{name} ({tensor.tensor_type.name}) is off by {off} of its largest number"
    parts = (".scales", ".biases")
    stored = [name for name in hub.stored if not name.endswith(parts)]
    if taken != len(stored):
        yield f"the file has {taken} tensors of the model, which has {len(stored)}"


def check_divisors(file, hub, found):
    """The frequencies as `transformers` computes them for Llama 3."""
    rope = hub.config.get("rope_scaling") or hub.config["rope_parameters"]
    theta = hub.config.get("rope_theta") or rope["rope_theta"]
    frequencies = theta ** -(np.arange(len(found)) / len(found))
    turns = rope["original_max_position_embeddings"] * frequencies / (2 * np.pi)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    kept = np.clip((turns - low) / (high - low), 0, 1)
    expected = 1 / ((1 - kept) / rope["factor"] + kept)
    if not np.allclose(found, expected, rtol=1e-5):
        yield f"rope_freqs.weight is {found}, not {expected}"


def check_keys(file, hub):
    arch = ARCHS[hub.config["architectures"][0]]
    if file.arch != arch:
        yield f"the architecture is {file.arch}, not {arch}"
    for key, field in KEYS.items():
        expected, found = hub.config.get(field), file.key(key)
        if expected is not None and (found is None or abs(found - expected) > 1e-6 * expected):
            yield f"{key} is {found}, not {expected} ({field})"
    rope = hub.config.get("rope_parameters") or {}
    rope = rope.get("full_attention") or rope
    theta = hub.config.get("rope_theta") or rope.get("rope_theta")
    if file.key("rope.freq_base") != theta:
        yield f"rope.freq_base is {file.key('rope.freq_base')}, not {theta}"
    tokens = file.keys["tokenizer.ggml.tokens"]
    if len(tokens) != hub.config["vocab_size"] or len(set(tokens)) != len(tokens):
        yield f"{len(tokens)} tokens, {len(set(tokens))} different ones, {hub.config['vocab_size']} rows"
    if file.keys.get("tokenizer.ggml.eos_token_id") != hub.config["eos_token_id"]:
        yield f"the end token is {file.keys.get('tokenizer.ggml.eos_token_id')}"


def check_llama(path, file, directory, config):
    """What llama.cpp answers."""
    # Rounding of activations: beside these types only, no golden model has a call that close.
    if file.keys["general.file_type"] not in (0, 1):
        return
    windows = any(kind == "sliding_attention" for kind in config.get("layer_types") or [])
    if config.get("sliding_window") and not windows:
        print(f"{os.path.basename(path)}: llama.cpp does not know of its windows")
        return
    with open(os.path.join(directory, "expected.json"), encoding="utf-8") as text:
        expected = json.load(text)
    from llama_cpp import GGML_TYPE_F32, Llama

    prompt, answer = expected["prompt_ids"], expected["greedy_ids"]
    options = {"n_threads": 1, "n_threads_batch": 1, "type_k": GGML_TYPE_F32, "type_v": GGML_TYPE_F32}
    model = Llama(path, n_ctx=256, logits_all=True, swa_full=True, verbose=False, **options)
    found, ids = [], prompt
    for _ in answer:
        model.eval(ids)
        found.append(int(np.argmax(model.scores[model.n_tokens - 1])))
        ids = found[-1:]
    if found != answer:
        yield f"llama.cpp answers {found}, not {answer}"


def check(path, directory, llama):
    file, hub = File(path), Hub(directory)
    found = [*check_keys(file, hub), *check_tensors(file, hub)]
    if llama:
        found += check_llama(path, file, directory, hub.config)
    for sentence in found:
        print(f"{os.path.basename(path)}: {sentence}")
    return not found


def main(arguments):
    llama = "--llama" in arguments
    arguments = [argument for argument in arguments if argument != "--llama"]
    match arguments:
        case ["--golden", directory]:
            files = sorted(name for name in os.listdir(directory) if name.endswith(".gguf"))
            models = [os.path.join(GOLDEN, name.removesuffix(".gguf").rsplit("-", 1)[0]) for name in files]
            pairs = [(os.path.join(directory, name), model) for name, model in zip(files, models)]
        case [path, directory]:
            pairs = [(path, directory)]
        case _:
            sys.exit(__doc__)
    good = sum(check(path, directory, llama) for path, directory in pairs)
    print(f"{good} of {len(pairs)} files are what they were made of")
    sys.exit(0 if good == len(pairs) > 0 else 1)


if __name__ == "__main__":
    main(sys.argv[1:])
