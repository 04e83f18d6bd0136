//! The line that a person types: letters, and the keys that change or end it. What is typed comes as bytes, of a
//! terminal letter by letter, else line by line.

/// The longest line, in bytes; more is not taken.
const LONGEST: usize = 1 << 20;

/// Ctrl-D.
pub(super) const CTRL_D: u8 = 0x04;

/// The digits of a mark around what is pasted.
const LONGEST_MARK: usize = 3;

/// The line so far.
#[derive(Debug, Default)]
pub(super) struct Editor {
    text: String,
    /// The bytes of a letter that is not whole.
    letter: Vec<u8>,
    keys: Keys,
    /// The beginning of a sequence, without its last letter.
    sequence: Vec<u8>,
    /// Between the marks that a terminal puts around what is pasted. There a line end is a part of the text, so that a
    /// paste is one answer and ends none.
    is_pasted: bool,
}

/// What the next byte belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Keys {
    #[default]
    Letters,
    /// An escape came.
    Escape,
    /// A key such as an arrow, up to its last letter.
    Sequence,
}

/// What a byte has done.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum KeyEffect {
    /// The line ended.
    Line(String),
    /// Ctrl-D, and nothing is typed.
    End,
}

impl Editor {
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Removes the line.
    pub(super) fn take(&mut self) -> String {
        self.letter.clear();
        std::mem::take(&mut self.text)
    }

    /// Puts a line back.
    pub(super) fn put(&mut self, text: String) {
        self.text = text;
    }

    pub(super) fn byte(&mut self, byte: u8) -> Option<KeyEffect> {
        match (self.keys, byte) {
            (Keys::Escape, b'[' | b'O') => {
                self.keys = Keys::Sequence;
                self.sequence.clear();
            }
            (Keys::Sequence, b'@'..=b'~') => {
                self.keys = Keys::Letters;
                match (self.sequence.as_slice(), byte) {
                    (b"200", b'~') => self.is_pasted = true,
                    (b"201", b'~') => self.is_pasted = false,
                    _ => {}
                }
            }
            (Keys::Escape, _) => self.keys = Keys::Letters,
            // One byte too many shows that it is none of the marks.
            (Keys::Sequence, _) if self.sequence.len() <= LONGEST_MARK => self.sequence.push(byte),
            (Keys::Sequence, _) => {}
            (Keys::Letters, 0x1b) => self.keys = Keys::Escape,
            (Keys::Letters, b'\n' | b'\r') if self.is_pasted => self.letter(b'\n'),
            (Keys::Letters, b'\t') if self.is_pasted => self.letter(b'\t'),
            (Keys::Letters, 0..0x20 | 0x7f) if self.is_pasted => {}
            (Keys::Letters, b'\n' | b'\r') => return Some(KeyEffect::Line(self.take())),
            (Keys::Letters, CTRL_D) if self.text.is_empty() => return Some(KeyEffect::End),
            (Keys::Letters, 0x08 | 0x7f) => drop(self.text.pop()),
            // Ctrl-U.
            (Keys::Letters, 0x15) => self.text.clear(),
            // Ctrl-W.
            (Keys::Letters, 0x17) => {
                let kept = self.text.trim_end();
                let end = kept.rfind(char::is_whitespace).map_or(0, |at| at + 1);
                self.text.truncate(end);
            }
            (Keys::Letters, b'\t') => self.letter(b' '),
            (Keys::Letters, 0..0x20) => {}
            (Keys::Letters, byte) => self.letter(byte),
        }
        None
    }

    fn letter(&mut self, byte: u8) {
        self.letter.push(byte);
        match std::str::from_utf8(&self.letter) {
            Ok(letter) => {
                if self.text.len() < LONGEST {
                    self.text.push_str(letter);
                }
                self.letter.clear();
            }
            // The beginning of a letter, as far as it came.
            Err(error) if error.error_len().is_none() => {}
            Err(_) => self.letter.clear(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(bytes: &str) -> (Vec<KeyEffect>, String) {
        let mut editor = Editor::default();
        let typed = bytes.bytes().filter_map(|byte| editor.byte(byte)).collect();
        (typed, editor.take())
    }

    #[test]
    fn keys_change_and_end_the_line() {
        let line = |text: &str| KeyEffect::Line(text.to_owned());
        let rows = [
            typed("yes\nno"),
            typed("ab\u{7f}\u{7f}\u{7f}é日\u{7f}x\r"),
            typed("one two  \u{17}three"),
            typed("old\u{15}new"),
            typed("a\u{1b}[Ab\u{1b}[1;5Cc\u{1b}OPd"),
            typed("\u{4}"),
            typed("a\u{4}\u{1}\u{0}\tb"),
            typed("x \u{1b}[200~a\r\tb\u{7f}\u{4}\u{15}\u{1b}[A\nc\u{1b}[201~ y\rz"),
            typed("\u{1b}[12200~a\u{1b}[1;200~b\rc"),
        ];
        let expected = [
            (vec![line("yes")], "no"),
            (vec![line("éx")], ""),
            (vec![], "one three"),
            (vec![], "new"),
            (vec![], "abcd"),
            (vec![KeyEffect::End], ""),
            (vec![], "a b"),
            (vec![line("x a\n\tb\nc y")], "z"),
            (vec![line("ab")], "c"),
        ];
        assert_eq!(rows, expected.map(|(typed, text)| (typed, text.to_owned())));
    }
}
