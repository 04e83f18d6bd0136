//! `inspan run FILE`: builds a session from the command line. Nothing is started before everything that can be
//! checked beforehand is in order.

use std::{num::NonZeroU32, path::Path, sync::Arc};

use inspan_engine::ProviderRegistry;
use inspan_flow::{Graph, Node, StaticValue, builtin_nodes};
use inspan_protocol::{AgentError, Environment, NodePath, Redactor, SessionId};
use serde_json::{Map, Value};

use super::{
    all_providers, flow,
    notify::marked,
    secrets,
    session::{self, Ask, Begin, RunMode, Session, SessionSettings, detach},
};
use crate::{
    args::RunArgs, exit::Exit, failure::Failure, invocation::Invocation, settings::Settings as Defaults,
    store, terminal,
};

mod part;
mod plan;

pub(super) fn run(args: &RunArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    detach::check(&args.mode, &[("--input-file", args.input_file.as_deref())], &args.input, invocation)?;
    if invocation.cwd.is_none() {
        return Err(Failure::usage("the working folder no longer exists")
            .with_hint("`cd` to the folder where the nodes should work"));
    }
    let (file, mode) = (flow::file(&args.file), &args.mode);
    let mut settings = settings(args, &file, invocation);
    let calls = settings.new_calls(&file, invocation.terminal.progress)?;
    let providers = session::providers(&calls);
    let nodes = builtin_nodes(&providers);
    let defaults = Defaults::of(file.parent(), invocation)?;
    let loaded = flow::changed(flow::read(&file)?, args, &providers)?;
    let loaded = flow::with_settings(loaded, &defaults);
    let graph = Arc::new(flow::ready(&loaded, &nodes, None, invocation)?.graph);
    let given = flow::given_input(&graph, args.input_file.as_deref(), &args.input)?;
    let part = part::RunPart::of(args, &graph, &nodes, &given, invocation)?;
    let given = part.input;
    let input = flow::checked_input(&graph, given.clone(), &args.input)?;
    if args.plan {
        if let Some(limit) = &part.used_up {
            terminal::progress(&format!(
                "warning: earlier sessions have used up the budget of the flow, and no agent would start: {limit}\n  help: set \
                 a higher one: `--budget usd=N` or `--budget tokens=N`\n"
            ));
        }
        return Ok(plan::show(&plan::of_run(&graph, &input, &part.not_run, invocation)?, invocation));
    }
    if !args.no_store {
        check_folders(&graph, &settings)?;
    }
    warn_of_secrets(&given, !args.no_store, &graph, marked(invocation.env.clone(), &defaults));
    settings.given = given.keys().cloned().collect();
    if settings.replay.is_none() {
        // The machines of a cluster have programs and keys of their own.
        if invocation.engine.is_none() {
            check_setup(&graph, &all_providers(), invocation)?;
        }
        // The process in the background was confirmed by the one that began it.
        let limit = graph.flow().policy.confirm_above.or(defaults.confirm_above_usd());
        if let Some(limit) = limit.filter(|_| !mode.detached) {
            let forecast = plan::of_run(&graph, &input, &part.not_run, invocation)?;
            plan::confirm(&forecast, limit, args, invocation)?;
        }
    }
    // The text and its tree are larger than the graph that was made of them.
    drop(loaded);
    let id = args.session_id.as_deref().map(SessionId::from);
    if args.no_store && invocation.engine.is_some() {
        let why = "`--no-store` runs a session here, and a cluster runs what is stored";
        return Err(Failure::usage(why).with_hint("leave it out, or add `--engine local`"));
    }
    if mode.detach && invocation.engine.is_none() {
        return detach::run(id, invocation);
    }
    let store = if args.no_store { None } else { Some(store::open_writer(invocation)?) };
    let begin = Begin::New { id, input: given, reusing: part.reusing };
    let mode = RunMode { web: args.web, ..RunMode::of(mode, Ask::Terminal) };
    Session { graph, nodes, providers, calls, store, settings, defaults, begin, mode }.watch(invocation)
}

