"""GGUF files of models in tests/golden, and of one with blocks in latent attention, with reference outputs.

Usage: make_gguf_from_golden.py GOLDEN_DIR OUT_DIR --llama LLAMA_CPP [--only NAME,...]
LLAMA_CPP is llama.cpp's source (of llama-cpp-python 0.3.36). Needs torch, transformers 5.24, gguf, safetensors.

Each OUT_DIR/NAME: model.gguf, written by llama.cpp's convert_hf_to_gguf.py, and expected.json (README.md says what each key means). Of a
file in bf16 every tensor is compared with the golden's, to the bit, by names of this script: its answers are those of the golden. Of
one in blocks, which the gguf package makes of what the converter wrote, answers are transformers' on what the package decodes.
"""
import argparse, json, os, random, shutil, subprocess, sys, tempfile
os.environ["HF_HUB_OFFLINE"] = "1"
import numpy as np, torch
torch.set_num_threads(1)
from gguf import GGMLQuantizationType as T, GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize, quantize
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

# One of its own: heads as wide as blocks, queries made of the input, a stretched context.
LATENT = dict(model_type="deepseek_v3", hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=4, vocab_size=384, rms_norm_eps=1e-5,
              max_position_embeddings=256, tie_word_embeddings=False, moe_intermediate_size=32, n_routed_experts=8, num_experts_per_tok=2, n_shared_experts=1, first_k_dense_replace=1, n_group=2,
              topk_group=1, norm_topk_prob=True, routed_scaling_factor=2.5, q_lora_rank=None, kv_lora_rank=32, qk_rope_head_dim=16, qk_nope_head_dim=32, v_head_dim=32, bos_token_id=0, eos_token_id=1,
              rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=32, beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0))
# name -> (golden or configuration, how its matrices are stored: None as the converter has them)
ALL = {
  "lfm2-bf16": ("lfm2", None),
  "lfm2moe-bf16": ("lfm2-moe", None),
  "lfm2moe-q8_0": ("lfm2-moe", lambda name: T.Q8_0),
  "mistral3-bf16": ("mistral3", None),
  "granite-bf16": ("granite", None),
  "deepseek2-bf16": ("deepseek-v3", None),
  "deepseek2-flash-bf16": ("glm4-moe-lite", None),         # a layer that predicts further tokens behind the last
  "deepseek2-older-bf16": ("glm4-moe-lite", None),         # keys and values of a head in one, as files had them before they were kept apart
  "deepseek2-q4": (LATENT, lambda name: T.Q5_0 if "attn_k_b" in name else T.Q4_1 if "token_embd" in name else T.Q4_0 if "exps" in name or "attn_v_b" in name else T.Q8_0),
}

CONVERT = """
import runpy, sys
import conversion, conversion.base
from conversion.glm import Glm4MoeLiteModel
conversion.base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
Glm4MoeLiteModel.set_vocab = lambda self: self._set_vocab_gpt2()
sys.argv = ["convert", {src!r}, "--outfile", {dst!r}, "--outtype", {ty!r}]
runpy.run_path({script!r}, run_name="__main__")
"""
def convert(src, dst, ty):
    code = CONVERT.format(src=src, dst=dst, ty=ty, script=A.llama + "/convert_hf_to_gguf.py")
    r = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": f"{A.llama}:{A.llama}/gguf-py"})
    if r.returncode: raise RuntimeError(r.stderr[-1500:])

