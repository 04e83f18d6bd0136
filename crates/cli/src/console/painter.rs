//! The console at work: takes events in, and its own thread writes them to the terminal, so that a slow terminal
//! never delays the session. The picture is updated while a question is open: it, the question and what is typed
//! are drawn together.

use std::{
    collections::VecDeque,
    io::BufReader,
    sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError},
    thread::JoinHandle,
    time::Duration,
};

use inspan_engine::{Clock, SystemClock};
use inspan_protocol::{Envelope, Event, Timestamp};

use super::{
    asker::{AnswerSinks, Asker, Stdin, TerminalInput},
    plain::{Detail, PlainLog},
    question::{QuestionBlock, wrapped},
    screen::{Device, KeyInput, Screen, restore},
    summary::summary,
    tree::{Canvas, tree},
};
use crate::terminal::{Interactivity, ProgressStyle, Terminal};
use inspan_view::{Line, SessionView, Tone, look, safe::harmless, tail};

/// The time between two drawings.
const FRAME: Duration = Duration::from_millis(75);
/// Lines that may wait for a terminal that takes none; of more, the oldest are dropped and counted.
const WAITING: usize = 20_000;

/// What events are brought to the terminal, and how.
pub(crate) struct Setting {
    pub(crate) terminal: Terminal,
    /// Where it is shown.
    pub(crate) device: Device,
    /// Where a person's answers come from; called when there is the first question.
    pub(crate) stdin: Stdin,
    /// The time of day.
    pub(crate) now: fn() -> Timestamp,
    /// How long a question must have been shown before a line is its answer.
    pub(crate) unread: Duration,
}

impl Setting {
    /// Shown on standard error of this process, to a person who answers on its standard input.
    pub(crate) fn of_process(terminal: Terminal) -> Self {
        Self {
            terminal,
            device: Device::stderr(),
            stdin: Box::new(|| Box::new(BufReader::new(TerminalInput::default()))),
            now: || SystemClock.now(),
            unread: inspan_sessions::UNREAD,
        }
    }
}

/// The console of one session.
pub(crate) struct Painter {
    shared: Arc<PainterShared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    asker: Mutex<Option<Asker>>,
    answers: OnceLock<Arc<dyn AnswerSinks>>,
    stdin: Mutex<Option<Stdin>>,
}

pub(super) struct PainterShared {
    terminal: Terminal,
    size: fn() -> (usize, usize),
    /// Whether what is typed is drawn here, and not by the terminal.
    takes_keys: bool,
    pub(super) now: fn() -> Timestamp,
    pub(super) unread: Duration,
    screen: Mutex<Screen>,
    inner: Mutex<PainterState>,
    changed: Condvar,
}

struct PainterState {
    state: SessionView,
    log: PlainLog,
    lines: VecDeque<Line>,
    dropped: u64,
    frame: usize,
    stage: PainterStage,
    entry: PainterEntry,
    /// Something has changed that a person waits to see.
    is_urgent: bool,
}

