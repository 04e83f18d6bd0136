//! Tests of the compiler, over the cases of `fixtures/compile` and texts made up here. The scheduler and the
//! runtime have their own.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use inspan_protocol::ProviderCapabilities;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::{
    Code, Condition, DescribeNode, NodeIx, NodeKind, NodeTypeInfo, Occupies,
    graph::{EdgeIx, Join, NodeSession, OnExhausted, Retry, RetryOn, SessionMode},
    testing::{load, loaded},
};

mod found;
mod promises;
mod warned;

/// A node type that is only described.
struct Described {
    name: &'static str,
    pack: &'static str,
    kind: NodeKind,
    input: Value,
    providers: &'static [&'static str],
    can: Option<ProviderCapabilities>,
    output: Value,
}

impl DescribeNode for Described {
    fn describe(&self) -> NodeTypeInfo {
        NodeTypeInfo {
            name: self.name.into(),
            pack: self.pack.into(),
            help: format!("The type {}.", self.name),
            input: self.input.clone(),
            output: self.output.clone(),
            kind: self.kind,
            occupies: Occupies::Slot,
        }
    }

    fn providers(&self) -> Option<Vec<String>> {
        (!self.providers.is_empty()).then(|| self.providers.iter().map(|name| (*name).to_owned()).collect())
    }

    fn input_schema_for(&self, input: &Value) -> Option<Value> {
        let provider = input.get("provider")?.as_str()?;
        (provider == "claude").then(|| agent_schema(&json!({ "provider": { "type": "string" } })))
    }

    fn capabilities_for(&self, _: &Value) -> Option<ProviderCapabilities> {
        self.can
    }
}

fn agent_schema(more: &Value) -> Value {
    let mut schema = json!({
        "type": "object",
        "properties": {
            "prompt": { "type": "string" },
            "messages": { "type": "array" },
            "options": {
                "type": "object",
                "properties": {
                    "model": { "type": ["string", "null"] },
                    "maxTurns": { "type": "integer", "minimum": 1 },
                    "outputSchema": { "type": "object" },
                    "tools": { "type": "array", "items": { "type": "string" } },
                    "allowedTools": { "type": "array", "items": { "type": "string" } },
                    "disallowedTools": { "type": "array", "items": { "type": "string" } },
                    "maxThinkingTokens": { "type": "integer" },
                    "mcpServers": { "type": ["object", "null"] },
                    "maxBudgetUsd": { "type": "number" },
                    "permissionMode": { "enum": ["ask", "allow", "deny"] },
                    "thinking": { "anyOf": [{ "type": "string" }, { "type": "null" }] },
                },
                "additionalProperties": false,
            },
        },
        "additionalProperties": false,
    });
    if let (Some(properties), Some(more)) = (schema["properties"].as_object_mut(), more.as_object()) {
        properties.extend(more.clone());
    }
    schema
}

