//! The list of programs that keep models.

use super::lm_studio::LM_STUDIO;
use super::ollama::OLLAMA;
use super::program::Program;

pub(super) static PROGRAMS: &[Program] = &[OLLAMA, LM_STUDIO];

/// The program that `model` begins with the scheme of, and the name that follows.
pub(super) fn program_of(model: &str) -> Option<(&'static Program, &str)> {
    let (scheme, name) = model.split_once(':')?;
    let program = PROGRAMS.iter().find(|program| program.scheme == scheme)?;
    Some((program, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_schemes_of_the_list_are_schemes() {
        let of = |model| program_of(model).map(|(program, name)| (program.called, name));
        assert_eq!(of("ollama:llama3.2:1b"), Some(("Ollama", "llama3.2:1b")));
        assert_eq!(of("lmstudio:a/b"), Some(("LM Studio", "a/b")));
        for model in ["ollama", "Ollama:x", "./ollama:x", "C:\\models", "org/name", "hub:x"] {
            assert_eq!(of(model), None, "{model}");
        }
    }
}
