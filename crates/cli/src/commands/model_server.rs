//! `inspan model-server`: serves a scripted model, to try flows without a vendor, and prints how clients reach it.

use std::{
    io::{self, Write as _},
    path::Path,
    sync::mpsc::{Receiver, sync_channel},
    thread::{self, JoinHandle},
};

use inspan_engine::create_private;
use inspan_model_server::{
    Endpoints, Listening, ModelServer, RecordedRequest, Scenario, ServerError, ServerState,
};
use inspan_protocol::{ModelServerAddress, ModelSettings, ProviderDescriptor, with_causes};
use serde_json::{Value, json};

use super::session::{Signals, runtime};
use crate::args::ModelServerArgs;
use crate::commands::{begins_with, check_replaces};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::invocation::OutputForm;
use crate::terminal;
use inspan_view::safe::harmless;

/// Requests that may wait to be written down; beyond that the server waits for the disk.
const QUEUE: usize = 256;

/// The value for a key: any works, but clients want one. It is in no name of a model, since what is a key is taken out of outputs.
const ANY_KEY: &str = "any-key-works";

/// Serves until a signal comes, which is its regular end.
pub(super) fn run(args: &ModelServerArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let scenario = Scenario::load(&args.scenario).map_err(|error| Failure::usage(with_causes(&error)))?;
    let runtime = runtime()?;
    let mut signals = {
        let _inside = runtime.enter();
        Signals::listen()
    };
    let (ended, keeper) = match &args.requests {
        Some(path) => {
            let (ended, requests) = sync_channel(QUEUE);
            (Some(ended), Some(keep(path, requests)?))
        }
        None => (None, None),
    };
    let server = ModelServer::start_as(scenario, Listening { port: args.port, ended });
    let server = server.map_err(|error| refused(&error, args.port))?;
    announce(&server, &args.scenario, invocation);
    runtime.block_on(signals.next());
    let state = server.state();
    // Ends the exchanges that are under way, and with them the channel.
    drop(server);
    let kept =
        keeper.map_or(Ok(()), |keeper| keeper.join().unwrap_or_else(|_| Err(io::Error::other("a panic"))));
    kept.map_err(|error| Failure::new(Exit::Failed, format!("the requests were not all written: {error}")))?;
    if invocation.form == OutputForm::Text {
        terminal::progress(&farewell(state));
    }
    Ok(Exit::Success)
}

/// How much was asked. Who wonders why no turn answered finds the reason here.
fn farewell(state: ServerState) -> String {
    let requests =
        if state.requests == 1 { "1 request".to_owned() } else { format!("{} requests", state.requests) };
    let mut text = format!("Stopped after {requests}.\n");
    if state.aux > 0 {
        text.push_str(&format!(
            "{} of them offered no tools and got the `aux` answer; with `auxDetect: false` the turns answer them.\n",
            state.aux
        ));
    }
    text
}

/// Writes each request on its own line as it ends, on a thread that ends with the server.
fn keep(path: &Path, requests: Receiver<RecordedRequest>) -> Result<JoinHandle<io::Result<()>>, Failure> {
    check_replaces(path, "a file of requests", |file| begins_with(file, "{\"number\":"))?;
    let cannot = |error: io::Error| Failure::usage(format!("{} cannot be written: {error}", path.display()));
    let mut file = create_private(path).map_err(cannot)?;
    let write = move || -> io::Result<()> {
        for request in requests {
            let mut line = serde_json::to_string(&request)?;
            line.push('\n');
            // At once, so that another program can follow the file.
            file.write_all(line.as_bytes())?;
        }
        Ok(())
    };
    thread::Builder::new().name("requests".to_owned()).spawn(write).map_err(cannot)
}

fn announce(server: &ModelServer, scenario: &Path, invocation: &Invocation) {
    let endpoints = server.endpoints();
    let settings = program_settings(&server.base_url());
    if invocation.form == OutputForm::Json {
        return invocation.json(&summary(&endpoints, server.port(), scenario));
    }
    terminal::progress(&format!(
        "Mock model server listening on {}, scenario {}. Press Ctrl-C to stop it.\nTo use it, set:\n",
        server.base_url(),
        harmless(&scenario.display().to_string())
    ));
    for (name, value) in variables(&endpoints) {
        terminal::data_line(&format!("export {name}={value}"));
    }
    for (settings, variable) in settings.iter().filter_map(|(_, it)| Some((it, it.variable?))) {
        // A single quote in it would end the shell's.
        terminal::data_line(&format!("export {variable}='{}'", settings.text().replace('\'', "'\\''")));
    }
    for (provider, settings) in settings.iter().filter(|(_, settings)| settings.variable.is_none()) {
        let folder = match settings.folder {
            "HOME" => "your home folder".to_owned(),
            variable => format!("the folder that {variable} names"),
        };
        let content =
            settings.content.as_str().map_or_else(|| format!("{:#}\n", settings.content), str::to_owned);
        terminal::progress(&format!(
            "{} reads no variable for it. Put this into {} in {folder}:\n\n{content}",
            provider.display_name, settings.file
        ));
    }
}

/// The settings by which agent CLIs find this server that do not find it by variables.
fn program_settings(base: &str) -> Vec<(ProviderDescriptor, ModelSettings)> {
    let address = ModelServerAddress { base, key: ANY_KEY };
    let needed = inspan_providers::builtin().into_iter().filter_map(|provider| {
        let settings = provider.setup().program()?.model_settings?(&address);
        settings.is_needed.then(|| (provider.descriptor(), settings))
    });
    needed.collect()
}

/// Addresses and keys.
fn variables(endpoints: &Endpoints) -> Vec<(&'static str, String)> {
    let keys =
        ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"].map(|name| (name, ANY_KEY.to_owned()));
    endpoints.variables().into_iter().chain(keys).collect()
}

fn summary(endpoints: &Endpoints, port: u16, scenario: &Path) -> Value {
    let env: serde_json::Map<String, Value> =
        variables(endpoints).into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect();
    let mut summary = json!({
        "port": port,
        "scenario": scenario,
        "anthropic": { "baseUrl": endpoints.anthropic() },
        "openai": { "baseUrl": endpoints.openai() },
        "env": env,
    });
    for (provider, settings) in program_settings(&endpoints.anthropic()) {
        summary[provider.provider_type] = match settings.variable {
            Some(variable) => json!({ "env": { variable: settings.text() } }),
            None => json!({ field(settings.file): settings.content }),
        };
    }
    summary
}

/// The name of a file as that of a field: `settingsJson` for `.factory/settings.json`.
fn field(file: &str) -> String {
    let name = file.rsplit('/').next().unwrap_or(file);
    let (stem, ending) = name.rsplit_once('.').unwrap_or((name, ""));
    let ending = ending.split_at_checked(1).map(|(first, rest)| first.to_uppercase() + rest);
    format!("{stem}{}", ending.unwrap_or_default())
}

fn refused(error: &ServerError, port: u16) -> Failure {
    let failure = Failure::new(Exit::Failed, with_causes(error));
    match error {
        ServerError::Start(cause) if cause.kind() == io::ErrorKind::AddrInUse => {
            Failure::usage(format!("port {port} is in use"))
                .with_hint("choose another port, or omit `--port` to use a free one")
        }
        ServerError::Start(cause) if cause.kind() == io::ErrorKind::PermissionDenied => {
            Failure::usage(format!("port {port} is not allowed")).with_hint("choose a port above 1023")
        }
        _ => failure,
    }
}
