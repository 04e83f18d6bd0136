//! What has been spent of budgets, and what is reserved for attempts that run.

use std::collections::BTreeMap;

use inspan_protocol::{BudgetLimits, BudgetRaise, FrameSpending, NodeId, NodePath, Spending};

use super::{Facts, FrameState, NodeState};
use crate::graph::{Body, Budget, FrameIx, FramesKind, Graph, OnUnknown, TaskRef};
use crate::node::NodeKind;

/// How many agents that share a budget run at once as long as nothing says what an agent takes.
const MOST_UNKNOWN: usize = 4;

impl Facts {
    /// Whether what this node spends counts for a budget that others share.
    pub(super) fn shares_budget(&self, graph: &Graph, task: TaskRef) -> bool {
        self.spec(graph, task).kind == NodeKind::Agent
            && self.budgets_around(graph, task.frame).next().is_some()
    }

    /// What an attempt of this node may spend that has spent `so_far`, as far as is known: what is left of its own
    /// budget, else what is left of the most that one attempt of an agent has spent in this session.
    fn estimate(&self, graph: &Graph, task: TaskRef, so_far: Spending) -> Spending {
        let (own, spent) = (self.node_budget(graph, task).unwrap_or_default(), self.spent_by(task));
        let left = |limit: Option<f64>, spent: f64| limit.map(|limit| (limit - spent).max(0.0));
        let tokens_left = own.tokens.map(|tokens| tokens.saturating_sub(spent.tokens));
        Spending {
            cost_usd: left(own.usd, spent.cost_usd).unwrap_or((self.dearest - so_far.cost_usd).max(0.0)),
            tokens: tokens_left.unwrap_or(self.most_tokens.saturating_sub(so_far.tokens)),
            ..Spending::default()
        }
    }

    /// What is reserved for the attempts that run, and not yet spent by them, in US dollars.
    pub fn reserved_usd(&self, graph: &Graph) -> f64 {
        self.reserved(graph).map(|(_, reserved)| reserved.cost_usd).sum()
    }

    /// What is reserved for each attempt that runs, and not yet spent by it.
    fn reserved(&self, graph: &Graph) -> impl Iterator<Item = (TaskRef, Spending)> {
        let of_open = |task: &&TaskRef| self.frames.get(task.frame).is_some();
        self.reserving.iter().filter(of_open).map(|task| {
            let so_far = self.node(*task).more.as_ref().map_or_else(Spending::default, |more| Spending {
                cost_usd: more.spent.cost_usd - more.cost_before,
                tokens: more.spent.tokens - more.tokens_before,
                ..Spending::default()
            });
            (*task, self.estimate(graph, *task, so_far))
        })
    }

    /// The budget that an attempt has to wait for, because what is left of it is reserved for others, or because enough
    /// others run and nothing says yet what they take.
    pub(crate) fn waits_for_reserved(&self, graph: &Graph, task: TaskRef) -> Option<ReservedBudget> {
        if self.reserving.is_empty() {
            return None;
        }
        let reserved: Vec<_> = self.reserved(graph).collect();
        let needs = self.estimate(graph, task, Spending::default());
        self.budgets_around(graph, task.frame).find_map(|share| {
            let BudgetShare { budget, owner, spent } = share;
            let mut others = Spending::default();
            let within = reserved.iter().filter(|(other, _)| self.counts_for(*other, owner));
            let agents = within.map(|(_, left)| others += *left).count();
            let all_usd = spent.cost_usd + others.cost_usd + needs.cost_usd;
            let all_tokens = spent.tokens + others.tokens + needs.tokens;
            let is_short = budget.usd.is_some_and(|usd| all_usd > usd)
                || budget.tokens.is_some_and(|limit| all_tokens > limit);
            let is_unknown = !self.turn_reported
                && (budget.usd.is_some() && needs.cost_usd == 0.0
                    || budget.tokens.is_some() && needs.tokens == 0);
            let waits = agents > 0 && is_short || agents >= MOST_UNKNOWN && is_unknown;
            waits.then_some(ReservedBudget { budget, owner, spent, others, agents, needs, is_short })
        })
    }

    /// A frame of a node has ended. What was spent in it counts when it runs again: a complete one does only if what is
    /// around it runs again.
    pub(super) fn note_spent(
        &mut self,
        graph: &Graph,
        owner: TaskRef,
        frame: &FrameState,
        is_complete: bool,
    ) {
        if is_complete && owner.frame == FrameIx::FLOW {
            self.forget_spent_in(&frame.prefix);
        } else if !frame.spent.is_zero() {
            self.spent_in.insert(frame.prefix.clone(), frame.spending(graph.body(frame.body)));
        }
    }

