//! Finding a session by the beginning of its id.

use inspan_flow::RunStore;
use inspan_protocol::SessionId;

use crate::{failure::Failure, store};

/// The session whose id begins so, if there is exactly one.
pub(super) async fn find(store: &dyn RunStore, prefix: &str) -> Result<SessionId, Failure> {
    let found = store.entries(prefix, 6).await.map_err(|error| store::refused(&error))?;
    if let Some(whole) = found.iter().find(|entry| entry.session.as_str() == prefix) {
        return Ok(whole.session.clone());
    }
    match found.as_slice() {
        [one] => Ok(one.session.clone()),
        [] => Err(Failure::usage(format!("there is no session `{prefix}`"))
            .with_hint("`inspan ps --all` lists all sessions")),
        many => {
            let ids: Vec<_> = many.iter().map(|entry| entry.session.as_str()).collect();
            Err(Failure::usage(format!("`{prefix}` may be any of {}", ids.join(", "))))
        }
    }
}
