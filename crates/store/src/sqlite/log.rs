//! The rows of a session's log: appending, and walking over them so that nothing altered or missing is
//! skipped. The end of the log is in the session's row (`session`).

use std::{borrow::Cow, ops::ControlFlow, sync::Arc};

use inspan_protocol::{Envelope, Timestamp};
use rusqlite::{Connection, Row as SqlRow, types::ValueRef};

use super::{
    StoreProblem, blobs,
    fault::{Fault, from_json},
    format,
    marks::Mark,
    session::{SessionRow, count, int},
    sum::{self, StoredRow, Sum},
};
use crate::{Blob, Lease, MOST_EVENT_BYTES, StoreError, blob};

/// What a walk finds.
#[derive(Debug)]
pub(super) enum WalkStep<'a> {
    /// A sound row.
    Event(StoredRow<'a>),
    /// Damage; the walk can continue after it.
    Damage(StoreProblem),
}

/// An event on its way to the log: the envelope, and its JSON without large values.
#[derive(Clone, Debug)]
pub(super) struct Written {
    pub(super) envelope: Arc<Envelope>,
    pub(super) body: String,
    /// The fields whose values are in `blobs`.
    pub(super) large: Option<String>,
    pub(super) blobs: Vec<Blob>,
}

impl Written {
    pub(super) fn of(envelope: &Arc<Envelope>) -> Result<Self, Fault> {
        let body = super::session::json(&**envelope)?;
        if body.len() > MOST_EVENT_BYTES {
            let (session, seq) = (envelope.context.session_id.clone(), envelope.seq);
            return Err(StoreError::TooLarge { session, seq, bytes: body.len() }.into());
        }
        let split =
            blob::split(body).map_err(|error| Fault::Broken(format!("event {}: {error}", envelope.seq)))?;
        Ok(Self { envelope: Arc::clone(envelope), body: split.body, large: split.large, blobs: split.blobs })
    }
}

/// Appends events, which must be the next in order and whose large values are stored, and updates the end of the log.
pub(super) fn append(
    connection: &Connection,
    session: &mut SessionRow,
    lease: &Lease,
    events: &[Written],
) -> Result<(), Fault> {
    let sql = "INSERT INTO events (session, seq, epoch, at, kind, sum, body, large) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
    let mut insert = connection.prepare_cached(sql)?;
    for Written { envelope, body, large, .. } in events {
        let seq = session.last_seq + 1;
        if int(envelope.seq) != seq {
            let (session, expected) = (lease.session.clone(), count(seq));
            return Err(StoreError::Conflict { session, expected, actual: envelope.seq }.into());
        }
        let (at, kind) = (envelope.timestamp.as_millis(), envelope.event.name());
        let row = StoredRow {
            seq,
            epoch: session.epoch,
            at,
            kind: kind.as_bytes(),
            body: body.as_bytes(),
            large: large.as_deref().map(str::as_bytes),
        };
        let sum = sum::of_event(&session.last_sum, &row);
        insert.execute((session.number, seq, session.epoch, at, kind, sum, body, large))?;
        session.digest.apply(envelope);
        (session.last_seq, session.last_sum) = (seq, sum);
    }
    if events.is_empty() { Ok(()) } else { session.update_end(connection) }
}

