//! What a provider needs on a machine, and what of it is there.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What a provider needs on a machine, as it describes itself.
#[derive(Clone, Copy, Debug)]
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
        /// Whose models it has, by the name that OpenTelemetry gives the vendor, such as `anthropic`.
        vendor: &'static str,
    },
}

/// An agent CLI.
#[derive(Clone, Copy, Debug)]
pub struct ProgramSetup {
    /// Its name on the `PATH`.
    pub command: &'static str,
    /// The environment variable that may name its path.
    pub variable: &'static str,
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
    /// Whose models it asks, by the name that OpenTelemetry gives the vendor; absent if its configuration decides.
    pub vendor: Option<&'static str>,
    /// Its settings for a scripted model server; absent if environment variables are enough.
    pub model_settings: Option<fn(&ModelServerAddress<'_>) -> ModelSettings>,
}

/// A scripted model server, and the key that clients send it. The server takes requests of Anthropic and Gemini at its
/// address, those of OpenAI below `/v1`.
#[derive(Clone, Copy, Debug)]
pub struct ModelServerAddress<'a> {
    /// Its address, without a slash at the end.
    pub base: &'a str,
    /// The key.
    pub key: &'a str,
}

/// A settings file with which an agent CLI asks only a scripted model server.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSettings {
    /// The environment variable that names the folder: `HOME`, if the program has no other.
    pub folder: &'static str,
    /// The path in this folder.
    pub file: &'static str,
    /// The content: a text, or else JSON.
    pub content: Value,
    /// The environment variable that takes the content instead of the file, if there is one.
    pub variable: Option<&'static str>,
    /// Whether the program finds the server only by these settings. Else environment variables are enough for that, and
    /// the settings keep the program from retrying and from calling other hosts.
    pub is_needed: bool,
}

impl ModelSettings {
    /// The content of the file.
    pub fn text(&self) -> String {
        self.content.as_str().map_or_else(|| self.content.to_string(), str::to_owned)
    }
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
            Self::Service { keys, .. } => keys,
        }
    }

    /// The agent CLI that the provider runs, if it is a certain one.
    pub fn program(&self) -> Option<ProgramSetup> {
        match self {
            Self::Program(program) => Some(*program),
            _ => None,
        }
    }

    /// Whose models it asks, by the name that OpenTelemetry gives the vendor, if that is known beforehand.
    pub fn vendor(&self) -> Option<&'static str> {
        match self {
            Self::BuiltIn | Self::AnyProgram { .. } => None,
            Self::Program(program) => program.vendor,
            Self::Service { vendor, .. } => Some(vendor),
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
#[serde_with::skip_serializing_none]
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
    pub path: Option<PathBuf>,
    /// The version that it prints.
    pub version: Option<String>,
    /// Where a login or key is found; never the key.
    pub login: Option<String>,
    /// Why it cannot be used, and what to do.
    pub problem: Option<String>,
}

/// What is known of a service before it is called.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceStatus {
    /// The provider that calls it.
    pub provider: String,
    /// The host of its address.
    pub host: Option<String>,
    /// The variable that holds the key; never the key.
    pub key: Option<String>,
    /// Why it cannot be called, and what to do.
    pub problem: Option<String>,
}
