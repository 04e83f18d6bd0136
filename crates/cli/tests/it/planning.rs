//! What a run would do, and runs of a part of a flow: `run --plan`, `confirmAbove`, `--only` and `--from`.

use std::fs;

use jsonschema::validator_for;
use serde_json::{Value, json};

use crate::program::inspan;

const FLOW: &str = "
flow:
  name: fan
  input: { files: [a, b, c] }
  policy: { confirmAbove: { usd: 1 } }
nodes:
  - id: plan
    type: scripted.agent
    input: { prompt: x, options: { turns: [[{ text: p }, { usage: { tokens: { inputTokens: 1, outputTokens: 1 }, costUsd: 0.25 } }]] } }
  - id: each
    type: control.foreach
    dependsOn: [plan]
    input: { items: '{{ flow.input.files }}' }
    body:
      nodes:
        - id: review
          type: scripted.agent
          input: { prompt: '{{ item }}', options: { turns: [[{ text: r }, { usage: { tokens: { inputTokens: 1, outputTokens: 1 }, costUsd: 0.125 } }]] } }
";

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn a_plan_starts_nothing_and_multiplies_what_earlier_sessions_cost() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("flow.yaml"), FLOW).unwrap();
    let fresh = inspan(folder.path(), &["run", "--plan"]);
    assert_eq!((fresh.code, fresh.stderr.as_str()), (Some(0), ""), "{}", fresh.stdout);
    assert!(!folder.path().join(".home").exists(), "a plan writes nothing");
    for line in ["what `plan` costs: no earlier run is known", "total: cost unknown, time unknown", "3 items"]
    {
        assert!(fresh.stdout.contains(line), "{line}: {}", fresh.stdout);
    }
    let ran = inspan(folder.path(), &["run", "--yes", "--json"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let plan = inspan(folder.path(), &["run", "--plan", "--json", "-i", "files=[1,2,3,4,5,6,7,8]"]);
    let plan = parsed(&plan.stdout);
    let nodes: Vec<Value> = plan["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| {
            json!([node["path"], node["times"]["expected"], node["costUsd"]["expected"], node["runs"]])
        })
        .collect();
    assert_eq!(
        nodes,
        [json!(["plan", 1.0, 0.25, 1]), json!(["each", 1.0, 1.0, 1]), json!(["each/review", 8.0, 1.0, 3])]
    );
    assert_eq!(
        (&plan["costUsd"]["expected"], &plan["sessions"], &plan["unknown"]),
        (&json!(1.25), &json!(1), &json!([]))
    );
    let schema = parsed(include_str!("../../../../schema/forecast.json"));
    let validator = validator_for(&schema).unwrap();
    let errors: Vec<String> = validator.iter_errors(&plan).map(|error| error.to_string()).collect();
    assert_eq!(errors, Vec::<String>::new());
    let sessions = parsed(&inspan(folder.path(), &["ps", "--all", "--json"]).stdout);
    assert_eq!(sessions.as_array().map_or(0, Vec::len), 1, "{sessions}");
}

#[test]
fn a_run_above_the_limit_is_confirmed_first() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("flow.yaml"), FLOW).unwrap();
    let refused = |arguments: &[&str], why: &str| {
        let ran = inspan(folder.path(), arguments);
        assert_eq!(ran.code, Some(2), "{}", ran.stderr);
        assert!(ran.stderr.contains(why) && ran.stderr.contains("--yes"), "{}", ran.stderr);
        assert_eq!(ran.stdout, "");
    };
    refused(&["run"], "it is not known what the run costs, and `confirmAbove` is $1.00; nothing was started");
    let ran = inspan(folder.path(), &["run", "--yes"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    // Three items are below the limit, and eight above it.
    let ran = inspan(folder.path(), &["run", "--no-input"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let more = ["run", "--no-input", "-i", "files=[1,2,3,4,5,6,7,8]"];
    refused(&more, "the run is expected to cost $1.25, and `confirmAbove` is $1.00; nothing was started");
    // The user's settings say it for flows that do not.
    fs::write(folder.path().join("flow.yaml"), FLOW.replace("  policy: { confirmAbove: { usd: 1 } }\n", ""))
        .unwrap();
    assert_eq!(inspan(folder.path(), &more).code, Some(0));
    fs::write(folder.path().join("inspan.toml"), "[confirmAbove]\nusd = 0.5\n").unwrap();
    refused(&["run"], "expected to cost $0.6250, and `confirmAbove` is $0.5000");
}
