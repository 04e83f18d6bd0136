//! A conformance target: what the suite must know of one provider. How it is created, where it finds the model server, how
//! its input is made, which tools it has, and which behaviours it does not show.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use inspan_model_server::{Block, Scenario};
use inspan_protocol::{DynProvider, Environment, ModelServerAddress, ProgramSetup, Setup};
use serde_json::{Map, Value, json};

use crate::finding::Deviation;
use crate::worker::PLANTED;

/// One provider under test, or one way to run it.
#[derive(Clone, Copy, Debug)]
pub struct ConformanceTarget {
    /// The name in reports, if it is not the provider's type.
    pub name: Option<&'static str>,
    /// A fresh instance, as a new Inspan process would create it. Nothing is started before the first call.
    pub provider: fn() -> Arc<dyn DynProvider>,
    /// The variables of a call beside `PATH`, a home and a folder for temporary files: the address of the model
    /// server, the planted key. Those that the provider describes are added.
    pub environment: fn(&TargetContext<'_>) -> Vec<(String, String)>,
    /// Changes the settings that the provider describes for a model server.
    pub change_settings: fn(&mut Value),
    /// Why the provider cannot run on this machine, such as a missing program.
    pub missing: fn(&dyn DynProvider, &Environment) -> Option<String>,
    /// Whether the provider calls a model server.
    pub model_access: ModelAccess,
    /// Options that every turn needs, such as a model or the program to run.
    pub options: fn() -> Map<String, Value>,
    /// The input of one turn.
    pub input: fn(&Prompt<'_>) -> Value,
    /// Whether a request without tools is one on the side, and not the turn's own.
    pub aux_detect: bool,
    /// How the model calls a tool that does this; nothing if the provider has no such tool.
    pub call: fn(Tool<'_>) -> Option<ModelCall>,
    /// The behaviours in which this provider differs, or which it does not have, each with its reason.
    pub exceptions: &'static [Exception],
    /// How many behaviours are checked in parallel, at most.
    pub workers: usize,
}

impl ConformanceTarget {
    /// A provider that has no tool and differs in nothing.
    pub const fn new(
        provider: fn() -> Arc<dyn DynProvider>,
        environment: fn(&TargetContext<'_>) -> Vec<(String, String)>,
    ) -> Self {
        Self {
            name: None,
            provider,
            environment,
            change_settings: |_| {},
            missing: |provider, caller_env| match provider.setup() {
                Setup::Program(_) => provider.check_setup(caller_env).err().map(|error| error.message),
                _ => None,
            },
            model_access: ModelAccess::Server,
            options: Map::new,
            input: |prompt| match prompt.options.is_empty() {
                true => json!({ "prompt": prompt.text }),
                false => json!({ "prompt": prompt.text, "options": prompt.options }),
            },
            aux_detect: true,
            call: |_| None,
            exceptions: &[],
            workers: 3,
        }
    }

    /// The name in reports.
    pub fn name(&self) -> String {
        self.name.map_or_else(|| (self.provider)().descriptor().provider_type, str::to_owned)
    }

    /// Why the provider cannot run on this machine.
    pub fn missing(&self, caller_env: &Environment) -> Option<String> {
        (self.missing)(&*(self.provider)(), caller_env)
    }

    /// The variables of a call, those that the provider describes included.
    pub fn variables(&self, context: &TargetContext<'_>) -> Vec<(String, String)> {
        let mut variables = (self.environment)(context);
        if let Some(program) = (self.provider)().setup().program() {
            let path = context.caller_env.get(program.variable);
            variables.extend(path.map(|path| (program.variable.to_owned(), path.to_owned())));
            variables.extend(context.model_settings(&program, self.change_settings));
        }
        variables
    }

    /// The scenario in the form in which this provider's requests find their turns.
    pub fn scenario(&self, scenario: Scenario) -> Scenario {
        Scenario { aux_detect: self.aux_detect && scenario.aux_detect, ..scenario }
    }
}

/// What a target makes its environment from.
#[derive(Clone, Copy, Debug)]
pub struct TargetContext<'a> {
    /// The address of the model server, without a slash at its end.
    pub server: &'a str,
    /// A folder for the files of the agent CLI.
    pub folder: &'a Path,
    /// The environment of the caller of the suite, to find programs. No key may be taken from it.
    pub caller_env: &'a Environment,
}

impl TargetContext<'_> {
    /// A folder for the files that belong to this server.
    pub fn own_folder(&self) -> PathBuf {
        self.folder.join(self.server.rsplit(':').next().unwrap_or_default())
    }

    /// Writes the settings by which this program asks the server; the variable that names their folder.
    pub fn model_settings(&self, program: &ProgramSetup, change: fn(&mut Value)) -> Option<(String, String)> {
        let mut settings = program.model_settings?(&ModelServerAddress { base: self.server, key: PLANTED });
        change(&mut settings.content);
        self.write(settings.file, &settings.text());
        Some((settings.folder.to_owned(), self.own_folder().display().to_string()))
    }

    /// Writes a file in that folder, and the folders above it. If it cannot be written, the program does not reach the
    /// server, and the suite reports that.
    pub fn write(&self, name: &str, content: &str) -> PathBuf {
        let path = self.own_folder().join(name);
        let folder = path.parent().map_or(Ok(()), std::fs::create_dir_all);
        drop(folder.and_then(|()| std::fs::write(&path, content)));
        path
    }
}

/// Whether a provider calls a model server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModelAccess {
    /// It does.
    Server,
    /// It does not: the provider plays the scenario itself, as far as its input can express it.
    None,
}

/// What one turn sends.
#[derive(Clone, Copy, Debug)]
pub struct Prompt<'a> {
    /// The text.
    pub text: &'a str,
    /// Options by the names that all providers share, and those that every turn needs.
    pub options: &'a Map<String, Value>,
    /// What the model will answer, for a provider without a model server.
    pub scenario: &'a Scenario,
}

