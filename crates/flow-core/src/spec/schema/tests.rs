//! Tests that the schema of the flow file says what the compiler does. The compiler has its own.

use std::collections::BTreeMap;

use super::*;
use crate::{
    compile::tests::{fixture_text, registry},
    spec::parse,
};

fn errors(validator: &jsonschema::Validator, text: &str) -> Vec<String> {
    let flow = parse(text, 0).root.unwrap().json();
    validator.iter_errors(&flow).map(|error| error.instance_path().as_str().to_owned()).collect()
}

/// The schema is no second truth: what can run fits it, and of what it can see it refuses what the compiler
/// refuses.
#[test]
fn the_schema_agrees_with_the_compiler() {
    let schema = flow_schema(&registry());
    let validator = jsonschema::validator_for(&schema).unwrap();
    let runs = ["agents", "anchors", "conditions", "fix-issue", "flat-shape", "frames", "layout"];
    let refused = [
        "edges",
        "empty-nodes",
        "frame-keys",
        "invalid-id",
        "invalid-value",
        "missing-key",
        "missing-nodes",
        "not-a-mapping",
        "unknown-key",
        "unknown-node-type",
        "unknown-pack",
        "wrong-type",
    ];
    let fits: BTreeMap<&str, bool> = runs
        .iter()
        .chain(&refused)
        .map(|name| (*name, errors(&validator, &fixture_text(name)).is_empty()))
        .collect();
    let expected = runs.iter().map(|name| (*name, true)).chain(refused.iter().map(|name| (*name, false)));
    assert_eq!(fits, expected.collect());
}

#[test]
fn bindings_and_files_fit_and_slips_do_not() {
    let schema = flow_schema(&registry());
    let validator = jsonschema::validator_for(&schema).unwrap();
    let node = |fields: &str| errors(&validator, &format!("name: x\nnodes:\n  - {{ id: a, {fields} }}\n"));
    let rows = [
        ("type: claude.agent, promptFile: a.md", vec![]),
        ("type: claude.agent, input: { prompt: a, options: { maxTurns: '{{ flow.input.n }}' } }", vec![]),
        ("type: claude.agent, input: { prompt: a, options: { outputSchemaFile: a.json } }", vec![]),
        (
            "type: claude.agent, input: { prompt: a, options: { maxTurns: many } }",
            vec!["/nodes/0/input/options"],
        ),
        ("type: claude.agent, input: { prompt: a, options: { modle: x } }", vec!["/nodes/0/input/options"]),
        ("type: control.if, input: { condition: { not: { equals: { var: a.b, value: 1 } } } }", vec![]),
        ("type: control.if, input: { condition: { nott: x } }", vec!["/nodes/0/input/condition"]),
        ("type: data.map, input: { list: [], template: { a: '{{ item }}' } }", vec![]),
        ("type: exec, input: { argv: [a, '{{ flow.input.x }}'], parse: json }", vec![]),
        ("type: exec, input: { argv: [a], parse: yaml }", vec!["/nodes/0/input/parse"]),
    ];
    let said: Vec<_> = rows.iter().map(|(fields, _)| (*fields, node(fields))).collect();
    let expected: Vec<_> =
        rows.iter().map(|(fields, at)| (*fields, at.iter().map(|at| (*at).to_owned()).collect())).collect();
    assert_eq!(said, expected);
}
