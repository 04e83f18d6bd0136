//! `inspan logs ID`: what happened in a session, as lines for people or envelopes for programs, and new events
//! as they come. Nothing is missed or printed twice, whichever process writes the log.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use futures::StreamExt;
use inspan_engine::Filter;
use inspan_flow::{Liveness, RunStore, Select, SessionEntry};
use inspan_protocol::{Envelope, Event};
use inspan_sessions::{SessionError, event_filter};
use tokio::time::timeout;

use crate::args::LogsArgs;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::invocation::OutputForm;
use crate::store;
use crate::terminal;
use crate::terminal::TerminalReader;
use inspan_view::{DisplayStatus, SessionView};
use lines::Lines;

mod lines;

/// How many events are read at once.
const PAGE: usize = 1_000;
/// So many events before the first one that is wanted may hold the beginning of a line of its text.
const LEAD: u64 = 256;
/// Text that comes in pieces.
const PIECES: [&str; 2] = ["agent:text", "agent:thinking"];
/// All other events: what lines need to know about earlier ones.
static WHOLE: LazyLock<Vec<&str>> =
    LazyLock::new(|| Event::NAMES.iter().copied().filter(|name| !PIECES.contains(name)).collect());

/// After how long without a notification the store is read anyway.
const PATIENCE: Duration = Duration::from_secs(2);

pub(super) fn run(args: &LogsArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let filter = event_filter(&args.filter)
        .map_err(|error| SessionError { message: format!("`--type`: {}", error.message), ..error })?;
    store::block_on(async {
        let store = store::open_reader(invocation)?;
        let entry = store::find(store.as_ref(), &args.session).await?;
        let record = store.record(&entry.session).await?;
        let first = record.first_seq();
        let out: Box<dyn EventOutput> = match invocation.form {
            OutputForm::Json => Box::new(Envelopes { filter }),
            OutputForm::Text => {
                // A flow that this version cannot read still has a log.
                let graph = store::graph_of(&record);
                let state = graph.map(|graph| SessionView::of(record.run(&graph))).unwrap_or_default();
                Box::new(Lines::new(state, filter, args.from, invocation.terminal.stdout))
            }
        };
        let mut log = Log { store, entry, next: args.from.max(first), out };
        // People's lines need what came before them.
        if invocation.form == OutputForm::Text {
            log.begin(first, args.from.saturating_sub(LEAD)).await?;
        }
        if args.follow { log.follow(invocation).await } else { log.catch_up().await.map(|_| ()) }
    })?;
    Ok(Exit::Success)
}

/// Where events go.
trait EventOutput {
    fn print(&mut self, envelope: &Envelope) -> TerminalReader;
}

/// As JSON lines.
struct Envelopes {
    filter: Filter,
}

impl EventOutput for Envelopes {
    fn print(&mut self, envelope: &Envelope) -> TerminalReader {
        if !self.filter.matches(envelope) {
            return TerminalReader::There;
        }
        match serde_json::to_string(envelope) {
            Ok(line) => terminal::json_line(&line),
            // An envelope that was read as JSON can be written as JSON.
            Err(_) => TerminalReader::There,
        }
    }
}

/// A session's log on its way out.
struct Log {
    store: Arc<dyn RunStore>,
    entry: SessionEntry,
    /// The next event that has not been seen.
    next: u64,
    out: Box<dyn EventOutput>,
}

impl Log {
    /// Shows the lines what came before the events that are wanted, without the many pieces of what was said.
    async fn begin(&mut self, first: u64, from: u64) -> Result<(), Failure> {
        self.next = from.max(first);
        if self.next > first {
            let before = self.store.read(&self.entry.session, first, Select::Names(&WHOLE)).await?;
            for envelope in before.iter().take_while(|envelope| envelope.seq < self.next) {
                self.out.print(envelope);
            }
        }
        Ok(())
    }

    /// Prints all that is there by now.
    async fn catch_up(&mut self) -> Result<ShownEvents, Failure> {
        let mut seen = ShownEvents { reader: TerminalReader::There, is_over: false };
        loop {
            let page = self.store.read_next(&self.entry.session, self.next, PAGE).await?;
            if page.is_empty() {
                return Ok(seen);
            }
            for envelope in &page {
                self.next = envelope.seq + 1;
                seen.is_over |= matches!(envelope.event, Event::HarnessComplete { .. });
                if self.out.print(envelope) == TerminalReader::Gone {
                    return Ok(ShownEvents { reader: TerminalReader::Gone, ..seen });
                }
            }
        }
    }

    /// Prints what is there and what comes, until no process writes any more.
    async fn follow(&mut self, invocation: &Invocation) -> Result<(), Failure> {
        let mut changes = self.store.changes();
        let mut is_over = false;
        loop {
            // A process that is found to be gone here has written everything before the log is read below.
            let entry = self.store.entry(&self.entry.session).await?;
            let seen = self.catch_up().await?;
            is_over |= seen.is_over || entry.digest.outcome.is_some();
            if seen.reader == TerminalReader::Gone || (is_over && entry.liveness != Liveness::Alive) {
                return Ok(());
            }
            if !is_over && entry.liveness == Liveness::Gone {
                report_idle(&entry, invocation);
                return Ok(());
            }
            // A stream that has ended, or says nothing, is no reason to miss anything.
            if let Ok(None) = timeout(PATIENCE, changes.next()).await {
                tokio::time::sleep(PATIENCE).await;
            }
        }
    }
}

/// Reports why nothing more comes: no process runs the session.
fn report_idle(entry: &SessionEntry, invocation: &Invocation) {
    let next = invocation.commands().command("resume", &entry.session, "");
    let state = DisplayStatus::of(entry).word();
    terminal::progress(&format!("the session is {state}; continue with `{next}`\n"));
}

/// The result of one read of the log.
struct ShownEvents {
    reader: TerminalReader,
    is_over: bool,
}
