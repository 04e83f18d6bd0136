//! A session's row: the end of its log, the lease, and the list entry.

use std::collections::{BTreeMap, BTreeSet};

use inspan_protocol::{SessionId, SessionStatus, Timestamp};
use rusqlite::{Connection, OptionalExtension, Row, named_params, params_from_iter};

use super::{
    commands,
    fault::{Fault, from_json},
    sum::{self, Sum},
};
use crate::{LEASE, Lease, Liveness, Owner, SessionEntry, SessionFacts, SessionRecord, StoreError};

/// The row of a session.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SessionRow {
    /// Its key in the other tables.
    pub(super) number: i64,
    pub(super) id: String,
    pub(super) epoch: i64,
    pub(super) owner: Option<Owner>,
    pub(super) lease_began: i64,
    pub(super) lease_expires: i64,
    pub(super) first_seq: i64,
    /// One less than `first_seq` while there is no event.
    pub(super) last_seq: i64,
    /// The sum of the newest event, or of the record while there is no event.
    pub(super) last_sum: Sum,
    pub(super) digest: SessionFacts,
}

const COLUMNS: &str = "SELECT number, id, epoch, owner, lease_began, lease_expires, first_seq, last_seq, \
                       last_sum, digest FROM sessions";

/// The session with this id.
pub(super) fn find(connection: &Connection, id: &SessionId) -> Result<SessionRow, Fault> {
    match find_damaged(connection, id)? {
        (session, None) => Ok(session),
        (_, Some(fault)) => Err(fault.of(id.as_str())),
    }
}

/// The session with this id as far as its row can be read, and the fault if a part cannot.
pub(super) fn find_damaged(
    connection: &Connection,
    id: &SessionId,
) -> Result<(SessionRow, Option<Fault>), Fault> {
    let mut query = connection.prepare_cached(&format!("{COLUMNS} WHERE id = ?1"))?;
    let mut rows = query.query([id.as_str()])?;
    match rows.next()? {
        Some(row) => from_row(row).map_err(|fault| fault.of(id.as_str())),
        None => Err(StoreError::UnknownSession(id.clone()).into()),
    }
}

/// The session with the lowest number above this one.
pub(super) fn next_after(connection: &Connection, number: i64) -> Result<Option<(i64, String)>, Fault> {
    let sql = "SELECT number, id FROM sessions WHERE number > ?1 ORDER BY number LIMIT 1";
    let mut query = connection.prepare_cached(sql)?;
    Ok(query.query_row([number], |row| Ok((row.get(0)?, row.get(1)?))).optional()?)
}

fn from_row(row: &Row<'_>) -> Result<(SessionRow, Option<Fault>), Fault> {
    let (owner, digest, damage) = parts(row, 3, 9);
    let session = SessionRow {
        number: row.get(0)?,
        id: row.get(1)?,
        epoch: row.get(2)?,
        owner,
        lease_began: row.get(4)?,
        lease_expires: row.get(5)?,
        first_seq: row.get(6)?,
        last_seq: row.get(7)?,
        last_sum: row.get(8)?,
        digest,
    };
    Ok((session, damage))
}

/// The owner and the digest of a row as far as they can be read, and the fault if one cannot.
fn parts(row: &Row<'_>, owner: usize, digest: usize) -> (Option<Owner>, SessionFacts, Option<Fault>) {
    let read_owner = || match row.get::<_, Option<String>>(owner)? {
        Some(owner) => from_json("its owner", owner.as_bytes()).map(Some),
        None => Ok(None),
    };
    let read_digest = || from_json::<SessionFacts>("its digest", row.get::<_, String>(digest)?.as_bytes());
    match (read_owner(), read_digest()) {
        (Ok(owner), Ok(digest)) => (owner, digest, None),
        (Err(fault), Ok(digest)) => (None, digest, Some(fault)),
        (owner, Err(fault)) => (owner.unwrap_or_default(), SessionFacts::default(), Some(fault)),
    }
}

impl SessionRow {
    /// Refuses a lease that is not the newest.
    pub(super) fn fence(&self, lease: &Lease) -> Result<(), StoreError> {
        if self.epoch == int(lease.epoch) {
            return Ok(());
        }
        let (session, newest) = (lease.session.clone(), count(self.epoch));
        Err(StoreError::Fenced { session, epoch: lease.epoch, newest })
    }

