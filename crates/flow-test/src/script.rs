//! The answers of one case while its session runs: which one each attempt of a node gets, what was sent, and what was
//! missing. An answer is found by the place of the node and by how many of its attempts have ended, as the log has it;
//! so a session that is resumed gets the same answers as one that was not interrupted.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use inspan_engine::{Hub, RecordedCall, Replayer};
use inspan_flow::closest;
use inspan_protocol::{
    AgentError, DynProvider, Envelope, ErrorCode, Event, ExecutionContext, NodePath, Timestamp,
};
use serde_json::Value;

use crate::{
    answer::{AgentAnswer, AnswerKind, AnsweredTurn, AttemptAnswer, ErrorAnswer, Period, ToolAnswer},
    cases::{Case, Fault},
    expect::FailedExpectation,
    matcher::lines,
    pattern::{Pattern, best, in_pass, without_pass},
};

/// The answers of a case, and how far they have been used.
pub(crate) struct CaseScript {
    answers: Arc<Vec<(Pattern, Value)>>,
    /// How many of them are the case's own.
    own: usize,
    faults: Vec<Fault>,
    recordings: Option<Replayer>,
    /// The answers of the same case without its crash: an attempt that is resumed gets what it got there.
    undisturbed: Option<Arc<CaseScript>>,
    hub: OnceLock<Hub>,
    state: Mutex<ScriptState>,
}

#[derive(Default)]
struct ScriptState {
    /// How many attempts have ended, by the place with its pass and by the place without.
    ended: BTreeMap<String, u32>,
    /// How many of those got an error of a fault instead of their answer.
    faulted: BTreeMap<String, u32>,
    /// How many calls the agent of the newest attempt at a place has left behind, and whether it waits for a message.
    turns: BTreeMap<NodePath, (usize, bool)>,
    sent: Vec<SentRequest>,
    /// The recordings that were played, by the place and the number of the attempt.
    played: BTreeMap<(String, u32), Vec<RecordedCall>>,
    missing: Vec<FailedExpectation>,
    /// The answers that some attempt asked for, and how many of a list.
    used: BTreeMap<usize, usize>,
    /// The faults that an attempt met.
    met: BTreeSet<usize>,
}

/// One request that a node sent out.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SentRequest {
    pub(crate) path: NodePath,
    /// The attempt within its pass, counting from 1.
    pub(crate) attempt: u32,
    /// Which request of the attempt this is, counting from 1.
    pub(crate) turn: usize,
    pub(crate) kind: AnswerKind,
    pub(crate) request: Value,
}

/// One attempt of a node, as the answers see it.
pub(crate) struct Attempt {
    pub(crate) script: Arc<CaseScript>,
    pub(crate) path: NodePath,
    /// Its number within its pass and over all passes, counting from 1. An attempt that was interrupted and is resumed
    /// keeps its numbers.
    in_pass: u32,
    in_all: u32,
    /// Whether it continues one that was interrupted.
    resumed: bool,
    calls: AtomicUsize,
}

/// What a turn of an agent gets.
pub(crate) enum TurnAnswer {
    Written(Box<AgentAnswer>),
    Recorded(RecordedCall),
    Error(AgentError, Period),
}

impl CaseScript {
    pub(crate) fn new(case: &Case, recordings: Option<Replayer>) -> Self {
        Self {
            answers: case.answers.clone(),
            own: case.own_answers,
            faults: case.faults.clone(),
            recordings,
            undisturbed: None,
            hub: OnceLock::new(),
            state: Mutex::default(),
        }
    }

    /// The answers of a session that continues after these events.
    pub(crate) fn after(self: &Arc<Self>, case: &Case, before: &[Arc<Envelope>]) -> Self {
        let recordings = self.recordings.as_ref().map(Replayer::rewound);
        let script = Self { undisturbed: Some(self.clone()), ..Self::new(case, recordings) };
        before.iter().for_each(|envelope| script.observe(envelope));
        script
    }

    /// Lets a missing answer end the session.
    pub(crate) fn attach(&self, hub: &Hub) {
        // A script has one session.
        let _first = self.hub.set(hub.clone());
    }

