//! Plays recordings back behind the provider's own contract; the real provider is never called. The
//! run handles the events exactly as when they were recorded.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt, stream};
use inspan_protocol::{
    AgentError, DynProvider, ErrorCode, ExecutionContext, NodePath, ProviderItem, ProviderStream,
    ProviderWrapper, Redactor, StopReason, Timestamp,
};
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::Value;
use similar::TextDiff;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{
    RecordingError,
    key::{KeyedRequest, local},
    store::{self, RecordedEnd, Recording},
};
use crate::{Clock as _, SystemClock};

/// How long a recorded usage limit lasts: its vendor's reset time is that of the recorded run.
const LIMIT_LASTS: Duration = Duration::from_secs(1);
/// How long looking for the nearest recording may take for each candidate.
const DIFF_LIMIT: Duration = Duration::from_millis(200);
/// How much of a difference is shown, in bytes.
const SHOWN_DIFFERENCE: usize = 4_000;

/// How fast recordings are played.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pace {
    /// As fast as they are read.
    #[default]
    Immediate,
    /// As they were recorded.
    Recorded,
}

/// The recordings of a folder, and how far they have been played.
#[derive(Clone)]
pub struct Replayer {
    tapes: Arc<Tapes>,
    pace: Pace,
}

/// A call of a provider as it was recorded. Clones share the recording.
#[derive(Clone)]
pub struct RecordedCall {
    recording: Arc<Recording>,
    pace: Pace,
    interrupted: bool,
}

impl RecordedCall {
    /// Plays it to its end, or until it is cancelled. A usage limit that it met is lifted soon after `now`, the present
    /// moment.
    pub fn play(&self, now: Timestamp, cancel: CancellationToken) -> ProviderStream<Value> {
        play(Arc::clone(&self.recording), self.pace, now + LIMIT_LASTS, cancel, self.interrupted)
    }
}

struct Tapes {
    dir: PathBuf,
    /// In the order of their calls.
    all: Vec<(String, Arc<Recording>)>,
    /// The position in the recordings of a request, by its key.
    of_request: FxHashMap<String, Vec<usize>>,
    /// The sessions in which the calls were recorded.
    sessions: BTreeSet<String>,
    /// Those of `all` that were played.
    played: Mutex<FxHashSet<usize>>,
}

impl Replayer {
    /// Reads all recordings of a folder.
    pub fn load(dir: impl Into<PathBuf>) -> Result<Self, RecordingError> {
        let dir = dir.into();
        let all = store::read_all(&dir)?;
        let all: Vec<_> = all.into_iter().map(|(name, recording)| (name, Arc::new(recording))).collect();
        let mut of_request: FxHashMap<String, Vec<usize>> = FxHashMap::default();
        for (at, (_, recording)) in all.iter().enumerate() {
            of_request.entry(recording.key.clone()).or_default().push(at);
        }
        let sessions = all.iter().filter_map(|(_, recording)| recording.session.clone()).collect();
        let tapes = Tapes { dir, all, of_request, sessions, played: Mutex::default() };
        Ok(Self { tapes: Arc::new(tapes), pace: Pace::default() })
    }

    /// The same recordings, played at this pace.
    #[must_use]
    pub fn pace(self, pace: Pace) -> Self {
        Self { pace, ..self }
    }

    /// A provider of the same type that answers from the recordings: the n-th call of a request gets the
    /// n-th recording of it, at its own place in the session if that was recorded there. One that was not recorded fails with `CONFIG_INVALID` and shows how it differs
    /// from the nearest that was. A recorded interruption comes when the call is cancelled, or a
    /// minute later than in the recorded run. A call that a pause or the end of its process cut short, and that was never made again, fails at once.
    pub fn replay(&self, source: Arc<dyn DynProvider>) -> Arc<dyn DynProvider> {
        Arc::new(Replayed { source, replayer: self.clone() })
    }

    /// The same recordings, none of which has been played.
    #[must_use]
    pub fn rewound(&self) -> Self {
        let Tapes { dir, all, of_request, sessions, .. } = &*self.tapes;
        let (dir, all, of_request) = (dir.clone(), all.clone(), of_request.clone());
        let tapes = Tapes { dir, all, of_request, sessions: sessions.clone(), played: Mutex::default() };
        Self { tapes: Arc::new(tapes), pace: self.pace }
    }

    /// The next recording of a call, as [`Replayer::replay`] finds it, to be played once or more.
    pub fn take(
        &self,
        provider: &dyn DynProvider,
        input: &Value,
        context: &ExecutionContext,
    ) -> Result<RecordedCall, AgentError> {
        let provider_type = provider.descriptor().provider_type;
        let env = &context.host.env;
        let redactor = Redactor::new(env);
        let request = KeyedRequest::new(&provider_type, input, env, &redactor);
        let recording = self.tapes.next(&request.at(context.place.clone()), &redactor)?;
        let interrupted = was_interrupted(provider, &recording.end);
        Ok(RecordedCall { recording, pace: self.pace, interrupted })
    }

