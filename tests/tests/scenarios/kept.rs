//! Everyday: models that other programs keep on this machine are run under those programs' names.
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cake_tests::master::{answer_args, strs};
use cake_tests::{Finished, Master, Running, Server, TestWorker, golden};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(60);

/// A person's machine, in whose home these programs keep models.
struct Home {
    master: Master,
}

impl Home {
    fn of(master: Master) -> Home {
        Home { master }
    }

    fn path(&self) -> PathBuf {
        self.master.state().join("home")
    }

    fn ollama_models(&self) -> PathBuf {
        self.path().join(".ollama/models")
    }

    /// Lays a file out as `ollama pull` does, under a name of its library.
    fn ollama(&self, name: &str, file: &Path) {
        self.ollama_at(&format!("registry.ollama.ai/library/{name}/latest"), file);
    }

    /// The same with this manifest.
    fn ollama_at(&self, name: &str, file: &Path) {
        let folder = self.ollama_models();
        let hex = format!("{:0>64x}", name.bytes().map(u64::from).sum::<u64>());
        let bytes = file.metadata().expect("a file").len();
        let layer = |kind: &str, digest: &str, size: u64| {
            let kind = format!("application/vnd.ollama.image.{kind}");
            json!({ "mediaType": kind, "digest": digest, "size": size })
        };
        let model = layer("model", &format!("sha256:{hex}"), bytes);
        let manifest =
            json!({ "schemaVersion": 2, "layers": [layer("template", "sha256:0", 3), model] });
        let path = folder.join("manifests").join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, manifest.to_string()).expect("a manifest");
        fs::create_dir_all(folder.join("blobs")).expect("a folder");
        fs::copy(file, folder.join("blobs").join(format!("sha256-{hex}"))).expect("a blob");
    }

    /// A command in this home. That of Ollama's service may be on this machine, too: its variable says where alone is looked.
    fn at_home(&self, mut command: Command) -> Command {
        command.env("HOME", self.path()).env_remove("XDG_CACHE_HOME");
        command.env("OLLAMA_MODELS", self.ollama_models());
        command
    }

    /// Runs a command in this home to its end.
    fn finish(&self, command: Command) -> Finished {
        Running::start(&mut self.at_home(command)).finish(LIMIT)
    }

    /// Runs a command that asks no worker.
    fn run(&self, args: &[&str]) -> Finished {
        self.finish(self.master.bare(args))
    }

    /// The greedy answer of the model of that name to a golden prompt.
    fn answer(&self, model: &str, expected: &Value) -> Value {
        let ids = serde_json::from_value::<Vec<u32>>(expected["prompt_ids"].clone()).expect("ids");
        let tokens = expected["greedy_ids"].as_array().expect("ids").len();
        let args = answer_args(Path::new(model), &ids, tokens);
        self.finish(self.master.command(&strs(&args))).json()
    }
}

fn expected(directory: &Path) -> Value {
    let text = fs::read(directory.join("expected.json")).expect("golden data");
    serde_json::from_slice(&text).expect("JSON")
}

#[test]
fn ollamas_file_is_run_where_it_lies() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden-gguf/qwen3-q8_0");
    let worker = TestWorker::new("a");
    let home = Home::of(Master::over([&worker]));
    home.ollama("tiny", &golden.join("model.gguf"));
    let expected = expected(&golden);
    let said = home.answer("ollama:tiny", &expected);
    assert_eq!(said["output_ids"], expected["greedy_ids"]);
    assert!(said["pushed_bytes"].as_u64() > Some(0), "{said}");
    let said = home.run(&["inspect", "ollama:tiny:latest", "--json"]).json();
    assert_eq!(said["model"], "tiny:latest", "{said}");
    home.run(&["verify", "ollama:tiny"]).success();
    let refusal = home.run(&["run", "ollama:large", "--alone", "x"]).refusal();
    assert!(refusal.contains("Ollama keeps no model \"large\" here"), "{refusal}");
    assert!(refusal.contains("ollama:tiny"), "{refusal}");
    assert!(refusal.contains(home.ollama_models().to_str().unwrap()), "{refusal}");
}

#[test]
fn lm_studios_folders_are_models_as_they_are() {
    let home = Home::of(Master::alone());
    let models = home.path().join(".lmstudio/models");
    let gguf = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden-gguf/llama-q4_0");
    let (one, two) = (models.join("someone/Tiny-GGUF"), models.join("someone/Two-GGUF"));
    for (folder, name) in [(&one, "tiny.gguf"), (&two, "a.gguf"), (&two, "b.gguf")] {
        fs::create_dir_all(folder).expect("a folder");
        fs::copy(gguf.join("model.gguf"), folder.join(name)).expect("a file");
    }
    let hub = models.join("mlx-community/packed");
    fs::create_dir_all(&hub).expect("a folder");
    let packed = golden("qwen2-mlx4").path;
    for entry in packed.read_dir().expect("golden data").flatten() {
        fs::copy(entry.path(), hub.join(entry.file_name())).expect("a file");
    }
    for (name, golden) in [
        ("lmstudio:someone/Tiny-GGUF", &gguf),
        ("lmstudio:Tiny-GGUF", &gguf),
        ("lmstudio:someone/Two-GGUF/b.gguf", &gguf),
        ("lmstudio:mlx-community/packed", &packed),
    ] {
        let expected = expected(golden);
        assert_eq!(home.answer(name, &expected)["output_ids"], expected["greedy_ids"], "{name}");
    }
    let refusal = home.run(&["inspect", "lmstudio:Two-GGUF"]).refusal();
    assert!(refusal.contains("a.gguf, b.gguf"), "{refusal}");
    let refusal = home.run(&["plan", "lmstudio:none"]).refusal();
    assert!(
        refusal.contains("lmstudio:mlx-community/packed, lmstudio:someone/Tiny-GGUF"),
        "{refusal}"
    );
}

