//! States that last for a moment, or come seldom: devices while a model comes, is lost and mended, those that have no
//! layers, and answers that run or failed. The browser shows each for as long as it is looked at.
use cake_tests::browser::Browser;
use cake_tests::{Call, Cluster, Lie, Master, Meddler, Server, TestWorker, demo_model};
use serde_json::json;

use super::access::{Eyes, PHONE, instruments};
use super::talks::ANSWERED;
use super::{IS_FREE, ask, halves, is_ready};
use crate::devices::pipeline::Home;
use crate::models::copy;

/// What the page hears of the master is held here, before it hears it. A state of the cluster that `holds` is true of is
/// told again and again, as if nothing happened; of an answer come so many `pieces` (`told` up to now), until it `breaks`.
/// `alter` makes another state of one, `thinks` is what a model thinks before its answer, and what is fetched comes so far
/// and no further.
pub(super) const EARS: &str = r"
window.holds = () => false;
window.alter = (state) => state;
window.thinks = '';
window.isHeld = false;
window.pieces = Infinity;
window.breaks = false;
const pause = () => new Promise(resolve => setTimeout(resolve, 100));
const altered = (event, alter) => event.replace(/^data: ?({.*)$/m, (_, said) => 'data: ' + JSON.stringify(alter(JSON.parse(said))));
const listened = () => async (heard, tell) => {
  const event = altered(heard, window.alter);
  tell(event);
  const state = /^data: ?(.*)$/m.exec(event);
  while (state && window.holds(JSON.parse(state[1]))) {
    window.isHeld = true;
    await pause();
    tell(event);
  }
};
const answered = (signal) => {
  let told = 0;
  return async (event, tell) => {
    for (; told >= window.pieces; await pause()) {
      signal.throwIfAborted(); // More may have come at once than is let through: the browser drops that, too.
      if (window.breaks) {
        throw new TypeError('as if the network had failed');
      }
    }
    told += 1;
    window.told = told;
    const thought = { choices: [{ index: 0, delta: { reasoning_content: window.thinks } }] };
    if (told === 1 && window.thinks) {
      tell('data: ' + JSON.stringify(thought));
    }
    tell(event);
  };
};
const whole = (hears) => {
  const [decoder, encoder] = [new TextDecoder(), new TextEncoder()];
  let rest = '';
  return new TransformStream({
    async transform(chunk, controller) {
      const events = (rest + decoder.decode(chunk, { stream: true })).split('\n\n');
      rest = events.pop();
      for (const event of events) {
        await hears(event, (said) => controller.enqueue(encoder.encode(said + '\n\n')));
      }
    },
  });
};
const ask = window.fetch;
const fetched = (signal) => new Response(new ReadableStream({
  start(controller) {
    const line = { status: 'pulling', total: 4e9, completed: 1e9 };
    controller.enqueue(new TextEncoder().encode(JSON.stringify(line) + '\n'));
    signal.addEventListener('abort', () => controller.error(signal.reason));
  },
}));
window.fetch = async (path, options) => {
  if (path === '/api/pull') {
    return fetched(options.signal);
  }
  const response = await ask(path, options);
  const ears = { '/api/events': listened, '/v1/chat/completions': answered }[path];
  const heard = () => response.body.pipeThrough(whole(ears(options.signal)));
  return ears && response.ok ? new Response(heard(), response) : response;
};
";
/// Whether an answer is on its way, a part of which is there.
pub(super) const RUNS: &str = "const all = document.querySelectorAll('#messages [data-role=assistant]'); \
    const last = all[all.length - 1]; \
    return last?.ariaBusy === 'true' && last.querySelector('.answer').textContent.length > 0";
/// Whether what is said of the cluster is said as no trouble.
const IS_CALM: &str = "return document.querySelector('[data-part=reason]').matches('[data-calm]')";

/// Whether nothing is done with a device.
const IS_UNMANAGED: &str = "return !document.querySelector('#device-dialog').open";

/// Lets the page hear nothing after the next state of the cluster that this is true of; of `false`, all again.
fn hold(browser: &Browser, state: &str) {
    browser.run(&format!("window.isHeld = false; window.holds = state => {state}"));
}

/// Waits until the page is held, and shows that.
#[track_caller]
fn wait_for_held(browser: &Browser, phase: &str) {
    browser.wait(&format!("a state of {phase}"), "return window.isHeld");
    browser.wait(&format!("{phase} to be shown"), &is_in(phase));
}

/// Shows the chat or, on a phone instead of it, the devices.
pub(super) fn show(browser: &Browser, view: &str) {
    browser.run(&format!("document.querySelector('[data-show={view}]').click()"));
}

fn is_in(phase: &str) -> String {
    format!("return document.querySelector('#phase').dataset.phase === '{phase}'")
}

/// The card of a device without layers.
fn member(name: &str) -> String {
    format!(
        "[...document.querySelectorAll('.member')] \
            .find(it => it.querySelector('[data-part=name]').textContent === '{name}')"
    )
}

/// Goes down to the devices without layers, where they are not all on the screen.
fn to_members(browser: &Browser) {
    browser.look("light", 390, 844);
    browser.run("document.querySelector('#others').scrollIntoView()");
}

#[track_caller]
fn wait_for_member(browser: &Browser, name: &str, state: &str) {
    let is_so = format!("return {}?.dataset.state === '{state}'", member(name));
    browser.wait(&format!("{name} to be {state}"), &is_so);
}

/// Opens what can be done with a device without layers.
fn manage(browser: &Browser, name: &str) {
    browser.run(&format!("{}.querySelector('[data-part=manage]').click()", member(name)));
    browser.wait("what can be done", "return document.querySelector('#device-dialog').open");
}

#[test]
fn devices_are_seen_at_every_step_of_a_model_that_comes() {
    let Some((browser, axe)) = instruments() else { return };
    let (browser, eyes) = (&browser, Eyes { browser: &browser, axe: &axe });
    let home = tempfile::tempdir().expect("a temporary folder");
    let models = ["owl", "fox"].map(|name| home.path().join(name));
    models.iter().for_each(|model| copy(&demo_model(), model));
    let [owl, fox] = models.each_ref().map(|model| model.as_path());
    let args = ["--place", "kitchen=0..12", "--default-max-tokens", "8"];
    browser.prepare(EARS);
    // Of twelve blobs some arrive.
    for (phase, call, arrive, more) in [
        ("planning", Call::Probe, 0, "true"),
        ("pushing", Call::Push, 4, "state.devices.some(device => device.push?.sent_bytes > 0)"),
        ("loading", Call::Load, 0, "true"),
    ] {
        let kitchen = TestWorker::new("kitchen");
        let meddler = Meddler::before(&kitchen.address);
        let server = Server::of_several(&Master::at([&meddler.address]), &[owl, fox], &args);
        browser.open(&format!("{}/", server.url));
        browser.wait("no model to be loaded", &is_in("idle"));
        browser.wait("a choice", "return !document.querySelector('#model').hidden");
        if phase == "planning" {
            wait_for_member(browser, "kitchen", "there");
            eyes.see("idle");
        }
        meddler.keep(call, arrive);
        hold(browser, &format!("state.phase === '{phase}' && {more}"));
        browser.run("window.pieces = 0");
        ask(browser, "Tell me a story about an owl.");
        wait_for_held(browser, phase);
        meddler.let_go(); // The master waits for nobody who looks.
        eyes.see(phase);
        show(browser, "cluster");
        eyes.see_on(&[PHONE], &format!("{phase}-devices"));
        assert_eq!(browser.run(IS_CALM), true, "nothing is wrong while it is {phase}");
        hold(browser, "false");
        browser.run("window.pieces = Infinity");
        browser.wait("the answer", ANSWERED);
        browser.wait("the model to be there", &is_in("ready"));
    }
}

#[test]
fn answers_are_seen_while_they_run_when_they_failed_and_when_a_device_is_lost() {
    let Some((browser, axe)) = instruments() else { return };
    let (browser, eyes) = (&browser, Eyes { browser: &browser, axe: &axe });
    let (mut workers, server) = halves("3600"); // Longer than anybody looks.
    browser.prepare(EARS);
    browser.open(&format!("{}/", server.url));
    browser.wait("the page to be ready", is_ready());
    browser.run("window.pieces = 12");
    ask(browser, "Tell me a story about an owl.");
    browser.wait("a part of an answer", RUNS);
    eyes.see("running");
    browser.run("window.breaks = true");
    browser.wait("it to fail", "return !!document.querySelector('.retry')?.checkVisibility()");
    let said = browser.run("return document.querySelector('.trouble-text').textContent");
    assert_eq!(said, "The connection to the master broke off.");
    eyes.see("failed");

    browser.run("window.breaks = false");
    browser.wait("another try to be possible", IS_FREE);
    browser.click(".retry");
    browser.wait("a part of another answer", RUNS);
    workers[1].kill();
    browser.wait("the loss to be told", &is_in("recovering"));
    let lost = "return document.querySelector('[data-device=attic]').dataset.state === 'lost'";
    browser.wait("the loss to be seen", lost);
    assert_eq!(browser.run(RUNS), true, "the answer waits");
    eyes.see("recovering");
    show(browser, "cluster");
    eyes.see_on(&[PHONE], "recovering-devices");
}

#[test]
fn devices_without_layers_are_seen_where_they_are_spare_away_freed_and_shut_out() {
    let Some((browser, axe)) = instruments() else { return };
    let (browser, eyes) = (&browser, Eyes { browser: &browser, axe: &axe });
    let mut cluster = Cluster::new(&["kitchen", "attic", "porch", "cellar"]);
    cluster.workers[3].kill();
    let args = ["--place", "kitchen=0..12", "--model-name", "demo"];
    let server = Server::start(&cluster.master, &demo_model(), &args);
    browser.open(&format!("{}/", server.url));
    browser.wait("the page to be ready", is_ready());
    show(browser, "cluster");
    for (name, state) in [("attic", "spare"), ("porch", "spare"), ("cellar", "away")] {
        wait_for_member(browser, name, state);
    }
    to_members(browser);
    eyes.see("spare-and-away");

    manage(browser, "attic");
    browser.click("#device-drain");
    wait_for_member(browser, "attic", "freed");
    browser.wait("the dialog to be closed", IS_UNMANAGED);
    manage(browser, "porch");
    browser.click("#device-revoke");
    eyes.see("shut-out-for-good");
    browser.click("#device-sure");
    wait_for_member(browser, "porch", "shut out");
    browser.wait("the dialog to be closed", IS_UNMANAGED);
    let happened = "return document.querySelector('#happenings').textContent";
    let told = format!("{happened}.includes('porch is gone.')");
    browser.wait("its name to be written as its own", &told);
    to_members(browser);
    eyes.see("freed-and-shut-out");
    for name in ["attic", "porch"] {
        manage(browser, name);
        eyes.see(&format!("device-{name}"));
        browser.click("#device-close");
    }
}

#[test]
fn a_device_in_quarantine_is_seen_with_the_reason() {
    let Some((browser, axe)) = instruments() else { return };
    let (browser, eyes) = (&browser, Eyes { browser: &browser, axe: &axe });
    let home = Home::new();
    let mut site =
        home.site(&["kitchen", "attic", "porch"], &["--model-name", "demo", "--grace", "3600"]);
    site.workers[2].kill(); // Nobody has room for what the liar has; else it would be left alone after one lie.
    let (server, meddlers) = (&site.server, &site.meddlers);
    browser.open(&format!("{}/", server.url));
    browser.wait("the page to be ready", is_ready());
    show(browser, "cluster");
    meddlers[1].lie(Lie::NotANumber, u64::MAX);
    std::thread::scope(|scope| {
        let asked = json!({ "prompt": [5, 6, 7], "max_tokens": 4, "ignore_eos": true });
        let answer = scope.spawn(move || server.post("/v1/completions", &asked));
        let reason = "return document.querySelector('[data-part=reason]').textContent";
        let told = format!("{reason}.includes('attic is in quarantine')");
        browser.wait("the quarantine to be told", &told);
        let (porch, _) = home.worker("porch");
        meddlers[2].lead_to(&porch.address);
        browser.wait("another one to have its layers", &is_in("ready"));
        answer.join().expect("the server answers").good();
        site.workers.push(porch);
    });
    wait_for_member(browser, "attic", "quarantined");
    to_members(browser);
    eyes.see("quarantined");
}
