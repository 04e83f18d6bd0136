//! The rows of commands: posting one, finding those that wait, answering. `session` checks who may answer.

use inspan_protocol::{Command, SessionId, Timestamp};
use rusqlite::{Connection, OptionalExtension};

use super::{
    fault::{Fault, from_json},
    session::{self, SessionRow, count, int},
    sum::{self, Sum},
};
use crate::{CommandAnswer, ENDED, PostedCommand, Verdict};

/// A command with its verdict, and its body as stored.
#[derive(Debug)]
pub(super) struct StoredCommand {
    pub(super) number: i64,
    pub(super) at: i64,
    pub(super) body: String,
    pub(super) verdict: Option<Verdict>,
    pub(super) answered_seq: Option<i64>,
    /// The key under which it was posted once. It is not exported: it means something to its caller and this store only.
    pub(super) key: Option<String>,
}

/// Stores a command with the next number.
pub(super) fn post(
    connection: &Connection,
    session: &SessionRow,
    body: &str,
    key: Option<String>,
    now: Timestamp,
) -> Result<u64, Fault> {
    let newest = "SELECT coalesce(max(number), 0) FROM commands WHERE session = ?1";
    let newest: i64 = connection.prepare_cached(newest)?.query_row([session.number], |row| row.get(0))?;
    let command = StoredCommand {
        number: newest + 1,
        at: now.as_millis(),
        body: body.to_owned(),
        verdict: None,
        answered_seq: None,
        key,
    };
    insert(connection, session, &command)?;
    Ok(count(command.number))
}

/// Stores a command as it is.
pub(super) fn insert(
    connection: &Connection,
    session: &SessionRow,
    command: &StoredCommand,
) -> Result<(), Fault> {
    let sum = sum::of_command(&session.id, command.number, command.at, command.body.as_bytes());
    let (verdict, reason) = command.verdict.as_ref().map(words).unzip();
    let sql = "INSERT INTO commands (session, number, at, body, sum, verdict, reason, answered_seq, key) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
    let (number, at, body) = (command.number, command.at, &command.body);
    let values = (
        session.number,
        number,
        at,
        body,
        sum,
        verdict,
        reason.flatten(),
        command.answered_seq,
        &command.key,
    );
    connection.prepare_cached(sql)?.execute(values)?;
    Ok(())
}

/// The command that was posted with this key.
pub(super) fn of_key(
    connection: &Connection,
    session: &SessionRow,
    key: &str,
) -> Result<Option<StoredCommand>, Fault> {
    let sql = "SELECT number FROM commands WHERE session = ?1 AND key = ?2";
    let mut query = connection.prepare_cached(sql)?;
    let number: Option<i64> = query.query_row((session.number, key), |row| row.get(0)).optional()?;
    let mut found = None;
    if let Some(number) = number {
        walk(connection, session, "", |stored| {
            if stored.number == number {
                found = Some(StoredCommand { key: Some(key.to_owned()), ..stored });
            }
            Ok(())
        })?;
    }
    Ok(found)
}

/// A stored command as readers get it.
pub(super) fn posted(stored: &StoredCommand) -> Result<PostedCommand, Fault> {
    Ok(PostedCommand {
        number: count(stored.number),
        at: Timestamp::from_millis(stored.at),
        command: command(stored)?,
        key: stored.key.clone(),
    })
}

/// Stores answers; what is answered already does not change. The log up to the session's end shows what they did.
pub(super) fn settle(
    connection: &Connection,
    session: &SessionRow,
    answers: &[CommandAnswer],
) -> Result<(), Fault> {
    let sql = "UPDATE commands SET verdict = ?3, reason = ?4, answered_seq = ?5 \
               WHERE session = ?1 AND number = ?2 AND verdict IS NULL";
    for CommandAnswer { number, verdict } in answers {
        let (verdict, reason) = words(verdict);
        let values = (session.number, int(*number), verdict, reason, session.last_seq);
        connection.prepare_cached(sql)?.execute(values)?;
    }
    Ok(())
}

/// Refuses what is still open when the session ends.
pub(super) fn refuse_open(connection: &Connection, session: &SessionRow) -> Result<(), Fault> {
    let sql = "UPDATE commands SET verdict = 'refused', reason = ?2, answered_seq = ?3 \
               WHERE session = ?1 AND verdict IS NULL";
    connection.prepare_cached(sql)?.execute((session.number, ENDED, session.last_seq))?;
    Ok(())
}

fn words(verdict: &Verdict) -> (&'static str, Option<&str>) {
    match verdict {
        Verdict::Accepted => ("accepted", None),
        Verdict::Refused(reason) => ("refused", Some(reason)),
    }
}

/// What waits for an answer, oldest first.
pub(super) fn unanswered(connection: &Connection, id: &SessionId) -> Result<Vec<PostedCommand>, Fault> {
    let session = session::find(connection, id)?;
    let mut waiting = Vec::new();
    let mut query =
        connection.prepare_cached("SELECT key FROM commands WHERE session = ?1 AND number = ?2")?;
    walk(connection, &session, "AND verdict IS NULL", |stored| {
        let key = query.query_row((session.number, stored.number), |row| row.get(0))?;
        waiting.push(posted(&StoredCommand { key, ..stored })?);
        Ok(())
    })
    .map_err(|fault| fault.of(id.as_str()))?;
    Ok(waiting)
}

/// The command that a row holds.
pub(super) fn command(stored: &StoredCommand) -> Result<Command, Fault> {
    from_json(&format!("command {}", stored.number), stored.body.as_bytes())
}

/// The result of a command.
pub(super) fn answer(connection: &Connection, id: &SessionId, number: u64) -> Result<Option<Verdict>, Fault> {
    let session = session::find(connection, id)?;
    let mut query = connection
        .prepare_cached("SELECT verdict, reason FROM commands WHERE session = ?1 AND number = ?2")?;
    let found =
        query.query_row((session.number, int(number)), |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    Ok(found.and_then(|(verdict, reason)| read(verdict, reason)))
}

fn read(verdict: Option<String>, reason: Option<String>) -> Option<Verdict> {
    verdict.map(|verdict| match verdict.as_str() {
        "accepted" => Verdict::Accepted,
        // The table accepts no other word.
        _ => Verdict::Refused(reason.unwrap_or_default()),
    })
}

/// Walks over a session's commands, oldest first.
pub(super) fn walk(
    connection: &Connection,
    session: &SessionRow,
    which: &'static str,
    mut take: impl FnMut(StoredCommand) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let sql = format!(
        "SELECT number, at, body, sum, verdict, reason, answered_seq FROM commands \
         WHERE session = ?1 {which} ORDER BY number"
    );
    let mut query = connection.prepare_cached(&sql)?;
    let mut rows = query.query([session.number])?;
    while let Some(row) = rows.next()? {
        let (number, at, body): (i64, i64, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
        if row.get::<_, Sum>(3)? != sum::of_command(&session.id, number, at, body.as_bytes()) {
            return Err(Fault::Broken(format!("command {number} is altered")));
        }
        let verdict = read(row.get(4)?, row.get(5)?);
        take(StoredCommand { number, at, body, verdict, answered_seq: row.get(6)?, key: None })?;
    }
    Ok(())
}
