//! What viewers of a session are sent: the state once, then what changes of it. A viewer that does not keep up is sent the
//! state again, and slows nobody.

use std::{collections::BTreeSet, sync::Arc};

use inspan_protocol::SessionId;
use inspan_sessions::SessionError;
use inspan_view::{FrameNodes, PagePatch, PageState};
use serde::Serialize;
use tokio::sync::broadcast::{self, error::RecvError};

use super::{Now, Text, Watch};

/// What has changed of a session.
pub(crate) struct Tick {
    patch: PagePatch,
    /// The nodes that changed in frames that are open for some viewer.
    frames: FrameNodes,
    /// The message to viewers without open frames that name the session by its whole id.
    text: Text,
    end: Option<WatchEnd>,
}

/// Why nothing more comes.
#[derive(Clone)]
pub(super) enum WatchEnd {
    Over,
    Failed(SessionError),
}

/// One viewer of a session.
pub(crate) struct Viewer {
    watch: Arc<Watch>,
    /// The session as the viewer names it.
    named: String,
    open: BTreeSet<String>,
    ticks: broadcast::Receiver<Arc<Tick>>,
    is_over: bool,
}

impl Tick {
    /// Whether it says nothing that a viewer does not know.
    pub(super) fn is_empty(&self) -> bool {
        self.end.is_none() && self.patch.is_empty() && self.frames.is_empty()
    }

    fn end(end: WatchEnd) -> Self {
        let (patch, frames) = (PagePatch::default(), FrameNodes::new());
        Self { patch, frames, text: Text::default(), end: Some(end) }
    }
}

impl Now {
    /// What has changed since this was last asked.
    pub(super) fn tick(&mut self, id: &SessionId) -> Tick {
        let open: BTreeSet<String> = self.open.keys().cloned().collect();
        let session = Arc::clone(&self.session);
        let (patch, frames) = self.fold.patch(&session, &open, &mut self.head);
        let text = message(id.as_str(), &patch);
        Tick { patch, frames, text, end: None }
    }

    /// Tells viewers that nothing more comes. The next one is followed anew if events may come.
    pub(super) fn end(&mut self, ticks: &broadcast::Sender<Arc<Tick>>, end: WatchEnd) {
        self.is_followed = false;
        let _ = ticks.send(Arc::new(Tick::end(end)));
    }
}

impl Watch {
    /// A viewer, and the state from which its patches lead on. `open` are the frames whose nodes it sees.
    pub(crate) fn viewer(self: &Arc<Self>, named: &str, open: BTreeSet<String>) -> (Viewer, Text) {
        let mut now = self.lock();
        self.keep_up(&mut now);
        for frame in &open {
            *now.open.entry(frame.clone()).or_default() += 1;
        }
        // All others are sent what this one has in its state.
        let tick = now.tick(&self.id);
        if !tick.is_empty() {
            let _ = self.ticks.send(Arc::new(tick));
        }
        let state = now.fold.state(&now.session, &open);
        let is_over = now.is_over;
        let ticks = self.ticks.subscribe();
        drop(now);
        let text = state_message(named, &state);
        (Viewer { watch: Arc::clone(self), named: named.to_owned(), open, ticks, is_over }, text)
    }
}

impl Viewer {
    /// The next message; none once the session has ended, or another continues it. An error is the last.
    pub(crate) async fn next(&mut self) -> Result<Option<Text>, SessionError> {
        while !self.is_over {
            match self.ticks.recv().await {
                Ok(tick) => match &tick.end {
                    Some(WatchEnd::Over) => self.is_over = true,
                    Some(WatchEnd::Failed(error)) => {
                        self.is_over = true;
                        return Err(error.clone());
                    }
                    None => {
                        if let Some(text) = self.text(&tick) {
                            return Ok(Some(text));
                        }
                    }
                },
                Err(RecvError::Lagged(_)) => {
                    let watch = Arc::clone(&self.watch);
                    let (viewer, state) = watch.viewer(&self.named, self.open.clone());
                    *self = viewer;
                    return Ok(Some(state));
                }
                Err(RecvError::Closed) => self.is_over = true,
            }
        }
        Ok(None)
    }

    /// What this viewer is sent of a tick, if anything.
    fn text(&self, tick: &Tick) -> Option<Text> {
        let opened: Vec<_> = tick.frames.iter().filter(|(frame, _)| self.open.contains(*frame)).collect();
        if opened.is_empty() {
            return match tick.patch.is_empty() {
                true => None,
                false if self.named == self.watch.id.as_str() => Some(tick.text.clone()),
                false => Some(message(&self.named, &tick.patch)),
            };
        }
        let mut patch = tick.patch.clone();
        patch.set.extend(opened.into_iter().flat_map(|(_, nodes)| nodes.clone()));
        Some(message(&self.named, &patch))
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        let mut now = self.watch.lock();
        for frame in &self.open {
            if let Some(count) = now.open.get_mut(frame) {
                *count -= 1;
                if *count == 0 {
                    now.open.remove(frame);
                }
            }
        }
    }
}

fn message(named: &str, patch: &PagePatch) -> Text {
    json_text(&TickMessage { session: named, patch: Some(patch), state: None })
}

fn state_message(named: &str, state: &PageState) -> Text {
    json_text(&TickMessage { session: named, patch: None, state: Some(state) })
}

#[derive(Serialize)]
struct TickMessage<'a> {
    session: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'a PageState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<&'a PagePatch>,
}

fn json_text(message: &TickMessage<'_>) -> Text {
    serde_json::to_string(message).unwrap_or_default().into()
}
