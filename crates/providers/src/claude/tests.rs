//! Tests of the whole adapter: recorded transcripts, and programs that misbehave.

use serde_json::{Value, json};

use super::decode::{ClaudeDecoded, ClaudeDecoder};
use super::error::explain_exit;
use crate::program::tests::{ProcessCase, abandoned};
use crate::replay::check;

fn replay(case: &ProcessCase, chunks: &[&[u8]]) -> Vec<Value> {
    let mut decoder = case.session.clone().map_or_else(ClaudeDecoder::new, ClaudeDecoder::with_session);
    let mut decoded: Vec<ClaudeDecoded> = chunks.iter().flat_map(|chunk| decoder.push_bytes(chunk)).collect();
    decoded.extend(decoder.finish());
    let ended = decoded.iter().any(|decoded| matches!(decoded, ClaudeDecoded::TurnEnd(_)));
    let mut out: Vec<Value> = decoded.into_iter().map(|decoded| line(decoded, case)).collect();
    if decoder.in_turn() || !ended {
        out.extend(abandoned(&mut decoder, |decoded| Some(line(decoded, case))));
        out.push(case.exited(|_, stderr| explain_exit(stderr)));
    }
    out
}

fn line(decoded: ClaudeDecoded, case: &ProcessCase) -> Value {
    match decoded {
        ClaudeDecoded::Event(event) => json!({ "event": event }),
        ClaudeDecoded::PermissionRequested { request_id, request } => {
            json!({ "permissionAsked": { "requestId": request_id, "request": request } })
        }
        ClaudeDecoded::Unsupported { request_id, subtype } => {
            json!({ "unsupported": { "requestId": request_id, "subtype": subtype } })
        }
        ClaudeDecoded::Withdrawn { request_id } => json!({ "withdrawn": { "requestId": request_id } }),
        ClaudeDecoded::Answered { request_id, error } => {
            json!({ "answered": { "requestId": request_id, "error": error } })
        }
        ClaudeDecoded::TurnEnd(end) => case.end(*end),
        ClaudeDecoded::Fault(error) => json!({ "fault": error }),
    }
}

#[test]
fn recorded_transcripts_give_their_golden_events() {
    check("claude", replay);
}

/// Programs in place of Claude Code that misbehave, and how the provider handles each.
#[cfg(target_os = "linux")]
mod faults {
    use std::path::Path;
    use std::time::Duration;

    use futures::StreamExt;
    use inspan_protocol::{
        ErrorCode, ExecutionContext, Host, Provider, ProviderItem, StopReason, StreamEvent, Usage,
    };
    use inspan_testkit::is_running;
    use serde_json::{Value, json};

    use super::super::agent::ClaudeAgent;
    use super::super::launch::ClaudeLaunch;
    use super::super::{ClaudeInput, ClaudeOptions, ClaudeProvider, PROGRAM};
    use crate::output::TurnOutput;
    use crate::program::pool::Limits;
    use crate::program::tests::fake::{self, Fake, NeverAnswers, run, wait_until, warnings};
    use crate::program::tests::faults::{FakeDialogue, FakeProgram, fault, missing, program_tests};
    use crate::program::{Agent as _, Ending, ProcessConversation, ProgramProvider};
    use crate::tests::FinishedTurn;

    /// Answers the greeting, then reads the prompt.
    const GREET: &str = r#"
say() { printf '%s\n' "$1"; }
read -r line
say '{"type":"control_response","response":{"subtype":"success","request_id":"initialize","response":{}}}'
"#;
    const RESULT: &str = r#"'{"type":"result","subtype":"success","is_error":false,"result":"done","stop_reason":"end_turn","total_cost_usd":0}'"#;
    const TEXT: &str = r#"'{"type":"stream_event","event":{"type":"message_start","message":{"id":"m1"}}}'
say '{"type":"stream_event","event":{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"so far"}}}'"#;

    fn fake(script: &str) -> Fake {
        Fake::new("claude", script)
    }

    async fn once(options: ClaudeOptions, context: ExecutionContext) -> FinishedTurn<TurnOutput> {
        fake::once::<ClaudeProvider>(options, context).await
    }

    struct FakeClaude;

    impl FakeProgram for FakeClaude {
        type Provider = ClaudeProvider;

        const COMMAND: &'static str = "claude";
    }

    impl FakeDialogue for FakeClaude {
        fn begun() -> String {
            format!("{GREET} read -r line;")
        }

        const TEXT: &'static str = TEXT;
    }

    program_tests!(FakeClaude);

