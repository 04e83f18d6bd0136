//! The server over real connections: what is on the wire, how it ends, what is recorded of it.
//! Every scenario of `fixtures/scenarios/` is played and compared whole in `scenarios.rs`.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    After, Block, ExchangeState, Matcher, ModelServer, RecordedRequest, RequestKind, SECRET_PRESENT,
    Scenario, ServerState, Turn, TurnRef,
};

mod client;
mod openai;
mod scenarios;
mod timing;

use self::client::{ClientResponse, ExchangeEnd, PATIENCE, PendingExchange, ask, post, request};

fn start(turns: impl IntoIterator<Item = Turn>) -> ModelServer {
    ModelServer::start(Scenario::of(turns)).unwrap()
}

fn endings(requests: &[RecordedRequest]) -> Vec<ExchangeState> {
    requests.iter().map(|request| request.ending).collect()
}

fn wait_for(server: &ModelServer, expected: ExchangeState) -> Vec<RecordedRequest> {
    server.wait_until(PATIENCE, |requests| endings(requests) == [expected]).unwrap()
}

#[test]
fn one_json_body_holds_what_the_stream_would() {
    let blocks = vec![
        Block::thinking("hm"),
        Block::Pause { ms: 1 },
        Block::text("é yes"),
        Block::tool("Bash", json!({"command": "ls"})),
    ];
    let server = start([Turn { blocks, ..Turn::default() }]);
    let mut body = ask("x");
    body["stream"] = json!(false);
    let answer = post(&server, &body);
    let expected = json!({
        "id": "msg_main_1", "type": "message", "role": "assistant", "model": "claude-test",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "c2NyaXB0ZWQ="},
            {"type": "text", "text": "é yes"},
            {"type": "tool_use", "id": "toolu_main_1_2", "name": "Bash", "input": {"command": "ls"}}
        ],
        "stop_reason": "tool_use", "stop_sequence": null,
        "usage": {
            "input_tokens": 100, "output_tokens": 20,
            "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0
        }
    });
    assert_eq!(serde_json::from_str::<Value>(&answer.body).unwrap(), expected);
    assert_eq!((answer.status, answer.end), (200, ExchangeEnd::Whole));
}

#[test]
fn faults_reach_a_client_that_asked_for_one_body() {
    let text = || Turn::text("hello");
    let error = crate::ErrorEvent { after: 1, kind: "overloaded_error".to_owned(), message: "m".to_owned() };
    let server = ModelServer::start(Scenario {
        hold_limit_ms: 30,
        ..Scenario::of([
            Turn { truncate_after: Some(1), ..text() },
            Turn { stall_after: Some(1), ..text() },
            Turn { garbage_after: Some(1), ..text() },
            Turn { error_event_after: Some(error), ..text() },
            text(),
        ])
    })
    .unwrap();
    let mut body = ask("x");
    body["stream"] = json!(false);
    let answers: Vec<ClientResponse> = (0..5).map(|_| post(&server, &body)).collect();
    let whole = answers[4].body.replace("main_5", "main_1");
    let half = |stem: &str| whole.replace("main_1", stem)[..whole.len() / 2].to_owned();
    let error =
        r#"{"error":{"message":"m","type":"overloaded_error"},"request_id":"req_main_4","type":"error"}"#;
    let seen: Vec<(u16, ExchangeEnd, String)> =
        answers.into_iter().take(4).map(|answer| (answer.status, answer.end, answer.body)).collect();
    let expected = [
        (200, ExchangeEnd::Cut, half("main_1")),
        (200, ExchangeEnd::Cut, half("main_2")),
        (200, ExchangeEnd::Whole, half("main_3")),
        (529, ExchangeEnd::Whole, error.to_owned()),
    ];
    assert_eq!(seen, expected);
    use ExchangeState::{Complete, Stalled, Truncated};
    assert_eq!(endings(&server.requests()), [Truncated, Stalled, Complete, Complete, Complete]);
}

#[test]
fn a_client_that_leaves_is_noticed_wherever_the_answer_stands() {
    let hang = || Turn { hang: true, ..Turn::default() };
    let slow_head = || Turn { first_ms: Some(600_000), ..Turn::text("a") };
    let slow_body = || Turn { chunk_ms: Some(600_000), ..Turn::text("a") };
    let stall = || Turn { stall_after: Some(1), ..Turn::text("a") };
    for (turn, meanwhile) in [
        (hang(), ExchangeState::Stalled),
        (slow_head(), ExchangeState::Open),
        (slow_body(), ExchangeState::Open),
        (stall(), ExchangeState::Stalled),
    ] {
        let server = start([turn.clone()]);
        let call = PendingExchange::post(&server, &ask("x"));
        wait_for(&server, meanwhile);
        drop(call);
        let requests = wait_for(&server, ExchangeState::ClientGone);
        assert_eq!(requests[0].turn, Some(TurnRef::Turn(0)), "{turn:?}");
    }
}

