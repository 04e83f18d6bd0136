//! The page of `inspan serve` in a real browser: a flow is started from its form, answered, steered, paused, forked and
//! stopped; large sessions are measured; every view is checked in light and dark, wide and narrow.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use inspan_testkit::{PageTool, RunningProcess, Sandbox, Stopwatch, eventually, pause};
use serde_json::{Value, json};

use super::browser::{Browser, Look, NARROW, WIDE, WIDE_DARK};
use super::checks::first_line;

/// A flow with something to show and to answer: a program, items, an agent, a question, and two branches.
const SHIP: &str = r##"
flow:
  name: ship
  description: Writes release notes, checks each package, asks a person, and releases.
  inputSchema:
    type: object
    required: [change]
    properties:
      change: { type: string, description: What is released, in one line }
      level: { enum: [patch, minor, major], default: minor }
nodes:
  - { id: notes, type: echo.agent, input: { prompt: "# Notes\n\nThis release has **{{ flow.input.change }}**." } }
  - id: check
    type: control.foreach
    input: { items: [engine, flow, store, view], as: package, maxConcurrency: 2 }
    body:
      nodes:
        - { id: build, type: exec, input: { argv: [echo, building, "{{ package }}"] } }
        - { id: test, type: exec, dependsOn: [build], input: { argv: [echo, testing, "{{ package }}"] } }
  - { id: ask, type: human.input, input: { prompt: "Release {{ flow.input.change }} as {{ flow.input.level }}?", choices: [release, wait], allowText: true } }
  - { id: release, type: exec, input: { argv: [echo, released, "{{ flow.input.change }}"] } }
  - { id: hold, type: exec, input: { argv: [echo, held] } }
edges:
  - { from: notes, to: check }
  - { from: check, to: ask }
  - { from: ask, to: release, when: "ask.choice == 'release'" }
  - { from: ask, to: hold, when: "ask.choice == 'wait'" }
"##;

/// An agent that listens, and a program that takes long.
const TALK: &str = r#"
flow: { name: talk }
nodes:
  - { id: ox, type: echo.agent, input: { prompt: Where to?, options: { multiTurn: true, idleTimeoutMs: 60000 } } }
  - { id: cart, type: exec, input: { argv: [sleep, "60"] } }
"#;

/// A permission that an agent asks for, a form, and a program that fails until there is a file. What the agent says has
/// markup in it that must stay text.
const ASKS: &str = r#"
flow: { name: asks }
nodes:
  - id: tidy
    type: scripted.agent
    input:
      prompt: Tidy up
      options:
        turns:
          - - { tool: { name: Bash, input: { command: "rm -r <b>target</b> \u202E#" }, result: gone, ask: true } }
            - { text: "All <b id=forged>gone</b> ![](http://127.0.0.1:1/x.png)" }
            - { context: { usedTokens: 50000, windowTokens: 200000 } }
  - id: form
    type: human.input
    dependsOn: [tidy]
    input:
      prompt: Which release?
      schema:
        type: object
        required: [name, level]
        properties:
          name: { type: string }
          level: { enum: [minor, major] }
          size: { type: integer, default: 3 }
  - { id: found, type: exec, dependsOn: [form], input: { argv: [test, -e, "{{ form.value.name }}-{{ form.value.size }}"] } }
"#;

/// A running `inspan serve`.
pub(super) struct Server {
    process: RunningProcess,
    /// The address with the token, as it was printed.
    pub(super) address: String,
}

impl Server {
    pub(super) fn start(sandbox: &Sandbox, port: &str, flows: &str) -> anyhow::Result<Self> {
        let process = sandbox.start(sandbox.command(&["serve", "--port", port, "--flows", flows]))?;
        let address = first_line(&process, "#token=")?;
        Ok(Self { process, address })
    }

    fn port(&self) -> &str {
        self.origin().rsplit(':').next().unwrap_or_default()
    }

    pub(super) fn origin(&self) -> &str {
        self.address.split("/#").next().unwrap_or_default()
    }

    /// The address of a view.
    pub(super) fn view(&self, path: &str) -> String {
        format!("{}/#{path}", self.origin())
    }

    pub(super) fn stop(self) -> anyhow::Result<()> {
        self.process.interrupt()?;
        self.process.finish().map(drop)
    }
}

