//! Programs in place of Codex that misbehave, and how the provider handles each.

use std::sync::Arc;

use futures::StreamExt;
use futures::future::BoxFuture;
use inspan_protocol::{
    ErrorCode, ExecutionContext, Provider, ProviderSessionId, Steering, StopReason, StreamEvent,
};
use serde_json::{Value, json};

use super::super::{CodexInput, CodexOptions, CodexOutput, CodexProvider, PROGRAM};
use crate::program::tests::fake::{self, Fake, NeverAnswers, run, wait_until, warnings};
use crate::program::tests::faults::{FakeDialogue, FakeProgram, fault, missing, program_tests};
use crate::tests::FinishedTurn;

/// Answers everything up to an open thread, in the order in which it is asked.
const OPEN: &str = r#"
say() { printf '%s\n' "$1"; }
read -r line; say '{"id":1,"result":{"userAgent":"x"}}'
read -r line
read -r line; say '{"id":2,"result":{"account":null,"requiresOpenaiAuth":false}}'
read -r line; say '{"id":3,"result":{"config":{"model_provider":"loop","model_providers":{"loop":{}}}}}'
read -r line; echo "$line" > opened; say '{"id":4,"result":{"thread":{"id":"t-1"},"model":"m"}}'
"#;
const BEGUN: &str = r#"'{"id":5,"result":{"turn":{"id":"u"}}}'"#;
const TEXT: &str = r#"'{"method":"item/agentMessage/delta","params":{"threadId":"t-1","turnId":"u","itemId":"m","delta":"so far"}}'"#;
const DONE: &str = r#"'{"method":"turn/completed","params":{"threadId":"t-1","turn":{"id":"u","status":"completed","items":[{"type":"agentMessage","id":"m","text":"done"}]}}}'"#;
const INTERRUPTED: &str = r#"'{"method":"turn/completed","params":{"threadId":"t-1","turn":{"id":"u","status":"interrupted","items":[]}}}'"#;

fn input(options: CodexOptions) -> CodexInput {
    CodexInput { prompt: Some("go".to_owned()), options: Some(options), ..CodexInput::default() }
}

fn fake(script: &str) -> Fake {
    Fake::new("codex", script)
}

async fn once(options: CodexOptions, context: ExecutionContext) -> FinishedTurn<CodexOutput> {
    fake::once::<CodexProvider>(options, context).await
}

struct FakeCodex;

impl FakeProgram for FakeCodex {
    type Provider = CodexProvider;

    const COMMAND: &'static str = "codex";

    fn silent() -> Vec<String> {
        vec!["exec sleep 300".to_owned(), format!("{OPEN} exec sleep 300")]
    }
}

impl FakeDialogue for FakeCodex {
    fn begun() -> String {
        format!("{OPEN} read -r line; say {BEGUN};")
    }

    const TEXT: &'static str = TEXT;
}

program_tests!(FakeCodex);

#[tokio::test]
async fn a_missing_program_says_what_to_do() {
    missing::<FakeCodex>(&PROGRAM, "@openai/codex", "INSPAN_CODEX").await;
}

#[tokio::test]
async fn a_usage_limit_that_is_named_in_words_alone_has_a_time() {
    let rows = [("or try again at Jan 3rd, 2030 7:22 PM.", true), ("or try again later.", false)];
    for (words, expected) in rows {
        let error = json!({ "message": format!("You’ve hit your usage limit. Visit x {words}"), "codexErrorInfo": "usageLimitExceeded" });
        let ended = json!({ "method": "turn/completed", "params": { "threadId": "t-1", "turn": {
            "id": "u", "status": "failed", "items": [], "error": error,
        } } });
        let fake = fake(&format!("{OPEN} read -r line; say {BEGUN}; say '{ended}'; cat >/dev/null"));
        let error = once(CodexOptions::default(), fake.context()).await.1.unwrap_err();
        assert_eq!(error.resets_at.is_some(), expected, "{words}: {error:?}");
    }
}

