//! Requests to a server on loopback, through the whole runtime: what is sent, how the response is handled, and that no
//! secret is visible.

use std::time::Duration;

use inspan_engine::{NodeCalls, Recorder, Replayer};
use inspan_protocol::{AgentError, Environment, ErrorCode, Event, Outcome};
use serde_json::{Map, Value, json};
use wiremock::{
    Mock, MockServer, Request as Seen, ResponseTemplate,
    matchers::{method, path},
};

use crate::{FlowRunResult, FlowRunnerBuilder, testing::runner};

const TOKEN: &str = "planted-token-0123456789";

fn builder(nodes: Value) -> FlowRunnerBuilder {
    let flow = json!({ "flow": { "name": "http", "secrets": ["API_TOKEN"] }, "nodes": nodes });
    runner(&flow, [("API_TOKEN", TOKEN)]).with_events()
}

async fn run(nodes: Value) -> FlowRunResult {
    builder(nodes).build().run(Map::new()).await.unwrap()
}

/// What a node `a` of this input gives.
async fn request(input: Value) -> Result<Value, AgentError> {
    let result = run(json!([{ "id": "a", "type": "http.request", "input": input }])).await;
    result.outputs.get("a").cloned().ok_or_else(|| result.nodes.get("a").unwrap().error.unwrap())
}

