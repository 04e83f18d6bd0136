//! Whether OpenCode is there, which version it is, and where a login or a key is found.
//! Telling the user is left to whoever asks.

use std::path::{Path, PathBuf};

use inspan_protocol::{AgentError, Environment, Supervisor};

use super::launch;
use crate::status::{ProgramStatus, TESTED_OPENCODE};
use crate::transport::environment::{Vendor, for_vendor};
use crate::transport::version::{self, Asked};

/// Looks for the program as a call would, asks it for its version, and looks for a login. Nothing is sent anywhere.
pub async fn probe(environment: &Environment, supervisor: Option<Supervisor>) -> ProgramStatus {
    let mut status = ProgramStatus {
        provider: super::TYPE.to_owned(),
        program: "opencode".to_owned(),
        tested_version: TESTED_OPENCODE.to_owned(),
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
        name: "OpenCode",
        program: path,
        environment: for_vendor(environment, Vendor::OpenCode),
        word: 0,
    };
    match version::ask(asked, supervisor).await {
        Ok(version) => status.version = Some(version),
        Err(error) => status.problem = Some(error.message),
    }
    status
}

/// Where the program is, found as a call without options would find it; it is not started.
pub fn find(environment: &Environment) -> Result<PathBuf, AgentError> {
    launch::program(None, environment, None)
}

/// Where logins are found. Their values are not looked at. Without one the program still has what its settings name,
/// and a model that needs no key, so that to have none is no fault.
fn login(environment: &Environment) -> Option<String> {
    if environment.get("OPENCODE_AUTH_CONTENT").is_some() {
        return Some("environment variable OPENCODE_AUTH_CONTENT".to_owned());
    }
    let home = || Some(Path::new(environment.get("HOME")?).join(".local/share"));
    let data = environment.get("XDG_DATA_HOME").map(PathBuf::from).or_else(home)?;
    let file = data.join("opencode/auth.json");
    if file.is_file() {
        return Some(file.display().to_string());
    }
    let keys =
        ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENROUTER_API_KEY", "GEMINI_API_KEY", "OPENCODE_API_KEY"];
    let key = keys.into_iter().find(|name| environment.get(name).is_some())?;
    Some(format!("environment variable {key}"))
}
