//! What people write into the page of `inspan serve`: numbers, texts and half-written answers stay as they are, and a tab
//! that is not signed in takes the printed address.

use std::time::Duration;

use anyhow::ensure;
use inspan_testkit::{Sandbox, pause};
use serde_json::json;

use super::browser::{Browser, WIDE};
use super::page::{Server, form, opened, session, state};

/// Its `id` is a number that JavaScript cannot hold.
const GIVEN: &str = r#"
flow: { name: given, input: { id: 9007199254740993, who: you, size: 5 } }
nodes:
  - { id: show, type: echo, input: { text: "id={{ flow.input.id }} who=[{{ flow.input.who }}] size={{ flow.input.size }}" } }
"#;

const FITS: &str = r#"
flow:
  name: fits
  inputSchema:
    type: object
    required: [branch, dry]
    properties:
      branch: { type: string, pattern: "^feat", maxLength: 6 }
      dry: { type: boolean }
      level: { enum: ["2", 2] }
      more: { type: object, required: [a] }
      rest: { type: object }
nodes:
  - { id: show, type: echo, input: { text: "{{ flow.input.branch }}" } }
"#;

const WAITS: &str = r#"
flow: { name: waits }
nodes:
  - { id: left, type: human.input, input: { prompt: "Left?", timeout: 5m } }
  - { id: right, type: human.input, input: { prompt: "Right?" } }
"#;

/// Its bounds are numbers that JavaScript cannot hold, and it has a default for what its schema requires.
const BOUNDS: &str = r#"
flow:
  name: bounds
  input: { branch: main }
  inputSchema:
    type: object
    required: [branch]
    properties:
      branch: { type: string, minLength: 1, maxLength: 18446744073709551615 }
      id: { type: integer, minimum: -9223372036854775808, maximum: 9223372036854775807 }
      level: { enum: [low, high] }
nodes:
  - id: pick
    type: human.input
    input:
      prompt: Which one?
      schema:
        type: object
        properties: { size: { type: integer, maximum: 9223372036854775807 }, level: { enum: [low, high] } }
  - { id: other, type: human.input, input: { prompt: "Another one?" } }
"#;

/// Flows are started from their forms.
pub(super) fn forms(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let (server, mut browser) = opened(sandbox)?;
    sandbox.write("flows/given.yaml", GIVEN)?;
    sandbox.write("flows/fits.yaml", FITS)?;
    // A field keeps the focus, however much is written.
    form(&server, &mut browser, "ship")?;
    browser.fill("input[name=change]", &"long ".repeat(12))?;
    browser.write("longer")?;
    browser.until("one field has it all", "document.activeElement.value.endsWith('long longer')")?;
    form(&server, &mut browser, "given")?;
    browser.until(
        "the exact number",
        "document.querySelector('input[name=id]')?.value === '9007199254740993'",
    )?;
    for name in ["who", "size"] {
        let field = format!("document.querySelector('input[name={name}]')");
        browser.eval(&format!(
            "{field}.value = '', {field}.dispatchEvent(new Event('input', {{ bubbles: true }}))"
        ))?;
    }
    browser.until("the default is named", "document.querySelector('input[placeholder^=\"5 \"]')")?;
    browser.press("Start given")?;
    let id = session(&mut browser)?;
    browser.sees("\"id\": 9007199254740993")?;
    browser.open(&server.view(&format!("/s/{id}/graph?node=show")))?;
    browser.sees("id=9007199254740993 who=[] size=5")?;
    form(&server, &mut browser, "fits")?;
    browser.fill("input[name=branch]", "feat😀😀")?;
    let options = "[...document.querySelectorAll('select[name=level] option')].map((one) => one.innerText)";
    ensure!(browser.eval(options)? == json!(["—", "\"2\"", "2"]), "options read differently");
    browser.fill("textarea[name=rest]", "{ \"at\": 123456789012345678901234 }")?;
    browser.sees("This number is too large to be kept exactly.")?;
    // What is written is there again after another view.
    browser.open(&server.view("/inbox"))?;
    browser.sees("Nothing waits for you")?;
    form(&server, &mut browser, "fits")?;
    browser.press("Start fits")?;
    ensure!(browser.eval("document.querySelector('form :invalid')?.name")? == json!("rest"));
    browser.fill("textarea[name=rest]", "{ \"at\": 12345678901234567890 }")?;
    browser.press("Start fits")?;
    session(&mut browser)?;
    browser.sees("\"branch\": \"feat😀😀\"")?;
    browser.sees("\"dry\": false")?;
    browser.sees("\"at\": 12345678901234567890")?;
    ensure!(
        browser.eval("document.body.innerText.includes('\"more\"')")? == json!(false),
        "nobody gave `more`"
    );
    browser.no_errors()?;
    browser.close()?;
    server.stop()
}

