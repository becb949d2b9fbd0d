//! Two examples for each command, shown at the end of its help. A test parses each of them.

/// Of `cake-master` itself: where to begin.
pub(super) const ALL: &str = r#"Examples:
  cake-master demo
  cake-master run ~/models/llama-3.2-1b "Why is the sky blue?""#;

/// Of `cake-master demo`.
pub(super) const DEMO: &str = r#"Examples:
  cake-master demo
  cake-master demo "What is the capital of France?""#;

/// Of `cake-master run`.
pub(super) const RUN: &str = r#"Examples:
  cake-master run ~/models/llama-3.2-1b "Why is the sky blue?"
  git diff | cake-master run ~/models/llama-3.2-1b - --system "Review this change.""#;

/// Of `cake-master chat`.
pub(super) const CHAT: &str = r#"Examples:
  cake-master chat ~/models/llama-3.2-1b
  cake-master chat ~/models/llama-3.2-1b --alone --context 8192 --temperature 0.7"#;

/// Of `cake-master serve`.
pub(super) const SERVE: &str = r#"Examples:
  cake-master serve ~/models/llama-3.2-1b
  cake-master serve ~/models/llama-3.2-1b --listen 0.0.0.0:8080 --api-key-file keys.txt --parallel 16
  cake-master serve --ollama --keep-alive 10m"#;

/// Of `cake-master models`.
pub(super) const MODELS: &str = r#"Examples:
  cake-master models list
  cake-master models pull Qwen/Qwen2.5-0.5B-Instruct"#;

/// Of `cake-master models list`.
pub(super) const MODELS_LIST: &str = r#"Examples:
  cake-master models list
  cake-master models list --json"#;

/// Of `cake-master models pull`.
pub(super) const MODELS_PULL: &str = r#"Examples:
  cake-master models pull meta-llama/Llama-3.2-1B-Instruct
  cake-master models pull Qwen/Qwen3-30B-A3B@main --only-layers 0..16"#;

/// Of `cake-master models rm`.
pub(super) const MODELS_RM: &str = r#"Examples:
  cake-master models rm meta-llama/Llama-3.2-1B-Instruct
  cake-master models rm Qwen/Qwen3-30B-A3B@main --yes"#;

/// Of `cake-master models show`.
pub(super) const MODELS_SHOW: &str = r#"Examples:
  cake-master models show ~/models/llama-3.2-1b
  cake-master models show ollama:llama3.2 --json"#;

/// Of `cake-master status`.
pub(super) const STATUS: &str = r#"Examples:
  cake-master status --watch
  cake-master status --at http://192.168.1.2:8080 --json"#;

/// Of `cake-master ps`.
pub(super) const PS: &str = r#"Examples:
  cake-master ps
  cake-master ps --at http://192.168.1.2:8080 --json"#;

/// Of `cake-master logs`.
pub(super) const LOGS: &str = r#"Examples:
  cake-master logs --follow
  cake-master logs --json"#;

/// Of `cake-master bench`.
pub(super) const BENCH: &str = r#"Examples:
  cake-master bench ~/models/llama-3.2-1b
  cake-master bench --alone --runs 3 --json"#;

/// Of `cake-master plan`.
pub(super) const PLAN: &str = r#"Examples:
  cake-master plan ~/models/llama-3.2-1b --encode auto
  cake-master plan ~/models/llama-3.2-1b --what-if phone:3GiB --exclude attic"#;

/// Of `cake-master push`.
pub(super) const PUSH: &str = r#"Examples:
  cake-master push ~/models/llama-3.2-1b
  cake-master push ~/models/llama-3.2-1b --place tablet=0..8"#;

/// Of `cake-master inspect`.
pub(super) const INSPECT: &str = r#"Examples:
  cake-master inspect ~/models/llama-3.2-1b
  cake-master inspect ~/models/llama-3.2-1b --tensors --json"#;

/// Of `cake-master extract`.
pub(super) const EXTRACT: &str = r#"Examples:
  cake-master extract ~/models/llama-3.2-1b --layers 4..8 --out layers.safetensors
  cake-master extract ~/models/llama-3.2-1b --layers 0..1 --out first.safetensors --json"#;

/// Of `cake-master merge`.
pub(super) const MERGE: &str = r#"Examples:
  cake-master merge ~/models/qwen3-30b --out qwen3-30b.safetensors
  cake-master merge ~/models/qwen3-30b --out ~/models/qwen3-30b-in-one --json

A run that was interrupted, or for which the disk was too small, goes on where it was with the same command."#;

/// Of `cake-master split`.
pub(super) const SPLIT: &str = r#"Examples:
  cake-master split ~/models/qwen3-30b-in-one --out ~/models/qwen3-30b
  cake-master split ~/models/qwen3-30b --max-shard-size 900MiB --out ~/models/in-small-parts

A run that was interrupted, or for which the disk was too small, goes on where it was with the same command."#;

/// Of `cake-master convert`.
pub(super) const CONVERT: &str = r#"Examples:
  cake-master convert ~/models/qwen3-8b --to mlx --encode q4 --out ~/models/qwen3-8b-4bit
  cake-master convert ~/models/qwen3-8b-4bit --to safetensors --encode f16 --out ~/models/qwen3-8b-f16
  cake-master convert ~/models/qwen3-8b --to gguf --encode q8_0 --out qwen3-8b.gguf
  cake-master convert ~/models/qwen3-8b --to apr --out qwen3-8b.apr

A run that was interrupted, or for which the disk was too small, goes on where it was with the same command."#;

