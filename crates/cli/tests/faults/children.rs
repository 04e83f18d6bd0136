//! Agents' programs that fail in every way we know, through a whole flow: each ends its node with a typed error in
//! time and keeps the text until then.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use inspan_protocol::{AgentError, Event};

use super::place::{FaultSandbox, PROGRAM, until};
use super::{Promise, Size};

pub(super) const FAILING: Promise = Promise {
    bound: "a typed error within the limit and 1 s, and 6 s more for who is deaf; what was said before is kept",
    prove: failing,
};

pub(super) const UNHEARD: Promise = Promise {
    bound: "the conversation that never was is begun once more, and the flow succeeds",
    prove: unheard,
};

/// How long a program may say nothing.
const STALL: Duration = Duration::from_millis(700);
/// How long the node of a program that never ends a line may take.
const LIMIT: Duration = Duration::from_millis(1_500);
/// A debug build starts slowly on a busy machine; the bounds say the second that the clocks may take.
const SPARE: Duration = Duration::from_secs(1);

/// How long a program that is deaf to it all may take to end: it is interrupted, its input ends, it is asked by a
/// signal, each with two seconds, and then it is killed.
const LADDER: Duration = Duration::from_secs(6);

struct ChildCase {
    name: &'static str,
    script: &'static str,
    /// The error's code, or nothing if it must succeed.
    code: Option<&'static str>,
    /// A part of what it says.
    says: &'static str,
    /// When the node must have ended, after its start.
    within: Duration,
}

const CASES: &[ChildCase] = &[
    ChildCase {
        name: "stall",
        script: "read -r line; done_; cat >/dev/null",
        code: Some("TIMEOUT"),
        says: "the program sent nothing",
        within: STALL.saturating_add(SPARE),
    },
    ChildCase {
        name: "stall, deaf",
        script: "exec sleep 60",
        code: Some("TIMEOUT"),
        says: "the program sent nothing",
        within: STALL.saturating_add(LADDER).saturating_add(SPARE),
    },
    ChildCase {
        name: "stall, deaf to signals too",
        script: "trap '' TERM INT; while :; do sleep 60; done",
        code: Some("TIMEOUT"),
        says: "the program sent nothing",
        within: STALL.saturating_add(LADDER).saturating_add(SPARE),
    },
    ChildCase {
        name: "bytes without an end",
        script: "while :; do printf x; sleep 0.05; done",
        code: Some("TIMEOUT"),
        says: "",
        within: LIMIT.saturating_add(LADDER).saturating_add(SPARE),
    },
    ChildCase {
        name: "slow drip",
        script: "for n in 1 2 3 4; do sleep 0.3; text \" and $n\"; done; done_; cat >/dev/null",
        code: None,
        says: "",
        within: Duration::from_millis(1_200 + 1_000),
    },
];

/// Begins to answer, and goes on like this.
fn program(script: &str) -> String {
    format!("{PROGRAM}text 'so far'\n{script}\n")
}

fn flow(limit: bool) -> String {
    let policy =
        if limit { format!(", policy: {{ timeout: {}ms }}", LIMIT.as_millis()) } else { String::new() };
    format!(
        "flow: {{ name: agent }}\nnodes:\n  - {{ id: a, type: claude.agent{policy}, input: {{ prompt: go, options: {{ \
         executable: ./program.sh, stallTimeoutMs: {} }} }} }}\n",
        STALL.as_millis()
    )
}

fn failing(size: Size) -> anyhow::Result<String> {
    let results: Vec<anyhow::Result<String>> = std::thread::scope(|scope| {
        let started: Vec<_> = CASES.iter().map(|case| scope.spawn(move || fails(size, case))).collect();
        started
            .into_iter()
            .map(|started| started.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the row broke down"))))
            .collect()
    });
    let shown: Vec<String> = results.into_iter().collect::<Result<_, _>>()?;
    Ok(shown.join("; "))
}

fn fails(size: Size, case: &ChildCase) -> anyhow::Result<String> {
    let place = size.place("children-")?;
    place.script("program.sh", &program(case.script))?;
    place.write("flow.yaml", &flow(case.name.starts_with("bytes")))?;
    let ended = place.run(&["run", "flow.yaml", "--session-id", "s"])?;
    let result = shown(&place, case);
    result.with_context(|| format!("{}: code {}\n{}", case.name, ended.code, ended.stderr))
}

fn shown(place: &FaultSandbox, case: &ChildCase) -> anyhow::Result<String> {
    place.none_left()?;
    let log = place.look("s")?.context("the session is gone")?.log;
    inspan_engine::check_order(&log).map_err(anyhow::Error::msg)?;
    let mut said = String::new();
    let (mut began, mut end): (_, Option<(_, Option<AgentError>)>) = (None, None);
    for envelope in &log {
        match &envelope.event {
            Event::TaskStart { .. } => began = Some(envelope.timestamp),
            Event::AgentText { content, .. } => said.push_str(content),
            Event::TaskFailed { error, .. } => end = Some((envelope.timestamp, Some(error.clone()))),
            Event::TaskComplete { .. } => end = Some((envelope.timestamp, None)),
            _ => {}
        }
    }
    let (ended, error) = end.context("the node did not end")?;
    let took = ended.since(began.context("the node did not begin")?);
    let code = error.as_ref().map(|error| error.code.to_string());
    ensure!(code.as_deref() == case.code, "it ended with {error:?}");
    ensure!(
        error.is_none_or(|error| error.message.contains(case.says)),
        "the error does not say `{}`",
        case.says
    );
    ensure!(said.starts_with("so far"), "what it had said is not kept: {said:?}");
    ensure!(took <= case.within, "it took {took:?}, and {:?} is allowed", case.within);
    Ok(format!("{} {} in {} ms", case.name, code.unwrap_or_else(|| "succeeds".to_owned()), took.as_millis()))
}

/// The first time, it greets and then never reads its input.
const DEAF: &str = r#"if [ ! -e deaf ]; then
  touch deaf; read -r line
  printf '%s\n' '{"type":"control_response","response":{"subtype":"success","request_id":"initialize","response":{}}}'
  exec sleep 60
fi
exec ./agent.sh "$@"
"#;

fn unheard(size: Size) -> anyhow::Result<String> {
    let place = size.place("unheard-")?;
    place.script("deaf.sh", &format!("#!/bin/sh\n{DEAF}"))?;
    let node = "{ id: a, type: claude.agent, input: { prompt: \"key=a; Go.\", options: { executable: ./deaf.sh } } }";
    place.write("flow.yaml", &format!("flow: {{ name: deaf }}\nnodes:\n  - {node}\n"))?;
    let mut run = place.start(place.command(&["run", "flow.yaml", "--session-id", "s"]))?;
    let named = |place: &FaultSandbox| {
        let look = place.look("s")?;
        anyhow::Ok(
            look.iter().flat_map(|look| &look.log).any(|envelope| envelope.event.name() == "agent:session"),
        )
    };
    until("the conversation has a name", || named(&place))?;
    run.kill()?;
    run.finish()?;
    place.none_left()?;
    let resumed = place.run(&["resume", "s", "--no-input", "--json"])?.expect(0)?;
    ensure!(resumed.json()?["outputs"]["a"]["text"] == "a is done", "{}", resumed.stdout);
    let log = place.look("s")?.context("the session is gone")?.log;
    inspan_engine::check_order(&log).map_err(anyhow::Error::msg)?;
    ensure!(place.effects().len() == 2, "the effects are {:?}", place.effects());
    Ok("the agent answered in a conversation of another name; each step was done once".to_owned())
}
