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
use inspan_view::{DisplayStatus, Line, Tone, entry, safe::clean, table};

/// The longest text of what a session waits for, in columns.
const WIDEST: usize = 60;

pub(super) fn run(args: &PsArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let limit = args.limit.unwrap_or(usize::MAX);
    let entries = store::read(invocation, async |store| {
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
    let row = |entry: &SessionEntry| {
        let waits = entry::waits_for(entry).unwrap_or_default();
        let replay = if entry.is_replay { " (replay)" } else { "" };
        let status = DisplayStatus::of(entry);
        [
            (Tone::Strong, clean(entry.session.as_str())),
            (Tone::Plain, clean(&entry.flow)),
            (status.tone(), format!("{}{replay}", status.word())),
            (Tone::Faint, entry::age(entry, now)),
            (Tone::Faint, entry::cost(entry)),
            (Tone::Plain, Line::new().with(Tone::Plain, &waits).clip(WIDEST).text()),
        ]
    };
    let titles = ["ID", "FLOW", "STATE", "AGE", "COST", "WAITS FOR"];
    let mut rows = vec![titles.map(|title| (Tone::Faint, title.to_owned()))];
    rows.extend(entries.iter().map(row));
    invocation.print(table(&rows, usize::MAX));
}
