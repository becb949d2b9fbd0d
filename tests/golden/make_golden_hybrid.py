"""Make tiny checkpoints of recurrent and hybrid families (gated delta net, KDA, Mamba 2, short convolution) with what transformers answers.

Usage: make_golden_hybrid.py OUT_DIR --seed N [--only NAME,...]
The names ending in -mlx4 need mlx and mlx-lm in the same Python; mlx-lm's own convert writes them.
Files as in make_golden.py. expected.json also has long_prompt_ids (150, longer than two chunks of 64), long_greedy_ids (16),
long_greedy_logprobs, and `checks`: what the reference's own cached forms and a zeroed state do to the logits.
expected.safetensors also has long_last_logits f32 [vocab]: the row after the last long prompt id.
"""
import argparse, json, os, glob, random, re, shutil, sys, warnings
import torch, transformers
from safetensors import safe_open
from safetensors.torch import save_file, load_file
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache
ARGV, sys.argv = sys.argv[1:], [sys.argv[0], "/nonexistent", "--only", "none"]
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import make_golden as G
warnings.filterwarnings("ignore"); transformers.logging.set_verbosity_error(); transformers.logging.disable_progress_bar(); torch.set_num_threads(1)

VOCAB = G.VOCAB
BASE = dict(vocab_size=VOCAB, max_position_embeddings=256, tie_word_embeddings=False, bos_token_id=0, eos_token_id=1, pad_token_id=None)
L, F, C = "linear_attention", "full_attention", "conv"
def mrope(theta, partial, section): return dict(rope_type="default", rope_theta=theta, partial_rotary_factor=partial, mrope_section=section, mrope_interleaved=True)
GDN = dict(rms_norm_eps=1e-6, hidden_act="silu")
VISION = dict(depth=1, hidden_size=16, num_heads=2, intermediate_size=16, patch_size=2, spatial_merge_size=2, temporal_patch_size=2, num_position_embeddings=16, out_hidden_size=0)

# ---- config.json as published checkpoints spell it -------------------------------------------------------------------------------------------
def v4(c): return G.to_v4(c)
def qwen3_next_old(c):                       # Qwen3-Next: interval, no list, v4 rope keys
    c = v4(c); lt = c.pop("layer_types"); c["full_attention_interval"] = lt.index(F) + 1; return c
def qwen3_5_published(c):                    # interval and list, both; f32 state named; multi-token head announced
    lt = c["layer_types"]; c.update(full_attention_interval=lt.index(F) + 1, attn_output_gate=True, mamba_ssm_dtype="float32", mtp_num_hidden_layers=1, mtp_use_dedicated_embeddings=False,
                                        output_gate_type="swish", partial_rotary_factor=c["rope_parameters"]["partial_rotary_factor"]); return c
def wrapper_published(c): qwen3_5_published(c["text_config"]); c["language_model_only"] = False; c["vision_config"]["deepstack_visual_indexes"] = []; return c
def lfm2_old(c):
    c = v4(c); lt = c.pop("layer_types"); c["full_attn_idxs"] = [i for i, t in enumerate(lt) if t == F]
    c["block_ff_dim"] = c.pop("intermediate_size"); c["tie_embedding"] = c.pop("tie_word_embeddings")
    c.update(block_norm_eps=c["norm_eps"], block_use_swiglu=True, use_pos_enc=True, conv_dim=c["hidden_size"], conv_dim_out=c["hidden_size"], block_dim=c["hidden_size"], num_heads=c["num_attention_heads"])
    return c
def lfm2_moe_published(c): c = v4(c); c["tie_embedding"] = c.pop("tie_word_embeddings"); return c
NEMO = {"M": L, "*": F, "E": "moe", "-": "mlp"}
def nemotron_old(c):                         # pattern string, bare Infinity (not JSON, yet published), num_hidden_layers given
    rev = {v: k for k, v in NEMO.items()}; lt = c.pop("layers_block_type", None) or c.pop("layer_types"); c.pop("layer_types", None)
    c["hybrid_override_pattern"] = "".join(rev[t] for t in lt); c["num_hidden_layers"] = len(lt); c["time_step_limit"] = [0.0, float("inf")]
    c.update(rope_theta=10000, partial_rotary_factor=1.0, norm_eps=c["layer_norm_epsilon"])     # published, and no attention layer here rotates
    c.pop("mtp_layers_block_type", None); c["torch_dtype"] = c.pop("dtype", "bfloat16"); c["transformers_version"] = "4.55.4"; return c