/// Of `cake-master verify`.
pub(super) const VERIFY: &str = r#"Examples:
  cake-master verify ~/models/qwen3-8b --write-digests qwen3-8b.b3
  cake-master verify /media/stick/qwen3-8b --digests qwen3-8b.b3"#;

/// Of `cake-master diff`.
pub(super) const DIFF: &str = r#"Examples:
  cake-master diff ~/models/qwen3-8b ~/models/qwen3-8b-4bit
  cake-master diff ~/models/qwen3-8b-4bit ~/models/qwen3-8b-8bit --json"#;

/// Of `cake-master pull`.
pub(super) const PULL: &str = r#"Examples:
  cake-master pull meta-llama/Llama-3.2-1B-Instruct
  cake-master pull Qwen/Qwen3-30B-A3B@main --only-layers 0..16"#;

/// Of `cake-master list`.
pub(super) const LIST: &str = r#"Examples:
  cake-master list
  cake-master list --json"#;

/// Of `cake-master rm`.
pub(super) const RM: &str = r#"Examples:
  cake-master rm meta-llama/Llama-3.2-1B-Instruct
  cake-master rm Qwen/Qwen3-30B-A3B@main --yes"#;

/// Of `cake-master doctor`.
pub(super) const DOCTOR: &str = r#"Examples:
  cake-master doctor
  cake-master doctor --worker 127.0.0.1:7117 --json"#;

/// Of `cake-master compare`.
pub(super) const COMPARE: &str = r#"Examples:
  cake-master compare ~/models/llama-3.2-1b
  cake-master compare ~/models/llama-3.2-1b --place tablet=0..16 --tolerance 1e-4"#;

/// Of `cake-master init`.
pub(super) const INIT: &str = r#"Examples:
  cake-master init
  cake-master init --certificate-lifetime 30d"#;

/// Of `cake-master token`.
pub(super) const TOKEN: &str = r#"Examples:
  cake-master token --wait
  cake-master token --uses 5 --ttl 10m --no-qr"#;

/// Of `cake-master config`.
pub(super) const CONFIG: &str = r#"Examples:
  cake-master config
  cake-master config serve --json"#;

/// Of `cake-master workers`.
pub(super) const WORKERS: &str = r#"Examples:
  cake-master workers list
  cake-master workers revoke tablet"#;

/// Of `cake-master workers list`.
pub(super) const WORKERS_LIST: &str = r#"Examples:
  cake-master workers list
  cake-master workers list --json"#;

/// Of `cake-master workers rename`.
pub(super) const WORKERS_RENAME: &str = r#"Examples:
  cake-master workers rename vm-3 kitchen
  cake-master workers rename 7ee027a9 attic"#;

/// Of `cake-master workers revoke`.
pub(super) const WORKERS_REVOKE: &str = r#"Examples:
  cake-master workers revoke tablet
  cake-master workers revoke 3fa8"#;

/// Of `cake-master workers forget`.
pub(super) const WORKERS_FORGET: &str = r#"Examples:
  cake-master workers forget tablet
  cake-master workers forget 3fa8"#;

#[cfg(test)]
mod tests {
    use clap::{ArgAction, Command, CommandFactory, Parser};

    use crate::cli::Cli;

    /// The words of a command line, quotes taken away.
    fn words(line: &str) -> Vec<String> {
        let mut words = vec![String::new()];
        let mut quoted = false;
        for c in line.chars() {
            match c {
                '"' => quoted = !quoted,
                ' ' if !quoted => words.push(String::new()),
                c => words.last_mut().expect("never empty").push(c),
            }
        }
        words
    }

    /// Calls `check` with each command that people see, and the words that it is called with.
    fn each(command: &Command, path: &[&str], check: &mut impl FnMut(&Command, &[&str])) {
        let path = [path, &[command.get_name()]].concat();
        check(command, &path);
        let shown = |sub: &&Command| !sub.is_hide_set() && sub.get_name() != "help";
        for sub in command.get_subcommands().filter(shown) {
            each(sub, &path, check);
        }
    }

    #[test]
    fn every_commands_help_has_two_examples_that_can_be_typed() {
        let mut command = Cli::command();
        command.build();
        let mut seen = 0;
        each(&command, &[], &mut |command, path| {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let lines: Vec<&str> =
                help.lines().filter_map(|line| Some(&line[line.find("cake-master")?..])).collect();
            assert!(lines.len() >= 2, "{path:?}: {help}");
            for line in lines {
                let words = words(line);
                assert!(path.iter().zip(&words).all(|(a, b)| a == b), "{path:?}: {line}");
                if let Err(error) = Cli::try_parse_from(&words) {
                    panic!("{line}: {error}");
                }
            }
            seen += 1;
        });
        assert!(seen > 16, "{seen} commands");
    }

    #[test]
    fn every_option_is_in_a_group_and_says_what_holds_without_it() {
        let mut command = Cli::command();
        command.build();
        each(&command, &[], &mut |command, path| {
            let own = |id: &str| ["help", "version"].contains(&id);
            let options = command.get_arguments().filter(|arg| !arg.is_positional());
            for arg in options.filter(|arg| !arg.is_hide_set() && !own(arg.get_id().as_str())) {
                let name = format!("{path:?} {}", arg.get_id());
                assert!(arg.get_help_heading().is_some(), "{name} is in no group");
                let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
                let one = matches!(arg.get_action(), ArgAction::Set) && !arg.is_required_set();
                let said = help.contains("Default: ") || !arg.get_default_values().is_empty();
                assert!(!one || said, "{name} does not say its default: {help}");
            }
        });
    }
}
