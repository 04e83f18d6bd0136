//! A run driven by hand, with the hub's and the nodes' part of the work. What each attempt does is a list of steps;
//! a seed chooses which attempt takes the next one. Beside the live state there is a fold of the log that gets every
//! fact twice and no stream event: the two must never differ.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt::Debug,
    sync::Arc,
    time::Duration,
};

use inspan_engine::check_order;
use inspan_protocol::{
    AgentError, BudgetRaise, Envelope, ErrorCode, Event, EventContext, NodePath, Outcome, Prompt, PromptId,
    PromptKind, ProviderSessionId, RunId, RunSnapshot, SessionId, StopReason, Timestamp, TurnSpending, Usage,
};
use serde_json::json;

use crate::{
    graph::{FrameIx, Graph, TaskRef},
    pilot::AttemptLoss,
    schedule::{Action, Agenda, AttemptEnd, Reusable, Run, StartNode},
    state::{FACTS, Facts},
};

/// What an attempt does next.
#[derive(Debug)]
pub(super) enum AttemptStep {
    /// `agent:start`.
    Begin,
    /// `agent:session`.
    Name(String),
    /// A tool starts, and nobody sees it end if the process dies.
    Tool,
    ToolDone,
    Text,
    /// A turn goes on that took this since it was last reported: `agent:spent`.
    Spent(Option<f64>, u64),
    /// A turn ends that took this since it was last reported: `agent:usage`.
    Usage(Option<f64>, u64),
    /// The same, at this place of the conversation.
    TurnEnd(String),
    /// The next turn begins.
    Turn,
    /// `agent:complete`.
    Complete,
    Ask(Option<Timestamp>),
    Reply(&'static str),
    /// Continues at this time.
    Until(Timestamp),
    End(AttemptEnd),
}

#[derive(Debug)]
struct Doing {
    node: TaskRef,
    attempt: u32,
    path: NodePath,
    steps: VecDeque<AttemptStep>,
    run: Option<RunId>,
    tool: bool,
    /// What of the turn in progress is reported.
    reported: Option<TurnSpending>,
    asked: Option<PromptId>,
}

/// A run with its log.
pub(super) struct Sim {
    pub(super) run: Run,
    pub(super) log: Vec<Envelope>,
    pub(super) now: Timestamp,
    /// The most attempts that ran at once.
    pub(super) most: u32,
    /// What was started, as the scheduler said it.
    pub(super) started: Vec<StartNode>,
    /// What a person answers who is asked whether to run something again.
    pub(super) answer: Option<&'static str>,
    /// Budgets that the next resume raises.
    pub(super) budget: BudgetRaise,
    shadow: Facts,
    chance: u64,
    doing: Vec<Doing>,
    questions: Vec<(NodePath, PromptId)>,
}

impl Sim {
    pub(super) fn new(graph: &Arc<Graph>, log: &[Envelope]) -> Self {
        Self::of(Run::new(graph.clone(), &SessionId::from("s"), graph.input.clone(), None), log)
    }

    pub(super) fn of(mut run: Run, log: &[Envelope]) -> Self {
        for envelope in log {
            run.apply(envelope);
        }
        let mut shadow = Facts::new(&run.graph);
        log.iter().for_each(|envelope| shadow.apply(&run.graph, envelope));
        Self {
            run,
            log: log.to_vec(),
            now: log.last().map_or(Timestamp::default(), |last| last.timestamp),
            most: 0,
            started: Vec::new(),
            answer: Some("run it again"),
            budget: BudgetRaise::default(),
            shadow,
            chance: 0,
            doing: Vec::new(),
            questions: Vec::new(),
        }
    }

    /// Continues after a pause or a crash that left this log.
    pub(super) fn resumed(graph: &Arc<Graph>, log: &[Envelope], message: Option<&str>) -> Self {
        let mut sim = Self::new(graph, log);
        sim.resume(message, &BTreeMap::new());
        sim
    }

    pub(super) fn resume(&mut self, message: Option<&str>, messages: &BTreeMap<String, String>) {
        let last_event = self.log.last().map(|last| last.timestamp);
        let actions = self.run.resume(message, messages, &self.budget, last_event);
        self.put_all(actions);
    }