def granite_old(c):
    c = v4(c); c["layer_types"] = ["attention" if t == F else "mamba" for t in c["layer_types"]]; c.pop("time_step_limit", None)
    if c.get("position_embedding_type") is None: c["position_embedding_type"] = "nope"
    c["num_local_experts"] = c.pop("num_local_experts"); return c
def kimi_old(c):
    lt, ml = c.pop("layer_types"), c.pop("mlp_layer_types")
    for new, old in dict(max_position_embeddings="model_max_length", norm_topk_prob="moe_renormalize", n_group="num_expert_group", num_local_experts="num_experts",
                         num_experts_per_tok="num_experts_per_token", n_shared_experts="num_shared_experts").items():
        if new in c: c[old] = c.pop(new)
    c["linear_attn_config"] = dict(head_dim=c.pop("linear_head_dim"), num_heads=c.pop("linear_num_heads"), short_conv_kernel_size=c.pop("linear_conv_kernel_dim"),
                                   full_attn_layers=[i + 1 for i, t in enumerate(lt) if t == F], kda_layers=[i + 1 for i, t in enumerate(lt) if t == L])
    c.update(first_k_dense_replace=ml.index("sparse"), moe_layer_freq=1, mla_use_nope=True, moe_router_activation_func="sigmoid", use_grouped_topk=True, rope_theta=10000.0, rope_scaling=None)
    c["torch_dtype"] = c.pop("dtype", "bfloat16"); c.pop("head_dim", None); c.pop("qk_head_dim", None); return c
def falcon_old(c): c = v4(c); c.pop("layer_types", None); c.pop("layers_block_type", None); c.pop("time_step_limit", None); return c

