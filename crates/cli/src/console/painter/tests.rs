//! The console against a terminal of the test: what it shows after each step, and which answers were
//! sent.

use std::io::{self, BufReader, PipeWriter, Write};

use inspan_protocol::{Command, EventContext, Outcome, Prompt, PromptKind, Reply, SessionId};
use serde_json::json;

use super::*;
use crate::console::tests::graph;
use inspan_view::Colour;

const NOON: i64 = 1_767_787_200_000;

const FLOW: &str = "
flow: { name: talk }
nodes:
  - { id: ask, type: human.input, input: { prompt: '?' } }
  - { id: why, type: human.input, input: { prompt: '?' } }
";

/// What was written, and a notification when there is more.
#[derive(Clone, Default)]
struct Tube(Arc<(Mutex<Vec<u8>>, Condvar)>);

impl Write for Tube {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        lock(&self.0.0).extend_from_slice(bytes);
        self.0.1.notify_all();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Tube {
    /// What the terminal shows once it shows `mark`.
    fn showing(&self, mark: &str) -> String {
        let bytes = lock(&self.0.0);
        let absent = |bytes: &mut Vec<u8>| !emulated(bytes).contains(mark);
        let (bytes, timeout) = self.0.1.wait_timeout_while(bytes, Duration::from_secs(20), absent).unwrap();
        assert!(!timeout.timed_out(), "`{mark}` was never shown:\n{}", emulated(&bytes));
        emulated(&bytes)
    }
}

/// A terminal as far as the console uses one. Each turn of the spinner looks the same.
fn emulated(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut rows: Vec<Vec<char>> = vec![Vec::new()];
    let (mut row, mut column) = (0_usize, 0_usize);
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\r' => column = 0,
            '\n' => (row, column) = (row + 1, 0),
            '\u{1b}' => {
                assert_eq!(letters.next(), Some('['));
                let mut argument = String::new();
                let order = letters.by_ref().find(|c| {
                    let is_order = c.is_ascii_alphabetic();
                    argument.extend((!is_order).then_some(*c));
                    is_order
                });
                match order {
                    Some('A') => row -= argument.parse::<usize>().unwrap(),
                    Some('K') => rows[row].truncate(column),
                    Some('J') => {
                        rows[row].truncate(column);
                        rows.truncate(row + 1);
                    }
                    Some('h' | 'l') => assert_eq!(argument, "?25"),
                    other => panic!("an unknown order: {other:?}"),
                }
            }
            letter => {
                let letter = if ('⠀'..='⣿').contains(&letter) { '⠿' } else { letter };
                let width = rows[row].len().max(column + 1);
                rows[row].resize(width, ' ');
                rows[row][column] = letter;
                column += 1;
            }
        }
        rows.resize_with(rows.len().max(row + 1), Vec::new);
    }
    let lines = rows.iter().map(|row| row.iter().collect::<String>().trim_end().to_owned() + "\n");
    lines.collect::<String>().trim_end().to_owned() + "\n"
}

#[derive(Default)]
struct Sent {
    answers: Mutex<Vec<Reply>>,
    nobody: Mutex<Vec<String>>,
    messages: Mutex<Vec<String>>,
    arrived: Condvar,
}

impl AnswerSinks for Sent {
    fn send(&self, command: Command) -> Result<(), String> {
        match command {
            Command::Reply { prompt, content, .. } if content == "refused" => {
                return Err(format!("prompt `{prompt}` takes something else"));
            }
            Command::Reply { content, choice, .. } => lock(&self.answers).push(Reply { content, choice }),
            Command::Send { content } => lock(&self.messages).push(content),
            other => panic!("{other:?}"),
        }
        self.arrived.notify_all();
        Ok(())
    }

    fn nobody(&self, question: &Prompt) {
        lock(&self.nobody).push(question.prompt.clone());
        self.arrived.notify_all();
    }
}