async fn server() -> MockServer {
    let server = MockServer::start().await;
    let json = ResponseTemplate::new(200)
        .set_body_raw(r#"{"ok":true}"#, "application/problem+json; charset=utf-8")
        .insert_header("Set-Cookie", "sid=planted-cookie")
        .insert_header("X-More", "1");
    Mock::given(path("/json")).respond_with(json).mount(&server).await;
    let echo = |seen: &Seen| ResponseTemplate::new(200).set_body_string(format!("{:?}", seen.headers));
    Mock::given(path("/echo")).respond_with(echo).mount(&server).await;
    server
}

async fn last(server: &MockServer) -> Seen {
    server.received_requests().await.unwrap().pop().unwrap()
}

#[tokio::test]
async fn a_request_is_sent_as_written_and_the_response_is_the_output() {
    let server = server().await;
    let output = request(json!({
        "method": "PATCH",
        "url": format!("{}/json?x=1", server.uri()),
        "headers": { "Accept": "application/json", "X-Flow": "{{ flow.name }}" },
        "query": { "q": "a b&c", "n": [1, true], "none": null },
        "json": { "name": "ox", "list": "{{ [1, 2] }}" },
    }))
    .await
    .unwrap();
    let seen = last(&server).await;
    assert_eq!(
        (seen.method.as_str(), seen.url.query(), seen.body_json::<Value>().unwrap()),
        ("PATCH", Some("x=1&n=1&n=true&q=a+b%26c"), json!({ "name": "ox", "list": [1, 2] }))
    );
    let header = |name: &str| seen.headers.get(name).and_then(|value| value.to_str().ok());
    assert_eq!(
        ["accept", "x-flow", "content-type"].map(header),
        [Some("application/json"), Some("http"), Some("application/json")]
    );
    let headers = &output["headers"];
    assert_eq!((&headers["x-more"], &headers["set-cookie"]), (&json!("1"), &json!("[redacted]")));
    assert_eq!(
        (&output["status"], &output["text"], &output["json"]),
        (&json!(200), &json!("{\"ok\":true}"), &json!({ "ok": true }))
    );
    let plain =
        request(json!({ "method": "POST", "url": format!("{}/echo", server.uri()), "body": "x" })).await;
    assert_eq!(plain.unwrap().get("json"), None);
    assert_eq!(last(&server).await.headers["content-type"], "text/plain; charset=utf-8");
}

#[tokio::test]
async fn a_body_that_is_no_text_is_a_warning() {
    let server = server().await;
    let latin =
        ResponseTemplate::new(200).set_body_raw(b"caf\xe9".to_vec(), "text/plain; charset=iso-8859-1");
    Mock::given(path("/latin")).respond_with(latin).mount(&server).await;
    for (page, expected) in [("latin", 1), ("json", 0)] {
        let url = format!("{}/{page}", server.uri());
        let result = run(json!([{ "id": "a", "type": "http.request", "input": { "url": url } }])).await;
        let said = format!("GET {url}: the body is not all UTF-8 text: other bytes are replaced by U+FFFD.");
        let warned = result.events.iter().filter(
            |envelope| matches!(&envelope.event, Event::Log { message, .. } if message.starts_with(&said)),
        );
        assert_eq!(warned.count(), expected, "{page}");
    }
}

#[tokio::test]
async fn a_secret_is_filled_in_where_the_author_wrote_it_and_seen_nowhere() {
    let server = server().await;
    let folder = tempfile::tempdir().unwrap();
    // A node before gives a text that names the secret: it stays a text.
    let nodes = json!([
        { "id": "bait", "type": "constant", "input": { "value": "${API_TOKEN}" } },
        { "id": "a", "type": "http.request", "dependsOn": ["bait"], "input": {
            "method": "POST",
            "url": format!("{}/echo", server.uri()),
            "headers": { "Authorization": "Bearer ${API_TOKEN}", "X-Bait": "{{ bait.value }}" },
            "query": { "key": "${API_TOKEN}", "bait": "{{ bait.value }}" },
            "json": { "secret": "<${API_TOKEN}>", "bait": "{{ bait.value }}", "script": "echo ${HOME}" },
        } },
    ]);
    let recorder = Recorder::new(folder.path()).unwrap();
    let result =
        builder(nodes.clone()).node_calls(NodeCalls::Record(recorder)).build().run(Map::new()).await.unwrap();
    assert_eq!(result.outcome, Outcome::Success);
    let seen = last(&server).await;
    assert_eq!(seen.headers["authorization"], format!("Bearer {TOKEN}").as_str());
    assert_eq!(seen.headers["x-bait"], "${API_TOKEN}");
    assert_eq!(seen.url.query(), Some(format!("bait=%24%7BAPI_TOKEN%7D&key={TOKEN}").as_str()));
    let body = json!({ "secret": format!("<{TOKEN}>"), "bait": "${API_TOKEN}", "script": "echo ${HOME}" });
    assert_eq!(seen.body_json::<Value>().unwrap(), body);
    // The server sent the token back.
    let text = result.outputs.get("a").unwrap()["text"].as_str().unwrap();
    assert!(text.contains("[redacted API_TOKEN]"), "{text}");
    let log = serde_json::to_string(&result.events).unwrap();
    let mut files = std::fs::read_dir(folder.path()).unwrap();
    let recording = std::fs::read_to_string(files.next().unwrap().unwrap().path()).unwrap();
    assert!(files.next().is_none() && recording.contains("Bearer ${API_TOKEN}"), "{recording}");
    for artefact in [log, recording, format!("{:?}", result.outputs)] {
        assert!(!artefact.contains(TOKEN), "{artefact}");
    }
    // The recording answers without a server.
    drop(server);
    let replayer = Replayer::load(folder.path()).unwrap();
    let again =
        builder(nodes).node_calls(NodeCalls::Replay(replayer.clone())).build().run(Map::new()).await.unwrap();
    assert_eq!(again.outputs.get("a"), result.outputs.get("a"));
    assert_eq!(replayer.unplayed(), Vec::<String>::new());
    let other =
        json!([{ "id": "a", "type": "http.request", "input": { "url": "http://127.0.0.1:1/other" } }]);
    let missed =
        builder(other).node_calls(NodeCalls::Replay(replayer)).build().run(Map::new()).await.unwrap();
    let error = missed.nodes.get("a").unwrap().error.unwrap();
    assert!(error.message.starts_with("node `a`: no recording in "), "{}", error.message);
}

#[tokio::test]
async fn a_secret_that_is_not_set_is_named() {
    let input = json!({ "url": "http://127.0.0.1:1", "headers": { "X": "${API_TOKEN}" } });
    let runner = builder(json!([{ "id": "a", "type": "http.request", "input": input }]));
    let result = runner.env(Environment::default()).build().run(Map::new()).await.unwrap();
    let error = result.nodes.get("a").unwrap().error.unwrap();
    let message = "the environment variable `API_TOKEN`, one of the flow's `secrets`, is not set";
    assert_eq!((error.code, error.message.as_str()), (ErrorCode::ConfigMissing, message));
}

#[tokio::test]
async fn redirects_are_followed_and_secrets_stay_with_their_server() {
    let (server, other) = (server().await, server().await);
    let to =
        |status: u16, location: String| ResponseTemplate::new(status).insert_header("location", location);
    Mock::given(path("/here")).respond_with(to(302, "/echo".to_owned())).mount(&server).await;
    Mock::given(path("/away")).respond_with(to(307, format!("{}/echo", other.uri()))).mount(&server).await;
    Mock::given(path("/round")).respond_with(to(302, "/round".to_owned())).mount(&server).await;
    Mock::given(path("/file")).respond_with(to(301, "file:///etc/passwd".to_owned())).mount(&server).await;
    let headers = json!({ "X-Key": "${API_TOKEN}", "Cookie": "a=b", "X-Open": "1" });
    let url = |path: &str| format!("{}{path}", server.uri());
    let post = json!({ "method": "POST", "url": url("/here"), "headers": headers, "body": "x" });
    assert_eq!(request(post).await.unwrap()["status"], 200);
    let seen = last(&server).await;
    assert_eq!((seen.method.as_str(), seen.body.len()), ("GET", 0));
    assert_eq!(
        (&seen.headers["x-key"], &seen.headers["cookie"]),
        (&TOKEN.parse().unwrap(), &"a=b".parse().unwrap())
    );
    let post = json!({ "method": "POST", "url": url("/away"), "headers": headers, "body": "x" });
    assert_eq!(request(post).await.unwrap()["status"], 200);
    let seen = last(&other).await;
    assert_eq!((seen.method.as_str(), seen.body.as_slice()), ("POST", b"x".as_slice()));
    assert_eq!(
        ["x-key", "cookie", "x-open"].map(|name| seen.headers.contains_key(name)),
        [false, false, true]
    );
    let rows = [
        (json!({ "url": url("/round"), "maxRedirects": 2 }), "the server redirects more than 2 times"),
        (json!({ "url": url("/file") }), "the server redirects to an invalid address"),
        (
            json!({ "method": "POST", "url": url("/away"), "body": "${API_TOKEN}" }),
            "the server redirects to another one, which must not get the secret of the body",
        ),
    ];
    for (input, why) in rows {
        let error = request(input).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::Protocol);
        assert!(error.message.ends_with(why), "{}", error.message);
    }
    let kept = request(json!({ "url": url("/round"), "maxRedirects": 0 })).await.unwrap();
    assert_eq!((&kept["status"], &kept["headers"]["location"]), (&json!(302), &json!("/round")));
}

