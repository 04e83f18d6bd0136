//! Recordings as files: `<provider>-<beginning of the key>-<call>.json`, written at once or not at all.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use inspan_protocol::{
    AgentError, ErrorCode, NodePath, RECORDING_VERSION, StreamEvent, denials, set_denials,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{RecordingError, key::KeyedRequest};
use crate::write_private;

/// How much later than in the recorded run an interruption may come.
const LATE_INTERRUPTION: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Recording {
    pub(super) version: u16,
    pub(super) provider: String,
    pub(super) key: String,
    /// Where in its session the call was made; absent in recordings of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) place: Option<NodePath>,
    /// The id of the session in which the call was made; recordings of older versions have it only if the input has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) session: Option<String>,
    /// Whether a pause or the end of the process cut the call short, so that the resumed session makes it again. A call
    /// that is under way is recorded so; recordings of older versions do not say it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) cut_short: bool,
    /// How long a call took that was interrupted; absent in recordings of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) lasted_ms: Option<u64>,
    pub(super) input: Value,
    pub(super) events: Vec<RecordedEvent>,
    #[serde(flatten)]
    pub(super) end: RecordedEnd,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RecordedEvent {
    /// Milliseconds since the call began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) at_ms: Option<u64>,
    pub(super) event: StreamEvent,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum RecordedEnd {
    Output(Value),
    Error(AgentError),
}

impl RecordedEnd {
    /// The end of a call that gave none itself.
    pub(super) fn aborted() -> Self {
        Self::Error(AgentError::new(ErrorCode::Aborted, "the call ended before the provider gave an output"))
    }

    /// The tool calls that were denied in it.
    fn denials(&self) -> &[Value] {
        match self {
            Self::Output(output) => denials(output),
            Self::Error(error) => error.denials(),
        }
    }

    /// The same end of a call that continues one in which these tool calls were denied.
    pub(super) fn after_denials(mut self, before: &[Value]) -> Self {
        if before.is_empty() {
            return self;
        }
        let all = [before, self.denials()].concat();
        match &mut self {
            Self::Output(output) => set_denials(output, all),
            Self::Error(error) => *error = error.clone().with_denials(&all),
        }
        self
    }

    /// Whether the call was cut short.
    pub(super) fn was_aborted(&self) -> bool {
        match self {
            Self::Output(output) => output["stopReason"] == "aborted",
            Self::Error(error) => error.code == ErrorCode::Aborted,
        }
    }

    /// Whether a call that is to end because of a pause had not done all of its work: then it is made again.
    pub(super) fn is_left_by_pause(&self) -> bool {
        let reason = match self {
            Self::Output(output) => output["stopReason"].as_str(),
            Self::Error(_) => None,
        };
        self.was_aborted() || reason.is_some_and(|reason| reason != "complete")
    }
}

impl Recording {
    pub(super) fn new(
        request: &KeyedRequest,
        events: Vec<RecordedEvent>,
        end: RecordedEnd,
        cut_short: bool,
    ) -> Self {
        Self {
            version: RECORDING_VERSION,
            provider: request.provider.clone(),
            key: request.key.clone(),
            place: request.place.clone(),
            session: request.session.clone(),
            cut_short,
            lasted_ms: None,
            input: request.input.clone(),
            events,
            end,
        }
    }

    /// Waits for what interrupted the call in the recorded run, such as its timeout. It comes at its own time here too;
    /// what a person did never comes.
    pub(super) async fn interruption(&self, cancel: &CancellationToken) {
        let took = Duration::from_millis(self.lasted_ms.unwrap_or_default());
        drop(timeout(took + LATE_INTERRUPTION, cancel.cancelled()).await);
    }

    fn into_request(self) -> KeyedRequest {
        let Self { provider, key, place, session, input, .. } = self;
        KeyedRequest::recorded(provider, input, key).at(place).of_session(session.as_deref())
    }
}

/// How much of a key is in a file's name.
const KEY_IN_NAME: usize = 12;

fn prefix(provider: &str, key: &str) -> String {
    format!("{provider}-{}-", key.get(..KEY_IN_NAME).unwrap_or(key))
}

/// The number at the end of a recording's file name; 0 for a name without one.
fn call_of(path: &Path) -> u32 {
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    stem.rsplit('-').next().and_then(|call| call.parse().ok()).unwrap_or(0)
}

fn path(dir: &Path, call: u32, recording: &Recording) -> PathBuf {
    dir.join(format!("{}{call}.json", prefix(&recording.provider, &recording.key)))
}

/// Where a recording is written before it has its name.
fn draft(path: &Path) -> PathBuf {
    path.with_extension("json.part")
}

/// Whether the number of a new call is free; if so, its draft is there, and no other process takes the number.
pub(super) fn claim(dir: &Path, call: u32, recording: &Recording) -> bool {
    let path = path(dir, call, recording);
    if path.exists() {
        return false;
    }
    let draft = draft(&path);
    match File::options().write(true).create_new(true).open(&draft) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
        // It may have been written just now.
        Ok(_) if path.exists() => {
            drop(fs::remove_file(&draft));
            false
        }
        // A folder that cannot be written has no other calls either.
        Ok(_) | Err(_) => true,
    }
}

pub(super) fn write(dir: &Path, call: u32, recording: &Recording) -> Result<(), RecordingError> {
    let path = path(dir, call, recording);
    let failed = |source| RecordingError::Io { path: path.clone(), source };
    let mut text = serde_json::to_string_pretty(recording).map_err(|error| failed(error.into()))?;
    text.push('\n');
    // Renamed into place: a reader finds the whole file or none.
    let draft = draft(&path);
    write_private(&draft, text.as_bytes()).and_then(|()| fs::rename(&draft, &path)).map_err(failed)
}

/// The recordings of a request that are to stay, by their numbers. The others are removed.
pub(super) fn keep(
    dir: &Path,
    request: &KeyedRequest,
    stays: impl Fn(&Recording) -> bool,
) -> BTreeMap<u32, Recording> {
    let prefix = prefix(&request.provider, &request.key);
    let mut kept = BTreeMap::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let call = name.to_str().and_then(|name| name.strip_prefix(&prefix)?.strip_suffix(".json"));
        let Some(call) = call.and_then(|call| call.parse::<u32>().ok()) else { continue };
        match read(&entry.path()) {
            Ok((_, recording)) if stays(&recording) => drop(kept.insert(call, recording)),
            _ => {
                if let Err(error) = fs::remove_file(entry.path()) {
                    tracing::warn!(path = %entry.path().display(), %error, "an older recording stays");
                }
            }
        }
    }
    kept
}

