//! A log that follows every rule, and one for each rule that is broken.

use std::sync::Arc;

use inspan_protocol::{AgentError, ErrorCode, EventContext};
use serde_json::json;

use super::*;

fn checked(log: &[Envelope]) -> Result<(), String> {
    check_order(log).map_err(|error| error.to_string())
}

/// A log from short lines: `[task] [run] what…`, where `-` means no task or run.
fn log(lines: &[&str]) -> Vec<Envelope> {
    let envelope = |(index, line): (usize, &&str)| {
        let words: Vec<_> = line.split(' ').collect();
        let path = |text: &str| serde_json::from_value::<NodePath>(json!(text)).unwrap();
        let named = |word: &str| (word != "-").then(|| word.to_owned());
        let (task, run) = (named(words[0]).map(|task| path(&task)), named(words[1]));
        let event = event(&words[2..], task.as_ref(), run.as_deref());
        let context =
            EventContext { task, agent: run.map(RunId::from), ..EventContext::session("flow-1".into()) };
        Envelope::new(context, index as u64 + 1, inspan_protocol::Timestamp::default(), event)
    };
    lines.iter().enumerate().map(envelope).collect()
}

fn event(words: &[&str], task: Option<&NodePath>, run: Option<&str>) -> Event {
    let node = task.map(NodePath::node);
    let word = words.get(1);
    let number = || word.unwrap().parse::<u32>().unwrap();
    let error = AgentError::new(ErrorCode::NodeFailed, "no");
    let event = match words[0] {
        "harness:start" => json!({ "type": "harness:start", "name": "f" }),
        "harness:complete" => {
            json!({ "type": "harness:complete", "success": true, "outcome": "success", "durationMs": 1 })
        }
        "phase:start" => json!({ "type": "phase:start", "name": word }),
        "phase:complete" => json!({ "type": "phase:complete", "name": word }),
        "phase:failed" => json!({ "type": "phase:failed", "name": word, "error": error }),
        "start" => {
            json!({ "type": "task:start", "taskId": node, "nodeType": "echo", "attempt": number(), "path": task })
        }
        "complete" => json!({ "type": "task:complete", "taskId": node, "result": null, "durationMs": 1 }),
        "failed" => {
            json!({ "type": "task:failed", "taskId": node, "error": error, "willRetry": word == Some(&"retry") })
        }
        "frame:start" => json!({ "type": "frame:start", "taskId": node, "index": number() }),
        "frame:complete" => {
            json!({ "type": "frame:complete", "taskId": node, "index": number(), "outputs": null, "durationMs": 1 })
        }
        "frame:failed" => {
            json!({ "type": "frame:failed", "taskId": node, "index": number(), "error": error })
        }
        "cancelled" => json!({ "type": "task:cancelled", "taskId": node }),
        "agent:start" => {
            json!({ "type": "agent:start", "agentName": "a", "runId": run, "provider": "p", "turn": 1 })
        }
        "agent:text" => json!({ "type": "agent:text", "content": "x", "delta": true, "runId": run }),
        "tool:start" => {
            json!({ "type": "agent:tool:start", "toolName": "t", "toolUseId": word, "input": null, "runId": run })
        }
        "tool:complete" => {
            json!({ "type": "agent:tool:complete", "toolName": "t", "toolUseId": word, "result": null, "isError": false, "runId": run })
        }
        "agent:complete" => {
            json!({ "type": "agent:complete", "agentName": "a", "success": true, "runId": run, "stopReason": "complete", "usage": {}, "durationMs": 1 })
        }
        "agent:lost" => {
            json!({ "type": "agent:complete", "agentName": "a", "success": false, "runId": run, "stopReason": "aborted", "usage": {}, "durationMs": 0 })
        }
        "output" => json!({ "type": "exec:output", "stream": "stdout", "text": "x" }),
        "skipped" => json!({ "type": "task:skipped", "taskId": node, "reason": "when" }),
        "limit" => json!({ "type": "limit:wait", "provider": "p", "until": "1970-01-01T00:00:00.000Z" }),
        "abort" => json!({ "type": "session:abort" }),
        "flow:waiting" => json!({ "type": "flow:waiting", "on": "input" }),
        "prompt" => json!({ "type": "session:prompt", "promptId": word, "prompt": "?", "kind": "input" }),
        "reply" => json!({ "type": "session:reply", "promptId": word, "content": "!" }),
        "flow:paused" => json!({ "type": "flow:paused", "nodeIds": [] }),
        "flow:resumed" => json!({ "type": "flow:resumed", "nodeIds": [], "message": "continue" }),
        "channel" => json!({ "type": "channel:stopped", "name": "console" }),
        "rejected" => {
            json!({ "type": "session:rejected", "command": "send", "reason": "the session is not active" })
        }
        "log" => json!({ "type": "log", "level": "info", "message": "x" }),
        other => panic!("{other}"),
    };
    serde_json::from_value(event).unwrap()
}

