//! Tests of the command line.

use inspan_protocol::{ErrorCode, TurnId};
use serde_json::json;

use super::super::options::ClaudeInput;
use inspan_protocol::Host;

use super::*;

fn options(value: Value) -> ClaudeOptions {
    let input: ClaudeInput = serde_json::from_value(json!({ "prompt": "p", "options": value })).unwrap();
    input.options.unwrap()
}

fn context(folder: &Path) -> ExecutionContext {
    let variables = [
        ("PATH", "/usr/bin:/bin".to_owned()),
        ("HOME", folder.display().to_string()),
        ("INSPAN_CLAUDE", "/bin/sh".to_owned()),
        ("ANTHROPIC_API_KEY", "key".to_owned()),
        ("OPENAI_API_KEY", "other".to_owned()),
        ("CLAUDECODE", "1".to_owned()),
        ("CLAUDE_CODE_MAX_RETRIES", "7".to_owned()),
    ];
    let env = variables.map(|(name, value)| (name.to_owned(), value)).into_iter().collect();
    ExecutionContext::new(Host { env, cwd: Some(folder.to_path_buf()), ..Host::default() })
}

fn launch(value: Value) -> ClaudeLaunch {
    let folder = tempfile::tempdir().unwrap();
    ClaudeLaunch::new(&options(value), &context(folder.path())).unwrap()
}

const DENIED: &str = "--disallowed-tools=Workflow,CronCreate,ScheduleWakeup,Monitor,SendMessage";

/// Without another mode the settings of a repository do not decide.
const MODE: &str = "--permission-mode=default";

/// Whatever the files of settings say, no model decides instead of a person, and no other session begins turns.
const ASKS: &str = r#"--settings={"useAutoModeDuringPlan":false,"crossSessionInbound":"refuse"}"#;

/// The arguments beyond those that are always there.
fn beyond(value: Value) -> Vec<String> {
    let mut arguments = launch(value).arguments[6..].to_vec();
    arguments.retain(|argument| argument != MODE && argument != ASKS);
    arguments
}

#[test]
fn options_become_arguments() {
    let has = |value: Value, wanted| launch(value).arguments.iter().any(|argument| argument == wanted);
    assert!(has(json!({}), MODE) && !has(json!({ "permissionMode": "plan" }), MODE));
    assert!(
        has(json!({}), ASKS) && has(json!({ "permissionMode": "plan", "settingSources": ["project"] }), ASKS)
    );
    let rows = [
        (json!({}), vec![DENIED]),
        (
            json!({ "model": "-m", "maxTurns": 3, "maxBudgetUsd": 0.5, "permissionMode": "acceptEdits" }),
            vec![
                "--model=-m",
                "--max-turns=3",
                "--max-budget-usd=0.5",
                "--permission-mode=acceptEdits",
                DENIED,
            ],
        ),
        (json!({ "tools": [] }), vec!["--tools=", DENIED]),
        (
            json!({ "tools": ["Bash", "Workflow"] }),
            vec!["--tools=Bash,Workflow", "--disallowed-tools=CronCreate,ScheduleWakeup,Monitor,SendMessage"],
        ),
        (
            json!({ "allowedTools": ["Bash(git *)", "Read"], "disallowedTools": ["Write"] }),
            vec![
                "--allowed-tools=Bash(git *),Read",
                "--disallowed-tools=Write,Workflow,CronCreate,ScheduleWakeup,Monitor,SendMessage",
            ],
        ),
        (json!({ "thinking": "off" }), vec!["--thinking=disabled", DENIED]),
        (json!({ "thinking": "minimal" }), vec!["--effort=low", DENIED]),
        (json!({ "thinking": "medium" }), vec!["--effort=medium", DENIED]),
        (json!({ "thinking": "xhigh" }), vec!["--effort=xhigh", DENIED]),
        (json!({ "maxThinkingTokens": 9 }), vec!["--max-thinking-tokens=9", DENIED]),
        (
            json!({ "addDirs": ["/a", "b"], "settingSources": [] }),
            vec![DENIED, "--add-dir=/a", "--add-dir=b", "--setting-sources="],
        ),
        (json!({ "settingSources": ["user", "local"] }), vec![DENIED, "--setting-sources=user,local"]),
    ];
    for (value, expected) in rows {
        assert_eq!(beyond(value.clone()), expected, "{value}");
    }
}

