//! The console at work: takes events in, and a thread of its own brings them to the terminal, so that a slow
//! terminal never holds up the session. Questions are put by `asker`.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError},
    thread::JoinHandle,
    time::Duration,
};

use inspan_protocol::{Envelope, Event, Timestamp};

use super::{
    asker::{Answers, Asker, Stdin},
    line::{Line, Tone},
    plain::{Detail, PlainLog},
    screen::{Device, Screen, restore},
    state::ConsoleState,
    summary::summary,
    tree::{Canvas, tree},
};
use crate::terminal::{Person, Progress, Terminal};

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
}

/// The console of one session.
pub(crate) struct Painter {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    asker: Mutex<Option<Asker>>,
    answers: OnceLock<Arc<dyn Answers>>,
    stdin: Mutex<Option<Stdin>>,
}

pub(super) struct Shared {
    terminal: Terminal,
    size: fn() -> (usize, usize),
    pub(super) now: fn() -> Timestamp,
    screen: Mutex<Screen>,
    inner: Mutex<Inner>,
    changed: Condvar,
}

struct Inner {
    state: ConsoleState,
    log: PlainLog,
    lines: VecDeque<Line>,
    dropped: u64,
    frame: usize,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Drawing,
    /// A question has the terminal.
    Asking,
    Over,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Painter {
    /// `state` is what happened before.
    pub(crate) fn new(state: ConsoleState, setting: Setting) -> Self {
        let Setting { terminal, device, stdin, now } = setting;
        let inner = Inner {
            state,
            log: PlainLog::default(),
            lines: VecDeque::new(),
            dropped: 0,
            frame: 0,
            stage: Stage::Drawing,
        };
        let shared = Shared {
            terminal,
            size: device.size,
            now,
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
    pub(crate) fn start(&self, answers: Arc<dyn Answers>) -> std::io::Result<()> {
        if self.shared.terminal.progress == Progress::Live {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                restore();
                before(panic);
            }));
        }
        let stdin = lock(&self.stdin).take().filter(|_| self.shared.terminal.person == Person::Present);
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
        let mut inner = lock(&self.shared.inner);
        let inner_ref = &mut *inner;
        let asked_before = inner_ref.state.asked;
        inner_ref.state.fold(envelope);
        let detail = match self.shared.terminal.progress {
            Progress::Live => Detail::Notes,
            Progress::Lines => Detail::Everything,
        };
        let lines = inner_ref.log.lines(envelope, &inner_ref.state, detail);
        inner_ref.add(lines);
        let new = match &envelope.event {
            Event::SessionPrompt { prompt_id, .. } => inner_ref.state.question(prompt_id).cloned(),
            _ => None,
        };
        let asked = (inner_ref.state.asked != asked_before).then(|| inner_ref.state.questions.clone());
        drop(inner);
        if let (Some(asker), Some(open)) = (&*lock(&self.asker), asked) {
            asker.questions(open);
        }
        if let (Some(answers), Some(question)) = (self.answers.get(), new) {
            answers.nobody(&question);
        }
        if self.shared.terminal.progress == Progress::Lines {
            self.shared.changed.notify_all();
        }
    }

    /// Stops drawing, once what waits has been drawn; the state as it was at the end.
    pub(crate) fn stop(&self) -> ConsoleState {
        if let Some(asker) = lock(&self.asker).take() {
            asker.stop();
        }
        lock(&self.shared.inner).stage = Stage::Over;
        self.shared.changed.notify_all();
        if let Some(thread) = lock(&self.thread).take() {
            // A panic of the thread has been reported by its hook; the session does not depend on it.
            drop(thread.join());
        }
        std::mem::take(&mut lock(&self.shared.inner).state)
    }

    /// Says how the session went. After [`Painter::stop`].
    pub(crate) fn summarise(&self, state: &ConsoleState, hints: &[String]) {
        let canvas = Canvas { columns: self.columns(), lines: None, now: (self.shared.now)(), frame: 0 };
        lock(&self.shared.screen).leave(&summary(state, canvas, hints));
    }