/// Refuses a session that cannot be stored: it is stored as JSON, whose texts are UTF-8.
fn check_folders(graph: &Graph, settings: &SessionSettings) -> Result<(), Failure> {
    let named = [&settings.cwd, &settings.record, &settings.replay];
    let mut folders = named.into_iter().flatten().chain([&graph.source.folder]);
    match folders.find(|folder| folder.to_str().is_none()) {
        None => Ok(()),
        Some(folder) => {
            let message = format!(
                "the name of the folder {} is not UTF-8: its sessions cannot be stored; nothing was started",
                folder.display()
            );
            Err(Failure::usage(message).with_hint("rename the folder, or use `--no-store`"))
        }
    }
}

/// What is given as input is stored as it is given, since a session that is resumed needs it; and a secret that is like
/// any other text is found nowhere.
fn warn_of_secrets(given: &Map<String, Value>, is_stored: bool, graph: &Graph, env: Environment) {
    let env = env.mark(&graph.secrets);
    let redactor = Redactor::new(&env);
    let is_plain = |name: &&String| {
        env.get(name).is_some_and(|value| !value.trim().is_empty() && redactor.text(value) == value)
    };
    for name in graph.secrets.iter().filter(is_plain) {
        terminal::progress(&format!(
            "warning: the secret {name} is too short or too common to be recognised: it is shown and stored wherever it \
             occurs\n  help: take a value of 8 characters or more\n"
        ));
    }
    let has_secret = |value: &Value| redactor.value(value.clone()) != *value;
    for (key, _) in given.iter().filter(|(_, value)| is_stored && has_secret(value)) {
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
        max_concurrency: args.max_concurrency.map(NonZeroU32::get),
        given: Vec::new(),
        request: args.mode.request.clone(),
    }
}

/// Refuses a flow whose agents cannot be started.
fn check_setup(graph: &Graph, providers: &ProviderRegistry, invocation: &Invocation) -> Result<(), Failure> {
    secrets::check(graph, invocation)?;
    let is_asked_for = |place: &NodePath| {
        let asked = |only: &NodePath| place.is_within(only) || only.is_within(place);
        graph.only.is_empty() || graph.only.iter().any(asked)
    };
    // What is missing in a body would be found after what is before it was paid. But a body may not run, so it is a warning. A body
    // that many nodes run is looked at once.
    let (mut open, mut seen) = (vec![(graph.flow(), String::new())], Vec::new());
    while let Some((body, prefix)) = open.pop() {
        for node in &body.nodes {
            let place = NodePath::new(&format!("{prefix}{}", node.id));
            if !is_asked_for(&place) {
                continue;
            }
            match check_node(node, providers, &invocation.env) {
                Err(error) if prefix.is_empty() => return Err(setup_failure(&node.id, &error)),
                Err(error) => {
                    terminal::progress(&format!("warning: node `{place}` cannot run: {}\n", error.message));
                }
                Ok(()) => {}
            }
            if let Some(frames) = node.frames.as_ref().filter(|frames| !seen.contains(&frames.body)) {
                seen.push(frames.body);
                open.push((graph.body(frames.body), format!("{place}/")));
            }
        }
    }
    Ok(())
}

fn check_node(
    node: &Node,
    providers: &ProviderRegistry,
    environment: &Environment,
) -> Result<(), AgentError> {
    let Some(provider) = provider(node).and_then(|provider| providers.get(provider)) else { return Ok(()) };
    // A node may name its own program, even by a binding, which only its run can check.
    let names_its_own = |option| node.input.part(&["options", option]) != StaticValue::Absent;
    if provider.setup().program_option().is_some_and(names_its_own) {
        return Ok(());
    }
    provider.check_setup(environment)
}

/// The provider of an agent node, unless it is only known when the node runs.
fn provider(node: &Node) -> Option<&str> {
    match (node.node_type.strip_suffix(".agent"), node.input.part(&["provider"])) {
        (Some(provider), _) => Some(provider),
        (None, StaticValue::Known(provider)) if &*node.node_type == "agent.run" => provider.as_str(),
        (None, _) => None,
    }
}

fn setup_failure(node: &impl std::fmt::Display, error: &AgentError) -> Failure {
    let (what, help) = error.message.split_once("; ").unwrap_or((&error.message, ""));
    let message = format!("node `{node}` cannot run: {what} [{}]; nothing was started", error.code);
    let failure = Failure::new(Exit::of_error(error.code), message);
    if help.is_empty() { failure } else { failure.with_hint(help) }
}