/// What is below the picture.
#[derive(Default)]
struct PainterEntry {
    /// The question that is asked.
    question: Option<QuestionBlock>,
    /// The result of the last line that was typed.
    note: Option<Line>,
    /// What is being typed.
    text: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PainterStage {
    Drawing,
    Over,
}

/// Rows of the picture that stay beside a question.
const PICTURE: usize = 4;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Painter {
    /// `state` is what happened before.
    pub(crate) fn new(state: SessionView, setting: Setting) -> Self {
        let Setting { terminal, device, stdin, now, unread } = setting;
        let takes_keys = device.input == KeyInput::Keys
            && (terminal.progress, terminal.interactivity)
                == (ProgressStyle::Live, Interactivity::Interactive);
        let inner = PainterState {
            log: PlainLog::after(&state),
            state,
            lines: VecDeque::new(),
            dropped: 0,
            frame: 0,
            stage: PainterStage::Drawing,
            entry: PainterEntry::default(),
            is_urgent: false,
        };
        let shared = PainterShared {
            terminal,
            size: device.size,
            takes_keys,
            now,
            unread,
            screen: Mutex::new(Screen::new(device, terminal.stderr, terminal.progress)),
            inner: Mutex::new(inner),
            changed: Condvar::new(),
        };
        Self {
            shared: Arc::new(shared),
            thread: Mutex::default(),
            asker: Mutex::default(),
            stdin: Mutex::new(Some(stdin)),
            answers: OnceLock::new(),
        }
    }

    /// Begins to draw, and to ask where a person is present.
    pub(crate) fn start(&self, answers: Arc<dyn AnswerSinks>) -> std::io::Result<()> {
        if self.shared.terminal.progress == ProgressStyle::Live {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                restore();
                before(panic);
            }));
        }
        let stdin = lock(&self.stdin)
            .take()
            .filter(|_| self.shared.terminal.interactivity == Interactivity::Interactive);
        if let Some(stdin) = stdin {
            *lock(&self.asker) = Some(Asker::start(Arc::clone(&self.shared), answers, stdin)?);
        } else {
            // A console is started once.
            let _ = self.answers.set(answers);
        }
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name("console".to_owned()).spawn(move || shared.paint())?;
        *lock(&self.thread) = Some(thread);
        Ok(())
    }

    /// Takes one event in.
    pub(crate) fn event(&self, envelope: &Envelope) {
        let has_asker = lock(&self.asker).is_some();
        let mut inner = lock(&self.shared.inner);
        let inner_ref = &mut *inner;
        let asked_before = inner_ref.state.asked;
        inner_ref.state.apply(envelope);
        let detail = match self.shared.terminal.progress {
            ProgressStyle::Live => Detail::Notes,
            ProgressStyle::Lines => Detail::Everything,
        };
        let lines = inner_ref.log.lines(envelope, &inner_ref.state, detail);
        inner_ref.add(lines);
        let new = match &envelope.event {
            Event::SessionPrompt(prompt) => inner_ref.state.question(&prompt.prompt_id).cloned(),
            _ => None,
        };
        let reply = match &envelope.event {
            Event::SessionReply { prompt_id, content, choice, is_default } => {
                Some((prompt_id.clone(), look::answer(content, choice.as_deref(), *is_default)))
            }
            _ => None,
        };
        let has_asked = has_asker && inner_ref.state.asked != asked_before;
        let asked = has_asked.then(|| inner_ref.state.questions().cloned().collect());
        drop(inner);
        if let Some(asker) = &*lock(&self.asker) {
            if let Some((prompt, answer)) = reply {
                asker.answered(prompt, answer);
            }
            if let Some(open) = asked {
                asker.questions(open);
            }
        }
        if let (Some(answers), Some(question)) = (self.answers.get(), new) {
            answers.nobody(&question);
        }
        if self.shared.terminal.progress == ProgressStyle::Lines {
            self.shared.changed.notify_all();
        }
    }

    /// Stops drawing, once what waits has been drawn; the state as it was at the end.
    pub(crate) fn stop(&self) -> SessionView {
        if let Some(asker) = lock(&self.asker).take() {
            asker.stop();
        }
        lock(&self.shared.inner).stage = PainterStage::Over;
        self.shared.changed.notify_all();
        if let Some(thread) = lock(&self.thread).take() {
            // A panic of the thread has been reported by its hook; the session does not depend on it.
            drop(thread.join());
        }
        std::mem::take(&mut lock(&self.shared.inner).state)
    }

    /// Reports how the session went. After [`Painter::stop`].
    pub(crate) fn summarise(&self, state: &SessionView, hints: &[String]) {
        let canvas = Canvas { columns: self.columns(), lines: None, now: (self.shared.now)(), frame: None };
        lock(&self.shared.screen).leave(&summary(state, canvas, hints));
    }

    fn columns(&self) -> usize {
        match self.shared.terminal.progress {
            ProgressStyle::Live => self.shared.room().0,
            ProgressStyle::Lines => usize::MAX,
        }
    }
}

impl PainterState {
    fn add(&mut self, lines: Vec<Line>) {
        self.lines.extend(lines);
        while self.lines.len() > WAITING {
            self.lines.pop_front();
            self.dropped += 1;
        }
    }

    fn take(&mut self) -> Vec<Line> {
        let mut lines = Vec::with_capacity(self.lines.len() + 1);
        if self.dropped > 0 {
            lines.push(Line::new().with(
                Tone::Warning,
                &format!("… {} lines skipped: the terminal was too slow", self.dropped),
            ));
            self.dropped = 0;
        }
        lines.extend(self.lines.drain(..));
        lines
    }
}

