//! The verbs, one file each, and what several of them share: the registries and reading a flow.

use crate::{args::Verb, exit::Exit, failure::Failure, invocation::Invocation};

mod check;
mod completions;
mod doctor;
mod flow;
mod graph;
mod inbox;
mod init;
mod logs;
mod nodes;
mod providers;
mod ps;
mod registries;
mod run;
mod schema;
mod sessions;
mod show;
mod why;

/// Does what the verb says.
pub(crate) fn run(verb: Verb, invocation: &Invocation) -> Result<Exit, Failure> {
    match verb {
        Verb::Run(args) => run::run(&args, invocation),
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
        Verb::Doctor => doctor::run(invocation),
        Verb::Completions(args) => completions::run(&args, invocation),
        // The verbs that change a session's course are on another branch.
        _ => Err(Failure::usage("this verb is not there yet")),
    }
}
