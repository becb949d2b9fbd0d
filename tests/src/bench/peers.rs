//! Other systems on the same machine: llama.cpp and PyTorch, where somebody has prepared them.
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

mod server;

pub(crate) use server::Together;

/// Ports of the RPC servers.
const RPC_PORTS: [u16; 2] = [50_052, 50_053];
/// Micro-batches that the RPC prefill is tried with; the best counts.
const RPC_BATCHES: [&str; 2] = ["512", "128"];
const START: Duration = Duration::from_secs(1);

/// A directory made by `tests/benches/peers.sh`.
#[derive(Clone, Debug)]
pub(crate) struct Peers(PathBuf);

/// Tokens per second of a prompt of 512 and of what follows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rates {
    /// Of the prompt.
    pub(crate) prefill: f64,
    /// Of the answer.
    pub(crate) decode: f64,
}

impl Peers {
    /// The directory, if there is one.
    pub(crate) fn at(directory: Option<PathBuf>) -> Option<Peers> {
        directory.filter(|directory| directory.is_dir()).map(Peers)
    }

    /// llama.cpp in one process with two threads; `kind` is the name of a GGUF file.
    ///
    /// # Errors
    /// If it is not there or fails.
    pub(crate) fn llama(&self, kind: &str) -> Result<Rates> {
        self.llama_of(&self.gguf(kind))
    }

    /// The same of any GGUF file.
    ///
    /// # Errors
    /// As [`Peers::llama`].
    pub(crate) fn llama_of(&self, model: &Path) -> Result<Rates> {
        self.llama_bench(model, &["-t", "2", "-ngl", "0", "-p", "512", "-n", "64"])
    }

    fn gguf(&self, kind: &str) -> PathBuf {
        self.0.join(format!("gguf/{kind}.gguf"))
    }

    /// llama.cpp over two RPC servers of one thread, each pinned to a core.
    ///
    /// # Errors
    /// As [`Peers::llama`].
    pub(crate) fn llama_rpc(&self, kind: &str) -> Result<Rates> {
        self.llama_rpc_of(&self.gguf(kind))
    }

    /// The same of any GGUF file.
    ///
    /// # Errors
    /// As [`Peers::llama`].
    pub(crate) fn llama_rpc_of(&self, model: &Path) -> Result<Rates> {
        let _servers = (0..)
            .zip(RPC_PORTS)
            .map(|(core, port)| self.rpc_server(core, port))
            .collect::<Result<Vec<_>>>()?;
        std::thread::sleep(START); // They do not say when they listen.
        let servers = RPC_PORTS.map(|port| format!("127.0.0.1:{port}")).join(",");
        let mut best = Rates { prefill: 0.0, decode: 0.0 };
        for batch in RPC_BATCHES {
            let fixed = ["--rpc", &servers, "-ngl", "99", "-ts", "1/1", "-t", "1"];
            let sizes = ["-p", "512", "-n", "64", "-ub", batch];
            let rates = self.llama_bench(model, &[&fixed[..], &sizes[..]].concat())?;
            best.prefill = best.prefill.max(rates.prefill);
            best.decode = best.decode.max(rates.decode);
        }
        Ok(best)
    }

    /// Prompt tokens per second of transformers on PyTorch, bf16, two threads.
    ///
    /// # Errors
    /// If it is not there or fails.
    pub(crate) fn torch_prefill(&self) -> Result<f64> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/torch_prefill.py");
        let mut command = Command::new(self.0.join("venv/bin/python"));
        let said = output(command.arg(script).arg(self.0.join("hf")))?;
        said.trim().parse().with_context(|| format!("PyTorch said {said:?}"))
    }

    /// Writes a GGUF file of random weights in Q8_0 with the shapes of a model like Qwen3.5.
    ///
    /// # Errors
    /// If numpy or the gguf package is not there, or it cannot be written.
    pub(crate) fn write_recurrent(&self, config: &Path, out: &Path) -> Result<()> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/recurrent_gguf.py");
        let mut command = Command::new(self.0.join("venv/bin/python"));
        output(command.arg(script).arg(out).arg(config)).map(drop)
    }

    /// llama.cpp's program that encodes GGUF files, if it was built.
    pub(crate) fn quantizer(&self) -> Option<Quantizer> {
        let program = self.0.join("build/bin/llama-quantize");
        program.is_file().then_some(Quantizer(program))
    }

    fn llama_bench(&self, model: &Path, args: &[&str]) -> Result<Rates> {
        let mut command = Command::new(self.0.join("build/bin/llama-bench"));
        let said =
            output(command.arg("-m").arg(model).args(["-r", "1", "-o", "jsonl"]).args(args))?;
        let mut rates = Rates { prefill: 0.0, decode: 0.0 };
        for line in said.lines().filter(|line| line.starts_with('{')) {
            let report: Value = serde_json::from_str(line)?;
            let rate = report["avg_ts"].as_f64().context("llama-bench gives no avg_ts")?;
            match report["n_gen"].as_u64() {
                Some(0) => rates.prefill = rate,
                _ => rates.decode = rate,
            }
        }
        ensure!(rates.prefill > 0.0 && rates.decode > 0.0, "llama-bench said {said:?}");
        Ok(rates)
    }

    fn rpc_server(&self, core: usize, port: u16) -> Result<Server> {
        let mut command = Command::new("taskset");
        command.args(["-c", &core.to_string()]).arg(self.0.join("build/bin/ggml-rpc-server"));
        command.args(["-H", "127.0.0.1", "-t", "1", "-p", &port.to_string()]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Ok(Server(child.context("cannot start llama.cpp's RPC server")?))
    }
}

/// llama.cpp's program that encodes GGUF files.
#[derive(Clone, Debug)]
pub(crate) struct Quantizer(PathBuf);

impl Quantizer {
    /// Writes the GGUF file `from` as `to`, most of its matrices with codes of this kind, with so many threads.
    ///
    /// # Errors
    /// If it fails.
    pub(crate) fn run(&self, from: &Path, to: &Path, kind: &str, threads: &str) -> Result<()> {
        output(Command::new(&self.0).arg(from).arg(to).args([kind, threads])).map(|_| ())
    }
}

/// A process that ends with the measurement.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn output(command: &mut Command) -> Result<String> {
    let done = command.stderr(Stdio::null()).output();
    let done = done.with_context(|| format!("cannot run {command:?}"))?;
    if !done.status.success() {
        bail!("{command:?} ended with {}", done.status);
    }
    Ok(String::from_utf8(done.stdout)?)
}
