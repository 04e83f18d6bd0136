//! What a resume or a fork would do with each node, without running anything.

use std::{
    collections::{BTreeMap, BTreeSet},
    iter,
};

use inspan_protocol::{BudgetRaise, Event, NodePath, NodeStatus, ProviderSessionId, SkipReason, Timestamp};

use super::{Action, Agenda, Planning, Reusable, Run, StartNode, reusable_task::ReusableTask};
use crate::graph::{Effects, FramesKind, Graph, NodeIx, TaskRef};

/// What happens to each node.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Each node, in the order of the flow; a node of a loop that ran several times is in it once for each pass.
    pub nodes: Vec<Planned>,
}

/// The plan for one node.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// Its place in the run.
    pub path: NodePath,
    /// The decision.
    pub decision: ReuseDecision,
    /// Whether it was finished before, or its question answered; of one that runs frames, whether anything in them was.
    pub was_finished: bool,
    /// Whether it was interrupted after an agent had worked on it, or after it may have taken effect.
    pub was_cut: bool,
    /// What it cost before, in US dollars, where known: what is saved if it is reused, and a guess at what it will
    /// cost if it is not.
    pub cost_usd: Option<f64>,
    /// Why it fails at once, or cannot begin, if that is so. What cannot begin since a budget is used up is decided as if there
    /// were enough: that is done once the budget is raised.
    pub error: Option<String>,
    /// Whether it waits for a larger budget then, and does not fail.
    pub waits_for_budget: bool,
    /// Its place in the earlier session: an item of a `control.foreach` may have another place in a list that was edited.
    pub before: Option<NodePath>,
}

impl ReuseReason {
    /// The reason in words.
    pub fn words(self) -> &'static str {
        match self {
            Self::New => "it has not run yet",
            Self::Asked => "it was asked for",
            Self::Type => "its type has changed",
            Self::Input => "its input has changed",
            Self::Session => "its `session` has changed",
            Self::Failed => "it failed",
            Self::Retried => "it failed and is tried again",
            Self::Unfinished => "it was interrupted",
            Self::Follows => "it depends on a node that runs again",
        }
    }
}

/// What an earlier session has left of a task that begins although it was begun there.
pub(crate) struct NotReused {
    /// The session and the place of the task in it, such as `s/review`.
    pub(crate) from: String,
    pub(crate) why: ReuseReason,
    /// The conversation that its agent may go on in.
    pub(crate) conversation: Option<ProviderSessionId>,
}

impl Planned {
    /// Whether work is done again, or may be: it was finished, or its agent could have continued it.
    pub fn is_done_again(&self) -> bool {
        match self.decision {
            // It would run again in an unchanged flow too.
            ReuseDecision::Runs(ReuseReason::Unfinished | ReuseReason::Failed | ReuseReason::Retried) => {
                self.was_finished
            }
            ReuseDecision::Runs(_) | ReuseDecision::Undecided => self.was_finished || self.was_cut,
            _ => false,
        }
    }
}

/// What a resume or a fork does with a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReuseDecision {
    /// It is done.
    Finished,
    /// Its output is reused.
    Reused,
    /// It was interrupted and may have taken effect: a person is asked.
    Asks,
    /// The answer to its question is stored, and is taken.
    Answered,
    /// It runs, at once.
    Runs(ReuseReason),
    /// It resumes its conversation.
    Resumes,
    /// It is skipped.
    Skipped,
    /// Whether it runs depends on what runs before it.
    Undecided,
    /// It fails at once.
    Fails,
    /// The session ends, and it does not run to its end.
    Cancelled,
    /// It is not among the nodes that alone are to run, and for this reason its output cannot be reused either.
    Omitted(ReuseReason),
    /// The flow does not have the node any more, and what it did is lost.
    Dropped,
}

/// Why a node runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReuseReason {
    /// It never ran.
    New,
    /// It was requested.
    Asked,
    /// Its type changed.
    Type,
    /// Its input changed.
    Input,
    /// It continues or branches another conversation.
    Session,
    /// It failed before.
    Failed,
    /// It failed, and its next attempt is to come.
    Retried,
    /// It was interrupted.
    Unfinished,
    /// A node that it depends on runs again.
    Follows,
}