const WHOLE: &[&str] = &[
    "- - rejected",
    "- - channel",
    "- - harness:start",
    "- - phase:start one",
    "a - start 1",
    "b - start 1",
    "a r1 agent:start",
    "a r1 agent:text",
    "a r1 tool:start t",
    "a r1 tool:start u",
    "a r1 tool:complete t",
    "a r1 tool:start t",
    "a r1 tool:complete t",
    "a r1 tool:complete u",
    "- - prompt p",
    "- - reply p",
    "a r1 agent:complete",
    "a - failed retry",
    "b - complete",
    "a - start 2",
    "a r2 agent:start",
    "a r2 agent:complete",
    "a - complete",
    "a#2 - start 1",
    "a#2 - failed -",
    "scan - start 1",
    "scan - frame:start 0",
    "scan[0]/a - start 1",
    "scan[0]/a - failed -",
    "scan - frame:failed 0",
    "scan - frame:start 0",
    "scan[0]/a - start 2",
    "scan[0]/a - complete",
    "scan - frame:complete 0",
    "scan - complete",
    "- - log",
    "- - phase:failed one",
    "- - phase:start two",
    "- - phase:complete two",
    "- - harness:complete",
    "- - rejected",
    "- - channel",
];

#[test]
fn a_whole_log_and_each_beginning_of_it_keep_the_rules() {
    assert_eq!(checked(&log(WHOLE)), Ok(()));
    let mut check = OrderCheck::default();
    let pushed: Vec<_> = log(WHOLE).iter().map(|envelope| check.push(envelope)).collect();
    assert_eq!(pushed, vec![Ok(()); WHOLE.len()]);
}

#[test]
fn a_whole_log_without_any_one_line_that_matters_does_not() {
    let keeps: Vec<_> = (0..WHOLE.len())
        .filter(|&left_out| {
            let mut lines = WHOLE.to_vec();
            lines.remove(left_out);
            checked(&log(&lines)).is_ok()
        })
        .map(|left_out| WHOLE[left_out])
        .collect();
    // A prompt may stay open; all else that is missing leaves something unpaired.
    let expected = ["rejected", "channel", "agent:text", "reply p", "log", "rejected", "channel"]
        .map(|what| what.to_owned());
    let what = |line: &&str| line.splitn(3, ' ').nth(2).unwrap().to_owned();
    assert_eq!(keeps.iter().map(what).collect::<Vec<_>>(), expected);
}

#[test]
fn resuming_voids_what_a_pause_or_a_crash_left() {
    let begun = ["- - harness:start", "- - phase:start one", "a - start 1", "a r1 agent:start"];
    let paused = ["a r1 agent:complete", "a - cancelled", "- - flow:paused"];
    let resumed =
        ["- - flow:resumed", "a - start 2", "a r2 agent:start", "a r2 agent:complete", "a - complete"];
    let ended = ["- - phase:complete one", "- - harness:complete"];
    let check = |parts: &[&[&str]]| checked(&log(&parts.concat()));
    assert_eq!(check(&[&begun, &paused]), Ok(()));
    assert_eq!(check(&[&begun, &paused, &resumed, &ended]), Ok(()));
    assert_eq!(check(&[&begun, &resumed, &ended]), Ok(()));
    let late = check(&[&begun, &paused, &["- - log"]]);
    assert_eq!(late, Err("event 8 `log`: it follows `flow:paused`".to_owned()));
}

