//! The chained sum: each event's sum covers its row and the sum of the row before it.

use sha2::{Digest as _, Sha256};

/// Half of a SHA-256: it protects against accidents, not against forgery.
pub(super) type Sum = [u8; 16];

/// An event as stored, without its sum.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoredRow<'a> {
    pub(super) seq: i64,
    pub(super) epoch: i64,
    pub(super) at: i64,
    pub(super) kind: &'a [u8],
    pub(super) body: &'a [u8],
    /// The fields whose values are stored beside the log; none in format 1.
    pub(super) large: Option<&'a [u8]>,
}

/// The sum that begins a session's chain: that of its record.
pub(super) fn of_record(session: &str, body: &[u8]) -> Sum {
    half(Sha256::new().chain_update(length(session.as_bytes())).chain_update(session).chain_update(body))
}

/// The sum of an event that follows the sum `previous`. It covers all columns, so that no change stays unnoticed.
pub(super) fn of_event(previous: &Sum, row: &StoredRow<'_>) -> Sum {
    half(
        Sha256::new()
            .chain_update(previous)
            .chain_update(row.seq.to_be_bytes())
            .chain_update(row.epoch.to_be_bytes())
            .chain_update(row.at.to_be_bytes())
            .chain_update(length(row.kind))
            .chain_update(row.kind)
            .chain_update(row.body)
            .chain_update(row.large.unwrap_or_default()),
    )
}

/// The sum of a command, which is not chained.
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

/// The sum of any other bytes.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(sum: &Sum) -> String {
        sum.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The sums are part of the format. These were computed by another program, from the rule in `docs/store.md`.
    #[test]
    fn the_sums_are_those_of_the_format() {
        let at = 1_767_780_000_000;
        let record = of_record("run-1", b"{}");
        let row = StoredRow { seq: 1, epoch: 2, at, kind: b"agent:text", body: br#"{"v":1}"#, large: None };
        let large = StoredRow { large: Some(br#"["result"]"#), ..row };
        let command = of_command("run-1", 3, at, br#"{"command":"send"}"#);
        let sums = [record, of_event(&record, &row), of_event(&record, &large), command];
        let expected = [
            "735236d36f9ac91010a7f540c589b826",
            "06a7ecf32f4121ccbe9bff7c12a1fdbd",
            "32efdea0a74dde2f01e1175fd02bbd40",
            "75caa7c6a58026a4f91aae56bfad6d16",
        ];
        assert_eq!(sums.each_ref().map(hex), expected);
    }
}
