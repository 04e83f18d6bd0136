//! Real agents on a cluster whose workers are killed: another worker of the machine resumes their conversations, and no
//! conversation is started twice.
#![expect(clippy::print_stdout, reason = "figures are printed")]

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use inspan_model_server::{ExchangeState, ModelServer, RecordedRequest, RequestKind};
use inspan_protocol::{Envelope, Event};
use inspan_testkit::{Deadline, Sandbox, Stopwatch, eventually, pause};
use serde_json::{Value, json};

use super::{
    super::checks::{agent_node, conversation, main_requests, same, scenario, talks_slowly},
    cluster::{Cluster, kill},
    kills::{Numbers, attempts, is_full, kill_some},
};

/// How long until an agent is at work, on a busy machine.
pub(super) const AT_WORK: Duration = Duration::from_secs(60);
/// How many sessions of the sweep run at once, and how many agents work in each, one after another.
const SESSIONS: usize = 3;
const AGENTS: usize = 3;
/// How long the sessions that still run after the last kill may take.
const REST: Duration = Duration::from_secs(90);

/// How many seconds the sweep may take.
pub(in super::super) fn agents_limit() -> u64 {
    if is_full() { 1_800 } else { 180 }
}

/// What was said in a request, whichever vendor it is for.
pub(super) fn said(request: &RecordedRequest) -> Vec<String> {
    match request.path.contains("/responses") {
        true => codex_conversation(request),
        false => conversation(request),
    }
}

/// What user and assistant said to Codex, without what the program says about its surroundings.
fn codex_conversation(request: &RecordedRequest) -> Vec<String> {
    let items = request.body["input"].as_array().into_iter().flatten();
    let spoken = items.filter(|item| matches!(item["role"].as_str(), Some("user" | "assistant")));
    let texts = spoken.flat_map(|item| {
        let role = item["role"].as_str().unwrap_or_default();
        let parts = item["content"].as_array().into_iter().flatten();
        parts.filter_map(move |part| Some(format!("{role}: {}", part["text"].as_str()?)))
    });
    texts.filter(|text| !text.starts_with("user: <") && !text.starts_with("user: # AGENTS.md")).collect()
}

/// What each request of a conversation ended with that began so.
pub(super) fn asked(server: &ModelServer, first: &str) -> Vec<String> {
    let first = format!("user: {first}");
    let all = main_requests(server);
    let said = all.iter().map(said).filter(|said| said.first() == Some(&first));
    said.filter_map(|said| said.last().cloned()).collect()
}

/// How many answers are on their way.
fn under_way(requests: &[RecordedRequest]) -> usize {
    let is_open = |request: &&RecordedRequest| {
        request.kind == RequestKind::Main && request.ending == ExchangeState::Open && request.events_sent >= 3
    };
    requests.iter().filter(is_open).count()
}

/// Waits until so many agents talk, and the log has the conversations of so many.
pub(super) fn at_work(
    cluster: &Cluster<'_>,
    server: &ModelServer,
    session: &str,
    [talk, named]: [usize; 2],
) -> anyhow::Result<()> {
    eventually(AT_WORK, "the log has the conversations", || {
        Ok(conversations(&cluster.log(session)?).values().map(Vec::len).sum::<usize>() >= named)
    })?;
    // The agents before them have ended by now, so it is these that talk.
    server.wait_until(AT_WORK, |requests| under_way(requests) >= talk)?;
    Ok(())
}

/// The conversations of each node, in the order in which they were named.
pub(super) fn conversations(log: &[Envelope]) -> BTreeMap<String, Vec<String>> {
    let mut all = BTreeMap::<String, Vec<String>>::new();
    for envelope in log {
        if let (Event::AgentSession { session_id, .. }, Some(task)) =
            (&envelope.event, &envelope.context.task)
        {
            all.entry(task.to_string()).or_default().push(session_id.to_string());
        }
    }
    all
}

/// The whole command line of a process, with a NUL after each argument; empty if it has ended.
fn command_line(pid: i32) -> String {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).into_owned()
}

