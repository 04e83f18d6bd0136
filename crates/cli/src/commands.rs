//! The commands, one file each.

use inspan_engine::ProviderRegistry;
use inspan_flow::{NodeRegistry, builtin_nodes};

use crate::{args::Command, exit::Exit, failure::Failure, invocation::Invocation};

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
mod serve;
pub(crate) mod session;
mod show;
mod store;
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
        Command::Send(args) => talk::send(&args, invocation),
        Command::Reply(args) => talk::reply(&args, invocation),
        Command::Approve(args) => {
            let word = if args.always { "always" } else { "allow" };
            talk::decide(&args.decide, word, invocation)
        }
        Command::Reject(args) => talk::decide(&args, "deny", invocation),
        Command::Pause(args) => talk::pause(&args, invocation),
        Command::Stop(args) => talk::stop(&args, invocation),
        Command::Close(args) => talk::close(&args, invocation),
        Command::Agent(args) => agent::run(&args, invocation),
        Command::Chat(args) => chat::run(&args, invocation),
        Command::Export(args) => export::run(&args, invocation),
        Command::Store(command) => store::run(&command, invocation),
        Command::Ps(args) => ps::run(&args, invocation),
        Command::Show(args) => show::run(&args, invocation),
        Command::Logs(args) => logs::run(&args, invocation),
        Command::Why(args) => why::run(&args, invocation),
        Command::Inbox(args) => inbox::run(&args, invocation),
        Command::Digest(args) => notify::digest(&args, invocation),
        Command::Notify(command) => notify::run(&command, invocation),
        Command::Compare(args) => compare::run(&args, invocation),
        Command::Check(args) => check::run(&args, invocation),
        Command::Test(args) => test::run(&args, invocation),
        Command::Init(args) => init::run(&args, invocation),
        Command::Graph(args) => graph::run(&args, invocation),
        Command::Nodes(args) => nodes::run(&args, invocation),
        Command::Providers => providers::run(invocation),
        Command::Schema(args) => schema::run(&args, invocation),
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

/// Every provider that comes with Inspan.
pub(crate) fn all_providers() -> ProviderRegistry {
    inspan_providers::builtin().into_iter().collect()
}

/// Every node type, over all providers.
pub(crate) fn all_nodes() -> NodeRegistry {
    builtin_nodes(&all_providers())
}
