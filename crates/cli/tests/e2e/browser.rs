//! A real Chromium, driven over its DevTools protocol: one page, its errors, what it shows, and pictures of it.

use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use base64::Engine as _;
use inspan_testkit::{Deadline, Sandbox, pause};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::{self, Message, WebSocket};

/// What the browser may be called.
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

/// How wide, how high, in which colours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) scheme: &'static str,
}

pub(super) const WIDE: Look = Look { width: 1280, height: 800, scheme: "light" };
pub(super) const WIDE_DARK: Look = Look { scheme: "dark", ..WIDE };
pub(super) const NARROW: Look = Look { width: 360, height: 740, scheme: "light" };

/// A browser with one page.
pub(super) struct Browser {
    child: Child,
    socket: WebSocket<TcpStream>,
    session: String,
    next: u64,
    deadline: Deadline,
    /// What went wrong in the page: exceptions, refused loads, errors of the console.
    pub(super) errors: Vec<String>,
}

impl Browser {
    /// Starts the browser that this machine has; `$INSPAN_E2E_BROWSER` names another one.
    #[expect(clippy::disallowed_methods, reason = "a test has no command line that names the browser")]
    pub(super) fn start(sandbox: &Sandbox) -> anyhow::Result<Self> {
        let named = std::env::var("INSPAN_E2E_BROWSER").ok();
        let paths: Vec<_> = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).collect();
        let on_path = |name: &str| paths.iter().map(|path| path.join(name)).find(|path| path.is_file());
        let program = named.map(Into::into).or_else(|| NAMES.into_iter().find_map(on_path));
        let program =
            program.context("no Chromium on the path: install it, or name it in INSPAN_E2E_BROWSER")?;
        let mut command = Command::new(program);
        sandbox.enclose(&mut command);
        let mut child = command
            .args([
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--no-first-run",
                "--disable-dev-shm-usage",
            ])
            .args([
                "--disable-background-networking",
                "--disable-component-update",
                "--remote-debugging-port=0",
            ])
            .arg(format!("--user-data-dir={}", sandbox.home().join("browser").display()))
            .arg("about:blank")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("failed to start the browser")?;
        let address = address(&mut child)?;
        let host = address.trim_start_matches("ws://").split('/').next().unwrap_or_default().to_owned();
        let stream = TcpStream::connect(&host)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        let (socket, _) = tungstenite::client(address.as_str(), stream)?;
        let deadline = sandbox.deadline();
        let mut browser =
            Self { child, socket, session: String::new(), next: 0, deadline, errors: Vec::new() };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }))?;
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let session = browser.call("Target.attachToTarget", attach)?;
        browser.session = session["sessionId"].as_str().context("no session")?.to_owned();
        for domain in ["Page.enable", "Runtime.enable", "Log.enable", "Network.enable"] {
            browser.call(domain, json!({}))?;
        }
        Ok(browser)
    }

    /// Calls a method and returns its result. What the page reports meanwhile is remembered.
    fn call(&mut self, method: &str, params: Value) -> anyhow::Result<Value> {
        self.next += 1;
        let mut message = json!({ "id": self.next, "method": method, "params": params });
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        self.socket.send(Message::text(message.to_string()))?;
        loop {
            ensure!(!self.deadline.is_over(), "the time was up during {method}");
            let Message::Text(text) = self.socket.read().with_context(|| method.to_owned())? else {
                continue;
            };
            let answer: Value = serde_json::from_str(text.as_str())?;
            if answer["id"] == json!(self.next) {
                ensure!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return Ok(answer["result"].clone());
            }
            self.remember(&answer);
        }
    }

    fn remember(&mut self, event: &Value) {
        let params = &event["params"];
        match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => self.errors.push(params["exceptionDetails"].to_string()),
            Some("Log.entryAdded") if params["entry"]["level"] == json!("error") => {
                self.errors.push(format!("{} {}", params["entry"]["text"], params["entry"]["url"]));
            }
            _ => {}
        }
    }

    /// Opens an address.
    pub(super) fn open(&mut self, address: &str) -> anyhow::Result<()> {
        let opened = self.call("Page.navigate", json!({ "url": address }))?;
        // Within the page it is told of the new address, and draws anew: what is pressed next must not be the old one.
        if opened["loaderId"].is_null() { self.drawn() } else { Ok(()) }
    }

    /// Waits until what was just drawn is on the screen, two frames later.
    fn drawn(&mut self) -> anyhow::Result<()> {
        let frames =
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))";
        self.eval(frames).map(drop)
    }

    /// Changes the size of the window and the colours that the user prefers.
    pub(super) fn look(&mut self, look: Look) -> anyhow::Result<()> {
        let size = json!({
            "width": look.width, "height": look.height, "deviceScaleFactor": 1, "mobile": look.width < 500,
        });
        self.call("Emulation.setDeviceMetricsOverride", size)?;
        let features = json!({ "features": [
            { "name": "prefers-color-scheme", "value": look.scheme },
            { "name": "prefers-reduced-motion", "value": "reduce" },
        ] });
        self.call("Emulation.setEmulatedMedia", features).map(drop)
    }

    /// The value of an expression in the page; a promise is waited for.
    pub(super) fn eval(&mut self, expression: &str) -> anyhow::Result<Value> {
        let params = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let answer = self.call("Runtime.evaluate", params)?;
        ensure!(answer["exceptionDetails"].is_null(), "{expression}: {}", answer["exceptionDetails"]);
        Ok(answer["result"]["value"].clone())
    }

    /// Waits until an expression is true in the page.
    pub(super) fn until(&mut self, what: &str, expression: &str) -> anyhow::Result<()> {
        loop {
            if self.eval(&format!("!!({expression})")).is_ok_and(|value| value == json!(true)) {
                return Ok(());
            }
            if self.deadline.is_over() {
                // What it shows says why, and takes a moment more.
                self.deadline = Deadline::after(Duration::from_secs(5));
                let seen = match self.eval("document.body.innerText.slice(0, 3000)") {
                    Ok(seen) => seen.as_str().unwrap_or_default().to_owned(),
                    Err(error) => format!("cannot be read: {error:#}"),
                };
                bail!("never: {what}\nerrors: {:?}\nthe page: {seen}", self.errors);
            }
            pause(Duration::from_millis(30));
        }
    }

    /// Waits until the page shows a text.
    pub(super) fn sees(&mut self, text: &str) -> anyhow::Result<()> {
        self.until(text, &format!("document.body.innerText.includes({})", json!(text)))
    }

    /// Presses the first button or link in sight with this text.
    pub(super) fn press(&mut self, text: &str) -> anyhow::Result<()> {
        let find = format!(
            "[...document.querySelectorAll('dialog[open] button, dialog[open] a')].concat([...document\
             .querySelectorAll('button, a, summary')]).find((one) => one.innerText.trim() === {} && !one.disabled \
             && one.offsetParent !== null)",
            json!(text)
        );
        // At once: it may be drawn anew after it was found.
        let press = format!("((found) => found && (found.click(), true))({find})");
        self.until(&format!("something to press with the text {text}"), &press)
    }

    /// Writes into a field as a person does.
    pub(super) fn fill(&mut self, selector: &str, text: &str) -> anyhow::Result<()> {
        let field = format!("document.querySelector({})", json!(selector));
        self.until(&format!("the field {selector}"), &field)?;
        self.eval(&format!("{field}.focus(), {field}.select?.()"))?;
        self.write(text)
    }

    /// Writes into whatever has the focus.
    pub(super) fn write(&mut self, text: &str) -> anyhow::Result<()> {
        self.call("Input.insertText", json!({ "text": text })).map(drop)
    }

    /// Chooses a value of a list.
    pub(super) fn choose(&mut self, selector: &str, value: &str) -> anyhow::Result<()> {
        let field = format!("document.querySelector({})", json!(selector));
        self.until(&format!("the list {selector}"), &field)?;
        let change = "dispatchEvent(new Event('change', { bubbles: true }))";
        self.eval(&format!("{field}.value = {}, {field}.{change}", json!(value))).map(drop)
    }

    /// Downloads go to this folder from now on.
    pub(super) fn downloads_to(&mut self, folder: &Path) -> anyhow::Result<()> {
        let params = json!({ "behavior": "allow", "downloadPath": folder });
        self.call("Browser.setDownloadBehavior", params).map(drop)
    }

    /// Presses a key.
    pub(super) fn key(&mut self, key: &str) -> anyhow::Result<()> {
        let text = if key.chars().count() == 1 { key } else { "" };
        for kind in ["keyDown", "keyUp"] {
            self.call("Input.dispatchKeyEvent", json!({ "type": kind, "key": key, "text": text }))?;
        }
        Ok(())
    }

    /// A picture of what the window shows.
    pub(super) fn picture(&mut self, file: &Path) -> anyhow::Result<()> {
        self.drawn()?;
        let taken = self.call("Page.captureScreenshot", json!({ "format": "png" }))?;
        let data = taken["data"].as_str().context("no picture")?;
        std::fs::write(file, base64::engine::general_purpose::STANDARD.decode(data)?)?;
        Ok(())
    }

    /// Fails if something went wrong in the page.
    pub(super) fn no_errors(&mut self) -> anyhow::Result<()> {
        self.eval("1")?;
        let errors = std::mem::take(&mut self.errors);
        ensure!(errors.is_empty(), "the page had errors: {errors:#?}");
        Ok(())
    }

    /// Closes the browser and waits for its end.
    pub(super) fn close(mut self) -> anyhow::Result<()> {
        self.session.clear();
        // It may be gone before it answers.
        let _ = self.call("Browser.close", json!({}));
        while self.child.try_wait()?.is_none() {
            ensure!(!self.deadline.is_over(), "the browser did not end");
            pause(Duration::from_millis(10));
        }
        Ok(())
    }
}

/// Where the browser listens: it writes it first.
fn address(child: &mut Child) -> anyhow::Result<String> {
    let mut lines = BufReader::new(child.stderr.take().context("no stderr")?);
    let mut line = String::new();
    let mut all = String::new();
    while lines.read_line(&mut line)? > 0 {
        if let Some(at) = line.find("ws://") {
            let address = line[at..].trim().to_owned();
            // Its later lines are read, so that it never waits for room.
            std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
            return Ok(address);
        }
        all.push_str(&line);
        line.clear();
    }
    bail!("the browser ended at once: {all}")
}
