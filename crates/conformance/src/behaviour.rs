//! One row of the list: what a provider does, what it needs for that, what the model answers, and what is checked.

use futures::future::BoxFuture;
use inspan_model_server::Turn;
use inspan_protocol::ProviderCapabilities;

use crate::behaviours::errors::StatusError;
use crate::finding::CheckResult;
use crate::target::{ConformanceTarget, ModelAccess, Tool};
use crate::test_case::TestCase;
use crate::worker;

/// A behaviour that all providers have in common.
#[derive(Debug)]
pub struct Behaviour {
    /// The name, in words joined by underscores.
    pub name: &'static str,
    /// What is done, as a sentence without its subject.
    pub sentence: &'static str,
    /// What a provider needs to show it.
    pub needs: &'static [Need],
    pub(crate) check: Check,
}

/// How a behaviour is checked.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Check {
    /// By a test case: what the model answers, and what is done and checked.
    Case(fn(&ConformanceTarget) -> Vec<Turn>, for<'a> fn(&'a TestCase) -> BoxFuture<'a, CheckResult>),
    /// By one response of the server with an error status.
    Status(StatusError),
}

/// What a provider needs to show a behaviour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Need {
    /// It calls a model server.
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
    /// It reports what a turn cost.
    Cost,
    /// It does not report what a turn cost.
    NoCost,
}

impl Need {
    /// Why the provider does not meet the need; nothing if it does.
    pub(crate) fn unmet(self, target: &ConformanceTarget, can: ProviderCapabilities) -> Option<&'static str> {
        let (met, reason) = match self {
            Self::Server => (target.model_access == ModelAccess::Server, "it calls no model server"),
            Self::Streaming => (can.streaming, "its descriptor says that it does not stream"),
            Self::StructuredOutput => {
                (can.structured_output, "its descriptor says that it does not answer by a schema")
            }
            Self::Permissions => {
                (can.permissions, "its descriptor says that it does not ask before it uses a tool")
            }
            Self::Tool => ((target.call)(Tool::MakeFile("x")).is_some(), "it has no tool that makes a file"),
            Self::Shell if !worker::can_be_listed() => (false, "processes cannot be listed on this system"),
            Self::Shell => {
                ((target.call)(Tool::RunOn("x", 1)).is_some(), "it has no tool that runs a program")
            }
            Self::Thinking => (can.thinking, "its descriptor says that its thinking cannot be chosen"),
            Self::Cost => (can.cost, "its descriptor says that it does not report the cost"),
            Self::NoCost => (!can.cost, "its descriptor says that it reports the cost"),
        };
        (!met).then_some(reason)
    }
}
