//! What a worker does about a disk, a list or a neighbour that is not as it should be.
use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cake_identity::Security;
use cake_proto::{Client, Tag, connect, limits, shut_out, wire};
use cake_tests::streams::{COMPLETIONS, prompt};
use cake_tests::{
    Cluster, Invitation, Master, ModelShape, Running, Server, TestWorker, WorkerOptions,
    budget_for, golden, master, model, programs,
};
use serde_json::json;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tonic::Code;

const LIMIT: Duration = Duration::from_secs(120);
const ARGS: &[&str] =
    &["--context", "256", "--parallel", "1", "--chunk", "16", "--local-memory", "0"];

/// Two workers that need each other for a model of eight layers, and read its weights from their mapped files.
struct Pair {
    _directory: TempDir,
    workers: [TestWorker; 2],
    _master: Master,
    server: Server,
}

impl Pair {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a temporary folder");
        model::make(directory.path(), &ModelShape::small(), 5).expect("written");
        let memory = budget_for(directory.path(), 4, ARGS);
        let workers = ["a", "b"].map(|name| {
            let args = ["--weights", "map"].map(str::to_owned).to_vec();
            TestWorker::start(name, WorkerOptions { memory, args, ..WorkerOptions::default() })
        });
        let master = Master::over(&workers);
        let server = Server::start(&master, directory.path(), ARGS);
        Self { _directory: directory, workers, _master: master, server }
    }

    /// The text of an answer that is always the same.
    fn answer(&self) -> String {
        let request = json!({"prompt": prompt(1, 40), "max_tokens": 12, "temperature": 0, "ignore_eos": true});
        let said = self.server.post(COMPLETIONS, &request).good();
        said["choices"][0]["text"].as_str().expect("a text").to_owned()
    }

    /// A blob that the first worker computes with.
    fn blob(&self) -> PathBuf {
        blobs(self.workers[0].store()).into_iter().next().expect("it holds layers")
    }
}

/// Files of the blobs in a store.
fn blobs(store: &Path) -> Vec<PathBuf> {
    let files =
        fs::read_dir(store.join("blobs")).expect("a store").map(|file| file.expect("read").path());
    let mut blobs: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|it| it == "safetensors")).collect();
    blobs.sort();
    blobs
}

#[test]
fn a_blob_that_is_cut_under_a_running_stage_costs_an_answer_nothing_and_no_worker_its_life() {
    let pair = Pair::new();
    let expected = pair.answer();
    let (worker, blob) = (&pair.workers[0], pair.blob());
    let whole = fs::read(&blob).expect("readable");
    fs::File::options().write(true).open(&blob).expect("there").set_len(5000).expect("cut");
    assert_eq!(pair.answer(), expected);
    assert!(worker.alive(), "{}", worker.log());
    let name = blob.file_name().expect("a name").to_string_lossy().into_owned();
    let said = worker.log();
    assert!(said.contains("was cut") && said.contains(&name), "{said}");
    assert!(fs::read(&blob).expect("sent again") == whole);
    assert_eq!(pair.answer(), expected);
}

#[test]
fn numbers_that_are_none_are_sent_to_nobody_and_what_made_them_is_verified() {
    let pair = Pair::new();
    let expected = pair.answer();
    let (worker, blob) = (&pair.workers[0], pair.blob());
    let whole = fs::read(&blob).expect("readable");
    // All ones are a NaN in every type of number.
    let file = fs::File::options().write(true).open(&blob).expect("there");
    file.write_all_at(&vec![0xff; whole.len() / 2], whole.len() as u64 / 4).expect("written");
    assert_eq!(pair.answer(), expected);
    let said = worker.log();
    assert!(said.contains("made NaN of finite numbers"), "{said}");
    assert!(fs::read(&blob).expect("sent again") == whole, "{}", worker.log());
    assert_eq!(pair.answer(), expected);
}

