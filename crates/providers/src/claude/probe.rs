//! Whether Claude Code is there, which version it is, and whether it has a login or a key.
//! Telling the user is left to whoever asks.

use std::path::{Path, PathBuf};

use inspan_protocol::{AgentError, Environment, Supervisor};

use super::launch;
use crate::status::{ProgramStatus, TESTED_CLAUDE};
use crate::transport::environment::{Vendor, for_vendor};
use crate::transport::version::{self, Asked};

/// Looks for the program as a call would, asks it for its version, and looks for a login. Nothing is sent anywhere.
pub async fn probe(environment: &Environment, supervisor: Option<Supervisor>) -> ProgramStatus {
    let mut status = ProgramStatus {
        provider: super::TYPE.to_owned(),
        program: "claude".to_owned(),
        tested_version: TESTED_CLAUDE.to_owned(),
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
        name: "Claude Code",
        program: path,
        environment: for_vendor(environment, Vendor::Claude),
        word: 0,
    };
    match version::ask(asked, supervisor).await {
        Ok(version) => status.version = Some(version),
        Err(error) => status.problem = Some(error.message),
    }
    if status.problem.is_none() && status.login.is_none() {
        let message = "no login and no key is found; log in by running `claude`, or set ANTHROPIC_API_KEY";
        status.problem = Some(message.to_owned());
    }
    status
}

/// Where the program is, found as a call without options would find it; it is not started.
pub fn find(environment: &Environment) -> Result<PathBuf, AgentError> {
    launch::program(None, environment, None)
}

/// Where a login or key is found. Its value is not looked at.
fn login(environment: &Environment) -> Option<String> {
    let variables = ["ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"];
    if let Some(name) = variables.into_iter().find(|name| environment.get(name).is_some()) {
        return Some(format!("environment variable {name}"));
    }
    let clouds = ["CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", "CLAUDE_CODE_USE_FOUNDRY"];
    if let Some(name) = clouds.into_iter().find(|name| environment.get(name).is_some()) {
        return Some(format!("a cloud's own login, by {name}"));
    }
    let folder = environment.get("CLAUDE_CONFIG_DIR").map(PathBuf::from);
    let folder = folder.or_else(|| Some(Path::new(environment.get("HOME")?).join(".claude")))?;
    let file = folder.join(".credentials.json");
    file.is_file().then(|| file.display().to_string())
}
