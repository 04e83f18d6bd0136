//! What a session has spent: by node, by model, and beside it what is reserved, what may be spent and what is
//! expected from earlier sessions. A cost that is not known is absent, never zero.

use std::collections::{BTreeMap, HashMap};

use inspan_flow_core::{Estimate, Facts, Forecast, Graph};
use inspan_protocol::{BudgetLimits, Envelope, Event, NodePath, RunId, Spending, UnpricedTurns, Usage};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

/// What a session has spent.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Cost {
    /// In US dollars, unless the price of some turn is unknown.
    pub spent_usd: Option<f64>,
    /// The sum of the prices that are known, in US dollars.
    pub known_usd: f64,
    /// Tokens of all kinds.
    pub tokens: u64,
    /// Tokens by kind.
    pub usage: Usage,
    /// What is reserved for attempts that run, in US dollars.
    #[serde(skip_serializing_if = "is_nothing")]
    pub reserved_usd: f64,
    /// What the flow may spend, as it is now.
    pub budget: Option<BudgetLimits>,
    /// What counts against the budget: what the sessions before had spent that this one continues is part of it.
    pub against_budget: Option<Spending>,
    /// What the whole was expected to cost by earlier sessions, in US dollars.
    pub forecast: Option<CostForecast>,
    /// The nodes by their places in the flow, frames and passes together; the dearest first.
    pub by_node: Vec<NodeCost>,
    /// The models; the dearest first.
    pub by_model: Vec<ModelCost>,
    /// Which part of the tokens that were read came from a vendor's cache, from 0 to 1.
    pub cache_share: f64,
}

/// What earlier sessions lead to expect.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CostForecast {
    /// How many sessions it is based on.
    pub sessions: u32,
    /// The cost in US dollars.
    pub cost_usd: Estimate,
    /// How long it takes, in milliseconds.
    pub duration_ms: Estimate,
}

/// What one node has spent.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeCost {
    /// Its place in the flow: `scan/review`.
    pub path: String,
    /// How many agent runs it began.
    pub runs: u32,
    /// Tokens of all kinds.
    pub tokens: u64,
    /// In US dollars, unless some price is unknown.
    pub cost_usd: Option<f64>,
    /// What it was expected to cost, in US dollars.
    pub forecast_usd: Option<f64>,
}

/// What one model has spent.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelCost {
    /// The provider's type.
    pub provider: String,
    /// The model that the vendor named, else the one that was asked for.
    pub model: Option<String>,
    /// How many agent runs it had.
    pub runs: u32,
    /// Tokens by kind.
    pub usage: Usage,
    /// Tokens of all kinds.
    pub tokens: u64,
    /// In US dollars, unless some price is unknown.
    pub cost_usd: Option<f64>,
}

/// The cost as events come in.
#[derive(Clone, Debug, Default)]
pub struct CostFold {
    runs: HashMap<RunId, AgentRun>,
    /// The runs of the agent that works on each node that has not completed.
    of_task: HashMap<NodePath, Vec<RunId>>,
    unpriced_turns: UnpricedTurns,
}

#[derive(Clone, Debug, Default)]
struct AgentRun {
    place: String,
    provider: String,
    model: Option<String>,
    usage: Usage,
    spent: Spending,
}

impl CostFold {
    /// Takes the next event of the log.
    pub fn apply(&mut self, envelope: &Envelope) {
        let task = &envelope.context.task;
        let spent = self.unpriced_turns.take(&envelope.event);
        match &envelope.event {
            Event::AgentStart { run_id, provider, model, .. } => {
                let run = self.runs.entry(run_id.clone()).or_default();
                (run.provider, run.model) = (provider.clone(), model.clone());
                if let Some(task) = task {
                    run.place = task.place().to_string();
                    self.of_task.entry(task.clone()).or_default().push(run_id.clone());
                }
            }
            Event::AgentSpent { run_id, .. }
            | Event::AgentUsage { run_id, .. }
            | Event::AgentComplete { run_id, .. } => {
                if let Some((usage, spent)) = spent {
                    let run = self.runs.entry(run_id.clone()).or_default();
                    run.usage += usage;
                    run.spent += spent;
                }
            }
            Event::TaskComplete { result, .. } => self.name_model(task.as_ref(), Some(result)),
            // Another agent takes over, which may have another model.
            Event::TaskAgent { result, .. } => self.name_model(task.as_ref(), result.as_deref()),
            _ => {}
        }
    }

