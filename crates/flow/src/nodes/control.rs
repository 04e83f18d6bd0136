//! How the nodes of the `control` pack that wait are run.

use std::time::Duration;

use inspan_engine::{Filter, sleep_until};
use inspan_flow_core::{ControlWait, WaitInput, WaitOutput, parse_time, read_input, write_output};
use inspan_protocol::{AgentError, ErrorCode, Timestamp};
use serde_json::Value;

use crate::node::{NodeContext, NodeType};

impl NodeType for ControlWait {
    async fn run(&self, context: NodeContext, input: Value) -> Result<Value, AgentError> {
        let wait: WaitInput = read_input(input)?;
        // The time of an interrupted wait counts from its first start.
        let began = context.since();
        let event = tokio::select! {
            biased;
            () = context.cancel.cancelled() => return Err(context.aborted()),
            event = end(&wait, &context, began) => event?,
        };
        let waited_ms = context.hub.clock().now().since(began).as_millis() as u64;
        write_output(&WaitOutput { waited_ms, event })
    }
}

/// Waits; gives the event that ended the wait, if one did.
async fn end(wait: &WaitInput, context: &NodeContext, began: Timestamp) -> Result<Option<Value>, AgentError> {
    let wrong = |message: String| AgentError::new(ErrorCode::ConfigInvalid, message);
    let until = match (wait.ms, &wait.until) {
        (Some(ms), None) => {
            sleep_until(&**context.hub.clock(), began + Duration::from_millis(ms)).await;
            return Ok(None);
        }
        (None, Some(until)) => until,
        _ => return Err(wrong("a wait needs exactly one of `ms` and `until`".to_owned())),
    };
    if let Ok(moment) = until.parse::<Timestamp>() {
        sleep_until(&**context.hub.clock(), moment).await;
        return Ok(None);
    }
    let filter = Filter::parse(until).map_err(|error| {
        wrong(format!("`until: {until}` is neither a moment nor an event's name: {error}"))
    })?;
    let limit = match &wait.timeout {
        Some(text) => parse_time(text).map_err(|why| wrong(format!("`timeout: {text}`: {why}")))?,
        None => Duration::MAX,
    };
    let mut events = context.hub.subscribe(filter.clone());
    // Subscribed first: what comes while the log is read is in the subscription.
    if let Some(envelope) = context.earlier(filter).await? {
        return Ok(Some(write_output(&envelope.event)?));
    }
    let waited = context.hub.clock().now().since(began);
    match tokio::time::timeout(limit.saturating_sub(waited), events.next()).await {
        Ok(Some(envelope)) => Ok(Some(write_output(&envelope.event)?)),
        Ok(None) => Err(AgentError::new(ErrorCode::Aborted, "the session ended")),
        Err(_) => Err(AgentError::new(ErrorCode::Timeout, format!("no `{until}` came within {limit:?}"))),
    }
}