/// A console, its terminal, and a person at it.
struct Scene {
    painter: Painter,
    tube: Tube,
    person: PipeWriter,
    sent: Arc<Sent>,
    seq: u64,
}

impl Scene {
    fn new(progress: ProgressStyle, interactivity: Interactivity) -> Self {
        Self::with(progress, interactivity, Duration::ZERO)
    }

    /// A question must have been shown for so long before it is answered.
    fn with(progress: ProgressStyle, interactivity: Interactivity, unread: Duration) -> Self {
        let tube = Tube::default();
        let (reader, writer) = io::pipe().unwrap();
        let setting = Setting {
            terminal: Terminal { stdout: Colour::Off, stderr: Colour::Off, progress, interactivity },
            device: Device { out: Box::new(tube.clone()), size: || (60, 20), input: KeyInput::Given },
            stdin: Box::new(|| Box::new(BufReader::new(reader))),
            now: || Timestamp::from_millis(NOON + 5_000),
            unread,
        };
        let painter = Painter::new(SessionView::new(&graph(FLOW)), setting);
        let sent = Arc::new(Sent::default());
        painter.start(Arc::<Sent>::clone(&sent)).unwrap();
        Self { painter, tube, person: writer, sent, seq: 0 }
    }

    fn event(&mut self, task: Option<&str>, event: serde_json::Value) {
        self.seq += 1;
        let mut context = EventContext::session(SessionId::from("s"));
        context.task = task.map(|task| serde_json::from_value(json!(task)).unwrap());
        let event = serde_json::from_value(event).unwrap();
        self.painter.event(&Envelope::new(context, self.seq, Timestamp::from_millis(NOON), event));
    }

    fn asks(&mut self, node: &str, prompt: &str, choices: Option<&[&str]>) {
        self.puts(Prompt {
            choices: choices.map(|all| all.iter().map(|choice| (*choice).to_owned()).collect()),
            ..Prompt::new(node, PromptKind::Input, prompt)
        });
    }

    fn puts(&mut self, prompt: Prompt) {
        let node = prompt.prompt_id.to_string();
        let node = node.as_str();
        let start = json!({ "type": "task:start", "taskId": node, "nodeType": "human.input", "attempt": 1, "path": node });
        self.event(Some(node), start);
        let mut question = serde_json::to_value(Event::SessionPrompt(prompt)).unwrap();
        question["type"] = json!("session:prompt");
        self.event(Some(node), question);
    }

    fn answered(&mut self, node: &str, content: &str) {
        self.event(None, json!({ "type": "session:reply", "promptId": node, "content": content }));
        let done = json!({ "type": "task:complete", "taskId": node, "result": {}, "durationMs": 5000 });
        self.event(Some(node), done);
    }

    fn types(&mut self, line: &str) {
        self.person.write_all(line.as_bytes()).unwrap();
    }

    fn sends(&self, count: usize) -> Vec<Reply> {
        let few = |answers: &mut Vec<Reply>| answers.len() < count;
        let waited =
            self.sent.arrived.wait_timeout_while(lock(&self.sent.answers), Duration::from_secs(20), few);
        waited.unwrap().0.clone()
    }
}

fn begun(progress: ProgressStyle, interactivity: Interactivity) -> Scene {
    let mut scene = Scene::new(progress, interactivity);
    scene.event(None, json!({ "type": "harness:start", "name": "talk" }));
    scene
}

fn ends(scene: &mut Scene) -> String {
    let end = json!({ "type": "harness:complete", "success": true, "outcome": Outcome::Success, "durationMs": 6000 });
    scene.event(None, end);
    let state = scene.painter.stop();
    scene.painter.summarise(&state, &[]);
    emulated(&lock(&scene.tube.0.0))
}

