//! `inspan compare ID ID`: two sessions side by side.

use inspan_flow_test::{Comparison, NodeComparison, NodeSide, SessionSide};

use crate::args::CompareArgs;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::invocation::OutputForm;
use crate::store;
use inspan_view::{Line, Tone, format, look, safe::clean};

/// The widest column of a session, so that two fit side by side.
const WIDEST: usize = 40;

pub(super) fn run(args: &CompareArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let comparison = store::block_on(async {
        let sessions = store::sessions(store::open_reader(invocation)?);
        let one = store::find(&**sessions.store(), &args.session).await?;
        let other = store::find(&**sessions.store(), &args.other).await?;
        Ok(sessions.compare(&one.session, &other.session).await?)
    })?;
    match invocation.form {
        OutputForm::Json => invocation.json(&comparison),
        OutputForm::Text => drop(invocation.print(lines(&comparison))),
    }
    Ok(Exit::Success)
}

/// One row of the table: its name, what both sessions have, and whether that is the same.
struct ComparisonRow {
    name: String,
    cells: [String; 2],
    counts: Counts,
}

/// Whether a difference is one between results, or only of cost and time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counts {
    Result,
    Expense,
}

fn lines(comparison: &Comparison) -> Vec<Line> {
    let [one, other] = &comparison.sessions;
    let row = |name: &str, counts, cell: &dyn Fn(&SessionSide) -> String| ComparisonRow {
        name: name.to_owned(),
        cells: [cell(one), cell(other)],
        counts,
    };
    let mut rows = vec![
        row("flow", Counts::Expense, &|side| side.flow.clone()),
        row("outcome", Counts::Result, &SessionSide::word),
        row("cost", Counts::Expense, &|side| side.cost_usd.map_or("unknown".to_owned(), format::dollars)),
        row("tokens", Counts::Expense, &|side| format::count(side.tokens)),
        row("time", Counts::Expense, &|side| format::millis(side.duration_ms)),
    ];
    rows.extend(comparison.nodes.iter().map(node_row));
    let mut lines = table(["", &one.session_id, &other.session_id], &rows);
    let mut part = |title: &str, difference: &str| {
        if !difference.is_empty() {
            lines.push(Line::new());
            lines.push(Line::new().with(Tone::Strong, title));
            lines.extend(difference.lines().map(|text| Line::new().with(look::difference(text), text)));
        }
    };
    part("The path differs:", &comparison.path_difference);
    for node in &comparison.nodes {
        part(&format!("The output of `{}` differs:", clean(&node.path)), &node.output_difference);
    }
    lines.push(Line::new());
    lines.push(match comparison.same {
        true => Line::new().with(Tone::Good, "Outcome, path, statuses and outputs are the same."),
        false => Line::new().with(Tone::Warning, "The sessions differ."),
    });
    lines
}

fn node_row(node: &NodeComparison) -> ComparisonRow {
    let cell = |side: &Option<NodeSide>| match side {
        None => "-".to_owned(),
        Some(side) => {
            let mut cell = side.word();
            if side.attempts > 1 {
                cell.push_str(&format!(" x{}", side.attempts));
            }
            if side.attempts > 0 {
                cell.push_str(&format!(", {}", format::millis(side.duration_ms)));
            }
            if let Some(usd) = side.cost_usd {
                cell.push_str(&format!(", {}", format::dollars(usd)));
            }
            cell
        }
    };
    let status = |side: &Option<NodeSide>| side.as_ref().map(|side| (side.status, side.attempts));
    let same = node.output_difference.is_empty() && status(&node.sides[0]) == status(&node.sides[1]);
    ComparisonRow {
        name: node.path.clone(),
        cells: node.sides.each_ref().map(cell),
        counts: if same { Counts::Expense } else { Counts::Result },
    }
}

fn table(titles: [&str; 3], rows: &[ComparisonRow]) -> Vec<Line> {
    let width = |texts: &mut dyn Iterator<Item = &str>| {
        texts.map(console::measure_text_width).max().unwrap_or_default().min(WIDEST)
    };
    let first = width(&mut rows.iter().map(|row| row.name.as_str()).chain([titles[0]])) + 2;
    let second = width(&mut rows.iter().map(|row| row.cells[0].as_str()).chain([titles[1]])) + 2;
    let line = |name: &str, cells: [&str; 2], tones: [Tone; 3]| {
        let mut line = Line::new();
        line.push(tones[0], &clean(name));
        line = line.clip(first - 1);
        line.pad_to(first);
        line.push(tones[1], &clean(cells[0]));
        line = line.clip(first + second - 1);
        line.pad_to(first + second).push(tones[2], &clean(cells[1]));
        line
    };
    let mut lines = vec![line(titles[0], [titles[1], titles[2]], [Tone::Faint; 3])];
    for row in rows {
        let differs = row.counts == Counts::Result && row.cells[0] != row.cells[1];
        let tone = if differs { Tone::Warning } else { Tone::Plain };
        lines.push(line(&row.name, [&row.cells[0], &row.cells[1]], [Tone::Strong, tone, tone]));
    }
    lines
}
