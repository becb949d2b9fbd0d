"""Make small tokenizers of the kinds that real models have, and what transformers makes of some texts with them.

Usage: make.py CORPUS OUT_DIR   (pip install tokenizers transformers)
Writes OUT_DIR/KIND.json, tokenizers trained on CORPUS, and OUT_DIR/expected.json: for each kind, texts with their
ids, and their ids with split_special_tokens=True, where the strings of special tokens are text.
"""
import json, os, random, sys
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

VOCAB = 700
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
GPT4 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def special(content, **flags):
    return AddedToken(content, special=True, normalized=flags.pop("normalized", False), **flags)


def plain(content):
    return AddedToken(content, special=False, normalized=False)


def byte_level(corpus, split, normalizer):
    tokenizer = Tokenizer(models.BPE(ignore_merges=bool(split)))
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not split)
    parts = [pre_tokenizers.Split(Regex(split), "isolated"), level] if split else [level]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts) if split else level
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, initial_alphabet=ALPHABET, show_progress=False)
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


def gpt2(corpus):
    tokenizer = byte_level(corpus, None, None)
    tokenizer.add_tokens([special("<|endoftext|>", normalized=True)])
    return tokenizer


def qwen(corpus):
    tokenizer = byte_level(corpus, GPT4 % r"\p{N}", normalizers.NFC())
    tokenizer.add_tokens([special("<|endoftext|>"), special("<|im_start|>"), special("<|im_end|>")])
    tokenizer.add_tokens([plain(t) for t in ["<think>", "</think>", "<tool_call>", "</tool_call>"]])
    return tokenizer


def llama3(corpus):
    tokenizer = byte_level(corpus, GPT4 % r"\p{N}{1,3}", None)
    names = ["begin_of_text", "end_of_text", "start_header_id", "end_header_id", "eot_id", "python_tag"]
    tokenizer.add_tokens([special(f"<|{name}|>") for name in names])
    return tokenizer


def sentencepiece(corpus):
    """As Llama 2, Mistral and Phi-3 have it: spaces are characters, unknown ones are bytes, one token strips."""
    fallback = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    trainer = trainers.BpeTrainer(vocab_size=VOCAB + 259, special_tokens=fallback, show_progress=False)
    words = (word for line in corpus for word in line.replace(" ", " \u2581").split(" "))
    tokenizer.train_from_iterator(words, trainer)
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = [token for token in data["added_tokens"] if token["id"] < 3]
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    tokenizer.add_tokens([special("<|user|>", rstrip=True), special("<|end|>", rstrip=True), special("[INST]")])
    return tokenizer


def unigram(corpus):
    """As T5 and XLNet have it, and WordPiece below: text may be lost, and normalized tokens are looked for in what is left."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase(),
                                                 normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    trainer = trainers.UnigramTrainer(vocab_size=VOCAB, unk_token="<unk>", special_tokens=["<unk>", "<pad>"],
                                      show_progress=False)
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_tokens([special("<sep>", normalized=True), special("<cls>", lstrip=True), plain("<mask>")])
    return tokenizer


def wordpiece(corpus):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=VOCAB, special_tokens=["[UNK]", "[CLS]", "[SEP]", "[MASK]"],
                                        show_progress=False)
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


KINDS = [gpt2, qwen, llama3, sentencepiece, unigram, wordpiece]
PIECES = ["Hello", " world", "wörld", "naïve café", "\n", "\n\n", "\t", "  ", "   ", "🦉", "👩‍👩‍👧", "日本語", "كلام", "e\u0301",
          "ﬁ", "＜|im_end|＞", "１２３", "3.14", "12345", "if (a<b && c>d) { return x[i]; }", "def f(x):\n    return x\n", "<", ">", "|",
          "<|", "|>", "<|im_en|>", "<|im_end", "im_end|>", "<think>", "</think>", "<tool_call>", "<mask>", "</div>", "[INS]",
          "[INST", "<s", "<SEP>", "[cls", "'s", "don't", "—", "\u200b", "\ufdd0", "<0x0A>", "▁", "the model", " and so on. "]


def texts(seed, count, control):
    rng = random.Random(seed)
    pieces = PIECES + 2 * control
    return ["".join(rng.choice(pieces) for _ in range(rng.randint(1, 12))) for _ in range(count)]


def main(corpus, out):
    lines = open(corpus, encoding="utf-8").read().splitlines(keepends=True)
    expected = {}
    for kind in KINDS:
        tokenizer = kind(lines)
        tokenizer.save(os.path.join(out, f"{kind.__name__}.json"), pretty=False)
        control = [token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special]
        fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
        cases = []
        for text in texts(kind.__name__, 100, control):
            ids = fast(text, add_special_tokens=False)["input_ids"]
            split = fast(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
            cases.append({"text": text, "ids": ids, "split": split})
        assert any(case["ids"] != case["split"] for case in cases)
        expected[kind.__name__] = cases
    with open(os.path.join(out, "expected.json"), "w") as file:
        json.dump(expected, file, ensure_ascii=False, separators=(",", ":"))


main(*sys.argv[1:])
