//! The agents that have their own provider, and the one provider for all others: one table.

use std::path::{Path, PathBuf};

use inspan_protocol::{Environment, ModelServerAddress, ModelSettings, ProgramVariables, Setup};
use serde_json::{Value, json};

use crate::program::info::{ProgramInfo, key_in, login_in};

/// What a provider knows about its agent.
#[derive(Debug)]
pub(super) struct Preset {
    /// The provider's type.
    pub(super) provider: &'static str,
    /// The name for people.
    pub(super) name: &'static str,
    /// The program; absent if every call names its own.
    pub(super) program: Option<&'static ProgramInfo>,
    /// The arguments of the program.
    pub(super) arguments: &'static [&'static str],
    /// Whether it forgets what a turn was asked that was cut short.
    pub(super) forgets_cut_turns: bool,
    /// Whether it reads files through us. Gemini CLI takes none of the protocol's errors for a file that is not there, and could
    /// make no file.
    pub(super) reads_through_us: bool,
    /// Whether it reads a person's answers to its model's questions beside the answer to a question for permission.
    pub(super) takes_answers: bool,
    /// Variables that it gets unless they are set.
    pub(super) fixed: &'static [(&'static str, &'static str)],
    /// Settings for a node, unless the user's own say otherwise.
    pub(super) defaults: Option<Defaults>,
}

/// Settings beneath those of the user's files, which the program reads in a file of the whole machine.
#[derive(Debug)]
pub(super) struct Defaults {
    /// The variable that names another file.
    pub(super) variable: &'static str,
    /// The file that is read without it.
    pub(super) usual: fn(&Environment) -> PathBuf,
    pub(super) content: fn() -> Value,
}

impl Preset {
    /// What the provider needs.
    pub(super) fn setup(&self) -> Setup {
        self.program.map_or(Setup::AnyProgram { option: "command" }, ProgramInfo::setup)
    }

    /// The variables that belong to the program.
    pub(super) fn variables(&self) -> ProgramVariables {
        self.program.map(|program| program.variables).unwrap_or_default()
    }

