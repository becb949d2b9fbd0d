"""Tiny GGUF files of real model families with reference outputs.

Usage: make_gguf_golden.py OUT_DIR [--seed N] [--only NAME,...] [--peers DIR] [--tools DIR]
PEERS holds llama.cpp's source (llama.cpp) and its build (build); TOOLS holds llama_ref and gguf-split, built as llama_ref.cpp's head says.
--seed 11. Each OUT_DIR/NAME: model.gguf (or model-0000N-of-0000M.gguf) written by llama.cpp's convert_hf_to_gguf.py and llama-quantize, and
expected.json (README.md beside the files says what each key means).
"""
import argparse, glob, json, os, random, shutil, subprocess, sys, tempfile
os.environ["HF_HUB_OFFLINE"] = "1"; os.environ.setdefault("OMP_NUM_THREADS", "1"); os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import torch; torch.set_num_threads(1)
from transformers import AutoConfig, AutoModelForCausalLM
from tokenizers import Tokenizer, models, pre_tokenizers, decoders, trainers, processors, Regex, AddedToken, normalizers
from transformers.utils import logging as tl; tl.set_verbosity_error(); tl.disable_progress_bar()
import gguf_to_hf as G, compare_tokenizers as C

VOCAB, REAL = 576, 560          # sixteen rows of padding, as many published checkpoints have
def base(h=256, i=256, layers=3, a=4, k=2, d=None, **kw):
    return dict(hidden_size=h, intermediate_size=i, num_hidden_layers=layers, num_attention_heads=a, num_key_value_heads=k, vocab_size=VOCAB, rms_norm_eps=1e-5, max_position_embeddings=256, tie_word_embeddings=False, **({"head_dim": d} if d else {}), **kw)
LLAMA3 = dict(rope_type="llama3", rope_theta=50000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=32)
small = lambda **kw: base(128, 192, **kw)
def gemma(h, i, n=6, d=64, k=1, **kw):
    return dict(model_type="gemma3_text", **{**base(h, i, n, 4, k, d), "tie_word_embeddings": True, "rms_norm_eps": 1e-6}, sliding_window=8, query_pre_attn_scalar=d, hidden_activation="gelu_pytorch_tanh",
                layer_types=["full_attention" if j % 6 == 5 else "sliding_attention" for j in range(n)], rope_parameters=dict(full_attention=dict(rope_type="default", rope_theta=1e6), sliding_attention=dict(rope_type="default", rope_theta=1e4)), **kw)
def moe(h=256, i=256, n=2, e=4, used=2, d=64, k=1, **kw):
    return dict(model_type="qwen3_moe", **base(h, i, n, 4, k, d), moe_intermediate_size=i, num_experts=e, num_experts_per_tok=used, decoder_sparse_step=1, norm_topk_prob=True, mlp_only_layers=[], **kw)
