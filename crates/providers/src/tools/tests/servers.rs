//! MCP servers that are real processes, and one over HTTP: what they offer and answer, how they fail, and that nothing
//! of them is left.

use std::time::Duration;

use inspan_protocol::{ErrorCode, PermissionDecision};
use serde_json::{Value, json};
use tokio::time::Instant;
use wiremock::matchers::{body_string_contains, header, method};
use wiremock::{Mock, MockServer, Request, ResponseTemplate};

use super::harness::{PLANTED, ToolHarness, herd};
use inspan_transport::Close;

fn options(mode: &str) -> Value {
    json!({ "mcpServers": herd(mode), "allowedTools": ["mcp__herd"], "mcpTimeoutMs": 8000, "toolTimeoutMs": 8000 })
}

fn named(name: &str) -> String {
    format!("mcp__herd__{name}")
}

#[tokio::test]
async fn a_server_offers_its_tools_of_all_pages_and_answers() {
    let harness = ToolHarness::new();
    let (toolbox, reported) = harness.open(options("")).await.unwrap();
    let names: Vec<&str> = toolbox.specs().iter().map(|tool| tool.name.as_str()).collect();
    let expected = [
        "count",
        "die",
        "error",
        "fail",
        "hang",
        "huge",
        "lie",
        "picture",
        "say",
        "secret",
        "slow",
        "strange_name",
    ];
    assert_eq!((names, reported), (expected.map(named).iter().map(String::as_str).collect(), vec![]));
    let say = &toolbox.specs()[8];
    assert_eq!(
        (say.description.as_str(), &say.input_schema),
        ("Says a text.", &json!({ "type": "object", "properties": { "text": { "type": "string" } } }))
    );
    let calls = [
        ("mcp__herd__say", json!({ "text": "moo" })),
        ("mcp__herd__count", json!({})),
        ("mcp__herd__picture", json!({})),
        ("mcp__herd__strange_name", json!({})),
        ("mcp__herd__fail", json!({})),
        ("mcp__herd__error", json!({})),
        ("mcp__herd__lie", json!({})),
        ("mcp__herd__huge", json!({})),
        ("mcp__herd__secret", json!({})),
    ];
    let outcome = harness.call(&toolbox, &calls).await;
    let reported = |name: &str| outcome.reported(&named(name));
    let ok = |text: &str| (text.to_owned(), false);
    let bad = |text: &str| (text.to_owned(), true);
    assert_eq!(reported("say"), ok("moo"));
    let blocks: Value = serde_json::from_str(&reported("count").0).unwrap();
    assert_eq!(
        blocks,
        json!([{ "type": "text", "text": "1 oxen" }, { "type": "text", "text": "{\"oxen\":1}" }])
    );
    assert_eq!(reported("picture"), ok(r#"[{"data":"aGk=","media_type":"image/png","type":"image"}]"#));
    assert_eq!(reported("strange_name"), ok("strange"));
    assert_eq!(reported("fail"), bad("the ox ran away"));
    assert_eq!(reported("error"), bad("no such ox"));
    assert!(reported("lie").1, "{:?}", reported("lie"));
    assert!(reported("huge").0.len() < 220_000);
    // The server has its own secret and no vendor's key; the secret is taken out of what it says.
    assert_eq!(reported("secret"), ok("token [redacted HERD_TOKEN], key none"));
    assert_eq!(
        outcome.warnings(),
        [
            "toolResultCut: of the answer of `mcp__herd__huge`: cut off 95200 of 300000 bytes of text",
            "mcpStray: the MCP server `herd` writes lines to its output that are not messages",
        ]
    );
    toolbox.close(Close::Gently).await;
    harness.nobody_left().await;
}

#[tokio::test]
async fn a_server_asks_like_any_other_tool() {
    let no = PermissionDecision::Deny { message: "leave it".to_owned() };
    let (harness, person) = ToolHarness::new().answering(no);
    let options = json!({ "mcpServers": herd(""), "disallowedTools": ["mcp__herd__s*"] });
    let (toolbox, _) = harness.open(options).await.unwrap();
    assert_eq!(toolbox.specs().len(), 8);
    let calls = [("mcp__herd__count", json!({ "a": 1 })), ("mcp__herd__say", json!({}))];
    let outcome = harness.call(&toolbox, &calls).await;
    assert_eq!(outcome.reported("mcp__herd__count"), ("leave it".to_owned(), true));
    assert_eq!(outcome.reported("mcp__herd__say").0, "there is no tool `mcp__herd__say`");
    let asked: Vec<String> = person.asked().into_iter().map(|asked| asked.tool_name).collect();
    assert_eq!((asked, outcome.denials.len()), (vec![named("count")], 1));
    toolbox.close(Close::AtOnce).await;
    assert_eq!(harness.file("herd.log"), "");
    harness.nobody_left().await;
}

#[tokio::test]
async fn a_server_that_does_not_begin_is_named() {
    let rows = [
        ("silent", ErrorCode::Timeout, "the MCP server `herd` listed no tools within 700 ms"),
        (
            "gone",
            ErrorCode::Process,
            "the MCP server `herd` ended with exit code 3; it said: no gate for [redacted HERD_TOKEN]",
        ),
        (
            "flood",
            ErrorCode::Protocol,
            "the MCP server `herd` wrote more than 100 lines to its output that are not messages",
        ),
        (
            "old",
            ErrorCode::Protocol,
            "the MCP server `herd` refuses to begin: too old for [redacted HERD_TOKEN]",
        ),
    ];
    for (mode, code, message) in rows {
        let harness = ToolHarness::new();
        let limit = if mode == "silent" { 700 } else { 8000 };
        let error =
            harness.open(json!({ "mcpServers": herd(mode), "mcpTimeoutMs": limit })).await.err().unwrap();
        assert_eq!((error.code, error.message.as_str()), (code, message), "{mode}");
        assert_eq!(error.detail.as_deref().map(|detail| &detail["server"]), Some(&json!("herd")));
        assert!(!format!("{error:?}").contains(PLANTED));
        harness.nobody_left().await;
    }
    let harness = ToolHarness::new();
    for (command, code) in [("no-such-program", ErrorCode::ConfigMissing), ("./nowhere", ErrorCode::Process)]
    {
        let servers = json!({ "mcpServers": { "herd": { "command": command } } });
        let error = harness.open(servers).await.err().unwrap();
        assert_eq!(error.code, code, "{error:?}");
        assert!(error.message.starts_with("the MCP server `herd` cannot be started: "), "{}", error.message);
    }
}

#[tokio::test]
async fn a_noisy_server_is_warned_of_and_works() {
    let harness = ToolHarness::new();
    let outcome = harness.run(options("noisy"), &[("mcp__herd__say", json!({ "text": "moo" }))]).await;
    assert_eq!(outcome.reported("mcp__herd__say"), ("moo".to_owned(), false));
    assert_eq!(
        outcome.warnings(),
        ["mcpStray: the MCP server `herd` writes lines to its output that are not messages"]
    );
}

#[tokio::test]
async fn a_server_that_dies_in_a_call_leaves_an_answer() {
    let harness = ToolHarness::new();
    let (toolbox, _) = harness.open(options("")).await.unwrap();
    let outcome = harness.call(&toolbox, &[("mcp__herd__die", json!({}))]).await;
    let why =
        "the MCP server `herd` ended with exit code 3; it said: struck by lightning, [redacted HERD_TOKEN]";
    let reported = format!("{why}. Whether the call was carried out is not known");
    assert_eq!(outcome.reported("mcp__herd__die"), (reported, true));
    assert_eq!(outcome.warnings(), [format!("mcpLost: {why}")]);
    // It is not started again, and not warned of again.
    let outcome = harness.call(&toolbox, &[("mcp__herd__say", json!({ "text": "moo" }))]).await;
    assert!(outcome.reported("mcp__herd__say").1);
    assert_eq!(outcome.warnings(), Vec::<String>::new());
    toolbox.close(Close::Gently).await;
    assert_eq!(harness.file("herd.pids").lines().count(), 1);
    harness.nobody_left().await;
}

#[tokio::test]
async fn a_call_that_takes_too_long_is_stopped_and_the_server_notified() {
    let harness = ToolHarness::new();
    let mut options = options("");
    options["mcpServers"]["herd"]["timeout"] = json!(300);
    let (toolbox, _) = harness.open(options).await.unwrap();
    let outcome = harness.call(&toolbox, &[("mcp__herd__hang", json!({}))]).await;
    let reported = outcome.reported("mcp__herd__hang");
    assert!(
        reported.1 && reported.0.starts_with("the call was stopped: it took longer than 300 ms"),
        "{reported:?}"
    );
    // The server continues, was notified, and the processes of the call end with it.
    let outcome = harness.call(&toolbox, &[("mcp__herd__say", json!({ "text": "still here" }))]).await;
    assert_eq!(outcome.reported("mcp__herd__say").0, "still here");
    assert_eq!(harness.file("herd.log"), "hang\ncancelled\n");
    toolbox.close(Close::Gently).await;
    assert_eq!(harness.file("herd.pids").lines().count(), 2);
    harness.nobody_left().await;
}

#[tokio::test]
async fn nothing_of_a_server_is_left_whatever_it_does() {
    // One that does not react is killed.
    let harness = ToolHarness::new();
    let (toolbox, _) = harness.open(options("deaf")).await.unwrap();
    let began = Instant::now();
    toolbox.close(Close::Gently).await;
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
    harness.nobody_left().await;
    // One whose toolbox is dropped in the middle of a call, too.
    let harness = ToolHarness::new();
    let (toolbox, _) = harness.open(options("deaf")).await.unwrap();
    let call = [("mcp__herd__hang", json!({}))];
    let hanging = tokio::time::timeout(Duration::from_millis(500), harness.call(&toolbox, &call)).await;
    assert!(hanging.is_err());
    drop(toolbox);
    harness.nobody_left().await;
}

/// A server over HTTP that answers as JSON, or with another status.
async fn remote(status: u16) -> MockServer {
    let server = MockServer::start().await;
    let answer = move |request: &Request| {
        let asked: Value = serde_json::from_slice(&request.body).unwrap();
        let Some(id) = asked.get("id") else { return ResponseTemplate::new(202) };
        let result = match asked["method"].as_str().unwrap() {
            "initialize" => json!({ "protocolVersion": "2025-06-18", "capabilities": { "tools": {} },
                "serverInfo": { "name": "far", "version": "1" } }),
            "tools/list" => json!({ "tools": [{ "name": "add", "inputSchema": { "type": "object" } }] }),
            "tools/call" if status != 200 => return ResponseTemplate::new(status),
            "tools/call" => json!({ "content": [{ "type": "text", "text": format!("5 for {PLANTED}") }] }),
            other => panic!("{other}"),
        };
        ResponseTemplate::new(200).set_body_json(json!({ "jsonrpc": "2.0", "id": id, "result": result }))
    };
    Mock::given(method("POST")).and(header("x-pass", PLANTED)).respond_with(answer).mount(&server).await;
    Mock::given(method("GET")).respond_with(ResponseTemplate::new(405)).mount(&server).await;
    Mock::given(method("POST"))
        .respond_with(ResponseTemplate::new(401))
        .with_priority(9)
        .mount(&server)
        .await;
    server
}

fn far(server: &MockServer, pass: &str) -> Value {
    json!({
        "mcpServers": { "far": { "type": "http", "url": server.uri(), "headers": { "X-Pass": pass } } },
        "allowedTools": ["mcp__far__*"],
    })
}

#[tokio::test]
async fn a_server_over_http_is_one_like_the_others() {
    let server = remote(200).await;
    let harness = ToolHarness::new();
    let outcome = harness.run(far(&server, PLANTED), &[("mcp__far__add", json!({ "a": 2 }))]).await;
    assert_eq!(outcome.reported("mcp__far__add"), ("5 for [redacted]".to_owned(), false));
    let calls = server.received_requests().await.unwrap();
    let call = calls.iter().find(|call| call.body.windows(10).any(|part| part == b"tools/call")).unwrap();
    assert_eq!(call.body_json::<Value>().unwrap()["params"]["arguments"], json!({ "a": 2 }));

    let error = harness.open(far(&server, "planted-other-pass")).await.err().unwrap();
    assert_eq!(
        (error.code, error.message.as_str()),
        (ErrorCode::Auth, "the MCP server `far` does not accept us; it needs other `headers`")
    );
    let nobody =
        json!({ "mcpServers": { "far": { "url": "http://127.0.0.1:1/mcp?key=planted-query-pass" } } });
    let error = harness.open(nobody).await.err().unwrap();
    assert_eq!(
        (error.code, error.message.as_str()),
        (ErrorCode::Network, "the MCP server `far` cannot be reached")
    );
    assert!(!format!("{error:?}").contains("planted"));
}

#[tokio::test]
async fn an_answer_that_cannot_be_read_fails_its_call_at_once() {
    let unread = |server: &str, why: &str| {
        let what = format!("the MCP server `{server}` gave an answer that cannot be read: {why}");
        (format!("{what}. Whether the call was carried out is not known"), true)
    };
    let harness = ToolHarness::new();
    let (toolbox, _) = harness.open(options("")).await.unwrap();
    // The server takes the text to end at the quotation mark within it.
    let outcome = harness.call(&toolbox, &[("mcp__herd__say", json!({ "text": "moo\"" }))]).await;
    assert_eq!(
        (outcome.reported("mcp__herd__say"), outcome.warnings()),
        (unread("herd", "EOF while parsing a string at line 1 column 77"), vec![])
    );
    let outcome = harness.call(&toolbox, &[("mcp__herd__say", json!({ "text": "moo" }))]).await;
    assert_eq!(outcome.reported("mcp__herd__say"), ("moo".to_owned(), false));
    toolbox.close(Close::Gently).await;
    for (form, before, after) in [("application/json", "", ""), ("text/event-stream", "data: ", "\n\n")] {
        let server = remote(200).await;
        let broken = move |request: &Request| {
            let id = &request.body_json::<Value>().unwrap()["id"];
            let answer = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[{{]}}}}"#);
            ResponseTemplate::new(200).set_body_raw(format!("{before}{answer}{after}"), form)
        };
        Mock::given(body_string_contains("tools/call"))
            .respond_with(broken)
            .with_priority(1)
            .mount(&server)
            .await;
        let outcome = harness.run(far(&server, PLANTED), &[("mcp__far__add", json!({}))]).await;
        assert_eq!(
            outcome.reported("mcp__far__add"),
            unread("far", "key must be a string at line 1 column 47"),
            "{form}"
        );
    }
}

#[tokio::test]
async fn a_call_over_http_that_fails_is_made_once() {
    for status in [404, 500, 503] {
        let server = remote(status).await;
        let harness = ToolHarness::new();
        let outcome = harness.run(far(&server, PLANTED), &[("mcp__far__add", json!({}))]).await;
        let reported = outcome.reported("mcp__far__add");
        assert!(
            reported.1 && reported.0.contains("Whether the call was carried out is not known"),
            "{status}: {reported:?}"
        );
        let calls = server.received_requests().await.unwrap();
        let calls =
            calls.iter().filter(|call| call.body.windows(10).any(|part| part == b"tools/call")).count();
        assert_eq!(calls, 1, "{status}");
    }
}