/// A flow whose first agent uses up its budget.
const SPENDS: &str = "
flow: { name: spends, policy: { budget: { tokens: 1 } } }
nodes:
  - { id: first, type: echo.agent, input: { prompt: say it } }
  - { id: next, type: echo.agent, dependsOn: [first], input: { prompt: say it again } }
";

/// A server with the flows of these cases, and a browser that is signed in.
pub(super) fn opened(sandbox: &mut Sandbox) -> anyhow::Result<(Server, Browser)> {
    std::fs::create_dir_all(sandbox.path("flows"))?;
    sandbox.write("flows/ship.yaml", SHIP)?;
    sandbox.write("flows/talk.yaml", TALK)?;
    sandbox.write("flows/asks.yaml", ASKS)?;
    sandbox.write("flows/spends.yaml", SPENDS)?;
    let server = Server::start(sandbox, "0", "flows")?;
    let mut browser = Browser::start(sandbox)?;
    browser.look(WIDE)?;
    browser.open(&server.address)?;
    browser.sees("Sessions")?;
    browser.sees("live")?;
    ensure!(browser.eval("location.hash")? == json!("#/"), "the token is taken out of the address");
    Ok((server, browser))
}

/// The session that the page shows.
pub(super) fn session(browser: &mut Browser) -> anyhow::Result<String> {
    browser.until("a session is shown", "location.hash.startsWith('#/s/')")?;
    let hash = browser.eval("location.hash.split('/')[2]")?;
    Ok(hash.as_str().context("no address")?.to_owned())
}

/// Where pictures of the page are stored, to be looked at.
fn picture(name: &str) -> anyhow::Result<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("page");
    std::fs::create_dir_all(&folder)?;
    Ok(folder.join(format!("{name}.png")))
}

/// Opens the form of a flow.
pub(super) fn form(server: &Server, browser: &mut Browser, flow: &str) -> anyhow::Result<()> {
    browser.open(&server.view("/flows"))?;
    let link = format!(
        "[...document.querySelectorAll('.flow')].find((one) => one.innerText.startsWith({}))",
        json!(flow)
    );
    browser.until("the flow is listed", &link)?;
    browser.eval(&format!("({link}).click()")).map(drop)
}

/// Waits until the session that is shown has this state.
pub(super) fn state(browser: &mut Browser, word: &str) -> anyhow::Result<()> {
    let title = format!("document.querySelector('.run-title').innerText.includes({})", json!(word));
    browser.until(&format!("the session is {word}"), &title)
}

/// Starts `ship` from its form, up to its question.
fn shipped(server: &Server, browser: &mut Browser) -> anyhow::Result<String> {
    form(server, browser, "ship")?;
    browser.fill("input[name=change]", "faster resume")?;
    browser.press("Start ship")?;
    let id = session(browser)?;
    browser.sees("Release faster resume as minor?")?;
    Ok(id)
}

/// From the form of a flow to its end, with a question on the way.
pub(super) fn run(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let (server, mut browser) = opened(sandbox)?;
    let id = shipped(&server, &mut browser)?;
    browser.until("the title counts what waits", "document.title.startsWith('(1) ')")?;
    browser.until(
        "the node that waits is marked",
        "document.querySelector('.box.calls')?.dataset.path === 'ask'",
    )?;
    browser.picture(&picture("graph-waits")?)?;
    // Seen from elsewhere, it is still the loudest thing.
    browser.open(&server.view("/flows"))?;
    browser.sees("1 question waits for you")?;
    browser.press("Inbox 1")?;
    browser.press("release")?;
    browser.sees("Nothing waits for you")?;
    browser.open(&server.view(&format!("/s/{id}/graph?node=release")))?;
    browser.sees("released faster resume")?;
    state(&mut browser, "success")?;
    browser.until(
        "the other way was not taken",
        "document.querySelector('.box[data-path=hold]')?.classList.contains('is-skipped')",
    )?;
    browser.until("the title counts nothing", "document.title === 'ship · Inspan'")?;
    // Every other view, by the keyboard.
    browser.key("t")?;
    browser.until("bars of the timeline", "document.querySelectorAll('.tl-row .tl-bar').length >= 5")?;
    browser.key("l")?;
    browser.sees("harness:complete")?;
    browser.key("c")?;
    browser.sees("By node")?;
    browser.key("w")?;
    browser.sees("is where it is")?;
    browser.key("g")?;
    browser.key("j")?;
    browser.until(
        "j goes to a next node",
        "new URLSearchParams(location.hash.split('?')[1]).get('node') !== 'release'",
    )?;
    // The past: before the question was asked, nothing waits and nothing is released.
    browser.open(&server.view(&format!("/s/{id}/graph?at=8")))?;
    browser.until(
        "the past",
        "document.querySelector('.box[data-path=release]')?.classList.contains('is-pending')",
    )?;
    let time = "document.querySelector('.run-head .facts').innerText";
    let past = browser.eval(time)?;
    pause(Duration::from_millis(1500));
    ensure!(browser.eval(time)? == past, "a time of the past does not pass");
    browser.press("To the newest")?;
    browser.until(
        "the present",
        "document.querySelector('.box[data-path=release]')?.classList.contains('is-complete')",
    )?;
    // The nodes of an item are in the past too, whenever it is opened.
    let last = browser.eval("Number(document.querySelector('.scrub input').max) - 1")?;
    for item in ["check[0]", "check[1]"] {
        browser.open(&server.view(&format!("/s/{id}/graph?at={last}&node={item}/build")))?;
        browser.until(
            "an item as it was",
            "document.querySelector('.pane-title .word')?.innerText === 'complete'",
        )?;
    }
    browser.no_errors()?;
    browser.close()?;
    server.stop()
}