    /// The runs of a node so far were of the model that its output names.
    fn name_model(&mut self, task: Option<&NodePath>, result: Option<&Value>) {
        let runs = task.and_then(|task| self.of_task.remove(task)).unwrap_or_default();
        let Some(model) = result.and_then(|result| result.get("model")?.as_str()) else { return };
        for run in runs {
            if let Some(run) = self.runs.get_mut(&run) {
                run.model = Some(model.to_owned());
            }
        }
    }

    /// The cost so far. `facts` has what is reserved and the budget, `forecast` what was expected. `is_cut` says that the
    /// process of the session is gone: what the turns took that it was at is unknown.
    pub fn cost(&self, graph: &Graph, facts: &Facts, forecast: Option<&Forecast>, is_cut: bool) -> Cost {
        let mut nodes: BTreeMap<String, (u32, Spending)> = BTreeMap::new();
        let mut models: BTreeMap<(&str, Option<&str>), (u32, Usage, Spending)> = BTreeMap::new();
        let (mut usage, mut spent) = (Usage::default(), Spending::default());
        let mut runs: Vec<(&RunId, &AgentRun)> = self.runs.iter().collect();
        // Sums of fractions depend on the order.
        runs.sort_unstable_by_key(|(id, _)| id.as_str());
        for (id, run) in runs {
            let mut of_run = run.spent;
            of_run.unpriced |= is_cut && self.unpriced_turns.runs().any(|open| open == id);
            usage += run.usage;
            spent += of_run;
            let node = nodes.entry(run.place.clone()).or_default();
            node.0 += 1;
            node.1 += of_run;
            let model = models.entry((run.provider.as_str(), run.model.as_deref())).or_default();
            model.0 += 1;
            model.1 += run.usage;
            model.2 += of_run;
        }
        let budget = facts.budget(graph);
        Cost {
            spent_usd: known(spent),
            known_usd: spent.cost_usd,
            tokens: spent.tokens,
            usage,
            reserved_usd: facts.reserved_usd(graph),
            against_budget: budget.map(|_| facts.spent()),
            budget: budget.map(|budget| BudgetLimits { usd: budget.usd, tokens: budget.tokens }),
            forecast: forecast.map(|forecast| CostForecast {
                sessions: forecast.sessions,
                cost_usd: forecast.cost_usd,
                duration_ms: forecast.duration_ms,
            }),
            by_node: by_node(nodes, forecast),
            by_model: by_model(models),
            cache_share: cache_share(usage),
        }
    }
}

fn by_node(mut nodes: BTreeMap<String, (u32, Spending)>, forecast: Option<&Forecast>) -> Vec<NodeCost> {
    let expected: HashMap<&str, f64> = forecast
        .into_iter()
        .flat_map(|forecast| &forecast.nodes)
        .filter(|node| node.cost_usd_each.is_some())
        .filter_map(|node| Some((node.path.as_str(), node.cost_usd.expected?)))
        .collect();
    for path in expected.keys() {
        nodes.entry((*path).to_owned()).or_default();
    }
    let cost = |(path, (runs, spent)): (String, (u32, Spending))| NodeCost {
        forecast_usd: expected.get(path.as_str()).copied(),
        path,
        runs,
        tokens: spent.tokens,
        cost_usd: known(spent).filter(|_| runs > 0),
    };
    let mut costs: Vec<NodeCost> = nodes.into_iter().map(cost).collect();
    costs.sort_by(|one, two| {
        (one.runs == 0)
            .cmp(&(two.runs == 0))
            .then_with(|| by_cost((one.cost_usd, one.tokens), (two.cost_usd, two.tokens)))
    });
    costs
}

