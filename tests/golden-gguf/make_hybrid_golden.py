"""GGUF files of Qwen's hybrids, with reference outputs.

Usage: make_hybrid_golden.py OUT_DIR [--only NAME,...] [--peers DIR]
PEERS holds llama.cpp's source (llama.cpp); its converter writes the files, the gguf package the blocks of q4_0. What is made of a directory in
../golden has that one's answers, as its weights are the same; the others are asked of transformers, on the weights as the gguf package decodes them.
"""
import json, os, shutil, sys, tempfile
import make_gguf_golden as M
import gguf_to_hf as G
import numpy as np, torch
from gguf import GGMLQuantizationType as Q, GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import quantize
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

HERE = os.path.dirname(os.path.abspath(__file__)); GOLDEN = os.path.join(HERE, "..", "golden")
RANDOM = dict(model_type="qwen3_5_moe_text", **M.base(64, 32, 4, 4, 2, 16), moe_intermediate_size=32, shared_expert_intermediate_size=32, num_experts=6, num_experts_per_tok=2, linear_num_key_heads=2, linear_num_value_heads=6, linear_key_head_dim=16,
              linear_value_head_dim=16, linear_conv_kernel_dim=4, layer_types=["linear_attention", "full_attention", "linear_attention", "linear_attention"], rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5, mrope_section=[2, 1, 1], mrope_interleaved=True))
# name -> (directory in ../golden or a configuration, --outtype, whether layers that predict further tokens are in it, blocks made of the result)
FILES = {
  "qwen35-bf16":        ("qwen3_5", "bf16", False, None),
  "qwen35-mtp-f32":     ("qwen3_5", "f32", True, None),
  "qwen35-q4_0":        ("qwen3_5", "f32", False, Q.Q4_0),      # heads of 16: a block has numbers of two
  "qwen35moe-bf16":     ("qwen3_5-moe", "bf16", False, None),
  "qwen35moe-q8_0":     (RANDOM, "q8_0", False, None),          # three heads of values for each of keys, layers of no interval
  "qwen3next-bf16":     ("qwen3-next", "bf16", False, None),
}
CONVERT = M.CONVERT.replace("{ty!r}]", "{ty!r}] + {more!r}")
def convert(src, dst, ty, mtp):
    L = A.peers + "/llama.cpp"; more = [] if mtp else ["--no-mtp"]
    M.sh(sys.executable, "-c", CONVERT.format(pre="qwen35", src=src, dst=dst, ty=ty, more=more, script=L + "/convert_hf_to_gguf.py"), env={"PYTHONPATH": f"{L}:{L}/gguf-py"})
