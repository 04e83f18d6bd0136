//! One session through all interfaces: started by the real Claude Code over MCP, seen by `show`,
//! HTTP, the WebSocket and the page in a real browser, answered from a shell, steered over HTTP,
//! loaded by an editor, and notified about by a webhook. At the end all of them say the same.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use inspan_testkit::{Agent, Sandbox, eventually, pause};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::{self, Message, client::IntoClientRequest as _};

use super::browser::{Browser, WIDE};
use super::checks::{main_requests, output_of, same, says, serve};
use super::interfaces::{HttpServer, claude, editor};
use super::page::Server;

/// A person, an agent that listens, and an end that has to do with both.
const TOUR: &str = r#"
flow: { name: tour, input: { who: world }, outputs: { said: "{{ last.stdout }}" } }
nodes:
  - { id: how, type: human.input, input: { prompt: "How?", choices: [hello, bye] } }
  - { id: ox, type: echo.agent, dependsOn: [how], input: { prompt: "{{ how.choice }} {{ flow.input.who }}", options: { multiTurn: true, idleTimeoutMs: 60000 } } }
  - { id: last, type: exec, dependsOn: [ox], input: { argv: [echo, "{{ ox.text }}"] } }
"#;

/// How long one step may take.
const STEP: Duration = Duration::from_secs(60);

/// A receiver of webhooks that takes everything.
struct Webhooks {
    address: String,
    received: Arc<Mutex<Vec<Value>>>,
}

/// A socket that is read in the background: the numbers of its events, and its last state.
type Following = JoinHandle<anyhow::Result<(Vec<u64>, Value)>>;

impl Webhooks {
    fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?.to_string();
        let received = Arc::default();
        let log = Arc::clone(&received);
        // It ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let _ = take(stream, &log);
            }
        });
        Ok(Self { address, received })
    }

    /// The kinds of all notices, in the order of their messages.
    fn kinds(&self) -> Vec<String> {
        let messages = self.received.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let notices = messages.iter().flat_map(|message| message["notices"].as_array().into_iter().flatten());
        notices.filter_map(|notice| notice["kind"].as_str().map(str::to_owned)).collect()
    }
}

fn take(mut stream: TcpStream, log: &Mutex<Vec<Value>>) -> anyhow::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        match line.trim_end().to_lowercase().split_once(": ") {
            Some(("content-length", value)) => length = value.parse()?,
            Some(_) => {}
            None if line.trim().is_empty() => break,
            None => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    log.lock().unwrap_or_else(PoisonError::into_inner).push(serde_json::from_slice(&body)?);
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")?;
    Ok(())
}

/// The API, with the token.
struct Api {
    host: String,
    token: String,
}

impl Api {
    /// The body of an answer of 200; with a body it is a POST.
    fn ask(&self, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
        let mut socket = TcpStream::connect(&self.host)?;
        socket.set_read_timeout(Some(STEP))?;
        let (method, body) = body.map_or(("GET", String::new()), |body| ("POST", body.to_string()));
        let head = format!(
            "{method} /api/v1/{path} HTTP/1.0\r\nhost: {}\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n",
            self.host,
            self.token,
            body.len()
        );
        socket.write_all((head + &body).as_bytes())?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer)?;
        ensure!(answer.starts_with("HTTP/1.0 200") || answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
        let (_, body) = answer.split_once("\r\n\r\n").context("no body")?;
        Ok(serde_json::from_str(body)?)
    }

    /// Follows the events of a session over the WebSocket to its end: their numbers, and the state that a new viewer gets
    /// soon after it.
    fn follow(&self, session: &str) -> anyhow::Result<Following> {
        let mut request = format!("ws://{}/ws", self.host).into_client_request()?;
        request.headers_mut().insert("authorization", format!("Bearer {}", self.token).parse()?);
        let stream = TcpStream::connect(&self.host)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        let (mut socket, _) = tungstenite::client(request, stream)?;
        let ask = json!({ "subscribe": session, "events": true, "from": 1 });
        socket.send(Message::text(ask.to_string()))?;
        let session = session.to_owned();
        Ok(std::thread::spawn(move || {
            let mut seqs = Vec::new();
            loop {
                let Message::Text(text) = socket.read()? else { continue };
                let message: Value = serde_json::from_str(&text)?;
                let events = message["events"].as_array().into_iter().flatten();
                seqs.extend(events.filter_map(|event| event["seq"].as_u64()));
                let state = message.get("state");
                // The state is that of all viewers, and may be some milliseconds behind the events.
                let is_behind = state.is_some_and(|state| state["session"]["state"] == "running");
                if message["end"] == json!(true) || is_behind {
                    pause(Duration::from_millis(20));
                    let ask = json!({ "subscribe": session, "state": true });
                    socket.send(Message::text(ask.to_string()))?;
                } else if let Some(state) = state {
                    return Ok((seqs, state.clone()));
                }
            }
        }))
    }
}

/// What `show` says.
fn shown(sandbox: &Sandbox, session: &str) -> anyhow::Result<Value> {
    let (_, shown, _) = output_of(sandbox, &["show", session, "--json"])?;
    serde_json::from_str(&shown).context(shown)
}

