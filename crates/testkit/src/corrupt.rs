//! Corrupts bytes in a few places, as a faulty vendor or a bad line would, to test that a decoder neither panics nor
//! uses unbounded memory.

use crate::split::Xorshift;

/// The bytes with one to eight places corrupted, the same for the same seed on every machine: a byte changed, a stretch
/// removed, repeated, or replaced by noise, or the rest cut off.
#[must_use]
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
