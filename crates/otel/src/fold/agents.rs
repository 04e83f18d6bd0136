//! Agent runs, their tool calls, and the model calls of providers whose calls our own code makes.

use inspan_protocol::{
    AgentError, Envelope, ErrorCode, Event, PromptKind, Spending, StopReason, Timestamp, Usage,
};
use serde_json::Value;

use super::{
    Trace, UsageTotal, Vendor,
    open::{OpenSpan, SpanSubject},
    word,
};
use crate::{
    names::{ERROR_TYPE, OTHER_ERROR, event, gen_ai, operation, own, span},
    settings::Content,
    span::{Attributes, SpanKind, SpanStatus},
};

/// A run that has not ended.
#[derive(Debug)]
pub(super) struct OpenAgentRun {
    /// Its span: its attempt's, or a separate one.
    pub(super) place: SpanSubject,
    vendor: Option<Vendor>,
    model: Option<String>,
    spent: UsageTotal,
    /// Tool calls that have not ended.
    tools: usize,
    /// Model calls of this turn.
    calls: u32,
    /// Since when the model may be at work: the begin of the turn, or the end of the last tool call.
    ready: Option<Timestamp>,
}

impl UsageTotal {
    fn add(&mut self, (usage, spent): (Usage, Spending)) {
        let sum = self.0.get_or_insert_default();
        sum.0 += usage;
        sum.1 += spent;
    }

    /// The cost, if that of every turn is known.
    pub(super) fn cost(&self) -> Option<f64> {
        self.0.filter(|(_, spent)| !spent.unpriced).map(|(_, spent)| spent.cost_usd)
    }

    /// The tokens.
    pub(super) fn usage(&self) -> Usage {
        self.0.unwrap_or_default().0
    }
}

impl Trace {
    pub(super) fn agent_event(&mut self, envelope: &Envelope) {
        let at = envelope.timestamp;
        if let Some(spent) = self.unpriced_turns.take(&envelope.event) {
            self.spent.add(spent);
            if let Some(run) = envelope.event.run_id().and_then(|run| self.runs.get_mut(run.as_str())) {
                run.spent.add(spent);
            }
        }
        match &envelope.event {
            Event::AgentStart { agent_name, run_id, provider, model, .. } => {
                self.run_began(envelope, agent_name, run_id.as_str(), provider, model.as_deref());
            }
            Event::AgentSession { run_id, session_id } => {
                self.set_on_run(run_id.as_str(), gen_ai::CONVERSATION, session_id.as_str());
            }
            Event::AgentTurn { run_id, turn, .. } => {
                if let Some(run) = self.runs.get_mut(run_id.as_str()) {
                    run.ready = Some(at);
                }
                self.note(envelope, event::TURN, Attributes::default().with(own::TURN, *turn));
            }
            Event::AgentSteer { strength, .. } => {
                self.note(envelope, event::STEER, Attributes::default().with(own::DETAIL, word(strength)));
            }
            Event::AgentWarning { code, .. } => {
                self.note(envelope, event::WARNING, Attributes::default().with(own::DETAIL, code.as_str()));
            }
            Event::AgentText { run_id, .. } | Event::AgentThinking { run_id, .. } => {
                self.model_spoke(envelope, run_id.as_str());
            }
            Event::AgentToolStart { tool_name, tool_use_id, input, run_id } => {
                self.model_spoke(envelope, run_id.as_str());
                self.end_chat(run_id.as_str(), at, Some("tool_call"), None);
                let arguments = (self.settings.content == Content::On).then(|| input.to_string());
                self.tool_began(envelope, run_id.as_str(), tool_name, tool_use_id, arguments.as_deref());
            }
            Event::AgentToolComplete { tool_use_id, result, is_error, run_id, .. } => {
                let result = (self.settings.content == Content::On).then(|| result.to_string());
                self.tool_ended(run_id.as_str(), tool_use_id, result.as_deref(), *is_error, at);
            }
            Event::AgentUsage { usage, run_id, .. } => self.used(envelope, run_id.as_str(), *usage),
            Event::AgentComplete { run_id, stop_reason, usage, .. } => {
                self.run_ended(run_id.as_str(), *stop_reason, *usage, at);
            }
            Event::SessionPrompt(prompt) => {
                let what = match prompt.kind {
                    PromptKind::Permission => "permission",
                    PromptKind::Question => "question",
                    _ => "input",
                };
                let mut attributes = Attributes::default()
                    .with(own::WAITS_FOR, what)
                    .with(own::PROMPT, prompt.prompt_id.as_str())
                    .with_some(own::UNTIL, prompt.deadline.map(|until| until.to_string()));
                if self.settings.content == Content::On {
                    attributes.set_content(own::PROMPT_TEXT, &prompt.prompt);
                }
                let place = SpanSubject::Question(prompt.prompt_id.as_str().to_owned());
                self.close(&place, at, SpanStatus::Unset);
                let open = OpenSpan::new(self.event_span(envelope), span::QUESTION, at).with(attributes);
                let within = self.here(envelope);
                self.open.begin(place, Some(&within), open);
            }
            Event::SessionReply { prompt_id, .. } => {
                self.close(&SpanSubject::Question(prompt_id.as_str().to_owned()), at, SpanStatus::Unset);
            }
            _ => {}
        }
    }