    #[tokio::test]
    async fn the_price_of_a_request_whose_answer_was_lost_is_unknown() {
        let rows = [
            ("Connection to the API was lost (ECONNRESET)", 1),
            ("Request timed out", 1),
            ("Connection refused (ECONNREFUSED)", 0),
            ("529 Overloaded", 0),
        ];
        for (words, expected) in rows {
            let ended = json!({
                "type": "result", "subtype": "success", "is_error": true, "result": format!("API Error: {words}"),
            });
            let fake = fake(&format!("{GREET} read -r line; say '{ended}'; cat"));
            let (events, result) = once(ClaudeOptions::default(), fake.context()).await;
            let unknown = StreamEvent::Usage { usage: Usage::default(), cost_usd: None };
            let seen = events.iter().filter(|event| **event == unknown).count();
            assert_eq!(seen, expected, "{result:?}: {events:?}");
        }
    }

    #[tokio::test]
    async fn a_missing_program_says_what_to_do() {
        missing::<FakeClaude>(&PROGRAM, "@anthropic-ai/claude-code", "INSPAN_CLAUDE").await;
    }

    #[tokio::test]
    async fn a_conversation_in_use_is_recognised_by_the_programs_words() {
        let script = "echo 'Error: Session ID 1 is already in use.' >&2; exit 1";
        let message = "the conversation is in use by another process: Error: Session ID 1 is already in use.";
        let expected = (ErrorCode::InvalidRequest, message.to_owned(), json!("sessionBusy"));
        assert_eq!(fault::<FakeClaude>(script).await, expected);
    }

    #[tokio::test]
    async fn programs_that_talk_nonsense() {
        let protocol =
            |what: &str| (ErrorCode::Protocol, format!("line 2 of the program's output {what}"), Value::Null);
        let rows = [
            (format!("{GREET} read -r line; say hello"), protocol("(5 bytes) is not a JSON object")),
            (
                format!("{GREET} read -r line; say '{{\"type\":\"result\",\"subtype\":\"planted-secret\"'"),
                protocol("(type `result`, 43 bytes) is broken JSON at column 43"),
            ),
            (
                format!("{GREET} read -r line; say '{{\"type\":\"result\",\"subtype\":7}}'"),
                protocol("(type `result`, 29 bytes) does not have the shape that is known at column 28"),
            ),
            (
                format!("{GREET} read -r line; head -c 17000000 /dev/zero | tr '\\0' x; say"),
                protocol("is longer than 16 MiB"),
            ),
        ];
        for (script, expected) in rows {
            assert_eq!(fault::<FakeClaude>(&script).await, expected, "{script}");
        }
    }

    #[tokio::test]
    async fn a_program_that_refuses_its_options() {
        let script = r#"read -r line; printf '%s\n' '{"type":"control_response","response":{"subtype":"error","request_id":"initialize","error":"no planted-secret"}}'; cat"#;
        let expected = (
            ErrorCode::ConfigInvalid,
            "the program refused its options: no [redacted MY_TOKEN]".to_owned(),
            Value::Null,
        );
        assert_eq!(fault::<FakeClaude>(script).await, expected);
    }

