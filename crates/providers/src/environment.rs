//! What an agent CLI sees of the caller's environment, and of files that are written for it.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use inspan_protocol::{
    AgentError, Environment, ErrorCode, ExecutionContext, ProgramVariables, Redactor, TRACE_VARIABLES,
};

use crate::programs;

/// Keys of vendors that have no provider.
const OTHER_KEYS: [&str; 1] = ["CURSOR_API_KEY"];

/// Set for Claude Code, and for agents that run it. Retries are the caller's, so that attempts are counted once; a broken
/// stream is an error rather than a second request whose answer comes twice; and a program that updates itself is not
/// the one tested.
pub(crate) const CLAUDE_CODE_FIXED: &[(&str, &str)] = &[
    ("CLAUDE_CODE_MAX_RETRIES", "0"),
    ("CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK", "1"),
    ("DISABLE_AUTOUPDATER", "1"),
];

/// Settings of Claude Code above those of files. The model may begin to plan without a question, and while it plans another
/// model would answer for the person what is asked. Other sessions of the user could begin turns in a process that waits for
/// its next turn.
pub(crate) const CLAUDE_CODE_SETTINGS: &str =
    r#"{"useAutoModeDuringPlan":false,"crossSessionInbound":"refuse"}"#;

/// The variables that belong to the agent CLIs, as their providers describe them.
struct Claims {
    own: Vec<&'static str>,
    hidden: Vec<&'static str>,
}

static CLAIMS: LazyLock<Claims> = LazyLock::new(|| {
    let mut claims = Claims { own: OTHER_KEYS.to_vec(), hidden: Vec::new() };
    for program in programs() {
        claims.own.extend(program.variables.own);
        claims.hidden.extend(program.variables.hidden);
    }
    claims
});

/// Whether an agent CLI has a claim to a variable. The others are for all, because agents run the user's own tools.
fn is_claimed(name: &str) -> bool {
    any_fits(&CLAIMS.own, name) || any_fits(&CLAIMS.hidden, name)
}

/// The variables that an agent CLI may see: its own, and those that belong to no other.
pub(crate) fn for_program(environment: &Environment, variables: &ProgramVariables) -> ProgramEnvironment {
    let sees = |name: &str| {
        !any_fits(&CLAIMS.hidden, name) && (any_fits(variables.own, name) || !any_fits(&CLAIMS.own, name))
    };
    ProgramEnvironment(filtered(environment, sees))
}

/// The variables of an agent CLI. They are equal also where only the attempt differs whose trace the program joins: one
/// that is kept running serves the attempts that go on in its conversation.
#[derive(Clone)]
pub(crate) struct ProgramEnvironment(Vec<(String, String)>);

impl ProgramEnvironment {
    /// Takes its secrets out of a text.
    pub(crate) fn redactor(&self) -> Redactor {
        Redactor::new(&self.iter().cloned().collect())
    }
}

impl PartialEq for ProgramEnvironment {
    fn eq(&self, other: &Self) -> bool {
        let of_all = |(name, _): &&(String, String)| !TRACE_VARIABLES.contains(&name.as_str());
        self.iter().filter(of_all).eq(other.iter().filter(of_all))
    }
}