#[tokio::test]
async fn a_warning_about_the_machine_is_shown_once_for_all_processes() {
    const WARNS: &str = r#"'{"method":"configWarning","params":{"summary":"there is no bubblewrap"}}'"#;
    let fake = fake(&format!("{OPEN}read -r line; say {BEGUN}; say {WARNS}; say {DONE}; cat >/dev/null"));
    let provider = CodexProvider::new();
    let mut warned = Vec::new();
    for _ in 0..2 {
        let (events, result) = run(&provider, CodexOptions::default(), fake.context()).await;
        result.unwrap();
        warned.push(warnings(&events).len());
    }
    provider.shutdown().await;
    assert_eq!(warned, [1, 0]);
}

#[tokio::test]
async fn programs_that_refuse() {
    let configuration = "echo 'Error: no such key planted-secret' >&2; exit 1";
    let expected = "the program does not take its configuration: Error: no such key [redacted MY_TOKEN]";
    let expected = (ErrorCode::ConfigInvalid, expected.to_owned(), json!("optionRefused"));
    assert_eq!(fault::<FakeCodex>(configuration).await, expected);
    let at_the_prompt = fault::<FakeCodex>(&format!("{OPEN} read -r line; exit 0")).await;
    assert_eq!((at_the_prompt.0, at_the_prompt.2), (ErrorCode::Process, json!("processDied")));
    let first = "read -r line; printf '%s\\n' '{\"id\":1,\"error\":{\"code\":-32600,\"message\":\"no planted-secret\"}}'; cat";
    let expected = "the program refused `initialize`: no [redacted MY_TOKEN]".to_owned();
    assert_eq!(fault::<FakeCodex>(first).await, (ErrorCode::ConfigInvalid, expected, Value::Null));
    let turn = format!(
        "{OPEN} read -r line; say '{{\"id\":5,\"error\":{{\"code\":-32600,\"message\":\"input is too large\"}}}}'; cat"
    );
    let expected = "the program refused `turn/start`: input is too large".to_owned();
    assert_eq!(fault::<FakeCodex>(&turn).await, (ErrorCode::InvalidRequest, expected, Value::Null));
    let no_login = "say() { printf '%s\\n' \"$1\"; }; read -r line; say '{\"id\":1,\"result\":{}}'; read -r line; read -r line
        say '{\"id\":2,\"result\":{\"account\":null,\"requiresOpenaiAuth\":true}}'; cat";
    let (code, message, kind) = fault::<FakeCodex>(no_login).await;
    assert_eq!((code, kind), (ErrorCode::Auth, json!("noLogin")), "{message}");
    let nonsense = "read -r line; printf '%s\\n' '{\"id\":1,\"result\":{}}'; read -r line; read -r line
        printf '%s\\n' '{\"id\":2,\"result\":{\"requiresOpenaiAuth\":\"planted-secret\"}}'; cat";
    assert_eq!(fault::<FakeCodex>(nonsense).await.0, ErrorCode::Protocol);
}

#[tokio::test]
async fn nonsense_between_messages_is_reported_and_skipped() {
    let script = format!(
        "{OPEN} read -r line; say {BEGUN}; say 'hello planted-secret'; printf '\\377\\376\\n'; say '[1,2]'
         head -c 17000000 /dev/zero | tr '\\0' x; say; say '{{\"method\":\"new/thing\",\"params\":{{}}}}'; say {TEXT}; say {DONE}; cat"
    );
    let fake = fake(&script);
    let (events, result) = once(CodexOptions::default(), fake.context()).await;
    assert_eq!(result.unwrap().code, "done");
    let codes = warnings(&events);
    // What is not valid Unicode is reported, and their replacement is not a message either.
    assert_eq!(codes, ["oddLine", "oddLine", "oddLine", "oddLine", "oddLine", "unknownMessage"]);
    assert!(!format!("{events:?}").contains("planted"));
}

