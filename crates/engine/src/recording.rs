//! Recording and replay of any provider's calls, and of what nodes do outside: one JSON file a call.
//!
//! A recording holds `{version, provider, key, place?, session?, cutShort?, lastedMs?, input, events, output | error}`. Of the input of a provider
//! it holds only what is on an allow-list; secrets are replaced.
//!
//! A call is written when it begins, as one that was cut short, and again when it ends: so a process that is killed leaves
//! it, too. The agent that was cut short goes on in its conversation when the session is resumed, with another request
//! than before. What it answers then is recorded for the request that was cut short, since a replay, which nothing cuts short,
//! makes only that one.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use futures::StreamExt;
use inspan_protocol::{
    Chunk, DynProvider, ErrorKind, ExecutionContext, NodePath, ProviderItem, ProviderStream, ProviderWrapper,
    Redactor, StreamEvent,
};
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::Value;
use tokio::time::Instant;

use crate::create_private_dir_all;

mod key;
mod node;
mod replay;
mod store;

pub use key::SESSION_VARIABLE;
pub use node::{AnswerCall, NodeAnswer, NodeCall, NodeCalls, NodeTape};
pub use replay::{Pace, RecordedCall, Replayer};

use key::{KeyedRequest, portable};
use store::{RecordedEnd, RecordedEvent, Recording};

/// A recording could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// The disk refused.
    #[error("recording `{path}`: {source}", path = path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file holds something else, or a newer version of the format.
    #[error("recording `{path}`: {message}", path = path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        message: String,
    },
}

/// Writes the calls of providers to a folder.
#[derive(Clone)]
pub struct Recorder {
    dir: Arc<Path>,
    /// Whether what an earlier process of the same session recorded stays.
    continues: bool,
    made: Arc<Mutex<Made>>,
}

/// What the calls of a recorder have in common.
#[derive(Default)]
struct Made {
    /// The calls of each request so far, by its key.
    calls: FxHashMap<String, CallsMade>,
    /// The requests of agents that were cut short and not made again, once they have been read.
    cut_short: Option<Vec<KeyedRequest>>,
    /// Where a call is to end because of a pause.
    pausing: FxHashSet<NodePath>,
}

/// The calls of one request.
#[derive(Default)]
struct CallsMade {
    /// The number of the newest.
    newest: u32,
    /// What an earlier process did not finish: the number of the call at each place. It is made again, and its recording
    /// replaced.
    cut_short: Vec<(Option<NodePath>, u32)>,
}

impl CallsMade {
    /// After those that an earlier process of the session recorded.
    fn after(recorded: BTreeMap<u32, Recording>) -> Self {
        let newest = recorded.last_key_value().map_or(0, |(call, _)| *call);
        let mut last_at: Vec<(Option<NodePath>, u32, bool)> = Vec::new();
        for (call, recording) in recorded {
            last_at.retain(|(place, ..)| *place != recording.place);
            let was_cut = recording.cut_short || recording.end.was_aborted();
            last_at.push((recording.place, call, was_cut));
        }
        let cut_short = last_at.into_iter().filter(|(.., was_cut)| *was_cut);
        Self { newest, cut_short: cut_short.map(|(place, call, _)| (place, call)).collect() }
    }

    /// The number of the next call at a place, and whether it is new.
    fn next(&mut self, place: Option<&NodePath>) -> (u32, bool) {
        if let Some(at) = self.cut_short.iter().position(|(cut, _)| cut.as_ref() == place) {
            return (self.cut_short.swap_remove(at).1, false);
        }
        self.newest += 1;
        (self.newest, true)
    }
}

impl Recorder {
    /// A recorder to this folder, which is created if it does not exist. A request that is recorded again
    /// replaces all older recordings of it.
    pub fn new(dir: impl Into<PathBuf>) -> Result<Self, RecordingError> {
        let dir = dir.into();
        create_private_dir_all(&dir).map_err(|source| RecordingError::Io { path: dir.clone(), source })?;
        Ok(Self { dir: dir.into(), continues: false, made: Arc::default() })
    }

    /// Whether a folder holds recordings; a new session that is recorded there replaces those of the requests that it makes, too.
    pub fn has_recordings(dir: &Path) -> bool {
        store::files(dir).is_ok_and(|files| !files.is_empty())
    }