/// Steering, pause, resume, fork and stop.
pub(super) fn commands(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let (server, mut browser) = opened(sandbox)?;
    form(&server, &mut browser, "talk")?;
    browser.press("Start talk")?;
    let id = session(&mut browser)?;
    browser.open(&server.view(&format!("/s/{id}/graph?node=ox")))?;
    browser.sees("listens for messages")?;
    browser.press("Steer…")?;
    browser.fill("dialog textarea", "to the mill")?;
    browser.press("Send")?;
    browser.until(
        "the agent answers",
        "[...document.querySelectorAll('.it-text')].some((one) => one.innerText.includes('to the mill'))",
    )?;
    crowded(&mut browser)?;
    dialogs(&mut browser)?;
    browser.press("End it")?;
    browser.sees("The agent takes no more messages")?;
    browser.press("End it")?;
    browser.until(
        "the conversation has ended",
        "document.querySelector('.box[data-path=ox]')?.classList.contains('is-complete')",
    )?;
    browser.press("Pause")?;
    browser.sees("What runs is cancelled")?;
    browser.press("Pause")?;
    state(&mut browser, "paused")?;
    browser.press("Resume")?;
    browser.sees("What is unfinished runs again")?;
    browser.press("Resume")?;
    state(&mut browser, "running")?;
    browser.press("Stop")?;
    browser.sees("Resume then continues it in a new session")?;
    browser.eval("location.hash = '#/inbox'")?;
    browser.until("a dialog ends with its view", "!document.querySelector('dialog')")?;
    browser.open(&server.view(&format!("/s/{id}/graph")))?;
    browser.press("Stop")?;
    browser.sees("Resume then continues it in a new session")?;
    browser.press("Stop for good")?;
    state(&mut browser, "stopped")?;
    browser.press("Resume")?;
    browser.sees("continued by a new one")?;
    browser.press("Resume")?;
    browser.until("another session is shown", &format!("!location.hash.includes({})", json!(id)))?;
    browser.sees("continues ")?;
    browser.press("Stop")?;
    browser.sees("Resume then continues it in a new session")?;
    browser.press("Stop for good")?;
    state(&mut browser, "stopped")?;
    browser.open(&server.view(&format!("/s/{id}/graph")))?;
    browser.sees("continued by ")?;
    let first = shipped(&server, &mut browser)?;
    early_click(&mut browser)?;
    browser.open(&server.view(&format!("/s/{first}/graph")))?;
    browser.press("wait")?;
    state(&mut browser, "success")?;
    browser.open(&server.view(&format!("/s/{first}/graph?node=ask")))?;
    browser.press("Fork from here")?;
    browser.sees("This session stays as it is")?;
    browser.press("Fork")?;
    browser.until("another session is shown", &format!("!location.hash.includes({})", json!(first)))?;
    browser.sees("forked from")?;
    browser.sees("Release faster resume as minor?")?;
    browser.press("release")?;
    state(&mut browser, "success")?;
    let fork = session(&mut browser)?;
    form(&server, &mut browser, "spends")?;
    browser.press("Start spends")?;
    state(&mut browser, "paused")?;
    browser.press("Resume")?;
    browser.sees("The new limit of")?;
    browser.fill("dialog input[name=tokens]", "1000")?;
    browser.press("Resume")?;
    state(&mut browser, "success")?;
    browser.open(&server.view(&format!("/compare?a={first}&b={fork}")))?;
    browser.sees("hold")?;
    browser.until("what differs is marked", "document.querySelectorAll('.differs').length >= 2")?;
    browser.no_errors()?;
    browser.close()?;
    server.stop()
}

