//! The verbs, one file each, and what several of them share: the registries and reading a flow.

use crate::{args::Verb, exit::Exit, failure::Failure, invocation::Invocation};

mod agent;
mod chat;
mod check;
mod completions;
mod doctor;
mod flow;
mod fork;
mod graph;
mod init;
mod nodes;
mod providers;
mod registries;
mod resume;
mod run;
mod schema;
pub(crate) mod session;
mod sessions;
mod store;
mod talk;

/// Does what the verb says.
pub(crate) fn run(verb: Verb, invocation: &Invocation) -> Result<Exit, Failure> {
    match verb {
        Verb::Run(args) => run::run(&args, invocation),
        Verb::Resume(args) => resume::run(&args, invocation),
        Verb::Fork(args) => fork::run(&args, invocation),
        Verb::Send(args) => talk::send(&args, invocation),
        Verb::Reply(args) => talk::reply(&args, invocation),
        Verb::Approve(args) => talk::decide(&args, "allow", invocation),
        Verb::Reject(args) => talk::decide(&args, "deny", invocation),
        Verb::Pause(args) => talk::pause(&args, invocation),
        Verb::Stop(args) => talk::stop(&args, invocation),
        Verb::Agent(args) => agent::run(&args, invocation),
        Verb::Chat(args) => chat::run(&args, invocation),
        Verb::Store(verb) => store::run(&verb, invocation),
        Verb::Ps(_) | Verb::Show(_) | Verb::Logs(_) | Verb::Why(_) | Verb::Inbox(_) => {
            Err(Failure::usage("this verb is not there yet"))
        }
        Verb::Check(args) => check::run(&args, invocation),
        Verb::Init(args) => init::run(&args, invocation),
        Verb::Graph(args) => graph::run(&args, invocation),
        Verb::Nodes(args) => nodes::run(&args, invocation),
        Verb::Providers => providers::run(invocation),
        Verb::Schema(args) => schema::run(&args, invocation),
        Verb::Doctor => doctor::run(invocation),
        Verb::Completions(args) => completions::run(&args, invocation),
    }
}
