//! Which events of each session each channel has sent: a small SQLite file beside the store.
//!
//! It is no part of the store, whose format it does not touch: nothing of a session depends on it, and without it the
//! only thing that is lost is which notifications were sent.

use std::{
    collections::BTreeSet,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use inspan_engine::create_private_dir_all;
use inspan_protocol::{SessionId, Timestamp};
use inspan_store::{Liveness, Owner};
use rusqlite::{Connection, ErrorCode, OptionalExtension, TransactionBehavior, params};
use tokio::time::sleep;

/// The letters `insn`.
const APPLICATION: i64 = 0x696e_736e;
/// The version of the tables.
const FORMAT: i64 = 3;
/// How long another process may hold the file, and how long a thread waits for that at once: nobody can stop it meanwhile.
const BUSY: Duration = Duration::from_secs(10);
const BUSY_AT_ONCE: Duration = Duration::from_millis(200);
const BUSY_PAUSE: Duration = Duration::from_millis(20);
/// How long a claim is valid without being renewed, if it is unknown whether its process is alive.
const CLAIM: Duration = Duration::from_secs(60);
/// The farthest moment that can be meant: the longest wait that a receiver can ask for. Beyond it, the clock was set back since.
const FARTHEST: Duration = Duration::from_secs(60 * 60);

const TABLES: &str = "
CREATE TABLE channels (
    name TEXT NOT NULL,
    origin TEXT NOT NULL,
    since INTEGER NOT NULL,
    error TEXT,
    given_up INTEGER NOT NULL DEFAULT 0,
    given_up_error TEXT,
    PRIMARY KEY (name, origin)
) STRICT;
CREATE TABLE cursors (
    channel TEXT NOT NULL,
    session TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    next INTEGER NOT NULL,
    until INTEGER,
    attempts INTEGER NOT NULL DEFAULT 0,
    retry_at INTEGER,
    holder TEXT,
    held_until INTEGER,
    lost INTEGER NOT NULL DEFAULT 0,
    refusals INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (channel, session, created_at)
) STRICT;
";

/// From format 1 to 2: deliveries that are given up, and processes that were lost.
const TO_2: &str = "
ALTER TABLE channels ADD COLUMN given_up INTEGER NOT NULL DEFAULT 0;
ALTER TABLE channels ADD COLUMN given_up_error TEXT;
ALTER TABLE cursors ADD COLUMN lost INTEGER NOT NULL DEFAULT 0;
";

/// From format 2 to 3: refusals count apart from other failures.
const TO_3: &str = "ALTER TABLE cursors ADD COLUMN refusals INTEGER NOT NULL DEFAULT 0;";

/// Why the ledger cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the record of notifications {path} failed: {message}")]
pub struct LedgerError {
    path: String,
    message: String,
}

/// How far the channels have come. Cheap to clone; the file is opened when it is first used.
#[derive(Clone, Debug)]
pub struct Ledger {
    connection: Arc<Mutex<Option<Connection>>>,
    path: Arc<Path>,
}

/// Why some work on the file failed.
enum LedgerFault {
    /// Another process holds it: the same work may be done later.
    Busy(rusqlite::Error),
    Failed(String),
}

impl From<rusqlite::Error> for LedgerFault {
    fn from(error: rusqlite::Error) -> Self {
        let damaged = "; if it is moved away, a new one is made, and what happened before that is not sent";
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::Busy(error),
            Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt | ErrorCode::CannotOpen) => {
                Self::Failed(format!("{error}{damaged}"))
            }
            _ => Self::Failed(error.to_string()),
        }
    }
}

impl From<std::io::Error> for LedgerFault {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

/// What a channel has to do with a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CursorKey {
    pub(crate) channel: String,
    pub(crate) session: SessionId,
    /// When the session was made: an id can be used again.
    pub(crate) created_at: Timestamp,
}

/// How far it has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// The first event that is not settled.
    pub(crate) next: u64,
    /// The last event of what is being sent.
    pub(crate) until: Option<u64>,
    /// How often that has failed.
    pub(crate) attempts: u32,
    /// How often in a row it was refused since.
    pub(crate) refusals: u32,
    /// When it may be sent again.
    pub(crate) retry_at: Option<Timestamp>,
    /// The last event of the session when the loss of its process was reported; 0 if none was.
    pub(crate) lost: u64,
}

