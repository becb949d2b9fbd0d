//! What a master seldom tells, or a model seldom does, made up where the page hears of it: devices that are warm, run low or go,
//! thoughts, a model that is being fetched; and what somebody does with an answer, with a conversation and with settings.
use cake_tests::browser::Browser;
use cake_tests::{Cluster, Master, Server, demo_model, not_shown};

use super::access::{Eyes, PHONE, instruments};
use super::states::{EARS, RUNS, show};
use super::talks::ANSWERED;
use super::{ENTER, IS_OPEN, ask, halves, is_ready};
use crate::pull::Place;

const TAB: &str = "\u{e004}";
const ESCAPE: &str = "\u{e00c}";
/// Members and numbers that no test makes: each member is as the first one, but for its name and its duty.
const SELDOM: &str = "window.alter = (state) => { \
    const [one, two] = state.members ?? []; \
    if (one && two && state.devices?.length === 2) { \
      const member = (name, duty, more) => ({ ...one, worker_id: name, name, duty, why: null, ...more }); \
      state.members = [{ ...one, duty: 'draining' }, { ...two, duty: 'leaving' }, \
        member('pocket', 'paused', { why: 'it failed twice', celsius: 41, \
          battery: { percent: 17, draining: true } }), \
        member('porch', 'leaving'), member('cellar', 'draining')]; \
      state.devices[0].direct = false; \
      state.load = { ...state.load, state_slots: { total: 4, held: 1, idle: 2 } }; \
    } \
    return state; \
  }";

#[test]
fn devices_that_are_warm_run_low_or_go_are_seen() {
    let Some((browser, axe)) = instruments() else { return };
    let eyes = Eyes { browser: &browser, axe: &axe };
    let (_workers, server) = halves("1");
    browser.prepare(&format!("{EARS}; {SELDOM}"));
    browser.open(&format!("{}/", server.url));
    browser.wait("the page to be ready", is_ready());
    show(&browser, "cluster");
    let card = |name: &str, part: &str| {
        format!(
            "[...document.querySelectorAll('#members > li')] \
                .find(it => it.querySelector('[data-part=name]').textContent === '{name}') \
                ?.querySelector('[data-part={part}]').textContent"
        )
    };
    let texts = |of: &str| browser.run(&format!("return {of}")).as_str().unwrap_or("").to_owned();
    browser.wait("them to be shown", &format!("return {} === 'paused'", card("pocket", "state")));
    let facts = texts(&card("pocket", "facts"));
    assert!(facts.contains("battery 17 %, discharging") && facts.contains("41 °C"), "{facts}");
    assert_eq!(texts(&card("pocket", "why")), "It failed twice.");
    assert_eq!(texts(&card("porch", "state")), "leaving");
    assert!(texts(&card("porch", "why")).contains("It asked to go"));
    assert_eq!(texts(&card("cellar", "state")), "freed");
    let device = |name: &str, part: &str| {
        texts(&format!("document.querySelector('[data-device={name}] {part}').textContent"))
    };
    assert_eq!(device("kitchen", ".state"), "being freed");
    assert_eq!(device("attic", ".state"), "leaving");
    let hops = texts("document.querySelector('#chain').textContent");
    assert!(hops.contains("relayed by the master"), "{hops}");
    let slots = texts("document.querySelector('[data-part=slots-tile]').textContent");
    assert!(slots.contains("of 4 used, 2 kept"), "{slots}");
    eyes.see("seldom");
    browser.look("light", 390, 844);
    browser.run("document.querySelector('#others').scrollIntoView()");
    eyes.see_on(&[PHONE], "seldom-members");
}

