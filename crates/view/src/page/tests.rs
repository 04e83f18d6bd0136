//! Every recorded session at each of its events: patches lead from each state to the next, and between any two.

use std::{collections::BTreeSet, sync::Arc};

use inspan_protocol::{
    AgentError, Envelope, ErrorCode, Event, EventContext, NodeId, NodePath, NodeStatus, Outcome, Prompt,
    PromptKind,
};
use serde_json::json;

use super::*;
use crate::testing::{Recorded, lines};

impl PageState {
    /// The state that a patch leads to. The page does the same.
    fn apply(&mut self, patch: &PagePatch) {
        self.seq = patch.seq;
        for (key, value) in &patch.head {
            match value {
                Value::Null => drop(self.head.remove(key)),
                value => drop(self.head.insert(key.clone(), value.clone())),
            }
        }
        let replaced: BTreeSet<_> = patch.edges.iter().map(PageEdge::key).collect();
        self.edges.retain(|edge| !replaced.contains(&edge.key()));
        self.edges.extend(patch.edges.iter().filter(|edge| edge.fired + edge.skipped > 0).cloned());
        self.edges.sort_unstable();
        self.nodes.extend(patch.set.clone());
        patch.gone.iter().for_each(|path| drop(self.nodes.remove(path)));
    }
}

/// The paths of all frames that a session ever had.
fn frames(recorded: &Recorded) -> BTreeSet<String> {
    let mut frames = BTreeSet::new();
    for envelope in &recorded.log {
        if let (Event::FrameStart { index, .. }, Some(path)) = (&envelope.event, &envelope.context.task) {
            frames.extend([format!("{path}[{index}]"), path.to_string()]);
        }
    }
    frames
}

fn nothing() -> BTreeSet<String> {
    BTreeSet::new()
}

fn folded(recorded: &Recorded) -> PageFold {
    let mut fold = PageFold::new(&recorded.session.record, &recorded.graph);
    recorded.log.iter().for_each(|envelope| fold.apply(envelope));
    fold
}

#[test]
fn a_state_with_the_patch_of_each_event_is_the_next_state() {
    let all = Recorded::all();
    assert!(all.len() > 80, "{}", all.len());
    for recorded in &all {
        let session = &recorded.session;
        for open in [nothing(), frames(recorded)] {
            let mut fold = PageFold::new(&session.record, &recorded.graph);
            let mut state = fold.state(session, &open);
            let mut last = state.head.clone();
            for envelope in &recorded.log {
                fold.apply(envelope);
                let (mut patch, nodes) = fold.patch(session, &open, &mut last);
                patch.set.extend(nodes.into_values().flatten());
                state.apply(&patch);
                let expected = fold.state(session, &open);
                assert_eq!(json!(state), json!(expected), "{} at {}", recorded.name, envelope.seq);
            }
        }
    }
}

#[test]
fn a_patch_of_many_events_is_the_sum_of_theirs() {
    for recorded in &Recorded::all() {
        let (session, open) = (&recorded.session, frames(recorded));
        for step in [2, 7, 1000] {
            let mut fold = PageFold::new(&session.record, &recorded.graph);
            let mut state = fold.state(session, &open);
            let mut last = state.head.clone();
            for events in recorded.log.chunks(step) {
                events.iter().for_each(|envelope| fold.apply(envelope));
                let (mut patch, nodes) = fold.patch(session, &open, &mut last);
                patch.set.extend(nodes.into_values().flatten());
                state.apply(&patch);
            }
            let expected = folded(recorded).state(session, &open);
            assert_eq!(json!(state), json!(expected), "{} in steps of {step}", recorded.name);
        }
    }
}

#[test]
fn a_patch_leads_between_any_two_states_of_a_session() {
    for name in ["review_loop", "frame_parents", "human_each", "end_in_pass", "retry"] {
        let recorded = Recorded::flow(name);
        let (session, open) = (&recorded.session, frames(&recorded));
        let mut fold = PageFold::new(&session.record, &recorded.graph);
        let mut states = vec![fold.state(session, &open)];
        for envelope in &recorded.log {
            fold.apply(envelope);
            states.push(fold.state(session, &open));
        }
        for from in &states {
            for to in &states {
                let mut state = from.clone();
                state.apply(&PagePatch::between(from, to));
                assert_eq!(json!(state), json!(to), "{name} from {} to {}", from.seq, to.seq);
            }
        }
    }
}

#[test]
fn a_fold_that_was_copied_continues_as_the_one_it_was_copied_from() {
    for recorded in &Recorded::all() {
        let (session, open) = (&recorded.session, frames(recorded));
        let (before, after) = recorded.log.split_at(recorded.log.len() / 2);
        let mut fold = PageFold::new(&session.record, &recorded.graph);
        before.iter().for_each(|envelope| fold.apply(envelope));
        let mut copy = fold.clone();
        after.iter().for_each(|envelope| copy.apply(envelope));
        assert_eq!(json!(copy.state(session, &open)), json!(folded(recorded).state(session, &open)));
    }
}

