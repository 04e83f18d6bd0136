//! `inspan compare ID ID`: two sessions side by side.

use inspan_flow_test::{Comparison, NodeComparison, NodeSide, SessionSide};

use crate::args::CompareArgs;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::invocation::OutputForm;
use crate::store;
use inspan_view::{Line, Tone, format, look, safe::clean, table};

/// The widest column of a session, so that two fit side by side.
const WIDEST: usize = 40;

pub(super) fn run(args: &CompareArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let comparison = store::read(invocation, async |store| {
        let sessions = store::sessions(store);
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

/// Whether a difference is one between results, or only of cost and time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counts {
    Result,
    Expense,
}

fn lines(comparison: &Comparison) -> Vec<Line> {
    let [one, other] = &comparison.sessions;
    let both = |name: &str, counts, cell: &dyn Fn(&SessionSide) -> String| {
        row(name, [cell(one), cell(other)], counts)
    };
    let mut rows = vec![
        ["", &one.session_id, &other.session_id].map(|title| (Tone::Faint, clean(title))),
        both("flow", Counts::Expense, &|side| side.flow.clone()),
        both("state", Counts::Result, &|side| side.state.clone()),
        both("cost", Counts::Expense, &|side| side.cost_usd.map_or("unknown".to_owned(), format::dollars)),
        both("tokens", Counts::Expense, &|side| format::count(side.tokens)),
        both("time", Counts::Expense, &|side| format::millis(side.duration_ms)),
    ];
    rows.extend(comparison.nodes.iter().map(node_row));
    let mut lines = table(&rows, WIDEST);
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
    part("What the flow gives differs:", &comparison.outputs_difference);
    lines.push(Line::new());
    lines.push(match comparison.same {
        true => Line::new().with(Tone::Good, "Outcome, path, statuses and outputs are the same."),
        false => Line::new().with(Tone::Warning, "The sessions differ."),
    });
    lines
}

/// A row of the table: its name, and what both sessions have.
fn row(name: &str, cells: [String; 2], counts: Counts) -> [(Tone, String); 3] {
    let differs = counts == Counts::Result && cells[0] != cells[1];
    let tone = if differs { Tone::Warning } else { Tone::Plain };
    let [one, other] = cells.map(|cell| (tone, clean(&cell)));
    [(Tone::Strong, clean(name)), one, other]
}

fn node_row(node: &NodeComparison) -> [(Tone, String); 3] {
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
    let counts = if same { Counts::Expense } else { Counts::Result };
    row(&node.path, node.sides.each_ref().map(cell), counts)
}
