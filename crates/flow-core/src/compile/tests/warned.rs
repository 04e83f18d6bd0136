//! What `inspan check` says of flows that can run and do something else than they seem to: conditions that always hold, names
//! of templates, outputs that are not there, dependencies that do not count.

use serde_json::Value;

use crate::{compile, nodes::builtin_catalog, testing::loaded};

/// What `inspan check` says of a flow, without its places.
fn found(text: &str) -> Vec<String> {
    let said = match compile(&loaded(text), &builtin_catalog([])) {
        Ok(compiled) => compiled.warnings.to_string(),
        Err(found) => found.to_string(),
    };
    said.lines().map(|line| line.splitn(4, ':').last().unwrap_or_default().trim().to_owned()).collect()
}

#[test]
fn a_condition_that_always_or_never_holds_is_reported() {
    let said = |when: &str| {
        let found = found(&format!(
            "name: f
input: {{ n: 1, mode: fast }}
inputSchema: {{ properties: {{ n: {{ type: integer }}, mode: {{ enum: [fast, slow] }} }} }}
nodes:
  - {{ id: ask, type: human.input, input: {{ prompt: '?', choices: ['yes', 'no'] }} }}
  - {{ id: free, type: human.input, input: {{ prompt: '?' }} }}
  - {{ id: small, type: control.if, input: {{ condition: 'flow.input.n < 3' }} }}
  - {{ id: run, type: exec, input: {{ argv: [ls] }} }}
  - {{ id: perhaps, type: exec, when: flow.input.n, input: {{ argv: [ls] }} }}
  - id: last
    type: echo
    dependsOn: [ask, free, small, run, perhaps]
    when: {}
    input: {{ text: x }}
",
            Value::from(when)
        ));
        found
            .into_iter()
            .map(|line| line.replace("warning[constant-condition]: ", ""))
            .collect::<Vec<_>>()
            .join("|")
    };
    let choice = "`ask.choice` always counts as true: it is `\"yes\"` or `\"no\"` (help: compare it: `ask.choice == 'yes'`)";
    let small = "`small` always counts as true: it is a mapping that is never empty (help: ask for `small.condition`)";
    let rows = [
        ("ask.choice", choice),
        ("not ask.choice", choice),
        ("ask.choice and small.condition", choice),
        ("small", small),
        ("{{ small }}", small),
        ("not small", small),
        ("not small and flow.input.n", small),
        (
            "run",
            "`run` always counts as true: it is a mapping that is never empty (help: ask for `run.stdout`)",
        ),
        (
            "flow.input.mode",
            "`flow.input.mode` always counts as true: it is `\"fast\"` or `\"slow\"` (help: compare it: `flow.input.mode == 'fast'`)",
        ),
        ("free.choice", "`free.choice` never counts as true: it is null"),
        (
            "ask.choice == 'yes' or 'maybe'",
            "this always holds: `'maybe'` beside `or` counts as true (help: compare both: `ask.choice in ['yes', 'maybe']`)",
        ),
        (
            "run.exitCode == 1 or 2",
            "this always holds: `2` beside `or` counts as true (help: compare both: `run.exitCode in [1, 2]`)",
        ),
        (
            "'yes' and run.stdout",
            "`\"yes\"` always counts as true: it is a text (help: compare it: `… == …`)",
        ),
        (
            "'{{ ask.choice }}' != 'no'",
            "`\"{{ ask.choice }}\"` stays text: an expression has no templates in it (help: write the name alone: `ask.choice`)",
        ),
        (
            "'FAIL' in '{{ run.stdout }}'",
            "`\"{{ run.stdout }}\"` stays text: an expression has no templates in it (help: write the name alone: `run.stdout`)",
        ),
        (
            "'{{ run.stdout }}'",
            "`\"{{ run.stdout }}\"` always counts as true: it stays text: an expression has no templates in it (help: write the name alone: `run.stdout`)",
        ),
        // What may be meant, or is not known.
        ("true or small.condition", ""),
        ("1 == 1", ""),
        ("'{{ name }}' in run.stdout", ""),
        ("run.stdout or run.stderr", ""),
        ("(ask.choice or 'none') == 'yes'", ""),
        ("(perhaps | default('')) != ''", ""),
        ("perhaps is defined and perhaps", ""),
        ("ask.choice == 'yes' and ask.choice", ""),
        ("'yes' if small.condition else ''", ""),
        ("small.condition", ""),
        ("free.content", ""),
        ("flow.input.n", ""),
    ];
    for (when, expected) in rows {
        assert_eq!(said(when), expected, "{when}");
    }
}