def rewrite(src, dst, kv=lambda key, value: value, tensors=lambda all: all, kind=None):
    """The file with other values under keys (None: without), and other tensors: (name, array, type)."""
    r = GGUFReader(src); arch = r.fields["general.architecture"].contents(); w = GGUFWriter(dst, arch)
    for f in r.fields.values():
        value = None if f.name.startswith("GGUF.") or f.name == "general.architecture" else kv(f.name, f.contents())
        if value is not None: w.add_key_value(f.name, value, f.types[0], f.types[-1] if f.types[0] == GGUFValueType.ARRAY else None)
    def shaped(t):
        shape = [int(x) for x in reversed(t.shape)]
        if t.tensor_type in (T.F32, T.F16): return t.data.reshape(shape)
        return t.data.reshape(shape[:-1] + [-1]) # Bytes of a row.
    for name, data, ty in tensors([(t.name, shaped(t), t.tensor_type) for t in r.tensors]):
        to = kind(name) if kind and data.ndim > 1 and name.endswith(".weight") and "ffn_gate_inp" not in name and "shortconv.conv" not in name else None
        if to is not None:
            numbers = dequantize(data, ty).astype(np.float32)
            if numbers.shape[-1] % 32 == 0: data, ty = quantize(numbers, to), to
        w.add_tensor(name, data, raw_dtype=ty)
    w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()

