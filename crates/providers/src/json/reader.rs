//! Where a reader stands in its text, and what it takes from there: strings, numbers, what is passed over.
//! What becomes of it is left to those who ask.

use serde::de::IgnoredAny;
use wide::u8x16;

use super::Unread;

/// How deep arrays and objects may lie in one another; `serde_json` takes as many.
const DEPTH: u8 = 127;

pub(super) struct Reader<'a> {
    text: &'a str,
    at: usize,
    /// How many more arrays and objects may lie in what is read.
    depth: u8,
}

impl<'a> Reader<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0, depth: DEPTH }
    }

    fn rest(&self) -> &'a [u8] {
        &self.text.as_bytes()[self.at..]
    }

    /// The next byte that is no space. It is not taken.
    pub(super) fn peek(&mut self) -> Option<u8> {
        loop {
            match *self.text.as_bytes().get(self.at)? {
                b' ' | b'\n' | b'\r' | b'\t' => self.at += 1,
                byte => return Some(byte),
            }
        }
    }

    pub(super) fn take(&mut self, byte: u8) -> Result<(), Unread> {
        if self.peek() != Some(byte) {
            return Err(Unread);
        }
        self.at += 1;
        Ok(())
    }

    pub(super) fn take_word(&mut self, word: &str) -> Result<(), Unread> {
        if !self.rest().starts_with(word.as_bytes()) {
            return Err(Unread);
        }
        self.at += word.len();
        Ok(())
    }

    /// Takes a string whose opening quote was taken. None if it has escapes, or no end; it is not taken then.
    #[inline]
    pub(super) fn plain_string(&mut self) -> Option<&'a str> {
        let begins = self.at;
        let ends = plain(self.text.as_bytes(), begins);
        if self.text.as_bytes().get(ends) != Some(&b'"') {
            return None;
        }
        self.at = ends + 1;
        Some(&self.text[begins..ends])
    }

    /// Takes a string whose opening quote was taken. Its end is found before anything is copied, so that there is room
    /// for the whole.
    pub(super) fn escaped_string(&mut self) -> Result<String, Unread> {
        let begins = self.at;
        self.skip_string()?;
        match unescaped(&self.text[begins..self.at - 1]) {
            Some(text) => Ok(text),
            None => serde_json::from_str(&self.text[begins - 1..self.at]).map_err(|_| Unread),
        }
    }

    /// Passes over what is left of a string.
    fn skip_string(&mut self) -> Result<(), Unread> {
        let text = self.text.as_bytes();
        loop {
            self.at = plain(text, self.at);
            match text.get(self.at) {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => self.at += 1 + escape_length(&text[self.at + 1..]).ok_or(Unread)?,
                _ => return Err(Unread),
            }
        }
    }

    /// Takes a number of at most 18 digits, if it is nothing but digits.
    pub(super) fn digits(&mut self) -> Option<u64> {
        let rest = self.rest();
        let mut number = 0;
        for (count, byte) in rest.iter().take(19).enumerate() {
            match byte {
                b'0'..=b'9' => number = number * 10 + u64::from(byte - b'0'),
                b',' | b'}' | b']' if count == 1 || (count > 1 && rest[0] != b'0') => {
                    self.at += count;
                    return Some(number);
                }
                _ => return None,
            }
        }
        None
    }

    /// Takes what may be a number.
    pub(super) fn number(&mut self) -> &'a str {
        let rest = &self.text[self.at..];
        let of_number = |byte| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
        let length = rest.bytes().position(|byte| !of_number(byte)).unwrap_or(rest.len());
        self.at += length;
        &rest[..length]
    }

    /// Takes the bracket that is next, what `within` does of what follows, and the other bracket if that has not.
    pub(super) fn items<T>(
        &mut self,
        end: u8,
        within: impl FnOnce(&mut Items<'_, 'a>) -> Result<T, Unread>,
    ) -> Result<T, Unread> {
        self.at += 1;
        self.depth = self.depth.checked_sub(1).ok_or(Unread)?;
        let mut items = Items { reader: self, end, place: Place::Begin };
        let value = within(&mut items);
        let ended = items.next() == Ok(false);
        self.depth += 1;
        if ended { value } else { Err(Unread) }
    }

    /// Passes over a value.
    pub(super) fn skip(&mut self) -> Result<(), Unread> {
        match self.peek().ok_or(Unread)? {
            b'"' => {
                self.at += 1;
                self.skip_string()
            }
            b'{' => self.items(b'}', |items| {
                while items.next()? {
                    items.reader.take(b'"')?;
                    items.reader.skip_string()?;
                    items.reader.take(b':')?;
                    items.reader.skip()?;
                }
                Ok(())
            }),
            b'[' => self.items(b']', |items| {
                while items.next()? {
                    items.reader.skip()?;
                }
                Ok(())
            }),
            b'n' => self.take_word("null"),
            b't' => self.take_word("true"),
            b'f' => self.take_word("false"),
            _ if self.digits().is_some() => Ok(()),
            _ => serde_json::from_str(self.number()).map(|IgnoredAny| ()).map_err(|_| Unread),
        }
    }
}

