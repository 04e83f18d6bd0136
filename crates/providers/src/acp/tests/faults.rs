//! Agents that end, stall, send nonsense or never stop, and how the provider handles each.

use std::time::Duration;

use futures::StreamExt;
use inspan_protocol::{ErrorCode, Probe, Provider, ProviderItem, StopReason, StreamEvent};
use serde_json::{Value, json};

use super::super::{AcpInput, AcpOptions, AcpProvider};
use super::agent::{
    END, TEXT, agent, fault, input, methods, once, options, plain, run, wait_until, warnings,
};
use crate::program::tests::fake::cancelled;
use crate::program::tests::faults::{FakeDialogue, FakeProgram, program_tests};

struct FakeAgent;

impl FakeProgram for FakeAgent {
    type Provider = AcpProvider;

    const COMMAND: &'static str = "agent";

    fn options() -> Value {
        json!(options())
    }
}

impl FakeDialogue for FakeAgent {
    fn begun() -> String {
        format!("{} hear;", plain())
    }

    const TEXT: &'static str = TEXT;
}

program_tests!(FakeAgent);

#[tokio::test]
async fn agents_that_break_the_protocol() {
    let protocol = |message: &str| (ErrorCode::Protocol, message.to_owned(), Value::Null);
    let plain = plain();
    let rows = [
        (
            r#"read -r line; echo '{"id":1,"result":{"protocolVersion":2}}'; cat"#.to_owned(),
            protocol("the agent speaks version 2 of the Agent Client Protocol; version 1 is spoken here"),
        ),
        (
            r#"read -r line; echo '{"id":1,"result":{"protocolVersion":1}}'; read -r line; echo '{"id":2,"result":{}}'; cat"#
                .to_owned(),
            protocol("the agent opened a session without a name"),
        ),
        (
            format!("{plain} hear; say '{{\"id\":3,\"result\":{{}}}}'; cat"),
            protocol("the agent's answer to the prompt does not say why its turn ended"),
        ),
        (
            format!("{plain} hear; say '{{\"id\":3,\"error\":{{\"code\":\"-32603\",\"message\":\"x\"}}}}'; cat"),
            protocol("the agent gave up: the program answered with an error that cannot be read"),
        ),
        (
            format!("{plain} hear; exec >&-; sleep 30"),
            (
                ErrorCode::Process,
                "the program closed its output before its turn ended; it wrote nothing to stderr".to_owned(),
                json!("processDied"),
            ),
        ),
        (
            format!("{plain} hear; head -c 17000000 /dev/zero | tr '\\0' x; say; cat"),
            protocol("the agent sent a message longer than 16 MiB, which is lost"),
        ),
    ];
    for (script, expected) in rows {
        assert_eq!(fault(&script, options()).await, expected, "{script}");
    }
}

#[tokio::test]
async fn a_usage_limit_that_is_named_in_words_alone_has_a_time() {
    let rows = [
        ("rate_limit", "You've hit your session limit · resets 7:31pm (UTC)", true),
        ("rate_limit", "slow down", false),
        ("overloaded", "the limit resets 7:31pm (UTC)", false),
    ];
    for (kind, words, expected) in rows {
        let error =
            json!({ "id": 3, "error": { "code": -32603, "message": words, "data": { "errorKind": kind } } });
        // The shell takes the apostrophe for the end of a word.
        let error = error.to_string().replace('\'', "’");
        let fake = agent(&format!("{} hear; say '{error}'; cat", plain()));
        let error = once(options(), fake.context()).await.1.unwrap_err();
        assert_eq!(error.resets_at.is_some(), expected, "{words}: {error:?}");
    }
}

#[tokio::test]
async fn noise_is_warned_of_and_harms_nothing() {
    let fake = agent(&format!(
        "echo 'Loading settings'; {} hear; say hello; say '[1]'; printf '\\377\\n'; say {TEXT}; say {END}; cat",
        plain()
    ));
    let (events, result) = once(options(), fake.context()).await;
    assert_eq!(result.unwrap().text, "so far");
    // The one before the first turn is reported with it.
    assert_eq!(warnings(&events), ["oddLine", "oddLine", "oddLine"]);
}

