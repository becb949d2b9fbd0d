//! Runs that are killed, interrupted, or for which the disk is too small.
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cake_tests::master::{path, strs};
use cake_tests::{Finished, Master, ModelShape, Running, model, not_shown, programs, until};
use rustix::process::Signal;

const SEED: u64 = 17;
const LIMIT: Duration = Duration::from_secs(120);
/// How often a run is killed before it may end.
const KILLS: usize = 2;
/// How often runs of a command are killed in all, and after how many rounds it is given up.
const KILLS_OF_COMMAND: usize = 4;
const ROUNDS: usize = 20;
/// Most of the weights that may be read again for each kill.
const READ_AGAIN: f64 = 0.01;

/// 96 MiB in files of 20.
fn shape() -> ModelShape {
    ModelShape {
        hidden_size: 1024,
        intermediate_size: 4096,
        heads: 16,
        layers: 3,
        shard_bytes: Some(20 << 20),
        ..ModelShape::small()
    }
}

fn model(home: &Path) -> String {
    println!("seed {SEED}");
    model::make(&home.join("model"), &shape(), SEED).expect("the model can be written");
    path(&home.join("model"))
}

fn journal(out: &Path) -> PathBuf {
    PathBuf::from(format!("{}.part.journal", out.display()))
}

fn journal_lines(out: &Path) -> usize {
    std::fs::read_to_string(journal(out)).map_or(0, |text| text.lines().count())
}

/// Everything that one of these writes, by name.
fn content(out: &Path) -> Vec<(String, Vec<u8>)> {
    if out.is_file() {
        return vec![(String::new(), std::fs::read(out).expect("it is there"))];
    }
    let entries = std::fs::read_dir(out).expect("it is there");
    let mut files: Vec<(String, Vec<u8>)> = entries
        .map(|entry| entry.expect("listed").path())
        .map(|file| (path(&file), std::fs::read(&file).expect("it is there")))
        .map(|(name, bytes)| (name.rsplit('/').next().unwrap_or_default().to_owned(), bytes))
        .collect();
    files.sort();
    files
}

/// What became of runs that were killed.
#[derive(Default)]
struct Killed {
    /// Bytes that all of them read.
    read: u64,
    /// How many did not end by themselves.
    kills: usize,
}

/// Kills a command where its journal has so many lines, or with 0 as soon as there is a file, as often as there are `kills`,
/// and lets it end.
fn killed(master: &Master, args: &[&str], out: &Path, kills: &[usize]) -> Killed {
    let mut killed = Killed::default();
    let part = PathBuf::from(format!("{}.part", out.display()));
    for &lines in kills {
        let running = master.start(args);
        until("the journal to be long enough", LIMIT, || {
            let is_there = if lines == 0 { part.exists() } else { journal_lines(out) >= lines };
            is_there || out.exists()
        });
        running.signal(Signal::KILL);
        let ended = running.finish(LIMIT);
        killed.read += ended.read_call_bytes;
        killed.kills += usize::from(ended.status.signal() == Some(Signal::KILL.as_raw()));
        if out.exists() {
            // It was done before it was killed; its journal may still be there.
            break;
        }
    }
    if !out.exists() || journal(out).exists() {
        killed.read += master.run(args).success().read_call_bytes;
    }
    killed
}

#[test]
fn what_is_killed_goes_on_to_the_same_bytes_and_reads_next_to_nothing_again() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let model = model(home.path());
    let master = Master::alone();
    let commands: [(&[&str], &str); 6] = [
        (&["merge", &model], ""),
        (&["split", &model, "--max-shard-size", "30MB"], ""),
        (&["convert", &model, "--to", "mlx", "--encode", "q4"], ""),
        (&["convert", &model, "--to", "gguf", "--encode", "q8_0"], ".gguf"),
        (&["convert", &model, "--to", "apr"], ".apr"),
        (&["convert", &model, "--to", "apr", "--encode", "q8"], ".apr"),
    ];
    let (mut seed, mut kills) = (SEED, 0);
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    for (index, (command, ending)) in commands.iter().enumerate() {
        let named = |name: &str| home.path().join(format!("{name}-{index}{ending}"));
        let whole = named("whole");
        let args = |out: &Path| -> Vec<String> {
            let out = ["--out".to_owned(), path(out), "--threads".to_owned(), "2".to_owned()];
            command.iter().map(ToString::to_string).chain(out).collect()
        };
        let once = master.run(&strs(&args(&whole))).success();
        // A run may end before it is killed, where a machine is fast: as many rounds as it takes.
        let mut of_command = 0;
        for round in 0..ROUNDS {
            if of_command >= KILLS_OF_COMMAND {
                break;
            }
            let out = named(&format!("killed-{round}"));
            // Twice in a run, at different places; the first of all before anything is written.
            let first = if round == 0 { 0 } else { 2 + random(600) };
            let at: [usize; KILLS] = [first, first + 1 + random(600)];
            let Killed { read, kills: killed } = killed(&master, &strs(&args(&out)), &out, &at);
            of_command += killed;
            assert!(content(&out) == content(&whole), "{command:?}, killed at {first}");
            // Each start reads the headers, and what it was killed in.
            let again = read.saturating_sub(once.read_call_bytes) as f64 / shape().bytes() as f64;
            println!("{command:?}: {again:.4} of the weights read again after {killed} kills");
            assert!(again <= KILLS as f64 * READ_AGAIN, "{command:?}: {again:.4} read again");
            std::fs::remove_dir_all(&out).or_else(|_| std::fs::remove_file(&out)).expect("deleted");
        }
        assert!(
            of_command >= KILLS_OF_COMMAND,
            "{command:?}: {of_command} kills in {ROUNDS} rounds"
        );
        kills += of_command;
    }
    assert!(kills >= 20, "{kills} kills");
}