    pub(super) fn next(
        &self,
        request: &KeyedRequest,
        redactor: &Redactor,
    ) -> Result<Arc<Recording>, AgentError> {
        self.tapes.next(request, redactor)
    }

    /// The format versions of the recordings.
    pub(super) fn versions(&self) -> impl Iterator<Item = u16> {
        self.tapes.all.iter().map(|(_, recording)| recording.version)
    }

    /// The files that no call has asked for yet.
    pub fn unplayed(&self) -> Vec<String> {
        let played = self.tapes.played.lock();
        let files = self.tapes.all.iter().enumerate();
        files.filter(|(at, _)| !played.contains(at)).map(|(_, (name, _))| name.clone()).collect()
    }

    /// What nodes that were played did besides, in words: turns that did not come, mostly because a person's messages began them.
    pub fn left_over(&self) -> Option<String> {
        let (played, all) = (self.tapes.played.lock(), &self.tapes.all);
        let place = |at: usize| all[at].1.place.as_ref();
        let seen: BTreeSet<&NodePath> = played.iter().filter_map(|at| place(*at)).collect();
        let mut left: BTreeMap<&NodePath, u32> = BTreeMap::new();
        for place in (0..all.len()).filter(|at| !played.contains(at)).filter_map(place) {
            if seen.contains(place) {
                *left.entry(place).or_default() += 1;
            }
        }
        let left: Vec<_> = left.iter().map(|(place, count)| format!("{count} of `{place}`")).collect();
        (!left.is_empty()).then(|| {
            let dir = self.tapes.dir.display();
            let left = left.join(", ");
            format!("recorded calls in `{dir}` were not made: {left}. A replay has no messages of people")
        })
    }
}

impl Tapes {
    fn next(&self, request: &KeyedRequest, redactor: &Redactor) -> Result<Arc<Recording>, AgentError> {
        let known = self.of_request.get(&request.key).cloned();
        let known = known.or_else(|| self.of_another_session(request, redactor)).unwrap_or_default();
        // Equal calls of the items of a `foreach` come in any order.
        let is_here = |at: &usize| request.place.is_some() && self.all[*at].1.place == request.place;
        let here: Vec<usize> = known.iter().copied().filter(is_here).collect();
        let known = if here.is_empty() { known } else { here };
        let mut played = self.played.lock();
        match known.iter().find(|at| !played.contains(at)) {
            Some(at) => {
                played.insert(*at);
                let (name, recording) = &self.all[*at];
                match recording.cut_short {
                    true => Err(self.cut_short(name, recording)),
                    false if request.artifacts.is_none() => Ok(Arc::clone(recording)),
                    false => Ok(Arc::new(local(Recording::clone(recording), request.artifacts.as_deref()))),
                }
            }
            None => {
                drop(played);
                Err(self.miss(request, known.len()))
            }
        }
    }

    /// The recordings of a request that was made at the same place of a session with another id, and has that id.
    fn of_another_session(&self, request: &KeyedRequest, redactor: &Redactor) -> Option<Vec<usize>> {
        let known = |session: &String| {
            request.keys_in(session, redactor).find_map(|key| {
                let mut known = self.of_request.get(&key)?.clone();
                let is_here = |recording: &Recording| {
                    recording.place == request.place && recording.session.as_ref() == Some(session)
                };
                known.retain(|at| is_here(&self.all[*at].1));
                Some(known).filter(|known| !known.is_empty())
            })
        };
        self.sessions.iter().find_map(known)
    }

    fn cut_short(&self, name: &str, recording: &Recording) -> AgentError {
        let provider = &recording.provider;
        let session = recording.session.as_ref().map(|session| format!(" `{session}`")).unwrap_or_default();
        let message = format!(
            "the recording `{name}` in `{}` has no end: a pause or the end of the process cut this call of `{provider}` \
             short, and it was not made again. Resume the recorded session{session}, if it is still open, or record the flow \
             anew",
            self.dir.display()
        );
        AgentError::new(ErrorCode::ConfigInvalid, message).from_provider(provider)
    }

