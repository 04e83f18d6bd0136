//! A line of styled text that knows its width. Turning it into bytes for a terminal is the only place
//! where escape sequences are made.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};

use crate::terminal::Colour;

/// What a piece of text means, which decides how it looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    Strong,
    Faint,
    Good,
    Bad,
    Warning,
    Accent,
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
pub(crate) struct Line(Vec<(Tone, String)>);

impl Line {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Adds a piece. The text must be the program's own; what comes from outside goes through [`clean`].
    pub(crate) fn push(&mut self, tone: Tone, text: &str) -> &mut Self {
        if !text.is_empty() {
            self.0.push((tone, text.to_owned()));
        }
        self
    }

    /// Fills with spaces up to a column.
    pub(crate) fn pad_to(&mut self, column: usize) -> &mut Self {
        let missing = column.saturating_sub(self.width());
        self.push(Tone::Plain, &" ".repeat(missing))
    }

    /// Columns on a terminal.
    pub(crate) fn width(&self) -> usize {
        self.0.iter().map(|(_, text)| console::measure_text_width(text)).sum()
    }

    /// The line cut to a number of columns, with `…` where something is missing.
    pub(crate) fn clip(mut self, columns: usize) -> Self {
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

    /// The text without looks.
    pub(crate) fn text(&self) -> String {
        self.0.iter().map(|(_, text)| text.as_str()).collect()
    }

    /// The text with its looks, if colours are on; no line break at the end.
    pub(crate) fn render(&self, colour: Colour) -> String {
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

/// Text from outside as one line that is harmless for a terminal: no escape sequence, no control character,
/// and one space where there was a gap.
pub(crate) fn clean(text: &str) -> String {
    let text = harmless(text);
    let mut out = String::with_capacity(text.len());
    for word in text.split_whitespace() {
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(word);
    }
    out
}

/// Text from outside with its gaps as they are, each control character and line break a space.
pub(crate) fn harmless(text: &str) -> String {
    let blank = |c: char| if c.is_whitespace() || c.is_control() || is_invisible(c) { ' ' } else { c };
    console::strip_ansi_codes(text).chars().map(blank).collect()
}

/// Characters that turn the writing direction around, or take no room: a text could hide behind them.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn text_from_outside_cannot_steer_the_terminal() {
        let rows = ["a\u{1b}[2Jb", "a\r\n\tb", "\u{1b}]0;title\u{7}x", "a\u{202e}b", "  a  b  ", "日本"];
        assert_eq!(rows.map(clean), ["ab", "a b", "x", "a b", "a b", "日本"]);
    }

    #[test]
    fn colours_only_where_they_are_on() {
        let mut line = Line::new();
        line.push(Tone::Good, "ok").push(Tone::Plain, "  ");
        assert_eq!(line.render(Colour::Off), "ok");
        assert_eq!(line.render(Colour::On), "\u{1b}[32mok\u{1b}[0m  ");
    }
}