/// What of a session is settled by a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    /// Its events up to this one.
    Events(u64),
    /// That its process is lost, after this event.
    Loss(u64),
}

/// Who delivers, for as long as it says so: a process, and which of its deliverers.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Holder {
    pub(crate) owner: Owner,
    pub(crate) number: u64,
}

/// A channel as the ledger knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelState {
    /// Its name.
    pub name: String,
    /// Why its last delivery failed, if it did.
    pub error: Option<String>,
    /// How many deliveries wait to be sent again.
    pub pending: u64,
    /// How many deliveries were given up, because the channel refused them.
    pub given_up: u64,
    /// Why the last of those was refused.
    pub given_up_error: Option<String>,
}

impl Ledger {
    /// The ledger in a file, which is made if it is missing.
    pub fn at(path: &Path) -> Self {
        Self { connection: Arc::default(), path: path.into() }
    }

    /// Runs some work on a thread where it may wait for the disk. Dropped, no more of it is begun.
    async fn ask<T: Send + 'static>(
        &self,
        work: impl Fn(&mut Connection) -> rusqlite::Result<T> + Send + Sync + 'static,
    ) -> Result<T, LedgerError> {
        let work = Arc::new(work);
        let failed = |message: String| LedgerError { path: self.path.display().to_string(), message };
        let mut waited = Duration::ZERO;
        loop {
            let (ledger, work) = (self.clone(), Arc::clone(&work));
            let asked = tokio::task::spawn_blocking(move || ledger.work(&*work));
            match asked.await {
                Ok(Ok(result)) => return Ok(result),
                Ok(Err(LedgerFault::Busy(error))) if waited >= BUSY => return Err(failed(error.to_string())),
                Ok(Err(LedgerFault::Busy(_))) => {
                    sleep(BUSY_PAUSE).await;
                    waited += BUSY_AT_ONCE + BUSY_PAUSE;
                }
                Ok(Err(LedgerFault::Failed(message))) => return Err(failed(message)),
                Err(_) => return Err(failed("the program is ending".to_owned())),
            }
        }
    }

    fn work<T>(&self, work: &dyn Fn(&mut Connection) -> rusqlite::Result<T>) -> Result<T, LedgerFault> {
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let connection = match &mut *connection {
            Some(connection) => connection,
            closed => closed.insert(open(&self.path)?),
        };
        Ok(work(connection)?)
    }

    /// Since when the channel is known: what happened before is not sent.
    pub(crate) async fn since(
        &self,
        name: &str,
        origin: &str,
        now: Timestamp,
    ) -> Result<Timestamp, LedgerError> {
        let (name, origin) = (name.to_owned(), origin.to_owned());
        let millis: i64 = self
            .ask(move |connection| {
                connection.execute(
                    "INSERT INTO channels (name, origin, since) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING",
                    params![name, origin, now.as_millis()],
                )?;
                connection.query_row(
                    "SELECT since FROM channels WHERE name = ?1 AND origin = ?2",
                    params![name, origin],
                    |row| row.get(0),
                )
            })
            .await?;
        Ok(Timestamp::from_millis(millis))
    }

    /// Takes the right to deliver to the channel for the session, unless another deliverer has it.
    pub(crate) async fn claim(
        &self,
        key: &CursorKey,
        holder: &Holder,
        now: Timestamp,
    ) -> Result<Option<Cursor>, LedgerError> {
        let (key, holder) = (key.clone(), holder.clone());
        self.ask(move |connection| {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            transaction.execute(
                "INSERT INTO cursors (channel, session, created_at, next) VALUES (?1, ?2, ?3, 0) ON CONFLICT DO NOTHING",
                params![key.channel, key.session.as_str(), key.created_at.as_millis()],
            )?;
            let (mut cursor, held, held_until) = row(&transaction, &key)?;
            cursor.retry_at = cursor.retry_at.filter(|at| at.since(now) <= FARTHEST);
            // The writer of something that cannot be read is not alive.
            let held: Option<Holder> = held.and_then(|text| serde_json::from_str(&text).ok());
            let is_mine = held.as_ref() == Some(&holder);
            if !is_mine && held.is_some_and(|other| holds(&other, &holder, held_until, now)) {
                return Ok(None);
            }
            // Renewed in good time, and not at each look.
            if is_mine && held_until.is_some_and(|until| until > (now + CLAIM / 2).as_millis()) {
                return Ok(Some(cursor));
            }
            transaction.execute(
                "UPDATE cursors SET holder = ?4, held_until = ?5 WHERE channel = ?1 AND session = ?2 AND created_at = ?3",
                params![
                    key.channel,
                    key.session.as_str(),
                    key.created_at.as_millis(),
                    serde_json::to_string(&holder).unwrap_or_default(),
                    (now + CLAIM).as_millis()
                ],
            )?;
            transaction.commit()?;
            Ok(Some(cursor))
        })
        .await
    }

    /// How far another deliverer has come that has the session.
    pub(crate) async fn cursor(&self, key: &CursorKey) -> Result<Cursor, LedgerError> {
        let key = key.clone();
        self.ask(move |connection| Ok(row(connection, &key)?.0)).await
    }

    /// Gives the right back, if this deliverer has it.
    pub(crate) async fn release(&self, key: &CursorKey, holder: &Holder) -> Result<(), LedgerError> {
        let (key, holder) = (key.clone(), serde_json::to_string(holder).unwrap_or_default());
        self.ask(move |connection| {
            connection.execute(
                "UPDATE cursors SET holder = NULL, held_until = NULL \
                 WHERE channel = ?1 AND session = ?2 AND created_at = ?3 AND holder = ?4",
                params![key.channel, key.session.as_str(), key.created_at.as_millis(), holder],
            )
        })
        .await
        .map(drop)
    }

    /// This much is settled, and nothing is being sent.
    pub(crate) async fn settle(&self, key: &CursorKey, settled: Settled) -> Result<(), LedgerError> {
        let (set, value) = settled.columns();
        self.update(key, set, value).await
    }

    /// The same for a delivery that the channel refuses: it is counted and left out.
    pub(crate) async fn give_up(
        &self,
        key: &CursorKey,
        settled: Settled,
        origin: &str,
        why: &str,
    ) -> Result<(), LedgerError> {
        let (key, origin, why) = (key.clone(), origin.to_owned(), why.to_owned());
        self.ask(move |connection| {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let (set, value) = settled.columns();
            update(&transaction, &key, set, value)?;
            transaction.execute(
                "UPDATE channels SET given_up = given_up + 1, given_up_error = ?3 WHERE name = ?1 AND origin = ?2",
                params![key.channel, origin, why],
            )?;
            transaction.commit()
        })
        .await
    }

    /// The events up to `until` are about to be sent as one delivery.
    pub(crate) async fn begin(&self, key: &CursorKey, until: u64) -> Result<(), LedgerError> {
        self.update(key, "until = ?4 WHERE", int(until)).await
    }

    /// Sending failed; it is tried again then.
    pub(crate) async fn failed(
        &self,
        key: &CursorKey,
        retry_at: Timestamp,
        is_refusal: bool,
    ) -> Result<Cursor, LedgerError> {
        let set = match is_refusal {
            true => "attempts = attempts + 1, refusals = refusals + 1, retry_at = ?4 WHERE",
            false => "attempts = attempts + 1, refusals = 0, retry_at = ?4 WHERE",
        };
        self.update(key, set, retry_at.as_millis()).await?;
        self.cursor(key).await
    }

    async fn update(&self, key: &CursorKey, set: &'static str, value: i64) -> Result<(), LedgerError> {
        let key = key.clone();
        self.ask(move |connection| update(connection, &key, set, value)).await
    }

    /// Whether the channel's last delivery failed, and why.
    pub(crate) async fn report(
        &self,
        name: &str,
        origin: &str,
        error: Option<String>,
    ) -> Result<(), LedgerError> {
        let (name, origin) = (name.to_owned(), origin.to_owned());
        self.ask(move |connection| {
            let set = "UPDATE channels SET error = ?3 WHERE name = ?1 AND origin = ?2 AND error IS NOT ?3";
            connection.prepare_cached(set)?.execute(params![name, origin, error])
        })
        .await
        .map(drop)
    }

    /// The channels that were used.
    ///
    /// # Errors
    /// The file cannot be read.
    pub async fn channels(&self) -> Result<Vec<ChannelState>, LedgerError> {
        self.ask(|connection| {
            let mut select = connection.prepare(
                "SELECT name, max(error), (SELECT count(*) FROM cursors WHERE channel = name AND until IS NOT NULL), \
                 sum(given_up), max(given_up_error) FROM channels GROUP BY name ORDER BY name",
            )?;
            let rows = select.query_map((), |row| {
                Ok(ChannelState {
                    name: row.get(0)?,
                    error: row.get(1)?,
                    pending: count(row.get(2)?),
                    given_up: count(row.get(3)?),
                    given_up_error: row.get(4)?,
                })
            })?;
            rows.collect()
        })
        .await
    }

    /// The channels with a delivery of these sessions that has begun and is not settled, each once.
    pub(crate) async fn begun(&self, sessions: BTreeSet<SessionId>) -> Result<BTreeSet<String>, LedgerError> {
        self.ask(move |connection| {
            let begun = "SELECT channel, session FROM cursors WHERE until IS NOT NULL OR attempts > 0";
            let mut select = connection.prepare(begun)?;
            let rows =
                select.query_map((), |row| Ok((row.get(0)?, SessionId::from(row.get::<_, String>(1)?))))?;
            let rows: Vec<(String, SessionId)> = rows.collect::<rusqlite::Result<_>>()?;
            let wanted = rows.into_iter().filter(|(_, session)| sessions.contains(session));
            Ok(wanted.map(|(channel, _)| channel).collect())
        })
        .await
    }

    /// Forgets sessions that are in the store no more. Those that were created after this time are kept: they may be
    /// newer than the list.
    pub(crate) async fn forget_others(
        &self,
        known: Vec<SessionId>,
        before: Timestamp,
    ) -> Result<(), LedgerError> {
        self.ask(move |connection| {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let all: Vec<String> = {
                let mut select = transaction.prepare("SELECT DISTINCT session FROM cursors")?;
                let rows = select.query_map((), |row| row.get(0))?;
                rows.collect::<rusqlite::Result<_>>()?
            };
            let known: BTreeSet<&str> = known.iter().map(SessionId::as_str).collect();
            for gone in all.iter().filter(|session| !known.contains(session.as_str())) {
                let delete = "DELETE FROM cursors WHERE session = ?1 AND created_at < ?2";
                transaction.execute(delete, params![gone, before.as_millis()])?;
            }
            transaction.commit()
        })
        .await
    }
}

