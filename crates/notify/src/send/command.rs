//! A program that reads the message as JSON on its stdin. It has sent the message if it exits with code 0.

use std::{path::PathBuf, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use inspan_process::{Process, Start};
use inspan_protocol::{Environment, Redactor, Supervisor};
use tokio::time::timeout;

use super::{READ, SendError, Sender};
use crate::message::{Message, line};

/// Variables that every program gets.
const ALWAYS: [&str; 2] = ["PATH", "HOME"];

pub(super) struct CommandSender {
    argv: Vec<String>,
    environment: Vec<(String, String)>,
    timeout: Duration,
    supervisor: Option<Supervisor>,
}

impl CommandSender {
    pub(super) fn new(
        argv: &[String],
        named: Vec<(String, String)>,
        environment: &Environment,
        timeout: Duration,
        supervisor: Option<Supervisor>,
    ) -> Self {
        let always =
            ALWAYS.iter().filter_map(|name| Some(((*name).to_owned(), environment.get(name)?.to_owned())));
        Self { argv: argv.to_vec(), environment: always.chain(named).collect(), timeout, supervisor }
    }
}

impl Sender for CommandSender {
    fn send<'a>(&'a self, message: &'a Message) -> BoxFuture<'a, Result<(), SendError>> {
        async move {
            let body = serde_json::to_vec(message).map_err(|error| SendError::new(error.to_string()))?;
            let id = ("INSPAN_DELIVERY".to_owned(), message.id.clone());
            let environment = self.environment.iter().cloned().chain([id]).collect();
            run(&self.argv, environment, body, self.timeout, self.supervisor.clone()).await
        }
        .boxed()
    }
}

/// Runs a program with this input to its end.
pub(super) async fn run(
    argv: &[String],
    environment: Vec<(String, String)>,
    input: Vec<u8>,
    limit: Duration,
    supervisor: Option<Supervisor>,
) -> Result<(), SendError> {
    let Some((program, arguments)) = argv.split_first() else {
        return Err(SendError::refusal("no program is named"));
    };
    let start = Start {
        program: PathBuf::from(program),
        arguments: arguments.to_vec(),
        environment,
        cwd: None,
        supervisor,
    };
    // A program that is not there, or may not be run, will not be there the next time either.
    let failed = |error: inspan_protocol::AgentError| SendError::refusal(error.message);
    let mut process = Process::start(start, Redactor::default()).await.map_err(failed)?;
    let stdin = process.stdin();
    if !input.is_empty() {
        // A program that has ended already shows it by its exit.
        let _ = stdin.send(input);
    }
    stdin.close();
    let ended = timeout(limit, async {
        // What it prints is not for us, but a full pipe would stop it.
        while process.read().await.is_some() {}
        process.wait(limit).await
    });
    match ended.await.ok().flatten() {
        Some(exit) if exit.code == Some(0) => Ok(()),
        Some(exit) => {
            if let Some(refused) = process.refused() {
                return Err(failed(refused));
            }
            let said = process.stderr();
            let said = said.lines().rev().find(|line| !line.trim().is_empty());
            let said = said.map(|said| format!(": {}", line(said, READ))).unwrap_or_default();
            Err(SendError::new(format!("`{program}` ended with {exit}{said}")))
        }
        None => {
            process.kill().await;
            Err(SendError::new(format!("`{program}` took longer than {} s", limit.as_secs())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_program_that_cannot_start_is_a_refusal_and_one_that_fails_is_not() {
        let is_refusal = async |argv: &[&str]| {
            let argv: Vec<String> = argv.iter().map(|word| (*word).to_owned()).collect();
            let environment = vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned())];
            let ended = run(&argv, environment, Vec::new(), Duration::from_secs(20), None).await;
            ended.map_err(|error| error.is_refusal)
        };
        let got = [
            is_refusal(&["no-such-program"]).await,
            is_refusal(&["/etc/passwd"]).await,
            is_refusal(&["sh", "-c", "exit 1"]).await,
            is_refusal(&["true"]).await,
        ];
        assert_eq!(got, [Err(true), Err(true), Err(false), Ok(())]);
    }
}