    /// Nothing whose path begins so runs again.
    pub(super) fn forget_spent_in(&mut self, prefix: &str) {
        let all = self.spent_in.range(prefix.to_owned()..).map(|(path, _)| path);
        let within: Vec<_> = all.take_while(|path| path.starts_with(prefix)).cloned().collect();
        for path in within {
            self.spent_in.remove(&path);
        }
    }

    /// An attempt has ended, and nothing is reserved for it any more.
    pub(super) fn release(&mut self, task: TaskRef) {
        self.releases += u64::from(self.reserving.remove(&task));
    }

    /// Takes over what an earlier session had spent, and its budgets that were raised.
    pub(crate) fn carry(
        &mut self,
        graph: &Graph,
        spent: Spending,
        nodes: &BTreeMap<NodeId, Spending>,
        raised: &BudgetRaise,
    ) {
        if self.carried.is_some() {
            return;
        }
        self.raised.merge(raised);
        self.carried = Some(spent);
        self.frames[FrameIx::FLOW].carry_nodes(graph.flow(), nodes);
    }

    /// Notes that it was reported that a budget is used up: that of the flow, of a node, or of a frame of a node.
    pub(super) fn note_used_up(&mut self, graph: &Graph, task: Option<&NodePath>, frame: Option<u32>) {
        match (task, frame) {
            (None, _) => self.budget_reported = true,
            (Some(_), Some(index)) => {
                if let Some(frame) = self.open_frame_of(graph, task, index) {
                    self.frames[frame].budget_reported = true;
                }
            }
            (Some(path), None) => {
                if let Some(task) = self.find_any_pass(graph, path) {
                    self.node_mut(task).more().budget_reported = true;
                }
            }
        }
    }

    /// What counts against the flow's budget: the earlier sessions that this one continues included.
    pub fn spent(&self) -> Spending {
        let mut spent = self.carried.unwrap_or_default();
        let super::SessionFacts { cost_usd, unpriced, uncounted, usage, .. } = self.session;
        spent += Spending { cost_usd, tokens: usage.total(), unpriced, uncounted };
        spent
    }

    /// What counts against a node's own budget.
    pub(crate) fn spent_by(&self, task: TaskRef) -> Spending {
        self.node(task).spent()
    }

    /// The flow's budget as it is now.
    pub fn budget(&self, graph: &Graph) -> Option<Budget> {
        raised(graph.flow().policy.budget, self.raised.flow)
    }

    /// A node's own budget as it is now.
    pub(crate) fn node_budget(&self, graph: &Graph, task: TaskRef) -> Option<Budget> {
        let own = self.spec(graph, task).policy.budget;
        raised(own, self.limits_for(graph, &self.raised.nodes, task))
    }

    /// The budget of a frame as it is now; the flow's, if nothing runs it.
    fn frame_budget(&self, graph: &Graph, frame: &FrameState) -> Option<Budget> {
        let Some(owner) = frame.owner else { return self.budget(graph) };
        let own = graph.body(frame.body).policy.budget;
        raised(own, self.limits_for(graph, &self.raised.bodies, owner))
    }

    /// The limits that were raised for a node; most sessions raise none, and look up no place.
    fn limits_for(
        &self,
        graph: &Graph,
        raised: &BTreeMap<NodePath, BudgetLimits>,
        task: TaskRef,
    ) -> Option<BudgetLimits> {
        if raised.is_empty() { None } else { raised.get(&self.path(graph, task).place()).copied() }
    }
}

impl FrameState {
    /// What was spent in it, before it began too.
    pub(crate) fn spending(&self, body: &Body) -> FrameSpending {
        let nodes = body.nodes.iter().zip(self.nodes.iter()).map(|(node, state)| (node, state.spent()));
        let spenders = nodes.filter(|(_, spent)| !spent.is_zero());
        let nodes = spenders.map(|(node, spent)| (node.id.clone(), spent)).collect();
        FrameSpending { spent: self.spent, nodes }
    }

    /// Counts what was spent in it before it began.
    pub(super) fn carry(&mut self, body: &Body, before: &FrameSpending) {
        self.spent += before.spent;
        self.carry_nodes(body, &before.nodes);
    }

    fn carry_nodes(&mut self, body: &Body, before: &BTreeMap<NodeId, Spending>) {
        for (id, spent) in before {
            if let Some(node) = body.find(id.as_str()) {
                self.nodes[node].more().carried = *spent;
            }
        }
    }
}