#[test]
fn an_answer_is_thought_of_stopped_copied_and_saved() {
    let Some((browser, axe)) = instruments() else { return };
    let eyes = Eyes { browser: &browser, axe: &axe };
    let args = ["--default-max-tokens", "24", "--model-name", "demo"];
    let server = Server::start(&Master::alone(), &demo_model(), &args);
    browser.prepare(EARS);
    browser.open(&format!("{}/", server.url));
    browser.wait("the page to be ready", is_ready());
    let said = |script: &str| browser.run(script).as_str().expect("text").to_owned();

    browser.run("window.thinks = 'Owls are birds.\\n\\n- They fly.'");
    ask(&browser, "Tell me a story about an owl.");
    browser.wait("the answer", ANSWERED);
    let thought = "document.querySelector('.thought')";
    assert_eq!(browser.run(&format!("return {thought}.checkVisibility()")), true);
    browser.click(".thought summary");
    assert!(said(&format!("return {thought}.textContent")).contains("They fly."));
    let answer = "document.querySelector('.answer').textContent";
    assert_eq!(browser.run(&format!("return {answer}.includes('They fly.')")), false);
    eyes.see("thoughts");
    browser.look("light", 1280, 900);
    // The button says so for a moment: nobody can be sure to look just then.
    browser.run(
        "const copy = document.querySelector('.copy'); \
         window.labels = []; \
         const read = () => window.labels.push(copy.textContent); \
         new MutationObserver(read).observe(copy, { childList: true })",
    );
    browser.click(".copy");
    let copied = "return window.labels.some(it => ['Copied', 'Selected'].includes(it))";
    browser.wait("it to be copied", copied);

    browser.run("window.thinks = ''; window.pieces = 6");
    ask(&browser, "And a fox?");
    browser.wait("a part of an answer", RUNS);
    browser.click("#stop");
    browser.wait("it to be stopped", ANSWERED);
    browser.run("window.pieces = Infinity");
    let note = "return document.querySelector('.turn:last-child .note').textContent";
    assert_eq!(said(note), "Stopped here.");
    eyes.see("stopped");
    browser.look("light", 1280, 900);
    browser.click(".turn:last-child .again");
    browser.wait("another answer", ANSWERED);
    assert_eq!(
        said("return document.querySelector('.turn:last-child .version').textContent"),
        "2/2"
    );
    browser.type_into("#search", "FOX");
    let found = "return document.querySelectorAll('#conversations li').length === 1";
    browser.wait("the conversation to be found", found);
    eyes.see("versions-and-search");
    browser.look("light", 1280, 900);

    // What is saved is what was said.
    browser.run(
        "window.saved = []; \
         URL.createObjectURL = (blob) => { blob.text().then(text => window.saved.push(text)); return '#'; }; \
         HTMLAnchorElement.prototype.click = function () { window.called = this.download; }",
    );
    for (button, count, ending) in [("#export-markdown", 1, ".md"), ("#export-json", 2, ".json")] {
        browser.click("#conversations button");
        browser.wait("what can be done with it", IS_OPEN);
        browser.click(button);
        browser.wait("it to be saved", &format!("return window.saved.length === {count}"));
        assert!(said("return window.called").ends_with(ending));
    }
    let markdown = said("return window.saved[0]");
    assert!(markdown.contains("Tell me a story about an owl.") && markdown.contains("## demo"));
    let json: serde_json::Value =
        serde_json::from_str(&said("return window.saved[1]")).expect("JSON");
    let turns = json["turns"].as_array().expect("a list");
    assert!(turns.iter().any(|turn| turn["thought"] == "Owls are birds.\n\n- They fly."), "{json}");
    assert!(turns.iter().any(|turn| turn["end"] == "stopped"), "{json}");
    assert_eq!(turns.len(), 3, "both versions");

    // Settings that were kept under a name are there again, also once the page is loaded anew.
    browser.click("#settings summary");
    browser.type_into("#system", "Be brief.");
    browser.run("document.querySelector('#system').dispatchEvent(new Event('change'))");
    browser.type_into("#preset-name", "Short");
    browser.click("#preset-save");
    let chosen = "return document.querySelector('#preset').selectedOptions[0]?.text";
    assert_eq!(said(chosen), "Short");
    eyes.see("preset");
    browser.look("light", 1280, 900);
    browser.open("about:blank");
    browser.open(&format!("{}/", server.url));
    browser.wait("the page to be ready", is_ready());
    browser.run(
        "const select = document.querySelector('#preset'); \
         select.value = [...select.options].find(it => it.text === 'Short').value; \
         select.dispatchEvent(new Event('change'))",
    );
    assert_eq!(said("return document.querySelector('#system').value"), "Be brief.");
    browser.click("#settings summary");
    browser.click("#preset-delete");
    let names = "return [...document.querySelector('#preset').options].map(it => it.text).join()";
    assert!(!said(names).contains("Short"));
}

