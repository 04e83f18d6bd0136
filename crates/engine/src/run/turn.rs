//! One turn: one call of the provider, driven to its end whatever the provider does.
//! What the turn's events become is decided in `state`; what follows the turn, in `driver`.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    pin::pin,
    sync::Arc,
    time::Duration,
};

use futures::{FutureExt, StreamExt};
use inspan_protocol::{
    AgentError, DynProvider, Environment, ErrorCode, ExecutionContext, HostTools, OutputFacts,
    PermissionBroker, ProviderItem, ProviderStream, Redactor, SteerStrength, StreamEvent, Supervisor,
    believable_cost,
};
use serde_json::Value;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{live::Live, secrets, state::Input};

/// How long a cancelled turn may take to end; then its stream is dropped.
const GRACE: Duration = Duration::from_secs(10);
/// How long a stream may stay open after its output.
const LINGER: Duration = Duration::from_secs(2);
/// A timer that never fires in the life of a run still needs a moment: about thirty years.
const NEVER: Duration = Duration::from_secs(86_400 * 365 * 30);

/// What all turns of a run share.
pub(super) struct Setting {
    pub(super) provider: Arc<dyn DynProvider>,
    pub(super) provider_type: String,
    pub(super) native_steer: bool,
    pub(super) cancel: CancellationToken,
    pub(super) deadline: Option<Instant>,
    pub(super) permissions: Option<Arc<dyn PermissionBroker>>,
    pub(super) redactor: Redactor,
    pub(super) env: Environment,
    pub(super) cwd: Option<PathBuf>,
    pub(super) supervisor: Option<Supervisor>,
    pub(super) tools: HostTools,
}

/// Why the engine cut a turn short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    Cancelled,
    Deadline,
    Steered,
}

pub(super) enum TurnEnd {
    Output(Value, OutputFacts),
    /// Cut short, and the provider gave no output.
    Interrupted,
    Failed(AgentError),
}

pub(super) struct Turn {
    pub(super) end: TurnEnd,
    pub(super) cut: Option<Cut>,
}

enum Next {
    Item(Option<Result<ProviderItem<Value>, AgentError>>),
    Panicked,
    Cut(Cut),
    Unresponsive,
}

impl Setting {
    /// `turns_left` is how many model turns the run may still take.
    pub(super) async fn turn(&self, live: &mut Live, input: Value, turns_left: Option<u32>) -> Turn {
        live.apply(Input::TurnBegins);
        let (end, cut) = self.drive(live, input, turns_left).await;
        if !matches!(end, TurnEnd::Output(..)) {
            live.apply(Input::TurnEnds(None));
        }
        // A cancellation that came while a steered turn wound down is what counts.
        let cut = if cut.is_some() && self.cancel.is_cancelled() { Some(Cut::Cancelled) } else { cut };
        Turn { end: self.settle(live, end, cut), cut }
    }

