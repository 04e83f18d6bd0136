//! A line of styled text that knows its width. Turning it into bytes for a terminal is the only place
//! where escape sequences are made.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};

use crate::safe;

/// Whether escape sequences for colours are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// They are written.
    On,
    /// They are not.
    Off,
}

/// What a piece of text means, which decides how it looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// Nothing in particular.
    Plain,
    /// A title.
    Strong,
    /// Of less interest.
    Faint,
    /// A success.
    Good,
    /// A failure.
    Bad,
    /// Something that a person should see.
    Warning,
    /// What moves, and what can be typed.
    Accent,
}

impl Tone {
    /// The word for it, for programs.
    pub fn word(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Strong => "strong",
            Self::Faint => "faint",
            Self::Good => "good",
            Self::Bad => "bad",
            Self::Warning => "warning",
            Self::Accent => "accent",
        }
    }
}

impl Tone {
    fn style(self) -> Style {
        match self {
            Self::Plain => Style::new(),
            Self::Strong => Style::new().bold(),
            Self::Faint => Style::new().dimmed(),
            Self::Good => AnsiColor::Green.on_default(),
            Self::Bad => AnsiColor::Red.on_default().bold(),
            Self::Warning => AnsiColor::Yellow.on_default(),
            Self::Accent => AnsiColor::Cyan.on_default(),
        }
    }
}

/// One line: pieces of text, each with its tone.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Line(Vec<(Tone, String)>);

impl Line {
    /// An empty line.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a piece. Whatever its content, it is one line and has no control characters.
    pub fn push(&mut self, tone: Tone, text: &str) -> &mut Self {
        if !text.is_empty() {
            let is_plain = !text.chars().any(|c| safe::is_unsafe(c) || matches!(c, '\n' | '\t'));
            self.0.push((tone, if is_plain { text.to_owned() } else { safe::harmless(text) }));
        }
        self
    }

    /// The line with one more piece, as [`Line::push`] adds it.
    #[must_use]
    pub fn with(mut self, tone: Tone, text: &str) -> Self {
        self.push(tone, text);
        self
    }

    /// The line, moved to the right.
    pub fn indented(&self, columns: usize) -> Self {
        let mut line = Self::new();
        line.push(Tone::Plain, &" ".repeat(columns));
        line.0.extend(self.0.iter().cloned());
        line
    }

    /// Fills with spaces up to a column.
    pub fn pad_to(&mut self, column: usize) -> &mut Self {
        let missing = column.saturating_sub(self.width());
        self.push(Tone::Plain, &" ".repeat(missing))
    }

    /// Columns on a terminal.
    pub fn width(&self) -> usize {
        self.0.iter().map(|(_, text)| console::measure_text_width(text)).sum()
    }

    /// The line cut to a number of columns, with `…` where something is missing.
    pub fn clip(mut self, columns: usize) -> Self {
        if self.width() <= columns {
            return self;
        }
        let mut left = columns;
        let mut kept = Vec::with_capacity(self.0.len());
        for (tone, text) in self.0.drain(..) {
            let width = console::measure_text_width(&text);
            if width < left {
                left -= width;
                kept.push((tone, text));
            } else {
                kept.push((tone, format!("{}…", console::truncate_str(&text, left.saturating_sub(1), ""))));
                break;
            }
        }
        Self(kept)
    }

    /// The line broken at spaces into rows of at most so many columns; the rows after the first are indented.
    pub fn wrap(self, columns: usize, indent: usize) -> Vec<Self> {
        if self.width() <= columns {
            return vec![self];
        }
        let indent = indent.min(columns / 2);
        let letters = self.0.iter().flat_map(|(tone, text)| text.chars().map(|c| (*tone, c)));
        let (mut rows, mut row, mut width): (Vec<Self>, Vec<(Tone, char)>, usize) =
            (Vec::new(), Vec::new(), 0);
        for (tone, c) in letters {
            let wide = columns_of(c);
            if width + wide > columns && !row.is_empty() {
                let from = if rows.is_empty() { 0 } else { indent };
                let space = row.iter().rposition(|(_, c)| *c == ' ').filter(|at| *at > from);
                let rest = space.map_or_else(Vec::new, |at| row.split_off(at + 1));
                rows.push(Self::of(&row));
                row = vec![(Tone::Plain, ' '); indent];
                // A word that fills a row alone is broken within, and a space there needs no row.
                row.extend(rest);
                width = row.iter().map(|(_, c)| columns_of(*c)).sum();
                if c == ' ' && width == indent {
                    continue;
                }
            }
            row.push((tone, c));
            width += wide;
        }
        rows.push(Self::of(&row));
        rows
    }