fn object(properties: Value, required: &[&str]) -> Value {
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

/// What every provider gives, in short.
fn turn_output() -> Value {
    json!({
        "type": "object",
        "required": ["text", "usage", "numTurns", "stopReason"],
        "properties": {
            "text": { "type": "string" },
            "structuredOutput": {},
            "sessionId": { "type": ["string", "null"] },
            "costUsd": { "type": ["number", "null"] },
            "numTurns": { "type": "integer" },
            "stopReason": { "oneOf": [{ "const": "complete", "type": "string" }, { "const": "maxTurns" }] },
            "usage": { "type": "object", "properties": { "inputTokens": { "type": "integer", "default": 0 } } },
        },
    })
}

/// The types that come with Inspan, and agents of providers that are only described.
pub(crate) fn registry() -> NodeCatalog {
    let mut registry = crate::nodes::builtin_catalog([]);
    let map = json!({ "list": { "type": "array" }, "template": { "x-raw": true } });
    registry.register(Described {
        name: "data.map",
        pack: "data",
        kind: NodeKind::Plain,
        input: object(map, &["list", "template"]),
        providers: &[],
        can: None,
        output: json!({}),
    });
    let all = ProviderCapabilities {
        structured_output: true,
        permissions: true,
        tools: true,
        thinking: true,
        ..ProviderCapabilities::default()
    };
    let agent = |name, providers, can, more| Described {
        name,
        pack: "agents",
        kind: NodeKind::Agent,
        input: agent_schema(&more),
        providers,
        can: Some(can),
        output: turn_output(),
    };
    let forks = ProviderCapabilities { fork: true, ..all };
    registry.register(agent("claude.agent", &[], forks, json!({})));
    registry.register(agent("codex.agent", &[], all, json!({})));
    registry.register(agent("echo.agent", &[], ProviderCapabilities::default(), json!({})));
    let open = json!({ "provider": { "type": "string" } });
    registry.register(agent("agent.run", &["claude", "codex"], all, open));
    registry
}

/// Compiles a text without files; the problems as printed.
pub(crate) fn compiled(text: &str) -> Result<Graph, String> {
    let loaded = loaded(text);
    compile(&loaded, &registry()).map(|compiled| compiled.graph).map_err(|problems| problems.to_string())
}

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/compile");

/// The line between a flow and the comment with what the compiler reports of it.
const REPORT: &str = "# The compiler reports:\n";

/// The file of a case: `<case>.yaml`, or `flow.yaml` in a folder with the files that it names.
fn case_file(case: &str) -> PathBuf {
    let alone = Path::new(FIXTURES).join(format!("{case}.yaml"));
    if alone.is_file() { alone } else { Path::new(FIXTURES).join(case).join("flow.yaml") }
}

/// The flow of a case.
pub(crate) fn fixture_text(case: &str) -> String {
    let text = fs::read_to_string(case_file(case)).unwrap();
    text.split_once(REPORT).map_or(text.clone(), |(flow, _)| flow.to_owned())
}

fn fixture(case: &str) -> Loaded {
    load(&Path::new(FIXTURES).join(case), fixture_text(case))
}

fn cases() -> Vec<String> {
    let entries = fs::read_dir(FIXTURES).unwrap().map(|entry| entry.unwrap().path());
    let mut cases: Vec<_> =
        entries.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned()).collect();
    cases.sort();
    cases
}

/// Each case of `fixtures/compile` is a flow and what the compiler reports of it.
#[test]
fn fixtures_give_their_diagnostics() {
    let registry = registry();
    let mut wrong = Vec::new();
    for case in cases() {
        let report = match compile(&fixture(&case), &registry) {
            Ok(compiled) => format!("{}\nthe flow can run\n", compiled.warnings).trim_start().to_owned(),
            Err(problems) => format!("{problems}\n"),
        };
        let report: String =
            report.lines().map(|line| format!("{}\n", format!("# {line}").trim_end())).collect();
        let whole = format!("{}{REPORT}{report}", fixture_text(&case));
        let checked = inspan_testkit::check_golden(case_file(&case), &whole);
        wrong.extend(checked.err().map(|error| error.to_string()));
    }
    assert_eq!(wrong.concat(), "");
}

/// A code without a fixture is a code without a test.
#[test]
fn every_code_has_a_fixture() {
    let reports: String = cases().iter().map(|case| fs::read_to_string(case_file(case)).unwrap()).collect();
    let unseen: Vec<_> = Code::ALL.iter().filter(|code| !reports.contains(&format!("[{code}]"))).collect();
    assert_eq!(unseen, Vec::<&Code>::new());
}