/// A click on a question that has just come was meant for what was there before.
fn early_click(browser: &mut Browser) -> anyhow::Result<()> {
    browser.eval(
        "new MutationObserver((_, observer) => {
            const button = document.querySelector('.card .choices button');
            if (!button) return;
            observer.disconnect();
            button.dispatchEvent(new MouseEvent('click', { bubbles: true, cancelable: true, detail: 1 }));
            window.clicked = true;
        }).observe(document.body, { childList: true, subtree: true });
        location.hash = '#/inbox'",
    )?;
    browser.until("the click", "window.clicked")?;
    pause(Duration::from_millis(500));
    let is_open = browser.eval("document.querySelector('.card .choices button')?.disabled === false")?;
    ensure!(is_open == json!(true), "the early click has answered");
    Ok(())
}

/// Sends the agent that is shown a message.
fn steered(browser: &mut Browser, words: &str) -> anyhow::Result<()> {
    browser.press("Steer…")?;
    browser.fill("dialog textarea", words)?;
    browser.press("Send")
}

/// More is new of a node than one answer has: the newest is shown.
fn crowded(browser: &mut Browser) -> anyhow::Result<()> {
    browser.eval(
        "window.kept = fetch, fetch = async (to, how) => {
          if (!to.includes('/stream?')) return kept(to, how);
          const isFull = to.includes('since=');
          const item = (_, at) => ({ index: (isFull ? 1000 : 5000) + at, seq: 1, kind: 'text', text: isFull ? 'many' : 'newest' });
          const items = Array.from({ length: isFull ? 200 : 1 }, item);
          return new Response(JSON.stringify({ items, total: 5001, seq: 1, attempts: [] }));
        }",
    )?;
    steered(browser, "to the ford")?;
    let texts = "[...document.querySelectorAll('.it-text')].map((one) => one.innerText.trim()).join()";
    browser.until("the newest alone", &format!("{texts} === 'newest'"))?;
    browser.eval("fetch = kept").map(drop)
}

/// A dialog that is closed while its request is under way leaves the next one alone, and Cancel gives the focus back.
fn dialogs(browser: &mut Browser) -> anyhow::Result<()> {
    browser.eval(
        "fetch = (to, how) => how.method !== 'POST' ? kept(to, how) : new Promise((done) => {
          window.answer = () => done(kept(to, how));
        })",
    )?;
    steered(browser, "to the river")?;
    browser.until("it is sent", "window.answer")?;
    browser.eval("fetch = kept, document.querySelector('dialog').close()")?;
    browser.until("the dialog is closed", "!document.querySelector('dialog')")?;
    let pause = "[...document.querySelectorAll('.acts button')].find((one) => one.innerText === 'Pause')";
    browser.eval(&format!("{pause}.focus(), {pause}.click()"))?;
    browser.sees("What runs is cancelled")?;
    browser.eval("answer()")?;
    browser.until("the message is accepted", "document.querySelector('.note')")?;
    browser.sees("What runs is cancelled")?;
    browser.press("Cancel")?;
    browser.until(
        "the focus is where it was",
        &format!("!document.querySelector('dialog') && document.activeElement === {pause}"),
    )
}

