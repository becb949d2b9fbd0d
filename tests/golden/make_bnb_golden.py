"""Make tiny checkpoints in 4 bits of bitsandbytes, and their expected outputs: bitsandbytes packs them through transformers, on the
processor, and its `dequantize_4bit` unpacks what was saved, in f32, for the reference, which is transformers in f32 on that.

Usage: make_bnb_golden.py OUT_DIR --seed N        (torch, transformers, safetensors, tokenizers, accelerate, bitsandbytes)
"""
import argparse, copy, glob, json, os, shutil, sys
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from bitsandbytes.functional import QuantState, dequantize_4bit
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import make_golden as G
import make_quantized_golden as Q

# Rows of the last matrix of a layer have five blocks, so that the 256 whose magnitudes are packed together end inside of one.
B = dict(hidden_size=128, intermediate_size=320, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
         vocab_size=G.VOCAB, rms_norm_eps=1e-5, max_position_embeddings=256, tie_word_embeddings=False)
P = {
  "llama-nf4":       (dict(model_type="llama", **B), dict(bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)),
  "qwen2-nf4-plain": (dict(model_type="qwen2", **B), dict(bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=False)),
}

def unpacked(path):
    """All weights of a file in f32, by the reference's functions."""
    tensors, weights = load_file(path), {}
    for name, tensor in tensors.items():
        beside = {k[len(name) + 1:]: v for k, v in tensors.items() if k.startswith(name + ".")}
        if beside:
            state = QuantState.from_dict(beside, torch.device("cpu"))
            state.dtype = torch.float32     # Else weights are rounded to the type that they had before.
            tensor = dequantize_4bit(tensor, state)
        if ".weight." not in name: weights[name] = tensor.float()
    return weights

def make(name, spec, root, seed, tries=30):
    kw, q = spec; out, src = os.path.join(root, name), os.path.join(root, name + "-src")
    for path in (out, src): shutil.rmtree(path, ignore_errors=True)
    cfg, m = Q.init(kw, seed)
    copy.deepcopy(m).to(torch.bfloat16).save_pretrained(src)    # a copy: rounding buffers would bend RoPE
    quant = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16, **q)
    AutoModelForCausalLM.from_pretrained(src, dtype=torch.bfloat16, quantization_config=quant, device_map="cpu").save_pretrained(out)
    shutil.rmtree(src)
    path = out + "/config.json"; c = G.to_v4(json.load(open(path))); json.dump(c, open(path, "w"), indent=2)
    tok = G.tokenizer(out, 256)
    left = m.load_state_dict(unpacked(out + "/model.safetensors"), strict=False); assert not any(left), left
    note = "bitsandbytes through transformers; transformers f32 on bitsandbytes.functional.dequantize_4bit of its weights"
    margin, distinct = Q.expected(m, tok, out, seed, note)
    if tries and (margin < 0.01 or distinct < 8): return make(name, spec, root, seed + 1000, tries - 1)
    print(f"{name:18s} {sum(os.path.getsize(f) for f in glob.glob(out + '/*'))/1024:6.0f} KiB margin={margin:.4f} distinct={distinct}", flush=True)

p = argparse.ArgumentParser(); p.add_argument("out"); p.add_argument("--seed", type=int, default=1); a = p.parse_args()
for i, (n, s) in enumerate(P.items()): make(n, s, a.out, a.seed + 100 * i)
