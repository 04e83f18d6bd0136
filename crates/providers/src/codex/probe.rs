//! Whether Codex is there, which version it is, and whether it has a login or a key.
//! Telling the user is left to whoever asks.

use std::path::{Path, PathBuf};

use inspan_protocol::{AgentError, Environment, Supervisor};

use super::error::LOGIN_HINT;
use super::launch;
use crate::status::{ProgramStatus, TESTED_CODEX};
use crate::transport::environment::{Vendor, for_vendor};
use crate::transport::version::{self, Asked};

/// Looks for the program as a call would, asks it for its version, and looks for a login. Nothing is sent anywhere.
pub async fn probe(environment: &Environment, supervisor: Option<Supervisor>) -> ProgramStatus {
    let mut status = ProgramStatus {
        provider: super::TYPE.to_owned(),
        program: "codex".to_owned(),
        tested_version: TESTED_CODEX.to_owned(),
        path: None,
        version: None,
        login: login(environment),
        problem: None,
    };
    let path = match launch::program(None, environment, None) {
        Ok(path) => path,
        Err(error) => {
            status.problem = Some(error.message);
            return status;
        }
    };
    status.path = Some(path.clone());
    let asked = Asked {
        name: "Codex",
        program: path,
        environment: for_vendor(environment, Vendor::Codex),
        // It says `codex-cli` first.
        word: 1,
    };
    match version::ask(asked, supervisor).await {
        Ok(version) => status.version = Some(version),
        Err(error) => status.problem = Some(error.message),
    }
    if status.problem.is_none() && status.login.is_none() {
        status.problem = Some(format!("no login and no key is found; {LOGIN_HINT}"));
    }
    status
}

/// Where the program is, found as a call without options would find it; it is not started.
pub fn find(environment: &Environment) -> Result<PathBuf, AgentError> {
    launch::program(None, environment, None)
}

/// Where a login or key is found, in the order in which a call uses them. Its value is not looked at.
fn login(environment: &Environment) -> Option<String> {
    let variable = |name: &str| environment.get(name).map(|_| format!("environment variable {name}"));
    variable("CODEX_API_KEY").or_else(|| configured(environment)).or_else(|| variable("OPENAI_API_KEY"))
}

/// What stands in the program's own folder: a login, or a provider of models that has a key of its own.
fn configured(environment: &Environment) -> Option<String> {
    let folder = environment.get("CODEX_HOME").map(PathBuf::from);
    let folder = folder.or_else(|| Some(Path::new(environment.get("HOME")?).join(".codex")))?;
    let login = folder.join("auth.json");
    if login.is_file() {
        return Some(login.display().to_string());
    }
    let config = folder.join("config.toml");
    let text = std::fs::read_to_string(&config).ok()?;
    let names = |key: &str| {
        text.lines().any(|line| {
            line.trim_start().strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with('='))
        })
    };
    (names("model_provider") || names("cli_auth_credentials_store"))
        .then(|| format!("as {} says", config.display()))
}
