//! Reading and compiling a flow and its input for a command, and showing their problems.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use inspan_engine::ProviderRegistry;
use inspan_flow::{
    Compiled, Diagnostics, FlowError, Graph, InputError, Loaded, NodeRegistry, check_input, compile,
    is_text_by_default, load,
};
use inspan_protocol::{NodePath, oversized_number, yes_or_no};
use inspan_sessions::SessionErrorCode;
use serde_json::{Map, Value, json};

use crate::{
    args::{BudgetChange, InputValue, NodeSetting, RunArgs, as_string, loses_digits, text_of},
    diagnostics,
    failure::{Failure, Shown},
    invocation::{Invocation, OutputForm},
    settings::Settings,
    terminal,
};

/// The name of a flow's file in its folder.
const FILE: &str = "flow.yaml";

/// The file of a flow: the path itself, or of a folder its `flow.yaml`.
pub(crate) fn file(path: &Path) -> PathBuf {
    if path.is_dir() { path.join(FILE) } else { path.to_owned() }
}

/// Reads a flow and the files that it uses.
pub(super) fn read(path: &Path) -> Result<Loaded, Failure> {
    load(&file(path)).map_err(|error| refused(&error))
}

/// Reads a flow with the settings that hold for it.
pub(crate) fn read_with_settings(path: &Path, invocation: &Invocation) -> Result<Loaded, Failure> {
    let loaded = read(path)?;
    Ok(with_settings(loaded, &Settings::of(file(path).parent(), invocation)?))
}

/// The flow with the user's agents, and with the other settings where it says nothing itself.
pub(super) fn with_settings(mut flow: Loaded, settings: &Settings) -> Loaded {
    for (name, agent) in settings.agents() {
        flow.set_agent(&name, &agent);
    }
    for provider in settings.providers() {
        for (name, value) in settings.options(provider) {
            flow.default_option(provider, name, value);
        }
    }
    if let Some(usd) = settings.budget_usd() {
        flow.default_budget(usd);
    }
    flow
}

/// Compiles a flow; its problems are shown before the failure is returned.
pub(super) fn ready(
    loaded: &Loaded,
    nodes: &NodeRegistry,
    hint: Option<&str>,
    invocation: &Invocation,
) -> Result<Compiled, Failure> {
    match compile(loaded, nodes) {
        Ok(compiled) => {
            // What the run is given is checked when it is known.
            let warnings = compiled.warnings.clone().without(inspan_flow::Code::InputNotGiven);
            terminal::progress(&diagnostics::render(&warnings, loaded, invocation.terminal.stderr));
            Ok(compiled)
        }
        Err(problems) => Err(invalid(&problems, loaded, hint, invocation)),
    }
}

/// Shows the problems of a flow that cannot run.
pub(super) fn invalid(
    problems: &Diagnostics,
    loaded: &Loaded,
    hint: Option<&str>,
    invocation: &Invocation,
) -> Failure {
    let message = format!("the flow has {}; nothing was started", count(problems));
    let mut failure = Failure::usage(message).with_code(SessionErrorCode::InvalidFlow);
    failure.hint = hint.map(str::to_owned);
    if invocation.form == OutputForm::Json {
        let mut value = failure.json();
        value["diagnostics"] = json!(problems);
        invocation.json(&value);
    }
    terminal::progress(&diagnostics::render(problems, loaded, invocation.terminal.stderr));
    terminal::progress(&failure.text(invocation.terminal.stderr));
    failure.shown = Shown::Already;
    failure
}

