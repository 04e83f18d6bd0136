//! What the suite must know of one provider: how it is made, where it finds the model server, how it is asked, which
//! tools it has, and what of the list it cannot show.

use std::path::Path;
use std::sync::Arc;

use inspan_model_server::{Block, Scenario};
use inspan_protocol::{DynProvider, Environment};
use serde_json::{Map, Value, json};

use crate::finding::Deviation;

/// One provider as the suite meets it. Only the first two have no usual answer.
pub trait ConformanceTarget: Send + Sync {
    /// A fresh instance, as a new process of ours would make it. Nothing is started before it is asked.
    fn provider(&self) -> Arc<dyn DynProvider>;

    /// What the environment of a call says beside `PATH`, a home and a folder for temporary files: where the model
    /// server is, the planted key, where the program is.
    fn environment(&self, place: &Place<'_>) -> Vec<(String, String)>;

    /// The name of the row of reports; the provider's type, unless one provider is met in several ways.
    fn name(&self) -> String {
        self.provider().descriptor().provider_type
    }

    /// What keeps the provider from being run on this machine, such as a program that is not here.
    fn missing(&self, _outer: &Environment) -> Option<String> {
        None
    }

    /// Whether a model server is asked at all.
    fn reach(&self) -> Reach {
        Reach::Server
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

    /// How the model calls a tool that does this; nothing if the provider has none that can.
    fn call(&self, _tool: Tool<'_>) -> Option<Call> {
        None
    }

    /// What of the list this provider shows in another way, or not at all, each with its reason.
    fn exceptions(&self) -> &'static [Exception] {
        &[]
    }

    /// Behaviours that are looked at side by side, at most.
    fn lanes(&self) -> usize {
        3
    }
}

/// Where one provider works.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The address of the model server, without a slash at its end.
    pub server: &'a str,
    /// A folder for what the vendor's program keeps.
    pub folder: &'a Path,
    /// The environment of whoever runs the suite, to find a program by. No key may be taken from it.
    pub outer: &'a Environment,
}

/// Whether a model server is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reach {
    /// It is.
    Server,
    /// Nobody is: the provider plays the scenario itself, as far as its input can say it.
    Nobody,
}

/// What is said in one turn.
#[derive(Clone, Copy, Debug)]
pub struct Prompt<'a> {
    /// The text.
    pub text: &'a str,
    /// Options by the names that all providers share.
    pub options: &'a Map<String, Value>,
    /// What the model will answer, for a provider that asks nobody.
    pub scenario: &'a Scenario,
}

/// What a tool is to do, in the folder the agent works in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Tool<'a> {
    /// Make a file of this name, and end.
    MakeFile(&'a str),
    /// Make a file of this name, and then run on without an end as `sleep` for so many seconds.
    RunOn(&'a str, u32),
}

/// A call of a tool by the model.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// What the model says.
    pub block: Block,
    /// Options under which the agent has the tool and asks before it uses it.
    pub options: Map<String, Value>,
}

impl Call {
    /// A call of the tool that the suite itself gives to a provider that takes tools of its program. It can make a file.
    pub fn of_program(tool: Tool<'_>) -> Option<Self> {
        match tool {
            Tool::MakeFile(name) => {
                Some(Self { block: Block::tool(MAKE_FILE, json!({ "name": name })), options: Map::new() })
            }
            Tool::RunOn(..) => None,
        }
    }

    /// A call of whichever shell tool the agent offers, which is asked about without further options.
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

/// Something of the list that a provider shows in another way, or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exception {
    /// The behaviour's name.
    pub behaviour: &'static str,
    /// In which way.
    pub kind: Kind,
    /// Why, as a sentence for people.
    pub reason: &'static str,
}

/// The way of an exception.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// There is nothing to look at.
    NotApplicable,
    /// The vendor's own behaviour. The suite must find exactly this deviation; if it finds none, the exception is out of
    /// date.
    Deviates(Deviation),
}
