//! Tools of the program: what is offered, who is asked, what is answered, and that nothing exceeds its time limits.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use inspan_protocol::{ErrorCode, FnTool, HostTools, PermissionDecision, StreamEvent, ToolError, ToolOutput};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::super::{StopSignal, ToolCall, ToolUpdate};
use super::harness::{PLANTED, ToolHarness, warnings};

/// A tool that answers with its arguments, and how often it was called.
fn echo(name: &str) -> (HostTools, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let tool = FnTool::new(name, "Returns what it gets.", json!({}), move |input: Value, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        async move { Ok(ToolOutput::json(input)) }
    });
    (HostTools::default().with(tool), calls)
}

fn allowed(names: &[&str]) -> Value {
    json!({ "allowedTools": names })
}

#[tokio::test]
async fn a_call_begins_and_ends_with_its_event() {
    let (tools, _) = echo("echo");
    let harness = ToolHarness::with(tools);
    let outcome = harness.run(allowed(&["echo"]), &[("echo", json!({ "a": 1 }))]).await;
    let expected = [
        StreamEvent::ToolStart {
            tool_name: "echo".into(),
            tool_use_id: "echo".into(),
            input: json!({ "a": 1 }),
        },
        StreamEvent::ToolComplete { tool_use_id: "echo".into(), result: json!("{\"a\":1}"), is_error: false },
    ];
    assert_eq!((outcome.events, outcome.denials), (expected.to_vec(), vec![]));
    assert_eq!(format!("{:?}", harness.context.host.tools), "{\"echo\"}");
}

#[tokio::test]
async fn what_no_rule_allows_is_asked_for() {
    let call = [("echo", json!({ "a": 1 }))];
    let denied = |why: &str| (why.to_owned(), true);
    let run = async |decision: Option<PermissionDecision>, options: Value| {
        let (tools, calls) = echo("echo");
        let mut harness = ToolHarness::with(tools);
        let mut person = None;
        if let Some(decision) = decision {
            let (answered, asked) = harness.answering(decision);
            (harness, person) = (answered, Some(asked));
        }
        let outcome = harness.run(options, &call).await;
        let denials = outcome.denials.iter().map(|denial| json!(denial)).collect::<Vec<_>>();
        (
            outcome.reported("echo"),
            denials,
            calls.load(Ordering::SeqCst),
            person.map_or(0, |person| person.asked().len()),
        )
    };
    let denial = json!({ "toolName": "echo", "toolUseId": "echo", "toolInput": { "a": 1 } });
    let nobody = run(None, json!({})).await;
    let why = denied("permission to use `echo` was denied: there is nobody to ask");
    assert_eq!(nobody, (why, vec![denial.clone()], 0, 0));
    let no = PermissionDecision::Deny { message: "not today".to_owned() };
    assert_eq!(run(Some(no.clone()), json!({})).await, (denied("not today"), vec![denial], 0, 1));
    // A tool that a rule allows needs no permission, and a tool that a rule denies does not exist.
    assert_eq!(run(Some(no), allowed(&["ec*"])).await, (("{\"a\":1}".to_owned(), false), vec![], 1, 0));
    let gone = json!({ "allowedTools": ["echo"], "disallowedTools": ["echo"] });
    assert_eq!(run(None, gone).await, (denied("there is no tool `echo`"), vec![], 0, 0));
    let yes = |updated_input| Some(PermissionDecision::Allow { updated_input });
    assert_eq!(run(yes(None), json!({})).await, (("{\"a\":1}".to_owned(), false), vec![], 1, 1));
    let updated = run(yes(Some(json!({ "b": 2 }))), json!({})).await;
    assert_eq!(updated, (("{\"b\":2}".to_owned(), false), vec![], 1, 1));
    assert_eq!(run(yes(Some(json!(2))), json!({})).await.2, 0);
}