#[test]
fn a_flow_becomes_a_graph() {
    let graph = compile(&fixture("fix-issue"), &registry()).unwrap().graph;
    let at = |id: &str| graph.flow().find(id).unwrap();
    let ids = |nodes: &[NodeIx]| {
        nodes.iter().map(|node| graph.flow().node(*node).id.to_string()).collect::<Vec<_>>()
    };
    let spell = |edge: EdgeIx| {
        let edge = graph.flow().edge(edge);
        format!("{}->{}", graph.flow().node(edge.from).id, graph.flow().node(edge.to).id)
    };
    let shape: Vec<_> = graph
        .flow()
        .nodes
        .iter()
        .map(|node| {
            let spelled = |edges: &[EdgeIx]| edges.iter().map(|edge| spell(*edge)).collect::<Vec<_>>();
            (node.id.to_string(), spelled(&node.incoming), spelled(&node.outgoing), spelled(&node.loops))
        })
        .collect();
    let row = |id: &str, incoming: &[&str], outgoing: &[&str], loops: &[&str]| {
        let own = |edges: &[&str]| edges.iter().map(|edge| (*edge).to_owned()).collect::<Vec<_>>();
        (id.to_owned(), own(incoming), own(outgoing), own(loops))
    };
    assert_eq!(
        shape,
        [
            row("plan", &[], &["plan->code"], &[]),
            row("code", &["plan->code"], &["code->review"], &[]),
            row("review", &["code->review"], &["review->ok"], &["review->code"]),
            row("ok", &["review->ok"], &["ok->open"], &[]),
            row("open", &["ok->open"], &[], &[]),
        ]
    );
    let cycle = graph.flow().edges[1].cycle.as_ref().unwrap();
    assert_eq!(
        (cycle.max_iterations, cycle.on_exhausted, ids(&cycle.body)),
        (5, OnExhausted::Fail, vec!["code".to_owned(), "review".to_owned()])
    );
    let code = graph.flow().node(at("code"));
    assert_eq!(
        (code.session, code.join, &code.policy.retry),
        (
            Some(NodeSession { depth: 0, node: at("code"), mode: SessionMode::Continue, can_branch: true }),
            Join::Resolved,
            &Retry {
                max_attempts: 3,
                backoff: std::time::Duration::from_secs(5),
                on: RetryOn::Retryable,
                ..Retry::default()
            }
        )
    );
    assert_eq!(graph.flow().policy.max_concurrency, Some(4));
    assert_eq!(graph.flow().policy.timeout, Some(std::time::Duration::from_secs(7200)));
    assert_eq!(graph.hash.len(), 64);
}

#[test]
fn files_stand_in_for_what_they_hold() {
    let graph = compile(&fixture("fix-issue"), &registry()).unwrap().graph;
    let plan = graph.flow().node(graph.flow().find("plan").unwrap());
    let flow = json!({ "input": { "issue": "#7", "repo": "." } });
    let outputs = vec![None; graph.flow().nodes.len()];
    let empty = json!({});
    let scope = crate::Scope::new(&outputs, &flow, &empty, &empty);
    let schema =
        json!({ "type": "object", "properties": { "title": { "type": "string" } }, "required": ["title"] });
    assert_eq!(
        plan.input.resolve(&scope),
        Ok(
            json!({ "prompt": "Plan how to fix #7 in ..", "options": { "outputSchema": schema, "maxTurns": 20 } })
        )
    );
    let open = graph.flow().node(graph.flow().find("open").unwrap());
    assert_eq!(open.input.resolve(&scope), Ok(json!({ "argv": ["gh", "pr", "create", "--fill"] })));
}

#[test]
fn conditions_in_inputs_resolve_to_truth() {
    let graph = compile(&fixture("flat-shape"), &registry()).unwrap().graph;
    let resolve = |id: &str, first: Value| {
        let outputs = vec![Some(Arc::new(first)), None, None, None];
        let empty = json!({});
        let scope = crate::Scope::new(&outputs, &empty, &empty, &empty);
        graph.flow().node(graph.flow().find(id).unwrap()).input.resolve(&scope).unwrap()
    };
    assert_eq!(
        [
            resolve("check", json!({ "value": { "n": 1 } })),
            resolve("check", json!({ "value": {} })),
            resolve("each", json!({})),
        ],
        [
            json!({ "condition": true }),
            json!({ "condition": false }),
            json!({ "list": [1, 2], "template": "{{ item * 2 }}" }),
        ]
    );
    assert_eq!(graph.flow().node(graph.flow().find("join").unwrap()).join, Join::Any);
    assert_eq!((graph.phase.as_str(), graph.version.as_deref()), ("Review", Some("0.1.0")));
}