#[test]
fn the_keyboard_alone_reaches_all_and_leaves_dialogs() {
    let Some(browser) = Browser::start() else {
        return not_shown("the page needs chromium and chromium-driver");
    };
    let cluster = Cluster::new(&["kitchen"]);
    let args = ["--model-name", "demo", "--default-max-tokens", "8", "--join", "127.0.0.1:0"];
    let server = Server::start(&cluster.master, &demo_model(), &args);
    browser.look("light", 1280, 900);
    browser.open(&format!("{}/", server.url));
    browser.wait("the page to be ready", is_ready());
    browser.wait("it to be the owner's", "return !document.querySelector('#add').hidden");
    // A button of each card of a device, which are drawn anew every second.
    let manages = "return !!document.querySelector('#chain [data-part=manage]')?.checkVisibility()";
    browser.wait("its device to be in its hands", manages);
    ask(&browser, "Tell me a story about an owl.");
    browser.wait("the answer", ANSWERED);
    let focused = || browser.run("return document.activeElement?.id ?? ''");
    // From the first to the last: each that is reached shows that it is.
    let (mut reached, mut at) = (Vec::new(), "#theme");
    loop {
        browser.type_into(at, TAB);
        if browser.run("return !document.querySelector(':focus')") == true {
            break; // Past the page.
        }
        at = ":focus";
        let name = "const it = document.activeElement; \
            return it.id || it.dataset.part || it.className || it.textContent.trim()";
        let name = browser.run(name).as_str().expect("text").to_owned();
        let is_seen = "return document.activeElement.matches(':focus-visible')";
        assert_eq!(browser.run(is_seen), true, "the focus is seen on {name:?}");
        reached.push(name);
        assert!(reached.len() < 100, "it goes round: {reached:?}");
    }
    for wanted in ["new", "search", "add", "manage", "copy", "again", "edit", "Settings", "prompt"]
    {
        assert!(reached.iter().any(|name| name.contains(wanted)), "{wanted}: {reached:?}");
    }
    for (opens, dialog) in
        [("#add", "#invite-dialog"), ("#conversations button", "#conversation-dialog")]
    {
        browser.type_into(opens, ENTER);
        let is_open = format!("return document.querySelector('{dialog}').open");
        browser.wait("the dialog", &is_open);
        let is_inside =
            format!("return document.querySelector('{dialog}').contains(document.activeElement)");
        assert_eq!(browser.run(&is_inside), true, "the focus is in {dialog}");
        browser.type_into(":focus", ESCAPE);
        browser.wait("it to be closed", &format!("{is_open} === false"));
        let is_back =
            format!("return document.querySelector('{opens}') === document.activeElement");
        assert_eq!(browser.run(&is_back), true, "the focus is where it was: {}", focused());
    }
}

#[test]
fn a_key_that_is_refused_and_none_at_all_are_said() {
    let Some((browser, axe)) = instruments() else { return };
    let eyes = Eyes { browser: &browser, axe: &axe };
    let master = Master::alone();
    let file = master.state().join("keys");
    std::fs::write(&file, "secret\n").expect("writable");
    let args = ["--api-key-file", &file.display().to_string()];
    let server = Server::start(&master, &demo_model(), &args);
    browser.open(&format!("{}/", server.url));
    let asks = "return document.querySelector('#key-dialog').open";
    browser.wait("a key to be asked for", asks);
    browser.type_into("#key", "another");
    browser.click("#key-dialog .main");
    let refused = "return document.querySelector('#key-dialog').open && \
        document.querySelector('#key-why').textContent.includes('did not accept this key')";
    browser.wait("it to be refused", refused);
    eyes.see("refused-key");
    browser.click("#key-cancel");
    let locked = "return document.querySelector('#phase').textContent === 'locked'";
    browser.wait("the page to be locked", locked);
    eyes.see("locked");
    browser.look("light", 1280, 900);
    browser.click("#connect");
    browser.wait("a key to be asked for", asks);
    browser.type_into("#key", "secret");
    browser.click("#key-dialog .main");
    browser.wait("the page to be ready", is_ready());
}

#[test]
fn a_model_on_its_way_is_seen_and_can_be_stopped() {
    let Some((browser, axe)) = instruments() else { return };
    let eyes = Eyes { browser: &browser, axe: &axe };
    let place = Place::golden();
    let server = Server::from_command(place.command(&["serve", "--listen", "0", "--alone"]));
    browser.prepare(EARS);
    browser.look("light", 390, 844);
    browser.open(&format!("{}/", server.url));
    browser.click("[data-show=cluster]");
    browser.look("light", 1280, 900);
    browser.wait("models to be told of", "return !document.querySelector('#shelf').hidden");
    browser.click("#shelf summary");
    browser.type_into("#wanted", "org/large");
    browser.click("#pull [type=submit]");
    let says = |words: &str| {
        format!("return document.querySelector('#pull-said').textContent.includes('{words}')")
    };
    browser.wait("it to be said how far it is", &says("954 MiB of 3.7 GiB"));
    assert_eq!(browser.run("return document.querySelector('#pulled').value"), 0.25);
    browser.run("document.querySelector('#shelf').scrollIntoView()");
    eyes.see("pulling");
    browser.look("light", 1280, 900);
    browser.click("#pull-stop");
    browser.wait("it to be stopped", &says("Stopped"));
}
