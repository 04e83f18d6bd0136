//! A thousand agents that stream at once, played from recordings at the pace of the recording, and one reader that
//! must lose nothing: how much memory each of them takes, and how long an event waits for its reader.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use inspan_engine::{
    AgentRun, Clock as _, Filter, Hub, Pace, RandomIds, Recorder, Replayer, Subscription, SystemClock,
};
use inspan_protocol::{DynProvider, Event, ExecutionContext, ProviderStream, ProviderWrapper, SessionId};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::measure::{Goal, Measurement};
use super::memory::field;

const AGENTS: usize = 1_000;
/// The texts of each agent, a few words each, with a pause before each.
const TEXTS: usize = 10;
const PAUSE_MS: u64 = 200;
/// The longest that all of them may take.
const LIMIT: Duration = Duration::from_secs(120);

/// What the process of the agents reports.
#[derive(Serialize, Deserialize)]
struct AgentsReport {
    /// Bytes that the process held more at its peak than before the first agent began.
    grown: f64,
    events: usize,
    /// The longest time from an event to its reader, in milliseconds.
    late_ms: f64,
    took_ms: f64,
}

/// All rows. The agents run in a separate process, so that none of their memory was allocated before.
pub(super) fn rows() -> anyhow::Result<Vec<Measurement>> {
    let folder = tempfile::tempdir()?;
    let recorded = runtime()?.block_on(record(folder.path()))?;
    let output = Command::new(std::env::current_exe()?)
        .arg("concurrency")
        .arg(folder.path())
        .output()
        .context("failed to start the process of the agents")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "the agents failed: {said}");
    let report: AgentsReport =
        serde_json::from_slice(&output.stdout).context("the process of the agents printed no report")?;
    let work = |of: &str| format!("{AGENTS} agents at once, {of}");
    let per_event = report.took_ms * 1e6 / report.events as f64;
    Ok(vec![
        Measurement::bytes(work("each"), report.grown / AGENTS as f64).goal(Goal::Within(50e3)),
        Measurement::time(work("all"), report.took_ms * 1e6).reference("as recorded", millis(recorded) * 1e6),
        Measurement::time(work("an event"), per_event),
        Measurement::time(work("latest"), report.late_ms * 1e6),
    ])
}

/// What `cargo xtask concurrency FOLDER` does: plays the recordings of a folder all at once, and prints what it took.
pub(crate) fn run(folder: &Path, out: &mut dyn std::io::Write) -> anyhow::Result<bool> {
    let replayer = Replayer::load(folder)?.pace(Pace::Recorded);
    let report = runtime()?.block_on(async {
        let all = stream_all(replayer.replay(scripted()?));
        tokio::spawn(async move { timeout(LIMIT, all).await }).await?.context("it took too long")?
    })?;
    ensure!(replayer.unplayed().is_empty(), "not every recording was played");
    serde_json::to_writer(out, &report)?;
    Ok(true)
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()
}

fn scripted() -> anyhow::Result<Arc<dyn DynProvider>> {
    let found = inspan_providers::builtin().into_iter().find(|p| p.descriptor().provider_type == "scripted");
    found.context("there is no scripted provider")
}

/// What each agent is asked. The script is not part of it: it would take more memory than the run.
fn input() -> Value {
    json!({ "prompt": "Speak.", "options": { "turns": [] } })
}

fn script() -> Value {
    let steps = (0..TEXTS).flat_map(|nth| {
        [json!({ "delayMs": PAUSE_MS }), json!({ "text": format!("text {nth} of an agent ") })]
    });
    json!({ "prompt": "Speak.", "options": { "turns": [steps.collect::<Value>()] } })
}

fn hub() -> Hub {
    let hub = Hub::new(SessionId::from("flow-bench"), Arc::new(SystemClock), Arc::new(RandomIds::new()));
    hub.start_session();
    hub
}

/// The provider whose agents are recorded: the scripted one, with its own script.
struct ScriptedAgent(Arc<dyn DynProvider>);

impl ProviderWrapper for ScriptedAgent {
    fn inner(&self) -> &dyn DynProvider {
        &*self.0
    }

    fn execute(&self, _: Value, context: ExecutionContext) -> ProviderStream<Value> {
        self.0.execute(script(), context)
    }
}

async fn run_agent(hub: Hub, provider: Arc<dyn DynProvider>) -> anyhow::Result<()> {
    AgentRun::new(hub, "speaker", provider, input()).execute().await?;
    Ok(())
}

/// Records the agents, so that there is one recording for each call, and says how long that took.
async fn record(folder: &Path) -> anyhow::Result<Duration> {
    let provider = Recorder::new(folder)?.record(Arc::new(ScriptedAgent(scripted()?)));
    let (hub, began) = (hub(), SystemClock.now());
    let runs: Vec<_> =
        (0..AGENTS).map(|_| tokio::spawn(run_agent(hub.clone(), Arc::clone(&provider)))).collect();
    for run in runs {
        timeout(LIMIT, run).await.context("recording took too long")???;
    }
    Ok(SystemClock.now().since(began))
}

async fn stream_all(provider: Arc<dyn DynProvider>) -> anyhow::Result<AgentsReport> {
    let hub = hub();
    let reader = tokio::spawn(read(hub.subscribe(Filter::all())));
    // From here on the peak is counted again.
    std::fs::write("/proc/self/clear_refs", "5").context("the peak of memory cannot be reset")?;
    let before = memory("VmRSS:")?;
    let began = SystemClock.now();
    let runs: Vec<_> =
        (0..AGENTS).map(|_| tokio::spawn(run_agent(hub.clone(), Arc::clone(&provider)))).collect();
    for run in runs {
        run.await??;
    }
    let took = SystemClock.now().since(began);
    let grown = memory("VmHWM:")? - before;
    let (events, late) = reader.await??;
    Ok(AgentsReport { grown, events, late_ms: millis(late), took_ms: millis(took) })
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn memory(name: &str) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    field(&status, name).with_context(|| format!("/proc/self/status has no {name}"))
}

/// Reads until every agent has ended, and fails if an event is missing.
async fn read(mut events: Subscription) -> anyhow::Result<(usize, Duration)> {
    let (mut seen, mut ended, mut late) = (0, 0, Duration::ZERO);
    while ended < AGENTS {
        let event = events.next().await.context("the reader was left behind")?;
        seen += 1;
        ensure!(event.seq == seen as u64, "event {} came where {seen} should", event.seq);
        late = late.max(SystemClock.now().since(event.timestamp));
        ended += usize::from(matches!(event.event, Event::AgentComplete { success: true, .. }));
    }
    Ok((seen, late))
}
