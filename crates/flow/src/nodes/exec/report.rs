//! What a program prints, as events while it runs: without secrets, collected for a short time, and bounded.

use std::time::Duration;

use inspan_engine::Hub;
use inspan_protocol::{Event, OutputStream, Redactor, StreamRedactor};
use tokio::time::Instant;

/// Output is collected for so long before it is reported.
const INTERVAL: Duration = Duration::from_millis(200);
/// The longest text of one event, in bytes.
const EVENT_LIMIT: usize = 8 * 1024;
/// How much of both streams is reported of one attempt, in bytes.
const ATTEMPT_LIMIT: usize = 1024 * 1024;

/// Reports the output of one attempt.
pub(super) struct OutputReporter {
    hub: Hub,
    stdout: Pending,
    stderr: Pending,
    /// How many bytes may still be reported.
    left: usize,
    /// When what is pending is to be reported.
    due: Option<Instant>,
}

/// What was read of one stream and is not reported yet.
struct Pending {
    /// A character that is not complete.
    bytes: Vec<u8>,
    redactor: StreamRedactor,
    text: String,
}

impl OutputReporter {
    pub(super) fn new(hub: Hub, redactor: &Redactor) -> Self {
        let pending = || Pending {
            bytes: Vec::new(),
            redactor: StreamRedactor::new(redactor.clone()),
            text: String::new(),
        };
        Self { hub, stdout: pending(), stderr: pending(), left: ATTEMPT_LIMIT, due: None }
    }

    /// Takes what was read from a stream.
    pub(super) fn push(&mut self, stream: OutputStream, bytes: &[u8]) {
        if self.left == 0 || bytes.is_empty() {
            return;
        }
        let pending = self.pending(stream);
        pending.bytes.extend_from_slice(bytes);
        let rest = pending.bytes.split_off(complete(&pending.bytes));
        let text = String::from_utf8_lossy(&std::mem::replace(&mut pending.bytes, rest)).into_owned();
        let text = pending.redactor.push(&text);
        pending.text.push_str(&text);
        if pending.text.len() >= EVENT_LIMIT {
            self.report(stream);
        } else {
            self.due.get_or_insert_with(|| Instant::now() + INTERVAL);
        }
    }

    /// When [`OutputReporter::flush`] is to be called.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Reports what is pending.
    pub(super) fn flush(&mut self) {
        self.due = None;
        self.report(OutputStream::Stdout);
        self.report(OutputStream::Stderr);
    }

    /// Reports the rest: the program has ended.
    pub(super) fn finish(mut self) {
        for stream in [OutputStream::Stdout, OutputStream::Stderr] {
            let pending = self.pending(stream);
            let bytes = std::mem::take(&mut pending.bytes);
            let end = pending.redactor.push(&String::from_utf8_lossy(&bytes)) + &pending.redactor.finish();
            pending.text.push_str(&end);
        }
        self.flush();
    }

    fn pending(&mut self, stream: OutputStream) -> &mut Pending {
        match stream {
            OutputStream::Stdout => &mut self.stdout,
            OutputStream::Stderr => &mut self.stderr,
        }
    }

    fn report(&mut self, stream: OutputStream) {
        let text = std::mem::take(&mut self.pending(stream).text);
        let mut rest = text.as_str();
        while !rest.is_empty() && self.left > 0 {
            let mut end = rest.floor_char_boundary(EVENT_LIMIT.min(self.left));
            // Lines stay whole where they can.
            if end < rest.len()
                && let Some(line) = rest[..end].rfind('\n')
            {
                end = line + 1;
            }
            let (piece, after) = rest.split_at(end);
            rest = after;
            self.left = if piece.is_empty() { 0 } else { self.left - piece.len() };
            let truncated = self.left == 0;
            self.hub.emit(Event::ExecOutput { stream, text: piece.to_owned(), truncated });
        }
    }
}

/// How many of the bytes are whole characters, or none at all.
pub(super) fn complete(bytes: &[u8]) -> usize {
    let begun = bytes.iter().rev().take(3).position(|byte| byte & 0xc0 != 0x80);
    let Some(back) = begun.map(|back| back + 1) else { return bytes.len() };
    let start = bytes.len() - back;
    let needed = match bytes[start] {
        0xc0..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf7 => 4,
        _ => 1,
    };
    if needed > back { start } else { bytes.len() }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use inspan_engine::{CountingIds, Filter, VirtualClock};
    use inspan_protocol::{Environment, SessionId, Timestamp};

    use super::*;

    fn reported(pushes: &[(OutputStream, &[u8])]) -> Vec<(OutputStream, String, bool)> {
        let clock = Arc::new(VirtualClock::starting_at(Timestamp::from_millis(0)));
        let hub = Hub::new(SessionId::from("s"), clock, Arc::new(CountingIds::new()));
        let mut events = hub.subscribe(Filter::all());
        let env: Environment = [("MY_TOKEN".to_owned(), "planted-42-x".to_owned())].into_iter().collect();
        let mut report = OutputReporter::new(hub, &Redactor::new(&env));
        for (stream, bytes) in pushes {
            report.push(*stream, bytes);
        }
        report.finish();
        let mut taken = Vec::new();
        events.take_all(&mut taken);
        let output = taken.iter().filter_map(|envelope| match &envelope.event {
            Event::ExecOutput { stream, text, truncated } => Some((*stream, text.clone(), *truncated)),
            _ => None,
        });
        output.collect()
    }

    #[test]
    fn pieces_are_put_together_without_secrets_and_torn_characters() {
        let ox = "🐂".as_bytes();
        let seen = reported(&[
            (OutputStream::Stdout, b"key plan"),
            (OutputStream::Stderr, &ox[..3]),
            (OutputStream::Stdout, b"ted-42-x, "),
            (OutputStream::Stderr, &ox[3..]),
            (OutputStream::Stderr, b" \xff\xf0"),
            (OutputStream::Stdout, b"yes"),
        ]);
        let expected = [
            (OutputStream::Stdout, "key [redacted MY_TOKEN], yes".to_owned(), false),
            (OutputStream::Stderr, "🐂 \u{fffd}\u{fffd}".to_owned(), false),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn events_and_attempts_are_bounded_and_lines_stay_whole() {
        let line = "0123456789abcdef".repeat(255) + "\n";
        let flood = line.repeat(300);
        let seen = reported(&[(OutputStream::Stdout, flood.as_bytes()), (OutputStream::Stderr, b"late")]);
        let total: usize = seen.iter().map(|(_, text, _)| text.len()).sum();
        assert_eq!(total, ATTEMPT_LIMIT);
        let (last, before) = seen.split_last().unwrap();
        assert!(last.2);
        let whole = |(stream, text, truncated): &(OutputStream, String, bool)| {
            *stream == OutputStream::Stdout && text.len() <= EVENT_LIMIT && text.ends_with('\n') && !truncated
        };
        assert!(before.iter().all(whole));
    }
}
