//! Tests of the whole adapter: recorded streams, and servers and programs that misbehave.

use inspan_protocol::Timestamp;
use serde_json::{Value, json};

use super::decode::{Follows, OpenCodeDecoded, OpenCodeDecoder, QuestionAnswer, RequestKind};
use super::error::retrying;
use crate::program::tests::{ProcessCase, abandoned};
use crate::replay::check;

fn replay(case: &ProcessCase, chunks: &[&[u8]]) -> Vec<Value> {
    let mut decoder = OpenCodeDecoder::new(case.session.as_ref().unwrap().as_str(), case.before.clone());
    let mut out = Vec::new();
    let mut over = false;
    for decoded in chunks.iter().flat_map(|chunk| decoder.push(chunk)).collect::<Vec<_>>() {
        if !over {
            over = matches!(decoded, OpenCodeDecoded::TurnEnd(_) | OpenCodeDecoded::Fault(_));
            out.push(line(decoded, case));
        }
    }
    if !over {
        out.extend(abandoned(&mut decoder, |decoded| Some(line(decoded, case))));
    }
    out
}

fn line(decoded: OpenCodeDecoded, case: &ProcessCase) -> Value {
    match decoded {
        OpenCodeDecoded::Connected => json!({ "connected": true }),
        OpenCodeDecoded::Event(event) => json!({ "event": event }),
        OpenCodeDecoded::Requested { request_id, kind, request } => {
            let word = if kind == RequestKind::Permission { "permissionAsked" } else { "questionAsked" };
            json!({ word: { "requestId": request_id, "request": request } })
        }
        OpenCodeDecoded::Answered { request_id, answer } => {
            json!({ "answered": { "requestId": request_id, "refused": answer == QuestionAnswer::Denied } })
        }
        OpenCodeDecoded::Step { follows } => json!({ "step": { "follows": follows == Follows::Another } }),
        OpenCodeDecoded::Retry { attempt, message, reason, next } => {
            // Two seconds before the next attempt, unless the case says when.
            let now = Timestamp::from_millis(case.now.unwrap_or(next.unwrap_or_default() - 2000));
            let error = retrying(&message, reason.as_deref(), next, now);
            json!({ "retry": { "attempt": attempt, "error": error } })
        }
        OpenCodeDecoded::Hopeless(error) => json!({ "hopeless": error }),
        OpenCodeDecoded::Closing => json!({ "closing": true }),
        OpenCodeDecoded::TurnEnd(end) => case.end(*end),
        OpenCodeDecoded::Fault(error) => json!({ "fault": error }),
    }
}

#[test]
fn recorded_transcripts_give_their_golden_events() {
    check("opencode", replay);
}

/// Programs and servers in place of OpenCode that misbehave, and how the provider handles each. A program is a shell
/// script that says where a server listens; the server belongs to the test.
#[cfg(target_os = "linux")]
mod faults {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use futures::StreamExt;
    use inspan_protocol::{ErrorCode, ExecutionContext, Provider, StopReason, StreamEvent};
    use serde_json::{Value, json};
    use wiremock::matchers::{method, path};
    use wiremock::{Mock, MockServer, ResponseTemplate};

    use super::super::{OpenCodeInput, OpenCodeOptions, OpenCodeProvider, PROGRAM};
    use crate::output::TurnOutput;
    use crate::program::ProgramProvider;
    use crate::program::pool::Limits;
    use crate::program::tests::fake::{self, Fake, parts, run, wait_until, warnings};
    use crate::program::tests::faults::{FakeProgram, cancelled_at_its_text, missing, program_tests};
    use crate::tests::{FinishedTurn, Person};

    const SESSION: &str = "ses_1";

    fn fake(script: &str) -> Fake {
        Fake::new("opencode", script)
    }

    /// A program that listens where a server of this test does.
    fn fake_before(server: &MockServer) -> Fake {
        fake(&format!(
            "echo $$ >> pids; echo \"$OPENCODE_SERVER_PASSWORD\" >> password; echo \"$@\" >> arguments; \
             echo 'opencode server listening on {}'; exec sleep 300",
            server.uri()
        ))
    }