def older(src, dst, c):
    """Keys and values of latents as files had them: of each head the rows of keys, then of values."""
    H, nope, rope, v = (c[k] for k in ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    arch = "deepseek2."
    news = {arch + "attention.head_count_kv": H, arch + "attention.key_length": nope + rope, arch + "attention.value_length": v, arch + "attention.key_length_mla": None, arch + "attention.value_length_mla": None}
    def joined(all):
        at = {name: (data, ty) for name, data, ty in all}
        for name, data, ty in all:
            if name.endswith("attn_v_b.weight"): continue
            if name.endswith("attn_k_b.weight"):
                values, other = at[name.replace("k_b", "v_b")]; assert ty == other == T.BF16
                k, v = (x.view(np.uint16).reshape(H, x.shape[1], -1) for x in (data, values))
                both = np.concatenate([k.swapaxes(1, 2), v], 1)
                name, data = name.replace("attn_k_b", "attn_kv_b"), np.ascontiguousarray(both.reshape(-1, both.shape[-1])).view(np.uint8)
            yield name, data, ty
    rewrite(src, dst, lambda key, value: news.get(key, value), joined)

# ---- names, for the reference alone ----------------------------------------------------------------------------------
LLAMA = dict(attn_norm="input_layernorm", attn_q="self_attn.q_proj", attn_k="self_attn.k_proj", attn_v="self_attn.v_proj", attn_output="self_attn.o_proj", ffn_norm="post_attention_layernorm",
             ffn_gate="mlp.gate_proj", ffn_up="mlp.up_proj", ffn_down="mlp.down_proj")
LFM = dict(LLAMA, attn_norm="operator_norm", attn_output="self_attn.out_proj", attn_q_norm="self_attn.q_layernorm", attn_k_norm="self_attn.k_layernorm", ffn_norm="ffn_norm", ffn_gate="feed_forward.w1",
           ffn_up="feed_forward.w3", ffn_down="feed_forward.w2", ffn_gate_inp="feed_forward.gate", **{"shortconv.in_proj": "conv.in_proj", "shortconv.conv": "conv.conv", "shortconv.out_proj": "conv.out_proj"})
LATENTS = dict(LLAMA, attn_q_a="self_attn.q_a_proj", attn_q_a_norm="self_attn.q_a_layernorm", attn_q_b="self_attn.q_b_proj", attn_kv_a_mqa="self_attn.kv_a_proj_with_mqa", attn_kv_a_norm="self_attn.kv_a_layernorm",
               attn_kv_b="self_attn.kv_b_proj", ffn_gate_inp="mlp.gate", ffn_gate_shexp="mlp.shared_experts.gate_proj", ffn_up_shexp="mlp.shared_experts.up_proj", ffn_down_shexp="mlp.shared_experts.down_proj")
NAMES = {"lfm2": LFM, "lfm2moe": LFM, "deepseek2": LATENTS, "mistral3": LLAMA, "granite": LLAMA}
OUTER = {"token_embd.weight": "model.embed_tokens.weight", "output.weight": "lm_head.weight", "output_norm.weight": "model.norm.weight", "token_embd_norm.weight": "model.embedding_norm.weight"}
EXPERTS = {"lfm2moe": ("feed_forward.experts.", dict(gate="w1", up="w3", down="w2")), "deepseek2": ("mlp.experts.", dict(gate="gate_proj", up="up_proj", down="down_proj"))}
BIAS = {"lfm2moe": "feed_forward.expert_bias", "deepseek2": "mlp.gate.e_score_correction_bias"}
def on_the_hub(path, c):
    """Name -> f32 array as the Hub has it; without layers that predict further tokens."""
    r = GGUFReader(path); arch = r.fields["general.architecture"].contents(); out, halves = {}, {}
    for t in r.tensors:
        w = dequantize(t.data, t.tensor_type).astype(np.float32).reshape([int(x) for x in reversed(t.shape)])
        if not t.name.startswith("blk."): out[OUTER[t.name]] = w; continue
        _, i, leaf = t.name.split(".", 2); p = f"model.layers.{i}."
        if int(i) >= c["num_hidden_layers"]: continue
        module, suffix = leaf.rsplit(".", 1)
        if leaf == "exp_probs_b.bias": out[p + BIAS[arch]] = w; continue
        if module.endswith("_exps"):
            beginning, called = EXPERTS[arch]
            for e in range(w.shape[0]): out[f"{p}{beginning}{e}.{called[module[4:-5]]}.weight"] = w[e]
            continue
        if module in ("attn_k_b", "attn_v_b"): halves.setdefault(p, {})[module] = w; continue
        if arch in ("mistral3", "granite") and module in ("attn_q", "attn_k"):
            heads = c["num_attention_heads"] if module == "attn_q" else c["num_key_value_heads"]
            w = w.reshape(heads, w.shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(w.shape)
        if module == "shortconv.conv": w = w[:, None]
        out[f"{p}{NAMES[arch][module]}.{suffix}"] = w
    for p, w in halves.items():
        both = np.concatenate([w["attn_k_b"].swapaxes(1, 2), w["attn_v_b"]], 1)
        out[p + "self_attn.kv_b_proj.weight"] = both.reshape(-1, both.shape[-1])
    return {k: np.ascontiguousarray(v) for k, v in out.items()}

# ---- answers ---------------------------------------------------------------------------------------------------------
def greedy(model, prompt, n=24):
    cur, ids, lps, margins = list(prompt), [], [], []
    with torch.no_grad():
        first = model(torch.tensor([cur]), use_cache=False).logits[0].float()
        for _ in range(n):
            lp = torch.log_softmax(model(torch.tensor([cur]), use_cache=False).logits[0, -1].float(), -1); top = torch.topk(lp, 2); t = int(top.indices[0])
            ids.append(t); lps.append(round(float(top.values[0]), 6)); margins.append(float(top.values[0] - top.values[1])); cur.append(t)
    return first, ids, lps, margins
def answers(directory, seed):
    """Transformers' for the first prompt whose calls are not close."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval(); r = random.Random(seed)
    for _ in range(200):
        prompt = [0] + [r.randrange(4, 370) for _ in range(20)]; first, ids, lps, margins = greedy(model, prompt)
        if min(margins) >= 0.02 and len(set(ids)) >= 8: break
    else: raise SystemExit("every answer has a close call")
    return dict(prompt_ids=prompt, greedy_ids=ids, greedy_logprobs=lps, smallest_greedy_margin=round(min(margins), 6), prompt_top1=[int(x) for x in first.argmax(-1)],
                last_prompt_logits=[round(float(x), 5) for x in first[-1]], reference="transformers in f32 on the weights as the gguf package dequantizes them")
def random_model(kw, out, tokenizer_of):
    torch.manual_seed(11); g = torch.Generator().manual_seed(12); cfg = AutoConfig.for_model(**kw)
    model = AutoModelForCausalLM.from_config(cfg, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        for n, p in list(model.named_parameters()) + [(n, b) for n, b in model.named_buffers() if n.endswith("correction_bias")]:
            r = torch.randn(p.shape, generator=g)
            if n.endswith("correction_bias"): p.copy_(0.2 * r)
            elif p.dim() >= 2: p.copy_(r * (0.7 if "embed" in n else (3.0 if n.endswith("mlp.gate.weight") else 1.4) / p.shape[-1] ** 0.5))
            else: p.copy_(p + 0.15 * r)
    model.save_pretrained(out, safe_serialization=True)
    for f in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"): shutil.copy(f"{tokenizer_of}/{f}", out)
def make(name, source, kind):
    out = f"{A.out}/{name}"; shutil.rmtree(out, ignore_errors=True); os.makedirs(out); path = out + "/model.gguf"
    with tempfile.TemporaryDirectory() as tmp:
        src = tmp + "/random" if isinstance(source, dict) else f"{A.golden}/{source}"
        if isinstance(source, dict): random_model(source, src, f"{A.golden}/deepseek-v3")
        c = json.load(open(src + "/config.json")); text = c.get("text_config", c)
        if text is not c: text["architectures"] = ["Ministral3ForCausalLM"]
        plain = tmp + "/plain.gguf"; convert(src, plain, "f32" if kind else "bf16")
        if kind: rewrite(plain, path, kind=kind)
        elif "older" in name: older(plain, path, text)
        else: shutil.copy(plain, path)
        weights = on_the_hub(path, text)
        if kind:
            hf = tmp + "/hf"; shutil.copytree(src, hf); os.remove(hf + "/model.safetensors")
            save_file({k: torch.from_numpy(v) for k, v in weights.items()}, hf + "/model.safetensors", metadata={"format": "pt"})
            said = answers(hf, 11)
        else:
            golden = load_file(src + "/model.safetensors"); golden = {k.removeprefix("language_model."): v.float().numpy() for k, v in golden.items()}
            past = f"model.layers.{text['num_hidden_layers']}."
            golden = {k: v for k, v in golden.items() if not k.startswith((past, "vision_tower", "multi_modal")) and not (k == "lm_head.weight" and "lm_head.weight" not in weights)}
            assert golden.keys() == weights.keys(), golden.keys() ^ weights.keys()
            for k, v in golden.items(): assert np.array_equal(v, weights[k]), k
            e = json.load(open(src + "/expected.json")); logits = load_file(src + "/expected.safetensors")["logits"].float()
            said = {k: e[k] for k in ("prompt_ids", "greedy_ids", "greedy_logprobs", "smallest_greedy_margin", "prompt_top1")}
            said.update(last_prompt_logits=[round(float(x), 5) for x in logits[-1]], reference=f"tests/golden/{source}, whose weights these are to the bit")
    r = GGUFReader(path); kinds = {}
    for t in r.tensors: kinds[t.tensor_type.name] = kinds.get(t.tensor_type.name, 0) + 1
    said = dict(architecture=r.fields["general.architecture"].contents(), tensor_types=kinds, tokenizer_pre=r.fields["tokenizer.ggml.pre"].contents(), **said, hf_config=text, tokenizer_cases=[])
    json.dump(said, open(out + "/expected.json", "w"), indent=1)
    print(f"{name:22s} {os.path.getsize(path) / 1024:6.0f} KiB margin {said['smallest_greedy_margin']:.3f} {kinds}", flush=True)
if __name__ == "__main__":
    p = argparse.ArgumentParser(); p.add_argument("golden"); p.add_argument("out"); p.add_argument("--llama", required=True); p.add_argument("--only"); A = p.parse_args()
    for name, (source, kind) in ALL.items():
        if not A.only or name in A.only.split(","): make(name, source, kind)
