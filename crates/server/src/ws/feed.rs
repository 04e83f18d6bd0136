//! What a tab is sent of one session: its state and what changes of it, its events, its end.

use std::{sync::Arc, time::Duration};

use inspan_protocol::{Envelope, SessionId};
use inspan_sessions::{Followed, SessionError};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Wish, tab::Out};
use crate::{App, api::session, problem::Problem};

/// A viewer that is this many events behind after a slow message gets the place from which to read.
const BEHIND: u64 = 5_000;
/// A message that took longer to queue was slow.
const SLOW: Duration = Duration::from_secs(1);
/// Frames that a viewer may have open.
const OPEN: usize = 100;

/// Follows a session for a tab, until it ends or the tab leaves.
pub(super) async fn run(app: &App, named: &str, wish: Wish, out: &Out) {
    let sent = async {
        let id = session(app, named).await?;
        let state = async {
            if wish.state { follow_state(app, &id, named, &wish, out).await } else { Ok(FeedEnd::Session) }
        };
        // If neither is requested, only the end is sent.
        let wants_events = wish.events || !wish.state;
        let events = async {
            if wants_events { follow_events(app, &id, named, &wish, out).await } else { Ok(FeedEnd::Session) }
        };
        let (state, events) = futures::try_join!(state, events)?;
        Ok::<_, SessionError>(if events == FeedEnd::Tab { events } else { state })
    };
    let last = match sent.await {
        Ok(FeedEnd::Session) => json!({ "session": named, "end": true }),
        Ok(FeedEnd::Tab) => return,
        Err(error) => json!({ "session": named, "problem": Problem::from(error) }),
    };
    // A tab that has left does not need it.
    let _ = out.send(last).await;
}

/// Why nothing more is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FeedEnd {
    /// The session has ended.
    Session,
    /// The tab has left.
    Tab,
}

async fn follow_state(
    app: &App,
    id: &SessionId,
    named: &str,
    wish: &Wish,
    out: &Out,
) -> Result<FeedEnd, SessionError> {
    let watch = app.watches.get(&app.sessions, id).await?;
    let open = wish.open.iter().take(OPEN).map(|frame| frame.as_str().to_owned()).collect();
    let (mut viewer, state) = watch.viewer(named, open);
    drop(watch);
    let mut message = state;
    loop {
        if out.send_text(message).await.is_err() {
            return Ok(FeedEnd::Tab);
        }
        message = match viewer.next().await? {
            Some(message) => message,
            None => return Ok(FeedEnd::Session),
        };
    }
}

async fn follow_events(
    app: &App,
    id: &SessionId,
    named: &str,
    wish: &Wish,
    out: &Out,
) -> Result<FeedEnd, SessionError> {
    let next = match wish.from {
        Some(from) => from,
        None => app.sessions.entry(id).await?.digest.last_seq + 1,
    };
    let mut events = Events { wanted: wish.events, next };
    let mut follower = app.sessions.follow(id, next);
    loop {
        match follower.next().await? {
            Followed::Events(page) => {
                let Some(message) = events.message(&page, named) else { continue };
                let asked = Instant::now();
                if out.send(message).await.is_err() {
                    return Ok(FeedEnd::Tab);
                }
                if asked.elapsed() > SLOW {
                    let newest = app.sessions.entry(id).await?.digest.last_seq;
                    if let Some(lagged) = events.skip_to(newest, named)
                        && out.send(lagged).await.is_err()
                    {
                        return Ok(FeedEnd::Tab);
                    }
                }
            }
            Followed::Idle(_) => {}
            Followed::Ended(_) => return Ok(FeedEnd::Session),
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