impl Settled {
    /// How the columns of a cursor change, with the value of the fourth parameter.
    fn columns(self) -> (&'static str, i64) {
        match self {
            Self::Events(last) => {
                let set = "next = ?4, until = NULL, attempts = 0, refusals = 0, retry_at = NULL WHERE";
                (set, int(last.saturating_add(1)))
            }
            Self::Loss(last) => ("lost = ?4, attempts = 0, refusals = 0, retry_at = NULL WHERE", int(last)),
        }
    }
}

fn update(connection: &Connection, key: &CursorKey, set: &str, value: i64) -> rusqlite::Result<()> {
    let set = format!("UPDATE cursors SET {set} channel = ?1 AND session = ?2 AND created_at = ?3");
    let created = key.created_at.as_millis();
    let mut update = connection.prepare_cached(&set)?;
    update.execute(params![key.channel, key.session.as_str(), created, value]).map(drop)
}

/// Whether a claim of another still holds.
fn holds(other: &Holder, here: &Holder, until: Option<i64>, now: Timestamp) -> bool {
    // Two deliverers of one process.
    if other.owner == here.owner {
        return true;
    }
    match other.owner.liveness(&here.owner) {
        Liveness::Alive => true,
        Liveness::Gone => false,
        Liveness::Elsewhere => {
            let until = until.map(Timestamp::from_millis);
            until.is_some_and(|until| until > now && until.since(now) <= FARTHEST)
        }
    }
}

