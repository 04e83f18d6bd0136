//! The answers that a case gives instead of agents, programs and people, and the faults.

use std::fs;

use inspan_flow_test::Options;
use serde_json::json;

use super::{failed, failures, folder, providers, run_in};

#[test]
fn every_agent_takes_a_text_or_a_structure() {
    let agents: Vec<String> =
        providers().names().map(str::to_owned).filter(|name| name != "scripted" && name != "echo").collect();
    let schema = json!({ "type": "object", "required": ["n"] });
    for (schema, answer) in
        [(Some(schema), json!({ "structuredOutput": { "n": 1 } })), (None, json!("some text"))]
    {
        let node = |name: &String| {
            let mut options = json!({});
            if name == "acp" {
                options["command"] = json!("x");
            }
            if let Some(schema) = &schema {
                options["outputSchema"] = schema.clone();
            }
            json!({ "id": name, "type": format!("{name}.agent"), "input": { "prompt": "p", "options": options } })
        };
        let flow = json!({ "name": "all", "nodes": agents.iter().map(node).collect::<Vec<_>>() });
        let answers: serde_json::Map<_, _> =
            agents.iter().map(|name| (name.clone(), answer.clone())).collect();
        let cases = json!({ "cases": [{ "name": "answered", "answers": answers }] });
        assert_eq!(failures(&flow.to_string(), &cases.to_string()), [""; 0]);
    }
}

#[test]
fn an_answer_of_the_defaults_must_be_used_by_some_case_and_an_own_one_by_its_case() {
    let flow = "
name: unused
input: { go: true }
nodes:
  - { id: a, type: claude.agent, when: flow.input.go, input: { prompt: p } }
  - { id: b, type: claude.agent, when: not flow.input.go, input: { prompt: p } }
  - { id: c, type: claude.agent, when: flow.input.never, input: { prompt: p } }
inputSchema: { properties: { never: { type: boolean } } }
";
    let flow = flow.replace("go: true", "go: true, never: false");
    let cases = "
defaults: { answers: { a: yes, b: no, c: never } }
cases:
  - { name: one, answers: { b: no }, replies: { a: allow } }
  - { name: other, input: { go: false } }
";
    let folder = folder(&[("f.yaml", &flow), ("f.test.yaml", cases)]);
    let report = run_in(folder.path(), &Options::default());
    assert_eq!(failed(&report, folder.path()), [""; 0]);
    let of_cases: Vec<_> = report.cases().flat_map(|case| case.warnings.clone()).collect();
    assert_eq!(of_cases, ["`answers.b` is not used", "`replies.a` is not used"]);
    let of_files: Vec<_> = report.files.iter().flat_map(|file| file.warnings.clone()).collect();
    assert_eq!(of_files, ["`defaults.answers.c` is used by no case"]);
}