/// Walks over the log from `from` on, in order, until `take` has enough. `mark` says how far it was acknowledged.
pub(super) fn walk(
    connection: &Connection,
    session: &SessionRow,
    mark: Option<&Mark>,
    from: i64,
    mut take: impl FnMut(WalkStep<'_>) -> Result<ControlFlow<()>, Fault>,
) -> Result<(), Fault> {
    let from = from.clamp(session.first_seq, session.last_seq + 1);
    let mut last = from - 1;
    let walked = rows(connection, session, mark, from, &mut last, &mut take);
    match walked {
        Err(fault @ Fault::Sqlite(_)) if fault.is_damage() => {
            take(WalkStep::Damage(StoreProblem::Unreadable(count(last), fault.to_string()))).map(|_| ())
        }
        walked => walked.map(|_| ()),
    }
}

fn rows(
    connection: &Connection,
    session: &SessionRow,
    mark: Option<&Mark>,
    from: i64,
    last: &mut i64,
    take: &mut impl FnMut(WalkStep<'_>) -> Result<ControlFlow<()>, Fault>,
) -> Result<ControlFlow<()>, Fault> {
    macro_rules! step {
        ($step:expr) => {
            if take($step)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        };
    }
    let mut chain = match before(connection, session, from)? {
        Some(sum) => Chain { stored: Some(sum), computed: None },
        None => {
            step!(missing(from - 1, from - 1));
            Chain::default()
        }
    };
    let large = if format::has_blobs(connection)? { "large" } else { "NULL" };
    let sql = format!(
        "SELECT seq, epoch, at, kind, sum, body, {large} FROM events WHERE session = ?1 AND seq >= ?2 ORDER BY seq"
    );
    let mut query = connection.prepare_cached(&sql)?;
    let mut found = query.query((session.number, from))?;
    while let Some(columns) = found.next()? {
        let seq: i64 = columns.get(0)?;
        if seq > session.last_seq {
            step!(WalkStep::Damage(StoreProblem::Surplus(count(seq))));
            continue;
        }
        if seq > *last + 1 {
            step!(missing(*last + 1, seq - 1));
            chain = Chain::default();
        }
        *last = seq;
        let (row, sum) = columns_of(columns);
        let follows = chain.takes(row.as_ref(), sum);
        let ends_well = seq != session.last_seq || sum == Some(session.last_sum);
        let promised = mark.filter(|mark| mark.seq == seq).is_none_or(|mark| sum == Some(mark.sum));
        match row.filter(|_| follows && ends_well && promised) {
            Some(row) => step!(WalkStep::Event(row)),
            None => step!(WalkStep::Damage(StoreProblem::Altered(count(seq)))),
        }
    }
    let end = mark.map_or(session.last_seq, |mark| mark.seq.max(session.last_seq));
    if *last < end {
        step!(missing(*last + 1, end));
    }
    Ok(ControlFlow::Continue(()))
}

fn missing<'a>(from: i64, to: i64) -> WalkStep<'a> {
    WalkStep::Damage(StoreProblem::Missing(count(from), count(to)))
}

/// The row and its sum as stored, if their columns have the types they were written with.
fn columns_of<'a>(columns: &'a SqlRow<'_>) -> (Option<StoredRow<'a>>, Option<Sum>) {
    let bytes = |column| match columns.get_ref(column) {
        Ok(ValueRef::Text(bytes) | ValueRef::Blob(bytes)) => Some(bytes),
        _ => None,
    };
    let number = |column| columns.get::<_, i64>(column).ok();
    let row = || {
        let large = bytes(6);
        Some(StoredRow {
            seq: number(0)?,
            epoch: number(1)?,
            at: number(2)?,
            kind: bytes(3)?,
            body: bytes(5)?,
            large,
        })
    };
    (row(), bytes(4).and_then(|sum| sum.try_into().ok()))
}

/// The sum before the event `from`: of the event before it, or of the record.
fn before(connection: &Connection, session: &SessionRow, from: i64) -> Result<Option<Sum>, Fault> {
    if from == session.first_seq {
        return super::session::record_text(connection, session).map(|(_, sum)| Some(sum));
    }
    let mut query = connection.prepare_cached("SELECT sum FROM events WHERE session = ?1 AND seq = ?2")?;
    let mut rows = query.query((session.number, from - 1))?;
    Ok(rows.next()?.and_then(|row| row.get(0).ok()))
}

/// The sums that the next row may follow. After an altered row there are two: the stored one and the computed one, so
/// that one bad row is reported once. After a gap the previous sum is unknown: the next row is accepted as it is.
#[derive(Default)]
struct Chain {
    stored: Option<Sum>,
    computed: Option<Sum>,
}

impl Chain {
    fn takes(&mut self, row: Option<&StoredRow<'_>>, stored: Option<Sum>) -> bool {
        let unknown = self.stored.is_none() && self.computed.is_none();
        let after = |sum: Option<Sum>| Some(sum::of_event(&sum?, row?));
        let sums = [after(self.stored), after(self.computed)];
        let sound = row.is_some() && stored.is_some() && (unknown || sums.contains(&stored));
        *self = Self { stored, computed: sums[0].filter(|_| !sound) };
        sound
    }
}

/// The JSON of the envelope that a sound row holds, with its large values.
pub(super) fn body<'a>(
    connection: &Connection,
    session: &SessionRow,
    row: &StoredRow<'a>,
) -> Result<Cow<'a, [u8]>, Fault> {
    let Some(large) = row.large else { return Ok(Cow::Borrowed(row.body)) };
    let whole = blobs::whole(connection, session, row.body, large);
    whole.map(|text| Cow::Owned(text.into_bytes())).map_err(|fault| match fault {
        Fault::Broken(what) => Fault::Broken(format!("event {}: {what}", row.seq)),
        fault => fault,
    })
}

/// The envelope that a sound row holds.
pub(super) fn envelope(
    connection: &Connection,
    session: &SessionRow,
    row: &StoredRow<'_>,
) -> Result<Envelope, Fault> {
    envelope_of(row, &body(connection, session, row)?)
}

/// The envelope that a sound row holds, of its JSON.
pub(super) fn envelope_of(row: &StoredRow<'_>, body: &[u8]) -> Result<Envelope, Fault> {
    let envelope: Envelope = from_json(&format!("event {}", row.seq), body)?;
    let same = int(envelope.seq) == row.seq
        && envelope.timestamp == Timestamp::from_millis(row.at)
        && envelope.event.name().as_bytes() == row.kind;
    if same {
        Ok(envelope)
    } else {
        Err(Fault::Broken(format!("event {} is not what its row says", row.seq)))
    }
}