/// A question for a text, and one whose choices have effects.
const GATES: &str = "
flow: { name: gates }
nodes:
  - { id: name, type: human.input, input: { prompt: 'Which name?' } }
  - { id: ship, type: human.input, input: { prompt: 'Delete it?', choices: [delete it, keep it] } }
";

/// Answers that are half written, a browser whose clock is ahead, and a session that is deleted.
pub(super) fn drafts(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let (server, mut browser) = opened(sandbox)?;
    sandbox.write("flows/waits.yaml", WAITS)?;
    form(&server, &mut browser, "waits")?;
    browser.press("Start waits")?;
    let id = session(&mut browser)?;
    let whole = server.view(&format!("/s/{id}/graph"));
    browser.until("both questions", "document.querySelectorAll('.ask textarea').length === 2")?;
    let beside = |node: &str, browser: &mut Browser| {
        browser.open(&server.view(&format!("/s/{id}/graph?node={node}")))?;
        browser.until(
            "its question alone",
            &format!(
                "document.querySelectorAll('.ask textarea').length === 1 && \
                 document.querySelector('.ask').innerText.toLowerCase().includes('{node}?')"
            ),
        )
    };
    for (node, half) in [("left", "half an answer"), ("right", "another half")] {
        beside(node, &mut browser)?;
        browser.fill(".ask textarea", half)?;
    }
    browser.sees("1 question waits for you")?;
    browser.open(&server.view(&format!("/s/{id}/log")))?;
    browser.sees("2 questions wait for you")?;
    browser.open(&whole)?;
    browser.until("no question is elsewhere", "!document.querySelector('.call')")?;
    browser.open(&server.view("/flows"))?;
    browser.until("the flows", "document.querySelector('.flow')")?;
    browser.eval("Date.now = ((real) => () => real() + 600_000)(Date.now)")?;
    browser.open(&whole)?;
    browser.until(
        "both drafts",
        // Whichever was asked first.
        "[...document.querySelectorAll('.ask textarea')].map((one) => one.value).sort().join() === 'another half,half an answer'",
    )?;
    pause(Duration::from_millis(1500));
    browser.sees("Fails in ")?;
    // The other question has no deadline: no process stays for it.
    beside("left", &mut browser)?;
    browser.press("Send answer")?;
    browser.until("it is answered", "!document.querySelector('.ask')")?;
    browser.open(&whole)?;
    browser.until("one question is left", "document.querySelectorAll('.ask').length === 1")?;
    state(&mut browser, "waiting")?;
    sandbox.run(&["store", "gc", &id])?.expect_code(0)?;
    browser.sees("Not followed any more.")?;
    browser.until("nothing can be answered", "!document.querySelector('.asked')")?;
    browser.close()?;
    server.stop()
}

/// What is typed into a question that somebody else answers meanwhile.
pub(super) fn vanishes(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let (server, mut browser) = opened(sandbox)?;
    sandbox.write("flows/gates.yaml", GATES)?;
    form(&server, &mut browser, "gates")?;
    browser.press("Start gates")?;
    let id = session(&mut browser)?;
    browser.until("both questions", "document.querySelectorAll('.question').length === 2")?;
    browser.fill(".question textarea", "it is")?;
    let address = browser.eval("location.hash")?;
    sandbox.run(&["reply", &id, "name.1", "from a shell"])?.expect_code(3)?;
    browser.until("one question is left", "document.querySelectorAll('.question').length === 1")?;
    for letter in ["a", " ", "i", "l"] {
        browser.key(letter)?;
    }
    ensure!(browser.eval("location.hash")? == address, "what is typed on is no command");
    // Later the keys are commands again, and none of them answers by itself.
    browser.key("Escape")?;
    for letter in ["a", " "] {
        browser.key(letter)?;
    }
    ensure!(browser.eval("document.activeElement.className")? == json!("asked question"));
    browser.key("i")?;
    browser.until("the inbox", "location.hash === '#/inbox'")?;
    browser.press("delete it")?;
    browser.sees("Nothing waits for you")?;
    browser.close()?;
    server.stop()
}

