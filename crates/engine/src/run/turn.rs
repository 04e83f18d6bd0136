//! A turn: one call of the provider, driven to its end whatever the provider does.
//!
//! A turn runs until it ends or is interrupted: by cancellation, by a deadline, or by a message that steers. An
//! interrupted turn has some time to end by itself.

use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use futures::{FutureExt, StreamExt};
use inspan_protocol::{
    AgentError, DynProvider, ErrorCode, ExecutionContext, Host, OutputFacts, PermissionBroker, ProviderItem,
    ProviderStream, Redactor, SteerStrength, StreamEvent, believable_cost, denials,
};
use serde_json::Value;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{active::OpenRun, output::OutputCheck, redacted, state::RunInput};
use crate::clock::from_wall;

/// How long a cancelled turn may take to end; then its stream is dropped.
const GRACE: Duration = Duration::from_secs(10);
/// How long a stream may stay open after its output.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// A timer that never fires during a run still needs a moment: in about thirty years.
const NEVER: Duration = Duration::from_secs(86_400 * 365 * 30);

/// How a run calls its provider: what all of its turns share.
pub(super) struct ProviderCall {
    pub(super) provider: Arc<dyn DynProvider>,
    pub(super) provider_type: String,
    pub(super) native_steer: bool,
    pub(super) cancel: CancellationToken,
    pub(super) deadline: Option<Instant>,
    pub(super) permissions: Option<Arc<dyn PermissionBroker>>,
    pub(super) redactor: Redactor,
    pub(super) host: Arc<Host>,
    /// Whether the first turn goes on with one that was interrupted.
    pub(super) goes_on: bool,
}

/// Why the engine interrupted a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    Cancelled,
    Deadline,
    Steered,
}

pub(super) enum TurnEnd {
    Output(Value, OutputFacts),
    /// Interrupted, and the provider gave no output.
    Interrupted,
    Failed(AgentError),
}

pub(super) struct TurnResult {
    pub(super) end: TurnEnd,
    pub(super) cut: Option<Cut>,
    /// The tool calls that were denied in it, however it ended.
    pub(super) denials: Vec<Value>,
}

type TurnItem = Result<ProviderItem<Value>, AgentError>;

impl ProviderCall {
    /// `messages` is how many messages to the run are in it, `turns_left` how many model turns the run may still take.
    pub(super) async fn turn(
        &mut self,
        run: &mut OpenRun,
        input: Value,
        messages: usize,
        turns_left: Option<u32>,
    ) -> TurnResult {
        run.apply(RunInput::TurnBegins { messages });
        let started = self.start(run, input, turns_left);
        self.goes_on = false;
        let (end, cut) = match started {
            Ok(stream) => self.drive(run, stream).await,
            Err(error) => (TurnEnd::Failed(error), None),
        };
        if !matches!(end, TurnEnd::Output(..)) {
            run.apply(RunInput::TurnEnds(None));
        }
        // A cancellation that came while a steered turn wound down is what counts.
        let cut = if cut.is_some() && self.cancel.is_cancelled() { Some(Cut::Cancelled) } else { cut };
        let denials = match &end {
            TurnEnd::Output(output, _) => denials(output),
            TurnEnd::Failed(error) => error.denials(),
            TurnEnd::Interrupted => &[],
        };
        let denials = denials.to_vec();
        TurnResult { end: self.settle(run, end, cut), cut, denials }
    }