/// What a tool has to do, in the working directory of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Tool<'a> {
    /// Make a file of this name, and end.
    MakeFile(&'a str),
    /// Make a file of this name, and then run `sleep` for so many seconds.
    RunOn(&'a str, u32),
}

/// A call of a tool by the model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelCall {
    /// The model's block.
    pub block: Block,
    /// Options under which the agent has the tool and asks before it uses it.
    pub options: Map<String, Value>,
}

impl ModelCall {
    /// A call of the suite's own tool, for a provider with host tools. It can make a file.
    pub fn of_program(tool: Tool<'_>) -> Option<Self> {
        match tool {
            Tool::MakeFile(name) => {
                Some(Self { block: Block::tool(MAKE_FILE, json!({ "name": name })), options: Map::new() })
            }
            Tool::RunOn(..) => None,
        }
    }

    /// A call of the shell tool that the agent offers and asks about without further options.
    pub fn shell(tool: Tool<'_>) -> Self {
        let command = match tool {
            Tool::MakeFile(name) => format!("touch {name}"),
            Tool::RunOn(name, seconds) => format!("touch {name} && sleep {seconds}"),
        };
        Self { block: Block::shell(command), options: Map::new() }
    }
}

/// The name of the suite's own tool.
pub(crate) const MAKE_FILE: &str = "make_file";

/// Behaviours in which a provider differs, or which it does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exception {
    /// The names of the behaviours.
    pub behaviours: &'static [&'static str],
    /// How they differ.
    pub kind: ExceptionKind,
    /// Why, as a sentence for people.
    pub reason: &'static str,
}

impl Exception {
    /// Behaviours from which the provider deviates so.
    pub const fn deviates(
        behaviours: &'static [&'static str],
        deviation: Deviation,
        reason: &'static str,
    ) -> Self {
        Self { behaviours, kind: ExceptionKind::Deviates(deviation), reason }
    }

    /// Behaviours that cannot be checked.
    pub const fn not_applicable(behaviours: &'static [&'static str], reason: &'static str) -> Self {
        Self { behaviours, kind: ExceptionKind::NotApplicable, reason }
    }
}

/// How a provider differs from the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExceptionKind {
    /// There is nothing to check.
    NotApplicable,
    /// The vendor's own behaviour. The suite must find exactly this deviation; if it finds none, the exception is out of
    /// date.
    Deviates(Deviation),
}
