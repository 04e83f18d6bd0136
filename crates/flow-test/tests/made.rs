//! Cases made of sessions that really ran, and two sessions side by side.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::{fs, path::Path, sync::Arc};

use inspan_engine::{Filter, NodeCalls, ProviderRegistry, Recorder};
use inspan_flow::{
    FlowRunner, Graph, MemoryStore, NodeRegistry, RunStore, Select, SessionRecord, builtin_nodes, compile,
    load,
};
use inspan_flow_test::{AddError, ComparedSession, Comparison, MadeCase, Options, Suite, Trace, add_case};
use inspan_protocol::{Command, Envelope, Environment, Event, PermissionPolicy, Redactor, SessionId};
use serde_json::{Map, Value, json};

fn providers() -> ProviderRegistry {
    inspan_providers::builtin().into_iter().collect()
}

/// Runs a flow for real and records it in a folder named like the session, with a person who answers each question with the next of these texts.
fn run(
    flow: &Path,
    session: &str,
    input: Value,
    replies: &[&str],
) -> (SessionRecord, Vec<Arc<Envelope>>, Arc<Graph>, NodeRegistry) {
    let nodes = builtin_nodes(&providers());
    let graph = Arc::new(compile(&load(flow).unwrap(), &nodes).unwrap().graph);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (store, id) = (Arc::new(MemoryStore::new()), SessionId::from(session));
    let Value::Object(input) = input else { return unreachable_input() };
    let replies: Vec<String> = replies.iter().map(|text| (*text).to_owned()).collect();
    let env = [("PATH", "/usr/bin:/bin"), ("MY_API_KEY", SECRET)];
    let env: Environment =
        env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    runtime.block_on(async {
        let runner = FlowRunner::builder(graph.clone(), nodes.clone())
            .session_id(id.clone())
            .env(env)
            .permissions(PermissionPolicy::Deny)
            .node_calls(NodeCalls::Record(Recorder::new(flow.with_file_name(session)).unwrap()))
            .store(store.clone())
            .build();
        let (hub, left) = (runner.hub().clone(), std::sync::Mutex::new(replies.into_iter()));
        let of_hub = hub.clone();
        let answer = move |envelope: &Arc<Envelope>| {
            if let Event::SessionPrompt(prompt) = &envelope.event
                && let Some(content) = left.lock().unwrap().next()
            {
                of_hub
                    .command(Command::Reply { prompt: prompt.prompt_id.clone(), content, choice: None })
                    .unwrap();
            }
        };
        let _person = hub.observe(Filter::all(), Arc::new(answer));
        runner.run(input).await.unwrap();
        let record = store.record(&id).await.unwrap();
        let events = store.read(&id, 1, Select::All).await.unwrap();
        (record, events, graph, nodes)
    })
}

fn unreachable_input<T>() -> T {
    panic!("the input of a flow is an object")
}

