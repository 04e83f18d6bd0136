//! An agent run: a provider's turns from the first prompt to the last message, reported as `agent:*` events.
//!
//! The mailbox opens before `agent:start` and closes before `agent:complete`. Messages that wait at the end of a turn
//! become the next turn, joined by blank lines in their order. A message that steers interrupts the turn in progress as
//! soon as the vendor has named its conversation, and becomes the next turn: the engine cancels and resumes, which is as
//! strong as the vendor's own interrupt; the text of the interrupted turn stays in the log. Closing a run lets it deliver
//! what already waits; then it ends.
//!
//! The model turns of all provider calls are added up against `maxTurns` before each further message, so the last call
//! may exceed it. An answer after which no message waits must fit the output schema if there is one; if not, the agent is
//! asked once to fix it, whatever `maxTurns` says. Every message that no turn will read is reported by a warning
//! `undelivered`.

use std::{sync::Arc, time::Duration};

use inspan_protocol::{
    AgentError, DEFAULT_IDLE_TIMEOUT, DynProvider, Host, OutputFacts, ProviderSessionId, Redactor, RunId,
    TurnId,
};
use serde_json::Value;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::hub::Hub;

mod active;
pub(crate) mod mailbox;
mod output;
mod permissions;
mod redacted;
mod state;
mod turn;

pub use mailbox::{MAILBOX_CAPACITY, Mail, Mailbox, Wakeup};

pub(crate) use active::{OpenRun, Undelivered};
pub(crate) use mailbox::undelivered;
pub(crate) use state::{Identity, RunEvents};

use active::ActiveRun;
use output::{OutputCheck, Totals};
use turn::ProviderCall;

/// An agent run to be.
#[must_use = "a run does nothing until it is executed"]
pub struct AgentRun {
    hub: Hub,
    agent_name: String,
    provider: Arc<dyn DynProvider>,
    input: Value,
    run_id: Option<RunId>,
    host: Arc<Host>,
    deadline: Option<Duration>,
    first_turn: u32,
    idle_timeout: Duration,
    cancel: CancellationToken,
    mail: Vec<String>,
    answered: Option<(Value, ProviderSessionId)>,
    goes_on: bool,
    counted_turn: Option<TurnId>,
    undelivered: Option<Undelivered>,
}

/// How a run ended that did not fail; a cancelled run is one of these, with stop reason `aborted`.
#[derive(Clone, Debug, PartialEq)]
pub struct RunEnd {
    /// The run.
    pub run_id: RunId,
    /// The last turn's output; its `usage`, `costUsd` and `numTurns`, where it has them, are those of the
    /// whole run. Null if the run was cancelled before any turn gave an output.
    pub output: Value,
    /// The same as facts: the last turn's text and structured output, the sums, the run's own stop reason.
    pub facts: OutputFacts,
    /// How many turns the run took, which is how often the provider was called.
    pub turns: u32,
    /// The tool calls that were denied in any of them, as the output has them.
    pub denials: Vec<Value>,
}

impl AgentRun {
    /// A run of the provider on this input. The hub's handle carries the task, if there is one.
    pub fn new(
        hub: Hub,
        agent_name: impl Into<String>,
        provider: Arc<dyn DynProvider>,
        input: Value,
    ) -> Self {
        Self {
            hub,
            agent_name: agent_name.into(),
            provider,
            input,
            run_id: None,
            host: Arc::default(),
            deadline: None,
            first_turn: 1,
            idle_timeout: DEFAULT_IDLE_TIMEOUT,
            cancel: CancellationToken::new(),
            mail: Vec::new(),
            answered: None,
            goes_on: false,
            counted_turn: None,
            undelivered: None,
        }
    }

    /// The run's id, where someone has made it already; else it is a fresh one.
    pub fn run_id(self, run_id: RunId) -> Self {
        Self { run_id: Some(run_id), ..self }
    }

    /// The program that runs the agent: its environment, folder, tools and permissions.
    pub fn host(self, host: impl Into<Arc<Host>>) -> Self {
        Self { host: host.into(), ..self }
    }

