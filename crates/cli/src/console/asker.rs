//! Puts open questions to the person at the terminal, one after the other, on a thread of its own. What a
//! question looks like and what a typed line means stand in `question`; sending the answer is the caller's.

use std::{
    collections::{HashSet, VecDeque},
    io::BufRead,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use super::{
    line::{Line, Tone},
    painter::Shared,
    question::{Answer, block, read, settled},
    state::Question,
};

/// Typed lines that may wait; further ones are not taken.
const TYPED: usize = 64;
/// The longest line that is read, in bytes.
const LONGEST: u64 = 1 << 20;
/// The longest wait for anything to happen before the deadlines are looked at again.
const PATIENCE: Duration = Duration::from_secs(1);

/// Opens what a person types into.
pub(crate) type Stdin = Box<dyn FnOnce() -> Box<dyn BufRead> + Send>;

/// Where answers go.
pub(crate) trait Answers: Send + Sync {
    /// Sends an answer; a refusal says why.
    fn answer(&self, question: &Question, answer: Answer) -> Result<(), String>;

    /// Nobody is there to answer this.
    fn nobody(&self, question: &Question);
}

/// The thread that asks.
pub(crate) struct Asker {
    mail: Arc<Mail>,
    thread: JoinHandle<()>,
}

#[derive(Default)]
struct Mail {
    inner: Mutex<Letters>,
    arrived: Condvar,
}

#[derive(Default)]
struct Letters {
    /// The questions that are open now, if that has changed.
    open: Option<Vec<Question>>,
    typed: VecDeque<String>,
    typing: Typing,
    is_over: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Typing {
    #[default]
    Open,
    Ended,
}

impl Mail {
    fn letters(&self) -> MutexGuard<'_, Letters> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn post(&self, change: impl FnOnce(&mut Letters)) {
        change(&mut self.letters());
        self.arrived.notify_all();
    }
}

impl Asker {
    pub(super) fn start(
        shared: Arc<Shared>,
        answers: Arc<dyn Answers>,
        stdin: Stdin,
    ) -> std::io::Result<Self> {
        let mail = Arc::new(Mail::default());
        let desk = Desk {
            shared,
            answers,
            mail: Arc::clone(&mail),
            open: Vec::new(),
            asked: None,
            stdin: Some(stdin),
        };
        let thread = thread::Builder::new().name("asker".to_owned()).spawn(move || desk.work())?;
        Ok(Self { mail, thread })
    }

    /// These questions are open now.
    pub(super) fn questions(&self, open: Vec<Question>) {
        self.mail.post(|letters| letters.open = Some(open));
    }

    /// Asks no more.
    pub(super) fn stop(self) {
        self.mail.post(|letters| letters.is_over = true);
        // A panic of the thread has been reported by its hook; unanswered questions are the session's.
        drop(self.thread.join());
    }
}

struct Desk {
    shared: Arc<Shared>,
    answers: Arc<dyn Answers>,
    mail: Arc<Mail>,
    open: Vec<Question>,
    asked: Option<Question>,
    /// What the person types into, until it is first needed.
    stdin: Option<Stdin>,
}

impl Desk {
    fn work(mut self) {
        loop {
            let mail = Arc::clone(&self.mail);
            let letters = mail.letters();
            let quiet = |letters: &mut Letters| {
                letters.open.is_none()
                    && letters.typed.is_empty()
                    && !letters.is_over
                    && letters.typing == Typing::Open
            };
            let waited = mail.arrived.wait_timeout_while(letters, PATIENCE, quiet);
            let (mut letters, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if letters.is_over {
                drop(letters);
                self.withdraw();
                return;
            }
            let open = letters.open.take();
            let typed: Vec<String> = letters.typed.drain(..).collect();
            let typing = std::mem::take(&mut letters.typing);
            drop(letters);
            if let Some(open) = open {
                self.open = open;
            }
            for line in typed {
                self.take(&line);
            }
            if typing == Typing::Ended {
                self.nobody();
                return;
            }
            self.look();
        }
    }

    /// Drops a question that is no longer open, and asks the next.
    fn look(&mut self) {
        let now = (self.shared.now)();
        self.open.retain(|question| question.deadline.is_none_or(|deadline| deadline > now));
        if let Some(asked) = &self.asked
            && !self.open.iter().any(|question| question.id == asked.id)
        {
            self.withdraw();
        }
        if self.asked.is_none()
            && let Some(next) = self.open.first().cloned()
        {
            self.ask(next);
        }
    }

    fn ask(&mut self, question: Question) {
        let lines = self.shared.pause();
        let block = block(&question, (self.shared.now)());
        let mut picture = self.shared.still(block.len());
        picture.extend(block);
        self.shared.on_screen(|screen| {
            screen.draw(&lines, &picture);
            screen.prompt(&cursor());
        });
        self.asked = Some(question);
        if let Some(stdin) = self.stdin.take() {
            let mail = Arc::clone(&self.mail);
            // The thread blocks in a read that cannot be called off, so nobody waits for its end.
            let reading =
                thread::Builder::new().name("stdin".to_owned()).spawn(move || listen(stdin(), &mail));
            if reading.is_err() {
                self.mail.post(|letters| letters.typing = Typing::Ended);
            }
        }
    }

    /// A line came; without a question on the terminal it means nothing.
    fn take(&mut self, typed: &str) {
        let Some(question) = self.asked.clone() else { return };
        let width = cursor().width() + 1 + console::measure_text_width(typed);
        self.shared.on_screen(|screen| screen.forget(width));
        let sent = read(&question, typed).and_then(|answer| {
            let said = answer.content.clone();
            self.answers.answer(&question, answer).map(|()| said)
        });
        match sent {
            Ok(said) => {
                self.open.retain(|open| open.id != question.id);
                self.asked = None;
                self.shared.go_on(Some(settled(&question, &said)));
            }
            Err(why) => {
                let mut line = Line::new();
                line.push(Tone::Warning, "  ").push(Tone::Warning, &why);
                self.shared.on_screen(|screen| {
                    screen.below(line);
                    screen.prompt(&cursor());
                });
            }
        }
    }

    fn withdraw(&mut self) {
        if let Some(question) = self.asked.take() {
            self.shared.go_on(Some(settled(&question, "(no longer asked)")));
        }
    }

    /// Nobody types any more: each question, open or to come, is given up once.
    fn nobody(&mut self) {
        self.asked = None;
        self.shared.go_on(None);
        let mut given_up = HashSet::new();
        loop {
            for question in std::mem::take(&mut self.open) {
                if given_up.insert(question.id.clone()) {
                    self.answers.nobody(&question);
                }
            }
            let mail = Arc::clone(&self.mail);
            let quiet = |letters: &mut Letters| letters.open.is_none() && !letters.is_over;
            let waited = mail.arrived.wait_while(mail.letters(), quiet);
            let mut letters = waited.unwrap_or_else(PoisonError::into_inner);
            if letters.is_over {
                return;
            }
            self.open = letters.open.take().unwrap_or_default();
        }
    }
}

fn cursor() -> Line {
    let mut line = Line::new();
    line.push(Tone::Accent, "›");
    line
}

/// Reads to the end, line by line.
fn listen(mut stdin: Box<dyn BufRead>, mail: &Mail) {
    loop {
        let mut bytes = Vec::new();
        let read = std::io::Read::take(&mut stdin, LONGEST).read_until(b'\n', &mut bytes);
        if !matches!(read, Ok(1..)) {
            mail.post(|letters| letters.typing = Typing::Ended);
            return;
        }
        let line = String::from_utf8_lossy(&bytes).trim_end_matches(['\n', '\r']).to_owned();
        mail.post(|letters| {
            if letters.typed.len() < TYPED {
                letters.typed.push_back(line);
            }
        });
    }
}