#[test]
fn a_fold_without_the_text_of_ended_runs_is_the_same() {
    let is_text = |envelope: &&Envelope| LIVE_TEXT.contains(&envelope.event.name());
    let mut open = 0;
    for recorded in &Recorded::all() {
        let session = &recorded.session;
        for until in 0..=recorded.log.len() {
            let mut whole = PageFold::new(&session.record, &recorded.graph);
            let mut brief = whole.clone();
            let log = &recorded.log[..until];
            log.iter().for_each(|envelope| whole.apply(envelope));
            log.iter().filter(|envelope| !is_text(envelope)).for_each(|envelope| brief.apply(envelope));
            let (newest, since) = (brief.seq(), brief.view().open_runs_since().unwrap_or(u64::MAX));
            open += usize::from(since < newest);
            for envelope in log.iter().filter(|envelope| envelope.seq >= since && envelope.seq <= newest) {
                brief.apply_again(envelope);
            }
            log.iter().filter(|envelope| envelope.seq > newest).for_each(|envelope| brief.apply(envelope));
            let states = [&whole, &brief].map(|fold| json!(fold.state(session, &frames(recorded))));
            assert_eq!(states[0], states[1], "{} at {until}", recorded.name);
        }
    }
    assert!(open > 100, "{open}");
}

#[test]
fn the_final_state_of_recorded_sessions() {
    for name in
        ["review_loop", "foreach_limits", "human_input", "skipped_edges", "two_edges", "agents_fallback"]
    {
        let recorded = Recorded::flow(name);
        insta::assert_snapshot!(name, lines(&folded(&recorded).state(&recorded.session, &nothing())));
    }
    for name in ["crashed", "failed", "waiting"] {
        let recorded = Recorded::stored(name);
        let state = folded(&recorded).state(&recorded.session, &nothing());
        insta::assert_snapshot!(format!("stored_{name}"), lines(&state));
    }
}

#[test]
fn two_edges_between_the_same_nodes_have_their_own_counts() {
    let recorded = Recorded::flow("two_edges");
    let edges = folded(&recorded).state(&recorded.session, &nothing()).edges;
    let counts =
        edges.iter().map(|edge| format!("{} {:?} {}/{}", edge.to, edge.on, edge.fired, edge.skipped));
    let expected = [
        "after_bad Success 0/1",
        "after_bad Failure 1/0",
        "after_good Success 1/0",
        "after_good Failure 0/1",
        "after_good_too Success 1/0",
        "after_good_too Failure 0/1",
        "neither Success 0/1",
        "neither Failure 0/1",
    ];
    assert_eq!(counts.collect::<Vec<_>>(), expected);
}

#[test]
fn frames_are_read_page_by_page() {
    let recorded = Recorded::flow("frame_partial");
    let fold = folded(&recorded);
    let page = |node: &str, select| fold.frames(&recorded.session, &NodePath::new(node), select);
    let all = FrameSelect { limit: 100, ..FrameSelect::default() };
    insta::assert_snapshot!("frames", lines(&page("each", all).unwrap()));
    let paths =
        |page: FramePage| (page.total, page.frames.into_iter().map(|frame| frame.path).collect::<Vec<_>>());
    let total = paths(page("each", all).unwrap()).0;
    let second = FrameSelect { from: 1, limit: 1, status: None };
    assert_eq!(paths(page("each", second).unwrap()), (total, vec!["each[1]".to_owned()]));
    let failed = FrameSelect { status: Some(NodeStatus::Failed), ..all };
    let failed = page("each", failed).unwrap();
    assert_eq!(failed.total, failed.frames.len());
    assert!(failed.frames.iter().all(|frame| frame.status == NodeStatus::Failed), "{failed:?}");
    assert_eq!(page("nobody", all), None);
}

