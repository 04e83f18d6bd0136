//! What the command line says about a flow's input, and about the nodes it changes for this run.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use inspan_flow::Loaded;
use serde_json::{Map, Value};

use crate::{args::RunArgs, commands::flow::set_budgets, exit::Exit, failure::Failure};

/// How large an input may be, in bytes.
const LARGEST: u64 = 16 * 1024 * 1024;

/// The flow's input: what stands in the file, and over it what stands in the arguments.
pub(super) fn of(args: &RunArgs) -> Result<Map<String, Value>, Failure> {
    let mut input = match &args.input_file {
        Some(path) => file(path)?,
        None => Map::new(),
    };
    for given in &args.input {
        input.insert(given.key.clone(), given.value.clone());
    }
    Ok(input)
}

fn file(path: &Path) -> Result<Map<String, Value>, Failure> {
    let name = if path == Path::new("-") { "stdin".to_owned() } else { path.display().to_string() };
    let refused = |what: String| Failure::new(Exit::Invalid, format!("input file {name} {what}"));
    let mut text = String::new();
    let read = if path == Path::new("-") {
        io::stdin().take(LARGEST + 1).read_to_string(&mut text)
    } else {
        File::open(path).and_then(|file| file.take(LARGEST + 1).read_to_string(&mut text))
    };
    read.map_err(|error| refused(format!("cannot be read: {error}")))?;
    if text.len() as u64 > LARGEST {
        return Err(refused(format!("has more than the {LARGEST} bytes that an input may have")));
    }
    match serde_json::from_str::<Value>(&text) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(refused("is not a JSON object".to_owned()).with_hint("write `{ \"key\": value }`")),
        Err(error) => Err(refused(format!("is not JSON: {error}"))),
    }
}

/// The flow with the nodes changed as `--provider`, `--model`, `--set` and `--budget` say, of which only those of `--only` run.
pub(super) fn changed(mut flow: Loaded, args: &RunArgs) -> Result<Loaded, Failure> {
    for change in &args.provider {
        flow.set_provider(change.node.as_ref(), &change.provider)
            .map_err(|error| Failure::usage(format!("--provider: {error}")))?;
    }
    for change in &args.model {
        flow.set_model(change.node.as_ref(), &change.model)
            .map_err(|error| Failure::usage(format!("--model: {error}")))?;
    }
    for change in &args.set {
        let keys: Vec<&str> = change.keys.iter().map(String::as_str).collect();
        flow.set_input(&change.node, &keys, &change.value)
            .map_err(|error| Failure::usage(format!("--set: {error}")))?;
    }
    set_budgets(&mut flow, &args.budget)?;
    if !args.only.is_empty() {
        flow.set_only(&args.only).map_err(|error| Failure::usage(format!("--only: {error}")))?;
    }
    Ok(flow)
}