impl Planned {
    /// A node of which nothing is left.
    fn new(path: NodePath, decision: ReuseDecision) -> Self {
        Self {
            path,
            decision,
            was_finished: false,
            was_cut: false,
            cost_usd: None,
            error: None,
            waits_for_budget: false,
            before: None,
        }
    }

    /// Adds what an earlier session has left of a task.
    fn add(&mut self, reusable: &Reusable, path: &NodePath, is_external: bool) {
        let Some(task) = reusable.tasks.get(path) else { return };
        self.was_finished |= reusable.has_finished(path) || task.answered.is_some();
        self.was_cut |= task.was_broken_off(is_external) && (is_external || task.has_worked());
        if let Some(cost) = task.cost_usd {
            *self.cost_usd.get_or_insert(0.0) += cost;
        }
    }
}

impl Plan {
    /// Adds the nodes that have finished or were interrupted in the earlier session, whose flow was `before`, and that the
    /// flow does not have `now`: one row for each, with all that ran in its frames.
    #[must_use]
    pub fn with_dropped(mut self, reusable: &Reusable, before: &Graph, now: &Graph) -> Self {
        let mut dropped: BTreeMap<NodePath, Planned> = BTreeMap::new();
        for (path, task) in &reusable.tasks {
            let place = path.place();
            let Some(gone) = now.first_missing(&place) else { continue };
            let is_external = before.find_place(&place).is_ok_and(|node| node.effects == Effects::External);
            if !reusable.has_finished(path) && !task.was_broken_off(is_external) {
                continue;
            }
            let row = dropped.entry(gone);
            let row = row.or_insert_with_key(|gone| Planned::new(gone.clone(), ReuseDecision::Dropped));
            row.add(reusable, path, is_external);
        }
        self.nodes.extend(dropped.into_values());
        self
    }

    /// The nodes whose work is lost because the flow does not have them any more, if nodes run that are new since `before`:
    /// they may do the same work under another name.
    pub fn replaced(&self, before: &Graph) -> Vec<&Planned> {
        let is_new = |node: &Planned| match node.decision {
            ReuseDecision::Runs(ReuseReason::New) => true,
            ReuseDecision::Undecided => before.first_missing(&node.path.place()).is_some(),
            _ => false,
        };
        if !self.nodes.iter().any(is_new) {
            return Vec::new();
        }
        let is_lost =
            |node: &&Planned| node.decision == ReuseDecision::Dropped && (node.was_finished || node.was_cut);
        self.nodes.iter().filter(is_lost).collect()
    }
}

impl Run {
    /// What would happen to each node if the session were resumed with these budgets, after its whole log was applied.
    pub fn plan_to_resume(mut self, budget: &BudgetRaise, now: Timestamp) -> Plan {
        let ended = self.facts.tasks().filter_map(|(task, node)| {
            let decision = match node.status {
                NodeStatus::Complete | NodeStatus::Failed => ReuseDecision::Finished,
                NodeStatus::Reused => ReuseDecision::Reused,
                NodeStatus::Skipped => ReuseDecision::Skipped,
                _ => return None,
            };
            let cost_usd = node.more.as_ref().map(|more| more.spent.cost_usd).filter(|cost| *cost > 0.0);
            let path = self.facts.path(&self.graph, task);
            Some(Planned { was_finished: true, cost_usd, ..Planned::new(path, decision) })
        });
        let ended = ended.collect();
        for action in self.resume(None, &BTreeMap::new(), budget, None) {
            if let Action::Emit { task, event } = action {
                let seq = self.facts.session.last_seq + 1;
                self.take(seq, now, task.as_ref(), &event);
            }
        }
        self.foresee(now, ended)
    }

    /// What would happen to each node, without running anything.
    pub fn plan(self, now: Timestamp) -> Plan {
        self.foresee(now, Vec::new())
    }