    fn miss(&self, request: &KeyedRequest, recorded: usize) -> AgentError {
        let KeyedRequest { provider, input, .. } = request;
        let dir = self.dir.display();
        let message = if recorded > 0 {
            let times = if recorded == 1 { "once".to_owned() } else { format!("{recorded} times") };
            format!("this request of `{provider}` is recorded {times} in `{dir}` and made once more")
        } else {
            let wanted = lines(input);
            let nearest = self
                .all
                .iter()
                .filter(|(_, recording)| recording.provider == *provider)
                .map(|(name, recording)| (name, &recording.input, lines(&recording.input)))
                .max_by(|(.., a), (.., b)| similarity(a, &wanted).total_cmp(&similarity(b, &wanted)));
            match nearest {
                None => format!("there is no recording of `{provider}` in `{dir}`"),
                Some((name, recorded, text)) => format!(
                    "no recording in `{dir}` fits this request of `{provider}`; it differs from the nearest in \
                     {}:\n{}",
                    differing(recorded, input).join(", "),
                    difference(name, &text, &wanted)
                ),
            }
        };
        AgentError::new(ErrorCode::ConfigInvalid, message).from_provider(provider)
    }
}

/// The fields in which two requests differ: those of `options` by their own names.
fn differing(recorded: &Value, wanted: &Value) -> Vec<String> {
    let fields = |value: &Value| -> Vec<String> {
        let names = |value: &Value, before: &str| -> Vec<String> {
            let fields = value.as_object().into_iter().flatten();
            fields.map(|(name, _)| format!("{before}/{name}")).collect()
        };
        let mut all = names(value, "");
        all.retain(|name| name != "/options");
        all.extend(names(&value["options"], "/options"));
        all
    };
    let mut all = fields(recorded);
    all.extend(fields(wanted));
    all.sort_unstable();
    all.dedup();
    all.retain(|field| recorded.pointer(field) != wanted.pointer(field));
    all.iter().map(|field| format!("`{}`", field[1..].replace('/', "."))).collect()
}

/// A request for people: one line for each line of its texts.
fn lines(input: &Value) -> String {
    let pretty = serde_json::to_string_pretty(input).unwrap_or_default();
    pretty.replace("\\n", "\\n\n    ") + "\n"
}

fn similarity(recorded: &str, wanted: &str) -> f32 {
    TextDiff::configure().timeout(DIFF_LIMIT).diff_words(recorded, wanted).ratio()
}

fn difference(name: &str, recorded: &str, wanted: &str) -> String {
    let diff = TextDiff::configure().timeout(DIFF_LIMIT).diff_lines(recorded, wanted);
    let mut shown = diff.unified_diff().context_radius(2).header(name, "this request").to_string();
    if shown.len() > SHOWN_DIFFERENCE {
        shown.truncate(shown.floor_char_boundary(SHOWN_DIFFERENCE));
        shown.push_str("\n…");
    }
    shown
}

struct Replayed {
    source: Arc<dyn DynProvider>,
    replayer: Replayer,
}

fn was_interrupted(provider: &dyn DynProvider, end: &RecordedEnd) -> bool {
    match end {
        RecordedEnd::Output(output) => {
            provider.output_facts(output).is_ok_and(|facts| facts.stop_reason == StopReason::Aborted)
        }
        RecordedEnd::Error(error) => error.code == ErrorCode::Aborted,
    }
}

impl ProviderWrapper for Replayed {
    fn inner(&self) -> &dyn DynProvider {
        &*self.source
    }

    fn is_live(&self) -> bool {
        false
    }

    fn execute(&self, input: Value, context: ExecutionContext) -> ProviderStream<Value> {
        match self.replayer.take(&*self.source, &input, &context) {
            Err(error) => stream::iter([Err(error)]).boxed(),
            Ok(call) => call.play(SystemClock.wall(), context.cancel),
        }
    }
}

fn play(
    recording: Arc<Recording>,
    pace: Pace,
    limit_ends: Timestamp,
    cancel: CancellationToken,
    interrupted: bool,
) -> ProviderStream<Value> {
    async_stream::stream! {
        let began = Instant::now();
        for recorded in &recording.events {
            if let (Pace::Recorded, Some(at_ms)) = (pace, recorded.at_ms) {
                tokio::select! {
                    () = cancel.cancelled() => {}
                    () = sleep_until(began + Duration::from_millis(at_ms)) => {}
                }
            }
            if cancel.is_cancelled() {
                break;
            }
            yield Ok(ProviderItem::Event(recorded.event.clone()));
        }
        if interrupted {
            recording.interruption(&cancel).await;
        }
        match recording.end.clone() {
            RecordedEnd::Output(output) if cancel.is_cancelled() => yield Ok(ProviderItem::Output(aborted(output))),
            RecordedEnd::Output(output) => yield Ok(ProviderItem::Output(output)),
            RecordedEnd::Error(error) => {
                yield Err(AgentError { resets_at: error.resets_at.map(|_| limit_ends), ..error });
            }
        }
    }
    .boxed()
}

/// A call that is cancelled earlier than the recorded one ended says so in its output.
fn aborted(mut output: Value) -> Value {
    if let Some(reason) = output.get_mut("stopReason") {
        *reason = serde_json::to_value(StopReason::Aborted).unwrap_or_default();
    }
    output
}