#[tokio::test]
async fn a_known_message_that_is_broken_ends_the_turn() {
    let broken = r#"'{"method":"turn/completed","params":{"threadId":"t-1","turn":7}}'"#;
    let folder = tempfile::tempdir().unwrap();
    let more = folder.path().join("more");
    // Nobody would see what the program does until it has ended.
    let script = format!("{OPEN} read -r line; say {BEGUN}; say {broken}; cat; touch {}", more.display());
    let (code, message, _) = fault::<FakeCodex>(&script).await;
    assert_eq!((code, more.exists()), (ErrorCode::Protocol, false), "{message}");
}

#[tokio::test]
async fn the_thread_is_opened_without_retries_of_the_programs_own() {
    let fake = fake(&format!("{OPEN} read -r line; say {BEGUN}; say {DONE}; cat"));
    let (events, result) = once(CodexOptions::default(), fake.context()).await;
    let output = result.unwrap();
    let session = ProviderSessionId::from("t-1");
    assert_eq!(events, [StreamEvent::Session { session_id: session.clone() }]);
    assert_eq!((output.session_token, output.turn.model.as_deref()), (Some(session), Some("m")));
    let opened: Value = serde_json::from_str(&fake.read("opened")).unwrap();
    let config = json!({ "model_providers.loop.request_max_retries": 0, "model_providers.loop.stream_max_retries": 0 });
    assert_eq!(opened["params"], json!({ "cwd": fake.context().host.cwd, "config": config }));
}

/// Ends its turn when it is asked to, and cleans up after it.
fn polite() -> String {
    format!(
        "{OPEN} read -r line; say {BEGUN}; say {TEXT}; read -r line; echo \"$line\" > asked; say '{{\"id\":6,\"result\":{{}}}}'
         say {INTERRUPTED}; read -r line; echo \"$line\" > cleaned; say '{{\"id\":7,\"result\":{{}}}}'; cat"
    )
}

#[tokio::test]
async fn silence_is_a_timeout_after_an_interrupt() {
    let fake = fake(&polite());
    let options = CodexOptions { stall_timeout_ms: Some(200), ..CodexOptions::default() };
    let error = once(options, fake.context()).await.1.unwrap_err();
    assert_eq!((error.code, error.detail.unwrap()["kind"].clone()), (ErrorCode::Timeout, json!("stall")));
    let [asked, cleaned] =
        ["asked", "cleaned"].map(|file| serde_json::from_str::<Value>(&fake.read(file)).unwrap());
    assert_eq!(
        (&asked["method"], &asked["params"]),
        (&json!("turn/interrupt"), &json!({ "threadId": "t-1", "turnId": "u" }))
    );
    assert_eq!(cleaned["method"], "thread/backgroundTerminals/clean");
}

/// A notification of the program.
fn notify(method: &str, params: Value) -> String {
    format!("say '{}'", json!({ "method": method, "params": params }))
}

/// The thread `s-1` of a sub-agent begins a turn.
fn sub_agent_begins() -> String {
    notify("turn/started", json!({ "threadId": "s-1", "turn": { "id": "v" } }))
}

