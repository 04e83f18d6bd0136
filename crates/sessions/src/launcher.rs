//! How sessions are started: each in its own process, so that it outlives the interface that started it.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use async_trait::async_trait;
use inspan_flow::Graph;
use inspan_protocol::{NodePath, SessionId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{SessionError, SessionErrorCode};

/// Starts, resumes and forks sessions, and knows the flows of the registered folders. A session runs in a process of its
/// own; each call returns once that process runs it. What is not implemented is refused.
#[async_trait]
pub trait Launcher: Send + Sync {
    /// Starts a session of a flow: the id of a registered flow, or the path of a file in a registered folder.
    async fn start(
        &self,
        _flow: &str,
        _input: &Map<String, Value>,
        _options: &StartOptions,
    ) -> Result<SessionId, SessionError> {
        refused()
    }

    /// Resumes a session. The id is another one if a new session continues it, as for one that has ended.
    async fn resume(
        &self,
        _session: &SessionId,
        _options: &ResumeOptions,
    ) -> Result<SessionId, SessionError> {
        refused()
    }

    /// Fails if a session that no process runs cannot be resumed here: an answer to it, or a stop, is not stored then.
    async fn check_resume(&self, _session: &SessionId, _to: ResumeTo) -> Result<(), SessionError> {
        Ok(())
    }

    /// A text as the log of a session has it that is resumed here: without the secrets of the environment.
    fn redacted(&self, text: &str) -> String {
        text.to_owned()
    }

    /// Starts a new session from a point of another one, with these values of its input changed.
    async fn fork(
        &self,
        _session: &SessionId,
        _at: Option<&ForkPoint>,
        _input: &Map<String, Value>,
        _options: &ForkOptions,
    ) -> Result<SessionId, SessionError> {
        refused()
    }

    /// The flows of the registered folders.
    async fn flows(&self) -> Result<Vec<RegisteredFlow>, SessionError> {
        Ok(Vec::new())
    }
}

/// What a session is resumed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResumeTo {
    /// Its work goes on.
    Continue,
    /// It ends: no node starts but what cleans up.
    Stop,
}

/// How a session is started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StartOptions {
    /// The id of the new session; a fresh one if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// Limits of budgets by their names as `--budget` takes them: `usd`, `tokens`, `review.usd`, `each/.tokens`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub budget: BTreeMap<String, f64>,
    /// The provider of all agent nodes (`claude`), or of one (`review=claude`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub provider: Vec<String>,
    /// The model of all agent nodes, or of one (`review=opus`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub model: Vec<String>,
    /// Starts it also if its forecast is above the flow's `confirmAbove`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub confirmed: bool,
    /// How many nodes may run at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_concurrency: Option<u32>,
    /// The folder that the session works in; that of the program if absent.
    #[serde(skip)]
    pub cwd: Option<PathBuf>,
    /// The hash of the request that has a key, to be stored with the session.
    #[serde(skip)]
    pub request: Option<String>,
}

/// How a session is resumed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ResumeOptions {
    /// A message to the agents that were interrupted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Limits to raise, by their names as for a start; `limitToRaise` of a paused session names those that are used up, with commas.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub budget: BTreeMap<String, f64>,
    /// The id of the new session, if one is started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// The hash of the request that has a key, to be stored with the new session.
    #[serde(skip)]
    pub request: Option<String>,
    /// The node that runs again with all that depends on it: a new session continues this one, also if it has not ended.
    #[serde(skip)]
    pub from: Option<NodePath>,
    /// Whether only this session may be resumed; else a new one continues a session that has ended.
    #[serde(skip)]
    pub in_place: bool,
}

/// How a session is forked.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ForkOptions {
    /// The id of the new session; a fresh one if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// The hash of the request that has a key, to be stored with the session.
    #[serde(skip)]
    pub request: Option<String>,
}

/// Where a fork begins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "`at` must be the number of an event or the path of a node")]
pub enum ForkPoint {
    /// After this event: what was finished by then is reused.
    Event(u64),
    /// At this node: everything is reused that does not depend on it.
    Node(NodePath),
}

/// A flow of a registered folder.
#[derive(Clone)]
pub struct RegisteredFlow {
    /// What it is called in the API: unique among the registered flows.
    pub id: String,
    /// Its name; its id if it cannot be read.
    pub name: String,
    /// What it is for.
    pub description: Option<String>,
    /// Its file.
    pub file: PathBuf,
    /// The JSON Schema of its input: the one it states with its defaults, else one made of what it uses.
    pub input: Value,
    /// What it compiles to; nothing if it cannot run.
    pub graph: Option<Arc<Graph>>,
    /// Its problems, each as `inspan check --json` reports it.
    pub diagnostics: Vec<Value>,
}

/// The launcher of a program that cannot start sessions.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoLauncher;

#[async_trait]
impl Launcher for NoLauncher {}

fn refused<T>() -> Result<T, SessionError> {
    Err(SessionError::new(SessionErrorCode::CannotStart, "this program cannot start sessions"))
}