/// The flow with the nodes changed as `--provider`, `--model`, `--set` and `--budget` say, of which only those of `--only` run.
pub(super) fn changed(
    mut flow: Loaded,
    args: &RunArgs,
    providers: &ProviderRegistry,
) -> Result<Loaded, Failure> {
    each_once("provider", args.provider.iter().map(|change| node_or_all(change.node.as_ref())))?;
    for change in &args.provider {
        // Otherwise the lines of the flow were blamed, one error for each agent.
        if providers.get(&change.provider).is_none() {
            let unknown = Failure::unknown("provider", &change.provider, providers.names());
            return Err(unknown.in_option("provider"));
        }
        flow.set_provider(change.node.as_ref(), &change.provider)
            .map_err(|error| Failure::of_change("provider", error))?;
    }
    each_once("model", args.model.iter().map(|change| node_or_all(change.node.as_ref())))?;
    for change in &args.model {
        flow.set_model(change.node.as_ref(), &change.model)
            .map_err(|error| Failure::of_change("model", error))?;
    }
    each_once("set", args.set.iter().map(NodeSetting::name))?;
    for change in &args.set {
        let keys: Vec<&str> = change.keys.iter().map(String::as_str).collect();
        flow.set_input(&change.node, &keys, &change.value)
            .map_err(|error| Failure::of_change("set", error))?;
    }
    each_once("budget", args.budget.iter().map(BudgetChange::name))?;
    for change in &args.budget {
        flow.set_budget(change.node.as_ref(), change.is_of_body, change.limits)
            .map_err(|error| Failure::of_change("budget", error))?;
    }
    if !args.only.is_empty() {
        flow.set_only(&args.only);
    }
    Ok(flow)
}

/// What a change is for, as one reads it.
fn node_or_all(node: Option<&NodePath>) -> &str {
    node.map_or("all agent nodes", NodePath::as_str)
}

/// Refuses an option that gives the same key twice: which of the two is meant is unclear.
pub(super) fn each_once<K: Ord + std::fmt::Display>(
    option: &str,
    mut keys: impl Iterator<Item = K>,
) -> Result<(), Failure> {
    let mut seen = BTreeSet::new();
    match keys.find_map(|key| seen.replace(key)) {
        None => Ok(()),
        Some(key) => Err(Failure::of_option(option, format!("`{key}` is given twice"))),
    }
}

/// `2 errors and 1 warning`.
pub(super) fn count(problems: &Diagnostics) -> String {
    let errors = problems.iter().filter(|problem| problem.severity == inspan_flow::Severity::Error).count();
    match (errors, problems.len() - errors) {
        (errors, 0) => of(errors, "error"),
        (0, warnings) => of(warnings, "warning"),
        (errors, warnings) => format!("{} and {}", of(errors, "error"), of(warnings, "warning")),
    }
}

/// `1 node`, `2 nodes`.
pub(super) fn of(count: impl std::fmt::Display, what: &str) -> String {
    let count = count.to_string();
    format!("{count} {what}{}", if count == "1" { "" } else { "s" })
}

/// A flow that could not be read.
pub(super) fn refused(error: &FlowError) -> Failure {
    let failure = |code| Failure::usage(error.to_string()).with_code(code);
    match error {
        FlowError::NotFound { path } => failure(SessionErrorCode::UnknownFlow).with_hint(
            match ["yml", "yaml"].map(|ending| path.with_extension(ending)).iter().find(|path| path.is_file())
            {
                Some(other) => format!("there is {}: name that file", other.display()),
                None => "`inspan init DIR` creates a flow to start with".to_owned(),
            },
        ),
        FlowError::NotAFile { .. } => {
            failure(SessionErrorCode::UnknownFlow).with_hint("name the flow file, for example `flow.yaml`")
        }
        _ => failure(SessionErrorCode::InvalidFlow),
    }
}

/// An input that does not fit the flow.
pub(super) fn refused_input(error: &InputError) -> Failure {
    let failure = Failure::usage(error.to_string()).with_code(SessionErrorCode::InvalidInput);
    let says_what =
        |problem: &String| problem.starts_with("unknown input") || problem.contains(", as its default is: ");
    match error.problems.iter().any(says_what) {
        true => failure,
        false => failure.with_hint("pass it with `-i key=value` or `--input-file FILE`"),
    }
}

/// The whole input of a session, with the values that the arguments gave.
pub(super) fn checked_input(
    graph: &Graph,
    input: Map<String, Value>,
    values: &[InputValue],
) -> Result<Map<String, Value>, Failure> {
    let input = check_input(graph, input).map_err(|error| refused_input(&error))?;
    match values.iter().find(|given| is_altered(graph, &input, given)) {
        Some(given) => Err(altered(given)),
        None => Ok(input),
    }
}