impl NodeState {
    /// What counts against its own budget.
    fn spent(&self) -> Spending {
        let Some(more) = &self.more else { return Spending::default() };
        let mut spent = more.carried;
        spent += more.spent;
        spent
    }
}

/// Why a limit of a budget is not raised.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{limit}` cannot be raised to {asked}: the limit is {present}, and {spent} are spent")]
pub struct NotRaised {
    /// The limit, as `--budget` names it.
    pub limit: String,
    /// What it was to be.
    pub asked: String,
    /// What it is.
    pub present: String,
    /// The most that counts against it.
    pub spent: String,
}

impl Facts {
    /// Fails if a resume would not raise a limit: a new one is above the present one, and above what is spent if that one
    /// is used up, since the session would only be paused again. Where there was no limit, a new one may be any.
    pub(crate) fn check_raise(&self, graph: &Graph, raise: &BudgetRaise) -> Result<(), NotRaised> {
        if let (Some(limits), Some(budget)) = (raise.flow, self.budget(graph)) {
            check_limits("", limits, budget, &[self.spent()])?;
        }
        for (place, limits) in &raise.nodes {
            let Ok(node) = graph.find_place(place) else { continue };
            let present = raised(node.policy.budget, self.raised.nodes.get(place).copied());
            let there = self.tasks().filter(|(task, _)| self.path(graph, *task).place() == *place);
            let spent: Vec<_> = there.map(|(task, _)| self.spent_by(task)).collect();
            check_limits(&format!("{place}."), *limits, present.unwrap_or_default(), &spent)?;
        }
        for (place, limits) in &raise.bodies {
            let Ok(body) = graph.find_body(place) else { continue };
            let present = raised(body.policy.budget, self.raised.bodies.get(place).copied());
            let is_there = |owner: TaskRef| self.path(graph, owner).place() == *place;
            let there = self.frames.iter().filter(|frame| frame.owner.is_some_and(is_there));
            let spent: Vec<_> = there.map(|frame| frame.spent).collect();
            check_limits(&format!("{place}/."), *limits, present.unwrap_or_default(), &spent)?;
        }
        Ok(())
    }
}

/// The same for the limits of one budget, of which each frame that has one of its own has `spent` so much.
fn check_limits(
    owner: &str,
    asked: BudgetLimits,
    present: Budget,
    spent: &[Spending],
) -> Result<(), NotRaised> {
    let usd: Vec<f64> = spent.iter().map(|spent| spent.cost_usd).collect();
    // Without the last digits of a sum.
    let words = |usd: f64| ((usd * 1e6).round() / 1e6).to_string();
    check_limit(format!("{owner}usd"), asked.usd.zip(present.usd), &usd, words)?;
    let tokens: Vec<u64> = spent.iter().map(|spent| spent.tokens).collect();
    check_limit(format!("{owner}tokens"), asked.tokens.zip(present.tokens), &tokens, |tokens| {
        tokens.to_string()
    })
}

fn check_limit<N: Copy + Default + PartialOrd>(
    limit: String,
    change: Option<(N, N)>,
    spent: &[N],
    words: impl Fn(N) -> String,
) -> Result<(), NotRaised> {
    let Some((asked, present)) = change else { return Ok(()) };
    // Of several frames it is enough that one can go on.
    let mut used_up = spent.iter().filter(|spent| **spent >= present).peekable();
    let helps = used_up.peek().is_none() || used_up.any(|spent| asked > *spent);
    if asked > present && helps {
        return Ok(());
    }
    let most = spent.iter().fold(N::default(), |most, spent| if *spent > most { *spent } else { most });
    Err(NotRaised { limit, asked: words(asked), present: words(present), spent: words(most) })
}

/// A budget, and what was spent of it.
struct BudgetShare {
    budget: Budget,
    owner: BudgetOwner,
    spent: Spending,
}

/// A budget that is used up.
pub(crate) struct UsedUp {
    pub(crate) budget: Budget,
    pub(crate) owner: BudgetOwner,
    /// Which limits of it, and what was spent, in words.
    pub(crate) limit: String,
    /// The names of the limits to raise; none if higher ones do not help.
    units: Vec<&'static str>,
}

/// A budget that keeps an agent from starting as others run.
pub(crate) struct ReservedBudget {
    budget: Budget,
    owner: BudgetOwner,
    spent: Spending,
    /// What is reserved for agents that run, and for how many.
    others: Spending,
    agents: usize,
    /// What the attempt that waits may take.
    needs: Spending,
    /// Whether too little is left; else nothing says what agents take.
    is_short: bool,
}