#[test]
fn conditions_of_nodes_hold_as_written() {
    let graph = compile(&fixture("conditions"), &registry()).unwrap().graph;
    let mut outputs = vec![None; graph.flow().nodes.len()];
    outputs[0] = Some(Arc::new(json!({ "value": { "passed": false, "issues": ["one", "two"] } })));
    let [flow, state, locals] = [json!({ "input": { "depth": 2 } }), json!({ "seen": 0 }), json!({})];
    let scope = crate::Scope::new(&outputs, &flow, &state, &locals);
    let holds = |when: &Option<Condition>| when.as_ref().map(|when| when.holds(&scope).unwrap());
    let said: Vec<_> = graph.flow().nodes.iter().map(|node| (node.id.as_str(), holds(&node.when))).collect();
    assert_eq!(
        said,
        [
            ("first", None),
            ("bare", Some(false)),
            ("negated", Some(true)),
            ("braced", Some(true)),
            ("tested", Some(false)),
            ("later", Some(true)),
            ("nested", Some(true)),
        ]
    );
    let nested = graph.flow().node(graph.flow().find("nested").unwrap());
    assert_eq!(nested.input.resolve(&scope), Ok(json!({ "text": "1. one\n2. two\n" })));
}

#[test]
fn yaml_scalars_keep_what_was_written() {
    let graph = compile(&fixture("layout"), &registry()).unwrap().graph;
    let outputs = vec![None; 1];
    let empty = json!({});
    let scope = crate::Scope::new(&outputs, &empty, &empty, &empty);
    assert_eq!(
        graph.flow().nodes[0].input.resolve(&scope),
        Ok(json!({ "value": {
            "answers": ["yes", "no", "on", "off", "true", "007", "1_000", 31, 0.5, 1000.0, null],
            "folded": "one line",
            "literal": "two\nlines\n",
            "raw": "{{ not.bound }}",
            "braces": "a { b } c",
            "<<": "no merge",
        } }))
    );
}

#[test]
fn a_problem_in_a_text_of_several_lines_has_its_own_place() {
    let text = "
name: f
nodes:
  - id: a
    type: exec
    input:
      argv:
        - echo
        - >-
          ä one

            {{ za.a }} two {{ zb.b }}
        - 'it
          {{ zc.c }}'
        - \"{{ zd.d }}
          \\ta {{ ze.e }}\"
        - plain
          {{ zf.f }} # {{ not.it }}
";
    let problems = crate::testing::problems(text);
    let places =
        [(12, 16, "za"), (12, 31, "zb"), (14, 14, "zc"), (15, 11, "ze"), (15, 15, "zd"), (18, 14, "zf")];
    let expected = places.map(|(line, column, name)| {
        format!("flow.yaml:{line}:{column}: error[unknown-binding]: unknown name `{name}`")
    });
    let found: Vec<_> = problems.lines().filter(|line| line.contains("unknown name")).collect();
    assert_eq!(found, expected, "{problems}");
}

#[test]
fn merged_policies_keep_their_own_keys() {
    let graph = compile(&fixture("anchors"), &registry()).unwrap().graph;
    let said: Vec<_> = graph
        .flow()
        .nodes
        .iter()
        .map(|node| (node.policy.timeout.map(|time| time.as_secs()), node.policy.retry.max_attempts))
        .collect();
    assert_eq!(said, [(Some(300), 2), (Some(300), 2), (Some(3600), 2)]);
}

#[test]
fn what_is_nested_deeper_than_the_reader_goes_is_not_called_badly_indented() {
    let text = format!("nodes: []\nstate:\n  x: {}", "[".repeat(5000));
    let expected = "flow.yaml:3:261: error[too-large]: values are nested too deep";
    assert_eq!(compiled(&text).unwrap_err(), expected);
}

#[test]
fn the_hash_follows_every_text() {
    let hash = |text: &str, file: &str| {
        let files = BTreeMap::from([("p.md".to_owned(), file.to_owned())]);
        let loaded = Loaded::from_text("flow.yaml", text, files);
        compile(&loaded, &registry()).unwrap().graph.hash
    };
    let text = "name: x\nnodes:\n  - { id: a, type: claude.agent, promptFile: p.md }\n";
    let first = hash(text, "Hello");
    let same = [hash(text, "Hello"), hash(&text.replace('\n', "\r\n"), "Hello")];
    let other = [hash(text, "Hello!"), hash(&text.replace("id: a", "id: b"), "Hello")];
    assert_eq!(same.each_ref().map(|hash| *hash == first), [true, true]);
    assert_eq!(other.each_ref().map(|hash| *hash == first), [false, false]);
}

