//! The architectures of GGUF that are written.

use super::FORMAT;
use crate::error::Unsupported;

/// One architecture, as llama.cpp knows it.
#[derive(Debug)]
pub(super) struct Arch {
    /// As in `general.architecture`.
    pub(super) name: &'static str,
    /// What is written as this, as in a specification.
    pub(super) of: &'static [&'static str],
    /// Whether a rotation turns neighbours of a head, so that the rows of queries and keys lie in pairs.
    pub(super) pairs: bool,
    /// Whether layers have norms before and after operations, and names for these.
    pub(super) sandwich: bool,
    /// Whether all linear layers may have biases; else only queries, keys and values may.
    pub(super) biases: bool,
    /// Whether some layers may see a window.
    pub(super) windows: bool,
    /// Whether layers have experts.
    pub(super) experts: bool,
    /// Whether divisors of frequencies may be given, each by itself.
    pub(super) divisors: bool,
}

const PLAIN: Arch = Arch {
    name: "",
    of: &[],
    pairs: false,
    sandwich: false,
    biases: false,
    windows: false,
    experts: false,
    divisors: false,
};

const ARCHS: &[Arch] = &[
    Arch {
        name: "llama",
        of: &["LlamaForCausalLM", "MistralForCausalLM"],
        pairs: true,
        biases: true,
        divisors: true,
        ..PLAIN
    },
    Arch { name: "qwen2", of: &["Qwen2ForCausalLM"], ..PLAIN },
    Arch { name: "qwen3", of: &["Qwen3ForCausalLM"], ..PLAIN },
    Arch { name: "qwen3moe", of: &["Qwen3MoeForCausalLM"], experts: true, ..PLAIN },
    Arch { name: "gemma3", of: &["Gemma3ForCausalLM"], sandwich: true, windows: true, ..PLAIN },
    Arch { name: "phi3", of: &["Phi3ForCausalLM"], ..PLAIN },
];

/// What a model of this architecture is written as.
///
/// # Errors
/// [`Unsupported::Architecture`]
pub(super) fn of(architecture: &str) -> Result<&'static Arch, Unsupported> {
    ARCHS.iter().find(|arch| arch.of.contains(&architecture)).ok_or_else(|| {
        Unsupported::Architecture {
            architecture: architecture.to_owned(),
            format: FORMAT,
            hint: "; Llama, Mistral, Qwen2, Qwen3, Qwen3 MoE, Gemma 3 and Phi-3 are",
        }
    })
}
