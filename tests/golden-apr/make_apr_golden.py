"""Make small APR files with the format's own crate, and what they must be read as and answer.

    cargo build --manifest-path tests/golden-apr/apr_golden/Cargo.toml --target-dir DIR
    make_apr_golden.py OUT --tool DIR/debug/apr-golden [--gguf DIRECTORY]     # in a venv of tests/golden/README.md, with gguf

Values come from an independent reader, here; ids by transformers, in f32 on the decoded weights. Without --gguf the file with
blocks of ggml is left out: DIRECTORY has a `model.gguf` of Llama's architecture by llama-quantize, and an `expected.json`
with its `hf_config`, `prompt_ids` and `greedy_ids`.
"""
import argparse, json, os, struct, subprocess, tempfile, zlib
os.environ["HF_HUB_OFFLINE"] = "1"
import numpy as np, torch
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize
from safetensors.numpy import load_file
from transformers import AutoConfig, AutoModelForCausalLM

torch.set_num_threads(1)
HERE = os.path.dirname(os.path.abspath(__file__))
parser = argparse.ArgumentParser()
parser.add_argument("out")
parser.add_argument("--tool", required=True)
parser.add_argument("--golden", default=os.path.join(HERE, "../golden/llama"))
parser.add_argument("--gguf")
A = parser.parse_args()
os.makedirs(A.out, exist_ok=True)

TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LEAF = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
        "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}


