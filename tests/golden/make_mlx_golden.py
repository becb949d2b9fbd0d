"""Make tiny checkpoints packed by MLX of families whose files mlx-lm writes in another form than the Hub's: other names, turned
or joined matrices, factors multiplied into weights.

Usage: make_mlx_golden.py OUT_DIR --seed N [--only NAME,...]
Needs what make_golden_more.py and make_golden_hybrid.py need, and mlx[cpu] and mlx-lm in the same Python (made with 0.32).
A bf16 source is written as those two write theirs, mlx-lm's own convert packs it, and the reference is transformers in f32 on
mlx.core.dequantize of what it wrote, under the names and values that transformers has. What mlx-lm itself answers, in f32, is
printed beside it. Made by: --seed 11.
"""
import argparse, glob, json, os, re, shutil, subprocess, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
ARGV, sys.argv = sys.argv[1:], [sys.argv[0], "/nonexistent", "--only", "none"]
import make_golden_more as M
sys.argv = [sys.argv[0], "/nonexistent", "--only", "none"]
import make_golden_hybrid as H
import mlx.core as mx, numpy as np, torch
from pathlib import Path
from mlx_lm.utils import load_model
mx.set_default_device(mx.cpu)
G, B, NB, S, F = M.G, M.B, M.NB, M.S, M.F
BITS, GROUP = 4, 32
OTHERWISE = ["falcon-h1-mlx4", "gemma3n-mlx4", "starcoder2-mlx4"]         # whose plain files mlx-lm answers otherwise, too

# --- mlx-lm's tensors, dequantized, as transformers has them --------------------------------------------------------------------
def split_experts(t, names=("gate_proj", "up_proj", "down_proj"), stack="switch_mlp", each=("gate_proj", "up_proj", "down_proj")):
    """`stack.NAME.weight [count, rows, columns]` as a matrix for each expert."""
    out = {}
    for k, v in t.items():
        m = re.match(rf"(.*)\.{stack}\.({'|'.join(names)})\.weight", k)
        if not m: out[k] = v; continue
        for e in range(len(v)): out[f"{m[1]}.experts.{e}.{each[names.index(m[2])]}.weight"] = v[e]
    return out
def join_latents(t):
    """Of each head the rows that make keys, turned back, and behind them those that make values."""
    out = {k: v for k, v in t.items() if ".embed_q." not in k and ".unembed_out." not in k}
    for k, keys in t.items():
        if not k.endswith(".embed_q.weight"): continue
        both = torch.cat([keys.transpose(1, 2), t[k.replace("embed_q", "unembed_out")]], 1)
        out[k.replace("embed_q", "kv_b_proj")] = both.reshape(-1, both.shape[-1])
    return out
def turn_taps(t): return {k: v.transpose(1, 2) if "conv1d.weight" in k else v for k, v in t.items()}     # [C, K, 1] -> [C, 1, K]
def deepseek(t, c): return join_latents(split_experts(t))
def gemma4(t, c):
    t = {re.sub(r"^language_model\.model\.", "model.language_model.", k): v for k, v in t.items()}; out = {}
    for k, v in t.items():
        if ".switch_glu.up_proj." in k: continue
        if ".switch_glu.gate_proj." in k: out[k.replace("switch_glu.gate_proj.weight", "gate_up_proj")] = torch.cat([v, t[k.replace("gate_proj", "up_proj")]], 1)
        else: out[k.replace("switch_glu.down_proj.weight", "down_proj")] = v
    return out
def gemma3n(t, c):
    n = c["text_config"]["num_hidden_layers"] - c["text_config"]["num_kv_shared_layers"]; unused = re.compile(r".*layers\.(\d+)\.self_attn\.[kv]_")
    return {re.sub(r"^model\.language_model\.", "model.", k): v for k, v in t.items() if not ((m := unused.match(k)) and int(m[1]) >= n)}