    /// The innermost open span of the event's node.
    fn here(&self, envelope: &Envelope) -> SpanSubject {
        let Some(path) = &envelope.context.task else { return SpanSubject::Session };
        let attempt = SpanSubject::Attempt(path.clone());
        if self.open.get(&attempt).is_some() { attempt } else { self.enclosing(path) }
    }

    fn run_began(
        &mut self,
        envelope: &Envelope,
        agent: &str,
        run_id: &str,
        provider: &str,
        model: Option<&str>,
    ) {
        let here = self.here(envelope);
        // The first run of an attempt is the attempt.
        let is_attempt = matches!(here, SpanSubject::Attempt(_))
            && self.open.get(&here).is_some_and(|open| open.attributes.get(own::RUN).is_none());
        let place = if is_attempt {
            here
        } else {
            let place = SpanSubject::Run(run_id.to_owned());
            self.close(&place, self.last_live, SpanStatus::Unset);
            let open = OpenSpan::new(self.event_span(envelope), "", envelope.timestamp);
            self.open.begin(place.clone(), Some(&here), open);
            place
        };
        let vendor = self.settings.vendors.get(provider).copied();
        if let Some(open) = self.open.get_mut(&place) {
            open.name = format!("{} {agent}", operation::AGENT);
            open.attributes.set(gen_ai::OPERATION, operation::AGENT);
            open.attributes.set(gen_ai::PROVIDER, vendor.map_or(provider, |vendor| vendor.name));
            open.attributes.set(gen_ai::AGENT, agent);
            open.attributes.set(own::RUN, run_id);
            if let Some(model) = model {
                open.attributes.set(gen_ai::REQUEST_MODEL, model);
            }
        }
        let run = OpenAgentRun {
            place,
            vendor,
            model: model.map(str::to_owned),
            spent: UsageTotal::default(),
            tools: 0,
            calls: 0,
            ready: Some(envelope.timestamp),
        };
        self.runs.insert(run_id.to_owned(), run);
    }

    fn set_on_run(&mut self, run_id: &str, key: &'static str, value: impl Into<Value>) {
        let place = self.runs.get(run_id).map(|run| &run.place);
        if let Some(open) = place.and_then(|place| self.open.get_mut(place)) {
            open.attributes.set(key, value);
        }
    }

    /// The model has answered something: where our own code calls it, a call has begun, if none is open.
    fn model_spoke(&mut self, envelope: &Envelope, run_id: &str) {
        let place = SpanSubject::Chat(run_id.to_owned());
        let is_open = self.open.get(&place).is_some();
        let id = self.event_span(envelope);
        let Some(run) = self.runs.get_mut(run_id) else { return };
        let Some(vendor) = run.vendor.filter(|vendor| vendor.is_api && !is_open) else { return };
        let Some(since) = run.ready.take() else { return };
        run.calls += 1;
        let attributes = Attributes::default()
            .with(gen_ai::OPERATION, operation::CHAT)
            .with(gen_ai::PROVIDER, vendor.name)
            .with_some(gen_ai::REQUEST_MODEL, run.model.as_deref());
        let name = match &run.model {
            Some(model) => format!("{} {model}", operation::CHAT),
            None => operation::CHAT.to_owned(),
        };
        let mut open = OpenSpan::new(id, name, since).with(attributes);
        open.kind = SpanKind::Client;
        let within = run.place.clone();
        self.open.begin(place, Some(&within), open);
    }

    fn end_chat(&mut self, run_id: &str, at: Timestamp, finish: Option<&str>, usage: Option<&Usage>) {
        let place = SpanSubject::Chat(run_id.to_owned());
        let Some(open) = self.open.get_mut(&place) else { return };
        if let Some(finish) = finish {
            open.attributes.set(gen_ai::FINISH_REASONS, vec![finish]);
        }
        if let Some(usage) = usage {
            set_usage(&mut open.attributes, usage);
        }
        self.close(&place, at, SpanStatus::Unset);
    }

