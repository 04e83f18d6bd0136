//! The WebSocket: one for each tab of a browser. Everything on it is bounded. What a viewer is sent is read from the
//! store when there is room for it, so one that reads slowly slows nobody, and gets fewer and larger patches. An empty message
//! every 20 seconds says that the connection is there.

mod feed;
mod lists;
mod tab;

use axum::{
    extract::{
        State,
        ws::{WebSocketUpgrade, rejection::WebSocketUpgradeRejection},
    },
    response::Response,
};
use inspan_protocol::NodePath;
use inspan_sessions::SessionCommand;
use serde::Deserialize;

pub(crate) use lists::ListReader;

use crate::{App, limits, problem::Problem, route::Route};

pub(crate) fn routes() -> Vec<Route> {
    vec![
        Route::get(
            "/ws",
            "socket",
            "The WebSocket of a tab: sessions that are followed, the list, the inbox, commands.",
            upgrade,
        )
        .media(101, &[]),
    ]
}

async fn upgrade(
    State(app): State<App>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Problem> {
    let upgrade = upgrade.map_err(|rejection| Problem::invalid(rejection.body_text()))?;
    let permit = app.stream_permit()?;
    let upgrade = upgrade.max_message_size(limits::MESSAGE).max_frame_size(limits::MESSAGE);
    Ok(upgrade.on_upgrade(move |socket| tab::run(app, socket, permit)))
}

/// A message of a tab. It has one of `subscribe`, `unsubscribe`, `sessions` and `command`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct TabMessage {
    /// Follow this session, from now on with these wishes.
    subscribe: Option<String>,
    #[serde(flatten)]
    wish: Wish,
    /// No longer follow this session.
    unsubscribe: Option<String>,
    /// Whether to be sent the list of sessions and the inbox, now and when they change.
    sessions: Option<bool>,
    /// Do this with `session`.
    command: Option<SessionCommand>,
    session: Option<String>,
    key: Option<String>,
}

/// What a viewer of a session wants.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wish {
    /// The first event that is wanted; those that come from now on if absent.
    from: Option<u64>,
    /// The state, then what changes of it.
    #[serde(default)]
    state: bool,
    /// The events.
    #[serde(default)]
    events: bool,
    /// The frames whose nodes are wanted too.
    #[serde(default)]
    open: Vec<NodePath>,
}