    fn start(
        &self,
        run: &mut OpenRun,
        input: Value,
        turns_left: Option<u32>,
    ) -> Result<ProviderStream<Value>, AgentError> {
        let context = ExecutionContext {
            cancel: run.begin_turn(&self.cancel),
            permissions: self.permissions.clone(),
            host: self.host.clone(),
            turns_left,
            goes_on: self.goes_on,
            place: run.hub.context().task.clone(),
            steering: self.native_steer.then(|| run.mailbox().steering_for_turn()),
            deadline: self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())),
        };
        catch_unwind(AssertUnwindSafe(|| self.provider.execute(input, context)))
            .map(|stream| redacted::stream(&self.redactor, stream))
            .map_err(|_| self.panicked(run))
    }

    /// Drives the stream to the end of the turn. A turn that is interrupted has [`GRACE`] to end.
    async fn drive(&self, run: &mut OpenRun, mut stream: ProviderStream<Value>) -> (TurnEnd, Option<Cut>) {
        let cut = match self.running(run, &mut stream).await {
            Ok(end) => return (end, None),
            Err(cut) => cut,
        };
        if cut == Cut::Steered {
            for content in run.mailbox().steering() {
                run.apply(RunInput::Steer(content, SteerStrength::Interrupt));
            }
        }
        run.cancel_turn();
        (self.winding_down(run, &mut stream).await, Some(cut))
    }

    /// The end of the turn, or why it must be interrupted.
    async fn running(&self, run: &mut OpenRun, stream: &mut ProviderStream<Value>) -> Result<TurnEnd, Cut> {
        let mailbox = run.mailbox();
        let deadline = self.deadline.unwrap_or_else(|| Instant::now() + NEVER);
        let mut cancelled = pin!(self.cancel.cancelled());
        let mut timer = pin!(sleep_until(deadline));
        let mut steered = pin!(mailbox.steered());
        loop {
            let item = tokio::select! {
                biased;
                () = &mut cancelled => return Err(Cut::Cancelled),
                () = &mut timer => return Err(Cut::Deadline),
                // Before the vendor has named its conversation an interruption would lose the turn's prompt.
                () = &mut steered, if !self.native_steer && run.session().is_some() => return Err(Cut::Steered),
                item = self.next(run, stream) => item,
            };
            match item {
                Some(Ok(ProviderItem::Event(event @ StreamEvent::Session { .. }))) => {
                    // A provider sends its prompt when it is polled again. If the process died before the name of the
                    // conversation is stored, what the agent had begun could not be resumed, and would be done again
                    // in another conversation.
                    self.unless_stopped(deadline, run.apply_and_store(RunInput::Stream(event))).await;
                }
                Some(item) => {
                    if let Some(end) = self.take(run, stream, item, deadline).await {
                        return Ok(end);
                    }
                }
                None => {
                    run.apply(RunInput::Unpriced);
                    let error = self.error(ErrorCode::Protocol, "the provider ended without an output");
                    return Ok(TurnEnd::Failed(error));
                }
            }
        }
    }

    /// The end of a turn that was interrupted.
    async fn winding_down(&self, run: &mut OpenRun, stream: &mut ProviderStream<Value>) -> TurnEnd {
        let grace = Instant::now() + GRACE;
        let mut timer = pin!(sleep_until(grace));
        loop {
            let item = tokio::select! {
                biased;
                () = &mut timer => {
                    let seconds = GRACE.as_secs();
                    run.warn("unresponsive", format!("the cancelled turn did not end within {seconds} s"));
                    run.apply(RunInput::Unpriced);
                    return TurnEnd::Interrupted;
                }
                item = self.next(run, stream) => item,
            };
            let Some(item) = item else {
                run.apply(RunInput::Unpriced);
                return TurnEnd::Interrupted;
            };
            if let Some(end) = self.take(run, stream, item, grace).await {
                return end;
            }
        }
    }

    /// The next item of the stream; a panic of the provider is an error.
    async fn next(&self, run: &mut OpenRun, stream: &mut ProviderStream<Value>) -> Option<TurnItem> {
        let item = AssertUnwindSafe(stream.next()).catch_unwind().await;
        item.unwrap_or_else(|_| Some(Err(self.panicked(run))))
    }

    fn panicked(&self, run: &mut OpenRun) -> AgentError {
        run.apply(RunInput::Unpriced);
        self.error(ErrorCode::Protocol, "the provider panicked")
    }

    /// The error for an output of the provider that is not of its own form.
    fn misfit(&self, output: &Value, error: &AgentError) -> AgentError {
        let check = OutputCheck::new(&self.provider.output_schema()).ok();
        let violations = check.map(|check| check.violations(Some(output))).unwrap_or_default();
        let why = if violations.is_empty() { error.message.clone() } else { violations.join("; ") };
        let message = format!("the output of provider `{}` does not fit: {why}", self.provider_type);
        self.error(ErrorCode::Protocol, message)
    }

    /// Handles an item of the stream. Returns the end of the turn if the item is one.
    async fn take(
        &self,
        run: &mut OpenRun,
        stream: &mut ProviderStream<Value>,
        item: TurnItem,
        until: Instant,
    ) -> Option<TurnEnd> {
        match item {
            Ok(ProviderItem::Event(StreamEvent::Steered)) => {
                // A recording also reports messages that were not sent in this run.
                if let Some(content) = run.mailbox().take_offered() {
                    run.apply(RunInput::Steer(content, SteerStrength::Native));
                }
                None
            }
            Ok(ProviderItem::Event(event)) => {
                run.apply(RunInput::Stream(event));
                // An agent that emits more than can be stored is not polled until the store has caught up.
                if run.is_behind() {
                    self.unless_stopped(until, run.catches_up()).await;
                }
                // A recording is always ready; other tasks must run too.
                tokio::task::coop::consume_budget().await;
                None
            }
            Ok(ProviderItem::Output(output)) => {
                let end = match self.provider.output_facts(&output) {
                    Ok(mut facts) => {
                        facts.cost_usd = believable_cost(facts.cost_usd);
                        run.apply(RunInput::TurnEnds(Some(&facts)));
                        TurnEnd::Output(output, facts)
                    }
                    Err(error) => {
                        run.apply(RunInput::Unpriced);
                        TurnEnd::Failed(self.misfit(&output, &error))
                    }
                };
                self.drain(run, stream).await;
                Some(end)
            }
            Err(error) => {
                let resets_at = error.resets_at.map(|moment| from_wall(&**run.hub.clock(), moment));
                let error = AgentError { resets_at, ..error }.from_provider(&self.provider_type);
                Some(TurnEnd::Failed(error.believable(run.now())))
            }
        }
    }

    /// Waits for something, but no longer than until the run is cancelled or a moment has come.
    async fn unless_stopped(&self, until: Instant, work: impl Future<Output = ()>) {
        tokio::select! {
            // The work first, so that an event is emitted whatever else has happened.
            biased;
            () = work => {}
            () = self.cancel.cancelled() => {}
            () = sleep_until(until) => {}
        }
    }

    /// Reads the stream after its output. Nothing may follow; what does is a warning. The provider
    /// gets a moment to clean up.
    async fn drain(&self, run: &mut OpenRun, stream: &mut ProviderStream<Value>) {
        let mut limit = pin!(sleep(DRAIN_TIMEOUT));
        loop {
            let next = tokio::select! {
                biased;
                item = AssertUnwindSafe(stream.next()).catch_unwind() => item,
                () = &mut limit => {
                    run.warn("lingering", "the provider's stream stayed open after its output");
                    return;
                }
            };
            match next {
                Ok(None) => return,
                Ok(Some(Ok(ProviderItem::Event(event)))) => run.apply(RunInput::Stream(event)),
                Ok(Some(Ok(ProviderItem::Output(_)))) => {
                    run.warn("afterOutput", "the provider sent a second output");
                }
                Ok(Some(Err(error))) => {
                    run.warn("afterOutput", format!("the provider failed after its output: {error}"));
                    return;
                }
                Err(_) => {
                    run.warn("afterOutput", "the provider panicked after its output");
                    return;
                }
            }
        }
    }

    /// A turn that was interrupted and then failed. An abort is what was asked for; after a cancellation any other
    /// failure is a warning and changes nothing.
    fn settle(&self, run: &OpenRun, end: TurnEnd, cut: Option<Cut>) -> TurnEnd {
        match (end, cut) {
            (TurnEnd::Failed(error), Some(_)) if error.code == ErrorCode::Aborted => TurnEnd::Interrupted,
            (TurnEnd::Failed(error), Some(Cut::Cancelled)) => {
                run.warn("cancelFailed", format!("the cancelled turn failed: {error}"));
                TurnEnd::Interrupted
            }
            (end, _) => end,
        }
    }

    pub(super) fn error(&self, code: ErrorCode, message: impl Into<String>) -> AgentError {
        AgentError::new(code, message).from_provider(&self.provider_type)
    }
}
