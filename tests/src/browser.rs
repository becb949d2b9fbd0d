//! A headless browser, driven over the WebDriver protocol (W3C) of Debian's `chromedriver`.
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::wait::until_at;

/// Longest that anything may take to happen on a page, where the machine has other things to do, too.
const LIMIT: Duration = Duration::from_secs(180);
/// Longest that the driver waits for a script or a page.
const DRIVERS_LIMIT: Duration = Duration::from_secs(300);
/// How much longer its answer is waited for: it says itself what took too long.
const MARGIN: Duration = Duration::from_secs(20);
/// How often a page is asked: each time keeps several processes busy that the page needs, too.
const INTERVAL: Duration = Duration::from_millis(25);
/// Key of an element's id in answers, as the standard fixes it.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// How many drivers are started at most: one takes a port that is free with IPv4, and ends if it is not with IPv6.
const DRIVERS: usize = 5;

/// A browser with one window and a profile of its own. Ends when dropped.
#[derive(Debug)]
pub struct Browser {
    driver: Child,
    agent: ureq::Agent,
    /// What every command begins with.
    session: String,
    _profile: TempDir,
}

impl Browser {
    /// Starts one; none if `chromedriver` or `chromium` is not installed.
    ///
    /// # Panics
    /// If they are installed and do not work.
    pub fn start() -> Option<Self> {
        let (driver, port) = start_driver()?;
        let config = ureq::Agent::config_builder().http_status_as_error(false);
        let agent = config.timeout_global(Some(DRIVERS_LIMIT + MARGIN)).build().new_agent();
        let profile = TempDir::with_prefix("cake-browser-").expect("there is a temporary folder");
        let url = format!("http://127.0.0.1:{port}/session");
        let mut browser = Self { driver, agent, session: url.clone(), _profile: profile };
        let profile = format!("--user-data-dir={}", browser._profile.path().display());
        let args = json!([
            "--headless=new",
            "--no-sandbox",
            "--disable-background-networking",
            "--disable-dev-shm-usage",
            "--disable-gpu",
            "--window-size=1280,900",
            profile,
        ]);
        let limit = DRIVERS_LIMIT.as_millis() as u64;
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "timeouts": { "script": limit, "pageLoad": limit },
            "goog:chromeOptions": { "args": args },
            "goog:loggingPrefs": { "browser": "ALL" },
        } } });
        let made = browser.post("", &wanted);
        let id = made["sessionId"].as_str().expect("a session has an id");
        browser.session = format!("{url}/{id}");
        Some(browser)
    }

    /// Shows the page at `url`.
    pub fn open(&self, url: &str) {
        self.post("/url", &json!({ "url": url }));
    }

    /// Runs a script in every page that is opened from now on, before those of its own.
    pub fn prepare(&self, script: &str) {
        let source = json!({ "source": script });
        self.command("Page.addScriptToEvaluateOnNewDocument", &source);
    }

    /// What a script returns.
    ///
    /// # Panics
    /// If it throws.
    pub fn run(&self, script: &str) -> Value {
        self.post("/execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// What the body of an asynchronous function gives to `done`, which it may call later.
    ///
    /// # Panics
    /// If it does not in time.
    pub fn run_async(&self, body: &str) -> Value {
        let script = format!("const done = arguments[0]; (async () => {{ {body} }})()");
        self.post("/execute/async", &json!({ "script": script, "args": [] }))
    }

    /// Serious faults of what is shown now towards those who use it by keyboard, by ear or with weak eyes, as `axe` finds
    /// them: the text of axe-core's script.
    pub fn faults(&self, axe: &str) -> Vec<String> {
        self.run(axe);
        let found = self.run_async(
            "const { violations } = await axe.run(document, { resultTypes: ['violations'] }); \
             const serious = violations.filter(it => ['serious', 'critical'].includes(it.impact)); \
             done(serious.map(it => `${it.help}: ${it.nodes.map(node => node.target).join(', ')}`))",
        );
        let found = found.as_array().expect("a list").iter();
        found.map(|fault| fault.as_str().expect("a sentence").to_owned()).collect()
    }

    /// The tab that is driven.
    pub fn window(&self) -> String {
        self.get("/window").as_str().expect("a handle").to_owned()
    }

    /// Opens another tab and goes there.
    pub fn new_window(&self) -> String {
        let made = self.post("/window/new", &json!({ "type": "tab" }));
        let handle = made["handle"].as_str().expect("a handle").to_owned();
        self.switch(&handle);
        handle
    }

    /// Goes to a tab.
    pub fn switch(&self, window: &str) {
        self.post("/window", &json!({ "handle": window }));
    }

    /// Waits until a script returns true.
    ///
    /// # Panics
    /// If it does not in time.
    #[track_caller]
    pub fn wait(&self, what: &str, script: &str) {
        until_at(what, LIMIT, INTERVAL, || self.run(script) == true);
    }

    /// Types into what `selector` finds; `\u{e007}` is the enter key.
    pub fn type_into(&self, selector: &str, text: &str) {
        let element = self.find(selector);
        self.post(&format!("/element/{element}/value"), &json!({ "text": text }));
    }

    /// Clicks on what `selector` finds.
    pub fn click(&self, selector: &str) {
        let element = self.find(selector);
        self.post(&format!("/element/{element}/click"), &json!({}));
    }

    /// Lets pages see this colour scheme, `light` or `dark`, and this width.
    pub fn look(&self, scheme: &str, width: u32, height: u32) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.command("Emulation.setEmulatedMedia", &json!({ "features": features }));
        let size = json!({
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600,
        });
        self.command("Emulation.setDeviceMetricsOverride", &size);
    }

    /// Writes what is seen to `file`, as PNG.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn screenshot(&self, file: &Path) {
        let seen = self.get("/screenshot");
        let png = STANDARD.decode(seen.as_str().expect("base64")).expect("base64");
        std::fs::write(file, png).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }

    /// What went wrong on the page since the last call: exceptions, what a policy forbade, what was not
    /// found.
    pub fn complaints(&self) -> Vec<String> {
        let log = self.post("/se/log", &json!({ "type": "browser" }));
        let entries = log.as_array().expect("a list").iter();
        let severe = entries.filter(|entry| entry["level"] == "SEVERE");
        severe.map(|entry| entry["message"].to_string()).collect()
    }

    /// A command of the browser's own protocol.
    fn command(&self, name: &str, params: &Value) {
        self.post("/goog/cdp/execute", &json!({ "cmd": name, "params": params }));
    }

    fn find(&self, selector: &str) -> String {
        let found = self.post("/element", &json!({ "using": "css selector", "value": selector }));
        found[ELEMENT].as_str().unwrap_or_else(|| panic!("no {selector}")).to_owned()
    }

    fn get(&self, path: &str) -> Value {
        let response = self.agent.get(format!("{}{path}", self.session)).call();
        value(path, response)
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        let response = self.agent.post(format!("{}{path}", self.session)).send(body.to_string());
        value(path, response)
    }
}

