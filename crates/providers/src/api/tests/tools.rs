//! Turns that call tools of the program and of a real MCP server: who may call them, what the next request holds, and what
//! is left after a failure, a cancellation and a crash.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use inspan_model_server::{Block, ModelServer, Turn};
use inspan_protocol::{
    ErrorCode, ExecutionContext, FnTool, HostTools, Provider, ProviderItem, ProviderOutput, StopReason,
    StreamEvent, ToolOutput, Usage,
};
use inspan_testkit::{MCP_SERVER, running_servers};
use serde_json::{Value, json};

use super::harness::{Harness, Vendor, reported, scripted, session_of, spoken, text};
use crate::program::tests::fake::wait_until;
use crate::tests::FinishedTurn;

const SOON: Duration = Duration::from_secs(20);

/// A call in a request of either vendor.
const CALL: &str = r#"> count{"of":"oxen"}"#;

/// A harness whose program gives the tool `count`, and how often that was called.
pub(crate) struct Tools<V: Vendor> {
    pub(crate) harness: Harness<V>,
    pub(crate) called: Arc<AtomicUsize>,
    pub(crate) context: ExecutionContext,
}

impl<V: Vendor> Tools<V> {
    pub(crate) fn new(address: &str) -> Self {
        let harness = Harness::new(address);
        let called = Arc::new(AtomicUsize::new(0));
        let calls = Arc::clone(&called);
        let schema = json!({ "type": "object", "properties": { "of": { "type": "string" } } });
        let tool = FnTool::new("count", "Counts.", schema, move |input: Value, _| {
            let count = calls.fetch_add(1, Ordering::SeqCst) + 1;
            async move { Ok(ToolOutput::text(format!("{count} {}", input["of"].as_str().unwrap_or("?")))) }
        });
        let mut context = harness.context();
        context.host_mut().tools = HostTools::default().with(tool);
        Self { harness, called, context }
    }

    pub(crate) async fn turn(&self, input: Value) -> FinishedTurn<V::Output> {
        self.harness.turn_in(input, self.context.clone(), |_, _| {}).await
    }
}

/// A model's message that says a little and calls these.
pub(crate) fn calls(names: &[&str]) -> Turn {
    let calls = names.iter().map(|name| Block::tool(*name, json!({ "of": "oxen" })));
    Turn { blocks: std::iter::once(Block::text("I look.")).chain(calls).collect(), ..Turn::default() }
}

/// An input that allows `count`, with further options.
pub(crate) fn free(prompt: &str, options: Value) -> Value {
    let mut input = json!({ "prompt": prompt, "options": { "allowedTools": ["count"] } });
    for (name, value) in options.as_object().unwrap() {
        input["options"][name] = value.clone();
    }
    input
}