/// The items of an array or an object.
pub(super) struct Items<'r, 'a> {
    pub(super) reader: &'r mut Reader<'a>,
    end: u8,
    place: Place,
}

#[derive(Clone, Copy, PartialEq)]
enum Place {
    Begin,
    AfterItem,
    End,
}

impl Items<'_, '_> {
    /// Goes to the next item, which is to be taken then. False if there is none.
    pub(super) fn next(&mut self) -> Result<bool, Unread> {
        if self.place == Place::End {
            return Ok(false);
        }
        if self.reader.peek() == Some(self.end) {
            self.reader.at += 1;
            self.place = Place::End;
            return Ok(false);
        }
        if self.place == Place::AfterItem {
            self.reader.take(b',')?;
        }
        self.place = Place::AfterItem;
        Ok(true)
    }
}

/// Where what stands in a string from `at` on ends, or is escaped.
#[inline]
fn plain(text: &[u8], mut at: usize) -> usize {
    let (quote, backslash, control) = (u8x16::splat(b'"'), u8x16::splat(b'\\'), u8x16::splat(0x1f));
    while let Some(chunk) = text.get(at..).and_then(<[u8]>::first_chunk) {
        let chunk = u8x16::new(*chunk);
        let other = chunk.simd_eq(quote) | chunk.simd_eq(backslash) | chunk.simd_eq(chunk.min(control));
        let other = other.to_bitmask();
        if other != 0 {
            return at + other.trailing_zeros() as usize;
        }
        at += 16;
    }
    while text.get(at).is_some_and(|byte| !matches!(byte, b'"' | b'\\' | 0..0x20)) {
        at += 1;
    }
    at
}

/// How long what follows a backslash is, if that is an escape.
fn escape_length(rest: &[u8]) -> Option<usize> {
    match rest {
        [b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't', ..] => Some(1),
        [b'u', digits @ ..] if digits.first_chunk::<4>()?.iter().all(u8::is_ascii_hexdigit) => Some(5),
        _ => None,
    }
}

/// What stands between quotes without its escapes, which are sound. None if one of them names a character by its number.
fn unescaped(quoted: &str) -> Option<String> {
    let mut text = String::with_capacity(quoted.len());
    let mut rest = quoted;
    loop {
        let (plain, escaped) = rest.split_at(plain(rest.as_bytes(), 0));
        text.push_str(plain);
        let Some(escape) = escaped.as_bytes().get(1) else { return Some(text) };
        text.push(match escape {
            b'n' => '\n',
            b't' => '\t',
            b'r' => '\r',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'u' => return None,
            other => char::from(*other),
        });
        rest = &escaped[2..];
    }
}
