//! The lines of stdin as they are typed.

use std::io::{BufRead, Read};

use tokio::sync::mpsc;

/// Lines that may wait; nothing more is read until one is taken.
const TYPED: usize = 64;
/// The longest line that is read, in bytes.
const LONGEST: u64 = 1 << 20;

/// Reads stdin on a separate thread, from the first time that a line is wanted. The thread ends with stdin or with
/// the program, so a read that cannot be interrupted delays nothing.
pub(super) struct StdinLines(Option<mpsc::Receiver<String>>);

impl StdinLines {
    /// Nothing is read yet.
    pub(super) fn new() -> Self {
        Self(None)
    }

    /// The next line, without its break; nothing at the end.
    pub(super) async fn next(&mut self) -> Option<String> {
        self.0.get_or_insert_with(open).recv().await
    }
}

fn open() -> mpsc::Receiver<String> {
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
            let line = String::from_utf8_lossy(&bytes);
            if sender.blocking_send(line.trim_end_matches(['\r', '\n']).to_owned()).is_err() {
                return;
            }
        }
    });
    lines
}