    fn foresee(mut self, now: Timestamp, mut nodes: Vec<Planned>) -> Plan {
        let mut seq = self.facts.session.last_seq;
        let mut actions = Vec::new();
        // Nothing takes time or money here, and so nothing waits for a place or for what others give back.
        self.max_concurrency = u32::MAX;
        self.facts.open_all_frames();
        self.facts.let_waits_end();
        self.agenda = Agenda::rebuild(&self.graph, &self.facts);
        self.planning = Planning::On;
        loop {
            self.next(now, &mut actions);
            if actions.is_empty() || actions.iter().any(|action| matches!(action, Action::Finish)) {
                break;
            }
            for action in std::mem::take(&mut actions) {
                match action {
                    Action::Emit { task, mut event } => {
                        if let Event::FrameItems { max_concurrency, .. } = &mut event {
                            *max_concurrency = None;
                        }
                        let mut failure = None;
                        let decision = match &event {
                            Event::TaskReused { .. } => Some(ReuseDecision::Reused),
                            Event::TaskSkipped { reason: SkipReason::NotSelected, .. } => {
                                task.as_ref().and_then(|path| self.why_omitted(path))
                            }
                            Event::TaskSkipped { .. } => Some(ReuseDecision::Skipped),
                            Event::TaskFailed { will_retry: false, error, .. } => {
                                failure = Some(error.message.clone());
                                Some(ReuseDecision::Fails)
                            }
                            _ => None,
                        };
                        if let (Some(path), Some(decision)) = (&task, decision) {
                            nodes.push(Planned { error: failure, ..self.planned(path.clone(), decision) });
                        }
                        seq += 1;
                        self.take(seq, now, task.as_ref(), &event);
                    }
                    Action::Start(start) => {
                        let mut planned = self.planned(start.path.clone(), self.why(&start));
                        if let Some((error, waits)) = self.is_over_budget(start.node) {
                            (planned.error, planned.waits_for_budget) = (Some(error.message), waits);
                        }
                        nodes.push(planned);
                    }
                    Action::Ask { task, .. } => nodes.push(self.planned(task, ReuseDecision::Asks)),
                    Action::Cancel { .. } | Action::Finish => {}
                }
            }
        }
        let ends = self.facts.ending.is_some();
        let open = self.facts.tasks().filter(|(_, node)| match node.status {
            _ if ends => !node.has_ended(),
            NodeStatus::Pending | NodeStatus::Waiting => true,
            _ => false,
        });
        let decision = if ends { ReuseDecision::Cancelled } else { ReuseDecision::Undecided };
        let decide = |task: TaskRef| {
            // It is reused once what runs before it has ended.
            match self.put_off.contains(&task) && self.is_end_to_reuse(task) {
                true if !ends => ReuseDecision::Reused,
                // Whatever runs before it, it does not run without an answer.
                _ if !ends && self.needs_confirmation(task) => ReuseDecision::Asks,
                _ => decision,
            }
        };
        let open = open.map(|(task, _)| self.planned(self.facts.path(&self.graph, task), decide(task)));
        nodes.extend(open.collect::<Vec<_>>());
        self.add_later_passes(&mut nodes);
        nodes.sort_by_key(|planned| self.order_of(&planned.path));
        // Another attempt of a node that runs frames decides about the same ones again.
        nodes.dedup_by(|later, first| later.path == first.path);
        Plan { nodes }
    }

    /// Adds what has finished in later passes of loops, where an earlier pass is planned and they are not: whether it runs
    /// depends on that one.
    fn add_later_passes(&self, nodes: &mut Vec<Planned>) {
        let Some(reusable) = &self.reusable else { return };
        let planned: BTreeSet<_> = nodes.iter().filter_map(|node| node.before.clone()).collect();
        let begun: BTreeSet<_> = planned.iter().filter_map(|path| self.first_pass(path)).collect();
        // It, or the node in whose frame it is.
        let is_left = |node: NodePath| {
            let first = self.first_pass(&node).filter(|first| *first != node && begun.contains(first));
            first.is_some() && !planned.contains(&node)
        };
        let later = reusable.tasks.keys().filter(|path| {
            let runs_frames = || self.graph.find_place(&path.place()).is_ok_and(|node| node.frames.is_some());
            reusable.has_finished(path)
                && !planned.contains(*path)
                && iter::successors(Some((*path).clone()), NodePath::owner).any(is_left)
                && !runs_frames()
        });
        nodes.extend(later.map(|path| Planned {
            was_finished: true,
            cost_usd: reusable.tasks[path].cost_usd,
            before: Some(path.clone()),
            ..Planned::new(path.clone(), ReuseDecision::Undecided)
        }));
    }