# name -> options: cfg, dt (stored dtype), f32 (patterns stored as f32 whatever dt), save, disk (config rewrite), wrap (multimodal class), embed (scale),
# names (tensor renames on disk; save_pretrained writes kimi's dense layers as block_sparse_moe, published files as mlp), fuse (stack experts), mtp
PUBLIC = {
  "qwen3_5": dict(cfg=dict(model_type="qwen3_5_text", **BASE, **GDN, hidden_size=64, intermediate_size=56, num_hidden_layers=8, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
      linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=12, linear_value_head_dim=16, linear_conv_kernel_dim=4, rope_parameters=mrope(10000.0, 0.25, [1, 1, 0])),
      dt="bf16", f32=["A_log", r"linear_attn\.norm\.weight"], disk=qwen3_5_published),
  "qwen3_5-moe": dict(cfg=dict(model_type="qwen3_5_moe", tie_word_embeddings=False, text_config=dict(model_type="qwen3_5_moe_text", **BASE, **GDN, hidden_size=48, num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
      layer_types=[L, L, F, L, L, F], linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=12, linear_conv_kernel_dim=4,
      num_experts=8, num_experts_per_tok=3, moe_intermediate_size=16, shared_expert_intermediate_size=24, rope_parameters=mrope(10000.0, 0.5, [2, 1, 1])), vision_config=VISION),
      dt="bf16", f32=["A_log", r"linear_attn\.norm\.weight"], wrap=True, disk=wrapper_published, mtp=True, fuse=True),
  "qwen3-next": dict(cfg=dict(model_type="qwen3_next", **BASE, **GDN, hidden_size=48, intermediate_size=48, num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=2, head_dim=16, layer_types=[L, L, F, L, L, F],
      linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=12, linear_conv_kernel_dim=4, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=16,
      shared_expert_intermediate_size=24, norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[], rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5)),
      dt="bf16", disk=qwen3_next_old),
  "lfm2": dict(cfg=dict(model_type="lfm2", **{**BASE, "tie_word_embeddings": True, "pad_token_id": 0}, hidden_size=64, intermediate_size=100, num_hidden_layers=7, num_attention_heads=4, num_key_value_heads=2, norm_eps=1e-5,
      conv_L_cache=3, conv_bias=False, block_multiple_of=24, block_ffn_dim_multiplier=1.0, block_auto_adjust_ff_dim=True, layer_types=[C, C, F, C, F, C, C], rope_parameters=dict(rope_type="default", rope_theta=1000000.0)),
      dt="bf16", disk=lfm2_old),
  "nemotron-h": dict(cfg=dict(model_type="nemotron_h", **{**BASE, "pad_token_id": 0}, hidden_size=64, layers_block_type=[NEMO[c] for c in "MEM*E-*-"], num_attention_heads=4, num_key_value_heads=2, head_dim=16, intermediate_size=128,
      ssm_state_size=16, mamba_num_heads=8, mamba_head_dim=16, n_groups=2, conv_kernel=4, expand=2, chunk_size=32, use_conv_bias=True, n_routed_experts=6, n_shared_experts=1, moe_intermediate_size=32,
      moe_shared_expert_intermediate_size=48, num_experts_per_tok=2, routed_scaling_factor=2.5, n_group=1, topk_group=1, norm_topk_prob=True, layer_norm_epsilon=1e-5, time_step_min=0.001, time_step_max=0.1),
      dt="bf16", f32=["A_log", r"\.D$", "dt_bias", "e_score_correction_bias"], disk=nemotron_old, names=[(r"^model\.", "backbone.")]),
  "granite-hybrid": dict(cfg=dict(model_type="granitemoehybrid", **{**BASE, "tie_word_embeddings": True}, hidden_size=56, intermediate_size=16, num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5,
      layer_types=[L, L, F, L, F, L], mamba_n_heads=7, mamba_n_groups=1, mamba_d_state=16, mamba_d_head="auto", mamba_d_conv=4, mamba_expand=2, mamba_chunk_size=32, mamba_conv_bias=True, mamba_proj_bias=False,
      num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=32, embedding_multiplier=2.0, residual_multiplier=0.8, attention_multiplier=0.125, logits_scaling=1.5, position_embedding_type=None,
      rope_parameters=dict(rope_type="default", rope_theta=10000.0)), dt="bf16", embed=0.25, disk=granite_old),
  "kimi-linear": dict(cfg=dict(model_type="kimi_linear", **{**BASE, "pad_token_id": 2}, hidden_size=56, intermediate_size=80, moe_intermediate_size=16, num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=4, rms_norm_eps=1e-5,
      n_shared_experts=1, routed_scaling_factor=2.446, kv_lora_rank=24, q_lora_rank=None, qk_rope_head_dim=8, v_head_dim=12, qk_nope_head_dim=12, n_group=1, topk_group=1, num_experts_per_tok=2, norm_topk_prob=True,
      num_local_experts=6, layer_types=[L, L, F, L, L, F], mlp_layer_types=["dense"] * 1 + ["sparse"] * 5, linear_head_dim=12, linear_num_heads=4, linear_conv_kernel_dim=4),
      dt="bf16", f32=["A_log", "dt_bias", "e_score_correction_bias"], disk=kimi_old, names=[(r"block_sparse_moe\.(gate_proj|up_proj|down_proj)\.", r"mlp.\1.")]),
  "lfm2-moe": dict(cfg=dict(model_type="lfm2_moe", **{**BASE, "tie_word_embeddings": True, "pad_token_id": 0}, hidden_size=64, intermediate_size=88, moe_intermediate_size=20, num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=2,
      norm_eps=1e-5, conv_L_cache=3, num_dense_layers=2, num_experts=6, num_experts_per_tok=2, use_expert_bias=True, routed_scaling_factor=1.0, norm_topk_prob=True, layer_types=[C, C, F, C, F, C],
      rope_parameters=dict(rope_type="default", rope_theta=1000000.0)), dt="bf16", f32=["expert_bias"], disk=lfm2_moe_published),
  "falcon-h1": dict(cfg=dict(model_type="falcon_h1", **{**BASE, "pad_token_id": 0}, hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-5, mamba_d_ssm=96, mamba_n_heads=6,
      mamba_d_head=16, mamba_n_groups=1, mamba_d_state=16, mamba_d_conv=4, mamba_expand=2, mamba_chunk_size=32, mamba_rms_norm=False, mamba_norm_before_gate=False, lm_head_multiplier=0.5, embedding_multiplier=2.0,
      mlp_multipliers=[0.8, 0.6], key_multiplier=0.7, attention_out_multiplier=0.9, attention_in_multiplier=1.1, ssm_multipliers=[0.9, 0.8, 1.2, 1.1, 0.7], ssm_in_multiplier=1.2, ssm_out_multiplier=0.8,
      rope_parameters=dict(rope_type="default", rope_theta=100000.0)), dt="bf16", disk=falcon_old),
}
MLX = {      # name -> source options, quantization
  "qwen3_5-mlx4": dict(cfg=dict(model_type="qwen3_5", tie_word_embeddings=False, text_config=dict(model_type="qwen3_5_text", **BASE, **GDN, hidden_size=128, intermediate_size=128, num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
      layer_types=[L, L, F] * 2, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=32, linear_value_head_dim=32, linear_conv_kernel_dim=4, rope_parameters=mrope(10000.0, 0.25, [2, 1, 1])), vision_config=VISION),
      dt="bf16", f32=["A_log"], wrap=True, disk=wrapper_published, mtp=True, bits=4, group=64),
  "qwen3-next-mlx4": dict(cfg=dict(model_type="qwen3_next", **BASE, **GDN, hidden_size=64, intermediate_size=64, num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=2, head_dim=16, layer_types=[L, L, F] * 2,
      linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16, linear_conv_kernel_dim=4, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=64,
      shared_expert_intermediate_size=64, norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[], rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.25)),
      dt="bf16", disk=qwen3_next_old, bits=4, group=64),
  "lfm2-mlx4": dict(cfg=dict(model_type="lfm2", **{**BASE, "tie_word_embeddings": True, "pad_token_id": 0}, hidden_size=128, intermediate_size=160, num_hidden_layers=7, num_attention_heads=4, num_key_value_heads=2, norm_eps=1e-5,
      conv_L_cache=3, conv_bias=False, block_multiple_of=64, block_ffn_dim_multiplier=1.0, block_auto_adjust_ff_dim=True, layer_types=[C, C, F, C, F, C, C], rope_parameters=dict(rope_type="default", rope_theta=1000000.0)),
      dt="bf16", disk=lfm2_old, bits=4, group=32),
}
LATER = {     # `place`: what seeds go by
  "nemotron-h-latent": dict(place=9, cfg=dict(model_type="nemotron_h", **{**BASE, "pad_token_id": 0}, hidden_size=64, layers_block_type=[NEMO[c] for c in "ME*ME"], num_attention_heads=4, num_key_value_heads=2, head_dim=16, intermediate_size=40,
      ssm_state_size=16, mamba_num_heads=8, mamba_head_dim=16, n_groups=2, conv_kernel=4, expand=2, chunk_size=32, use_conv_bias=True, n_routed_experts=8, n_shared_experts=1, moe_intermediate_size=40, moe_latent_size=24,
      moe_shared_expert_intermediate_size=48, num_experts_per_tok=3, routed_scaling_factor=5.0, n_group=1, topk_group=1, norm_topk_prob=True, layer_norm_epsilon=1e-5, time_step_min=0.001, time_step_max=0.1, num_nextn_predict_layers=1),
      dt="bf16", f32=["A_log", r"\.D$", "dt_bias", "e_score_correction_bias"], disk=nemotron_old, names=[(r"^model\.", "backbone.")]),
}

