//! What the adapter of Claude Code adds to the real program: the same turns against the scripted model server, once
//! driven by hand and once by an agent run.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use inspan_engine::{AgentRun, Hub, RandomIds, SystemClock};
use inspan_model_server::{Block, Scenario, Turn};
use inspan_protocol::{DynProvider, Erased, Host, ProviderSessionId, SessionId};
use inspan_providers::ClaudeProvider;
use inspan_testkit::{Agent, Sandbox, Stopwatch};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::measure::{Goal, Measurement, middle};

/// Sessions on either side, each with its own process, and the turns of each after its second.
const SESSIONS: usize = 8;
const TURNS: usize = 38;
/// What is asked and what the model says to it, in so many pieces.
const PROMPT: &str = "How are the oxen?";
const ANSWER: &str = "All oxen are well, and the wagon is on its way over the pass before the snow comes.";
const PIECES: usize = 20;
/// The longest that all of it may take.
const LIMIT: Duration = Duration::from_secs(300);
/// The longest that what is driven by hand may say nothing.
const SILENCE: Duration = Duration::from_secs(30);
/// The adapter finds by it what its program has started, and ends that; what is driven by hand is not.
const MARK_OF_THE_ADAPTER: &str = "INSPAN_PROCESS";

/// Nanoseconds of the same turn by the adapter and by hand.
#[derive(Clone, Copy)]
struct Pair {
    adapter: f64,
    hand: f64,
}

/// All rows. Time is what passes here, since the program is waited for.
pub(crate) fn rows() -> anyhow::Result<Vec<Measurement>> {
    let mut sandbox =
        Sandbox::new(Path::new(""), "bench", &[Agent::Claude], inspan_providers::programs(), LIMIT)?;
    let measured = measure(&mut sandbox);
    // This also ends what is left where a turn failed.
    let clean = sandbox.check();
    let (sessions, ()) = (measured?, clean?);
    let pairs = |turns: fn(&[Pair]) -> &[Pair]| -> Vec<Pair> {
        sessions.iter().flat_map(|session| turns(session)).copied().collect()
    };
    let middle_of = |pairs: &[Pair], value: fn(&Pair) -> f64| middle(pairs.iter().map(value).collect());
    let row = |work: &str, pairs: &[Pair]| {
        Measurement::time(work, middle_of(pairs, |pair| pair.adapter))
            .reference("by hand", middle_of(pairs, |pair| pair.hand))
    };
    let warm = pairs(|turns| &turns[2..]);
    let more = middle_of(&warm, |pair| pair.adapter - pair.hand);
    Ok(vec![
        row("turn of a warm process", &warm),
        Measurement::time("the same, more than by hand", more).goal(Goal::Within(2e6)),
        row("second turn of a session", &pairs(|turns| &turns[1..2])).goal(Goal::Within(100e6)),
        row("first turn, a new process", &pairs(|turns| &turns[..1])),
    ])
}

/// The turns of each session.
fn measure(sandbox: &mut Sandbox) -> anyhow::Result<Vec<Vec<Pair>>> {
    let answer =
        Turn { blocks: vec![Block::Text { text: ANSWER.to_owned(), chunks: PIECES }], ..Turn::default() };
    let _server = sandbox.serve(Scenario::of([answer]))?;
    let runtime = Runtime::new()?;
    let launch = Launch::of_the_adapter(sandbox, &runtime)?;
    (0..SESSIONS)
        .map(|nth| {
            let (mut adapter, mut hand) = (ByAdapter::new(sandbox), ByHand::new(&launch, nth));
            // In turns, so that a busy moment does not hit one alone, and in the same order throughout: a program that
            // is asked again at once is still busy with the end of its last turn.
            let pairs = (0..2 + TURNS).map(|_| {
                let first = (nth % 2 == 0).then(|| adapter.turn(&runtime)).transpose()?;
                let hand = hand.turn()?;
                let adapter = first.map_or_else(|| adapter.turn(&runtime), Ok)?;
                Ok(Pair { adapter, hand })
            });
            let pairs = pairs.collect();
            adapter.end(&runtime);
            hand.end()?;
            pairs
        })
        .collect()
}

/// A conversation by runs of an agent, one for each turn, as the nodes of a flow have it.
struct ByAdapter {
    hub: Hub,
    provider: Arc<dyn DynProvider>,
    host: Arc<Host>,
    session: Option<ProviderSessionId>,
}

impl ByAdapter {
    fn new(sandbox: &Sandbox) -> Self {
        let session = SessionId::from("flow-bench");
        let hub = Hub::new(session, Arc::new(SystemClock), Arc::new(RandomIds::new()));
        hub.start_session();
        Self {
            hub,
            provider: Arc::new(Erased(ClaudeProvider::new())),
            host: Arc::new(Host {
                env: sandbox.env().clone().into_iter().collect(),
                cwd: Some(sandbox.work()),
                ..Host::default()
            }),
            session: None,
        }
    }

    fn turn(&mut self, runtime: &Runtime) -> anyhow::Result<f64> {
        let mut input = json!({ "prompt": PROMPT, "options": {} });
        if let Some(session) = &self.session {
            input["options"]["resume"] = json!(session);
        }
        let run = AgentRun::new(self.hub.clone(), "bench", Arc::clone(&self.provider), input)
            .host(self.host.clone())
            .deadline(LIMIT);
        let watch = Stopwatch::start();
        // As a task: a future that `block_on` polls itself is woken more slowly.
        let end = runtime.block_on(runtime.spawn(run.execute())).context("the run broke down")??;
        let took = watch.elapsed();
        ensure!(end.facts.text == ANSWER, "the agent said {:?}", end.facts.text);
        self.session = end.facts.session;
        Ok(took.as_secs_f64() * 1e9)
    }