/// A driver and its port; none if it is not installed.
///
/// # Panics
/// If none tells its port.
fn start_driver() -> Option<(Child, u16)> {
    let mut all = Vec::new();
    for _ in 0..DRIVERS {
        let mut driver = Command::new("chromedriver");
        driver.arg("--port=0").stdout(Stdio::piped()).stderr(Stdio::null());
        let mut driver = driver.spawn().ok()?;
        let lines = BufReader::new(driver.stdout.take().expect("piped above")).lines();
        for line in lines.map_while(Result::ok) {
            let said = line.strip_prefix("ChromeDriver was started successfully on port ");
            if let Some(port) = said.and_then(|said| said.trim_end_matches('.').parse().ok()) {
                return Some((driver, port));
            }
            all.push(line);
        }
        driver.wait().expect("it can be waited for");
    }
    panic!("no chromedriver tells its port: {all:?}");
}

/// The value of an answer.
#[track_caller]
fn value(path: &str, response: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Value {
    let mut response = response.unwrap_or_else(|error| panic!("{path}: {error}"));
    // Screenshots are large.
    let text = response.body_mut().with_config().limit(64 << 20).read_to_string().expect("text");
    let mut body: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{path}: {text}"));
    assert_eq!(response.status().as_u16(), 200, "{path}: {body}");
    body["value"].take()
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.agent.delete(self.session.as_str()).call().ok();
        self.driver.kill().ok();
        self.driver.wait().ok();
    }
}
