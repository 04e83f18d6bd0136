//! What is found before anything runs: input that is missing or misspelt; and texts where only texts are allowed.

use std::sync::Arc;

use inspan_protocol::NodePath;
use serde_json::{Map, Value, json};

use super::{compiled, registry};
use crate::testing::loaded;
use crate::{BodyIx, Code, FramesKind, Loaded, OnExhausted, OnItemError, Scope, check_input, compile};

fn given(value: Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

#[test]
fn input_that_is_used_must_be_given_and_what_is_given_must_be_known() {
    let undeclared = "name: f\nnodes: [{ id: a, type: echo, input: { text: '{{ flow.input.issue }}' } }]";
    let declared = "name: f\ninput: { note: '' }\nnodes: [{ id: a, type: echo, input: { text: '{{ flow.input.issue }}{{ flow.input.note }}' } }]";
    let schema = "name: f\ninputSchema: { type: object, properties: { issue: {} } }\nnodes: [{ id: a, type: echo, input: { text: x } }]";
    let open = "name: f\ninputSchema: { type: object, properties: { issue: {} }, additionalProperties: true }\nnodes: [{ id: a, type: echo, input: { text: x } }]";
    let outputs = "name: f\noutputs: { issue: '{{ flow.input.issue }}' }\nnodes: [{ id: a, type: echo, input: { text: x } }]";
    let until = "name: f\nnodes: [{ id: l, type: control.loop, input: { maxIterations: 2, until: flow.input.issue }, body: { nodes: [{ id: a, type: echo, input: { text: x } }] } }]";
    let of_body = "name: f\nnodes: [{ id: l, type: control.foreach, input: { items: [1] }, body: { outputs: { issue: '{{ flow.input.issue }}' }, nodes: [{ id: a, type: echo, input: { text: x } }] } }]";
    let asked = [
        (outputs, json!({})),
        (until, json!({})),
        (of_body, json!({})),
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
        fails("missing input `issue`, which `outputs` uses"),
        fails("missing input `issue`, which node `l` uses"),
        fails("missing input `issue`, which node `l` uses"),
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

#[test]
fn input_need_not_be_given_where_a_test_makes_its_use_safe() {
    let missing = |nodes: &str| {
        let schema = "inputSchema: { type: object, properties: { x: { type: string } } }";
        let graph = compiled(&format!("name: f\n{schema}\nnodes:\n{nodes}")).unwrap();
        check_input(&graph, Map::new()).err().map(|error| error.problems.join("; "))
    };
    let uses = "input: { text: '{{ flow.input.x }}' }";
    let given = "when: flow.input.x is defined";
    let safe = [
        format!("  - {{ id: a, type: echo, {given}, {uses} }}"),
        format!(
            "  - {{ id: s, type: echo, input: {{ text: x }} }}\n  - {{ id: a, type: echo, {uses} }}\nedges:\n  - {{ from: s, to: a, {given} }}"
        ),
        format!(
            "  - {{ id: s, type: echo, {given}, input: {{ text: x }} }}\n  - {{ id: a, type: echo, dependsOn: [s], {uses} }}"
        ),
        format!(
            "  - {{ id: l, type: control.foreach, {given}, input: {{ items: [1] }}, body: {{ nodes: [{{ id: a, type: echo, {uses} }}] }} }}"
        ),
        format!(
            "  - {{ id: a, type: echo, when: {{ and: [flow.input.x is defined, \"flow.input.x != 'y'\"] }}, {uses} }}"
        ),
        "  - { id: a, type: echo, input: { text: '{% if flow.input.x %}{{ flow.input.x }}{% endif %}' } }"
            .to_owned(),
    ];
    for nodes in safe {
        assert_eq!(missing(&nodes), None, "{nodes}");
    }
    let used = Some("missing input `x`, which node `a` uses".to_owned());
    for when in ["flow.input.x", "not (flow.input.x is defined)", "flow.input.x is odd", "true"] {
        assert_eq!(missing(&format!("  - {{ id: a, type: echo, when: {when}, {uses} }}")), used, "{when}");
    }
    // No run must be given what a test makes safe, so nothing warns of it.
    let undeclared = |when: &str| {
        let text = format!("name: f\nnodes:\n  - {{ id: a, type: echo, {when}{uses} }}");
        compile(&loaded(&text), &registry()).unwrap().warnings.to_string()
    };
    assert_eq!(undeclared(&format!("{given}, ")), "");
    assert!(undeclared("").contains("the input `x` has no default"));
}

/// The text `no` counts as true in a condition, so a value of another kind than its default is refused.
#[test]
fn input_of_another_kind_than_its_default_is_refused_unless_a_schema_says_more() {
    let flow = |header: &str| {
        let node = "nodes: [{ id: a, type: echo, input: { text: x } }]";
        compiled(&format!(
            "name: f\ninput: {{ b: false, n: 5, l: [1], m: {{ k: 1 }}, t: x, z: null }}\n{header}\n{node}"
        ))
        .unwrap()
    };
    let check = |graph: &crate::Graph, input: Value| {
        check_input(graph, given(input)).map(|_| ()).map_err(|error| error.problems.join("; "))
    };
    let plain = flow("");
    let wrong = json!({ "b": "no", "n": "abc", "l": "[1,", "m": [], "t": 1, "z": 1 });
    assert_eq!(
        check(&plain, wrong),
        Err("`b` must be true or false, as its default is: write `true` or `false`; \
             `l` must be a list, as its default is: write one, such as `[\"a\", \"b\"]`; \
             `m` must be a mapping, as its default is: write one, such as `{\"key\": \"value\"}`; \
             `n` must be a number, as its default is: write one without quotes, such as `5`"
            .to_owned())
    );
    let right = json!({ "b": true, "n": 1.5, "l": [], "m": {}, "t": "", "z": [] });
    let none = json!({ "b": null, "n": null, "l": null, "m": null });
    assert_eq!([right, none].map(|input| check(&plain, input)), [Ok(()), Ok(())]);
    let schemas = [
        "inputSchema: { properties: { b: { type: [boolean, string] } } }",
        "inputSchema: { additionalProperties: { type: [boolean, string, number, array, object, 'null'] } }",
        "inputSchema: { properties: { b: { description: Whether. } } }",
    ];
    let refused = Err("`b` must be true or false, as its default is: write `true` or `false`".to_owned());
    assert_eq!(schemas.map(|schema| check(&flow(schema), json!({ "b": "no" }))), [Ok(()), Ok(()), refused]);
}

/// Where a schema leaves open which keys there are, none is reported.
#[test]
fn a_key_that_the_schema_of_the_input_leaves_open_is_not_reported() {
    let found = |schema: &str| {
        let text = format!(
            "name: f\ninput: {{ a: 1 }}\ninputSchema: {{ type: object, properties: {{ a: {{}} }}, {schema} }}\nnodes: [{{ id: n, type: echo, input: {{ text: '{{{{ flow.input.b }}}}' }} }}]"
        );
        match compile(&loaded(&text), &registry()) {
            Ok(compiled) => compiled.warnings.to_string(),
            Err(found) => found.to_string(),
        }
    };
    let open = [
        "additionalProperties: { type: string }",
        "allOf: [{ properties: { b: {} } }]",
        "$ref: '#/$defs/more', $defs: { more: { properties: { b: {} } } }",
        "additionalProperties: false, patternProperties: { '^b': {} }",
    ];
    assert_eq!(open.map(found), [""; 4]);
    let help = "the flow declares no input `b` (help: declare it under `input`)";
    let place = "flow.yaml:4:49:";
    assert_eq!(
        ["minProperties: 1", "additionalProperties: false"].map(found),
        [
            format!("{place} warning[unknown-binding]: {help}"),
            format!("{place} error[unknown-binding]: {help}")
        ]
    );
}

/// A problem of a server is at the node that names it, also in a body.
#[test]
fn the_key_of_a_server_in_a_body_is_that_of_its_node() {
    let text = "name: f\nnodes: [{ id: each, type: control.foreach, input: { items: [1] }, body: { nodes: [{ id: a, type: echo, input: { text: x } }, { id: b, type: mcp.call, input: { server: x, tool: t } }] } }]";
    let found = compile(&loaded(text), &registry()).unwrap_err();
    let keys: Vec<_> = found.iter().map(|problem| problem.key.as_deref()).collect();
    assert_eq!(keys, [Some("nodes[0].body.nodes[1].input.server")]);
}

/// A whole expression keeps its type, but becomes text where only a text is allowed.
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
    let loaded = loaded(text);
    let graph = compile(&loaded, &registry()).unwrap().graph;
    let flow = json!({ "input": graph.input });
    let empty = json!({});
    let scope = Scope::new(&[], &flow, &empty, &empty);
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

/// Templates of bodies see the names of their frame and, read-only, the nodes and items around it.
#[test]
fn a_body_sees_its_frame_and_what_is_around_it() {
    let text = "
name: f
nodes:
  - { id: list, type: constant, policy: { continueOnError: true }, input: { value: [a, b] } }
  - id: scan
    type: control.foreach
    dependsOn: [list]
    input: { items: '{{ list.value }}', as: file, maxConcurrency: 2, onItemError: stop, key: '{{ file }}-{{ frame.index }}' }
    body:
      outputs: { text: '{{ own.text }}' }
      nodes:
        - { id: own, type: echo, input: { text: '{{ file }}' } }
        - id: again
          type: control.loop
          dependsOn: [own]
          input: { maxIterations: 3.0, onExhausted: continue, while: 'previous.n != 2', until: 'deep.value == file' }
          body:
            nodes:
              - { id: deep, type: constant, input: { value: '{{ [file, own.text, list.failed, list.value, frame.index, frame.parent.index, passes] }}' } }
";
    let graph = compiled(text).unwrap();
    let frames = |body: u32, node: usize| graph.body(BodyIx(body)).nodes[node].frames.as_ref().unwrap();
    let (each, again) = (frames(0, 1), frames(1, 1));
    assert_eq!((graph.bodies.len(), each.body, again.body), (3, BodyIx(1), BodyIx(2)));
    let FramesKind::Foreach { item, on_item_error, key: Some(key) } = &each.kind else { panic!() };
    assert_eq!((item.as_str(), *on_item_error), ("file", OnItemError::Stop));
    let FramesKind::Loop { while_holds: Some(before), until: Some(after), max_iterations: 3, on_exhausted } =
        &again.kind
    else {
        panic!()
    };
    assert_eq!(*on_exhausted, OnExhausted::Continue);

    let [flow, none] = [json!({ "input": {} }), json!({})];
    let output = |value: Value| Some(Arc::new(value));
    let outer = [output(json!({ "value": ["a", "b"] })), None];
    let outer = Scope::new(&outer, &flow, &none, &none);
    let item = json!({ "file": "a", "frame": { "index": 4 } });
    let own = [output(json!({ "text": "x" })), None];
    let each_scope = Scope { outputs: &own, locals: &item, outer: Some(&outer), ..outer };
    let pass = json!({ "frame": { "index": 1, "parent": { "index": 4 } }, "previous": { "n": 2 }, "passes": [{ "n": 2 }] });
    let deep = [output(json!({ "value": "a" }))];
    let pass_scope = Scope { outputs: &deep, locals: &pass, outer: Some(&each_scope), ..outer };

    let input = |body: u32, node: usize, scope: &Scope<'_>| {
        graph.body(BodyIx(body)).nodes[node].input.resolve(scope).map_err(|error| error.to_string())
    };
    assert_eq!(
        [
            input(0, 1, &outer),
            input(1, 1, &each_scope),
            input(2, 0, &pass_scope),
            input(2, 0, &Scope { outputs: &[], ..pass_scope }),
            key.resolve(&each_scope).map_err(|error| error.to_string()),
            key.resolve(&outer).map_err(|error| error.to_string()),
            graph
                .body(BodyIx(1))
                .outputs
                .as_ref()
                .unwrap()
                .resolve(&each_scope)
                .map_err(|error| error.to_string()),
        ],
        [
            Ok(json!({ "items": ["a", "b"], "maxConcurrency": 2 })),
            Ok(json!({})),
            Ok(json!({ "value": ["a", "x", false, ["a", "b"], 1, 4, [{ "n": 2 }]] })),
            Ok(json!({ "value": ["a", "x", false, ["a", "b"], 1, 4, [{ "n": 2 }]] })),
            Ok(json!("a-4")),
            Err("node `scan`, key `input.key`: `file`: `file` is not defined here".to_owned()),
            Ok(json!({ "text": "x" })),
        ]
    );
    assert_eq!((before.holds(&pass_scope), after.holds(&pass_scope)), (Ok(false), Ok(true)));
}

/// A session began when the rules for inputs may have been others: it can be shown, and goes on to the node that fails.
#[test]
fn a_stored_flow_compiles_with_inputs_that_no_run_can_take() {
    let text = "
flow: { name: old }
nodes:
  - { id: a, type: control.wait, input: { ms: -1 } }
  - { id: b, type: exec, input: { argv: [] } }
  - { id: c, type: exec, dependsOn: [b], input: { argv: ['{{ b.stdout }}'], more: 1 } }
  - { id: d, type: human.input, input: { prompt: d, choices: [x], default: y } }
";
    let compile = crate::testing::compiled;
    let flow = loaded(text);
    let refused = compile(&flow).unwrap_err();
    assert_eq!(refused.len(), 4, "{refused}");
    let mut stored = Loaded::from_source(&flow.source("old", "hash")).unwrap();
    assert_eq!(compile(&stored).unwrap().graph.flow().nodes.len(), 4);
    // What is changed now is by the rules of now.
    stored.set_input(&NodePath::new("a"), &["ms"], &json!(1)).unwrap();
    let refused = compile(&stored).unwrap_err();
    assert_eq!(refused.len(), 3, "{refused}");
    // What makes another graph of the text is still refused.
    let broken = loaded(&text.replace("b.stdout", "z.stdout"));
    let broken = Loaded::from_source(&broken.source("old", "hash")).unwrap();
    let refused = compile(&broken).unwrap_err();
    assert_eq!(refused.iter().map(|problem| problem.code).collect::<Vec<_>>(), [Code::UnknownBinding]);
}

/// The settings of agents and types are merged below what a node says; the user's agents win over the flow's.
#[test]
fn a_node_has_the_settings_of_its_agent_and_of_its_type() {
    let resolved = |user: &[(&str, Value)], options: &[(&str, &str, Value)]| {
        let mut loaded = super::fixture("agents");
        user.iter().for_each(|(name, settings)| loaded.set_agent(name, settings));
        options.iter().for_each(|(provider, name, value)| loaded.default_option(provider, name, value));
        let again = Loaded::from_source(&compile(&loaded, &registry()).unwrap().graph.source).unwrap();
        let graph = compile(&again, &registry()).unwrap().graph;
        let (none, output) = (json!({}), Some(Arc::new(json!({ "text": "T" }))));
        let outputs = [output.clone(), output.clone(), output.clone(), output.clone(), output];
        let locals = json!({ "item": "I" });
        let scope = Scope::new(&outputs, &none, &none, &locals);
        let nodes = graph.flow().nodes.iter().chain(&graph.bodies[1].nodes);
        let shown = nodes.filter(|node| &*node.node_type != "control.foreach").map(|node| {
            let input = node.input.resolve(&scope).unwrap();
            let policy = (node.policy.timeout.map(|time| time.as_secs()), node.policy.retry.max_attempts);
            json!([node.id, &*node.node_type, input, policy])
        });
        Value::Array(shown.collect())
    };
    let schema = json!({ "type": "object" });
    let writer = json!({ "maxTurns": 5, "permissionMode": "ask", "model": "opus" });
    let expected = json!([
        ["write", "claude.agent", { "prompt": "Write.", "options": writer }, [600, 2]],
        ["plain", "claude.agent", { "prompt": "hi", "options": { "maxTurns": 1, "permissionMode": "ask" } }, [3600, 3]],
        ["review", "codex.agent", { "prompt": "Review T.", "options": { "outputSchema": schema } }, [null, 6]],
        ["make", "exec", { "argv": ["make"] }, [300, 1]],
        ["inner", "claude.agent", { "prompt": "I", "options": writer }, [600, 2]],
    ]);
    assert_eq!(resolved(&[], &[]), expected);
    let reviewer = json!({ "type": "claude.agent", "model": "best" });
    let options = [
        ("claude", "model", json!("sonnet")),
        ("claude", "maxTurns", json!(9)),
        ("codex", "model", json!("x")),
    ];
    let mut expected = expected;
    expected[1][2]["options"]["model"] = json!("sonnet");
    expected[2][1] = json!("claude.agent");
    expected[2][2]["options"] =
        json!({ "maxTurns": 20, "permissionMode": "ask", "model": "best", "outputSchema": schema });
    expected[2][3] = json!([3600, 2]);
    assert_eq!(resolved(&[("reviewer", reviewer)], &options), expected);
}

/// Another provider gets the options that mean the same to it; the others are reported.
#[test]
fn options_are_translated_for_another_provider() {
    let text = "
name: f
agents: { coder: { type: claude.agent, model: opus, options: { maxTurns: 3 } } }
nodes:
  - { id: a, agent: coder, input: { prompt: x, options: { permissionMode: ask } } }
  - { id: b, type: claude.agent, input: { prompt: x, options: { tools: [Read], allowedTools: [mcp__files__read] } } }
  - { id: c, type: codex.agent, input: { prompt: x, options: { model: gpt } } }
";
    let compile = |changes: &[(Option<&str>, &str)]| {
        let mut loaded = loaded(text);
        loaded.set_input(&NodePath::new("a"), &["options", "model"], &json!("mine")).unwrap();
        for (node, provider) in changes {
            let node = node.map(NodePath::new);
            loaded.set_provider(node.as_ref(), provider).unwrap();
        }
        match compile(&loaded, &registry()) {
            Ok(compiled) => (
                format!("{}", compiled.warnings),
                format!(
                    "{:?}",
                    compiled.graph.flow().nodes.iter().map(|node| &*node.node_type).collect::<Vec<_>>()
                ),
            ),
            Err(problems) => (problems.to_string(), String::new()),
        }
    };
    type Row<'r> = (&'r [(Option<&'r str>, &'r str)], &'r str, &'r str);
    let rows: [Row<'_>; 4] = [
        (&[], "", r#"["claude.agent", "claude.agent", "codex.agent"]"#),
        (&[(Some("a"), "codex")], "", r#"["codex.agent", "claude.agent", "codex.agent"]"#),
        (
            &[(None, "claude")],
            "flow.yaml:7:64: warning[unsupported-capability]: `model` is for `codex` and is ignored: the provider is `claude`",
            r#"["claude.agent", "claude.agent", "claude.agent"]"#,
        ),
        (
            &[(Some("b"), "codex")],
            "flow.yaml:6:65: error[unsupported-capability]: `codex` cannot use `tools` of `claude` (help: remove it, or keep the provider of this node)",
            "",
        ),
    ];
    for (changes, problems, types) in rows {
        assert_eq!(compile(changes), (problems.to_owned(), types.to_owned()), "{changes:?}");
    }
}

#[test]
fn what_holds_another_value_twice_many_levels_deep_is_checked() {
    let twice = |at: u32| {
        let before = format!("{{{{ n{}.value }}}}", at - 1);
        format!(
            "        - {{ id: n{at}, type: constant, dependsOn: n{}, input: {{ value: {{ a: \"{before}\", b: \"{before}\" }} }} }}\n",
            at - 1
        )
    };
    let nodes: String = (1..40).map(twice).collect();
    let text = format!(
        "flow: {{ name: twice }}\nnodes:\n  - id: turns\n    type: control.loop\n    input: {{ maxIterations: 2, until: n39.value.a }}\n    body:\n      nodes:\n        - {{ id: n0, type: constant, input: {{ value: 1 }} }}\n{nodes}"
    );
    assert!(compile(&loaded(&text), &crate::nodes::builtin_catalog([])).is_ok());
}