    /// The owner that blocks others at `now`, as seen from `here`. On one machine the process is either alive or
    /// not. For other machines the lease counts, unless it begins in the future: then the clock went back, and its
    /// end is unknown.
    pub(super) fn holder(&self, here: &Owner, now: Timestamp) -> Option<&Owner> {
        let lease = self.lease_began..self.lease_expires;
        self.owner.as_ref().filter(|owner| match owner.liveness(here) {
            Liveness::Alive => true,
            Liveness::Gone => false,
            Liveness::Elsewhere => lease.contains(&now.as_millis()),
        })
    }

    /// Writes the end of the log and the digest.
    pub(super) fn update_end(&self, connection: &Connection) -> Result<(), Fault> {
        let ended_at = self.digest.status.has_ended().then_some(self.digest.updated_at).flatten();
        let sql = "UPDATE sessions SET last_seq = :seq, last_sum = :sum, digest = :digest, ended_at = :ended \
                   WHERE number = :number";
        connection.prepare_cached(sql)?.execute(named_params! {
            ":seq": self.last_seq,
            ":sum": self.last_sum,
            ":digest": json(&self.digest)?,
            ":ended": ended_at.map(Timestamp::as_millis),
            ":number": self.number,
        })?;
        Ok(())
    }

    /// Gives the session to a new owner, with the next epoch.
    pub(super) fn assign_to(
        &mut self,
        connection: &Connection,
        owner: &Owner,
        now: Timestamp,
    ) -> Result<(), Fault> {
        self.epoch += 1;
        self.owner = Some(owner.clone());
        let sql = "UPDATE sessions SET epoch = ?2, owner = ?3, lease_began = ?4, lease_expires = ?5 \
                   WHERE number = ?1";
        let (began, expires) = term(now);
        let values = (self.number, self.epoch, json(owner)?, began, expires);
        connection.prepare_cached(sql)?.execute(values)?;
        Ok(())
    }

    /// Restarts the lease at `now`.
    pub(super) fn renew(&self, connection: &Connection, now: Timestamp) -> Result<(), Fault> {
        let sql = "UPDATE sessions SET lease_began = ?2, lease_expires = ?3 WHERE number = ?1";
        let (began, expires) = term(now);
        connection.prepare_cached(sql)?.execute((self.number, began, expires))?;
        Ok(())
    }

    /// When it ended, from its row, which can be read even if the digest cannot.
    pub(super) fn ended_at(&self, connection: &Connection) -> Result<Option<Timestamp>, Fault> {
        let mut query = connection.prepare_cached("SELECT ended_at FROM sessions WHERE number = ?1")?;
        let ended: Option<i64> = query.query_row([self.number], |row| row.get(0))?;
        Ok(ended.map(Timestamp::from_millis))
    }

    /// Removes the owner.
    pub(super) fn clear_owner(&self, connection: &Connection) -> Result<(), Fault> {
        connection
            .prepare_cached("UPDATE sessions SET owner = NULL WHERE number = ?1")?
            .execute([self.number])?;
        Ok(())
    }
}

fn term(now: Timestamp) -> (i64, i64) {
    (now.as_millis(), (now + LEASE).as_millis())
}

/// Stores a new session, without an owner and with the epoch 0. `body` is the record as JSON.
pub(super) fn insert(
    connection: &Connection,
    record: &SessionRecord,
    body: &str,
) -> Result<SessionRow, Fault> {
    let id = record.session.as_str();
    let last_sum = sum::of_record(id, body.as_bytes());
    let first_seq = int(record.first_seq());
    let digest = SessionFacts::default();
    let sql = "INSERT INTO sessions (id, flow, created_at, epoch, lease_began, lease_expires, first_seq, \
               last_seq, last_sum, digest) VALUES (:id, :flow, :created, 0, 0, 0, :first, :last, :sum, :digest) \
               ON CONFLICT (id) DO NOTHING";
    let inserted = connection.prepare_cached(sql)?.execute(named_params! {
        ":id": id,
        ":flow": record.flow.name,
        ":created": record.created_at.as_millis(),
        ":first": first_seq,
        ":last": first_seq - 1,
        ":sum": last_sum,
        ":digest": json(&digest)?,
    })?;
    if inserted == 0 {
        return Err(StoreError::SessionExists(record.session.clone()).into());
    }
    let number = connection.last_insert_rowid();
    connection
        .prepare_cached("INSERT INTO records (session, body, sum) VALUES (?1, ?2, ?3)")?
        .execute((number, body, last_sum))?;
    Ok(SessionRow {
        number,
        id: id.to_owned(),
        epoch: 0,
        owner: None,
        lease_began: 0,
        lease_expires: 0,
        first_seq,
        last_seq: first_seq - 1,
        last_sum,
        digest,
    })
}

