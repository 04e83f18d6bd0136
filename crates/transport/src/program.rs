//! Finds a program by name or path, says what to do when it is missing, and finds the folder it works in.

use std::path::{Path, PathBuf};

use inspan_protocol::{AgentError, Environment, ErrorCode};

/// What to look for.
pub struct ProgramQuery<'a> {
    /// The option that may name the program, as given.
    pub option: Option<&'a str>,
    /// The environment variable that may name it.
    pub variable: &'static str,
    /// Its usual name.
    pub name: &'a str,
    /// The sentence that says how to get it.
    pub hint: &'a str,
}

/// The folder that an agent works in: the option `cwd`, which starts at the caller's folder if it is relative, else that
/// folder. No caller joins the two, so that a relative option is applied once.
pub fn directory(option: Option<&str>, cwd: Option<&Path>) -> Result<Option<PathBuf>, AgentError> {
    let chosen = match (option, cwd) {
        (Some(option), Some(cwd)) => Some(cwd.join(option)),
        (Some(option), None) => Some(PathBuf::from(option)),
        (None, cwd) => cwd.map(Path::to_path_buf),
    };
    match chosen {
        Some(path) if !path.is_dir() => Err(not_a_directory(&path)),
        chosen => Ok(chosen),
    }
}

/// The error for a working folder that is missing or a file.
pub fn not_a_directory(path: &Path) -> AgentError {
    let message = format!("the working directory {} is not a directory", path.display());
    AgentError::new(ErrorCode::ConfigInvalid, message)
}

/// The path of the program: by the option, else by the variable, else by its name on the path.
pub fn find(
    wanted: &ProgramQuery<'_>,
    environment: &Environment,
    cwd: Option<&Path>,
) -> Result<PathBuf, AgentError> {
    let (named, from) = match (wanted.option, environment.get(wanted.variable)) {
        (Some(option), _) => (option, "by the call"),
        (None, Some(variable)) => (variable, wanted.variable),
        (None, None) => (wanted.name, "PATH"),
    };
    let missing =
        |what: String| AgentError::new(ErrorCode::ConfigMissing, format!("{what}; {}", wanted.hint));
    if named.contains('/') {
        let path = cwd.unwrap_or(Path::new("")).join(named);
        return match is_program(&path) {
            Some(true) => Ok(path),
            Some(false) => {
                let message =
                    format!("{} ({from}) cannot be run: it is not an executable file", path.display());
                Err(AgentError::new(ErrorCode::ConfigInvalid, message))
            }
            None => Err(missing(format!("there is no program {} ({from})", path.display()))),
        };
    }
    on_path(named, environment).ok_or_else(|| missing(format!("the program `{named}` is not on the PATH")))
}

/// Whether there is a program that can be run: at this path, or of this name on the path.
pub fn is_found(named: &str, environment: &Environment) -> bool {
    match named.contains('/') {
        true => is_program(Path::new(named)) == Some(true),
        false => on_path(named, environment).is_some(),
    }
}

fn on_path(name: &str, environment: &Environment) -> Option<PathBuf> {
    let folders = environment.get("PATH").unwrap_or_default();
    std::env::split_paths(folders)
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join(name))
        .find(|path| is_program(path) == Some(true))
}

/// Whether there is an executable file; `None` if there is nothing.
fn is_program(path: &Path) -> Option<bool> {
    let metadata = std::fs::metadata(path).ok()?;
    let executable = std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o111 != 0;
    Some(metadata.is_file() && executable)
}