    #[tokio::test]
    async fn mcp_servers_are_told_over_the_pipe_and_stand_in_no_file() {
        let answers = |answer: &str| {
            let answer =
                format!(r#"{{"type":"control_response","response":{{{answer},"request_id":"mcpServers"}}}}"#);
            fake(&format!(
                "{GREET} ls \"$TMPDIR\" > files; read -r line; echo \"$line\" > told; say '{answer}'; read -r line; say {RESULT}; cat"
            ))
        };
        let servers = json!({ "s": { "type": "http", "url": "x", "headers": { "A": "${MY_TOKEN}" } } });
        let run = async |fake: &Fake| {
            let mut context = fake.context();
            let folder = fake.folder().join("tmp");
            std::fs::create_dir_all(&folder).unwrap();
            let host = context.host_mut();
            host.env = host.env.with("TMPDIR", folder.display().to_string());
            let servers = serde_json::from_value(servers.clone()).unwrap();
            let stall_timeout_ms = Some(5000);
            let options =
                ClaudeOptions { mcp_servers: Some(servers), stall_timeout_ms, ..ClaudeOptions::default() };
            once(options, context).await.1
        };
        let takes = answers(r#""subtype":"success","response":{"added":["s"],"errors":{}}"#);
        assert_eq!(run(&takes).await.unwrap().text, "done");
        let told: Value = serde_json::from_str(&takes.read("told")).unwrap();
        let expected = json!({ "s": { "type": "http", "url": "x", "headers": { "A": "planted-secret" } } });
        assert_eq!(told["request"], json!({ "subtype": "mcp_set_servers", "servers": expected }));
        assert_eq!(takes.read("files"), "");
        let error = run(&answers(r#""subtype":"error","error":"no planted-secret""#)).await.unwrap_err();
        let expected = "claude: the program refused the MCP servers: no [redacted MY_TOKEN] (CONFIG_INVALID)";
        assert_eq!(error.to_string(), expected);
    }

    #[tokio::test]
    async fn silence_is_a_timeout_after_an_interrupt() {
        // It ends its turn when it is asked to.
        let polite = format!(
            "{GREET} read -r line; say {TEXT}; read -r line; echo \"$line\" > asked; \
             say '{{\"type\":\"result\",\"subtype\":\"error_during_execution\",\"is_error\":true,\"terminal_reason\":\"aborted_streaming\"}}'; cat"
        );
        let fake = fake(&polite);
        let options = ClaudeOptions { stall_timeout_ms: Some(200), ..ClaudeOptions::default() };
        let error = once(options, fake.context()).await.1.unwrap_err();
        assert_eq!((error.code, error.detail.unwrap()["kind"].clone()), (ErrorCode::Timeout, json!("stall")));
        let asked = fake.read("asked");
        let asked: Value = serde_json::from_str(&asked).unwrap();
        assert_eq!(asked["request"], json!({ "subtype": "interrupt" }));
    }

    #[tokio::test]
    async fn a_reader_who_was_away_finds_the_end_and_no_silence() {
        let fake = fake(&format!("{GREET} read -r line; say {TEXT}; touch written; say {RESULT}; cat"));
        let provider = ClaudeProvider::new();
        let options = ClaudeOptions { stall_timeout_ms: Some(1), ..ClaudeOptions::default() };
        let input =
            ClaudeInput { prompt: Some("go".to_owned()), options: Some(options), ..ClaudeInput::default() };
        let mut stream = provider.execute(input, fake.context());
        // The session is reported before the prompt is sent, and the stall limit counts from then on.
        stream.next().await.unwrap().unwrap();
        assert!(futures::poll!(stream.next()).is_pending());
        wait_until(|| fake.work().join("written").exists()).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        let rest: Vec<_> = stream.collect().await;
        let last = rest.into_iter().next_back().unwrap().unwrap();
        assert!(matches!(last, ProviderItem::Output(output) if output.stop_reason == StopReason::Complete));
        provider.shutdown().await;
    }

    #[tokio::test]
    async fn a_question_that_is_taken_back_is_not_answered() {
        let script = format!(
            "{GREET} read -r line
             say '{{\"type\":\"control_request\",\"request_id\":\"q1\",\"request\":{{\"subtype\":\"can_use_tool\",\"tool_name\":\"Bash\",\"input\":{{}}}}}}'
             say '{{\"type\":\"control_request\",\"request_id\":\"q2\",\"request\":{{\"subtype\":\"hook_callback\"}}}}'
             say '{{\"type\":\"control_cancel_request\",\"request_id\":\"q1\"}}'
             read -r line; echo \"$line\" > answers
             say {RESULT}; cat >> answers"
        );
        let fake = fake(&script);
        // The time that a person takes does not count as a stall of the program.
        let options = ClaudeOptions { stall_timeout_ms: Some(2000), ..ClaudeOptions::default() };
        let (events, result) = once(options, fake.asking(NeverAnswers)).await;
        assert_eq!(result.unwrap().text, "done");
        let answers = fake.json_lines("answers");
        let refusal = json!({
            "type": "control_response",
            "response": { "subtype": "error", "request_id": "q2", "error": "`hook_callback` is not offered here" },
        });
        assert_eq!((answers, warnings(&events).len()), (vec![refusal], 1));
    }

    #[tokio::test]
    async fn what_was_denied_is_told_once_and_also_by_a_program_that_does_not() {
        let asks = |end: &str| {
            format!(
                "{GREET} read -r line
                 say '{{\"type\":\"control_request\",\"request_id\":\"q\",\"request\":{{\"subtype\":\"can_use_tool\",\"tool_name\":\"Bash\",\"tool_use_id\":\"t\",\"input\":{{}}}}}}'
                 read -r line; {end}"
            )
        };
        let told = json!([{ "tool_name": "Bash", "tool_use_id": "t", "tool_input": {} }]);
        let result = RESULT.replacen('{', &format!("{{\"permission_denials\":{told},"), 1);
        let denied = json!([{ "toolName": "Bash", "toolUseId": "t", "toolInput": {} }]);
        let dies = fake(&asks("exit 3"));
        let error = once(ClaudeOptions::default(), dies.context()).await.1.unwrap_err();
        assert_eq!(json!(error.denials()), denied);
        let ends = fake(&asks(&format!("say {result}; cat")));
        let output = once(ClaudeOptions::default(), ends.context()).await.1.unwrap();
        assert_eq!(json!(output.permission_denials), denied);
    }

    #[tokio::test]
    async fn what_sub_agents_take_is_read_in_their_transcripts() {
        let fake = fake(&format!(
            "{GREET} read -r line
             for argument; do case $argument in --session-id=*) id=${{argument#*=}};; esac; done
             say '{{\"type\":\"system\",\"subtype\":\"task_started\",\"task_id\":\"a\",\"task_type\":\"local_agent\"}}'
             say '{{\"type\":\"control_request\",\"request_id\":\"q\",\"request\":{{\"subtype\":\"can_use_tool\",\"tool_name\":\"Bash\"}}}}'
             read -r line
             mkdir -p \"$CLAUDE_CONFIG_DIR/projects/-work/$id/subagents\"
             echo '{{\"timestamp\":\"2999-01-01T00:00:00Z\",\"message\":{{\"id\":\"m\",\"stop_reason\":\"end_turn\",\"usage\":{{\"output_tokens\":5000}}}}}}' \\
                 > \"$CLAUDE_CONFIG_DIR/projects/-work/$id/subagents/agent-a.jsonl\"
             say '{{\"type\":\"keep_alive\"}}'
             read -r line; say {RESULT}; cat"
        ));
        let host = fake.context().host;
        let env = host.env.with("CLAUDE_CONFIG_DIR", fake.folder().display().to_string());
        let host = Host { env, cwd: host.cwd.clone(), ..Host::default() };
        let provider = ClaudeProvider::new();
        let input = ClaudeInput { prompt: Some("go".to_owned()), ..ClaudeInput::default() };
        let mut stream = provider.execute(input, ExecutionContext::new(host));
        let spent = async {
            loop {
                match stream.next().await.unwrap().unwrap() {
                    ProviderItem::Event(StreamEvent::Usage { usage, .. }) => break usage.output_tokens,
                    ProviderItem::Event(_) => {}
                    ProviderItem::Output(output) => panic!("{output:?}"),
                }
            }
        };
        let spent = tokio::time::timeout(Duration::from_secs(10), spent).await;
        assert_eq!(spent, Ok(5000), "while the turn goes on");
        drop(stream);
        provider.shutdown().await;
    }

    /// Answers every prompt at once.
    fn willing() -> Fake {
        fake(&format!("echo $$ >> pids; {GREET} while read -r line; do say {RESULT}; done"))
    }

    fn provider(limits: Limits) -> ClaudeProvider {
        ClaudeProvider(ProgramProvider::with_limits(limits))
    }

    #[tokio::test]
    async fn processes_stay_warm_for_their_time_and_in_their_number() {
        let fake = willing();
        let limits = Limits { warm_for: Duration::from_millis(1500), warm: 2, ..Limits::DEFAULT };
        let provider = provider(limits);
        let mut sessions = Vec::new();
        for _ in 0..3 {
            sessions.push(
                run(&provider, ClaudeOptions::default(), fake.context()).await.1.unwrap().session_id.unwrap(),
            );
        }
        let pids = fake.pids();
        wait_until(|| !is_running(pids[0])).await;
        assert_eq!(
            [is_running(pids[1]), is_running(pids[2])],
            [true, true],
            "the one that was used longest ago goes"
        );
        let resume = |session: &inspan_protocol::ProviderSessionId| ClaudeOptions {
            resume: Some(session.clone()),
            ..ClaudeOptions::default()
        };
        run(&provider, resume(&sessions[2]), fake.context()).await.1.unwrap();
        assert_eq!(fake.pids(), pids, "the warm process serves the next turn");
        run(
            &provider,
            ClaudeOptions { model: Some("other".to_owned()), ..resume(&sessions[2]) },
            fake.context(),
        )
        .await
        .1
        .unwrap();
        assert_eq!(
            (fake.pids().len(), is_running(pids[2])),
            (4, false),
            "other options take another process"
        );
        wait_until(|| fake.pids().iter().all(|pid| !is_running(*pid))).await;
        run(&provider, resume(&sessions[2]), fake.context()).await.1.unwrap();
        assert_eq!(fake.pids().len(), 5, "a cold conversation takes a new process");
        provider.shutdown().await;
        assert!(fake.running().is_empty());
        let (_, result) = run(&provider, ClaudeOptions::default(), fake.context()).await;
        assert_eq!(result.unwrap_err().code, ErrorCode::Aborted);
    }

    #[tokio::test]
    async fn a_warm_process_that_begins_a_turn_by_itself_is_ended() {
        let begins = r#"say '{"type":"system","subtype":"init"}'"#;
        let fake = fake(&format!(
            "echo $$ >> pids; {GREET} read -r line; say {RESULT}; sleep 0.5; {begins}; while :; do sleep 1; done"
        ));
        let provider = provider(Limits::DEFAULT);
        run(&provider, ClaudeOptions::default(), fake.context()).await.1.unwrap();
        assert_eq!(fake.running().len(), 1, "it is kept for the next turn");
        wait_until(|| fake.running().is_empty()).await;
        provider.shutdown().await;
    }

    #[tokio::test]
    async fn a_long_conversation_is_branched_beside_other_work() {
        let fake = fake(&format!(
            "for argument; do case $argument in --resume=*) cp \"${{argument#--resume=}}\" beginning;; esac; done; {GREET} cat"
        ));
        let context = context_with(&fake, "HOME", fake.folder());
        let launch = ClaudeLaunch::new(&ClaudeOptions::default(), &context).unwrap();
        let (from, id) = ("5f0e3d3a-3f0e-4a53-9d0b-0123456789ab", "6f0e3d3a-3f0e-4a53-9d0b-0123456789ab");
        let folder = fake.folder().join(".claude/projects/-work");
        std::fs::create_dir_all(&folder).unwrap();
        let beginning = format!("{}\n{{\"uuid\":\"a\"}}\n", "x".repeat(16 << 20));
        std::fs::write(folder.join(format!("{from}.jsonl")), format!("{beginning}{{\"uuid\":\"b\"}}\n"))
            .unwrap();
        let branch = ProcessConversation::Forked { from: from.into(), at: Some("a".into()), id: id.into() };
        let mut starting = Box::pin(ClaudeAgent::start(&launch, &branch, &context));
        assert!(futures::poll!(&mut starting).is_pending(), "it is read elsewhere");
        let mut agent = starting.await.unwrap();
        agent.greet(&launch).await.unwrap();
        assert!(fake.read("beginning") == beginning);
        agent.end(Ending::Close).await;
    }

    /// A context with a variable that names a folder.
    fn context_with(fake: &Fake, variable: &str, folder: &Path) -> ExecutionContext {
        let host = fake.context().host;
        let env = host.env.with(variable, folder.display().to_string());
        ExecutionContext::new(Host { env, cwd: host.cwd.clone(), ..Host::default() })
    }

    /// A context in which conversations are locked, by files in a folder.
    fn context_with_locks(fake: &Fake) -> ExecutionContext {
        context_with(fake, "INSPAN_HOME", &fake.folder().join("home"))
    }

    #[tokio::test]
    async fn a_warm_process_that_misses_a_turn_of_another_one_is_replaced() {
        let fake = willing();
        let context = || context_with_locks(&fake);
        let (ours, others) = (provider(Limits::DEFAULT), provider(Limits::DEFAULT));
        let session = run(&ours, ClaudeOptions::default(), context()).await.1.unwrap().session_id;
        let resume = || ClaudeOptions { resume: session.clone(), ..ClaudeOptions::default() };
        run(&ours, resume(), context()).await.1.unwrap();
        assert_eq!(fake.pids().len(), 1, "the warm process serves the next turn");
        run(&others, resume(), context()).await.1.unwrap();
        assert_eq!(fake.pids().len(), 2);
        run(&ours, resume(), context()).await.1.unwrap();
        let pids = fake.pids();
        assert_eq!((pids.len(), is_running(pids[0])), (3, false), "the warm process is replaced");
        run(&ours, resume(), context()).await.1.unwrap();
        assert_eq!(fake.pids().len(), 3, "nobody else was there");
        run(&others, resume(), context()).await.1.unwrap();
        let pids = fake.pids();
        assert_eq!((pids.len(), is_running(pids[1])), (4, false), "nor does the other one's know all");
        ours.shutdown().await;
        run(&others, resume(), context()).await.1.unwrap();
        assert_eq!(fake.pids().len(), 4, "a process that ends takes no turn");
        others.shutdown().await;
        assert!(fake.running().is_empty());
        let left: Vec<_> = std::fs::read_dir(fake.folder().join("home/conversations")).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }

    #[tokio::test]
    async fn a_turn_after_a_sub_agent_was_stopped_takes_a_new_process() {
        let fake = fake(&format!(
            "echo $$ >> pids; {GREET}
             task() {{ say '{{\"type\":\"system\",\"subtype\":\"task_'$1'\",\"task_id\":\"a\",\"task_type\":\"local_agent\",\"status\":\"'$2'\"}}'; }}
             while read -r line; do case $line in
               *interrupt*) task notification stopped;;
               *) task started; say '{{\"type\":\"result\",\"subtype\":\"success\",\"is_error\":true,\"api_error_status\":529}}';;
             esac; done"
        ));
        let provider = provider(Limits::DEFAULT);
        let (events, result) = run(&provider, ClaudeOptions::default(), fake.context()).await;
        assert_eq!(result.unwrap_err().code, ErrorCode::Overloaded);
        let session = events.into_iter().find_map(|event| match event {
            StreamEvent::Session { session_id } => Some(session_id),
            _ => None,
        });
        let resume = ClaudeOptions { resume: session, ..ClaudeOptions::default() };
        let (_, result) = run(&provider, resume, fake.context()).await;
        assert_eq!(result.unwrap_err().code, ErrorCode::Overloaded);
        assert_eq!(fake.pids().len(), 2, "a new process tells the model that it was stopped");
        provider.shutdown().await;
    }

    #[tokio::test]
    async fn one_conversation_takes_one_turn_at_a_time() {
        let fake = fake(&format!("echo $$ >> pids; {GREET} read -r line; say {TEXT}; cat >/dev/null"));
        let context = || context_with_locks(&fake);
        let provider = provider(Limits { busy: Duration::from_millis(200), ..Limits::DEFAULT });
        let session = inspan_protocol::ProviderSessionId::from("5f0e3d3a-3f0e-4a53-9d0b-0123456789ab");
        let options = ClaudeOptions { resume: Some(session), ..ClaudeOptions::default() };
        let input = ClaudeInput {
            prompt: Some("go".to_owned()),
            options: Some(options.clone()),
            ..ClaudeInput::default()
        };
        let mut first = provider.execute(input, context());
        first.next().await.unwrap().unwrap();
        let error = run(&provider, options.clone(), context()).await.1.unwrap_err();
        assert_eq!(
            (error.code, error.detail.unwrap()["kind"].clone()),
            (ErrorCode::InvalidRequest, json!("sessionBusy"))
        );
        let another = self::provider(Limits { busy: Duration::from_millis(200), ..Limits::DEFAULT });
        let error = run(&another, options.clone(), context()).await.1.unwrap_err();
        assert_eq!(
            error.detail.unwrap()["kind"],
            json!("sessionBusy"),
            "another process of Inspan waits too"
        );
        assert_eq!(fake.pids().len(), 1, "no second process on one conversation");
        // Dropping the stream frees it, once its process is gone.
        drop(first);
        let pid = fake.pids()[0];
        let input =
            ClaudeInput { prompt: Some("go".to_owned()), options: Some(options), ..ClaudeInput::default() };
        let mut second = provider.execute(input, context());
        second.next().await.unwrap().unwrap();
        assert_eq!((fake.pids().len(), is_running(pid)), (2, false));
        drop(second);
        provider.shutdown().await;
        assert!(fake.running().is_empty());
    }

    #[tokio::test]
    async fn a_shutdown_ends_the_turns_in_progress() {
        let fake = fake(&format!("echo $$ >> pids; {GREET} read -r line; say {TEXT}; read -r line; exit 0"));
        let provider = ClaudeProvider::new();
        let input = ClaudeInput { prompt: Some("go".to_owned()), ..ClaudeInput::default() };
        let mut stream = provider.execute(input, fake.context());
        stream.next().await.unwrap().unwrap();
        let rest = async {
            let mut last = None;
            while let Some(item) = stream.next().await {
                last = Some(item.unwrap());
            }
            last
        };
        let (last, ()) = tokio::join!(rest, provider.shutdown());
        let Some(ProviderItem::Output(output)) = last else { panic!("{last:?}") };
        assert_eq!((output.stop_reason, output.text.as_str()), (StopReason::Aborted, "so far"));
        assert!(fake.running().is_empty());
    }
}
