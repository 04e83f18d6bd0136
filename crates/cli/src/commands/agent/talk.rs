//! One answer after the other: shows what the agent does, brings its questions to the person at the terminal, and
//! aborts on a signal.

use std::io::{BufRead, Read};

use inspan_engine::{AgentItem, AgentResult, AgentSession, Chat, ChatError, Clock, SystemClock};
use inspan_protocol::{AgentError, ErrorCode, Event, Prompt};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::writer::AgentWriter;
use crate::commands::session::Signals;
use crate::exit::Exit;
use crate::invocation::Invocation;
use crate::terminal;
use crate::terminal::Interactivity;
use inspan_sessions::read_answer;
use inspan_view::Tone;

/// Lines that may wait; nothing more is read until one is taken.
const TYPED: usize = 64;
/// The longest line that is read, in bytes.
const LONGEST: u64 = 16 << 20;

/// A conversation at this terminal.
pub(in crate::commands) struct TerminalConversation<'a> {
    session: AgentSession,
    invocation: &'a Invocation,
    writer: AgentWriter,
    signals: Signals,
    lines: StdinLines,
    between: Between,
    /// Questions of the agent, oldest first.
    open: Vec<Prompt>,
    /// When the oldest one was shown.
    shown: Option<Instant>,
}

/// What is done with lines that are typed while the agent is at work and asks nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::commands) enum Between {
    /// They are not read.
    Nothing,
    /// They follow the turn in progress, or steer it if they begin with [`STEER`].
    Message,
}

/// What a line begins with that is for the turn in progress itself.
const STEER: char = '!';

/// One answer, and the signal that cut it short.
pub(in crate::commands) struct ChatTurn {
    pub(in crate::commands) end: Result<AgentResult, ChatError>,
    pub(in crate::commands) by: Option<Exit>,
}

impl ChatTurn {
    pub(in crate::commands) fn exit(&self) -> Exit {
        super::exit(&self.end, self.by)
    }
}

/// What was typed at the prompt.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::commands) enum TerminalInput {
    Line(String),
    End,
    Signal(Exit),
}

enum TalkInput {
    Item(Option<Result<AgentItem, ChatError>>),
    Signal(Exit),
    Line(Option<TypedLine>),
}

impl<'a> TerminalConversation<'a> {
    /// Within a runtime: from now on it listens to signals.
    pub(in crate::commands) fn new(
        session: AgentSession,
        invocation: &'a Invocation,
        between: Between,
    ) -> Self {
        let signals = Signals::listen();
        let (writer, lines) = (AgentWriter::new(invocation), StdinLines::new());
        Self { session, invocation, writer, signals, lines, between, open: Vec::new(), shown: None }
    }

    /// From now on the structured output is what is said.
    pub(in crate::commands) fn say_structured(&mut self) {
        self.writer.say_structured();
    }

    /// The next line that is typed.
    pub(in crate::commands) async fn typed(&mut self) -> TerminalInput {
        tokio::select! {
            line = self.lines.next() => line.map_or(TerminalInput::End, |line| TerminalInput::Line(line.text)),
            (exit, _) = self.signals.next() => TerminalInput::Signal(exit),
        }
    }

    /// Says something and shows the answer. The first signal aborts it, a second does not wait for that.
    pub(in crate::commands) async fn turn(&mut self, prompt: impl Into<Chat>) -> ChatTurn {
        let mut stream = self.session.chat_stream(prompt);
        let mut by = None;
        // Nothing is typed any more.
        let mut silent = false;
        let end = loop {
            let reads = !silent && (!self.open.is_empty() || self.between == Between::Message);
            let input = tokio::select! {
                biased;
                (exit, _) = self.signals.next() => TalkInput::Signal(exit),
                item = stream.next() => TalkInput::Item(item),
                line = self.lines.next(), if reads => TalkInput::Line(line),
            };
            match input {
                TalkInput::Item(Some(Ok(AgentItem::Event(envelope)))) => self.event(&envelope.event),
                TalkInput::Item(Some(Ok(AgentItem::Result(result)))) => break Ok(*result),
                TalkInput::Item(Some(Err(error))) => break Err(error),
                TalkInput::Item(_) => {
                    break Err(AgentError::new(ErrorCode::Aborted, "the answer ended early").into());
                }
                TalkInput::Signal(exit) if by.is_some() => {
                    by = Some(exit);
                    break Err(AgentError::new(ErrorCode::Aborted, "stopped immediately").into());
                }
                TalkInput::Signal(exit) => {
                    by = Some(exit);
                    self.session.abort();
                }
                TalkInput::Line(Some(line)) => self.line(&line),
                TalkInput::Line(None) => {
                    silent = true;
                    if !self.open.is_empty() {
                        terminal::progress("\n");
                    }
                    while !self.open.is_empty() {
                        self.answer("");
                    }
                }
            }
        };
        self.open.clear();
        self.writer.end(end.as_ref().ok());
        ChatTurn { end, by }
    }

