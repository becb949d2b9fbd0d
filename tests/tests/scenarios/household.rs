//! What the owner of the devices does with them over HTTP: lets one in, names it, frees it of layers, shuts it out.
use std::time::Duration;

use cake_tests::{Cluster, Master, Server, TestWorker, WorkerOptions, golden, until};
use serde_json::{Value, json};

use crate::models::copy;
use crate::together::{CHUNK, needs};

const LIMIT: Duration = Duration::from_secs(60);
const FAST: [&str; 2] = ["--grace", "1"];

/// The worker of this name, as the page is told of it.
fn present(server: &Server, name: &str) -> Option<Value> {
    let shown = server.get("/api/cluster").good();
    let members = shown["members"].as_array().expect("a list").clone();
    members.into_iter().find(|member| member["name"] == name)
}

fn duty(server: &Server, name: &str) -> String {
    let member = present(server, name);
    member.map_or("gone".to_owned(), |it| it["duty"].as_str().expect("a word").to_owned())
}

fn path_of(server: &Server, name: &str, what: &str) -> String {
    let member = present(server, name).expect("there");
    format!("/api/members/{}/{what}", member["worker_id"].as_str().expect("an id"))
}

#[test]
fn the_owner_lets_devices_in_frees_them_and_shuts_them_out() {
    let golden = golden("llama");
    let cluster = Cluster::new(&["kitchen", "attic"]);
    let args = [&FAST[..], &["--join", "127.0.0.1:0"]].concat();
    let server = Server::start(&cluster.master, &golden.path, &args);
    let known = server.get("/api/members").good();
    assert_eq!((&known["owner"], &known["authority"]), (&json!(true), &json!(true)));
    let names: Vec<&Value> =
        known["members"].as_array().expect("a list").iter().map(|it| &it["name"]).collect();
    assert_eq!(names, ["kitchen", "attic"]);

    // A token with its code; a device that shows it is there soon.
    let invited = server.post("/api/members/invite", &json!({})).good();
    let token = invited["invitation"]["token"].as_str().expect("a token");
    assert!(invited["command"].as_str().expect("a command").contains(token));
    assert!(invited["invitation"]["door_open"] == true, "{invited}");
    let code = invited["code"].as_array().expect("rows");
    assert!(code.len() >= 21 && code[0].as_array().is_some_and(|row| row.len() == code.len()));
    let door = invited["invitation"]["master"].as_str().expect("an address");
    let args = ["--master", door, "--token", token].map(str::to_owned).to_vec();
    let _phone = TestWorker::start("phone", WorkerOptions { args, ..WorkerOptions::default() });
    until("the phone to be there", LIMIT, || present(&server, "phone").is_some());
    let happened = server.get("/api/cluster").good()["happened"].to_string();
    assert!(happened.contains("phone is there"), "{happened}");
    let again = server.post("/api/members/invite", &json!({ "uses": 0 }));
    assert!(again.refused(400).contains("uses is 0, expected 1 to"));

    // Freed, it has no layers and stays; then it may have some again.
    let with_layers = |server: &Server| {
        let shown = server.get("/api/cluster").good();
        let mut devices = shown["devices"].as_array().expect("a list").clone().into_iter();
        devices.find_map(|device| Some(device["name"].as_str()?.to_owned()))
    };
    let freed = with_layers(&server).expect("somebody computes");
    let drain = path_of(&server, &freed, "drain");
    server.post(&drain, &json!({ "drain": true })).good();
    until("its layers to go", LIMIT, || {
        let shown = server.get("/api/cluster").good();
        let devices = shown["devices"].to_string();
        shown["phase"] == "ready" && !devices.contains(&format!("\"name\":\"{freed}\""))
    });
    assert_eq!(duty(&server, &freed), "draining");
    server.post(&drain, &json!({ "drain": false })).good();
    until("it to be free to have layers", LIMIT, || duty(&server, &freed) != "draining");
    for drain in [true, false] {
        let nobody = server.post("/api/members/0123/drain", &json!({ "drain": drain }));
        assert!(nobody.refused(404).contains("no worker with the id \"0123\""));
    }

    // A name of its owner's, which nobody else has.
    let rename = path_of(&server, "phone", "rename");
    let taken = server.post(&rename, &json!({ "name": "attic" }));
    assert!(taken.refused(409).contains("another worker is called \"attic\""));
    let masters = server.post(&rename, &json!({ "name": "master" }));
    assert!(masters.refused(409).contains("another worker is called \"master\""));
    let unfit = server.post(&rename, &json!({ "name": "<b>" }));
    assert!(unfit.refused(400).contains("is no name for a worker"));
    let renamed = server.post(&rename, &json!({ "name": "old-phone" })).good();
    assert_eq!(renamed["name"], "old-phone");
    assert!(cluster.list().iter().any(|worker| worker["name"] == "old-phone"));

    // What another device would change is planned, and nothing moves.
    let foreseen = server.post("/api/what-if", &json!({ "bytes": 4_u64 << 30 })).good();
    assert!(foreseen["before"]["alone_seconds"].as_f64().expect("seconds") > 0.0, "{foreseen}");
    assert!(foreseen["stages"].as_array().is_some_and(|stages| !stages.is_empty()));
    let model = foreseen["model"].clone();
    assert!(model.as_str().is_some_and(|name| !name.is_empty()), "{foreseen}");
    let named = json!({ "bytes": 4_u64 << 30, "model": model });
    assert_eq!(server.post("/api/what-if", &named).good()["model"], model);
    let other = json!({ "bytes": 4_u64 << 30, "model": "other" });
    let refused = server.post("/api/what-if", &other).refused(400);
    assert!(refused.contains("\"other\"") && refused.contains("one that is loaded"), "{refused}");
    let tiny = server.post("/api/what-if", &json!({ "bytes": 1 }));
    assert!(tiny.refused(400).contains("bytes is 1, expected"));

    // Shut out, it is gone.
    server.post(&path_of(&server, "phone", "revoke"), &json!({})).good();
    until("the phone to be gone", LIMIT, || present(&server, "phone").is_none());
    assert!(cluster.list().iter().any(|it| it["name"] == "old-phone" && it["revoked"] == true));
}

