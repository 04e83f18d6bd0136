//! The command line, and its console as a channel for your own programs.

use std::process::ExitCode;

use clap::Parser;

mod args;
mod artifacts;
mod commands;
mod console;
mod diagnostics;
mod engine;
mod exit;
mod failure;
mod invocation;
mod launcher;
mod settings;
mod store;
mod terminal;

pub use console::ConsoleChannel;

use args::Cli;
use failure::Failure;
use invocation::Invocation;

/// Raises the soft limit of open files: a flow may run hundreds of programs at once, and each of them has several pipes. It
/// is low for programs that wait for files by `select`, and 256 on macOS.
fn allow_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    /// Programs that close all numbers that they could have inherited take long with more.
    const MOST: u64 = 8192;
    let mut limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.map_or(MOST, |most| most.min(MOST));
    if limit.current.is_some_and(|now| now < most) {
        limit.current = Some(most);
        // If it stays as it is, a flow with fewer programs runs.
        let _raised = setrlimit(Resource::Nofile, limit);
    }
}

/// The `inspan` program: reads the command line and the environment, calls the command, and returns its exit code.
/// Before all that it checks whether it is to be a supervisor, which has its own main function.
pub fn program() -> ExitCode {
    if let Some(exit) = inspan_process::run_as_guard() {
        return exit;
    }
    allow_files();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let error = args::meant(error);
            if error.use_stderr() && invocation::asks_for_json() {
                terminal::json_line(&format!("{:#}", Failure::of_command_line(&error).json()));
            }
            if let Err(lost) = error.print() {
                terminal::note_lost(&lost);
            }
            if terminal::lost().is_some() {
                return exit::Exit::Failed.into();
            }
            return if error.use_stderr() { exit::Exit::Invalid.into() } else { exit::Exit::Success.into() };
        }
    };
    if cli.command.is_in_background() {
        commands::session::detach::leave_terminal();
    }
    let invocation = Invocation::of_process(cli.global);
    let exit = match commands::run(cli.command, &invocation) {
        Ok(exit) => exit,
        Err(failure) => {
            invocation.show(&failure);
            failure.exit
        }
    };
    match terminal::lost() {
        Some(why) => invocation.lost_output(why, exit).into(),
        None => exit.into(),
    }
}
