//! Recordings whole, without secrets, and played back.

use std::{collections::BTreeMap, time::Duration};

use futures::TryStreamExt;
use inspan_protocol::{AgentError, Environment, ErrorCode, NodePath, StopReason, Timestamp};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    AgentRun, Clock as _, Hub, RunEnd, SystemClock, check_order,
    testing::{Do, EventCollector, Script, hub, say, session, tool_complete, tool_start},
};

type Items = Result<Vec<ProviderItem<Value>>, AgentError>;

const PLANTED: &str = "sk-planted-0123456789";

fn environment() -> Environment {
    [("ANTHROPIC_API_KEY", PLANTED), ("SHORT_KEY", "text"), ("PATH", "/usr/bin"), ("TOKEN", "tok-abcdefgh")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into_iter()
        .collect()
}

fn context() -> ExecutionContext {
    ExecutionContext::new(inspan_protocol::Host { env: environment(), ..Default::default() })
}

async fn call(provider: &Arc<dyn DynProvider>, input: Value) -> Items {
    provider.execute(input, context()).try_collect().await
}

fn output(text: &str) -> Value {
    json!({ "text": text, "sessionId": "s-1" })
}

/// The files of a folder with what they hold.
fn files(dir: &Path) -> BTreeMap<String, Value> {
    let file = |entry: io::Result<std::fs::DirEntry>| {
        let entry = entry.unwrap();
        let text = std::fs::read_to_string(entry.path()).unwrap();
        (entry.file_name().into_string().unwrap(), serde_json::from_str(&text).unwrap())
    };
    std::fs::read_dir(dir).unwrap().map(file).collect()
}

fn replayed(dir: &Path) -> (Replayer, Arc<dyn DynProvider>) {
    let replayer = Replayer::load(dir).unwrap();
    // It panics when it is called, so a replay that calls it is noticed.
    let provider = replayer.replay(Script::new([]).provider());
    (replayer, provider)
}

#[tokio::test(start_paused = true)]
async fn a_call_is_recorded_whole_and_played_back_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let script = Script::new([vec![
        Do::Say(session("s-1")),
        Do::Sleep(Duration::from_millis(20)),
        Do::Say(tool_start("t")),
        Do::Say(tool_complete("t")),
        Do::Output(output("done")),
    ]]);
    let provider = Recorder::new(dir.path().join("new/folder")).unwrap().record(script.provider());
    let input = json!({ "prompt": "go", "options": { "model": "m", "cwd": "/here" } });
    let live = call(&provider, input.clone()).await;

    let key = "05d21a84dccc47c76ec253c4e7d1f90f6d6a21219598a0c39166459e3a86200e";
    let found = files(&dir.path().join("new/folder"));
    let name = format!("script-{}-1.json", &key[..12]);
    let expected = json!({
        "version": 2,
        "provider": "script",
        "key": key,
        "input": { "prompt": "go", "options": { "model": "m" } },
        "events": [
            { "atMs": 0, "event": session("s-1") },
            { "atMs": 20, "event": tool_start("t") },
            { "atMs": 20, "event": tool_complete("t") },
        ],
        "output": { "text": "done", "sessionId": "s-1", "stopReason": "complete", "numTurns": 1,
            "usage": inspan_protocol::Usage::default() },
    });
    assert_eq!(found, [(name.clone(), expected)].into());

    let (replayer, provider) = replayed(&dir.path().join("new/folder"));
    assert_eq!(replayer.unplayed(), [name]);
    // Another directory is no other request.
    let elsewhere = json!({ "prompt": "go", "options": { "model": "m", "cwd": "/there" } });
    assert_eq!(call(&provider, elsewhere).await, live);
    assert_eq!(replayer.unplayed(), [""; 0]);
    assert_eq!(provider.descriptor(), script.provider().descriptor());
    assert_eq!(provider.input_schema(), script.provider().input_schema());
}

