//! The one writer of stderr while a session runs: adds lines for good, and redraws a picture below them.
//! What is drawn comes from `tree`; when, from `painter`.

use std::{
    io::Write,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetpgrp, tcsetattr,
};

use crate::terminal::ProgressStyle;
use inspan_view::{Colour, Line};

/// Whether the cursor is hidden, for code that ends the process at once.
static HIDDEN: AtomicBool = AtomicBool::new(false);

/// How the terminal was before letters were taken at once.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

const HIDE: &str = "\x1b[?25l";
const SHOW: &str = "\x1b[?25h";

/// Whether the terminal puts marks around what is pasted.
static MARKS_PASTES: AtomicBool = AtomicBool::new(false);

const MARK_PASTES: &str = "\x1b[?2004h";
const MARK_NO_PASTES: &str = "\x1b[?2004l";

/// Leaves the terminal as it was: the cursor shows again, and so does what is typed. May be called from anywhere,
/// also from a panic.
pub(crate) fn restore() {
    give_back_keys();
    if HIDDEN.swap(false, Ordering::SeqCst) {
        tell(SHOW);
    }
}

/// Writes to the terminal. If this fails, it cannot be reported.
fn tell(code: &str) {
    let mut stderr = std::io::stderr();
    let _ = stderr.write_all(code.as_bytes()).and_then(|()| stderr.flush());
}

/// Takes letters at once, and the terminal itself shows none but marks what is pasted, if this process has the terminal.
/// Ctrl-C and Ctrl-Z stay signals. Done again and again: a shell that had the terminal meanwhile may have changed it.
pub(super) fn take_keys() {
    let stdin = std::io::stdin();
    // A process in the background that changed the terminal would be stopped.
    if tcgetpgrp(&stdin) != Ok(rustix::process::getpgrp()) {
        return;
    }
    let Ok(mut modes) = tcgetattr(&stdin) else { return };
    let shown = LocalModes::ICANON | LocalModes::ECHO;
    if !modes.local_modes.intersects(shown) {
        return;
    }
    BEFORE.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| modes.clone());
    modes.local_modes.remove(shown | LocalModes::IEXTEN);
    modes.special_codes[SpecialCodeIndex::VMIN] = 1;
    modes.special_codes[SpecialCodeIndex::VTIME] = 0;
    // Without it the terminal shows what is typed, which is only less pretty.
    let _ = tcsetattr(&stdin, OptionalActions::Now, &modes);
    MARKS_PASTES.store(true, Ordering::SeqCst);
    tell(MARK_PASTES);
}

/// Lets the terminal show what is typed again, as before.
fn give_back_keys() {
    if MARKS_PASTES.swap(false, Ordering::SeqCst) {
        tell(MARK_NO_PASTES);
    }
    if let Some(before) = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take() {
        // If this fails, it cannot be reported.
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &before);
    }
}

/// Where is written, and how much room there is.
pub(crate) struct Device {
    pub(crate) out: Box<dyn Write + Send>,
    /// Columns and rows.
    pub(crate) size: fn() -> (usize, usize),
    /// How what is typed comes.
    pub(crate) input: KeyInput,
}

/// How what is typed comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyInput {
    /// Letter by letter, from the terminal of the process.
    Keys,
    /// As the caller gives it.
    #[cfg(test)]
    Given,
}

impl Device {
    pub(crate) fn stderr() -> Self {
        let size = || {
            let (rows, columns) = console::Term::stderr().size_checked().unwrap_or((24, 80));
            (usize::from(columns), usize::from(rows))
        };
        Self { out: Box::new(std::io::stderr()), size, input: KeyInput::Keys }
    }
}

/// stderr, and what of it can be drawn over.
pub(crate) struct Screen {
    device: Device,
    colour: Colour,
    progress: ProgressStyle,
    /// Columns of each line of the picture that is on the terminal.
    drawn: Vec<usize>,
}

impl Screen {
    pub(crate) fn new(device: Device, colour: Colour, progress: ProgressStyle) -> Self {
        Self { device, colour, progress, drawn: Vec::new() }
    }

    /// Adds lines for good and draws the picture below them; it replaces the last one.
    pub(crate) fn draw(&mut self, lines: &[Line], picture: &[Line]) {
        if self.progress == ProgressStyle::Lines {
            self.add(lines);
            return;
        }
        let mut out = self.upwards();
        if !HIDDEN.swap(true, Ordering::SeqCst) {
            out.push_str(HIDE);
        }
        for line in lines.iter().chain(picture) {
            out.push_str(&line.render(self.colour));
            // The rest of a longer earlier line is erased at the line's end, so that nothing flickers.
            out.push_str("\x1b[K\n");
        }
        out.push_str("\x1b[J");
        self.write(&out);
        self.drawn = picture.iter().map(Line::width).collect();
    }

    /// Removes the picture and adds lines for good; the cursor shows again.
    pub(crate) fn leave(&mut self, lines: &[Line]) {
        if self.progress == ProgressStyle::Live {
            let mut out = self.upwards();
            out.push_str("\x1b[J");
            self.drawn.clear();
            self.write(&out);
            restore();
        }
        self.add(lines);
    }

    fn add(&mut self, lines: &[Line]) {
        let mut out = String::new();
        for line in lines {
            out.push_str(&line.render(self.colour));
            out.push('\n');
        }
        if !out.is_empty() {
            self.write(&out);
        }
    }

    /// The way to the first column of the picture's first row; a terminal that has become narrower has
    /// wrapped its lines.
    fn upwards(&self) -> String {
        let (columns, _) = (self.device.size)();
        let rows: usize = self.drawn.iter().map(|width| width.div_ceil(columns.max(1)).max(1)).sum();
        if rows == 0 { "\r".to_owned() } else { format!("\r\x1b[{rows}A") }
    }

    /// A terminal that takes nothing any more has gone; the session continues without it.
    fn write(&mut self, text: &str) {
        let out = &mut self.device.out;
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}
