//! `inspan logs ID`: what happened in a session, as lines for people or envelopes for programs, and new events
//! as they come. Nothing is missed or printed twice, whichever process writes the log.

use std::sync::{Arc, LazyLock};

use inspan_engine::Filter;
use inspan_flow::{Select, SessionEntry};
use inspan_protocol::{Envelope, Event};
use inspan_sessions::{Followed, SessionError, SessionErrorCode, event_filter};
use tokio::time::Instant;

use crate::args::LogsArgs;
use crate::engine::Outage;
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

/// So many events before the first one that is wanted may hold the beginning of a line of its text.
const LEAD: u64 = 256;
/// Text that comes in pieces.
const PIECES: [&str; 2] = ["agent:text", "agent:thinking"];
/// All other events: what lines need to know about earlier ones.
static WHOLE: LazyLock<Vec<&str>> =
    LazyLock::new(|| Event::NAMES.iter().copied().filter(|name| !PIECES.contains(name)).collect());

pub(super) fn run(args: &LogsArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let filter = event_filter(&args.filter)
        .map_err(|error| SessionError { message: format!("`--type`: {}", error.message), ..error })?;
    store::read(invocation, async |store| {
        let entry = store::find(store.as_ref(), &args.session).await?;
        let record = store.record(&entry.session).await?;
        let first = record.first_seq();
        let mut out: Box<dyn EventOutput> = match invocation.form {
            OutputForm::Json => Box::new(Envelopes { filter }),
            OutputForm::Text => {
                // A flow that this version cannot read still has a log.
                let graph = store::graph_of(&record);
                let state = graph.map(|graph| SessionView::of(record.run(&graph))).unwrap_or_default();
                Box::new(Lines::new(state, filter, args.from, invocation.terminal.stdout))
            }
        };
        let is_text = invocation.form == OutputForm::Text;
        let next = args.from.saturating_sub(if is_text { LEAD } else { 0 }).max(first);
        if is_text && next > first {
            // People's lines need what came before them, without the many pieces of what was said.
            let before = store.read(&entry.session, first, Select::Names(&WHOLE)).await?;
            for envelope in before.iter().take_while(|envelope| envelope.seq < next) {
                out.print(envelope);
            }
        }
        let mut log = store::sessions(store).follow(&entry.session, next);
        let mut outage = Outage::default();
        loop {
            let began = Instant::now();
            let events = match args.follow {
                false => log.ready().await?,
                true => match log.next().await {
                    Ok(Followed::Events(events)) => Some(events),
                    Ok(Followed::Idle(entry) | Followed::Ended(entry)) => {
                        if entry.digest.outcome.is_none() {
                            report_idle(&entry, invocation);
                        }
                        None
                    }
                    Err(away) if is_cut_off(&away, invocation) => {
                        if outage.survives(began, &away.message).await {
                            continue;
                        }
                        let (id, from) = (&entry.session, log.position());
                        let again = format!("`inspan logs {id} -f --from {from}` follows it again");
                        return Err(Failure::from(away).with_hint(again));
                    }
                    Err(error) => return Err(error.into()),
                },
            };
            let is_read = |envelope: &Arc<Envelope>| out.print(envelope) == TerminalReader::There;
            if !events.is_some_and(|events| events.iter().all(is_read)) {
                return Ok(Exit::Success);
            }
        }
    })
}

/// Whether this command does not reach the folder or bucket of a session that others run.
fn is_cut_off(error: &SessionError, invocation: &Invocation) -> bool {
    invocation.engine.is_some() && error.code == SessionErrorCode::Configuration
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

/// Reports why nothing more comes: no process runs the session.
fn report_idle(entry: &SessionEntry, invocation: &Invocation) {
    let next = invocation.commands().command("resume", &entry.session, "");
    let state = DisplayStatus::of(entry).word();
    terminal::progress(&format!("the session is {state}; continue with `{next}`\n"));
}