    /// How long the run may take in all; then it fails with `TIMEOUT`.
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline: Some(deadline), ..self }
    }

    /// The number of the first turn, where the run continues an earlier conversation.
    pub fn first_turn(self, first_turn: u32) -> Self {
        Self { first_turn, ..self }
    }

    /// How long a multi-turn run waits for a message, unless its input says it.
    pub fn idle_timeout_default(self, idle_timeout: Duration) -> Self {
        Self { idle_timeout, ..self }
    }

    /// Cancels the run. It then ends within seconds, with what was done so far.
    pub fn cancel(self, cancel: CancellationToken) -> Self {
        Self { cancel, ..self }
    }

    /// Messages that wait for the run from its beginning, as if they had come during the first turn. Their events
    /// are in the log already.
    pub fn mail(self, mail: Vec<String>) -> Self {
        Self { mail, ..self }
    }

    /// The first turn continues one that was interrupted: the input only says so, and the conversation knows the rest. The last
    /// turn of the conversation that counts already is `counted_turn`: a provider may give its answer again.
    pub fn going_on(self, counted_turn: Option<TurnId>) -> Self {
        Self { goes_on: true, counted_turn, ..self }
    }

    /// What the run has answered that this one replaces, and its conversation: this one begins by waiting for messages.
    /// [`AgentRun::first_turn`] is the number of the last turn then.
    pub fn answered(self, output: Value, session: ProviderSessionId) -> Self {
        Self { answered: Some((output, session)), ..self }
    }

    /// Where the run puts the messages that it does not deliver, instead of a warning for each.
    pub(crate) fn undelivered(self, undelivered: Undelivered) -> Self {
        Self { undelivered: Some(undelivered), ..self }
    }

    /// Runs to the end. An input that the provider does not take fails before `agent:start`; after it there
    /// is exactly one `agent:complete`, also if this future is dropped.
    pub async fn execute(self) -> Result<RunEnd, AgentError> {
        let descriptor = self.provider.descriptor();
        let provider_type = descriptor.provider_type;
        let facts = self.provider.input_facts(&self.input)?;
        let check = facts.output_schema.as_ref().map(OutputCheck::new).transpose()?;
        let listens = self.answered.is_some();
        let (totals, session) = match self.answered {
            Some((output, session)) => {
                let facts = self.provider.output_facts(&output)?;
                (Totals::answered(output, facts), Some(session))
            }
            None => (Totals::default(), facts.session.clone()),
        };

        let run_id = self.run_id.unwrap_or_else(|| self.hub.ids().run_id());
        let hub = self.hub.with_agent(run_id.clone());
        let mailbox = hub.open_mailbox(&run_id, &self.agent_name, facts.multi_turn);
        mailbox.preload(self.mail);
        let identity = Identity {
            run_id,
            agent_name: self.agent_name,
            provider: provider_type.clone(),
            model: facts.model.clone(),
            multi_turn: facts.multi_turn,
            listens,
        };
        let redactor = Redactor::of_call(&self.host.env, &self.input);
        hub.redact(&redactor);
        let call = ProviderCall {
            provider: self.provider,
            provider_type,
            native_steer: descriptor.capabilities.native_steer,
            permissions: permissions::broker(
                self.host.permissions,
                self.deadline,
                &hub,
                &redactor,
                self.cancel.clone(),
            ),
            cancel: self.cancel,
            deadline: self.deadline.map(|deadline| Instant::now() + deadline),
            redactor,
            host: self.host,
            goes_on: self.goes_on,
        };
        let events = RunEvents::new(identity, session).after(self.counted_turn);
        let open = OpenRun::begin(hub, events, mailbox, self.first_turn, self.undelivered);
        let idle_timeout = facts.idle_timeout.unwrap_or(self.idle_timeout);
        let run = ActiveRun { open, call, facts, check, idle_timeout, totals };
        run.run(self.input, listens).await
    }
}

#[cfg(test)]
mod tests;