#[tokio::test(start_paused = true)]
async fn what_is_said_of_the_session_s_folder_fits_any_session() {
    let dir = tempfile::tempdir().unwrap();
    let error = |folder: &str| {
        let error = AgentError::new(ErrorCode::Process, "no report").from_provider("script");
        error.with_detail(json!({ "cwd": folder }))
    };
    let calls = [
        vec![Do::Say(say("/state/s-1/a.md")), Do::Output(output("/state/s-1/a.md"))],
        vec![Do::Fail(error("/state/s-1"))],
    ];
    let call_in = async |provider: &Arc<dyn DynProvider>, folder: &str| -> Items {
        let env = Environment::default().with("INSPAN_ARTIFACTS", folder);
        let context = ExecutionContext::new(inspan_protocol::Host { env, ..Default::default() });
        provider.execute(json!({ "prompt": format!("write {folder}/a.md") }), context).try_collect().await
    };
    let provider = Recorder::new(dir.path()).unwrap().record(Script::new(calls).provider());
    call_in(&provider, "/state/s-1").await.unwrap();
    call_in(&provider, "/state/s-1").await.unwrap_err();
    let (_, provider) = replayed(dir.path());
    let items = call_in(&provider, "/state/s-2").await.unwrap();
    assert_eq!(items[0], ProviderItem::Event(say("/state/s-2/a.md")));
    assert!(
        matches!(&items[1], ProviderItem::Output(output) if output["text"] == "/state/s-2/a.md"),
        "{items:?}"
    );
    assert_eq!(call_in(&provider, "/state/s-2").await, Err(error("/state/s-2")));
}

#[tokio::test(start_paused = true)]
async fn the_nth_call_of_a_request_gets_its_nth_recording() {
    let dir = tempfile::tempdir().unwrap();
    let failed = AgentError::new(ErrorCode::RateLimited, "slow down").from_provider("script");
    let calls = [
        vec![Do::Output(output("first"))],
        vec![Do::Output(output("other"))],
        vec![Do::Say(say("x")), Do::Fail(failed.clone())],
        vec![Do::Output(output("third"))],
    ];
    let record = |provider| Recorder::new(dir.path()).unwrap().record(provider);
    let inputs = ["a", "b", "a", "a"].map(|prompt| json!({ "prompt": prompt }));
    let live = play_all(&record(Script::new(calls).provider()), &inputs).await;
    assert_eq!(live[2], Err(failed));
    let (replayer, provider) = replayed(dir.path());
    assert_eq!(play_all(&provider, &inputs).await, live);
    assert_eq!(replayer.unplayed(), [""; 0]);
    let once_more = call(&provider, json!({ "prompt": "b" })).await;
    let message =
        format!("this request of `script` is recorded once in `{}` and made once more", dir.path().display());
    assert_eq!(once_more, Err(AgentError::new(ErrorCode::ConfigInvalid, message).from_provider("script")));
}

#[tokio::test(start_paused = true)]
async fn what_an_earlier_process_of_the_session_recorded_stays() {
    let dir = tempfile::tempdir().unwrap();
    // Calls of one request at these places; a call that gets no output is cut short.
    let made = async |recorder: Recorder, session: &str, calls: &[(&str, Option<&str>)]| {
        let answers = calls.iter().map(|(_, text)| match text {
            Some(text) => vec![Do::Output(output(text))],
            None => vec![Do::Say(say("half")), Do::AwaitCancel],
        });
        let provider = recorder.record(Script::new(answers).provider());
        for (place, _) in calls {
            let context = context();
            let env = context.host.env.clone().with("INSPAN_SESSION", session);
            let host = Arc::new(inspan_protocol::Host { env, ..(*context.host).clone() });
            let context = ExecutionContext { place: Some(NodePath::new(place)), host, ..context };
            let call = provider.execute(json!({ "prompt": "a" }), context).collect::<Vec<_>>();
            drop(tokio::time::timeout(Duration::from_secs(1), call).await);
        }
    };
    let recorded = || -> Vec<(String, String)> {
        let text = |file: Value| file["output"]["text"].as_str().unwrap_or("cut short").to_owned();
        files(dir.path())
            .into_iter()
            .map(|(name, file)| (name.rsplit('-').next().unwrap().to_owned(), text(file)))
            .collect()
    };
    let rows = |rows: &[(&str, &str)]| -> Vec<(String, String)> {
        rows.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    };
    made(Recorder::new(dir.path()).unwrap(), "s", &[("a", Some("one")), ("a#2", None)]).await;
    assert_eq!(recorded(), rows(&[("1.json", "one"), ("2.json", "cut short")]));
    // What was cut short is made again.
    let rest = [("a#2", Some("two")), ("a#3", Some("three"))];
    made(Recorder::continuing(dir.path()), "s", &rest).await;
    assert_eq!(recorded(), rows(&[("1.json", "one"), ("2.json", "two"), ("3.json", "three")]));
    // Another session replaces it, also one that continues.
    made(Recorder::continuing(dir.path()), "t", &[("a", Some("four"))]).await;
    assert_eq!(recorded(), rows(&[("1.json", "four")]));
    made(Recorder::new(dir.path()).unwrap(), "t", &[("a", Some("five"))]).await;
    assert_eq!(recorded(), rows(&[("1.json", "five")]));
}

