//! How text is cut before pieces are joined, by the name that GGUF has for it.
//!
//! A tokenizer's own file has patterns; GGUF only has a name, which each reader must know. Patterns are those of the models' files.
//! libllama computes some of them in another form: of `tekken`, `gpt-4o` and `tiny_aya` where capitals outside of ASCII and accents
//! that are characters of their own matter, and of `deepseek-llm` and `deepseek-coder` where spaces do that are none of ASCII.

use super::error::TokenizerError;

/// A way to cut text.
#[derive(Debug)]
pub struct Split {
    /// What it is called; the first name is the one that is written.
    pub names: &'static [&'static str],
    /// Text is cut around what each finds, one after the other.
    pub patterns: &'static [&'static str],
    /// Whether a whole piece that is a token is taken as it is, whatever merges make of it.
    pub whole: bool,
    /// Whether a text begins with a token that says so, if a file does not say.
    pub begins: bool,
}

/// GPT-2's pattern, also what `ByteLevel` splits by itself.
pub const GPT2: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// Each digit by itself.
pub const DIGIT: &str = r"\p{N}";
/// Lines are pieces of their own, and so are the breaks between them.
pub(super) const LINES: &str = r"[^\n]+|[\n]+";
const CHINESE_AND_KANA: &str = "[一-龥぀-ゟ゠-ヿ]+";

/// Llama 3's, with numbers of up to three digits,
const THREE_DIGITS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// and with digits each by itself.
const ONE_DIGIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// GPT-4o's: words are cut before capitals.
const CAPITALS: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Every way that is known. Of those with the same patterns, that which more tokenizers mean comes first.
pub static SPLITS: &[Split] = &[
    Split {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
        ],
        patterns: &[THREE_DIGITS],
        whole: true,
        begins: true,
    },
    Split { names: &["glm4", "glm5"], patterns: &[THREE_DIGITS], whole: true, begins: false },
    Split {
        names: &["smaug-bpe", "dbrx", "chatglm-bpe"],
        patterns: &[THREE_DIGITS],
        whole: false,
        begins: false,
    },
    Split {
        names: &[
            "qwen2",
            "deepseek-r1-qwen",
            "kormo",
            "f2llmv2",
            "megrez",
            "stablelm2",
            "hunyuan",
            "solar-open",
            "grok-2",
        ],
        patterns: &[ONE_DIGIT],
        whole: false,
        begins: false,
    },
    Split {
        names: &["qwen35"],
        patterns: &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        whole: false,
        begins: false,
    },
    Split {
        names: &[
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "trillion",
            "granite-docling",
            "exaone4",
        ],
        patterns: &[GPT2],
        whole: false,
        begins: false,
    },
    Split {
        names: &[
            "smollm",
            "starcoder",
            "refact",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        patterns: &[DIGIT, GPT2],
        whole: false,
        begins: false,
    },
    Split {
        names: &["default"],
        patterns: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
        whole: false,
        begins: false,
    },
    Split {
        names: &["falcon"],
        patterns: &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"],
        whole: false,
        begins: false,
    },
    Split {
        names: &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        patterns: &[
            r"\p{N}{1,3}",
            CHINESE_AND_KANA,
            r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
        ],
        whole: false,
        begins: false,
    },
    Split {
        names: &["deepseek-llm"],
        patterns: &[
            r"[\r\n]",
            r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+",
            r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
            r"\s+$",
            r"[一-龥ࠀ-一가-퟿]+",
            r"\p{N}+",
        ],
        whole: false,
        begins: false,
    },
    Split {
        names: &["deepseek-coder"],
        patterns: &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", DIGIT],
        whole: false,
        begins: false,
    },
    Split {
        names: &["tekken"],
        patterns: &[
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        whole: true,
        begins: true,
    },
    Split {
        names: &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"],
        patterns: &[CAPITALS],
        whole: false,
        begins: false,
    },
    Split {
        names: &["tiny_aya", "cohere2moe"],
        patterns: &[r"\d{1,3}(?=(?:\d{3})*\b)", CAPITALS],
        whole: false,
        begins: false,
    },
    Split {
        names: &["bailingmoe", "bailingmoe2", "llada-moe"],
        patterns: &[
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        ],
        whole: false,
        begins: false,
    },
    Split {
        names: &["seed-coder"],
        patterns: &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        whole: false,
        begins: false,
    },
    Split { names: &["laguna"], patterns: &[LINES, ONE_DIGIT], whole: false, begins: false },
    Split {
        names: &["exaone-moe"],
        patterns: &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        ],
        whole: false,
        begins: false,
    },
    Split {
        names: &["minicpm5"],
        patterns: &[
            r"\p{N}{1,3}",
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        whole: true,
        begins: false,
    },
    Split {
        names: &["poro-chat", "bloom", "gpt3-finnish"],
        patterns: &[r" ?[^(\s|.,!?…。，、।۔،)]+"],
        whole: false,
        begins: false,
    },
    Split {
        names: &["viking"],
        patterns: &[r" ?[^(\s|.,!?…。，、।۔،)]+", DIGIT],
        whole: false,
        begins: false,
    },
];

/// The way of that name.
///
/// # Errors
/// [`TokenizerError::Pre`]
pub(super) fn of(pre: &str) -> Result<&'static Split, TokenizerError> {
    let found = SPLITS.iter().find(|split| split.names.contains(&pre));
    found.ok_or_else(|| TokenizerError::Pre { pre: pre.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_one_way() {
        let names = || SPLITS.iter().flat_map(|split| split.names);
        for name in names() {
            assert_eq!(names().filter(|other| *other == name).count(), 1, "{name}");
        }
        assert!(of("llama-bpe").unwrap().whole && !of("qwen2").unwrap().begins);
        let error = of("gpt-99").unwrap_err();
        assert!(error.to_string().contains("\"gpt-99\""), "{error}");
    }
}
