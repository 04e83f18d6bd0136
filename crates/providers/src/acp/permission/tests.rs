//! Who decides, and what is answered.

use serde_json::json;

use super::super::wire::Variable;
use super::*;

fn options(kinds: &[&str]) -> Vec<PermissionOption> {
    kinds
        .iter()
        .map(|kind| PermissionOption { option_id: format!("id-{kind}"), kind: (*kind).to_owned() })
        .collect()
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
        Choice::Allow(option) => ("allow", Some(option.clone())),
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
        let choice = choose(&options(kinds), &json!({ "a": 1 }), ruled, decision);
        assert_eq!(stored(&choice), expected, "{kinds:?} {ruled:?} {decision:?}");
    }
}

#[test]
fn what_was_allowed_is_not_asked_about_again_and_nothing_else_is_allowed_by_it() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    let path = |name: &str| root.join(name).display().to_string();
    let question = |kind: &str, path: &str, command: Option<&str>| AcpQuestion {
        request: about_file(&WriteFile { path: String::new(), content: String::new() }).0,
        names: vec![kind.to_owned()],
        titles: Vec::new(),
        paths: vec![path.to_owned()],
        command: command.map(str::to_owned),
        options: Vec::new(),
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