# ---- weights ---------------------------------------------------------------------------------------------------------------------------------
def loguniform(shape, lo, hi, g): return torch.exp(torch.rand(shape, generator=g) * (torch.log(torch.tensor(hi)) - torch.log(torch.tensor(lo))) + torch.log(torch.tensor(lo)))
def init(model, spec, seed):
    """Decay per token e^(-A dt): A log-uniform in [0.5, 8], dt = softplus(dt_bias) log-uniform in [0.005, 0.1], so half-lives run from one token to some 270.
    The rows that add to dt_bias are small, so dt stays well above nemotron_h's time_step_min clamp (which the reference's one-token form forgets)."""
    g = torch.Generator().manual_seed(seed + 1)
    cfg = model.config.get_text_config(); tied = cfg.tie_word_embeddings; H = cfg.hidden_size
    buffers = [(n, b) for n, b in model.named_buffers() if "correction_bias" in n or "expert_bias" in n]
    with torch.no_grad():
        for n, p in list(model.named_parameters()) + buffers:
            r = torch.randn(p.shape, generator=g)
            if n.endswith("A_log"): p.copy_(torch.log(loguniform(p.shape, 0.5, 8.0, g)))
            elif n.endswith("dt_bias"): dt = loguniform(p.shape, 0.005, 0.1, g); p.copy_(dt + torch.log(-torch.expm1(-dt)))
            elif n.endswith(".D"): p.copy_(0.5 + 0.3 * r)
            elif "embed_tokens" in n or n.endswith("embeddings.weight"): p.copy_(r * spec.get("embed", 0.25 if tied else 0.7))
            elif p.dim() >= 2:
                s = 1.4 / p.shape[-1] ** 0.5
                if "in_proj_a" in n: s *= 0.35
                if "f_b_proj" in n: s *= 0.5
                p.copy_(r * s)
                if "in_proj_ba" in n:          # per key head: its b rows, then its a rows
                    k, v = cfg.linear_num_key_heads, cfg.linear_num_value_heads // cfg.linear_num_key_heads
                    p.view(k, 2, v, H)[:, 1] *= 0.35
                if n.endswith(("mixer.in_proj.weight", "mamba.in_proj.weight")):
                    h = getattr(cfg, "mamba_num_heads", None) or cfg.mamba_n_heads; p[-h:] *= 0.35
            elif "norm" in n and "bias" not in n: p.copy_(p + 0.15 * r)
            else: p.copy_(0.2 * r)