#[test]
fn what_a_dead_process_ran_is_interrupted_and_only_a_question_of_the_flow_waits() {
    let recorded = Recorded::flow("foreach");
    let begins = |envelope: &Envelope| {
        let task = envelope.context.task.as_ref().filter(|task| task.is_in_frame())?;
        matches!(envelope.event, Event::TaskStart { .. }).then(|| (task.clone(), envelope.seq))
    };
    let (inner, seq) = recorded.log.iter().find_map(begins).unwrap();
    let frame = NodePath::new(inner.as_str().rsplit_once('/').unwrap().0);
    let owner = inner.owner().unwrap();
    for (kind, idle_status) in
        [(PromptKind::Permission, NodeStatus::Interrupted), (PromptKind::Input, NodeStatus::Waiting)]
    {
        let mut fold = PageFold::new(&recorded.session.record, &recorded.graph);
        recorded.log.iter().filter(|envelope| envelope.seq <= seq).for_each(|envelope| fold.apply(envelope));
        let mut asks = recorded.log.iter().find(|envelope| envelope.seq == seq).unwrap().clone();
        asks.seq += 1;
        asks.event = Event::SessionPrompt(Prompt::new("p", kind, "Allow?"));
        let mut session = recorded.session.clone();
        let status = |fold: &PageFold, session: &PageSession| {
            let mut session = session.clone();
            session.entry.digest.last_seq = fold.seq();
            let all = FrameSelect { limit: 100, ..FrameSelect::default() };
            let frames = fold.frames(&session, &owner, all).unwrap().frames;
            let shown = frames.into_iter().find(|shown| shown.path == frame.as_str()).unwrap();
            [shown.status, shown.nodes[inner.as_str()].status]
        };
        assert_eq!(status(&fold, &session), [NodeStatus::Interrupted; 2]);
        fold.apply(&asks);
        assert_eq!(status(&fold, &session), [idle_status; 2], "{kind:?}");
        session.entry.liveness = Liveness::Alive;
        assert_eq!(status(&fold, &session), [NodeStatus::Waiting; 2], "{kind:?}");
    }
    // What runs the frames in which all waits waits too.
    assert_eq!(idle_status(NodeStatus::Running, DisplayStatus::Waiting), NodeStatus::Waiting);
}

#[test]
fn what_was_interrupted_and_never_began_again_is_cancelled_in_what_has_ended() {
    let resumed = Event::FlowResumed {
        idle_since: None,
        node_ids: Vec::new(),
        message: "continue".to_owned(),
        messages: Default::default(),
        budget: Default::default(),
    };
    let status = |log: &[Envelope], recorded: &Recorded, path: &NodePath| {
        let mut fold = PageFold::new(&recorded.session.record, &recorded.graph);
        log.iter().for_each(|envelope| fold.apply(envelope));
        fold.view().row(path).unwrap().idle_status
    };
    let next = |log: &mut Vec<Envelope>, task: Option<&NodePath>, event: Event| {
        let mut envelope = log.last().unwrap().clone();
        envelope.seq += 1;
        envelope.context = Arc::new(EventContext { task: task.cloned(), ..(*envelope.context).clone() });
        log.push(Envelope { event, ..envelope });
    };
    // The session has ended.
    let crashed = Recorded::stored("crashed");
    let (slow, mut log) = (NodePath::new("slow"), crashed.log.clone());
    next(&mut log, None, resumed.clone());
    assert_eq!(status(&log, &crashed, &slow), NodeStatus::Paused);
    let end =
        Event::HarnessComplete { success: false, outcome: Outcome::Stopped, duration_ms: 1, outputs: None };
    next(&mut log, None, end);
    assert_eq!(status(&log, &crashed, &slow), NodeStatus::Cancelled);
    // Only its frame has.
    let recorded = Recorded::flow("foreach");
    let begins = |envelope: &Envelope| {
        let task = envelope.context.task.as_ref().filter(|task| task.is_in_frame())?;
        matches!(envelope.event, Event::TaskStart { .. }).then(|| (task.clone(), envelope.seq))
    };
    let (inner, seq) = recorded.log.iter().find_map(begins).unwrap();
    let mut log: Vec<_> = recorded.log.iter().filter(|envelope| envelope.seq <= seq).cloned().collect();
    next(&mut log, None, resumed);
    assert_eq!(status(&log, &recorded, &inner), NodeStatus::Paused);
    let starts = log.iter().rev().find_map(|envelope| match &envelope.event {
        Event::FrameStart { task_id, index, .. } => {
            Some((envelope.context.task.clone(), task_id.clone(), *index))
        }
        _ => None,
    });
    let (owner, task_id, index) = starts.unwrap();
    let ends = Event::FrameCancelled { task_id, index };
    let mut waits = log[..log.len() - 1].to_vec();
    next(&mut log, owner.as_ref(), ends.clone());
    assert_eq!(status(&log, &recorded, &inner), NodeStatus::Cancelled);
    // It waited for its next attempt.
    let error = AgentError::new(ErrorCode::NodeFailed, "no");
    let task_id = NodeId::new(inner.node()).unwrap();
    next(&mut waits, Some(&inner), Event::TaskFailed { task_id, error, will_retry: true });
    assert_eq!(status(&waits, &recorded, &inner), NodeStatus::Pending);
    next(&mut waits, owner.as_ref(), ends);
    assert_eq!(status(&waits, &recorded, &inner), NodeStatus::Cancelled);
}
