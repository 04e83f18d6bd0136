//! `inspan run FILE`: builds a session from the command line. Nothing is started before everything that can be
//! checked beforehand is in order. Driving and watching it is left to `session`.

use std::sync::Arc;

use inspan_flow::check_input;
use inspan_protocol::SessionId;

use super::{
    flow, registries,
    session::{Ask, Begin, Going, Session, Settings, Wait, detach},
};
use crate::{
    args::RunArgs, exit::Exit, failure::Failure, invocation::Invocation, settings::Settings as Defaults,
    store,
};

mod input;
mod preflight;

pub(super) fn run(args: &RunArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let settings = settings(args, invocation);
    let providers = settings.providers(&args.file, invocation.terminal.progress)?;
    let nodes = registries::nodes(&providers);
    let defaults = Defaults::of(args.file.parent(), invocation)?;
    let loaded = input::changed(flow::read(&args.file)?, args)?;
    let loaded = input::with_defaults(loaded, &defaults);
    let graph = Arc::new(flow::ready(&loaded, &nodes, invocation)?.graph);
    let given = input::of(args)?;
    check_input(&graph, given.clone()).map_err(|error| flow::refused(&error))?;
    if settings.replay.is_none() {
        preflight::check(&graph, invocation)?;
    }
    // The text and its tree are larger than the graph that was made of them.
    drop(loaded);
    let id = args.session_id.as_deref().map(SessionId::from);
    if args.detach {
        return detach::run(id, invocation);
    }
    let store = if args.no_store { None } else { Some(store::open_writer(invocation)?) };
    let going = Going {
        wait: match (args.detached, args.no_wait) {
            (true, _) => Wait::Background,
            (false, true) => Wait::Leave,
            (false, false) => Wait::Here,
        },
        ask: if args.no_input { Ask::Never } else { Ask::Terminal },
        events: args.events.clone(),
    };
    let begin = Begin::New { id, input: given, reusing: None };
    Session { graph, nodes, providers, store, settings, begin, going }.watch(invocation)
}

fn settings(args: &RunArgs, invocation: &Invocation) -> Settings {
    let replay =
        args.replay.as_ref().map(|dir| dir.clone().unwrap_or_else(|| args.file.with_file_name("recordings")));
    Settings {
        cwd: invocation.cwd.clone(),
        record: args.record.clone(),
        replay,
        pace: args.pace,
        max_concurrency: args.max_concurrency,
    }
}
