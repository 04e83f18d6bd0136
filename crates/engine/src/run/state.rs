//! From the stream of a provider to `agent:*` events: pure, and the only place that decides which event may follow.
//!
//! | Stage | begin | turn begins | text | turn ends | end |
//! |---|---|---|---|---|---|
//! | new | agent:start → between | - | - | - | - |
//! | between | - | → turn | warning `afterOutput` | - | agent:complete → ended |
//! | turn | - | - | agent:text | agent:usage → between | agent:usage, agent:complete → ended |
//! | ended | - | - | - | - | - |
//!
//! Within a turn each tool call, known by the vendor's id, is unseen, open or closed; a call that is open at
//! the turn's end is completed as failed.
//!
//! | Call | tool start | tool complete | turn ends |
//! |---|---|---|---|
//! | unseen | agent:tool:start → open | warning `toolNotStarted` | - |
//! | open | warning `toolStartedTwice` | agent:tool:complete → closed | agent:spent, agent:tool:complete, agent:usage → unseen |
//! | closed | warning `toolStartedTwice` | warning `toolCompletedTwice` | agent:spent, agent:usage → unseen |
//!
//! Every turn but the first, and that too of a run that begins by waiting, is reported as `agent:turn`, a message that steers as `agent:steer`. A session id is reported
//! once per distinct id; text, thinking, retractions and warnings pass as they are; usage is reported at the turn's end,
//! and before as `agent:spent` when it is certain that the turn goes on: a tool is called or has answered.

use inspan_protocol::{
    Chunk, ContextUse, Event, MultiTurn, OutputFacts, ProviderSessionId, RunId, SteerStrength, StopReason,
    StreamEvent, TurnId, TurnSpending, Usage, believable_cost, flat,
};
use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::Value;

