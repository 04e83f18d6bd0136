//! Asks a program for its version, by the option that all of them know.
//! Comparing versions and telling the user is left to the adapters.

use std::path::PathBuf;
use std::time::Duration;

use inspan_protocol::{AgentError, ErrorCode, Redactor, Supervisor};
use tokio::time::timeout;

use super::process::{Process, Start};

/// How long a program may take to say its version.
const LIMIT: Duration = Duration::from_secs(15);

/// Whom to ask.
pub(crate) struct Asked {
    /// The name for people.
    pub(crate) name: &'static str,
    /// The program.
    pub(crate) program: PathBuf,
    /// What it sees of the environment.
    pub(crate) environment: Vec<(String, String)>,
    /// Which word of its answer is the version, counted from 0.
    pub(crate) word: usize,
}

/// The version that the program says it is.
///
/// # Errors
/// It cannot be started, does not answer in time, or answers with something else.
pub(crate) async fn ask(asked: Asked, supervisor: Option<Supervisor>) -> Result<String, AgentError> {
    let redactor = Redactor::new(&asked.environment.iter().cloned().collect());
    let mut process = Process::start(Start {
        program: asked.program,
        arguments: vec!["--version".to_owned()],
        environment: asked.environment,
        cwd: None,
        supervisor,
        redactor,
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
    let mut words = said.lines().next().unwrap_or_default().split_whitespace();
    let number = words.nth(asked.word).filter(|word| word.starts_with(|c: char| c.is_ascii_digit()));
    match number {
        Some(number) if exit.code == Some(0) => Ok(number.to_owned()),
        _ => {
            Err(fault(format!("the program is not {}, or broken: `--version` ended with {exit}", asked.name)))
        }
    }
}