#[test]
fn questions_are_asked_below_the_picture_and_leave_no_trace_but_the_answer() {
    let mut scene = begun(ProgressStyle::Live, Interactivity::Interactive);
    scene.asks("ask", "Shall it go on?", Some(&["yes", "no"]));
    let mut shown = vec![scene.tube.showing("›")];
    scene.types("maybe\n");
    shown.push(scene.tube.showing("type 1-2\n›"));
    scene.types("1\n");
    let first = scene.sends(1);
    scene.answered("ask", "yes");
    scene.asks("why", "Why?", None);
    shown.push(scene.tube.showing("type an answer\n›"));
    scene.types("refused\n");
    shown.push(scene.tube.showing("takes something else\n›"));
    scene.types("because\n");
    let both = scene.sends(2);
    scene.answered("why", "because");
    shown.push(ends(&mut scene));
    let yes = Reply { content: "yes".to_owned(), choice: Some("yes".to_owned()) };
    let because = Reply { content: "because".to_owned(), choice: None };
    assert_eq!((first, both), (vec![yes.clone()], vec![yes, because]));
    insta::assert_snapshot!(shown.join("──\n"));
}

#[test]
fn a_wrong_answer_to_a_field_is_answered_with_the_reason() {
    let mut scene = begun(ProgressStyle::Live, Interactivity::Interactive);
    let schema =
        json!({ "required": ["name"], "properties": { "name": { "type": "string", "minLength": 5 } } });
    scene.puts(Prompt { schema: Some(schema), ..Prompt::new("ask", PromptKind::Input, "Which ox?") });
    scene.tube.showing("›");
    scene.types("ox\n");
    assert_eq!(
        scene.tube.showing("characters\n›"),
        "\
⠿ talk 5.0s
├─ ? ask  human.input  5.0s
╰─ · why  human.input
? ask: Which ox?
  name (1 of 1)
  type a text
  name must have at least 5 characters
› ▏
"
    );
    scene.types("bertha\n");
    let content = json!({ "name": "bertha" }).to_string();
    assert_eq!(scene.sends(1), [Reply { content, choice: None }]);
    ends(&mut scene);
}

#[test]
fn a_question_that_is_settled_elsewhere_is_taken_back() {
    let mut scene = begun(ProgressStyle::Live, Interactivity::Interactive);
    scene.asks("ask", "Shall it go on?", Some(&["yes", "no"]));
    scene.tube.showing("›");
    scene.answered("ask", "no");
    let shown = scene.tube.showing("answered elsewhere: no");
    assert!(!shown.contains('›'), "{shown}");
    assert_eq!(
        ends(&mut scene),
        "\
? ask: Shall it go on? answered elsewhere: no
✔ talk succeeded in 6.0s
├─ ✔ ask  human.input  5.0s
╰─ · why  human.input
"
    );
}

#[test]
fn the_picture_is_redrawn_while_a_question_is_open_and_what_is_typed_stays() {
    let mut scene = begun(ProgressStyle::Live, Interactivity::Interactive);
    scene.asks("ask", "Shall it go on?", Some(&["yes", "no"]));
    scene.tube.showing("›");
    scene.types("y");
    scene.tube.showing("› y▏");
    let start =
        json!({ "type": "task:start", "taskId": "why", "nodeType": "exec", "attempt": 1, "path": "why" });
    scene.event(Some("why"), start);
    let output = json!({ "type": "exec:output", "stream": "stdout", "text": "one\ntest 7 of 9\n" });
    scene.event(Some("why"), output);
    assert_eq!(
        scene.tube.showing("test 7 of 9"),
        "\
⠿ talk 5.0s
├─ ? ask  human.input  5.0s
╰─ ⠿ why  exec         5.0s
      test 7 of 9
? ask: Shall it go on?
  1  yes
  2  no
  type a number or a word
› y▏
"
    );
    scene.types("es\n");
    assert_eq!(scene.sends(1), [Reply { content: "yes".to_owned(), choice: Some("yes".to_owned()) }]);
    ends(&mut scene);
}