/// Bounds that JavaScript cannot hold, and what cannot be shown: the rest of the page stays.
pub(super) fn bounds(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let (server, mut browser) = opened(sandbox)?;
    sandbox.write("flows/bounds.yaml", BOUNDS)?;
    let both = |browser: &mut Browser| {
        browser.sees("Which one?")?;
        browser.sees("Another one?")
    };
    form(&server, &mut browser, "bounds")?;
    // 2^63 - 1
    browser.fill("input[name=id]", "9223372036854775807")?;
    browser.press("Start bounds")?;
    let id = session(&mut browser)?;
    both(&mut browser)?;
    browser.sees("\"branch\": \"main\"")?;
    browser.sees("\"id\": 9223372036854775807")?;
    browser.open(&server.view("/inbox"))?;
    both(&mut browser)?;
    browser.fill("input[name=size]", "9223372036854775806")?;
    browser.press("Answer")?;
    browser.until("it is answered", "document.querySelectorAll('.card').length === 1")?;
    browser.open(&server.view(&format!("/s/{id}/graph?node=pick")))?;
    browser.sees("9223372036854775806")?;
    browser.no_errors()?;
    // From now on the page reads lists that are none, and fails where it shows them.
    browser.eval(
        "JSON.parse = ((real) => (words, how) => real(words.replaceAll('[\"low\",\"high\"]', '1'), how))(JSON.parse)",
    )?;
    sandbox.run(&["run", "flows/bounds.yaml"])?.expect_code(3)?;
    browser.open(&server.view("/inbox"))?;
    let failures = |count: u8| format!("document.querySelectorAll('.failure').length === {count}");
    browser.until("all three are listed", "document.querySelectorAll('.card').length === 3")?;
    browser.until("one is not shown", &failures(1))?;
    browser.sees("This could not be shown")?;
    browser.until("the others are", "document.querySelectorAll('.card textarea').length === 2")?;
    form(&server, &mut browser, "bounds")?;
    browser.until("its form is not shown", &failures(1))?;
    form(&server, &mut browser, "ship")?;
    browser.sees("Start it")?;
    browser.until("nothing is left of it", &failures(0))?;
    ensure!(!browser.errors.is_empty(), "the failures are reported as errors of the page");
    browser.close()?;
    server.stop()
}

/// A tab that shows the page without the token gets the printed address.
pub(super) fn signs_in(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    std::fs::create_dir_all(sandbox.path("flows"))?;
    let server = Server::start(sandbox, "0", "flows")?;
    let mut browser = Browser::start(sandbox)?;
    browser.look(WIDE)?;
    browser.open(server.origin())?;
    browser.sees("This browser is not signed in")?;
    ensure!(browser.eval("!document.querySelector('.stale-bar')")? == json!(true), "the server does answer");
    browser.open(&server.address)?;
    browser.sees("0 sessions")?;
    browser.sees("live")?;
    ensure!(browser.eval("location.hash")? == json!("#/"), "the token is taken out of the address");
    sandbox.write("waits.yaml", WAITS)?;
    sandbox.run(&["run", "waits.yaml", "--json"])?.expect_code(3)?;
    browser.sees("2 questions wait for you")?;
    let logout = "{ method: 'POST', headers: { 'content-type': 'application/json' }, body: '{}' }";
    let status =
        browser.eval(&format!("fetch('/api/v1/logout', {logout}).then((answer) => answer.status)"))?;
    ensure!(status == json!(204), "signing out: {status}");
    browser.open(&server.view("/flows"))?;
    browser.sees("This browser is not signed in")?;
    browser.until(
        "what may be answered long ago is not offered",
        "!document.querySelector('.bar.call, .badge') && document.title === 'Flows · Inspan'",
    )?;
    browser.open("about:blank")?;
    browser.open(&format!("{}/#token=wrong", server.origin()))?;
    browser.until(
        "a wrong token is said to be one",
        "document.querySelector('.note')?.innerText.includes('token')",
    )?;
    browser.close()?;
    server.stop()
}
