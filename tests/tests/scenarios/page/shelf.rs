//! Models at hand, on the page: fetched, loaded and let go; and the devices of several that are loaded at once.
use cake_tests::browser::Browser;
use cake_tests::{Cluster, Master, Server, golden, not_shown};

use super::access::{Eyes, instruments};
use crate::models::said;
use crate::pull::{Place, REPO};

/// What is said of the first model at hand, if there is one.
const FACTS: &str =
    "const facts = document.querySelector('#at-hand [data-part=facts]')?.textContent ?? 'none'";

/// Opens the page where it shows the devices, also on a phone.
fn open_devices(browser: &Browser, server: &Server) {
    browser.look("light", 390, 844);
    browser.open(&format!("{}/", server.url));
    browser.click("[data-show=cluster]");
    browser.look("light", 1280, 900);
}

#[test]
fn a_model_is_fetched_loaded_and_let_go() {
    let Some((browser, axe)) = instruments() else { return };
    let eyes = Eyes { browser: &browser, axe: &axe };
    let place = Place::golden();
    let server = Server::from_command(place.command(&["serve", "--listen", "0", "--alone"]));
    open_devices(&browser, &server);
    let offered = "return document.querySelector('#pull').checkVisibility()";
    browser.wait("models to be told of", "return !document.querySelector('#shelf').hidden");
    browser.click("#shelf summary");
    browser.wait("the Hub to be offered", offered);
    assert_eq!(browser.run(&format!("{FACTS}; return facts")), "none");

    let fetch = |name: &str| {
        let can = "return !document.querySelector('#pull [type=submit]').hidden";
        browser.wait("nothing else to be fetched", can);
        browser.run("document.querySelector('#wanted').value = ''");
        browser.type_into("#wanted", name);
        browser.click("#pull [type=submit]");
    };
    let says = |words: &str| {
        format!("return document.querySelector('#shelf-trouble').textContent.includes('{words}')")
    };
    fetch("no name of a model");
    browser.wait("what was typed to be refused in words", &says("no name of a model"));
    fetch("org/other");
    browser.wait("it to be said that there is no such model", &says("no model \"org/other\""));
    eyes.see("shelf-trouble");
    browser.look("light", 1280, 900);
    fetch(REPO);
    let facts = |says: &str| {
        let free = "!document.querySelector('#at-hand button').disabled";
        format!("{FACTS}; return facts.includes('{says}') && {free}")
    };
    browser.wait("the model to be at hand", &facts("fits, loads when asked"));
    assert_eq!(
        browser.run("return document.querySelector('#shelf-trouble').hidden"),
        true,
        "what was wrong before is not any more"
    );
    browser.click("#at-hand button");
    browser.wait("the model to be loaded", &facts("loaded"));
    browser.wait("its devices", "return document.querySelectorAll('#chain .device').length === 1");
    browser.run("document.querySelector('#shelf').scrollIntoView()");
    eyes.see("shelf");
    browser.look("light", 1280, 900);
    browser.click("#at-hand button");
    browser.wait("the model to be let go", &facts("when asked"));
    browser.wait("no devices", "return document.querySelectorAll('#chain .device').length === 0");
}

#[test]
fn the_devices_of_each_of_two_models_are_shown() {
    let Some((browser, axe)) = instruments() else { return };
    let eyes = Eyes { browser: &browser, axe: &axe };
    let models = [golden("llama"), golden("qwen2")];
    let cluster = Cluster::new(&["kitchen"]);
    let paths = [&*models[0].path, &*models[1].path];
    let place = ["--place", "kitchen=0..5"];
    let server = Server::of_several(&cluster.master, &paths, &place);
    open_devices(&browser, &server);
    browser.wait(
        "it to be said that nobody asked",
        "const reason = document.querySelector('#cluster [data-part=reason]'); \
         return reason.hasAttribute('data-calm') && reason.textContent.includes('whoever asks')",
    );
    eyes.see("idle");
    browser.look("light", 1280, 900);
    // Whether the device shows what other models have of it.
    let shown = |others: bool| {
        format!(
            "const row = document.querySelector('#chain [data-part=held-by-others]'); \
             return !!row && row.hidden === {} && document.querySelectorAll('#chain .device').length === 1",
            !others
        )
    };
    said(&server, &models[0], "llama");
    browser.wait("a device of one model", &shown(false));
    said(&server, &models[1], "qwen2");
    browser.wait("a device of two models", &shown(true));
    let chosen = "return document.querySelector('#shown-model').value";
    let named = "return document.querySelector('#cluster [data-part=model]').textContent";
    for name in ["llama", "qwen2"] {
        browser.run(&format!(
            "const select = document.querySelector('#shown-model'); select.value = '{name}'; \
             select.dispatchEvent(new Event('change'))"
        ));
        assert_eq!((browser.run(chosen), browser.run(named)), (name.into(), name.into()));
        assert_eq!(browser.run(&shown(true)), true, "{name}");
    }
    eyes.see("two-models");
    browser.look("light", 1280, 900);
    // Another device is planned with for the model that is shown, which is the last of those that were chosen.
    browser.click("#whatif summary");
    for name in ["qwen2", "llama"] {
        browser.run(&format!(
            "const select = document.querySelector('#shown-model'); select.value = '{name}'; \
             select.dispatchEvent(new Event('change'))"
        ));
        browser.click("#whatif button");
        let told = format!(
            "return document.querySelector('#foreseen').textContent.includes('for {name}:')"
        );
        browser.wait("what would be", &told);
    }
    let is_sure = "return [...document.querySelectorAll('#at-hand li')].filter(it => \
        it.querySelector('[data-part=facts]').textContent.includes('loaded') \
            && !it.querySelector('button').disabled).length";
    browser.wait("both to be loaded", &format!("{is_sure} === 2"));
    // Nobody knows what is loaded by a master that is gone.
    drop(server);
    browser.wait(
        "the master to be missed",
        "return document.querySelector('#phase').dataset.phase === 'down'",
    );
    let claims = "return [...document.querySelectorAll('#at-hand [data-part=facts], #model option')] \
        .filter(it => it.textContent.includes('loaded')).length";
    assert_eq!((browser.run(is_sure), browser.run(claims)), (0.into(), 0.into()));
}

#[test]
fn a_device_of_another_model_says_what_it_has() {
    let Some(browser) = Browser::start() else {
        return not_shown("the page needs chromium and chromium-driver");
    };
    let script = "const { Members } = await import('/page/members.js'); \
        const members = new Members(); \
        const held = (name) => ({ worker_id: name, name, duty: 'layers', budget_bytes: 1, devices: [] }); \
        const state = { phase: 'ready', members: [held('kitchen'), held('attic')], model: 'one', \
          devices: [{ worker_id: 'kitchen', layers: '0..5' }], \
          models: [{ model: 'one', devices: [{ worker_id: 'kitchen', layers: '0..5' }] }, \
            { model: 'other', devices: [{ worker_id: 'attic', layers: '0..3' }] }] }; \
        members.show(state, state); \
        done(document.querySelector('#others').textContent)";
    let server = Server::start(&Master::alone(), &golden("llama").path, &[]);
    browser.open(&format!("{}/", server.url));
    let text = browser.run_async(script);
    let text = text.as_str().expect("text");
    assert!(
        text.contains("Other devices") && text.contains("It has layers 0\u{2013}2 of other."),
        "{text}"
    );
}