impl PainterShared {
    fn paint(&self) {
        loop {
            if self.takes_keys {
                super::screen::take_keys();
            }
            let mut inner = lock(&self.inner);
            if self.terminal.progress == ProgressStyle::Lines {
                let idle =
                    |inner: &mut PainterState| inner.stage == PainterStage::Drawing && inner.lines.is_empty();
                inner = self.changed.wait_while(inner, idle).unwrap_or_else(PoisonError::into_inner);
            }
            inner.is_urgent = false;
            let stage = inner.stage;
            let lines = inner.take();
            let picture = if stage == PainterStage::Over { Vec::new() } else { self.picture(&mut inner) };
            drop(inner);
            let mut screen = lock(&self.screen);
            if stage == PainterStage::Over {
                screen.leave(&lines);
                return;
            }
            screen.draw(&lines, &picture);
            drop(screen);
            if self.terminal.progress == ProgressStyle::Live {
                let inner = lock(&self.inner);
                let drawing =
                    |inner: &mut PainterState| inner.stage == PainterStage::Drawing && !inner.is_urgent;
                drop(self.changed.wait_timeout_while(inner, FRAME, drawing));
            }
        }
    }

    /// Columns and rows of the terminal, never less than something can be shown in.
    fn room(&self) -> (usize, usize) {
        let (columns, rows) = (self.size)();
        (columns.max(20), rows.max(4))
    }

    /// The picture, and below it the question and what is typed.
    fn picture(&self, inner: &mut PainterState) -> Vec<Line> {
        if self.terminal.progress == ProgressStyle::Lines {
            return Vec::new();
        }
        inner.frame += 1;
        let (columns, rows) = self.room();
        // The last column stays free: some terminals begin a new row as soon as it is written. So does the last row.
        let (columns, rows) = (columns - 1, rows - 1);
        let below = inner.below(columns, rows.saturating_sub(PICTURE).max(1));
        let lines = Some(rows.saturating_sub(below.len()).max(1));
        let canvas = Canvas { columns, lines, now: (self.now)(), frame: Some(inner.frame) };
        let mut picture = tree(&inner.state, canvas);
        picture.extend(below);
        picture
    }

    /// Shows a question.
    pub(super) fn ask(&self, question: QuestionBlock) {
        self.change(|inner| {
            // Below there is room for a part of it, with a note and what is typed.
            let (columns, rows) = self.room();
            let is_cut = wrapped(question.clone().whole(), columns - 1).len() + 3 + PICTURE > rows;
            if self.terminal.progress == ProgressStyle::Lines || is_cut {
                inner.add(question.clone().whole());
            }
            inner.entry = PainterEntry { question: Some(question), ..PainterEntry::default() };
        });
    }

    /// Removes the question, and says how it ended; `text` was typed before it came.
    pub(super) fn settle(&self, line: Line, text: String) {
        self.change(|inner| {
            inner.entry = PainterEntry { text, ..PainterEntry::default() };
            // As lines the answer is in the log already.
            if self.terminal.progress == ProgressStyle::Live {
                inner.add(vec![line]);
            }
        });
    }

    /// Shows the result of the line that was typed.
    pub(super) fn say(&self, note: Line) {
        self.change(|inner| match self.terminal.progress {
            ProgressStyle::Live => inner.entry.note = Some(note),
            ProgressStyle::Lines => inner.add(vec![note]),
        });
    }

    /// Shows what is being typed.
    pub(super) fn typed(&self, text: String) {
        self.change(|inner| {
            if !text.is_empty() {
                inner.entry.note = None;
            }
            inner.entry.text = text;
        });
    }

    /// Nothing is below the picture any more.
    pub(super) fn clear(&self) {
        self.change(|inner| inner.entry = PainterEntry::default());
    }

    fn change(&self, change: impl FnOnce(&mut PainterState)) {
        let mut inner = lock(&self.inner);
        change(&mut inner);
        inner.is_urgent = true;
        drop(inner);
        self.changed.notify_all();
    }
}

impl PainterState {
    /// The question, the result of the last line, and the line that is typed, in so many rows.
    fn below(&self, columns: usize, rows: usize) -> Vec<Line> {
        let PainterEntry { question, note, text } = &self.entry;
        let mut lines = Vec::new();
        if let Some(question) = question {
            let taken = 1 + usize::from(note.is_some());
            lines = question.clone().fit(columns, rows.saturating_sub(taken));
        }
        lines.extend(note.clone().map(|note| note.clip(columns)));
        if question.is_some() || !text.is_empty() || self.state.listens() {
            lines.push(
                Line::new()
                    .with(Tone::Accent, "› ")
                    .with(Tone::Plain, &tail(&harmless(&text.replace('\n', "↵")), columns.saturating_sub(3)))
                    .with(Tone::Accent, "▏"),
            );
        }
        lines
    }
}

#[cfg(test)]
mod tests;
