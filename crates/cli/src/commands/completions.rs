//! `inspan completions SHELL`: the script with which a shell completes the command line.

use clap::CommandFactory;
use serde_json::json;

use crate::{
    args::{Cli, CompletionsArgs},
    exit::Exit,
    failure::Failure,
    invocation::{Invocation, OutputForm},
    terminal,
};

pub(super) fn run(args: &CompletionsArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "inspan", &mut script);
    let script = String::from_utf8_lossy(&script);
    match invocation.form {
        OutputForm::Text => {
            terminal::data(&script);
        }
        OutputForm::Json => invocation.json(&json!({ "shell": args.shell.to_string(), "script": script })),
    }
    Ok(Exit::Success)
}