    fn columns(&self) -> usize {
        match self.shared.terminal.progress {
            Progress::Live => self.shared.room().0,
            Progress::Lines => usize::MAX,
        }
    }
}

impl Inner {
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
            let mut line = Line::new();
            line.push(
                Tone::Warning,
                &format!("… {} lines left out: the terminal was too slow", self.dropped),
            );
            lines.push(line);
            self.dropped = 0;
        }
        lines.extend(self.lines.drain(..));
        lines
    }
}

impl Shared {
    fn paint(&self) {
        loop {
            let mut inner = lock(&self.inner);
            let idle = |inner: &mut Inner| match (inner.stage, self.terminal.progress) {
                (Stage::Over, _) => false,
                (Stage::Asking, _) => true,
                (Stage::Drawing, Progress::Lines) => inner.lines.is_empty(),
                (Stage::Drawing, Progress::Live) => false,
            };
            inner = self.changed.wait_while(inner, idle).unwrap_or_else(PoisonError::into_inner);
            drop(inner);
            // The screen first: a question that comes now waits until what was said before it stands there.
            let mut screen = lock(&self.screen);
            inner = lock(&self.inner);
            let stage = inner.stage;
            if stage == Stage::Asking {
                continue;
            }
            let lines = inner.take();
            let picture = self.picture(&mut inner, 1);
            drop(inner);
            if stage == Stage::Over {
                screen.leave(&lines);
                return;
            }
            screen.draw(&lines, &picture);
            drop(screen);
            if self.terminal.progress == Progress::Live {
                let inner = lock(&self.inner);
                let drawing = |inner: &mut Inner| inner.stage == Stage::Drawing;
                drop(self.changed.wait_timeout_while(inner, FRAME, drawing));
            }
        }
    }

    /// Columns and rows of the terminal, never less than something can be shown in.
    fn room(&self) -> (usize, usize) {
        let (columns, rows) = (self.size)();
        (columns.max(20), rows.max(4))
    }

    /// The picture, with so many rows of the terminal left free.
    fn picture(&self, inner: &mut Inner, free: usize) -> Vec<Line> {
        if self.terminal.progress == Progress::Lines {
            return Vec::new();
        }
        inner.frame += 1;
        let (columns, rows) = self.room();
        let lines = Some(rows.saturating_sub(free).max(1));
        let now = (self.now)();
        // The last column stays free: some terminals begin a new row as soon as it is written.
        tree(&inner.state, Canvas { columns: columns - 1, lines, now, frame: inner.frame })
    }

    /// Gives the terminal to a question.
    pub(super) fn pause(&self) -> Vec<Line> {
        let mut inner = lock(&self.inner);
        if inner.stage == Stage::Drawing {
            inner.stage = Stage::Asking;
        }
        let lines = inner.take();
        drop(inner);
        self.changed.notify_all();
        lines
    }

    /// Takes the terminal back; `line` says what became of the question.
    pub(super) fn go_on(&self, line: Option<Line>) {
        let mut inner = lock(&self.inner);
        if inner.stage == Stage::Asking {
            inner.stage = Stage::Drawing;
        }
        if self.terminal.progress == Progress::Live {
            inner.add(line.into_iter().collect());
        }
        drop(inner);
        self.changed.notify_all();
    }

    /// The picture, to stand above a question of so many lines.
    pub(super) fn still(&self, below: usize) -> Vec<Line> {
        self.picture(&mut lock(&self.inner), below + 2)
    }

    /// Writes to the terminal, which must have been given by [`Shared::pause`].
    pub(super) fn on_screen(&self, write: impl FnOnce(&mut Screen)) {
        write(&mut lock(&self.screen));
    }
}

#[cfg(test)]
mod tests;
