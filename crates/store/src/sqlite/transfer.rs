//! Sessions out of a store and into one, as JSON lines: first the record with the format's version, then the
//! envelopes, then the commands with their results, and last a line that says how many there were.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    ops::ControlFlow,
    path::Path,
    sync::Arc,
};

use inspan_protocol::{Command, Envelope, Event, SessionId, Timestamp};
use rusqlite::Connection;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::task;

use super::{
    SqliteStore, blobs,
    commands::{self, StoredCommand},
    fault::{Fault, from_json},
    file,
    format::STEPS,
    log::{self, WalkStep, Written},
    readers,
    session::{self, count, int},
    snapshot, write_mark,
    writer::Transaction,
};
use crate::{Lease, MOST_EVENT_BYTES, SessionRecord, StoreError, Verdict};

/// The version of the lines' format.
const FORMAT: u32 = 1;
/// No session has so many events: the greatest whole number that every JSON reader has exactly.
const LAST_SEQ: u64 = 1 << 53;
/// The longest line that is imported.
const LINE_BYTES: u64 = MOST_EVENT_BYTES as u64;

/// Why a session could not be exported or imported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The store failed, or refused it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The lines could not be read or written.
    #[error("the exported session cannot be read or written: {0}")]
    Io(#[from] io::Error),
    /// The lines come to no end. What comes before can be imported as a [part](Import::Part).
    #[error("line {line} of the exported session: {what}")]
    Incomplete {
        /// Its number, counting from 1.
        line: u64,
        /// What is missing.
        what: &'static str,
    },
    /// A line is not what the format requires.
    #[error("line {line} of the exported session: {what}")]
    Line {
        /// Its number, counting from 1.
        line: u64,
        /// What is wrong.
        what: String,
    },
}

/// How much of a session must be there for it to be imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Import {
    /// All of it: the lines must come to their end.
    Whole,
    /// A part: the lines of a damaged session, which end where the damage begins.
    Part,
}

/// What was exported or imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exported {
    /// The session.
    pub session: SessionId,
    /// Its events.
    pub events: u64,
    /// Its commands.
    pub commands: u64,
    /// What of it is damaged: of the log there is what comes before, and the lines have no end, so that they
    /// are not taken for the whole.
    pub damage: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Head<T> {
    format: u32,
    record: T,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CommandLine<T> {
    number: u64,
    at: Timestamp,
    command: T,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    verdict: Option<Word>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    answered_seq: Option<u64>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Word {
    Accepted,
    Refused,
}

#[derive(Serialize, Deserialize)]
struct ExportEnd {
    end: Counts,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Counts {
    events: u64,
    commands: u64,
}

impl SqliteStore {
    /// Writes a session as JSON lines, and gives the writer back. Memory for one event at a time; others may
    /// write meanwhile, and what they add is not in it.
    ///
    /// # Errors
    /// [`TransferError::Store`] if there is no such session or nothing of it can be read, [`TransferError::Io`].
    pub async fn export<W: Write + Send + 'static>(
        &self,
        session: &SessionId,
        mut to: W,
    ) -> Result<(W, Exported), TransferError> {
        let (store, id) = (self.paths.store.clone(), session.clone());
        let export = move || {
            let (mut connection, paths) = file::open_to_read(&store, STEPS)?;
            let exported = export(&mut connection, &paths.marks, &id, &store, &mut to)?;
            Ok((to, exported))
        };
        task::spawn_blocking(export).await.map_err(|_| readers::ended(&self.paths.store))?
    }

    /// Takes in a session that was exported, with new sums, the epoch 0 and no owner: all of it or
    /// nothing. Memory for the whole session.
    ///
    /// # Errors
    /// [`TransferError::Line`] names the line that is not in order, [`TransferError::Store`] is
    /// [`StoreError::SessionExists`] if the store has a session with the id, [`TransferError::Io`].
    pub async fn import<R: Read + Send + 'static>(
        &self,
        from: R,
        how: Import,
    ) -> Result<Exported, TransferError> {
        let parse = move || parse(BufReader::new(from), how);
        let parsed = task::spawn_blocking(parse).await.map_err(|_| readers::ended(&self.paths.store))??;
        let ParsedSession { record, events, commands, .. } = parsed;
        let exported = Exported {
            session: record.session.clone(),
            events: events.len() as u64,
            commands: commands.len() as u64,
            damage: None,
        };
        let body = session::json(&record).map_err(|fault| self.refused(fault))?;
        let import = move |transaction: &mut Transaction<'_>| {
            let connection = transaction.connection;
            let mut session = session::insert(connection, &record, &body)?;
            session::refuse_circle(connection, &record)?;
            let lease = Lease { session: record.session.clone(), epoch: 0 };
            blobs::insert_all(connection, &session, &events)?;
            log::append(connection, &mut session, &lease, &events)?;
            commands.iter().try_for_each(|command| commands::insert(connection, &session, command))?;
            write_mark(transaction, &session);
            Ok(())
        };
        self.write(usize::MAX, import).await?;
        Ok(exported)
    }
}