/// A cursor, who holds it, and until when.
fn row(connection: &Connection, key: &CursorKey) -> rusqlite::Result<(Cursor, Option<String>, Option<i64>)> {
    connection.query_row(
        "SELECT next, until, attempts, retry_at, holder, held_until, lost, refusals FROM cursors \
         WHERE channel = ?1 AND session = ?2 AND created_at = ?3",
        params![key.channel, key.session.as_str(), key.created_at.as_millis()],
        |row| {
            let retry_at: Option<i64> = row.get(3)?;
            let cursor = Cursor {
                next: count(row.get(0)?),
                until: row.get::<_, Option<i64>>(1)?.map(count),
                attempts: row.get(2)?,
                refusals: row.get(7)?,
                retry_at: retry_at.map(Timestamp::from_millis),
                lost: count(row.get(6)?),
            };
            Ok((cursor, row.get(4)?, row.get(5)?))
        },
    )
}

/// Opens the file, which is made if it is missing.
fn open(path: &Path) -> Result<Connection, LedgerFault> {
    if let Some(folder) = path.parent() {
        create_private_dir_all(folder)?;
    }
    if !path.exists() {
        // Made for its owner alone, before SQLite would make it for everybody; another process may be faster.
        drop(std::fs::OpenOptions::new().create(true).append(true).open(path));
        private(path)?;
    }
    let connection = prepare(path)?;
    let format: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if format != FORMAT {
        let why = format!("it has format {format}, and this program knows {FORMAT}");
        return Err(LedgerFault::Failed(why));
    }
    Ok(connection)
}

