//! Asks the person at the terminal: shows open questions, one after the other, and takes what is typed, on
//! its own threads. A line is the answer to the question that was shown when it was ended, else a message to the
//! agents that listen.

use std::{
    collections::{HashSet, VecDeque},
    io::{BufRead, IsTerminal, Read},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use inspan_protocol::{Command, Prompt, PromptId, Reply};
use tokio::time::Instant;

use super::{
    editor::{CTRL_D, Editor, KeyEffect},
    form::FormInput,
    painter::PainterShared,
    question::{QuestionBlock, block, settled},
};
use inspan_view::{Line, Tone, safe::clean};

/// Typed lines that may wait; further ones are not taken.
const TYPED: usize = 64;
/// The longest wait for anything to happen before the deadlines are checked again.
const PATIENCE: Duration = Duration::from_secs(1);

/// Opens what a person types into.
pub(crate) type Stdin = Box<dyn FnOnce() -> Box<dyn BufRead> + Send>;

/// Ends that may follow each other on a terminal that is still there.
const MOST_ENDS: u32 = 1_000;

/// Standard input. Ctrl-D on a terminal that gives whole lines is an end of the input, after which more can be read; it comes
/// out as the key that it is.
#[derive(Default)]
pub(crate) struct TerminalInput {
    /// The ends since something was typed.
    ends: u32,
}

impl Read for TerminalInput {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let mut stdin = std::io::stdin().lock();
        let read = stdin.read(bytes)?;
        self.ends = if read == 0 { self.ends + 1 } else { 0 };
        match bytes.first_mut() {
            Some(first) if (1..=MOST_ENDS).contains(&self.ends) && stdin.is_terminal() => {
                *first = CTRL_D;
                Ok(1)
            }
            _ => Ok(read),
        }
    }
}

/// Where answers and messages go.
pub(crate) trait AnswerSinks: Send + Sync {
    /// Sends an answer, or a message to the agents that listen; a refusal says why.
    fn send(&self, command: Command) -> Result<(), String>;
    /// Nobody is there to answer this.
    fn nobody(&self, question: &Prompt);
}

/// The threads that ask.
pub(crate) struct Asker {
    queue: Arc<AskerQueue>,
    thread: JoinHandle<()>,
}

#[derive(Default)]
struct AskerQueue {
    inner: Mutex<AskerState>,
    arrived: Condvar,
}

#[derive(Default)]
struct AskerState {
    /// The questions that are open now, if that has changed.
    open: Option<Vec<Prompt>>,
    /// Answers that came, from here or elsewhere.
    replies: VecDeque<(PromptId, String)>,
    editor: Editor,
    typed: VecDeque<TypedLine>,
    /// The question that is shown, and since when.
    shown: Option<(PromptId, Instant)>,
    typing: Typing,
    is_over: bool,
}

/// A line that was typed.
struct TypedLine {
    text: String,
    /// The question that was shown then.
    shown: Option<PromptId>,
    /// Whether that had just come.
    is_unread: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Typing {
    #[default]
    Open,
    Ended,
}

impl AskerQueue {
    fn lock(&self) -> MutexGuard<'_, AskerState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update(&self, change: impl FnOnce(&mut AskerState)) {
        change(&mut self.lock());
        self.arrived.notify_all();
    }
}

impl Asker {
    pub(super) fn start(
        shared: Arc<PainterShared>,
        answers: Arc<dyn AnswerSinks>,
        stdin: Stdin,
    ) -> std::io::Result<Self> {
        let queue = Arc::new(AskerQueue::default());
        let (state, screen) = (Arc::clone(&queue), Arc::clone(&shared));
        // The thread blocks in a read that cannot be cancelled, so nothing waits for its end.
        thread::Builder::new().name("stdin".to_owned()).spawn(move || listen(stdin(), &state, &screen))?;
        let prompts =
            PromptLoop { shared, answers, queue: Arc::clone(&queue), open: Vec::new(), asked: None };
        let thread = thread::Builder::new().name("asker".to_owned()).spawn(move || prompts.work())?;
        Ok(Self { queue, thread })
    }

    /// These questions are open now.
    pub(super) fn questions(&self, open: Vec<Prompt>) {
        self.queue.update(|state| state.open = Some(open));
    }