    fn of(letters: &[(Tone, char)]) -> Self {
        let mut pieces: Vec<(Tone, String)> = Vec::new();
        for (tone, c) in letters {
            match pieces.last_mut() {
                Some((last, text)) if last == tone => text.push(*c),
                _ => pieces.push((*tone, c.to_string())),
            }
        }
        Self(pieces)
    }

    /// The pieces, each with its tone.
    pub fn pieces(&self) -> &[(Tone, String)] {
        &self.0
    }

    /// The text without looks.
    pub fn text(&self) -> String {
        self.0.iter().map(|(_, text)| text.as_str()).collect()
    }

    /// The text with its looks, if colours are on; no line break at the end.
    pub fn render(&self, colour: Colour) -> String {
        if colour == Colour::Off {
            return self.text().trim_end().to_owned();
        }
        let mut out = String::new();
        for (tone, text) in &self.0 {
            let style = tone.style();
            // Writing to a string cannot fail.
            let _ = write!(out, "{style}{text}{style:#}");
        }
        out
    }
}

/// Columns of one letter on a terminal.
fn columns_of(c: char) -> usize {
    if c.is_ascii() { 1 } else { console::measure_text_width(c.encode_utf8(&mut [0; 4])) }
}

/// The lines of a table. Each column but the last is as wide as its widest cell, but at most `widest`: what is longer is
/// clipped.
pub fn table<const COLUMNS: usize>(rows: &[[(Tone, String); COLUMNS]], widest: usize) -> Vec<Line> {
    let mut lines = vec![Line::new(); rows.len()];
    let mut end = 0;
    for column in 0..COLUMNS {
        let cells = || rows.iter().map(|row| &row[column]);
        let width = cells().map(|(_, cell)| console::measure_text_width(cell)).max().unwrap_or_default();
        end += width.min(widest) + 2;
        for (line, (tone, cell)) in lines.iter_mut().zip(cells()) {
            line.push(*tone, cell);
            if column + 1 < COLUMNS {
                *line = std::mem::take(line).clip(end - 1);
                line.pad_to(end);
            }
        }
    }
    lines
}

/// The end of a text in so many columns, with `…` before it if something is missing.
pub fn tail(text: &str, columns: usize) -> String {
    if console::measure_text_width(text) <= columns {
        return text.to_owned();
    }
    let mut left = columns.saturating_sub(1);
    let mut from = text.len();
    for (at, c) in text.char_indices().rev() {
        let wide = columns_of(c);
        if wide > left {
            break;
        }
        left -= wide;
        from = at;
    }
    format!("…{}", &text[from..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrapped_line_breaks_between_words_and_keeps_all_of_them() {
        let wrapped = |text: &str, columns: usize| {
            let mut line = Line::new();
            let (first, rest) = text.split_at(3);
            line.push(Tone::Bad, first).push(Tone::Plain, rest);
            let rows = line.wrap(columns, 2);
            assert!(rows.iter().all(|row| row.width() <= columns), "{rows:?}");
            rows.iter().map(|row| row.text().trim_end().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(wrapped("error: short", 40), ["error: short"]);
        assert_eq!(
            wrapped("error: the node failed [CONFIG_INVALID]", 20),
            ["error: the node", "  failed", "  [CONFIG_INVALID]"]
        );
        assert_eq!(wrapped("abcdefghijklmn", 6), ["abcdef", "  ghij", "  klmn"]);
        assert_eq!(wrapped("日本語日本語", 6), ["日本語", "  日本", "  語"]);
    }

    #[test]
    fn a_tail_shows_the_end() {
        assert_eq!([tail("abc", 3), tail("abcd", 3), tail("a日本語", 5)], ["abc", "…cd", "…本語"]);
    }

    #[test]
    fn a_clipped_line_fits_whatever_its_letters() {
        let mut line = Line::new();
        line.push(Tone::Plain, "ab").push(Tone::Good, "日本語").push(Tone::Faint, "cd");
        let clipped: Vec<_> = (0..=11).map(|columns| line.clone().clip(columns).text()).collect();
        let expected = [
            "…",
            "…",
            "a…",
            "ab…",
            "ab…",
            "ab日…",
            "ab日…",
            "ab日本…",
            "ab日本…",
            "ab日本語…",
            "ab日本語cd",
            "ab日本語cd",
        ];
        assert_eq!(clipped, expected);
    }

    #[test]
    fn no_piece_can_steer_the_terminal() {
        let mut line = Line::new();
        line.push(Tone::Plain, "a\u{1b}[2Jb\nc\u{202e}").push(Tone::Bad, "\u{9b}31m");
        assert_eq!(line.text(), "ab c ");
    }

    #[test]
    fn colours_only_where_they_are_on() {
        let mut line = Line::new();
        line.push(Tone::Good, "ok").push(Tone::Plain, "  ");
        assert_eq!(line.render(Colour::Off), "ok");
        assert_eq!(line.render(Colour::On), "\u{1b}[32mok\u{1b}[0m  ");
    }
}
