//! One turn: the model is asked, its calls are answered, and it is asked again, until it has nothing more to ask for.
//! The conversation is kept at every step that cannot be done twice. What it holds is left to `ledger.rs`.

use std::sync::Arc;

use async_stream::try_stream;
use futures::StreamExt;
use inspan_protocol::{
    AgentError, ErrorCode, ExecutionContext, ProviderItem, ProviderSessionId, ProviderStream, StopReason,
    StreamEvent,
};
use serde_json::json;
use tokio::time::Instant;

use super::TYPE;
use super::account::Account;
use super::decode::Decoder;
use super::ledger::Ledger;
use super::options::AnthropicInput;
use super::outcome::{Verdict, Wanted, judge};
use super::request::{self, Settings};
use crate::conversation::{Conversation, ConversationStore, Held, not_kept};
use crate::kind::Kind;
use crate::output::TurnOutput;
use crate::streamed::{Over, Step, Streamed};
use crate::tools::{Answer, Close, Ran, Toolbox, Until};
use crate::transport::http::{Broken, Clocks, Http, Post};
use crate::transport::stall;

/// Requests of one turn, unless the options say otherwise.
const REQUESTS: u32 = 100;

/// How the turn ended, but for what surrounds it.
type End = Result<TurnOutput, AgentError>;