/// The tool calls that were denied in a call which is made again, and whose recording is about to be replaced.
pub(super) fn denied(dir: &Path, call: u32, again: &Recording) -> Vec<Value> {
    read(&path(dir, call, again))
        .map_or_else(|_| Vec::new(), |(_, recording)| recording.end.denials().to_vec())
}

/// The requests of a session whose calls were cut short, as far as the folder can be read.
pub(super) fn cut_short(dir: &Path, session: Option<&String>) -> Vec<KeyedRequest> {
    let recordings = files(dir).unwrap_or_default().into_iter().filter_map(|path| Some(read(&path).ok()?.1));
    recordings
        .filter(|recording| recording.cut_short && recording.session.as_ref() == session)
        .map(Recording::into_request)
        .collect()
}

/// All recordings of a folder, each with its file's name, in the order of their calls.
pub(super) fn read_all(dir: &Path) -> Result<Vec<(String, Recording)>, RecordingError> {
    let mut paths = files(dir).map_err(|source| RecordingError::Io { path: dir.to_owned(), source })?;
    paths.sort_by(|a, b| call_of(a).cmp(&call_of(b)).then_with(|| a.cmp(b)));
    paths.iter().map(|path| read(path)).collect()
}

/// The paths of the recordings in a folder, which may have other JSON files.
pub(super) fn files(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths: Vec<_> = fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json") && is_recording(path));
    Ok(paths)
}

/// Whether a file is a recording of any version, or a damaged one: it has the name of one.
fn is_recording(path: &Path) -> bool {
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let mut parts = stem.rsplitn(3, '-');
    let (call, key, provider) = (parts.next(), parts.next(), parts.next());
    let is_key = |key: &str| key.len() == KEY_IN_NAME && key.bytes().all(|byte| byte.is_ascii_hexdigit());
    if provider.is_some() && key.is_some_and(is_key) && call.is_some_and(|call| call.parse::<u32>().is_ok()) {
        return true;
    }
    let value = fs::read(path).ok().and_then(|text| serde_json::from_slice::<Value>(&text).ok());
    value.is_some_and(|value| value["version"].is_u64() && value["key"].is_string())
}

fn read(path: &Path) -> Result<(String, Recording), RecordingError> {
    let text =
        fs::read_to_string(path).map_err(|source| RecordingError::Io { path: path.to_owned(), source })?;
    let wrong = |message: String| RecordingError::Format { path: path.to_owned(), message };
    let value: Value = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    match value["version"].as_u64() {
        Some(version) if version > u64::from(RECORDING_VERSION) => {
            return Err(wrong(format!(
                "it has format version {version}, and this program reads up to {RECORDING_VERSION}"
            )));
        }
        Some(_) => {}
        None => return Err(wrong("it has no `version`, so it is not a recording".to_owned())),
    }
    let recording = serde_json::from_value(value).map_err(|error| wrong(error.to_string()))?;
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    Ok((name, recording))
}
