//! One turn: the model is asked, its calls of tools are run, and it is asked again until it is done. The conversation is
//! stored at each step that must not be repeated.
//!
//! | phase | does | next |
//! |---|---|---|
//! | `Request` | sends the conversation | `Response`, `End` |
//! | `Response` | passes on the events of the response | `Tools`, `Request`, `End` |
//! | `Tools` | runs the calls of the response, and stores each result | `Request`, `End` |
//! | `End` | stores the conversation, closes the tools | `Output` |
//! | `Output` | returns the output or the error | `Done` |

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use async_stream::try_stream;
use futures::StreamExt;
use futures::stream::BoxStream;
use inspan_protocol::{
    AgentError, ErrorCode, ErrorKind, ExecutionContext, ProviderItem, ProviderSessionId, ProviderStream,
    Redactor, StopReason, StreamEvent, TurnId,
};
use serde_json::Value;
use tokio::time::{Instant, timeout};

use super::account::Account;
use super::stream::{Came, ResponseEnd, ResponseStream, StreamStep, is_json};
use super::{Api, History, HistoryOwner, Prepared, Verdict};
use crate::conversation::{Conversation, ConversationStore, EarlierSettings, Held, is_full, not_stored};
use crate::error::TurnCount;
use crate::input::stall;
use crate::output::{TurnOutput, context_use, with_denials};
use crate::tools::{StopSignal, ToolResult, ToolUpdate, Toolbox};
use inspan_transport::Close;
use inspan_transport::{Broken, Clocks, Http, Request};
use reqwest::Method;

/// Requests of one turn, unless the options say otherwise.
const REQUESTS: u32 = 100;
/// How long the server may send nothing but signs of life, unless the options say how long it may be silent: a model may think for
/// minutes and send nothing else meanwhile.
const SIGNS: Duration = Duration::from_secs(30 * 60);
/// How long a full disk is waited for before what was paid is given up, as long as the end of a node is.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often it is tried meanwhile.
const PAUSE: Duration = Duration::from_secs(1);

/// Runs the turn of an input. Its errors name the provider and hold no secret.
pub(super) fn execute<A: Api>(
    http: Arc<Http>,
    store: Arc<dyn ConversationStore>,
    input: A::Input,
    context: ExecutionContext,
) -> ProviderStream<A::Output> {
    let redactor = Redactor::new(&context.host.env);
    let items = try_stream! {
        let began = Instant::now();
        let options = A::options(&input)?;
        match ApiTurn::<A>::open(http, store, &input, &options, context, began).await {
            Ok(mut turn) => while let Some(item) = turn.next().await {
                yield item?;
            },
            Err(Unopened::Answered(output)) => yield ProviderItem::Output(A::Output::from(*output)),
            Err(Unopened::Broken(Broken::Failed(error))) => Err(error)?,
            Err(Unopened::Broken(Broken::Cancelled)) => yield ProviderItem::Output(A::Output::from(TurnOutput {
                session_id: A::turn_options(&options).resume.cloned(),
                duration_ms: millis_since(began),
                ..TurnOutput::new(StopReason::Aborted)
            })),
        }
    };
    let redacted = move |error: AgentError| AgentError {
        message: redactor.text(&error.message),
        ..error.from_provider(A::PROVIDER)
    };
    items.map(move |item: Result<_, AgentError>| item.map_err(&redacted)).boxed()
}

/// Why a turn does not begin.
enum Unopened {
    /// It only goes on with one that ended before its process did: this is the answer.
    Answered(Box<TurnOutput>),
    Broken(Broken),
}

impl From<Broken> for Unopened {
    fn from(broken: Broken) -> Self {
        Self::Broken(broken)
    }
}

impl From<AgentError> for Unopened {
    fn from(error: AgentError) -> Self {
        Self::Broken(error.into())
    }
}

