//! Conversations that the browser keeps: versions, a second tab, the list, and one that is long.
use cake_tests::browser::Browser;
use cake_tests::{Master, Server, demo_model, not_shown};

use super::{IS_OPEN, ask, is_ready, screenshot};

/// Whether the last answer is complete.
pub(super) const ANSWERED: &str = "const all = document.querySelectorAll('#messages [data-role=assistant]'); \
    return all.length > 0 && all[all.length - 1].ariaBusy === 'false' \
        && document.querySelector('#chat').dataset.free === 'true'";
const VERSION: &str = "return document.querySelector('.version').textContent";
/// Turns of a long conversation: a thousand messages.
const TURNS: usize = 500;

fn asks(browser: &Browser, question: &str) {
    ask(browser, question);
    browser.wait("the answer to end", ANSWERED);
}

fn said(browser: &Browser, script: &str) -> String {
    browser.run(script).as_str().expect("text").to_owned()
}

#[test]
fn conversations_are_kept_branch_and_are_shared_by_tabs() {
    let Some(browser) = Browser::start() else {
        return not_shown("the page needs chromium and chromium-driver");
    };
    let args = ["--default-max-tokens", "12", "--model-name", "demo"];
    let server = Server::start(&Master::alone(), &demo_model(), &args);
    let url = format!("{}/", server.url);
    browser.open(&url);
    browser.wait("the page to be ready", is_ready());

    // Another answer and another question are versions of the same turn.
    asks(&browser, "Tell me a story about an owl.");
    browser.click(".again");
    browser.wait("a second answer", ANSWERED);
    assert_eq!(said(&browser, VERSION), "2/2");
    browser.click(".edit");
    browser.type_into(".editing textarea", " And a fox.");
    browser.click(".editing .main");
    browser.wait("a third answer", ANSWERED);
    assert_eq!(said(&browser, VERSION), "3/3");
    let question = "return document.querySelector('.question').textContent";
    assert_eq!(said(&browser, question), "Tell me a story about an owl. And a fox.");
    browser.click(".earlier");
    assert_eq!(said(&browser, question), "Tell me a story about an owl.");
    assert_eq!(said(&browser, VERSION), "2/3");

    // What a conversation is told stays with it, also once the page is loaded again.
    browser.click("#settings summary");
    browser.type_into("#system", "Be brief.");
    browser.run("document.querySelector('#system').dispatchEvent(new Event('change'))");
    browser.run_async(
        "const { openStore } = await import('/page/store.js'); \
         const store = await openStore(); \
         const isKept = async () => (await store.conversation(location.hash.slice(1)))?.system === 'Be brief.'; \
         while (!(await isKept())) { await new Promise(resolve => setTimeout(resolve, 50)); } \
         done(null)",
    );
    let address = said(&browser, "return location.href");
    browser.open("about:blank");
    browser.open(&address);
    browser.wait("the conversation", "return document.querySelectorAll('.turn').length === 1");
    assert_eq!(said(&browser, VERSION), "2/3");
    assert_eq!(said(&browser, "return document.querySelector('#system').value"), "Be brief.");

    // A second tab adds to it; the first one sees that, and keeps what it has.
    browser.wait("the page to be ready", is_ready());
    let first = browser.window();
    let second = browser.new_window();
    browser.open(&address);
    browser.wait("the page to be ready", is_ready());
    asks(&browser, "What is an owl?");
    browser.switch(&first);
    let both = "return document.querySelectorAll('.turn').length === 2 \
        && document.querySelector('.turn:last-child [data-role=assistant]').ariaBusy === 'false'";
    browser.wait("what the other tab asked", both);
    browser.click("#new");
    browser.wait("a new one", "return !document.querySelector('#welcome').hidden");
    assert_eq!(said(&browser, "return document.querySelector('#system').value"), "");
    asks(&browser, "Why is the sky blue?");
    browser.switch(&second);
    let listed = "return document.querySelectorAll('#conversations li').length";
    browser.wait("both in the list", &format!("{listed} === 2"));
    assert_eq!(browser.run("return document.querySelectorAll('.turn').length"), 2);

    // Found by what was said in it, named, and deleted.
    browser.type_into("#search", "FOX");
    browser.wait("one that has the word", &format!("{listed} === 1"));
    browser.click("#conversations button");
    browser.wait("what can be done with it", IS_OPEN);
    let title = "const title = document.querySelector('#title'); title.value = 'Birds'";
    browser.run(title);
    browser.click("#conversation-dialog .main");
    let named = "return document.querySelector('#conversations a').textContent === 'Birds'";
    browser.wait("its name", named);
    browser.click("#conversations button");
    browser.wait("what can be done with it", IS_OPEN);
    browser.click("#conversation-delete");
    browser.click("#conversation-sure");
    browser.wait("nothing to have the word", &format!("{listed} === 0"));
    browser.wait("it to be gone here", "return !document.querySelector('#welcome').hidden");
    browser.switch(&first);
    browser.wait("it to be gone there", &format!("{listed} === 1"));
    assert_eq!(browser.run("return document.querySelectorAll('.turn').length"), 1);
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn a_long_conversation_is_laid_out_where_it_is_seen() {
    let Some(browser) = Browser::start() else {
        return not_shown("the page needs chromium and chromium-driver");
    };
    let server = Server::start(&Master::alone(), &demo_model(), &["--model-name", "demo"]);
    let url = format!("{}/", server.url);
    browser.open(&url);
    browser.wait("the page to be ready", is_ready());
    let made = browser.run_async(&format!(
        "const {{ openStore }} = await import('/page/store.js'); \
         const {{ newConversation }} = await import('/page/talk.js'); \
         const store = await openStore(); \
         const kept = newConversation({{ title: 'Long' }}); \
         await store.add(kept); \
         let parent = null; \
         const turns = []; \
         const answer = 'Some **words** and `code`.\\n\\n- one\\n- two\\n\\n```rust\\nfn main() {{}}\\n```\\n\\n$x^2$'; \
         for (let made = 0; made < {TURNS}; made += 1) {{ \
           const turn = {{ id: `${{kept.id}}${{made}}`, conversation: kept.id, parent, made, \
             question: `Question ${{made}}`, answer, end: 'stop' }}; \
           turns.push(turn); \
           parent = turn.id; \
         }} \
         await Promise.all(turns.map(turn => store.write(turn))); \
         await store.change(kept.id, {{ leaf: parent }}); \
         done(kept.id)"
    ));
    browser.open(&format!("{url}#{}", made.as_str().expect("an id")));
    let there = format!("return document.querySelectorAll('.turn').length === {TURNS}");
    browser.wait("all turns", &there);
    let is_drawn =
        "turn => turn.querySelector('.question').checkVisibility({ contentVisibilityAuto: true })";
    let drawn = format!("return [...document.querySelectorAll('.turn')].filter({is_drawn}).length");
    browser.wait("most turns to be left out of the layout", &format!("{drawn} < 50"));
    let last = "const { bottom } = document.querySelector('.turn:last-child').getBoundingClientRect(); \
        return bottom < innerHeight && bottom > 0";
    browser.wait("its end to be seen", last);

    // From one end to the other: milliseconds that the page works for each frame, from its beginning to after its paint.
    let frames = browser.run_async(
        "const view = document.querySelector('#conversation'); \
         view.scrollTop = 0; \
         const took = []; \
         const step = began => { \
           view.scrollTop += 120; \
           const { port1, port2 } = new MessageChannel(); \
           port1.onmessage = () => { \
             took.push(performance.now() - began); \
             const isOver = view.scrollTop + view.clientHeight >= view.scrollHeight - 1; \
             isOver || took.length >= 200 ? done(took) : requestAnimationFrame(step); \
           }; \
           port2.postMessage(null); \
         }; \
         requestAnimationFrame(step)",
    );
    let mut frames: Vec<f64> =
        frames.as_array().expect("a list").iter().filter_map(serde_json::Value::as_f64).collect();
    frames.sort_by(f64::total_cmp);
    println!("{} frames, {:.1} ms at the median", frames.len(), frames[frames.len() / 2]);
    assert!(frames.len() > 50, "it was scrolled");
    let drawn = browser.run(&drawn).as_u64().expect("a number");
    assert!(drawn < 50, "{drawn} turns are laid out after that");
    screenshot(&browser, "page-long.png");
    assert_eq!(browser.complaints(), [""; 0]);
}