/// A permission and a form are answered, a node is retried, the session is played and its log downloaded.
pub(super) fn answers(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let (server, mut browser) = opened(sandbox)?;
    form(&server, &mut browser, "asks")?;
    browser.press("Start asks")?;
    let id = session(&mut browser)?;
    browser.sees(r"rm -r <b>target</b> \u{202e}#")?;
    let turns = r"/[\u202a-\u202e\u2066-\u2069\u200b]/.test(document.body.textContent)";
    ensure!(browser.eval(turns)? == json!(false), "nothing turns the direction of a text");
    // A denial says why, and one that did not arrive leaves the question open.
    browser.eval(
        "window.sends = fetch, fetch = (to, how) => how?.method !== 'POST' ? sends(to, how)
          : Promise.reject(new Error(window.denied = how.body))",
    )?;
    browser.fill(".question input", "ask me first")?;
    browser.press("Deny")?;
    browser.until("the reason is sent", r#"window.denied?.includes('"reason":"ask me first"')"#)?;
    browser.eval("fetch = sends")?;
    browser.press("Allow once")?;
    browser.sees("Which release?")?;
    // A shorter wait is no gap in the timeline.
    browser.until("a second has passed", "Date.now() - (window.asked ??= Date.now()) > 1100")?;
    browser.fill("input[name=name]", "ready")?;
    // A number stays as it is written, letter by letter.
    browser.eval("document.querySelector('input[name=size]').select()")?;
    for letter in ["1", ".", "0", "5"] {
        browser.key(letter)?;
    }
    ensure!(browser.eval("document.querySelector('input[name=size]').value")? == json!("1.05"));
    browser.fill("input[name=size]", "3")?;
    // A needed field stops the form; the browser says which.
    browser.press("Answer")?;
    ensure!(
        browser.eval("document.querySelector('.question input:invalid, .question select:invalid')?.name")?
            == json!("level")
    );
    browser.choose("select[name=level]", "\"major\"")?;
    browser.press("Answer")?;
    state(&mut browser, "failed")?;
    browser.open(&server.view(&format!("/s/{id}/graph?node=tidy")))?;
    browser.sees("All <b id=forged>gone</b> ![](http://127.0.0.1:1/x.png)")?;
    browser.sees("context 50.0k of 200k (25%)")?;
    ensure!(
        browser.eval("document.querySelector('#forged, main img')")?.is_null(),
        "markup of an agent is text"
    );
    sandbox.write("ready-3", "")?;
    browser.open(&server.view(&format!("/s/{id}/graph?node=found")))?;
    browser.press("Retry")?;
    browser.sees("in a new session that continues this one")?;
    browser.press("Retry")?;
    browser.until("another session is shown", &format!("!location.hash.includes({})", json!(id)))?;
    state(&mut browser, "success")?;
    // The first session is played to its end.
    browser.open(&server.view(&format!("/s/{id}/timeline")))?;
    browser.until(
        "the time in which a person was waited for is cut out",
        "document.querySelector('.tl-back .tl-cut[title*=person]')",
    )?;
    browser.until(
        "and nothing lies over it",
        "[...document.querySelectorAll('.tl-wait.person')].some((one) => {
          const { left, top, width, height } = one.getBoundingClientRect();
          return document.elementFromPoint(left + width / 2, top + height / 2) === one;
        })",
    )?;
    browser.open(&server.view(&format!("/s/{id}/log")))?;
    browser.sees("harness:complete")?;
    let last = browser.eval("Number(document.querySelector('.scrub input').max)")?;
    browser.press("25×")?;
    browser.key(" ")?;
    browser.until("the past is played", "document.querySelector('.scrub.past')")?;
    browser.until(
        "up to the end",
        &format!("new URLSearchParams(location.hash.split('?')[1]).get('at') === '{last}'"),
    )?;
    let folder = sandbox.artefacts().join("downloads");
    std::fs::create_dir_all(&folder)?;
    browser.downloads_to(&folder)?;
    browser.press("Download")?;
    let file = folder.join(format!("{id}.jsonl"));
    let lines = || std::fs::read_to_string(&file).unwrap_or_default().lines().count() as u64;
    eventually(
        Duration::from_secs(10),
        "the whole log is downloaded",
        || Ok(Some(lines()) == last.as_u64()),
    )?;
    browser.no_errors()?;
    browser.close()?;
    server.stop()
}