#[test]
fn through_links_in_its_store_a_worker_writes_nothing() {
    let golden = golden("llama-sharded");
    let pins = master::pins(&[("a", 0, 12)]);
    let home = tempfile::tempdir().expect("a folder");
    let (store, outside) = (home.path().join("store"), home.path().join("outside"));
    fs::write(&outside, "mine").expect("written");
    let start = || {
        let options = WorkerOptions { store: Some(store.clone()), ..WorkerOptions::default() };
        TestWorker::start("a", options)
    };
    let push = |worker: &TestWorker| {
        let model = master::path(&golden.path);
        Master::over([worker]).run(&[&["push", &model][..], &master::strs(&pins)].concat())
    };
    let worker = start();
    push(&worker).success();
    drop(worker);
    let names: Vec<String> = blobs(&store)
        .iter()
        .map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned())
        .collect();
    assert!(!names.is_empty());
    fs::remove_dir_all(store.join("blobs")).expect("gone");
    let plant = |name: &str| {
        let link = store.join("partial").join(format!("{name}.part"));
        symlink(&outside, &link).expect("planted");
        link
    };
    let links: Vec<PathBuf> = names.iter().map(|name| plant(name)).collect();
    let worker = start();
    let refused = push(&worker);
    assert!(!refused.status.success(), "{refused:?}");
    let named = links.iter().any(|link| refused.stderr.contains(&link.display().to_string()));
    assert!(named && refused.stderr.contains("it is a link"), "{}", refused.stderr);
    assert_eq!(fs::read(&outside).expect("there"), b"mine");
    for link in &links {
        fs::remove_file(link).expect("there");
    }
    push(&worker).success();
    assert_eq!(blobs(&store).len(), names.len());
    drop(worker);
    // A link in the place of the lock, or of a folder.
    for name in ["lock", "partial"] {
        let place = store.join(name);
        let moved = home.path().join(name);
        fs::rename(&place, &moved).expect("moved");
        symlink(if name == "lock" { &outside } else { &moved }, &place).expect("planted");
        let mut command = std::process::Command::new(&programs().worker);
        command.args(["--listen", "127.0.0.1:0", "--store", &master::path(&store)]);
        let said = Running::start(&mut command).finish(LIMIT).refusal();
        assert!(said.contains(&master::path(&place)) && said.contains("it is a link"), "{said}");
        fs::remove_file(&place).expect("there");
        fs::rename(&moved, &place).expect("moved back");
    }
    assert_eq!(fs::read(&outside).expect("there"), b"mine");
}

/// A connection to a member.
async fn dial(who: &Security, address: &str, tag: Tag) -> Option<Client> {
    Some(connect(who, address, None, tag).await.ok()?.0)
}

#[test]
fn a_list_of_the_shut_out_that_cannot_be_read_shuts_the_master_off_and_not_the_list() {
    let cluster = Cluster::new(&["a", "b"]);
    let (at, security) = (cluster.workers[0].address.clone(), cluster.security());
    let neighbour = Security::mutual(&cluster.workers[1].identity()).expect("usable");
    let list = cluster.list();
    let id_of = |name: &str| {
        let known = list.iter().find(|known| known["name"] == name).expect("it joined");
        known["worker_id"].as_str().or(known["id"].as_str()).expect("an id").to_owned()
    };
    // As many as there can be, the neighbour among them: more than were once taken.
    let mut ids: Vec<String> = (1..limits::SHUT_OUT).map(|id| format!("{id:032x}")).collect();
    ids.push(id_of("b"));
    let longest = shut_out::pack(&ids).expect("not too long");
    let too_long = [&longest[..], &[7; 16]].concat();
    let runtime = Runtime::new().expect("a runtime");
    let is_let_in = || {
        runtime.block_on(async {
            let mut client = dial(&neighbour, &at, Tag::default()).await?;
            client.describe(wire::DescribeRequest {}).await.ok()
        })
    };
    assert!(is_let_in().is_some());
    runtime.block_on(async {
        let mut client = dial(&security, &at, Tag::default()).await.expect("the master");
        let hold = |shut_out: Vec<u8>| wire::HoldRequest {
            master_name: "desk".to_owned(),
            shut_out: shut_out.into(),
            ..Default::default()
        };
        for bad in [too_long.clone(), vec![1; 17]] {
            let refused = client.hold(hold(bad)).await.expect_err("refused");
            assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
        }
        let mut held = client.hold(hold(longest.to_vec())).await.expect("held").into_inner();
        let lease = held.message().await.expect("an event").expect("granted").lease;
        let mut client = dial(&security, &at, Tag::lease(&lease)).await.expect("the master");
        let list = wire::ShutOutRequest { worker_ids: too_long.into() };
        let refused = client.shut_out(list).await.expect_err("refused");
        assert!(refused.message().contains("65537"), "{refused}");
        let end = tokio::time::timeout(LIMIT, held.message()).await.expect("it ends");
        assert!(!matches!(end, Ok(Some(_))), "the hold ends: {end:?}");
    });
    assert!(is_let_in().is_none(), "the old list holds");
    let said = cluster.workers[0].log();
    assert!(said.contains("cannot be read"), "{said}");
    // A master that knows of nobody who is shut out may hold it, and says so.
    cluster.master.answer(&golden("llama-sharded"), &[("a", 0, 6), ("b", 6, 12)], &[]);
    assert!(is_let_in().is_some());
}