#[test]
fn a_freed_device_has_no_layers_of_the_next_model() {
    let (llama, qwen) = (golden("llama"), golden("qwen2"));
    let cluster = Cluster::new(&["kitchen", "attic"]);
    let server = Server::of_several(&cluster.master, &[&llama.path, &qwen.path], &FAST);
    let load = |model: &str| {
        let asked = json!({ "model": model, "prompt": "a", "max_tokens": 1 });
        server.post("/v1/completions", &asked).good();
        let shown = server.get("/api/cluster").good();
        assert_eq!(shown["model"], model);
        let devices = shown["devices"].as_array().expect("a list").clone().into_iter();
        devices.map(|it| it["name"].as_str().expect("a name").to_owned()).collect::<Vec<_>>()
    };
    let freed = load("llama").pop().expect("somebody computes");
    server.post(&path_of(&server, &freed, "drain"), &json!({ "drain": true })).good();
    let known = server.get("/api/members").good();
    let mut known = known["members"].as_array().expect("a list").iter();
    assert!(known.any(|it| it["name"] == freed.as_str() && it["draining"] == true));
    let others = load("qwen2");
    assert!(!others.is_empty() && !others.contains(&freed), "{freed}: {others:?}");
}

#[test]
fn a_freed_device_stays_free_though_another_model_has_to_make_room() {
    let llama = golden("llama");
    let home = tempfile::tempdir().expect("a folder");
    let models = ["x", "y"].map(|name| home.path().join(name));
    models.iter().for_each(|model| copy(&llama.path, model));
    // Each has room for one of them.
    let (memory, _) = needs(&llama.path, &["a"], &[]);
    let mut cluster = Cluster::new(&[]);
    let offer = || WorkerOptions { memory, ..WorkerOptions::default() };
    cluster.join(vec![("kitchen", offer()), ("attic", offer())]);
    let [x, y] = models.each_ref().map(|model| model.as_path());
    let server = Server::of_several(&cluster.master, &[x, y], &[&FAST[..], &CHUNK].concat());
    let load = |model: &str| {
        let asked = json!({ "model": model, "prompt": "a", "max_tokens": 1 });
        server.post("/v1/completions", &asked).good();
        let shown = server.get("/api/cluster").good();
        let all = shown["models"].as_array().expect("a list").clone().into_iter();
        all.map(|it| (it["model"].clone(), it["devices"][0]["name"].clone())).collect::<Vec<_>>()
    };
    let first = load("x");
    let used = first[0].1.as_str().expect("a name");
    let freed = if used == "kitchen" { "attic" } else { "kitchen" };
    server.post(&path_of(&server, freed, "drain"), &json!({ "drain": true })).good();
    assert_eq!(load("y"), [(json!("y"), json!(used))], "beside {freed}, which is to be free");
}

