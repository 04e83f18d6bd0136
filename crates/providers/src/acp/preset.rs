//! The agents that have a provider of their own, and the one provider for all others: one table.
//! How an agent is driven does not depend on which of them it is.

use crate::transport::environment::Vendor;

/// What a provider knows of its agent.
#[derive(Debug, PartialEq)]
pub(super) struct Preset {
    /// The provider's type.
    pub(super) provider: &'static str,
    /// The name for people.
    pub(super) name: &'static str,
    /// The program and its arguments; absent if every call names its own.
    pub(super) program: Option<&'static Program>,
    /// Whose variables the program may see.
    pub(super) vendor: Vendor,
}

/// A program that a provider runs unless a call names another one.
#[derive(Debug, PartialEq)]
pub(super) struct Program {
    pub(super) name: &'static str,
    pub(super) arguments: &'static [&'static str],
    /// The variable that may name another path of it.
    pub(super) variable: &'static str,
    /// The sentence that says how to get it.
    pub(super) hint: &'static str,
    /// Variables that hold a key of it.
    pub(super) keys: &'static [&'static str],
    /// A file below the user's home that is there after a login.
    pub(super) login: &'static str,
    /// How to log in.
    pub(super) log_in: &'static str,
    /// The version that the adapter was tested with.
    pub(super) tested: &'static str,
}

/// Any agent.
pub(super) static ANY: Preset =
    Preset { provider: "acp", name: "Custom ACP", program: None, vendor: Vendor::Any };

/// Factory's Droid.
pub(super) static DROID: Preset = Preset {
    provider: "droid",
    name: "Droid",
    program: Some(&Program {
        name: "droid",
        arguments: &["exec", "--output-format", "acp"],
        variable: "INSPAN_DROID",
        hint: "install it with `npm install -g @factory/cli`, or name it by the option `command` or the environment \
               variable INSPAN_DROID",
        keys: &["FACTORY_API_KEY"],
        login: ".factory/auth.json",
        log_in: "log in by running `droid`, or set FACTORY_API_KEY",
        tested: "0.225.2",
    }),
    vendor: Vendor::Droid,
};

/// Google's Gemini CLI.
pub(super) static GEMINI: Preset = Preset {
    provider: "gemini",
    name: "Gemini CLI",
    program: Some(&Program {
        name: "gemini",
        arguments: &["--acp"],
        variable: "INSPAN_GEMINI",
        hint: "install it with `npm install -g @google/gemini-cli`, or name it by the option `command` or the \
               environment variable INSPAN_GEMINI",
        keys: &["GEMINI_API_KEY", "GOOGLE_API_KEY"],
        login: ".gemini/oauth_creds.json",
        log_in: "log in by running `gemini`, or set GEMINI_API_KEY",
        tested: "0.61.0",
    }),
    vendor: Vendor::Gemini,
};

/// Qwen Code.
pub(super) static QWEN: Preset = Preset {
    provider: "qwen",
    name: "Qwen Code",
    program: Some(&Program {
        name: "qwen",
        arguments: &["--acp"],
        variable: "INSPAN_QWEN",
        hint: "install it with `npm install -g @qwen-code/qwen-code`, or name it by the option `command` or the \
               environment variable INSPAN_QWEN",
        keys: &["OPENAI_API_KEY", "DASHSCOPE_API_KEY"],
        login: ".qwen/oauth_creds.json",
        log_in: "log in by running `qwen`, or set OPENAI_API_KEY, OPENAI_BASE_URL and OPENAI_MODEL",
        tested: "0.15.10",
    }),
    vendor: Vendor::Qwen,
};

/// Those that run a program of their own.
pub(super) static NAMED: [&Preset; 3] = [&DROID, &GEMINI, &QWEN];