#[test]
fn what_was_typed_before_a_question_is_no_answer_to_it() {
    let mut scene = begun(ProgressStyle::Live, Interactivity::Interactive);
    scene.types("no");
    scene.tube.showing("› no▏");
    scene.asks("ask", "Shall it go on?", Some(&["yes", "no"]));
    scene.tube.showing("a word\n› ▏");
    scene.types("yes\n");
    scene.sends(1);
    scene.answered("ask", "yes");
    scene.tube.showing("› no▏");
    scene.types("t now\n");
    let none = |messages: &mut Vec<String>| messages.is_empty();
    let sent = Arc::clone(&scene.sent);
    let waited = sent.arrived.wait_timeout_while(lock(&sent.messages), Duration::from_secs(20), none);
    assert_eq!(*waited.unwrap().0, ["not now"]);
    ends(&mut scene);
}

/// Who presses Enter twice answers one question.
#[test]
fn what_was_typed_before_a_question_could_be_read_is_no_answer() {
    let mut scene = Scene::with(ProgressStyle::Live, Interactivity::Interactive, Duration::from_secs(600));
    scene.event(None, json!({ "type": "harness:start", "name": "talk" }));
    scene.asks("ask", "Shall it go on?", None);
    scene.tube.showing("›");
    scene.types("yes\n");
    scene.tube.showing("typed before it could be read: not an answer");
    assert!(lock(&scene.sent.answers).is_empty());
    ends(&mut scene);
}

#[test]
fn ctrl_d_gives_no_question_up() {
    let mut scene = begun(ProgressStyle::Live, Interactivity::Interactive);
    scene.asks("ask", "Shall it go on?", None);
    scene.tube.showing("›");
    scene.types("\u{4}");
    scene.tube.showing("Ctrl-D answers nothing; Ctrl-C pauses the session");
    scene.types("yes\n");
    assert_eq!(scene.sends(1), [Reply { content: "yes".to_owned(), choice: None }]);
    assert!(lock(&scene.sent.nobody).is_empty());
    ends(&mut scene);
}

#[test]
fn where_stdin_has_ended_nobody_is_there() {
    let mut scene = begun(ProgressStyle::Live, Interactivity::Interactive);
    scene.asks("ask", "Shall it go on?", None);
    scene.tube.showing("›");
    let (_, other) = io::pipe().unwrap();
    drop(std::mem::replace(&mut scene.person, other));
    let none = |nobody: &mut Vec<String>| nobody.is_empty();
    let sent = Arc::clone(&scene.sent);
    let waited = sent.arrived.wait_timeout_while(lock(&sent.nobody), Duration::from_secs(20), none);
    assert_eq!(*waited.unwrap().0, ["Shall it go on?"]);
    scene.asks("why", "Why?", None);
    let one = |nobody: &mut Vec<String>| nobody.len() < 2;
    let waited = sent.arrived.wait_timeout_while(lock(&sent.nobody), Duration::from_secs(20), one);
    assert_eq!(*waited.unwrap().0, ["Shall it go on?", "Why?"]);
    ends(&mut scene);
}

#[test]
fn without_a_person_questions_are_nobodys_and_lines_are_added() {
    let mut scene = begun(ProgressStyle::Lines, Interactivity::Unattended);
    scene.asks("ask", "Shall it go on?\nIt deletes all.", Some(&["yes", "no"]));
    assert_eq!(*lock(&scene.sent.nobody), ["Shall it go on?\nIt deletes all."]);
    scene.answered("ask", "no");
    assert_eq!(
        ends(&mut scene),
        "\
12:00:00     ▸ talk started (session s)
12:00:00 ask ▸ started (human.input)
12:00:00 ask ? Shall it go on? (yes / no)
                 It deletes all.
12:00:00 ask ↩ no
12:00:00 ask ✔ done in 5.0s
✔ talk succeeded in 6.0s
├─ ✔ ask  human.input  5.0s
╰─ · why  human.input
"
    );
}