/// Whose budget it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BudgetOwner {
    Task(TaskRef),
    /// The frame of the flow is the flow.
    Frame(FrameIx),
}

impl Facts {
    fn share_of_task(&self, graph: &Graph, task: TaskRef) -> Option<BudgetShare> {
        let budget = self.node_budget(graph, task)?;
        Some(BudgetShare { budget, owner: BudgetOwner::Task(task), spent: self.spent_by(task) })
    }

    fn share_of_frame(&self, graph: &Graph, frame: &FrameState) -> Option<BudgetShare> {
        let budget = self.frame_budget(graph, frame)?;
        let spent = if frame.owner.is_some() { frame.spent } else { self.spent() };
        Some(BudgetShare { budget, owner: BudgetOwner::Frame(frame.id), spent })
    }

    /// The budgets that what runs in a frame shares: those of the frames and the nodes around it, and at last the flow's.
    fn budgets_around(&self, graph: &Graph, frame: FrameIx) -> impl Iterator<Item = BudgetShare> {
        self.around(frame).flat_map(|frame| {
            let of_owner = || self.share_of_task(graph, frame.owner?);
            self.share_of_frame(graph, frame).into_iter().chain(of_owner())
        })
    }

    /// Whether what a task spends counts for the budget of this owner.
    fn counts_for(&self, task: TaskRef, owner: BudgetOwner) -> bool {
        self.around(task.frame).any(|frame| match owner {
            BudgetOwner::Frame(ix) => frame.id == ix,
            BudgetOwner::Task(owner) => frame.owner == Some(owner),
        })
    }

    /// A frame, for people.
    pub(crate) fn frame_name(&self, graph: &Graph, frame: FrameIx) -> String {
        let state = &self.frames[frame];
        state.owner.map_or("the flow".to_owned(), |owner| self.frame_name_of(graph, owner, state.index))
    }

    /// A frame of a node, open or not, by the number that it is shown with: items count from 0, as in paths, and passes
    /// from 1.
    pub(crate) fn frame_name_of(&self, graph: &Graph, owner: TaskRef, index: u32) -> String {
        let path = self.path(graph, owner);
        match self.spec(graph, owner).frames.as_deref().map(|frames| &frames.kind) {
            Some(FramesKind::Foreach { .. }) => format!("item {index} of `{path}`"),
            Some(FramesKind::Loop { .. }) => format!("pass {} of `{path}`", index + 1),
            _ => format!("`{path}`"),
        }
    }

    /// The flow's budget, if it is used up.
    pub(crate) fn flow_used_up(&self, graph: &Graph) -> Option<UsedUp> {
        self.frame_used_up(graph, &self.frames[FrameIx::FLOW])
    }

    /// The budget of a frame, if it is used up.
    pub(crate) fn frame_used_up(&self, graph: &Graph, frame: &FrameState) -> Option<UsedUp> {
        self.share_of_frame(graph, frame).and_then(BudgetShare::used_up)
    }

    /// A node's own budget, if it is used up.
    pub(crate) fn node_used_up(&self, graph: &Graph, task: TaskRef) -> Option<UsedUp> {
        self.share_of_task(graph, task).and_then(BudgetShare::used_up)
    }

    /// The budget that is used up and that counts for a task: its own, or that of a frame or a node around it, the
    /// flow's aside.
    pub(crate) fn used_up_around(&self, graph: &Graph, task: TaskRef) -> Option<UsedUp> {
        let within = |share: &BudgetShare| share.owner != BudgetOwner::Frame(FrameIx::FLOW);
        let around = || self.budgets_around(graph, task.frame).filter(within).find_map(BudgetShare::used_up);
        self.node_used_up(graph, task).or_else(around)
    }

    /// All budgets that are used up and count for what this owner has: its own, and those around it, the flow's at last.
    pub(crate) fn all_used_up(&self, graph: &Graph, owner: BudgetOwner) -> Vec<UsedUp> {
        let (own, frame) = match owner {
            BudgetOwner::Task(task) => (self.share_of_task(graph, task), task.frame),
            BudgetOwner::Frame(frame) => (None, frame),
        };
        own.into_iter().chain(self.budgets_around(graph, frame)).filter_map(BudgetShare::used_up).collect()
    }

