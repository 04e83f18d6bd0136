//! The examples run from their recordings, as the README says.

use std::path::Path;

use serde_json::{Value, json};

use crate::program::{program, ran};

#[test]
fn the_review_loop_is_sent_back_once_and_then_passes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    // Nothing of the session may be stored in the tree.
    let home = tempfile::tempdir().unwrap();
    let arguments = ["run", "examples/review-loop/flow.yaml", "--replay", "--json"];
    let ran = ran(&root, program(&root, &arguments).env("INSPAN_HOME", home.path()));
    let result: Value = serde_json::from_str(&ran.stdout).unwrap();
    let attempts = |node: &str| result["nodes"][node]["attempts"].clone();
    let statuses: Vec<&Value> =
        result["nodes"].as_object().unwrap().values().map(|node| &node["status"]).collect();
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(statuses, vec![&json!("complete"); 6]);
    assert_eq!(["plan", "code", "review", "note"].map(attempts), [1, 2, 2, 1].map(Value::from));
    assert_eq!(result["outputs"]["review"]["structuredOutput"], json!({ "passed": true, "issues": [] }));
}

/// Docker is not needed for this: the commands are ones of the program, and each image has a version.
#[test]
fn compose_file_calls_the_program_as_it_is() {
    let compose = include_str!("../../../../examples/fleet/compose.yml");
    let commands: Vec<_> =
        compose.lines().filter_map(|line| line.trim().strip_prefix("command: [")).collect();
    assert_eq!(commands.len(), 3);
    for command in commands {
        let arguments = command.trim_end_matches(']').split(", ").map(|word| word.trim_matches('"'));
        let helped = std::process::Command::new(env!("CARGO_BIN_EXE_inspan"))
            .args(arguments)
            .arg("--help")
            .output()
            .unwrap();
        assert!(helped.status.success(), "{command}: {}", String::from_utf8_lossy(&helped.stderr));
    }
    for image in compose.lines().filter_map(|line| line.trim().strip_prefix("image: ")) {
        let version = image.rsplit_once(':').map(|(_, version)| version);
        assert!(version.is_some_and(|version| version != "latest"), "{image}");
    }
}