/// Reads a request into this file, and answers it.
fn answers(id: u64, file: &str) -> String {
    format!(r#"read -r line; echo "$line" > {file}; say '{{"id":{id},"result":{{}}}}'"#)
}

fn ended(thread: &str, turn: &str) -> String {
    notify(
        "turn/completed",
        json!({ "threadId": thread, "turn": { "id": turn, "status": "interrupted", "items": [] } }),
    )
}

/// What was asked in each of these files: the method, the thread and the turn.
fn asked<const N: usize>(fake: &Fake, files: [&str; N]) -> [Value; N] {
    files.map(|file| {
        let line: Value = serde_json::from_str(&fake.read(file)).unwrap();
        json!([line["method"], line["params"]["threadId"], line["params"]["turnId"]])
    })
}

#[tokio::test]
async fn a_sub_agent_that_the_turn_did_not_wait_for_ends_with_it() {
    let tokens = json!({ "threadId": "s-1", "turnId": "v", "tokenUsage": { "total": { "totalTokens": 7 }, "last": { "inputTokens": 7 } } });
    let script = [
        format!("echo $$ >> pids; {OPEN} read -r line; say {BEGUN}"),
        sub_agent_begins(),
        format!("say {DONE}"),
        answers(6, "interrupted"),
        notify("thread/tokenUsage/updated", tokens),
        ended("s-1", "v"),
        answers(7, "cleaned"),
        format!("read -r line; say {}; say {DONE}; cat", BEGUN.replace("\"id\":5", "\"id\":8")),
    ];
    let fake = fake(&script.join("\n"));
    let provider = CodexProvider::new();
    let (events, result) = run(&provider, CodexOptions::default(), fake.context()).await;
    let output = result.unwrap();
    assert_eq!((output.code.as_str(), output.turn.usage.input_tokens), ("done", 7));
    let warning = StreamEvent::warning(
        "backgroundEnded",
        "stopped in the background at the end of the turn: 1 sub-agent",
    );
    assert!(events.contains(&warning), "{events:?}");
    // The turn itself left nothing running.
    let clean = json!(["thread/backgroundTerminals/clean", "s-1", null]);
    let expected = [json!(["turn/interrupt", "s-1", "v"]), clean];
    assert_eq!(asked(&fake, ["interrupted", "cleaned"]), expected);
    let resume = CodexOptions { resume: output.session_token, ..CodexOptions::default() };
    assert_eq!(run(&provider, resume, fake.context()).await.1.unwrap().code, "done");
    assert_eq!(fake.pids().len(), 1);
    provider.shutdown().await;
}

/// A command of a thread begins, or ends.
fn command(method: &str, thread: &str, id: &str) -> String {
    let item = json!({ "type": "commandExecution", "id": id, "command": "serve", "status": "inProgress" });
    notify(method, json!({ "threadId": thread, "turnId": "u", "item": item }))
}

/// What a turn that begins so, and ends so, says of its tools, and its warnings; the second turn is as any other.
async fn leaves_commands(
    begins: &[String],
    end: &str,
    cleaned: &[&str],
) -> (Vec<(Value, bool)>, Vec<String>) {
    let mut script = vec![format!("echo $$ >> pids; {OPEN} read -r line; say {BEGUN}")];
    script.extend_from_slice(begins);
    script.push(format!("say {end}"));
    let files: Vec<String> = (0..cleaned.len()).map(|at| format!("cleaned{at}")).collect();
    script.extend(files.iter().zip(6..).map(|(file, id)| answers(id, file)));
    let next = 6 + cleaned.len();
    script.push(format!(
        "read -r line; say {}; say {DONE}; cat",
        BEGUN.replace("\"id\":5", &format!("\"id\":{next}"))
    ));
    let fake = fake(&script.join("\n"));
    let provider = CodexProvider::new();
    let (events, _) = run(&provider, CodexOptions::default(), fake.context()).await;
    for (file, thread) in files.iter().zip(cleaned) {
        assert_eq!(asked(&fake, [file]), [json!(["thread/backgroundTerminals/clean", thread, null])]);
    }
    let resume = CodexOptions { resume: Some("t-1".into()), ..CodexOptions::default() };
    assert_eq!(run(&provider, resume, fake.context()).await.1.unwrap().code, "done");
    assert_eq!(fake.pids().len(), 1);
    provider.shutdown().await;
    let (mut tools, mut warnings) = (Vec::new(), Vec::new());
    for event in events {
        match event {
            StreamEvent::ToolComplete { result, is_error, .. } => tools.push((result, is_error)),
            StreamEvent::Warning { code, message } => warnings.push(format!("{code}: {message}")),
            _ => {}
        }
    }
    (tools, warnings)
}

#[tokio::test]
async fn a_command_that_outlives_its_turn_ends_with_it() {
    let failed = r#"'{"method":"turn/completed","params":{"threadId":"t-1","turn":{"id":"u","status":"failed","items":[],"error":{"message":"overloaded"}}}}'"#;
    let warned =
        |what: &str| format!("backgroundEnded: stopped in the background at the end of the turn: {what}");
    let left = (json!("it still ran when the turn ended, and was stopped with it"), false);
    let begins = [command("item/started", "t-1", "c")];
    for end in [failed, DONE] {
        let said = leaves_commands(&begins, end, &["t-1"]).await;
        assert_eq!(said, (vec![left.clone()], vec![warned("1 command")]), "{end}");
    }
    // That of a sub-agent which has ended is no tool of the turn.
    let of_sub_agent = [
        sub_agent_begins(),
        command("item/started", "s-1", "c"),
        command("item/started", "s-1", "d"),
        command("item/started", "s-1", "e"),
        command("item/completed", "s-1", "e"),
        ended("s-1", "v"),
    ];
    assert_eq!(leaves_commands(&of_sub_agent, DONE, &["s-1"]).await, (vec![], vec![warned("2 commands")]));
    // What has exited before the end is not counted.
    let exits = [command("item/started", "s-1", "c"), command("item/completed", "s-1", "c")];
    assert_eq!(leaves_commands(&exits, DONE, &[]).await, (vec![], vec![]));
}

#[tokio::test]
async fn a_turn_that_is_cut_ends_its_sub_agents() {
    let script = [
        format!("{OPEN} read -r line; say {BEGUN}"),
        sub_agent_begins(),
        answers(6, "interrupted"),
        answers(7, "interrupted_too"),
        ended("s-1", "v"),
        ended("t-1", "u"),
        answers(8, "cleaned_too"),
        answers(9, "cleaned"),
        "cat".to_owned(),
    ];
    let fake = fake(&script.join("\n"));
    let options = CodexOptions { stall_timeout_ms: Some(200), ..CodexOptions::default() };
    let error = once(options, fake.context()).await.1.unwrap_err();
    assert_eq!(error.code, ErrorCode::Timeout);
    let [interrupt, clean] = ["turn/interrupt", "thread/backgroundTerminals/clean"];
    let expected = [
        json!([interrupt, "t-1", "u"]),
        json!([interrupt, "s-1", "v"]),
        json!([clean, "s-1", null]),
        json!([clean, "t-1", null]),
    ];
    assert_eq!(asked(&fake, ["interrupted", "interrupted_too", "cleaned_too", "cleaned"]), expected);
}

#[tokio::test]
async fn a_call_that_is_cancelled_while_the_program_starts_leaves_none() {
    let fake = fake("echo $$ >> pids; exec sleep 300");
    let provider = CodexProvider::new();
    let context = fake.context();
    let cancel = context.cancel.clone();
    let stop = async {
        wait_until(|| !fake.pids().is_empty()).await;
        cancel.cancel();
    };
    let (turn, ()) = tokio::join!(run(&provider, CodexOptions::default(), context), stop);
    let output = turn.1.unwrap();
    assert_eq!(
        (turn.0, output.turn.stop_reason, output.session_token),
        (Vec::new(), StopReason::Aborted, None)
    );
    assert!(fake.running().is_empty());
}

/// Steers at once with the same message.
struct Steers;

impl Steering for Steers {
    fn next(&self) -> BoxFuture<'static, String> {
        Box::pin(std::future::ready("more".to_owned()))
    }
}

