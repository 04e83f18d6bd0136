//! A replacement for Slack that speaks its protocol: the methods over HTTP, and Socket Mode over a WebSocket that
//! checks acknowledgements and breaks when the test wants it.

use std::{
    fs,
    io::ErrorKind,
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::{Error, Message, WebSocket, accept};

use super::{
    call, folder,
    receiver::{Answer, PATIENCE, Received, Receiver},
};
use crate::{
    processes::until,
    program::{ended, inspan, ran, write},
};

/// Slack.
struct Slack {
    api: Receiver,
    socket: TcpListener,
}

impl Slack {
    fn start() -> Self {
        Self::with(None)
    }

    /// With this answer to those who open a connection.
    fn with(opened: Option<Value>) -> Self {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        let url = format!("ws://{}/link?ticket=secret", socket.local_addr().unwrap());
        let api = Receiver::start(move |_, request| {
            let body = match request.path.as_str() {
                "/api/apps.connections.open" => {
                    opened.clone().unwrap_or_else(|| json!({ "ok": true, "url": url }))
                }
                _ => json!({ "ok": true, "channel": "C1", "ts": "17.1" }),
            };
            Answer::Status(200, "content-type: application/json\r\n", body.to_string())
        });
        Self { api, socket }
    }

    fn settings(&self) -> String {
        self.channel("team", "U1", "*")
    }

    fn channel(&self, name: &str, user: &str, flows: &str) -> String {
        format!(
            "[channels.{name}]\ntype = \"slack\"\napi = \"http://{}/api\"\nchannel = \"C1\"\ntokenEnv = \"BOT\"\nappTokenEnv = \"APP\"\nallow = [\"{user}\"]\nflows = [\"{flows}\"]\n",
            self.api.address
        )
    }

    /// The next connection of Socket Mode.
    fn connection(&self) -> Connection {
        let mut accepted = None;
        until("a connection of Socket Mode", || {
            accepted = self.socket.accept().ok();
            accepted.is_some()
        });
        let (stream, _) = accepted.unwrap();
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut connection = Connection(accept(stream).unwrap());
        connection.send(&json!({ "type": "hello", "num_connections": 1 }));
        connection
    }

    /// The calls of a method, once there are so many.
    fn calls(&self, method: &str, count: usize) -> Vec<Value> {
        let path = format!("/api/{method}");
        let of = |seen: &[Received]| -> Vec<Value> {
            seen.iter().filter(|request| request.path == path).map(Received::json).collect()
        };
        of(&self.api.wait_until(|seen| of(seen).len() >= count))
    }
}

/// One connection of Socket Mode.
struct Connection(WebSocket<TcpStream>);

impl Connection {
    fn send(&mut self, envelope: &Value) {
        self.0.send(Message::text(envelope.to_string())).unwrap();
    }

    /// What the other side sends next.
    fn next(&mut self) -> Value {
        loop {
            match self.0.read() {
                Ok(Message::Text(text)) => return serde_json::from_str(&text).unwrap(),
                Ok(_) => {}
                // A busy machine interrupts what waits with a limit.
                Err(Error::Io(error)) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// A click on a button, as Slack reports it.
fn click(envelope: &str, user: &str, button: &Value) -> Value {
    json!({
        "envelope_id": envelope, "type": "interactive", "accepts_response_payload": false,
        "payload": {
            "type": "block_actions", "user": { "id": user }, "trigger_id": "trigger.1",
            "container": { "type": "message", "channel_id": "C1", "message_ts": "17.1" },
            "message": { "blocks": [{ "type": "actions", "elements": [button] }] },
            "actions": [{ "action_id": button["action_id"], "value": button["value"] }],
        },
    })
}

/// A text in a dialog, as Slack reports it.
fn written(view: &Value, envelope: &str, user: &str, text: &str) -> Value {
    json!({
        "envelope_id": envelope, "type": "interactive",
        "payload": {
            "type": "view_submission", "user": { "id": user },
            "view": {
                "callback_id": view["callback_id"], "private_metadata": view["private_metadata"],
                "state": { "values": { "inspan-answer": { "text": { "type": "plain_text_input", "value": text } } } },
            },
        },
    })
}

/// The buttons of a message.
fn buttons(message: &Value) -> Vec<Value> {
    let blocks = message["blocks"].as_array().unwrap().iter();
    blocks.filter_map(|block| block["elements"].as_array()).flatten().cloned().collect()
}

/// A session that asks and whose process runs until the test lets it end.
fn asks(question: &str) -> String {
    format!(
        "
name: asks
nodes:
  - {{ id: gate, type: human.input, input: {question} }}
  - {{ id: lives, type: exec, input: {{ argv: [sh, -c, 'while [ ! -e finish ]; do sleep 0.05; done'] }} }}
"
    )
}

fn start(folder: &Path) -> Child {
    let mut command = with_tokens(call(folder, &["run", "--no-input", "--session-id", "s"]));
    command.spawn().unwrap()
}

/// A session that asks and leaves.
fn asked(folder: &Path, flow: &str, session: &str) {
    let mut command = with_tokens(call(folder, &["run", flow, "--no-input", "--session-id", session]));
    ran(folder, &mut command).expect(3);
}

fn with_tokens(mut command: Command) -> Command {
    command.env("BOT", "xoxb-bot-token-12345").env("APP", "xapp-app-token-12345");
    command
}

/// The events of this name.
fn events(folder: &Path, name: &str) -> Vec<Value> {
    let log = inspan(folder, &["logs", "s", "--json", "--type", name]);
    log.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["event"].take()).collect()
}

fn finish(folder: &Path, mut child: Child) {
    fs::write(folder.join("finish"), "").unwrap();
    let output = child.wait().unwrap();
    assert_eq!(output.code(), Some(0));
}

#[test]
fn a_button_answers_once_over_broken_connections_and_for_those_who_may() {
    let slack = Slack::start();
    let folder = &folder(&asks("{ prompt: 'Ship <it>?', choices: [yes, no] }"), &slack.settings());
    let child = start(folder);
    let mut connection = slack.connection();
    let [asked] = slack.calls("chat.postMessage", 1).try_into().unwrap_or_else(|calls| panic!("{calls:?}"));
    assert_eq!((&asked["channel"], &asked["text"]), (&json!("C1"), &json!("asks: `gate` asks a question")));
    let [yes, no] = buttons(&asked).try_into().unwrap_or_else(|buttons| panic!("{buttons:?}"));
    assert_eq!(yes["value"], r#"{"s":"s","p":"gate.1","n":"team","c":"yes"}"#);

    // A user who is not on the list cannot answer.
    connection.send(&click("e1", "U2", &yes));
    assert_eq!(connection.next(), json!({ "envelope_id": "e1" }));
    let whispers = slack.calls("chat.postEphemeral", 1);
    assert_eq!(whispers[0]["user"], "U2");
    assert_eq!(events(folder, "session:reply"), Vec::<Value>::new());

    // The connection breaks before the acknowledgement is read: Slack sends the envelope again.
    connection.send(&click("e2", "U1", &yes));
    drop(connection);
    let mut connection = slack.connection();
    connection.send(&click("e2", "U1", &yes));
    assert_eq!(connection.next(), json!({ "envelope_id": "e2" }));
    let reply = &slack.calls("chat.postMessage", 2)[1];
    assert_eq!((&reply["thread_ts"], &reply["text"]), (&json!("17.1"), &json!("<@U1>: yes")));
    assert_eq!(buttons(&slack.calls("chat.update", 1)[0]), Vec::<Value>::new());

    // A late click, and things that are no clicks at all.
    connection.send(&click("e3", "U1", &no));
    assert_eq!(connection.next(), json!({ "envelope_id": "e3" }));
    assert_eq!(
        slack.calls("chat.postEphemeral", 2)[1]["text"],
        "Not answered: the question is already answered."
    );
    connection.send(&json!({ "envelope_id": "e4", "type": "events_api", "payload": { "x": [1] } }));
    assert_eq!(connection.next(), json!({ "envelope_id": "e4" }));
    let mut unknown = yes.clone();
    unknown["value"] = json!(yes["value"].as_str().unwrap().replace("gate.1", "gate.9"));
    connection.send(&click("e5", "U1", &unknown));
    assert_eq!(connection.next(), json!({ "envelope_id": "e5" }));
    let why = &slack.calls("chat.postEphemeral", 3)[2]["text"];
    assert_eq!(why, "Not answered: the session has no question `gate.9`.");

    // A connection that Slack wants to end is replaced.
    connection.send(&json!({ "type": "disconnect", "reason": "refresh_requested" }));
    let _connection = slack.connection();
    finish(folder, child);
    let replies = events(folder, "session:reply");
    assert_eq!(
        replies,
        [json!({ "type": "session:reply", "promptId": "gate.1", "content": "yes", "choice": "yes" })]
    );
    assert_eq!(events(folder, "session:rejected"), Vec::<Value>::new());
    let authorized: Vec<&str> = ["apps.connections.open", "chat.postMessage"]
        .iter()
        .map(|method| {
            let path = format!("/api/{method}");
            let seen = slack.api.seen();
            let request = seen.iter().find(|request| request.path == path).unwrap().clone();
            match request.headers["authorization"].as_str() {
                "Bearer xapp-app-token-12345" => "app",
                "Bearer xoxb-bot-token-12345" => "bot",
                _ => "other",
            }
        })
        .collect();
    assert_eq!(authorized, ["app", "bot"]);
    let bodies: String = slack.api.seen().iter().map(|request| request.body.clone()).collect();
    assert_eq!([bodies.contains("xoxb-"), bodies.contains("xapp-")], [false, false]);
}

#[test]
fn connections_that_end_before_anything_came_are_opened_later_each_time() {
    let slack = Slack::start();
    let folder = &folder(&asks("{ prompt: 'Which name?' }"), &slack.settings());
    let child = start(folder);
    drop(slack.connection());
    let began = Instant::now();
    drop(slack.connection());
    let _connection = slack.connection();
    assert!(began.elapsed() > Duration::from_millis(2_500), "{:?}", began.elapsed());
    inspan(folder, &["reply", "s", "gate.1", "Bessie", "--no-resume"]);
    finish(folder, child);
}

#[test]
fn a_text_is_written_in_a_dialog() {
    let slack = Slack::start();
    let folder = &folder(&asks("{ prompt: 'Which name?' }"), &slack.settings());
    let child = start(folder);
    let mut connection = slack.connection();
    let asked = &slack.calls("chat.postMessage", 1)[0];
    let [write] = buttons(asked).try_into().unwrap_or_else(|buttons| panic!("{buttons:?}"));
    connection.send(&click("e1", "U1", &write));
    assert_eq!(connection.next(), json!({ "envelope_id": "e1" }));
    let opened = &slack.calls("views.open", 1)[0];
    assert_eq!(opened["trigger_id"], "trigger.1");
    let view = &opened["view"];
    connection.send(&written(view, "e2", "U2", "Mallory"));
    connection.send(&written(view, "e3", "U1", "Bessie & co, xoxb-bot-token-12345"));
    let acks = [connection.next(), connection.next()];
    assert_eq!(acks, [json!({ "envelope_id": "e2" }), json!({ "envelope_id": "e3" })]);
    assert_eq!(slack.calls("chat.postMessage", 2)[1]["text"], "<@U1>: Bessie &amp; co, [redacted BOT]");
    finish(folder, child);
    let replies = events(folder, "session:reply");
    assert_eq!(
        replies,
        [json!({ "type": "session:reply", "promptId": "gate.1", "content": "Bessie & co, [redacted BOT]" })]
    );
}

#[test]
fn a_click_for_a_session_that_no_process_runs_resumes_it_from_another_run() {
    let slack = Slack::start();
    let folder = &folder(IDLE, &slack.settings());
    fs::write(folder.join("other.yaml"), asks("{ prompt: Wait? }")).unwrap();
    asked(folder, "flow.yaml", "s");
    let [yes, _] = buttons(&slack.calls("chat.postMessage", 1)[0]).try_into().unwrap();
    // The run that left has closed its connections.
    while slack.socket.accept().is_ok() {}
    let mut other = with_tokens(call(folder, &["run", "other.yaml", "--no-input", "--session-id", "o"]));
    let child = other.spawn().unwrap();
    let mut connection = slack.connection();
    connection.send(&click("e1", "U1", &yes));
    assert_eq!(connection.next(), json!({ "envelope_id": "e1" }));
    until("the idle session is resumed and ends", || {
        events(folder, "harness:complete").iter().any(|end| end["outcome"] == "success")
    });
    assert_eq!(events(folder, "session:reply").len(), 1);
    // The other session leaves once only its own question is open.
    fs::write(folder.join("finish"), "").unwrap();
    assert_eq!({ child }.wait().unwrap().code(), Some(3));
}

/// What a process that delivers for all says to clicks, one after the other.
struct Clicks {
    child: Child,
    connection: Connection,
}

impl Clicks {
    fn begin(slack: &Slack, folder: &Path) -> Self {
        // The runs before have closed their connections.
        while slack.socket.accept().is_ok() {}
        let child = with_tokens(call(folder, &["notify", "deliver"])).spawn().unwrap();
        Self { child, connection: slack.connection() }
    }

    /// What a user is told who clicks on this button, or what everyone is told if that counts.
    fn said(&mut self, slack: &Slack, user: &str, button: &Value) -> String {
        let told = || {
            let calls = ["chat.postEphemeral", "chat.postMessage"].map(|method| slack.calls(method, 0));
            let mut texts = calls.concat().into_iter().filter(|call| call["blocks"].is_null());
            std::iter::from_fn(|| Some(texts.next()?["text"].as_str()?.to_owned())).collect::<Vec<_>>()
        };
        let before = told();
        let envelope = format!("{user} {}", before.len());
        self.connection.send(&click(&envelope, user, button));
        assert_eq!(self.connection.next(), json!({ "envelope_id": envelope }));
        until("what is told", || told().len() > before.len());
        told().into_iter().find(|text| !before.contains(text)).unwrap_or_default()
    }
}

impl Drop for Clicks {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const IDLE: &str = "
name: idle
nodes:
  - { id: gate, type: human.input, input: { prompt: 'Ship it?', choices: [yes, no] } }
  - { id: ship, type: exec, dependsOn: [gate], input: { argv: [echo, '{{ gate.choice }}'] } }
";

#[test]
fn a_click_counts_by_who_may_answer_the_channel_that_asked() {
    let slack = Slack::start();
    let folder = &folder(IDLE, "");
    let release = slack.channel("release", "U_LEAD", "idle") + &slack.channel("night", "U_NIGHT", "night-*");
    let files = [
        ("prod/flow.yaml", IDLE),
        ("prod/inspan.toml", &release),
        ("dev/flow.yaml", IDLE),
        ("dev/inspan.toml", &slack.channel("dev", "U_DEV", "*")),
    ];
    write(folder, &files);
    for (flow, session) in [("dev/flow.yaml", "d"), ("prod/flow.yaml", "s")] {
        asked(folder, flow, session);
    }
    let [of_dev, of_prod] = <[Value; 2]>::try_from(slack.calls("chat.postMessage", 2)).unwrap();
    let (dev, prod) = (&buttons(&of_dev)[0], &buttons(&of_prod)[0]);
    let mut forged = prod.clone();
    forged["value"] = json!(prod["value"].as_str().unwrap().replace("release", "dev"));
    let opened = slack.calls("apps.connections.open", 0).len();
    // One process, one app: all clicks come through one connection.
    let mut clicks = Clicks::begin(&slack, folder);
    let nobody = "You are not among those who may answer: `allow` of this channel does not name you.";
    let rows = [
        ("U_DEV", prod, nobody),
        ("U_NIGHT", prod, nobody),
        ("U_DEV", &forged, "Not answered: the flow no longer has channel `dev`."),
        ("U_LEAD", dev, nobody),
        ("U_LEAD", prod, "<@U_LEAD>: yes"),
        ("U_DEV", dev, "<@U_DEV>: yes"),
    ];
    for (user, button, expected) in rows {
        let said = clicks.said(&slack, user, button);
        // Those who resume a session connect, too.
        let connected = slack.calls("apps.connections.open", 0).len() - opened;
        assert!(connected == 1 || said.starts_with('<'), "{connected}");
        // The same words may have been said to another.
        assert!(said == expected || (said.is_empty() && expected == nobody), "{user} {button}: {said}");
    }
    assert_eq!(events(folder, "session:reply").len(), 1);
}

#[test]
fn a_click_after_a_stop_is_told_that_nobody_is_asked_any_more() {
    let slack = Slack::start();
    let folder = &folder(IDLE, &slack.settings());
    asked(folder, "flow.yaml", "s");
    let [yes, _] = buttons(&slack.calls("chat.postMessage", 1)[0]).try_into().unwrap();
    inspan(folder, &["stop", "s"]).expect(0);
    let said = Clicks::begin(&slack, folder).said(&slack, "U1", &yes);
    assert_eq!(said, "Not answered: the question is no longer open.");
}

#[test]
fn answers_that_come_at_once_all_count_and_are_said_to() {
    let slack = Slack::start();
    let gates = ["a", "b", "c"].map(|id| {
        format!(
            "  - {{ id: {id}, type: human.input, input: {{ prompt: 'Ship it?', choices: [yes, no] }} }}\n"
        )
    });
    let flow = format!("name: idle\nnodes:\n{}", gates.concat());
    let folder = &folder(&flow, &slack.settings());
    asked(folder, "flow.yaml", "s");
    let buttons: Vec<Value> = slack.calls("chat.postMessage", 1).iter().flat_map(buttons).collect();
    let mut clicks = Clicks::begin(&slack, folder);
    for (at, button) in buttons.iter().filter(|button| button["text"]["text"] == "yes").enumerate() {
        clicks.connection.send(&click(&format!("e{at}"), "U1", button));
    }
    let said = || -> Vec<Value> {
        let posted = slack.calls("chat.postMessage", 0);
        posted.iter().filter(|call| !call["thread_ts"].is_null()).map(|call| call["text"].clone()).collect()
    };
    until("all are said to", || said().len() >= 3);
    assert_eq!(said(), ["<@U1>: yes"; 3]);
    assert_eq!(events(folder, "session:reply").len(), 3);
}

#[test]
fn an_answer_whose_listener_was_killed_is_taken_once_another_listens() {
    let slack = Slack::start();
    let folder = &folder(IDLE, &slack.settings());
    asked(folder, "flow.yaml", "s");
    let [yes, _] = buttons(&slack.calls("chat.postMessage", 1)[0]).try_into().unwrap();
    let mut killed = Clicks::begin(&slack, folder);
    killed.connection.send(&click("e1", "U1", &yes));
    assert_eq!(killed.connection.next(), json!({ "envelope_id": "e1" }));
    drop(killed);
    let _listens = Clicks::begin(&slack, folder);
    until("the session ends", || !events(folder, "harness:complete").is_empty());
    assert_eq!(events(folder, "session:reply").len(), 1);
}

#[test]
fn a_text_is_shown_without_the_secrets_of_the_flow() {
    let slack = Slack::start();
    let flow = "
name: idle
secrets: [GREETING]
nodes:
  - { id: gate, type: human.input, input: { prompt: 'Which name?' } }
";
    let folder = &folder(flow, &slack.settings());
    let with_secret = |mut command: Command| {
        command.env("GREETING", "plain-secret-value");
        with_tokens(command)
    };
    ran(folder, &mut with_secret(call(folder, &["run", "--no-input", "--session-id", "s"]))).expect(3);
    let [write] = buttons(&slack.calls("chat.postMessage", 1)[0]).try_into().unwrap();
    while slack.socket.accept().is_ok() {}
    let child = with_secret(call(folder, &["notify", "deliver"])).spawn().unwrap();
    let mut clicks = Clicks { child, connection: slack.connection() };
    clicks.connection.send(&click("e1", "U1", &write));
    let view = slack.calls("views.open", 1)[0]["view"].clone();
    let submitted = written(&view, "e2", "U1", "plain-secret-value, please");
    clicks.connection.send(&submitted);
    let said = &slack.calls("chat.postMessage", 2)[1]["text"];
    assert_eq!(said, "<@U1>: [redacted GREETING], please");
}

#[test]
fn a_channel_that_takes_no_answers_says_so_once() {
    let slack = Slack::with(Some(json!({ "ok": false, "error": "invalid_auth" })));
    let folder = &folder(&asks("{ prompt: 'Ship it?', choices: [yes, no] }"), &slack.settings());
    let child = start(folder);
    let why = "it takes no answers: Slack refused apps.connections.open: invalid_auth";
    until("doctor shows it", || {
        let mut doctor = with_tokens(call(folder, &["doctor", "--offline", "--json"]));
        ran(folder, &mut doctor).json()["channels"][0]["failed"] == why
    });
    slack.calls("apps.connections.open", 2);
    inspan(folder, &["reply", "s", "gate.1", "--choice", "yes", "--no-resume"]);
    fs::write(folder.join("finish"), "").unwrap();
    let said = ended(folder, child).stderr;
    assert_eq!(
        said.matches(&format!("the channel `team` failed, and is tried again: {why}")).count(),
        1,
        "{said}"
    );
}

#[test]
fn a_click_after_the_time_is_up_resumes_nothing() {
    let slack = Slack::start();
    let gate = IDLE.replace("input: { prompt", "input: { timeout: 1s, prompt");
    let folder = &folder(&gate, &slack.settings());
    asked(folder, "flow.yaml", "s");
    let asked = Instant::now();
    let [_, no] = buttons(&slack.calls("chat.postMessage", 1)[0]).try_into().unwrap();
    let mut clicks = Clicks::begin(&slack, folder);
    until("the time is up", || asked.elapsed() > Duration::from_secs(1));
    let said = clicks.said(&slack, "U1", &no);
    let why = "Not answered: question `gate.1` expired at ";
    assert!(said.starts_with(why), "{said}");
    let names = "session:reply,flow:resumed,harness:complete";
    assert_eq!(events(folder, names), Vec::<Value>::new());
}