#[test]
fn a_lost_run_ends_with_its_tools_open_and_only_right_before_the_session_resumes() {
    let begun =
        ["- - harness:start", "- - phase:start one", "a - start 1", "a r1 agent:start", "a r1 tool:start t"];
    let lost = ["a r1 agent:lost"];
    let rest =
        ["- - flow:resumed", "a - start 2", "a - complete", "- - phase:complete one", "- - harness:complete"];
    let check = |parts: &[&[&str]]| checked(&log(&parts.concat()));
    assert_eq!(check(&[&begun, &lost, &rest]), Ok(()));
    assert_eq!(
        [check(&[&begun, &lost, &["a - cancelled"]]), check(&[&begun, &lost]), check(&[&begun, &rest[1..]])],
        [
            "event 7 `task:cancelled`: only `flow:resumed` may follow, since tools {\"t\"} are open",
            "the end of the log: it comes without `harness:complete`, `flow:paused` or `flow:waiting`",
            "event 6 `task:start`: attempt 2 of `a` cannot begin: Some(Open { attempt: 1 })",
        ]
        .map(|fault| Err(fault.to_owned()))
    );
}

#[test]
fn a_session_may_rest_while_it_waits_and_a_limit_ends_an_attempt() {
    let begun = ["- - abort", "- - harness:start", "- - phase:start one", "a - start 1", "a - limit"];
    let waits = ["b - start 1", "- - prompt p", "- - flow:waiting"];
    let rest = ["- - flow:resumed", "b - start 2", "b - complete", "a - start 2", "a - complete"];
    let ended = ["- - phase:complete one", "- - harness:complete"];
    let check = |parts: &[&[&str]]| checked(&log(&parts.concat()));
    assert_eq!(check(&[&begun, &waits]), Ok(()));
    assert_eq!(check(&[&begun, &waits, &rest, &ended]), Ok(()));
    let faults = [
        check(&[&begun, &waits, &["- - log"]]),
        check(&[&begun, &["a - start 1"]]),
        check(&[&begun, &waits, &["b r agent:start", "- - flow:waiting"]]),
        check(&[&begun, &waits, &rest, &["a - skipped"]]),
    ];
    assert_eq!(
        faults,
        [
            "the end of the log: it comes without `harness:complete`, `flow:paused` or `flow:waiting`",
            "event 6 `task:start`: attempt 1 of `a` cannot begin: Some(Again { attempt: 1 })",
            "the end of the log: run Some((RunId(\"r\"), Open { task: Some(NodePath(\"b\")), tools: {} })) is open",
            "event 14 `task:skipped`: `a` has ended or is open",
        ]
        .map(|fault| Err(fault.to_owned()))
    );
}

#[test]
fn what_was_cancelled_may_fail_for_good_without_another_attempt() {
    let ends = |first: &str, then: &str| checked(&log(&["a - start 1", first, then]));
    assert_eq!(ends("a - cancelled", "a - failed -"), Ok(()));
    let not_open = Err("event 3 `task:failed`: task `a` is not open".to_owned());
    for (first, then) in [
        ("a - cancelled", "a - failed retry"),
        ("a - failed retry", "a - failed -"),
        ("a - complete", "a - failed -"),
    ] {
        assert_eq!(ends(first, then), not_open);
    }
}