    fn call(
        &self,
        live: &mut Live,
        input: Value,
        turns_left: Option<u32>,
    ) -> Result<ProviderStream<Value>, AgentError> {
        let context = ExecutionContext {
            cancel: live.begin_turn(&self.cancel),
            permissions: self.permissions.clone(),
            env: self.env.clone(),
            cwd: self.cwd.clone(),
            supervisor: self.supervisor.clone(),
            tools: self.tools.clone(),
            turns_left,
            steering: self.native_steer.then(|| live.mailbox().steerable()),
            deadline: self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())),
        };
        catch_unwind(AssertUnwindSafe(|| self.provider.execute(input, context)))
            .map(|stream| secrets::without(&self.redactor, stream))
            .map_err(|_| self.error(ErrorCode::Protocol, "the provider panicked"))
    }

    async fn drive(&self, live: &mut Live, input: Value, turns_left: Option<u32>) -> (TurnEnd, Option<Cut>) {
        let mut stream = match self.call(live, input, turns_left) {
            Ok(stream) => stream,
            Err(error) => return (TurnEnd::Failed(error), None),
        };
        let mailbox = live.mailbox();
        let mut cancelled = pin!(self.cancel.cancelled());
        let mut steered = pin!(mailbox.steered());
        // The deadline until the turn is cut, then the end of the grace.
        let mut timer = pin!(sleep_until(self.deadline.unwrap_or_else(|| Instant::now() + NEVER)));
        let mut cut = None;
        loop {
            let running = cut.is_none();
            let next = tokio::select! {
                biased;
                () = &mut cancelled, if running => Next::Cut(Cut::Cancelled),
                () = &mut timer => if running { Next::Cut(Cut::Deadline) } else { Next::Unresponsive },
                // Before the vendor has named its conversation an interruption would lose the turn's prompt.
                () = &mut steered, if running && !self.native_steer && live.session().is_some() => {
                    Next::Cut(Cut::Steered)
                }
                item = AssertUnwindSafe(stream.next()).catch_unwind() => {
                    item.map_or(Next::Panicked, Next::Item)
                }
            };
            match next {
                Next::Item(Some(Ok(ProviderItem::Event(event @ StreamEvent::Session { .. })))) if running => {
                    // A provider hands its prompt over when it is asked for more. If all died before the name of the
                    // conversation is kept, what the agent had begun to do could not be gone on with, and would be
                    // done again in another.
                    tokio::select! {
                        // First, so that the event is told whatever else has happened.
                        biased;
                        () = live.apply_and_store(Input::Stream(event)) => {}
                        () = self.cancel.cancelled() => {}
                        () = &mut timer => timer.as_mut().reset(Instant::now()),
                    }
                }
                Next::Item(Some(Ok(ProviderItem::Event(StreamEvent::Steered)))) => {
                    // A recording tells of messages too, which nobody has sent now.
                    if let Some(content) = mailbox.take_given() {
                        live.apply(Input::Steer(content, SteerStrength::Native));
                    }
                }
                Next::Item(Some(Ok(ProviderItem::Event(event)))) => {
                    live.apply(Input::Stream(event));
                    // An agent that says more than can be stored is not asked for more until that is.
                    if live.is_behind() {
                        tokio::select! {
                            biased;
                            () = live.catches_up() => {}
                            () = self.cancel.cancelled() => {}
                            () = &mut timer => timer.as_mut().reset(Instant::now()),
                        }
                    }
                    // A recording is always ready; others want to run too.
                    tokio::task::coop::consume_budget().await;
                }
                Next::Item(Some(Ok(ProviderItem::Output(output)))) => {
                    let end = match self.provider.output_facts(&output) {
                        Ok(mut facts) => {
                            facts.cost_usd = believable_cost(facts.cost_usd);
                            live.apply(Input::TurnEnds(Some(&facts)));
                            TurnEnd::Output(output, facts)
                        }
                        Err(error) => TurnEnd::Failed(error.from_provider(&self.provider_type)),
                    };
                    self.linger(live, stream).await;
                    return (end, cut);
                }
                Next::Item(Some(Err(error))) => {
                    let error = error.from_provider(&self.provider_type).believable(live.now());
                    return (TurnEnd::Failed(error), cut);
                }
                Next::Item(None) if cut.is_some() => return (TurnEnd::Interrupted, cut),
                Next::Item(None) => {
                    let error = self.error(ErrorCode::Protocol, "the provider ended without an output");
                    return (TurnEnd::Failed(error), cut);
                }
                Next::Panicked => {
                    let error = self.error(ErrorCode::Protocol, "the provider panicked");
                    return (TurnEnd::Failed(error), cut);
                }
                Next::Cut(why) => {
                    if why == Cut::Steered {
                        for content in mailbox.steering() {
                            live.apply(Input::Steer(content, SteerStrength::Interrupt));
                        }
                    }
                    live.cancel_turn();
                    cut = Some(why);
                    timer.as_mut().reset(Instant::now() + GRACE);
                }
                Next::Unresponsive => {
                    let seconds = GRACE.as_secs();
                    live.warn("unresponsive", format!("the cancelled turn did not end within {seconds} s"));
                    return (TurnEnd::Interrupted, cut);
                }
            }
        }
    }

    /// Nothing may follow the output; what does is told, and the provider gets a moment to tidy up.
    async fn linger(&self, live: &mut Live, mut stream: ProviderStream<Value>) {
        let mut limit = pin!(sleep(LINGER));
        loop {
            let next = tokio::select! {
                biased;
                item = AssertUnwindSafe(stream.next()).catch_unwind() => item,
                () = &mut limit => {
                    live.warn("lingering", "the provider's stream stayed open after its output");
                    return;
                }
            };
            match next {
                Ok(None) => return,
                Ok(Some(Ok(ProviderItem::Event(event)))) => live.apply(Input::Stream(event)),
                Ok(Some(Ok(ProviderItem::Output(_)))) => {
                    live.warn("afterOutput", "the provider sent a second output");
                }
                Ok(Some(Err(error))) => {
                    live.warn("afterOutput", format!("the provider failed after its output: {error}"));
                    return;
                }
                Err(_) => {
                    live.warn("afterOutput", "the provider panicked after its output");
                    return;
                }
            }
        }
    }

    /// A turn that was cut short and then failed: to be aborted is what was asked for, and on a cancellation
    /// any other fault is told but changes nothing.
    fn settle(&self, live: &Live, end: TurnEnd, cut: Option<Cut>) -> TurnEnd {
        match (end, cut) {
            (TurnEnd::Failed(error), Some(_)) if error.code == ErrorCode::Aborted => TurnEnd::Interrupted,
            (TurnEnd::Failed(error), Some(Cut::Cancelled)) => {
                live.warn("cancelFailed", format!("the cancelled turn failed: {error}"));
                TurnEnd::Interrupted
            }
            (end, _) => end,
        }
    }

    pub(super) fn error(&self, code: ErrorCode, message: impl Into<String>) -> AgentError {
        AgentError::new(code, message).from_provider(&self.provider_type)
    }
}
