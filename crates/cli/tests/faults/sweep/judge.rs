//! Whether every guarantee holds for a session that was killed: the same result, nothing lost, nothing done
//! twice.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, ensure};
use inspan_engine::check_order;
use inspan_protocol::{Envelope, Event};
use serde_json::Value;

use super::flow;
use super::trial::{SESSION, Trial};

/// Fails unless all guarantees hold for the session; returns how many programs ran again that may.
pub(super) fn judge(trial: &Trial, unkilled: &Value) -> anyhow::Result<usize> {
    let place = &trial.place;
    let said = place.run(&["store", "verify", "--json"])?.expect(0)?.json()?;
    ensure!(said["sound"] == true, "the store is not sound: {said}");
    let log = place.look(SESSION)?.context("the session is gone")?.log;
    check_order(&log).map_err(anyhow::Error::msg).context("the log is out of order")?;
    is_complete(trial, &log)?;
    once(&log)?;
    same(trial, unkilled)?;
    effects(trial, &log)
}

/// What was there after a kill is there at the end, and so are the acknowledged commands.
fn is_complete(trial: &Trial, log: &[Envelope]) -> anyhow::Result<()> {
    for earlier in &trial.logs {
        let same = log.get(..earlier.len()).is_some_and(|begin| begin == earlier.as_slice());
        ensure!(same, "facts are lost: the log at a kill is no beginning of the log at the end");
    }
    for (id, choice) in &trial.answered {
        let found = log.iter().any(|envelope| {
            matches!(&envelope.event, Event::SessionReply { prompt_id, choice: said, .. }
                if prompt_id.as_str() == id && said.as_deref() == Some(choice.as_str()))
        });
        ensure!(found, "the answer `{choice}` to {id} was acknowledged and is not in the log");
    }
    for text in &trial.sent {
        let found = log.iter().any(
            |envelope| matches!(&envelope.event, Event::SessionMessage { content, .. } if content == text),
        );
        ensure!(found, "the message `{text}` was acknowledged and is not in the log");
    }
    Ok(())
}

/// No node that finished was started again in the same pass.
fn once(log: &[Envelope]) -> anyhow::Result<()> {
    let mut finished = BTreeSet::new();
    for envelope in log {
        let Some(path) = envelope.context.task.as_ref().map(ToString::to_string) else { continue };
        match &envelope.event {
            Event::TaskStart { .. } => {
                ensure!(!finished.contains(&path), "`{path}` had finished, and ran again")
            }
            Event::TaskComplete { .. } | Event::TaskReused { .. } => {
                finished.insert(path);
            }
            _ => {}
        }
    }
    ensure!(finished.len() >= flow::NODES, "only {} nodes finished", finished.len());
    Ok(())
}

/// The outputs are those of the session that was not killed.
fn same(trial: &Trial, unkilled: &Value) -> anyhow::Result<()> {
    for (node, expected) in unkilled["outputs"].as_object().context("no outputs")? {
        if trial.waived.contains(node) {
            continue;
        }
        let found = plain(&trial.result["outputs"][node]);
        ensure!(found == plain(expected), "the output of `{node}` is {found} and not {}", plain(expected));
    }
    ensure!(trial.result["outcome"] == "success", "the outcome is {}", trial.result["outcome"]);
    Ok(())
}

/// An output without what differs from run to run: conversations have ids, and agents that were resumed took two turns.
fn plain(output: &Value) -> Value {
    match output.get("text") {
        Some(text) => text.clone(),
        None => output.clone(),
    }
}

/// Holds the effects against the log; gives how many programs ran again that may.
fn effects(trial: &Trial, log: &[Envelope]) -> anyhow::Result<usize> {
    let mut count: BTreeMap<String, usize> = BTreeMap::new();
    let mut conversations: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in trial.place.effects() {
        let words: Vec<&str> = line.split(' ').collect();
        let key = match words.as_slice() {
            ["agent", name, step, id] => {
                conversations.entry((*name).to_owned()).or_default().insert((*id).to_owned());
                format!("agent {name} {step}")
            }
            _ => line,
        };
        *count.entry(key).or_default() += 1;
    }
    let keys: Vec<String> = count.keys().cloned().collect();
    ensure!(keys == flow::effects(), "the effects are {keys:?}");
    let mut again = 0;
    for (key, times) in &count {
        let is_work = key.starts_with("work ");
        ensure!(is_work || *times == 1, "`{key}` was done {times} times, in conversations {conversations:?}");
        ensure!(*times <= 1 + trial.kills, "`{key}` was done {times} times after {} kills", trial.kills);
        again += times - 1;
    }
    // Four attempts run at once at most.
    ensure!(again <= 4 * trial.kills, "{again} programs ran again after {} kills", trial.kills);
    let starts = log.iter().filter(|envelope| matches!(envelope.event, Event::TaskStart { .. }));
    let mut started: BTreeMap<String, usize> = BTreeMap::new();
    for envelope in starts {
        *started
            .entry(envelope.context.task.as_ref().map(|task| task.node().to_owned()).unwrap_or_default())
            .or_default() += 1;
    }
    for (key, times) in &count {
        let node = key.split(' ').nth(1).unwrap_or_default();
        let node = match node {
            _ if node.starts_with("loop") => "round",
            _ if node.starts_with("each") => "e",
            _ if node.starts_with("turn") => "turn",
            node => node,
        };
        let known = started.get(node).copied().unwrap_or_default();
        ensure!(known >= *times, "`{key}` was done {times} times, and only {known} starts are on record");
    }
    Ok(again)
}
