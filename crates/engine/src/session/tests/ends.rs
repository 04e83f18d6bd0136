//! How a chat ends if it does not succeed: cancelled, aborted, late, failed and tried again, stopped by a hook.

use tokio::time::Instant;

use super::*;

fn partial(failed: &ChatError) -> (String, StopReason) {
    let done = failed.partial.as_ref().unwrap();
    (done.text.clone(), done.stop_reason)
}

#[tokio::test(start_paused = true)]
async fn a_token_that_is_cancelled_already_fails_at_once() {
    let script = Script::new([]);
    let cancelled = CancellationToken::new();
    cancelled.cancel();
    let run = run_agent(script.provider(), AgentOptions::new().cancel(cancelled.clone()).prompt("hi")).await;
    let chat = open(&script).chat(Chat::new("hi").cancel(cancelled)).await;
    let codes = [run, chat].map(|end| end.unwrap_err().error.code);
    assert_eq!((codes, script.inputs().len()), ([ErrorCode::Aborted; 2], 0));
}

#[tokio::test(start_paused = true)]
async fn an_abort_always_arrives_with_what_was_done() {
    let script = Script::new([working("so far"), turn("more")]);
    let session = open(&script);
    session.abort();
    let chat = tokio::spawn(session.chat("go"));
    settle().await;
    session.abort();
    session.abort();
    let error = chat.await.unwrap().unwrap_err();
    assert_eq!(error.error.code, ErrorCode::Aborted);
    assert_eq!(partial(&error), ("so far".to_owned(), StopReason::Aborted));
    session.abort();
    // The session continues the same conversation, and has lost nothing.
    session.chat("again").await.unwrap();
    assert_eq!(prompts(&script), [fresh("go"), resumed("again")]);
    assert_eq!(texts(&session.snapshot().unwrap().messages), ["go", "so far", "again", "more"]);
}

#[tokio::test(start_paused = true)]
async fn an_abort_of_a_turn_that_ends_all_the_same_is_an_abort() {
    let done = vec![Do::Say(session("s-1")), Do::AwaitCancel, Do::Say(say("done")), output("done")];
    let script = Script::new([done]);
    let session = open(&script);
    let chat = tokio::spawn(session.chat("go"));
    settle().await;
    session.abort();
    let error = chat.await.unwrap().unwrap_err();
    assert_eq!((error.error.code, partial(&error).0.as_str()), (ErrorCode::Aborted, "done"));
}

#[tokio::test(start_paused = true)]
async fn tokens_of_the_session_and_of_the_chat_cancel() {
    for of_chat in [true, false] {
        let script = Script::new([working("x")]);
        let token = CancellationToken::new();
        let (options, chat) = if of_chat {
            (AgentOptions::new(), Chat::new("go").cancel(token.clone()))
        } else {
            (AgentOptions::new().cancel(token.clone()), Chat::new("go"))
        };
        let session = open_with(&script, options);
        let chat = tokio::spawn(session.chat(chat));
        settle().await;
        token.cancel();
        assert_eq!(chat.await.unwrap().unwrap_err().error.code, ErrorCode::Aborted);
    }
}

#[tokio::test(start_paused = true)]
async fn an_aborted_hub_aborts() {
    let script = Script::new([working("x")]);
    let session = open(&script);
    let chat = tokio::spawn(session.chat("go"));
    settle().await;
    session.hub().unwrap().abort(None).unwrap();
    assert_eq!(chat.await.unwrap().unwrap_err().error.code, ErrorCode::Aborted);
    assert_eq!(session.chat("more").await.unwrap_err().error.code, ErrorCode::Aborted);
}

#[tokio::test(start_paused = true)]
async fn the_time_is_up() {
    let script = Script::new([working("so far")]);
    let began = Instant::now();
    let options =
        AgentOptions::new().timeout(Duration::from_secs(7)).retry(RetryOptions::times(3)).hub(hub());
    let error = run_agent(script.provider(), options.prompt("go")).await.unwrap_err();
    assert_eq!((error.error.code, began.elapsed().as_secs()), (ErrorCode::Timeout, 7));
    assert_eq!(partial(&error).0, "so far");
}