fn export(
    connection: &mut Connection,
    marks: &Path,
    id: &SessionId,
    store: &Path,
    to: &mut dyn Write,
) -> Result<Exported, TransferError> {
    let mut counts = Counts { events: 0, commands: 0 };
    let mut damage = None;
    let mut failed: io::Result<()> = Ok(());
    let done = snapshot(connection, marks, id, |connection, session, mark| {
        let (stored, _) = session::record_text(connection, session)?;
        let record = with_used_settings(&stored)?;
        let mut line = |text: &[u8]| {
            failed = to.write_all(text).and_then(|()| to.write_all(b"\n"));
            failed.is_ok()
        };
        if !line(
            session::json(&Head { format: FORMAT, record: raw(record.as_deref().unwrap_or(&stored))? })?
                .as_bytes(),
        ) {
            return Ok(());
        }
        let mut writable = true;
        log::walk(connection, session, mark, session.first_seq, |step| {
            match step {
                WalkStep::Event(row) => match log::body(connection, session, &row) {
                    Ok(body) => {
                        writable = line(&body);
                        counts.events += 1;
                    }
                    Err(fault) if fault.is_damage() => damage = Some(fault.to_string()),
                    Err(fault) => return Err(fault),
                },
                WalkStep::Damage(found) => damage = Some(found.to_string()),
            }
            let whole = writable && damage.is_none();
            Ok(if whole { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        })?;
        let walked = commands::walk(connection, session, "", |stored| {
            writable = writable && line(session::json(&command_line(&stored)?)?.as_bytes());
            counts.commands += 1;
            Ok(())
        });
        match walked {
            Err(fault) if fault.is_damage() => {
                damage.get_or_insert(fault.to_string());
            }
            walked => walked?,
        }
        if writable && damage.is_none() {
            line(session::json(&ExportEnd { end: counts })?.as_bytes());
        }
        Ok(())
    });
    done.map_err(|fault| fault.at(store))?;
    failed?;
    to.flush()?;
    let Counts { events, commands } = counts;
    Ok(Exported { session: id.clone(), events, commands, damage })
}

/// The record without settings that do nothing in its flow, if it has any: the next machine is not the user's own.
fn with_used_settings(stored: &str) -> Result<Option<String>, Fault> {
    let mut record: SessionRecord = from_json("its record", stored.as_bytes())?;
    let all = record.flow.changes.len();
    record.flow = record.flow.used();
    (record.flow.changes.len() < all).then(|| session::json(&record)).transpose()
}

fn raw(text: &str) -> Result<&RawValue, Fault> {
    serde_json::from_str(text).map_err(|error| Fault::Broken(format!("it is not JSON: {error}")))
}

/// An answered command goes out without its text: it may hold a secret, and the log says what was said without it.
fn command_line(stored: &StoredCommand) -> Result<CommandLine<Command>, Fault> {
    let command = commands::command(stored)?;
    let (verdict, reason) = match &stored.verdict {
        Some(Verdict::Accepted) => (Some(Word::Accepted), None),
        Some(Verdict::Refused(reason)) => (Some(Word::Refused), Some(reason.clone())),
        None => (None, None),
    };
    Ok(CommandLine {
        number: count(stored.number),
        at: Timestamp::from_millis(stored.at),
        command: if verdict.is_some() { command.without_text() } else { command },
        verdict,
        reason,
        answered_seq: stored.answered_seq.map(count),
    })
}

/// A session on its way in.
struct ParsedSession {
    record: SessionRecord,
    order: Order,
    events: Vec<Written>,
    commands: Vec<StoredCommand>,
}

/// What every reader of a log relies on: it begins once, ends at most once, and nothing happens before or after.
/// Channels come and go at any time, and what is asked of a session that has ended is refused.
struct Order {
    has_begun: bool,
    has_ended: bool,
}

impl Order {
    fn take(&mut self, event: &Event) -> Result<(), String> {
        let name = event.name();
        match event {
            _ if name.starts_with("channel:") => {}
            Event::SessionRejected { .. } if self.has_ended => {}
            _ if self.has_ended => return Err(format!("`{name}` follows `harness:complete`")),
            Event::HarnessStart { .. } if self.has_begun => return Err(format!("`{name}` comes once more")),
            Event::HarnessStart { .. } => self.has_begun = true,
            _ if !self.has_begun => return Err(format!("`{name}` comes before `harness:start`")),
            Event::HarnessComplete { .. } => self.has_ended = true,
            _ => {}
        }
        Ok(())
    }
}

/// Lines of bounded length, each of which must be a JSON object.
struct Lines<R>(R);

/// Why a line is not taken.
enum BadLine {
    Io(io::Error),
    What(&'static str),
    /// The file ends within it.
    CutOff,
}

impl BadLine {
    fn at(self, line: u64) -> TransferError {
        match self {
            Self::Io(error) => error.into(),
            Self::What(what) => TransferError::Line { line, what: what.to_owned() },
            Self::CutOff => TransferError::Incomplete { line, what: "it is cut off" },
        }
    }
}

impl<R: BufRead> Iterator for Lines<R> {
    type Item = Result<String, BadLine>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.line() {
            Ok(line) if line.is_empty() => None,
            line => Some(line),
        }
    }
}

impl<R: BufRead> Lines<R> {
    /// The next line; an empty one at the end.
    fn line(&mut self) -> Result<String, BadLine> {
        // A line that is not an object is refused before all of it is read.
        match self.0.fill_buf().map_err(BadLine::Io)?.first() {
            None => return Ok(String::new()),
            Some(b'{') => {}
            Some(_) => return Err(BadLine::What("it is not a JSON object")),
        }
        let mut line = Vec::new();
        let mut bounded = io::Read::take(&mut self.0, LINE_BYTES + 1);
        bounded.read_until(b'\n', &mut line).map_err(BadLine::Io)?;
        if line.len() as u64 > LINE_BYTES {
            return Err(BadLine::What("it is longer than 256 MiB"));
        }
        let is_cut = !line.ends_with(b"\n")
            && serde_json::from_slice::<serde::de::IgnoredAny>(&line).is_err_and(|error| error.is_eof());
        if is_cut {
            return Err(BadLine::CutOff);
        }
        String::from_utf8(line).map_err(|_| BadLine::What("it is not UTF-8"))
    }
}

/// Which line it is, by the one key that only it has.
#[derive(Deserialize)]
struct LineKey {
    event: Option<serde::de::IgnoredAny>,
    number: Option<serde::de::IgnoredAny>,
    end: Option<serde::de::IgnoredAny>,
}

fn parse(from: impl BufRead, how: Import) -> Result<ParsedSession, TransferError> {
    let mut lines = (1..).zip(Lines(from));
    let wrong = |line, what: String| TransferError::Line { line, what };
    let first = lines.next().map(|(_, first)| first.map_err(|error| error.at(1))).transpose()?;
    let first = first.ok_or_else(|| wrong(1, "the file is empty".to_owned()))?;
    let head: Head<&RawValue> = {
        // The version is checked before anything else of the record.
        let Head { format, .. }: Head<serde::de::IgnoredAny> = read(1, &first)?;
        if format != FORMAT {
            let what = format!("the lines have format {format}, and this program reads {FORMAT}");
            return Err(wrong(1, what));
        }
        read(1, &first)?
    };
    let record: SessionRecord = read(1, head.record.get())?;
    let id = SessionId::checked(record.session.as_str());
    id.map_err(|error| wrong(1, format!("the session's id is refused: {error}")))?;
    if record.first_seq() > LAST_SEQ {
        return Err(wrong(1, "the session begins beyond every number that an event can have".to_owned()));
    }
    let order = Order { has_begun: record.base.is_some(), has_ended: false };
    let mut parsed = ParsedSession { record, order, events: Vec::new(), commands: Vec::new() };
    while let Some((line, text)) = lines.next() {
        let text = match text {
            // Who wrote it was interrupted.
            Err(BadLine::CutOff) if how == Import::Part => break,
            text => text.map_err(|error| error.at(line))?,
        };
        let key: LineKey = read(line, &text)?;
        if key.end.is_some() {
            let ExportEnd { end }: ExportEnd = read(line, &text)?;
            let counts =
                Counts { events: parsed.events.len() as u64, commands: parsed.commands.len() as u64 };
            if end == counts {
                return match lines.next() {
                    None => Ok(parsed),
                    Some(_) => Err(wrong(line + 1, "there is a line after the end".to_owned())),
                };
            }
            let what =
                format!("{} events and {} commands were exported, and others came", end.events, end.commands);
            return Err(wrong(line, what));
        }
        let took = match (key.event, key.number) {
            (Some(_), None) if parsed.commands.is_empty() => parsed.take_event(&text),
            (None, Some(_)) => parsed.take_command(&text),
            (Some(_), None) => Err("an event follows the commands".to_owned()),
            _ => Err("it is neither an event, nor a command, nor the end".to_owned()),
        };
        took.map_err(|what| wrong(line, what))?;
    }
    if how == Import::Part {
        return Ok(parsed);
    }
    let line = (parsed.events.len() + parsed.commands.len()) as u64 + 2;
    Err(TransferError::Incomplete { line, what: "the end is missing" })
}

fn read<'a, T: Deserialize<'a>>(line: u64, text: &'a str) -> Result<T, TransferError> {
    serde_json::from_str(text).map_err(|error| {
        // A line of the file is one line to its parser.
        let what = error.to_string().replace(" at line 1 column ", " at column ");
        TransferError::Line { line, what }
    })
}

impl ParsedSession {
    fn take_event(&mut self, text: &str) -> Result<(), String> {
        let envelope: Envelope = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let expected = self.record.first_seq() + self.events.len() as u64;
        if envelope.seq != expected {
            return Err(format!("the event is number {}, and {expected} comes next", envelope.seq));
        }
        let session = &envelope.context.session_id;
        if *session != self.record.session {
            return Err(format!("the event is of session `{session}`"));
        }
        self.order.take(&envelope.event)?;
        self.events.push(Written::of(&Arc::new(envelope)).map_err(|fault| fault.to_string())?);
        Ok(())
    }

    fn take_command(&mut self, text: &str) -> Result<(), String> {
        let line: CommandLine<&RawValue> = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let expected = self.commands.len() as u64 + 1;
        if line.number != expected {
            return Err(format!("the command is number {}, and {expected} comes next", line.number));
        }
        let body = line.command.get();
        let _: Command = from_json("the command", body.as_bytes()).map_err(|fault| fault.to_string())?;
        let verdict = line.verdict.map(|word| match word {
            Word::Accepted => Verdict::Accepted,
            Word::Refused => Verdict::Refused(line.reason.unwrap_or_default()),
        });
        self.commands.push(StoredCommand {
            key: None,
            number: int(line.number),
            at: line.at.as_millis(),
            body: body.to_owned(),
            verdict,
            answered_seq: line.answered_seq.map(int),
        });
        Ok(())
    }
}
