//! What a tab is sent of one session: its state and what changes of it, its events, its end.

use std::{sync::Arc, time::Duration};

use inspan_protocol::{Envelope, SessionId};
use inspan_sessions::{Followed, SessionError};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Wish, state::StateFeed, tab::Out};
use crate::{App, api::session, problem::Problem};

/// At most one patch is sent in this time.
const PACE: Duration = Duration::from_millis(80);
/// A viewer that is this many events behind after a slow message is told where to read on.
const BEHIND: u64 = 5_000;
/// A message that took longer to queue was slow.
const SLOW: Duration = Duration::from_secs(1);

/// Follows a session for a tab, until it ends or the tab leaves.
pub(super) async fn run(app: &App, named: &str, wish: Wish, out: &Out) {
    let sent = async {
        let id = session(app, named).await?;
        follow(app, &id, named, wish, out).await
    };
    let last = match sent.await {
        Ok(End::Session) => json!({ "session": named, "end": true }),
        Ok(End::Tab) => return,
        Err(error) => json!({ "session": named, "problem": Problem::from(error) }),
    };
    // A tab that has left does not need it.
    let _ = out.send(last).await;
}

/// Why nothing more is sent.
enum End {
    /// The session has ended.
    Session,
    /// The tab has left.
    Tab,
}

async fn follow(app: &App, id: &SessionId, named: &str, wish: Wish, out: &Out) -> Result<End, SessionError> {
    let mut state = match wish.state {
        true => Some(StateFeed::open(app, id, &wish.open).await?),
        false => None,
    };
    if let Some(state) = &mut state
        && out.send(json!({ "session": named, "state": state.state() })).await.is_err()
    {
        return Ok(End::Tab);
    }
    let last = match &state {
        Some(state) => state.seq(),
        None => app.sessions.entry(id).await?.digest.last_seq,
    };
    let mut events = Events { wanted: wish.events, next: wish.from.unwrap_or(last + 1) };
    // What the state has already is read once more for a viewer of the events only.
    let from = if wish.events { events.next.min(last + 1) } else { last + 1 };
    let mut follower = app.sessions.follow(id, from);
    loop {
        let end = match follower.next().await? {
            Followed::Events(page) => {
                if let Some(message) = events.message(&page, named) {
                    let asked = Instant::now();
                    if out.send(message).await.is_err() {
                        return Ok(End::Tab);
                    }
                    if asked.elapsed() > SLOW {
                        let newest = app.sessions.entry(id).await?.digest.last_seq;
                        if let Some(lagged) = events.skip_to(newest, named)
                            && out.send(lagged).await.is_err()
                        {
                            return Ok(End::Tab);
                        }
                    }
                }
                if let Some(state) = &mut state {
                    let known = page.partition_point(|envelope| envelope.seq <= state.seq());
                    state.apply(&page[known..]);
                }
                None
            }
            Followed::Idle(_) => None,
            Followed::Ended(_) => Some(End::Session),
        };
        if let Some(state) = &mut state
            && let Some(patch) = state.patch(app).await?
        {
            if out.send(json!({ "session": named, "patch": patch })).await.is_err() {
                return Ok(End::Tab);
            }
            // More that happens soon goes into one patch.
            tokio::time::sleep(PACE).await;
        }
        if let Some(end) = end {
            return Ok(end);
        }
    }
}

/// The events that a viewer is sent.
struct Events {
    wanted: bool,
    /// The first that it is sent.
    next: u64,
}

impl Events {
    /// The message with those of a page that are wanted.
    fn message(&mut self, page: &[Arc<Envelope>], named: &str) -> Option<Value> {
        let new: Vec<_> = page.iter().filter(|envelope| self.wanted && envelope.seq >= self.next).collect();
        self.next = new.last()?.seq + 1;
        Some(json!({ "session": named, "events": new }))
    }

    /// Leaves out events up to the newest if there are too many, and says where the viewer can read on.
    fn skip_to(&mut self, newest: u64, named: &str) -> Option<Value> {
        if newest < self.next.saturating_add(BEHIND) {
            return None;
        }
        let lagged = json!({ "session": named, "lagged": { "from": self.next } });
        self.next = newest + 1;
        Some(lagged)
    }
}