#[tokio::test(start_paused = true)]
async fn what_may_be_tried_again_is() {
    let limited = || error(ErrorCode::RateLimited).with_retry_after(Some(Duration::from_secs(30)));
    let mut lifted = error(ErrorCode::RateLimited);
    lifted.resets_at = Some(NOON + Duration::from_secs(90));
    let network = || error(ErrorCode::Network);
    let ok = || turn("ok");
    let rows = [
        // What happens, how often it may be tried, how it ends and after how many seconds.
        (vec![failing(limited()), ok()], 2, Ok("ok"), 31),
        (vec![failing(network()), failing(network()), failing(network()), ok()], 4, Ok("ok"), 1 + 2 + 4 + 1),
        (vec![failing(lifted), ok()], 2, Ok("ok"), 91),
        (vec![failing(network()), failing(network())], 2, Err(ErrorCode::Network), 1),
        (vec![failing(network())], 1, Err(ErrorCode::Network), 0),
        (vec![failing(error(ErrorCode::Auth))], 5, Err(ErrorCode::Auth), 0),
        (
            vec![failing(limited().with_retry_after(Some(Duration::from_secs(301))))],
            5,
            Err(ErrorCode::RateLimited),
            0,
        ),
    ];
    for (calls, attempts, expected, seconds) in rows {
        let count = calls.len();
        let script = Script::new(calls);
        let session = open_with(&script, AgentOptions::new().retry(RetryOptions::times(attempts)));
        let began = Instant::now();
        let end = session.chat("go").await;
        let seen = end.as_ref().map(|result| result.text.as_str()).map_err(|failed| failed.error.code);
        assert_eq!((seen, began.elapsed().as_secs()), (expected, seconds));
        // Every attempt gets the same input, and the prompt is in the transcript once.
        assert_eq!(prompts(&script), vec![fresh("go"); count]);
        let last = if end.is_ok() { "ok" } else { "half" };
        let snapshot = session.snapshot().unwrap();
        assert_eq!((texts(&snapshot.messages), snapshot.turns), (vec!["go".to_owned(), last.to_owned()], 1));
    }
}

#[tokio::test(start_paused = true)]
async fn no_wait_is_begun_that_the_timeout_would_end() {
    let limited = error(ErrorCode::RateLimited).with_retry_after(Some(Duration::from_secs(30)));
    let script = Script::new([failing(limited)]);
    let options = AgentOptions::new().retry(RetryOptions::times(3)).timeout(Duration::from_secs(20));
    let began = Instant::now();
    let error = open_with(&script, options).chat("go").await.unwrap_err();
    assert_eq!((error.error.code, began.elapsed().as_secs()), (ErrorCode::RateLimited, 0));
}

#[tokio::test(start_paused = true)]
async fn a_later_turn_is_tried_again_in_its_conversation() {
    let script = Script::new([turn("one"), failing(error(ErrorCode::Overloaded)), turn("two")]);
    let session = open_with(&script, AgentOptions::new().retry(RetryOptions::times(2)));
    let chat = tokio::spawn(session.chat("a"));
    settle().await;
    session.follow_up("b").unwrap();
    assert_eq!(chat.await.unwrap().unwrap().text, "two");
    assert_eq!(prompts(&script), [fresh("a"), resumed("b"), resumed("b")]);
}

#[tokio::test(start_paused = true)]
async fn an_abort_ends_the_wait_for_an_attempt() {
    let script = Script::new([failing(error(ErrorCode::Network))]);
    let session = open_with(&script, AgentOptions::new().retry(RetryOptions::times(2)));
    let chat = tokio::spawn(session.chat("go"));
    settle().await;
    session.abort();
    assert_eq!(chat.await.unwrap().unwrap_err().error.code, ErrorCode::Aborted);
}

/// Records what it sees, and fails or panics where the test says so.
#[derive(Clone, Default)]
struct Noting {
    seen: Arc<Mutex<Vec<String>>>,
    fails: &'static str,
    panics: &'static str,
}

impl Noting {
    fn note(&self, hook: &str, what: &str) -> HookResult {
        self.seen.lock().push(format!("{hook} {what}"));
        let note = (hook == "beforeTool").then(|| format!("{what} may run"));
        assert!(self.panics != hook, "the test says so");
        if self.fails == hook { Err("not this".into()) } else { Ok(note) }
    }
}

impl AgentHooks for Noting {
    async fn before_prompt(&self, prompt: &str) -> HookResult {
        self.note("beforePrompt", prompt)
    }
    async fn before_tool(&self, call: &ToolCall) -> HookResult {
        self.note("beforeTool", &call.name)
    }
    async fn after_tool(&self, call: &ToolCall) -> HookResult {
        self.note("afterTool", call.result.as_ref().unwrap().as_str().unwrap())
    }
    async fn at_end(&self, end: Result<&AgentResult, &ChatError>) -> HookResult {
        self.note("atEnd", end.map_or("error", |end| &end.text))
    }
}

