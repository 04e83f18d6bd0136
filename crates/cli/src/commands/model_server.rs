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
use serde_json::{Value, json};

use super::session::Signals;
use crate::args::ModelServerArgs;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::invocation::OutputForm;
use crate::terminal;
use inspan_view::safe::harmless;

/// Requests that may wait to be written down; beyond that the server waits for the disk.
const QUEUE: usize = 256;

/// What stands in place of a key: any will do, but clients want one.
const ANY_KEY: &str = "scripted";

/// Serves until a signal comes, which is its regular end.
pub(super) fn run(args: &ModelServerArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let scenario = Scenario::load(&args.scenario).map_err(|error| Failure::usage(told(&error)))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(Exit::Failed, told(&error)))?;
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

/// Writes each request on a line of its own as it ends, on a thread that ends with the server.
fn keep(path: &Path, requests: Receiver<RecordedRequest>) -> Result<JoinHandle<io::Result<()>>, Failure> {
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
    // The one quote that could stand in it would end the shell's.
    let opencode = endpoints.opencode_config().to_string().replace('\'', "'\\''");
    terminal::data_line(&format!("export {OPENCODE}='{opencode}'"));
    terminal::progress(&format!(
        "Codex has no variable for it. Put this into config.toml in the folder that CODEX_HOME names:\n\n{}",
        endpoints.codex_config()
    ));
    terminal::progress(&format!(
        "Droid has none either. Put this into .factory/settings.json in your home folder:\n\n{:#}\n",
        endpoints.droid_settings(ANY_KEY)
    ));
}

/// The variable through which OpenCode takes settings.
const OPENCODE: &str = "OPENCODE_CONFIG_CONTENT";

/// Addresses and keys.
fn variables(endpoints: &Endpoints) -> Vec<(&'static str, String)> {
    let keys =
        ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"].map(|name| (name, ANY_KEY.to_owned()));
    endpoints.variables().into_iter().chain(keys).collect()
}

fn summary(endpoints: &Endpoints, port: u16, scenario: &Path) -> Value {
    let env: serde_json::Map<String, Value> =
        variables(endpoints).into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect();
    json!({
        "port": port,
        "scenario": scenario,
        "anthropic": { "baseUrl": endpoints.anthropic() },
        "openai": { "baseUrl": endpoints.openai() },
        "env": env,
        "droid": { "settingsJson": endpoints.droid_settings(ANY_KEY) },
        "codex": { "configToml": endpoints.codex_config() },
        "opencode": { "env": { OPENCODE: endpoints.opencode_config().to_string() } },
    })
}

fn refused(error: &ServerError, port: u16) -> Failure {
    let failure = Failure::new(Exit::Failed, told(error));
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

/// The error with its causes, each once.
fn told(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| match cause.to_string() {
        cause if text.contains(&cause) => text,
        cause => format!("{text}: {cause}"),
    })
}