#[test]
fn conditions_in_loops_branches_and_structures_are_asked_alike() {
    let said = found(
        "name: f
nodes:
  - { id: ask, type: human.input, input: { prompt: '?', choices: ['yes', 'no'] } }
  - { id: way, type: control.switch, dependsOn: ask, input: { value: x, cases: [{ when: ask, route: a }, { when: \"ask.choice == 'yes'\", route: b }] } }
  - { id: test, type: control.if, dependsOn: ask, input: { condition: { and: [{ not: ask.choice }, { or: [ask.content] }] } } }
  - id: again
    type: control.loop
    input: { maxIterations: 2, until: review }
    body: { nodes: [{ id: review, type: exec, input: { argv: [ls] } }] }
  - { id: end, type: echo, input: { text: x } }
edges: [{ from: ask, to: end, when: ask }]
",
    );
    let names = said.iter().map(|line| line.split(": ").nth(1).unwrap_or_default()).collect::<Vec<_>>();
    let choice = "`ask.choice` always counts as true";
    let ask = "`ask` always counts as true";
    let content = "`ask.content` always counts as true";
    assert_eq!(names, [ask, choice, content, "`review` always counts as true", ask], "{said:?}");
}

/// A name that a template sets means what it means elsewhere where it is not set yet, or no longer.
#[test]
fn names_of_a_template_count_only_where_they_are_set() {
    let said = |text: &str, depends: &str| {
        let flow = format!(
            "name: f\ninput: {{ l: [1, 2] }}\nnodes:\n  - {{ id: a, type: exec, input: {{ argv: [ls], parse: json }} }}\n  - {{ id: b, type: echo, dependsOn: {depends}, input: {{ text: {} }} }}",
            Value::from(text)
        );
        found(&flow).join("|")
    };
    let right = [
        "{% set a = a.value %}{{ a | length }}",
        "{% for a in a.value %}{{ a }}{% endfor %}",
        "{% with a = a.value %}{{ a }}{% endwith %}",
        "{% for a in [5] %}{{ a }}{% endfor %}{{ a.value }}",
        "{% if flow.input.l %}{% set a = a.value %}{% endif %}{{ a }}",
        "{% if flow.input.l %}{% set x = 1 %}{% else %}{% set x = 2 %}{% endif %}{{ x }}",
        "{% set ns = namespace(n=0) %}{% for x in flow.input.l %}{% set ns.n = ns.n + x %}{% endfor %}{{ ns.n }}",
        "{% for x in flow.input.l recursive %}{% set y = x %}{{ y }}{% endfor %}",
        "{% set a %}{{ a.stdout }}{% endset %}{{ a }}",
    ];
    assert_eq!(right.map(|text| said(text, "[a]")), [""; 9]);
    let missing = "error[unknown-binding]: `a` never runs before `b`: no path of edges leads there (help: add an edge from `a`, or give a default: `{{ a | default(…) }}`)";
    let wrong = [
        "{% for a in flow.input.l %}{{ a }}{% endfor %}{{ a.stdout }}",
        "{% set a = a.value %}{{ a }}",
        "{% with a = 1 %}{{ a }}{% endwith %}{{ a.stdout }}",
    ];
    assert_eq!(wrong.map(|text| said(text, "[]")), [missing; 3]);
    let inside = said("{% for x in flow.input.l %}{% set y = x %}{% endfor %}{{ y }}", "[]");
    assert!(
        inside.starts_with("error[unknown-binding]: `y` has no value here: the template sets it elsewhere"),
        "{inside}"
    );
}

/// Two ways of saying what a node waits for, of which only one counts; and what a clean-up reads that may not be there.
#[test]
fn dependencies_that_differ_from_an_edge_and_outputs_that_a_clean_up_may_lack_are_reported() {
    let twice = |depends: &str, edge: &str| {
        found(&format!(
            "name: f\nnodes:\n  - {{ id: a, type: exec, input: {{ argv: [ls] }} }}\n  - {{ id: b, type: exec, dependsOn: {depends}, input: {{ argv: [ls] }} }}\nedges: [{{ from: a, to: b{edge} }}]"
        ))
        .join("|")
    };
    assert_eq!(
        [
            twice("[{ node: a, on: any }]", ", when: 'a.exitCode == 0'"),
            twice("[a]", ", when: 'a.exitCode == 0'"),
            twice("[a]", ""),
            twice("[{ node: a, on: failure }]", ""),
        ],
        [
            "error[duplicate-edge]: the edge from `a` on line 5 fires after another end of it (help: keep one of the two)",
            "warning[duplicate-edge]: this dependency is left out: the edge on line 5 counts, with its `when`",
            "warning[duplicate-edge]: this dependency is already declared on line 5",
            "",
        ]
    );
    let clean = |depends: &str, text: &str| {
        found(&format!(
            "name: f
nodes:
  - {{ id: box, type: exec, input: {{ argv: [ls] }} }}
  - {{ id: deploy, type: exec, dependsOn: box, input: {{ argv: [ls] }} }}
  - {{ id: clean, type: echo, dependsOn: {depends}, input: {{ text: \"{text}\" }} }}
"
        ))
        .join("|")
    };
    let lacks = "warning[maybe-skipped]: `box` may have no output: this also runs where it, or a node before it, has failed (help: test it first: `{% if box %}…{% endif %}`; or give a default: `{{ box.stdout | default(…) }}`)";
    let (read, tested) = ("{{ box.stdout }}", "{{ box.stdout | default('') }}");
    assert_eq!(clean("[{ node: deploy, on: any }]", read), lacks);
    assert_eq!(clean("[box, { node: deploy, on: any }]", read), lacks);
    assert_eq!(clean("[{ node: deploy, on: any }]", tested), "");
    assert_eq!(clean("[{ node: deploy, on: failure }]", read), "");
    assert_eq!(clean("[deploy]", read), "");
}

#[test]
fn what_an_error_cannot_have_is_reported_and_what_a_test_of_the_end_makes_safe_is_not() {
    let flow = |of_a: &str, of_b: &str, text: &str| {
        let text = Value::from(text);
        found(&format!(
            "name: f\nnodes:\n  - {{ id: a, type: exec, {of_a} input: {{ argv: [ls] }} }}\n  - {{ id: b, type: echo, {of_b}, input: {{ text: {text} }} }}"
        ))
        .join("|")
    };
    let failed = |text: &str| flow("", "dependsOn: [{ node: a, on: failure }]", text);
    let wrong = "error[unknown-binding]: `a.error` has no `mesage` (help: did you mean `message`?)";
    assert_eq!(failed("{{ a.error.mesage }}"), wrong);
    assert_eq!(flow("policy: { continueOnError: true },", "dependsOn: [a]", "{{ a.error.mesage }}"), wrong);
    assert_eq!(
        failed("{{ a.error.message }} {{ a.error.code }} {{ a.error.detail.stdout | default('') }}"),
        ""
    );
    // After a timeout there is none.
    assert_eq!(
        failed("{{ a.error.detail.stdout }}"),
        "warning[optional-value]: `a.error.detail` may be missing: its schema does not require it (help: give a default: `{{ a.error.detail | default(…) }}`)"
    );
    let schema = schemars::schema_for!(inspan_protocol::AgentError);
    for field in schema.get("properties").unwrap().as_object().unwrap().keys() {
        assert_eq!(failed(&format!("{{{{ a.error.{field} | default('') }}}}")), "", "{field}");
    }
    let after = |when: &str, text: &str| {
        flow("", &format!("dependsOn: [{{ node: a, on: any }}], when: {}", Value::from(when)), text)
    };
    let lacks = "warning[unknown-binding]: `a` may have failed or been skipped when this is evaluated (help: give a default: `a.stdout | default(…)`)";
    for safe in ["a.stdout is defined", "not a.failed", "a is defined and not a.failed"] {
        assert_eq!(after(safe, "{{ a.stdout }}"), "", "{safe}");
    }
    // A node that failed is defined, and a condition makes nothing safe in itself.
    for unsafe_ in ["a is defined", "flow.name == 'x'"] {
        assert_eq!(after(unsafe_, "{{ a.stdout }}"), lacks, "{unsafe_}");
    }
    assert_eq!(after("a.stdout == 'x'", "x"), lacks);
}

/// In an expression true is 1.
#[test]
fn true_and_false_are_compared_as_numbers() {
    let said = |when: &str| {
        let flow = format!(
            "name: f\ninput: {{ b: true }}\ninputSchema: {{ properties: {{ b: {{ type: boolean }}, n: {{ type: integer }} }} }}\nnodes: [{{ id: a, type: echo, when: {}, input: {{ text: x }} }}]",
            Value::from(when)
        );
        found(&flow).len()
    };
    let rows = ["flow.input.b == 1", "flow.input.b in [0]", "flow.input.b == 2", "flow.input.b == '1'"];
    assert_eq!(rows.map(said), [0, 0, 1, 1]);
}

/// What a node that ends the flow leaves out, and what the flow promises.
#[test]
fn outputs_that_an_early_end_leaves_out_or_that_the_schema_forbids_are_reported() {
    let early = |end: &str, nodes: &str| {
        found(&format!(
            "name: f
input: {{ items: [] }}
outputs: {{ result: '{{{{ work.stdout }}}}' }}
nodes:
  - {{ id: look, type: constant, input: {{ value: '{{{{ flow.input.items | length }}}}' }} }}
  - {{ id: nothing, type: control.end, input: {{ {end} }} }}
  - {{ id: work, type: exec, dependsOn: [look], input: {{ argv: [ls] }} }}
edges:
  - {{ from: look, to: nothing, when: look.value == 0 }}
{nodes}"
        ))
    };
    let cut = "warning[maybe-skipped]: `work` may have no output: it does not run where `nothing` ends the flow before it (help: test it first: `{% if work %}…{% endif %}`; or give a default: `{{ work.stdout | default(…) }}`)";
    assert_eq!(early("reason: none", ""), [cut]);
    assert_eq!(early("outputs: { result: none }", ""), [""; 0]);
    assert_eq!(early("reason: none", "  - { from: work, to: nothing }\n"), [""; 0]);
    let promised = |outputs: &str, end: &str| {
        found(&format!(
            "name: f
outputs: {outputs}
outputSchema: {{ type: object, required: [verdict, score], additionalProperties: false, properties: {{ verdict: {{ enum: [pass, fail] }}, score: {{ type: number }}, old: false }} }}
nodes:
  - {{ id: a, type: exec, input: {{ argv: [ls] }} }}
  - {{ id: stop, type: control.end, dependsOn: a, input: {{ outputs: {end} }} }}
"
        ))
        .iter()
        .map(|line| line.trim_start_matches("warning").to_owned())
        .collect::<Vec<_>>()
    };
    let right = "{ verdict: pass, score: 1 }";
    assert_eq!(promised("{ verdict: '{{ a.stdout }}', score: '{{ a.exitCode }}' }", right), [""; 0]);
    let wrong = promised(
        "{ verdict: maybe, score: '{{ a.stdout }}', extra: 1, old: '{{ a.stdout }}' }",
        "{ verdict: pass, score: x }",
    );
    assert_eq!(
        wrong,
        [
            "[unknown-key]: `outputSchema` does not allow `extra`",
            "[invalid-value]: `verdict` does not match `outputSchema`: the value is not one of \"pass\" or \"fail\"",
            "[wrong-type]: `score` must be a number, but `a.stdout` is a string (help: convert it: `… | float`)",
            "[unknown-key]: `outputSchema` does not allow `old`",
            "[wrong-type]: `outputSchema` wants a number as `score`, found a string",
        ]
    );
    let missing = promised("{ verdict: pass }", right);
    assert_eq!(missing, ["[missing-key]: `outputs` has no `score`, which `outputSchema` requires"]);
    // Which part of the schema holds is known when the template is.
    let depends = "
name: f
outputs: { score: '{{ a.exitCode }}' }
outputSchema: { if: { properties: { score: { type: string } } }, then: { required: [why] } }
nodes: [{ id: a, type: exec, input: { argv: [ls] } }]
";
    assert_eq!(found(depends), [""; 0]);
}

#[test]
fn a_default_makes_do_without_what_a_value_cannot_have() {
    let said = |text: &str| {
        let text = Value::from(text);
        found(&format!(
            "name: f\nnodes:\n  - id: l\n    type: control.foreach\n    input: {{ items: [{{ t: a, z: null }}] }}\n    body: {{ nodes: [{{ id: e, type: echo, input: {{ text: {text} }} }}] }}"
        ))
        .join("|")
    };
    assert_eq!(said("{{ item.z.v | default('-') }} {{ item.z[0] | default('-') }}"), "");
    assert_eq!(
        said("{{ item.t.v | default('-') }}"),
        "warning[unknown-binding]: `item.t` is a string, and has no `v`"
    );
    assert_eq!(said("{{ item.z.v }}"), "error[unknown-binding]: `item.z` is null, and has no `v`");
    assert_eq!(said("{{ item.z[0] }}"), "error[unknown-binding]: `item.z` is null, and has no item 0");
}

#[test]
fn what_an_item_that_failed_does_not_give_is_reported_where_no_test_makes_it_safe() {
    let said = |on_item_error: &str, text: &str| {
        let text = Value::from(text);
        found(&format!(
            "name: f\nnodes:\n  - id: w\n    type: control.foreach\n    input: {{ items: [0, 1]{on_item_error} }}\n    body: {{ outputs: {{ t: '{{{{ a.text }}}}' }}, nodes: [{{ id: a, type: echo, input: {{ text: x }} }}] }}\n  - {{ id: s, type: echo, dependsOn: [w], input: {{ text: {text} }} }}"
        ))
        .join("|")
    };
    let read = "{% for r in w.results %}{{ r.outputs.t }}{% endfor %}";
    let lacks = "warning[optional-value]: `r` may fail, and then it has no `outputs` (help: give a default: `{{ r.outputs | default(…) }}`; or test `{% if r.error is undefined %}`)";
    for (on_item_error, expected) in [
        (", onItemError: continue", lacks),
        (", onItemError: stop", lacks),
        (", onItemError: fail", ""),
        ("", ""),
    ] {
        assert_eq!(said(on_item_error, read), expected, "{on_item_error}");
    }
    for safe in [
        "{% for r in w.results %}{% if r.outputs %}{{ r.outputs.t }}{% endif %}{% endfor %}",
        "{% for r in w.results if r.error is undefined %}{{ r.outputs.t }}{% endfor %}",
        "{% for r in w.results %}{% if r.error %}x{% else %}{{ r.outputs.t }}{% endif %}{% endfor %}",
        "{% for r in w.results %}{{ 'x' if r.error is defined else r.outputs.t }}{% endfor %}",
        "{{ w.results | rejectattr('error') | map(attribute='outputs.t') | join }}",
        "{{ w.values[0].t }}{% if not w.results[0].error %}{{ w.results[0].outputs.t }}{% endif %}",
    ] {
        assert_eq!(said(", onItemError: continue", safe), "", "{safe}");
    }
}

#[test]
fn what_a_loop_without_a_pass_does_not_give_is_reported_where_its_first_pass_is_not_certain() {
    let said = |loop_while: &str, text: &str| {
        let (loop_while, text) = (Value::from(loop_while), Value::from(text));
        found(&format!(
            "name: f\ninput: {{ go: true }}\nnodes:\n  - id: w\n    type: control.loop\n    input: {{ maxIterations: 2, onExhausted: continue, while: {loop_while} }}\n    body: {{ outputs: {{ t: '{{{{ a.text }}}}' }}, nodes: [{{ id: a, type: echo, input: {{ text: x }} }}] }}\n  - {{ id: s, type: echo, dependsOn: [w], input: {{ text: {text} }} }}"
        ))
        .join("|")
    };
    let lacks = "warning[optional-value]: `w.outputs` has `t` only with a pass, and `while` may not hold before the first (help: give a default: `{{ w.outputs.t | default(…) }}`)";
    for unsure in ["frame.index > 5", "flow.input.go", "flow.input.go | default(true)"] {
        assert_eq!(said(unsure, "{{ w.outputs.t }}"), lacks, "{unsure}");
        assert_eq!(
            said(unsure, "{{ w.outputs.t | default('') }}{% if w.outputs.t %}{{ w.outputs.t }}{% endif %}"),
            ""
        );
    }
    for sure in [
        "frame.first or previous.t != 'x'",
        "frame.index < 1",
        "previous is undefined or previous.t != 'x'",
        "previous.t | default('') != 'x'",
        "passes | length < 2",
    ] {
        assert_eq!(said(sure, "{{ w.outputs.t }}"), "", "{sure}");
    }
}
