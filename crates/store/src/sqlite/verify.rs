//! A full check of a store, as a report for people.

use std::{fmt, ops::ControlFlow};

use inspan_protocol::SessionId;
use rusqlite::Connection;
use tokio::task;

use super::{
    SqliteStore, commands,
    fault::Fault,
    file,
    format::{self, STEPS},
    log::{self, WalkStep},
    loss, readers, session,
    session::{SessionRow, count},
    snapshot,
};
use crate::{SessionFacts, StoreError};

/// How many findings a report lists; it counts the others.
const FINDINGS: usize = 1_000;

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VerifyReport {
    /// Sessions that were checked.
    pub sessions: u64,
    /// Sound events among theirs.
    pub events: u64,
    /// Sound commands among theirs.
    pub commands: u64,
    /// Problems; the first thousand.
    pub findings: Vec<Finding>,
    /// Problems beyond those.
    pub more: u64,
}

impl VerifyReport {
    /// Whether there are no problems.
    pub fn is_sound(&self) -> bool {
        self.findings.is_empty()
    }

    fn find(&mut self, session: Option<&str>, problem: StoreProblem) {
        if self.findings.len() < FINDINGS {
            self.findings.push(Finding { session: session.map(SessionId::from), problem });
        } else {
            self.more += 1;
        }
    }
}

/// One problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The session, unless it is about the file.
    pub session: Option<SessionId>,
    /// The problem.
    pub problem: StoreProblem,
}

/// What can be wrong in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreProblem {
    /// The event at this `seq` is not what was written.
    Altered(u64),
    /// Acknowledged events are missing: from this `seq` to that.
    Missing(u64, u64),
    /// An event at this `seq` is beyond the end of the log.
    Surplus(u64),
    /// What follows this `seq` cannot be read, for this reason.
    Unreadable(u64, String),
    /// The session is missing; its events up to this `seq` were acknowledged.
    MissingSession(u64),
    /// The list entry differs from the events.
    Digest,
    /// The session's row, its record or a command is broken, for this reason.
    Broken(String),
    /// SQLite reports that the file is broken, for this reason.
    File(String),
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(session) = &self.session {
            write!(f, "session `{session}`: ")?;
        }
        self.problem.fmt(f)
    }
}

impl fmt::Display for StoreProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Altered(seq) => write!(f, "event {seq} is altered"),
            Self::Missing(from, to) if from == to => write!(f, "event {from} is missing"),
            Self::Missing(from, to) => write!(f, "events {from} to {to} are missing"),
            Self::Surplus(seq) => write!(f, "event {seq} is beyond the end of the log"),
            Self::Unreadable(seq, why) => write!(f, "what follows event {seq} cannot be read: {why}"),
            Self::MissingSession(seq) => write!(f, "it is missing, with all events up to {seq}"),
            Self::Digest => write!(f, "its list entry differs from its events"),
            Self::Broken(what) => f.write_str(what),
            Self::File(what) => write!(f, "the file is broken: {what}"),
        }
    }
}

impl SqliteStore {
    /// Reads the whole store and compares it with its sums, its marks and itself. Others may write at the same time.
    /// Holds one event in memory at a time.
    ///
    /// # Errors
    /// Only if the store cannot be read at all; damage is in the report.
    pub async fn verify(&self) -> Result<VerifyReport, StoreError> {
        let paths = self.paths.clone();
        let verify = move || {
            // A separate connection: it would block the others of the pool for long.
            let (mut connection, paths) = file::open_to_read(&paths.store, STEPS)?;
            let mut report = VerifyReport::default();
            let done = verify(&mut connection, &paths.marks, &mut report);
            done.map(|()| report).map_err(|fault| fault.at(&paths.store))
        };
        task::spawn_blocking(verify).await.map_err(|_| readers::ended(&self.paths.store))?
    }
}

