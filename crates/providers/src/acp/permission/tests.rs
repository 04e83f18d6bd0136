//! Who decides, and what is answered.

use serde_json::json;

use super::super::wire::{Variable, answered};
use super::*;

fn options(kinds: &[&str]) -> Vec<PermissionOption> {
    kinds.iter().map(|kind| option(&format!("id-{kind}"), kind, "")).collect()
}

fn option(id: &str, kind: &str, name: &str) -> PermissionOption {
    PermissionOption { option_id: id.to_owned(), kind: kind.to_owned(), name: name.to_owned() }
}

/// A question about a tool of this kind with these arguments.
fn question(kind: &str, input: Value, options: Vec<PermissionOption>) -> AcpQuestion {
    AcpQuestion {
        request: PermissionRequest::new(kind, input),
        names: vec![kind.to_owned()],
        titles: Vec::new(),
        paths: Vec::new(),
        command: None,
        options,
        asked_for: AskedFor::default(),
    }
}

#[test]
fn a_denial_wins_and_a_shown_name_never_allows() {
    let policy = Policy {
        allowed: vec!["read".to_owned(), "Bash".to_owned()],
        denied: vec!["Write".to_owned(), "fetch".to_owned()],
    };
    let rows = [
        (&["read"][..], "Read", Ruled::Allowed),
        (&["execute", "Bash"], "Bash", Ruled::Allowed),
        (&["execute"], "Bash", Ruled::Open),
        (&["execute"], "read", Ruled::Open),
        (&["edit"], "Write", Ruled::Denied),
        (&["fetch", "Bash"], "Bash", Ruled::Denied),
        (&["other"], "other", Ruled::Open),
    ];
    for (names, shown, expected) in rows {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        assert_eq!(policy.rule(&names, &[shown.to_owned()]), expected, "{names:?} {shown}");
    }
}

#[test]
fn an_answer_is_chosen_by_its_kind_and_never_widened() {
    let allow = PermissionDecision::Allow { updated_input: None };
    let same = PermissionDecision::Allow { updated_input: Some(json!({ "a": 1 })) };
    let other = PermissionDecision::Allow { updated_input: Some(json!({ "a": 2 })) };
    let deny = PermissionDecision::Deny { message: "no".to_owned() };
    let all = &["allow_always", "allow_once", "reject_always", "reject_once"][..];
    let id = |kind: &str| Some(format!("id-{kind}"));
    let stored = |choice: &Choice| match choice {
        Choice::Allow(option) | Choice::Answer(option, _) => ("allow", Some(option.clone())),
        Choice::Deny(option) => ("deny", option.clone()),
        Choice::Impossible(option, _) => ("impossible", option.clone()),
    };
    let rows = [
        (all, Ruled::Open, &allow, ("allow", id("allow_once"))),
        (all, Ruled::Open, &same, ("allow", id("allow_once"))),
        (all, Ruled::Open, &other, ("impossible", id("reject_once"))),
        (all, Ruled::Open, &deny, ("deny", id("reject_once"))),
        (all, Ruled::Allowed, &allow, ("allow", id("allow_once"))),
        (&["allow_always", "reject_always"], Ruled::Open, &allow, ("impossible", id("reject_always"))),
        (&["allow_always", "reject_always"], Ruled::Allowed, &allow, ("allow", id("allow_always"))),
        (&["allow_once"], Ruled::Denied, &deny, ("deny", None)),
        (&["allow_everything"], Ruled::Allowed, &allow, ("impossible", None)),
        (&[], Ruled::Open, &allow, ("impossible", None)),
    ];
    for (kinds, ruled, decision, expected) in rows {
        let choice = question("t", json!({ "a": 1 }), options(kinds)).choose(ruled, decision);
        assert_eq!(stored(&choice), expected, "{kinds:?} {ruled:?} {decision:?}");
    }
}