    fn tool_began(
        &mut self,
        envelope: &Envelope,
        run_id: &str,
        tool: &str,
        call: &str,
        arguments: Option<&str>,
    ) {
        let place = SpanSubject::Tool(run_id.to_owned(), call.to_owned());
        self.close(&place, envelope.timestamp, SpanStatus::Unset);
        let mut attributes = Attributes::default()
            .with(gen_ai::OPERATION, operation::TOOL)
            .with(gen_ai::TOOL, tool)
            .with(gen_ai::TOOL_CALL, call);
        if let Some(arguments) = arguments {
            attributes.set_content(gen_ai::TOOL_ARGUMENTS, arguments);
        }
        let name = format!("{} {tool}", operation::TOOL);
        let open = OpenSpan::new(self.event_span(envelope), name, envelope.timestamp).with(attributes);
        let within = match self.runs.get_mut(run_id) {
            Some(run) => {
                run.tools += 1;
                run.ready = None;
                run.place.clone()
            }
            None => self.here(envelope),
        };
        self.open.begin(place, Some(&within), open);
    }

    fn tool_ended(&mut self, run_id: &str, call: &str, result: Option<&str>, is_error: bool, at: Timestamp) {
        let place = SpanSubject::Tool(run_id.to_owned(), call.to_owned());
        if let Some(run) = self.runs.get_mut(run_id) {
            run.tools = run.tools.saturating_sub(1);
            if run.tools == 0 {
                run.ready = Some(at);
            }
        }
        let mut status = SpanStatus::Unset;
        if let Some(open) = self.open.get_mut(&place) {
            if let Some(result) = result {
                open.attributes.set_content(gen_ai::TOOL_RESULT, result);
            }
            if is_error {
                open.attributes.set(ERROR_TYPE, OTHER_ERROR);
                status = SpanStatus::error("the tool failed");
            }
        }
        self.close(&place, at, status);
    }

    /// The end of a turn. Its tokens are those of its model call, if it made one alone.
    fn used(&mut self, envelope: &Envelope, run_id: &str, usage: Usage) {
        if usage != Usage::default() {
            self.model_spoke(envelope, run_id);
        }
        let Some(run) = self.runs.get_mut(run_id) else { return };
        let is_alone = std::mem::take(&mut run.calls) == 1;
        run.ready = None;
        self.end_chat(run_id, envelope.timestamp, None, is_alone.then_some(&usage));
    }

    fn run_ended(&mut self, run_id: &str, reason: StopReason, usage: Usage, at: Timestamp) {
        self.end_chat(run_id, at, None, None);
        let Some(run) = self.runs.remove(run_id) else { return };
        let usage = if usage == Usage::default() { run.spent.usage() } else { usage };
        let Some(open) = self.open.get_mut(&run.place) else { return };
        set_usage(&mut open.attributes, &usage);
        if let Some(cost) = run.spent.cost() {
            open.attributes.set(own::COST, cost);
        }
        if let Some(reason) = finish_reason(reason) {
            open.attributes.set(gen_ai::FINISH_REASONS, vec![reason]);
        }
        if matches!(run.place, SpanSubject::Run(_)) {
            let status = match reason {
                StopReason::Error => {
                    self.blame(&run.place, &AgentError::new(ErrorCode::NodeFailed, "the agent run failed"))
                }
                _ => SpanStatus::Unset,
            };
            self.close(&run.place, at, status);
        }
    }
}

/// The conventions' word for why a model stopped, or ours where they have none.
fn finish_reason(reason: StopReason) -> Option<&'static str> {
    match reason {
        StopReason::Complete => Some("stop"),
        StopReason::MaxTokens => Some("length"),
        StopReason::MaxTurns => Some("max_turns"),
        StopReason::Refusal => Some("content_filter"),
        StopReason::Error => Some("error"),
        _ => None,
    }
}

/// Writes down tokens, unless none are known. The conventions count cached tokens among those read.
pub(super) fn set_usage(attributes: &mut Attributes, usage: &Usage) {
    if usage.total() == 0 {
        return;
    }
    let read = usage
        .input_tokens
        .saturating_add(usage.cache_read_tokens)
        .saturating_add(usage.cache_creation_tokens);
    attributes.set(gen_ai::INPUT_TOKENS, read);
    attributes.set(gen_ai::OUTPUT_TOKENS, usage.output_tokens);
    for (key, tokens) in [
        (gen_ai::CACHE_READ_TOKENS, usage.cache_read_tokens),
        (gen_ai::CACHE_WRITE_TOKENS, usage.cache_creation_tokens),
        (gen_ai::REASONING_TOKENS, usage.reasoning_tokens),
    ] {
        if tokens > 0 {
            attributes.set(key, tokens);
        }
    }
}
