//! What comes in numbers: gathered to few messages, with nothing lost or told twice, also across a kill.

use serde_json::Value;

use super::{
    call, folder,
    receiver::{Answer, Received, Receiver},
    run, webhook, worth,
};
use crate::processes::{kill, until};

/// Items that fail one after the other, for some seconds.
const ITEMS: &str = "
name: nightly
nodes:
  - id: tickets
    type: control.foreach
    input: { items: '{{ range(12) | list }}', onItemError: continue, maxConcurrency: 1 }
    body:
      nodes:
        - { id: work, type: exec, input: { argv: [sh, -c, 'sleep 0.6; exit 3'] } }
";

/// How many notices the messages list, and how many they count beside.
fn told(seen: &[Received]) -> u64 {
    let messages = seen.iter().map(Received::json);
    let count = |it: Value| it["notices"].as_array().unwrap().len() as u64 + it["more"].as_u64().unwrap_or(0);
    messages.map(count).sum()
}

#[test]
fn what_a_killed_run_had_gathered_is_told_once_by_the_one_that_resumes_it() {
    let receiver = Receiver::start(|_, _| Answer::good());
    let folder = &folder(ITEMS, &webhook(&receiver, r#"["failure"]"#));
    let child = call(folder, &["run", "--no-input", "--session-id", "s"]).spawn().unwrap();
    receiver.wait_for(1);
    until("some have failed", || worth(folder, "s").len() >= 4);
    kill(child);
    let before = receiver.seen();
    run(folder, &["resume", "s", "--no-input"]);
    let seen = receiver.seen();
    assert_eq!((before.len(), seen.len(), told(&seen)), (1, 2, 12));
}
