//! What is found before anything runs: input that is missing or misspelt; and texts where only texts can stand.

use serde_json::{Map, Value, json};

use super::{compiled, registry};
use crate::{Loaded, Scope, check_input, compile};

fn given(value: Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

#[test]
fn input_that_is_used_must_be_given_and_what_is_given_must_be_known() {
    let undeclared = "name: f\nnodes: [{ id: a, type: echo, input: { text: '{{ flow.input.issue }}' } }]";
    let declared = "name: f\ninput: { note: '' }\nnodes: [{ id: a, type: echo, input: { text: '{{ flow.input.issue }}{{ flow.input.note }}' } }]";
    let schema = "name: f\ninputSchema: { type: object, properties: { issue: {} } }\nnodes: [{ id: a, type: echo, input: { text: x } }]";
    let open = "name: f\ninputSchema: { type: object, properties: { issue: {} }, additionalProperties: true }\nnodes: [{ id: a, type: echo, input: { text: x } }]";
    let asked = [
        (undeclared, json!({ "issue": 1 })),
        (undeclared, json!({ "isue": 1 })),
        (declared, json!({})),
        (declared, json!({ "issue": 1, "notte": 2 })),
        (schema, json!({ "isue": 1 })),
        (schema, json!({})),
        (open, json!({ "isue": 1 })),
    ];
    let said = asked.map(|(flow, input)| {
        let graph = compiled(flow).unwrap();
        check_input(&graph, given(input)).map(|_| ()).map_err(|error| error.to_string())
    });
    let fails = |problem: &str| Err(format!("invalid input for flow `f`: {problem}"));
    let expected = [
        Ok(()),
        fails("missing input `issue`, which node `a` uses"),
        fails("missing input `issue`, which node `a` uses"),
        fails("unknown input `notte`: did you mean `note`?"),
        fails("unknown input `isue`: did you mean `issue`?"),
        Ok(()),
        Ok(()),
    ];
    assert_eq!(said, expected);
}

/// A whole expression keeps its type, but becomes text where only a text can stand.
#[test]
fn a_value_becomes_text_where_only_text_can_stand() {
    let text = "
name: f
input: { n: 1, o: { a: [true] }, t: x, none: null }
nodes:
  - { id: a, type: echo, input: { text: '{{ flow.input.n }}' } }
  - { id: b, type: exec, input: { argv: [x, '{{ flow.input.n + 1 }}', '{{ flow.input.t }}'], env: { O: '{{ flow.input.o }}' } } }
  - { id: c, type: constant, input: { value: '{{ flow.input.n }}' } }
  - { id: d, type: echo, input: { text: '{{ flow.input.none }}' } }
";
    let loaded = Loaded::from_text("flow.yaml", text, std::collections::BTreeMap::new());
    let graph = compile(&loaded, &registry()).unwrap().graph;
    let flow = json!({ "input": graph.input });
    let empty = json!({});
    let scope = Scope { outputs: &[], flow: &flow, state: &empty, locals: &empty };
    let inputs: Vec<_> = graph.flow().nodes.iter().map(|node| node.input.resolve(&scope).unwrap()).collect();
    assert_eq!(
        inputs,
        [
            json!({ "text": "1" }),
            json!({ "argv": ["x", "2", "x"], "env": { "O": "{\"a\":[true]}" } }),
            json!({ "value": 1 }),
            json!({ "text": null }),
        ]
    );
}