/// The record as stored, checked by its sum.
pub(super) fn record_text(connection: &Connection, session: &SessionRow) -> Result<(String, Sum), Fault> {
    let mut query = connection.prepare_cached("SELECT body, sum FROM records WHERE session = ?1")?;
    let found =
        query.query_row([session.number], |row| Ok((row.get::<_, String>(0)?, row.get::<_, Sum>(1)?)));
    let missing = || Fault::Broken("its record is missing".to_owned());
    let (body, sum) = found.optional()?.ok_or_else(missing)?;
    if sum::of_record(&session.id, body.as_bytes()) != sum {
        return Err(Fault::Broken("its record is altered".to_owned()));
    }
    Ok((body, sum))
}

/// The record. Of sessions that descend from themselves, one is refused: who walks from parent to parent would come to no end.
pub(super) fn record(connection: &Connection, id: &SessionId) -> Result<SessionRecord, Fault> {
    record_of(connection, &find(connection, id)?).map_err(|fault| fault.of(id.as_str()))
}

pub(super) fn record_of(connection: &Connection, session: &SessionRow) -> Result<SessionRecord, Fault> {
    let (body, _) = record_text(connection, session)?;
    let record: SessionRecord = from_json("its record", body.as_bytes())?;
    // In each circle a session is stored before its parent. Only such a one looks for it, since that reads all records before it.
    if let Some(parent) = &record.parent
        && number(connection, &parent.session)?.is_some_and(|parent| parent >= session.number)
    {
        refuse_circle(connection, &record)?;
    }
    Ok(record)
}

fn number(connection: &Connection, id: &SessionId) -> Result<Option<i64>, Fault> {
    let mut query = connection.prepare_cached("SELECT number FROM sessions WHERE id = ?1")?;
    Ok(query.query_row([id.as_str()], |row| row.get(0)).optional()?)
}

/// Refuses a session that its parents lead back to. A damaged record names none.
pub(super) fn refuse_circle(connection: &Connection, record: &SessionRecord) -> Result<(), Fault> {
    let Some(parent) = &record.parent else { return Ok(()) };
    let sql = "WITH RECURSIVE older (session) AS ( \
                   SELECT ?1 UNION SELECT json_extract(records.body, '$.parent.session') \
                   FROM older JOIN sessions ON sessions.id = older.session \
                   JOIN records ON records.session = sessions.number WHERE json_valid(records.body) \
               ) SELECT EXISTS (SELECT 1 FROM older WHERE session = ?2)";
    let ids = (parent.session.as_str(), record.session.as_str());
    if connection.prepare_cached(sql)?.query_row(ids, |row| row.get(0))? {
        return Err(StoreError::DescendsFromItself(record.session.clone()).into());
    }
    Ok(())
}

/// The sessions that continue another one: `of`, or any. A damaged record names none.
fn continuations(
    connection: &Connection,
    of: Option<&SessionId>,
) -> Result<BTreeMap<String, SessionId>, Fault> {
    let mut query = connection.prepare_cached(&continuations_sql(of.is_some()))?;
    let mut rows = query.query(params_from_iter(of.map(SessionId::as_str)))?;
    let mut found = BTreeMap::new();
    while let Some(row) = rows.next()? {
        // The oldest comes last and wins.
        found.insert(row.get(0)?, SessionId::from(row.get::<_, String>(1)?));
    }
    Ok(found)
}

/// Of one session, only the records of later ones are read: they can be long. An import may store the later one first, and a
/// clock may be put back, but hardly both.
pub(super) fn continuations_sql(is_of_one: bool) -> String {
    let (named, of_one) = match is_of_one {
        false => ("'\"parent\"'", ""),
        true => (
            "?1",
            "AND json_extract(records.body, '$.parent.session') = ?1 \
             AND (sessions.number > (SELECT number FROM sessions WHERE id = ?1) \
             OR sessions.created_at >= (SELECT created_at FROM sessions WHERE id = ?1))",
        ),
    };
    // `CROSS JOIN` keeps the order of the tables.
    format!(
        "SELECT json_extract(records.body, '$.parent.session'), sessions.id \
         FROM sessions CROSS JOIN records ON records.session = sessions.number \
         WHERE instr(records.body, {named}) > 0 AND json_valid(records.body) \
         AND json_extract(records.body, '$.parent.kind') = 'resume' {of_one} \
         ORDER BY sessions.number DESC"
    )
}