    /// What keeps an agent that could start from starting, as far as budgets go, in words.
    pub(crate) fn waits_for_budget(&self, graph: &Graph, task: TaskRef) -> Option<String> {
        if self.spec(graph, task).kind != NodeKind::Agent {
            return None;
        }
        if let Some(used_up) = self.used_up_around(graph, task).or_else(|| self.flow_used_up(graph)) {
            let owner = self.budget_owner(graph, used_up.owner);
            return Some(format!("the budget of {owner} is used up: {}", used_up.limit));
        }
        let ReservedBudget { budget, owner, spent, others, agents, needs, is_short } =
            self.waits_for_reserved(graph, task)?;
        let owner = self.budget_owner(graph, owner);
        if !is_short {
            return Some(format!(
                "what an agent takes of the budget of {owner} is unknown until one of the {agents} running agents reports it"
            ));
        }
        let (agents, run) =
            if agents == 1 { ("1 agent".to_owned(), "runs") } else { (format!("{agents} agents"), "run") };
        let amounts = match budget.usd {
            Some(usd) if spent.cost_usd + others.cost_usd + needs.cost_usd > usd => format!(
                "of {usd} USD, {:.4} are spent and {:.4} reserved for {agents} that {run}, and it may take {:.4}",
                spent.cost_usd, others.cost_usd, needs.cost_usd
            ),
            _ => format!(
                "of {} tokens, {} are spent and {} reserved for {agents} that {run}, and it may take {}",
                budget.tokens.unwrap_or_default(),
                spent.tokens,
                others.tokens,
                needs.tokens
            ),
        };
        Some(format!("too little of the budget of {owner} is free: {amounts}"))
    }

    /// Whose budget it is, in words.
    pub(crate) fn budget_owner(&self, graph: &Graph, owner: BudgetOwner) -> String {
        match owner {
            BudgetOwner::Task(task) => format!("node `{}`", self.path(graph, task)),
            BudgetOwner::Frame(FrameIx::FLOW) => format!("flow `{}`", graph.name),
            BudgetOwner::Frame(frame) => self.frame_name(graph, frame),
        }
    }

    /// The limits of these budgets that would have to be raised, as `--budget` names them, with commas; none if higher ones
    /// of one budget do not help.
    pub(crate) fn limit_names(&self, graph: &Graph, used_up: &[UsedUp]) -> Option<String> {
        let place = |task| self.path(graph, task).place();
        let mut names = Vec::new();
        for UsedUp { owner, units, .. } in used_up {
            let owner = match *owner {
                BudgetOwner::Task(task) => format!("{}.", place(task)),
                BudgetOwner::Frame(frame) => {
                    self.frames[frame].owner.map(|owner| format!("{}/.", place(owner))).unwrap_or_default()
                }
            };
            if units.is_empty() {
                return None;
            }
            names.extend(units.iter().map(|unit| format!("{owner}{unit}")));
        }
        (!names.is_empty()).then(|| names.join(","))
    }
}

impl BudgetShare {
    fn used_up(self) -> Option<UsedUp> {
        let Self { budget, owner, spent: Spending { cost_usd, tokens, unpriced, uncounted } } = self;
        let stops = budget.on_unknown == OnUnknown::Stop;
        let of_usd = |usd: f64| match unpriced && stops {
            true => Some(format!("{usd} USD (the price of a turn is unknown, and `onUnknown` is `stop`)")),
            // Ten turns of 0.1 USD sum up to a little less than 1 USD.
            false => (cost_usd >= usd * (1.0 - 1e-9)).then(|| format!("{usd} USD ({cost_usd:.4} spent)")),
        };
        let of_tokens = |limit: u64| match uncounted && stops {
            true => Some(format!("{limit} tokens (those of a turn are unknown, and `onUnknown` is `stop`)")),
            false => (tokens >= limit).then(|| format!("{limit} tokens ({tokens} spent)")),
        };
        let (usd, tokens) = (budget.usd.and_then(of_usd), budget.tokens.and_then(of_tokens));
        let units = match (&usd, &tokens) {
            // A higher limit makes nothing known.
            (Some(_), _) if unpriced && stops => vec![],
            (_, Some(_)) if uncounted && stops => vec![],
            (Some(_), Some(_)) => vec!["usd", "tokens"],
            (Some(_), None) => vec!["usd"],
            (None, Some(_)) => vec!["tokens"],
            (None, None) => return None,
        };
        let limits: Vec<String> = usd.into_iter().chain(tokens).collect();
        Some(UsedUp { budget, owner, limit: limits.join(" and "), units })
    }
}

/// A budget with the limits that were raised since.
fn raised(budget: Option<Budget>, raise: Option<BudgetLimits>) -> Option<Budget> {
    let Some(limits) = raise else { return budget };
    let budget = budget.unwrap_or_default();
    Some(Budget { usd: limits.usd.or(budget.usd), tokens: limits.tokens.or(budget.tokens), ..budget })
}
