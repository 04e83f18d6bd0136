//! One turn at a vendor that is asked over HTTP and calls no tools itself: the model is asked, its calls are answered,
//! and it is asked again, until it has nothing more to ask for. The conversation is kept at every step that cannot be
//! done twice. How a vendor is asked, what its answers mean and how they are put down is left to the adapters.

use std::sync::Arc;

use async_stream::try_stream;
use futures::StreamExt;
use inspan_protocol::{
    AgentError, ErrorCode, ErrorKind, ExecutionContext, ProviderItem, ProviderSessionId, ProviderStream,
    Redactor, StopReason, StreamEvent,
};
use tokio::time::Instant;

use crate::conversation::{ConversationStore, not_kept};
use crate::output::TurnOutput;
use crate::streamed::{Over, Step, Streamed};
use crate::tools::{Answer, Close, Ran, Toolbox, Until};
use crate::transport::http::{Broken, Clocks, Http, Post};
use crate::transport::stall;

mod api;
mod books;
mod kept;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use api::{Api, Begun, Keeper, Ledger, Terms, Verdict};
pub(crate) use books::{Answered, Books};

use kept::Kept;

/// Requests of one turn, unless the options say otherwise.
const REQUESTS: u32 = 100;

/// How the turn ended, but for what surrounds it.
type End = Result<TurnOutput, AgentError>;

