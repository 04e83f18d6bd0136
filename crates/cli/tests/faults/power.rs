//! A power cut at any moment of a session: what followed from a fact is never there without the fact, and the session is
//! resumed from what is left.

use std::collections::BTreeSet;

use anyhow::{Context as _, ensure};
use inspan_flow::{RunStore as _, Select, SqliteOptions, SqliteStore};
use inspan_protocol::{Envelope, Event, SessionId};
use inspan_testkit::{DiskCall, StoreDisk, Unsynced, can_trace, disk_calls, tracer};

use super::place::{Dice, FaultSandbox, runtime};
use super::{Promise, Size};

pub(super) const ROW: Promise = Promise {
    bound: "no effect without its fact, the log is a beginning of the whole, agents do nothing twice, every resume succeeds",
    prove,
};

const SESSION: &str = "s";
const FLOW: &str = r#"
flow: { name: power }
nodes:
  - { id: a, type: exec, input: { argv: [sh, -c, "echo work a >> effects; seq 50"] } }
  - { id: x, type: claude.agent, dependsOn: [a], input: { prompt: "key=x; Do it.", options: { executable: ./agent.sh } } }
  - { id: b, type: exec, dependsOn: [x], input: { argv: [sh, -c, "echo work b >> effects"] } }
  - { id: y, type: claude.agent, dependsOn: [b], input: { prompt: "key=y; Do it.", options: { executable: ./agent.sh } } }
  - { id: c, type: exec, dependsOn: [y], input: { argv: [sh, -c, "echo work c >> effects"] } }
"#;

#[derive(Default)]
struct Seen {
    cuts: usize,
    /// Cuts that took events which readers could see.
    shortened: usize,
    resumes: usize,
}

fn prove(size: Size) -> anyhow::Result<String> {
    if !can_trace() {
        return Ok("not run: there is no strace, or it may not trace".to_owned());
    }
    let place = size.place("power-")?;
    place.write("flow.yaml", FLOW)?;
    // The store is made first, so that every cut is in the session.
    place.write(
        "one.yaml",
        "flow: { name: one }\nnodes:\n  - { id: a, type: constant, input: { value: 1 } }\n",
    )?;
    place.run(&["run", "one.yaml"])?.expect(0)?;
    let mut disk = StoreDisk::of(&place.store());
    let program = place.command(&["run", "flow.yaml", "--session-id", SESSION, "--json"]);
    let mut command = tracer(&place.path("trace"));
    command.arg(program.get_program()).args(program.get_args());
    place.enclose(&mut command);
    place.start(command)?.finish()?.expect(0)?;
    let whole = place.look(SESSION)?.context("the session is gone")?.log;
    let calls = disk_calls(&place.path("trace"), &place.store())?;
    let (moments, resumes) = (size.count(120, 1_500), size.count(6, 60));
    let stride = (calls.len() / moments).max(1) as u64;
    let (mut dice, mut seen, mut effects) = (Dice::new(3), Seen::default(), String::new());
    for (number, call) in calls.iter().enumerate() {
        disk.take(call);
        if let DiskCall::Print { to, text } = call
            && to.ends_with("/effects")
        {
            effects.push_str(text);
        }
        if dice.below(stride) > 0 {
            continue;
        }
        for unsynced in [Unsynced::Lost, Unsynced::Torn, Unsynced::Written] {
            disk.lay_out(&place.store(), unsynced, &mut |limit| dice.below(limit))?;
            let left = left(&place, &whole, &effects)
                .with_context(|| format!("cut after call {number} {call:?}, {unsynced:?}"))?;
            seen.cuts += 1;
            seen.shortened += usize::from(unsynced == Unsynced::Lost && left > 0 && left < whole.len());
            if left > 0 && left < whole.len() && dice.below((3 * moments / resumes) as u64) == 0 {
                resume(&place, &effects)
                    .with_context(|| format!("resumed after call {number} {call:?}, {unsynced:?}"))?;
                seen.resumes += 1;
            }
        }
    }
    let Seen { cuts, shortened, resumes } = seen;
    let figure = format!(
        "{} calls of a session of {} events: {cuts} cuts, {shortened} in the middle of it, {resumes} resumes",
        calls.len(),
        whole.len(),
    );
    ensure!(shortened > 10 && resumes > 0, "it is no test: {figure}");
    Ok(figure)
}

/// How many events are left; fails unless they are what they should be.
fn left(place: &FaultSandbox, whole: &[Envelope], effects: &str) -> anyhow::Result<usize> {
    let log = runtime()?.block_on(async {
        let store = SqliteStore::open(place.store(), &SqliteOptions::default())?;
        let report = store.verify().await?;
        ensure!(report.is_sound(), "the store is not sound: {:?}", report.findings);
        let id = SessionId::from(SESSION);
        match store.entries(SESSION, 1).await?.is_empty() {
            true => Ok(Vec::new()),
            false => Ok(store.read(&id, 1, Select::All).await?),
        }
    })?;
    let is_beginning = log.iter().zip(whole).all(|(left, whole)| **left == *whole);
    ensure!(is_beginning && log.len() <= whole.len(), "the log is no beginning of the whole");
    let mut facts = BTreeSet::new();
    for envelope in &log {
        match &envelope.event {
            Event::TaskStart { .. } => {
                let node = envelope.context.task.as_ref().map(|task| task.node().to_owned());
                facts.insert(format!("work {}", node.unwrap_or_default()));
            }
            Event::AgentSession { session_id, .. } => drop(facts.insert(session_id.as_str().to_owned())),
            _ => {}
        }
    }
    for effect in effects.lines() {
        // What an agent did is known by its conversation, what a program did by its node.
        let fact =
            if effect.starts_with("agent") { effect.rsplit(' ').next().unwrap_or_default() } else { effect };
        ensure!(facts.contains(fact), "`{effect}` was done, and its fact is not in the log");
    }
    Ok(log.len())
}

/// Resumes what a cut has left, in a world in which these effects have happened.
fn resume(place: &FaultSandbox, effects: &str) -> anyhow::Result<()> {
    place.write("effects", effects)?;
    let result = place.run(&["resume", SESSION, "--json"])?.expect(0)?.json()?;
    ensure!(result["outcome"] == "success", "the outcome is {}", result["outcome"]);
    let mut done = place.effects();
    done.retain(|effect| effect.starts_with("agent"));
    let steps: BTreeSet<_> =
        done.iter().filter_map(|effect| effect.rsplit_once(' ')).map(|(step, _)| step).collect();
    ensure!(steps.len() == 4 && done.len() == 4, "the agents did {done:?}");
    place.sound()
}