    fn event(kind: &str, mut properties: Value) -> String {
        if kind != "server.connected" {
            properties["sessionID"] = json!(SESSION);
        }
        format!("data: {}\n\n", json!({ "id": "evt", "type": kind, "properties": properties }))
    }

    fn message(id: &str, role: &str, time: Value, more: Value) -> String {
        let mut info = json!({ "id": id, "role": role, "time": time });
        info.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        event("message.updated", json!({ "info": info }))
    }

    /// The events of a turn until the first text of the model.
    fn returned() -> String {
        let text = json!({ "id": "p1", "messageID": "a1", "type": "text", "text": "so far", "time": { "start": 1, "end": 2 } });
        [
            event("server.connected", json!({})),
            message("u1", "user", json!({}), json!({})),
            message("a1", "assistant", json!({ "created": 1 }), json!({})),
            event("message.part.updated", json!({ "part": text })),
        ]
        .concat()
    }

    /// And its end.
    fn ended() -> String {
        [
            message("a1", "assistant", json!({ "created": 1, "completed": 2 }), json!({ "finish": "stop" })),
            event("session.idle", json!({})),
        ]
        .concat()
    }

    /// A server that knows one conversation and sends these events.
    async fn server(events: ResponseTemplate) -> MockServer {
        let server = MockServer::start().await;
        mount(
            &server,
            "POST",
            "/session",
            ResponseTemplate::new(200).set_body_json(json!({ "id": SESSION })),
        )
        .await;
        mount(
            &server,
            "GET",
            "/session/ses_1",
            ResponseTemplate::new(200).set_body_json(json!({ "id": SESSION })),
        )
        .await;
        mount(&server, "PATCH", "/session/ses_1", ResponseTemplate::new(200).set_body_json(json!({}))).await;
        mount(&server, "POST", "/session/ses_1/prompt_async", ResponseTemplate::new(204)).await;
        mount(&server, "POST", "/session/ses_1/abort", ResponseTemplate::new(200).set_body_json(true)).await;
        mount(&server, "GET", "/event", events).await;
        server
    }

    async fn mount(server: &MockServer, verb: &str, at: &str, answer: ResponseTemplate) {
        Mock::given(method(verb)).and(path(at)).respond_with(answer).mount(server).await;
    }

    fn events(body: String) -> ResponseTemplate {
        ResponseTemplate::new(200).set_body_raw(body, "text/event-stream")
    }

    async fn once(options: OpenCodeOptions, context: ExecutionContext) -> FinishedTurn<TurnOutput> {
        fake::once::<OpenCodeProvider>(options, context).await
    }

    /// The code, the message and the kind of the error that a turn comes to.
    async fn fault(fake: &Fake, options: OpenCodeOptions) -> (ErrorCode, String, Value) {
        let error = once(options, fake.context()).await.1.unwrap_err();
        let text = serde_json::to_string(&error).unwrap();
        let password = fake.read("password");
        assert!(password.is_empty() || !text.contains(password.trim()), "{error:?}");
        assert!(fake.running().is_empty(), "{error:?}");
        parts(error)
    }

    /// A turn before this server comes to this error.
    async fn fails(server: &MockServer, code: ErrorCode, message: &str) {
        let error = fault(&fake_before(server), OpenCodeOptions::default()).await;
        assert_eq!(error, (code, message.to_owned(), Value::Null));
    }

    struct FakeOpenCode;

    impl FakeProgram for FakeOpenCode {
        type Provider = OpenCodeProvider;

        const COMMAND: &'static str = "opencode";
    }

    program_tests! { FakeOpenCode:
        a_program_that_closes_its_output_is_not_taken_for_one_that_ended,
        a_deadline_holds_against_a_program_that_never_answers,
        a_call_that_is_cancelled_before_it_begins_starts_no_turn,
    }

