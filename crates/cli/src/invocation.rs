//! The context of one call of the program: its environment, its streams, the form of its output. This is the
//! only file that reads the environment.

use std::{ffi::OsString, path::PathBuf};

use inspan_protocol::{Environment, Redactor};
use serde::Serialize;
use serde_json::Value;

use crate::{
    args::Global,
    engine::Engine,
    exit::Exit,
    failure::{Failure, Shown, with_end},
    store,
    terminal::{self, Streams, Terminal, TerminalReader},
};
use inspan_view::{Commands, Line, format};

/// The form of what goes to stdout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputForm {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// One call of the program.
#[derive(Clone, Debug)]
pub(crate) struct Invocation {
    pub(crate) form: OutputForm,
    pub(crate) terminal: Terminal,
    pub(crate) env: Environment,
    /// The folder that the program was called in.
    pub(crate) cwd: Option<PathBuf>,
    /// The file that keeps the sessions, if the user named one.
    pub(crate) store: Option<PathBuf>,
    /// The cluster that runs the sessions, if it is not this machine.
    pub(crate) engine: Option<String>,
    /// The arguments of the call, to make the same call in the background.
    pub(crate) arguments: Vec<OsString>,
}

impl Invocation {
    pub(crate) fn of_process(global: Global) -> Self {
        let env = environment();
        trace(&env, None);
        format::use_local_time();
        let terminal = Terminal::new(global.color, Streams::of_process(), &env);
        let form = if global.json { OutputForm::Json } else { OutputForm::Text };
        // The first is the program's own name.
        let arguments = std::env::args_os().skip(1).collect();
        let engine = global.engine.or_else(|| env.get("INSPAN_ENGINE").map(str::to_owned));
        let engine = engine.filter(|engine| !is_here(engine));
        Self { form, terminal, env, cwd: working_folder(), store: global.store, engine, arguments }
    }

    /// The format that was chosen, if any: `--json` is short for `json`, and refuses every other one.
    pub(crate) fn format<F: PartialEq>(&self, chosen: Option<F>, json: F) -> Result<Option<F>, Failure> {
        match (self.form, chosen) {
            (OutputForm::Json, Some(chosen)) if chosen != json => Err(Failure::two_formats()),
            (OutputForm::Json, _) => Ok(Some(json)),
            (OutputForm::Text, chosen) => Ok(chosen),
        }
    }

    /// Writes the log of a command that works in the background, if no other is asked for.
    pub(crate) fn trace_by_default(&self, filter: &str) {
        trace(&self.env, Some(filter));
    }

    /// The environment as agents and programs of sessions may see it: without the keys of the cluster, which are secrets
    /// nevertheless. What git tells a hook about its repository is left out: a node that works in another one, or in a
    /// worktree, would write to that of the hook.
    pub(crate) fn session_env(&self) -> Environment {
        let set = self.env.get("INSPAN_ENGINE");
        let names: Vec<_> =
            self.engine.as_deref().into_iter().chain(set).flat_map(Engine::key_variables).collect();
        let is_key = |name: &str| name == SERVER_KEY || names.iter().any(|key| key == name);
        self.env.without(|name| REPOSITORY.contains(&name)).withhold(is_key)
    }

    /// The commands that are shown to people: they mean the same sessions as this call. What is so without being named,
    /// they do not name.
    pub(crate) fn commands(&self) -> Commands {
        let unnamed = || store::path(&Self { store: None, ..self.clone() }).ok();
        let store = self.store.as_deref().filter(|_| store::path(self).ok() != unnamed());
        let set = self.env.get("INSPAN_ENGINE").filter(|engine| !is_here(engine));
        let engine = match (self.engine.as_deref(), set) {
            (None, Some(_)) => Some("local"),
            (named, set) => named.filter(|named| set != Some(named)),
        };
        Commands::new(store, engine)
    }

    /// Those commands for people who may be in another folder.
    pub(crate) fn commands_anywhere(&self) -> Commands {
        let absolute = |file: &PathBuf| std::path::absolute(file).unwrap_or_else(|_| file.clone());
        Self { store: self.store.as_ref().map(absolute), ..self.clone() }.commands()
    }

    /// Says why a command failed: to people on stderr, to programs on stdout.
    pub(crate) fn show(&self, failure: &Failure) {
        if failure.shown == Shown::Already {
            return;
        }
        let failure = failure.naming(&self.commands());
        if self.form == OutputForm::Json {
            self.json(&failure.json());
        }
        terminal::progress(&failure.text(self.terminal.stderr));
    }