/// The server is killed and started again.
pub(super) fn offline(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let (mut server, mut browser) = opened(sandbox)?;
    let id = shipped(&server, &mut browser)?;
    browser.fill(".question textarea", "half an answer")?;
    server.process.kill()?;
    let (port, flows) = (server.port().to_owned(), server.view("/flows"));
    server.process.finish()?;
    browser.sees("what is shown may be old")?;
    browser.picture(&picture("stale")?)?;
    browser.until("nothing can be sent meanwhile", "!document.querySelector('.asked button:enabled')")?;
    browser.until(
        "what was written stays",
        "document.querySelector('.asked textarea')?.value === 'half an answer'",
    )?;
    browser.open(&flows)?;
    browser.sees("The server does not answer.")?;
    // The session needs no server: a shell answers it.
    sandbox.run(&["reply", &id, "--choice", "release"])?.expect_code(0)?;
    browser.eval(
        "WebSocket = class extends WebSocket { constructor(to) { super(to); window.socket = this; } },
         window.kept = setTimeout, setTimeout = (call, ms) => kept(call, ms === 60_000 ? 400 : ms)",
    )?;
    let server = Server::start(sandbox, &port, "flows")?;
    browser.until("it connects by itself", "!document.querySelector('.stale-bar')")?;
    browser.until("a silence is a lost connection", "document.querySelector('.stale-bar')")?;
    browser.eval("setTimeout = kept")?;
    browser.until("it connects again", "!document.querySelector('.stale-bar')")?;
    // A message has the newest 100 sessions: older ones stay, and one of the newest that is not there is deleted.
    let older = browser.eval(
        "import('/js/lists.js').then(({ sessions }) => {
          const all = Array.from({ length: 150 }, (_, at) => ({ sessionId: `s${at}`, createdAt: `${9000 - at}`, state: 'success' }));
          sessions.value = all;
          socket.onmessage({ data: JSON.stringify({ sessions: all.slice(1, 101), inbox: [] }) });
          return sessions.value.map((one) => one.sessionId).join() === all.slice(1).map((one) => one.sessionId).join();
        })",
    )?;
    ensure!(older == json!(true), "the list of sessions");
    browser.until("what could not be read is shown", "document.querySelector('.flow')")?;
    browser.open(&server.view(&format!("/s/{id}/graph")))?;
    state(&mut browser, "success")?;
    browser.close()?;
    server.stop()
}

/// A session of 10 000 nodes and 100 000 events: how soon it is seen, and how smoothly it moves. It has a fifth of them unless
/// the case is named, as its figures count only then.
pub(super) fn large(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let nodes = if std::env::args().any(|argument| argument.contains("page_large")) { 10_000 } else { 2_000 };
    let mut flow = String::from("flow: { name: large }\nnodes:\n");
    for at in 0..nodes {
        let after = if at == 0 { String::new() } else { format!(", dependsOn: [n{}]", (at - 1) / 6) };
        let work = match at % 5 {
            0 | 1 => {
                "type: echo.agent, input: { prompt: Plough a furrow from one end of the field to the other }"
            }
            _ => "type: echo, input: { text: ploughed }",
        };
        writeln!(flow, "  - {{ id: n{at}, {work}{after} }}")?;
    }
    sandbox.write("large.yaml", &flow)?;
    sandbox.run(&["run", "large.yaml", "--session-id", "large", "--json"])?.expect_code(0)?;
    let (server, mut browser) = opened(sandbox)?;
    let listed = browser.eval(
        "fetch('/api/v1/sessions').then((answer) => answer.json()).then((page) => page.sessions[0].lastSeq)",
    )?;
    let mut figures = vec![format!("{listed} events of {nodes} nodes")];
    browser.open("about:blank")?;
    // A browser that has just started is busy with itself.
    pause(Duration::from_secs(3));
    let watch = Stopwatch::start();
    browser.open(&server.view("/s/large/graph"))?;
    browser.until("the graph is drawn", "document.querySelector('.drawing .box')")?;
    figures.push(format!("first picture of the graph after {} ms (goal 1000)", watch.elapsed().as_millis()));
    figures.push(format!("moving the graph: {}", smooth(&mut browser, "const one = document.querySelector('.drawing'); return () => one.dispatchEvent(new WheelEvent('wheel', { deltaY: 60, bubbles: true, cancelable: true }))")?));
    browser.press("⤢")?;
    figures.push(format!("moving all nodes: {}", smooth(&mut browser, "const one = document.querySelector('.drawing'); return () => one.dispatchEvent(new WheelEvent('wheel', { deltaY: 5, bubbles: true, cancelable: true }))")?));
    browser.picture(&picture("large")?)?;
    figures.push(format!("scrubbing: {}", smooth(&mut browser, "const one = document.querySelector('.scrub input'); return (at) => { one.value = 1000 + at * 500; one.dispatchEvent(new Event('input', { bubbles: true })) }")?));
    browser.open(&server.view("/s/large/log"))?;
    browser.sees("harness:complete")?;
    figures.push(format!("scrolling the log: {}", smooth(&mut browser, "const one = document.querySelector('.log-rows'); one.scrollTop = 0; return () => { one.scrollTop += 900 }")?));
    browser.until("the rows in sight are read", "[...document.querySelectorAll('.log-row')].every((row) => !row.innerText.includes('…') || row.children.length > 2)")?;
    browser.picture(&picture("large-log")?)?;
    browser.open(&server.view("/s/large/timeline"))?;
    browser.until("the timeline is drawn", "document.querySelector('.tl-bar')")?;
    figures.push(format!(
        "scrolling the timeline: {}",
        smooth(
            &mut browser,
            "const one = document.querySelector('.rows'); return () => { one.scrollTop += 300 }"
        )?
    ));
    println!("{}", figures.join("\n"));
    browser.no_errors()?;
    browser.close()?;
    server.stop()
}