#[test]
fn pings_continue_while_a_stream_stalls() {
    let server = start([Turn { stall_after: Some(1), stall_ping_ms: Some(5), ..Turn::text("a") }]);
    let mut call = PendingExchange::post(&server, &ask("x"));
    let ping = "event: ping\ndata: {\"type\":\"ping\"}\n\n";
    call.read_until(&ping.repeat(3));
    wait_for(&server, ExchangeState::Stalled);
}

#[test]
fn a_silent_answer_ends_at_the_hold_limit_without_a_byte() {
    let hang = Turn { hang: true, ..Turn::default() };
    let server = ModelServer::start(Scenario { hold_limit_ms: 30, ..Scenario::of([hang]) }).unwrap();
    assert_eq!(PendingExchange::post(&server, &ask("x")).finish(), None);
    assert_eq!(endings(&server.requests()), [ExchangeState::Stalled]);
}

#[test]
fn a_stopped_server_closes_every_connection() {
    let server = start([Turn { stall_after: Some(1), ..Turn::text("a") }]);
    let mut call = PendingExchange::post(&server, &ask("x"));
    call.read_until("message_start");
    let port = server.port();
    assert_eq!(endings(&server.stop()), [ExchangeState::ServerStopped]);
    assert_eq!(call.finish().map(|answer| answer.end), Some(ExchangeEnd::Cut));
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err(), "the port is free again");
}

#[test]
fn every_ended_exchange_is_reported_to_who_listens() {
    let (ended, reported) = std::sync::mpsc::sync_channel(1);
    let stall = Turn { stall_after: Some(1), ..Turn::text("a") };
    let listening = crate::Listening { ended: Some(ended), ..Default::default() };
    let server = ModelServer::start_as(Scenario::of([stall, Turn::error(401)]), listening).unwrap();
    let mut call = PendingExchange::post(&server, &ask("x"));
    call.read_until("message_start");
    assert_eq!(post(&server, &ask("y")).status, 401);
    let reported = std::thread::spawn(move || reported.into_iter().collect::<Vec<_>>());
    let _ = server.stop();
    let requests = reported.join().unwrap();
    let seen: Vec<_> = requests.iter().map(|request| (request.number, request.ending)).collect();
    assert_eq!(seen, [(2, ExchangeState::Complete), (1, ExchangeState::ServerStopped)]);
}

#[test]
fn a_taken_port_is_an_error_that_says_so() {
    let server = start([Turn::text("a")]);
    let listening = crate::Listening { port: server.port(), ..Default::default() };
    let error = ModelServer::start_as(Scenario::of([]), listening).unwrap_err();
    assert!(matches!(error, crate::ServerError::Start(_)), "{error}");
}

#[test]
fn a_replaced_scenario_starts_over_and_ids_continue() {
    let server = start([Turn::text("a"), Turn::text("b")]);
    post(&server, &ask("x"));
    server.replace(Scenario { after: After::Error, ..Scenario::of([Turn::text("c")]) }).unwrap();
    let (third, fourth) = (post(&server, &ask("x")), post(&server, &ask("x")));
    assert!(third.body.contains("\"id\":\"msg_main_2\"") && third.body.contains("\"text\":\"c\""));
    let exhausted = r#"{"error":{"message":"script exhausted","type":"api_error"},"request_id":"req_main_3","type":"error"}"#;
    assert_eq!((fourth.status, fourth.body.as_str()), (500, exhausted));
    let state = server.state();
    assert_eq!(state, ServerState { turn: 2, main: 3, aux: 0, requests: 3 });
    let contradiction = Turn { times: Some(1), ..Turn::text("d") };
    assert!(server.replace(Scenario::of([contradiction])).is_err());
    assert_eq!(server.state(), state);
}

#[test]
fn the_whole_request_is_recorded_but_for_its_secrets() {
    let server = start([Turn::text("a")]);
    let body = ask("x");
    let headers = "x-api-key: planted\r\nAuthorization: Bearer planted\r\nAnthropic-Version: 2023-06-01\r\n";
    PendingExchange::start(&server, "POST", "/v1/messages?beta=true", headers, &body.to_string()).finish();
    let requests = wait_for(&server, ExchangeState::Complete);
    let length = body.to_string().len().to_string();
    let headers = [
        ("anthropic-version", "2023-06-01"),
        ("authorization", SECRET_PRESENT),
        ("content-length", &length),
        ("host", "x"),
        ("x-api-key", SECRET_PRESENT),
    ];
    let expected = RecordedRequest {
        number: 1,
        kind: RequestKind::Main,
        method: "POST".to_owned(),
        path: "/v1/messages?beta=true".to_owned(),
        headers: headers.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        body,
        turn: Some(TurnRef::Turn(0)),
        events_sent: 7,
        ending: ExchangeState::Complete,
    };
    assert_eq!(requests, [expected]);
    let shown = request(&server, "GET", "/__requests", "").body;
    assert_eq!(serde_json::from_str::<Vec<RecordedRequest>>(&shown).unwrap(), requests);
    assert!(!shown.contains("planted"));
}