pub(crate) async fn calls_of_one_message_are_answered_in_their_order_and_the_turn_continues<V: Vendor>() {
    let server = scripted([calls(&["count", "nothing", "count"]), Turn::text("Done."), Turn::text("More.")]);
    let tools = Tools::<V>::new(&server.base_url());
    let (events, output) = tools.turn(free("go", json!({}))).await;
    let facts = output.unwrap().facts();
    let usage = Usage { input_tokens: 200, output_tokens: 40, ..Usage::default() };
    assert_eq!((facts.stop_reason, facts.num_turns, facts.usage), (StopReason::Complete, 2, usage));
    assert_eq!(text(&events), "I look.Done.");
    let started = |event: &&StreamEvent| matches!(event, StreamEvent::ToolStart { .. });
    let completed = |event: &&StreamEvent| matches!(event, StreamEvent::ToolComplete { .. });
    assert_eq!((events.iter().filter(started).count(), events.iter().filter(completed).count()), (3, 3));
    let resumed = json!({ "prompt": "on", "options": { "resume": session_of(&events) } });
    tools.turn(resumed).await.1.unwrap();
    let mut sent = spoken::<V>(&server, 2);
    // Both run at once.
    let mut counts = [std::mem::take(&mut sent[5]), std::mem::take(&mut sent[7])];
    counts.sort_unstable();
    assert_eq!(counts, ["= 1 oxen", "= 2 oxen"]);
    let unknown = (r#"> nothing{"of":"oxen"}"#, "= there is no tool `nothing`");
    let rest = [
        "user: go",
        "assistant: I look.",
        CALL,
        unknown.0,
        CALL,
        "",
        unknown.1,
        "",
        "assistant: Done.",
        "user: on",
    ];
    assert_eq!(sent, rest);
}

pub(crate) async fn the_limit_of_model_turns_leaves_no_call_open<V: Vendor>() {
    for (limit, left, requests, ran) in
        [(Some(2), None, 2, 1), (Some(9), Some(1), 1, 0), (None, Some(0), 1, 0)]
    {
        let asks = vec![calls(&["count"]); requests];
        let server = scripted(asks.into_iter().chain([Turn::text("Back.")]));
        let tools = Tools::<V>::new(&server.base_url());
        let context = ExecutionContext { turns_left: left, ..tools.context.clone() };
        let options = limit.map_or(json!({}), |limit| json!({ "maxTurns": limit }));
        let (events, output) = tools.harness.turn_in(free("go", options), context, |_, _| {}).await;
        let output = output.unwrap();
        let facts = output.facts();
        assert_eq!((facts.stop_reason, facts.num_turns as usize), (StopReason::MaxTurns, requests));
        assert_eq!(V::returned(&output).0, vec!["I look."; requests].join("\n\n"));
        assert_eq!((server.requests().len(), tools.called.load(Ordering::SeqCst)), (requests, ran));
        let resumed = json!({ "prompt": "on", "options": { "resume": session_of(&events) } });
        tools.turn(resumed).await.1.unwrap();
        let sent = spoken::<V>(&server, requests);
        let open = "= the call was not carried out: the limit of model turns was reached";
        assert_eq!(sent[sent.len() - 2..], [open, "user: on"]);
    }
}

pub(crate) async fn a_failure_after_a_tool_takes_nothing_back<V: Vendor>() {
    let cut = Turn { truncate_after: Some(5), ..Turn::text("never whole") };
    let server = scripted([calls(&["count"]), Turn::error(529), calls(&["count"]), cut, Turn::text("Two.")]);
    let tools = Tools::<V>::new(&server.base_url());
    let failed = tools.turn(free("go", json!({}))).await;
    assert_eq!(reported(&failed).0, ErrorCode::Overloaded);
    let session = failed.1.unwrap_err().detail.unwrap()["sessionId"].clone();
    let again = free("again", json!({ "resume": session }));
    assert_eq!(reported(&tools.turn(again.clone()).await).0, ErrorCode::Network);
    let output = tools.turn(again).await.1.unwrap();
    assert_eq!((V::returned(&output).0, tools.called.load(Ordering::SeqCst)), ("Two.", 2));
    let once = |prompt: &'static str, count: &'static str| [prompt, "assistant: I look.", CALL, count];
    let expected = [&once("user: go", "= 1 oxen")[..], &once("user: again", "= 2 oxen"), &["user: again"]];
    assert_eq!(spoken::<V>(&server, 4), expected.concat());
}

pub(crate) async fn a_call_where_nothing_was_offered_is_a_fault<V: Vendor>() {
    let server = scripted([calls(&["count"])]);
    let turn = Harness::<V>::new(&server.base_url()).turn(json!({ "prompt": "go" })).await;
    let (code, kind, _) = reported(&turn);
    assert_eq!((code, kind.as_str()), (ErrorCode::Protocol, "unexpectedTool"));
}

/// A harness with an MCP server, whose program works in its folder, and the options that name that server.
fn herd<V: Vendor>(server: &ModelServer) -> (Tools<V>, Value) {
    let mut tools = Tools::new(&server.base_url());
    let folder = tools.harness.folder.path().to_owned();
    std::fs::write(folder.join("herd.sh"), MCP_SERVER).unwrap();
    tools.context.host_mut().cwd = Some(folder);
    let env = json!({ "HERD_TOKEN": "planted-herd-token", "PATH": "/usr/bin:/bin" });
    let command = json!({ "command": "/bin/sh", "args": ["herd.sh"], "env": env });
    (tools, json!({ "mcpServers": { "herd": command }, "allowedTools": ["mcp__herd"] }))
}

/// Waits until no process of the MCP server is left; there was one at least.
async fn nobody_left<V: Vendor>(tools: &Tools<V>) {
    wait_until(|| running_servers(tools.harness.folder.path()).is_empty()).await;
}

/// A model's message that calls these of the MCP server.
fn herd_calls(names: &[&str]) -> Turn {
    let calls = names.iter().map(|name| Block::tool(format!("mcp__herd__{name}"), json!({})));
    Turn { blocks: calls.collect(), ..Turn::default() }
}

pub(crate) async fn a_real_server_is_called_and_gone_with_the_turn<V: Vendor>() {
    let server = scripted([herd_calls(&["count", "secret"]), herd_calls(&["die"]), Turn::text("One.")]);
    let (tools, options) = herd::<V>(&server);
    let turn = tools.turn(json!({ "prompt": "go", "options": options })).await;
    assert_eq!(V::returned(turn.1.as_ref().unwrap()).0, "One.");
    nobody_left(&tools).await;
    let sent = spoken::<V>(&server, 2);
    assert_eq!(sent[3..5], ["= 1 oxen", "= token [redacted HERD_TOKEN], key none"]);
    assert!(sent[6].starts_with("= the MCP server `herd` ended with exit code 3"), "{}", sent[6]);
    // What the server needs is nowhere else.
    let artefacts = format!("{turn:?}{}{:?}", tools.harness.stored(), server.requests());
    assert!(
        !artefacts.contains("planted-herd-token") && artefacts.contains("struck by lightning"),
        "{artefacts}"
    );
}

pub(crate) async fn a_turn_cancelled_within_a_tool_leaves_an_answer_and_no_process<V: Vendor>() {
    let server = scripted([herd_calls(&["hang"]), Turn::text("Back.")]);
    let (tools, options) = herd::<V>(&server);
    let cancels = |event: &StreamEvent, context: &ExecutionContext| {
        if matches!(event, StreamEvent::ToolStart { .. }) {
            let (cancel, log) = (context.cancel.clone(), tools.harness.folder.path().join("herd.log"));
            tokio::spawn(async move {
                while !log.exists() {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                cancel.cancel();
            });
        }
    };
    let input = json!({ "prompt": "go", "options": options });
    let (events, output) = tools.harness.turn_in(input, tools.context.clone(), cancels).await;
    let facts = output.unwrap().facts();
    assert_eq!((facts.stop_reason, facts.num_turns), (StopReason::Aborted, 1));
    assert!(matches!(events.last(), Some(StreamEvent::ToolComplete { is_error: true, .. })), "{events:?}");
    nobody_left(&tools).await;
    let resumed = json!({ "prompt": "on", "options": { "resume": session_of(&events) } });
    tools.harness.turn(resumed).await.1.unwrap();
    let sent = spoken::<V>(&server, 1);
    assert!(sent[2].starts_with("= the call was stopped: the turn was cancelled"), "{}", sent[2]);
    assert_eq!(sent[3], "user: on");
}

pub(crate) async fn a_turn_whose_process_died_within_a_tool_does_not_run_it_again<V: Vendor>() {
    let server = scripted([herd_calls(&["count", "hang"]), Turn::text("Back.")]);
    let (tools, mut options) = herd::<V>(&server);
    let input = serde_json::from_value(json!({ "prompt": "go", "options": options })).unwrap();
    let mut stream = tools.harness.provider.execute(input, tools.context.clone());
    let mut session = None;
    let completed = async {
        while let Some(item) = stream.next().await {
            match item.unwrap() {
                ProviderItem::Event(StreamEvent::Session { session_id }) => session = Some(session_id),
                ProviderItem::Event(StreamEvent::ToolComplete { .. }) => return,
                _ => {}
            }
        }
    };
    tokio::time::timeout(SOON, completed).await.unwrap();
    // The answer is stored when the stream is polled again.
    let more = tokio::time::timeout(Duration::from_millis(500), stream.next()).await;
    assert!(more.is_err(), "{more:?}");
    drop(stream);
    nobody_left(&tools).await;
    options["resume"] = json!(session);
    let output = tools.turn(json!({ "prompt": "on", "options": options })).await.1.unwrap();
    assert_eq!(V::returned(&output).0, "Back.");
    let sent = spoken::<V>(&server, 1);
    assert_eq!((sent[3].as_str(), sent[5].as_str()), ("= 1 oxen", "user: on"));
    assert!(sent[4].starts_with("= the call was interrupted"), "{}", sent[4]);
    // Unlike a process that dies, a stream that is dropped may still cancel the call.
    let log = std::fs::read_to_string(tools.harness.folder.path().join("herd.log")).unwrap();
    let calls: Vec<_> = log.lines().filter(|line| *line != "cancelled").collect();
    assert_eq!(calls, ["count", "hang"]);
}

pub(crate) async fn a_server_that_does_not_start_keeps_the_model_from_being_asked<V: Vendor>() {
    let server = scripted([Turn::text("never")]);
    let (tools, mut options) = herd::<V>(&server);
    options["mcpServers"]["herd"]["env"]["HERD_MODE"] = json!("gone");
    let turn = tools.turn(json!({ "prompt": "go", "options": options })).await;
    let (code, kind, _) = reported(&turn);
    assert_eq!((code, kind.as_str()), (ErrorCode::Process, "mcpServer"));
    assert!(turn.0.is_empty() && server.requests().is_empty() && tools.harness.stored().is_empty());
}

pub(crate) async fn a_deadline_ends_a_tool_too<V: Vendor>() {
    let server = scripted([herd_calls(&["hang"])]);
    let (tools, options) = herd::<V>(&server);
    let context = ExecutionContext { deadline: Some(Duration::from_secs(2)), ..tools.context.clone() };
    let input = json!({ "prompt": "go", "options": options });
    let turn = tools.harness.turn_in(input, context, |_, _| {}).await;
    let (code, kind, _) = reported(&turn);
    assert_eq!((code, kind.as_str()), (ErrorCode::Timeout, "deadline"));
    nobody_left(&tools).await;
}