#[test]
fn texts_and_secrets_stand_in_no_argument() {
    let schema = json!({ "type": "object" });
    let launch = launch(json!({
        "systemPrompt": "be a planted", "appendSystemPrompt": "and planted", "outputSchema": schema,
        "mcpServers": { "files": { "command": "planted", "env": { "TOKEN": "planted" } } }, "maxTokens": 500,
    }));
    assert!(!launch.arguments.concat().contains("planted"));
    assert_eq!(
        launch.initialize,
        json!({
            "subtype": "initialize", "hooks": null, "systemPrompt": "be a planted",
            "appendSystemPrompt": "and planted", "jsonSchema": schema,
        })
    );
    let servers = json!({ "files": { "command": "planted", "args": [], "env": { "TOKEN": "planted" } } });
    assert_eq!(Value::from(launch.mcp_servers), servers);
}

#[test]
fn the_environment_is_the_callers_without_what_is_not_for_it() {
    let launch = launch(json!({ "maxTokens": 500 }));
    let home = launch.cwd.as_ref().unwrap().display().to_string();
    let expected = [
        ("ANTHROPIC_API_KEY", "key"),
        ("HOME", &home),
        ("INSPAN_CLAUDE", "/bin/sh"),
        ("PATH", "/usr/bin:/bin"),
        ("CLAUDE_CODE_MAX_RETRIES", "0"),
        ("CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK", "1"),
        ("DISABLE_AUTOUPDATER", "1"),
        ("CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS", "1"),
        ("CLAUDE_CODE_MAX_OUTPUT_TOKENS", "500"),
    ];
    assert_eq!(
        launch.environment.to_vec(),
        expected.map(|(name, value)| (name.to_owned(), value.to_owned()))
    );
}

#[test]
fn a_conversation_is_found_by_its_transcript() {
    let folder = tempfile::tempdir().unwrap();
    let launch = ClaudeLaunch::new(&ClaudeOptions::default(), &context(folder.path())).unwrap();
    let id = ProviderSessionId::from("5f0e3d3a-3f0e-4a53-9d0b-0123456789ab");
    let arguments = |conversation| launch.conversation_arguments(&conversation, None);
    assert_eq!(arguments(ProcessConversation::New(id.clone())), [format!("--session-id={id}")]);
    assert_eq!(arguments(ProcessConversation::Resumed(id.clone())), [format!("--resume={id}")]);
    let transcript = folder.path().join(".claude/projects/-elsewhere").join(format!("{id}.jsonl"));
    std::fs::create_dir_all(transcript.parent().unwrap()).unwrap();
    std::fs::write(&transcript, "").unwrap();
    assert_eq!(
        arguments(ProcessConversation::Resumed(id.clone())),
        [format!("--resume={}", transcript.display())]
    );

    let line = |uuid: &str, subtype: &str| {
        json!({ "parentUuid": "a", "uuid": uuid, "subtype": subtype }).to_string()
    };
    let lines =
        [line("0", ""), line("a", ""), line("b", "compact_boundary"), line("c", "")].map(|l| l + "\n");
    std::fs::write(&transcript, lines.concat()).unwrap();
    let beginning = |at: Option<&str>| {
        let branch = ProviderSessionId::from("branch");
        let at = at.map(TurnId::from);
        let beginning = launch.beginning(&ProcessConversation::Forked { from: id.clone(), at, id: branch });
        beginning.map(|transcript| io::read_to_string(transcript).unwrap())
    };
    assert_eq!(
        beginning(Some("a")),
        Some(lines[..2].concat()),
        "the program finds only what follows the summary"
    );
    assert_eq!(beginning(Some("c")), Some(lines.concat()));
    assert_eq!(beginning(Some("none")), None);
    // What follows may be of any size, and no text.
    File::options().append(true).open(&transcript).unwrap().set_len(BEGINNING_LIMIT + 1).unwrap();
    assert_eq!(beginning(Some("a")), Some(lines[..2].concat()));
    assert_eq!(beginning(None), None);
    let branch = ProcessConversation::Forked { from: id, at: Some("a".into()), id: "branch".into() };
    assert_eq!(launch.conversation_arguments(&branch, Some(Path::new("/b")))[0], "--resume=/b");
}

