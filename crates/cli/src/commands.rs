//! The verbs, one file each, and what several of them share: the registries and reading a flow.

use crate::{args::Verb, exit::Exit, failure::Failure, invocation::Invocation};

mod agent;
mod budget;
mod chat;
mod check;
mod completions;
mod config;
mod doctor;
pub(crate) mod flow;
mod fork;
mod graph;
mod inbox;
mod init;
mod logs;
mod model_server;
pub(crate) mod nodes;
mod providers;
mod ps;
pub(crate) mod registries;
mod resume;
mod run;
mod schema;
pub(crate) mod session;
mod sessions;
mod show;
mod store;
mod talk;
mod why;

/// Does what the verb says.
pub(crate) fn run(verb: Verb, invocation: &Invocation) -> Result<Exit, Failure> {
    match verb {
        Verb::Run(args) => run::run(&args, invocation),
        Verb::Resume(args) => resume::run(&args, invocation),
        Verb::Fork(args) => fork::run(&args, invocation),
        Verb::Send(args) => talk::send(&args, invocation),
        Verb::Reply(args) => talk::reply(&args, invocation),
        Verb::Approve(args) => {
            let word = if args.always { "always" } else { "allow" };
            talk::decide(&args.decide, word, invocation)
        }
        Verb::Reject(args) => talk::decide(&args, "deny", invocation),
        Verb::Pause(args) => talk::pause(&args, invocation),
        Verb::Stop(args) => talk::stop(&args, invocation),
        Verb::Close(args) => talk::close(&args, invocation),
        Verb::Agent(args) => agent::run(&args, invocation),
        Verb::Chat(args) => chat::run(&args, invocation),
        Verb::Store(verb) => store::run(&verb, invocation),
        Verb::Ps(args) => ps::run(&args, invocation),
        Verb::Show(args) => show::run(&args, invocation),
        Verb::Logs(args) => logs::run(&args, invocation),
        Verb::Why(args) => why::run(&args, invocation),
        Verb::Inbox(args) => inbox::run(&args, invocation),
        Verb::Check(args) => check::run(&args, invocation),
        Verb::Init(args) => init::run(&args, invocation),
        Verb::Graph(args) => graph::run(&args, invocation),
        Verb::Nodes(args) => nodes::run(&args, invocation),
        Verb::Providers => providers::run(invocation),
        Verb::Schema(args) => schema::run(&args, invocation),
        Verb::Config => config::run(invocation),
        Verb::Doctor(args) => doctor::run(&args, invocation),
        Verb::ModelServer(args) => model_server::run(&args, invocation),
        Verb::Completions(args) => completions::run(&args, invocation),
        // The verbs that change a session's course are on another branch.
    }
}
