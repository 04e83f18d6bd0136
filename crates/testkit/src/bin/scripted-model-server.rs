//! The scripted model server as a program of its own, for driving real agents by hand and from scripts.
//! Everything it does is in the library; this only reads arguments and waits.

use std::io::{Read, Write};
use std::process::ExitCode;

use inspan_testkit::{ModelServer, Scenario};

const USAGE: &str = "\
usage: scripted-model-server --scenario FILE [--until-stdin-closes]

Prints {\"port\":N} and serves 127.0.0.1:N until it is killed, or until its input closes if asked to.
GET /__state and GET /__requests show what it saw, PUT /__scenario replaces the scenario.";

enum Until {
    Killed,
    StdinCloses,
}

fn main() -> ExitCode {
    match run(std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            // Nothing is left to do if even this cannot be written.
            drop(writeln!(std::io::stderr(), "{message}"));
            ExitCode::from(2)
        }
    }
}

fn run(mut args: impl Iterator<Item = String>) -> Result<(), String> {
    let mut scenario = None;
    let mut until = Until::Killed;
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--scenario" => scenario = Some(args.next().ok_or("--scenario needs a file")?),
            "--until-stdin-closes" => until = Until::StdinCloses,
            _ => return Err(format!("unknown argument {arg}\n{USAGE}")),
        }
    }
    let scenario = Scenario::load(scenario.ok_or(USAGE)?).map_err(|error| with_causes(&error))?;
    let server = ModelServer::start(scenario).map_err(|error| with_causes(&error))?;
    let mut stdout = std::io::stdout();
    writeln!(stdout, "{{\"port\":{}}}", server.port())
        .and_then(|()| stdout.flush())
        .map_err(|error| error.to_string())?;
    match until {
        Until::Killed => loop {
            std::thread::park();
        },
        Until::StdinCloses => {
            let mut ignored = [0; 1024];
            while !matches!(std::io::stdin().read(&mut ignored), Ok(0) | Err(_)) {}
            Ok(())
        }
    }
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| match cause.to_string() {
        cause if text.contains(&cause) => text,
        cause => format!("{text}: {cause}"),
    })
}