/// The session that continues this one.
pub(super) fn continuation(connection: &Connection, id: &SessionId) -> Result<Option<SessionId>, Fault> {
    Ok(continuations(connection, Some(id))?.remove(id.as_str()))
}

/// The sessions that run from a recording: `of`, or any. A damaged record names none.
fn replays(connection: &Connection, of: Option<&SessionId>) -> Result<BTreeSet<String>, Fault> {
    let mut query = connection.prepare_cached(&replays_sql(of.is_some()))?;
    let found = query.query_map(params_from_iter(of.map(SessionId::as_str)), |row| row.get(0))?;
    Ok(found.collect::<Result<_, _>>()?)
}

/// As `SessionRecord::is_replay`.
pub(super) fn replays_sql(is_of_one: bool) -> String {
    let of_one = if is_of_one { "sessions.id = ?1 AND" } else { "" };
    format!(
        "SELECT sessions.id FROM records JOIN sessions ON sessions.number = records.session \
         WHERE {of_one} instr(records.body, '\"replay\"') > 0 AND json_valid(records.body) \
         AND json_type(records.body, '$.settings.replay') IS NOT NULL"
    )
}

/// The sessions that this one continues, directly or through others, as far as they are stored, the newest first; each with
/// whether it has not ended. A damaged record names none.
pub(super) fn continues(connection: &Connection, id: &SessionId) -> Result<Vec<(SessionId, bool)>, Fault> {
    let sql = "SELECT id, ended_at IS NULL FROM sessions WHERE id = ( \
                   SELECT json_extract(records.body, '$.parent.session') \
                   FROM sessions JOIN records ON records.session = sessions.number \
                   WHERE sessions.id = ?1 AND json_valid(records.body) \
                   AND json_extract(records.body, '$.parent.kind') = 'resume')";
    let mut query = connection.prepare_cached(sql)?;
    let mut found: Vec<(SessionId, bool)> = Vec::new();
    let read = |row: &Row<'_>| Ok((SessionId::from(row.get::<_, String>(0)?), row.get(1)?));
    let mut newer = id.clone();
    while let Some((before, is_open)) = query.query_row([newer.as_str()], read).optional()? {
        // Imported records may lead in a circle.
        if before == *id || found.iter().any(|(known, _)| *known == before) {
            break;
        }
        newer = before.clone();
        found.push((before, is_open));
    }
    Ok(found)
}

/// The sessions whose finished work an open session takes over, directly or through others, each with that session.
/// Of the open ones only those count that were made since a moment, none of `without`, and none that another one continues:
/// it never runs again. A damaged record names none.
pub(super) fn needed(
    connection: &Connection,
    since: Timestamp,
    without: &[SessionId],
) -> Result<BTreeMap<String, SessionId>, Fault> {
    let sql = "WITH RECURSIVE needed (session, by) AS ( \
                   SELECT json_extract(records.body, '$.parent.session'), sessions.id \
                   FROM sessions JOIN records ON records.session = sessions.number \
                   WHERE sessions.created_at >= ?1 AND sessions.ended_at IS NULL AND json_valid(records.body) \
                   UNION \
                   SELECT json_extract(records.body, '$.parent.session'), by \
                   FROM needed JOIN sessions ON sessions.id = needed.session \
                   JOIN records ON records.session = sessions.number WHERE json_valid(records.body) \
               ) SELECT session, by FROM needed WHERE session IS NOT NULL ORDER BY session, by DESC";
    let mut query = connection.prepare_cached(sql)?;
    let found = query
        .query_map([since.as_millis()], |row| Ok((row.get(0)?, SessionId::from(row.get::<_, String>(1)?))))?;
    let mut found: Vec<(String, SessionId)> = found.collect::<Result<_, _>>()?;
    found.retain(|(_, by)| !without.contains(by));
    // All records are searched, which is slow: most deletions need not.
    if !found.is_empty() {
        let continued = continuations(connection, None)?;
        found.retain(|(_, by)| !continued.contains_key(by.as_str()));
    }
    Ok(found.into_iter().collect())
}

const ENTRIES: &str = "SELECT id, flow, created_at, owner, digest, (SELECT count(*) FROM commands \
                       WHERE commands.session = sessions.number AND verdict IS NULL), \
                       lease_began <= unixepoch('subsec') * 1000 AND unixepoch('subsec') * 1000 < lease_expires \
                       FROM sessions";

