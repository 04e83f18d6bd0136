//! `--events`: every event of a session as a JSON line, in a file or on stdout, none lost.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
    thread::{self, JoinHandle},
};

use inspan_engine::{Filter, Hub, Subscription, create_private};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::commands::{begins_with, check_replaces};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::terminal;
use inspan_view::safe;

/// Where events are to be written.
pub(super) struct Events {
    name: String,
    target: EventTarget,
}

enum EventTarget {
    Stdout,
    File(File),
}

impl Events {
    /// Opens the file, so that a session that could not be written down does not begin.
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        if path == Path::new("-") {
            return Ok(Self { name: "stdout".to_owned(), target: EventTarget::Stdout });
        }
        check_replaces(path, "a file of events", |file| begins_with(file, "{\"v\":"))?;
        let name = path.display().to_string();
        let file = create_private(path)
            .map_err(|error| Failure::usage(format!("events file {name} cannot be written: {error}")))?;
        Ok(Self { name, target: EventTarget::File(file) })
    }

    /// Writes from now on, on a separate thread: a slow reader delays nothing.
    pub(super) fn begin(self, hub: &Hub) -> Result<Writing, Failure> {
        let events = hub.subscribe(Filter::all());
        let end = CancellationToken::new();
        let is_stdout = matches!(self.target, EventTarget::Stdout);
        let shows = is_stdout && terminal::stdout_is_terminal();
        let out: Box<dyn Write + Send> = match self.target {
            EventTarget::Stdout => Box::new(io::stdout()),
            EventTarget::File(file) => Box::new(file),
        };
        let (runtime, ended) = (Handle::current(), end.clone());
        let thread = thread::Builder::new()
            .name("events".to_owned())
            .spawn(move || write(events, BufWriter::new(out), shows, &runtime, &ended))
            .map_err(|error| Failure::new(Exit::Failed, format!("failed to start a thread: {error}")))?;
        Ok(Writing { name: self.name, is_stdout, end, thread })
    }
}

/// Events on their way out.
pub(super) struct Writing {
    name: String,
    is_stdout: bool,
    end: CancellationToken,
    thread: JoinHandle<io::Result<Option<u64>>>,
}

impl Writing {
    pub(super) fn is_stdout(&self) -> bool {
        self.is_stdout
    }

    /// Writes what is left; an error says what is not written down.
    pub(super) fn finish(self) -> Result<(), Failure> {
        self.end.cancel();
        let lost =
            |what: String| Err(Failure::new(Exit::Failed, format!("events file {}: {what}", self.name)));
        match self.thread.join() {
            Ok(Ok(None)) => Ok(()),
            Ok(Ok(Some(seq))) => lost(format!("too slow; the events from {seq} on are missing")),
            // A reader that has gone has read what it wanted.
            Ok(Err(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            Ok(Err(error)) => lost(format!("not all events could be written: {error}")),
            Err(_) => lost("internal error: the writer panicked".to_owned()),
        }
    }
}

/// Writes event after event until the session is over; flushes whenever none waits. `shows`: a terminal shows them.
fn write(
    mut events: Subscription,
    mut out: BufWriter<Box<dyn Write + Send>>,
    shows: bool,
    runtime: &Handle,
    end: &CancellationToken,
) -> io::Result<Option<u64>> {
    loop {
        let next = match events.try_next() {
            Some(next) => Some(next),
            None => {
                out.flush()?;
                runtime.block_on(async {
                    tokio::select! {
                        biased;
                        next = events.next() => next,
                        () = end.cancelled() => None,
                    }
                })
            }
        };
        let Some(envelope) = next else { break };
        if shows {
            out.write_all(safe::json(&serde_json::to_string(&*envelope)?).as_bytes())?;
        } else {
            serde_json::to_writer(&mut out, &*envelope)?;
        }
        out.write_all(b"\n")?;
    }
    out.flush()?;
    Ok(events.overflow())
}
