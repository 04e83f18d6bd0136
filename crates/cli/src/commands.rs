//! The commands, one file each.

use std::{fs::File, io::Read, path::Path};

use inspan_engine::ProviderRegistry;
use inspan_flow::{NodeRegistry, builtin_nodes};

use crate::{
    args::{Command, FlowCommand, SessionCommand},
    exit::Exit,
    failure::Failure,
    invocation::Invocation,
};

mod acp;
mod agent;
mod chat;
pub(crate) mod check;
mod compare;
mod completions;
mod config;
mod doctor;
mod export;
pub(crate) mod flow;
mod fork;
mod graph;
mod inbox;
mod init;
mod logs;
mod mcp;
mod model_server;
pub(crate) mod nodes;
mod notify;
mod providers;
mod ps;
mod resume;
mod run;
mod schema;
pub(crate) mod secrets;
mod serve;
pub(crate) mod session;
mod show;
mod store;
mod stored;
mod talk;
mod test;
mod why;
mod worker;

pub(crate) use init::TEMPLATES;

/// Runs a command.
pub(crate) fn run(command: Command, invocation: &Invocation) -> Result<Exit, Failure> {
    match command {
        Command::Run(args) => run::run(&args, invocation),
        Command::Resume(args) => resume::run(&args, invocation),
        Command::Fork(args) => fork::run(&args, invocation),
        Command::Session(command) => run_session(command, invocation),
        Command::Notify(command) => notify::run(&command, invocation),
        Command::Agent(args) => agent::run(&args, invocation),
        Command::Chat(args) => chat::run(&args, invocation),
        Command::Export(args) => export::run(&args, invocation),
        Command::Store(command) => store::run(&command, invocation),
        Command::Flow(command) => run_flow(command, invocation),
        Command::Config => config::run(invocation),
        Command::Doctor(args) => doctor::run(&args, invocation),
        Command::ModelServer(args) => model_server::run(&args, invocation),
        Command::Serve(args) => serve::run(&args, invocation),
        Command::Mcp(args) => mcp::run(&args, invocation),
        Command::Acp(args) => acp::run(&args, invocation),
        Command::Worker(args) => worker::run(&args, invocation),
        Command::Completions(args) => completions::run(&args, invocation),
    }
}

fn run_session(command: SessionCommand, invocation: &Invocation) -> Result<Exit, Failure> {
    match command {
        SessionCommand::Ps(args) => ps::run(&args, invocation),
        SessionCommand::Show(args) => show::run(&args, invocation),
        SessionCommand::Logs(args) => logs::run(&args, invocation),
        SessionCommand::Why(args) => why::run(&args, invocation),
        SessionCommand::Compare(args) => compare::run(&args, invocation),
        SessionCommand::Inbox(args) => inbox::run(&args, invocation),
        SessionCommand::Digest(args) => notify::digest(&args, invocation),
        SessionCommand::Send(args) => talk::send(&args, invocation),
        SessionCommand::Reply(args) => talk::reply(&args, invocation),
        SessionCommand::Approve(args) => {
            let word = if args.always { "always" } else { "allow" };
            talk::decide(&args.decide, word, None, invocation)
        }
        SessionCommand::Reject(args) => {
            talk::decide(&args.decide, "deny", args.reason.as_deref(), invocation)
        }
        SessionCommand::Pause(args) => talk::pause(&args, invocation),
        SessionCommand::Stop(args) => talk::stop(&args, invocation),
        SessionCommand::Close(args) => talk::close(&args, invocation),
    }
}

fn run_flow(command: FlowCommand, invocation: &Invocation) -> Result<Exit, Failure> {
    match command {
        FlowCommand::Check(args) => check::run(&args, invocation),
        FlowCommand::Test(args) => test::run(&args, invocation),
        FlowCommand::Init(args) => init::run(&args, invocation),
        FlowCommand::Graph(args) => graph::run(&args, invocation),
        FlowCommand::Nodes(args) => nodes::run(&args, invocation),
        FlowCommand::Providers => providers::run(invocation),
        FlowCommand::Schema(args) => schema::run(&args, invocation),
    }
}

/// Every provider that comes with Inspan.
pub(crate) fn all_providers() -> ProviderRegistry {
    inspan_providers::builtin().into_iter().collect()
}

/// Every node type, over all providers.
pub(crate) fn all_nodes() -> NodeRegistry {
    builtin_nodes(&all_providers())
}

/// Refuses to replace a file that is not of this kind. An empty one may be replaced, and so may a pipe or a device.
fn check_replaces(file: &Path, kind: &str, is_own: impl FnOnce(&Path) -> bool) -> Result<(), Failure> {
    if !file.metadata().is_ok_and(|found| found.is_file() && found.len() > 0) || is_own(file) {
        return Ok(());
    }
    let message = format!("not replacing {}: it is not {kind}", file.display());
    Err(Failure::usage(message).with_hint("name another file, or remove this one"))
}

/// Whether a file begins like this, or was cut short in it. One that cannot be read is for the writer to report.
fn begins_with(file: &Path, beginning: &str) -> bool {
    let mut held = Vec::new();
    let read = File::open(file).and_then(|file| file.take(beginning.len() as u64).read_to_end(&mut held));
    read.is_err() || beginning.as_bytes().starts_with(&held)
}
