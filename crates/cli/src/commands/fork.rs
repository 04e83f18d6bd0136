//! `inspan fork ID`: a new session that starts from a point of an old one.

use std::sync::Arc;

use inspan_flow::{Parent, ParentKind};
use inspan_protocol::{NodePath, SessionId};
use inspan_sessions::SessionErrorCode;

use super::{
    flow,
    resume::{Continuation, Missing, StoredSession, show},
};
use crate::{args::ForkArgs, exit::Exit, failure::Failure, invocation::Invocation};

pub(super) fn run(args: &ForkArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let mut kept = StoredSession::open(&args.session, invocation)?;
    let at = args.at.as_deref().map(|at| Point::read(&kept, at)).transpose()?;
    // What was answered later does not count for a fork of an earlier point.
    if !args.plan && !matches!(at, Some(Point::Event(_))) {
        kept = kept.with_answers(invocation)?;
    }
    let until = match at {
        Some(Point::Event(seq)) => seq,
        _ => kept.last_seq,
    };
    let mut input = kept.record.input.clone();
    let given = flow::given_input(&kept.graph, args.input_file.as_deref(), &args.input)?;
    kept.settings.given.extend(given.keys().cloned());
    input.extend(given);
    let input = flow::checked_input(&kept.graph, input, &args.input)?;
    let mut parent = Parent::new(kept.record.session.clone(), until, ParentKind::Fork);
    if let Some(Point::Node(place)) = at {
        parent.again = Some(place);
    }
    let reusable = kept.reusable(&parent, &kept.graph, Missing::Refused)?;
    if let Some(place) = &parent.again
        && place.as_str().contains(['#', '['])
        && !reusable.has_run(place)
    {
        let message = format!("session `{}` has never run `{place}`", kept.record.session);
        return Err(Failure::usage(message).with_hint(node_list(&kept)));
    }
    let id = args.session_id.as_deref().map(SessionId::from);
    let graph = Arc::clone(&kept.graph);
    let again = Continuation { graph, input, reusable, id, parent };
    if args.plan {
        show(&again.plan(&kept), &kept, invocation);
        return Ok(Exit::Success);
    }
    kept.anew(again, &args.mode, invocation)
}

/// Where a person finds the nodes of a session.
fn node_list(kept: &StoredSession) -> String {
    format!("`inspan show {}` lists the nodes", kept.record.session)
}

/// Where a fork begins.
enum Point {
    /// After this event: what was finished by then is reused.
    Event(u64),
    /// At this place: all is reused that does not depend on it.
    Node(NodePath),
}

impl Point {
    fn read(kept: &StoredSession, at: &str) -> Result<Self, Failure> {
        if let Ok(seq) = at.parse::<u64>() {
            if seq == 0 || seq > kept.last_seq {
                return Err(Failure::usage(format!(
                    "session `{}` has the events 1 to {}, and no event {seq}",
                    kept.record.session, kept.last_seq
                )));
            }
            return Ok(Self::Event(seq));
        }
        let typed = NodePath::new(at);
        // Passes count from 1, and the first is not written: `plan#1` is `plan`.
        let is_whole = typed.parts().filter(|part| part.pass > 0).count() == at.split('/').count();
        let path = typed.with_pass(typed.pass());
        let found = is_whole.then(|| kept.graph.find_place(&path.place()));
        let message = match found {
            Some(Ok(_)) => return Ok(Self::Node(path)),
            Some(Err(error)) => format!("`{at}` is neither a node of the flow nor an event number: {error}"),
            None => format!("`{at}` is neither a node of the flow nor an event number"),
        };
        Err(Failure::usage(message).with_code(SessionErrorCode::UnknownNode).with_hint(node_list(kept)))
    }
}