def fuse_experts(t):
    """Published Qwen3.5-MoE files keep the experts of a layer stacked; save_pretrained of transformers 5.24 takes them apart."""
    groups = {}
    for k in [k for k in t if ".mlp.experts." in k]:
        a, e, b = re.match(r"(.*\.mlp\.experts)\.(\d+)\.(\w+)_proj\.weight", k).groups(); groups.setdefault(a, {})[int(e), b] = t.pop(k)
    for a, g in groups.items():
        n = range(1 + max(e for e, _ in g))
        t[a + ".gate_up_proj"] = torch.stack([torch.cat([g[e, "gate"], g[e, "up"]]) for e in n]); t[a + ".down_proj"] = torch.stack([g[e, "down"] for e in n])
    return t

def rewrite_shards(out, fn, whole=lambda t: t):
    """Apply fn(name, tensor) -> (name, tensor) over the saved files, keeping the index right; returns the names."""
    files = sorted(glob.glob(out + "/model*.safetensors")); index = {}
    for f in files:
        t = whole(dict(fn(k, v) for k, v in load_file(f).items())); save_file(t, f, metadata={"format": "pt"}); index.update({k: os.path.basename(f) for k in t})
    if len(files) > 1:
        j = json.load(open(out + "/model.safetensors.index.json")); j["weight_map"] = dict(sorted(index.items())); json.dump(j, open(out + "/model.safetensors.index.json", "w"), indent=2)
    return index

def add_mtp(out, cfg, dtype, g):
    """The multi-token head that published Qwen3.5 files carry: one full-attention layer and its inputs. The reference ignores it and so must a reader."""
    H, A, K, D = cfg.hidden_size, cfg.num_attention_heads, cfg.num_key_value_heads, cfg.head_dim
    shapes = {"fc.weight": (H, 2 * H), "norm.weight": (H,), "pre_fc_norm_embedding.weight": (H,), "pre_fc_norm_hidden.weight": (H,), "layers.0.input_layernorm.weight": (H,),
              "layers.0.post_attention_layernorm.weight": (H,), "layers.0.self_attn.q_proj.weight": (2 * A * D, H), "layers.0.self_attn.k_proj.weight": (K * D, H),
              "layers.0.self_attn.v_proj.weight": (K * D, H), "layers.0.self_attn.o_proj.weight": (H, A * D), "layers.0.self_attn.q_norm.weight": (D,), "layers.0.self_attn.k_norm.weight": (D,),
              "layers.0.mlp.gate_proj.weight": (8, H), "layers.0.mlp.up_proj.weight": (8, H), "layers.0.mlp.down_proj.weight": (H, 8)}
    files = sorted(glob.glob(out + "/model*.safetensors")); last = files[-1]; t = load_file(last)
    new = {"mtp." + k: (torch.randn(s, generator=g) * 0.1).to(dtype) for k, s in shapes.items()}
    save_file({**t, **new}, last, metadata={"format": "pt"})
    if len(files) > 1:
        p = out + "/model.safetensors.index.json"; j = json.load(open(p)); j["weight_map"].update({k: os.path.basename(last) for k in new}); json.dump(j, open(p, "w"), indent=2)

