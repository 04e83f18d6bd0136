//! A flow fixture: its folder, the flow run from its recordings in fixed time, and the log that it must give.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use inspan_engine::{NodeCalls, Replayer, VirtualClock, check_order};
use inspan_protocol::{Command, Envelope, Environment, Timestamp};
use inspan_testkit::{GoldenMode, compare_golden, read_json};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::session::{self, ReplayContext};
use super::{continued, continued::Calls, prefixes, prefixes::Whole};

/// The moment at which every replayed session begins.
const BEGINNING: &str = "2026-01-01T00:00:00Z";
/// The virtual time that a session may take; a flow that waits for what never comes reaches it at once.
pub(super) const BOUND: Duration = Duration::from_secs(30 * 24 * 3600);

/// One folder of `fixtures/flows`.
#[derive(Debug, Clone)]
pub(crate) struct FlowCase {
    folder: PathBuf,
}

/// One line of `commands.json`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Commanded {
    pub(super) after: AfterSession,
    pub(super) command: Command,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AfterSession {
    pub(super) event: String,
    /// After so many events of that name, counting from 1.
    pub(super) count: u64,
}

impl FlowCase {
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    pub(crate) fn name(&self) -> &str {
        self.folder.file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// What the agents answered.
    pub(crate) fn recordings(&self) -> PathBuf {
        self.folder.join("recordings")
    }

    /// What the flow is given; nothing unless the case says so.
    pub(crate) fn input(&self) -> anyhow::Result<Map<String, Value>> {
        let path = self.folder.join("input.json");
        Ok(if path.exists() { read_json(path)? } else { Map::new() })
    }

    /// The commands that the session is given. A refused one is part of the log, and no failure.
    pub(crate) fn commands(&self) -> anyhow::Result<Vec<Commanded>> {
        let path = self.folder.join("commands.json");
        Ok(if path.exists() { read_json(path)? } else { Vec::new() })
    }

    /// Runs the case, and compares or blesses its log.
    pub(crate) fn check(&self, mode: GoldenMode) -> anyhow::Result<()> {
        let events = self.replay()?;
        let lines: Vec<String> = events
            .iter()
            .map(serde_json::to_string)
            .collect::<Result<_, _>>()
            .context("an event is not JSON")?;
        compare_golden(self.folder.join("events.jsonl"), &format!("{}\n", lines.join("\n")), mode)?;
        Ok(())
    }

    /// Runs the case from its recordings, and continues each beginning of its log. Nothing in it depends on the
    /// machine, the time or chance.
    fn replay(&self) -> anyhow::Result<Vec<Envelope>> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
        runtime.block_on(async {
            // A case without recordings has none to play: an agent that is asked anyway is an error, and never
            // the real one.
            let (nothing, recorded) = (tempfile::tempdir()?, self.recordings());
            let recordings = if recorded.exists() { &recorded } else { nothing.path() };
            let replayer = Replayer::load(recordings)?;
            let calls = Calls::new(recordings);
            let providers = continued::noted(&replayer, &calls);
            let graph = Arc::new(session::compile(&self.folder.join("flow.yaml"), &providers)?);
            let beginning: Timestamp = BEGINNING.parse()?;
            let around = ReplayContext {
                providers,
                calls: NodeCalls::Replay(replayer.clone()),
                env: Environment::default(),
                clock: Arc::new(VirtualClock::starting_at(beginning)),
                bound: BOUND,
                noted: Some(calls.clone()),
            };
            let result = session::run(Arc::clone(&graph), self.input()?, around, self.commands()?).await?;
            let unplayed = replayer.unplayed();
            ensure!(unplayed.is_empty(), "recordings that no call asks for: {}", unplayed.join(", "));
            // A call that finds no recording names the folder of this machine, which may not come into a log.
            let place = nothing.path().display().to_string();
            let places = [place, recorded.display().to_string()];
            for envelope in &result.events {
                let event = serde_json::to_string(&envelope.event)?;
                if places.iter().any(|place| event.contains(place.as_str())) {
                    bail!(
                        "a call was not recorded; `cargo xtask record {}` records it again\n{event}",
                        self.name()
                    );
                }
            }
            let log: Vec<_> = result.events.iter().map(|envelope| (**envelope).clone()).collect();
            check_order(&log).map_err(anyhow::Error::msg).context("the log is out of order")?;
            let commands = self.commands()?;
            let whole = Whole { graph, input: self.input()?, result: &result, calls, commands };
            prefixes::check(&whole).await?;
            Ok(log)
        })
    }
}
