//! What a provider needs on a machine, and what of it is there.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a provider needs on a machine, as it describes itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Setup {
    /// Nothing.
    BuiltIn,
    /// A program that each call names.
    AnyProgram {
        /// The option of the input that names it.
        option: &'static str,
    },
    /// An agent CLI.
    Program(ProgramSetup),
    /// A service that is called with a key.
    Service {
        /// The environment variables that may hold the key.
        keys: &'static [&'static str],
    },
}

/// An agent CLI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramSetup {
    /// Its name on the `PATH`.
    pub command: &'static str,
    /// The shell command that installs it.
    pub install: &'static str,
    /// The version that the adapter was tested with.
    pub tested_version: &'static str,
    /// The option of an input that may name another program.
    pub option: &'static str,
    /// The environment variables that may hold a key of it.
    pub keys: &'static [&'static str],
    /// The environment variables that belong to it.
    pub variables: ProgramVariables,
}

/// The environment variables that belong to an agent CLI, by name; a `*` at the end matches any rest. Other agent CLIs
/// do not see them, unless they claim them too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramVariables {
    /// Those that the program sees.
    pub own: &'static [&'static str],
    /// Those that no agent CLI sees, such as the mark of a session that Inspan itself runs in. They go before `own`.
    pub hidden: &'static [&'static str],
}

impl Setup {
    /// The environment variables that may hold a key.
    pub fn keys(&self) -> &'static [&'static str] {
        match self {
            Self::BuiltIn | Self::AnyProgram { .. } => &[],
            Self::Program(program) => program.keys,
            Self::Service { keys } => keys,
        }
    }

    /// The option of an input that may name another program.
    pub fn program_option(&self) -> Option<&'static str> {
        match self {
            Self::BuiltIn | Self::Service { .. } => None,
            Self::AnyProgram { option } => Some(option),
            Self::Program(program) => Some(program.option),
        }
    }
}

/// How a provider is set up on a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Probe {
    /// It needs nothing.
    BuiltIn,
    /// It runs a program.
    Program(ProgramStatus),
    /// It calls a service.
    Service(ServiceStatus),
}

/// The state of an agent CLI on a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProgramStatus {
    /// The provider that runs it.
    pub provider: String,
    /// Its name on the `PATH`.
    pub program: String,
    /// The version that the adapter was tested with; empty if it was tested with none.
    pub tested_version: String,
    /// Where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// The version that it prints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Where a login or key is found; never the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub login: Option<String>,
    /// Why it cannot be used, and what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// What is known of a service before it is called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceStatus {
    /// The provider that calls it.
    pub provider: String,
    /// The host of its address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The variable that holds the key; never the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Why it cannot be called, and what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}
