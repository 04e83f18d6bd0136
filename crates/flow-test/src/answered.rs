//! The seams at which a case answers: a provider that never calls its vendor, and node types that never reach outside.
//! Everything between them and the scheduler is the real code.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures::{FutureExt, StreamExt, future::BoxFuture, stream};
use inspan_engine::{AnswerCall, NodeCall, NodeCalls};
use inspan_flow::{DynNodeType, NodeContext, NodeKind, NodeRegistry};
use inspan_protocol::{
    AgentError, Chunk, DynProvider, ErrorCode, ExecutionContext, PermissionDecision, PermissionRequest,
    ProviderItem, ProviderSessionId, ProviderStream, ProviderWrapper, Redactor, StopReason, StreamEvent,
};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    answer::{AgentAnswer, AnswerKind, AttemptAnswer, Period},
    cases::RUN_AS_THEY_ARE,
    script::{Attempt, CaseScript, TurnAnswer},
};

tokio::task_local! {
    /// The attempt within which a provider is called: a provider itself knows no node.
    static ATTEMPT: Arc<Attempt>;
}

/// What only some vendors' outputs have.
const SECOND_NAMES: [&str; 4] = ["code", "content", "sessionToken", "threadId"];

/// A provider that is never called: the case of the attempt answers for it.
pub(crate) struct AnsweredProvider {
    provider: Arc<dyn DynProvider>,
    /// The fields of its output; none if its schema does not close them.
    fields: Option<BTreeSet<String>>,
}

impl AnsweredProvider {
    pub(crate) fn wrap(provider: Arc<dyn DynProvider>) -> Arc<dyn DynProvider> {
        let schema = provider.output_schema();
        let fields = schema["properties"].as_object().map(|fields| fields.keys().cloned().collect());
        Arc::new(Self { provider, fields })
    }

    fn output(
        &self,
        answer: &AgentAnswer,
        session: &ProviderSessionId,
        denied: Vec<Value>,
        took: Duration,
    ) -> Value {
        let structured = answer.structured_output.clone();
        let mut output = Map::new();
        // Some vendors give the answer and the conversation under a second name.
        for name in ["text", "code", "content"] {
            output.insert(name.to_owned(), json!(answer.text.clone().unwrap_or_default()));
        }
        output.extend(structured.map(|structured| ("structuredOutput".to_owned(), structured)));
        for name in ["sessionId", "sessionToken", "threadId"] {
            output.insert(name.to_owned(), json!(session));
        }
        output.insert("usage".to_owned(), json!(answer.usage.unwrap_or_default()));
        let priced = self.provider.descriptor().capabilities.cost.then_some(0.0);
        let cost = answer.cost_usd.or(priced).map(|cost| ("costUsd".to_owned(), json!(cost)));
        output.extend(cost);
        output.extend(answer.model.clone().map(|model| ("model".to_owned(), json!(model))));
        output.insert("numTurns".to_owned(), json!(answer.num_turns.unwrap_or(1)));
        output.insert("stopReason".to_owned(), json!(answer.stop_reason.unwrap_or(StopReason::Complete)));
        output.insert("durationMs".to_owned(), json!(took.as_millis() as u64));
        if !denied.is_empty() {
            output.insert("permissionDenials".to_owned(), json!(denied));
        }
        output.retain(|name, _| match &self.fields {
            Some(fields) => fields.contains(name),
            None => !SECOND_NAMES.contains(&name.as_str()),
        });
        output.extend(answer.output.clone());
        Value::Object(output)
    }

    /// One turn as a provider would report it.
    fn play(
        &self,
        answer: AgentAnswer,
        session: ProviderSessionId,
        context: ExecutionContext,
    ) -> ProviderStream<Value> {
        let this = Self { provider: self.provider.clone(), fields: self.fields.clone() };
        async_stream::stream! {
            yield Ok(ProviderItem::Event(StreamEvent::Session { session_id: session.clone() }));
            let mut denied = Vec::new();
            for (at, tool) in answer.tools.iter().enumerate() {
                let id = format!("tool-{}", at + 1);
                yield Ok(ProviderItem::Event(StreamEvent::ToolStart {
                    tool_name: tool.name.clone(),
                    tool_use_id: id.clone(),
                    input: tool.input.clone(),
                }));
                let is_denied = match (tool.ask, &context.permissions) {
                    _ if tool.denied => true,
                    (false, _) => false,
                    (true, None) => true,
                    (true, Some(broker)) => {
                        let asked = broker.request(PermissionRequest {
                            tool_use_id: Some(id.clone()),
                            ..PermissionRequest::new(&tool.name, tool.input.clone())
                        });
                        matches!(asked.await, PermissionDecision::Deny { .. })
                    }
                };
                if is_denied {
                    denied.push(json!({ "toolName": tool.name, "toolUseId": id, "toolInput": tool.input }));
                }
                let result = if is_denied { json!("permission was denied") } else { tool.result.clone() };
                let is_error = is_denied || tool.is_error;
                yield Ok(ProviderItem::Event(StreamEvent::ToolComplete { tool_use_id: id, result, is_error }));
            }
            let in_time = pass(answer.takes, &context.cancel).await;
            let mut answer = answer;
            if !in_time {
                answer = AgentAnswer { stop_reason: Some(StopReason::Aborted), ..AgentAnswer::default() };
            } else if let Some(text) = answer.text.clone().filter(|text| !text.is_empty()) {
                yield Ok(ProviderItem::Event(StreamEvent::Text { content: text, chunk: Chunk::Whole }));
            }
            yield Ok(ProviderItem::Output(this.output(&answer, &session, denied, answer.takes.0)));
        }
        .boxed()
    }
}