def granite(t, c):
    t = turn_taps(t); out = {}
    for k, v in t.items():
        if re.search(r"(switch_mlp|\d\.mlp)\.up_proj", k): continue
        if "switch_mlp.gate_proj" in k: out[k.replace("switch_mlp.gate_proj", "input_linear")] = torch.cat([v, t[k.replace("gate_proj", "up_proj")]], 1)
        elif "switch_mlp.down_proj" in k: out[k.replace("switch_mlp.down_proj", "output_linear")] = v
        elif re.search(r"\d\.mlp\.gate_proj", k): out[k.replace("mlp.gate_proj", "shared_mlp.input_linear")] = torch.cat([v, t[k.replace("gate_proj", "up_proj")]], 0)
        elif re.search(r"\d\.mlp\.down_proj", k): out[k.replace("mlp.down_proj", "shared_mlp.output_linear")] = v
        else: out[k] = v
    return out
def nemotron(t, c): return split_experts(turn_taps(t), ("fc1", "fc2"), each=("up_proj", "down_proj"))
def falcon(t, c):
    """Undo the factors; mlx-lm means to multiply keys with `key_multiplier`, too, but finds no `key_proj`."""
    from mlx_lm.models.falcon_h1 import ModelArgs, compute_mup_vector
    a = ModelArgs.from_dict(c); mup = torch.from_numpy(np.array(compute_mup_vector(a).astype(mx.float32))) * a.ssm_in_multiplier
    by = {"embed_tokens": a.embedding_multiplier, "lm_head": a.lm_head_multiplier, "q_proj": a.attention_in_multiplier, "k_proj": a.attention_in_multiplier, "o_proj": a.attention_out_multiplier,
          "out_proj": a.ssm_out_multiplier, "gate_proj": a.mlp_multipliers[0], "down_proj": a.mlp_multipliers[1]}
    def one(k, v):
        module = k.split(".")[-2]
        return v / mup[:, None] if module == "in_proj" else v / by[module] if module in by else v
    return turn_taps({k: one(k, v) for k, v in t.items()})
def kimi(t, c):
    t, out = split_experts(join_latents(t), each=("w1", "w3", "w2")), {}
    for k, v in t.items():
        m = re.match(r"(.*)\.([qkv])_conv\.conv\.weight", k)
        if m: k, v = f"{m[1]}.{m[2]}_conv1d.weight", v.transpose(1, 2)
        if ".mlp.e_score_correction_bias" in k: k = k.replace("mlp.e_score", "block_sparse_moe.gate.e_score")
        elif re.search(r"\.mlp\.(experts|shared_experts|gate)\.", k): k = k.replace(".mlp.", ".block_sparse_moe.")
        out[k] = v
    return out
def llama4(t, c):
    t, out = {re.sub(r"^language_model\.", "", k): v for k, v in t.items()}, {}
    for k, v in t.items():
        if ".experts.up_proj." in k: continue
        if ".experts.gate_proj." in k: out[k.replace("gate_proj.weight", "gate_up_proj")] = torch.cat([v, t[k.replace("gate_proj", "up_proj")]], 1).transpose(1, 2)
        else: out[k.replace("down_proj.weight", "down_proj") if ".experts." in k else k] = v.transpose(1, 2) if ".experts." in k else v
    return out
def laguna(t, c):
    t = {k.replace(".gate.proj.", ".gate.").replace("gate.e_score", "experts.e_score"): v for k, v in t.items()}
    return split_experts(t)
def ernie(t, c):
    """mlx-lm leaves out what corrects scores."""
    layers = {k.split(".mlp.")[0] for k in t if ".switch_mlp." in k}
    return {**split_experts(t), **{f"{p}.mlp.moe_statics.e_score_correction_bias": torch.zeros(1, c["moe_num_experts"]) for p in layers}}
def alphas(t, c): return {k: v.reshape(1) if re.search(r"alpha_[pn]$", k) else v for k, v in t.items()}
def same(t, c): return t