#[tokio::test(start_paused = true)]
async fn workers_that_record_one_session_overwrite_nothing_of_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let workers = ["one", "two"].map(|text| {
        let answers = [(); 3].map(|()| vec![Do::Output(output(text))]);
        Recorder::continuing(dir.path()).record(Script::new(answers).provider())
    });
    for place in ["a", "a#2", "a#3"] {
        for worker in &workers {
            call_at(worker, place, "same", None).await.unwrap();
        }
    }
    let numbers = files(dir.path()).into_keys().map(|name| name.rsplit('-').next().unwrap().to_owned());
    let all: Vec<_> = (1..=6).map(|number| format!("{number}.json")).collect();
    assert_eq!(numbers.collect::<Vec<_>>(), all);
}

/// A call of session `s` at a place that goes on in a conversation, or begins one.
async fn call_at(provider: &Arc<dyn DynProvider>, place: &str, prompt: &str, resume: Option<&str>) -> Items {
    let context = context();
    let env = context.host.env.clone().with("INSPAN_SESSION", "s");
    let host = Arc::new(inspan_protocol::Host { env, ..(*context.host).clone() });
    let context = ExecutionContext { place: Some(NodePath::new(place)), host, ..context };
    let input = match resume {
        Some(session) => json!({ "prompt": prompt, "options": { "resume": session } }),
        None => json!({ "prompt": prompt }),
    };
    provider.execute(input, context).try_collect().await
}

