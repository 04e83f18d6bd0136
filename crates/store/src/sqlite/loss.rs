//! Detects that a store has lost what it acknowledged: compares the marks with the rows of the sessions. `log` checks the
//! events themselves when they are read, and `verify` all of them.

use std::ops::ControlFlow;

use inspan_protocol::SessionId;
use rusqlite::Connection;

use super::{
    StoreProblem,
    fault::{Fault, of_file},
    file::Opened,
    log::{self, WalkStep},
    marks::{self, Mark, Marks},
    options::Loss,
    session::{self, SessionRow, count},
    sum::Sum,
    writer::Durability,
};
use crate::{SessionEntry, SessionFacts, StoreError};

/// A finding counts only if it is made this often: other processes write at the same time.
const LOOKS: usize = 3;
/// How many sessions an error names.
const NAMED: usize = 5;

/// What one session has lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lost {
    number: i64,
    /// The session.
    pub(super) session: String,
    /// Its newest acknowledged event.
    pub(super) acknowledged: i64,
    kind: LossKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum LossKind {
    Session,
    Events { last: i64, sum: Sum },
    Newest { sum: Sum },
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { session, acknowledged, .. } = self;
        match self.kind {
            LossKind::Session => {
                write!(f, "session `{session}` is missing, with all events up to {acknowledged}")
            }
            LossKind::Events { last, .. } => {
                let missing = StoreProblem::Missing(count(last + 1), count(*acknowledged));
                write!(f, "session `{session}`: {missing}")
            }
            LossKind::Newest { .. } => {
                write!(f, "session `{session}`: {}", StoreProblem::Altered(count(*acknowledged)))
            }
        }
    }
}

impl Lost {
    /// Whether the whole session is lost.
    pub(super) fn is_whole(&self) -> bool {
        self.kind == LossKind::Session
    }
}

/// What the session has lost, if its mark is ahead of its row.
pub(super) fn of_session(session: &SessionRow, mark: Option<&Mark>) -> Option<Lost> {
    let mark = mark.filter(|mark| mark.is_of(&session.id))?;
    of_row(mark, session.number, &session.id, session.last_seq, session.last_sum)
}

fn of_row(mark: &Mark, number: i64, id: &str, last: i64, sum: Sum) -> Option<Lost> {
    let kind = match mark.seq.cmp(&last) {
        std::cmp::Ordering::Greater => LossKind::Events { last, sum },
        std::cmp::Ordering::Equal if mark.sum != sum => LossKind::Newest { sum },
        _ => return None,
    };
    Some(Lost { number, session: id.to_owned(), acknowledged: mark.seq, kind })
}

/// What is lost if the store itself is missing beside its marks.
pub(super) fn of_all(marks: &std::path::Path) -> std::io::Result<Vec<Lost>> {
    let marks = marks::read_all(marks)?.into_iter();
    Ok(marks.filter_map(|(number, mark)| Some(whole(number, &mark?))).collect())
}

fn whole(number: i64, mark: &Mark) -> Lost {
    Lost { number, session: mark.session.clone(), acknowledged: mark.seq, kind: LossKind::Session }
}

/// Adds what is lost to a list of the sessions whose id has this prefix; missing sessions come first.
pub(super) fn list(
    connection: &Connection,
    marks: &std::path::Path,
    prefix: &str,
    entries: &mut Vec<SessionEntry>,
) -> Result<(), Fault> {
    for lost in find(connection, marks)?.into_iter().rev().filter(|lost| lost.session.starts_with(prefix)) {
        let damage = sentence(std::slice::from_ref(&lost));
        if lost.is_whole() {
            entries.insert(0, SessionEntry::damaged(lost.session.into(), damage));
        } else if let Some(entry) = entries.iter_mut().find(|entry| entry.session == *lost.session) {
            entry.damage.get_or_insert(damage);
        }
    }
    Ok(())
}

/// Everything that is lost.
pub(super) fn find(connection: &Connection, marks: &std::path::Path) -> Result<Vec<Lost>, Fault> {
    let mut before: Option<Vec<Lost>> = None;
    for _ in 0..LOOKS {
        // The marks first: they are never ahead of the log, so the log can only be further when it is read.
        let marks = marks::read_all(marks).map_err(|error| Fault::unread("its marks", &error))?;
        let lost = compare(connection, &marks)?;
        if lost.is_empty() || before.as_ref() == Some(&lost) {
            return Ok(lost);
        }
        before = Some(lost);
    }
    Ok(before.unwrap_or_default())
}