# ---- reference -------------------------------------------------------------------------------------------------------------------------------
def load(out, causal=False):
    arch = json.load(open(out + "/config.json"))["architectures"][0]
    cls = AutoModelForCausalLM if causal else getattr(transformers, arch)
    m, info = cls.from_pretrained(out, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    bad = {k: sorted(v)[:4] for k, v in info.items() if v and k in ("missing_keys", "mismatched_keys")}
    if bad: raise ValueError(f"reload: {bad}")
    return m.eval()

def step(m, ids, cache=None):
    o = m(torch.tensor([ids]), use_cache=cache is not None, **({"cache": cache} if cache is not None else {})); return o.logits[0].float()
def greedy(m, prompt, n):
    cur, out, lps, mar, rows = list(prompt), [], [], [], []
    for _ in range(n):
        l = step(m, cur)[-1]; lp = torch.log_softmax(l, -1); t = torch.topk(lp, 2); rows.append(l)
        out.append(int(t.indices[0])); lps.append(float(t.values[0])); mar.append(float(t.values[0] - t.values[1])); cur.append(out[-1])
    return out, lps, mar, rows
def cached(m, pieces, ids, rows):
    """Feed the pieces, then each greedy id, through one cache; the greatest difference from the uncached rows and whether the argmax is the same."""
    c = DynamicCache(config=m.config.get_text_config())
    for p in pieces: l = step(m, p, c)[-1]
    d, same = 0.0, True
    for i, t in enumerate(ids):
        d = max(d, float((l - rows[i]).abs().max())); same &= int(l.argmax()) == t
        if i + 1 < len(ids): l = step(m, [t], c)[-1]
    return d, same
def state_effect(m, prompt, nxt, full):
    """How far the next row of logits moves when one kind of state is zeroed after the prompt: it says what a test on this checkpoint can notice."""
    out = {}
    for kind in ("recurrent_states", "conv_states", "keys"):
        c = DynamicCache(config=m.config.get_text_config()); step(m, prompt, c); n = 0
        for l in c.layers:
            v = getattr(l, kind, None)
            if isinstance(v, torch.Tensor): v.zero_(); n += 1
            elif isinstance(v, dict):
                for t in v.values():
                    if isinstance(t, torch.Tensor): t.zero_(); n += 1
        if n: out[kind] = round(float((step(m, [nxt], c)[-1] - full).abs().max()), 4)
    return out

def from_mlx(t, plain):
    """mlx-lm's tensors (dequantized, f32) back under the names and values that transformers uses: undo its sanitize."""
    sd, folded = {}, plain != "lfm2"
    for k, v in t.items():
        k = re.sub(r"^language_model\.model\.", "model.language_model.", k); k = re.sub(r"^language_model\.lm_head", "lm_head", k)
        if "conv1d.weight" in k or k.endswith("conv.conv.weight"): v = v.transpose(1, 2)                                       # [C, K, 1] -> [C, 1, K]
        if folded and v.dim() == 1 and k.endswith(("layernorm.weight", "q_norm.weight", "k_norm.weight", "model.norm.weight", "language_model.norm.weight")): v = v - 1.0
        m = re.match(r"(.*\.mlp)\.switch_mlp\.(\w+)_proj\.weight", k)
        if m: sd.update({f"{m[1]}.experts.{e}.{m[2]}_proj.weight": v[e] for e in range(len(v))})
        else: sd[k] = v
    return {k: v.contiguous() for k, v in sd.items()}

def make_mlx(name, spec, root, seed, tries=40):
    """A bf16 source, mlx-lm's convert, its files; expected values by transformers in f32 on the dequantized weights, checked by mlx-lm itself in f32."""
    import mlx.core as mx, numpy as np, subprocess
    from pathlib import Path
    from mlx_lm.utils import load_model
    from mlx_lm.models.cache import make_prompt_cache
    mx.set_default_device(mx.cpu)
    out, src, back = (os.path.join(root, name + x) for x in ("", "-src", "-back"))
    for d in (out, src, back): shutil.rmtree(d, ignore_errors=True)
    write(src, spec, seed); G.tokenizer(src, 256)
    subprocess.run([sys.executable, "-m", "mlx_lm", "convert", "--hf-path", src, "--mlx-path", out, "-q", "--q-bits", str(spec["bits"]), "--q-group-size", str(spec["group"])], check=True, capture_output=True)
    for f in glob.glob(out + "/README.md"): os.remove(f)
    for f in glob.glob(src + "/*token*") + glob.glob(src + "/*.jinja"): shutil.copy(f, out)     # mlx-lm saves it again as the family's own class, with a pad token that is not there
    quant = json.load(open(out + "/config.json"))["quantization"]; t = mx.load(out + "/model.safetensors"); plain = {}
    for k, v in t.items():
        if k.endswith((".scales", ".biases")): continue
        if k.endswith(".weight") and k[:-7] + ".scales" in t:
            q = quant.get(k[:-7], quant); q = q if isinstance(q, dict) else quant
            v = mx.dequantize(v, t[k[:-7] + ".scales"].astype(mx.float32), t[k[:-7] + ".biases"].astype(mx.float32), group_size=q["group_size"], bits=q["bits"])
        plain[k] = torch.from_numpy(np.array(v.astype(mx.float32)))
    shutil.copytree(src, back); [os.remove(f) for f in glob.glob(back + "/model*")]
    save_file(from_mlx(plain, spec["cfg"]["model_type"]), back + "/model.safetensors", metadata={"format": "pt"})
    m = load(back, causal=True); tok = transformers.PreTrainedTokenizerFast.from_pretrained(out)
    note = f"mlx-lm convert ({spec['bits']} bits, group {spec['group']}); transformers {transformers.__version__} in f32, uncached, on mlx.core.dequantize of its weights"
    done = expect(m, tok, out, seed, note, {}, retry=bool(tries))
    for d in (src, back): shutil.rmtree(d)
    if not done: shutil.rmtree(out); return make_mlx(name, spec, root, seed + 1000, tries - 1)
    j = json.load(open(out + "/expected.json")); x = load_file(out + "/expected.safetensors")
    n, _ = load_model(Path(out)); n.set_dtype(mx.float32)
    def row(ids, c=None): return torch.from_numpy(np.array(n(mx.array([ids]), cache=c)[0]))
    def run(p, k):
        c = make_prompt_cache(n); o, cur = [], p
        for _ in range(k): o.append(int(row(cur, c)[-1].argmax())); cur = [o[-1]]
        return o
    j["checks"]["mlx_lm_f32"] = dict(prompt_difference=float((row(j["prompt_ids"]) - x["logits"]).abs().max()), long_difference=float((row(j["long_prompt_ids"])[-1] - x["long_last_logits"]).abs().max()),
                                     same_greedy=run(j["prompt_ids"], 24) == j["greedy_ids"], same_long_greedy=run(j["long_prompt_ids"], 16) == j["long_greedy_ids"])
    json.dump(j, open(out + "/expected.json", "w"), indent=1)
    print(report(name, out, seed, j), flush=True)

def write(out, spec, seed):
    """The checkpoint's files except the tokenizer; returns the model with the stored (rounded) values."""
    shutil.rmtree(out, ignore_errors=True); os.makedirs(out)
    torch.manual_seed(seed)
    kw = json.loads(json.dumps(spec["cfg"]))
    if spec.get("wrap"): kw["vision_config"]["out_hidden_size"] = kw["text_config"]["hidden_size"]
    cfg = AutoConfig.for_model(**kw); text = cfg.get_text_config()
    for c in {id(cfg): cfg, id(text): text}.values(): c._attn_implementation = "eager"; c.bos_token_id, c.eos_token_id = 0, 1
    if spec.get("wrap"):
        model = getattr(transformers, {"qwen3_5": "Qwen3_5ForConditionalGeneration", "qwen3_5_moe": "Qwen3_5MoeForConditionalGeneration"}[cfg.model_type])(cfg).eval()
    else: model = AutoModelForCausalLM.from_config(cfg, dtype=torch.float32, attn_implementation="eager").eval()
    init(model, spec, seed)
    dtype = dict(bf16=torch.bfloat16, f16=torch.float16, f32=torch.float32)[spec["dt"]]
    keep = [re.compile(p) for p in spec.get("f32", [])]
    stored = {k: v.to(torch.float32 if any(r.search(k) for r in keep) else dtype) for k, v in model.state_dict().items()}
    with torch.no_grad():                                  # the in-memory model takes the rounded values, to compare with the files read back
        for k, v in model.state_dict().items(): v.copy_(stored[k].float())
    for c in {id(cfg): cfg, id(text): text}.values(): c.dtype = dtype
    if text.tie_word_embeddings: stored.pop("lm_head.weight", None)
    model.save_pretrained(out, state_dict=stored, **spec.get("save", {}))
    names = spec.get("names", [])
    def rename(k, v):
        for a, b in names: k = re.sub(a, b, k)
        return k, v
    rewrite_shards(out, rename, fuse_experts if spec.get("fuse") else lambda t: t)
    if spec.get("mtp"): add_mtp(out, text, dtype, torch.Generator().manual_seed(seed + 2))
    if os.path.exists(out + "/model.safetensors.index.json"):
        j = json.load(open(out + "/model.safetensors.index.json")); t = [v for f in glob.glob(out + "/model*.safetensors") for v in load_file(f).values()]
        j["metadata"].update(total_size=sum(v.numel() * v.element_size() for v in t))
        if "total_parameters" in j["metadata"]: j["metadata"]["total_parameters"] = sum(v.numel() for v in t)
        json.dump(j, open(out + "/model.safetensors.index.json", "w"), indent=2)
    c = json.load(open(out + "/config.json")); c.setdefault("architectures", [type(model).__name__])
    for d in (c, c.get("text_config")):
        if d and "dtype" in d: d["dtype"] = str(dtype).split(".")[1]
    if spec.get("disk"): c = spec["disk"](c)
    json.dump(c, open(out + "/config.json", "w"), indent=2)
    if os.path.exists(out + "/generation_config.json"): json.dump(dict(bos_token_id=0, eos_token_id=1), open(out + "/generation_config.json", "w"))
    return model

def expect(m, tok, out, seed, note, checks, retry, model=None, wrap=False):
    rnd = random.Random(seed); prompt = [0] + [rnd.randrange(4, VOCAB - 20) for _ in range(20)]
    rnd = random.Random(seed + 5); long = [0] + [rnd.randrange(4, VOCAB - 20) for _ in range(149)]
    with torch.no_grad():
        logits = step(m, prompt); ids, lps, mar, rows = greedy(m, prompt, 24)
        bad = min(mar) < 0.01 or len(set(ids)) < 8
        if not bad: lids, llps, lmar, lrows = greedy(m, long, 16); bad = min(lmar) < 0.01 or len(set(lids)) < 4
        if bad and retry: return False
        if model is not None: checks["reload_difference"] = float((step(model, prompt) - logits).abs().max())
        if wrap: checks["text_class_difference"] = float((step(load(out, causal=True), prompt) - logits).abs().max())
        for key, pieces, i, r in (("prefill_then_steps", [prompt], ids, rows), ("one_by_one", [[t] for t in prompt], ids, rows), ("long_prefill_then_steps", [long], lids, lrows),
                                  ("long_in_pieces_64_64_22", [long[:64], long[64:128], long[128:]], lids, lrows), ("long_in_pieces_100_1_49", [long[:100], long[100:101], long[101:]], lids, lrows),
                                  ("long_one_by_one", [[t] for t in long], lids, lrows)):
            d, same = cached(m, pieces, i, r); checks[key] = dict(max_difference=float(f"{d:.2e}"), same_greedy=same)
        checks["zeroed_state_moves_logits_by"] = state_effect(m, prompt, ids[0], rows[1]); checks["zeroed_state_moves_long_logits_by"] = state_effect(m, long, lids[0], lrows[1])
        checks["logits_std"] = round(float(logits.std()), 3)
    json.dump(dict(prompt_ids=prompt, prompt_text=tok.decode(prompt), greedy_ids=ids, greedy_logprobs=[round(x, 6) for x in lps], smallest_greedy_margin=round(min(mar), 6),
                   prompt_top1=[int(x) for x in logits.argmax(-1)], long_prompt_ids=long, long_greedy_ids=lids, long_greedy_logprobs=[round(x, 6) for x in llps], long_smallest_greedy_margin=round(min(lmar), 6),
                   checks=checks, reference=note), open(out + "/expected.json", "w"), indent=1)
    save_file({"logits": logits.contiguous(), "long_last_logits": lrows[0].contiguous()}, out + "/expected.safetensors")
    return True

def report(name, out, seed, j):
    size = sum(os.path.getsize(f) for f in glob.glob(out + "/*"))
    return (f"{name:18s} {size/1024:5.0f} KiB files={len(glob.glob(out + '/model*.safetensors'))} seed={seed} margin={j['smallest_greedy_margin']:.4f}/{j['long_smallest_greedy_margin']:.4f} "
            f"distinct={len(set(j['greedy_ids']))}/{len(set(j['long_greedy_ids']))} {json.dumps(j['checks'])}")

def make(name, spec, root, seed, tries=40):
    out = os.path.join(root, name); model = write(out, spec, seed); m = load(out); tok = G.tokenizer(out, 256)
    note = "transformers " + transformers.__version__ + " in f32, uncached, on the files in this directory (stored as " + spec["dt"] + (", some f32" if spec.get("f32") else "") + ")"
    if not expect(m, tok, out, seed, note, {}, bool(tries), model, spec.get("wrap")): return make(name, spec, root, seed + 1000, tries - 1)
    print(report(name, out, seed, json.load(open(out + "/expected.json"))), flush=True)

if __name__ == "__main__":
    p = argparse.ArgumentParser(); p.add_argument("out"); p.add_argument("--seed", type=int, default=1); p.add_argument("--only")
    a = p.parse_args(ARGV)
    for i, (name, spec) in enumerate({**PUBLIC, **MLX, **LATER}.items()):
        if a.only and name not in a.only.split(","): continue
        try: (make_mlx if "bits" in spec else make)(name, spec, a.out, a.seed + 100 * spec.get("place", i))
        except Exception as e:
            import traceback; print(f"{name:18s} FAILED {type(e).__name__}: {str(e)[:400]}")
            if os.environ.get("TRACE"): traceback.print_exc()