#[tokio::test]
async fn noise_is_no_sign_of_life() {
    let script = format!("{} hear; while :; do say noise; sleep 0.05; done", plain());
    let stalls = AcpOptions { stall_timeout_ms: Some(400), ..options() };
    let (code, _, kind) = fault(&script, stalls).await;
    assert_eq!((code, kind), (ErrorCode::Timeout, json!("stall")));
}

#[tokio::test]
async fn silence_is_a_timeout_after_a_cancellation() {
    let fake = agent(&format!(
        "{} hear; say {TEXT}; hear; say '{{\"id\":3,\"result\":{{\"stopReason\":\"cancelled\"}}}}'; cat",
        plain()
    ));
    let stalls = AcpOptions { stall_timeout_ms: Some(200), ..options() };
    let error = once(stalls, fake.context()).await.1.unwrap_err();
    assert_eq!((error.code, &error.detail.unwrap()["kind"]), (ErrorCode::Timeout, &json!("stall")));
    let reported = fake.received().pop().unwrap();
    assert_eq!(
        reported,
        json!({ "jsonrpc": "2.0", "method": "session/cancel", "params": { "sessionId": "s-1" } })
    );
}

#[tokio::test]
async fn a_cancelled_turn_keeps_its_process_if_the_agent_ends_it() {
    // Longer than most may take: this conversation cannot be opened in another process.
    let fake = agent(&format!(
        "echo $$ >> pids; {} hear; say {TEXT}; hear; sleep 3; say '{{\"id\":3,\"error\":{{\"code\":-32800,\"message\":\"cancelled\"}}}}'
         hear; say '{{\"id\":4,\"result\":{{\"stopReason\":\"end_turn\"}}}}'; cat",
        plain()
    ));
    let provider = AcpProvider::new();
    let output = cancelled(&provider, options(), fake.context()).await.1.unwrap();
    assert_eq!((output.stop_reason, output.text.as_str()), (StopReason::Aborted, "so far"));
    let next = AcpOptions { resume: output.session_id, ..options() };
    let output = run(&provider, next, fake.context()).await.1.unwrap();
    assert_eq!((output.stop_reason, fake.pids().len()), (StopReason::Complete, 1));
    assert_eq!(
        methods(&fake),
        ["initialize", "session/new", "session/prompt", "session/cancel", "session/prompt"]
    );
    provider.shutdown().await;
    assert_eq!(fake.running().len(), 0);
}

#[tokio::test]
async fn a_cost_that_was_named_counts_beside_the_unknown_one_of_the_request_that_is_cut_short() {
    let cost = r#"say '{"method":"session/update","params":{"sessionId":"s-1","update":{"sessionUpdate":"usage_update","used":5,"cost":{"amount":0.25,"currency":"USD"}}}}'"#;
    let rows = [
        ("exit 3", "PROCESS", vec![Some(0.25), None]),
        ("exec sleep 300", "TIMEOUT", vec![Some(0.25), None]),
        (&format!("say {TEXT}; exec sleep 300"), "aborted", vec![Some(0.25)]),
    ];
    for (then, expected, costs) in rows {
        let fake = agent(&format!("{} hear; {cost}; {then}", plain()));
        let provider = AcpProvider::new();
        let stalls = AcpOptions { stall_timeout_ms: Some(1000), ..options() };
        let (events, result) = cancelled(&provider, &json!(stalls), fake.context()).await;
        let named = events.iter().filter_map(|event| match event {
            StreamEvent::Usage { cost_usd, .. } => Some(*cost_usd),
            _ => None,
        });
        let end = match result {
            Ok(output) => {
                assert_eq!(output.cost_usd, None, "{then}");
                json!(output.stop_reason)
            }
            Err(error) => json!(error.code),
        };
        assert_eq!((named.collect::<Vec<_>>(), end), (costs, json!(expected)), "{then}");
        provider.shutdown().await;
    }
}

/// Where the agent may be when its turn is cancelled.
#[derive(Clone, Copy, Debug)]
enum CancelledAt {
    /// It is within the answer.
    Text,
    /// It has sent the end, which is not read yet.
    End,
}

