//! One call of a tool: whether the tool exists, whether the call is allowed, and its run within the limits.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use inspan_protocol::{
    DynHostTool, PermissionBroker, PermissionDecision, PermissionRequest, Redactor, StreamEvent, ToolError,
    ToolOutput,
};
use inspan_transport::{Connection, whole_pairs};
use serde_json::Value;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::result::{ToolResult, fit};
use super::rules::Ruling;
use crate::output::PermissionDenial;

/// How long a tool of the program may continue after it was asked to stop.
const GRACE: Duration = Duration::from_secs(1);
/// A moment that is later than the end of any call.
const FAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// A call that the model makes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ToolCall {
    /// The vendor's id of it.
    pub(crate) id: String,
    /// The tool, by the name it was offered under.
    pub(crate) name: String,
    /// The arguments, or the text instead that is not a JSON object.
    pub(crate) input: Result<Value, String>,
}

impl ToolCall {
    /// A call whose arguments came as a text; an empty text means no arguments.
    pub(crate) fn new(id: impl Into<String>, name: impl Into<String>, arguments: &str) -> Self {
        let input = match arguments.trim() {
            "" => Ok(Value::Object(serde_json::Map::new())),
            text => serde_json::from_str(&whole_pairs(text))
                .ok()
                .filter(Value::is_object)
                .ok_or_else(|| arguments.chars().take(2000).collect()),
        };
        Self { id: id.into(), name: name.into(), input }
    }

    /// The event of its begin.
    pub(super) fn begins(&self) -> StreamEvent {
        StreamEvent::ToolStart {
            tool_name: self.name.clone(),
            tool_use_id: self.id.clone(),
            input: self.input.clone().unwrap_or_else(Value::from),
        }
    }
}

/// What happens while calls run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ToolUpdate {
    /// Something to pass on.
    Event(StreamEvent),
    /// A call was denied. Its result follows.
    Denied(PermissionDenial),
    /// A call has its result.
    Result(ToolResult),
}

/// What stops calls early.
#[derive(Clone, Debug, Default)]
pub(crate) struct StopSignal {
    /// The turn is cancelled.
    pub(crate) cancel: CancellationToken,
    /// The turn's deadline.
    pub(crate) deadline: Option<Instant>,
}

impl StopSignal {
    /// Waits for it, and says what it is.
    pub(super) async fn over(&self) -> &'static str {
        let deadline = self.deadline.unwrap_or_else(|| Instant::now() + FAR);
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => "the turn was cancelled",
            () = sleep_until(deadline) => "the turn reached its deadline",
        }
    }
}

/// A tool that is there.
#[derive(Clone)]
pub(super) struct Tool {
    pub(super) source: Source,
    pub(super) ruling: Ruling,
    pub(super) limit: Duration,
}

/// Who runs it.
#[derive(Clone)]
pub(super) enum Source {
    Host(Arc<dyn DynHostTool>),
    Server {
        server: Arc<Connection>,
        /// What the server calls it.
        name: String,
    },
}

/// How a run ended.
enum CallEnd {
    Done(Result<ToolOutput, ToolError>),
    /// It was asked to stop; whether it has done its work is not known.
    Stopped(String),
}

/// Runs a call and reports everything about it.
pub(super) async fn run_call(
    call: ToolCall,
    tool: Option<Tool>,
    permissions: Option<Arc<dyn PermissionBroker>>,
    until: StopSignal,
) -> Vec<ToolUpdate> {
    let mut ran = Vec::new();
    let answer = answer(&call, tool, permissions, &until, &mut ran).await;
    ran.push(ToolUpdate::Event(StreamEvent::ToolComplete {
        tool_use_id: answer.id.clone(),
        result: answer.shown(),
        is_error: answer.is_error,
    }));
    ran.push(ToolUpdate::Result(answer));
    ran
}

