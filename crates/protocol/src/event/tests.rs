//! The codec of events: every known name round-trips, unknown ones stay as they came, broken ones are refused.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        prop::num::f64::NORMAL.prop_map(Value::from),
        ".*".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(".*", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn payload() -> impl Strategy<Value = Map<String, Value>> {
    prop::collection::btree_map(".*", json_value(), 0..6).prop_map(|map| map.into_iter().collect())
}

fn known_event() -> impl Strategy<Value = Event> {
    let run = "[a-z0-9-]{1,12}".prop_map(RunId::from);
    prop_oneof![
        (".*", any::<bool>(), run.clone()).prop_map(|(content, delta, run_id)| Event::AgentText {
            content,
            delta,
            run_id
        }),
        (".*", ".*", json_value(), run.clone()).prop_map(|(tool_name, tool_use_id, input, run_id)| {
            Event::AgentToolStart { tool_name, tool_use_id, input, run_id }
        }),
        (json_value(), any::<u64>()).prop_map(|(result, duration_ms)| Event::TaskComplete {
            task_id: NodeId::new("plan").unwrap(),
            result: Arc::new(result),
            duration_ms,
        }),
        (".*", prop::option::of(run), prop::option::of(".*")).prop_map(|(content, run_id, agent_name)| {
            Event::SessionMessage {
                content,
                run_id,
                agent_name,
                mode: Some(MessageMode::Steer),
                receivers: None,
            }
        }),
        (".*", any::<bool>()).prop_map(|(text, truncated)| Event::ExecOutput {
            stream: OutputStream::Stderr,
            text,
            truncated,
        }),
        (".*", payload()).prop_map(|(message, fields)| Event::Log { level: LogLevel::Warn, message, fields }),
    ]
}

proptest! {
    #[test]
    fn unknown_names_round_trip_exactly(name in "[a-z_:]{1,20}", mut map in payload()) {
        prop_assume!(!Event::NAMES.contains(&name.as_str()));
        map.insert("type".to_owned(), Value::String(name.clone()));
        let wire = Value::Object(map);
        let event: Event = serde_json::from_str(&wire.to_string()).unwrap();
        prop_assert_eq!(event.name(), &name);
        prop_assert_eq!(event.kind(), Event::NAMES.len());
        prop_assert_eq!(serde_json::to_value(&event).unwrap(), wire);
    }

    #[test]
    fn known_events_round_trip_exactly(event in known_event()) {
        let text = serde_json::to_string(&event).unwrap();
        prop_assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), event);
    }

    #[test]
    fn a_known_name_with_a_broken_payload_is_an_error_that_names_it(
        index in 0..Event::NAMES.len(),
        wrong in prop_oneof![Just(json!([1])), Just(json!({"x": 1}))],
    ) {
        let name = Event::NAMES[index];
        // Every field that any event has, each with a value that fits none.
        let mut map = Map::new();
        for field in ["name", "taskId", "from", "agentName", "runId", "content", "promptId", "command", "nodeIds",
            "on", "tokens", "limit", "provider", "level", "success", "reason", "stream"] {
            map.insert(field.to_owned(), wrong.clone());
        }
        map.insert("type".to_owned(), Value::String(name.to_owned()));
        let error = serde_json::from_value::<Event>(Value::Object(map)).unwrap_err().to_string();
        prop_assert!(error.starts_with(&format!("event `{name}`: ")), "{}", error);
    }
}

#[test]
fn names_and_kinds_agree() {
    let event = Event::AgentRetract { run_id: RunId::from("r") };
    assert_eq!(Event::NAMES[event.kind()], event.name());
    let mut names = Event::NAMES.to_vec();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), Event::NAMES.len());
}

#[test]
fn a_null_optional_is_absent_and_never_written() {
    let wire =
        json!({ "type": "session:message", "content": "go", "runId": null, "agentName": null, "mode": null });
    let event: Event = serde_json::from_value(wire).unwrap();
    assert_eq!(serde_json::to_value(&event).unwrap(), json!({ "type": "session:message", "content": "go" }));
}

#[test]
fn a_reader_that_is_too_old_says_so() {
    let wire = json!({
        "v": 2, "id": "01a1ffdf-04ed-7561-8e73-4b03aee20eb4", "seq": 1, "timestamp": "2026-01-07T10:00:00.000Z",
        "context": { "sessionId": "s" }, "event": { "type": "harness:start", "name": "f" },
    });
    let error = serde_json::from_value::<crate::Envelope>(wire).unwrap_err().to_string();
    assert_eq!(error, "the envelope has format version 2, and this program reads up to 1");
}