fn prepare(path: &Path) -> rusqlite::Result<Connection> {
    let mut connection = Connection::open(path)?;
    connection.busy_timeout(BUSY_AT_ONCE)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    let is_ready = connection.pragma_query_value(None, "user_version", |row| row.get::<_, i64>(0))? == FORMAT;
    if is_ready {
        return Ok(connection);
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let tables: Option<i64> =
        transaction.query_row("SELECT 1 FROM sqlite_schema LIMIT 1", (), |row| row.get(0)).optional()?;
    let format: i64 = transaction.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let changes = match (tables, format) {
        (None, _) => [TABLES].as_slice(),
        (Some(_), 1) => &[TO_2, TO_3],
        (Some(_), 2) => &[TO_3],
        _ => &[],
    };
    for change in changes {
        transaction.execute_batch(change)?;
        transaction.pragma_update(None, "application_id", APPLICATION)?;
        transaction.pragma_update(None, "user_version", FORMAT)?;
    }
    transaction.commit()?;
    Ok(connection)
}

fn private(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
}

fn count(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

fn int(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> CursorKey {
        CursorKey { channel: "ops".to_owned(), session: "s".into(), created_at: Timestamp::from_millis(5) }
    }

    #[tokio::test]
    async fn one_deliverer_has_a_session_until_it_is_gone_or_gives_it_back() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::at(&folder.path().join("notify"));
        let now = Timestamp::from_millis(1_000);
        let me = Holder { owner: Owner::of_process(), number: 1 };
        let other = Holder { number: 2, ..me.clone() };
        let gone = Holder { owner: Owner { began: me.owner.began + 1, ..me.owner.clone() }, number: 1 };
        assert!(ledger.claim(&key(), &gone, now).await.unwrap().is_some());
        let mut claims = Vec::new();
        for holder in [&me, &other, &me] {
            claims.push(ledger.claim(&key(), holder, now).await.unwrap().is_some());
        }
        ledger.release(&key(), &me).await.unwrap();
        claims.push(ledger.claim(&key(), &other, now).await.unwrap().is_some());
        assert_eq!(claims, [true, false, true, true]);
    }

    #[tokio::test]
    async fn what_is_being_sent_survives_the_process() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let me = Holder { owner: Owner::of_process(), number: 1 };
        let now = Timestamp::from_millis(1_000);
        let first = Ledger::at(&path);
        let since = [first.since("ops", "a", now).await, first.since("ops", "a", now + CLAIM).await];
        assert_eq!(since, [Ok(now), Ok(now)]);
        first.claim(&key(), &me, now).await.unwrap();
        first.settle(&key(), Settled::Events(3)).await.unwrap();
        first.begin(&key(), 9).await.unwrap();
        first.failed(&key(), now + CLAIM, true).await.unwrap();
        drop(first);
        let again = Ledger::at(&path);
        let cursor = Cursor {
            next: 4,
            until: Some(9),
            attempts: 1,
            refusals: 1,
            retry_at: Some(now + CLAIM),
            lost: 0,
        };
        assert_eq!(again.claim(&key(), &me, now).await, Ok(Some(cursor)));
        let state = |pending, given_up: Option<&str>| ChannelState {
            name: "ops".to_owned(),
            error: None,
            pending,
            given_up: given_up.into_iter().count() as u64,
            given_up_error: given_up.map(str::to_owned),
        };
        assert_eq!(again.channels().await, Ok(vec![state(1, None)]));
        again.settle(&key(), Settled::Events(9)).await.unwrap();
        let cursor = Cursor { next: 10, ..Cursor::default() };
        assert_eq!(again.claim(&key(), &me, now).await, Ok(Some(cursor)));
        again.begin(&key(), 12).await.unwrap();
        again.failed(&key(), now, false).await.unwrap();
        again.give_up(&key(), Settled::Events(12), "a", "no").await.unwrap();
        again.settle(&key(), Settled::Loss(12)).await.unwrap();
        let cursor = Cursor { next: 13, lost: 12, ..Cursor::default() };
        assert_eq!(again.claim(&key(), &me, now).await, Ok(Some(cursor)));
        assert_eq!(again.channels().await, Ok(vec![state(0, Some("no"))]));
        again.forget_others(vec!["other".into()], key().created_at).await.unwrap();
        assert_eq!(again.claim(&key(), &me, now).await, Ok(Some(cursor)));
        again.forget_others(vec!["other".into()], now).await.unwrap();
        assert_eq!(again.claim(&key(), &me, now).await, Ok(Some(Cursor::default())));
    }

    #[tokio::test]
    async fn a_clock_that_was_set_back_holds_nothing_up() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::at(&folder.path().join("notify"));
        let elsewhere = Owner { machine: "elsewhere".to_owned(), ..Owner::of_process() };
        let (me, other) =
            (Holder { owner: Owner::of_process(), number: 1 }, Holder { owner: elsewhere, number: 1 });
        let (late, now) = (Timestamp::from_millis(7_200_000), Timestamp::from_millis(0));
        assert!(ledger.claim(&key(), &other, late).await.unwrap().is_some());
        ledger.failed(&key(), late + CLAIM, false).await.unwrap();
        assert_eq!(ledger.claim(&key(), &me, late).await, Ok(None));
        let cursor = ledger.claim(&key(), &me, now).await.unwrap().unwrap();
        assert_eq!((cursor.attempts, cursor.retry_at), (1, None));
    }

    #[tokio::test]
    async fn a_file_of_the_first_format_is_used_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let old = Connection::open(&path).unwrap();
        old.execute_batch(include_str!("ledger/format_1.sql")).unwrap();
        drop(old);
        let ledger = Ledger::at(&path);
        let state = ChannelState {
            name: "ops".to_owned(),
            error: Some("down".to_owned()),
            pending: 1,
            given_up: 0,
            given_up_error: None,
        };
        assert_eq!(ledger.channels().await, Ok(vec![state]));
        let me = Holder { owner: Owner::of_process(), number: 1 };
        let cursor = Cursor { next: 4, until: Some(9), attempts: 2, ..Cursor::default() };
        assert_eq!(ledger.claim(&key(), &me, Timestamp::from_millis(0)).await, Ok(Some(cursor)));
        drop(ledger);
        let newer = Connection::open(&path).unwrap();
        newer.pragma_update(None, "user_version", FORMAT + 1).unwrap();
        let refused = Ledger::at(&path).channels().await.unwrap_err();
        assert_eq!(refused.message, "it has format 4, and this program knows 3");
    }

    #[test]
    fn a_file_that_another_process_holds_holds_up_no_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let runtime = || tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let ledger = Ledger::at(&path);
        let since = || ledger.since("ops", "a", Timestamp::from_millis(1));
        let first = runtime();
        first.block_on(since()).unwrap();
        let other = Connection::open(&path).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        // Who only reads does not wait.
        let other_reader = Ledger::at(&path);
        let read = async { tokio::time::timeout(Duration::from_secs(2), other_reader.channels()).await };
        assert_eq!(first.block_on(read).unwrap().unwrap().len(), 1);
        let began = tokio::time::Instant::now();
        let left = async { tokio::time::timeout(Duration::from_millis(400), since()).await };
        first.block_on(left).unwrap_err();
        // A program ends once its blocking work has.
        drop(first);
        assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
        // Who stays waits for the other.
        let second = runtime();
        let waits = second.spawn({
            let ledger = ledger.clone();
            async move { ledger.since("ops", "a", Timestamp::from_millis(1)).await }
        });
        second.block_on(async { sleep(Duration::from_millis(600)).await });
        other.execute_batch("COMMIT").unwrap();
        assert_eq!(second.block_on(waits).unwrap(), Ok(Timestamp::from_millis(1)));
    }
}
