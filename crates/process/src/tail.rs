//! The end of a stream of bytes, however long the stream is.

use std::collections::VecDeque;

/// The number of bytes.
const LIMIT: usize = 64 * 1024;

/// The last bytes of a stream.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    bytes: VecDeque<u8>,
    cut: bool,
}

impl Tail {
    /// Takes the next bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(LIMIT)..];
        let surplus = (self.bytes.len() + bytes.len()).saturating_sub(LIMIT);
        if surplus > 0 {
            self.bytes.drain(..surplus);
            self.cut = true;
        }
        self.bytes.extend(bytes);
    }

    /// The text of it. If its beginning was lost, so is its first line: half a secret could not be recognised.
    pub(crate) fn text(&self) -> String {
        let (head, rest) = self.bytes.as_slices();
        let bytes = [head, rest].concat();
        let start = if self.cut {
            bytes.iter().position(|b| *b == b'\n').map_or(bytes.len(), |end| end + 1)
        } else {
            0
        };
        String::from_utf8_lossy(&bytes[start..]).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_kept_and_a_cut_line_is_not() {
        let mut tail = Tail::default();
        tail.push(b"first\n");
        assert_eq!(tail.text(), "first\n");
        tail.push(&[b'x'; LIMIT - 3]);
        tail.push(b"\nend");
        assert_eq!((tail.text().as_str(), tail.bytes.len()), ("end", LIMIT));
        tail.push(&[b'y'; LIMIT * 2]);
        assert_eq!((tail.text().as_str(), tail.bytes.len()), ("", LIMIT));
    }
}
