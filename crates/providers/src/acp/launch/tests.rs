//! From options to a command line and a session's parameters.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::preset::{ANY, DROID, GEMINI, QWEN};
use inspan_protocol::Host;

use super::*;

fn context(folder: &Path) -> ExecutionContext {
    for name in ["droid", "gemini", "other"] {
        std::fs::write(folder.join(name), "").unwrap();
        std::fs::set_permissions(folder.join(name), std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
    }
    let path = folder.display().to_string();
    let env: Environment = [
        ("PATH", path.as_str()),
        ("HOME", "/home/dev"),
        ("FACTORY_API_KEY", "planted-1"),
        ("GEMINI_API_KEY", "planted-2"),
        ("OPENAI_API_KEY", "planted-3"),
        ("ANTHROPIC_API_KEY", "planted-4"),
        ("CLAUDECODE", "1"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into_iter()
    .collect();
    ExecutionContext::new(Host { env, cwd: Some(folder.to_path_buf()), ..Host::default() })
}

/// The program's name, its arguments, and what of vendors it sees.
fn line(preset: &Preset, options: &AcpOptions) -> (String, Vec<String>, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let launch = AcpLaunch::new(preset, options, &context(folder.path())).unwrap();
    let name = launch.program.file_name().unwrap().to_string_lossy().into_owned();
    let seen = launch.environment.iter().map(|(name, _)| name.clone());
    let mut seen: Vec<String> = seen
        .filter(|name| {
            let mut everyones = ["PATH", "HOME", NO_BACKGROUND.0]
                .into_iter()
                .chain(CLAUDE_CODE_FIXED.iter().map(|(name, _)| *name));
            everyones.all(|known| name != known)
        })
        .collect();
    seen.sort();
    (name, launch.arguments, seen)
}

#[test]
fn each_agent_gets_its_own_command_line_and_keys() {
    let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
    let plain = AcpOptions::default();
    assert_eq!(
        line(&DROID, &plain),
        ("droid".to_owned(), words(&["exec", "--output-format", "acp"]), words(&["FACTORY_API_KEY"]))
    );
    assert_eq!(line(&GEMINI, &plain), ("gemini".to_owned(), words(&["--acp"]), words(&["GEMINI_API_KEY"])));
    let options = AcpOptions {
        command: Some("other".to_owned()),
        args: Some(words(&["acp"])),
        env: Some(BTreeMap::from([("OPENAI_API_KEY".to_owned(), "mine".to_owned())])),
        pass_env: Some(words(&["OPENAI_*", "ANTHROPIC_API_KEY"])),
        ..AcpOptions::default()
    };
    assert_eq!(
        line(&ANY, &options),
        ("other".to_owned(), words(&["acp"]), words(&["ANTHROPIC_API_KEY", "OPENAI_API_KEY"]))
    );
    let older = AcpOptions { args: Some(words(&["--experimental-acp"])), ..AcpOptions::default() };
    assert_eq!(line(&GEMINI, &older).1, ["--experimental-acp"]);
}

#[test]
fn nothing_works_in_the_background_unless_the_user_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let name = NO_BACKGROUND.0.to_owned();
    let seen = |options: &AcpOptions, given: Option<&str>| {
        let mut context = context(folder.path());
        if let Some(given) = given {
            let host = Host::clone(&context.host);
            context.host = Arc::new(Host { env: host.env.with(&name, given), ..host });
        }
        let launch = AcpLaunch::new(&ANY, options, &context).unwrap();
        let seen = launch.environment.iter().filter(|(known, _)| *known == name);
        seen.map(|(_, value)| value.clone()).collect::<Vec<_>>()
    };
    let named = AcpOptions { command: Some("other".to_owned()), ..AcpOptions::default() };
    let passed = AcpOptions { pass_env: Some(vec!["CLAUDE_*".to_owned()]), ..named.clone() };
    let set = AcpOptions { env: Some(BTreeMap::from([(name.clone(), "0".to_owned())])), ..named.clone() };
    assert_eq!(
        [seen(&named, None), seen(&named, Some("0")), seen(&passed, Some("0")), seen(&set, None)],
        [["1"], ["1"], ["0"], ["0"]]
    );
}

#[test]
fn qwen_code_gets_settings_beneath_those_of_the_machine() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("machine.json");
    let name = "QWEN_CODE_SYSTEM_DEFAULTS_PATH";
    let environment = Environment::default().with(name, file.display().to_string());
    let environment = for_program(&environment, &QWEN.variables());
    let given = || {
        let (variable, content) = defaults(&QWEN, &environment, folder.path())?;
        assert_eq!(variable, name);
        Some(serde_json::from_str::<Value>(&content).unwrap())
    };
    let ours = given().unwrap();
    assert_eq!(ours["memory"]["enableManagedAutoMemory"], false);
    std::fs::write(
        &file,
        r#"{ "memory": { "enableManagedAutoDream": true }, "tools": { "core": ["glob"] } }"#,
    )
    .unwrap();
    let mut both = ours;
    both["memory"]["enableManagedAutoDream"] = json!(true);
    both["tools"] = json!({ "core": ["glob"] });
    assert_eq!(given(), Some(both));
    std::fs::write(&file, "{ // a comment\n}").unwrap();
    assert_eq!(given(), None, "what cannot be read is left as it is");
    assert_eq!(defaults(&GEMINI, &environment, folder.path()), None);
}

#[test]
fn what_does_not_fit_is_reported_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    let fault = |preset: &Preset, options: AcpOptions| {
        let error = AcpLaunch::new(preset, &options, &context(folder.path())).err().unwrap();
        (error.code, error.message)
    };
    let named = || AcpOptions { command: Some("other".to_owned()), ..AcpOptions::default() };
    let server = |server: Value| AcpOptions {
        mcp_servers: Some(BTreeMap::from([("s".to_owned(), server)])),
        ..named()
    };
    let (code, message) = fault(&ANY, AcpOptions::default());
    assert_eq!(
        (code, message.as_str()),
        (
            ErrorCode::ConfigMissing,
            "no agent is named; name its program by the option `command`, and its arguments by `args`"
        )
    );
    let (code, message) =
        fault(&ANY, AcpOptions { command: Some("nothing".to_owned()), ..AcpOptions::default() });
    assert_eq!(
        (code, message.as_str()),
        (
            ErrorCode::ConfigMissing,
            "the program `nothing` is not on the PATH; install it, or name the program of your agent by the option \
             `command`"
        )
    );
    let rows = [
        AcpOptions { cwd: Some("nowhere".to_owned()), ..named() },
        AcpOptions { output_schema: Some(json!({ "type": 7 })), ..named() },
        server(json!({ "url": "http://x" })),
        server(json!("x")),
    ];
    for options in rows {
        let shown = format!("{options:?}");
        assert_eq!(fault(&ANY, options).0, ErrorCode::ConfigInvalid, "{shown}");
    }
}

#[test]
fn servers_take_the_protocols_form() {
    let folder = tempfile::tempdir().unwrap();
    let servers = BTreeMap::from([
        ("a".to_owned(), json!({ "command": "x", "args": ["y"], "env": { "K": "${NONE:-v}" } })),
        ("b".to_owned(), json!({ "type": "http", "url": "http://x", "headers": { "H": "v" } })),
        ("c".to_owned(), json!({ "type": "sse", "url": "http://y" })),
    ]);
    let options =
        AcpOptions { command: Some("other".to_owned()), mcp_servers: Some(servers), ..AcpOptions::default() };
    let launch = AcpLaunch::new(&ANY, &options, &context(folder.path())).unwrap();
    let values: Vec<Value> = launch.servers.into_iter().map(|server| server.value).collect();
    assert_eq!(
        values,
        [
            json!({ "name": "a", "command": "x", "args": ["y"], "env": [{ "name": "K", "value": "v" }] }),
            json!({ "type": "http", "name": "b", "url": "http://x", "headers": [{ "name": "H", "value": "v" }] }),
            json!({ "type": "sse", "name": "c", "url": "http://y", "headers": [] }),
        ]
    );
}