    /// A recorder that continues what earlier processes of the same session recorded in this folder, such as after a
    /// pause: their recordings stay, but for that of a call that was cut short and is made again. Older recordings of a
    /// request by other sessions are replaced.
    pub fn continuing(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into().into(), continues: true, made: Arc::default() }
    }

    /// The calls of a request that an earlier process of its session recorded in the folder. Any others are removed.
    fn recorded_before(&self, request: &KeyedRequest) -> CallsMade {
        if self.continues {
            // The session goes on without the folder: what cannot be written is warned of then.
            drop(create_private_dir_all(&self.dir));
        }
        let is_of_session =
            |recording: &Recording| request.session.is_some() && recording.session == request.session;
        let stays = |recording: &Recording| self.continues && is_of_session(recording);
        CallsMade::after(store::keep(&self.dir, request, stays))
    }

    /// The same provider, each call of which is recorded when it ends. A recording that cannot be written is
    /// a warning of the run.
    pub fn record(&self, provider: Arc<dyn DynProvider>) -> Arc<dyn DynProvider> {
        Arc::new(Recorded { provider, recorder: self.clone() })
    }

    /// The call at this place is about to be cancelled because of a pause.
    pub fn pausing(&self, place: &NodePath) {
        self.made.lock().pausing.insert(place.clone());
    }

    fn tape(&self, provider: &str, input: &Value, context: &ExecutionContext) -> Tape {
        let env = &context.host.env;
        let request = KeyedRequest::new(provider, input, env, &Redactor::new(env)).at(context.place.clone());
        let cut_short = self.take_cut_short(&request);
        let continues = cut_short.is_some();
        let artifacts = request.artifacts.clone();
        let request = cut_short.unwrap_or(request).with_artifacts(artifacts.as_deref());
        self.tape_of(request, Redactor::of_call(env, input), continues)
    }

    /// The request of the agent at the place that was cut short, which this one continues.
    fn take_cut_short(&self, request: &KeyedRequest) -> Option<KeyedRequest> {
        if request.place.is_none() || request.session.is_none() {
            return None;
        }
        let mut made = self.made.lock();
        let cut_short = made.cut_short.get_or_insert_with(|| match self.continues {
            true => store::cut_short(&self.dir, request.session.as_ref()),
            false => Vec::new(),
        });
        let is_same = |cut: &KeyedRequest| {
            cut.place == request.place && cut.session == request.session && cut.provider == request.provider
        };
        let at = cut_short.iter().position(is_same)?;
        Some(cut_short.swap_remove(at))
    }

    fn tape_of(&self, request: KeyedRequest, redactor: Redactor, continues: bool) -> Tape {
        let mut begun = Recording::new(&request, Vec::new(), RecordedEnd::aborted(), true);
        let mut denied = Vec::new();
        let call = loop {
            let (call, is_new) = {
                let mut made = self.made.lock();
                let calls = made.calls.entry(request.key.clone());
                calls.or_insert_with(|| self.recorded_before(&request)).next(request.place.as_ref())
            };
            // Another worker of a cluster may have recorded a call of the same request meanwhile.
            if is_new && !store::claim(&self.dir, call, &begun) {
                continue;
            }
            if continues {
                denied = store::denied(&self.dir, call, &begun);
                begun.end = begun.end.after_denials(&denied);
            }
            // What cannot be written is warned of when the call ends.
            drop(store::write(&self.dir, call, &begun));
            break call;
        };
        let (recorder, began) = (self.clone(), Instant::now());
        Tape { recorder, request, redactor, call, continues, denied, began, events: Vec::new(), saved: false }
    }
}

struct Recorded {
    provider: Arc<dyn DynProvider>,
    recorder: Recorder,
}

impl ProviderWrapper for Recorded {
    fn inner(&self) -> &dyn DynProvider {
        &*self.provider
    }

    fn execute(&self, input: Value, context: ExecutionContext) -> ProviderStream<Value> {
        let provider = self.provider.descriptor().provider_type;
        let mut tape = self.recorder.tape(&provider, &input, &context);
        let mut stream = self.provider.execute(input, context);
        async_stream::stream! {
            while let Some(item) = stream.next().await {
                let saved = match &item {
                    Ok(ProviderItem::Event(event)) => {
                        tape.event(event);
                        Ok(())
                    }
                    Ok(ProviderItem::Output(output)) => tape.save(RecordedEnd::Output(output.clone())),
                    // Whatever it fails with, an agent that is paused goes on with this call.
                    Err(error) if tape.is_pausing() => {
                        tape.save(RecordedEnd::aborted().after_denials(error.denials()))
                    }
                    Err(error) => tape.save(RecordedEnd::Error(error.clone())),
                };
                if let Err(error) = saved {
                    yield Ok(ProviderItem::Event(StreamEvent::warning("notRecorded", error.to_string())));
                }
                yield item;
            }
        }
        .boxed()
    }
}