/// Frames a second while something is done in each frame: 120 of them, or those of two seconds.
fn smooth(browser: &mut Browser, prepare: &str) -> anyhow::Result<String> {
    let script = format!(
        "(async () => {{ const act = (() => {{ {prepare} }})(); const frame = () => new Promise((done) => \
         requestAnimationFrame(done)); await frame(); const began = performance.now(); let last = began, worst = 0, at = \
         0; for (; at < 120 && last < began + 2000; at += 1) {{ act(at); await frame(); const now = \
         performance.now(); worst = Math.max(worst, now - last); last = now; }} return [at * 1000 / (last - began), \
         worst] }})()"
    );
    let measured = browser.eval(&script)?;
    let number = |at: usize| measured[at].as_f64().unwrap_or_default();
    Ok(format!("{:.0} frames a second (goal 50), the longest {:.0} ms", number(0), number(1)))
}

/// Every view in each look: a picture, and what axe finds.
pub(super) fn looks(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let axe = std::fs::read_to_string(PageTool::Axe.installed()?)?;
    let (server, mut browser) = opened(sandbox)?;
    let ended = shipped(&server, &mut browser)?;
    browser.press("release")?;
    state(&mut browser, "success")?;
    let waiting = shipped(&server, &mut browser)?;
    let views = [
        ("sessions", String::from("/"), "success"),
        ("inbox", String::from("/inbox"), "Release faster resume"),
        ("flows", String::from("/flows"), "Writes release notes"),
        ("graph", format!("/s/{waiting}/graph"), "Release faster resume"),
        ("node", format!("/s/{ended}/graph?node=notes"), "This release has"),
        ("frames", format!("/s/{ended}/graph?node=check"), "check[0]"),
        ("frame-to-choose", format!("/s/{ended}/graph?node=check/test"), "It runs in the frames of"),
        ("list", format!("/s/{ended}/graph?as=list"), "echo.agent"),
        ("timeline", format!("/s/{ended}/timeline"), "in all"),
        ("log", format!("/s/{ended}/log?event=5"), "Copy as JSON"),
        ("cost", format!("/s/{ended}/cost"), "By node"),
        ("why", format!("/s/{ended}/why?node=hold"), "is where it is"),
        ("past", format!("/s/{ended}/graph?at=20"), "To the newest"),
        ("compare", format!("/compare?a={ended}&b={waiting}"), "nodes run"),
        ("nothing", String::from("/s/nothing/graph"), "Try again"),
    ];
    let mut found = Vec::new();
    // In the dark only the colours are others, and they are the same in every width.
    let wide: &[_] = &[("light", WIDE, None), ("dark", WIDE_DARK, Some("color-contrast"))];
    for looks in [wide, &[("narrow", NARROW, None)]] {
        let (first, look, _) = looks[0];
        for (view, path, seen) in &views {
            browser.look(look)?;
            browser.open("about:blank")?;
            browser.open(&server.view(path))?;
            browser.sees(seen).with_context(|| format!("{view} {first}"))?;
            browser.eval(&format!("{axe}; 1"))?;
            for &(name, look, rule) in looks {
                browser.look(look)?;
                browser.picture(&picture(&format!("{view}-{name}"))?)?;
                let violations = violations(&mut browser, look, rule)?;
                found.extend(violations.into_iter().map(|one| format!("{view} {name}: {one}")));
            }
        }
    }
    ensure!(found.is_empty(), "axe finds:\n{}", found.join("\n"));
    browser.close()?;
    server.stop()
}