#[test]
fn included_files_of_windows_are_as_those_of_others() {
    let text = "flow: { name: x, inputSchemaFile: s.json }\nnodes:\n  - { id: a, type: claude.agent, promptFile: p.md }\n";
    let graph = |prompt: &str, schema: &str| {
        let files =
            [("p.md", prompt), ("s.json", schema)].map(|(name, text)| (name.to_owned(), text.to_owned()));
        compile(&Loaded::from_text("flow.yaml", text, BTreeMap::from(files)), &registry()).unwrap().graph
    };
    let plain = graph("One\n\nTwo\n", "{ \"type\":\n\"object\" }");
    let windows = graph("\u{feff}One\r\n\r\nTwo\r\n", "\u{feff}{ \"type\":\r\n\"object\" }");
    let prompt = |graph: &Graph| format!("{:?}", graph.flow().nodes[0].input.part(&["prompt"]));
    assert!(prompt(&plain).contains("One\\n\\nTwo"), "{}", prompt(&plain));
    assert_eq!(prompt(&windows), prompt(&plain));
    assert_eq!(windows.input_schema, plain.input_schema);
}

#[test]
fn given_input_is_merged_and_checked() {
    let graph = |header: &str| {
        compiled(&format!(
            "flow:\n  name: f\n{header}nodes:\n  - {{ id: a, type: echo, input: {{ text: a }} }}\n"
        ))
        .unwrap()
    };
    let check = |graph: &Graph, given: Value| {
        let Value::Object(given) = given else { return Err("no object".to_owned()) };
        check_input(graph, given).map(Value::Object).map_err(|error| error.to_string())
    };
    let open = graph("");
    let defaults = graph("  input: { topic: rust, depth: 2 }\n");
    let schema = graph(
        "  input: { depth: 2 }\n  inputSchema:\n    type: object\n    required: [topic]\n    properties:\n      topic: { type: string }\n      depth: { type: integer }\n",
    );
    assert_eq!(
        [
            check(&open, json!({ "anything": 1 })),
            check(&defaults, json!({ "depth": 3 })),
            check(&defaults, json!({ "dpeth": 3, "x": 1 })),
            check(&schema, json!({ "topic": "a" })),
            check(&schema, json!({ "depth": "secret" })),
        ],
        [
            Ok(json!({ "anything": 1 })),
            Ok(json!({ "topic": "rust", "depth": 3 })),
            Err("invalid input for flow `f`: unknown input `dpeth`: did you mean `depth`?; unknown input `x`: it has `depth`, `topic`".to_owned()),
            Ok(json!({ "topic": "a", "depth": 2 })),
            Err("invalid input for flow `f`: \"topic\" is a required property; `depth`: the value is not of type \"integer\"".to_owned()),
        ]
    );
}

#[test]
fn a_diagnostic_is_data() {
    let problems = compile(&fixture("many-at-once"), &registry()).unwrap_err();
    let mut one = serde_json::to_value(&problems[3]).unwrap();
    one["path"] = json!("flow.yaml");
    assert_eq!(
        one,
        json!({
            "code": "unknown-key",
            "severity": "error",
            "message": "unknown option `modle` for `claude.agent`",
            "help": "did you mean `model`?",
            "path": "flow.yaml",
            "line": 6,
            "column": 84,
            "end": { "line": 6, "column": 89 },
            "node": "code",
            "key": "nodes[1].input.options.modle",
        })
    );
}