    #[tokio::test]
    async fn mcp_servers_that_did_not_start_are_named_once() {
        let server = server(events(returned() + &ended())).await;
        let states = json!({
            "tickets": { "status": "failed", "error": "ENOENT with planted-secret" }, "silent": { "status": "failed" },
            "web": { "status": "needs_auth" }, "off": { "status": "disabled" }, "well": { "status": "connected" },
        });
        mount(&server, "GET", "/mcp", ResponseTemplate::new(200).set_body_json(states)).await;
        let fake = fake_before(&server);
        let provider = OpenCodeProvider::new();
        let mut warned = Vec::new();
        for resume in [None, Some(SESSION.into())] {
            let options = OpenCodeOptions { resume, ..OpenCodeOptions::default() };
            // The second turn has the same message of the user, and takes it for late news.
            let (events, _) = run(&provider, options, fake.context()).await;
            warned.extend(events.into_iter().filter_map(|event| match event {
                StreamEvent::Warning { code, message } => Some(format!("{code}: {message}")),
                _ => None,
            }));
        }
        provider.shutdown().await;
        let said = |name: &str, why: &str| format!("mcpServer: the MCP server {name} did not start: {why}");
        let mut expected = [
            said("silent", "it gave no reason"),
            said("tickets", "ENOENT with [redacted MY_TOKEN]"),
            said("web", "it wants a login: run `opencode mcp auth web`"),
        ];
        warned.sort();
        expected.sort();
        assert_eq!(warned, expected);
    }

    #[tokio::test]
    async fn a_turn_that_is_stopped_at_its_limit_has_no_price_if_the_model_was_asked_again() {
        let finished = json!({
            "id": "s1", "messageID": "a1", "type": "step-finish", "reason": "tool-calls", "cost": 0.5,
            "tokens": { "input": 10, "output": 2, "reasoning": 0, "cache": { "read": 0, "write": 0 } },
        });
        let limit = [
            event("message.part.updated", json!({ "part": finished })),
            message(
                "a1",
                "assistant",
                json!({ "created": 1, "completed": 2 }),
                json!({ "finish": "tool-calls" }),
            ),
        ]
        .concat();
        let error = json!({ "error": { "name": "MessageAbortedError", "data": { "message": "Aborted" } } });
        let another = [
            message("a2", "assistant", json!({ "created": 3 }), json!({})),
            message("a2", "assistant", json!({ "created": 3, "completed": 4 }), error),
        ]
        .concat();
        for (after, cost_usd) in [(String::new(), Some(0.5)), (another, None)] {
            let idle = event("session.idle", json!({}));
            let server = server(events([returned(), limit.clone(), after, idle].concat())).await;
            let options = OpenCodeOptions { max_turns: Some(1), ..OpenCodeOptions::default() };
            let output = once(options, fake_before(&server).context()).await.1.unwrap();
            assert_eq!((output.stop_reason, output.cost_usd), (StopReason::MaxTurns, cost_usd));
        }
    }

    #[tokio::test]
    async fn a_missing_program_says_what_to_do() {
        missing::<FakeOpenCode>(&PROGRAM, "opencode-ai", "INSPAN_OPENCODE").await;
    }

    #[tokio::test]
    async fn programs_that_never_come_to_listen() {
        let rows = [
            (
                "echo broken $MY_TOKEN >&2; exit 1",
                ErrorCode::Process,
                "the program ended (exit code 1) before its turn did; it said: broken [redacted MY_TOKEN]",
                json!("processDied"),
            ),
            (
                "echo 'Error: Configuration is invalid at x' >&2; exit 1",
                ErrorCode::ConfigInvalid,
                "the program does not take its configuration: Error: Configuration is invalid at x",
                json!("configuration"),
            ),
            (
                "echo 'listening on http://192.0.2.1:80'; exec sleep 300",
                ErrorCode::Protocol,
                "the program does not listen on the loopback address it was given",
                json!("start"),
            ),
            (
                "head -c 70000 /dev/zero | tr '\\0' x; exec sleep 300",
                ErrorCode::Protocol,
                "the program printed 70000 bytes and not where it listens",
                json!("start"),
            ),
        ];
        for (script, code, message, kind) in rows {
            let fake = fake(&format!("echo $$ >> pids; {script}"));
            let seen = fault(&fake, OpenCodeOptions::default()).await;
            // How much of a flood a read brings is the system's to say.
            let words = |text: &str| text.replace(|c: char| c.is_ascii_digit(), "");
            assert_eq!((seen.0, words(&seen.1), seen.2), (code, words(message), kind), "{script}");
        }
    }