#[tokio::test]
async fn a_question_that_is_taken_back_is_not_answered() {
    let script = format!(
        "{OPEN} read -r line; say {BEGUN}
         say '{{\"id\":\"q1\",\"method\":\"item/commandExecution/requestApproval\",\"params\":{{\"threadId\":\"t-1\",\"itemId\":\"c\",\"command\":\"ls\"}}}}'
         say '{{\"id\":\"q2\",\"method\":\"item/tool/requestUserInput\",\"params\":{{\"threadId\":\"t-1\",\"itemId\":\"d\"}}}}'
         say '{{\"id\":\"q3\",\"method\":\"mcpServer/elicitation/request\",\"params\":{{\"threadId\":\"t-1\",\"serverName\":\"s\"}}}}'
         say '{{\"method\":\"serverRequest/resolved\",\"params\":{{\"threadId\":\"t-1\",\"requestId\":\"q1\"}}}}'
         read -r line; echo \"$line\" > answers; read -r line; echo \"$line\" >> answers
         say {DONE}; cat >> answers"
    );
    let fake = fake(&script);
    let (events, result) = once(CodexOptions::default(), fake.asking(NeverAnswers)).await;
    assert_eq!(result.unwrap().code, "done");
    let answers = fake.json_lines("answers");
    let refusal = json!({ "code": -32601, "message": "`item/tool/requestUserInput` is not offered here" });
    assert_eq!(
        answers,
        [
            json!({ "jsonrpc": "2.0", "id": "q2", "error": refusal }),
            json!({ "jsonrpc": "2.0", "id": "q3", "result": { "action": "cancel", "content": null, "_meta": null } }),
        ]
    );
    assert_eq!(warnings(&events).len(), 2);
}

