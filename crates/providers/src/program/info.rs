//! What is known of an agent CLI before a call: how it is found, installed and logged in to, and its version.

use std::path::{Path, PathBuf};
use std::time::Duration;

use inspan_protocol::{
    AgentError, Environment, ErrorCode, ModelServerAddress, ModelSettings, ProgramSetup, ProgramStatus,
    ProgramVariables, Setup, Supervisor,
};
use tokio::time::timeout;

use crate::environment::for_program;
use inspan_process::{Process, Start};
use inspan_transport::{ProgramQuery, find};

/// How long a program may take to print its version.
const VERSION_LIMIT: Duration = Duration::from_secs(15);

/// An agent CLI.
#[derive(Debug)]
pub(crate) struct ProgramInfo {
    /// The type of the provider that runs it.
    pub(crate) provider: &'static str,
    /// The name for people.
    pub(crate) name: &'static str,
    /// The name on the `PATH`.
    pub(crate) command: &'static str,
    /// The variable that may name another path.
    pub(crate) variable: &'static str,
    /// The option of an input that may name another program.
    pub(crate) option: &'static str,
    /// The shell command that installs it.
    pub(crate) install: &'static str,
    /// The version that the adapter was tested with.
    pub(crate) tested_version: &'static str,
    /// The variables that belong to it.
    pub(crate) variables: ProgramVariables,
    /// The variables that may hold a key of it.
    pub(crate) keys: &'static [&'static str],
    /// Which word of the output of `--version` is the version, counted from 0.
    pub(crate) version_word: usize,
    /// Where a login or key is found, in the order in which the program uses them. Values are not read.
    pub(crate) login: fn(&Environment) -> Option<String>,
    /// What to do without one; absent if the program needs none.
    pub(crate) log_in: Option<&'static str>,
    /// As [`ProgramSetup::vendor`].
    pub(crate) vendor: Option<&'static str>,
    /// As [`ProgramSetup::model_settings`].
    pub(crate) model_settings: Option<fn(&ModelServerAddress<'_>) -> ModelSettings>,
}

impl ProgramInfo {
    /// What a provider that runs it needs.
    pub(crate) fn setup(&self) -> Setup {
        Setup::Program(ProgramSetup {
            command: self.command,
            variable: self.variable,
            install: self.install,
            tested_version: self.tested_version,
            option: self.option,
            keys: self.keys,
            variables: self.variables,
            vendor: self.vendor,
            model_settings: self.model_settings,
        })
    }

    /// The program to run: by the option, else by the variable, else by its name on the `PATH`.
    pub(crate) fn find(
        &self,
        option: Option<&str>,
        environment: &Environment,
        cwd: Option<&Path>,
    ) -> Result<PathBuf, AgentError> {
        let Self { command, variable, option: by, install, .. } = self;
        let hint = format!(
            "install it with `{install}`, or set its path with the option `{by}` or in the variable {variable}"
        );
        find(&ProgramQuery { option, variable, name: command, hint: &hint }, environment, cwd)
    }

    /// Finds the program as a call would, gets its version, and looks for a login. Nothing is sent anywhere.
    pub(crate) async fn probe(
        &self,
        environment: &Environment,
        supervisor: Option<Supervisor>,
    ) -> ProgramStatus {
        let mut status = ProgramStatus {
            provider: self.provider.to_owned(),
            program: self.command.to_owned(),
            tested_version: self.tested_version.to_owned(),
            path: None,
            version: None,
            login: (self.login)(environment),
            problem: None,
        };
        let version = match self.find(None, environment, None) {
            Ok(path) => {
                status.path = Some(path.clone());
                self.version(path, environment, supervisor).await
            }
            Err(error) => Err(error),
        };
        match (version, self.log_in) {
            (Err(error), _) => status.problem = Some(error.message),
            (Ok(version), log_in) => {
                status.version = Some(version);
                let no_login = log_in.filter(|_| status.login.is_none());
                status.problem = no_login.map(|log_in| format!("no login or key found; {log_in}"));
            }
        }
        status
    }

    /// The version that the program prints.
    async fn version(
        &self,
        program: PathBuf,
        environment: &Environment,
        supervisor: Option<Supervisor>,
    ) -> Result<String, AgentError> {
        let environment = for_program(environment, &self.variables);
        let redactor = environment.redactor();
        let arguments = vec!["--version".to_owned()];
        let start = Start { program, arguments, environment: environment.to_vec(), cwd: None, supervisor };
        let mut process = Process::start(start, redactor).await?;
        let mut output = Vec::new();
        let reading = async {
            while let Some(bytes) = process.read().await {
                output.extend(bytes);
            }
        };
        let in_time = timeout(VERSION_LIMIT, reading).await.is_ok();
        let exit = process.end().await;
        if let Some(refused) = process.refused() {
            return Err(refused);
        }
        let fault = |message: String| AgentError::new(ErrorCode::Process, message);
        if !in_time {
            let seconds = VERSION_LIMIT.as_secs();
            return Err(fault(format!("the program did not print its version within {seconds} s")));
        }
        let output = String::from_utf8_lossy(&output);
        let mut words = output.lines().next().unwrap_or_default().split_whitespace();
        let version =
            words.nth(self.version_word).filter(|word| word.starts_with(|c: char| c.is_ascii_digit()));
        match version {
            Some(version) if exit.code == Some(0) => Ok(version.to_owned()),
            _ => Err(fault(format!(
                "the program is not {}, or broken: `--version` ended with {exit}",
                self.name
            ))),
        }
    }
}

/// The first of these variables that is set, as a place where a key is found.
pub(crate) fn key_in(environment: &Environment, variables: &[&str]) -> Option<String> {
    let set = variables.iter().find(|name| environment.get(name).is_some())?;
    Some(format!("environment variable {set}"))
}

/// A file, if it exists, as a place where a login is found.
pub(crate) fn login_in(file: &Path) -> Option<String> {
    file.is_file().then(|| file.display().to_string())
}

/// The folder that a variable names, else one below the user's home.
pub(crate) fn folder(environment: &Environment, variable: &str, below_home: &str) -> Option<PathBuf> {
    let named = environment.get(variable).map(PathBuf::from);
    named.or_else(|| Some(Path::new(environment.get("HOME")?).join(below_home)))
}