/// Where a turn is.
enum Phase<A: Api> {
    Request,
    Response(Box<ResponseStream<A::Decoder>>),
    Tools(RunningTools),
    End(Result<TurnOutput, AgentError>),
    Output(Result<A::Output, AgentError>),
    Done,
}

/// The calls of one response while they run.
struct RunningTools {
    updates: BoxStream<'static, ToolUpdate>,
    /// The ids of all calls, in the order of the response.
    ids: Vec<String>,
    /// The results until now.
    results: Vec<ToolResult>,
}

struct ApiTurn<A: Api> {
    api: A,
    http: Arc<Http>,
    account: Account,
    context: ExecutionContext,
    clocks: Clocks,
    /// How long nothing but signs of life may come.
    patience: Duration,
    stop: StopSignal,
    toolbox: Toolbox,
    history: A::History,
    stored: StoredConversation,
    /// The settings of the conversation before this turn.
    before: EarlierSettings,
    session: ProviderSessionId,
    /// Requests until now, and how many there may be.
    requests: u32,
    limit: u32,
    count: TurnCount,
    /// Events that come before the next phase.
    events: VecDeque<StreamEvent>,
    phase: Phase<A>,
}

impl<A: Api> ApiTurn<A> {
    async fn open(
        http: Arc<Http>,
        store: Arc<dyn ConversationStore>,
        input: &A::Input,
        options: &A::Options,
        context: ExecutionContext,
        began: Instant,
    ) -> Result<Self, Unopened> {
        if context.cancel.is_cancelled() {
            return Err(Broken::Cancelled.into());
        }
        let shared = A::turn_options(options);
        let account = Account::of::<A>(&context.host.env)?;
        let messages = A::messages(input)?;
        let is_ours = |session: &&ProviderSessionId| A::history_owner(session) == HistoryOwner::Inspan;
        let session = shared
            .resume
            // A response of the vendor is continued by any number of others.
            .filter(|session| !(shared.fork && is_ours(session)))
            .cloned()
            .unwrap_or_else(|| ProviderSessionId::from(crate::conversation::fresh_id()));
        let mut stored = match A::history_owner(&session) {
            HistoryOwner::Inspan => {
                let branch = shared.fork_at;
                StoredConversation::claim(A::PROVIDER, &session, shared.resume, branch, store, &context)
                    .await?
            }
            HistoryOwner::Vendor => {
                StoredConversation { held: None, conversation: Conversation::new(A::PROVIDER) }
            }
        };
        let ended = stored.conversation.ended.take();
        let goes_on = context.goes_on && shared.resume == Some(&session);
        let is_its = stored.conversation.provider == A::PROVIDER;
        if let Some(output) = ended.filter(|_| goes_on && is_its) {
            return Err(Unopened::Answered(output));
        }
        let before = EarlierSettings::of(&stored.conversation);
        let Prepared { api, history, warning } =
            A::prepare(options, &session, &mut stored.conversation, messages)?;
        stored.conversation.note(&before);
        // What cannot be requested fails before anything is started.
        api.request(&history, &[])?;
        let stop = StopSignal {
            cancel: context.cancel.clone(),
            deadline: context.deadline.and_then(|limit| began.checked_add(limit)),
        };
        let (toolbox, warnings) = Toolbox::open(shared.tools, &context, &http, &stop).await?;
        stored.write(&history.state().messages).await?;
        // What the vendor stores has the message only once it is answered: until then there is nothing to go on with.
        let is_ours = stored.held.is_some();
        let named = is_ours.then(|| StreamEvent::Session { session_id: session.clone() });
        let mut events: VecDeque<_> = named.into_iter().collect();
        events.extend(warnings.into_iter().chain(warning));
        let clocks = Clocks {
            cancel: context.cancel.clone(),
            began,
            deadline: context.deadline,
            stall: stall(shared.stall_timeout_ms),
        };
        let patience = shared.stall_timeout_ms.map_or(SIGNS, Duration::from_millis);
        // A run without turns left still gets one: the caller made this call.
        let left = context.turns_left.map(|left| left.max(1));
        let limit = [shared.max_turns, left].into_iter().flatten().min().unwrap_or(REQUESTS);
        Ok(Self {
            api,
            http,
            account,
            context,
            clocks,
            patience,
            stop,
            toolbox,
            history,
            stored,
            before,
            session,
            requests: 0,
            limit,
            count: TurnCount::default(),
            events,
            phase: Phase::Request,
        })
    }