#[test]
fn what_they_keep_is_at_hand_where_no_model_is_named() {
    let home = Home::of(Master::alone());
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden-gguf/qwen3-q8_0");
    let file = golden.join("model.gguf");
    home.ollama("tiny", &file);
    home.ollama_at("hf.co/org/Tiny-GGUF/Q8_0", &file);
    let folder = home.path().join(".lmstudio/models/someone");
    for name in ["Tiny-GGUF/tiny.gguf", "Two-GGUF/a.gguf", "Two-GGUF/b.gguf"] {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::copy(&file, path).expect("a file");
    }
    let ollamas = ["hf.co/org/Tiny-GGUF:Q8_0", "tiny"];
    let others = ["someone/Tiny-GGUF", "someone/Two-GGUF/a.gguf", "someone/Two-GGUF/b.gguf"];
    let all = [&ollamas[..], &others].concat();
    let schemes = ["ollama", "ollama", "lmstudio", "lmstudio", "lmstudio"];

    let listed = home.run(&["models", "list", "--json"]).json();
    let listed = listed.as_array().expect("a list");
    let models: Vec<&str> = listed.iter().filter_map(|it| it["model"].as_str()).collect();
    let kept: Vec<String> =
        schemes.iter().zip(&all).map(|(scheme, name)| format!("{scheme}:{name}")).collect();
    assert_eq!(models, kept);
    let bytes = file.metadata().expect("a file").len();
    assert!(listed.iter().all(|it| it["bytes"] == bytes), "{listed:?}");
    let text = home.run(&["list"]).success().stdout;
    assert!(text.contains("kept by Ollama") && text.contains("kept by LM Studio"), "{text}");

    for command in ["rm", "pull"] {
        let Finished { status, stderr, .. } = home.run(&[command, "ollama:tiny"]);
        assert_eq!(status.code(), Some(2), "{stderr}");
        assert!(stderr.contains("Ollama alone brings and deletes"), "{stderr}");
    }

    // By the names that they have there, and for programs that are made for Ollama by its own.
    let serve = home.master.bare(&["serve", "--listen", "0", "--alone"]);
    let server = Server::from_command(home.at_home(serve));
    let names = |path: &str, list: &str, name: &str| {
        let shown = server.get(path).good()[list].as_array().expect("a list").clone();
        shown.iter().map(|it| it[name].as_str().expect("a name").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names("/v1/models", "data", "id"), all);
    assert_eq!(names("/api/tags", "models", "name")[..2], [ollamas[0], "tiny:latest"]);
    let expected = expected(&golden);
    let tokens = expected["greedy_ids"].as_array().expect("ids").len();
    // Of tokens that are the reference's, as another test shows.
    let text = home.answer("ollama:tiny", &expected)["text"].clone();
    assert!(text.as_str().is_some_and(|text| !text.is_empty()), "{text}");
    for name in ["tiny", "ollama:tiny", others[2]] {
        let asked = json!({
            "model": name, "prompt": expected["prompt_ids"], "max_tokens": tokens,
            "temperature": 0, "ignore_eos": true,
        });
        let said = server.post("/v1/completions", &asked).good();
        assert_eq!(said["choices"][0]["text"], text, "{name}: {said}");
    }
    for name in ["tiny", "tiny:latest", ollamas[0]] {
        let shown = server.post("/api/show", &json!({ "model": name })).good();
        assert_eq!(shown["details"]["family"], "qwen3", "{name}");
        server.post("/api/pull", &json!({ "model": name, "stream": false })).good();
    }
    let whole = format!("https://{}", ollamas[0]);
    server.post("/api/pull", &json!({ "model": whole, "stream": false })).good();

    // What is damaged is told of as that, and looked for nowhere else.
    let cut = home.path().join("cut.gguf");
    fs::write(&cut, &fs::read(&file).expect("a file")[..4096]).expect("a file");
    home.ollama("damaged", &cut);
    assert_eq!(names("/v1/models", "data", "id"), all);
    let said = server.post("/api/pull", &json!({ "model": "damaged", "stream": false }));
    let error = said.body["error"].as_str().expect("words");
    assert!(said.status >= 400 && error.contains("blobs/sha256-"), "{}: {error}", said.status);
}

#[test]
fn of_two_that_are_called_the_same_the_second_one_goes_by_its_programs_name() {
    const NAME: &str = "someone/Tiny-GGUF";
    let home = Home::of(Master::alone());
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden-gguf/llama-q4_0/model.gguf");
    home.ollama_at(&format!("registry.ollama.ai/{NAME}/latest"), &file);
    let folder = home.path().join(".lmstudio/models").join(NAME);
    fs::create_dir_all(&folder).expect("a folder");
    fs::copy(&file, folder.join("tiny.gguf")).expect("a file");
    let serve = home.master.bare(&["serve", "--listen", "0", "--alone"]);
    let server = Server::from_command(home.at_home(serve));
    let shown = server.get("/v1/models").good()["data"].as_array().expect("a list").clone();
    let shown: Vec<&str> = shown.iter().map(|it| it["id"].as_str().expect("a name")).collect();
    let other = format!("lmstudio:{NAME}");
    assert_eq!(shown, [NAME, &other]);
    for name in [NAME, &other, &format!("ollama:{NAME}")] {
        let asked = json!({ "model": name, "prompt": [5, 6], "max_tokens": 1 });
        server.post("/v1/completions", &asked).good();
    }
}