/// Cuts, doubles and swaps parts of a flow that is good.
fn damaged() -> impl Strategy<Value = String> {
    let good = fixture_text("fix-issue");
    let length = good.len();
    let splinter = prop_oneof![
        Just(String::new()),
        "[ \\n:{}\\[\\]\"'|>&*!%#-]{1,4}",
        "(id|type|edges|from|null|<<|: |- |\\{\\{|\\}\\}|\\{%){1,3}",
    ];
    prop::collection::vec((0..length, 0..40_usize, splinter), 1..4).prop_map(move |cuts| {
        let mut text: Vec<char> = good.chars().collect();
        for (at, width, splinter) in cuts {
            let at = at.min(text.len());
            let end = (at + width).min(text.len());
            text.splice(at..end, splinter.chars());
        }
        text.into_iter().collect()
    })
}

fn says_something(text: &str) -> bool {
    static REGISTRY: std::sync::LazyLock<NodeCatalog> = std::sync::LazyLock::new(registry);
    let loaded = loaded(text);
    match compile(&loaded, &REGISTRY) {
        Ok(compiled) => !compiled.graph.flow().nodes.is_empty() && !compiled.warnings.has_errors(),
        Err(problems) => {
            let lines = u32::try_from(text.lines().count()).unwrap() + 1;
            problems.has_errors()
                && problems
                    .windows(2)
                    .all(|pair| pair[0].path != pair[1].path || pair[0].start <= pair[1].start)
                && problems.iter().all(|problem| {
                    problem.start.line >= 1 && problem.start.column >= 1 && problem.start.line <= lines
                })
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_text_gives_a_graph_or_problems(text in "[ -~\\n\u{e9}\u{1f600}]{0,200}") {
        prop_assert!(says_something(&text));
    }

    #[test]
    fn any_damage_gives_a_graph_or_problems(text in damaged()) {
        prop_assert!(says_something(&text));
    }
}

/// The schemas of the types that come with Inspan, made from their Rust types, are tested with inputs in
/// the same way as those made by hand above.
#[test]
fn the_types_that_come_with_inspan_refuse_slips() {
    let types = crate::nodes::builtin_catalog([]);
    let text = r#"name: real
nodes:
  - { id: first, type: constant, input: { value: { n: 2 } } }
  - id: way
    type: control.switch
    dependsOn: first
    input:
      value: "{{ first.value.n }}"
      cases:
        - { when: { equals: { var: first.value.n, value: 1 } }, route: one }
        - { when: "frist.value.n == 2", route: two }
        - { when: "first.value.n == 2", rout: two }
  - { id: run, type: exec, dependsOn: way, when: "way.rout == 'two'", input: { argv: [ls], parse: jsn, cdw: . } }
  - { id: ask, type: human.input, dependsOn: way, input: { prompt: "{{ way.route }}?", choices: yes } }
  - { id: agent, type: agent.run, dependsOn: way, input: { provider: claude, prompt: hi } }
  - { id: wait, type: control.wait, dependsOn: way, input: { ms: soon } }
"#;
    let loaded = loaded(text);
    let problems = compile(&loaded, &types).unwrap_err().to_string();
    assert_eq!(
        problems.lines().collect::<Vec<_>>(),
        [
            "flow.yaml:11:20: error[unknown-binding]: unknown name `frist` (help: did you mean `first`?)",
            "flow.yaml:12:11: error[missing-key]: `cases[2]` requires `route`",
            "flow.yaml:12:41: error[unknown-key]: unknown option `rout` for `control.switch` (help: did you mean `route`?)",
            "flow.yaml:13:55: warning[unknown-binding]: `way` has no `rout` (help: did you mean `route`?)",
            "flow.yaml:13:99: error[invalid-value]: invalid value `jsn` for `parse` (help: did you mean `json`?)",
            "flow.yaml:13:104: error[unknown-key]: unknown option `cdw` for `exec` (help: did you mean `cwd`?)",
            "flow.yaml:14:97: error[wrong-type]: `choices` must be a list, found a string (help: write a list: `[yes]`)",
            "flow.yaml:15:70: error[unknown-provider]: unknown provider `claude` (help: no provider is registered)",
            "flow.yaml:16:66: error[wrong-type]: `ms` must be an integer, found a string",
        ]
    );
    let schema = crate::flow_schema(&types);
    assert!(jsonschema::validator_for(&schema).is_ok());
}
