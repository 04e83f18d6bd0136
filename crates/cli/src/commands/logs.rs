//! `inspan logs ID`: what happened in a session, as lines for people or envelopes for programs, and what goes on
//! happening. Nothing is missed and nothing is printed twice, whichever process writes the log.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use inspan_engine::Filter;
use inspan_flow::{Liveness, RunStore, Select, SessionEntry};
use inspan_protocol::{Envelope, Event};
use tokio::time::timeout;

use super::{
    flow,
    sessions::{self, Standing, answer::Commands},
};
use crate::{
    args::LogsArgs,
    console::Plan,
    exit::Exit,
    failure::Failure,
    invocation::{Form, Invocation},
    store,
    terminal::{self, Reader},
};
use lines::Lines;

mod lines;

/// How long nothing may be heard of the store before it is looked at all the same.
const PATIENCE: Duration = Duration::from_secs(2);

pub(super) fn run(args: &LogsArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let filter = Filter::parse(&args.filter).map_err(|error| {
        Failure::usage(format!("`--type`: {error}"))
            .with_hint("as in `--type 'agent:*,task:failed'`; docs/events.md lists the names")
    })?;
    sessions::block_on(async {
        let store = store::open_reader(invocation)?;
        let entry = sessions::find(store.as_ref(), &args.session).await?;
        let record = store.record(&entry.session).await?;
        let first = record.first_seq();
        let out: Box<dyn Output> = match invocation.form {
            Form::Json => Box::new(Envelopes { filter }),
            Form::Text => {
                // A flow that this version cannot read has a log all the same.
                let plan =
                    sessions::graph(&record).map_or_else(|_| Plan::default(), |graph| flow::plan(&graph));
                Box::new(Lines::new(plan, filter, args.from, invocation.terminal.stdout))
            }
        };
        // People's lines need what came before them.
        let next = if invocation.form == Form::Json { args.from.max(first) } else { first };
        let mut log = Log { store, entry, next, out };
        if args.follow { log.follow(invocation).await } else { log.catch_up().await.map(|_| ()) }
    })?;
    Ok(Exit::Success)
}

/// Where events go.
trait Output {
    fn print(&mut self, envelope: &Envelope) -> Reader;
}

/// As JSON lines.
struct Envelopes {
    filter: Filter,
}

impl Output for Envelopes {
    fn print(&mut self, envelope: &Envelope) -> Reader {
        if !self.filter.matches(envelope) {
            return Reader::There;
        }
        match serde_json::to_string(envelope) {
            Ok(line) => terminal::json_line(&line),
            // An envelope that was read as JSON can be written as JSON.
            Err(_) => Reader::There,
        }
    }
}

/// A session's log on its way out.
struct Log {
    store: Arc<dyn RunStore>,
    entry: SessionEntry,
    /// The next event that has not been seen.
    next: u64,
    out: Box<dyn Output>,
}

impl Log {
    /// Prints all that is there by now.
    async fn catch_up(&mut self) -> Result<Seen, Failure> {
        let mut seen = Seen { reader: Reader::There, is_over: false };
        for envelope in self.store.read(&self.entry.session, self.next, Select::All).await? {
            self.next = envelope.seq + 1;
            seen.is_over |= matches!(envelope.event, Event::HarnessComplete { .. });
            if self.out.print(&envelope) == Reader::Gone {
                return Ok(Seen { reader: Reader::Gone, ..seen });
            }
        }
        Ok(seen)
    }

    /// Prints what is there and what comes, until the session is over and nobody writes any more.
    async fn follow(&mut self, invocation: &Invocation) -> Result<(), Failure> {
        let mut changes = self.store.changes();
        let mut is_over = false;
        self.say_rest(invocation);
        loop {
            // Who is seen to be gone here has written all that it wrote before the log is read below.
            let entry = self.store.entry(&self.entry.session).await?;
            let seen = self.catch_up().await?;
            is_over |= seen.is_over || entry.digest.outcome.is_some();
            if seen.reader == Reader::Gone || (is_over && entry.liveness != Liveness::Alive) {
                return Ok(());
            }
            // A stream that has ended, or says nothing, is no reason to miss anything.
            if let Ok(None) = timeout(PATIENCE, changes.next()).await {
                tokio::time::sleep(PATIENCE).await;
            }
        }
    }

    /// Says so if nothing will happen until somebody goes on with the session.
    fn say_rest(&self, invocation: &Invocation) {
        let standing = Standing::of(&self.entry);
        let rests = matches!(standing, Standing::Paused | Standing::Interrupted)
            || (standing == Standing::Waiting && self.entry.owner.is_none());
        if rests && invocation.form == Form::Text {
            let next = Commands::new(invocation).command("resume", &self.entry.session, "");
            terminal::progress(&format!("the session is {}; `{next}` goes on with it\n", standing.word()));
        }
    }
}

/// What a look at the log has shown.
struct Seen {
    reader: Reader,
    is_over: bool,
}
