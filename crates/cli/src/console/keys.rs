//! The terminal while the console draws what is typed: letters come at once, and the terminal itself shows none.
//! Ctrl-C and Ctrl-Z stay signals.

#[cfg(unix)]
use std::sync::{Mutex, PoisonError};

#[cfg(unix)]
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetpgrp, tcsetattr,
};

/// How the terminal was before.
#[cfg(unix)]
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// Takes letters at once, if this process has the terminal. Done again and again: a shell that had the terminal
/// meanwhile may have changed it.
#[cfg(unix)]
pub(super) fn take() {
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
}

/// Leaves the terminal as it was.
#[cfg(unix)]
pub(super) fn give_back() {
    if let Some(before) = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take() {
        // If this fails, it cannot be reported.
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &before);
    }
}

#[cfg(not(unix))]
pub(super) fn take() {}

#[cfg(not(unix))]
pub(super) fn give_back() {}
