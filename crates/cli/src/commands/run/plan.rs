//! `inspan run FILE --plan`: what would run, with a forecast from earlier sessions; and the question before a run whose
//! forecast is above `confirmAbove`.

use inspan_flow::{
    Basis, CountSource, Estimate, Expected, Forecast, FrameCount, FrameWord, Graph, NodeForecast, NotRun,
    forecast,
};
use inspan_sessions::history;
use serde_json::{Map, Value};

use crate::args::RunArgs;
use crate::commands::flow::of;
use crate::commands::resume::agreed;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::invocation::OutputForm;
use crate::store;
use inspan_view::{Line, Tone, format, safe::clean, table};

/// The widest column of paths and types.
const WIDEST: usize = 40;

/// The forecast of a run with this input; the store is only read.
pub(super) fn of_run(
    graph: &Graph,
    input: &Map<String, Value>,
    not_run: &NotRun,
    invocation: &Invocation,
) -> Result<Forecast, Failure> {
    let history = store::read(invocation, async |store| Ok(history(&*store, graph, None).await?))?;
    Ok(forecast(graph, input, &history, not_run))
}

/// Prints a forecast.
pub(super) fn show(forecast: &Forecast, invocation: &Invocation) -> Exit {
    match invocation.form {
        OutputForm::Json => invocation.json(forecast),
        OutputForm::Text => drop(invocation.print(lines(forecast))),
    }
    Exit::Success
}

/// Asks before a run whose forecast is above a limit in US dollars, or whose cost is not known.
pub(super) fn confirm(
    forecast: &Forecast,
    limit: f64,
    args: &RunArgs,
    invocation: &Invocation,
) -> Result<(), Failure> {
    let above = format!("`confirmAbove` is {}", format::dollars(limit));
    let why = match forecast.cost_usd.expected {
        Some(usd) if usd <= limit => return Ok(()),
        Some(_) => {
            format!("the run is expected to cost {}, and {above}", range(&forecast.cost_usd, format::dollars))
        }
        None => format!("it is not known what the run costs, and {above}"),
    };
    if args.yes {
        return Ok(());
    }
    if agreed(invocation, args.mode.no_input, &format!("{why}.\nRun it? [y/N] "))? {
        return Ok(());
    }
    let file = args.file.display();
    Err(Failure::usage(format!("{why}; nothing was started")).with_hint(format!(
        "`inspan run {file} --yes` runs it without asking, `inspan run {file} --plan` shows the forecast node by node"
    )))
}

fn lines(forecast: &Forecast) -> Vec<Line> {
    let based_on = match forecast.sessions {
        0 => "no earlier session of this flow".to_owned(),
        count => of(count, "earlier session"),
    };
    let mut title = Line::new();
    title.push(Tone::Strong, &clean(&forecast.flow));
    title.push(Tone::Faint, &format!(": what would run; the forecast is based on {based_on}"));
    let mut lines = vec![title, Line::new()];
    let titles = ["node", "type", "runs", "cost", "time each", "based on"];
    let mut rows = vec![titles.map(|title| (Tone::Faint, title.to_owned()))];
    rows.extend(forecast.nodes.iter().map(row));
    lines.extend(table(&rows, WIDEST));
    lines.push(Line::new());
    let mut total = Line::new();
    let (cost, time) = (range(&forecast.cost_usd, format::dollars), range(&forecast.duration_ms, millis));
    total.push(Tone::Strong, &format!("total: cost {cost}, time {time}"));
    lines.push(total);
    if !forecast.unknown.is_empty() {
        lines.push(Line::new().with(Tone::Warning, "not known:"));
        lines.extend(
            forecast
                .unknown
                .iter()
                .map(|unknown| Line::new().with(Tone::Plain, &format!("  {}", clean(unknown)))),
        );
    }
    lines
}

fn row(node: &NodeForecast) -> [(Tone, String); 6] {
    let depth = node.path.matches('/').count();
    let name = format!("{}{}", "  ".repeat(depth), clean(&node.path));
    let node_type = clean(&node.node_type);
    let (cost, time) = match node.action {
        Expected::Reused => ("reused".to_owned(), "-".to_owned()),
        Expected::NotRun => ("does not run".to_owned(), "-".to_owned()),
        Expected::Runs | Expected::MayRun => {
            let spends = node.cost_usd_each.is_some() || node.frames.is_some();
            let cost = if spends { range(&node.cost_usd, format::dollars) } else { "-".to_owned() };
            (cost, node.duration_ms_each.map_or("-".to_owned(), |time| range(&time, millis)))
        }
    };
    let times = range(&node.times, |times| format!("{}x", number(times)));
    let times = match &node.frames {
        Some(count) => format!("{times}, {}", frames(count)),
        None => times,
    };
    let is_left_out = matches!(node.action, Expected::Reused | Expected::NotRun);
    let times = if is_left_out { "-".to_owned() } else { times };
    let mut row = [name, node_type, times, cost, time, based_on(node)]
        .map(|cell| (if is_left_out { Tone::Faint } else { Tone::Plain }, cell));
    if !is_left_out {
        row[0].0 = Tone::Strong;
    }
    row
}

fn frames(count: &FrameCount) -> String {
    let (one, many) = match count.of {
        FrameWord::Subflow => return "its own flow".to_owned(),
        FrameWord::Item => ("item", "items"),
        FrameWord::Pass => ("pass", "passes"),
    };
    match count.from {
        CountSource::Unknown => format!("{many} (unknown)"),
        _ => {
            let amount = range(&count.count, number);
            format!("{amount} {}", if amount == "1" { one } else { many })
        }
    }
}

fn based_on(node: &NodeForecast) -> String {
    let frames = node.frames.as_ref().map(|frames| frames.from);
    match node.based_on {
        _ if matches!(node.action, Expected::Reused | Expected::NotRun) => "-".to_owned(),
        _ if frames == Some(CountSource::Flow) => "the flow".to_owned(),
        _ if frames == Some(CountSource::Limit) => "`maxIterations`".to_owned(),
        _ if frames == Some(CountSource::Unknown) => "nothing".to_owned(),
        Basis::Node => of(node.runs, "run"),
        Basis::Flow => format!("{} of nodes like it", of(node.runs, "run")),
        Basis::Type => "its type".to_owned(),
        Basis::Unknown => "nothing".to_owned(),
    }
}

/// `$1.20`, `~$1.20 ($0.90-$1.60)`, `at most $3`, `unknown`.
fn range(estimate: &Estimate, word: impl Fn(f64) -> String) -> String {
    let low = word(estimate.low);
    match (estimate.expected.map(&word), estimate.high.map(&word)) {
        (Some(expected), Some(high)) if low == high => expected,
        (Some(expected), Some(high)) => format!("~{expected} ({low}-{high})"),
        (Some(expected), None) => format!("~{expected} (at least {low})"),
        (None, Some(high)) => format!("at most {high}"),
        (None, None) if estimate.low > 0.0 => format!("at least {low}"),
        (None, None) => "unknown".to_owned(),
    }
}

/// A number of runs: `3`, `1.5`.
fn number(count: f64) -> String {
    let rounded = (count * 10.0).round() / 10.0;
    rounded.to_string()
}

fn millis(ms: f64) -> String {
    format::millis(ms.round() as u64)
}