const FLOW: &str = "
name: made
input: { word: ox, key: '' }
outputs: { said: '{{ write.text }}', all: ['{{ write }}'], file: '/tmp/{{ flow.sessionId }}/x', branch: 'fix-{{ flow.sessionId }}_1', so: [really] }
nodes:
  - id: write
    type: scripted.agent
    session: write
    input: { prompt: 'Say {{ flow.input.word }}.', options: { turns: [[{ text: \"A text.\\nOf two lines.\\n\" }], [{ text: second }]] } }
  - { id: list, type: exec, input: { argv: [sh, -c, 'echo one; echo two'], parse: lines } }
  - { id: broken, type: exec, input: { argv: [sh, -c, 'echo no >&2; exit 7'] }, policy: { continueOnError: true, retry: { maxAttempts: 2 } } }
  - { id: ok, type: human.input, input: { prompt: 'Go on?', choices: [yes, again] } }
  - { id: end, type: echo, input: { text: '{{ list.value | length }} {{ write.text }} {{ flow.input.key }}' } }
  - { id: names, type: constant, input: { value: [a, 'b-{{ flow.sessionId }}'] } }
edges:
  - { from: write, to: list }
  - { from: list, to: broken }
  - { from: broken, to: ok }
  - { from: ok, to: write, when: \"ok.choice == 'again'\", maxIterations: 2 }
  - { from: ok, to: end, when: \"ok.choice == 'yes'\" }
  - { from: ok, to: names, when: \"ok.choice == 'yes'\" }
";

const SECRET: &str = "sk-planted-0123456789abcdef";

#[test]
fn a_case_of_a_session_passes_and_holds_no_secret() {
    let folder = tempfile::tempdir().unwrap();
    let flow = folder.path().join("made.yaml");
    fs::write(&flow, FLOW).unwrap();
    let (record, events, graph, nodes) =
        run(&flow, "real", json!({ "word": "mule", "key": SECRET }), &["again", "yes"]);
    let env: Environment = [("MY_API_KEY".to_owned(), SECRET.to_owned())].into_iter().collect();
    let case = MadeCase::of(&record, (&graph, &nodes), &events, "as it was", &Redactor::new(&env));
    let file = folder.path().join("made.test.yaml");
    assert_eq!(add_case(&file, &case).unwrap(), "as it was");
    let text = fs::read_to_string(&file).unwrap();
    let expected = r#"cases:
  - name: as it was
    input:
      key: "[redacted MY_API_KEY]"
      word: mule
    answers:
      broken:
        exitCode: 7
        stderr: |
          no
        stdout: ""
      list: |
        one
        two
      write:
        - |
          A text.
          Of two lines.
        - second
    replies:
      ok: [again, "yes"]
    expect:
      outputs:
        end: { value: { text: "2 second [redacted MY_API_KEY]" } }
        flow.all[0].stopReason: complete
        flow.all[0].text: second
        flow.said: second
        flow.so: [really]
        names.value[0]: a
      path: [write, list, broken, ok, write#2, list#2, broken#2, ok#2, end, names]
      statuses: { broken: failed }
"#;
    assert!(!text.contains(SECRET), "{text}");
    assert_eq!(text, expected);
    let suite = Suite::new(&providers(), builtin_nodes);
    let report = suite.run(std::slice::from_ref(&file), &Options::default());
    assert!(report.passed(), "{}", report.tap());

    // Another goes to the end, under another name; what is there stays as it is.
    assert_eq!(add_case(&file, &case).unwrap(), "as it was (2)");
    let both = fs::read_to_string(&file).unwrap();
    assert_eq!(
        both,
        format!(
            "{expected}\n{}",
            expected.replacen("cases:\n", "", 1).replacen("as it was", "as it was (2)", 1)
        )
    );
    assert_eq!(suite.run(std::slice::from_ref(&file), &Options::default()).counts(), (2, 0));
}

#[test]
fn a_case_finds_its_place_or_says_why_not() {
    let folder = tempfile::tempdir().unwrap();
    let flow = folder.path().join("made.yaml");
    fs::write(&flow, "name: made\nnodes: [{ id: a, type: echo, input: { text: x } }]\n").unwrap();
    let (record, events, graph, nodes) = run(&flow, "real", json!({}), &[]);
    let case = MadeCase::of(&record, (&graph, &nodes), &events, "c", &Redactor::default());
    let body = "  - name: c\n    expect:\n      outputs: { a: { value: { text: x } } }\n      path: [a]\n";
    let rows = [
        ("made.test.yaml", None, Ok(format!("cases:\n{body}"))),
        ("tests/made.test.yaml", None, Ok(format!("cases:\n{body}"))),
        ("other.test.yaml", None, Ok(format!("flow: made.yaml\ncases:\n{body}"))),
        ("tests/other.test.yaml", None, Ok(format!("flow: ../made.yaml\ncases:\n{body}"))),
        (
            "wide.test.yaml",
            Some("flow: made.yaml\ncases:\n# first\n- name: b # one\n"),
            Ok(format!(
                "flow: made.yaml\ncases:\n# first\n- name: b # one\n\n{}",
                body.replace("\n  ", "\n").trim_start_matches("  ")
            )),
        ),
        (
            "flow.test.yaml",
            Some("flow: made.yaml\ncases: [{ name: b }]\n"),
            Err("`cases` is not a list with an item in each line, so that no case can be added"),
        ),
        (
            "kept.test.yaml",
            Some("cases:\n  - name: b\n    answers:\n      a: |+\n        x\n\n\n"),
            Ok(format!("cases:\n  - name: b\n    answers:\n      a: |+\n        x\n\n\n{body}")),
        ),
        (
            "kept-1.test.yaml",
            Some("cases:\n  - name: b\n    answers:\n      a: |+\n        x\n"),
            Ok(format!("cases:\n  - name: b\n    answers:\n      a: |+\n        x\n{body}")),
        ),
        (
            "last.test.yaml",
            Some("cases:\n  - name: b\nflow: made.yaml\n"),
            Err("`cases` is not the last key of the file, so that no case can be added"),
        ),
    ];
    for (name, before, expected) in rows {
        let file = folder.path().join(name);
        if let Some(before) = before {
            fs::write(&file, before).unwrap();
        }
        let added = add_case(&file, &case).map_err(|error| match error {
            AddError::Form { why, .. } => why,
            other => other.to_string(),
        });
        let text = fs::read_to_string(&file).unwrap();
        match expected {
            Ok(expected) => assert_eq!((added, text), (Ok("c".to_owned()), expected), "{name}"),
            Err(why) => assert_eq!((added, text.as_str()), (Err(why.to_owned()), before.unwrap()), "{name}"),
        }
    }
}

#[test]
fn a_recording_answers_where_its_input_has_the_word_test_and_the_id_of_its_session() {
    let folder = tempfile::tempdir().unwrap();
    let flow = folder.path().join("f.yaml");
    let text = "{ name: f, nodes: [{ id: a, type: exec, input: { argv: [echo, test, 'b-{{ flow.sessionId }}'] } }] }";
    fs::write(&flow, text).unwrap();
    run(&flow, "real", json!({}), &[]);
    let file = folder.path().join("f.test.yaml");
    fs::write(&file, "cases: [{ name: c, recordings: real }]").unwrap();
    let report = Suite::new(&providers(), builtin_nodes).run(&[file], &Options::default());
    assert!(report.passed(), "{}", report.tap());
}

#[test]
fn a_case_of_a_session_denies_the_tools_that_were_denied() {
    let folder = tempfile::tempdir().unwrap();
    let flow = folder.path().join("deny.yaml");
    let text = "
name: deny
nodes:
  - id: code
    type: scripted.agent
    input: { prompt: go, options: { turns: [[{ tool: { name: Bash, input: { command: ls }, ask: true } }, { text: no }]] } }
  - { id: said, type: echo, dependsOn: [code], when: code.permissionDenials, input: { text: '{{ code.permissionDenials[0].toolName }}' } }
";
    fs::write(&flow, text).unwrap();
    let (record, events, graph, nodes) = run(&flow, "s", json!({}), &[]);
    let case = MadeCase::of(&record, (&graph, &nodes), &events, "c", &Redactor::default());
    let file = folder.path().join("deny.test.yaml");
    add_case(&file, &case).unwrap();
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("ask: true") && text.contains("path: [code, said]"), "{text}");
    let report = Suite::new(&providers(), builtin_nodes).run(&[file], &Options::default());
    assert!(report.passed(), "{text}\n{}", report.tap());
}

#[test]
fn a_case_of_a_session_in_which_a_second_pass_repairs_an_item_expects_the_second() {
    let folder = tempfile::tempdir().unwrap();
    let flow = folder.path().join("repair.yaml");
    let mark = folder.path().join("mark");
    let text = format!(
        "
name: repair
nodes:
  - {{ id: start, type: echo, input: {{ text: go }} }}
  - id: each
    type: control.foreach
    policy: {{ continueOnError: true }}
    input: {{ items: [1] }}
    body: {{ nodes: [{{ id: a, type: exec, input: {{ argv: [rm, {}] }} }}] }}
  - {{ id: mend, type: exec, input: {{ argv: [touch, {0}] }} }}
edges:
  - {{ from: start, to: each }}
  - {{ from: each, to: mend, when: each.failed }}
  - {{ from: mend, to: start, maxIterations: 2 }}
",
        mark.display()
    );
    fs::write(&flow, text).unwrap();
    let (record, events, graph, nodes) = run(&flow, "s", json!({}), &[]);
    let case = MadeCase::of(&record, (&graph, &nodes), &events, "c", &Redactor::default());
    let file = folder.path().join("repair.test.yaml");
    add_case(&file, &case).unwrap();
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("each#2, ") && !text.contains("each[0]/a: failed"), "{text}");
    let report = Suite::new(&providers(), builtin_nodes).run(&[file], &Options::default());
    assert!(report.passed(), "{text}\n{}", report.tap());
}

#[test]
fn a_case_that_makes_its_file_too_large_is_refused_and_the_file_stays() {
    let folder = tempfile::tempdir().unwrap();
    let flow = folder.path().join("large.yaml");
    fs::write(
        &flow,
        "name: large\nnodes:\n  - { id: a, type: exec, input: { argv: [sh, -c, 'yes | head -c 5000000'] } }\n",
    )
    .unwrap();
    let (record, events, graph, nodes) = run(&flow, "s", json!({}), &[]);
    let case = MadeCase::of(&record, (&graph, &nodes), &events, "large", &Redactor::default());
    let file = folder.path().join("large.test.yaml");
    let small = "cases:\n  - name: small\n    answers: { a: ok }\n";
    for before in [Some(small), None] {
        let _ = fs::remove_file(&file);
        if let Some(text) = before {
            fs::write(&file, text).unwrap();
        }
        let error = add_case(&file, &case).unwrap_err();
        assert!(matches!(error, AddError::TooLarge { most: 8_388_608, .. }), "{error}");
        assert_eq!(fs::read_to_string(&file).ok().as_deref(), before);
    }
}

#[test]
fn a_case_of_a_session_that_waited_for_a_moment_begins_when_it_did() {
    let folder = tempfile::tempdir().unwrap();
    let flow = folder.path().join("made.yaml");
    let wait = "{ id: w, type: control.wait, input: { until: '2020-01-01T00:00:00Z' } }";
    fs::write(&flow, format!("name: made\nnodes: [{wait}]\n")).unwrap();
    let (record, events, graph, nodes) = run(&flow, "real", json!({}), &[]);
    let case = MadeCase::of(&record, (&graph, &nodes), &events, "c", &Redactor::default());
    let file = folder.path().join("made.test.yaml");
    add_case(&file, &case).unwrap();
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains(&format!("clock: \"{}\"", record.created_at)), "{text}");
}

#[test]
fn two_sessions_stand_side_by_side() {
    let folder = tempfile::tempdir().unwrap();
    let flow = folder.path().join("made.yaml");
    fs::write(&flow, FLOW).unwrap();
    let traces = [("one", ["yes", ""]), ("two", ["again", "yes"])]
        .map(|(session, replies)| Trace::of(&run(&flow, session, json!({ "key": "k" }), &replies).1));
    let [one, two] = &traces;
    let side = |id, trace| ComparedSession { id, flow: "made", state: "success", trace };
    let same = Comparison::of([side("one", one), side("one", one)]);
    assert!(same.same && same.path_difference.is_empty());
    let comparison = Comparison::of([side("one", one), side("two", two)]);
    let value = json!(comparison);
    let nodes: Map<String, Value> = comparison
        .nodes
        .iter()
        .map(|node| {
            let side = |side: &Option<inspan_flow_test::NodeSide>| {
                side.as_ref().map(|side| json!([side.status, side.attempts]))
            };
            let differs = !node.output_difference.is_empty();
            (node.path.clone(), json!([side(&node.sides[0]), side(&node.sides[1]), differs]))
        })
        .collect();
    let expected = json!({
        "write": [["complete", 1], ["complete", 2], true],
        "list": [["complete", 1], ["complete", 2], false],
        "broken": [["failed", 2], ["failed", 4], false],
        "ok": [["complete", 1], ["complete", 2], false],
        "end": [["complete", 1], ["complete", 1], true],
        "names": [["complete", 1], ["complete", 1], true],
    });
    assert_eq!(Value::Object(nodes), expected);
    assert_eq!((comparison.same, &value["sessions"][1]["path"][4]), (false, &json!("write#2")));
    let expected = "--- one\n+++ two\n@@ -3,4 +3,8 @@\n broken\n ok\n+write#2\n+list#2\n+broken#2\n+ok#2\n end\n names\n";
    assert_eq!(comparison.path_difference, expected);
}

#[test]
fn a_case_of_a_session_in_which_a_budget_ended_an_item_has_the_tokens_of_its_agents() {
    let turn =
        "options: { turns: [[{ text: x }, { usage: { tokens: { inputTokens: 7, outputTokens: 5 } } }]] }";
    let text = format!(
        "name: spends\nnodes:\n  - id: each\n    type: control.foreach\n    input: {{ items: [x], onItemError: continue }}\n    body:\n      policy: {{ budget: {{ tokens: 10, onExceeded: fail }} }}\n      nodes:\n        - {{ id: a, type: scripted.agent, input: {{ prompt: go, {turn} }} }}\n        - {{ id: b, type: scripted.agent, dependsOn: [a], input: {{ prompt: go, {turn} }} }}\n"
    );
    let folder = tempfile::tempdir().unwrap();
    let flow = folder.path().join("spends.yaml");
    fs::write(&flow, text).unwrap();
    let (record, events, graph, nodes) = run(&flow, "s", json!({}), &[]);
    let case = MadeCase::of(&record, (&graph, &nodes), &events, "c", &Redactor::default());
    let file = folder.path().join("spends.test.yaml");
    add_case(&file, &case).unwrap();
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("usage: { inputTokens: 7, outputTokens: 5 }"), "{text}");
    let suite = Suite::new(&providers(), builtin_nodes);
    let report = suite.run(std::slice::from_ref(&file), &Options::default());
    assert!(report.passed(), "{text}\n{}", report.tap());
}