    /// The next item of the stream.
    async fn next(&mut self) -> Option<Result<ProviderItem<A::Output>, AgentError>> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(Ok(ProviderItem::Event(event)));
            }
            self.phase = match std::mem::replace(&mut self.phase, Phase::Done) {
                Phase::Request => self.request().await,
                Phase::Response(stream) => self.receive(stream).await,
                Phase::Tools(running) => self.run_tools(running).await,
                Phase::End(end) => self.end(end).await,
                Phase::Output(output) => return Some(output.map(ProviderItem::Output)),
                Phase::Done => return None,
            };
        }
    }

    async fn request(&mut self) -> Phase<A> {
        let body = match self.api.request(&self.history, self.toolbox.specs()) {
            Ok(body) => body,
            Err(error) => return Phase::End(Err(error)),
        };
        self.requests += 1;
        let request = Request {
            method: Method::POST,
            url: self.account.url.clone(),
            headers: self.account.headers.clone(),
            body,
        };
        let (environment, clocks) = (&self.context.host.env, self.clocks.clone());
        match ResponseStream::begin(&self.http, request, environment, clocks, self.patience).await {
            Ok(stream) => Phase::Response(Box::new(stream)),
            Err(end) => self.response_ended(end, None).await,
        }
    }

    async fn receive(&mut self, mut stream: Box<ResponseStream<A::Decoder>>) -> Phase<A> {
        match stream.next().await {
            StreamStep::Event(StreamEvent::Usage { usage, cost_usd }) => {
                let context = context_use(usage.total(), None);
                let usage = self.history.state().total_usage(usage);
                let usage = StreamEvent::Usage { usage, cost_usd };
                self.count.note(&usage);
                self.events.push_back(usage);
                self.events.extend(context);
                Phase::Response(stream)
            }
            StreamStep::Event(event) => {
                self.events.push_back(event);
                Phase::Response(stream)
            }
            StreamStep::End(end) => {
                let came = stream.came();
                self.response_ended(end, Some(came)).await
            }
        }
    }

    /// Ends a response, of which this much had come if it was answered at all.
    async fn response_ended(&mut self, end: ResponseEnd<A::Response>, came: Option<Came>) -> Phase<A> {
        let response = match end {
            ResponseEnd::Complete(response) => response,
            ResponseEnd::Cancelled(response) => {
                let is_counted = came == Some(Came::Count);
                self.events.extend((!is_counted).then_some(StreamEvent::Uncounted));
                return Phase::End(Ok(self.history.finish(response, StopReason::Aborted)));
            }
            ResponseEnd::Failed(error) => {
                let is_cut = came == Some(Came::Part);
                if is_cut || is_unanswered(&error) {
                    self.events.extend([self.count.cut()]);
                }
                self.events.extend(is_cut.then_some(StreamEvent::Uncounted));
                return Phase::End(Err(self.api.explain(error)));
            }
        };
        match A::judge(&response) {
            Verdict::Error(error) => Phase::End(Err(error)),
            Verdict::Output(reason, warning) => {
                self.events.extend(warning);
                Phase::End(Ok(self.history.finish(response, reason)))
            }
            Verdict::Paused => {
                self.history.add_response(response);
                match self.requests < self.limit {
                    true => Phase::Request,
                    false => Phase::End(Ok(self.history.stop(StopReason::MaxTurns))),
                }
            }
            Verdict::Calls if self.toolbox.specs().is_empty() => {
                let message = format!("the model called a {}, and none was offered", A::TOOL);
                let error = AgentError::new(ErrorCode::Protocol, message);
                Phase::End(Err(error.with_kind(ErrorKind::UnexpectedTool)))
            }
            Verdict::Calls => self.call_tools(response).await,
        }
    }

    async fn call_tools(&mut self, response: A::Response) -> Phase<A> {
        let calls = self.history.add_response(response);
        let stop = match self.requests >= self.limit {
            true => Some(StopReason::MaxTurns),
            // After a crash no call may run a second time.
            false => match self.store_paid().await {
                Ok(()) => None,
                Err(_) if self.context.cancel.is_cancelled() => Some(StopReason::Aborted),
                Err(error) => return Phase::End(Err(error)),
            },
        };
        if let Some(reason) = stop {
            let results: Vec<_> = calls.iter().map(|call| ToolResult::not_begun(call.id.as_str())).collect();
            self.history.set_results(results.iter());
            return Phase::End(Ok(self.history.stop(reason)));
        }
        let ids = calls.iter().map(|call| call.id.clone()).collect();
        let updates = self.toolbox.run(calls, self.stop.clone());
        Phase::Tools(RunningTools { updates, ids, results: Vec::new() })
    }

    async fn run_tools(&mut self, mut running: RunningTools) -> Phase<A> {
        match running.updates.next().await {
            Some(ToolUpdate::Event(event)) => self.events.push_back(event),
            Some(ToolUpdate::Denied(denial)) => self.history.state_mut().add_denial(denial),
            Some(ToolUpdate::Result(result)) => {
                running.results.push(result);
                let result_of = |id: &String| running.results.iter().find(|result| result.id == *id);
                self.history.set_results(running.ids.iter().filter_map(result_of));
                if let Err(error) = self.store().await {
                    self.events.push_back(not_stored("the answer of a tool", &error));
                }
            }
            None => {
                self.history.state_mut().commit();
                self.events.extend(self.toolbox.lost());
                return match self.context.cancel.is_cancelled() {
                    true => Phase::End(Ok(self.history.stop(StopReason::Aborted))),
                    false => Phase::Request,
                };
            }
        }
        Phase::Tools(running)
    }

    async fn end(&mut self, mut end: Result<TurnOutput, AgentError>) -> Phase<A> {
        let stop_reason = end.as_ref().ok().map(|output| output.stop_reason);
        if matches!(stop_reason, None | Some(StopReason::Aborted | StopReason::MaxTurns)) {
            self.events.extend(self.history.unanswered_calls());
        }
        let state = self.history.state_mut();
        let session = state.session.clone();
        if let Err(error) = &end {
            if !error.leaves_conversation() && !state.is_committed() {
                self.stored.conversation.restore(&self.before);
            }
            state.roll_back(error.leaves_conversation());
        }
        let is_ours = self.stored.held.is_some();
        if let Ok(output) = &mut end {
            output.session_id = Some(session.clone());
            output.turn_id = is_ours.then(|| Conversation::turn_id(&self.history.state().messages));
            output.duration_ms = millis_since(self.clocks.began);
        }
        let stored = match (stop_reason, &end) {
            (None | Some(StopReason::Aborted), _) | (_, Err(_)) => self.store().await,
            (Some(_), Ok(output)) => {
                let usage = self.history.state().last_usage();
                self.stored.conversation.ended = Some(Box::new(TurnOutput { usage, ..output.clone() }));
                self.store_paid().await
            }
        };
        if let Err(error) = stored {
            let is_cancelled = self.context.cancel.is_cancelled();
            match &mut end {
                // The next turn would succeed without the answer: this one is to be asked again.
                Ok(output) if output.stop_reason != StopReason::Aborted && !is_cancelled => {
                    end = Err(with_denials(error, &output.permission_denials));
                }
                _ => {
                    self.events.push_back(not_stored("the answer", &error));
                    end = end.map(|output| TurnOutput { stop_reason: StopReason::Aborted, ..output });
                }
            }
        }
        let how = match stop_reason {
            None | Some(StopReason::Aborted) => Close::AtOnce,
            Some(_) => Close::Gently,
        };
        self.toolbox.close(how).await;
        // The reader of the last item may begin the next turn at once.
        drop(self.stored.held.take());
        if session != self.session || (!is_ours && end.is_ok()) {
            self.events.push_back(StreamEvent::Session { session_id: session.clone() });
        }
        Phase::Output(match end {
            Ok(output) => {
                let duration_ms = millis_since(self.clocks.began);
                Ok(A::Output::from(TurnOutput { duration_ms, ..output }))
            }
            Err(error) => {
                let error = error.with("sessionId", session.as_str());
                Err(with_denials(error, self.history.state().denials()))
            }
        })
    }

    async fn store(&mut self) -> Result<(), AgentError> {
        self.stored.write(&self.history.state().messages).await
    }

    /// Stores what was paid. A full disk is waited for, unless the turn is cancelled or its time is up.
    async fn store_paid(&mut self) -> Result<(), AgentError> {
        let until = Instant::now() + PATIENCE;
        let until = self.stop.deadline.map_or(until, |deadline| deadline.min(until));
        let mut is_reported = false;
        loop {
            let error = match self.store().await {
                Err(error) if is_full(&error) => error,
                stored => return stored,
            };
            if Instant::now() >= until || self.context.cancel.is_cancelled() {
                return Err(error);
            }
            if !std::mem::replace(&mut is_reported, true) {
                let why = &error.message;
                tracing::warn!(%why, "an answer that was paid waits up to {PATIENCE:?} for space on the disk");
            }
            let _cancelled = timeout(PAUSE, self.context.cancel.cancelled()).await;
        }
    }
}

