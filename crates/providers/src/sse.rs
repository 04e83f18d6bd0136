//! Reads a stream of server-sent events of JSON, however the bytes are split into reads, with a bound on each event. Ids
//! and retry times, which no vendor here sends, are ignored.

use std::fmt;

use inspan_transport::whole_pairs;

/// The largest event that is taken, in bytes.
pub(crate) const EVENT_LIMIT: usize = 16 * 1024 * 1024;

/// One event with data. An event without data is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SseEvent<'a> {
    /// Its name; empty if it says none.
    pub(crate) name: &'a str,
    /// Its data, the lines of it joined by line feeds, with U+FFFD for an escaped half of a surrogate pair.
    pub(crate) data: &'a str,
}

/// Why nothing more can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SseFault {
    /// An event has more bytes than this.
    TooLarge(usize),
    /// A line is not UTF-8.
    InvalidUtf8,
}

impl fmt::Display for SseFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge(limit) => write!(f, "an event of the stream is larger than {limit} bytes"),
            Self::InvalidUtf8 => f.write_str("a line of the stream is not UTF-8"),
        }
    }
}

/// The reader. It holds at most one unfinished event.
#[derive(Debug)]
pub(crate) struct SseReader {
    limit: usize,
    line: Vec<u8>,
    name: String,
    data: String,
    /// How many `data` fields there were; an event whose data is empty is still one.
    data_lines: usize,
    place: BomState,
    after: AfterByte,
}

/// Whether a byte order mark may still come.
#[derive(Clone, Copy, Debug, PartialEq)]
enum BomState {
    FirstLine,
    Later,
}

/// What the last byte was, as far as it matters for the next.
#[derive(Clone, Copy, Debug, PartialEq)]
enum AfterByte {
    /// A carriage return ended a line; a line feed right after it belongs to it.
    Return,
    Other,
    /// Nothing more is read.
    Fault(SseFault),
}

impl Default for SseReader {
    fn default() -> Self {
        Self::with_limit(EVENT_LIMIT)
    }
}

impl SseReader {
    /// A reader with its own limit in bytes.
    pub(crate) fn with_limit(limit: usize) -> Self {
        Self {
            limit,
            line: Vec::new(),
            name: String::new(),
            data: String::new(),
            data_lines: 0,
            place: BomState::FirstLine,
            after: AfterByte::Other,
        }
    }

    /// Takes the bytes of one read and passes on each event that they complete. After a fault there is only the fault.
    pub(crate) fn push(
        &mut self,
        mut bytes: &[u8],
        mut each: impl FnMut(SseEvent<'_>),
    ) -> Result<(), SseFault> {
        if let AfterByte::Fault(fault) = self.after {
            return Err(fault);
        }
        while let Some(first) = bytes.first() {
            if self.after == AfterByte::Return && *first == b'\n' {
                bytes = &bytes[1..];
                self.after = AfterByte::Other;
                continue;
            }
            self.after = AfterByte::Other;
            let end = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            let head = &bytes[..end.unwrap_or(bytes.len())];
            if self.line.len() + head.len() + self.data.len() + self.name.len() > self.limit {
                return self.fail(SseFault::TooLarge(self.limit));
            }
            self.line.extend_from_slice(head);
            let Some(end) = end else { return Ok(()) };
            if bytes[end] == b'\r' {
                self.after = AfterByte::Return;
            }
            bytes = &bytes[end + 1..];
            let line = std::mem::take(&mut self.line);
            if let Err(fault) = self.take(&line, &mut each) {
                return self.fail(fault);
            }
            self.line = line;
            self.line.clear();
        }
        Ok(())
    }

    /// Whether the stream is within an event, which a correct one never is at its end.
    pub(crate) fn is_midway(&self) -> bool {
        !self.line.is_empty() || self.data_lines > 0
    }

    /// What it holds of an unfinished event, in bytes.
    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.line.len() + self.name.len() + self.data.len()
    }

    fn fail(&mut self, fault: SseFault) -> Result<(), SseFault> {
        *self = Self { after: AfterByte::Fault(fault), ..Self::with_limit(self.limit) };
        Err(fault)
    }

    fn take(&mut self, line: &[u8], each: &mut impl FnMut(SseEvent<'_>)) -> Result<(), SseFault> {
        let mut line = std::str::from_utf8(line).map_err(|_| SseFault::InvalidUtf8)?;
        if self.place == BomState::FirstLine {
            line = line.strip_prefix('\u{feff}').unwrap_or(line);
            self.place = BomState::Later;
        }
        if line.is_empty() {
            if self.data_lines > 0 {
                each(SseEvent { name: &self.name, data: &whole_pairs(&self.data) });
            }
            self.name.clear();
            self.data.clear();
            self.data_lines = 0;
            return Ok(());
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => {
                if self.data_lines > 0 {
                    self.data.push('\n');
                }
                self.data.push_str(value);
                self.data_lines += 1;
            }
            "event" => value.clone_into(&mut self.name),
            // A comment, or a field that is not used here.
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