    /// Prints one JSON value.
    pub(crate) fn json(&self, value: &impl Serialize) {
        let text = serde_json::to_string_pretty(value).unwrap_or_else(|error| {
            // Only a map whose keys are not texts could fail, and none is printed.
            Value::String(error.to_string()).to_string()
        });
        terminal::json_line(&text);
    }

    /// Prints lines for people.
    pub(crate) fn print(&self, lines: impl IntoIterator<Item = Line>) -> TerminalReader {
        let text: String = lines.into_iter().map(|line| line.render(self.terminal.stdout) + "\n").collect();
        terminal::painted(&text)
    }

    /// Prints a result that came with a failure as one object, which says so; the failure counts as shown.
    pub(crate) fn json_failure(&self, result: Value, failure: Failure) -> Failure {
        let mut failure = failure.naming(&self.commands());
        self.json(&with_end(result, Some(&failure)));
        terminal::progress(&failure.text(self.terminal.stderr));
        failure.shown = Shown::Already;
        failure
    }

    /// Says that output was lost on stdout: without it nothing has succeeded.
    pub(crate) fn lost_output(&self, why: &str, exit: Exit) -> Exit {
        let failure = Failure::new(Exit::Failed, format!("failed to write to stdout: {why}"));
        terminal::progress(&failure.text(self.terminal.stderr));
        if exit == Exit::Success { Exit::Failed } else { exit }
    }

    /// The folder for what outlives a session, as far as the environment names it.
    pub(crate) fn state_folder(&self) -> Option<PathBuf> {
        let home = || self.env.get("HOME").map(|home| PathBuf::from(home).join(".local/state"));
        let own = self.env.get("INSPAN_HOME").map(PathBuf::from);
        let folder = own.or_else(|| {
            self.env.get("XDG_STATE_HOME").map(PathBuf::from).or_else(home).map(|dir| dir.join("inspan"))
        })?;
        // Programs that work in other folders are told paths in it.
        Some(self.cwd.as_ref().map_or(folder.clone(), |cwd| cwd.join(folder)))
    }

    /// The file of the user's settings, as far as the environment names it.
    pub(crate) fn config_file(&self) -> Option<PathBuf> {
        let home = || self.env.get("HOME").map(|home| PathBuf::from(home).join(".config"));
        let folder = self.env.get("XDG_CONFIG_HOME").map(PathBuf::from).or_else(home);
        folder.map(|dir| dir.join("inspan/config.toml"))
    }
}

/// Whether the call asks for JSON, where its command line cannot be read.
pub(crate) fn asks_for_json() -> bool {
    std::env::args_os().skip(1).take_while(|word| word != "--").any(|word| word == "--json")
}

/// The variable with the key for a server of Temporal.
pub(crate) const SERVER_KEY: &str = "TEMPORAL_API_KEY";

/// What `git rev-parse --local-env-vars` lists, without the variables of the configuration: people set those.
const REPOSITORY: [&str; 12] = [
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_DIR",
    "GIT_GRAFT_FILE",
    "GIT_IMPLICIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_NO_REPLACE_OBJECTS",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_REPLACE_REF_BASE",
    "GIT_SHALLOW_FILE",
    "GIT_WORK_TREE",
];

/// Whether an engine is this machine.
fn is_here(engine: &str) -> bool {
    engine.is_empty() || engine == "local"
}

/// The terminal of this process, for a program that does not have our command line.
pub(crate) fn terminal_of_process() -> Terminal {
    Terminal::new(clap::ColorChoice::Auto, Streams::of_process(), &environment())
}

#[expect(clippy::disallowed_methods, reason = "this is where the environment becomes a parameter")]
fn environment() -> Environment {
    let variables = std::env::vars_os();
    // A variable that is not text cannot be one that anything here asks for.
    variables
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

#[expect(clippy::disallowed_methods, reason = "this is where the folder becomes a parameter")]
pub(crate) fn working_folder() -> Option<PathBuf> {
    std::env::current_dir().ok()
}

/// The program's own log, for the search for a fault in it. Nothing is set up unless it is asked for.
fn trace(env: &Environment, default: Option<&str>) {
    let Some(filter) = env.get("INSPAN_LOG").or(default) else { return };
    let filter = tracing_subscriber::EnvFilter::new(filter);
    let redactor = Redactor::new(env);
    let writer = move || RedactedLog(redactor.clone());
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_ansi(false);
    // It fails only if there is one already.
    let _ = subscriber.try_init();
}

/// Stderr for log lines. The libraries that we use log whole messages, and know no secret.
struct RedactedLog(Redactor);

impl std::io::Write for RedactedLog {
    /// The subscriber writes a whole line at once.
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        std::io::stderr().write_all(self.0.text(&String::from_utf8_lossy(line)).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stderr().flush()
    }
}
