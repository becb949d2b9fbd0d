//! Every state of the page, for those who use it by keyboard, by ear or with weak eyes: axe-core finds nothing serious.
use std::path::PathBuf;

use cake_tests::browser::Browser;
use cake_tests::{Cluster, Master, Server, demo_model, not_shown};

use super::{IS_FREE, IS_OPEN, ask, is_ready, screenshot};

/// axe-core's script: `CAKE_AXE`, else where `tests/clients/install.sh` put it.
pub(super) fn axe() -> Option<String> {
    let venv = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/venv/lib");
    let made = std::fs::read_dir(venv).ok().into_iter().flatten().filter_map(|python| {
        Some(python.ok()?.path().join("site-packages/axe_playwright_python/axe.min.js"))
    });
    let given = std::env::var_os("CAKE_AXE").map(PathBuf::from);
    given.into_iter().chain(made).find_map(|file| std::fs::read_to_string(file).ok())
}

/// A screen that the page is looked at on: its name, width and height in pixels.
type Screen = (&'static str, u32, u32);
pub(super) const PHONE: Screen = ("phone", 390, 844);
pub(super) const DESK: Screen = ("desk", 1280, 900);
/// Where the list of conversations is a drawer, as on a phone, before chat and devices.
pub(super) const TABLET: Screen = ("tablet", 1024, 768);

pub(super) struct Eyes<'a> {
    pub(super) browser: &'a Browser,
    pub(super) axe: &'a str,
}

impl Eyes<'_> {
    /// Looks at what is shown now, in both colours, on a desk and on a phone.
    #[track_caller]
    pub(super) fn see(&self, state: &str) {
        self.see_on(&[PHONE, DESK], state);
    }

    /// The same on other screens.
    #[track_caller]
    pub(super) fn see_on(&self, screens: &[Screen], state: &str) {
        for (name, width, height) in screens {
            for scheme in ["dark", "light"] {
                self.browser.look(scheme, *width, *height);
                let faults = self.browser.faults(self.axe);
                assert_eq!(faults, [""; 0], "{state}, {scheme}, on a {name}");
                screenshot(self.browser, &format!("state-{state}-{name}-{scheme}.png"));
            }
        }
    }
}

/// What eyes are made of: a browser, and axe-core's script. None where one of them is missing, which is said.
pub(super) fn instruments() -> Option<(Browser, String)> {
    let Some(browser) = Browser::start() else {
        not_shown("the page needs chromium and chromium-driver");
        return None;
    };
    let Some(axe) = axe() else {
        not_shown("tests/clients/install.sh gets axe-core");
        return None;
    };
    Some((browser, axe))
}

#[test]
fn every_state_can_be_used_without_eyes_or_mouse() {
    let Some((browser, axe)) = instruments() else { return };
    let eyes = Eyes { browser: &browser, axe: &axe };
    let mut cluster = Cluster::new(&["kitchen", "attic"]);
    let args = ["--model-name", "demo", "--grace", "1", "--default-max-tokens", "24"];
    let args = [&args[..], &["--join", "127.0.0.1:0"]].concat();
    let server = Server::start(&cluster.master, &demo_model(), &args);
    browser.open(&format!("{}/", server.url));
    browser.wait("the page to be ready", is_ready());
    browser.wait("it to be the owner's", "return !document.querySelector('#add').hidden");
    eyes.see("welcome");
    browser.click("#settings summary");
    eyes.see("settings");
    browser.click("#settings summary");
    ask(&browser, "Tell me a story about an owl.");
    let answered = "const a = document.querySelector('#messages [data-role=assistant]'); \
        return !!a && a.ariaBusy === 'false'";
    browser.wait("the answer", answered);
    let markdown = "const { drawMarkdown } = await import('/page/markdown.js'); \
        drawMarkdown(document.querySelector('.answer'), \
          '- [x] done\\n- [ ] to do\\n\\n|a|b|\\n|-|-|\\n|1|$x^2$|\\n\\n```rust\\nfn main() {} // x\\n```\\n\\n\
           $$\\\\frac{a}{b} = \\\\sum_{i=1}^n i$$\\n\\n$\\\\unknown{x}$'); done(null)";
    browser.run_async(markdown);
    let formula = "return !!document.querySelector('.answer mfrac') \
        && document.querySelector('.answer .tex').textContent === '\\\\unknown{x}'";
    assert_eq!(browser.run(formula), true, "formulas are drawn, and what is not known is shown");
    eyes.see("answer");
    browser.wait("another question to be possible", IS_FREE);
    browser.click(".edit");
    eyes.see("edit");
    browser.click(".editing .cancel");
    browser.click("#conversations button");
    browser.wait("what can be done with it", IS_OPEN);
    eyes.see("conversation");
    browser.click("#conversation-cancel");
    browser.wait("the dialog to be closed", &format!("{IS_OPEN} === false"));
    browser.look("light", 390, 844);
    browser.click("#library-open");
    eyes.see_on(&[PHONE, TABLET], "drawer");
    let (_, width, height) = DESK;
    browser.look("light", width, height);
    let is_drawer = "return document.querySelector('#library').matches(':popover-open')";
    browser.wait("the list to be beside the chat", &format!("{is_drawer} === false"));

    browser.look("light", 390, 844);
    browser.click("[data-show=cluster]");
    eyes.see("devices");
    browser.look("light", 1280, 900);
    browser.click("#add");
    browser.wait("a code", "return !document.querySelector('#invitation').hidden");
    eyes.see("invite");
    browser.click("#invite-dialog button.main");
    browser.click("#chain [data-part=manage]");
    eyes.see("device");
    browser.click("#device-close");
    browser.click("#whatif summary");
    browser.click("#whatif button");
    let foreseen = "return document.querySelector('#foreseen').textContent.includes('GiB')";
    browser.wait("what would be", foreseen);
    eyes.see("whatif");

    // What is lost is said, and nothing is ready that is not.
    cluster.workers.iter_mut().for_each(cake_tests::TestWorker::kill);
    let phase =
        |is: &str| format!("return document.querySelector('#phase').dataset.phase === '{is}'");
    browser.wait("nobody to have taken their place", &phase("broken"));
    let claims = "return [...document.querySelectorAll('.state')].some(it => it.checkVisibility() \
        && it.textContent === 'ready')";
    browser.wait("nobody to be called ready", &format!("{claims} === false"));
    let raw = "return document.body.textContent.includes('transport error')";
    assert_eq!(browser.run(raw), false, "what libraries say is not for people");
    eyes.see("broken");
    drop(server);
    browser.wait("the master to be missed", &phase("down"));
    assert_eq!(browser.run(claims), false, "nothing is ready that cannot be reached");
    let waits = "return document.querySelector('#send').disabled \
        && document.querySelector('#gate-text').textContent === 'Waiting for the master.'";
    browser.wait("no question to be possible", waits);
    eyes.see("away");

    let file = cluster.master.state().join("keys");
    std::fs::write(&file, "secret\n").expect("writable");
    let locked = Server::start(
        &Master::alone(),
        &demo_model(),
        &["--api-key-file", &file.display().to_string()],
    );
    browser.open(&format!("{}/", locked.url));
    browser.wait("a key to be asked for", "return document.querySelector('#key-dialog').open");
    eyes.see("key");
}
