//! The live console in a pseudo-terminal, whose screen a terminal emulator shows: what a person sees and types.

use std::{
    io::{Read, Write},
    path::Path,
    process::Child,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use pty_process::{
    Size,
    blocking::{Command, Pty},
};
use rustix::termios::{LocalModes, tcgetattr};
use vt100::Parser;

use crate::{
    processes::until,
    program::{flow_folder, inspan, program},
};

/// A question, then a step that never ends by itself.
const FLOW: &str = r#"
flow: { name: ship }
nodes:
  - { id: ok, type: human.input, input: { prompt: "Ship it?", choices: [ship, hold] } }
  - { id: slow, type: exec, dependsOn: [ok], input: { argv: [sh, -c, "echo under way; sleep 60"] } }
"#;

/// The program in a terminal.
struct Terminal {
    pty: Arc<Pty>,
    screen: Arc<Mutex<Parser>>,
    child: Child,
}

impl Terminal {
    fn run(folder: &Path, arguments: &[&str], size: (u16, u16)) -> Self {
        Self::run_as("xterm-256color", folder, arguments, size)
    }

    fn run_as(term: &str, folder: &Path, arguments: &[&str], (rows, columns): (u16, u16)) -> Self {
        let (pty, pts) = pty_process::blocking::open().unwrap();
        pty.resize(Size::new(rows, columns)).unwrap();
        let mut command = program(folder, arguments);
        command.env("TERM", term);
        let child = Command::from(command).spawn(pts).unwrap();
        let (pty, screen) = (Arc::new(pty), Arc::new(Mutex::new(Parser::new(rows, columns, 0))));
        let (output, shown) = (Arc::clone(&pty), Arc::clone(&screen));
        // It ends with the terminal, whose last user is the program.
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = (&*output).read(&mut bytes) {
                shown.lock().unwrap().process(&bytes[..read]);
            }
        });
        Self { pty, screen, child }
    }

    fn screen(&self) -> MutexGuard<'_, Parser> {
        self.screen.lock().unwrap()
    }

    fn text(&self) -> String {
        self.screen().screen().contents()
    }

    /// Waits until the screen shows a text.
    fn shows(&self, text: &str) {
        until(&format!("the screen shows {text:?}"), || self.text().contains(text));
    }

    fn types(&self, keys: &str) {
        (&*self.pty).write_all(keys.as_bytes()).unwrap();
    }

    /// Types as a person does who has read the question.
    fn answers(&self, keys: &str) {
        let shown = tokio::time::Instant::now();
        until("the question can be read", || shown.elapsed() > Duration::from_millis(600));
        self.types(keys);
    }

    fn resize(&self, rows: u16, columns: u16) {
        self.screen().screen_mut().set_size(rows, columns);
        self.pty.resize(Size::new(rows, columns)).unwrap();
    }

    /// Whether the terminal shows what is typed and takes it line by line, as a shell expects it.
    fn is_cooked(&self) -> bool {
        let modes = tcgetattr(&*self.pty).unwrap().local_modes;
        modes.contains(LocalModes::ICANON | LocalModes::ECHO)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A failed test leaves nothing running.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_question_is_answered_at_the_terminal_and_ctrl_c_pauses_the_session() {
    let folder = &flow_folder(FLOW);
    let mut terminal = Terminal::run(folder, &["run", "--session-id", "s"], (24, 80));

    terminal.shows("type a number or a word");
    let text = terminal.text();
    for part in ["ship", "├─", "ok", "╰─", "slow", "? ok: Ship it?", "1  ship", "2  hold", "› ▏"]
    {
        assert!(text.contains(part), "{part:?} in\n{text}");
    }
    assert!(terminal.screen().screen().hide_cursor());
    until("letters come at once", || !terminal.is_cooked());

    terminal.resize(14, 44);
    terminal.types("shi");
    terminal.shows("› shi▏");
    let text = terminal.text();
    assert_eq!(text.matches("Ship it?").count(), 1, "{text}");
    assert_eq!(text.matches("slow").count(), 1, "{text}");

    terminal.resize(24, 100);
    terminal.answers("p\r");
    terminal.shows("? ok: Ship it? ship");
    terminal.shows("under way");
    assert!(!terminal.text().contains("type a number"), "{}", terminal.text());

    terminal.types("\u{3}");
    until("the program ends", || terminal.child.try_wait().unwrap().is_some());
    assert_eq!(terminal.child.wait().unwrap().code(), Some(7));
    terminal.shows("continue with `inspan resume s`");
    let text = terminal.text();
    assert_eq!(text.matches("Ship it?").count(), 1, "{text}");
    assert!(!text.contains(['\u{1b}', '[', '▏', '⠋']), "{text}");
    assert!(!terminal.screen().screen().hide_cursor());
    assert!(terminal.is_cooked());
    inspan(folder, &["show", "s", "--json"]).prints("\"state\": \"paused\"");
}

#[test]
fn ctrl_d_gives_up_no_question() {
    let flow = FLOW.replace("hold]", "hold], default: hold");
    for term in ["dumb", "xterm-256color"] {
        let folder = &flow_folder(&flow);
        let mut terminal = Terminal::run_as(term, folder, &["run", "--session-id", "s"], (24, 80));
        terminal.shows("type a number or a word");
        terminal.types("\u{4}");
        terminal.shows("Ctrl-D answers nothing");
        terminal.answers("ship\r");
        terminal.shows("under way");
        inspan(folder, &["show", "s", "ok", "--json"]).prints("\"choice\": \"ship\"");
        terminal.types("\u{3}");
        until("the program ends", || terminal.child.try_wait().unwrap().is_some());
    }
}

/// A program that asks there, as `git` for a password, would be stopped for ever.
#[test]
fn a_program_of_a_node_has_no_terminal() {
    let flow = "
flow: { name: asks }
nodes:
  - { id: ask, type: exec, input: { argv: [sh, -c, 'cat < /dev/tty'] } }
";
    let folder = &flow_folder(flow);
    let mut terminal = Terminal::run(folder, &["run", "--session-id", "s"], (24, 80));
    until("the program ends", || terminal.child.try_wait().unwrap().is_some());
    assert_eq!(terminal.child.wait().unwrap().code(), Some(1));
}

/// Two questions; nobody may answer the second by what is pasted for the first.
const TWO: &str = r#"
flow: { name: two, outputs: { told: "{{ what.content }}" } }
nodes:
  - { id: what, type: human.input, input: { prompt: "What is wrong?" } }
  - { id: drop, type: human.input, dependsOn: [what], input: { prompt: "Drop it?", choices: ["yes", "no"], default: "yes" } }
"#;

#[test]
fn a_paste_of_several_lines_is_one_answer() {
    let folder = &flow_folder(TWO);
    let mut terminal = Terminal::run(folder, &["run", "--session-id", "s"], (24, 80));
    terminal.shows("What is wrong?");
    until("the terminal marks pastes", || terminal.screen().screen().bracketed_paste());
    terminal.types("\u{1b}[200~error[E0382]: moved\r  --> src/main.rs\r");
    terminal.shows("› error[E0382]: moved↵  --> src/main.rs↵▏");
    // The rest of a long paste comes later.
    terminal.types("yes\ryes\u{1b}[201~");
    terminal.shows("↵yes↵yes▏");
    assert!(!terminal.text().contains("Drop it?"), "{}", terminal.text());
    terminal.answers("\r");
    terminal.shows("Drop it?");
    terminal.answers("no\r");
    until("the program ends", || terminal.child.try_wait().unwrap().is_some());
    until("pastes are not marked any more", || !terminal.screen().screen().bracketed_paste());
    inspan(folder, &["show", "s", "what", "--json"])
        .prints(r"error[E0382]: moved\n  --> src/main.rs\nyes\nyes");
}

#[test]
fn a_question_that_was_open_before_is_asked_again_by_resume() {
    let folder = &flow_folder(FLOW);
    inspan(folder, &["run", "--session-id", "s", "--no-input"]).expect(3);
    let mut terminal = Terminal::run(folder, &["resume", "s"], (24, 80));
    terminal.shows("type a number or a word");
    terminal.answers("ship\r");
    terminal.shows("? ok: Ship it? ship");
    terminal.types("\u{3}");
    until("the program ends", || terminal.child.try_wait().unwrap().is_some());
    assert_eq!(terminal.text().matches("Ship it?").count(), 1, "{}", terminal.text());
}

/// Many frames, some of which fail, and one in which a person is asked.
const FRAMES: &str = r#"
flow: { name: fan, policy: { failFast: false } }
nodes:
  - id: each
    type: control.foreach
    input: { matrix: { a: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], b: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9] }, as: m, onItemError: continue }
    body:
      nodes:
        - { id: bad, type: control.fail, when: "m.b == 3", input: { message: "no {{ m.a }}" } }
        - { id: ok, type: human.input, when: "m.a == 7 and m.b == 5", input: { prompt: "Ship {{ m.a }}?", choices: [ship, hold] } }
        - { id: slow, type: exec, dependsOn: [ok], input: { argv: [sh, -c, "echo under way; sleep 60"] } }
"#;

#[test]
fn frames_are_live_branches_and_a_question_in_one_of_them_is_answered() {
    let folder = &flow_folder(FRAMES);
    let mut terminal = Terminal::run(folder, &["run", "--session-id", "s"], (20, 100));

    terminal.shows("type a number or a word");
    terminal.shows("99 of 100 done, 10 failed, 1 open");
    let text = terminal.text();
    for part in ["├─ ✘ [3] a=0 b=3", "? [75] a=7 b=5", "? ok", "? each[75]/ok: Ship 7?", "1  ship"] {
        assert!(text.contains(part), "{part:?} in\n{text}");
    }
    assert!(text.lines().count() <= 20, "{text}");

    terminal.resize(12, 40);
    terminal.answers("ship\r");
    terminal.shows("under way");
    terminal.resize(20, 100);
    terminal.shows("slow");

    terminal.types("\u{3}");
    until("the program ends", || terminal.child.try_wait().unwrap().is_some());
    assert_eq!(terminal.child.wait().unwrap().code(), Some(7));
    let shown = inspan(folder, &["show", "s", "each[75]"]).stdout;
    assert!(shown.starts_with("each[75]") && shown.contains("slow"), "{shown}");
}