/// One call while it is recorded. One that is dropped before its end is recorded as aborted, so that the
/// calls after it keep their places.
struct Tape {
    recorder: Recorder,
    request: KeyedRequest,
    redactor: Redactor,
    call: u32,
    /// Whether the call continues one that was cut short, whose request this is.
    continues: bool,
    /// The tool calls that were denied in that one.
    denied: Vec<Value>,
    began: Instant,
    events: Vec<RecordedEvent>,
    saved: bool,
}

impl Tape {
    fn event(&mut self, event: &StreamEvent) {
        let at_ms = self.began.elapsed().as_millis().try_into().ok();
        self.events.push(RecordedEvent { at_ms, event: event.clone() });
    }

    fn is_pausing(&self) -> bool {
        self.request.place.as_ref().is_some_and(|place| self.recorder.made.lock().pausing.contains(place))
    }

    fn save(&mut self, end: RecordedEnd) -> Result<(), RecordingError> {
        if std::mem::replace(&mut self.saved, true) {
            return Ok(());
        }
        let is_unheard = self.continues
            && matches!(&end, RecordedEnd::Error(error)
                if error.is(ErrorKind::SessionNotFound) || error.is(ErrorKind::NotOffered));
        if is_unheard {
            // The vendor does not know the conversation, and the agent begins anew: that call is the one to record.
            self.leave();
            return Ok(());
        }
        let place = self.request.place.as_ref();
        let is_paused = place.is_some_and(|place| self.recorder.made.lock().pausing.remove(place));
        let cut_short = is_paused && end.is_left_by_pause();
        if cut_short {
            self.leave();
        }
        let mut events = std::mem::take(&mut self.events);
        redact_events(&self.redactor, &mut events);
        let end = redacted_end(&self.redactor, end).after_denials(&self.denied);
        let (events, end) = portable((events, end), self.request.artifacts.as_deref());
        let mut recording = Recording::new(&self.request, events, end, cut_short);
        if recording.end.was_aborted() {
            recording.lasted_ms = self.began.elapsed().as_millis().try_into().ok();
        }
        store::write(&self.recorder.dir, self.call, &recording)
    }

    /// Leaves the place to the call that continues this one.
    fn leave(&self) {
        let mut made = self.recorder.made.lock();
        // Before the first call of an agent there is nothing that an agent could continue.
        if let Some(cut_short) = &mut made.cut_short {
            cut_short.push(self.request.clone());
        }
        if let Some(calls) = made.calls.get_mut(&self.request.key) {
            calls.cut_short.push((self.request.place.clone(), self.call));
        }
    }
}

impl Drop for Tape {
    fn drop(&mut self) {
        if let Err(error) = self.save(RecordedEnd::aborted()) {
            tracing::warn!(%error, "a dropped call could not be recorded");
        }
    }
}

/// How a call ended, without secrets.
fn redacted_end(redactor: &Redactor, end: RecordedEnd) -> RecordedEnd {
    match end {
        RecordedEnd::Output(output) => RecordedEnd::Output(redactor.value(output)),
        RecordedEnd::Error(error) => RecordedEnd::Error(redactor.error(error)),
    }
}

/// Removes secrets from what the provider reported, also where one spans two deltas.
fn redact_events(redactor: &Redactor, events: &mut [RecordedEvent]) {
    redactor.pieces(events.iter_mut().filter_map(|recorded| match &mut recorded.event {
        StreamEvent::Text { content, chunk: Chunk::Delta } => Some(content),
        _ => None,
    }));
    redactor.pieces(events.iter_mut().filter_map(|recorded| match &mut recorded.event {
        StreamEvent::Thinking { content, chunk: Chunk::Delta } => Some(content),
        _ => None,
    }));
    for recorded in events {
        redactor.event(&mut recorded.event);
    }
}

#[cfg(test)]
mod tests;