def decode(path):
    """An independent reader: header, metadata, tensors with their values."""
    b = open(path, "rb").read()
    assert b[:4] == b"APR\0"
    version = list(b[4:6])
    flags, count, meta_at, meta_bytes, index_at, data_at, crc = struct.unpack("<HIQIQQI", b[6:44])
    assert crc == zlib.crc32(b[:40] + b[44:64]) and struct.unpack("<I", b[-4:])[0] == zlib.crc32(b[:-4]), "checksums"
    meta, at, tensors = json.loads(b[meta_at:meta_at + meta_bytes]), index_at, []
    for _ in range(count):
        (length,) = struct.unpack("<H", b[at:at + 2])
        name, at = b[at + 2:at + 2 + length].decode(), at + 2 + length
        kind, rank = b[at], b[at + 1]
        shape, at = list(struct.unpack(f"<{rank}Q", b[at + 2:at + 2 + 8 * rank])), at + 2 + 8 * rank
        (offset, size), at = struct.unpack("<QQ", b[at:at + 16]), at + 16
        raw, elements = np.frombuffer(b[data_at + offset:data_at + offset + size], np.uint8), int(np.prod(shape))
        if kind == 0: v = raw.view(np.float32)
        elif kind == 1: v = raw.view(np.float16).astype(np.float32)
        elif kind == 30: v = (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        elif kind == 129: v = raw[4:].view(np.int8).astype(np.float32) * raw[:4].view(np.float32)[0]
        elif kind == 128:
            blocks = raw.reshape(-1, 18)
            d = blocks[:, :2].copy().view(np.float16).astype(np.float32)
            codes = np.stack([blocks[:, 2:] & 15, blocks[:, 2:] >> 4], -1).reshape(-1, 32).astype(np.float32) - 8
            v = (codes * d).reshape(-1)[:elements]
        else: v = dequantize(raw.reshape(shape[0], -1), GGMLQuantizationType(kind)).reshape(-1)
        tensors.append(dict(name=name, dtype_id=kind, shape=shape, offset=offset, size=size, crc32=f"{zlib.crc32(raw.tobytes()):08x}",
                            first=[float(x) for x in v[:6]], last=float(v[-1]), sum=float(v.astype(np.float64).sum()),
                            _v=v.reshape(shape).copy()))
    header = dict(version=version, flags=flags, tensor_count=count, metadata_offset=meta_at, metadata_size=meta_bytes,
                  tensor_index_offset=index_at, data_offset=data_at, header_crc=f"{crc:08x}",
                  footer_crc=f"{zlib.crc32(b[:-4]):08x}", file_bytes=len(b))
    return header, meta, tensors


def write(name, metadata, tensors, streaming=False):
    """`tensors`: name, kind, shape, bytes; those of f16, bf16, q8 and q4 are given as f32."""
    with tempfile.TemporaryDirectory() as tmp:
        data, rows, path = b"", [], f"{A.out}/{name}.apr"
        for tensor, kind, shape, raw in tensors:
            rows.append(dict(name=tensor, kind=kind, shape=[int(x) for x in shape], at=len(data), bytes=len(raw)))
            data += raw
        open(tmp + "/data", "wb").write(data)
        with open(tmp + "/manifest", "w") as file:
            json.dump(dict(metadata=metadata, data=tmp + "/data", streaming=streaming, tensors=rows), file)
        subprocess.run([A.tool, "write", tmp + "/manifest", path], check=True)
    seen = json.loads(subprocess.run([A.tool, "read", path], capture_output=True, text=True, check=True).stdout)
    header, meta, found = decode(path)
    assert [(t["name"], t["offset"], t["size"], t["shape"]) for t in found] == [(t["name"], t["offset"], t["size"], t["shape"]) for t in seen["tensors"]]
    assert seen["aligned"] and seen["required_file_len"] + 4 == seen["file_len"] == header["file_bytes"]
    return header, meta, found, seen


def greedy(config, tensors, prompt):
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    missing, extra = model.load_state_dict({t["name"]: torch.from_numpy(t["_v"]) for t in tensors}, strict=False)
    assert not extra and all(name == "lm_head.weight" for name in missing), (missing, extra)
    model.tie_weights()
    now, ids, logprobs, margins = list(prompt), [], [], []
    with torch.no_grad():
        for _ in range(24):
            best = torch.topk(torch.log_softmax(model(torch.tensor([now]), use_cache=False).logits[0, -1], -1), 2)
            ids.append(int(best.indices[0]))
            logprobs.append(round(float(best.values[0]), 6))
            margins.append(float(best.values[0] - best.values[1]))
            now.append(ids[-1])
    return ids, logprobs, min(margins)


def finish(name, config, prompt, written, note):
    header, meta, tensors, seen = written
    ids, logprobs, margin = greedy(config, tensors, prompt)
    said = dict(note=note, header=header, metadata_keys=sorted(meta),
                crate={key: seen[key] for key in ("version", "flags", "data_offset", "required_file_len", "file_len")},
                tensors=[{key: value for key, value in t.items() if key != "_v"} for t in tensors], prompt_ids=prompt,
                greedy_ids=ids, greedy_logprobs=logprobs, smallest_greedy_margin=round(margin, 6),
                reference="transformers in f32 on the decoded values")
    with open(f"{A.out}/{name}.json", "w") as file:
        json.dump(said, file, indent=1)
    print(f"{name:16s} {header['file_bytes']:8d} bytes, kinds {sorted({t['dtype_id'] for t in tensors})}, smallest margin {margin:.4f}")
    return ids


def metadata(c, vocabulary, merges, template, **more):
    return dict(model_type="llama", name="tiny llama", architecture="llama", hf_architecture="LlamaForCausalLM", hf_model_type="llama",
                original_format="safetensors", hidden_size=c.hidden_size, num_layers=c.num_hidden_layers, num_heads=c.num_attention_heads,
                num_kv_heads=c.num_key_value_heads, vocab_size=c.vocab_size, intermediate_size=c.intermediate_size,
                max_position_embeddings=c.max_position_embeddings, rope_theta=float(c.rope_parameters["rope_theta"]), rope_type=2,
                rms_norm_eps=c.rms_norm_eps, head_dim=c.head_dim, param_count=0, total_size=0, chat_template=template,
                special_tokens=dict(bos_token="<|begin_of_text|>", eos_token="<|eot_id|>"),
                **{"tokenizer.vocabulary": vocabulary, "tokenizer.merges": merges, "tokenizer.model_type": "BPE"}, **more)


config = AutoConfig.from_pretrained(A.golden)
weights = load_file(A.golden + "/model.safetensors")
expected = json.load(open(A.golden + "/expected.json"))
model = json.load(open(A.golden + "/tokenizer.json"))["model"]
template = open(A.golden + "/chat_template.jinja").read() if os.path.exists(A.golden + "/chat_template.jinja") \
    else json.load(open(A.golden + "/tokenizer_config.json")).get("chat_template")
vocabulary = [token for token, _ in sorted(model["vocab"].items(), key=lambda entry: entry[1])]
merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
M = metadata(config, vocabulary, merges, template)
f32 = lambda w: np.ascontiguousarray(w.astype(np.float32)).tobytes()
rows = lambda names, kind: [(n, kind(n), weights[n].shape, f32(weights[n])) for n in names]
prompt = expected["prompt_ids"]

ids = finish("llama-f32", config, prompt, write("llama-f32", M, rows(weights, lambda _: "f32")), "in-memory writer; the weights of golden/llama")
assert ids == expected["greedy_ids"]
kind = lambda n: "f32" if "norm" in n else "f16" if "attn" in n or "embed" in n else "bf16"
finish("llama-f16-bf16", config, prompt, write("llama-f16-bf16", M, rows(sorted(weights, reverse=True), kind), streaming=True),
       "streaming writer: the index is sorted, the data lie in the order added (here reversed), so offsets fall")
kind = lambda n: "f32" if "norm" in n else "q8" if "attn" in n or "embed" in n or "lm_head" in n else "q4"
M8 = {**M, "quantization": dict(quant_type="int4", bits=4, block_size=32, symmetric=True)}
finish("llama-q8-q4", config, prompt, write("llama-q8-q4", M8, rows(weights, kind)),
       "AprQ8 (one scale for a tensor) and AprQ4 (blocks of 32, even element in the low nibble)")

if A.gguf:
    # Blocks are copied as they are; rows of queries and keys go back to the Hub's order, and are whole blocks.
    reader, expected = GGUFReader(A.gguf + "/model.gguf"), json.load(open(A.gguf + "/expected.json"))
    field = lambda key: reader.fields[key].contents()
    c, all_rows = AutoConfig.for_model(**expected["hf_config"]), []
    for t in reader.tensors:
        name, suffix = t.name.rsplit(".", 1)
        if name == "rope_freqs": continue
        raw, shape = np.asarray(t.data), [int(x) for x in reversed(t.shape)]
        if name.startswith("blk."):
            _, layer, leaf = name.split(".", 2)
            name = f"model.layers.{layer}.{LEAF[leaf]}"
            if leaf in ("attn_q", "attn_k"):
                heads = c.num_attention_heads if leaf == "attn_q" else c.num_key_value_heads
                raw = raw.reshape(heads, raw.shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(raw.shape)
        else: name = TOP[name]
        kind = {"F32": "f32", "Q4_K": "q4_k", "Q6_K": "q6_k"}[t.tensor_type.name]
        all_rows.append((f"{name}.{suffix}", kind, shape, np.ascontiguousarray(raw).tobytes()))
    scaling = {key: value for key, value in c.rope_parameters.items() if key != "rope_theta"}
    M4 = metadata(c, field("tokenizer.ggml.tokens"), field("tokenizer.ggml.merges"), field("tokenizer.chat_template"), rope_scaling=scaling)
    M4["original_format"] = "gguf"
    ids = finish("llama3-q4k", c, expected["prompt_ids"], write("llama3-q4k", M4, all_rows),
                 "raw Q4_K and Q6_K super-blocks of a GGUF file by llama-quantize; custom key rope_scaling; tied head")
    assert ids == expected["greedy_ids"]
