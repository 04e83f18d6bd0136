//! `inspan ps`: the sessions, newest first.

use inspan_engine::{Clock, SystemClock};
use inspan_flow::SessionEntry;

use crate::args::PsArgs;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::invocation::OutputForm;
use crate::store;
use crate::terminal;
use inspan_view::{DisplayStatus, Line, Tone, entry, safe::clean};

/// The longest text of what a session waits for, in columns.
const WIDEST: usize = 60;

pub(super) fn run(args: &PsArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let limit = args.limit.unwrap_or(usize::MAX);
    let entries = store::block_on(async {
        let store = store::open_reader(invocation)?;
        if args.all {
            return Ok(store.entries("", limit).await?);
        }
        // Those that have not ended are few, and may be old.
        let mut entries = store.entries("", usize::MAX).await?;
        entries.retain(|entry| !DisplayStatus::of(entry).has_ended());
        entries.truncate(limit);
        Ok(entries)
    })?;
    match invocation.form {
        OutputForm::Json => invocation.json(&entries.iter().map(entry::json).collect::<Vec<_>>()),
        OutputForm::Text => print(&entries, args, invocation),
    }
    Ok(Exit::Success)
}

fn print(entries: &[SessionEntry], args: &PsArgs, invocation: &Invocation) {
    if entries.is_empty() {
        let text = if args.all {
            "no sessions yet\n"
        } else {
            "no open sessions; `--all` also lists those that have ended\n"
        };
        terminal::progress(text);
        return;
    }
    let now = SystemClock.now();
    let cells = |entry: &SessionEntry| {
        let waits = entry::waits_for(entry).unwrap_or_default();
        let replay = if entry.is_replay { " (replay)" } else { "" };
        let state = format!("{}{replay}", DisplayStatus::of(entry).word());
        [
            clean(entry.session.as_str()),
            clean(&entry.flow),
            state,
            entry::age(entry, now),
            entry::cost(entry),
            waits,
        ]
    };
    let titles = ["ID", "FLOW", "STATE", "AGE", "COST", "WAITS FOR"].map(str::to_owned);
    let rows: Vec<_> = entries.iter().map(cells).collect();
    let width = |column: usize| {
        let all = rows.iter().chain([&titles]).map(|row| console::measure_text_width(&row[column]));
        all.max().unwrap_or(0)
    };
    let widths = [0, 1, 2, 3, 4].map(width);
    let tones = entries.iter().map(|entry| Some(DisplayStatus::of(entry).tone()));
    let all = [(&titles, None)].into_iter().chain(rows.iter().zip(tones));
    for (row, tone) in all {
        if invocation.print([line(row, &widths, tone)]) == terminal::TerminalReader::Gone {
            return;
        }
    }
}

/// One row; without a tone it is the one of the titles.
fn line(row: &[String; 6], widths: &[usize; 5], tone: Option<Tone>) -> Line {
    let mut line = Line::new();
    let mut end = 0;
    for (column, cell) in row.iter().enumerate() {
        let look = match (tone, column) {
            (None, _) | (_, 3 | 4) => Tone::Faint,
            (_, 0) => Tone::Strong,
            (Some(tone), 2) => tone,
            _ => Tone::Plain,
        };
        line.push(look, cell);
        if let Some(width) = widths.get(column) {
            end += width + 2;
            line.pad_to(end);
        }
    }
    line.clip(end + WIDEST)
}