#[test]
fn paths_beside_the_model_are_answered() {
    let server = start([Turn::text("a")]);
    let rows = [
        ("HEAD", "/", "", 200, ""),
        ("POST", "/v1/messages/count_tokens", "{}", 200, r#"{"input_tokens":10}"#),
        (
            "POST",
            "/v1/messages",
            "{",
            400,
            r#"{"error":{"message":"model: Field required","type":"invalid_request_error"},"request_id":"req_other","type":"error"}"#,
        ),
        (
            "POST",
            "/v1/nothing",
            "",
            404,
            r#"{"error":{"message":"no POST /v1/nothing","type":"not_found_error"},"request_id":"req_other","type":"error"}"#,
        ),
        ("GET", "/__state", "", 200, r#"{"turn":0,"main":0,"aux":0,"requests":4}"#),
        (
            "PUT",
            "/__scenario",
            r#"{"turns":[],"x":1}"#,
            400,
            r#"{"error":"scenario text is malformed: unknown field `x`, expected one of `turns`, `after`, `aux`, `auxDetect`, `chunkMs`, `holdLimitMs`, `countTokens` at line 1 column 15"}"#,
        ),
        ("PUT", "/__scenario", r#"{"turns":[]}"#, 200, r#"{"turn":0,"main":0,"aux":0,"requests":4}"#),
        ("GET", "/__nothing", "", 404, r#"{"error":"no such path"}"#),
    ];
    for (method, path, body, status, expected) in rows {
        let answer = request(&server, method, path, body);
        assert_eq!((answer.status, answer.body.as_str()), (status, expected), "{method} {path}");
    }
    let model = |id: &str| json!({"type": "model", "id": id, "display_name": "Scripted model", "created_at": "2025-01-01T00:00:00Z"});
    let list = json!({"data": [model("scripted-model")], "first_id": "scripted-model",
                      "last_id": "scripted-model", "has_more": false});
    for (path, expected) in [("/v1/models?limit=5", list), ("/v1/models/claude-x", model("claude-x"))] {
        let answer = request(&server, "GET", path, "");
        assert_eq!(serde_json::from_str::<Value>(&answer.body).unwrap(), expected, "{path}");
    }
}

#[test]
fn requests_without_tools_get_the_auxiliary_answer() {
    let mut bare = ask("x");
    bare["tools"] = json!([]);
    let server = start([Turn::text("main"), Turn::structured(json!({"n": 1}))]);
    assert!(post(&server, &bare).body.contains("msg_aux_1"));
    assert!(post(&server, &ask("x")).body.contains("msg_main_1"));
    let kinds: Vec<RequestKind> = server.requests().iter().map(|request| request.kind).collect();
    assert_eq!(kinds, [RequestKind::Aux, RequestKind::Main]);

    let without = Scenario { aux_detect: false, ..Scenario::of([Turn::structured(json!({"n": 1}))]) };
    server.replace(without).unwrap();
    let answer = post(&server, &bare);
    let spoken: String = answer
        .body
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok())
        .filter_map(|event| event["delta"]["text"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(spoken, r#"{"n":1}"#);
}

#[test]
fn concurrent_requests_find_their_own_rules() {
    let rule = |word: &str| Turn::text(format!("for {word}")).when(Matcher::any(word));
    let words = ["alpha", "beta", "gamma", "delta"];
    let server = start(words.map(|word| Turn { first_ms: Some(5), ..rule(word) }));
    let answers = std::thread::scope(|scope| {
        let calls =
            words.map(|word| scope.spawn(|| PendingExchange::post(&server, &ask(word)).finish().unwrap()));
        calls.map(|call| call.join().unwrap())
    });
    for (word, answer) in words.iter().zip(answers) {
        let text: String = answer
            .body
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok())
            .filter_map(|event| event["delta"]["text"].as_str().map(str::to_owned))
            .collect();
        assert_eq!(text, format!("for {word}"));
    }
    assert_eq!(server.state(), ServerState { turn: 0, main: 4, aux: 0, requests: 4 });
}

#[tokio::test]
async fn waiting_in_vain_says_what_was_seen() {
    let server = start([Turn::error(401)]);
    let soon = Duration::from_millis(10);
    let error = server.until(soon, |requests| !requests.is_empty()).await.unwrap_err();
    let text = "the scripted model server did not see what was waited for within 10ms; it saw ";
    assert_eq!(error.to_string(), format!("{text}no request"));
    post(&server, &ask("x"));
    let seen =
        server.until(PATIENCE, |requests| endings(requests) == [ExchangeState::Complete]).await.unwrap();
    assert_eq!(seen, server.requests());
    let error = server.wait_until(soon, |requests| requests.len() == 2).unwrap_err();
    assert_eq!(error.to_string(), format!("{text}POST /v1/messages?beta=true (Complete)"));
}
