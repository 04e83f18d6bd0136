//! `inspan fork ID`: a new session that starts from a point of an old one.

use std::sync::Arc;

use inspan_flow::{Graph, Parent, ParentKind, Reusable};
use inspan_protocol::{NodePath, SessionId};
use inspan_sessions::{ForkPoint, SessionErrorCode};

use super::{
    flow,
    session::detach,
    stored::{Continuation, Missing, StoredSession, plan},
};
use crate::{args::ForkArgs, exit::Exit, failure::Failure, invocation::Invocation};

pub(super) fn run(args: &ForkArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    detach::check(&args.mode, &[("--input-file", args.input_file.as_deref())], &args.input, invocation)?;
    let mut kept = StoredSession::open(&args.session, invocation)?;
    let (at, until) = read_all(&kept, &args.at)?;
    if !args.plan {
        kept.check_secrets(&kept.graph, invocation)?;
    }
    // What was answered later does not count for a fork of an earlier point.
    if !args.plan && until.is_none() {
        kept = kept.with_answers(invocation)?;
    }
    let until = until.unwrap_or(kept.last_seq);
    let mut input = kept.record.input.clone();
    let given = flow::given_input(&kept.graph, args.input_file.as_deref(), &args.input)?;
    kept.settings.given.extend(given.keys().cloned());
    input.extend(given);
    let input = flow::checked_input(&kept.graph, input, &args.input)?;
    let mut parent = Parent::new(kept.record.session.clone(), until, ParentKind::Fork);
    let mut reusable = kept.reusable(&parent, &kept.graph, Missing::Refused)?;
    for place in &at {
        run_again(place, &mut reusable, &kept.graph, &kept)?;
    }
    let mut again = at.into_iter();
    (parent.again, parent.also_again) = (again.next(), again.collect());
    let id = args.session_id.as_deref().map(SessionId::from);
    let graph = Arc::clone(&kept.graph);
    let again = Continuation { graph, input, reusable, id, parent };
    let plan = again.plan(&kept)?;
    if args.plan {
        plan::show(&plan, &kept, invocation);
        return Ok(Exit::Success);
    }
    kept.continue_as_new(again, &args.mode, invocation)
}

/// Makes a node run again in the session that follows this one with the flow `graph`, with all that depends on it.
pub(super) fn run_again(
    place: &NodePath,
    reusable: &mut Reusable,
    graph: &Graph,
    kept: &StoredSession,
) -> Result<(), Failure> {
    let session = &kept.record.session;
    if place.as_str().contains(['#', '[']) && !reusable.has_run(place) {
        let message = format!("session `{session}` has never run `{place}`");
        return Err(Failure::usage(message).with_hint(node_list(kept)));
    }
    if !graph.is_selected(&place.place()) {
        let message = format!("session `{session}` is one of `run --only`, and does not run `{place}`");
        let hint = format!("`inspan run FILE --from {place}` runs it and all after it");
        return Err(Failure::usage(message).with_hint(hint));
    }
    reusable.run_again(place.clone());
    Ok(())
}

/// Where a person finds the nodes of a session.
fn node_list(kept: &StoredSession) -> String {
    format!("`inspan show {}` lists the nodes", kept.record.session)
}

/// The nodes at which a fork begins, or the event after which it does.
fn read_all(kept: &StoredSession, at: &[String]) -> Result<(Vec<NodePath>, Option<u64>), Failure> {
    let (mut nodes, mut event) = (Vec::new(), None);
    for at in at {
        match read(kept, at)? {
            ForkPoint::Event(seq) => event = Some(seq),
            ForkPoint::Node(place) => nodes.push(place),
        }
    }
    if event.is_some() && at.len() > 1 {
        return Err(Failure::usage("an event number is the only `--at`: several are nodes"));
    }
    Ok((nodes, event))
}

fn read(kept: &StoredSession, at: &str) -> Result<ForkPoint, Failure> {
    if let Ok(seq) = at.parse::<u64>() {
        if seq == 0 || seq > kept.last_seq {
            return Err(Failure::usage(format!(
                "session `{}` has events 1 to {}, but no event {seq}",
                kept.record.session, kept.last_seq
            )));
        }
        return Ok(ForkPoint::Event(seq));
    }
    node(at, "neither a node of the flow nor an event number", &kept.graph, kept).map(ForkPoint::Node)
}

/// The node of the flow `graph` that was typed; `not` says what another text is not.
pub(super) fn node(at: &str, not: &str, graph: &Graph, kept: &StoredSession) -> Result<NodePath, Failure> {
    let typed = NodePath::new(at);
    // Passes count from 1, and the first is not written: `plan#1` is `plan`.
    let is_whole = typed.parts().filter(|part| part.pass > 0).count() == at.split('/').count();
    let path = typed.with_pass(typed.pass());
    let message = match is_whole.then(|| graph.find_place(&path.place())) {
        Some(Ok(_)) => return Ok(path),
        Some(Err(error)) => format!("`{at}` is {not}: {error}"),
        None => format!("`{at}` is {not}"),
    };
    Err(Failure::usage(message).with_code(SessionErrorCode::UnknownNode).with_hint(node_list(kept)))
}