/// The values of the file, and over them those of the arguments.
pub(super) fn given_input(
    graph: &Graph,
    file: Option<&Path>,
    values: &[InputValue],
) -> Result<Map<String, Value>, Failure> {
    let mut input = match file {
        Some(path) => input_object(path)?,
        None => Map::new(),
    };
    each_once("input", values.iter().map(|given| &given.key))?;
    for given in values {
        input.insert(given.key.clone(), given.value.clone());
    }
    for given in values {
        if let Some(meant) = meant(graph, &input, given) {
            input.insert(given.key.clone(), meant);
        }
    }
    Ok(input)
}

/// What an argument means for the flow if that is not what it is as JSON or else as a text. It is a text where the schema takes only
/// a text, or where the default is one and the schema does not say what else may be there; and `yes` and `no` are true and false
/// where only those are taken.
fn meant(graph: &Graph, input: &Map<String, Value>, given: &InputValue) -> Option<Value> {
    let problems = |value: &Value| {
        let mut input = input.clone();
        input.insert(given.key.clone(), value.clone());
        check_input(graph, input).map_or_else(|error| error.problems.len(), |_| 0)
    };
    let is_text = given.value.is_string();
    let other = match is_text {
        true => Value::Bool(yes_or_no(&given.text)?),
        false => Value::from(given.text.as_str()),
    };
    let (as_other, as_given) = (problems(&other), problems(&given.value));
    let is_meant =
        as_other < as_given || !is_text && as_other == as_given && is_text_by_default(graph, &given.key);
    is_meant.then_some(other)
}

/// Whether a number is written otherwise than it is given to a flow that would take the text just as well: it may be a version or
/// the hash of a commit. One that would lose digits is not given at all.
fn is_altered(graph: &Graph, input: &Map<String, Value>, given: &InputValue) -> bool {
    let is_other = input.get(&given.key).is_some_and(|value| {
        let printed = value.to_string();
        value.is_number() && *value == given.value && printed != given.text.trim()
    });
    if is_other && oversized_number(&given.text).is_some() {
        return true;
    }
    if !is_other || graph.input.get(&given.key).is_some_and(Value::is_number) {
        return false;
    }
    let mut as_text = input.clone();
    as_text.insert(given.key.clone(), Value::from(given.text.as_str()));
    check_input(graph, as_text).is_ok()
}

fn altered(given: &InputValue) -> Failure {
    let InputValue { key, value, text, file } = given;
    let text = text.trim();
    let message = format!("`{key}`: `{text}` would be given as the number {value}");
    let hint = if file.is_some() {
        format!("write `{}` in the file for the text, or `{value}` for the number", Value::from(text))
    } else {
        format!("write `-i {}` for the text, or `-i {key}={value}` for the number", as_string(key, text))
    };
    Failure::usage(message).with_code(SessionErrorCode::InvalidInput).with_hint(hint)
}

/// The JSON object in a file.
fn input_object(path: &Path) -> Result<Map<String, Value>, Failure> {
    let text = private_text(path, "input")?;
    let long = || {
        let (at, number) = oversized_number(&text)?;
        let why = format!("cannot be taken: line {}: {}", text[..at].lines().count(), loses_digits(number));
        Some(refused_file(path, "input", &why).with_hint(format!("make it a string: `\"{number}\"`")))
    };
    match serde_json::from_str::<Value>(&text) {
        Ok(Value::Object(map)) => long().map_or(Ok(map), Err),
        Ok(_) => {
            Err(refused_file(path, "input", "is not a JSON object").with_hint("write `{ \"key\": value }`"))
        }
        Err(error) => Err(refused_file(path, "input", &format!("is not JSON: {error}"))),
    }
}

/// The whole text of a file that only those who may read it see, unlike an argument; `-` is stdin. `what` says what it is for.
pub(super) fn private_text(path: &Path, what: &str) -> Result<String, Failure> {
    text_of(path).map_err(|why| refused_file(path, what, &why))
}

fn refused_file(path: &Path, what: &str, why: &str) -> Failure {
    let name = if path == Path::new("-") { "stdin".to_owned() } else { path.display().to_string() };
    Failure::usage(format!("{what} file {name} {why}")).with_code(SessionErrorCode::InvalidInput)
}
