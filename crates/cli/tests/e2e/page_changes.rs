//! What changes while a page is open: sessions that are resumed, continued or deleted elsewhere, refused messages, and a log
//! that grows.

use anyhow::{Context as _, ensure};
use inspan_testkit::Sandbox;
use serde_json::json;

use super::page::{form, opened, session, state};

/// A question beside a program that takes long.
const BESIDE: &str = r#"
flow: { name: beside }
nodes:
  - { id: ask, type: human.input, input: { prompt: "Ready?", choices: [go, wait], timeout: 5m, default: wait } }
  - { id: cart, type: exec, input: { argv: [sleep, "60"] } }
"#;

/// An agent that waits for a usage limit of another day.
const LIMITED: &str = r#"
flow: { name: limited }
nodes:
  - id: ox
    type: scripted.agent
    input:
      prompt: Pull
      options: { turns: [[{ error: { code: RATE_LIMITED, message: enough, resetsAt: "MOMENT" } }]] }
"#;

/// The words of the buttons in the head of a session.
const ACTS: &str = "document.querySelector('.run-head .acts').innerText";

/// A session with an open question is resumed on the page; one that has ended is followed by what a shell does with it.
pub(super) fn resumed(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let (server, mut browser) = opened(sandbox)?;
    sandbox.write("flows/beside.yaml", BESIDE)?;
    form(&server, &mut browser, "beside")?;
    browser.press("Start beside")?;
    let id = session(&mut browser)?;
    browser.sees("Ready?")?;
    // What is refused or changed is another request: nothing says that its key was used.
    browser.press("Send…")?;
    for words in ["to the mill", "to the mill", "to the ford"] {
        browser.eval("document.querySelector('dialog .error')?.remove()")?;
        browser.fill("dialog textarea", words)?;
        browser.press("Send")?;
        browser.until(
            "nothing listens",
            "document.querySelector('dialog .error')?.innerText.includes('nothing in the session listens')",
        )?;
    }
    browser.press("Cancel")?;
    browser.press("Pause")?;
    browser.sees("What runs is cancelled")?;
    browser.press("Pause")?;
    state(&mut browser, "paused")?;
    // Once its time is up, no answer counts where nothing runs.
    browser.until("it can be answered", "document.querySelector('.asked .choices button:enabled')")?;
    let ahead = "import('/js/lists.js').then(({ now }) => { now.value = Date.now() + 600_000; })";
    browser.until(
        "a question whose time is up cannot be answered",
        &format!("({ahead}, !document.querySelector('.asked .choices button:enabled'))"),
    )?;
    browser.press("Resume")?;
    browser.sees("What is unfinished runs again")?;
    browser.press("Resume")?;
    state(&mut browser, "running")?;
    browser.press("Stop")?;
    browser.sees("Resume then continues it in a new session")?;
    browser.press("Stop for good")?;
    state(&mut browser, "stopped")?;
    browser.until("it can be resumed", &format!("{ACTS}.includes('Resume')"))?;
    let resumed = sandbox.run(&["resume", &id, "--detach"])?;
    let next = resumed.expect_code(0)?.stdout.trim();
    browser.sees(&format!("continued by {next}"))?;
    browser.until("and not again", &format!("!{ACTS}.includes('Resume')"))?;
    sandbox.run(&["stop", next])?.expect_code(0)?;
    sandbox.run(&["store", "gc", next, &id])?.expect_code(0)?;
    // The refusals are errors to the browser.
    browser.sees("Not followed any more")?;
    browser.close()?;
    server.stop()
}

/// A session that waits says for what; its process takes commands, and its log is read once as it grows.
pub(super) fn waits(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let (server, mut browser) = opened(sandbox)?;
    let moment = browser.eval("new Date(Date.now() + 36 * 3_600_000).toISOString()")?;
    let moment = moment.as_str().context("no time")?;
    let day = moment.split('T').next().unwrap_or_default();
    let limit = format!("a usage limit, until {day}");
    sandbox.write("flows/limited.yaml", &LIMITED.replace("MOMENT", moment))?;
    form(&server, &mut browser, "limited")?;
    browser.press("Start limited")?;
    let id = session(&mut browser)?;
    state(&mut browser, &limit)?;
    browser.open(&server.view(&format!("/s/{id}/graph?node=ox")))?;
    browser.until(
        "the day of the next attempt",
        &format!("document.querySelector('.pane .facts').innerText.includes('{day}')"),
    )?;
    browser.open(&server.view("/"))?;
    browser.until(
        "the list says it too",
        &format!("document.querySelector('.session').innerText.includes('{limit}')"),
    )?;
    browser.open(&server.view(&format!("/s/{id}/graph")))?;
    browser.press("Pause")?;
    browser.sees("What runs is cancelled")?;
    browser.press("Pause")?;
    state(&mut browser, "paused")?;

    form(&server, &mut browser, "talk")?;
    browser.press("Start talk")?;
    let id = session(&mut browser)?;
    browser.open(&server.view(&format!("/s/{id}/log")))?;
    browser.sees("agent:listen")?;
    browser.eval(
        "window.froms = [], window.kept = fetch, fetch = (to, how) => {
          const from = /events\\?.*from=(\\d+)/.exec(to);
          if (from) froms.push(Number(from[1]));
          return kept(to, how);
        }",
    )?;
    for words in ["to the mill", "to the ford", "to the barn"] {
        browser.press("Send…")?;
        browser.fill("dialog textarea", words)?;
        browser.press("Send")?;
        let answered = format!("document.querySelector('.log-rows').innerText.includes({})", json!(words));
        browser.until("the log has it", &answered)?;
    }
    let froms = browser.eval("froms")?;
    let once = browser.eval("froms.length >= 3 && froms.every((from, at) => from > (froms[at - 1] ?? 1))")?;
    ensure!(once == json!(true), "events are read more than once: {froms}");
    sandbox.run(&["stop", &id])?.expect_code(0)?;
    browser.no_errors()?;
    browser.close()?;
    server.stop()
}
