//! Turns in which the model calls functions: tools of the program and of a real MCP server, who may call them, and what
//! is left when the turn fails, is cancelled or dies in the middle.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use inspan_model_server::{Block, ExchangeState, ModelServer, Turn};
use inspan_protocol::{
    DynHostTool, ErrorCode, ExecutionContext, FnTool, HostTools, Provider, ProviderItem, ProviderSessionId,
    StopReason, StreamEvent, ToolError, ToolOutput, Usage,
};
use inspan_testkit::MCP_SERVER;
use serde_json::{Value, json};
use wiremock::matchers::{body_partial_json, method};
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::super::OpenAiOutput;
use super::server::ResponsesHarness;
use crate::api::tests::harness::{self, reported, scripted};

const SOON: Duration = Duration::from_secs(20);

/// A model's message that says a little and calls these.
fn calls(names: &[&str]) -> Turn {
    let calls = names.iter().map(|name| Block::tool(*name, json!({ "of": "oxen" })));
    Turn { blocks: std::iter::once(Block::text("I look.")).chain(calls).collect(), ..Turn::default() }
}

/// Counts how often it was called, and answers or hangs.
fn counter(calls: &Arc<AtomicUsize>, name: &str) -> Arc<dyn DynHostTool> {
    let calls = Arc::clone(calls);
    let schema = json!({ "type": "object", "properties": { "of": { "type": "string" } } });
    let hangs = name == "hang";
    Arc::new(FnTool::new(name, "Counts.", schema, move |input: Value, _| {
        let count = calls.fetch_add(1, Ordering::SeqCst) + 1;
        async move {
            if hangs {
                std::future::pending::<()>().await;
            }
            Ok::<_, ToolError>(ToolOutput::text(format!("{count} {}", input["of"].as_str().unwrap_or("?"))))
        }
    }))
}

struct Tools {
    harness: ResponsesHarness,
    called: Arc<AtomicUsize>,
    context: ExecutionContext,
}

fn tools(address: &str) -> Tools {
    let harness = ResponsesHarness::new(address);
    let called = Arc::new(AtomicUsize::new(0));
    let tools: HostTools = ["count", "hang"].into_iter().map(|name| counter(&called, name)).collect();
    let mut context = harness.context();
    context.host_mut().tools = tools;
    Tools { harness, called, context }
}

impl Tools {
    async fn turn(&self, input: Value) -> harness::FinishedTurn<OpenAiOutput> {
        self.harness.turn_in(input, self.context.clone(), |_, _| {}).await
    }
}

fn free(prompt: &str) -> Value {
    json!({ "prompt": prompt, "options": { "allowedTools": ["count", "hang"] } })
}

/// The items of a request: who spoke, or the kind, with the output of a call.
fn items(server: &ModelServer, request: usize) -> Vec<String> {
    let body = server.requests()[request].body.clone();
    let item = |item: &Value| match item["type"].as_str().unwrap() {
        "message" => {
            format!("{}: {}", item["role"].as_str().unwrap(), item["content"][0]["text"].as_str().unwrap())
        }
        "function_call_output" => format!("= {}", item["output"].as_str().unwrap()),
        "function_call" => {
            format!("> {}{}", item["name"].as_str().unwrap(), item["arguments"].as_str().unwrap())
        }
        other => other.to_owned(),
    };
    body["input"].as_array().unwrap().iter().map(item).collect()
}

fn tool_events(events: &[StreamEvent]) -> Vec<Value> {
    let tools = events
        .iter()
        .filter(|event| matches!(event, StreamEvent::ToolStart { .. } | StreamEvent::ToolComplete { .. }));
    tools.map(|event| json!(event)).collect()
}