#[tokio::test]
async fn a_message_that_cannot_join_is_reported_and_no_other_is_taken() {
    let script = format!(
        "{OPEN} read -r line; say {BEGUN}; read -r line; echo \"$line\" > steered
         say '{{\"id\":6,\"error\":{{\"code\":-32600,\"message\":\"no active turn to steer\"}}}}'; say {DONE}; cat >> steered"
    );
    let fake = fake(&script);
    let context = ExecutionContext { steering: Some(Arc::new(Steers)), ..fake.context() };
    let (events, result) = once(CodexOptions::default(), context).await;
    assert_eq!(result.unwrap().code, "done");
    assert_eq!((warnings(&events), events.contains(&StreamEvent::Steered)), (vec!["notSteered"], false));
    let steered: Value = serde_json::from_str(&fake.read("steered")).unwrap();
    assert_eq!(
        (&steered["method"], &steered["params"]["expectedTurnId"]),
        (&json!("turn/steer"), &json!("u"))
    );
}

#[tokio::test]
async fn a_warm_process_serves_the_same_launch_only() {
    let turn = format!("read -r line; say {BEGUN}; say {DONE}");
    let again = turn.replace("\"id\":5", "\"id\":6");
    let fake = fake(&format!("echo $$ >> pids; {OPEN} {turn}; {again}; cat > rest"));
    let provider = CodexProvider::new();
    let first = run(&provider, CodexOptions::default(), fake.context()).await.1.unwrap();
    let resume = CodexOptions { resume: first.session_token, ..CodexOptions::default() };
    run(&provider, resume.clone(), fake.context()).await.1.unwrap();
    assert_eq!(fake.pids().len(), 1);
    let other = CodexOptions { model: Some("other".to_owned()), ..resume };
    run(&provider, other, fake.context()).await.1.unwrap();
    assert_eq!((fake.pids().len(), fake.running().len()), (2, 1));
    provider.shutdown().await;
    assert!(fake.running().is_empty());
}

#[tokio::test]
async fn two_names_for_one_conversation_are_refused() {
    let fake = fake("exit 1");
    let mut input = input(CodexOptions { resume: Some("a".into()), ..CodexOptions::default() });
    input.session_token = Some("b".into());
    let error = CodexProvider::new().execute(input, fake.context()).next().await.unwrap().unwrap_err();
    assert_eq!(error.code, ErrorCode::ConfigInvalid);
}