    /// Counts the attempts that have ended, and the turns of those that have not.
    pub(crate) fn observe(&self, envelope: &Envelope) {
        let ends = matches!(
            envelope.event,
            Event::TaskComplete { .. }
                | Event::TaskFailed { .. }
                | Event::TaskAgent { after: Some(_), .. }
                | Event::LimitWait { .. }
        );
        let Some(path) = &envelope.context.task else { return };
        let listens = matches!(envelope.event, Event::AgentListen { .. });
        if listens || matches!(envelope.event, Event::AgentTurn { .. }) {
            let mut state = self.state();
            let (behind, listened) = state.turns.entry(path.clone()).or_default();
            *behind += usize::from(!*listened);
            *listened = listens;
        }
        if ends {
            let is_faulted = matches!(self.fault(path, self.numbers(path)), Some((_, Fault::Error { .. })));
            let mut state = self.state();
            state.turns.remove(path);
            for place in [in_pass(path), without_pass(path).to_owned()] {
                *state.faulted.entry(place.clone()).or_default() += u32::from(is_faulted);
                *state.ended.entry(place).or_default() += 1;
            }
        }
    }

    /// The number of the next attempt at a place, within its pass and over all passes, counting from 1.
    fn numbers(&self, path: &NodePath) -> (u32, u32) {
        let state = self.state();
        let ended = |place: &str| state.ended.get(place).copied().unwrap_or_default();
        (ended(&in_pass(path)) + 1, ended(without_pass(path)) + 1)
    }

    /// The fault for the attempt with these numbers, and its place among those of the case.
    fn fault(&self, path: &NodePath, (in_pass, in_all): (u32, u32)) -> Option<(usize, &Fault)> {
        self.faults.iter().enumerate().find(|(_, fault)| match fault {
            Fault::Error { node, attempt, .. } | Fault::Deny { node, attempt, .. } => {
                node.matches(path) && *attempt == if node.has_pass() { in_pass } else { in_all }
            }
            Fault::Crash(_) => false,
        })
    }

    pub(crate) fn attempt(self: &Arc<Self>, path: NodePath, resumed: bool) -> Attempt {
        let (in_pass, in_all) = self.numbers(&path);
        let (behind, _) = self.state().turns.get(&path).copied().unwrap_or_default();
        Attempt { script: self.clone(), path, in_pass, in_all, resumed, calls: AtomicUsize::new(behind) }
    }

    pub(crate) fn sent(&self) -> Vec<SentRequest> {
        self.state().sent.clone()
    }

    pub(crate) fn missing(&self) -> Vec<FailedExpectation> {
        self.state().missing.clone()
    }

    /// What is said of the case's answers that no attempt has asked for; and the keys of such of `defaults`.
    pub(crate) fn unused(&self) -> (Vec<String>, Vec<String>) {
        let state = self.state();
        let used = |at: usize| state.used.get(&at).copied().unwrap_or_default();
        let (own, defaults) = self.answers.split_at(self.own);
        let own = own.iter().enumerate().filter_map(|(at, (key, value))| {
            unused(&format!("answers.{key}"), used(at), value.as_array().map_or(1, Vec::len))
        });
        let defaults = defaults.iter().enumerate().filter(|(at, _)| used(self.own + at) == 0);
        (own.collect(), defaults.map(|(_, (key, _))| key.to_string()).collect())
    }

    /// What is said of recorded turns that were not asked for.
    pub(crate) fn left_over(&self) -> Option<String> {
        self.recordings.as_ref()?.left_over()
    }

    /// The faults that no attempt met; a crash is no fault of an attempt.
    pub(crate) fn unmet(&self) -> Vec<FailedExpectation> {
        let state = self.state();
        let unmet = self.faults.iter().enumerate().filter(|(at, _)| !state.met.contains(at));
        let failures = unmet.filter_map(|(_, fault)| {
            let (key, node, attempt, what) = match fault {
                Fault::Error { node, attempt, error } => ("faults.error", node, attempt, &error.error),
                Fault::Deny { node, attempt, tool } => ("faults.deny", node, attempt, tool),
                Fault::Crash(_) => return None,
            };
            let message = format!("attempt {attempt} of `{node}` never meets `{what}`");
            Some(FailedExpectation::new(key, message))
        });
        failures.collect()
    }

