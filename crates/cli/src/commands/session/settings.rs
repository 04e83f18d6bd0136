//! What the command line stores with a session, so that it resumes as it was started.

use std::path::{Path, PathBuf};

use inspan_engine::{NodeCalls, Pace, ProviderRegistry, Recorder, Replayer};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    args::ReplayPace, commands::all_providers, failure::Failure, invocation::Invocation,
    terminal::ProgressStyle,
};

/// How a session was started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(in crate::commands) struct SessionSettings {
    /// Where programs and agents work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::commands) cwd: Option<PathBuf>,
    /// Where answers are recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::commands) record: Option<PathBuf>,
    /// Where answers are played from, and how fast.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::commands) replay: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::commands) pace: Option<ReplayPace>,
    /// How many nodes may work at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::commands) max_concurrency: Option<u32>,
    /// The keys of the input that were given, and not left to the defaults of the flow.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::commands) given: Vec<String>,
    /// The hash of the request that started the session, if the request has a key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::commands) request: Option<String>,
}

impl SessionSettings {
    pub(in crate::commands) fn to_map(&self) -> Map<String, Value> {
        match serde_json::to_value(self) {
            Ok(Value::Object(map)) => map,
            // They are plain texts and numbers.
            _ => Map::new(),
        }
    }

    /// The same from any folder.
    pub(in crate::commands) fn whole(&self, invocation: &Invocation) -> Self {
        let whole = |dir: &PathBuf| match &invocation.cwd {
            Some(cwd) => cwd.join(dir),
            None => dir.clone(),
        };
        let (record, replay) = (self.record.as_ref().map(whole), self.replay.as_ref().map(whole));
        Self { record, replay, ..self.clone() }
    }

    pub(in crate::commands) fn of_map(map: &Map<String, Value>) -> Result<Self, Failure> {
        serde_json::from_value(Value::Object(map.clone()))
            .map_err(|error| Failure::usage(format!("the session's settings cannot be read: {error}")))
    }

    /// Whether the calls of a new session are made, recorded or answered from recordings.
    pub(in crate::commands) fn new_calls(
        &self,
        flow: &Path,
        progress: ProgressStyle,
    ) -> Result<NodeCalls, Failure> {
        match &self.record {
            Some(dir) if dir.exists() && !dir.is_dir() => Err(Failure::usage(format!(
                "nothing can be recorded in {}: it is not a folder",
                dir.display()
            ))),
            // A call that both make would be replaced by this one's, also if it fails or is cut short, and the older recording
            // would not replay any more.
            Some(dir) if Recorder::has_recordings(dir) => {
                let message = format!(
                    "{} has the recordings of an earlier session; nothing was started",
                    dir.display()
                );
                Err(Failure::usage(message)
                    .with_hint("name another folder, or remove the recordings from this one"))
            }
            Some(dir) => {
                let recorder = Recorder::new(dir).map_err(|error| Failure::usage(error.to_string()))?;
                Ok(NodeCalls::Record(recorder))
            }
            None => self.rest_of_calls(flow, progress),
        }
    }

    /// The same for a session of which an earlier process has run a part.
    pub(in crate::commands) fn rest_of_calls(
        &self,
        flow: &Path,
        progress: ProgressStyle,
    ) -> Result<NodeCalls, Failure> {
        if let Some(dir) = &self.record {
            return Ok(NodeCalls::Record(Recorder::continuing(dir)));
        }
        let Some(dir) = &self.replay else { return Ok(NodeCalls::Make) };
        let none = |why| Failure::usage(format!("there are no recordings in {}: {why}", dir.display()));
        if !dir.exists() {
            let hint = format!("make them with `inspan run {} --record {}`", flow.display(), dir.display());
            return Err(none("no such folder").with_hint(hint));
        }
        if !dir.is_dir() {
            return Err(none("it is not a folder"));
        }
        let replayer = Replayer::load(dir).map_err(|error| Failure::usage(error.to_string()))?;
        let pace = match (self.pace, progress) {
            (Some(ReplayPace::Recorded), _) | (None, ProgressStyle::Live) => Pace::Recorded,
            (Some(ReplayPace::Immediate), _) | (None, ProgressStyle::Lines) => Pace::Immediate,
        };
        Ok(NodeCalls::Replay(replayer.pace(pace)))
    }
}

/// The providers, as they are, recorded or replayed like the calls of nodes.
pub(in crate::commands) fn providers(calls: &NodeCalls) -> ProviderRegistry {
    match calls {
        NodeCalls::Record(recorder) => all_providers().map(|provider| recorder.record(provider)),
        NodeCalls::Replay(replayer) => all_providers().map(|provider| replayer.replay(provider)),
        NodeCalls::Make | NodeCalls::Answer(_) => all_providers(),
    }
}