def add_mtp(path, seed):
    """What published files have beside: one more layer, and what comes before and after it."""
    w = load_file(path); g = torch.Generator().manual_seed(seed); last = max(int(k.split(".")[2]) for k in w if "self_attn.q_proj" in k); H = w["model.norm.weight"].shape[0]
    own = {k.replace(f"model.layers.{last}.", "mtp.layers.0."): v for k, v in w.items() if k.startswith(f"model.layers.{last}.")}
    own.update({"mtp.fc.weight": torch.empty(H, 2 * H), **{f"mtp.{n}.weight": torch.empty(H) for n in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")}})
    w.update({k: (0.1 * torch.randn(v.shape, generator=g)).to(torch.bfloat16) for k, v in own.items()}); save_file(w, path, metadata={"format": "pt"})
def blocks(src, dst, kind):
    """The same with matrices of whole blocks in `kind`; convolutions, routers and vectors stay."""
    r = GGUFReader(src); w = GGUFWriter(dst, r.fields["general.architecture"].contents())
    for f in r.fields.values():
        if f.name.startswith("GGUF.") or f.name == "general.architecture": continue
        w.add_key_value(f.name, f.contents(), f.types[0], f.types[-1] if f.types[0] == GGUFValueType.ARRAY else None)
    for t in r.tensors:
        plain = len(t.shape) < 2 or int(t.shape[0]) % 32 or "conv1d" in t.name or "gate_inp" in t.name
        if plain: w.add_tensor(t.name, t.data, raw_dtype=t.tensor_type)
        else: w.add_tensor(t.name, quantize(t.data.astype(np.float32), kind), raw_dtype=kind)
    w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()
def random_model(src, seed):
    torch.manual_seed(seed); cfg = AutoConfig.for_model(**dict(RANDOM)); cfg.bos_token_id, cfg.eos_token_id = 0, 1
    model = AutoModelForCausalLM.from_config(cfg, dtype=torch.float32); g = torch.Generator().manual_seed(seed + 1)
    def spread(p, low, high): return low * (high / low) ** torch.rand(p.shape, generator=g)
    with torch.no_grad():
        for n, p in model.named_parameters():
            if n.endswith("A_log"): p.copy_(spread(p, 0.5, 8).log())
            elif n.endswith("dt_bias"): p.copy_(torch.log(torch.expm1(spread(p, 0.005, 0.1))))
            elif p.dim() >= 2: p.copy_(torch.randn(p.shape, generator=g) * (0.7 if "embed_tokens" in n else 0.5 if "conv1d" in n else (0.5 if "in_proj_a" in n else 1.4) / p.shape[-1] ** 0.5))
            else: p.copy_(p + 0.15 * torch.randn(p.shape, generator=g))
    model.save_pretrained(src, safe_serialization=True); M.tokenizer(src, "qwen35"); return cfg
def text_config(directory):
    c = json.load(open(f"{directory}/config.json")); c = {**c.get("text_config", c), "architectures": [c["architectures"][0].replace("ForConditionalGeneration", "ForCausalLM")]}
    return {**c, "bos_token_id": 0, "eos_token_id": 1}
def is_the_same(g, src):
    """Whether the file has the weights that it was made of, by the independent way back."""
    found, own = G.hf_weights(g), {k.replace("model.language_model.", "model."): v.float().numpy() for k, v in load_file(src + "/model.safetensors").items()}
    for k in [k for k in own if k.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        w, p = own.pop(k), k.rsplit(".", 1)[0]
        for e in range(w.shape[0]):
            for n, x in ((("gate_proj", w[e][:w.shape[1] // 2]), ("up_proj", w[e][w.shape[1] // 2:])) if "gate_up" in k else (("down_proj", w[e]),)): own[f"{p}.{e}.{n}.weight"] = x
    own = {k: v for k, v in own.items() if not k.startswith(("mtp.", "model.visual."))}; assert own.keys() == found.keys(), own.keys() ^ found.keys()
    for k, v in own.items(): assert v.shape == found[k].shape and np.allclose(v, found[k], rtol=1e-6, atol=1e-6), k
def make(name, spec, root, seed):
    of, ty, mtp, kind = spec; out = os.path.join(root, name); shutil.rmtree(out, ignore_errors=True); os.makedirs(out); tmp = tempfile.mkdtemp(); src = tmp + "/hf"
    try:
        if isinstance(of, str):
            shutil.copytree(f"{GOLDEN}/{of}", src); config = text_config(src)
            if mtp: add_mtp(src + "/model.safetensors", seed)
        else: os.makedirs(src); config = json.loads(random_model(src, seed).to_json_string(use_diff=True)); config["architectures"] = ["Qwen3_5MoeForCausalLM"]
        path = out + "/model.gguf"; made = tmp + "/a.gguf" if kind else path; convert(src, made, ty, mtp)
        if kind: blocks(made, path, kind)
        g = G.Gguf(path)
        if isinstance(of, str): is_the_same(G.Gguf(made), src)
        if isinstance(of, str) and not kind:
            e = json.load(open(src + "/expected.json")); logits = load_file(src + "/expected.safetensors")["logits"]; reference = f"that of ../golden/{of}, of the same weights"
            said = {k: e[k] for k in ("prompt_ids", "greedy_ids", "greedy_logprobs", "smallest_greedy_margin", "prompt_top1")}
        else:
            W = G.hf_weights(g); cfg = AutoConfig.for_model(**G.hf_config(g, list(W))); ref = M.load(cfg, W); rnd = M.random.Random(seed); real = 560 if not isinstance(of, str) else 360
            for _ in range(400):
                prompt = [0] + [rnd.randrange(4, real) for _ in range(20)]; logits, ids, lps, mg = M.greedy(ref, prompt)
                if min(mg) >= 0.02 and len(set(ids)) >= 8: break
            else: raise RuntimeError("every prompt has a close call")
            reference = "transformers in f32 on the weights as the gguf package dequantizes them"
            said = dict(prompt_ids=prompt, greedy_ids=ids, greedy_logprobs=lps, smallest_greedy_margin=round(min(mg), 6), prompt_top1=[int(x) for x in logits.argmax(-1)])
        kinds = {}
        for t in g.readers[0].tensors: kinds[t.tensor_type.name] = kinds.get(t.tensor_type.name, 0) + 1
        json.dump(dict(architecture=g.arch, tensor_types=kinds, tokenizer_pre=g.get("tokenizer.ggml.pre"), **said, last_prompt_logits=[round(float(x), 5) for x in logits.reshape(-1, logits.shape[-1])[-1]], reference=reference, hf_config=config, tokenizer_cases=[],
            chat=dict(messages=[{"role": "user", "content": "Hi"}], text="<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")), open(out + "/expected.json", "w"), indent=1, ensure_ascii=True)
        print(f"{name:18s} {os.path.getsize(path) / 1024:6.0f} KiB margin {said['smallest_greedy_margin']:.3f} {kinds}", flush=True)
    finally: shutil.rmtree(tmp, ignore_errors=True)
if __name__ == "__main__":
    import argparse
    p = argparse.ArgumentParser(); p.add_argument("out"); p.add_argument("--only"); p.add_argument("--peers", default="."); A = p.parse_args()
    for i, (name, spec) in enumerate(FILES.items()):
        if A.only and name not in A.only.split(","): continue
        try: make(name, spec, A.out, 31 + 100 * i)
        except Exception as e: print(f"{name:18s} FAILED {type(e).__name__}: {str(e)[-900:]}", flush=True)