/// The conversations that Claude Code has right now, one for each program, from the arguments of its guard.
pub(super) fn programs(sandbox: &Sandbox) -> Vec<String> {
    let named = |pid: i32| {
        let line = command_line(pid);
        let of = |word: &str| {
            let named = word.strip_prefix("--session-id=").or_else(|| word.strip_prefix("--resume="))?;
            Some(named.rsplit('/').next().unwrap_or(named).trim_end_matches(".jsonl").to_owned())
        };
        line.split('\0').any(|word| word == "__supervise").then(|| line.split('\0').find_map(of))?
    };
    // A guard that starts its program is two processes for a moment, of which one is the child of the other.
    let parent = |pid: i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse::<i32>().ok()
    };
    let all: BTreeMap<_, _> =
        sandbox.processes().into_keys().filter_map(|pid| Some((pid, named(pid)?))).collect();
    let is_child = |pid: i32| parent(pid).is_some_and(|parent| all.contains_key(&parent));
    all.iter().filter(|(pid, _)| !is_child(**pid)).map(|(_, id)| id.clone()).collect()
}

/// Fails if two programs hold one conversation now.
pub(super) fn alone(sandbox: &Sandbox) -> anyhow::Result<()> {
    let all = programs(sandbox);
    let different: BTreeSet<_> = all.iter().collect();
    let line = |pid| format!("{pid}: {}", command_line(pid).replace('\0', " "));
    let lines = || sandbox.processes().into_keys().map(line).collect::<Vec<_>>();
    ensure!(all.len() == different.len(), "two programs are in one conversation: {all:#?} {:#?}", lines());
    Ok(())
}

/// Waits until a session has this state; meanwhile no two programs are in one conversation.
pub(super) fn alone_until(cluster: &Cluster<'_>, session: &str, state: &str) -> anyhow::Result<()> {
    let deadline = Deadline::after(AT_WORK);
    loop {
        for _ in 0..20 {
            alone(cluster.sandbox)?;
            pause(Duration::from_millis(20));
        }
        let shown = cluster.show(session)?;
        if shown["state"] == state {
            return Ok(());
        }
        ensure!(!deadline.is_over(), "it is not {state}: {shown:#}");
    }
}

/// A finished agent, and after it two that talk slowly until they get the message to continue.
pub(super) fn talkers(other: Value) -> (Value, Value) {
    let text = |text: &str| json!([{ "type": "text", "text": text }]);
    let mut slow = talks_slowly();
    slow["when"] = json!({ "lastMessageContains": "role=slow" });
    let model = json!({ "turns": [
        { "when": { "lastMessageContains": "role=one" }, "blocks": text("One is done.") },
        slow,
        { "blocks": text("I go on.") },
    ] });
    let mut two = agent_node("two", "role=slow. Talk.", &json!({}));
    two["dependsOn"] = json!(["one"]);
    let one = agent_node("one", "role=one. Work.", &json!({}));
    (model, json!({ "name": "talkers", "nodes": [one, two, other] }))
}

/// Claude Code and Codex are in the middle of a turn when their worker is killed. The other worker of the machine resumes
/// both conversations, and the agent that had finished is not asked again.
pub(in super::super) fn agents_resumed(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let codex = json!({ "id": "three", "type": "codex.agent", "dependsOn": ["one"],
        "input": { "prompt": "role=slow. Talk, Codex." } });
    let (model, flow) = talkers(codex);
    let server = scenario(sandbox, model)?;
    let cluster = Cluster::start(sandbox)?;
    let first = cluster.worker()?;
    cluster.sandbox.write("flow.yaml", &flow.to_string())?;
    cluster.detach("flow.yaml", "s")?;
    at_work(&cluster, &server, "s", [2, 3])?;
    let other = cluster.worker()?;
    let watch = Stopwatch::start();
    kill(first)?;
    let continues =
        |request: &RecordedRequest| said(request).last().is_some_and(|last| last == "user: continue");
    server.wait_until(AT_WORK, |requests| requests.iter().filter(|one| continues(one)).count() >= 1)?;
    println!("    from `kill -9` to the next turn of a conversation: {:?}", watch.elapsed());
    alone_until(&cluster, "s", "success")?;
    same(
        "what the finished agent was asked",
        &asked(&server, "role=one. Work."),
        &vec!["user: role=one. Work.".to_owned()],
    )?;
    for first in ["role=slow. Talk.", "role=slow. Talk, Codex."] {
        let expected = vec![format!("user: {first}"), "user: continue".to_owned()];
        same("what was asked in the conversation", &asked(&server, first), &expected)?;
    }
    let log = cluster.log("s")?;
    let tried: Vec<_> = attempts(&log)?.into_values().collect();
    same("the attempts of one, three and two", &tried, &vec![1, 2, 2])?;
    for (node, named) in conversations(&log) {
        let different: BTreeSet<_> = named.iter().collect();
        same(&format!("the conversations of {node}"), &different.len(), &1)?;
    }
    cluster.end(vec![other])
}