# --- what is made -----------------------------------------------------------------------------------------------------------------
def in_text(model_type, architecture):
    """A text model's checkpoint inside of one of several kinds of input, which is what is published."""
    def wrap(c, sd):
        prefix = {"gemma3n": ("model.", "model.language_model."), "llama4": ("", "language_model.")}[model_type]
        sd = {re.sub("^" + prefix[0], prefix[1], k): v for k, v in sd.items()}
        c.pop("architectures", None)
        return dict(architectures=[architecture], model_type=model_type, text_config=c, tie_word_embeddings=c["tie_word_embeddings"], eos_token_id=1), sd
    return wrap
def fix_gemma3n(c):
    r = c.pop("rope_parameters"); c.update(rope_theta=r[F]["rope_theta"], rope_local_base_freq=r[S]["rope_theta"], rope_scaling=None)
def fix_apertus(c): G.to_v4(c); c.update(mlp_bias=False, post_norm=False, qk_norm=True)
def more_gemma3n(sd, c, seed):                  # layers without keys of their own have some in published files, and mlx-lm asks for them
    g, n, k = torch.Generator().manual_seed(seed + 2), c["num_hidden_layers"], c["num_kv_shared_layers"]; last = "model.layers.0.self_attn."
    for i in range(n - k, n):
        for leaf in ("k_proj", "v_proj", "k_norm"): old = sd[last + leaf + ".weight"]; sd[f"model.layers.{i}.self_attn.{leaf}.weight"] = torch.randn(old.shape, generator=g).to(old.dtype)