#[tokio::test(start_paused = true)]
async fn hooks_see_a_chat_and_can_end_it() {
    let all = ["beforePrompt go", "beforeTool Bash", "afterTool ok", "atEnd done"];
    let rows = [("", 4), ("beforePrompt", 1), ("beforeTool", 2), ("afterTool", 3), ("atEnd", 4)];
    for (broken, count) in rows {
        for panics in [false, true] {
            let steps = vec![
                Do::Say(tool_start("t")),
                Do::Say(tool_complete("t")),
                Do::Say(say("done")),
                output("done"),
            ];
            let script = Script::new([steps]);
            let hooks = match panics {
                true => Noting { panics: broken, ..Noting::default() },
                false => Noting { fails: broken, ..Noting::default() },
            };
            let seen = Arc::clone(&hooks.seen);
            let end = run_agent(script.provider(), AgentOptions::new().hooks(hooks).prompt("go")).await;
            let mut expected: Vec<String> = all[..count].iter().map(|word| (*word).to_owned()).collect();
            if broken.is_empty() {
                assert_eq!(end.unwrap().text, "done");
            } else {
                let error = end.unwrap_err();
                let why = if panics { "it panicked" } else { "not this" };
                let message = format!("the hook `{broken}` failed: {why}");
                assert_eq!((error.error.code, &error.error.message), (ErrorCode::HookFailed, &message));
                assert!(error.partial.is_some());
                if broken != "atEnd" {
                    expected.push("atEnd error".to_owned());
                }
            }
            assert_eq!(*seen.lock(), expected);
        }
    }
}

/// Never ends where the test says so.
struct Hanging(&'static str);

impl Hanging {
    async fn at(&self, hook: &str) -> HookResult {
        if self.0 == hook { std::future::pending().await } else { Ok(None) }
    }
}

impl AgentHooks for Hanging {
    async fn before_prompt(&self, _: &str) -> HookResult {
        self.at("beforePrompt").await
    }
    async fn before_tool(&self, _: &ToolCall) -> HookResult {
        self.at("beforeTool").await
    }
    async fn after_tool(&self, _: &ToolCall) -> HookResult {
        self.at("afterTool").await
    }
    async fn at_end(&self, _: Result<&AgentResult, &ChatError>) -> HookResult {
        self.at("atEnd").await
    }
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_hangs_ends_with_the_time_or_an_abort() {
    for hook in ["beforePrompt", "beforeTool", "afterTool", "atEnd"] {
        let script =
            || Script::new([vec![Do::Say(tool_start("t")), Do::Say(tool_complete("t")), output("done")]]);
        let began = tokio::time::Instant::now();
        let options = AgentOptions::new().hooks(Hanging(hook)).timeout(Duration::from_secs(1)).prompt("go");
        let error = run_agent(script().provider(), options).await.unwrap_err().error;
        assert_eq!((error.code, began.elapsed().as_secs()), (ErrorCode::Timeout, 1), "{hook}: {error}");

        let session = open_with(&script(), AgentOptions::new().hooks(Hanging(hook)));
        let chat = tokio::spawn({
            let session = session.clone();
            async move { session.chat("go").await }
        });
        settle().await;
        let began = tokio::time::Instant::now();
        session.abort();
        let error = chat.await.unwrap().unwrap_err().error;
        assert_eq!((error.code, began.elapsed().as_secs()), (ErrorCode::Aborted, 0), "{hook}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_note_of_a_hook_is_in_the_log() {
    let script = Script::new([vec![Do::Say(tool_start("t")), output("done")]]);
    let hub = hub();
    let mut logs = hub.subscribe(Filter::name("log"));
    let options = AgentOptions::new().hub(hub.clone()).hooks(Noting::default());
    run_agent(script.provider(), options.prompt("go")).await.unwrap();
    let logs: Vec<_> = crate::testing::drain(&mut logs).into_iter().map(|envelope| envelope.event).collect();
    let fields = serde_json::Map::from_iter([("hook".to_owned(), json!("beforeTool"))]);
    let note = "Bash may run".to_owned();
    assert_eq!(logs, [Event::Log { level: inspan_protocol::LogLevel::Info, message: note, fields }]);
}
