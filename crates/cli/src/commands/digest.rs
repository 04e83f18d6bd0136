//! `inspan digest`: what failed, what it cost, what waits for a person and what was done, from the events of all sessions.

use std::time::Duration;

use inspan_engine::{Clock, SystemClock};
use inspan_notify::{Digest, DigestForm};
use inspan_protocol::Timestamp;

use super::{notify, sessions::block_on};
use crate::{
    args::DigestArgs,
    exit::Exit,
    failure::Failure,
    invocation::{Invocation, OutputForm},
    settings::Settings,
    store, terminal,
};

pub(super) fn run(args: &DigestArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let until = SystemClock.now();
    let since = before(until, args.since);
    let commands = invocation.commands();
    let digest = block_on(async {
        let store = store::open_reader(invocation)?;
        Ok(Digest::of(&*store, since, until, &commands).await?)
    })?;
    if let Some(name) = &args.send {
        // It is about all sessions, so a project's file does not say where it goes.
        let settings = Settings::of_user(invocation)?;
        let channel = notify::channel(name, &settings, invocation)?;
        return notify::send(&channel, &digest.message(name), invocation);
    }
    match invocation.form {
        OutputForm::Json => invocation.json(&digest),
        OutputForm::Text => {
            let form = if args.markdown { DigestForm::Markdown } else { DigestForm::Text };
            terminal::data(&digest.text(form));
        }
    }
    Ok(Exit::Success)
}

fn before(moment: Timestamp, span: Duration) -> Timestamp {
    let millis = i64::try_from(span.as_millis()).unwrap_or(i64::MAX);
    Timestamp::from_millis(moment.as_millis().saturating_sub(millis))
}