/// Whether the request was sent and its answer did not come, or not to its end: the vendor may have worked for it. So it may if a
/// gateway gave up waiting for it, or made one body of its stream.
fn is_unanswered(error: &AgentError) -> bool {
    let kinds = [ErrorKind::Stall, ErrorKind::Deadline, ErrorKind::Broken, ErrorKind::Truncated];
    let detail = |key: &str| error.detail.as_ref().map_or(&Value::Null, |detail| &detail[key]);
    error.kind().is_some_and(|kind| kinds.contains(&kind))
        || [408, 504, 524].map(Value::from).contains(detail("status"))
        || is_json(detail("contentType").as_str().unwrap_or_default())
}

/// A conversation that the turn has claimed.
struct StoredConversation {
    /// Absent if the vendor stores it.
    held: Option<Held>,
    conversation: Conversation,
}

impl StoredConversation {
    /// Claims a conversation for one turn; a new one unless the turn continues one. One that branches another begins with
    /// what that holds.
    async fn claim(
        provider: &str,
        session: &ProviderSessionId,
        resume: Option<&ProviderSessionId>,
        at: Option<&TurnId>,
        store: Arc<dyn ConversationStore>,
        context: &ExecutionContext,
    ) -> Result<Self, AgentError> {
        let mut held = Held::claim(store.clone(), session.clone(), context.host.env.clone()).await?;
        let conversation = match resume {
            Some(resume) if resume != session => {
                let known =
                    crate::conversation::read(store, resume.clone(), context.host.env.clone()).await?;
                match at {
                    Some(at) => known.until(at)?,
                    None => known,
                }
            }
            Some(_) => held.read().await?,
            None => Conversation::new(provider),
        };
        Ok(Self { held: Some(held), conversation })
    }

    /// Writes it with these messages.
    async fn write(&mut self, messages: &[Value]) -> Result<(), AgentError> {
        let Some(held) = &mut self.held else { return Ok(()) };
        messages.clone_into(&mut self.conversation.messages);
        held.write(&self.conversation).await
    }
}

fn millis_since(began: Instant) -> u64 {
    began.elapsed().as_millis().try_into().unwrap_or(u64::MAX)
}