/// What axe finds that is serious by this rule or by all, and what does not fit the width of the window.
fn violations(browser: &mut Browser, look: Look, rule: Option<&str>) -> anyhow::Result<Vec<String>> {
    let mut options = json!({ "resultTypes": ["violations"] });
    if let Some(rule) = rule {
        options["runOnly"] = json!([rule]);
    }
    let run = format!(
        "axe.run(document, {options}).then((all) => all.violations.filter((one) => \
         ['serious', 'critical'].includes(one.impact)).map((one) => `${{one.id}}: ${{one.nodes.slice(0, 3).map((node) \
         => `${{node.target}} ${{node.any[0]?.message ?? ''}}`).join('; ')}}`))"
    );
    let mut found: Vec<String> = serde_json::from_value(browser.eval(&run)?)?;
    let width = browser.eval("document.documentElement.scrollWidth")?;
    if width.as_u64().unwrap_or_default() > u64::from(look.width) {
        found.push(format!("the page is {width} wide, the window {}", look.width));
    }
    // The views of a session scroll within it.
    let below = browser.eval(
        "document.querySelector('.run') ? document.getElementById('main').scrollHeight - document.getElementById('main').clientHeight : 0",
    )?;
    if below != json!(0) {
        found.push(format!("{below} pixels below the session"));
    }
    Ok(found)
}

/// The modules of the page, checked by the compiler of TypeScript against the types of the API.
pub(super) fn types(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let compiler = PageTool::TypeScript.installed()?;
    // A pattern of the compiler leads through no `..`.
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("no folder of crates")?;
    let (page, schema) = (crates.join("server/page"), crates.with_file_name("schema"));
    let (page, schema) = (page.display(), schema.display());
    let options = json!({
        "compilerOptions": {
            "checkJs": true, "allowJs": true, "noEmit": true, "strict": true, "useUnknownInCatchVariables": false,
            "target": "es2023", "module": "esnext", "moduleResolution": "bundler", "lib": ["es2023", "dom", "dom.iterable"],
            "types": [], "maxNodeModuleJsDepth": 0,
        },
        "include": [format!("{page}/js/*.js"), format!("{page}/*.d.ts"), format!("{schema}/api.d.ts")],
    });
    sandbox.write("tsconfig.json", &options.to_string())?;
    let mut command = std::process::Command::new("node");
    command.arg(compiler).args(["--project", "."]).current_dir(sandbox.work());
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{said}");
    Ok(())
}

/// A session as one file: opened from the disk, with no server and no network.
pub(super) fn file(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    std::fs::create_dir_all(sandbox.path("flows"))?;
    sandbox.write("flows/ship.yaml", SHIP)?;
    let input = ["-i", "change=faster resume", "-i", "level=minor"];
    let run = [&["run", "flows/ship.yaml", "--session-id", "ship-1", "--json"][..], &input].concat();
    sandbox.run(&run)?.expect_code(3)?;
    sandbox.run(&["reply", "ship-1", "--choice", "release"])?.expect_code(0)?;
    let html = sandbox.artefacts().join("ship.html");
    sandbox.run(&["export", "ship-1", "--html", &html.display().to_string()])?.expect_code(0)?;
    let mut browser = Browser::start(sandbox)?;
    browser.look(WIDE)?;
    browser.open(&format!("file://{}", html.display()))?;
    browser.sees("a file, as exported")?;
    browser.until(
        "the graph",
        "document.querySelector('.box[data-path=release]')?.classList.contains('is-complete')",
    )?;
    browser.eval("location.hash = '#/s/ship-1/graph?node=release'")?;
    browser.sees("released faster resume")?;
    browser.eval("location.hash = '#/s/ship-1/graph?at=8'")?;
    browser.until(
        "the past",
        "document.querySelector('.box[data-path=release]')?.classList.contains('is-pending')",
    )?;
    browser.picture(&picture("file")?)?;
    for (key, seen) in [("t", "in all"), ("l", "harness:start"), ("c", "By node"), ("w", "is where it is")] {
        browser.key(key)?;
        browser.sees(seen)?;
    }
    browser.eval("location.hash = '#/s/ship-1/cost?at=8'")?;
    browser.sees("only as it was at the end")?;
    browser.eval("location.hash = '#/compare'")?;
    browser.sees("This file has one session")?;
    browser.eval("document.querySelector('.brand').click()")?;
    browser.until("the brand leads to the session", "location.hash.startsWith('#/s/ship-1/')")?;
    let loads = browser.eval("performance.getEntriesByType('resource').filter((one) => !one.name.startsWith('data:')).map((one) => one.name)")?;
    ensure!(loads == Value::Array(Vec::new()), "the file loads {loads}");
    browser.no_errors()?;
    browser.close()
}
