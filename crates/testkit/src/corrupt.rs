//! Corrupts bytes in a few places, as a faulty vendor or a bad connection would, to test that a decoder neither
//! panics nor uses unbounded memory.

use std::io::Write as _;
use std::time::Duration;

use crate::split::Xorshift;
use crate::time::Deadline;

/// The bytes with one to eight places corrupted, the same for the same seed on every machine: a byte changed, a stretch
/// removed, repeated, or replaced by noise, or the rest cut off.
pub fn corrupt(bytes: &[u8], seed: u64) -> Vec<u8> {
    let mut random = Xorshift::new(seed);
    let mut bytes = bytes.to_vec();
    for _ in 0..=random.below(8) {
        if bytes.is_empty() {
            break;
        }
        let at = random.below(bytes.len());
        let end = bytes.len().min(at + 1 + random.below(64));
        match random.below(8) {
            0 | 1 => bytes[at] = random.byte(),
            2 => bytes[at] ^= 1 << random.below(8),
            3 => drop(bytes.drain(at..end)),
            4 => {
                let stretch = bytes[at..end].to_vec();
                drop(bytes.splice(at..at, stretch));
            }
            5 => {
                let noise: Vec<u8> = (at..end).map(|_| random.byte()).collect();
                drop(bytes.splice(at..end, noise));
            }
            6 => {
                // What a decoder of lines and JSON looks at most.
                let signs = b"\n\r\"{}[]:,0\\";
                bytes[at] = signs[random.below(signs.len())];
            }
            _ => bytes.truncate(end),
        }
    }
    bytes
}

/// Calls `parse` with corrupted copies of `bytes`, to test that it never panics: with three of them, or with as many as
/// fit in `INSPAN_FUZZ_MS` milliseconds if that is set. A panic is followed by the number of the copy.
#[expect(clippy::disallowed_methods, reason = "the one switch of all fuzz tests, which have no command line")]
pub fn fuzz(bytes: &[u8], mut parse: impl FnMut(&[u8])) {
    let millis = std::env::var("INSPAN_FUZZ_MS").ok().and_then(|millis| millis.parse().ok());
    let deadline = Deadline::after(Duration::from_millis(millis.unwrap_or_default()));
    let mut copy = Copy(0);
    while copy.0 < COPIES || !deadline.is_over() {
        parse(&corrupt(bytes, copy.0));
        copy.0 += 1;
    }
}

/// Copies without a time limit.
const COPIES: u64 = 3;

/// The number of the copy that is being parsed.
struct Copy(u64);

impl Drop for Copy {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // If stderr is closed, there is no one to report to.
            let _ = writeln!(std::io::stderr(), "the input was `corrupt(bytes, {})`", self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_corrupts_always_alike_and_most_seeds_do() {
        let bytes = b"{\"type\":\"text\",\"text\":\"something to corrupt\"}\n".repeat(20);
        let changed = (0..200).filter(|seed| corrupt(&bytes, *seed) != bytes).count();
        assert_eq!(corrupt(&bytes, 7), corrupt(&bytes, 7));
        assert!(changed > 190, "{changed} of 200");
        assert_eq!(corrupt(b"", 7), b"");
    }
}
