//! `inspan fork ID`: a new session that begins where an old one stood, and goes its own way from there.

use std::sync::Arc;

use inspan_flow::{ParentKind, check_input};
use inspan_protocol::{Event, SessionId};

use super::{
    flow,
    resume::{Again, Kept, show},
};
use crate::{args::ForkArgs, exit::Exit, failure::Failure, invocation::Invocation};

pub(super) fn run(args: &ForkArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let kept = Kept::open(&args.session, invocation)?;
    let until = match &args.at {
        None => kept.last_seq,
        Some(at) => point(&kept, at)?,
    };
    let mut input = kept.record.input.clone();
    for given in &args.input {
        input.insert(given.key.clone(), given.value.clone());
    }
    let input = check_input(&kept.graph, input).map_err(|error| flow::refused(&error))?;
    let mut reusable = kept.reusable(until)?;
    // The old session may still go on in the conversations of what it has not finished.
    reusable.forget_unfinished();
    let id = args.session_id.as_deref().map(SessionId::from);
    let kind = ParentKind::Fork;
    let again = Again { graph: Arc::clone(&kept.graph), input, reusable, until, id, kind };
    if args.plan {
        show(&again.plan(&kept), &kept.record.session, invocation);
        return Ok(Exit::Success);
    }
    kept.anew(again, &args.going, invocation)
}

/// The last event that counts: an event by its number, or what came before a node first began.
fn point(kept: &Kept, at: &str) -> Result<u64, Failure> {
    if let Ok(seq) = at.parse::<u64>() {
        if seq == 0 || seq > kept.last_seq {
            return Err(Failure::usage(format!(
                "session `{}` has the events 1 to {}, and no event {seq}",
                kept.record.session, kept.last_seq
            )));
        }
        return Ok(seq);
    }
    let log = kept.log()?;
    let began = log.iter().find(|envelope| match &envelope.event {
        Event::TaskStart { task_id, path, .. } => task_id.as_str() == at || path.as_str() == at,
        Event::TaskReused { task_id, .. } | Event::TaskSkipped { task_id, .. } => task_id.as_str() == at,
        _ => false,
    });
    match began {
        Some(envelope) => Ok(envelope.seq - 1),
        None if kept.graph.find(at).is_some() => Ok(kept.last_seq),
        None => Err(Failure::usage(format!("the flow has no node `{at}`, and it is no event's number"))
            .with_hint(format!("`inspan show {}` lists the nodes", kept.record.session))),
    }
}