    const fn of(program: &'static ProgramInfo, arguments: &'static [&'static str]) -> Self {
        Self {
            provider: program.provider,
            name: program.name,
            program: Some(program),
            arguments,
            forgets_cut_turns: false,
            reads_through_us: true,
            takes_answers: false,
            fixed: &[],
            defaults: None,
        }
    }
}

/// Any agent.
pub(super) static ANY: Preset = Preset {
    provider: "acp",
    name: "Custom ACP",
    program: None,
    arguments: &[],
    forgets_cut_turns: false,
    reads_through_us: true,
    takes_answers: false,
    fixed: &[],
    defaults: None,
};

/// Factory's Droid.
pub(super) static DROID: Preset = Preset::of(
    &ProgramInfo {
        provider: "droid",
        name: "Droid",
        command: "droid",
        variable: "INSPAN_DROID",
        option: "command",
        install: "npm install -g @factory/cli",
        tested_version: "0.225.2",
        variables: ProgramVariables { own: &["FACTORY_API_KEY"], hidden: &[] },
        keys: &["FACTORY_API_KEY"],
        version_word: 0,
        login: |environment| login(environment, &["FACTORY_API_KEY"], ".factory/auth.json"),
        log_in: Some("log in by running `droid`, or set FACTORY_API_KEY"),
        vendor: None,
        model_settings: Some(droid_settings),
    },
    &["exec", "--output-format", "acp"],
);

/// Google's Gemini CLI.
pub(super) static GEMINI: Preset = Preset {
    forgets_cut_turns: true,
    reads_through_us: false,
    ..Preset::of(
        &ProgramInfo {
            provider: "gemini",
            name: "Gemini CLI",
            command: "gemini",
            variable: "INSPAN_GEMINI",
            option: "command",
            install: "npm install -g @google/gemini-cli",
            tested_version: "0.61.0",
            variables: ProgramVariables { own: &["GEMINI_*", "GOOGLE_API_KEY"], hidden: &[] },
            keys: &["GEMINI_API_KEY", "GOOGLE_API_KEY"],
            version_word: 0,
            login: |environment| {
                login(environment, &["GEMINI_API_KEY", "GOOGLE_API_KEY"], ".gemini/oauth_creds.json")
            },
            log_in: Some("log in by running `gemini`, or set GEMINI_API_KEY"),
            vendor: Some("gcp.gemini"),
            model_settings: Some(|_| {
                let general = json!({ "maxAttempts": 1, "enableAutoUpdate": false });
                quiet(".gemini/settings.json", json!({ "general": general }))
            }),
        },
        &["--acp"],
    )
};

/// Qwen Code.
pub(super) static QWEN: Preset = Preset {
    takes_answers: true,
    // A title takes a request of its own, which no usage counts.
    fixed: &[("QWEN_DISABLE_AUTO_TITLE", "1")],
    defaults: Some(Defaults {
        variable: "QWEN_CODE_SYSTEM_DEFAULTS_PATH",
        usual: |environment| {
            let usual = if cfg!(target_os = "macos") {
                "/Library/Application Support/QwenCode/settings.json"
            } else {
                "/etc/qwen-code/settings.json"
            };
            let settings = environment.get("QWEN_CODE_SYSTEM_SETTINGS_PATH").unwrap_or(usual);
            Path::new(settings).with_file_name("system-defaults.json")
        },
        // Each of these asks the model after the turn or begins turns by itself: unseen, and counted in no usage. With the number
        // of their form the program does not rewrite them.
        content: || {
            json!({
                "$version": 4,
                "memory": { "enableManagedAutoMemory": false, "enableManagedAutoDream": false },
                "ui": { "enableFollowupSuggestions": false },
                "experimental": { "cron": false }
            })
        },
    }),
    ..Preset::of(
        &ProgramInfo {
            provider: "qwen",
            name: "Qwen Code",
            command: "qwen",
            variable: "INSPAN_QWEN",
            option: "command",
            install: "npm install -g @qwen-code/qwen-code",
            tested_version: "0.15.10",
            variables: ProgramVariables {
                own: &["OPENAI_*", "DASHSCOPE_API_KEY", "BAILIAN_*", "QWEN_*"],
                hidden: &[],
            },
            keys: &["OPENAI_API_KEY", "DASHSCOPE_API_KEY"],
            version_word: 0,
            login: |environment| {
                login(environment, &["OPENAI_API_KEY", "DASHSCOPE_API_KEY"], ".qwen/oauth_creds.json")
            },
            log_in: Some("log in by running `qwen`, or set OPENAI_API_KEY, OPENAI_BASE_URL and OPENAI_MODEL"),
            vendor: None,
            model_settings: Some(|_| {
                let (general, model) = (
                    json!({ "enableAutoUpdate": false }),
                    json!({ "generationConfig": { "maxRetries": 0 } }),
                );
                quiet(".qwen/settings.json", json!({ "general": general, "model": model }))
            }),
        },
        &["--acp"],
    )
};

/// Where a login or key is found: in one of these variables, or in a file below the user's home.
fn login(environment: &Environment, keys: &[&str], file: &str) -> Option<String> {
    key_in(environment, keys).or_else(|| login_in(&Path::new(environment.get("HOME")?).join(file)))
}

/// One model of the user's own, asked in the Anthropic format. Its key is in the file.
fn droid_settings(server: &ModelServerAddress<'_>) -> ModelSettings {
    let content = json!({
        "customModels": [{
            "model": "scripted-model",
            "displayName": "Scripted",
            "provider": "anthropic",
            "baseUrl": server.base,
            "apiKey": server.key,
            "maxOutputTokens": 8192
        }],
        "model": "custom:scripted-model",
        "enableDroidShield": false,
        "cloudSessionSync": false
    });
    ModelSettings { folder: "HOME", file: ".factory/settings.json", content, variable: None, is_needed: true }
}

/// Settings of a program that finds the server by variables: it reports no usage, and what else is given.
fn quiet(file: &'static str, mut content: Value) -> ModelSettings {
    content["privacy"] = json!({ "usageStatisticsEnabled": false });
    ModelSettings { folder: "HOME", file, content, variable: None, is_needed: false }
}
