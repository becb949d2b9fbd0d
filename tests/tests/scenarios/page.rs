//! The page in a real browser: a chat, the cluster, and a worker that is lost.
mod access;
mod shelf;
mod states;
mod talks;
mod told;

use std::path::Path;
use std::time::Duration;

use cake_tests::browser::Browser;
use cake_tests::{
    Master, Server, TestWorker, WorkerOptions, budget_for, demo_model, not_shown, until,
};

use states::{EARS, RUNS};

const LIMIT: Duration = Duration::from_secs(120);
/// Whether it is shown what can be done with a conversation.
const IS_OPEN: &str = "return document.querySelector('#conversation-dialog').open";
/// Whether a question, or another answer, can be asked for.
const IS_FREE: &str = "return document.querySelector('#chat').dataset.free === 'true'";
const ENTER: &str = "\u{e007}";
const ANSWER: &str = "document.querySelector('#messages [data-role=assistant]')";

/// Whether the page can be asked.
fn is_ready() -> &'static str {
    "return document.querySelector('#phase').dataset.phase === 'ready' \
        && !document.querySelector('#send').disabled && !document.querySelector('#send').hidden"
}

/// Asks a question, once that is possible.
fn ask(browser: &Browser, question: &str) {
    browser.type_into("#prompt", question);
    let is_asked = || {
        browser.wait("a question to be possible", IS_FREE);
        browser.type_into("#prompt", ENTER);
        // A device that was missed for a moment makes the page refuse it.
        browser.run("return document.querySelector('#prompt').value === ''") == true
    };
    until("it to be asked", LIMIT, is_asked);
}

/// Two workers with a half of the demo model each, neither of which can take what the other holds, so that requests wait
/// for a lost one for `grace` seconds.
fn halves(grace: &str) -> ([TestWorker; 2], Server) {
    let memory = budget_for(&demo_model(), 6, &["--parallel", "8", "--chunk", "32"]);
    let worker =
        |name| TestWorker::start(name, WorkerOptions { memory, ..WorkerOptions::default() });
    let workers = ["kitchen", "attic"].map(worker);
    let place = ["--place", "kitchen=0..6", "--place", "attic=6..12", "--model-name", "demo"];
    let args = [&place[..], &["--grace", grace, "--chunk", "32"]].concat();
    let server = Server::start(&Master::over(&workers), &demo_model(), &args);
    (workers, server)
}

/// Where screenshots go, if somebody wants to look at them.
fn screenshot(browser: &Browser, name: &str) {
    if let Some(folder) = std::env::var_os("CAKE_SCREENSHOTS") {
        browser.screenshot(&Path::new(&folder).join(name));
    }
}

#[test]
fn a_person_chats_watches_the_cluster_and_sees_a_worker_lost() {
    let Some(browser) = Browser::start() else {
        return not_shown("the page needs chromium and chromium-driver");
    };
    let (mut workers, server) = halves("10");
    browser.prepare(EARS);
    browser.look("light", 1280, 900);
    browser.open(&format!("{}/", server.url));
    browser.wait(
        "the page to be ready",
        "return document.querySelector('#phase').dataset.phase === 'ready'",
    );
    let device = |name: &str, what: &str| {
        browser.run(&format!("return document.querySelector('[data-device={name}]').{what}"))
    };
    assert_eq!(device("kitchen", "dataset.state"), "ready");
    let text = device("attic", "textContent");
    assert!(text.as_str().expect("text").contains("6\u{2013}11"), "{text}");

    // Every length that the answer has while it comes.
    browser.run(&format!(
        "window.lengths = new Set(); \
         new MutationObserver(() => window.lengths.add(({ANSWER}?.textContent ?? '').length)) \
             .observe(document.querySelector('#messages'), \
                 {{ subtree: true, childList: true, characterData: true }})"
    ));
    browser.run("window.pieces = 6"); // However it comes, a part of it is seen.
    ask(&browser, "Tell me a story about an owl.");
    browser.wait("a part of an answer", RUNS);
    browser.run("window.pieces = Infinity");
    browser.wait("the answer to end", &format!("const a = {ANSWER}; return !!a && !a.ariaBusy?.includes('true') && a.textContent.length > 40"));
    let lengths = browser.run("return window.lengths.size").as_u64().expect("a number");
    assert!(lengths >= 3, "the answer was drawn {lengths} times");
    let pieces = browser.run("return window.told").as_u64().expect("a number");
    assert!(pieces > 20, "the answer came in {pieces} pieces");
    assert_eq!(browser.complaints(), [""; 0]);
    screenshot(&browser, "page-light.png");
    browser.look("dark", 1280, 900);
    screenshot(&browser, "page-dark.png");
    browser.look("light", 390, 844);
    screenshot(&browser, "page-phone-chat.png");
    browser.click("[data-show=cluster]");
    screenshot(&browser, "page-phone-cluster.png");
    browser.look("light", 1280, 900);

    workers[1].kill();
    let lost = "return document.querySelector('[data-device=attic]').dataset.state === 'lost'";
    browser.wait("the loss to be seen", lost);
    let broken = "return document.querySelector('#phase').dataset.phase === 'broken'";
    browser.wait("nobody to have taken its place", broken);
    let other = "return document.querySelector('[data-device=kitchen]').dataset.state === 'ready'";
    browser.wait("the other one to be there", other);
    screenshot(&browser, "page-lost.png");
}

#[test]
fn a_conversation_goes_on_when_the_context_is_full() {
    let Some(browser) = Browser::start() else {
        return not_shown("the page needs chromium and chromium-driver");
    };
    let args = ["--context", "160", "--default-max-tokens", "24", "--model-name", "demo"];
    let server = Server::start(&Master::alone(), &demo_model(), &args);
    browser.open(&format!("{}/", server.url));
    let notes =
        "Array.from(document.querySelectorAll('#messages .note'), note => note.textContent)";
    for turn in 1..=8 {
        browser.wait("a question to be possible", is_ready());
        browser.type_into("#prompt", "Tell me a story about an owl and a fox.");
        browser.type_into("#prompt", ENTER);
        let answered = format!(
            "const all = document.querySelectorAll('#messages [data-role=assistant]'); \
             return all.length === {turn} && all[{turn} - 1].ariaBusy === 'false'"
        );
        browser.wait("the answer to end", &answered);
    }
    let told = browser.run(&format!("return {notes}.join(' ')"));
    assert!(told.as_str().expect("text").contains("is not told of the first"), "{told}");
    let troubles = "return Array.from(document.querySelectorAll('#messages .trouble')) \
        .filter(trouble => !trouble.hidden).length";
    assert_eq!(browser.run(troubles), 0, "none of the questions was refused in the end");
}