    fn state(&self) -> MutexGuard<'_, ScriptState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.hub.get().map_or_else(Timestamp::default, |hub| hub.clock().now())
    }

    /// Records a missing answer, and stops the session: nothing that follows from it is useful.
    fn miss(&self, key: String, message: String) -> AgentError {
        let error = AgentError::new(ErrorCode::ConfigInvalid, message.clone());
        self.state().missing.push(FailedExpectation::new(key, message));
        if let Some(hub) = self.hub.get() {
            // It may be ending already.
            let _ending = hub.abort(Some("the test has no answer".to_owned()));
        }
        error
    }
}

impl Attempt {
    fn number(&self, pattern: &Pattern) -> u32 {
        if pattern.has_pass() { self.in_pass } else { self.in_all }
    }

    /// The fault for this attempt, and its place among those of the case.
    fn fault(&self) -> Option<(usize, &Fault)> {
        self.script.fault(&self.path, (self.in_pass, self.in_all))
    }

    /// How many attempts before this one got an error instead of their answer.
    fn faults_before(&self, numbered_as: &Pattern) -> u32 {
        let place = match numbered_as.has_pass() {
            true => in_pass(&self.path),
            false => without_pass(&self.path).to_owned(),
        };
        self.script.state().faulted.get(&place).copied().unwrap_or_default()
    }

    /// The answer of this attempt: none if no key is for it.
    fn written(&self, kind: AnswerKind) -> Option<Result<AttemptAnswer, AgentError>> {
        if let Some((at, Fault::Error { error, .. })) = self.fault() {
            self.script.state().met.insert(at);
            return Some(Ok(AttemptAnswer::Error(error.clone())));
        }
        let (at, (key, value)) = best(&self.script.answers, &self.path)?;
        let index = (self.number(key) - 1).saturating_sub(self.faults_before(key)) as usize;
        count(&mut self.script.state().used, at, index);
        let item = match value {
            Value::Array(items) => match items.get(index) {
                Some(item) => item,
                None => {
                    let message = format!(
                        "`{}` asks for answer {} and the list has {}: add one, or write a single answer for all",
                        self.path,
                        index + 1,
                        items.len()
                    );
                    return Some(Err(self.script.miss(format!("answers.{key}"), message)));
                }
            },
            single => single,
        };
        Some(AttemptAnswer::parse(item, kind).map_err(|why| self.script.miss(format!("answers.{key}"), why)))
    }

    /// Takes down what is sent; returns which request of the attempt it is, counting from 0.
    fn send(&self, kind: AnswerKind, request: Value) -> usize {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let (path, attempt) = (self.path.clone(), self.in_pass);
        self.script.state().sent.push(SentRequest { path, attempt, turn: call + 1, kind, request });
        call
    }

    /// The answer to one call of an agent's provider.
    pub(crate) fn turn(
        &self,
        provider: &dyn DynProvider,
        input: &Value,
        context: &ExecutionContext,
    ) -> Result<TurnAnswer, AgentError> {
        let call = self.send(AnswerKind::Agent, request(input));
        match self.written(AnswerKind::Agent) {
            Some(Ok(AttemptAnswer::Turns(turns))) => match turns.into_iter().nth(call) {
                Some(AnsweredTurn::Answer(mut answer)) => {
                    if let (0, Some((at, Fault::Deny { tool, .. }))) = (call, self.fault()) {
                        self.script.state().met.insert(at);
                        let denied = ToolAnswer { name: tool.clone(), denied: true, ..ToolAnswer::default() };
                        answer.tools.insert(0, denied);
                    }
                    Ok(TurnAnswer::Written(answer))
                }
                Some(AnsweredTurn::Error(error)) => Ok(TurnAnswer::Error(self.error(&error), error.takes)),
                None => Err(self.one_turn_more(call, input)),
            },
            Some(Ok(AttemptAnswer::Error(error))) => Ok(TurnAnswer::Error(self.error(&error), error.takes)),
            Some(Ok(_)) => Err(self.no_output()),
            Some(Err(error)) => Err(error),
            None => self.recorded(provider, input, context, call).map(TurnAnswer::Recorded),
        }
    }

    fn one_turn_more(&self, call: usize, input: &Value) -> AgentError {
        let prompt = lines(&prompt_of(&request(input)));
        let message = format!(
            "`{}` makes call {} in one attempt, and the answer has fewer: write `turns: [ … ]` with one for each\nit is sent:\n{}",
            self.path,
            call + 1,
            indented(&prompt)
        );
        self.miss(message)
    }