#[test]
fn a_member_learns_of_another_no_more_than_who_it_is() {
    let cluster = Cluster::new(&["a", "b"]);
    let at = &cluster.workers[0].address;
    let neighbour = Security::mutual(&cluster.workers[1].identity()).expect("usable");
    let told = |who: &Security| {
        Runtime::new().expect("a runtime").block_on(async {
            let mut client = dial(who, at, Tag::default()).await.expect("let in");
            client.describe(wire::DescribeRequest {}).await.expect("described").into_inner()
        })
    };
    let (member, master) = (told(&neighbour), told(&cluster.security()));
    let devices: Vec<_> =
        master.devices.iter().map(|device| (&*device.name, device.budget_bytes)).collect();
    assert_eq!((&*master.name, devices), ("a", vec![("cpu", 1 << 30)]));
    let enough = wire::Description {
        worker_id: master.worker_id,
        version: master.version,
        protocol: master.protocol,
        ..wire::Description::default()
    };
    assert_eq!(member, enough);
}

#[test]
fn a_worker_keeps_its_name_and_no_two_members_have_one() {
    let cluster = Cluster::new(&[]);
    let invitation = Invitation::from(&cluster.master, 2);
    let stores = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let start = |store: &TempDir, named: bool, args: Vec<String>| {
        let store = Some(store.path().to_owned());
        TestWorker::start(
            "tablet",
            WorkerOptions { store, named, args, ..WorkerOptions::default() },
        )
    };
    let joined = [0, 1].map(|index: usize| start(&stores[index], true, invitation.args()));
    invitation.used_up();
    let names = || {
        let list = cluster.list();
        let name = |known: &serde_json::Value| known["name"].as_str().expect("a name").to_owned();
        list.iter().map(name).collect::<Vec<_>>()
    };
    assert_eq!(names(), ["tablet", "tablet-2"]);
    drop(joined);
    let security = cluster.security();
    let again = [0, 1].map(|index: usize| start(&stores[index], false, Vec::new()));
    let says = again.each_ref().map(|worker| {
        Runtime::new().expect("a runtime").block_on(async {
            let mut client =
                dial(&security, &worker.address, Tag::default()).await.expect("let in");
            client.describe(wire::DescribeRequest {}).await.expect("described").into_inner().name
        })
    });
    assert_eq!(says, ["tablet", "tablet-2"]);
    // One that is no member keeps its name as well.
    let store = tempfile::tempdir().expect("a folder");
    drop(start(&store, true, Vec::new()));
    let worker = start(&store, false, Vec::new());
    assert!(worker.log().contains("worker \"tablet\""), "{}", worker.log());
}