    fn end(self, runtime: &Runtime) {
        runtime.block_on(self.provider.shutdown());
    }
}

/// What the adapter starts.
struct Launch {
    program: String,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    cwd: PathBuf,
}

impl Launch {
    /// As the system shows it, so that what is driven by hand differs in nothing. The turn before it is one that does
    /// not count.
    fn of_the_adapter(sandbox: &Sandbox, runtime: &Runtime) -> anyhow::Result<Self> {
        let mut adapter = ByAdapter::new(sandbox);
        adapter.turn(runtime)?;
        let running = sandbox.processes().into_keys();
        let shown = |pid: i32, what: &str| -> anyhow::Result<Vec<String>> {
            let bytes = std::fs::read(format!("/proc/{pid}/{what}"))?;
            let words = bytes.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
            Ok(words.filter(|word| !word.is_empty()).collect())
        };
        let mut launches = Vec::new();
        for pid in running {
            let mut arguments = shown(pid, "cmdline")?;
            if !arguments.iter().any(|argument| argument.starts_with(SESSION)) {
                continue;
            }
            let environment = shown(pid, "environ")?;
            let variables = environment.iter().filter_map(|variable| variable.split_once('='));
            let environment = variables
                .filter(|(name, _)| *name != MARK_OF_THE_ADAPTER)
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect();
            let program = arguments.remove(0);
            launches.push(Self { program, arguments, environment, cwd: sandbox.work() });
        }
        adapter.end(runtime);
        ensure!(launches.len() == 1, "the adapter runs {} programs", launches.len());
        launches.pop().context("the adapter runs no program")
    }
}

/// The argument that names a new conversation.
const SESSION: &str = "--session-id=";

/// A conversation by the least that can be done: lines are written, and lines are read until the one that ends a turn.
struct ByHand<'a> {
    launch: &'a Launch,
    session: String,
    running: Option<RunningAgent>,
}

struct RunningAgent {
    child: Child,
    input: ChildStdin,
    lines: BufReader<ChildStdout>,
}

impl<'a> ByHand<'a> {
    fn new(launch: &'a Launch, nth: usize) -> Self {
        Self { launch, session: format!("00000000-0000-4000-8000-{nth:012}"), running: None }
    }

    fn turn(&mut self) -> anyhow::Result<f64> {
        let watch = Stopwatch::start();
        let mut running = match self.running.take() {
            Some(running) => running,
            None => RunningAgent::start(self.launch, &self.session)?,
        };
        running.write(&json!({
            "type": "user",
            // The empty block is the adapter's too: with it the program does not read commands out of a prompt.
            "message": { "role": "user", "content": [
                { "type": "text", "text": PROMPT },
                { "type": "text", "text": "" },
            ] },
            "parent_tool_use_id": null,
            "session_id": "",
        }))?;
        let result = running.read_until("result")?;
        let took = watch.elapsed();
        let result: Value = serde_json::from_str(&result)?;
        ensure!(result["result"] == ANSWER, "the program said {result}");
        self.running = Some(running);
        Ok(took.as_secs_f64() * 1e9)
    }

    /// The program ends with its input.
    fn end(self) -> anyhow::Result<()> {
        let Some(RunningAgent { mut child, input, mut lines }) = self.running else { return Ok(()) };
        drop(input);
        std::io::copy(&mut lines, &mut std::io::sink())?;
        ensure!(child.wait()?.success(), "the program failed");
        Ok(())
    }
}

impl RunningAgent {
    fn start(launch: &Launch, session: &str) -> anyhow::Result<Self> {
        let arguments = launch.arguments.iter().map(|argument| match argument.strip_prefix(SESSION) {
            Some(_) => format!("{SESSION}{session}"),
            None => argument.clone(),
        });
        let mut child = Command::new(&launch.program)
            .args(arguments)
            .env_clear()
            .envs(launch.environment.iter().map(|(name, value)| (name, value)))
            .current_dir(&launch.cwd)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("failed to start {}", launch.program))?;
        let input = child.stdin.take().context("the program has no input")?;
        let lines = BufReader::new(child.stdout.take().context("the program has no output")?);
        let mut running = Self { child, input, lines };
        running.write(&json!({
            "type": "control_request",
            "request_id": "initialize",
            "request": { "subtype": "initialize", "hooks": null },
        }))?;
        running.read_until("control_response")?;
        Ok(running)
    }

    fn write(&mut self, line: &Value) -> anyhow::Result<()> {
        self.input.write_all(format!("{line}\n").as_bytes()).context("the program takes no input")
    }

    /// The next line of this type, which may be anywhere in it. Nothing within a line of another type is of this one.
    fn read_until(&mut self, kind: &str) -> anyhow::Result<String> {
        let named = format!("\"type\":\"{kind}\"");
        loop {
            if self.lines.buffer().is_empty() {
                let mut output = [PollFd::new(self.lines.get_ref(), PollFlags::IN)];
                let ready = poll(&mut output, Some(&Timespec::try_from(SILENCE)?))?;
                ensure!(ready > 0, "the program is silent before its `{kind}`");
            }
            let mut line = String::new();
            ensure!(self.lines.read_line(&mut line)? > 0, "the program ended before its `{kind}`");
            if line.contains(&named) {
                return Ok(line);
            }
        }
    }
}
