//! The same flow on this machine and on a cluster: the same events, outputs and exit code.

use anyhow::Context as _;
use inspan_protocol::Envelope;
use inspan_testkit::Sandbox;
use serde_json::{Value, json};

use super::{
    super::checks::same,
    cluster::{Cluster, events},
};

/// A flow, its exit code, the answer that a person gives, and its result.
struct Twin {
    name: &'static str,
    flow: Value,
    code: i32,
    answer: Option<&'static str>,
    state: &'static str,
}

/// What one engine made of a flow.
#[derive(Debug, PartialEq)]
struct Made {
    code: i32,
    /// The name of each event and the place of its node.
    events: Vec<String>,
    result: Value,
    shown: Value,
}

pub(in super::super) fn same_as_here(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let cluster = Cluster::start(sandbox)?;
    let workers = vec![cluster.worker()?, cluster.worker()?];
    for twin in twins() {
        let here = made(cluster.sandbox, &twin, &["--engine", "local"]);
        let here = here.with_context(|| format!("{} on this machine", twin.name))?;
        let there = made(cluster.sandbox, &twin, &[]);
        let there = there.with_context(|| format!("{} on the cluster", twin.name))?;
        let what_of = |what: &str| format!("{what} of {}", twin.name);
        same(&what_of("the exit code"), &here.code, &twin.code)?;
        same(&what_of("the exit code on the cluster"), &there.code, &here.code)?;
        same(&what_of("the log"), &there.events, &here.events)?;
        same(&what_of("the result"), &there.result, &here.result)?;
        same(&what_of("what is shown"), &there.shown, &here.shown)?;
        same(&what_of("the state"), &here.shown["state"], &json!(twin.state))?;
    }
    cluster.end(workers)
}

fn made(sandbox: &Sandbox, twin: &Twin, engine: &[&str]) -> anyhow::Result<Made> {
    let on = |arguments: &[&str]| sandbox.run(&[arguments, engine].concat());
    let file = format!("{}.yaml", twin.name);
    sandbox.write(&file, &twin.flow.to_string())?;
    let run = on(&["run", &file, "--session-id", twin.name, "--json"])?;
    let result = without_times(run.json().with_context(|| run.to_string())?);
    if let Some(answer) = twin.answer {
        on(&["reply", twin.name, answer])?.expect_code(0)?;
    }
    let ended = || {
        let shown = on(&["show", twin.name, "--json"])?.expect(0)?.json()?;
        Ok(shown["state"] == twin.state)
    };
    inspan_testkit::eventually(super::commands::SOON, twin.state, ended)?;
    let mut shown = without_times(on(&["show", twin.name, "--json"])?.expect(0)?.json()?);
    // The second asking counts as an attempt.
    if let Some(asked) = shown.pointer_mut("/nodes/who").and_then(Value::as_object_mut) {
        asked.remove("attempts");
        asked.remove("attempt");
    }
    let events = events(&on(&["logs", twin.name, "--json"])?)?;
    // An agent says what it has used before it ends, and the budget may be counted before or after its end.
    let (budget, mut events): (Vec<_>, Vec<_>) =
        events.iter().filter_map(named).partition(|event| event.starts_with("budget:"));
    events.extend(budget);
    // The process on this machine ends while nobody answers, and the answer resumes the session: the node begins once more.
    if let Some(resumed) = events.iter().position(|event| event.starts_with("flow:resumed")) {
        let replies = |event: &String| event.starts_with("session:reply");
        let answer =
            events[resumed..].iter().position(replies).context("the resumed session has no answer")?;
        events.drain(resumed..resumed + answer);
        let begins = events[resumed..].iter().position(|event| event == "task:start who");
        events.remove(resumed + begins.context("the node does not begin once more")?);
    }
    Ok(Made { code: run.code, events, result, shown })
}

/// The event and the place of its node; the channels are those of the process that shows the session.
fn named(envelope: &Envelope) -> Option<String> {
    let name = envelope.event.name();
    let place = envelope.context.task.as_ref().map(ToString::to_string).unwrap_or_default();
    (!name.starts_with("channel:")).then(|| format!("{name} {place}"))
}