    /// A line about the conversation.
    pub(in crate::commands) fn note(&mut self, text: &str) {
        self.writer.note(Tone::Faint, "·", text);
    }

    fn event(&mut self, event: &Event) {
        self.writer.event(event);
        match event {
            Event::SessionPrompt(prompt) => {
                self.open.push(prompt.clone());
                if self.open.len() == 1 {
                    self.ask();
                }
            }
            Event::SessionReply { prompt_id, .. } => {
                let asked = self.open.first().is_some_and(|first| first.prompt_id == *prompt_id);
                self.open.retain(|question| question.prompt_id != *prompt_id);
                if asked {
                    self.ask();
                }
            }
            _ => {}
        }
    }

    /// Shows the oldest question.
    fn ask(&mut self) {
        let Some(question) = self.open.first() else { return };
        let lines = crate::console::question(question, SystemClock.now()).whole();
        let text: Vec<String> =
            lines.iter().map(|line| line.render(self.invocation.terminal.stderr)).collect();
        terminal::progress(&format!("\n{}\n› ", text.join("\n")));
        self.shown = Some(Instant::now());
    }

    fn line(&mut self, TypedLine { text: line, at }: &TypedLine) {
        if !self.open.is_empty() {
            let is_unread = self.shown.is_some_and(|shown| *at < shown + inspan_sessions::UNREAD);
            if is_unread && is_interactive(self.invocation) {
                self.note("what was typed before the question could be read is not its answer");
                return self.ask();
            }
            self.answer(line);
            return;
        }
        if line.trim().is_empty() {
            return;
        }
        let said = match line.trim_start().strip_prefix(STEER) {
            // Its event says what happens to it.
            Some(now) if !now.trim().is_empty() => self.session.steer(now.trim_start()).map(|()| None),
            _ => self.session.follow_up(line).map(|()| Some("sent after the current turn")),
        };
        match said {
            Ok(note) => note.into_iter().for_each(|note| self.note(note)),
            Err(error) => self.note(&error.message),
        }
    }

    fn answer(&mut self, line: &str) {
        let Some(question) = self.open.first() else { return };
        let answered = read_answer(question, line).and_then(|answer| {
            let hub = self.session.hub().ok_or("the session is closed")?;
            hub.reply(question.prompt_id.clone(), answer.content, answer.choice)
                .map_err(|why| why.to_string())
        });
        match answered {
            // Its event comes through the stream, and takes it from the list then.
            Ok(()) => {
                self.open.remove(0);
                self.ask();
            }
            Err(why) if line.is_empty() => {
                self.open.remove(0);
                self.note(&why);
            }
            Err(why) => {
                self.note(&why);
                self.ask();
            }
        }
    }
}

/// Whether a person types here.
pub(in crate::commands) fn is_interactive(invocation: &Invocation) -> bool {
    invocation.terminal.interactivity == Interactivity::Interactive
}

/// A line, and when it ended.
struct TypedLine {
    text: String,
    at: Instant,
}

/// Reads stdin on a separate thread, from the first time that a line is wanted. The thread ends with stdin or with
/// the program, so a read that cannot be interrupted delays nothing.
struct StdinLines(Option<mpsc::Receiver<TypedLine>>);

impl StdinLines {
    /// Nothing is read yet.
    fn new() -> Self {
        Self(None)
    }

    /// The next line, without its break; nothing at the end.
    async fn next(&mut self) -> Option<TypedLine> {
        self.0.get_or_insert_with(open).recv().await
    }
}

fn open() -> mpsc::Receiver<TypedLine> {
    let (sender, lines) = mpsc::channel(TYPED);
    // Without a thread nothing is ever typed, which is the same as the end of stdin.
    let _ = std::thread::Builder::new().name("stdin".to_owned()).spawn(move || {
        let mut stdin = std::io::stdin().lock();
        loop {
            let mut bytes = Vec::new();
            match stdin.by_ref().take(LONGEST).read_until(b'\n', &mut bytes) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            // The rest of it would be a prompt of its own.
            if bytes.len() as u64 == LONGEST && !bytes.ends_with(b"\n") {
                terminal::progress("warning: a line of more than 16 MiB is skipped\n");
                if stdin.skip_until(b'\n').is_err() {
                    return;
                }
                continue;
            }
            let text = String::from_utf8_lossy(&bytes).trim_end_matches(['\r', '\n']).to_owned();
            if sender.blocking_send(TypedLine { text, at: Instant::now() }).is_err() {
                return;
            }
        }
    });
    lines
}