#[test]
fn an_interrupt_says_that_the_same_command_goes_on() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let (model, out) = (model(home.path()), home.path().join("out"));
    let master = Master::alone();
    let args = ["convert", &model, "--to", "mlx", "--encode", "q4", "--out", &path(&out)];
    let running = master.start(&args);
    until("the work to begin", LIMIT, || journal_lines(&out) > 3);
    running.signal(Signal::INT);
    let ended = running.finish(LIMIT);
    assert_eq!(ended.status.code(), Some(130), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("the same command goes on where this one stopped"),
        "{}",
        ended.stderr
    );
    let said = master.run(&args).success();
    assert!(said.stdout.contains(" of it earlier) in "), "{}", said.stdout);
}

/// What a disk of so many MiB sees: `script` runs there with `$OUT` on it and `$CAKE` as the program. `None` if this
/// system makes no such disk.
fn on_a_small_disk(mib: u64, script: &str) -> Option<Finished> {
    let mount = format!("mount -t tmpfs -o size={mib}m none \"$DISK\" || exit 77\n{script}");
    let home = tempfile::tempdir().expect("a temporary folder");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--map-root-user", "sh", "-c", &mount]);
    command.env("DISK", home.path()).env("OUT", home.path().join("out.safetensors"));
    command.env("CAKE", &programs().master).env("CAKE_STATE", "/nonexistent");
    let ended = Running::start(&mut command).finish(LIMIT);
    let refused = ended.stderr.contains("unshare") || ended.status.code() == Some(77);
    if refused {
        not_shown(format!("a small disk: {}", ended.stderr));
    }
    (!refused).then_some(ended)
}

#[test]
fn what_has_no_room_is_not_begun() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let model = model(home.path());
    let script = format!("\"$CAKE\" merge '{model}' --out \"$OUT\"; echo ended $?; ls \"$DISK\"");
    let Some(ended) = on_a_small_disk(40, &script) else { return };
    assert_eq!(ended.stdout, "ended 1\n", "{}", ended.stderr);
    assert!(ended.stderr.contains("no room for"), "{}", ended.stderr);
    assert!(ended.stderr.contains("are free"), "{}", ended.stderr);
}

#[test]
fn a_disk_that_fills_up_is_said_and_the_work_goes_on_when_there_is_room() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let model = model(home.path());
    let whole = home.path().join("whole.safetensors");
    Master::alone().run(&["merge", &model, "--out", &path(&whole)]).success();
    // Somebody else fills the disk as soon as the work has begun, which stands still meanwhile: else it might be done before.
    let script = format!(
        r#""$CAKE" merge '{model}' --out "$OUT" --threads 1 &
        work=$!
        while kill -0 $work && [ $(cat "$OUT.part.journal" 2>/dev/null | wc -l) -lt 20 ]; do :; done 2>/dev/null
        kill -STOP $work
        head -c 200m /dev/zero > "$DISK/ballast" 2>/dev/null
        kill -CONT $work
        wait $work; echo ended $?
        ls "$DISK"
        rm "$DISK/ballast"
        "$CAKE" merge '{model}' --out "$OUT" >/dev/null; echo ended $?
        ls "$DISK"; cmp "$OUT" '{}' && echo the same"#,
        whole.display()
    );
    let Some(ended) = on_a_small_disk(110, &script) else { return };
    let expected = "ended 1\nballast\nout.safetensors.part\nout.safetensors.part.journal\n\
                    ended 0\nout.safetensors\nthe same\n";
    if ended.stdout.starts_with("ended 0") {
        return not_shown("a disk that fills up: the work was done before it was full");
    }
    assert_eq!(ended.stdout, expected, "{}", ended.stderr);
    assert!(ended.stderr.contains("no room for"), "{}", ended.stderr);
    assert!(ended.stderr.contains("the same command goes on with it"), "{}", ended.stderr);
}