    /// Puts events that the run itself wants into the log.
    fn put_all(&mut self, actions: Vec<Action>) {
        for action in actions {
            let Action::Emit { task, event } = action else { panic!("{action:?}") };
            let run = match &event {
                Event::AgentComplete { run_id, .. } => Some(run_id.clone()),
                _ => None,
            };
            self.put(task, run, event);
        }
    }

    /// Continues from a snapshot; the log begins after it.
    pub(super) fn restored(graph: &Arc<Graph>, snapshot: &RunSnapshot, now: Timestamp) -> Self {
        let mut sim = Self::new(graph, &[]);
        sim.run.restore(snapshot);
        sim.shadow = Facts::restore(graph, snapshot);
        sim.now = now;
        sim.resume(None, &BTreeMap::new());
        sim
    }

    pub(super) fn reusing(graph: &Arc<Graph>, reusable: Reusable) -> Self {
        Self::reusing_log(graph, reusable, &[])
    }

    pub(super) fn reusing_log(graph: &Arc<Graph>, reusable: Reusable, log: &[Envelope]) -> Self {
        let run = Run::new(graph.clone(), &SessionId::from("t"), graph.input.clone(), None);
        Self::of(run.reusing(Arc::new(reusable)), log)
    }

    /// Attempts advance in another order than that of the graph.
    pub(super) fn shuffled(mut self, seed: u64) -> Self {
        self.chance = seed | 1;
        self
    }

    pub(super) fn driven(mut self, world: impl Fn(&StartNode, &Run) -> Vec<AttemptStep>) -> Self {
        self.drive(world);
        self
    }

    pub(super) fn driven_to(
        mut self,
        event: &str,
        world: impl Fn(&StartNode, &Run) -> Vec<AttemptStep>,
    ) -> Self {
        self.until_event(event, world);
        self
    }

    pub(super) fn emit(&mut self, task: Option<NodePath>, event: Event) {
        self.put(task, None, event);
    }

    fn put(&mut self, task: Option<NodePath>, agent: Option<RunId>, event: Event) {
        let is_fact = FACTS.contains(&event.name());
        let context = EventContext { task, agent, ..EventContext::session(self.run.session.clone()) };
        let last = self.run.facts.session.last_seq.max(self.log.last().map_or(0, |last| last.seq));
        let envelope = Envelope::new(context, last + 1, self.now, event);
        self.run.apply(&envelope);
        if is_fact {
            let graph = self.run.graph.clone();
            self.shadow.apply(&graph, &envelope);
            self.shadow.apply(&graph, &envelope);
            if let Some(late) = self.log.first() {
                self.shadow.apply(&graph, late);
            }
        }
        self.log.push(envelope);
        assert_eq!(facts(&self.run.facts), facts(&self.shadow), "{}", story(&self.log));
        self.check_agenda();
    }

    /// What may be decided follows from the facts alone, whatever was decided before.
    fn check_agenda(&self) {
        let rebuilt = Agenda::rebuild(&self.run.graph, &self.shadow);
        assert_eq!(self.run.agenda, rebuilt, "{}", story(&self.log));
        for set in self.run.facts.tasks().filter_map(|(_, node)| node.frames.as_deref()) {
            let working = set.open.values().filter(|frame| self.run.facts.frames[**frame].slots > 0).count();
            assert_eq!(set.working as usize, working, "{}", story(&self.log));
            assert!(set.max_concurrency.is_none_or(|most| set.working <= most), "{}", story(&self.log));
        }
    }

    /// Does one step; returns whether the session has ended.
    pub(super) fn step(&mut self, world: &dyn Fn(&StartNode, &Run) -> Vec<AttemptStep>) -> bool {
        let mut actions = Vec::new();
        self.run.next(self.now, &mut actions);
        let decided = !actions.is_empty();
        assert_eq!(facts(&self.run.facts), facts(&self.shadow), "a decision changes no fact");
        self.check_agenda();
        for action in actions {
            match action {
                Action::Emit { task, event } => self.emit(task, event),
                Action::Start(start) => self.start(*start, world),
                Action::Cancel { node, attempt, .. } => self.cancel(node, attempt),
                Action::Ask { task, id, prompt, choices } => {
                    let id = id.unwrap_or_else(|| format!("prompt-{}", self.log.len()).into());
                    self.questions.push((task.clone(), id.clone()));
                    self.emit(Some(task), prompted(id, &prompt, Some(choices), None));
                }
                Action::Finish => return true,
            }
        }
        if !decided && !self.advance() && !self.reply() {
            let wake = self.run.wake_at().into_iter().chain(self.until()).min();
            let Some(wake) = wake else { panic!("it neither runs nor waits\n{}", story(&self.log)) };
            self.now = wake.max(self.now + Duration::from_millis(1));
        }
        false
    }