#[tokio::test]
async fn a_status_is_a_failure_unless_it_is_allowed() {
    let server = MockServer::start().await;
    let rows = [
        (404, ErrorCode::InvalidRequest, "404 Not Found: nothing here"),
        (401, ErrorCode::InvalidRequest, "401 Unauthorized: nothing here"),
        (429, ErrorCode::RateLimited, "429 Too Many Requests: nothing here"),
        (503, ErrorCode::Overloaded, "503 Service Unavailable: nothing here"),
        (504, ErrorCode::Timeout, "504 Gateway Timeout: nothing here"),
    ];
    for (status, code, words) in rows {
        let answer = ResponseTemplate::new(status)
            .set_body_string("<html>\nnothing here")
            .insert_header("retry-after", "7");
        Mock::given(path(format!("/{status}"))).respond_with(answer).mount(&server).await;
        let url = format!("{}/{status}?token=planted", server.uri());
        let error = request(json!({ "url": url })).await.unwrap_err();
        assert_eq!(error.code, code);
        assert_eq!(error.message, format!("GET {}/{status} was answered with {words}", server.uri()));
        assert_eq!(
            error.detail.as_deref(),
            Some(&json!({ "status": status, "text": "<html>\nnothing here" }))
        );
        let wait = error.is_retryable().then(|| Duration::from_secs(7));
        assert_eq!(error.retry_after, wait);
        for allowed in [json!([418, status]), json!("any")] {
            let output = request(json!({ "url": url, "allowStatus": allowed })).await.unwrap();
            assert_eq!(output["status"], status);
        }
    }
}