    /// A question was answered, from here or elsewhere.
    pub(super) fn answered(&self, prompt: PromptId, answer: String) {
        self.queue.update(|state| {
            state.replies.push_back((prompt, answer));
            if state.replies.len() > TYPED {
                state.replies.pop_front();
            }
        });
    }

    /// Asks no more.
    pub(super) fn stop(self) {
        self.queue.update(|state| state.is_over = true);
        // A panic of the thread has been reported by its hook; unanswered questions are the session's.
        drop(self.thread.join());
    }
}

/// The question that is shown, and the text that was typed before it came.
struct ShownQuestion {
    question: Prompt,
    /// What is filled in, if the question has a form.
    form: Option<FormInput>,
    before: String,
}

struct PromptLoop {
    shared: Arc<PainterShared>,
    answers: Arc<dyn AnswerSinks>,
    queue: Arc<AskerQueue>,
    open: Vec<Prompt>,
    asked: Option<ShownQuestion>,
}

impl PromptLoop {
    fn work(mut self) {
        loop {
            let queue = Arc::clone(&self.queue);
            let quiet = |state: &mut AskerState| {
                state.open.is_none()
                    && state.typed.is_empty()
                    && !state.is_over
                    && state.typing == Typing::Open
            };
            let waited = queue.arrived.wait_timeout_while(queue.lock(), PATIENCE, quiet);
            let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if state.is_over {
                let replies = std::mem::take(&mut state.replies);
                drop(state);
                self.withdraw(&replies);
                return;
            }
            let open = state.open.take();
            let replies = std::mem::take(&mut state.replies);
            let typed: Vec<_> = state.typed.drain(..).collect();
            let typing = std::mem::take(&mut state.typing);
            drop(state);
            if let Some(open) = open {
                self.open = open;
            }
            typed.iter().for_each(|line| self.take(line));
            if typing == Typing::Ended {
                self.nobody();
                return;
            }
            self.look(&replies);
        }
    }

    /// Drops a question that is no longer open, and asks the next.
    fn look(&mut self, replies: &VecDeque<(PromptId, String)>) {
        let now = (self.shared.now)();
        self.open.retain(|question| question.deadline.is_none_or(|deadline| deadline > now));
        if let Some(asked) = &self.asked
            && !self.open.iter().any(|question| question.prompt_id == asked.question.prompt_id)
        {
            self.withdraw(replies);
        }
        if self.asked.is_none()
            && let Some(next) = self.open.first().cloned()
        {
            self.ask(next);
        }
    }

    fn ask(&mut self, question: Prompt) {
        // What was typed before the question came was not meant as its answer.
        let before = self.shows(Some(&question));
        let form = FormInput::of(&question);
        let asked = ShownQuestion { question, form, before };
        self.shared.ask(self.block(&asked));
        self.asked = Some(asked);
    }

    /// The current question, with the field that is open.
    fn block(&self, ShownQuestion { question, form, .. }: &ShownQuestion) -> QuestionBlock {
        let now = (self.shared.now)();
        form.as_ref().map_or_else(|| block(question, now), |form| form.block(question, now))
    }

    /// Notes which question is shown; gives the text that was typed meanwhile.
    fn shows(&self, question: Option<&Prompt>) -> String {
        let mut state = self.queue.lock();
        state.shown = question.map(|question| (question.prompt_id.clone(), Instant::now()));
        state.editor.take()
    }

    fn take(&mut self, TypedLine { text: typed, shown, is_unread }: &TypedLine) {
        let Some(shown) = shown else { return self.message(typed) };
        let Some(asked) = self.asked.as_mut().filter(|asked| asked.question.prompt_id == *shown) else {
            return self.shared.say(note("the question is already answered"));
        };
        if *is_unread {
            let why = "typed before it could be read: not an answer";
            return self.shared.say(note(why));
        }
        let answer = match &mut asked.form {
            Some(form) => form.take(typed),
            None => inspan_sessions::read_answer(&asked.question, typed).map(Some),
        };
        let sent = answer.and_then(|answer| {
            let Some(Reply { content, choice }) = answer else { return Ok(None) };
            let said = content.clone();
            let reply = Command::Reply { prompt: asked.question.prompt_id.clone(), content, choice };
            self.answers.send(reply).map(|()| Some(said))
        });
        match sent {
            Ok(Some(said)) => self.settle(&said),
            // The next field of a form.
            Ok(None) => self.ask_again(),
            Err(why) => {
                // A question that is shown anew has no note yet.
                self.ask_again();
                self.shared.say(note(&why));
            }
        }
    }