    /// Runs to the end, or to where it waits.
    pub(super) fn drive(&mut self, world: impl Fn(&StartNode, &Run) -> Vec<AttemptStep>) {
        for _ in 0..10_000 {
            if self.step(&world) {
                return;
            }
        }
        panic!("the run does not end\n{}", story(&self.log));
    }

    fn start(&mut self, start: StartNode, world: &dyn Fn(&StartNode, &Run) -> Vec<AttemptStep>) {
        self.most = self.most.max(self.run.facts.running());
        let steps = match &start.input {
            Ok(_) => world(&start, &self.run),
            Err(error) => vec![AttemptStep::End(AttemptEnd::Error(error.clone()))],
        };
        self.doing.push(Doing {
            node: start.node,
            attempt: start.attempt,
            path: start.path.clone(),
            steps: steps.into(),
            run: None,
            tool: false,
            reported: None,
            asked: start.interrupted.as_ref().and_then(|cut| Some(cut.asked.as_ref()?.prompt_id.clone())),
        });
        self.doing.sort_by_key(|doing| doing.node);
        self.started.push(start);
    }

    fn cancel(&mut self, node: TaskRef, attempt: u32) {
        let found = self.doing.iter_mut().find(|doing| doing.node == node && doing.attempt == attempt);
        let doing = found.expect("what is cancelled runs");
        let aborted = AttemptStep::End(AttemptEnd::Error(AgentError::new(ErrorCode::Aborted, "cancelled")));
        let tool = doing.tool.then_some(AttemptStep::ToolDone);
        let complete = doing.run.is_some().then_some(AttemptStep::Complete);
        doing.steps = tool.into_iter().chain(complete).chain([aborted]).collect();
    }

    /// The process of one running attempt dies, or is stopped.
    pub(super) fn lose_one(&mut self) {
        let how = if self.roll(2) == 0 { AttemptLoss::Died } else { AttemptLoss::Stopped };
        self.lose(how);
    }

    /// The process of one running attempt is gone.
    pub(super) fn lose(&mut self, how: AttemptLoss) {
        if self.doing.is_empty() {
            return;
        }
        let at = self.roll(self.doing.len());
        let Doing { node, attempt, tool, run, path, .. } = self.doing.remove(at);
        if tool {
            // The worker sees its tools end before it is given up.
            let (tool_name, tool_use_id) = ("Bash".to_owned(), "t".to_owned());
            let (result, run_id) = (json!("lost"), run.clone().unwrap_or_else(|| RunId::from("none")));
            let event = Event::AgentToolComplete { tool_name, tool_use_id, result, is_error: true, run_id };
            self.put(Some(path), run, event);
        }
        let actions = self.run.lose(node, attempt, how);
        self.put_all(actions);
    }

    fn until(&self) -> Option<Timestamp> {
        let times = self.doing.iter().filter_map(|doing| match doing.steps.front() {
            Some(AttemptStep::Until(at)) => Some(*at),
            _ => None,
        });
        times.min()
    }

