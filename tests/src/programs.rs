//! The binaries under test: found beside the running test, built first so that they are never stale. `CAKE_PROGRAMS`
//! names another directory to take them from, as they are there: an older version, to see that a new test fails on it.
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// Paths of the binaries under test.
#[derive(Clone, Debug)]
pub struct Programs {
    /// `cake-master`.
    pub master: PathBuf,
    /// `cake-worker`.
    pub worker: PathBuf,
}

/// What tests' programs have in their environment: they time layers for so short that no plan should rely on it, as no test
/// does, and most of what tests compute was that. Benchmarks, which are built as releases, have nothing of it.
pub fn environment() -> Option<(&'static str, &'static str)> {
    cfg!(debug_assertions).then_some(("CAKE_PROBE_MS", "5"))
}

/// The binaries of the profile that this test was built with.
///
/// The first call of a process runs `cargo build`: nothing is done if they are fresh, and a test
/// can never pass or fail because of binaries of last week.
///
/// # Panics
/// If they cannot be built.
pub fn programs() -> &'static Programs {
    static PROGRAMS: OnceLock<Programs> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        let directory = match std::env::var_os("CAKE_PROGRAMS") {
            Some(directory) => PathBuf::from(directory),
            None => built(profile_directory()),
        };
        let suffix = std::env::consts::EXE_SUFFIX;
        let program = |name: &str| {
            let path = directory.join(format!("{name}{suffix}"));
            assert!(path.is_file(), "there is no {}", path.display());
            path
        };
        Programs { master: program("cake-master"), worker: program("cake-worker") }
    })
}

/// `target/debug` of `target/debug/deps/scenario-0123` as of `target/debug/cake-bench`.
fn profile_directory() -> PathBuf {
    let program = std::env::current_exe().expect("a running program has a path");
    let directory = program.parent().expect("a program lies in a directory");
    if directory.ends_with("deps") {
        return directory.parent().expect("deps lies in a directory").to_owned();
    }
    directory.to_owned()
}

/// The directory of a profile, with binaries that are as new as the sources.
fn built(directory: PathBuf) -> PathBuf {
    let name = directory.file_name().and_then(|name| name.to_str()).unwrap_or("debug");
    let profile = if name == "debug" { "dev" } else { name };
    let target = directory.parent().expect("a profile's directory lies in the target directory");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["build", "--quiet", "-p", "cake-master", "-p", "cake-worker", "--bins"])
        .args(["--profile", profile, "--target-dir"])
        .arg(target)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .output()
        .expect("cargo is there: it built this test");
    assert!(
        output.status.success(),
        "cannot build the programs under test:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    directory
}
