//! A conformance target: what the suite must know of one provider. How it is created, where it finds the model server, how
//! its input is made, which tools it has, and which behaviours it does not show.

use std::path::Path;
use std::sync::Arc;

use inspan_model_server::{Block, Scenario};
use inspan_protocol::{DynProvider, Environment};
use serde_json::{Map, Value, json};

use crate::finding::Deviation;

/// One provider under test. Only the first two methods have no default.
pub trait ConformanceTarget: Send + Sync {
    /// A fresh instance, as a new Inspan process would create it. Nothing is started before the first call.
    fn provider(&self) -> Arc<dyn DynProvider>;

    /// The variables of a call beside `PATH`, a home and a folder for temporary files: the address of the model
    /// server, the planted key, the path of the program.
    fn environment(&self, context: &TargetContext<'_>) -> Vec<(String, String)>;

    /// The name in reports; the provider's type, unless one provider has several targets.
    fn name(&self) -> String {
        self.provider().descriptor().provider_type
    }

    /// Why the provider cannot run on this machine, such as a missing program.
    fn missing(&self, _outer: &Environment) -> Option<String> {
        None
    }

    /// Whether the provider calls a model server.
    fn model_access(&self) -> ModelAccess {
        ModelAccess::Server
    }

    /// Options that every turn needs, such as a model or the program to run.
    fn options(&self) -> Map<String, Value> {
        Map::new()
    }

    /// The input of one turn.
    fn input(&self, prompt: &Prompt<'_>) -> Value {
        let mut options = self.options();
        options.extend(prompt.options.clone());
        if options.is_empty() {
            json!({ "prompt": prompt.text })
        } else {
            json!({ "prompt": prompt.text, "options": options })
        }
    }

    /// The scenario in the form in which this provider's requests find their turns.
    fn scenario(&self, scenario: Scenario) -> Scenario {
        scenario
    }

    /// How the model calls a tool that does this; nothing if the provider has no such tool.
    fn call(&self, _tool: Tool<'_>) -> Option<ModelCall> {
        None
    }

    /// The behaviours in which this provider differs, or which it does not have, each with its reason.
    fn exceptions(&self) -> &'static [Exception] {
        &[]
    }

    /// How many behaviours are checked in parallel, at most.
    fn workers(&self) -> usize {
        3
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
    /// Options by the names that all providers share.
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

/// How a provider differs from the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExceptionKind {
    /// There is nothing to check.
    NotApplicable,
    /// The vendor's own behaviour. The suite must find exactly this deviation; if it finds none, the exception is out of
    /// date.
    Deviates(Deviation),
}