#[tokio::test]
async fn what_cannot_be_called_is_answered_all_the_same() {
    let (tools, calls) = echo("echo");
    let harness = ToolHarness::with(tools);
    let (toolbox, _) = harness.open(allowed(&["echo"])).await.unwrap();
    let broken = [("half", "{\"a\":"), ("list", "[1]"), ("word", "\"a\"")]
        .map(|(id, text)| ToolCall::new(id, "echo", text));
    let ran: Vec<ToolUpdate> = toolbox.run(broken.to_vec(), StopSignal::default()).collect().await;
    let answers: Vec<_> = ran
        .iter()
        .filter_map(|ran| {
            if let ToolUpdate::Result(answer) = ran { Some((answer.shown(), answer.is_error)) } else { None }
        })
        .collect();
    let why = json!("the arguments are not a JSON object; the tool was not called");
    assert_eq!(answers, vec![(why, true); 3]);
    assert_eq!(ToolCall::new("a", "b", " ").input, Ok(json!({})));
    assert_eq!(ToolCall::new("a", "b", r#"{"c":"\ud83d"}"#).input, Ok(json!({ "c": "\u{fffd}" })));
    let outcome = harness.call(&toolbox, &[("nothing", json!({}))]).await;
    assert_eq!(outcome.reported("nothing"), ("there is no tool `nothing`".to_owned(), true));
    assert_eq!(calls.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_tool_that_fails_or_panics_is_an_answer() {
    let fails = FnTool::new("fails", "", json!({}), |_, _| async { Err(ToolError::from("no such ox")) });
    let panics = FnTool::new("panics", "", json!({}), |_, _| async { panic!("the yoke broke") });
    let at_once = FnTool::new("at_once", "", json!({}), |input: Value, _| {
        assert!(input["never"].is_string(), "the cart broke");
        async { Ok(ToolOutput::default()) }
    });
    let harness = ToolHarness::with(HostTools::default().with(fails).with(panics).with(at_once));
    let calls = ["fails", "panics", "at_once"].map(|name| (name, json!({})));
    let outcome = harness.run(allowed(&["*"]), &calls).await;
    assert_eq!(outcome.reported("fails"), ("no such ox".to_owned(), true));
    assert_eq!(outcome.reported("panics"), ("the tool panicked".to_owned(), true));
    assert_eq!(outcome.reported("at_once"), ("the tool panicked".to_owned(), true));
}

/// A tool that never answers, and whether it was cancelled.
fn hangs(polite: bool) -> (HostTools, Arc<Mutex<Vec<CancellationToken>>>) {
    let tokens: Arc<Mutex<Vec<CancellationToken>>> = Arc::default();
    let stored = Arc::clone(&tokens);
    let tool = FnTool::new("hangs", "", json!({}), move |_, cancel: CancellationToken| {
        stored.lock().unwrap().push(cancel.clone());
        async move {
            match polite {
                true => cancel.cancelled().await,
                false => std::future::pending().await,
            }
            Ok(ToolOutput::text("half done"))
        }
    });
    (HostTools::default().with(tool), tokens)
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_hangs_is_asked_to_stop_and_then_abandoned() {
    let call = [("hangs", json!({}))];
    let options = json!({ "allowedTools": ["hangs"], "toolTimeoutMs": 500 });
    for (polite, expected) in [
        (true, ("half done", false)),
        (
            false,
            (
                "the call was stopped: it took longer than 500 ms. Whether it was carried out, in whole or in part, is not known",
                true,
            ),
        ),
    ] {
        let (tools, tokens) = hangs(polite);
        let began = Instant::now();
        let outcome = ToolHarness::with(tools).run(options.clone(), &call).await;
        assert_eq!(outcome.reported("hangs"), (expected.0.to_owned(), expected.1));
        assert!(tokens.lock().unwrap()[0].is_cancelled());
        assert!(began.elapsed() <= Duration::from_millis(1600), "{:?}", began.elapsed());
    }
    // Cancelled, and at a deadline.
    for deadline in [None, Some(Duration::from_secs(2))] {
        let (tools, _) = hangs(false);
        let harness = ToolHarness::with(tools);
        let (toolbox, _) = harness.open(allowed(&["hangs"])).await.unwrap();
        let until = StopSignal {
            cancel: harness.context.cancel.clone(),
            deadline: deadline.map(|limit| Instant::now() + limit),
        };
        let ran = toolbox.run(vec![ToolCall::new("a", "hangs", "")], until).collect::<Vec<_>>();
        let cancel = async {
            sleep(Duration::from_secs(3)).await;
            harness.context.cancel.cancel();
        };
        let (ran, ()) = tokio::join!(ran, cancel);
        let Some(ToolUpdate::Result(answer)) = ran.last() else { panic!("{ran:?}") };
        let why = if deadline.is_some() { "reached its deadline" } else { "was cancelled" };
        assert!(answer.is_error && answer.shown().as_str().unwrap().contains(why), "{answer:?}");
    }
    // Dropped.
    let (tools, tokens) = hangs(false);
    let harness = ToolHarness::with(tools);
    let (toolbox, _) = harness.open(allowed(&["hangs"])).await.unwrap();
    let mut ran = toolbox.run(vec![ToolCall::new("a", "hangs", "")], StopSignal::default());
    assert!(matches!(ran.next().await, Some(ToolUpdate::Event(StreamEvent::ToolStart { .. }))));
    assert!(tokens.lock().unwrap().is_empty(), "it runs before its start was reported");
    assert!(tokio::time::timeout(Duration::from_secs(1), ran.next()).await.is_err());
    drop(ran);
    assert!(tokens.lock().unwrap()[0].is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn calls_of_one_message_run_at_once_up_to_a_bound() {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (count, peak) = (Arc::clone(&now), Arc::clone(&most));
    let tool = FnTool::new("slow", "", json!({}), move |_, _| {
        let (now, most) = (Arc::clone(&now), Arc::clone(&most));
        async move {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            sleep(Duration::from_millis(100)).await;
            now.fetch_sub(1, Ordering::SeqCst);
            Ok(ToolOutput::default())
        }
    });
    let harness = ToolHarness::with(HostTools::default().with(tool));
    let (toolbox, _) = harness.open(allowed(&["slow"])).await.unwrap();
    let calls = (0..20).map(|n| ToolCall::new(format!("c{n}"), "slow", "{}")).collect();
    let began = Instant::now();
    let ran: Vec<ToolUpdate> = toolbox.run(calls, StopSignal::default()).collect().await;
    let answered = ran.iter().filter(|ran| matches!(ran, ToolUpdate::Result(_))).count();
    assert_eq!((answered, peak.load(Ordering::SeqCst), count.load(Ordering::SeqCst)), (20, 8, 0));
    assert_eq!(began.elapsed(), Duration::from_millis(300));
}

#[tokio::test]
async fn names_that_no_vendor_takes_are_refused_and_idle_rules_are_reported() {
    for name in ["", "a b", "ä", "mcp__herd__count", &"x".repeat(65)] {
        let (tools, _) = echo(name);
        let error = ToolHarness::with(tools).open(json!({})).await.err().unwrap();
        assert_eq!(error.code, ErrorCode::ConfigInvalid, "{name}");
    }
    let (tools, _) = echo("echo");
    let (more, _) = echo("echo");
    let twice: HostTools = tools.iter().chain(more.iter()).cloned().collect();
    let error = ToolHarness::with(twice).open(json!({})).await.err().unwrap();
    assert_eq!(error.message, "there are two tools `echo`");
    let options = json!({ "allowedTools": ["ecko"], "disallowedTools": ["mcp__herd"] });
    let (toolbox, reported) = ToolHarness::with(tools).open(options).await.unwrap();
    assert_eq!(toolbox.specs().len(), 1);
    assert_eq!(
        warnings(&reported),
        [
            "unknownTool: `allowedTools` names `ecko`, and there is no such tool",
            "unknownTool: `disallowedTools` names `mcp__herd`, and there is no such tool",
        ]
    );
    assert!(!format!("{reported:?}").contains(PLANTED));
}