LATENT = dict(num_key_value_heads=4, q_lora_rank=32, kv_lora_rank=64, qk_rope_head_dim=16, qk_nope_head_dim=32, v_head_dim=96)
# name -> configuration, `back`, `fix` of the published spelling, `wrap`, and `beside`: what mlx-lm alone asks for, and published files do not have
PLAIN = {
  "deepseek-v3-mlx4": dict(kw=dict(model_type="deepseek_v3", **{**B, **LATENT, "intermediate_size": 96, "num_hidden_layers": 4}, moe_intermediate_size=32, n_routed_experts=8, num_experts_per_tok=2, n_shared_experts=1, first_k_dense_replace=1,
                           n_group=2, topk_group=1, norm_topk_prob=True, routed_scaling_factor=2.5), back=deepseek, fix=G.to_v4),
  "gemma4-moe-mlx4": dict(kw=M.wrap4(M.gemma4(hidden_size=64, intermediate_size=64, num_hidden_layers=6, layer_types=[S, S, F] * 2, head_dim=16, global_head_dim=32, num_global_key_value_heads=1, attention_k_eq_v=True,
                          enable_moe_block=True, num_experts=8, top_k_experts=2, moe_intermediate_size=32)), back=gemma4, fix=M.fix_gemma4, beside=dict(vocab_size=M.V)),
  "gemma4-e-mlx4": dict(kw=M.wrap4(M.gemma4(hidden_size=64, num_hidden_layers=8, layer_types=[S, F, F, S, S, F, S, F], head_dim=16, global_head_dim=32, num_kv_shared_layers=4, num_key_value_heads=1,
                        hidden_size_per_layer_input=32, use_double_wide_mlp=True, intermediate_size=64)), back=gemma4, fix=M.fix_gemma4, beside=dict(vocab_size=M.V)),
  "gemma3n-mlx4": dict(kw=dict(model_type="gemma3n_text", **{**B, "tie_word_embeddings": True, "num_hidden_layers": 7, "intermediate_size": 64}, pad_token_id=0, head_dim=16, sliding_window=8, layer_types=[S, S, F, F, S, S, F],
                       num_kv_shared_layers=3, vocab_size_per_layer_input=M.V - 16, hidden_size_per_layer_input=32, laurel_rank=32, altup_num_inputs=4, activation_sparsity_pattern=[0.95, 0.95, 0.0, 0.0, 0.0, 0.0, 0.0],
                       final_logit_softcapping=3.0), back=gemma3n, fix=fix_gemma3n, more=more_gemma3n, wrap=in_text("gemma3n", "Gemma3nForConditionalGeneration")),
  "llama4-mlx4": dict(kw=dict(model_type="llama4_text", **{**B, "num_hidden_layers": 6, "intermediate_size": 32}, head_dim=16, intermediate_size_mlp=96, num_local_experts=4, num_experts_per_tok=1, interleave_moe_layer_step=2,
                      moe_layers=[1, 3, 5], no_rope_layers=[1, 1, 1, 0, 1, 1], attention_chunk_size=8, floor_scale=4, attn_scale=0.3, use_qk_norm=True), back=llama4, fix=G.to_v4, wrap=in_text("llama4", "Llama4ForConditionalGeneration")),
  "laguna-mlx4": dict(kw=dict(model_type="laguna", **{**B, "num_hidden_layers": 6, "intermediate_size": 64}, head_dim=16, layer_types=[F, S, S] * 2, sliding_window=8, num_attention_heads_per_layer=[4, 6, 6] * 2,
                      moe_intermediate_size=32, shared_expert_intermediate_size=32, num_experts=8, num_experts_per_tok=3, moe_routed_scaling_factor=2.5, gating=True), back=laguna, fix=M.fix_laguna),
  "ernie4-5-moe-mlx4": dict(kw=dict(model_type="ernie4_5_moe", **{**B, "tie_word_embeddings": True, "intermediate_size": 96, "num_hidden_layers": 4}, moe_intermediate_size=32, moe_k=3, moe_num_experts=8, moe_num_shared_experts=2,
                            moe_layer_start_index=1, moe_layer_interval=1), back=ernie, fix=G.to_v4),
  "apertus-mlx4": dict(kw=dict(model_type="apertus", **B, rope_parameters={**G.LLAMA3, "rope_theta": 12e6}), back=alphas, fix=fix_apertus),
  "starcoder2-mlx4": dict(kw=dict(model_type="starcoder2", **{**NB, "tie_word_embeddings": True}, norm_epsilon=1e-5, use_bias=True, sliding_window=None), back=same, fix=G.to_v4),
}
def hybrid(name, **cfg): spec = (H.PUBLIC | H.LATER)[name]; return {**spec, "cfg": {**spec["cfg"], **cfg}}
DENSE = dict(num_local_experts=0, num_experts_per_tok=0)
HYBRID = {
  "granite-hybrid-mlx4": dict(spec=hybrid("granite-hybrid", hidden_size=64, intermediate_size=32, mamba_n_heads=8), back=granite),
  "granite-hybrid-dense-mlx4": dict(spec=hybrid("granite-hybrid", hidden_size=64, intermediate_size=32, mamba_n_heads=8, **DENSE), back=granite),
  "nemotron-h-mlx4": dict(spec=hybrid("nemotron-h", moe_shared_expert_intermediate_size=64), back=nemotron),
  "falcon-h1-mlx4": dict(spec=hybrid("falcon-h1"), back=falcon),
  "kimi-linear-mlx4": dict(spec=hybrid("kimi-linear", hidden_size=64, intermediate_size=96, moe_intermediate_size=32, kv_lora_rank=64, qk_rope_head_dim=16, qk_nope_head_dim=32, v_head_dim=96, linear_head_dim=16), back=kimi, beside=dict(head_dim=48)),
}
NOTE = f"mlx-lm convert ({BITS} bits, group {GROUP}); transformers in f32, uncached, on mlx.core.dequantize of its weights"

def convert(src, out):
    G.tokenizer(src, 256); shutil.rmtree(out, ignore_errors=True)
    r = subprocess.run([sys.executable, "-m", "mlx_lm", "convert", "--hf-path", src, "--mlx-path", out, "-q", "--q-bits", str(BITS), "--q-group-size", str(GROUP)], capture_output=True, text=True)
    if r.returncode: raise RuntimeError(r.stderr.strip()[-250:])
    for f in glob.glob(out + "/README.md"): os.remove(f)
    for f in glob.glob(src + "/*token*") + glob.glob(src + "/*.jinja"): shutil.copy(f, out)               # mlx-lm writes it again as a class of its own
    quant = json.load(open(out + "/config.json"))["quantization"]; t, plain = mx.load(out + "/model.safetensors"), {}
    for k, v in t.items():
        p = k.rsplit(".", 1)[0]
        if k.endswith((".scales", ".biases")): continue
        if p + ".scales" in t and k.endswith(".weight"):
            q = quant.get(p, quant); q = q if isinstance(q, dict) else quant
            v = mx.dequantize(v, t[p + ".scales"].astype(mx.float32), t[p + ".biases"].astype(mx.float32), group_size=q["group_size"], bits=q["bits"])
        plain[k] = torch.from_numpy(np.array(v.astype(mx.float32)))
    return plain