#[tokio::test]
async fn a_turn_that_ends_after_it_was_cancelled_may_be_cut() {
    let ends = |reason: &str| format!(r#"say '{{"id":3,"result":{{"stopReason":"{reason}"}}}}'"#);
    let rows = [
        (CancelledAt::Text, ends("end_turn"), StopReason::Aborted),
        (CancelledAt::Text, ends("paused"), StopReason::Aborted),
        (CancelledAt::Text, ends("max_tokens"), StopReason::MaxTokens),
        (CancelledAt::End, ends("end_turn"), StopReason::Complete),
    ];
    for (at, end, expected) in rows {
        let script = match at {
            CancelledAt::Text => format!("say {TEXT}; hear; {end}"),
            CancelledAt::End => format!("say {TEXT}; sleep 0.2; {end}; touch ended"),
        };
        let fake =
            agent(&format!("{} hear; {script}; hear; {}; cat", plain(), ends("end_turn").replace('3', "4")));
        let provider = AcpProvider::new();
        let context = fake.context();
        let mut stream = provider.execute(input(options()), context.clone());
        let (mut last, mut warnings) = (None, 0);
        while let Some(item) = stream.next().await {
            let item = item.unwrap();
            warnings += u32::from(matches!(item, ProviderItem::Event(StreamEvent::Warning { .. })));
            if matches!(item, ProviderItem::Event(StreamEvent::Text { .. })) {
                if matches!(at, CancelledAt::End) {
                    wait_until(|| fake.work().join("ended").exists()).await;
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
                context.cancel.cancel();
            }
            last = Some(item);
        }
        let Some(ProviderItem::Output(output)) = last else { panic!("{last:?}") };
        let seen = (output.stop_reason, output.text.as_str(), warnings);
        assert_eq!(seen, (expected, "so far", 0), "{at:?}: {end}");
        // An agent that was done is told nothing that it could take for the next turn.
        let told = methods(&fake).iter().filter(|method| *method == "session/cancel").count();
        assert_eq!(told, usize::from(matches!(at, CancelledAt::Text)), "{at:?}");
        let next = AcpOptions { resume: output.session_id, ..options() };
        let output = run(&provider, next, fake.context()).await.1.unwrap();
        assert_eq!(output.stop_reason, StopReason::Complete, "{at:?}: {end}");
        provider.shutdown().await;
    }
}

#[tokio::test]
async fn a_stream_that_nobody_wants_any_more_takes_its_agent_with_it() {
    let fake = agent(&format!("echo $$ >> pids; {} hear; say {TEXT}; cat", plain()));
    let provider = AcpProvider::new();
    let mut stream = provider.execute(input(options()), fake.context());
    stream.next().await.unwrap().unwrap();
    stream.next().await.unwrap().unwrap();
    assert_eq!(fake.running().len(), 1);
    drop(stream);
    provider.shutdown().await;
    assert_eq!(fake.running().len(), 0);
}

#[tokio::test]
async fn a_missing_program_says_what_to_do() {
    let fake = agent("");
    let droid = AcpProvider::droid();
    let input = AcpInput { prompt: Some("go".to_owned()), ..AcpInput::default() };
    let error = droid.execute(input, fake.context()).next().await.unwrap().unwrap_err();
    assert_eq!((error.code, error.provider.as_deref()), (ErrorCode::ConfigMissing, Some("droid")));
    for provider in [droid, AcpProvider::gemini(), AcpProvider::qwen()] {
        let Probe::Program(status) = provider.probe(&fake.context().host.env, None).await else {
            panic!("a program")
        };
        let refused = provider.check_setup(&fake.context().host.env).unwrap_err();
        assert_eq!((status.path, status.problem), (None, Some(refused.message)));
    }
    assert_eq!(
        error.message,
        AcpProvider::droid().check_setup(&fake.context().host.env).unwrap_err().message
    );
}

#[tokio::test]
async fn a_program_that_is_there_is_probed() {
    let fake = agent("echo 0.51.2");
    let path = fake.folder().canonicalize().unwrap().join("agent").display().to_string();
    let env =
        fake.context().host.env.with("INSPAN_GEMINI", path.clone()).with("GEMINI_API_KEY", "planted-key");
    let Probe::Program(status) = AcpProvider::gemini().probe(&env, None).await else { panic!("a program") };
    assert_eq!(
        serde_json::to_value(&status).unwrap(),
        json!({
            "provider": "gemini",
            "program": "gemini",
            "testedVersion": "0.61.0",
            "path": path,
            "version": "0.51.2",
            "login": "environment variable GEMINI_API_KEY",
        })
    );
}