fn verify(
    connection: &mut Connection,
    marks: &std::path::Path,
    report: &mut VerifyReport,
) -> Result<(), Fault> {
    for what in integrity(connection)? {
        report.find(None, StoreProblem::File(what));
    }
    for lost in loss::find(connection, marks)?.into_iter().filter(loss::Lost::is_whole) {
        report.find(Some(&lost.session), StoreProblem::MissingSession(count(lost.acknowledged)));
    }
    let mut number = 0;
    loop {
        let next = match session::next_after(connection, number) {
            Ok(Some(next)) => next,
            Ok(None) => break,
            Err(fault) if fault.is_damage() => {
                report.find(None, StoreProblem::File(fault.to_string()));
                break;
            }
            Err(fault) => return Err(fault),
        };
        let id = SessionId::from(next.1);
        number = next.0;
        report.sessions += 1;
        let mut sound = Sound::default();
        let looked = snapshot(connection, marks, &id, |connection, session, mark| {
            look(connection, session, mark, report, &mut sound)
        });
        report.events += sound.events;
        report.commands += sound.commands;
        match looked {
            // It was deleted in the meantime.
            Err(Fault::Refused(StoreError::UnknownSession(_))) => report.sessions -= 1,
            Err(fault)
                if fault.is_damage()
                    || matches!(fault, Fault::Refused(StoreError::DescendsFromItself(_))) =>
            {
                let text = fault.to_string();
                let named = format!("session `{id}`: ");
                let what = text.strip_prefix(&named).unwrap_or(&text).to_owned();
                report.find(Some(id.as_str()), StoreProblem::Broken(what));
            }
            looked => looked?,
        }
    }
    strays(connection, report)
}

fn integrity(connection: &Connection) -> Result<Vec<String>, Fault> {
    let mut query = connection.prepare("PRAGMA integrity_check(100)")?;
    let mut rows = query.query(())?;
    let mut found = Vec::new();
    loop {
        match rows.next() {
            Ok(Some(row)) => found.push(row.get::<_, String>(0)?),
            Ok(None) => break,
            Err(error) => {
                let fault = Fault::from(error);
                if !fault.is_damage() {
                    return Err(fault);
                }
                found.push(fault.to_string());
                break;
            }
        }
    }
    found.retain(|line| line != "ok");
    Ok(found)
}

#[derive(Default)]
struct Sound {
    events: u64,
    commands: u64,
}

/// Checks one session. Its digest is compared only if all its events are sound.
fn look(
    connection: &Connection,
    session: &SessionRow,
    mark: Option<&super::Mark>,
    report: &mut VerifyReport,
    sound: &mut Sound,
) -> Result<(), Fault> {
    let record = session::record_of(connection, session)?;
    if record.session.as_str() != session.id || session::int(record.first_seq()) != session.first_seq {
        return Err(Fault::Broken("its row differs from its record".to_owned()));
    }
    let mut digest = Some(SessionFacts::default());
    log::walk(connection, session, mark, session.first_seq, |step| {
        match step {
            WalkStep::Event(row) => match log::envelope(connection, session, &row) {
                Ok(envelope) if row.epoch <= session.epoch => {
                    sound.events += 1;
                    digest.iter_mut().for_each(|digest| digest.apply(&envelope));
                }
                Ok(_) => report.find(Some(&session.id), StoreProblem::Altered(count(row.seq))),
                Err(fault) => report.find(Some(&session.id), StoreProblem::Broken(fault.to_string())),
            },
            WalkStep::Damage(damage) => {
                digest = None;
                report.find(Some(&session.id), damage);
            }
        }
        Ok(ControlFlow::Continue(()))
    })?;
    // The entry that an older program wrote does not have how long the session took, and whether tokens are unknown.
    let kept = |digest: SessionFacts| {
        let duration_ms = session.digest.duration_ms.and(digest.duration_ms);
        let uncounted = session.digest.uncounted && digest.uncounted;
        SessionFacts { duration_ms, uncounted, ..digest }
    };
    if digest.is_some_and(|digest| kept(digest) != session.digest) {
        report.find(Some(&session.id), StoreProblem::Digest);
    }
    commands::walk(connection, session, "", |stored| {
        commands::command(&stored)?;
        sound.commands += 1;
        Ok(())
    })
}

/// Finds rows that belong to no session.
fn strays(connection: &Connection, report: &mut VerifyReport) -> Result<(), Fault> {
    let blobs = if format::has_blobs(connection)? { &["blobs"][..] } else { &[] };
    for table in ["records", "events", "commands"].iter().chain(blobs) {
        let sql = format!("SELECT count(*) FROM {table} WHERE session NOT IN (SELECT number FROM sessions)");
        match connection.query_row(&sql, (), |row| row.get::<_, i64>(0)).map_err(Fault::from) {
            Ok(0) => {}
            Ok(rows) => {
                report
                    .find(None, StoreProblem::File(format!("{rows} rows of `{table}` belong to no session")));
            }
            Err(fault) if fault.is_damage() => report.find(None, StoreProblem::File(fault.to_string())),
            Err(fault) => return Err(fault),
        }
    }
    Ok(())
}