#[test]
fn each_broken_rule_is_named() {
    let rows: &[(&[&str], &str)] = &[
        (&["- - log", "- - harness:start"], "event 2 `harness:start`: it is not the first"),
        (&["- - harness:start", "- - harness:start"], "event 2 `harness:start`: it is not the first"),
        (&["- r agent:start", "- - harness:start"], "event 2 `harness:start`: it is not the first"),
        (&["- - harness:complete"], "event 1 `harness:complete`: the harness has not started"),
        (&["- - harness:start", "- - harness:complete"], "event 2 `harness:complete`: there was no phase"),
        (
            &["- - harness:start", "- - phase:start one"],
            "the end of the log: it comes without `harness:complete`, `flow:paused` or `flow:waiting`",
        ),
        (&["- - phase:start one"], "event 1 `phase:start`: the harness has not started"),
        (
            &["- - harness:start", "- - phase:start a", "- - phase:start b"],
            "event 3 `phase:start`: phase Some(\"a\") is open",
        ),
        (
            &["- - harness:start", "- - phase:start a", "- - phase:complete a", "- - phase:start a"],
            "event 4 `phase:start`: phase `a` began before",
        ),
        (&["- - phase:complete a"], "event 1 `phase:complete`: phase `a` is not open"),
        (
            &["- - harness:start", "- - phase:start a", "a - start 1", "- - phase:complete a"],
            "event 4 `phase:complete`: task Some((NodePath(\"a\"), Open { attempt: 1 })) is open",
        ),
        (
            &[
                "- - harness:start",
                "- - phase:start a",
                "- - phase:complete a",
                "- - harness:complete",
                "- - log",
            ],
            "event 5 `log`: it follows `harness:complete`",
        ),
        (&["- - harness:start", "a - start 1"], "event 2 `task:start`: no phase is open"),
        (&["a - start 2"], "event 1 `task:start`: attempt 2 of `a` cannot begin: None"),
        (
            &["a - start 1", "a - start 2"],
            "event 2 `task:start`: attempt 2 of `a` cannot begin: Some(Open { attempt: 1 })",
        ),
        (
            &["a - start 1", "a - complete", "a - start 1"],
            "event 3 `task:start`: attempt 1 of `a` cannot begin: Some(Ended { attempt: 1 })",
        ),
        (
            &["a - start 1", "a - failed retry", "a - start 1"],
            "event 3 `task:start`: attempt 1 of `a` cannot begin: Some(Again { attempt: 1 })",
        ),
        (&["a - complete"], "event 1 `task:complete`: task `a` is not open"),
        (
            &["a - start 1", "a r agent:start", "a - complete"],
            "event 3 `task:complete`: run Some(RunId(\"r\")) of `a` is open",
        ),
        (&["a - start 1"], "the end of the log: task Some((NodePath(\"a\"), Open { attempt: 1 })) is open"),
        (
            &["- - harness:start", "- - phase:start one", "a r agent:start"],
            "event 3 `agent:start`: task `a` is not open",
        ),
        (
            &["- r agent:start", "- r agent:complete", "- r agent:start"],
            "event 3 `agent:start`: run `r` began before",
        ),
        (&["- r agent:text"], "event 1 `agent:text`: run `r` is not open"),
        (
            &["- r agent:start", "- r agent:complete", "- r agent:complete"],
            "event 3 `agent:complete`: run `r` is not open",
        ),
        (
            &["- r agent:start", "- r tool:start t", "- r tool:start t"],
            "event 3 `agent:tool:start`: tool `t` is open",
        ),
        (&["- r agent:start", "- r tool:complete t"], "event 2 `agent:tool:complete`: tool `t` is not open"),
        (
            &["- r agent:start", "- r tool:start t", "- r agent:complete"],
            "event 3 `agent:complete`: tools {\"t\"} are open",
        ),
        (&["a - start 1", "a - complete", "a - output"], "event 3 `exec:output`: task `a` is not open"),
        (&["- - reply p"], "event 1 `session:reply`: prompt `p` is not open"),
        (&["- - prompt p", "- - reply p", "- - reply p"], "event 3 `session:reply`: prompt `p` is not open"),
    ];
    let seen: Vec<_> = rows.iter().map(|(lines, _)| checked(&log(lines))).collect();
    let expected: Vec<_> = rows.iter().map(|(_, fault)| Err((*fault).to_owned())).collect();
    assert_eq!(seen, expected);
}

#[test]
fn seq_session_and_place_must_fit() {
    let mut gap = log(&["- - log", "- - log"]);
    gap[1].seq = 3;
    let mut stranger = log(&["- - log", "- - log"]);
    stranger[1].context = Arc::new(EventContext::session("flow-2".into()));
    let mut misplaced = log(&["a - start 1", "b - start 1"]);
    misplaced[1].context = misplaced[0].context.clone();
    let mut foreign = log(&["- r agent:start"]);
    foreign[0].context = Arc::new(EventContext::session("flow-1".into()));
    assert_eq!(
        [gap, stranger, misplaced, foreign].map(|log| checked(&log).unwrap_err()),
        [
            "event 3 `log`: its seq follows 1",
            "event 2 `log`: it is of session `flow-2`, not `flow-1`",
            "event 2 `task:start`: its context says Some(NodePath(\"a\")) and not `b`",
            "event 1 `agent:start`: its context says None and not `r`",
        ]
    );
}
