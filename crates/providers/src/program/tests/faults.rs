//! Programs that are missing, end too early, never answer or never stop: what holds for every agent CLI.

use std::time::Duration;

use inspan_protocol::{ErrorCode, ExecutionContext, Provider, StreamEvent, Usage};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::fake::{self, Fake, parts};
use crate::program::info::ProgramInfo;

/// What the checks have to know about one agent CLI.
pub(crate) trait FakeProgram {
    type Provider: Provider + Default;

    /// The program that is replaced.
    const COMMAND: &'static str;

    /// What each call needs.
    fn options() -> Value {
        json!({})
    }

    /// Scripts of programs that leave a turn without its beginning.
    fn silent() -> Vec<String> {
        vec!["exec sleep 300".to_owned()]
    }
}

/// An agent CLI whose conversation is its input and its output.
pub(crate) trait FakeDialogue: FakeProgram {
    /// A script that answers everything until the turn has begun. It defines `say`.
    fn begun() -> String;

    /// What the program prints for the text `so far`, as a word of the shell.
    const TEXT: &'static str;
}

/// The tests that hold for every agent CLI, for one of them; of one that is no dialogue, those that are named.
macro_rules! program_tests {
    ($agent:ty) => {
        $crate::program::tests::faults::program_tests! { $agent:
            programs_that_end_too_early,
            a_program_that_closes_its_output_is_not_taken_for_one_that_ended,
            the_price_of_a_prompt_that_was_sent_and_not_answered_is_unknown,
            a_deadline_holds_against_a_program_that_never_answers,
            a_program_that_never_stops_talking_does_not_hold_off_the_deadline,
            a_call_that_is_cancelled_before_it_begins_starts_no_turn,
            a_cancelled_turn_is_an_output_even_if_the_program_ignores_everything,
        }
    };
    ($agent:ty: $($test:ident,)+) => {
        $(
            #[tokio::test]
            async fn $test() {
                $crate::program::tests::faults::$test::<$agent>().await;
            }
        )+
    };
}

pub(crate) use program_tests;

/// A program that does this, and notes its process.
fn fake<A: FakeProgram>(script: &str) -> Fake {
    Fake::new(A::COMMAND, &format!("echo $$ >> pids; {script}"))
}

/// The code, the message and the kind of the error that a script comes to. No process is left of it.
pub(crate) async fn fault<A: FakeProgram>(script: &str) -> (ErrorCode, String, Value) {
    fault_within::<A>(script, None).await
}

async fn fault_within<A: FakeProgram>(
    script: &str,
    deadline: Option<Duration>,
) -> (ErrorCode, String, Value) {
    let fake = fake::<A>(script);
    let context = ExecutionContext { deadline, ..fake.context() };
    let error = fake::once::<A::Provider>(&A::options(), context).await.1.err().expect("an error");
    assert!(fake.running().is_empty(), "{script}");
    parts(error)
}

/// That a call and a probe of a missing program name the package and the variable.
pub(crate) async fn missing<A: FakeProgram>(program: &ProgramInfo, package: &str, variable: &str) {
    let fake = Fake::new("another", "");
    let error =
        fake::run(&A::Provider::default(), &A::options(), fake.context()).await.1.err().expect("an error");
    let expected = format!(
        "the program `{}` is not on the PATH; install it with `npm install -g {package}`, or set its path with the \
         option `executable` or in the variable {variable}",
        A::COMMAND
    );
    assert_eq!((error.code, &error.message), (ErrorCode::ConfigMissing, &expected));
    let status = program.probe(&fake.context().host.env, None).await;
    assert_eq!((status.path, status.problem), (None, Some(expected)));
}

pub(crate) async fn programs_that_end_too_early<A: FakeDialogue>() {
    let (begun, text) = (A::begun(), A::TEXT);
    let rows = [
        ("exit 3".to_owned(), "exit code 3) before its turn did; it wrote nothing to stderr"),
        (
            "echo broken $MY_TOKEN >&2; exit 1".to_owned(),
            "exit code 1) before its turn did; it said: broken [redacted MY_TOKEN]",
        ),
        (format!("{begun} exit 0"), "exit code 0) before its turn did; it wrote nothing to stderr"),
        (
            format!("{begun} say {text}; printf '{{\"type\":\"resu'"),
            "exit code 0) before its turn did; it wrote nothing to stderr",
        ),
        (format!("{begun} kill -9 $$"), "signal 9) before its turn did; it wrote nothing to stderr"),
    ];
    for (script, message) in rows {
        let expected = (ErrorCode::Process, format!("the program ended ({message}"), json!("processDied"));
        assert_eq!(fault::<A>(&script).await, expected, "{script}");
    }
}