/// The list entry of one session.
pub(super) fn entry(connection: &Connection, id: &SessionId, here: &Owner) -> Result<SessionEntry, Fault> {
    let mut query = connection.prepare_cached(&format!("{ENTRIES} WHERE id = ?1"))?;
    let mut rows = query.query([id.as_str()])?;
    match rows.next()? {
        Some(row) => match entry_of(row, here)? {
            SessionEntry { damage: Some(what), .. } => Err(Fault::Broken(what).of(id.as_str())),
            mut entry => {
                entry.continued_by = continuation(connection, id)?;
                entry.is_replay = replays(connection, Some(id))?.contains(id.as_str());
                add_answered(connection, &mut entry)?;
                Ok(entry)
            }
        },
        None => Err(StoreError::UnknownSession(id.clone()).into()),
    }
}

/// The list entries of the sessions whose id has this prefix, newest first.
pub(super) fn entries(
    connection: &Connection,
    prefix: &str,
    limit: usize,
    here: &Owner,
) -> Result<Vec<SessionEntry>, Fault> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let sql = entries_sql(prefix);
    let mut query = connection.prepare_cached(&sql)?;
    let mut rows = match prefix {
        "" => query.query([limit])?,
        prefix => query.query((limit, prefix, format!("{prefix}{}", char::MAX)))?,
    };
    let mut entries = Vec::new();
    while let Some(row) = rows.next()? {
        entries.push(entry_of(row, here)?);
    }
    let mut continued = continuations(connection, None)?;
    let replays = replays(connection, None)?;
    for entry in &mut entries {
        entry.is_replay = replays.contains(entry.session.as_str());
        entry.continued_by = continued.remove(entry.session.as_str());
        add_answered(connection, entry)?;
    }
    Ok(entries)
}

/// Notes which questions have an answer that waits, and counts what has something left to do. Few sessions have commands that
/// wait, so it is asked for each of them.
fn add_answered(connection: &Connection, entry: &mut SessionEntry) -> Result<(), Fault> {
    let status = entry.digest.status;
    if entry.unanswered > 0 && (!entry.digest.prompts.is_empty() || status == SessionStatus::Paused) {
        match commands::unanswered(connection, &entry.session) {
            Ok(posted) => {
                entry.answered = posted.iter().filter_map(|posted| posted.answers().cloned()).collect();
                entry.unanswered = posted.iter().filter(|posted| !posted.is_done(status)).count() as u64;
            }
            // Who applies the command reports that it cannot be read; the list can be.
            Err(fault) if fault.is_damage() => {}
            Err(fault) => return Err(fault),
        }
    }
    Ok(())
}

/// The range uses the index of the ids; the comparison then checks the prefix.
pub(super) fn entries_sql(prefix: &str) -> String {
    let begins = match prefix {
        "" => "",
        _ => "WHERE id >= ?2 AND id < ?3 AND substr(id, 1, length(?2)) = ?2",
    };
    format!("{ENTRIES} {begins} ORDER BY created_at DESC, id LIMIT ?1")
}

/// A row that cannot be read gives a damaged entry and no error, since others are listed beside it.
fn entry_of(row: &Row<'_>, here: &Owner) -> Result<SessionEntry, Fault> {
    let id = String::from_utf8_lossy(row.get_ref(0)?.as_bytes().unwrap_or_default()).into_owned();
    let (owner, digest, damage) = parts(row, 3, 4);
    let read = || {
        let lives = match owner.as_ref().map_or(Liveness::Gone, |owner| owner.liveness(here)) {
            // Such as a process of this machine before it was started again.
            Liveness::Elsewhere if !row.get::<_, bool>(6)? => Liveness::Gone,
            lives => lives,
        };
        Ok(SessionEntry {
            flow: row.get(1)?,
            created_at: Timestamp::from_millis(row.get(2)?),
            digest,
            liveness: lives,
            owner,
            unanswered: count(row.get(5)?),
            answered: Vec::new(),
            continued_by: None,
            is_replay: false,
            waiting_for_worker: Vec::new(),
            waiting_for_machine: BTreeMap::new(),
            undecided_since: None,
            is_unknown: false,
            session: id.as_str().into(),
            damage: damage.map(|fault| fault.to_string()),
        })
    };
    match read() {
        Err(fault) if Fault::is_damage(&fault) => Ok(SessionEntry::damaged(id.into(), fault.to_string())),
        read => read,
    }
}

/// A value as JSON.
pub(super) fn json<T: serde::Serialize>(value: &T) -> Result<String, Fault> {
    serde_json::to_string(value)
        .map_err(|error| Fault::System(format!("the session cannot be written as JSON: {error}")))
}

/// An unsigned number as SQLite stores numbers.
pub(super) fn int(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A count or `seq` from SQLite.
pub(super) fn count(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