def mlx_says(out):
    j, x = json.load(open(out + "/expected.json")), M.load_file(out + "/expected.safetensors")
    n, _ = load_model(Path(out)); n.set_dtype(mx.float32)
    by = float((torch.from_numpy(np.array(n(mx.array([j["prompt_ids"]]))[0])) - x["logits"]).abs().max())
    assert by < 1e-4 or os.path.basename(out) in OTHERWISE, f"mlx-lm answers otherwise, by {by}"
    return f"mlx-lm {by:.1e}"

def make_plain(name, o, root, seed, tries=40):
    out, src = os.path.join(root, name), os.path.join(root, name + "-src"); shutil.rmtree(src, ignore_errors=True); os.makedirs(src)
    c, sd = M.source(o["kw"], seed, src)
    if "fix" in o: o["fix"](c)
    if "more" in o: o["more"](sd, c, seed)
    text, all = (c, sd) if "wrap" not in o else (json.loads(json.dumps(c)), sd)
    if "wrap" in o: c, all = o["wrap"](c, dict(sd))
    M.shards(all, src, None); M.write(src, {**c, **o.get("beside", {})}); plain = convert(src, out); back = o["back"](plain, c)
    back = {**{k: v for k, v in sd.items() if re.search("vision|embed_audio|multi_modal", k)}, **back}
    m = M.reference(back, text, name); tok = G.tokenizer(src, 256); line = M.expected(m, tok, out, seed, NOTE); shutil.rmtree(src)
    if line is None: return make_plain(name, o, root, seed + 1000, tries - 1) if tries else print(name, "NO FIT SEED")
    said = mlx_says(out); c = M.config_of(out); M.write(out, {k: v for k, v in c.items() if k not in o.get("beside", {})})
    M.report(name, out, f"{line} tries={40 - tries} {said}")

def make_hybrid(name, o, root, seed, tries=40):
    out, src, back = (os.path.join(root, name + x) for x in ("", "-src", "-back")); shutil.rmtree(back, ignore_errors=True)
    H.write(src, o["spec"], seed); beside = o.get("beside", {}); M.write(src, {**M.config_of(src), **beside}); plain = convert(src, out); shutil.copytree(src, back); [os.remove(f) for f in glob.glob(back + "/model*")]
    sd = o["back"](plain, json.load(open(out + "/config.json")))
    M.save_file({k: v.contiguous() for k, v in sd.items()}, back + "/model.safetensors", metadata={"format": "pt"})
    m, tok = H.load(back, causal=True), H.transformers.PreTrainedTokenizerFast.from_pretrained(src)
    done = H.expect(m, tok, out, seed, NOTE, {}, retry=bool(tries)); shutil.rmtree(src); shutil.rmtree(back)
    if not done: return make_hybrid(name, o, root, seed + 1000, tries - 1)
    said = mlx_says(out); M.write(out, {k: v for k, v in M.config_of(out).items() if k not in beside})
    print(H.report(name, out, seed, json.load(open(out + "/expected.json"))), said, flush=True)

def main():
    p = argparse.ArgumentParser(); p.add_argument("out"); p.add_argument("--seed", type=int, default=11); p.add_argument("--only"); a = p.parse_args(ARGV)
    for i, (name, o) in enumerate((PLAIN | HYBRID).items()):
        if a.only and name not in a.only.split(","): continue
        try: (make_plain if name in PLAIN else make_hybrid)(name, o, a.out, a.seed + 100 * i)
        except Exception as e:
            if os.environ.get("TRACE"): raise
            print(f"{name:18s} FAILED {type(e).__name__}: {str(e)[:700]}", flush=True)
if __name__ == "__main__": main()