    fn recorded(
        &self,
        provider: &dyn DynProvider,
        input: &Value,
        context: &ExecutionContext,
        call: usize,
    ) -> Result<RecordedCall, AgentError> {
        let place = (without_pass(&self.path).to_owned(), self.in_all);
        let before = self.script.undisturbed.as_ref().filter(|_| self.resumed);
        let again = before.and_then(|before| before.state().played.get(&place)?.get(call).cloned());
        let Some(replayer) = self.script.recordings.as_ref().filter(|_| again.is_none()) else {
            return again.ok_or_else(|| self.unanswered(input));
        };
        let taken =
            replayer.take(provider, input, context).map_err(|miss| self.no_recording(&miss.message))?;
        self.script.state().played.entry(place).or_default().push(taken.clone());
        Ok(taken)
    }

    /// Records that there is no answer for this node.
    fn miss(&self, message: String) -> AgentError {
        self.script.miss(format!("answers.{}", self.path), message)
    }

    /// No key and no recording is for this attempt.
    pub(crate) fn unanswered(&self, input: &Value) -> AgentError {
        let keys = self.script.answers.iter().map(|(key, _)| key.as_str());
        let hint = match closest(self.path.as_str(), keys) {
            Some(key) => format!("the nearest key is `{key}`"),
            None => format!("add `answers: {{ {}: … }}`", without_pass(&self.path)),
        };
        let sent = indented(&lines(&prompt_of(&request(input))));
        let message = format!("there is no answer for `{}`: {hint}\nit is sent:\n{sent}", self.path);
        self.miss(message)
    }

    /// The result of a program, a request or a tool; `None` if no key is for it.
    pub(crate) fn call(&self, kind: AnswerKind, input: &Value) -> Option<Result<AttemptAnswer, AgentError>> {
        self.send(kind, input.clone());
        self.written(kind)
    }

    /// What a node gives whose output is the answer.
    pub(crate) fn output(&self, input: &Value) -> Result<AttemptAnswer, AgentError> {
        self.send(AnswerKind::Output, request(input));
        self.written(AnswerKind::Output).unwrap_or_else(|| Err(self.unanswered(input)))
    }

    /// The recordings, as far as the case has any.
    pub(crate) fn recordings(&self) -> Option<&Replayer> {
        self.script.recordings.as_ref()
    }

    /// An error instead of an answer.
    pub(crate) fn error(&self, error: &ErrorAnswer) -> AgentError {
        match error.error(self.script.now()) {
            Ok(error) => error,
            Err(why) => self.miss(why),
        }
    }

    /// An answer of another sort of node.
    pub(crate) fn no_output(&self) -> AgentError {
        self.miss(format!("the answer does not fit the node `{}`", self.path))
    }

    /// A call that no recording fits.
    pub(crate) fn no_recording(&self, why: &str) -> AgentError {
        self.miss(format!("`{}`: {why}", self.path))
    }
}

/// Notes that what has this number, counting from 0, was asked for of an entry.
pub(crate) fn count(used: &mut BTreeMap<usize, usize>, entry: usize, number: usize) {
    let most = used.entry(entry).or_default();
    *most = (*most).max(number + 1);
}

/// What is said of an entry of which not all was asked for.
pub(crate) fn unused(key: &str, used: usize, all: usize) -> Option<String> {
    match used {
        0 => Some(format!("`{key}` is not used")),
        used if used < all => Some(format!("`{key}` is used only up to entry {used} of {all}")),
        _ => None,
    }
}

/// What is sent, without what differs between machines; a prompt alone is its text.
fn request(input: &Value) -> Value {
    let strip = |value: &mut Value| {
        if let Some(fields) = value.as_object_mut() {
            fields.remove("cwd");
            fields.remove("env");
        }
    };
    let mut request = input.clone();
    strip(&mut request);
    if let Some(options) = request.get_mut("options") {
        strip(options);
    }
    let alone =
        request.as_object().filter(|fields| fields.len() == 1).and_then(|fields| fields.get("prompt"));
    alone.cloned().unwrap_or(request)
}

/// The prompt of a request, or all of it.
pub(crate) fn prompt_of(request: &Value) -> Value {
    request.get("prompt").filter(|prompt| prompt.is_string()).unwrap_or(request).clone()
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("    {line}")).collect::<Vec<_>>().join("\n")
}
