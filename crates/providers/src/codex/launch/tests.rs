//! Tests of the command line and the parameters of a thread.

use inspan_protocol::ErrorCode;
use serde_json::json;
use tempfile::TempDir;

use inspan_protocol::Host;

use super::*;

/// A folder with something that can be run under the name `codex`.
fn context(variables: &[(&str, &str)]) -> (TempDir, ExecutionContext) {
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/bin/true", folder.path().join("codex")).unwrap();
    let path = folder.path().display().to_string();
    let env = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let env: Environment = env.chain([("PATH".to_owned(), path)]).collect();
    let context =
        ExecutionContext::new(Host { env, cwd: Some(folder.path().to_path_buf()), ..Host::default() });
    (folder, context)
}

fn options(value: Value) -> CodexOptions {
    serde_json::from_value(value).unwrap()
}

#[test]
fn every_option_becomes_what_the_program_takes() {
    let (folder, context) = context(&[]);
    std::fs::create_dir(folder.path().join("sub")).unwrap();
    let options = options(json!({
        "model": "m", "approvalPolicy": "on-request", "sandbox": "workspace-write", "systemPrompt": "be", "cwd": "sub",
        "appendSystemPrompt": "and", "thinking": "off", "mcpServers": { "s": { "type": "stdio", "command": "run" } },
        "config": { "web_search": "live", "features": { "goals": true }, "model_providers": { "p": { "request_max_retries": 3 } } },
    }));
    let launch = CodexLaunch::new(&options, &context).unwrap();
    let overrides = [
        "features.unbounded_connection_retries=false",
        "check_for_update_on_startup=false",
        "features.goals=true",
        "model_providers.p.request_max_retries=3",
        "web_search=\"live\"",
        "features.goals=false",
    ];
    let arguments = |more: &[&str]| {
        let all = overrides.iter().chain(more).flat_map(|one| ["-c", one]);
        std::iter::once("app-server").chain(all).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(launch.arguments(Store::Own), arguments(&[]));
    assert_eq!(launch.arguments(Store::Memory), arguments(&["cli_auth_credentials_store=\"ephemeral\""]));
    assert_eq!(
        Value::Object(launch.thread),
        json!({
            "cwd": folder.path().join("sub"), "model": "m", "approvalPolicy": "on-request",
            "sandbox": "workspace-write", "baseInstructions": "be", "developerInstructions": "and",
            "config": { "mcp_servers": { "s": { "command": "run" } }, "model_reasoning_effort": "none" },
        })
    );
    assert_eq!(launch.retries, Retries::Chosen);
}

#[test]
fn without_options_the_program_decides() {
    let (folder, context) = context(&[]);
    let launch = CodexLaunch::new(&CodexOptions::default(), &context).unwrap();
    assert_eq!(Value::Object(launch.thread), json!({ "cwd": folder.path() }));
    assert!(launch.retries == Retries::Off && launch.key == EnvironmentKey::None);
}

#[test]
fn the_key_that_is_meant_for_it_goes_first() {
    let rows: [(&[(&str, &str)], EnvironmentKey); 4] = [
        (&[], EnvironmentKey::None),
        (&[("OPENAI_API_KEY", "o")], EnvironmentKey::Else("o".to_owned())),
        (&[("CODEX_API_KEY", "c"), ("OPENAI_API_KEY", "o")], EnvironmentKey::First("c".to_owned())),
        (&[("CODEX_API_KEY", "")], EnvironmentKey::None),
    ];
    for (variables, expected) in rows {
        assert!(key(&context(variables).1.host.env) == expected, "{variables:?}");
    }
}

#[test]
fn a_key_that_is_handed_over_is_not_in_the_environment_too() {
    let both: &[(&str, &str)] = &[("CODEX_API_KEY", "c"), ("OPENAI_API_KEY", "o")];
    let rows = [(both, "CODEX_API_KEY"), (&both[1..], "OPENAI_API_KEY")];
    for (variables, handed) in rows {
        let (_folder, context) = context(variables);
        let launch = CodexLaunch::new(&CodexOptions::default(), &context).unwrap();
        let has = |store| launch.environment(store).iter().any(|(name, _)| name == handed);
        assert_eq!([has(Store::Own), has(Store::Memory)], [true, false], "{handed}");
        assert_eq!(launch.environment(Store::Memory).len(), variables.len(), "{handed}");
    }
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_started() {
    let (_folder, context) = context(&[]);
    let rows = [
        (json!({ "maxTurns": 0 }), "`maxTurns` must be greater than 0"),
        (json!({ "cwd": "/nowhere" }), "the working directory /nowhere is not a directory"),
        (json!({ "mcpServers": { "s": 1 } }), "the MCP server `s` is not an object"),
        (json!({ "outputSchema": { "type": 7 } }), "`outputSchema` is not a JSON Schema: "),
    ];
    for (value, message) in rows {
        let error = CodexLaunch::new(&options(value), &context).err().unwrap();
        assert_eq!(
            (error.code, error.message.starts_with(message)),
            (ErrorCode::ConfigInvalid, true),
            "{error}"
        );
    }
}