#[tokio::test]
async fn a_refusal_shows_no_part_of_a_secret() {
    let server = MockServer::start().await;
    let body = format!("{}{TOKEN}{}", "x".repeat(8 * 1024 - 10), "y".repeat(1000));
    let refused = ResponseTemplate::new(401).set_body_string(body);
    Mock::given(method("GET")).respond_with(refused).mount(&server).await;
    let error = request(json!({ "url": server.uri() })).await.unwrap_err();
    let detail = error.detail.unwrap();
    let shown = detail["text"].as_str().unwrap();
    assert!(shown.starts_with("xxx") && !shown.contains("planted"), "{}", &shown[8_000..]);
}

#[tokio::test]
async fn a_busy_server_is_asked_again_when_it_says_so() {
    let server = MockServer::start().await;
    let busy = ResponseTemplate::new(429).insert_header("retry-after-ms", "20");
    Mock::given(method("GET")).respond_with(busy).up_to_n_times(2).mount(&server).await;
    Mock::given(method("GET")).respond_with(ResponseTemplate::new(200)).mount(&server).await;
    let retry = json!({ "maxAttempts": 3, "backoff": "1h", "on": "retryable" });
    let node = json!({ "id": "a", "type": "http.request", "input": { "url": server.uri() }, "policy": { "retry": retry } });
    let result = run(json!([node])).await;
    assert_eq!((result.outcome, result.nodes.get("a").unwrap().attempts), (Outcome::Success, 3));
}

#[tokio::test]
async fn what_is_too_large_or_gone_is_an_error_without_the_address_of_secrets() {
    let server = MockServer::start().await;
    let large = ResponseTemplate::new(200).set_body_bytes(vec![b'x'; (8 << 20) + 1]);
    Mock::given(path("/large")).respond_with(large).mount(&server).await;
    let error = request(json!({ "url": format!("{}/large", server.uri()) })).await.unwrap_err();
    let message = format!("GET {}/large: the answer is larger than 8388608 bytes", server.uri());
    assert_eq!((error.code, error.message), (ErrorCode::Protocol, message));
    let error =
        request(json!({ "url": "http://me:planted-word@127.0.0.1:1/x?y=planted" })).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::Network);
    assert!(
        error.message.starts_with("GET http://127.0.0.1:1/x: the connection failed"),
        "{}",
        error.message
    );
    assert!(!error.message.contains("planted"));
}

#[tokio::test]
async fn a_stop_ends_a_request() {
    let server = MockServer::start().await;
    let slow = ResponseTemplate::new(200).set_delay(Duration::from_secs(600));
    Mock::given(path("/slow")).respond_with(slow).mount(&server).await;
    let url = format!("{}/slow", server.uri());
    let runner = builder(json!([{ "id": "a", "type": "http.request", "input": { "url": url } }])).build();
    let handle = runner.handle();
    let running = tokio::spawn(runner.run(Map::new()));
    while server.received_requests().await.unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    handle.stop(None).unwrap();
    let result = tokio::time::timeout(Duration::from_secs(10), running).await.unwrap().unwrap().unwrap();
    assert_eq!(result.outcome, Outcome::Stopped);
    let ended = |event: &Event| matches!(event, Event::TaskCancelled { .. });
    assert!(result.events.iter().any(|envelope| ended(&envelope.event)));
}