#[tokio::test]
async fn a_call_is_answered_and_the_model_goes_on() {
    let thought = Turn {
        blocks: vec![
            Block::thinking("hm"),
            Block::text("I look."),
            Block::tool("count", json!({ "of": "oxen" })),
        ],
        ..Turn::default()
    };
    let server = scripted([thought, Turn::text("One ox.")]);
    let tools = tools(&server.base_url());
    let (events, output) = tools.turn(free("how many")).await;
    let output = output.unwrap();
    let usage = Usage { input_tokens: 200, output_tokens: 40, ..Usage::default() };
    assert_eq!(
        (output.content.as_str(), output.turn.stop_reason, output.turn.num_turns, output.turn.usage),
        ("One ox.", StopReason::Complete, 2, usage)
    );
    let id = server.requests()[1].body["input"][3]["call_id"].clone();
    assert_eq!(
        tool_events(&events),
        [
            json!({ "type": "toolStart", "toolName": "count", "toolUseId": id, "input": { "of": "oxen" } }),
            json!({ "type": "toolComplete", "toolUseId": id, "result": "1 oxen", "isError": false }),
        ]
    );
    let offered = json!([
        { "type": "function", "name": "count", "description": "Counts.", "strict": false,
          "parameters": { "type": "object", "properties": { "of": { "type": "string" } } } },
        { "type": "function", "name": "hang", "description": "Counts.", "strict": false,
          "parameters": { "type": "object", "properties": { "of": { "type": "string" } } } },
    ]);
    assert_eq!(server.requests()[0].body["tools"], offered);
    let returned =
        ["user: how many", "reasoning", "assistant: I look.", r#"> count{"of":"oxen"}"#, "= 1 oxen"];
    assert_eq!(items(&server, 1), returned);
}

#[tokio::test]
async fn calls_of_one_message_are_answered_in_their_order_and_gone_on_with() {
    let server = scripted([calls(&["count", "nothing", "count"]), Turn::text("Done."), Turn::text("More.")]);
    let tools = tools(&server.base_url());
    let first = tools.turn(free("go")).await.1.unwrap();
    tools.turn(json!({ "prompt": "on", "threadId": first.thread_id })).await.1.unwrap();
    let sent = items(&server, 2);
    let returned: Vec<&str> = sent.iter().map(String::as_str).collect();
    let call = r#"> count{"of":"oxen"}"#;
    let mut counts = [returned[5], returned[7]];
    counts.sort_unstable();
    assert_eq!(counts, ["= 1 oxen", "= 2 oxen"]);
    let rest = [returned[..5].to_vec(), vec![returned[6]], returned[8..].to_vec()].concat();
    assert_eq!(
        rest,
        [
            "user: go",
            "assistant: I look.",
            call,
            r#"> nothing{"of":"oxen"}"#,
            call,
            "= there is no tool `nothing`",
            "assistant: Done.",
            "user: on"
        ]
    );
}

#[tokio::test]
async fn what_nobody_allows_is_denied_and_told() {
    let server = scripted([calls(&["count"]), Turn::text("Pity.")]);
    let tools = tools(&server.base_url());
    let output = tools.turn(json!({ "prompt": "go" })).await.1.unwrap();
    let denials: Vec<&str> =
        output.turn.permission_denials.iter().map(|denial| denial.tool_name.as_str()).collect();
    assert_eq!((denials, tools.called.load(Ordering::SeqCst)), (vec!["count"], 0));
    assert_eq!(items(&server, 1)[3], "= permission to use `count` was denied: there is nobody to ask");
}

#[tokio::test]
async fn tools_of_a_real_server_are_called() {
    let say = Turn {
        blocks: vec![
            Block::tool("mcp__herd__say", json!({ "text": "moo" })),
            Block::tool("mcp__herd__picture", json!({})),
        ],
        ..Turn::default()
    };
    let server = scripted([say, Turn::text("Heard.")]);
    let mut tools = tools(&server.base_url());
    let folder = tools.harness.folder.path().to_owned();
    std::fs::write(folder.join("herd.sh"), MCP_SERVER).unwrap();
    tools.context.host_mut().cwd = Some(folder);
    tools.context.host_mut().env = tools.context.host.env.with("PATH", "/usr/local/bin:/usr/bin:/bin");
    let options = json!({ "mcpServers": { "herd": { "command": "sh", "args": ["herd.sh"] } }, "allowedTools": ["mcp__herd"] });
    let output = tools.turn(json!({ "prompt": "go", "options": options })).await.1.unwrap();
    assert_eq!(output.content, "Heard.");
    let body = server.requests()[1].body.clone();
    let outputs: Vec<&Value> = body["input"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|item| item["type"] == "function_call_output")
        .map(|item| &item["output"])
        .collect();
    assert_eq!(outputs[0], "moo");
    assert_eq!((&outputs[1][0]["type"], &outputs[1][0]["detail"]), (&json!("input_image"), &json!("auto")));
}

#[tokio::test]
async fn a_limit_of_turns_leaves_no_call_open() {
    let server = scripted([calls(&["count"]), calls(&["count"]), Turn::text("Back.")]);
    let tools = tools(&server.base_url());
    let mut input = free("go");
    input["options"]["maxTurns"] = json!(2);
    let output = tools.turn(input).await.1.unwrap();
    assert_eq!(
        (output.turn.stop_reason, output.turn.num_turns, output.content.as_str()),
        (StopReason::MaxTurns, 2, "I look.\n\nI look.")
    );
    assert_eq!(tools.called.load(Ordering::SeqCst), 1);
    tools.turn(json!({ "prompt": "on", "threadId": output.thread_id })).await.1.unwrap();
    let returned = items(&server, 2);
    assert_eq!(
        returned[6..],
        ["= the call was not carried out: the limit of model turns was reached", "user: on"]
    );
}

#[tokio::test]
async fn what_a_tool_did_stays_when_the_turn_fails() {
    let server = scripted([calls(&["count"]), Turn::error(500), Turn::text("Back.")]);
    let tools = tools(&server.base_url());
    let failed = tools.turn(free("go")).await;
    assert_eq!(reported(&failed).0, ErrorCode::Overloaded);
    let session = failed.1.unwrap_err().detail.unwrap()["sessionId"].clone();
    tools.turn(json!({ "prompt": "again", "threadId": session })).await.1.unwrap();
    let returned = ["user: go", "assistant: I look.", r#"> count{"of":"oxen"}"#, "= 1 oxen", "user: again"];
    assert_eq!(items(&server, 2), returned);
    assert_eq!(tools.called.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_turn_that_is_cancelled_in_a_tool_answers_its_call() {
    let server = scripted([calls(&["hang"]), Turn::text("Back.")]);
    let tools = tools(&server.base_url());
    let cancels = |event: &StreamEvent, context: &ExecutionContext| {
        if matches!(event, StreamEvent::ToolStart { .. }) {
            context.cancel.cancel();
        }
    };
    let output = tools.harness.turn_in(free("go"), tools.context.clone(), cancels).await.1.unwrap();
    assert_eq!((output.turn.stop_reason, output.content.as_str()), (StopReason::Aborted, "I look."));
    let context = ExecutionContext::new(tools.context.host.clone());
    let tools = Tools { context, ..tools };
    tools.turn(json!({ "prompt": "on", "threadId": output.thread_id })).await.1.unwrap();
    let returned = items(&server, 1);
    assert!(returned[3].starts_with("= the call was stopped: the turn was cancelled."), "{returned:?}");
    assert_eq!(returned[4], "user: on");
}

#[tokio::test]
async fn a_call_of_a_process_that_died_is_not_made_again() {
    let server = scripted([calls(&["hang"]), Turn::text("Back.")]);
    let tools = tools(&server.base_url());
    let input = serde_json::from_value(free("go")).unwrap();
    let mut stream = tools.harness.provider.execute(input, tools.context.clone());
    let mut session = None;
    while tools.called.load(Ordering::SeqCst) == 0 {
        tokio::select! {
            item = stream.next() => if let Some(Ok(ProviderItem::Event(StreamEvent::Session { session_id }))) = item {
                session = Some(session_id);
            },
            () = tokio::time::sleep(Duration::from_millis(5)) => {}
        }
    }
    drop(stream);
    server.until(SOON, |seen| seen[0].ending == ExchangeState::Complete).await.unwrap();
    tools.turn(json!({ "prompt": "on", "threadId": session })).await.1.unwrap();
    let returned = items(&server, 1);
    assert!(returned[3].starts_with("= the call was interrupted"), "{returned:?}");
    assert_eq!((returned[4].as_str(), tools.called.load(Ordering::SeqCst)), ("user: on", 1));
}

#[tokio::test]
async fn a_call_of_nothing_that_was_offered_is_a_fault() {
    let server = scripted([calls(&["count"])]);
    let harness = ResponsesHarness::new(&server.base_url());
    assert_eq!(reported(&harness.turn(json!({ "prompt": "go" })).await).1, "unexpectedTool");
}

fn recorded(call: &str, response: &str) -> ResponseTemplate {
    let events = [
        json!({ "type": "response.created", "response": { "id": response, "model": "m" } }),
        json!({ "type": "response.completed", "response": { "id": response, "output": [match call {
            "" => json!({ "type": "message", "content": [{ "type": "output_text", "text": "Done." }] }),
            call => json!({ "type": "function_call", "call_id": call, "name": "count", "arguments": "{}" }),
        }] } }),
    ];
    let text: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    ResponseTemplate::new(200).set_body_raw(text, "text/event-stream")
}

/// A vendor that stores conversations: it answers what follows `resp_0` with a call, and what follows that with the rest.
async fn keeping(rest: ResponseTemplate) -> MockServer {
    let server = MockServer::start().await;
    for (before, answer) in [("resp_0", recorded("c1", "resp_1")), ("resp_1", rest)] {
        let known = body_partial_json(json!({ "previous_response_id": before }));
        Mock::given(method("POST")).and(known).respond_with(answer).expect(1).mount(&server).await;
    }
    server
}

#[tokio::test]
async fn an_answer_that_the_vendor_keeps_is_answered_alone() {
    let server = keeping(recorded("", "resp_2")).await;
    let tools = tools(&server.uri());
    let mut input = free("go");
    input["threadId"] = json!("resp_0");
    let output = tools.turn(input).await.1.unwrap();
    assert_eq!(
        (output.content.as_str(), output.thread_id),
        ("Done.", Some(ProviderSessionId::from("resp_2")))
    );
    let sent: Vec<Value> = server
        .received_requests()
        .await
        .unwrap()
        .iter()
        .map(|request| serde_json::from_slice::<Value>(&request.body).unwrap()["input"].clone())
        .collect();
    assert_eq!(sent[0][0]["content"][0]["text"], "go");
    assert_eq!(sent[1], json!([{ "type": "function_call_output", "call_id": "c1", "output": "1 ?" }]));
}

#[tokio::test]
async fn a_call_that_the_vendor_keeps_open_is_not_gone_on_with() {
    // The answer to the call never arrived, so the name before it is the one that can be resumed.
    let server = keeping(ResponseTemplate::new(500)).await;
    let tools = tools(&server.uri());
    let mut input = free("go");
    input["threadId"] = json!("resp_0");
    let error = tools.turn(input).await.1.unwrap_err();
    assert_eq!((error.code, &error.detail.unwrap()["sessionId"]), (ErrorCode::Overloaded, &json!("resp_0")));
}

#[tokio::test]
async fn calls_that_stay_open_in_a_conversation_of_the_vendors_are_told() {
    let server = MockServer::start().await;
    Mock::given(method("POST")).respond_with(recorded("c1", "resp_1")).expect(2).mount(&server).await;
    let tools = tools(&server.uri());
    let warning = StreamEvent::Warning {
        code: "callsUnanswered".to_owned(),
        message: "the conversation that the vendor stores has calls of tools without answers; it may not be gone on with"
            .to_owned(),
    };
    // By its last answer, the one before the call can still be resumed.
    for (thread, expected) in [("conv_1", vec![warning]), ("resp_0", vec![])] {
        let mut input = free("go");
        input["threadId"] = json!(thread);
        input["options"]["maxTurns"] = json!(1);
        let (events, output) = tools.turn(input).await;
        let output = output.unwrap();
        let session = Some(ProviderSessionId::from(thread));
        assert_eq!((output.turn.stop_reason, output.thread_id), (StopReason::MaxTurns, session));
        let reported: Vec<StreamEvent> =
            events.into_iter().filter(|event| matches!(event, StreamEvent::Warning { .. })).collect();
        assert_eq!(reported, expected, "{thread}");
    }
}