    /// The same node in the first pass of each loop that it is in; nothing if the flow does not have it.
    fn first_pass(&self, path: &NodePath) -> Option<NodePath> {
        let mut body = Some(self.graph.flow());
        let mut first = String::new();
        let mut parts = path.parts().peekable();
        while let Some(part) = parts.next() {
            let node = body?.node(body?.find(part.node)?);
            first += part.node;
            if parts.peek().is_some() {
                let frames = node.frames.as_deref()?;
                let is_loop = matches!(frames.kind, FramesKind::Loop { .. });
                let index = part.index.map(|index| if is_loop { 0 } else { index });
                first += &index.map_or_else(|| "/".to_owned(), |index| format!("[{index}]/"));
                body = Some(self.graph.body(frames.body));
            }
        }
        Some(NodePath::new(&first))
    }

    /// The place of a path in the order of the flow: by the places of its nodes, their passes and frames.
    pub fn order_of(&self, path: &NodePath) -> Vec<(Option<NodeIx>, u32, u32)> {
        let mut body = Some(self.graph.flow());
        let part = |part: inspan_protocol::PathPart<'_>| {
            let node = body.and_then(|body| body.find(part.node));
            let frames = body.zip(node).and_then(|(body, node)| body.node(node).frames.as_deref());
            body = frames.map(|frames| self.graph.body(frames.body));
            (node, part.pass, part.index.unwrap_or_default())
        };
        path.parts().map(part).collect()
    }

    fn planned(&self, path: NodePath, decision: ReuseDecision) -> Planned {
        let before = self.facts.find_any_pass(&self.graph, &path).and_then(|task| self.before(task));
        let mut planned = Planned::new(path, decision);
        if let Some((reusable, path)) = before {
            planned.add(reusable, &path, false);
            let is_answer = |task: &ReusableTask| task.output.is_none() && task.answered.is_some();
            if decision == ReuseDecision::Reused && reusable.tasks.get(&path).is_some_and(is_answer) {
                planned.decision = ReuseDecision::Answered;
            }
            if decision == ReuseDecision::Undecided {
                // What it runs in its frames is not planned: all of it is undecided.
                reusable.within(&path).for_each(|path| planned.add(reusable, path, false));
            }
            planned.before = Some(path);
        }
        planned
    }

    /// Why a node that is not to run cannot be reused.
    fn why_omitted(&self, path: &NodePath) -> Option<ReuseDecision> {
        let task = self.facts.find(&self.graph, Some(path))?;
        // Its frame had ended without it, and does so again: nothing misses it.
        if self.ends_before(task) {
            return Some(ReuseDecision::Skipped);
        }
        Some(ReuseDecision::Omitted(match self.why(&self.attempt(task, 1)) {
            ReuseDecision::Runs(why) => why,
            _ => ReuseReason::Unfinished,
        }))
    }

    /// Why a task that begins now, and began in the earlier session too, is not reused of that one.
    pub(crate) fn not_reused(&self, at: TaskRef) -> Option<NotReused> {
        let (reusable, path) = self.before(at)?;
        let task = reusable.tasks.get(&path)?;
        let why = match self.why(&self.attempt(at, 1)) {
            // A node that runs frames begins again to take over what they have left.
            ReuseDecision::Runs(ReuseReason::Unfinished) if task.output.is_some() => return None,
            ReuseDecision::Runs(why) => why,
            _ => return None,
        };
        let conversation = task.conversation.clone().filter(|_| task.output.is_none());
        Some(NotReused { from: format!("{}/{path}", reusable.session), why, conversation })
    }

    /// Why a node is started.
    fn why(&self, start: &StartNode) -> ReuseDecision {
        if start.interrupted.as_ref().is_some_and(|cut| cut.message.is_some()) {
            return ReuseDecision::Resumes;
        }
        if start.interrupted.as_ref().is_some_and(|cut| cut.reply.is_some()) {
            return ReuseDecision::Answered;
        }
        let before = self.before(start.node);
        let task = before.as_ref().and_then(|(reusable, path)| reusable.task(path));
        let Some(task) = task else {
            let again = before.as_ref().is_some_and(|(reusable, path)| reusable.runs_again(path));
            return ReuseDecision::Runs(match again {
                true => ReuseReason::Asked,
                false if self.facts.node(start.node).failures > 0 => ReuseReason::Retried,
                false if start.interrupted.is_some() => ReuseReason::Unfinished,
                false => ReuseReason::New,
            });
        };
        ReuseDecision::Runs(match self.differs(start.node, task, start.input.as_ref().ok()) {
            Some(why) => why,
            None if task.error.is_some() => ReuseReason::Failed,
            None => ReuseReason::Unfinished,
        })
    }
}