impl std::ops::Deref for ProgramEnvironment {
    type Target = Vec<(String, String)>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl std::ops::DerefMut for ProgramEnvironment {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

/// The variables that hold a key of an agent CLI or its vendor.
pub fn vendor_keys(environment: &Environment) -> Vec<String> {
    let names = environment.iter().map(|(name, _)| name);
    let keys = names.filter(|name| Redactor::is_secret_name(name) && is_claimed(name));
    keys.map(str::to_owned).collect()
}

/// The variables that a program of the user's own may see: those that belong to no agent CLI.
pub(crate) fn for_others(environment: &Environment) -> Vec<(String, String)> {
    filtered(environment, |name| !is_claimed(name))
}

fn filtered(environment: &Environment, sees: impl Fn(&str) -> bool) -> Vec<(String, String)> {
    let seen = environment.iter().filter(|(name, _)| sees(name));
    seen.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn any_fits(patterns: &[&str], name: &str) -> bool {
    patterns.iter().any(|pattern| fits(pattern, name))
}

/// Whether a pattern, which may end with `*`, matches a variable.
pub(crate) fn fits(pattern: &str, name: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == name, |start| name.starts_with(start))
}

/// The folder for temporary files.
pub(crate) fn temporary(context: &ExecutionContext) -> PathBuf {
    PathBuf::from(context.host.env.get("TMPDIR").unwrap_or("/tmp"))
}

/// A file that only this user can read. It is deleted when it is dropped.
#[derive(Debug)]
pub(crate) struct PrivateFile(pub(crate) PathBuf);

impl PrivateFile {
    pub(crate) fn new(mut content: impl Read, extension: &str, folder: &Path) -> Result<Self, AgentError> {
        let path = folder.join(format!("inspan-{}.{extension}", crate::conversation::fresh_id()));
        let opened = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let written = opened.and_then(|mut file| io::copy(&mut content, &mut file));
        let file = Self(path);
        written.map(|_| file).map_err(|error| {
            let message = format!("cannot write a file for the program in {}: {error}", folder.display());
            AgentError::new(ErrorCode::Process, message)
        })
    }
}

impl Drop for PrivateFile {
    fn drop(&mut self) {
        // No caller could act on a failure; the folder is one for temporary files.
        let _deleted = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_serves_every_attempt_and_no_other_key() {
        let of = |name: &str, value: &str| {
            for_program(
                &Environment::default().with("HOME", "/h").with(name, value),
                &ProgramVariables::default(),
            )
        };
        assert!(of("TRACEPARENT", "00-1") == of("TRACEPARENT", "00-2"));
        assert!(of("OTHER", "1") != of("OTHER", "2"));
    }

    #[test]
    fn a_program_sees_its_own_keys_and_no_others() {
        let names = [
            "ANTHROPIC_API_KEY",
            "AWS_PROFILE",
            "CLAUDECODE",
            "CLAUDE_CODE_ENTRYPOINT",
            "CLAUDE_CONFIG_DIR",
            "CODEX_HOME",
            "CODEX_SANDBOX_NETWORK_DISABLED",
            "CODEX_THREAD_ID",
            "GEMINI_API_KEY",
            "HOME",
            "OPENAI_API_KEY",
            "OPENCODE_CONFIG",
            "OPENCODE_PERMISSION",
            "OPENCODE_SERVER_PASSWORD",
            "PATH",
        ];
        let environment: Environment =
            names.map(|name| (name.to_owned(), "x".to_owned())).into_iter().collect();
        let names = |seen: Vec<(String, String)>| seen.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        let seen = |command: &str| {
            let program = programs().into_iter().find(|program| program.command == command).unwrap();
            names(for_program(&environment, &program.variables).to_vec())
        };
        assert_eq!(seen("claude"), ["ANTHROPIC_API_KEY", "AWS_PROFILE", "CLAUDE_CONFIG_DIR", "HOME", "PATH"]);
        assert_eq!(seen("codex"), ["AWS_PROFILE", "CODEX_HOME", "HOME", "OPENAI_API_KEY", "PATH"]);
        let many = [
            "ANTHROPIC_API_KEY",
            "AWS_PROFILE",
            "GEMINI_API_KEY",
            "HOME",
            "OPENAI_API_KEY",
            "OPENCODE_CONFIG",
            "PATH",
        ];
        assert_eq!(seen("opencode"), many);
        assert_eq!(names(for_others(&environment)), ["AWS_PROFILE", "HOME", "PATH"]);
        let keys = ["ANTHROPIC_API_KEY", "GEMINI_API_KEY", "OPENAI_API_KEY", "OPENCODE_SERVER_PASSWORD"];
        assert_eq!(vendor_keys(&environment), keys);
    }
}