def oss(h=128, i=96): return dict(model_type="gpt_oss", **base(h, i, 3, 4, 2, 32), num_local_experts=4, num_experts_per_tok=2, sliding_window=8)
tied = dict(tie_word_embeddings=True)
T = lambda d, **kw: {**d, **kw}
# name -> (config, pre-tokenizer, converter's --outtype, llama-quantize arguments or None, after: split/align)
PUBLIC = {
  "llama-f16":       (dict(model_type="llama", **small()), "llama-bpe", "f16", None, {}),
  "qwen2-bf16":      (dict(model_type="qwen2", **T(small(), **tied)), "qwen2", "bf16", None, {}),
  "qwen3-q8_0":      (dict(model_type="qwen3", **small(d=48)), "qwen2", "f32", ["Q8_0"], {}),
  "llama-q4_0":      (dict(model_type="llama", **T(small(a=4, k=1), **tied)), "smollm", "f32", ["Q4_0"], {}),
  "qwen2-q4_1":      (dict(model_type="qwen2", **small()), "deepseek-r1-qwen", "f32", ["Q4_1"], {}),
  "qwen3-q5_0":      (dict(model_type="qwen3", **T(small(d=32), **tied)), "qwen2", "f32", ["Q5_0"], {}),
  "gemma3-q5_1":     (gemma(128, 192, d=32), "spm", "f32", ["Q5_1"], {}),
  "llama-q2_k":      (dict(model_type="llama", **base()), "default", "f32", ["Q2_K"], {}),
  "qwen2-q3_k_m":    (dict(model_type="qwen2", **base()), "deepseek-v3", "f32", ["Q3_K_M"], {}),
  "gemma3-q4_k_m":   (gemma(256, 256), "spm", "f32", ["Q4_K_M"], {}),
  "llama3-q4_k_m":   (dict(model_type="llama", **T(base(d=64), **tied), rope_parameters=LLAMA3), "llama-bpe", "f32", ["Q4_K_M"], {}),
  "qwen3-q5_k_m":    (dict(model_type="qwen3", **base(d=64)), "qwen35", "f32", ["Q5_K_M"], {}),
  "llama-q6_k":      (dict(model_type="llama", **base(k=4, layers=2)), "tekken", "f32", ["Q6_K"], {}),
  "qwen3-iq4_nl":    (dict(model_type="qwen3", **T(small(d=32), **tied)), "qwen2", "f32", ["IQ4_NL"], {}),
  "llama-iq4_xs":    (dict(model_type="llama", **base(d=64)), "gpt-4o", "f32", ["IQ4_XS"], {}),
  "qwen3moe-q4_k_m": (moe(), "qwen2", "f32", ["Q4_K_M"], {}),
  "qwen3moe-mxfp4":  (moe(128, 64, 3, 8, 2, 32, 2), "qwen2", "f32", ["MXFP4_MOE"], {}),
  "gpt-oss-mxfp4":   (oss(), "gpt-4o", "f32", ["MXFP4_MOE"], {}),
  "llama-narrow-q4_k_m": (dict(model_type="llama", **base(h=96, i=160, a=3, k=1, d=32)), "llama-bpe", "f32", ["Q4_K_M"], {}),   # rows not a multiple of 256: falls back
  "llama-spm-q8_0":  (dict(model_type="llama", **small()), "spm-prefix", "f32", ["Q8_0"], {}),
  "qwen3-split-q8_0":(dict(model_type="qwen3", **small(d=32, layers=5)), "qwen2", "f32", ["Q8_0"], {"split": 3}),
  "qwen2-align64-q5_k_s": (dict(model_type="qwen2", **base(h=256, i=256, layers=2)), "qwen2", "f32", ["Q5_K_S"], {"align": 64}),
}
CASES = ["The quick brown fox, 12 times.", "don't I'LL we've 'tis", "  two  spaces   three ", "line one\nline two\n\n\tindented\r\nend", "1234567890 3.14 2024-11-24", "Übersetze: naïve café ÄÖÜ", "Привет, мир! 你好，世界", "😀👩‍👩‍👧 🇩🇪", "a+b=c; {\"x\": [1,2]} // <tag>", "<|im_start|>user\nHi<|im_end|>\n", "x<|eot_id|>y <bos> <eos> <s>", "\u00a0\u3000 ▁ \u200b e\u0301 ½"]
CORPUS = None
def corpus():
    global CORPUS
    if CORPUS is None:
        r = random.Random(3); t = [l.strip("\n") for f in sorted(glob.glob("/usr/share/common-licenses/*"))[:8] for l in open(f, errors="ignore").read().splitlines()[:300]]
        extra = ["Übersetze ins Englische: naïve café", "Привет, мир! Привет", "你好，世界。你好", "    return x\n\n\n", "don't we'll I've they're he's I'M", "1234567890 2024-11-24 3.14159 1000000", "hello  world   spaces    more", "\t\tif (x) {\r\n\t}\r\n", "a+b=c; x<y>z; {\"k\": [1, 2, 3]} // ---- ==== ####", "😀😀 👩‍👩‍👧", "CamelCase SHOUTING ÄÖÜ"]
        CORPUS = t + [r.choice(extra) + r.choice(["", "\n", "\n\n", " "]) + r.choice(extra) for _ in range(400)] + ["".join(r.choice("0123456789") for _ in range(12)) for _ in range(100)]
    return CORPUS