/// The turn of an input.
pub(super) fn exchange(
    http: Arc<Http>,
    store: Arc<dyn ConversationStore>,
    input: AnthropicInput,
    context: ExecutionContext,
) -> ProviderStream<TurnOutput> {
    let stream = try_stream! {
        let began = Instant::now();
        let options = input.options.clone().unwrap_or_default();
        let finish = |output: TurnOutput, session| ProviderItem::Output(TurnOutput {
            session_id: session,
            duration_ms: began.elapsed().as_millis().try_into().unwrap_or(u64::MAX),
            ..output
        });
        if context.cancel.is_cancelled() {
            yield finish(TurnOutput::new(StopReason::Aborted), options.resume);
            return;
        }
        let account = Account::of(&context.env)?;
        let said = request::messages(&input)?;
        let session = options.resume.clone().unwrap_or_else(|| ProviderSessionId::from(crate::ids::fresh()));
        let mut held = Held::claim(store, session.clone(), context.env.clone()).await?;
        let mut conversation = match &options.resume {
            Some(_) => held.read().await?,
            None => Conversation::new(TYPE),
        };
        let before = conversation.settings.clone();
        let settings = conversation.settings_of::<Settings>(TYPE, &session)?.with(&options);
        let mut ledger = Ledger::begin(std::mem::take(&mut conversation.messages), said);
        // What cannot be asked is told before anything is started.
        request::body(&settings, &options, &[], &ledger.messages)?;
        let until = Until {
            cancel: context.cancel.clone(),
            deadline: context.deadline.and_then(|limit| began.checked_add(limit)),
        };
        let (toolbox, warnings) = match Toolbox::open(options.tools(), &context, &http, &until).await {
            Ok(open) => open,
            Err(Broken::Failed(error)) => Err(error)?,
            Err(Broken::Cancelled) => {
                yield finish(TurnOutput::new(StopReason::Aborted), options.resume);
                return;
            }
        };
        conversation.settings = json!(settings);
        conversation.messages.clone_from(&ledger.messages);
        held.write(&conversation).await?;
        yield ProviderItem::Event(StreamEvent::Session { session_id: session.clone() });
        for warning in warnings {
            yield ProviderItem::Event(warning);
        }

        let clocks = Clocks {
            cancel: context.cancel.clone(),
            began,
            deadline: context.deadline,
            stall: stall(options.stall_timeout_ms),
        };
        let wanted = if options.output_schema.is_some() { Wanted::Structured } else { Wanted::Text };
        // Of a run that has none left, one turn is left all the same: someone asked for this call.
        let left = context.turns_left.map(|left| left.max(1));
        let limit = [options.max_turns, left].into_iter().flatten().min().unwrap_or(REQUESTS);
        let mut requests = 0;
        let end: End = loop {
            let body = match request::body(&settings, &options, toolbox.offered(), &ledger.messages) {
                Ok(body) => body,
                Err(error) => break Err(error),
            };
            requests += 1;
            let post = Post { url: account.url.clone(), headers: account.headers.clone(), body };
            let over = match Streamed::<Decoder>::begin(&http, post, &context.env, clocks.clone()).await {
                Err(over) => over,
                Ok(mut turn) => loop {
                    match turn.next().await {
                        Step::Event(StreamEvent::Usage { usage, cost_usd }) => {
                            let usage = ledger.with(usage);
                            yield ProviderItem::Event(StreamEvent::Usage { usage, cost_usd });
                        }
                        Step::Event(event) => yield ProviderItem::Event(event),
                        Step::Over(over) => break over,
                    }
                },
            };
            let said = match over {
                Over::Ended(said) => said,
                Over::Cancelled(said) => break Ok(ledger.end(said, StopReason::Aborted, wanted)),
                Over::Failed(error) => break Err(error),
            };
            match judge(&said) {
                Verdict::Error(error) => break Err(error),
                Verdict::Output(reason, warning) => {
                    if let Some(warning) = warning {
                        yield ProviderItem::Event(warning);
                    }
                    break Ok(ledger.end(said, reason, wanted));
                }
                Verdict::Paused => {
                    ledger.paused(said);
                    if requests >= limit {
                        break Ok(ledger.stop(StopReason::MaxTurns, wanted));
                    }
                }
                Verdict::Calls if toolbox.offered().is_empty() => {
                    let message = "the model called a tool, and none was offered";
                    break Err(AgentError::new(ErrorCode::Protocol, message).kind("unexpectedTool"));
                }
                Verdict::Calls => {
                    let calls = said.calls.clone();
                    ledger.calls(said);
                    if requests >= limit {
                        let answers: Vec<Answer> =
                            calls.iter().map(|call| Answer::not_begun(call.id.as_str())).collect();
                        ledger.answers(answers.iter());
                        break Ok(ledger.stop(StopReason::MaxTurns, wanted));
                    }
                    // Once a call has begun, a crash must not make it begin again.
                    conversation.messages.clone_from(&ledger.messages);
                    if let Err(error) = held.write(&conversation).await {
                        break Err(error);
                    }
                    let ids: Vec<String> = calls.iter().map(|call| call.id.clone()).collect();
                    let mut answers: Vec<Answer> = Vec::with_capacity(ids.len());
                    let mut ran = toolbox.run(calls, until.clone());
                    while let Some(ran) = ran.next().await {
                        match ran {
                            Ran::Event(event) => yield ProviderItem::Event(event),
                            Ran::Denied(denial) => ledger.denied(denial),
                            Ran::Answered(answer) => {
                                answers.push(answer);
                                let known = |id: &String| answers.iter().find(|answer| answer.id == *id);
                                ledger.answers(ids.iter().filter_map(known));
                                conversation.messages.clone_from(&ledger.messages);
                                if let Err(error) = held.write(&conversation).await {
                                    yield ProviderItem::Event(not_kept("the answer of a tool", &error));
                                }
                            }
                        }
                    }
                    ledger.settled();
                    for warning in toolbox.lost() {
                        yield ProviderItem::Event(warning);
                    }
                    if context.cancel.is_cancelled() {
                        break Ok(ledger.stop(StopReason::Aborted, wanted));
                    }
                }
            }
        };
        conversation.messages = match &end {
            Ok(_) => ledger.messages,
            Err(_) => {
                if !ledger.has_settled() {
                    conversation.settings = before;
                }
                ledger.failed()
            }
        };
        if let Err(error) = held.write(&conversation).await {
            // The answer is there and paid for; only the next turn will miss it.
            yield ProviderItem::Event(not_kept("the answer", &error));
        }
        let whole = matches!(&end, Ok(output) if output.stop_reason != StopReason::Aborted);
        toolbox.close(if whole { Close::Gently } else { Close::AtOnce }).await;
        // Whoever reads the last item may begin the next turn at once.
        drop(held);
        yield finish(end.map_err(|error: AgentError| error.with("sessionId", session.as_str()))?, Some(session));
    };
    stream.boxed()
}
