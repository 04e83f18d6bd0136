//! Whether Claude Code is there, which version it is, and whether it has a login or a key.
//! Telling the user is left to whoever asks.

use std::path::{Path, PathBuf};
use std::time::Duration;

use inspan_protocol::{AgentError, Environment, ErrorCode, Supervisor};
use tokio::time::timeout;

use super::launch;
use crate::status::{ProgramStatus, TESTED_CLAUDE};
use crate::transport::environment::{Vendor, for_vendor};
use crate::transport::process::{Process, Start};
use crate::transport::redact::Redactor;

/// How long the program may take to say its version.
const LIMIT: Duration = Duration::from_secs(15);

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
    match version(path, environment, supervisor).await {
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

async fn version(
    program: PathBuf,
    environment: &Environment,
    supervisor: Option<Supervisor>,
) -> Result<String, AgentError> {
    let mut process = Process::start(Start {
        program,
        arguments: vec!["--version".to_owned()],
        environment: for_vendor(environment, Vendor::Claude),
        cwd: None,
        supervisor,
        redactor: Redactor::new(environment),
    })?;
    let mut said = Vec::new();
    let reading = async {
        while let Some(bytes) = process.read().await {
            said.extend(bytes);
        }
    };
    let in_time = timeout(LIMIT, reading).await.is_ok();
    let exit = process.end().await;
    if let Some(refused) = process.refused(exit) {
        return Err(refused);
    }
    let fault = |message: String| AgentError::new(ErrorCode::Process, message);
    if !in_time {
        return Err(fault(format!("the program did not say its version within {} s", LIMIT.as_secs())));
    }
    let said = String::from_utf8_lossy(&said);
    let number = said.split_whitespace().next().filter(|word| word.starts_with(|c: char| c.is_ascii_digit()));
    match number {
        Some(number) if exit.code == Some(0) => Ok(number.to_owned()),
        _ => Err(fault(format!("the program is not Claude Code, or broken: `--version` ended with {exit}"))),
    }
}