#[test]
fn a_freed_device_stays_free_when_the_master_starts_again() {
    let llama = golden("llama");
    let cluster = Cluster::new(&["kitchen", "attic"]);
    let serve = || {
        let server = Server::start(&cluster.master, &llama.path, &FAST);
        let shown = server.get("/api/cluster").good();
        let devices = shown["devices"].as_array().expect("a list").clone().into_iter();
        let names: Vec<String> =
            devices.map(|it| it["name"].as_str().expect("a name").to_owned()).collect();
        (server, names)
    };
    let (server, mut names) = serve();
    let freed = names.pop().expect("somebody computes");
    server.post(&path_of(&server, &freed, "drain"), &json!({ "drain": true })).good();
    drop(server);
    let (server, names) = serve();
    assert!(!names.is_empty() && !names.contains(&freed), "{freed}: {names:?}");
    assert_eq!(duty(&server, &freed), "draining");
    assert!(cluster.list().iter().any(|it| it["name"] == freed.as_str() && it["draining"] == true));
    server.post(&path_of(&server, &freed, "drain"), &json!({ "drain": false })).good();
    until("it to be free to have layers", LIMIT, || duty(&server, &freed) != "draining");
    assert!(cluster.list().iter().all(|it| it["draining"] != true));
}

#[test]
fn nobody_but_the_owner_does_anything_with_devices() {
    let golden = golden("llama");
    let cluster = Cluster::new(&[]);
    let server = Server::start(&cluster.master, &golden.path, &["--cors-origin", "http://a.test"]);
    // A page of another origin may ask for answers, and a proxy for anybody: neither is the owner.
    let other = server.post_from("http://a.test", "/api/members/invite");
    assert!(other.refused(403).contains("only the owner of the devices"));
    let proxied = |key: Option<&str>, server: &Server| {
        let header = ("x-forwarded-for", "10.1.2.3");
        server.post_with("/api/members/invite", &json!({}), header, key)
    };
    assert!(proxied(None, &server).refused(403).contains("only the owner of the devices"));
    drop(server);

    let file = cluster.master.state().join("keys");
    std::fs::write(&file, "secret\n").expect("writable");
    let keys = ["--api-key-file", &file.display().to_string()];
    let server = Server::start(&cluster.master, &golden.path, &keys);
    assert!(server.post("/api/members/invite", &json!({})).refused(401).contains("API key"));
    assert!(proxied(Some("secret"), &server).good()["invitation"]["token"].is_string());
    drop(server);

    // Without an authority nobody can join, and it is said how to make one.
    let server = Server::start(&Master::alone(), &golden.path, &[]);
    let refused = server.post("/api/members/invite", &json!({})).refused(409);
    assert!(refused.contains("cake-master init"), "{refused}");
    assert_eq!(server.get("/api/members").good()["authority"], false);
}