/// The agent of a run.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) run_id: RunId,
    pub(crate) agent_name: String,
    pub(crate) provider: String,
    pub(crate) model: Option<String>,
    pub(crate) multi_turn: MultiTurn,
    /// Whether it begins by waiting for messages.
    pub(crate) listens: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum RunInput<'a> {
    Begin {
        turn: u32,
    },
    /// With how many of the messages to it.
    TurnBegins {
        messages: usize,
    },
    /// It waits for messages; with its output so far.
    Listens(Value),
    Stream(StreamEvent),
    /// A message reached the turn in progress, or is about to interrupt it.
    Steer(String, SteerStrength),
    /// The turn has failed after its prompt may have been sent: what it took is unknown, unless the provider said it.
    Unpriced,
    /// With the facts of the output if there was one.
    TurnEnds(Option<&'a OutputFacts>),
    End {
        stop_reason: StopReason,
        duration_ms: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RunStage {
    New,
    Between,
    Turn,
    Ended,
}

#[derive(Clone, Debug)]
enum CallState {
    Open { tool_name: String, number: usize },
    Closed,
}

/// The run so far.
#[derive(Debug)]
pub(crate) struct RunEvents {
    identity: Identity,
    stage: RunStage,
    /// The turn in progress, or the newest.
    turn: u32,
    began: bool,
    calls: FxHashMap<String, CallState>,
    session: Option<ProviderSessionId>,
    reported: FxHashSet<ProviderSessionId>,
    /// Whether the model has said or wanted something in this turn.
    is_answered: bool,
    /// Whether a request called a tool whose usage is still to come: some vendors report it after the tool has answered.
    called_tool: bool,
    turn_usage: Option<TurnSpending>,
    /// The part of it that is reported.
    turn_reported: Option<TurnSpending>,
    turn_context: Option<ContextUse>,
    usage: Usage,
    /// Whether a request of the turn was cut short while it was answered.
    uncounted: bool,
    /// Whether the price of a turn that failed is unknown.
    unpriced: bool,
    /// The turn that counts already: a provider that continues it may give its answer again.
    counted_turn: Option<TurnId>,
}

impl RunEvents {
    /// `session` is the conversation that the input resumes; it is reported when the vendor confirms it.
    pub(crate) fn new(identity: Identity, session: Option<ProviderSessionId>) -> Self {
        Self {
            identity,
            stage: RunStage::New,
            turn: 0,
            began: false,
            calls: FxHashMap::default(),
            session,
            reported: FxHashSet::default(),
            is_answered: false,
            called_tool: false,
            turn_usage: None,
            turn_reported: None,
            turn_context: None,
            usage: Usage::default(),
            uncounted: false,
            unpriced: false,
            counted_turn: None,
        }
    }

    /// The same after this turn of the conversation, which counts already.
    pub(crate) fn after(self, counted_turn: Option<TurnId>) -> Self {
        Self { counted_turn, ..self }
    }

    /// The conversation, to be resumed.
    pub(crate) fn session(&self) -> Option<&ProviderSessionId> {
        self.session.as_ref()
    }

    /// Tokens of all turns that have ended.
    pub(crate) fn usage(&self) -> Usage {
        self.usage
    }

    pub(crate) fn run_id(&self) -> &RunId {
        &self.identity.run_id
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.stage == RunStage::Ended
    }

    pub(crate) fn warning(&self, code: &str, message: impl Into<String>) -> Event {
        Event::AgentWarning { code: code.to_owned(), message: message.into(), run_id: self.run() }
    }

    pub(crate) fn apply(&mut self, input: RunInput<'_>) -> Vec<Event> {
        match (self.stage, input) {
            (RunStage::New, RunInput::Begin { turn }) => {
                self.stage = RunStage::Between;
                self.turn = turn;
                let identity = self.identity.clone();
                let Identity { run_id, agent_name, provider, model, multi_turn, listens } = identity;
                self.began = listens;
                vec![Event::AgentStart { agent_name, run_id, provider, model, turn, multi_turn, listens }]
            }
            (RunStage::Between, RunInput::Listens(output)) => {
                vec![Event::AgentListen { run_id: self.run(), output }]
            }
            (RunStage::Between, RunInput::TurnBegins { messages }) => {
                self.stage = RunStage::Turn;
                let is_first = !std::mem::replace(&mut self.began, true);
                if is_first {
                    return Vec::new();
                }
                self.turn += 1;
                let messages = u32::try_from(messages).ok();
                vec![Event::AgentTurn { run_id: self.run(), turn: self.turn, messages }]
            }
            (RunStage::Turn, RunInput::Steer(content, strength)) => {
                vec![Event::AgentSteer { run_id: self.run(), content, strength }]
            }
            (RunStage::Turn, RunInput::Stream(event)) => self.stream(event),
            (RunStage::Between, RunInput::Stream(event)) => {
                let what = serde_json::to_value(&event).ok();
                let what = what.as_ref().and_then(|event| event["type"].as_str()).unwrap_or("event");
                vec![self.warning("afterOutput", format!("the provider sent `{what}` after its output"))]
            }
            (RunStage::Turn, RunInput::Unpriced) => {
                self.turn_usage.get_or_insert_default();
                Vec::new()
            }
            (RunStage::Turn, RunInput::TurnEnds(facts)) => self.end_turn(facts),
            (RunStage::Between, RunInput::End { stop_reason, duration_ms }) => {
                self.end(stop_reason, duration_ms)
            }
            (RunStage::Turn, RunInput::End { stop_reason, duration_ms }) => {
                let mut events = self.end_turn(None);
                events.extend(self.end(stop_reason, duration_ms));
                events
            }
            _ => Vec::new(),
        }
    }

    fn stream(&mut self, event: StreamEvent) -> Vec<Event> {
        let run_id = self.run();
        let begins_tool = matches!(event, StreamEvent::ToolStart { .. });
        let calls_tool = matches!(event, StreamEvent::ToolStart { .. } | StreamEvent::ToolComplete { .. });
        self.is_answered |=
            calls_tool || matches!(event, StreamEvent::Text { .. } | StreamEvent::Thinking { .. });
        let event = match event {
            StreamEvent::Session { session_id } => return self.report_session(session_id),
            StreamEvent::Usage { usage, cost_usd } => {
                let cost_usd = believable_cost(cost_usd);
                // A price that was named counts; nobody knows that of what followed.
                let is_cut = self.is_priced() && cost_usd.is_none();
                let named = if is_cut { self.report_spending() } else { None };
                // Another request follows what looked like the last one: that of a sub-agent.
                let read = |usage: Usage| usage.total() - usage.output_tokens;
                let last = self.turn_usage.filter(|last| Some(*last) != self.turn_reported);
                let is_further = last.is_some_and(|last| read(last.usage) < read(usage));
                self.turn_usage = Some(TurnSpending { usage, cost_usd });
                if is_cut {
                    return named.into_iter().collect();
                }
                // The answers of its tools go to the model again.
                let goes_on = std::mem::take(&mut self.called_tool)
                    || is_further
                    || self.calls.values().any(|call| matches!(call, CallState::Open { .. }));
                return if goes_on { self.report_spending().into_iter().collect() } else { Vec::new() };
            }
            StreamEvent::Uncounted => {
                self.uncounted = true;
                return Vec::new();
            }
            StreamEvent::Context { context } => {
                self.turn_context = Some(context);
                return Vec::new();
            }
            StreamEvent::Text { content, chunk } => {
                Event::AgentText { content, delta: chunk == Chunk::Delta, run_id }
            }
            StreamEvent::Thinking { content, chunk } => {
                Event::AgentThinking { content, delta: chunk == Chunk::Delta, run_id }
            }
            // The mailbox knows which message it was; `Input::Steer` reports it.
            StreamEvent::Steered => return Vec::new(),
            StreamEvent::Retract => Event::AgentRetract { run_id },
            StreamEvent::Warning { code, message } => Event::AgentWarning { code, message, run_id },
            StreamEvent::ToolStart { tool_name, tool_use_id, input } => {
                let input = flat(input);
                if self.calls.contains_key(&tool_use_id) {
                    let message = format!("`{tool_name}` was started again as `{tool_use_id}`");
                    self.warning("toolStartedTwice", message)
                } else {
                    let call = CallState::Open { tool_name: tool_name.clone(), number: self.calls.len() };
                    self.calls.insert(tool_use_id.clone(), call);
                    Event::AgentToolStart { tool_name, tool_use_id, input, run_id }
                }
            }
            StreamEvent::ToolComplete { tool_use_id, result, is_error } => {
                let result = flat(result);
                match self.calls.insert(tool_use_id.clone(), CallState::Closed) {
                    Some(CallState::Open { tool_name, .. }) => {
                        Event::AgentToolComplete { tool_name, tool_use_id, result, is_error, run_id }
                    }
                    Some(CallState::Closed) => {
                        self.warning("toolCompletedTwice", format!("`{tool_use_id}` was completed again"))
                    }
                    None => {
                        self.calls.remove(&tool_use_id);
                        let message = format!("`{tool_use_id}` was completed and never started");
                        self.warning("toolNotStarted", message)
                    }
                }
            }
            // A kind of event that a newer protocol adds and this run does not know yet.
            _ => self.warning("unknownEvent", "the provider sent an event of a kind unknown here"),
        };
        let spent = calls_tool.then(|| self.report_spending()).flatten();
        self.called_tool |= begins_tool && spent.is_none();
        [event].into_iter().chain(spent).collect()
    }

    /// Whether the turn has named a price.
    fn is_priced(&self) -> bool {
        self.turn_usage.is_some_and(|spent| spent.cost_usd.is_some())
    }

    /// What the turn, which goes on, has taken since it was last reported.
    fn report_spending(&mut self) -> Option<Event> {
        let so_far = self.turn_usage.filter(|so_far| Some(*so_far) != self.turn_reported)?;
        let TurnSpending { usage, cost_usd } = so_far - self.turn_reported.unwrap_or_default();
        self.turn_reported = Some(so_far);
        Some(Event::AgentSpent { usage, cost_usd, run_id: self.run() })
    }

    fn end_turn(&mut self, facts: Option<&OutputFacts>) -> Vec<Event> {
        self.stage = RunStage::Between;
        let mut events = Vec::new();
        let is_answered = std::mem::take(&mut self.is_answered);
        self.called_tool = false;
        let uncounted = std::mem::take(&mut self.uncounted);
        let is_silent = |facts: &OutputFacts| {
            let spent =
                TurnSpending { usage: facts.usage, cost_usd: facts.cost_usd.filter(|cost| *cost > 0.0) };
            facts.stop_reason == StopReason::Aborted && spent == TurnSpending::default()
        };
        let is_unknown = self.turn_usage.is_none_or(|spent| spent == TurnSpending::default())
            && facts.is_none_or(is_silent);
        // A turn that nothing is known of did not end: its prompt and the messages with it are sent again.
        let has_ended = is_answered || uncounted || !is_unknown;
        if !has_ended {
            self.unpriced |= self.turn_usage.take().is_some() || facts.is_some();
        }
        if is_answered && facts.is_none() {
            // What a turn took that failed is unknown if nobody said it, and not nothing.
            self.turn_usage.get_or_insert_default();
            // It went on after a call, whether that was reported or not.
            events.extend(if self.calls.is_empty() { None } else { self.report_spending() });
        }
        let mut open: Vec<_> = self
            .calls
            .drain()
            .filter_map(|(id, call)| match call {
                CallState::Open { tool_name, number } => Some((number, id, tool_name)),
                CallState::Closed => None,
            })
            .collect();
        open.sort_unstable_by_key(|(number, ..)| *number);
        events.extend(open.into_iter().map(|(_, tool_use_id, tool_name)| Event::AgentToolComplete {
            tool_name,
            tool_use_id,
            result: Value::from("the turn ended before the tool answered"),
            is_error: true,
            run_id: self.run(),
        }));
        if let Some(session) = facts.and_then(|facts| facts.session.clone()) {
            events.extend(self.report_session(session));
        }
        let is_more = |facts: &OutputFacts| {
            let says = facts.usage != Usage::default() || facts.stop_reason == StopReason::Aborted;
            facts.cost_usd.is_none() && says
        };
        let is_cut = self.is_priced() && facts.is_some_and(is_more);
        // What was named counts; the output says that there is more.
        events.extend(if is_cut { self.report_spending() } else { None });
        let streamed = self.turn_usage.take().map(|spent| match is_cut {
            true => TurnSpending { cost_usd: None, ..spent },
            false => spent,
        });
        let context = self.turn_context.take();
        let reported = self.turn_reported.take().filter(|reported| *reported != TurnSpending::default());
        let turn_id = facts.and_then(|facts| facts.turn_id.clone());
        let is_counted = streamed.is_none() && turn_id.is_some() && turn_id == self.counted_turn;
        let output = facts
            .filter(|_| has_ended && !is_counted)
            .map(|facts| TurnSpending { usage: facts.usage, cost_usd: facts.cost_usd });
        // The output counts for the whole turn, unless it has no usage and the stream had.
        let spent =
            output.filter(|spent| streamed.is_none() || *spent != TurnSpending::default()).or(streamed);
        if let Some(TurnSpending { usage, cost_usd }) = spent {
            self.usage += usage;
            let run_id = self.run();
            events.push(Event::AgentUsage { usage, cost_usd, context, turn_id, reported, uncounted, run_id });
        }
        events
    }

    fn end(&mut self, stop_reason: StopReason, duration_ms: u64) -> Vec<Event> {
        self.stage = RunStage::Ended;
        let success = !matches!(stop_reason, StopReason::Aborted | StopReason::Error);
        let Identity { run_id, agent_name, .. } = self.identity.clone();
        vec![Event::AgentComplete {
            agent_name,
            success,
            run_id,
            stop_reason,
            usage: self.usage,
            duration_ms,
            unpriced: self.unpriced,
        }]
    }

    fn report_session(&mut self, session_id: ProviderSessionId) -> Vec<Event> {
        self.session = Some(session_id.clone());
        if !self.reported.insert(session_id.clone()) {
            return Vec::new();
        }
        vec![Event::AgentSession { run_id: self.run(), session_id }]
    }

    fn run(&self) -> RunId {
        self.identity.run_id.clone()
    }
}

#[cfg(test)]
mod tests;
