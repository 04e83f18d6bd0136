//! Golden traces of the fixtures' logs, and what holds for the trace of every log.

use std::{collections::BTreeSet, path::Path, sync::LazyLock};

use inspan_protocol::{Event, SpanId};
use inspan_testkit::{case_folders, check_golden, fixture_dir, read_text};
use proptest::prelude::*;

use super::*;
use crate::names::{ERROR_TYPE, gen_ai, operation};

fn log(path: &Path) -> Vec<Envelope> {
    let text = read_text(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Every golden log of the project, by its folder.
static LOGS: LazyLock<Vec<(String, Vec<Envelope>)>> = LazyLock::new(|| {
    let folders = ["flows", "logs"].map(|name| case_folders(fixture_dir().join(name)).unwrap());
    let found: Vec<_> = folders
        .into_iter()
        .flatten()
        .map(|folder| (folder.display().to_string(), log(&folder.join("events.jsonl"))))
        .collect();
    assert!(found.len() > 50, "the fixtures are there");
    found
});

fn settings(content: Content) -> TraceSettings {
    let vendors = [
        ("claude", Vendor { name: "anthropic", is_api: false }),
        ("scripted", Vendor { name: "openai", is_api: true }),
    ];
    let vendors = vendors.map(|(provider, vendor)| (provider.to_owned(), vendor)).into();
    TraceSettings { content, parent: None, vendors }
}

fn spans(events: &[Envelope], settings: TraceSettings) -> Vec<Span> {
    let session = events[0].context.session_id.clone();
    let mut trace = Trace::new(session, settings);
    events.iter().flat_map(|envelope| trace.apply(envelope)).collect()
}

/// A trace as a file: one span a line.
fn lines(spans: &[Span]) -> String {
    spans.iter().map(|span| serde_json::to_string(span).unwrap() + "\n").collect()
}

macro_rules! golden {
    ($($name:ident: $log:literal, $content:ident;)*) => {$(
        #[test]
        fn $name() {
            let events = log(&fixture_dir().join($log));
            let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
            let golden = golden.join(concat!(stringify!($name), ".jsonl"));
            check_golden(golden, &lines(&spans(&events, settings(Content::$content)))).unwrap();
        }
    )*};
}

golden! {
    chain: "flows/chain/events.jsonl", Off;
    retry: "flows/retry/events.jsonl", Off;
    failing: "flows/failing/events.jsonl", Off;
    foreach_retries: "flows/foreach_retries/events.jsonl", Off;
    loop_conversation: "flows/loop_conversation/events.jsonl", Off;
    loop_shared_body: "flows/loop_shared_body/events.jsonl", Off;
    human_late: "flows/human_late/events.jsonl", Off;
    human_late_with_content: "flows/human_late/events.jsonl", On;
    pause: "flows/pause/events.jsonl", Off;
    stopped: "flows/stopped/events.jsonl", Off;
    subflow_fails: "flows/subflow_fails/events.jsonl", Off;
    agents_fallback: "flows/agents_fallback/events.jsonl", Off;
    repair: "flows/repair/events.jsonl", Off;
    repair_with_content: "flows/repair/events.jsonl", On;
    killed_and_resumed: "../crates/otel/tests/logs/killed_and_resumed.jsonl", Off;
    limit_and_budget: "../crates/otel/tests/logs/limit_and_budget.jsonl", Off;
    api_with_tools: "../crates/otel/tests/logs/api_with_tools.jsonl", Off;
}

#[test]
fn every_trace_is_a_tree_with_a_span_for_each_attempt() {
    for (name, events) in LOGS.iter() {
        let spans = spans(events, settings(Content::Off));
        let trace = TraceId::of_session(&events[0].context.session_id);
        let ids: BTreeSet<SpanId> = spans.iter().map(|span| span.span_id).collect();
        assert_eq!(ids.len(), spans.len(), "{name}: no two spans have the same id");
        let has_ended = events.iter().any(|envelope| matches!(envelope.event, Event::HarnessComplete { .. }));
        let roots = spans.iter().filter(|span| span.parent.is_none()).count();
        assert_eq!(roots, usize::from(has_ended), "{name}: one span has no parent");
        let root = SpanId::of_session(&events[0].context.session_id);
        for span in &spans {
            assert_eq!(span.trace_id, trace, "{name}");
            assert!(span.start <= span.end, "{name}: {span:?}");
            let known =
                span.parent.is_none_or(|parent| ids.contains(&parent) || !has_ended || parent == root);
            assert!(known, "{name}: the parent of {span:?} is in the trace");
            let is_error = !span.status.is_unset();
            assert_eq!(is_error, span.attributes.get(ERROR_TYPE).is_some(), "{name}: {span:?}");
        }
        let attempts = events.iter().filter_map(|envelope| match &envelope.event {
            Event::TaskStart { path, attempt, .. } => {
                Some(SpanId::of_attempt(&envelope.context.session_id, path, *attempt))
            }
            _ => None,
        });
        let missing: Vec<_> = attempts.filter(|id| has_ended && !ids.contains(id)).collect();
        assert_eq!(missing, [], "{name}: every attempt has its span");
    }
}

#[test]
fn a_span_that_has_ended_is_the_same_in_every_longer_log() {
    for (name, events) in LOGS.iter() {
        let whole = spans(events, settings(Content::On));
        for end in 1..=events.len() {
            let part = spans(&events[..end], settings(Content::On));
            assert_eq!(part, whole[..part.len()], "{name}: the first {end} events");
        }
    }
}

#[test]
fn nothing_that_was_written_or_said_is_in_a_trace_unless_it_is_asked_for() {
    for (name, events) in LOGS.iter() {
        let keys = [gen_ai::TOOL_ARGUMENTS, gen_ai::TOOL_RESULT, gen_ai::OUTPUT_MESSAGES, own::PROMPT_TEXT];
        for span in spans(events, settings(Content::Off)) {
            assert!(keys.iter().all(|key| span.attributes.get(key).is_none()), "{name}: {span:?}");
        }
    }
    let repaired = log(&fixture_dir().join("flows/repair/events.jsonl"));
    let with: BTreeSet<_> = spans(&repaired, settings(Content::On))
        .iter()
        .flat_map(|span| span.attributes.iter().map(|(key, _)| key).collect::<Vec<_>>())
        .filter(|key| key.starts_with("gen_ai.tool.call.") || *key == gen_ai::OUTPUT_MESSAGES)
        .collect();
    let all = [gen_ai::OUTPUT_MESSAGES, gen_ai::TOOL_ARGUMENTS, gen_ai::TOOL_CALL, gen_ai::TOOL_RESULT];
    assert_eq!(with, all.into());
}

#[test]
fn a_session_links_to_the_one_it_was_made_of() {
    let events = log(&fixture_dir().join("flows/chain/events.jsonl"));
    let parent = SessionId::from("before");
    let settings = TraceSettings { parent: Some((parent.clone(), "fork")), ..settings(Content::Off) };
    let links: Vec<_> = spans(&events, settings).into_iter().flat_map(|span| span.links).collect();
    let expected = Link {
        trace_id: TraceId::of_session(&parent),
        span_id: SpanId::of_session(&parent),
        attributes: Attributes::default().with(own::SESSION, "before").with(own::LINK, "fork"),
    };
    assert_eq!(links, [expected]);
}

#[test]
fn a_program_that_runs_in_an_attempt_receives_the_span_of_that_attempt() {
    let events = log(&fixture_dir().join("flows/retry/events.jsonl"));
    let session = events[0].context.session_id.clone();
    let variables = inspan_protocol::trace_variables(
        &inspan_protocol::Environment::default(),
        &session,
        &NodePath::new("busy"),
        3,
    );
    let third = spans(&events, settings(Content::Off))
        .into_iter()
        .find(|span| {
            span.name == "invoke_agent busy" && span.attributes.get(own::ATTEMPT) == Some(&3_u32.into())
        })
        .unwrap();
    assert_eq!(third.attributes.get(gen_ai::OPERATION), Some(&operation::AGENT.into()));
    let parent = format!("00-{}-{}-01", third.trace_id, third.span_id);
    assert_eq!(variables, Some([("TRACEPARENT", parent.clone()), ("OTEL_TRACEPARENT", parent)]));
}

proptest! {
    /// Logs that no program would write: any events of real ones, in any order and of any session.
    #[test]
    fn no_log_makes_it_panic_and_spans_stay_a_tree(picks in prop::collection::vec((0_usize..1000, 0_usize..1000), 1..120)) {
        let logs = &LOGS;
        let events: Vec<Envelope> = picks
            .iter()
            .enumerate()
            .map(|(seq, (log, event))| {
                let log = &logs[log % logs.len()].1;
                Envelope { seq: seq as u64 + 1, ..log[event % log.len()].clone() }
            })
            .collect();
        let whole = spans(&events, settings(Content::On));
        let part = spans(&events[..events.len() / 2 + 1], settings(Content::On));
        prop_assert_eq!(&part[..], &whole[..part.len()]);
        for span in &whole {
            prop_assert!(span.start <= span.end);
            prop_assert!(span.parent != Some(span.span_id));
        }
    }
}