/// The id of the one session, once it asks its question.
fn asked(sandbox: &Sandbox) -> anyhow::Result<String> {
    let mut session = String::new();
    eventually(STEP, "the session asks", || {
        let (_, listed, _) = output_of(sandbox, &["inbox", "--json"])?;
        let listed: Value = serde_json::from_str(&listed).unwrap_or_default();
        session = listed[0]["sessionId"].as_str().unwrap_or_default().to_owned();
        Ok(!session.is_empty())
    })?;
    Ok(session)
}

pub(super) fn one_session(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let call = |name: &str, input: Value| json!({ "blocks": [{ "type": "tool_use", "name": format!("mcp__inspan__{name}"), "input": input }] });
    let result = call("session_wait", json!({ "session": "flow-" }));
    let turns = [
        call("tour", json!({ "who": "oxen" })),
        says("It waits for you."),
        result,
        says("The tour is over."),
    ];
    let model = serve(sandbox, &turns)?;
    let webhooks = Webhooks::start()?;
    sandbox.set("OPS_KEY", "signing-key-of-the-tour");
    let channel = format!(
        "[channels.ops]\ntype = \"webhook\"\nurl = \"http://{}/\"\nsecretEnv = \"OPS_KEY\"\non = [\"question\", \"failure\", \"end\"]\n",
        webhooks.address
    );
    std::fs::create_dir_all(sandbox.path("tours"))?;
    sandbox.write("tours/inspan.toml", &channel)?;
    sandbox.write("tours/tour.yaml", TOUR)?;

    // Claude Code starts it over MCP.
    let server = Server::start(sandbox, "0", "tours")?;
    let mcp = HttpServer::start_for(sandbox, "tours")?;
    let ask = |prompt: &str| {
        let words = claude(sandbox, &mcp.claude(), &["tour", "session_wait"], prompt)?;
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let run = sandbox.run_agent(Agent::Claude, &words, "")?;
        run.expect_code(0)?;
        anyhow::Ok(run.stdout.trim().to_owned())
    };
    same("what Claude Code says", &ask("role=user. Take the tour.")?, &"It waits for you.".to_owned())?;
    let id = asked(sandbox)?;

    // A shell, HTTP, the WebSocket and the page see that it waits.
    let api =
        Api { host: server.origin().trim_start_matches("http://").to_owned(), token: mcp.token.clone() };
    let socket = api.follow(&id)?;
    same("what show says", &shown(sandbox, &id)?["state"], &json!("waiting"))?;
    let state = |id: &str| anyhow::Ok(api.ask(&format!("sessions/{id}"), None)?["session"]["state"].clone());
    same("what HTTP says", &state(&id)?, &json!("waiting"))?;
    let mut browser = Browser::start(sandbox)?;
    browser.look(WIDE)?;
    browser.open(&server.address)?;
    browser.sees("live")?;
    browser.open(&server.view(&format!("/s/{id}/graph")))?;
    browser.sees("How?")?;

    // It is answered from a shell and steered over HTTP.
    let shell = sandbox.start(sandbox.command(&["reply", &id, "--choice", "hello"]))?;
    let command =
        |command: Value| api.ask(&format!("sessions/{id}/commands"), Some(&json!({ "command": command })));
    eventually(STEP, "the agent listens", || {
        let (_, begun, _) = output_of(sandbox, &["logs", &id, "--json", "--type", "agent:start"])?;
        Ok(!begun.is_empty())
    })?;
    command(json!({ "type": "send", "content": "and louder" }))?;
    command(json!({ "type": "close" }))?;

    // All interfaces end with the same.
    shell.finish()?.expect_code(0)?;
    same("what Claude Code says", &ask("role=user. How is it?")?, &"The tour is over.".to_owned())?;
    let requests = main_requests(&model);
    let messages =
        requests.last().and_then(|request| request.body["messages"].as_array()).context("no request")?;
    let result = messages.last().context("no message")?.to_string();
    ensure!(
        result.contains("and louder") && result.contains("success"),
        "the model was not told the result: {result}"
    );
    let (seqs, watched) = socket.join().map_err(|_| anyhow::anyhow!("the socket's thread panicked"))??;
    let last = shown(sandbox, &id)?;
    let now = api.ask(&format!("sessions/{id}"), None)?;
    let states =
        [last["state"].clone(), now["session"]["state"].clone(), watched["session"]["state"].clone()];
    same("the states", &states, &[json!("success"), json!("success"), json!("success")])?;
    same("the outputs", &now["outputs"], &last["outputs"])?;
    same("what was watched", &watched["outputs"], &last["outputs"])?;
    let lines = u64::try_from(seqs.len())?;
    same("the events of the socket", &seqs, &(1..=lines).collect())?;
    browser.sees("success")?;
    browser.no_errors()?;
    browser.close()?;
    let loaded = editor(sandbox, &[], Some(&id))?;
    let text = loaded["text"].as_str().unwrap_or_default();
    ensure!(text.contains("hello oxen"), "the editor was not shown it: {loaded}");
    eventually(STEP, "the end is sent", || Ok(webhooks.kinds().len() >= 2))?;
    mcp.stop()?;
    server.stop()?;
    same("what was sent", &webhooks.kinds(), &vec!["question".to_owned(), "end".to_owned()])
}
