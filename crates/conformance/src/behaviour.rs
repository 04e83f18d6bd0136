//! One row of the list: what a provider does, what it needs for that, what the model answers, and what is looked at.

use futures::future::BoxFuture;
use inspan_model_server::Turn;
use inspan_protocol::ProviderCapabilities;

use crate::behaviours::errors::Fault;
use crate::finding::Proof;
use crate::processes;
use crate::rig::{ConformanceTarget, Reach, Tool};
use crate::scene::Scene;

/// Something that every provider does alike.
#[derive(Debug)]
pub struct Behaviour {
    /// The name, in words joined by underscores.
    pub name: &'static str,
    /// What is done, as a sentence without its subject.
    pub sentence: &'static str,
    /// What a provider needs to show it.
    pub needs: &'static [Need],
    pub(crate) prove: Prove,
}

/// How it is looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Prove {
    /// By a scene: what the model answers, and what is done and looked at.
    By(fn(&dyn ConformanceTarget) -> Vec<Turn>, for<'a> fn(&'a Scene) -> BoxFuture<'a, Proof>),
    /// By one answer of the server that is an error.
    Fault(Fault),
}

/// What a provider needs to show a behaviour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Need {
    /// It asks a model server.
    Server,
    /// It streams.
    Streaming,
    /// It answers by a schema.
    StructuredOutput,
    /// It asks before it uses a tool.
    Permissions,
    /// It has a tool that makes a file.
    Tool,
    /// It has a tool that runs a program.
    Shell,
    /// Its thinking can be chosen.
    Thinking,
    /// It says what a turn cost.
    Cost,
    /// It does not say what a turn cost.
    NoCost,
}

impl Need {
    /// Why the provider does not meet the need; nothing if it does.
    pub(crate) fn unmet(
        self,
        rig: &dyn ConformanceTarget,
        can: ProviderCapabilities,
    ) -> Option<&'static str> {
        let (met, reason) = match self {
            Self::Server => (rig.reach() == Reach::Server, "it asks no model server"),
            Self::Streaming => (can.streaming, "its descriptor says that it does not stream"),
            Self::StructuredOutput => {
                (can.structured_output, "its descriptor says that it does not answer by a schema")
            }
            Self::Permissions => {
                (can.permissions, "its descriptor says that it does not ask before it uses a tool")
            }
            Self::Tool => (rig.call(Tool::MakeFile("x")).is_some(), "it has no tool that makes a file"),
            Self::Shell if !processes::can_be_listed() => {
                (false, "what runs cannot be looked for on this system")
            }
            Self::Shell => (rig.call(Tool::RunOn("x", 1)).is_some(), "it has no tool that runs a program"),
            Self::Thinking => (can.thinking, "its descriptor says that its thinking cannot be chosen"),
            Self::Cost => (can.cost, "its descriptor says that it does not tell the cost"),
            Self::NoCost => (!can.cost, "its descriptor says that it tells the cost"),
        };
        (!met).then_some(reason)
    }
}