    /// One step of one attempt, if any can be taken now.
    fn advance(&mut self) -> bool {
        let now = self.now;
        let ready = |doing: &Doing| !matches!(doing.steps.front(), Some(AttemptStep::Until(at)) if *at > now);
        let able: Vec<_> = (0..self.doing.len()).filter(|&at| ready(&self.doing[at])).collect();
        if able.is_empty() {
            return false;
        }
        let at = able[self.roll(able.len())];
        let doing = &mut self.doing[at];
        let (path, step) = (doing.path.clone(), doing.steps.pop_front().expect("an attempt ends"));
        if let AttemptStep::Begin = step {
            doing.run = Some(format!("run-{}", self.log.len()).into());
        }
        let run = doing.run.clone();
        let run_id = || run.clone().unwrap_or_else(|| RunId::from("none"));
        let agent_name = path.node().to_owned();
        let event = match step {
            AttemptStep::Until(_) => return true,
            AttemptStep::End(end) => {
                let Doing { node, attempt, .. } = self.doing.remove(at);
                let ended = self.run.conclude(node, attempt, end, self.now);
                let (path, event) = ended.expect("a running attempt ends");
                self.emit(Some(path), event);
                return true;
            }
            AttemptStep::Begin => Event::AgentStart {
                agent_name,
                run_id: run_id(),
                provider: "talk".to_owned(),
                model: None,
                turn: 1,
                multi_turn: Default::default(),
                listens: false,
            },
            AttemptStep::Name(name) => {
                Event::AgentSession { run_id: run_id(), session_id: name.as_str().into() }
            }
            AttemptStep::Text => Event::AgentText { content: "x".to_owned(), delta: true, run_id: run_id() },
            AttemptStep::Tool => {
                doing.tool = true;
                let (tool_name, tool_use_id) = ("Bash".to_owned(), "t".to_owned());
                Event::AgentToolStart { tool_name, tool_use_id, input: json!({}), run_id: run_id() }
            }
            AttemptStep::ToolDone => {
                doing.tool = false;
                let (tool_name, tool_use_id) = ("Bash".to_owned(), "t".to_owned());
                let result = json!("done");
                Event::AgentToolComplete { tool_name, tool_use_id, result, is_error: false, run_id: run_id() }
            }
            AttemptStep::Spent(cost_usd, tokens) => {
                let usage = Usage { input_tokens: tokens, ..Usage::default() };
                let reported = doing.reported.get_or_insert_default();
                reported.usage += usage;
                reported.cost_usd = cost_usd.map(|usd| usd + reported.cost_usd.unwrap_or_default());
                Event::AgentSpent { usage, cost_usd, run_id: run_id() }
            }
            AttemptStep::Usage(cost_usd, tokens) => {
                let (mut usage, reported) =
                    (Usage { input_tokens: tokens, ..Usage::default() }, doing.reported.take());
                let before = reported.unwrap_or_default();
                usage += before.usage;
                Event::AgentUsage {
                    usage,
                    cost_usd: cost_usd.map(|usd| usd + before.cost_usd.unwrap_or_default()),
                    context: None,
                    turn_id: None,
                    reported,
                    uncounted: false,
                    run_id: run_id(),
                }
            }
            AttemptStep::TurnEnd(end) => {
                let (usage, turn_id) = (Usage::default(), Some(end.as_str().into()));
                Event::AgentUsage {
                    usage,
                    cost_usd: Some(0.5),
                    context: None,
                    turn_id,
                    reported: None,
                    uncounted: false,
                    run_id: run_id(),
                }
            }
            AttemptStep::Turn => Event::AgentTurn { run_id: run_id(), turn: 2, messages: None },
            AttemptStep::Complete => {
                doing.run = None;
                Event::AgentComplete {
                    agent_name,
                    success: true,
                    run_id: run_id(),
                    stop_reason: StopReason::Complete,
                    usage: Usage::default(),
                    duration_ms: 0,
                    unpriced: false,
                }
            }
            AttemptStep::Ask(deadline) => {
                let id = doing.asked.take().unwrap_or_else(|| format!("prompt-{}", self.log.len()).into());
                doing.asked = Some(id.clone());
                prompted(id, "?", None, deadline)
            }
            AttemptStep::Reply(content) => {
                let prompt_id = doing.asked.clone().expect("a question");
                Event::SessionReply {
                    prompt_id,
                    content: content.to_owned(),
                    choice: None,
                    is_default: false,
                }
            }
        };
        self.put(Some(path), run, event);
        true
    }

    /// A person says what is to be done about what may have taken effect.
    fn reply(&mut self) -> bool {
        let (Some(answer), false) = (self.answer, self.questions.is_empty()) else { return false };
        let (_, prompt_id) = self.questions.remove(0);
        let choice = Some(answer.to_owned());
        self.emit(
            None,
            Event::SessionReply { prompt_id, content: answer.to_owned(), choice, is_default: false },
        );
        true
    }

    fn roll(&mut self, of: usize) -> usize {
        if self.chance == 0 {
            return 0;
        }
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 7;
        self.chance ^= self.chance << 17;
        (self.chance % of as u64) as usize
    }

