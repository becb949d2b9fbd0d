//! Arguments that make no sense, to either program.
use std::process::Command;

use cake_tests::master::path;
use cake_tests::process::DEADLINE;
use cake_tests::{Master, Running, TestWorker, golden, programs};
use serde_json::json;

use super::{assert_says, copy_of, edit_config};

/// The sentence with which `cake-worker` refuses to start.
#[track_caller]
fn worker_refusal(args: &[&str]) -> String {
    let home = tempfile::tempdir().expect("a temporary folder");
    let mut command = Command::new(&programs().worker);
    command.args(args).current_dir(home.path());
    Running::start(&mut command).finish(DEADLINE).refusal()
}

#[test]
fn a_worker_address_that_is_none() {
    let llama = golden("llama").path;
    for address in ["kitchen", "kitchen:", ":7117:", "kitchen:seventy"] {
        let sentence =
            Master::at([address]).run(&["run", &path(&llama), "hello", "--json"]).refusal();
        assert_says(&sentence, &[address, "HOST:PORT"]);
    }
}

#[test]
fn a_cluster_file_that_is_not_there_or_has_a_bad_line() {
    let llama = path(&golden("llama").path);
    let master = Master::alone();
    let args = ["plan", llama.as_str(), "--cluster"];
    let sentence = master.run(&[&args[..], &["nowhere.txt"]].concat()).refusal();
    assert_says(&sentence, &["nowhere.txt"]);
    let file = path(&master.state().join("cluster.txt"));
    std::fs::write(&file, "127.0.0.1:7117\nkitchen\n").expect("written");
    assert_says(&master.run(&[&args[..], &[&file]].concat()).refusal(), &["line 2", "kitchen"]);
}

#[test]
fn layers_that_the_model_does_not_have() {
    let worker = TestWorker::new("a");
    let llama = path(&golden("llama").path);
    let place = ["plan", &llama, "--place", "a=0..9"];
    assert_says(&Master::over([&worker]).run(&place).refusal(), &["0..9", "5"]);
    let extract = ["extract", &llama, "--layers", "3..9", "--out", "layers.safetensors"];
    let master = Master::alone();
    assert_says(&master.run(&extract).refusal(), &["3..9", "0..5"]);
    assert!(!master.state().join("layers.safetensors").exists());
}

#[test]
fn workers_that_nobody_has() {
    let worker = TestWorker::new("a");
    let llama = path(&golden("llama").path);
    let master = Master::over([&worker]);
    for args in [["--place", "attic=0..2"], ["--exclude", "attic"]] {
        let sentence = master.run(&[&["plan", llama.as_str()], &args[..]].concat()).refusal();
        assert_says(&sentence, &["attic"]);
    }
}

#[test]
fn imagined_workers_need_names_of_their_own_and_somebody_must_be_left() {
    let worker = TestWorker::new("a");
    let llama = path(&golden("llama").path);
    let refusal = |args: &[&str]| {
        Master::over([&worker]).run(&[&["plan", llama.as_str()], args].concat()).refusal()
    };
    assert_says(&refusal(&["--what-if", "master:1GiB"]), &["--what-if", "\"master\""]);
    assert_says(&refusal(&["--what-if", "a:1GiB"]), &["--what-if", "\"a\""]);
    assert_says(&refusal(&["--exclude", "a"]), &["--exclude", "every worker", "--local-memory"]);
}

#[test]
fn more_kv_cache_than_steps_can_name() {
    let model = copy_of("llama");
    edit_config(model.path(), |config| config["max_position_embeddings"] = json!(1 << 20));
    let args = ["--context", "1000000", "--parallel", "1024"];
    let sentence =
        Master::alone().run(&[&["plan", &path(model.path())], &args[..]].concat()).refusal();
    assert_says(&sentence, &["--context 1000000", "--parallel 1024", "smaller"]);
}

#[test]
fn a_system_message_for_a_model_without_a_template() {
    let model = copy_of("llama");
    std::fs::remove_file(model.path().join("chat_template.jinja")).expect("removed");
    let model = path(model.path());
    let run = ["run", &model, "hello", "--system", "be brief", "--json"];
    assert_says(&Master::alone().run(&run).refusal(), &["--system", "no chat template"]);
    let chat = ["chat", &model, "--system", "be brief"];
    assert_says(&Master::alone().run(&chat).refusal(), &["--system", "no chat template"]);
}

#[test]
fn a_prompt_that_the_model_cannot_take() {
    let llama = path(&golden("llama").path);
    let run = |args: &[&str]| {
        let all = [&["run", llama.as_str(), "--json"], args].concat();
        Master::alone().run(&all).refusal()
    };
    assert_says(&run(&["--prompt-ids", "1,384"]), &["384"]);
    assert_says(&run(&["--prompt-ids", "1,2,3,4,5", "--context", "4"]), &["5", "4"]);
    assert_says(&run(&["--prompt-ids", "1", "--context", "100000"]), &["--context", "256"]);
    assert_says(&run(&["--prompt-ids", "1", "--temperature=-1"]), &["--temperature", "-1"]);
}

#[test]
fn push_and_doctor_without_workers() {
    let llama = path(&golden("llama").path);
    assert_says(&Master::alone().run(&["push", &llama]).refusal(), &["--worker"]);
    assert_says(&Master::alone().run(&["doctor"]).stdout, &["--worker"]);
}

#[test]
fn a_worker_that_anyone_could_reach_needs_insecure() {
    let sentence = worker_refusal(&["--listen", "0.0.0.0:0", "--memory", "1GiB", "--store", "s"]);
    assert_says(&sentence, &["0.0.0.0", "--insecure"]);
}

#[test]
fn a_worker_whose_settings_cannot_be_used() {
    let usual = ["--store", "s", "--listen"];
    let refusal = |args: &[&str]| worker_refusal(&[&usual[..], args].concat());
    assert_says(&refusal(&["nowhere"]), &["nowhere", "HOST:PORT"]);
    assert_says(&refusal(&["127.0.0.1:0", "--memory", "1MiB"]), &["1 MiB", "40 MiB"]);
    assert_says(&refusal(&["127.0.0.1:0", "--memory", "1GiB", "--name", "a b"]), &["a b"]);
    assert_says(&refusal(&["127.0.0.1:0", "--memory", "1GiB", "--threads", "0"]), &["0 threads"]);
}

#[test]
fn a_port_that_is_taken() {
    let worker = TestWorker::new("a");
    let args = ["--listen", worker.address.as_str(), "--memory", "1GiB", "--store", "s"];
    assert_says(&worker_refusal(&args), &[&worker.address]);
}