#[test]
fn of_several_options_the_person_chooses_and_never_one_that_widens() {
    let answer =
        |name: &str| PermissionDecision::Allow { updated_input: Some(json!({ "answers": [[name]] })) };
    let allow = || PermissionDecision::Allow { updated_input: None };
    let mut plan = vec![
        option("restore_previous", "allow_once", "Yes, restore previous mode (yolo)"),
        option("proceed_once", "allow_once", "Yes, and manually approve edits"),
        option("no", "reject_once", "No"),
    ];
    let mut one = question("switch_mode", json!({ "plan": "1." }), plan.clone());
    one.ask_person(true);
    assert_eq!(
        (one.asked_for, one.choose(Ruled::Open, &allow())),
        (AskedFor::Permission, Choice::Allow("proceed_once".to_owned()))
    );
    let wide = question("switch_mode", json!({}), vec![plan.remove(0), plan.remove(1)]);
    assert!(matches!(wide.choose(Ruled::Open, &allow()), Choice::Impossible(Some(no), _) if no == "no"));
    plan.extend([option("b", "allow_once", "stop"), option("no", "reject_once", "No")]);
    let command = format!("ls {} \u{202e}; rm -rf x", "a".repeat(SHOWN));
    let mut several = question("other", json!({ "command": command }), plan);
    several.ask_person(true);
    assert_eq!(several.asked_for, AskedFor::Option);
    let [asked] = &several.request.questions[..] else { panic!("{several:?}") };
    assert!(asked.question.starts_with("How may `other` be used?\n\n```json\n"), "{asked:?}");
    assert!(asked.question.contains(r#"a \u{202e}; rm -rf x""#), "all is shown, spelled out: {asked:?}");
    let labels: Vec<&str> = asked.options.iter().map(|option| option.label.as_str()).collect();
    assert_eq!(labels, ["Yes, and manually approve edits", "stop"]);
    assert_eq!(several.choose(Ruled::Open, &answer("stop")), Choice::Allow("b".to_owned()));
    for decision in [allow(), answer("No"), answer("other words")] {
        for ruled in [Ruled::Open, Ruled::Allowed] {
            let choice = several.choose(ruled, &decision);
            assert!(matches!(&choice, Choice::Impossible(Some(no), _) if no == "no"), "{choice:?}");
        }
    }
}

#[test]
fn a_person_answers_what_an_agent_asks_if_it_reads_answers() {
    let asked = json!({ "questions": [
        { "header": "DB", "question": "Which?", "multiSelect": true, "options": [{ "label": "a" }, { "label": "b" }] },
        { "header": "OK", "question": "Sure?", "multiSelect": false, "options": [{ "label": "yes" }] },
    ] });
    let submit = [option("once", "allow_once", "Submit"), option("no", "reject_once", "Cancel")];
    let asking = |kind: &str, takes_answers: bool, options: &[PermissionOption]| {
        let mut question = question(kind, asked.clone(), options.to_vec());
        question.ask_person(takes_answers);
        question
    };
    let one = asking("think", true, &submit);
    assert_eq!((one.asked_for, one.request.questions.len()), (AskedFor::Answers, 2));
    let answers = json!([["a", "b"], ["yes"]]);
    let says = |answers: Option<Value>| PermissionDecision::Allow { updated_input: answers };
    let Choice::Answer(option, answers) =
        one.choose(Ruled::Allowed, &says(Some(json!({ "answers": answers }))))
    else {
        panic!("{one:?}")
    };
    assert_eq!(
        answered(&option, &answers),
        json!({
            "outcome": { "outcome": "selected", "optionId": "once" },
            "answers": { "0": "a, b", "1": "yes" },
        })
    );
    assert!(matches!(one.choose(Ruled::Allowed, &says(None)), Choice::Impossible(..)), "nobody answered");
    // A tool that is not a question of the agent is asked about as every other.
    let always = [&submit[..], &options(&["allow_always"])].concat();
    for other in
        [asking("think", false, &submit), asking("other", true, &submit), asking("think", true, &always)]
    {
        assert_eq!((other.asked_for, other.request.questions.len()), (AskedFor::Permission, 0));
    }
}

#[test]
fn what_was_allowed_is_not_asked_about_again_and_nothing_else_is_allowed_by_it() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    let path = |name: &str| root.join(name).display().to_string();
    let question = |kind: &str, path: &str, command: Option<&str>| AcpQuestion {
        paths: vec![path.to_owned()],
        command: command.map(str::to_owned),
        ..question(kind, json!({}), Vec::new())
    };
    let mut granted = Granted::default();
    granted.add(&question("edit", &path("a"), Some("rm -r b")), &root);
    granted.add(&question("read", &path("b"), None), &root);
    granted.add(&question("execute", &path("c"), Some("cargo test")), &root);
    granted.add(&question("edit", "/etc/passwd", None), &root);
    let file = |name: &str| WriteFile { path: name.to_owned(), content: String::new() };
    let written = [path("a"), path("b"), path("c"), path("../a"), "/etc/passwd".to_owned()];
    assert_eq!(written.map(|path| granted.file(&file(&path), &root)), [true, false, false, false, false]);
    let command = |command: &str, args: &[&str]| CreateTerminal {
        command: command.to_owned(),
        args: args.iter().map(|&word| word.to_owned()).collect(),
        env: Vec::new(),
        cwd: None,
        output_byte_limit: None,
    };
    assert!(!granted.command(&command("rm", &["-r", "b"]), &root));
    assert!(!granted.command(&command("cargo", &["test", "x"]), &root));
    let elsewhere = CreateTerminal { cwd: Some(path("c")), ..command("cargo", &["test"]) };
    let variable =
        serde_json::from_value(json!({ "name": "NODE_OPTIONS", "value": "--require ./x.js" })).unwrap();
    let changed = CreateTerminal { env: vec![variable], ..command("cargo", &["test"]) };
    assert!(
        !granted.command(&elsewhere, &root) && !granted.command(&changed, &root),
        "nobody saw what differs"
    );
    let here = CreateTerminal { cwd: Some(root.display().to_string()), ..command("cargo", &["test"]) };
    assert!(granted.command(&here, &root));
    assert!(!granted.command(&command("cargo test", &[]), &root), "an allowance serves once");
}

#[test]
fn a_question_shows_what_will_be_done_and_no_secret() {
    let (request, names) =
        about_file(&WriteFile { path: "/w/a".to_owned(), content: "ä".repeat(SHOWN + 1) });
    assert_eq!(
        (request.input["bytesNotShown"].clone(), names),
        (json!(2), vec!["edit".to_owned(), "fs/write_text_file".to_owned()])
    );
    let wanted = CreateTerminal {
        command: "deploy".to_owned(),
        args: vec!["now".to_owned()],
        env: [("PATH", "/evil"), ("MY_TOKEN", "planted-secret-42"), ("COPY", "known-secret-43")]
            .map(|(name, value)| Variable { name: name.to_owned(), value: value.to_owned() })
            .into(),
        cwd: Some("/w".to_owned()),
        output_byte_limit: None,
    };
    let redactor = Redactor::default().with_variables([("AGENT_TOKEN", "known-secret-43")]);
    let env = ["PATH=/evil", "MY_TOKEN=[redacted MY_TOKEN]", "COPY=[redacted AGENT_TOKEN]"];
    assert_eq!(
        serde_json::to_value(about_command(&wanted, &redactor).0).unwrap(),
        json!({
            "toolName": "terminal/create",
            "input": { "command": "deploy", "args": ["now"], "cwd": "/w", "env": env },
            "description": "run deploy now",
        })
    );
}
