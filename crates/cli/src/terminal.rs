//! What stdin, stdout and stderr are, whether they take colours, and writing to them: safe for a terminal,
//! without an error for a reader that has gone, and with an error if output is lost.

use std::{
    io::{self, IsTerminal, Write},
    sync::OnceLock,
};

use clap::ColorChoice;
use inspan_protocol::Environment;

pub(crate) use inspan_view::Colour;
use inspan_view::safe;

/// The three streams of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terminal {
    /// Colours on stdout.
    pub(crate) stdout: Colour,
    /// Colours on stderr.
    pub(crate) stderr: Colour,
    /// How progress is shown on stderr.
    pub(crate) progress: ProgressStyle,
    /// Whether a person can be asked.
    pub(crate) interactivity: Interactivity,
}

/// How progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProgressStyle {
    /// A picture that is redrawn in place.
    Live,
    /// Lines that are only added.
    Lines,
}

/// Whether a person can answer at the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interactivity {
    Interactive,
    Unattended,
}

/// Which of the three streams are terminals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Streams {
    pub(crate) stdin: bool,
    pub(crate) stdout: bool,
    pub(crate) stderr: bool,
}

impl Streams {
    pub(crate) fn of_process() -> Self {
        Self {
            stdin: io::stdin().is_terminal(),
            stdout: io::stdout().is_terminal(),
            stderr: io::stderr().is_terminal(),
        }
    }
}

impl Terminal {
    /// Decides from the user's word, the streams and the usual variables.
    pub(crate) fn new(choice: ColorChoice, streams: Streams, env: &Environment) -> Self {
        let dumb = env.get("TERM") == Some("dumb");
        let unattended = env.get("CI").is_some_and(|ci| ci != "false" && ci != "0");
        let live = streams.stderr && !dumb && !unattended;
        let person = streams.stdin && streams.stderr && !unattended;
        Self {
            stdout: colour(choice, streams.stdout, dumb, env),
            stderr: colour(choice, streams.stderr, dumb, env),
            progress: if live { ProgressStyle::Live } else { ProgressStyle::Lines },
            interactivity: if person { Interactivity::Interactive } else { Interactivity::Unattended },
        }
    }
}

fn colour(choice: ColorChoice, terminal: bool, dumb: bool, env: &Environment) -> Colour {
    let on = match choice {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto if env.get("NO_COLOR").is_some() => false,
        ColorChoice::Auto if env.get("CLICOLOR_FORCE").is_some_and(|force| force != "0") => true,
        ColorChoice::Auto => terminal && !dumb && env.get("CLICOLOR") != Some("0"),
    };
    if on { Colour::On } else { Colour::Off }
}

/// Whether a stream's reader is still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TerminalReader {
    There,
    Gone,
}

/// Why something could not be written to stdout, if so; a reader that has gone is no reason.
static LOST: OnceLock<String> = OnceLock::new();

/// Why output was lost on stdout, if some was.
pub(crate) fn lost() -> Option<&'static str> {
    LOST.get().map(String::as_str)
}

/// Notes that stdout could not be written; a reader that has gone has read what it wanted.
pub(crate) fn note_lost(error: &io::Error) {
    if error.kind() != io::ErrorKind::BrokenPipe {
        // The first error shows the cause.
        let _ = LOST.set(error.to_string());
    }
}

/// Whether what is written to stdout is read by a person at once.
pub(crate) fn stdout_is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Writes data to stdout: byte for byte to a file or a program, made safe for a terminal.
pub(crate) fn data(text: &str) -> TerminalReader {
    if stdout_is_terminal() { to_stdout(&safe::text(text)) } else { to_stdout(text) }
}

/// Writes a line of data to stdout.
pub(crate) fn data_line(text: &str) -> TerminalReader {
    data(&with_break(text))
}

/// Writes a JSON text and a line break to stdout; on a terminal its unsafe characters are escaped.
pub(crate) fn json_line(text: &str) -> TerminalReader {
    let line = with_break(text);
    if stdout_is_terminal() { to_stdout(&safe::json(&line)) } else { to_stdout(&line) }
}

/// Writes text for people to stdout, whose only escape sequences are colours.
pub(crate) fn painted(text: &str) -> TerminalReader {
    to_stdout(&safe::coloured(text))
}

/// Writes a line of text for people to stdout.
pub(crate) fn painted_line(text: &str) -> TerminalReader {
    painted(&with_break(text))
}

/// Writes progress to stderr.
pub(crate) fn progress(text: &str) -> TerminalReader {
    match written(&mut io::stderr().lock(), &safe::coloured(text)) {
        Ok(()) => TerminalReader::There,
        Err(_) => TerminalReader::Gone,
    }
}

fn with_break(text: &str) -> String {
    let mut line = String::with_capacity(text.len() + 1);
    line.push_str(text);
    line.push('\n');
    line
}

fn to_stdout(text: &str) -> TerminalReader {
    match written(&mut io::stdout().lock(), text) {
        Ok(()) => TerminalReader::There,
        Err(error) => {
            note_lost(&error);
            TerminalReader::Gone
        }
    }
}

fn written(stream: &mut dyn Write, text: &str) -> io::Result<()> {
    stream.write_all(text.as_bytes()).and_then(|()| stream.flush())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terminal(variables: &[(&str, &str)]) -> Terminal {
        let env = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Terminal::new(ColorChoice::Auto, Streams { stdin: true, stdout: false, stderr: true }, &env)
    }

    #[test]
    fn the_usual_variables_are_respected() {
        let here = Terminal {
            stdout: Colour::Off,
            stderr: Colour::On,
            progress: ProgressStyle::Live,
            interactivity: Interactivity::Interactive,
        };
        assert_eq!(terminal(&[]), here);
        assert_eq!(terminal(&[("NO_COLOR", "1")]), Terminal { stderr: Colour::Off, ..here });
        assert_eq!(terminal(&[("NO_COLOR", "")]), here);
        assert_eq!(terminal(&[("CLICOLOR", "0")]), Terminal { stderr: Colour::Off, ..here });
        assert_eq!(terminal(&[("CLICOLOR_FORCE", "1")]), Terminal { stdout: Colour::On, ..here });
        assert_eq!(
            terminal(&[("CI", "true")]),
            Terminal { progress: ProgressStyle::Lines, interactivity: Interactivity::Unattended, ..here }
        );
        assert_eq!(
            terminal(&[("TERM", "dumb")]),
            Terminal { stderr: Colour::Off, progress: ProgressStyle::Lines, ..here }
        );
    }
}