#[test]
fn what_cannot_be_is_refused_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing").display().to_string();
    let rows = [
        (json!({ "maxTurns": 0 }), "`maxTurns` must be greater than 0".to_owned()),
        (json!({ "maxBudgetUsd": 0 }), "`maxBudgetUsd` must be greater than 0".to_owned()),
        (
            json!({ "allowedTools": ["Read", "Bash(echo a),Write"] }),
            "`Bash(echo a),Write` is several rules for Claude Code, of which the first is `Bash(echo a)`: write each as an \
             entry, and `*` for what stands behind a `)` in the text of a rule"
                .to_owned(),
        ),
        (
            json!({ "disallowedTools": ["Bash(git *", "Write"] }),
            "`Bash(git *` has no `)` at its end: the next rule would be a part of it".to_owned(),
        ),
        (json!({ "cwd": "missing" }), format!("the working directory {missing} is not a directory")),
        (json!({ "mcpServers": { "x": 1 } }), "the MCP server `x` is not an object".to_owned()),
        (
            json!({ "mcpServers": { "x": { "type": "sdk" } } }),
            "the MCP server `x` is of type `sdk`, which needs a program around it".to_owned(),
        ),
        (
            json!({ "outputSchema": { "type": "nonsense" } }),
            "`outputSchema` is not a JSON Schema: \"nonsense\" is not valid under any of the schemas listed in the 'anyOf' keyword"
                .to_owned(),
        ),
    ];
    for (value, expected) in rows {
        let error = ClaudeLaunch::new(&options(value.clone()), &context(folder.path())).err().unwrap();
        assert_eq!((error.code, error.message), (ErrorCode::ConfigInvalid, expected), "{value}");
    }
    let unset = options(json!({ "mcpServers": { "x": { "command": "${NONE}" } } }));
    let error = ClaudeLaunch::new(&unset, &context(folder.path())).err().unwrap();
    let expected = "the MCP server `x` needs the variable NONE, which is not set";
    assert_eq!((error.code, error.message.as_str()), (ErrorCode::ConfigMissing, expected));
    let error = ClaudeLaunch::new(&options(json!({ "executable": "./nowhere" })), &context(folder.path()))
        .err()
        .unwrap();
    assert_eq!(error.code, ErrorCode::ConfigMissing);
    std::fs::write(folder.path().join("plain"), "").unwrap();
    let error = ClaudeLaunch::new(&options(json!({ "executable": "./plain" })), &context(folder.path()))
        .err()
        .unwrap();
    assert_eq!(error.code, ErrorCode::ConfigInvalid);
}

#[test]
fn an_entry_of_the_tools_is_one_rule() {
    let one = [
        "Bash",
        " Read ",
        "",
        "Bash(git *)",
        "Bash(echo a, b)",
        "Bash(echo (a))",
        "Bash(f(a)(b, c))",
        "mcp__a__b",
    ];
    let several = [
        "Bash(echo a) Bash",
        "Bash,Write",
        "Bash(git log --format='%h)',Bash,x)",
        "Bash(echo (a) b)",
        "Bash(f(a",
        "Bash(a) (",
    ];
    for (entries, is_one) in [(&one[..], true), (&several, false)] {
        for entry in entries {
            assert_eq!(not_one_rule(entry).is_none(), is_one, "{entry}");
        }
    }
    let input =
        json!({ "options": { "allowedTools": ["Read", "Bash,Write"], "disallowedTools": ["Bash("] } });
    let places: Vec<String> =
        super::super::check_rules(&input).into_iter().map(|problem| problem.pointer).collect();
    assert_eq!(places, ["/options/allowedTools/1", "/options/disallowedTools/0"]);
}

#[test]
fn a_schema_that_is_no_object_is_wrapped_in_one() {
    let launch = launch(json!({ "outputSchema": { "type": "array" } }));
    let properties = &launch.initialize["jsonSchema"]["properties"];
    assert_eq!((launch.root, properties), (Root::Wrapped, &json!({ "value": { "type": "array" } })));
}

#[test]
fn only_what_differs_between_processes_keeps_turns_apart() {
    let folder = tempfile::tempdir().unwrap();
    let launch = |value| ClaudeLaunch::new(&options(value), &context(folder.path())).unwrap();
    let base = launch(json!({}));
    let same = json!({ "resume": "s", "stallTimeoutMs": 5, "multiTurn": true, "idleTimeoutMs": 9, "expandPrompt": true });
    assert!(launch(same) == base);
    for other in [json!({ "model": "m" }), json!({ "systemPrompt": "s" }), json!({ "maxTokens": 1 })] {
        assert!(launch(other) != base);
    }
    assert_eq!(launch(json!({ "maxBudgetUsd": 1 })).reuse, Reuse::Once);
}
