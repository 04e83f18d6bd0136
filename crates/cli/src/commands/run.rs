//! `inspan run FILE`: builds a session from the command line. Nothing is started before everything that can be
//! checked beforehand is in order.

use std::{path::Path, sync::Arc};

use inspan_flow::{Graph, builtin_nodes, check_input};
use inspan_protocol::{Redactor, SessionId};
use serde_json::{Map, Value};

use super::{
    all_providers, flow, input,
    session::{Ask, Begin, RunMode, Session, SessionSettings, WaitMode, detach},
};
use crate::{
    args::RunArgs, exit::Exit, failure::Failure, invocation::Invocation, settings::Settings as Defaults,
    store, terminal,
};

mod part;
mod plan;
mod preflight;

pub(super) fn run(args: &RunArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let file = flow::file(&args.file);
    let settings = settings(args, &file, invocation);
    let providers = settings.providers(&file, invocation.terminal.progress)?;
    let nodes = builtin_nodes(&providers);
    let defaults = Defaults::of(file.parent(), invocation)?;
    let loaded = flow::changed(flow::read(&file)?, args)?;
    let loaded = flow::with_settings(loaded, &defaults);
    let graph = Arc::new(flow::ready(&loaded, &nodes, invocation)?.graph);
    let given = input::given(args.input_file.as_deref(), &args.input)?;
    let part = part::RunPart::of(args, &graph, &nodes, &given, invocation)?;
    let given = part.input;
    let input = check_input(&graph, given.clone()).map_err(|error| flow::refused_input(&error))?;
    if args.plan {
        return Ok(plan::show(&plan::of_run(&graph, &input, &part.not_run, invocation)?, invocation));
    }
    warn_of_secrets(&given, &graph, invocation);
    if settings.replay.is_none() {
        preflight::check(&graph, &all_providers(), invocation)?;
        // The process in the background was confirmed by the one that began it.
        let limit = graph.flow().policy.confirm_above.or(defaults.confirm_above_usd());
        if let Some(limit) = limit.filter(|_| !args.detached) {
            let forecast = plan::of_run(&graph, &input, &part.not_run, invocation)?;
            plan::confirm(&forecast, limit, args, invocation)?;
        }
    }
    // The text and its tree are larger than the graph that was made of them.
    drop(loaded);
    let id = args.session_id.as_deref().map(SessionId::from);
    let is_here = invocation.engine.is_none() || args.no_store;
    if args.detach && is_here {
        return detach::run(id, args.events.as_deref(), invocation);
    }
    let store = if args.no_store { None } else { Some(store::open_writer(invocation)?) };
    let going = RunMode {
        wait: match (args.detached, args.no_wait) {
            _ if args.detach => WaitMode::Nowhere,
            (true, _) => WaitMode::Background,
            (false, true) => WaitMode::Leave,
            (false, false) => WaitMode::Here,
        },
        ask: if args.no_input { Ask::Never } else { Ask::Terminal },
        events: args.events.clone(),
        web: args.web,
    };
    let begin = Begin::New { id, input: given, reusing: part.reusing };
    Session { graph, nodes, providers, store, settings, begin, going }.watch(invocation)
}

/// What is given as input is stored as it is given, since a session that is resumed needs it.
fn warn_of_secrets(given: &Map<String, Value>, graph: &Graph, invocation: &Invocation) {
    let env = invocation.env.clone().mark(graph.secrets.iter().map(String::as_str));
    let redactor = Redactor::new(&env);
    for (key, _) in given.iter().filter(|(_, value)| redactor.value((*value).clone()) != **value) {
        terminal::progress(&format!(
            "warning: the input `{key}` contains a secret and is stored with the session unchanged\n  help: let a \
             program read it from its environment: `secrets: [NAME]` in the flow\n"
        ));
    }
}

fn settings(args: &RunArgs, file: &Path, invocation: &Invocation) -> SessionSettings {
    let replay =
        args.replay.as_ref().map(|dir| dir.clone().unwrap_or_else(|| file.with_file_name("recordings")));
    SessionSettings {
        cwd: invocation.cwd.clone(),
        record: args.record.clone(),
        replay,
        pace: args.pace,
        max_concurrency: args.max_concurrency,
        request: args.request.clone(),
    }
}