/// The same without what differs between any two runs.
fn without_times(value: Value) -> Value {
    // Commands name the engine where it is not that of the shell.
    const HERE: &str = " --engine local";
    // An empty folder of artifacts stays where workers made it.
    const DIFFERENT: [&str; 10] = [
        "durationMs",
        "waitedMs",
        "createdAt",
        "startedAt",
        "updatedAt",
        "endedAt",
        "sessionId",
        "lastSeq",
        "owner",
        "artifacts",
    ];
    match value {
        Value::Object(map) => {
            let kept = map.into_iter().filter(|(key, _)| !DIFFERENT.contains(&key.as_str()));
            Value::Object(kept.map(|(key, value)| (key, without_times(value))).collect())
        }
        Value::String(text) => text.strip_suffix(HERE).unwrap_or(&text).into(),
        Value::Array(list) => list.into_iter().map(without_times).collect(),
        other => other,
    }
}

fn twins() -> Vec<Twin> {
    let twin = |name, code, state, flow| Twin { name, flow, code, answer: None, state };
    let sh = |id: &str, script: &str| json!({ "id": id, "type": "exec", "input": { "argv": ["sh", "-c", script] } });
    vec![
        twin(
            "chain",
            0,
            "success",
            json!({
                "flow": { "name": "chain", "input": { "who": "you" }, "outputs": { "text": "{{ ask.text }}" } },
                "nodes": [
                    sh("list", "printf one"),
                    { "id": "ask", "type": "echo.agent", "dependsOn": ["list"],
                      "input": { "prompt": "{{ list.stdout }} for {{ flow.input.who }}" } },
                    { "id": "last", "type": "exec", "dependsOn": ["ask"], "input": { "argv": ["echo", "{{ ask.text }}"] } },
                ],
            }),
        ),
        twin(
            "each",
            0,
            "success",
            json!({ "name": "each", "nodes": [
            { "id": "scan", "type": "control.foreach", "input": { "items": ["a", "b", "c"], "maxConcurrency": 1 },
              "body": { "outputs": { "of": "{{ read.stdout }}" }, "nodes": [
                { "id": "read", "type": "exec", "input": { "argv": ["printf", "%s", "{{ item }}"] } },
                { "id": "ask", "type": "echo.agent", "dependsOn": ["read"], "input": { "prompt": "{{ read.stdout }}" } },
            ] } },
        ] }),
        ),
        twin(
            "again",
            0,
            "success",
            json!({ "name": "again", "nodes": [
            { "id": "polish", "type": "control.loop", "input": { "maxIterations": 5, "until": "count.stdout == 'xxx'" },
              "body": { "outputs": { "text": "{{ count.stdout }}" }, "nodes": [
                { "id": "count", "type": "exec",
                  "input": { "argv": ["printf", "%s", "{{ previous.text | default('') }}x"] } },
            ] } },
        ] }),
        ),
        twin(
            "fails",
            1,
            "failed",
            json!({ "name": "fails", "nodes": [
            sh("bad", "echo no >&2; exit 7"),
            { "id": "never", "type": "exec", "dependsOn": ["bad"], "input": { "argv": ["true"] } },
        ] }),
        ),
        twin(
            "retried",
            0,
            "success",
            json!({ "name": "retried", "nodes": [
            { "id": "bad", "type": "exec", "input": { "argv": ["false"] },
              "policy": { "retry": { "maxAttempts": 2, "backoff": "50ms" }, "continueOnError": true } },
            { "id": "next", "type": "exec", "input": { "argv": ["true"] }, "dependsOn": ["bad"] },
        ] }),
        ),
        twin(
            "late",
            1,
            "failed",
            json!({ "name": "late", "nodes": [
            { "id": "short", "type": "control.wait", "input": { "ms": 200 } },
            { "id": "slow", "type": "exec", "dependsOn": ["short"], "input": { "argv": ["sleep", "30"] },
              "policy": { "timeout": "300ms" } },
        ] }),
        ),
        twin(
            "spent",
            5,
            "budgetExceeded",
            json!({
                "flow": { "name": "spent", "policy": { "budget": { "tokens": 3, "onExceeded": "fail" } } },
                "nodes": [
                    { "id": "first", "type": "echo.agent", "input": { "prompt": "one two three" } },
                    { "id": "second", "type": "echo.agent", "dependsOn": ["first"], "input": { "prompt": "four" } },
                ],
            }),
        ),
        Twin {
            answer: Some("Ada"),
            ..twin(
                "asks",
                3,
                "success",
                json!({ "name": "asks", "nodes": [
            { "id": "who", "type": "human.input", "input": { "prompt": "Who are you?" } },
            { "id": "greet", "type": "exec", "dependsOn": ["who"], "input": { "argv": ["echo", "{{ who.content }}"] } },
        ] }),
            )
        },
    ]
}