    /// Shows a form with the field that is open now.
    fn ask_again(&self) {
        if let Some(asked) = self.asked.as_ref().filter(|asked| asked.form.is_some()) {
            self.shared.ask(self.block(asked));
        }
    }

    fn message(&self, typed: &str) {
        if typed.trim().is_empty() {
            return;
        }
        match self.answers.send(Command::Send { content: typed.to_owned() }) {
            Ok(()) => self.shared.say(note("sent")),
            Err(why) => self.shared.say(note(&why)),
        }
    }

    /// The question is no longer open: it was answered elsewhere, its time is up, or nobody waits for it any more.
    fn withdraw(&mut self, replies: &VecDeque<(PromptId, String)>) {
        let Some(asked) = &self.asked else { return };
        let reply = replies.iter().find(|(prompt, _)| *prompt == asked.question.prompt_id);
        let is_late = asked.question.deadline.is_some_and(|deadline| deadline <= (self.shared.now)());
        let how = match (reply, &asked.question.default) {
            (Some((_, answer)), Some(default)) if is_late && answer == default => {
                format!("no answer in time: {answer}")
            }
            (Some((_, answer)), _) => format!("answered elsewhere: {answer}"),
            (None, _) if is_late => "no answer in time".to_owned(),
            (None, _) => "withdrawn".to_owned(),
        };
        self.settle(&how);
    }

    /// Removes the question; `how` says how it ended.
    fn settle(&mut self, how: &str) {
        let Some(ShownQuestion { question, before, .. }) = self.asked.take() else { return };
        self.open.retain(|open| open.prompt_id != question.prompt_id);
        drop(self.shows(None));
        self.queue.lock().editor.put(before.clone());
        self.shared.settle(settled(&question, how), before);
    }

    /// The input has ended: each question, open or later, is given up once.
    fn nobody(&mut self) {
        self.asked = None;
        self.shared.clear();
        let mut given_up = HashSet::new();
        loop {
            for question in std::mem::take(&mut self.open) {
                if given_up.insert(question.prompt_id.clone()) {
                    self.answers.nobody(&question);
                }
            }
            let queue = Arc::clone(&self.queue);
            let quiet = |state: &mut AskerState| state.open.is_none() && !state.is_over;
            let waited = queue.arrived.wait_while(queue.lock(), quiet);
            let mut state = waited.unwrap_or_else(PoisonError::into_inner);
            if state.is_over {
                return;
            }
            self.open = state.open.take().unwrap_or_default();
        }
    }
}

fn note(text: &str) -> Line {
    Line::new().with(Tone::Warning, "  ").with(Tone::Warning, &clean(text))
}

/// Reads to the end, byte by byte.
fn listen(mut stdin: Box<dyn BufRead>, queue: &AskerQueue, shared: &PainterShared) {
    loop {
        let bytes = match stdin.fill_buf() {
            Ok(bytes) if !bytes.is_empty() => bytes.to_vec(),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            _ => return queue.update(|state| state.typing = Typing::Ended),
        };
        stdin.consume(bytes.len());
        let mut is_end = false;
        queue.update(|state| {
            for byte in bytes {
                match state.editor.byte(byte) {
                    Some(KeyEffect::Line(text)) if state.typed.len() < TYPED => {
                        let (shown, since) = state.shown.clone().unzip();
                        let is_unread = since.is_some_and(|since| Instant::now() < since + shared.unread);
                        state.typed.push_back(TypedLine { text, shown, is_unread });
                    }
                    Some(KeyEffect::End) => is_end = true,
                    Some(KeyEffect::Line(_)) | None => {}
                }
            }
        });
        show_typed(queue, shared);
        if is_end {
            // The terminal is still there, and a question must not be given up by a slip.
            shared.say(note("Ctrl-D answers nothing; Ctrl-C pauses the session"));
        }
    }
}

/// Shows what is being typed. A question that comes or goes meanwhile changes that, and so it is checked again.
fn show_typed(queue: &AskerQueue, shared: &PainterShared) {
    let mut text = queue.lock().editor.text().to_owned();
    loop {
        shared.typed(text.clone());
        let state = queue.lock();
        if state.editor.text() == text {
            return;
        }
        text = state.editor.text().to_owned();
    }
}
