//! The row of a session: where its log ends, who holds its lease, and what its list entry says. The log itself
//! is left to `log`, the commands to `commands`.

use inspan_protocol::{SessionId, Timestamp};
use rusqlite::{Connection, OptionalExtension, Row, named_params};

use super::{
    fault::{Fault, from_json},
    sum::{self, Sum},
};
use crate::store::{Digest, LEASE, Lease, Liveness, Owner, SessionEntry, SessionRecord, StoreError};

/// A session as its row says.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Session {
    /// Its number in the store, which the other tables use.
    pub(super) number: i64,
    pub(super) id: String,
    pub(super) epoch: i64,
    pub(super) owner: Option<Owner>,
    pub(super) lease_began: i64,
    pub(super) lease_expires: i64,
    pub(super) first_seq: i64,
    /// One less than `first_seq` while there is no event.
    pub(super) last_seq: i64,
    /// The sum of the newest event; of the record while there is none.
    pub(super) last_sum: Sum,
    pub(super) digest: Digest,
}

const COLUMNS: &str = "SELECT number, id, epoch, owner, lease_began, lease_expires, first_seq, last_seq, \
                       last_sum, digest FROM sessions";

/// The session with this id.
pub(super) fn find(connection: &Connection, id: &SessionId) -> Result<Session, Fault> {
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

fn from_row(row: &Row<'_>) -> Result<Session, Fault> {
    let owner: Option<String> = row.get(3)?;
    let digest: String = row.get(9)?;
    Ok(Session {
        number: row.get(0)?,
        id: row.get(1)?,
        epoch: row.get(2)?,
        owner: owner.map(|owner| from_json("its owner", owner.as_bytes())).transpose()?,
        lease_began: row.get(4)?,
        lease_expires: row.get(5)?,
        first_seq: row.get(6)?,
        last_seq: row.get(7)?,
        last_sum: row.get(8)?,
        digest: from_json("its digest", digest.as_bytes())?,
    })
}

impl Session {
    /// Refuses a lease that is not the newest.
    pub(super) fn fence(&self, lease: &Lease) -> Result<(), StoreError> {
        if self.epoch == int(lease.epoch) {
            return Ok(());
        }
        let (session, newest) = (lease.session.clone(), count(self.epoch));
        Err(StoreError::Fenced { session, epoch: lease.epoch, newest })
    }

    /// Who keeps others from the session at `now`, as seen by `here`. On one machine it is known who lives. Else
    /// the lease counts, unless it begins in the future: then the clock went back, and nobody knows for how long.
    pub(super) fn holder(&self, here: &Owner, now: Timestamp) -> Option<&Owner> {
        let lease = self.lease_began..self.lease_expires;
        self.owner.as_ref().filter(|owner| match owner.liveness(here) {
            Liveness::Alive => true,
            Liveness::Gone => false,
            Liveness::Elsewhere => lease.contains(&now.as_millis()),
        })
    }

    /// Writes what the log now amounts to.
    pub(super) fn keep_end(&self, connection: &Connection) -> Result<(), Fault> {
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
    pub(super) fn give_to(
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

    /// Lets the lease begin anew at `now`.
    pub(super) fn renew(&self, connection: &Connection, now: Timestamp) -> Result<(), Fault> {
        let sql = "UPDATE sessions SET lease_began = ?2, lease_expires = ?3 WHERE number = ?1";
        let (began, expires) = term(now);
        connection.prepare_cached(sql)?.execute((self.number, began, expires))?;
        Ok(())
    }

    /// Leaves the session without an owner.
    pub(super) fn let_go(&self, connection: &Connection) -> Result<(), Fault> {
        connection
            .prepare_cached("UPDATE sessions SET owner = NULL WHERE number = ?1")?
            .execute([self.number])?;
        Ok(())
    }
}

fn term(now: Timestamp) -> (i64, i64) {
    (now.as_millis(), (now + LEASE).as_millis())
}

/// Keeps a new session, without an owner and with the epoch 0. `body` is the record as JSON.
pub(super) fn insert(connection: &Connection, record: &SessionRecord, body: &str) -> Result<Session, Fault> {
    let id = record.session.as_str();
    let last_sum = sum::of_record(id, body.as_bytes());
    let first_seq = int(record.first_seq());
    let digest = Digest::default();
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
    Ok(Session {
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

/// The record as it lies in the store, checked by its sum.
pub(super) fn record_text(connection: &Connection, session: &Session) -> Result<(String, Sum), Fault> {
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

/// The record.
pub(super) fn record(connection: &Connection, id: &SessionId) -> Result<SessionRecord, Fault> {
    let session = find(connection, id)?;
    let read = || {
        let (body, _) = record_text(connection, &session)?;
        from_json("its record", body.as_bytes())
    };
    read().map_err(|fault| fault.of(id.as_str()))
}

const ENTRIES: &str = "SELECT id, flow, created_at, owner, digest, (SELECT count(*) FROM commands \
                       WHERE session = number AND verdict IS NULL) FROM sessions";

/// The list entry of one session.
pub(super) fn entry(connection: &Connection, id: &SessionId, here: &Owner) -> Result<SessionEntry, Fault> {
    let mut query = connection.prepare_cached(&format!("{ENTRIES} WHERE id = ?1"))?;
    let mut rows = query.query([id.as_str()])?;
    match rows.next()? {
        Some(row) => entry_of(row, here),
        None => Err(StoreError::UnknownSession(id.clone()).into()),
    }
}

/// The list entries of the sessions whose id begins so, newest first.
pub(super) fn entries(
    connection: &Connection,
    prefix: &str,
    limit: usize,
    here: &Owner,
) -> Result<Vec<SessionEntry>, Fault> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let order = "ORDER BY created_at DESC, id LIMIT";
    let mut entries = Vec::new();
    if prefix.is_empty() {
        let mut query = connection.prepare_cached(&format!("{ENTRIES} {order} ?1"))?;
        let mut rows = query.query([limit])?;
        while let Some(row) = rows.next()? {
            entries.push(entry_of(row, here)?);
        }
        return Ok(entries);
    }
    // The range finds them by the index of the ids; of what lies in it, the comparison keeps what begins so.
    let begins = "WHERE id >= ?1 AND id < ?2 AND substr(id, 1, length(?1)) = ?1";
    let mut query = connection.prepare_cached(&format!("{ENTRIES} {begins} {order} ?3"))?;
    let mut rows = query.query((prefix, format!("{prefix}{}", char::MAX), limit))?;
    while let Some(row) = rows.next()? {
        entries.push(entry_of(row, here)?);
    }
    Ok(entries)
}

fn entry_of(row: &Row<'_>, here: &Owner) -> Result<SessionEntry, Fault> {
    let id: String = row.get(0)?;
    let (owner, digest): (Option<String>, String) = (row.get(3)?, row.get(4)?);
    let owner = owner.map(|owner| from_json::<Owner>("its owner", owner.as_bytes())).transpose();
    let owner = owner.map_err(|fault| fault.of(&id))?;
    let digest = from_json("its digest", digest.as_bytes()).map_err(|fault| fault.of(&id))?;
    Ok(SessionEntry {
        flow: row.get(1)?,
        created_at: Timestamp::from_millis(row.get(2)?),
        digest,
        liveness: owner.as_ref().map_or(Liveness::Gone, |owner| owner.liveness(here)),
        owner,
        unanswered: count(row.get(5)?),
        session: id.into(),
    })
}

/// A value of ours as JSON.
pub(super) fn json<T: serde::Serialize>(value: &T) -> Result<String, Fault> {
    serde_json::to_string(value).map_err(|error| Fault::Broken(format!("it cannot be kept as JSON: {error}")))
}

/// A number of ours as SQLite keeps numbers.
pub(super) fn int(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A count or `seq` from SQLite.
pub(super) fn count(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