async fn answer(
    call: &ToolCall,
    tool: Option<Tool>,
    permissions: Option<Arc<dyn PermissionBroker>>,
    until: &StopSignal,
    ran: &mut Vec<ToolUpdate>,
) -> ToolResult {
    let error = |why: String| ToolResult::error(&call.id, why);
    let Some(tool) = tool.filter(|tool| tool.ruling != Ruling::Denied) else {
        return error(format!("there is no tool `{}`", call.name));
    };
    let Ok(input) = call.input.clone() else {
        return error("the arguments are not a JSON object; the tool was not called".to_owned());
    };
    let input = match tool.ruling {
        Ruling::Ask => match permitted(call, &input, permissions, until).await {
            Ok(Some(updated)) if !updated.is_object() => {
                return error("the arguments from the permission broker are not a JSON object".to_owned());
            }
            Ok(updated) => updated.unwrap_or(input),
            Err(why) => {
                ran.push(ToolUpdate::Denied(PermissionDenial {
                    tool_name: call.name.clone(),
                    tool_use_id: call.id.clone(),
                    tool_input: input,
                }));
                return error(why);
            }
        },
        Ruling::Allowed | Ruling::Denied => input,
    };
    let redactor = match &tool.source {
        Source::Server { server, .. } => server.redactor().clone(),
        Source::Host(_) => Redactor::default(),
    };
    match run(&tool, input, until).await {
        CallEnd::Done(Ok(output)) => {
            let (content, cut) = fit(output, &redactor);
            ran.extend(cut.into_iter().map(|what| {
                let message = format!("of the answer of `{}`: {what}", call.name);
                ToolUpdate::Event(StreamEvent::warning("toolResultCut", message))
            }));
            ToolResult { id: call.id.clone(), content, is_error: false }
        }
        CallEnd::Done(Err(failed)) => {
            // Whatever a failed tool gives is read as the reason.
            let (content, _) = fit(ToolOutput::text(failed.message), &redactor);
            ToolResult { id: call.id.clone(), content, is_error: true }
        }
        CallEnd::Stopped(why) => error(format!(
            "the call was stopped: {why}. Whether it was carried out, in whole or in part, is not known"
        )),
    }
}

/// Asks whether a call may run. Returns the arguments that replace its own, or why it may not run.
async fn permitted(
    call: &ToolCall,
    input: &Value,
    permissions: Option<Arc<dyn PermissionBroker>>,
    until: &StopSignal,
) -> Result<Option<Value>, String> {
    let Some(broker) = permissions else {
        return Err(format!("permission to use `{}` was denied: there is nobody to ask", call.name));
    };
    let request = PermissionRequest {
        tool_use_id: Some(call.id.clone()),
        ..PermissionRequest::new(&call.name, input.clone())
    };
    let asked = AssertUnwindSafe(async move { broker.request(request).await }).catch_unwind();
    let decision = tokio::select! {
        biased;
        why = until.over() => return Err(format!("permission was not given: {why}")),
        decision = asked => decision,
    };
    match decision {
        Ok(PermissionDecision::Allow { updated_input }) => Ok(updated_input),
        Ok(PermissionDecision::Deny { message }) => Err(message),
        Err(_) => Err("permission was denied: asking failed".to_owned()),
    }
}

async fn run(tool: &Tool, input: Value, until: &StopSignal) -> CallEnd {
    match &tool.source {
        Source::Host(host) => {
            let cancel = CancellationToken::new();
            // Cancels also when the turn is dropped.
            let _cancels = cancel.clone().drop_guard();
            let (host, token) = (Arc::clone(host), cancel.clone());
            let work = async move { host.call(input, token).await };
            let work = AssertUnwindSafe(work).catch_unwind();
            let work = async { work.await.unwrap_or_else(|_| Err(ToolError::from("the tool panicked"))) };
            let mut work = std::pin::pin!(work);
            match within(work.as_mut(), tool.limit, until).await {
                CallEnd::Stopped(why) => {
                    cancel.cancel();
                    // What it still says is better than not to know.
                    timeout(GRACE, work).await.map_or(CallEnd::Stopped(why), CallEnd::Done)
                }
                done => done,
            }
        }
        // Dropping a call makes the server stop.
        Source::Server { server, name } => within(server.call(name, input), tool.limit, until).await,
    }
}

async fn within(
    work: impl Future<Output = Result<ToolOutput, ToolError>>,
    limit: Duration,
    until: &StopSignal,
) -> CallEnd {
    tokio::select! {
        biased;
        why = until.over() => CallEnd::Stopped(why.to_owned()),
        done = work => CallEnd::Done(done),
        () = sleep(limit) => CallEnd::Stopped(format!("it took longer than {} ms", limit.as_millis())),
    }
}
