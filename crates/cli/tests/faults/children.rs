//! Agents' programs that fail in every way we know, through a whole flow: each ends its node with a typed error in
//! time and keeps the text until then; and nothing that a node started outlives the process.

use inspan_testkit::{Stopwatch, called, pause};
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

pub(super) const ORPHANS: Promise = Promise {
    bound: "0 processes after 1 s, double forks and scrubbed environments included",
    prove: orphans,
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
        name: "crash",
        script: "echo 'out of ink' >&2; exit 3",
        code: Some("PROCESS"),
        says: "out of ink",
        within: SPARE,
    },
    ChildCase {
        name: "signal",
        script: "kill -9 $$",
        code: Some("PROCESS"),
        says: "signal 9",
        within: SPARE,
    },
    ChildCase {
        name: "exit 0, no result",
        script: "exit 0",
        code: Some("PROCESS"),
        says: "exit code 0",
        within: SPARE,
    },
    ChildCase {
        name: "half a line",
        script: "printf '{\"type\":\"resu'",
        code: Some("PROCESS"),
        says: "exit code 0",
        within: SPARE,
    },
    ChildCase {
        name: "nonsense",
        script: "say 'hello'",
        code: Some("PROTOCOL"),
        says: "is not a JSON object",
        within: SPARE,
    },
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

/// A tree that leaves its group, its session, its parents and its environment.
fn tree(line: &str) -> String {
    format!(
        "setsid {line} & nohup {line} >/dev/null 2>&1 & (env -i setsid sh -c '({line} &); exit' >/dev/null 2>&1 &) ; {line}"
    )
}

fn orphans(size: Size) -> anyhow::Result<String> {
    let mut slowest = Duration::ZERO;
    let rounds = size.count(4, 20);
    for round in 0..rounds {
        let place = size.place("orphans-")?;
        let line = format!("sleep 615.{}{round}", std::process::id());
        place.script("tree.sh", &format!("#!/bin/sh\n{}\n", tree(&line)))?;
        place.script("program.sh", &program("./tree.sh"))?;
        let node = if round % 2 == 0 {
            "{ id: a, type: exec, input: { argv: [./tree.sh] } }".to_owned()
        } else {
            "{ id: a, type: claude.agent, input: { prompt: go, options: { executable: ./program.sh } } }"
                .to_owned()
        };
        place.write("flow.yaml", &format!("flow: {{ name: tree }}\nnodes:\n  - {node}\n"))?;
        let mut run = place.start(place.command(&["run", "flow.yaml", "--session-id", "s"]))?;
        until("the tree runs", || Ok(called(&line).len() == 4))?;
        let cut = Stopwatch::start();
        run.kill()?;
        run.finish()?;
        while !called(&line).is_empty() && cut.elapsed() < Duration::from_secs(5) {
            pause(Duration::from_millis(1));
        }
        slowest = slowest.max(cut.elapsed());
        ensure!(
            cut.elapsed() < Duration::from_secs(1),
            "{} are left after {:?}",
            called(&line).len(),
            cut.elapsed()
        );
        place.none_left()?;
    }
    Ok(format!(
        "{rounds} trees of 4 processes, of exec nodes and of agents: 0 left, the slowest gone after {} ms",
        slowest.as_millis()
    ))
}