    #[tokio::test]
    async fn servers_that_talk_nonsense() {
        let rows = [
            (
                events("data: hello\n\n".to_owned()),
                ErrorCode::Protocol,
                "event 1 of the server (type `event`, 5 bytes) is broken JSON at column 1",
            ),
            (events(String::new()), ErrorCode::Protocol, "the program's server ended its events at once"),
            (
                events(returned()),
                ErrorCode::Protocol,
                "the program's server ended its events before the turn did",
            ),
            (
                events(format!("{}data: {}\n\n", returned(), "x".repeat(17 << 20))),
                ErrorCode::Protocol,
                "an event of the stream is larger than 16777216 bytes",
            ),
            (
                ResponseTemplate::new(500)
                    .set_body_json(json!({ "name": "UnknownError", "data": { "message": "oh" } })),
                ErrorCode::Protocol,
                "the program's server refused to tell its events (status 500): oh",
            ),
        ];
        for (answer, code, message) in rows {
            let server = server(answer).await;
            fails(&server, code, message).await;
        }
    }

    #[tokio::test]
    async fn requests_that_are_refused() {
        let refusal = |status: u16, message: &str| {
            ResponseTemplate::new(status)
                .set_body_json(json!({ "name": "BadRequest", "data": { "message": message } }))
        };
        let cases = [
            (
                "/session",
                refusal(400, "planted-secret is bad"),
                ErrorCode::InvalidRequest,
                "the program's server refused to begin a conversation (status 400): [redacted MY_TOKEN] is bad",
            ),
            (
                "/session",
                ResponseTemplate::new(200).set_body_string("<html>"),
                ErrorCode::Protocol,
                "the program's server was to begin a conversation and answered with no JSON",
            ),
            (
                "/session",
                ResponseTemplate::new(200).set_body_string(r#"{"id":"../../x","title":"half \ud83d"}"#),
                ErrorCode::Protocol,
                "the program's server began a conversation without a name",
            ),
            (
                "/session/ses_1/prompt_async",
                refusal(400, "no such agent"),
                ErrorCode::InvalidRequest,
                "the program's server refused to take the message (status 400): no such agent",
            ),
        ];
        for (at, answer, code, message) in cases {
            let server = MockServer::start().await;
            mount(&server, "POST", at, answer).await;
            mount(
                &server,
                "POST",
                "/session",
                ResponseTemplate::new(200).set_body_json(json!({ "id": SESSION })),
            )
            .await;
            mount(&server, "GET", "/event", events(returned())).await;
            fails(&server, code, message).await;
        }
    }

    #[tokio::test]
    async fn an_unknown_conversation_is_named() {
        let server = MockServer::start().await;
        let fake = fake_before(&server);
        let options = OpenCodeOptions { resume: Some("ses_gone".into()), ..OpenCodeOptions::default() };
        let expected = (
            ErrorCode::InvalidRequest,
            "no such conversation: ses_gone".to_owned(),
            json!("sessionNotFound"),
        );
        assert_eq!(fault(&fake, options).await, expected);
    }

    #[tokio::test]
    async fn a_conversation_of_another_folder_is_moved_or_no_turn_begins() {
        let elsewhere = json!({ "id": SESSION, "directory": "/elsewhere" });
        let refusal = json!({ "name": "MoveSessionError", "data": { "message": "another project" } });
        for (moved, fork) in [(true, true), (true, false), (false, true), (false, false)] {
            let server = MockServer::start().await;
            let stored = ResponseTemplate::new(200).set_body_json(&elsewhere);
            mount(&server, "POST", "/session/ses_0/fork", stored.clone()).await;
            mount(&server, "GET", "/session/ses_1", stored).await;
            mount(&server, "PATCH", "/session/ses_1", ResponseTemplate::new(200)).await;
            let answer = if moved {
                ResponseTemplate::new(204)
            } else {
                ResponseTemplate::new(400).set_body_json(&refusal)
            };
            mount(&server, "POST", "/experimental/control-plane/move-session", answer).await;
            mount(&server, "POST", "/session/ses_1/prompt_async", ResponseTemplate::new(204)).await;
            mount(&server, "GET", "/event", events(format!("{}{}", returned(), ended()))).await;
            let fake = fake_before(&server);
            let resume = if fork { "ses_0" } else { SESSION };
            let options = OpenCodeOptions {
                resume: Some(resume.into()),
                fork: Some(fork),
                ..OpenCodeOptions::default()
            };
            let result = once(options, fake.context()).await.1;
            let requests = server.received_requests().await.unwrap();
            let of = |part: &str| requests.iter().find(|request| request.url.path().ends_with(part));
            let cwd = fake.work().display().to_string();
            let asked = json!({ "sessionID": SESSION, "destination": { "directory": cwd } });
            assert_eq!(of("/move-session").unwrap().body_json::<Value>().unwrap(), asked);
            if moved {
                assert_eq!(result.unwrap().text, "so far");
                let query: Vec<_> = of("/prompt_async").unwrap().url.query_pairs().into_owned().collect();
                assert_eq!(query, [("directory".to_owned(), cwd)]);
                continue;
            }
            let message = format!(
                "the conversation works in /elsewhere and cannot continue in {cwd}: the program's server refused to \
                 move the conversation (status 400): another project; begin one of its own there, or give the same `cwd`"
            );
            assert_eq!(parts(result.unwrap_err()), (ErrorCode::ConfigInvalid, message, Value::Null));
            assert!(of("/prompt_async").is_none());
        }
    }

    #[tokio::test]
    async fn one_good_turn_is_behind_a_password_and_asks_as_it_should() {
        let server = server(events(format!("{}{}", returned(), ended()))).await;
        let fake = fake_before(&server);
        let (seen, result) = once(OpenCodeOptions::default(), fake.context()).await;
        let output = result.unwrap();
        assert_eq!((output.text.as_str(), output.stop_reason), ("so far", StopReason::Complete));
        assert_eq!(seen[0], StreamEvent::Session { session_id: SESSION.into() });
        assert_eq!(fake.read("arguments"), "serve --hostname=127.0.0.1 --port=0\n");
        let requests = server.received_requests().await.unwrap();
        let asked: Vec<(String, String)> = requests
            .iter()
            .map(|request| (request.method.to_string(), request.url.path().to_owned()))
            .collect();
        let expected = [
            ("POST", "/session"),
            ("GET", "/mcp"),
            ("GET", "/event"),
            ("POST", "/session/ses_1/prompt_async"),
        ];
        assert_eq!(asked, expected.map(|(verb, path)| (verb.to_owned(), path.to_owned())));
        let logins: Vec<&[u8]> =
            requests.iter().map(|request| request.headers["authorization"].as_bytes()).collect();
        assert!(logins.iter().all(|login| login.starts_with(b"Basic ") && *login == logins[0]), "{logins:?}");
        assert_eq!(
            requests[3].body_json::<Value>().unwrap(),
            json!({ "parts": [{ "type": "text", "text": "go" }] })
        );
        assert!(fake.running().is_empty());
    }

    #[tokio::test]
    async fn silence_is_a_timeout_after_an_abort_and_the_tree_goes_with_it() {
        // The stream stays open and silent; the abort is accepted and has no effect.
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let aborts = Arc::new(AtomicUsize::new(0));
        tokio::spawn(raw(listener, returned(), Arc::clone(&aborts)));
        let fake = fake(&format!(
            "echo $$ >> pids; setsid sleep 300 & echo $! >> pids; echo 'listening on http://{address}'; wait"
        ));
        let options = OpenCodeOptions { stall_timeout_ms: Some(300), ..OpenCodeOptions::default() };
        let (code, message, kind) = fault(&fake, options).await;
        assert_eq!((code, kind, aborts.load(Ordering::SeqCst)), (ErrorCode::Timeout, json!("stall"), 1));
        let silence =
            message.strip_prefix("the program sent nothing for ").and_then(|rest| rest.strip_suffix(" ms"));
        assert!(silence.is_some_and(|ms| ms.parse::<u64>().unwrap() >= 300), "{message}");
    }

    #[tokio::test]
    async fn a_cancelled_turn_is_an_output_even_if_the_server_ignores_it() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(raw(listener, returned(), Arc::default()));
        let fake = fake(&format!(
            "trap '' TERM; echo $$ >> pids; echo 'listening on http://{address}'; while :; do sleep 60; done"
        ));
        cancelled_at_its_text::<FakeOpenCode>(&fake).await;
    }