fn compare(connection: &Connection, marks: &[(i64, Option<Mark>)]) -> Result<Vec<Lost>, Fault> {
    let mut query =
        connection.prepare("SELECT number, id, last_seq, last_sum FROM sessions ORDER BY number")?;
    let mut rows = query.query(())?;
    let mut row = rows.next()?;
    let mut lost = Vec::new();
    for (number, mark) in marks {
        let Some(mark) = mark else { continue };
        while let Some(columns) = row
            && columns.get::<_, i64>(0)? < *number
        {
            row = rows.next()?;
        }
        let same = match row {
            Some(columns) if columns.get::<_, i64>(0)? == *number => {
                let id: String = columns.get(1)?;
                mark.is_of(&id).then_some((id, columns.get(2)?, columns.get(3)?))
            }
            _ => None,
        };
        match same {
            Some((id, last, sum)) => lost.extend(of_row(mark, *number, &id, last, sum)),
            None => lost.push(whole(*number, mark)),
        }
    }
    Ok(lost)
}

/// Makes the marks of a store that was just opened consistent with it: a new store has none, a
/// store without marks gets them, and a store that lost something is refused or accepted as it is.
pub(super) fn settle(opened: &Opened, marks: &mut Marks, loss: Loss) -> Result<(), StoreError> {
    let Opened { connection, paths, is_new, .. } = opened;
    let file = |error| of_file(&paths.store, &error);
    if *is_new {
        // The old marks were checked before the store was created.
        return marks.clear_all().map_err(file);
    }
    let fault = |fault: Fault| fault.at(&paths.store);
    if marks.is_empty().map_err(file)? {
        return mark_all(connection, marks).map_err(fault);
    }
    let lost = find(connection, &paths.marks).map_err(fault)?;
    match loss {
        Loss::Refuse if lost.is_empty() => Ok(()),
        Loss::Refuse => Err(StoreError::Damaged { path: paths.store.clone(), what: sentence(&lost) }),
        Loss::Accept => {
            sync(connection).map_err(fault)?;
            lost.iter().try_for_each(|lost| repair(marks, lost)).map_err(file)?;
            rebuild_entries(connection).map_err(fault)
        }
    }
}

/// Rebuilds each list entry that cannot be read, from the readable events.
fn rebuild_entries(connection: &Connection) -> Result<(), Fault> {
    let mut number = 0;
    while let Some((next, id)) = session::next_after(connection, number)? {
        number = next;
        let (mut session, damage) = session::find_damaged(connection, &SessionId::from(id))?;
        if damage.is_none() {
            continue;
        }
        let mut digest = SessionFacts::default();
        let walked = log::walk(connection, &session, None, session.first_seq, |step| {
            if let WalkStep::Event(row) = step
                && let Ok(envelope) = log::envelope(connection, &session, &row)
            {
                digest.apply(&envelope);
            }
            Ok(ControlFlow::Continue(()))
        });
        match walked {
            Err(fault) if !fault.is_damage() => return Err(fault),
            _ => {}
        }
        // An event that cannot be read here may be one of a newer program, which goes on after it.
        session.digest = SessionFacts { last_seq: count(session.last_seq), ..digest };
        session.update_end(connection)?;
        if session.owner.is_none() {
            session.clear_owner(connection)?;
        }
    }
    Ok(())
}

fn repair(marks: &mut Marks, lost: &Lost) -> std::io::Result<()> {
    let Lost { number, session, acknowledged, kind } = lost;
    match kind {
        LossKind::Session => marks.put(*number, None),
        LossKind::Events { last, sum } => marks.put(*number, Some(&Mark::new(session, *last, *sum))),
        LossKind::Newest { sum } => marks.put(*number, Some(&Mark::new(session, *acknowledged, *sum))),
    }
}

fn mark_all(connection: &Connection, marks: &mut Marks) -> Result<(), Fault> {
    let mut query = connection.prepare("SELECT number, id, last_seq, last_sum FROM sessions")?;
    let rows = query.query_map((), |row| {
        let id: String = row.get(1)?;
        Ok((row.get(0)?, Mark::new(&id, row.get(2)?, row.get(3)?)))
    })?;
    let all = rows.collect::<Result<Vec<_>, _>>()?;
    drop(query);
    sync(connection)?;
    let failed = |error| Fault::Broken(format!("its marks cannot be written: {error}"));
    marks.put_all(all, Durability::Synced).map_err(failed)
}

/// Syncs what is in the write-ahead log: a process may just have written what it need not sync.
fn sync(connection: &Connection) -> Result<(), Fault> {
    // A checkpoint by another process, which this one does not wait for, syncs it too.
    Ok(connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", (), |_| Ok(()))?)
}

/// The message of the error for everything that is lost.
pub(super) fn sentence(lost: &[Lost]) -> String {
    let mut text = lost.iter().take(NAMED).map(ToString::to_string).collect::<Vec<_>>().join("; ");
    if lost.len() > NAMED {
        text.push_str(&format!("; and {} sessions more", lost.len() - NAMED));
    }
    text.push_str(" (accept the loss to continue with what is left)");
    text
}