#[tokio::test(start_paused = true)]
async fn what_a_resumed_agent_answers_is_recorded_for_the_request_that_was_cut_short() {
    let unknown = AgentError::new(ErrorCode::InvalidRequest, "no such conversation")
        .with_kind(ErrorKind::SessionNotFound)
        .from_provider("script");
    let pause = AgentError::new(ErrorCode::Aborted, "paused").from_provider("script");
    let overloaded = AgentError::new(ErrorCode::Overloaded, "busy").from_provider("script");
    for fails in [None, Some(pause), Some(overloaded)] {
        let dir = tempfile::tempdir().unwrap();
        let end = || fails.clone().map_or(Do::Hang, Do::Fail);
        let half = || vec![Do::Say(session("s-1")), end()];
        let first = Recorder::new(dir.path()).unwrap();
        let calls = [vec![Do::Output(output("whole"))], half(), half(), half()];
        let provider = first.record(Script::new(calls).provider());
        // Three items of a `foreach` ask the same, and two of them are cut short; a fourth place is never made again.
        call_at(&provider, "each[0]/a", "go", None).await.unwrap();
        for (place, prompt) in [("each[1]/a", "go"), ("each[2]/a", "go"), ("late", "wait")] {
            if fails.is_none() {
                // A process that is killed drops nothing.
                let mut call = Box::pin(call_at(&provider, place, prompt, None));
                assert!(futures::poll!(&mut call).is_pending());
                std::mem::forget(call);
            } else {
                first.pausing(&NodePath::new(place));
                call_at(&provider, place, prompt, None).await.unwrap_err();
            }
        }

        let calls = [
            vec![Do::Output(output("second"))],
            // The vendor does not know this conversation any more, so the agent begins anew.
            vec![Do::Fail(unknown.clone())],
            vec![Do::Output(output("third"))],
            vec![Do::Output(output("fixed"))],
        ];
        let provider = Recorder::continuing(dir.path()).record(Script::new(calls).provider());
        let second = call_at(&provider, "each[2]/a", "continue", Some("s-1")).await.unwrap();
        call_at(&provider, "each[1]/a", "continue", Some("s-2")).await.unwrap_err();
        let third = call_at(&provider, "each[1]/a", "go", None).await.unwrap();
        // What follows has its own request.
        let fixed = call_at(&provider, "each[1]/a", "fix it", Some("s-2")).await.unwrap();

        let (replayer, provider) = replayed(dir.path());
        assert_eq!(call_at(&provider, "each[1]/a", "go", None).await, Ok(third));
        assert_eq!(call_at(&provider, "each[1]/a", "fix it", Some("s-2")).await, Ok(fixed));
        assert_eq!(call_at(&provider, "each[2]/a", "go", None).await, Ok(second));
        assert_eq!(replayer.unplayed().len(), 2);
        let began = Instant::now();
        let error = call_at(&provider, "late", "wait", None).await.unwrap_err();
        assert_eq!((began.elapsed(), error.code), (Duration::ZERO, ErrorCode::ConfigInvalid));
        let said = error.message.split_once(" has no end: ").unwrap().1;
        let expected = "a pause or the end of the process cut this call of `script` short, and it was not made again. \
                        Resume the recorded session `s`, if it is still open, or record the flow anew";
        assert_eq!(said, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_gets_what_was_recorded_at_its_own_place() {
    let dir = tempfile::tempdir().unwrap();
    let at = async |provider: &Arc<dyn DynProvider>, place: &str| -> Items {
        let context = ExecutionContext { place: Some(NodePath::new(place)), ..context() };
        provider.execute(json!({ "prompt": "a" }), context).try_collect().await
    };
    let calls = ["one", "two", "three"].map(|text| vec![Do::Output(output(text))]);
    let recorder = Recorder::new(dir.path()).unwrap().record(Script::new(calls).provider());
    let mut live = Vec::new();
    for place in ["each[1]/a", "each[0]/a", "each[1]/a"] {
        live.push(at(&recorder, place).await);
    }
    let (_, provider) = replayed(dir.path());
    for (place, expected) in [("each[0]/a", 1), ("each[1]/a", 0), ("each[1]/a", 2)] {
        assert_eq!(at(&provider, place).await, live[expected], "{place}");
    }
    assert!(at(&provider, "each[0]/a").await.is_err());
    // A place that is in no recording takes the next that was not played, as do recordings without places.
    let (_, provider) = replayed(dir.path());
    for expected in &live {
        assert_eq!(at(&provider, "all[0]/a").await, *expected);
    }
}

async fn play_all(provider: &Arc<dyn DynProvider>, inputs: &[Value]) -> Vec<Items> {
    let mut all = Vec::new();
    for input in inputs {
        all.push(call(provider, input.clone()).await);
    }
    all
}

#[tokio::test(start_paused = true)]
async fn recording_a_request_anew_replaces_its_old_recordings_only() {
    let dir = tempfile::tempdir().unwrap();
    let record = async |prompts: &[&str], text: &str| {
        let calls = prompts.iter().map(|_| vec![Do::Output(output(text))]).collect::<Vec<_>>();
        let provider = Recorder::new(dir.path()).unwrap().record(Script::new(calls).provider());
        for prompt in prompts {
            call(&provider, json!({ "prompt": prompt })).await.unwrap();
        }
    };
    record(&["a", "a", "a", "b"], "old").await;
    record(&["a"], "new").await;
    let mut texts: Vec<_> = files(dir.path())
        .values()
        .map(|file| (file["input"]["prompt"].clone(), file["output"]["text"].clone()))
        .collect();
    texts.sort_by_key(|(prompt, _)| prompt.to_string());
    assert_eq!(texts, [(json!("a"), json!("new")), (json!("b"), json!("old"))]);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_call_keeps_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let calls = [vec![Do::Say(say("half")), Do::Hang], vec![Do::Output(output("second"))]];
    let provider = Recorder::new(dir.path()).unwrap().record(Script::new(calls).provider());
    let mut dropped = provider.execute(json!({ "prompt": "a" }), context());
    dropped.next().await.unwrap().unwrap();
    tokio::time::sleep(Duration::from_secs(600)).await;
    drop(dropped);
    let second = call(&provider, json!({ "prompt": "a" })).await;

    let (_, provider) = replayed(dir.path());
    let cancel = CancellationToken::new();
    let mut first =
        provider.execute(json!({ "prompt": "a" }), ExecutionContext { cancel: cancel.clone(), ..context() });
    assert_eq!(first.next().await, Some(Ok(ProviderItem::Event(say("half")))));
    // The live call did not end by itself, so the replay waits until something interrupts it.
    assert!(tokio::time::timeout(Duration::from_secs(659), first.next()).await.is_err());
    cancel.cancel();
    let aborted = AgentError::new(ErrorCode::Aborted, "the call ended before the provider gave an output");
    assert_eq!(first.next().await, Some(Err(aborted)));
    assert_eq!(call(&provider, json!({ "prompt": "a" })).await, second);
}

#[tokio::test(start_paused = true)]
async fn only_what_is_allowed_is_written_and_only_it_makes_the_key() {
    let (env, redactor) = (Environment::default(), Redactor::default());
    let written = |input: Value| KeyedRequest::new("p", &input, &env, &redactor);
    let full = json!({
        "prompt": "p", "messages": [{ "role": "user", "content": "b" }], "threadId": "t", "sessionToken": "c",
        "model": "m", "cwd": "/home/dev", "env": { "A": "b" }, "nothing": null, "extra": { "b": 1, "a": [2] },
        "options": {
            "model": "m", "maxTurns": 1, "resume": "s", "outputSchema": {}, "tools": [], "disallowedTools": ["x"],
            "permissionMode": "plan", "systemPrompt": "s", "thinking": "high", "maxTokens": 5, "temperature": 0.5,
            "multiTurn": true, "idleTimeoutMs": 9, "cwd": "/home/dev", "env": { "A": "b" }, "apiKey": "hidden",
        },
    });
    let seen = written(full.clone()).input;
    let mut expected = full.clone();
    for name in ["cwd", "env", "nothing"] {
        expected.as_object_mut().unwrap().remove(name);
        expected["options"].as_object_mut().unwrap().remove(name);
    }
    expected["extra"] = json!("sha256:63c9663d");
    expected["options"]["apiKey"] = json!("sha256:86d3147e");
    assert_eq!(seen, expected);

    let key = |input: Value| written(input).key;
    let base = key(json!({ "prompt": "a" }));
    let same = [
        json!({ "prompt": "a", "options": {} }),
        json!({ "prompt": "a", "options": { "cwd": "/x", "env": {}, "model": null } }),
        json!({ "cwd": "/y", "prompt": "a" }),
    ];
    assert_eq!(same.map(key), [0; 3].map(|_| base.clone()));
    let others = [
        json!({ "prompt": "b" }),
        json!({ "prompt": "a", "options": { "model": "m" } }),
        json!({ "prompt": "a", "options": { "apiKey": "1" } }),
        json!({ "prompt": "a", "options": { "apiKey": "2" } }),
        json!("a"),
    ];
    let mut keys: Vec<_> = others.map(key).into_iter().chain([base]).collect();
    // The folder of a session is another one in the next session.
    let of = |folder: &str| {
        let env = Environment::default().with("INSPAN_ARTIFACTS", folder);
        let input = json!({ "prompt": format!("read {folder}/a.txt"), "options": { "addDirs": [folder] } });
        KeyedRequest::new("p", &input, &env, &redactor)
    };
    assert_eq!(of("/state/s-1").key, of("/state/s-2").key);
    assert_eq!(of("/state/s-1").input["prompt"], "read ${INSPAN_ARTIFACTS}/a.txt");
    // So is its id, wherever it is whole.
    let of = |session: &str, prompt: &str, tool: &str| {
        let env = Environment::default().with("INSPAN_SESSION", session);
        let input = json!({ "prompt": prompt, "options": { "allowedTools": [tool] } });
        KeyedRequest::new("p", &input, &env, &redactor)
    };
    let in_other =
        |request: &KeyedRequest, session: &str| request.keys_in(session, &redactor).collect::<Vec<_>>();
    let (first, second) = (of("one", "wt-one: none, one", "x"), of("two", "wt-two: none, two", "x"));
    assert_eq!(in_other(&second, "one"), [first.key.clone(), first.key]);
    assert!(in_other(&of("one", "none", "x"), "two").is_empty());
    // Also in what is hashed, where a word may be the same by chance.
    let hashed = of("two", "a two", "two");
    assert_eq!(in_other(&hashed, "one"), [of("one", "a one", "two").key, of("one", "a one", "one").key]);
    keys.push(KeyedRequest::new("q", &json!({ "prompt": "a" }), &env, &redactor).key);
    let count = keys.len();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), count);
}

#[tokio::test(start_paused = true)]
async fn no_secret_is_written_wherever_it_appears() {
    let dir = tempfile::tempdir().unwrap();
    let (head, tail) = PLANTED.split_at(9);
    let (middle, end) = tail.split_at(5);
    let whole =
        |text: &str| StreamEvent::Text { content: text.to_owned(), chunk: inspan_protocol::Chunk::Whole };
    let thought =
        |text: &str| StreamEvent::Thinking { content: text.to_owned(), chunk: inspan_protocol::Chunk::Delta };
    let tool = StreamEvent::ToolStart {
        tool_name: format!("Bash {PLANTED}"),
        tool_use_id: "t".to_owned(),
        input: json!({ PLANTED: [format!("curl -H 'x: {PLANTED}' tok-abcdefgh")] }),
    };
    let answer = StreamEvent::ToolComplete {
        tool_use_id: "t".to_owned(),
        result: json!(format!("a{PLANTED}b{PLANTED}c")),
        is_error: false,
    };
    let warning = StreamEvent::warning("c", format!("of {PLANTED}"));
    let events = [
        say(&format!("key: {head}")),
        thought(head),
        say(middle),
        session(PLANTED),
        tool.clone(),
        say(&format!("{end} and text")),
        thought(&format!("{tail}, tok-abcdefgh")),
        answer,
        whole(PLANTED),
        warning,
    ];
    let said = events.iter().cloned().map(Do::Say);
    let failed = AgentError::new(ErrorCode::Auth, format!("bad key {PLANTED}"))
        .with_detail(json!({ "header": PLANTED }));
    let calls = [said.chain([Do::Output(output(PLANTED))]).collect(), vec![Do::Say(tool), Do::Fail(failed)]];
    let provider = Recorder::new(dir.path()).unwrap().record(Script::new(calls).provider());
    let input = json!({ "prompt": format!("use {PLANTED}"), "options": { "secretSauce": PLANTED } });
    let live = call(&provider, input.clone()).await.unwrap();
    // The run itself sees the provider's output unchanged.
    assert_eq!(live[..events.len()], events.map(ProviderItem::Event));
    call(&provider, input.clone()).await.unwrap_err();

    let found = files(dir.path());
    let first = found.iter().find(|(name, _)| name.ends_with("-1.json")).unwrap().1;
    let recorded: Vec<_> =
        first["events"].as_array().unwrap().iter().map(|event| event["event"].clone()).collect();
    let key = "[redacted ANTHROPIC_API_KEY]";
    let token = "[redacted TOKEN]";
    let expected = [
        serde_json::to_value(say(&format!("key: {key}"))).unwrap(),
        serde_json::to_value(thought(key)).unwrap(),
        serde_json::to_value(say("")).unwrap(),
        serde_json::to_value(session(key)).unwrap(),
        json!({ "type": "toolStart", "toolName": format!("Bash {key}"), "toolUseId": "t",
            "input": { key: [format!("curl -H 'x: {key}' {token}")] } }),
        serde_json::to_value(say(" and text")).unwrap(),
        serde_json::to_value(thought(&format!(", {token}"))).unwrap(),
        json!({ "type": "toolComplete", "toolUseId": "t", "result": format!("a{key}b{key}c"), "isError": false }),
        serde_json::to_value(whole(key)).unwrap(),
        json!({ "type": "warning", "code": "c", "message": format!("of {key}") }),
    ];
    assert_eq!(recorded, expected);
    assert_eq!(first["input"]["prompt"], json!(format!("use {key}")));
    assert_eq!(first["output"]["text"], json!(key));
    let all = serde_json::to_string(&found).unwrap();
    assert!(!all.contains(PLANTED) && !all.contains("tok-abcdefgh"), "{all}");
    assert!(all.contains(&format!("bad key {key}")));
    // The same request is found again.
    let (_, provider) = replayed(dir.path());
    assert_eq!(call(&provider, input).await.unwrap().len(), live.len());
}

#[tokio::test(start_paused = true)]
async fn what_the_options_give_to_an_mcp_server_is_not_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let calls = vec![vec![Do::Say(say("the token own-42-token")), Do::Output(output("own-42-token"))]];
    let provider = Recorder::new(dir.path()).unwrap().record(Script::new(calls).provider());
    let servers = json!({ "s": { "command": "s", "env": { "MY_TOKEN": "own-42-token" } } });
    let input = json!({ "prompt": "go", "options": { "mcpServers": servers } });
    call(&provider, input.clone()).await.unwrap();
    let all = serde_json::to_string(&files(dir.path())).unwrap();
    assert!(all.contains("[redacted MY_TOKEN]") && !all.contains("own-42-token"), "{all}");
    // The key of the request is that of recordings which were made before.
    call(&replayed(dir.path()).1, input).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_request_that_was_not_recorded_shows_how_it_differs() {
    let dir = tempfile::tempdir().unwrap();
    let (_, empty) = replayed(dir.path());
    let shown = dir.path().display().to_string();
    let missing =
        AgentError::new(ErrorCode::ConfigInvalid, format!("there is no recording of `script` in `{shown}`"));
    assert_eq!(call(&empty, json!({ "prompt": "a" })).await, Err(missing.from_provider("script")));

    let calls = [vec![Do::Output(output("x"))], vec![Do::Output(output("y"))]];
    let provider = Recorder::new(dir.path()).unwrap().record(Script::new(calls).provider());
    let near = json!({ "prompt": "Plan the change.\nBe brief.", "options": { "model": "m" } });
    call(&provider, json!({ "prompt": "something else entirely" })).await.unwrap();
    call(&provider, near.clone()).await.unwrap();
    let name = files(dir.path())
        .into_iter()
        .find_map(|(name, file)| (file["input"] == near).then_some(name))
        .unwrap();
    let (_, provider) = replayed(dir.path());
    let wanted = json!({ "prompt": "Plan the change.\nBe thorough.", "options": { "model": "m" } });
    let message = format!(
        "no recording in `{shown}` fits this request of `script`; it differs from the nearest in `prompt`:\n\
         --- {name}\n+++ this request\n@@ -4,4 +4,4 @@\n   }},\n   \"prompt\": \"Plan the \
         change.\\n\n-    Be brief.\"\n+    Be thorough.\"\n }}\n"
    );
    let expected = AgentError::new(ErrorCode::ConfigInvalid, message).from_provider("script");
    assert_eq!(call(&provider, wanted).await, Err(expected));
}

#[test]
fn files_that_are_no_recordings_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("nowhere");
    assert!(matches!(Replayer::load(&missing), Err(RecordingError::Io { path, .. }) if path == missing));
    // Files of others are skipped, and no recording is.
    for (name, text) in
        [("package", r#"{ "version": "1.0.0" }"#), ("lock", r#"{ "version": 3 }"#), ("a", "// {")]
    {
        std::fs::write(dir.path().join(name).with_extension("json"), text).unwrap();
    }
    assert!(Replayer::load(dir.path()).is_ok() && !Recorder::has_recordings(dir.path()));
    let path = dir.path().join("script-0123456789ab-1.json");
    let rows = [
        ("{", "EOF while parsing an object at line 1 column 1"),
        ("{}", "it has no `version`, so it is not a recording"),
        (r#"{"version": 3}"#, "it has format version 3, and this program reads up to 2"),
        (r#"{"version": 2, "provider": "p"}"#, "missing field `key`"),
    ];
    let seen = rows.map(|(text, _)| {
        std::fs::write(&path, text).unwrap();
        Replayer::load(dir.path()).err().unwrap().to_string()
    });
    assert_eq!(seen, rows.map(|(_, fault)| format!("recording `{}`: {fault}", path.display())));
    std::fs::write(dir.path().join("notes.txt"), "not read").unwrap();
    std::fs::remove_file(path).unwrap();
    assert!(Replayer::load(dir.path()).is_ok());
}

/// Two turns, the second by a message, one of which is interrupted: the same run from recordings.
async fn scenario(hub: &Hub, provider: Arc<dyn DynProvider>) -> RunEnd {
    let options = json!({ "multiTurn": true });
    let run = AgentRun::new(hub.clone(), "coder", provider, json!({ "prompt": "go", "options": options }));
    let running = tokio::spawn(run.execute());
    tokio::time::sleep(Duration::from_secs(5)).await;
    hub.send_to_run("run-1".into(), "stop", inspan_protocol::MessageMode::Steer).unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    hub.send("more").unwrap();
    running.await.unwrap().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_replayed_run_is_the_recorded_run() {
    let dir = tempfile::tempdir().unwrap();
    let aborted = json!({ "text": "half", "sessionId": "s-1", "stopReason": "aborted" });
    let turn = |text: &str| {
        vec![
            Do::Say(session("s-1")),
            Do::Sleep(Duration::from_secs(1)),
            Do::Say(say(text)),
            Do::Output(output(text)),
        ]
    };
    let script = Script::new([
        vec![Do::Say(session("s-1")), Do::Say(tool_start("t")), Do::AwaitCancel, Do::Output(aborted)],
        turn("two"),
        turn("three"),
    ]);
    let record = async |provider: Arc<dyn DynProvider>| {
        let hub = hub();
        let mut watch = EventCollector::new(&hub);
        let end = scenario(&hub, provider).await;
        (end, watch.envelopes())
    };
    let live = record(Recorder::new(dir.path()).unwrap().record(script.provider())).await;
    check_order(&live.1).unwrap();
    assert_eq!(live.0.turns, 3);

    let replayer = Replayer::load(dir.path()).unwrap().pace(Pace::Recorded);
    assert_eq!(record(replayer.replay(Script::new([]).provider())).await, live);

    // At once, only the times differ.
    let replayer = Replayer::load(dir.path()).unwrap();
    let at_once = record(replayer.replay(Script::new([]).provider())).await;
    let names = |log: &[inspan_protocol::Envelope]| {
        log.iter().map(|envelope| (envelope.seq, envelope.event.name().to_owned())).collect::<Vec<_>>()
    };
    assert_eq!((at_once.0, names(&at_once.1)), (live.0, names(&live.1)));
}

#[tokio::test(start_paused = true)]
async fn a_replay_that_is_cancelled_early_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let script =
        Script::new([vec![Do::Sleep(Duration::from_secs(9)), Do::Say(say("x")), Do::Output(output("x"))]]);
    let provider = Recorder::new(dir.path()).unwrap().record(script.provider());
    call(&provider, json!({ "prompt": "a" })).await.unwrap();
    let provider =
        Replayer::load(dir.path()).unwrap().pace(Pace::Recorded).replay(Script::new([]).provider());
    let cancel = CancellationToken::new();
    let hub = hub();
    let mut watch = EventCollector::new(&hub);
    let run = AgentRun::new(hub, "coder", provider, json!({ "prompt": "a" })).cancel(cancel.clone());
    let running = tokio::spawn(run.execute());
    tokio::time::sleep(Duration::from_secs(1)).await;
    cancel.cancel();
    let end = running.await.unwrap().unwrap();
    let expected = json!({ "text": "x", "sessionId": "s-1", "stopReason": "aborted", "numTurns": 1,
        "usage": inspan_protocol::Usage::default() });
    assert_eq!((end.output, end.facts.stop_reason), (expected, StopReason::Aborted));
    assert_eq!(watch.names(), ["agent:start", "agent:session", "agent:complete"]);
}

#[tokio::test(start_paused = true)]
async fn a_recording_that_cannot_be_written_is_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = Recorder::new(dir.path().join("gone")).unwrap();
    std::fs::remove_dir(dir.path().join("gone")).unwrap();
    let provider = recorder.record(Script::new([vec![Do::Output(output("x"))]]).provider());
    let items = call(&provider, json!({ "prompt": "a" })).await.unwrap();
    let codes: Vec<_> = items
        .iter()
        .map(|item| match item {
            ProviderItem::Event(StreamEvent::Warning { code, .. }) => code.as_str(),
            ProviderItem::Event(_) => "event",
            ProviderItem::Output(_) => "output",
        })
        .collect();
    assert_eq!(codes, ["notRecorded", "output"]);
}

#[tokio::test(start_paused = true)]
async fn a_recorded_usage_limit_ends_soon_after_it_is_played() {
    let dir = tempfile::tempdir().unwrap();
    let long_ago = Timestamp::from_millis(1);
    let error = AgentError::new(ErrorCode::RateLimited, "until tonight");
    let error = AgentError { resets_at: Some(long_ago), ..error };
    let provider = Recorder::new(dir.path()).unwrap().record(Script::new([vec![Do::Fail(error)]]).provider());
    call(&provider, json!({ "prompt": "a" })).await.unwrap_err();
    let (_, provider) = replayed(dir.path());
    let before = SystemClock.wall();
    let played = call(&provider, json!({ "prompt": "a" })).await.unwrap_err();
    assert!((before..before + Duration::from_secs(60)).contains(&played.resets_at.unwrap()), "{played:?}");
}