SPECIAL = ["<|begin_of_text|>", "<|eot_id|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
def tokenizer(out, pre):
    """Merges are learnt without any split, so that a wrong pre-tokenizer shows: only the split keeps them from crossing words, digits and newlines."""
    bos = pre in ("llama-bpe", "tekken", "gpt-4o")
    if pre.startswith("spm"):
        import sentencepiece as spm
        open(out + "/c.txt", "w").write("\n".join(l for c in corpus() for l in c.split("\n") if l))
        spm.SentencePieceTrainer.train(input=out + "/c.txt", model_prefix=out + "/tokenizer", vocab_size=REAL, model_type="bpe", byte_fallback=True, pad_id=0, eos_id=1, bos_id=2, unk_id=3, character_coverage=0.98, add_dummy_prefix=pre == "spm-prefix", remove_extra_whitespaces=False,
            normalization_rule_name="identity", user_defined_symbols=["<start_of_turn>", "\n\n", "▁▁", "▁▁▁", "<b>"], control_symbols=["<end_of_turn>"], minloglevel=2, num_threads=1, allow_whitespace_only_pieces=True, split_by_whitespace=True)
        os.remove(out + "/c.txt"); os.remove(out + "/tokenizer.vocab")
        json.dump(dict(tokenizer_class="GemmaTokenizer" if pre == "spm" else "LlamaTokenizer", bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<pad>", add_bos_token=True, add_eos_token=False, add_prefix_space=pre == "spm-prefix", chat_template=TEMPLATE), open(out + "/tokenizer_config.json", "w"))
        return None
    tok = Tokenizer(models.BPE()); tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False); tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=REAL - 8, special_tokens=SPECIAL, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False, max_token_length=10))
    j = json.loads(tok.to_str()); j["model"]["ignore_merges"] = pre in G.IGNORE_MERGES; tok = Tokenizer.from_str(json.dumps(j))
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(p), "isolated") for p in G.PRE[pre]] + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    if bos: tok.post_processor = processors.TemplateProcessing(single="<|begin_of_text|>:0 $A:0", pair="<|begin_of_text|>:0 $A:0 <|begin_of_text|>:1 $B:1", special_tokens=[("<|begin_of_text|>", 0)])
    tok.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    tok.save(out + "/tokenizer.json")
    json.dump(dict(tokenizer_class="PreTrainedTokenizerFast", bos_token=SPECIAL[0], eos_token=SPECIAL[1], add_bos_token=bos, chat_template=TEMPLATE), open(out + "/tokenizer_config.json", "w"))
    return tok
CONVERT = """
import runpy, sys
import conversion.base
conversion.base.TextModel.get_vocab_base_pre = lambda self, tokenizer: {pre!r}
sys.argv = ["convert", {src!r}, "--outfile", {dst!r}, "--outtype", {ty!r}]
runpy.run_path({script!r}, run_name="__main__")
"""
def sh(*c, env=None):
    r = subprocess.run(c, capture_output=True, text=True, env={**os.environ, **(env or {})})
    if r.returncode: raise RuntimeError(f"{c[0]} {r.returncode}: " + (r.stderr or r.stdout)[-600:])
    return r.stdout
def realign(src, dst, n):
    """Rewrite with general.alignment = n (gguf's writer does it)."""
    from gguf import GGUFReader, GGUFWriter, GGUFValueType
    r = GGUFReader(src); w = GGUFWriter(dst, r.fields["general.architecture"].contents()); w.add_custom_alignment(n)
    for f in r.fields.values():
        if f.name.startswith("GGUF.") or f.name in ("general.architecture", "general.alignment"): continue
        w.add_key_value(f.name, f.contents(), f.types[0], f.types[-1] if f.types[0] == GGUFValueType.ARRAY else None)
    for t in r.tensors: w.add_tensor(t.name, t.data, raw_dtype=t.tensor_type)
    w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()
def greedy(model, prompt, n=24):
    cur, ids, lps, mg = list(prompt), [], [], []
    with torch.no_grad():
        first = model(torch.tensor([cur]), use_cache=False).logits[0].float()
        for _ in range(n):
            lp = torch.log_softmax(model(torch.tensor([cur]), use_cache=False).logits[0, -1].float(), -1); top = torch.topk(lp, 2); t = int(top.indices[0])
            ids.append(t); lps.append(round(float(top.values[0]), 6)); mg.append(float(top.values[0] - top.values[1])); cur.append(t)
    return first, ids, lps, mg