#[test]
fn what_is_left_of_a_list_and_a_reply_that_comes_too_late_are_warned_of() {
    let flow = "
name: publish
nodes:
  - { id: ok, type: human.input, input: { prompt: Publish?, choices: [\"yes\", \"no\"], timeout: 8h, default: \"no\" } }
  - { id: write, type: claude.agent, when: ok.choice == 'yes', dependsOn: [ok], input: { prompt: hi } }
";
    let cases = "
cases:
  - { name: late, replies: { ok: { reply: \"yes\", after: 9h } } }
  - { name: in time, replies: { ok: { reply: \"no\", after: 7h } } }
  - { name: two replies, replies: { ok: [\"no\", \"yes\"] } }
  - { name: two answers, replies: { ok: [\"yes\"] }, answers: { write: [a, b, c] } }
";
    let folder = folder(&[("f.yaml", flow), ("f.test.yaml", cases)]);
    let report = run_in(folder.path(), &Options::default());
    assert_eq!(failed(&report, folder.path()), [""; 0]);
    let warnings: Vec<_> = report.cases().map(|case| case.warnings.join("; ")).collect();
    let expected = [
        "`replies.ok`: a reply comes after the end of its question",
        "",
        "`replies.ok` is used only up to entry 1 of 2",
        "`answers.write` is used only up to entry 1 of 3",
    ];
    assert_eq!(warnings, expected);
}

#[test]
fn a_missing_answer_fails_the_case_and_runs_nothing() {
    let flow = "
name: live
nodes:
  - { id: agent, type: claude.agent, input: { prompt: Say hi. } }
  - { id: program, type: exec, dependsOn: [agent], input: { argv: [touch, ran] }, policy: { continueOnError: true } }
";
    let cases = "
cases:
  - { name: no agent, answers: { program: x } }
  - { name: no program, answers: { agent: hi } }
  - { name: too few, answers: { agent: [], program: x } }
";
    let folder = folder(&[("f.yaml", flow), ("f.test.yaml", cases)]);
    let report = run_in(folder.path(), &Options::default());
    assert_eq!(
        failed(&report, folder.path()),
        ["f.test.yaml:5:40: `cases[2].answers.agent`: the list is empty"]
    );
    fs::write(
        folder.path().join("f.test.yaml"),
        cases.replace("[]", "[{ turns: [hi] }]").replace("- { name: too few", "- { name: none left"),
    )
    .unwrap();
    let report = run_in(folder.path(), &Options::default());
    let expected = [
        "no agent / answers.agent: there is no answer for `agent`: add `answers: { agent: … }`\nit is sent:\n    Say hi.",
        "no program / answers.program: there is no answer for `program`: add `answers: { program: … }`\nit is sent:\n    \
         {\n      \"argv\": [\n        \"touch\",\n        \"ran\"\n      ]\n    }",
    ];
    assert_eq!(failed(&report, folder.path()), expected);
    assert!(!folder.path().join("ran").exists(), "the program ran");
}

#[test]
fn the_answer_of_a_program_writes_no_file() {
    let kept = tempfile::tempdir().unwrap();
    let place = kept.path().display();
    let flow = format!(
        "
name: report
nodes:
  - {{ id: a, type: exec, input: {{ argv: [make], stdoutFile: {place}/out.txt, stderrFile: {place}/new/err.txt }} }}
"
    );
    let cases = format!(
        "
cases:
  - name: a
    answers: {{ a: {{ stdout: made up, stderr: why }} }}
    faults: [{{ crashAfter: a }}]
    expect: {{ outputs: {{ a.stdout: made up, a.stderr: why, a.stdoutFile: {place}/out.txt }} }}
"
    );
    fs::write(kept.path().join("out.txt"), "of a real run").unwrap();
    assert_eq!(failures(&flow, &cases), Vec::<String>::new());
    assert_eq!(fs::read_to_string(kept.path().join("out.txt")).unwrap(), "of a real run");
    assert!(!kept.path().join("new").exists());
}

#[test]
fn answers_that_run_out_or_do_not_fit_are_named() {
    let flow = "
name: run-out
nodes:
  - id: a
    type: claude.agent
    input: { prompt: Give a number., options: { outputSchema: { type: object, required: [n] } } }
    policy: { retry: { maxAttempts: 3 } }
";
    let cases = "
cases:
  - { name: a second attempt, answers: { a: [{ error: overloaded }] } }
  - { name: a repair, answers: { a: three } }
  - { name: a repair that works, answers: { a: { turns: [three, { structuredOutput: { n: 3 } }] } }, expect: { attempts: { a: 1 } } }
  - { name: another key, answers: { a: { error: overlorded } } }
";
    let expected =
        ["f.test.yaml:6:40: `cases[3].answers.a`: `overlorded` is not an error: did you mean `OVERLOADED`?"];
    assert_eq!(failures(flow, cases), expected);
    let cases = cases.replace("overlorded", "overloaded");
    let expected = [
        "a second attempt / answers.a: `a` asks for answer 2 and the list has 1: add one, or write a single answer for all",
        "a repair / answers.a: `a` makes call 2 in one attempt, and the answer has fewer: write `turns: [ … ]` with one for \
         each\nit is sent:\n    Your structured output does not fit the JSON Schema it must fit:\n    - there is no \
         structured output\n    Give the whole structured output again so that it fits.",
        "another key / expect.outcome: the outcome is failed, not success\nclaude: the test answers with OVERLOADED (OVERLOADED)",
    ];
    assert_eq!(failures(flow, &cases), expected);
}

#[test]
fn faults_meet_the_attempts_that_they_name() {
    let flow = "
name: faults
nodes:
  - { id: a, type: claude.agent, input: { prompt: x }, policy: { timeout: 10m, retry: { maxAttempts: 3, backoff: 1m } } }
  - { id: b, type: exec, dependsOn: [a], input: { argv: [x] }, policy: { continueOnError: true } }
  - { id: c, type: constant, dependsOn: [b], input: { value: 1 } }
";
    let cases = "
defaults: { answers: { a: [one, two], b: done } }
cases:
  - name: a limit burns no attempt
    faults: [{ node: a, error: limit, resetsIn: 5h }]
    expect: { outputs: { a.text: one }, duration: { min: 5h, max: 5h } }
  - name: the second attempt gets the first answer
    faults: [{ node: a, error: network }, { node: b, error: { } }]
  - name: a fault of a pass takes no answer of a list
    faults: [{ node: 'a#1', error: network }]
    expect: { attempts: { a: 2 }, outputs: { a.text: one } }
  - name: an answer of a pass is not taken by a fault
    answers: { 'a#1': [three] }
    faults: [{ node: a, error: network }, { crashAfter: each }]
    expect: { attempts: { a: 2 }, outputs: { a.text: three } }
  - name: errors
    faults: [{ node: a, error: network }, { node: a, attempt: 2, error: timeout, retryAfter: 2m }]
    expect: { attempts: { a: 3 }, outputs: { a.text: one }, duration: { min: 3m, max: 3m } }
  - name: a denied tool
    faults: [{ node: a, deny: Bash }]
    expect: { outputs: { 'a.permissionDenials[0].toolName': Bash } }
  - name: an answer that takes longer than the node may
    answers: { a: [{ text: late, takes: 1h }, in time] }
    expect: { attempts: { a: 2 }, outputs: { a.text: in time }, duration: { min: 11m, max: 12m } }
  - name: a program that dies
    answers: { b: { signal: SIGKILL } }
    expect: { outputs: { b.failed: true, b.error.message: { contains: was killed by SIGKILL } } }
";
    let problem = failures(flow, cases);
    assert_eq!(problem.len(), 1, "{problem:?}");
    assert!(problem[0].starts_with("f.test.yaml:8:"), "{problem:?}");
    assert_eq!(failures(flow, &cases.replace("error: { }", "error: died")), [""; 0]);
    let never = "
defaults: { answers: { a: one, b: done } }
cases:
  - name: too late
    faults: [{ node: a, attempt: 5, error: network }, { node: a, error: network }, { node: 'b#2', error: died }]
  - name: an error instead of the answer
    faults: [{ node: a, error: network }, { node: a, deny: Bash }]
";
    let unmet = [
        "too late / faults.error: attempt 5 of `a` never meets `network`",
        "too late / faults.error: attempt 1 of `b#2` never meets `died`",
        "an error instead of the answer / faults.deny: attempt 1 of `a` never meets `Bash`",
    ];
    assert_eq!(failures(flow, never), unmet);
    let nowhere = "
cases:
  - name: a
    faults:
      - { node: c, error: network }
      - { node: c, deny: Bash }
      - { node: b, deny: Bash }
";
    let why = "no fault meets this node: it only computes, waits, or asks a person";
    let expected = [
        format!("f.test.yaml:5:9: `cases[0].faults[0]`: {why}"),
        format!("f.test.yaml:6:9: `cases[0].faults[1]`: {why}"),
        "f.test.yaml:7:9: `cases[0].faults[2]`: only an agent is denied a tool".to_owned(),
    ];
    assert_eq!(failures(flow, nowhere), expected);
}

#[test]
fn requests_and_tools_are_answered_as_programs_are() {
    let flow = "
name: outside
mcpServers:
  search: { command: /never/run }
nodes:
  - { id: get, type: http.request, input: { url: 'https://example.invalid/x' }, policy: { continueOnError: true } }
  - { id: find, type: mcp.call, dependsOn: [get], input: { server: search, tool: find, arguments: { q: '{{ get.status }}' } } }
";
    let cases = "
cases:
  - name: json and a text
    answers: { get: { json: { n: 1 } }, find: found }
    expect: { outputs: { get.json.n: 1, get.status: 200, find.text: found, find.isError: false } }
  - name: a status that is a failure
    answers: { get: { status: 503, text: later }, find: x }
    expect: { statuses: { get: failed } }
  - name: an error
    answers: { get: { error: network }, find: x }
    expect: { statuses: { get: failed }, outputs: { get.error.code: NETWORK } }
  - name: a slow server
    answers: { get: { takes: 1h }, find: { content: [{ type: text, text: a }], structuredContent: { a: 1 } } }
    expect: { outputs: { find.structuredContent.a: 1 }, duration: { min: 1h } }
  - name: a tool that fails
    answers: { get: ok, find: { text: no, isError: true } }
    expect: { outputs: { find.isError: true } }
  - name: nothing
    answers: { find: x }
";
    let expected = [
        "nothing / answers.get: there is no answer for `get`: add `answers: { get: … }`\nit is sent:\n    {\n      \
         \"method\": \"GET\",\n      \"url\": \"https://example.invalid/x\"\n    }",
    ];
    let found = failures(flow, cases);
    let (templates, rest): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|failure| failure.contains("BINDING_FAILED"));
    // Where the request failed there is no status to ask for.
    assert_eq!((rest, templates.len()), (expected.map(str::to_owned).into(), 2));
}

#[test]
fn nodes_in_frames_are_answered_by_their_paths() {
    let flow = "
name: frames
input: { files: [a, b, c] }
nodes:
  - id: scan
    type: control.foreach
    input: { items: \"{{ flow.input.files }}\", as: file, onItemError: continue }
    body:
      nodes:
        - { id: review, type: claude.agent, input: { prompt: \"Review {{ file }}.\" }, policy: { retry: { maxAttempts: 2, backoff: 1m } } }
        - { id: fix, type: claude.agent, dependsOn: [review], input: { prompt: \"Fix {{ review.text }}\" } }
  - id: again
    type: control.loop
    dependsOn: [scan]
    input: { maxIterations: 3 , until: \"try.stdout == 'done'\"}
    body:
      nodes:
        - { id: try, type: exec, input: { argv: [make] } }
  - { id: end, type: echo, dependsOn: [again], input: { text: \"{{ scan.succeeded }}\" } }
";
    let cases = "
defaults:
  answers:
    scan[*]/review: fine
    scan/fix: fixed
    again[0]/try: no
    again[1]/try: done
cases:
  - name: every item
    expect:
      outputs: { end.text: \"3\", \"scan[2]/fix.text\": fixed, \"scan.values[0].fix.text\": fixed, \"again/try.exitCode\": 0 }
      statuses: { \"scan[*]/review\": complete, scan: complete }
      prompts: { \"scan[2]/review\": Review c. }
      attempts: { \"scan[1]/review\": 1, \"again[1]/try\": 1 }
  - name: one item by its path
    answers: { \"scan[1]/review\": [{ error: network }, second], \"scan[2]/review\": { error: auth } }
    expect:
      attempts: { \"scan[1]/review\": 2, \"scan[0]/review\": 1 }
      statuses: { \"scan[2]/review\": failed }
      outputs: { end.text: \"2\", \"scan[1]/review.text\": second }
      prompts: { \"scan[1]/fix\": Fix second }
  - name: own answers come before defaults with the same weight
    answers: { \"scan[*]/fix\": own }
    expect: { outputs: { scan/fix.text: own } }
  - name: faults in an item
    faults: [ { node: \"scan[0]/review\", error: limit, resetsIn: 2h } ]
    expect: { duration: { min: 2h } }
  - name: crash
    faults: [ { crashAfter: each } ]
";
    assert_eq!(failures(flow, cases), [""; 0]);
    let cases = "
defaults: { answers: { scan/review: fine, scan/fix: fixed, again/try: done } }
cases:
  - name: passes that no edge makes
    answers: { \"again/try#1\": done, \"again/try#2\": done, \"scan#2/fix\": fixed }
  - { name: nobody is asked, replies: { end: yes, again/try: yes } }
";
    let at = "f.test.yaml:5:";
    let found = failures(flow, cases);
    let expected = [
        format!(
            "{at}52: `cases[0].answers.again/try#2`: `again/try` has one pass, as no edge leads back to it; a pass of `again` is an item, counted from 0: `again[1]/try`"
        ),
        format!("{at}72: `cases[0].answers.scan#2/fix`: `scan` has one pass, as no edge leads back to it"),
        "f.test.yaml:6:46: `cases[1].replies.end`: this node asks nothing: it only computes, or waits"
            .to_owned(),
    ];
    assert_eq!(found, expected);
    let pass = "`again/try` has one pass, as no edge leads back to it; a pass of `again` is an item, counted from 0: `again[1]/try`";
    let rows = [
        (
            "answers: { scan/revew: x }",
            "43: `cases[0].answers.scan/revew`: unknown node `scan/revew`: did you mean `scan/review`?",
        ),
        (
            "expect: { path: { excludes: ['scan[3]/*', end/*] } }",
            "9: `cases[0].expect.path.end/*`: `end` runs no other nodes",
        ),
        (
            "expect: { path: { excludes: [agian/*] } }",
            "9: `cases[0].expect.path.agian/*`: unknown node `agian`: did you mean `again`?",
        ),
        (
            "expect: { path: { excludes: ['again/try#2'] } }",
            &format!("9: `cases[0].expect.path.again/try#2`: {pass}"),
        ),
        (
            "expect: { attempts: { again/try#2: 0 } }",
            &format!("55: `cases[0].expect.attempts.again/try#2`: {pass}"),
        ),
    ];
    for (wrong, expected) in rows {
        let found = failures(flow, &format!("cases: [{{ name: a, {wrong} }}]\n"));
        assert_eq!(found, [format!("f.test.yaml:1:{expected}")]);
    }
}

#[test]
fn people_answer_as_the_case_says() {
    let flow = "
name: people
nodes:
  - { id: ok, type: human.input, input: { prompt: 'Go on?', choices: [yes, no], timeout: 8h, default: no } }
  - { id: why, type: human.input, dependsOn: [ok], input: { prompt: 'Why {{ ok.choice }}?' } }
  - id: agent
    type: claude.agent
    dependsOn: [why]
    input: { prompt: '{{ why.content }}' }
";
    let cases = "
defaults:
  answers:
    agent: { text: done, tools: [{ name: Bash, input: { command: ls }, result: out, ask: true }] }
cases:
  - name: at once
    replies: { ok: yes, why: because, agent: allow }
    expect:
      questions: { ok: Go on?, why: { contains: Why yes }, agent: { contains: Bash } }
      outputs: { ok.choice: yes, why.content: because, agent.permissionDenials: { absent: true } }
      duration: { max: 0ms }
  - name: the default, and nobody allows the tool
    replies: { why: because }
    expect:
      outputs: { ok.choice: no, 'agent.permissionDenials[0].toolInput.command': ls }
      duration: { min: 8h, max: 8h }
  - name: in time
    replies: { ok: { reply: yes, after: 2h }, why: because }
    expect: { outputs: { ok.choice: yes }, duration: { min: 2h, max: 2h } }
  - name: too late
    replies: { ok: { reply: yes, after: 9h }, why: because }
    expect: { outputs: { ok.choice: no } }
  - name: nobody
  - name: waiting
    expect: { outcome: waiting, statuses: { why: waiting } }
  - name: waiting after an answer that took its time
    replies: { ok: { reply: yes, after: 2h } }
    expect: { outcome: waiting, statuses: { why: waiting }, duration: { max: 3h } }
  - name: waiting, and an answer comes too late
    replies: { ok: { reply: yes, after: 9h } }
    expect: { outcome: waiting, outputs: { ok.choice: no } }
  - name: a tool that fails was allowed
    answers: { agent: { text: done, tools: [{ name: Bash, isError: true }] } }
    replies: { ok: yes, why: because }
    expect: { outputs: { agent.permissionDenials: { absent: true } } }
  - name: no choice
    replies: { ok: maybe, why: because }
";
    let expected = [
        "nobody / expect.outcome: the outcome is waiting, not success\n`why` waits for an answer: Why no?\nadd `replies: { why: … }`",
        "no choice / replies.ok: question `ok.1` takes no text, only one of its choices: yes, no",
    ];
    assert_eq!(failures(flow, cases), expected);
}

#[test]
fn a_conversation_continues_as_the_case_says() {
    let flow = "
name: talk
nodes:
  - { id: talk, type: claude.agent, input: { prompt: Hello., options: { multiTurn: true } } }
  - { id: build, type: exec, input: { argv: [make] } }
";
    let cases = "
defaults: { answers: { build: '' } }
cases:
  - name: two messages
    messages: { talk: [And now?, And then?] }
    answers: { talk: { turns: [one, two, three] } }
    expect: { outputs: { talk.text: three }, duration: { max: 0ms }, prompts: { talk: And then? } }
  - name: the process dies during the second turn
    messages: { talk: [And now?] }
    answers: { talk: { turns: [{ text: one, takes: 1m }, { text: two, takes: 5m }] }, build: { takes: 3m } }
    faults: [{ crashAfter: build }]
    expect: { outputs: { talk.text: two } }
";
    assert_eq!(failures(flow, cases), [""; 0]);
}

#[test]
fn a_request_that_could_not_be_sent_fails_here_too() {
    let flow = "
name: f
input: { base: '' }
nodes: [{ id: h, type: http.request, input: { url: '{{ flow.input.base }}/x' } }]
";
    let cases = "
defaults: { answers: { h: { json: { a: 1 } } } }
cases:
  - { name: an address, input: { base: 'https://example.invalid' } }
  - { name: none }
";
    let expected = "none / expect.outcome: the outcome is failed, not success\n`url` must begin with `http://` or `https://` (CONFIG_INVALID)";
    assert_eq!(failures(flow, cases), [expected]);
}

#[test]
fn a_wait_may_take_months() {
    let flow = "name: f\nnodes: [{ id: w, type: control.wait, input: { ms: 3456000000 } }]\n";
    let cases = "cases: [{ name: forty days, expect: { duration: { min: 960h } } }]\n";
    assert_eq!(failures(flow, cases), [""; 0]);
}

/// Codex and OpenAI give their answer under another name too.
#[test]
fn the_answer_of_an_agent_has_every_field_that_its_vendor_always_gives() {
    for (provider, field) in [("codex", "code"), ("openai", "content"), ("claude", "text")] {
        let flow =
            format!("name: f\nnodes: [{{ id: a, type: {provider}.agent, input: {{ prompt: hi }} }}]\n");
        let cases = format!(
            "cases: [{{ name: c, answers: {{ a: Moo. }}, expect: {{ outputs: {{ a.{field}: Moo. }} }} }}]\n"
        );
        assert_eq!(failures(&flow, &cases), Vec::<String>::new(), "{provider}");
    }
}