fn by_model(models: BTreeMap<(&str, Option<&str>), (u32, Usage, Spending)>) -> Vec<ModelCost> {
    let cost = |((provider, model), (runs, usage, spent)): (_, (u32, Usage, Spending))| {
        let (provider, model): (&str, Option<&str>) = (provider, model);
        ModelCost {
            provider: provider.to_owned(),
            model: model.map(str::to_owned),
            runs,
            usage,
            tokens: spent.tokens,
            cost_usd: known(spent),
        }
    };
    let mut costs: Vec<ModelCost> = models.into_iter().map(cost).collect();
    costs.sort_by(|one, two| by_cost((one.cost_usd, one.tokens), (two.cost_usd, two.tokens)));
    costs
}

/// The order by cost, then by tokens, the greatest first; what is unknown comes before all, as it may be the dearest.
fn by_cost(one: (Option<f64>, u64), two: (Option<f64>, u64)) -> std::cmp::Ordering {
    let usd = |cost: Option<f64>| cost.unwrap_or(f64::INFINITY);
    usd(two.0).total_cmp(&usd(one.0)).then(two.1.cmp(&one.1))
}

fn known(spent: Spending) -> Option<f64> {
    (!spent.unpriced).then_some(spent.cost_usd)
}

fn cache_share(usage: Usage) -> f64 {
    let read =
        usage.input_tokens as f64 + usage.cache_read_tokens as f64 + usage.cache_creation_tokens as f64;
    if read > 0.0 { usage.cache_read_tokens as f64 / read } else { 0.0 }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_nothing(usd: &f64) -> bool {
    *usd == 0.0
}

#[cfg(test)]
mod tests {
    use inspan_protocol::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::testing::{envelope, flow_log, lines};

    #[test]
    fn recorded_sessions_have_their_cost_by_node_and_model() {
        for name in ["review_loop", "agents_by_name", "agents_in_frames", "chain"] {
            let graph = Graph::default();
            let (mut fold, mut facts) = (CostFold::default(), Facts::new(&graph));
            for envelope in flow_log(name) {
                fold.apply(&envelope);
                facts.apply(&graph, &envelope);
            }
            insta::assert_snapshot!(name, lines(&fold.cost(&graph, &facts, None, false)));
        }
    }

    /// By model what it cost, in US dollars.
    fn by_model(events: &[Value], is_cut: bool) -> Vec<(Option<String>, Option<f64>)> {
        let mut fold = CostFold::default();
        for event in events {
            fold.apply(&envelope(1, Timestamp::default(), "a", event));
        }
        let graph = Graph::default();
        let cost = fold.cost(&graph, &Facts::new(&graph), None, is_cut);
        cost.by_model.into_iter().map(|model| (model.model, model.cost_usd)).collect()
    }

    #[test]
    fn an_agent_that_took_over_has_its_own_model_and_a_turn_that_is_cut_has_no_price() {
        let start = |run: &str| json!({ "type": "agent:start", "agentName": "a", "runId": run, "provider": "echo", "turn": 1 });
        let used = |run: &str, usd: f64| json!({ "type": "agent:usage", "runId": run, "usage": Usage::default(), "costUsd": usd });
        let takes_over = |result: Value| json!({ "type": "task:agent", "taskId": "a", "agent": "b", "reason": "failed", "after": "a", "result": result });
        let ends = json!({ "type": "task:complete", "taskId": "a", "result": { "model": "strong" }, "durationMs": 1 });
        let events = [
            start("a.1"),
            used("a.1", 1.0),
            takes_over(json!({ "model": "cheap" })),
            start("a.2"),
            used("a.2", 0.5),
            ends,
        ];
        let strong = (Some("strong".to_owned()), Some(0.5));
        assert_eq!(by_model(&events, false), [(Some("cheap".to_owned()), Some(1.0)), strong]);
        // Its process was killed in the second turn of a run.
        let turn = json!({ "type": "agent:turn", "runId": "a.1", "turn": 2 });
        let events = [start("a.1"), used("a.1", 1.0), turn];
        assert_eq!(
            [by_model(&events, false), by_model(&events, true)],
            [[(None, Some(1.0))], [(None, None)]]
        );
    }
}