def load(cfg, weights):
    model = AutoModelForCausalLM.from_config(cfg, dtype=torch.float32, attn_implementation="eager").eval()
    w = {k: torch.from_numpy(v) for k, v in weights.items() if k != "rope_freqs"}
    own = model.state_dict()
    fused = {}                                                        # transformers 5 keeps Qwen3-MoE experts stacked
    for k in list(own):
        if k.endswith("experts.gate_up_proj") and k not in w:
            p = k[:-len("gate_up_proj")]; n = own[k].shape[0]
            w[k] = torch.stack([torch.cat([w.pop(f"{p}{e}.gate_proj.weight"), w.pop(f"{p}{e}.up_proj.weight")]) for e in range(n)]); w[p + "down_proj"] = torch.stack([w.pop(f"{p}{e}.down_proj.weight") for e in range(n)])
    missing, extra = model.load_state_dict(w, strict=False)
    missing = [m for m in missing if not (m == "lm_head.weight" and cfg.tie_word_embeddings)]
    assert not missing and not extra, (missing, extra)
    model.tie_weights(); return model
def make(name, spec, root, seed, tries=30):
    kw, pre, ty, quant, after = spec; out = os.path.join(root, name); shutil.rmtree(out, ignore_errors=True); os.makedirs(out)
    tmp = tempfile.mkdtemp(dir=A.tools); src = tmp + "/hf"; os.makedirs(src)
    try:
        torch.manual_seed(seed); cfg = AutoConfig.for_model(**dict(kw)); spm = pre.startswith("spm"); cfg.bos_token_id, cfg.eos_token_id = (2, 1) if spm else (0, 1)
        model = AutoModelForCausalLM.from_config(cfg, dtype=torch.float32, attn_implementation="eager"); g = torch.Generator().manual_seed(seed + 1)
        with torch.no_grad():
            for n, p in model.named_parameters():
                r = torch.randn(p.shape, generator=g)
                if p.dim() >= 2:
                    emb = 0.035 if cfg.tie_word_embeddings and "gemma" in kw["model_type"] else 0.25 if cfg.tie_word_embeddings else 0.7
                    fan = p.shape[-2] if kw["model_type"] == "gpt_oss" and "experts" in n else p.shape[-1]
                    p.copy_(r * (1.4 / fan ** 0.5) if "embed_tokens" not in n else r * emb)
                elif "norm" in n: p.copy_(p + 0.15 * r + (5.0 if n == "model.norm.weight" and "gemma" in kw["model_type"] else 0))   # wider logits: fewer close calls
                else: p.copy_(0.2 * r)
        model.save_pretrained(src, safe_serialization=True); tok = tokenizer(src, pre)
        f32 = tmp + "/a.gguf"; L = A.peers + "/llama.cpp"
        sh(sys.executable, "-c", CONVERT.format(pre=pre, src=src, dst=f32, ty=ty, script=L + "/convert_hf_to_gguf.py"), env={"PYTHONPATH": f"{L}:{L}/gguf-py"})
        last = f32
        if quant: last = tmp + "/q.gguf"; sh(A.peers + "/build/bin/llama-quantize", *quant[:-1], f32, last, quant[-1], "1")
        plain = last                                                   # llama-quantize and gguf-split write a wrong layout from a file aligned otherwise than to 32
        if "align" in after: n2 = tmp + "/al.gguf"; realign(last, n2, after["align"]); last = n2
        if "split" in after:
            from gguf import GGUFReader
            n = len(GGUFReader(last).tensors); sh(A.tools + "/gguf-split", "--split", "--split-max-tensors", str(-(-n // after["split"])), last, out + "/model")
            path = sorted(glob.glob(out + "/*.gguf"))[0]
        else: path = out + "/model.gguf"; shutil.copy(last, path)
        gg = G.Gguf(path); W = G.hf_weights(gg); rnd = random.Random(seed); ref = load(cfg, W)
        for k in range(60):                                            # another prompt until no call is close and the answer varies
            prompt = [2 if spm else 0] + [rnd.randrange(270 if spm else 4, REAL - 12) for _ in range(20)]; first, ids, lps, mg = greedy(ref, prompt)
            if min(mg) >= 0.02 and len(set(ids)) >= 8: break
        else:
            if tries: return make(name, spec, root, seed + 1000, tries - 1)
        # the same weights as f32 through llama.cpp: checks dequantization, names, permutation, rope, masks by a second implementation
        def llama(p, env=None): return json.loads(sh(A.tools + "/llama_ref", "greedy", p, "24", ",".join(map(str, prompt)), env=env))
        full = tmp + "/full.gguf"; sh(A.peers + "/build/bin/llama-quantize", "--allow-requantize", plain, full, "F32", "1")
        exact, own = llama(full), llama(path)
        def cmp(o):
            k = next((i for i, (a, b) in enumerate(zip(o["ids"], ids)) if a != b), None); m = len(ids) if k is None else k
            return dict(equal=k is None, first_difference=k, max_logprob_difference=round(max([abs(a - b) for a, b in zip(o["logprobs"][:m], lps[:m])] or [0]), 6), max_first_logit_difference=round(max(abs(a - float(b)) for a, b in zip(o["first_logits"], first[-1])), 6))
        e, o = cmp(exact), cmp(own)
        hf = Tokenizer.from_file(src + "/tokenizer.json") if tok else None; ours = G.hf_tokenizer(gg)
        la, lp_ = C.llama_ids(A.tools + "/llama_ref", path, CASES, 1, 1), C.llama_ids(A.tools + "/llama_ref", path, CASES, 0, 0); cases = []
        if not tok:
            import sentencepiece as s; sp = s.SentencePieceProcessor(model_file=src + "/tokenizer.model")
        for t, a, b in zip(CASES, la, lp_):
            h = hf.encode(t).ids if hf else None; c = dict(text=t, ids=ours.encode(t).ids, llama_cpp=a, llama_cpp_plain=b)
            if hf: c["hf"] = h
            else: c["sentencepiece"] = [sp.bos_id()] + sp.encode(t)
            c["agree"] = c["ids"] == a and (c.get("hf", a) == a); cases.append(c)
        kinds = {}
        for r in gg.readers:
            for t in r.tensors: kinds[t.tensor_type.name] = kinds.get(t.tensor_type.name, 0) + 1
        json.dump(dict(architecture=gg.arch, tensor_types=kinds, tokenizer_pre=gg.get("tokenizer.ggml.pre"), prompt_ids=prompt, greedy_ids=ids, greedy_logprobs=lps, smallest_greedy_margin=round(min(mg), 6), prompt_top1=[int(x) for x in first.argmax(-1)], last_prompt_logits=[round(float(x), 5) for x in first[-1]],
            reference="transformers in f32 on the weights as the gguf package dequantizes them", llama_cpp_on_the_same_weights_as_f32=e, llama_cpp_on_this_file=o, hf_config=json.loads(cfg.to_json_string(use_diff=True)), tokenizer_cases=cases,
            chat=dict(messages=[{"role": "user", "content": "Hi"}], text="<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")), open(out + "/expected.json", "w"), indent=1, ensure_ascii=True)
        size = sum(os.path.getsize(f) for f in glob.glob(out + "/*.gguf"))
        print(f"{name:22s} {size/1024:6.0f} KiB margin {min(mg):.3f} f32 {'=' if e['equal'] else '!'}{e['max_first_logit_difference']:.5f} own {'=' if o['equal'] else '@' + str(o['first_difference'])} {o['max_logprob_difference']:.3f} tok {sum(c['agree'] for c in cases)}/12 {kinds}", flush=True)
    finally: shutil.rmtree(tmp, ignore_errors=True)
if __name__ == "__main__":
    p = argparse.ArgumentParser(); p.add_argument("out"); p.add_argument("--seed", type=int, default=11); p.add_argument("--only"); p.add_argument("--peers", default="."); p.add_argument("--tools", default="."); A = p.parse_args()
    for i, (name, spec) in enumerate(PUBLIC.items()):
        if A.only and name not in A.only.split(","): continue
        try: make(name, spec, A.out, A.seed + 100 * i)
        except Exception as e: print(f"{name:22s} FAILED {type(e).__name__}: {str(e)[-700:]}", flush=True)