/// Waits in the time of the test; false if the call is cancelled meanwhile.
async fn pass(time: Period, cancel: &CancellationToken) -> bool {
    if time.0.is_zero() {
        return !cancel.is_cancelled();
    }
    cancel.run_until_cancelled(tokio::time::sleep(time.0)).await.is_some()
}

impl ProviderWrapper for AnsweredProvider {
    fn inner(&self) -> &dyn DynProvider {
        &*self.provider
    }

    fn is_live(&self) -> bool {
        false
    }

    fn execute(&self, input: Value, context: ExecutionContext) -> ProviderStream<Value> {
        let fails = |error: AgentError| stream::iter([Err(error)]).boxed();
        let Ok(attempt) = ATTEMPT.try_with(Arc::clone) else {
            return fails(AgentError::new(
                ErrorCode::ConfigInvalid,
                "a test calls no provider outside of a node",
            ));
        };
        match attempt.turn(&*self.provider, &input, &context) {
            Err(error) => fails(error),
            Ok(TurnAnswer::Recorded(call)) => call.play(attempt.script.now(), context.cancel),
            Ok(TurnAnswer::Error(error, takes)) => async_stream::stream! {
                pass(takes, &context.cancel).await;
                yield Err(error);
            }
            .boxed(),
            Ok(TurnAnswer::Written(answer)) => {
                let known = self.provider.input_facts(&input).ok().and_then(|facts| facts.session);
                let own = answer.session_id.as_deref().map(ProviderSessionId::from);
                let session = own.or(known).unwrap_or_else(|| format!("session-{}", attempt.path).into());
                self.play(*answer, session, context)
            }
        }
    }
}

/// The node types of one case: nothing that they do leaves the process.
pub(crate) fn nodes(
    nodes: &NodeRegistry,
    as_they_are: &BTreeSet<String>,
    script: &Arc<CaseScript>,
) -> NodeRegistry {
    nodes.map(|name, runs| {
        if RUN_AS_THEY_ARE.contains(&&**name) || as_they_are.contains(&**name) {
            return runs;
        }
        let is_agent = nodes.described(name).is_some_and(|known| known.info.kind == NodeKind::Agent);
        let kind = if is_agent { AnswerKind::Agent } else { AnswerKind::of_type(name) };
        Arc::new(AnsweredNode { runs, kind, script: script.clone() })
    })
}

/// A node type that a case answers for. Agents and `exec` run, and the provider or the program is answered; of any
/// other type the output is given.
struct AnsweredNode {
    runs: Arc<dyn DynNodeType>,
    kind: AnswerKind,
    script: Arc<CaseScript>,
}

impl DynNodeType for AnsweredNode {
    fn run(&self, mut context: NodeContext, input: Value) -> BoxFuture<'_, Result<Value, AgentError>> {
        async move {
            let attempt = Arc::new(self.script.attempt(context.path.clone(), context.interrupted.is_some()));
            match self.kind {
                AnswerKind::Agent => ATTEMPT.scope(attempt, self.runs.run(context, input)).await,
                AnswerKind::Exec | AnswerKind::Http | AnswerKind::Mcp => {
                    context.calls = NodeCalls::Answer(Arc::new(AnsweredCall { attempt, kind: self.kind }));
                    self.runs.run(context, input).await
                }
                AnswerKind::Output => match attempt.output(&input)? {
                    AttemptAnswer::Output(output) => Ok(output),
                    AttemptAnswer::Error(error) => {
                        let failed = attempt.error(&error);
                        Err(if pass(error.takes, &context.cancel).await { failed } else { context.aborted() })
                    }
                    AttemptAnswer::Turns(_) | AttemptAnswer::Call(..) => Err(attempt.no_output()),
                },
            }
        }
        .boxed()
    }
}

/// Answers for the calls of one attempt.
struct AnsweredCall {
    attempt: Arc<Attempt>,
    kind: AnswerKind,
}

impl AnswerCall for AnsweredCall {
    fn answer<'a>(
        &'a self,
        call: NodeCall<'a>,
        redactor: &'a Redactor,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<Value, AgentError>> {
        async move {
            let attempt = &self.attempt;
            let aborted = || AgentError::new(ErrorCode::Aborted, "the call was cancelled");
            let (end, takes) = match attempt.call(self.kind, &call.input) {
                Some(Ok(AttemptAnswer::Call(end, takes))) => (Ok(end), takes),
                Some(Ok(AttemptAnswer::Error(error))) => (Err(attempt.error(&error)), error.takes),
                Some(Ok(_)) => return Err(attempt.no_output()),
                Some(Err(error)) => return Err(error),
                None => {
                    let Some(replayer) = attempt.recordings() else {
                        return Err(attempt.unanswered(&call.input));
                    };
                    let recorded = replayer.call(call, redactor, cancel).await;
                    return recorded.unwrap_or_else(|miss| Err(attempt.no_recording(&miss.message)));
                }
            };
            if pass(takes, cancel).await { end } else { Err(aborted()) }
        }
        .boxed()
    }
}