    /// Each start of a node: the attempt, the conversation, its message and what follows its first turn.
    pub(super) fn starts(&self, node: &str) -> Vec<String> {
        let of_node = self.started.iter().filter(|start| start.path.node() == node);
        let shown = |start: &StartNode| {
            let with = start.conversation.as_ref().map_or("-", |known| known.session_id.as_str());
            let message = start.interrupted.as_ref().and_then(|cut| cut.message.as_deref()).unwrap_or("-");
            let mail = start.mail.iter().map(|mail| format!(" +{mail}")).collect::<String>();
            format!("{} {with}: {message}{mail}", start.attempt)
        };
        of_node.map(shown).collect()
    }

    /// Drives until the newest event has this name.
    pub(super) fn until_event(&mut self, name: &str, world: impl Fn(&StartNode, &Run) -> Vec<AttemptStep>) {
        for _ in 0..1_000 {
            if self.log.last().is_some_and(|last| last.event.name() == name) {
                return;
            }
            assert!(!self.step(&world), "no {name} came\n{}", story(&self.log));
        }
        panic!("no {name} came\n{}", story(&self.log));
    }

    /// How it ended: the outcome, and every output unless a failure cut the rest short.
    pub(super) fn end(&self) -> String {
        let state = &self.run.facts;
        let finished = matches!(state.session.outcome, Some(Outcome::Success | Outcome::Partial));
        format!("{:?} {:?}", state.session.outcome, finished.then_some(&state.frames[FrameIx::FLOW].outputs))
    }

    pub(super) fn check(&self) {
        if let Err(fault) = check_order(&self.log) {
            panic!("{fault}\n{}", story(&self.log));
        }
        let runs = |status| status == inspan_protocol::NodeStatus::Running;
        let mut nodes = self.run.facts.tasks().map(|(_, node)| node.status);
        let is_open = self.run.state().outcome().is_some() && nodes.any(runs);
        assert!(!is_open, "something is open at the end\n{}", story(&self.log));
    }