/// The turn of an input. Its errors name the provider and hold no secret.
pub(crate) fn exchange<A: Api>(
    http: Arc<Http>,
    store: Arc<dyn ConversationStore>,
    input: A::Input,
    context: ExecutionContext,
) -> ProviderStream<A::Output> {
    let redactor = Redactor::new(&context.env);
    let told = move |error: AgentError| AgentError {
        message: redactor.text(&error.message),
        ..error.from_provider(A::PROVIDER)
    };
    let stream = try_stream! {
        let began = Instant::now();
        let options = A::options(&input)?;
        let terms = A::terms(&options);
        let finish = |output: TurnOutput, session| ProviderItem::Output(A::Output::from(TurnOutput {
            session_id: session,
            duration_ms: began.elapsed().as_millis().try_into().unwrap_or(u64::MAX),
            ..output
        }));
        if context.cancel.is_cancelled() {
            yield finish(TurnOutput::new(StopReason::Aborted), terms.resume.cloned());
            return;
        }
        let account = A::account(&context.env)?;
        let said = A::messages(&input)?;
        let session = terms.resume.cloned().unwrap_or_else(|| ProviderSessionId::from(crate::ids::fresh()));
        let mut kept = match A::keeper(&session) {
            Keeper::Adapter => Kept::take(A::PROVIDER, &session, terms.resume, store, &context).await?,
            Keeper::Vendor => Kept::by_vendor(A::PROVIDER),
        };
        let before = kept.conversation.settings.clone();
        let Begun { api, mut ledger, warning } = A::begin(&options, &session, &mut kept.conversation, said)?;
        // What cannot be asked is told before anything is started.
        api.request(&ledger, &[])?;
        let until = Until {
            cancel: context.cancel.clone(),
            deadline: context.deadline.and_then(|limit| began.checked_add(limit)),
        };
        let (toolbox, warnings) = match Toolbox::open(terms.tools, &context, &http, &until).await {
            Ok(open) => open,
            Err(Broken::Failed(error)) => Err(error)?,
            Err(Broken::Cancelled) => {
                yield finish(TurnOutput::new(StopReason::Aborted), terms.resume.cloned());
                return;
            }
        };
        kept.write(&ledger.books().messages).await?;
        yield ProviderItem::Event(StreamEvent::Session { session_id: session.clone() });
        for warning in warnings.into_iter().chain(warning) {
            yield ProviderItem::Event(warning);
        }

        let clocks = Clocks {
            cancel: context.cancel.clone(),
            began,
            deadline: context.deadline,
            stall: stall(terms.stall_timeout_ms),
        };
        // Of a run that has none left, one turn is left all the same: someone asked for this call.
        let left = context.turns_left.map(|left| left.max(1));
        let limit = [terms.max_turns, left].into_iter().flatten().min().unwrap_or(REQUESTS);
        let mut requests = 0;
        let end: End = loop {
            let body = match api.request(&ledger, toolbox.offered()) {
                Ok(body) => body,
                Err(error) => break Err(error),
            };
            requests += 1;
            let post = Post { url: account.url.clone(), headers: account.headers.clone(), body };
            let over = match Streamed::<A::Decoder>::begin(&http, post, &context.env, clocks.clone()).await {
                Err(over) => over,
                Ok(mut streamed) => loop {
                    match streamed.next().await {
                        Step::Event(StreamEvent::Usage { usage, cost_usd }) => {
                            let usage = ledger.books().with(usage);
                            yield ProviderItem::Event(StreamEvent::Usage { usage, cost_usd });
                        }
                        Step::Event(event) => yield ProviderItem::Event(event),
                        Step::Over(over) => break over,
                    }
                },
            };
            let said = match over {
                Over::Ended(said) => said,
                Over::Cancelled(said) => break Ok(ledger.end(said, StopReason::Aborted)),
                Over::Failed(error) => break Err(api.understood(error)),
            };
            match A::judge(&said) {
                Verdict::Error(error) => break Err(error),
                Verdict::Output(reason, warning) => {
                    if let Some(warning) = warning {
                        yield ProviderItem::Event(warning);
                    }
                    break Ok(ledger.end(said, reason));
                }
                Verdict::Paused => {
                    ledger.goes_on(said);
                    if requests >= limit {
                        break Ok(ledger.stop(StopReason::MaxTurns));
                    }
                }
                Verdict::Calls if toolbox.offered().is_empty() => {
                    let message = format!("the model called a {}, and none was offered", A::TOOL);
                    break Err(AgentError::new(ErrorCode::Protocol, message).with_kind(ErrorKind::UnexpectedTool));
                }
                Verdict::Calls => {
                    let calls = ledger.goes_on(said);
                    if requests >= limit {
                        let answers: Vec<Answer> =
                            calls.iter().map(|call| Answer::not_begun(call.id.as_str())).collect();
                        ledger.answers(answers.iter());
                        break Ok(ledger.stop(StopReason::MaxTurns));
                    }
                    // Once a call has begun, a crash must not make it begin again.
                    if let Err(error) = kept.write(&ledger.books().messages).await {
                        break Err(error);
                    }
                    let ids: Vec<String> = calls.iter().map(|call| call.id.clone()).collect();
                    let mut answers: Vec<Answer> = Vec::with_capacity(ids.len());
                    let mut ran = toolbox.run(calls, until.clone());
                    while let Some(ran) = ran.next().await {
                        match ran {
                            Ran::Event(event) => yield ProviderItem::Event(event),
                            Ran::Denied(denial) => ledger.books().denied(denial),
                            Ran::Answered(answer) => {
                                answers.push(answer);
                                let known = |id: &String| answers.iter().find(|answer| answer.id == *id);
                                ledger.answers(ids.iter().filter_map(known));
                                if let Err(error) = kept.write(&ledger.books().messages).await {
                                    yield ProviderItem::Event(not_kept("the answer of a tool", &error));
                                }
                            }
                        }
                    }
                    ledger.books().settled();
                    for warning in toolbox.lost() {
                        yield ProviderItem::Event(warning);
                    }
                    if context.cancel.is_cancelled() {
                        break Ok(ledger.stop(StopReason::Aborted));
                    }
                }
            }
        };
        let whole = matches!(&end, Ok(output) if output.stop_reason != StopReason::Aborted);
        let at_limit = matches!(&end, Ok(output) if output.stop_reason == StopReason::MaxTurns);
        if (at_limit || !whole)
            && let Some(warning) = ledger.left_open()
        {
            yield ProviderItem::Event(warning);
        }
        let books = ledger.books();
        let next = books.session.clone();
        if end.is_err() {
            if !books.has_settled() {
                kept.conversation.settings = before;
            }
            books.failed();
        }
        if let Err(error) = kept.write(&books.messages).await {
            // The answer is there and paid for; only the next turn will miss it.
            yield ProviderItem::Event(not_kept("the answer", &error));
        }
        toolbox.close(if whole { Close::Gently } else { Close::AtOnce }).await;
        // Whoever reads the last item may begin the next turn at once.
        drop(kept);
        if next != session {
            yield ProviderItem::Event(StreamEvent::Session { session_id: next.clone() });
        }
        yield finish(end.map_err(|error: AgentError| error.with("sessionId", next.as_str()))?, Some(next));
    };
    stream.map(move |item| item.map_err(&told)).boxed()
}