/// What a sweep has counted at the model.
#[derive(Debug, Default)]
struct Counts {
    sessions: usize,
    attempts: usize,
    resumed: usize,
    /// Started again although the log had the conversation: the vendor had not stored it yet.
    unknown_to_vendor: usize,
    /// Of these, those that the model had been asked in.
    asked_again: usize,
    /// Started again because the log did not have a conversation in which the model had been asked.
    unnamed: usize,
}

/// The flow of a session: agents that talk one after another.
fn chain(name: &str) -> Value {
    let nodes = (0..AGENTS).map(|number| {
        let mut node = agent_node(&format!("n{number}"), &format!("role={name}-{number}. Talk."), &json!({}));
        node["dependsOn"] =
            json!(number.checked_sub(1).map(|before| format!("n{before}")).into_iter().collect::<Vec<_>>());
        node
    });
    json!({ "name": name, "nodes": nodes.collect::<Vec<_>>() })
}

/// Workers are killed at any moment of the work of real agents.
pub(in super::super) fn agents_killed(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let wanted = if is_full() { 200 } else { 6 };
    let text = "One word after another, until the worker is killed.";
    let slow = json!({ "blocks": [{ "type": "text", "text": text, "chunks": 12 }], "chunkMs": 100 });
    let server = scenario(sandbox, json!({ "turns": [slow] }))?;
    let cluster = Cluster::start(sandbox)?;
    let mut workers = vec![cluster.worker()?, cluster.worker()?];
    let (mut numbers, mut kills, mut begun) = (Numbers(71), 0, 0);
    let (mut open, mut ended) = (Vec::<String>::new(), Vec::<String>::new());
    let deadline = Deadline::after(Duration::from_secs(agents_limit()) - REST);
    while kills < wanted || !open.is_empty() {
        ensure!(!deadline.is_over(), "{kills} kills, and these still run: {open:?}");
        let list = cluster.sandbox.run(&["ps", "--json"])?.expect(0)?.json()?;
        let is_open =
            |name: &String| list.as_array().into_iter().flatten().any(|one| one["sessionId"] == **name);
        let (still, over): (Vec<_>, Vec<_>) = open.into_iter().partition(is_open);
        (open, ended) = (still, [ended, over].concat());
        while kills < wanted && open.len() < SESSIONS {
            let name = format!("s{begun}");
            begun += 1;
            cluster.sandbox.write(&format!("{name}.yaml"), &chain(&name).to_string())?;
            cluster.detach(&format!("{name}.yaml"), &name)?;
            open.push(name);
        }
        for _ in 0..(40 + numbers.below(120)) {
            alone(cluster.sandbox)?;
            pause(Duration::from_millis(20));
        }
        if kills < wanted {
            kills += kill_some(&cluster, &mut workers, &mut numbers)?;
        }
    }
    let mut counts = Counts::default();
    for name in &ended {
        check(&cluster, &server, name, &mut counts).with_context(|| format!("session {name}"))?;
    }
    println!("    {kills} kills: {counts:?}; two programs of one conversation were never seen");
    cluster.end(workers)
}

/// A session has ended with success, and has started no conversation twice that its log had.
fn check(cluster: &Cluster<'_>, server: &ModelServer, name: &str, counts: &mut Counts) -> anyhow::Result<()> {
    let shown = cluster.show(name)?;
    same("the state", &shown["state"], &json!("success")).with_context(|| format!("{shown:#}"))?;
    let log = cluster.log(name)?;
    let attempts = attempts(&log)?;
    same("the agents", &attempts.len(), &AGENTS)?;
    counts.sessions += 1;
    counts.attempts += attempts.values().sum::<usize>();
    let named = conversations(&log);
    for number in 0..AGENTS {
        let (node, prompt) = (format!("n{number}"), format!("role={name}-{number}. Talk."));
        let known: BTreeSet<_> = named.get(&node).into_iter().flatten().collect();
        let all = asked(server, &prompt);
        let begun = all.iter().filter(|last| **last == format!("user: {prompt}")).count();
        counts.resumed += all.len() - begun;
        counts.unknown_to_vendor += known.len() - 1;
        ensure!(begun >= 1, "{node} was never asked: {all:?}");
        if begun > 1 {
            println!("    {name} {node} was begun {begun} times; the log knows {known:?}; {all:?}");
        }
        counts.asked_again += begun.min(known.len()) - 1;
        counts.unnamed += begun.saturating_sub(known.len());
    }
    Ok(())
}
