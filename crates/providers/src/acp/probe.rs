//! Whether the programs of `droid`, `gemini` and `qwen` are installed, and whether they have a login or a key.

use std::path::{Path, PathBuf};

use inspan_protocol::{AgentError, Environment, Supervisor};

use super::launch;
use super::preset::{NAMED, Preset, Program};
use crate::status::ProgramStatus;
use crate::transport::environment::for_vendor;
use crate::transport::version::{self, Asked};

/// Looks for each program as a call would, asks it for its version, and looks for a login. Nothing is sent anywhere.
pub async fn probe(environment: &Environment, supervisor: Option<Supervisor>) -> Vec<ProgramStatus> {
    let mut statuses = Vec::new();
    for preset in NAMED {
        if let Some(program) = preset.program {
            statuses.push(status(preset, program, environment, supervisor.clone()).await);
        }
    }
    statuses
}

/// Where the program of a provider is, found as a call without options would find it; it is not started. `None` for
/// a provider that has no program of its own.
pub fn find(provider: &str, environment: &Environment) -> Option<Result<PathBuf, AgentError>> {
    let preset = NAMED.into_iter().find(|preset| preset.provider == provider)?;
    Some(launch::program(preset, None, environment, None))
}

async fn status(
    preset: &Preset,
    program: &'static Program,
    environment: &Environment,
    supervisor: Option<Supervisor>,
) -> ProgramStatus {
    let mut status = ProgramStatus {
        provider: preset.provider.to_owned(),
        program: program.name.to_owned(),
        tested_version: program.tested.to_owned(),
        path: None,
        version: None,
        login: login(program, environment),
        problem: None,
    };
    let path = match launch::program(preset, None, environment, None) {
        Ok(path) => path,
        Err(error) => {
            status.problem = Some(error.message);
            return status;
        }
    };
    status.path = Some(path.clone());
    let asked = Asked {
        name: preset.name,
        program: path,
        environment: for_vendor(environment, preset.vendor),
        word: 0,
    };
    match version::ask(asked, supervisor).await {
        Ok(version) => status.version = Some(version),
        Err(error) => status.problem = Some(error.message),
    }
    if status.problem.is_none() && status.login.is_none() {
        status.problem = Some(format!("no login and no key is found; {}", program.log_in));
    }
    status
}

/// Where a login or key is found. Its value is not looked at.
fn login(program: &Program, environment: &Environment) -> Option<String> {
    if let Some(name) = program.keys.iter().find(|name| environment.get(name).is_some()) {
        return Some(format!("environment variable {name}"));
    }
    let file = Path::new(environment.get("HOME")?).join(program.login);
    file.is_file().then(|| file.display().to_string())
}
