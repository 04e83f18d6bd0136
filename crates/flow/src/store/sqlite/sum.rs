//! The chained sum: what each event's row must say, given the row before it. Walking the rows is left to `log`.

use sha2::{Digest as _, Sha256};

/// Half of a SHA-256: against chance and carelessness, not against a forger.
pub(super) type Sum = [u8; 16];

/// An event as it lies in the store, its sum aside.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row<'a> {
    pub(super) seq: i64,
    pub(super) epoch: i64,
    pub(super) at: i64,
    pub(super) kind: &'a [u8],
    pub(super) body: &'a [u8],
}

/// The sum that a session's chain begins with: that of its record.
pub(super) fn of_record(session: &str, body: &[u8]) -> Sum {
    half(Sha256::new().chain_update(length(session.as_bytes())).chain_update(session).chain_update(body))
}

/// The sum of an event after the one with the sum `previous`. All columns go in, so none can change unseen.
pub(super) fn of_event(previous: &Sum, row: &Row<'_>) -> Sum {
    half(
        Sha256::new()
            .chain_update(previous)
            .chain_update(row.seq.to_be_bytes())
            .chain_update(row.epoch.to_be_bytes())
            .chain_update(row.at.to_be_bytes())
            .chain_update(length(row.kind))
            .chain_update(row.kind)
            .chain_update(row.body),
    )
}

/// The sum of a command, which stands alone.
pub(super) fn of_command(session: &str, number: i64, at: i64, body: &[u8]) -> Sum {
    half(
        Sha256::new()
            .chain_update(length(session.as_bytes()))
            .chain_update(session)
            .chain_update(number.to_be_bytes())
            .chain_update(at.to_be_bytes())
            .chain_update(body),
    )
}

/// The sum of anything else that is kept.
pub(super) fn of_bytes(bytes: &[u8]) -> Sum {
    half(Sha256::new().chain_update(bytes))
}

fn length(bytes: &[u8]) -> [u8; 8] {
    (bytes.len() as u64).to_be_bytes()
}

fn half(hash: Sha256) -> Sum {
    let mut sum = Sum::default();
    sum.copy_from_slice(&hash.finalize()[..size_of::<Sum>()]);
    sum
}
