//! The list of architectures.

use super::row::Arch;
use super::{deepseek, gemma, glm, gpt_oss, granite, lfm, llama, mistral, phi, qwen, qwen_hybrid};
use crate::container::gguf::error::GgufError;
use crate::container::gguf::value::Metadata;

/// Every architecture that runs.
const ARCHS: &[Arch] = &[
    llama::LLAMA,
    llama::MIXTRAL,
    qwen::QWEN2,
    qwen::QWEN3,
    qwen::QWEN3_MOE,
    gemma::GEMMA2,
    gemma::GEMMA3,
    gpt_oss::GPT_OSS,
    phi::PHI3,
    granite::GRANITE,
    glm::GLM4_MOE,
    qwen_hybrid::QWEN35,
    qwen_hybrid::QWEN35_MOE,
    qwen_hybrid::QWEN3_NEXT,
    lfm::LFM2,
    lfm::LFM2_MOE,
    mistral::MISTRAL3,
    deepseek::DEEPSEEK2,
];

/// The architecture that a file says.
///
/// # Errors
/// [`GgufError::Architecture`] for one that does not run.
pub(crate) fn of(metadata: &Metadata) -> Result<&'static Arch, GgufError> {
    const KEY: &str = "general.architecture";
    let name = Metadata::required(KEY, metadata.text(KEY))?;
    let experts = metadata.unsigned(&format!("{name}.expert_count"))?.unwrap_or(0) > 0;
    let found = ARCHS.iter().find(|arch| arch.name == name && arch.experts == experts);
    found.ok_or_else(|| {
        let mut supported: Vec<_> = ARCHS.iter().map(|arch| arch.name).collect();
        supported.dedup(); // Those of one name follow each other.
        let with = if experts { " with experts" } else { "" };
        GgufError::Architecture {
            architecture: format!("{name}{with}"),
            supported: supported.join(", "),
        }
    })
}
