//! `cargo xtask record`: what the vendor's real program answers in each flow fixture, stored for the replay.

mod stable;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use inspan_engine::{NodeCalls, ProviderRegistry, Recorder, SystemClock};
use inspan_flow::FlowRunResult;
use inspan_model_server::Scenario;
use inspan_protocol::Environment;
use inspan_testkit::{Agent, Sandbox};
use walkdir::WalkDir;

use crate::replay::session::{self, ReplayContext};
use crate::replay::{FlowCase, cases_of};
use stable::Names;

/// The longest that one case may take. Flows wait in real time here.
const BOUND: Duration = Duration::from_secs(600);

/// What the flows of the fixtures call.
const AGENTS: [Agent; 1] = [Agent::Claude];

/// The example of the README and the model behind its recordings, which no user of it needs to see.
const EXAMPLE: (&str, &str) = ("examples/review-loop", include_str!("record/review-loop.json"));

/// Something to record.
struct Subject {
    case: FlowCase,
    scenario: Scenario,
    times: Times,
}

/// How the times of the program's output are handled.
#[derive(Clone, Copy)]
enum Times {
    /// They stay, since people watch the recording being played.
    Kept,
    /// They are removed, since they differ from one recording to the next and tests do not read them.
    Dropped,
}

/// Records the cases whose names contain `filter`.
pub(crate) fn run(root: &Path, filter: &str, out: &mut dyn std::io::Write) -> anyhow::Result<bool> {
    let mut subjects = Vec::new();
    for case in cases_of(root, filter)? {
        let scenario = case.folder().join("scenario.json");
        if scenario.exists() {
            subjects.push(Subject { scenario: Scenario::load(scenario)?, case, times: Times::Dropped });
        }
    }
    let (folder, scenario) = EXAMPLE;
    let example = FlowCase::new(root.join(folder));
    if example.name().contains(filter) {
        subjects.push(Subject {
            scenario: Scenario::from_json(scenario)?,
            case: example,
            times: Times::Kept,
        });
    }
    ensure!(!subjects.is_empty(), "no case with a scenario has a name that contains `{filter}`");
    for subject in &subjects {
        let (result, calls) = subject.record().with_context(|| subject.case.name().to_owned())?;
        writeln!(
            out,
            "{}: {calls} calls, {:?} in {} ms",
            subject.case.name(),
            result.outcome,
            result.duration_ms
        )?;
        out.flush()?;
    }
    Ok(true)
}

impl Subject {
    /// Runs the flow in a copy of its folder; the recordings replace the older ones at the end.
    fn record(&self) -> anyhow::Result<(FlowRunResult, usize)> {
        let mut sandbox =
            Sandbox::new(Path::new(""), self.case.name(), &AGENTS, inspan_providers::programs(), BOUND)?;
        let server = sandbox.serve(self.scenario.clone())?;
        copy(self.case.folder(), &sandbox.work())?;
        let env: Environment =
            sandbox.env().iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        let recorder = Recorder::new(sandbox.artefacts())?;
        let names = Names::new(&sandbox.work());
        let providers: ProviderRegistry =
            session::providers().map(|provider| recorder.record(names.wrap(provider)));
        let graph = Arc::new(session::compile(&sandbox.work().join("flow.yaml"), &providers)?);
        let around = ReplayContext {
            providers,
            calls: NodeCalls::Record(recorder.clone()),
            env,
            clock: Arc::new(SystemClock),
            bound: sandbox.deadline().left(),
            noted: None,
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let run = session::run(graph, self.case.input()?, around, self.case.commands()?);
        let result = runtime.block_on(run);
        runtime.shutdown_timeout(Duration::from_secs(1));
        let seen = server.stop();
        let result = result.with_context(|| format!("the model was asked {} times", seen.len()))?;
        sandbox.check()?;
        Ok((result, replace(&sandbox.artefacts(), &self.case.recordings(), self.times)?))
    }
}

/// Copies what the author wrote. What earlier runs made of it is left out.
fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    let made = ["recordings", "events.jsonl", "scenario.json", "commands.json", "input.json"];
    let written = |entry: &walkdir::DirEntry| {
        entry.depth() != 1 || !made.contains(&entry.file_name().to_string_lossy().as_ref())
    };
    for entry in WalkDir::new(from).min_depth(1).into_iter().filter_entry(written) {
        let entry = entry?;
        let target = to.join(entry.path().strip_prefix(from)?);
        if entry.file_type().is_dir() {
            fs::create_dir(&target)?;
        } else {
            fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}

/// Replaces all older recordings by the new ones, and returns the number of new ones.
fn replace(made: &Path, folder: &Path, times: Times) -> anyhow::Result<usize> {
    let mut texts = Vec::new();
    for entry in fs::read_dir(made)? {
        let entry = entry?;
        let text = fs::read_to_string(entry.path())?;
        let text = match times {
            Times::Kept => text,
            Times::Dropped => stable::without_times(&text),
        };
        texts.push((entry.file_name(), text));
    }
    ensure!(!texts.is_empty(), "no agent was asked");
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder)?;
    for (name, text) in &texts {
        fs::write(folder.join(name), text)?;
    }
    Ok(texts.len())
}