    #[tokio::test]
    async fn an_allowance_of_another_input_is_a_denial_with_a_warning() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked =
            event("permission.asked", json!({ "id": "per_1", "permission": "bash", "patterns": ["ls"] }));
        let next = event("session.status", json!({ "status": { "type": "busy" } }));
        tokio::spawn(raw(listener, [returned(), asked, next].concat(), Arc::default()));
        let fake = fake(&format!("echo 'listening on http://{address}'; exec sleep 300"));
        let person = Person::allows(Some(json!({ "command": "rm" })));
        let (context, provider) = (fake.asking(person.clone()), OpenCodeProvider::new());
        let cancel = context.cancel.clone();
        let watch = |event: &StreamEvent| {
            if matches!(event, StreamEvent::Warning { .. }) {
                cancel.cancel();
            }
        };
        let options = json!({ "stallTimeoutMs": 5000 });
        let (events, result) = fake::watched(&provider, &options, context, watch).await;
        assert_eq!((warnings(&events), person.asked().len()), (vec!["inputNotChanged"], 1));
        assert_eq!(result.unwrap().permission_denials.len(), 1);
    }

    #[tokio::test]
    async fn servers_stay_warm_for_their_time_and_die_with_their_conversation() {
        let server = server(events(format!("{}{}", returned(), ended()))).await;
        let fake = fake_before(&server);
        let limits = Limits { warm_for: Duration::from_secs(60), warm: 1, busy: Duration::from_millis(50) };
        let provider = OpenCodeProvider(ProgramProvider::with_limits(limits));
        let resumed = || OpenCodeOptions { resume: Some(SESSION.into()), ..OpenCodeOptions::default() };
        run(&provider, OpenCodeOptions::default(), fake.context()).await.1.unwrap();
        // The turn of the recorded stream has the same message of the user, which a second turn would take for late news.
        let first = fake.running();
        assert_eq!(first.len(), 1);
        let other =
            OpenCodeOptions { append_system_prompt: Some("x".to_owned()), max_turns: Some(3), ..resumed() };
        let held = provider.execute(
            OpenCodeInput { prompt: Some("go".to_owned()), options: Some(other), ..OpenCodeInput::default() },
            fake.context(),
        );
        let mut held = held;
        held.next().await.unwrap().unwrap();
        // New choices of a turn need no other server, and while it has the conversation no other turn does.
        assert_eq!(fake.running(), first);
        let error = run(&provider, resumed(), fake.context()).await.1.unwrap_err();
        assert_eq!(
            (error.code, error.detail.unwrap()["kind"].clone()),
            (ErrorCode::InvalidRequest, json!("sessionBusy"))
        );
        drop(held);
        wait_until(|| fake.running().is_empty()).await;
        let tools = OpenCodeOptions { tools: Some(Vec::new()), ..resumed() };
        run(&provider, tools, fake.context()).await.1.unwrap();
        assert_eq!(fake.running().len(), 1);
        provider.shutdown().await;
        assert!(fake.running().is_empty());
        let error = run(&provider, resumed(), fake.context()).await.1;
        assert!(error.is_err() || error.is_ok_and(|output| output.stop_reason == StopReason::Aborted));
    }

    #[tokio::test]
    async fn the_next_conversation_has_the_server_of_the_one_that_is_over() {
        let server = server(events(format!("{}{}", returned(), ended()))).await;
        let reloaded = ResponseTemplate::new(200).set_body_json(true);
        mount(&server, "POST", "/instance/dispose", reloaded.clone().set_delay(Duration::from_millis(50)))
            .await;
        let fake = fake_before(&server);
        let provider = OpenCodeProvider::new();
        let options = OpenCodeOptions::default;
        for _ in 0..2 {
            let output = run(&provider, options(), fake.context()).await.1.unwrap();
            assert_eq!((output.text.as_str(), output.session_id), ("so far", Some(SESSION.into())));
        }
        assert_eq!(fake.pids().len(), 1);
        // The settings may have changed between the two.
        let asked = server.received_requests().await.unwrap();
        let paths: Vec<&str> = asked.iter().map(|request| request.url.path()).collect();
        assert_eq!(paths[4..6], ["/instance/dispose", "/session"]);
        // One with other settings needs its own.
        let tools = OpenCodeOptions { tools: Some(Vec::new()), ..options() };
        run(&provider, tools, fake.context()).await.1.unwrap();
        assert_eq!(fake.pids().len(), 2);
        provider.shutdown().await;
        // Here all conversations have one id. The second server took the place of the first, which dies on its own.
        wait_until(|| fake.running().is_empty()).await;
    }

    #[tokio::test]
    async fn a_server_that_cannot_take_another_conversation_is_replaced() {
        let server = server(events(format!("{}{}", returned(), ended()))).await;
        let fake = fake_before(&server);
        let provider = OpenCodeProvider::new();
        for _ in 0..2 {
            run(&provider, OpenCodeOptions::default(), fake.context()).await.1.unwrap();
        }
        assert_eq!((fake.pids().len(), fake.running()), (2, vec![fake.pids()[1]]));
        provider.shutdown().await;
    }

    #[tokio::test]
    async fn nothing_that_is_printed_for_debugging_holds_a_secret() {
        let server = server(events(format!("{}{}", returned(), ended()))).await;
        let fake = fake_before(&server);
        let provider = OpenCodeProvider::new();
        run(&provider, OpenCodeOptions::default(), fake.context()).await.1.unwrap();
        let printed = format!("{provider:?} {:?}", fake.context());
        assert!(!printed.contains("planted") && !printed.contains(fake.read("password").trim()), "{printed}");
        provider.shutdown().await;
    }

    /// A server that answers every request as a willing one would, and whose stream of events stays open after these.
    async fn raw(listener: tokio::net::TcpListener, events: String, aborts: Arc<AtomicUsize>) {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        while let Ok((mut stream, _)) = listener.accept().await {
            let (events, aborts) = (events.clone(), Arc::clone(&aborts));
            tokio::spawn(async move {
                let mut buffer = vec![0; 64 * 1024];
                while let Ok(length @ 1..) = stream.read(&mut buffer).await {
                    let head = String::from_utf8_lossy(&buffer[..length]).into_owned();
                    let answer = if head.starts_with("GET /event") {
                        format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n{events}")
                    } else {
                        aborts.fetch_add(usize::from(head.contains("/abort")), Ordering::SeqCst);
                        let body = json!({ "id": SESSION }).to_string();
                        format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
                    };
                    if stream.write_all(answer.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    }
}