    /// The places that had finished within the first events, and were started again after them. In a frame that begins
    /// again, all of it is new.
    pub(super) fn again(&self, cut: usize) -> Vec<NodePath> {
        let (mut finished, mut again) = (Vec::new(), Vec::new());
        let (mut at_work, mut passed) = (BTreeMap::new(), BTreeSet::new());
        for (at, envelope) in self.log.iter().enumerate() {
            match (&envelope.event, &envelope.context.task) {
                (Event::FrameStart { index, .. }, Some(owner)) => {
                    let prefix = format!("{owner}[{index}]/");
                    finished.retain(|path: &NodePath| !path.as_str().starts_with(&prefix));
                    passed.retain(|(path, _): &(NodePath, String)| !path.as_str().starts_with(&prefix));
                }
                // An agent from which another has taken over never works on the node again.
                (Event::TaskAgent { agent, after, .. }, Some(path)) => {
                    passed.extend(after.as_ref().map(|after| (path.clone(), after.clone())));
                    at_work.insert(path.clone(), agent.clone());
                }
                (Event::TaskStart { path, .. }, _)
                    if at_work
                        .get(path)
                        .is_some_and(|agent| passed.contains(&(path.clone(), agent.clone()))) =>
                {
                    again.push(path.clone());
                }
                (Event::TaskStart { path, .. }, _) if at >= cut && finished.contains(path) => {
                    again.push(path.clone())
                }
                (event, Some(path)) if at < cut && is_finished(event) => finished.push(path.clone()),
                _ => {}
            }
        }
        again
    }
}

fn is_finished(event: &Event) -> bool {
    use Event::{TaskComplete, TaskFailed, TaskReused, TaskSkipped};
    matches!(
        event,
        TaskComplete { .. } | TaskSkipped { .. } | TaskReused { .. } | TaskFailed { will_retry: false, .. }
    )
}

fn prompted(id: PromptId, prompt: &str, choices: Option<Vec<String>>, deadline: Option<Timestamp>) -> Event {
    Event::SessionPrompt(Prompt { choices, deadline, ..Prompt::new(id, PromptKind::Input, prompt) })
}

/// All of a state that follows from the facts alone, and not from how far the scheduler has looked.
pub(super) fn facts(state: &Facts) -> impl PartialEq + Debug {
    (
        &state.frames,
        (&state.session.status, state.session.outcome, state.started_at(), state.rested, state.duration_ms()),
        (state.phase_begun, state.phase_ended),
        (&state.session.prompts, &state.pausing, &state.ending_frames),
        state.session.usage,
        (state.session.cost_usd, state.session.unpriced, state.dearest),
        (state.reported_tokens, state.budget_reported, state.carried, &state.raised, state.session.paused_by),
        state.last_at,
        (&state.ending, &state.taken_over),
    )
}

/// The names of a log's events with their tasks and edges, one per line.
pub(super) fn story(log: &[Envelope]) -> String {
    let line = |envelope: &Envelope| match (&envelope.event, &envelope.context.task) {
        (Event::EdgeFired { from, to }, _) => format!("{from} -> {to}"),
        (Event::EdgeSkipped { from, to }, _) => format!("{from} -/> {to}"),
        (Event::LoopIterate { from, to, iteration, .. }, _) => format!("{from} => {to} ({iteration})"),
        (Event::PhaseFailed { error, .. }, _) => format!("phase:failed {error}"),
        (event, Some(task)) => format!("{} {task}", event.name()),
        (event, None) => event.name().to_owned(),
    };
    log.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Nodes whose id says what they do: `bad…` fails, `twice…` fails once, `handled…` fails and is handled, `talk…`
/// is an agent of two turns, `limited…` one that hits a limit first, `human…` asks, `wait…` waits for 5 seconds.
pub(super) fn world(start: &StartNode, run: &Run) -> Vec<AttemptStep> {
    let id = run.state().spec(run.graph(), start.node).id.as_str();
    let state = run.state().node(start.node);
    let fails = id.starts_with("bad")
        || id.starts_with("handled")
        || (id.starts_with("twice") && state.failures == 0);
    if fails {
        let error = AgentError::new(ErrorCode::NodeFailed, format!("{id} fails"));
        return vec![AttemptStep::End(AttemptEnd::Error(error))];
    }
    let path = start.path.as_str();
    let done = AttemptStep::End(AttemptEnd::Output(json!({ "value": path })));
    let agent = run.state().agent_of(run.graph(), start.node).unwrap_or_default();
    let own = ProviderSessionId::from(format!("c-{path}{agent}"));
    let is_relay = id.starts_with("relay") || id.starts_with("pick");
    if id.starts_with("talk") || id.starts_with("limited") {
        let continues = start.interrupted.as_ref().is_some_and(|cut| cut.message.is_some());
        let with = start.conversation.as_ref().map(|known| &known.session_id);
        assert_eq!(with, continues.then_some(&own), "{path}\n{start:?}");
    }
    if is_relay && start.input.is_ok() && agent == "first" {
        let error = AgentError::new(ErrorCode::NodeFailed, "the first fails");
        return vec![
            AttemptStep::Begin,
            AttemptStep::Name(own.to_string()),
            AttemptStep::Usage(Some(0.1), 1),
            AttemptStep::Complete,
            AttemptStep::End(AttemptEnd::Error(error)),
        ];
    }
    if (id.starts_with("limited") && start.attempt == 1) || (is_relay && agent == "third") {
        let mut error = AgentError::new(ErrorCode::RateLimited, "come back later");
        error.resets_at = state.started_at.map(|at| at + Duration::from_secs(90));
        let limited = AttemptStep::End(AttemptEnd::Error(error));
        return vec![AttemptStep::Begin, AttemptStep::Name(own.to_string()), AttemptStep::Complete, limited];
    }
    if id.starts_with("talk") || id.starts_with("limited") || is_relay {
        return vec![
            AttemptStep::Begin,
            AttemptStep::Text,
            AttemptStep::Name(own.to_string()),
            AttemptStep::Tool,
            AttemptStep::ToolDone,
            AttemptStep::Usage(Some(0.5), 10),
            AttemptStep::Turn,
            AttemptStep::Text,
            AttemptStep::Usage(Some(0.25), 10),
            AttemptStep::Complete,
            done,
        ];
    }
    if id.starts_with("human") {
        let answered = start.interrupted.as_ref().is_some_and(|cut| cut.reply.is_some());
        return if answered {
            vec![done]
        } else {
            vec![AttemptStep::Ask(None), AttemptStep::Reply("yes"), done]
        };
    }
    if id.starts_with("wait") || id == "slow" {
        let since = start.interrupted.as_ref().and_then(|cut| cut.since).or(state.started_at);
        let until = since.map_or(Timestamp::default(), |since| since + Duration::from_secs(5));
        return vec![AttemptStep::Until(until), done];
    }
    vec![done]
}
