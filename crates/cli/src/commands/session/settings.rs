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

    /// Whether the calls of nodes are made, recorded or answered from recordings.
    pub(in crate::commands) fn node_calls(&self) -> Result<NodeCalls, Failure> {
        let refused = |error: inspan_engine::RecordingError| Failure::usage(error.to_string());
        Ok(match (&self.record, &self.replay) {
            (Some(dir), _) => NodeCalls::Record(Recorder::new(dir).map_err(refused)?),
            (None, Some(dir)) => NodeCalls::Replay(Replayer::load(dir).map_err(refused)?),
            (None, None) => NodeCalls::Make,
        })
    }

    /// The providers, as they are, recorded or replayed.
    pub(in crate::commands) fn providers(
        &self,
        flow: &Path,
        progress: ProgressStyle,
    ) -> Result<ProviderRegistry, Failure> {
        if let Some(dir) = &self.record {
            let recorder = Recorder::new(dir).map_err(|error| Failure::usage(error.to_string()))?;
            return Ok(all_providers().map(|provider| recorder.record(provider)));
        }
        let Some(dir) = &self.replay else { return Ok(all_providers()) };
        if !dir.is_dir() {
            let message = format!("there are no recordings in {}: no such folder", dir.display());
            let hint = format!("make them with `inspan run {} --record {}`", flow.display(), dir.display());
            return Err(Failure::usage(message).with_hint(hint));
        }
        let replayer = Replayer::load(dir).map_err(|error| Failure::usage(error.to_string()))?;
        let pace = match (self.pace, progress) {
            (Some(ReplayPace::Recorded), _) | (None, ProgressStyle::Live) => Pace::Recorded,
            (Some(ReplayPace::Immediate), _) | (None, ProgressStyle::Lines) => Pace::Immediate,
        };
        let replayer = replayer.pace(pace);
        Ok(all_providers().map(|provider| replayer.replay(provider)))
    }
}