pub(crate) async fn a_program_that_closes_its_output_is_not_taken_for_one_that_ended<A: FakeProgram>() {
    let message = "the program closed its output before its turn ended; it wrote nothing to stderr";
    let expected = (ErrorCode::Process, message.to_owned(), json!("processDied"));
    assert_eq!(fault::<A>("exec >&-; exec sleep 300").await, expected);
}

pub(crate) async fn the_price_of_a_prompt_that_was_sent_and_not_answered_is_unknown<A: FakeDialogue>() {
    let begun = A::begun();
    let rows = [
        (format!("{begun} exit 3"), 1),
        (format!("{begun} kill -9 $$"), 1),
        (format!("{begun} exec sleep 300"), 1),
        // The prompt was never sent.
        ("exit 3".to_owned(), 0),
        ("exec sleep 300".to_owned(), 0),
    ];
    for (script, expected) in rows {
        let fake = fake::<A>(&script);
        let context = ExecutionContext { deadline: Some(Duration::from_secs(2)), ..fake.context() };
        let (events, result) = fake::once::<A::Provider>(&A::options(), context).await;
        assert!(result.is_err(), "{script}");
        let unknown = StreamEvent::Usage { usage: Usage::default(), cost_usd: None };
        let seen = events.iter().filter(|event| **event == unknown).count();
        assert_eq!(seen, expected, "{script}: {events:?}");
    }
}

async fn reaches_its_deadline<A: FakeProgram>(script: &str) {
    let began = Instant::now();
    let (code, message, kind) = fault_within::<A>(script, Some(Duration::from_millis(800))).await;
    assert_eq!((code, kind), (ErrorCode::Timeout, json!("deadline")), "{script}: {message}");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

pub(crate) async fn a_deadline_holds_against_a_program_that_never_answers<A: FakeProgram>() {
    for script in A::silent() {
        reaches_its_deadline::<A>(&script).await;
    }
}

pub(crate) async fn a_program_that_never_stops_talking_does_not_hold_off_the_deadline<A: FakeDialogue>() {
    reaches_its_deadline::<A>(&format!("{} while :; do say {}; done", A::begun(), A::TEXT)).await;
}

pub(crate) async fn a_call_that_is_cancelled_before_it_begins_starts_no_turn<A: FakeProgram>() {
    let fake = fake::<A>("exec sleep 300");
    let context = fake.context();
    context.cancel.cancel();
    let (events, result) = fake::run(&A::Provider::default(), &A::options(), context).await;
    let output = json!(result.ok());
    assert_eq!(
        (events, &output["stopReason"], &output["sessionId"]),
        (vec![], &json!("aborted"), &Value::Null)
    );
    assert!(fake.running().is_empty());
}

pub(crate) async fn a_cancelled_turn_is_an_output_even_if_the_program_ignores_everything<A: FakeDialogue>() {
    let script = format!("trap '' TERM INT; {} say {}; while :; do sleep 60; done", A::begun(), A::TEXT);
    cancelled_at_its_text::<A>(&fake::<A>(&script)).await;
}

/// That a turn which is cancelled at its text `so far` is an output with its text and its session, and that no process is
/// left of it.
pub(crate) async fn cancelled_at_its_text<A: FakeProgram>(fake: &Fake) {
    let (events, result) = fake::cancelled(&A::Provider::default(), &A::options(), fake.context()).await;
    let session = events.iter().find_map(|event| match event {
        StreamEvent::Session { session_id } => Some(json!(session_id)),
        _ => None,
    });
    let output = json!(result.unwrap());
    assert_eq!(
        (&output["stopReason"], &output["text"], &output["sessionId"]),
        (&json!("aborted"), &json!("so far"), &session.unwrap())
    );
    assert_eq!((fake.pids().len(), fake.running().len()), (1, 0));
}
