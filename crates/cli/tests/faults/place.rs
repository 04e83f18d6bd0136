//! Where the rows work: a sandbox with a scripted agent, a count of side effects, and the content of its store.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use inspan_engine::ProviderRegistry;
use inspan_flow::{Graph, RunStore as _, Select, SessionEntry, SqliteStore, builtin_nodes};
use inspan_protocol::{Envelope, SessionId};
use inspan_testkit::{Sandbox, eventually};
use tokio::runtime::Runtime;

use super::Size;

/// How the program of an agent begins that a row scripts: it answers the greeting and reads the prompt. After that it
/// can say a `text`, and that the turn is `done_`.
pub(super) const PROGRAM: &str = r#"#!/bin/sh
say() { printf '%s\n' "$1"; }
text() { say '{"type":"stream_event","event":{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"'"$1"'"}}}'; }
done_() { say '{"type":"result","subtype":"success","is_error":false,"result":"done","stop_reason":"end_turn","total_cost_usd":0}'; }
read -r line
say '{"type":"control_response","response":{"subtype":"success","request_id":"initialize","response":{}}}'
read -r line
say '{"type":"stream_event","event":{"type":"message_start","message":{"id":"m1"}}}'
"#;

impl Size {
    /// A new place to run flows in. Its calls may take five minutes in all, in full half an hour; a call that hangs ends then.
    pub(super) fn place(self, name: &str) -> anyhow::Result<FaultSandbox> {
        let limit = Duration::from_secs(self.count(300, 1_800) as u64);
        let sandbox = Sandbox::new(Path::new(env!("CARGO_BIN_EXE_inspan")), name, &[], Vec::new(), limit)?;
        std::fs::create_dir(sandbox.path("talks"))?;
        sandbox.write("effects", "")?;
        sandbox.script("agent.sh", include_str!("agent.sh"))?;
        Ok(FaultSandbox(sandbox))
    }

    /// So many in a sample, so many in full.
    pub(super) fn count(self, sample: usize, full: usize) -> usize {
        match self {
            Size::Sample => sample,
            Size::Full => full,
        }
    }
}

/// A sandbox with a scripted agent in it.
pub(super) struct FaultSandbox(Sandbox);

impl Deref for FaultSandbox {
    type Target = Sandbox;

    fn deref(&self) -> &Sandbox {
        &self.0
    }
}

impl FaultSandbox {
    /// The side effects of nodes and agents, a line each.
    pub(super) fn effects(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.path("effects")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    pub(super) fn store(&self) -> PathBuf {
        self.home().join("sessions.db")
    }

    /// What is in the store, also while another process writes it; `None` if there is no such session yet.
    pub(super) fn look(&self, session: &str) -> anyhow::Result<Option<Look>> {
        runtime()?.block_on(async {
            let id = SessionId::from(session);
            let Some((store, entry)) = self.find(&id).await else { return Ok(None) };
            let log = store.read(&id, 1, Select::All).await.context("the log cannot be read")?;
            let log = log.iter().map(|envelope| Envelope::clone(envelope)).collect();
            Ok(Some(Look { entry, log }))
        })
    }

    /// The state of a session; `None` if there is none yet.
    pub(super) fn entry(&self, session: &str) -> anyhow::Result<Option<SessionEntry>> {
        let found = runtime()?.block_on(self.find(&SessionId::from(session)));
        Ok(found.map(|(_, entry)| entry))
    }

    /// The store and a session's entry in it.
    async fn find(&self, session: &SessionId) -> Option<(SqliteStore, SessionEntry)> {
        if !self.store().exists() {
            return None;
        }
        let store = SqliteStore::open_reader(self.store()).ok()?;
        let entry = store.entry(session).await.ok()?;
        Some((store, entry))
    }

    /// Fails unless all of the store is what was written.
    pub(super) fn sound(&self) -> anyhow::Result<()> {
        runtime()?.block_on(async {
            let report = SqliteStore::open_reader(self.store())?.verify().await?;
            let found: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
            ensure!(report.is_sound(), "the store is not sound: {}", found.join("; "));
            Ok(())
        })
    }
}

/// A session as its store has it.
pub(super) struct Look {
    pub(super) entry: SessionEntry,
    pub(super) log: Vec<Envelope>,
}

/// A runtime for one look.
pub(super) fn runtime() -> anyhow::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("failed to start a runtime")
}

/// Waits until something holds.
pub(super) fn until(what: &str, holds: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    eventually(Duration::from_secs(20), what, holds)
}

/// Every provider that comes with Inspan.
pub(super) fn providers() -> ProviderRegistry {
    inspan_providers::builtin().into_iter().collect()
}

/// Loads and compiles a flow.
pub(super) fn compile(flow: &Path, providers: &ProviderRegistry) -> anyhow::Result<Graph> {
    let compiled = inspan_flow::compile(&inspan_flow::load(flow)?, &builtin_nodes(providers));
    compiled.map(|compiled| compiled.graph).map_err(|problems| anyhow!("{problems}"))
}

/// The memory that a process has beside the pages of its files, in bytes; 0 once it is gone.
/// Those are the program itself, 70 MB of it in a debug build, and the kernel drops them when it likes.
pub(super) fn memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    kilobytes(&status, "RssAnon:") << 10
}

/// The memory that this process has, in bytes.
pub(super) fn resident() -> u64 {
    kilobytes(&std::fs::read_to_string("/proc/self/status").unwrap_or_default(), "VmRSS:") << 10
}

fn kilobytes(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse().unwrap_or_default()
}

/// Numbers that look like chance and are the same on every run.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1))
    }

    /// A number below `limit`.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % limit.max(1)
    }
}
