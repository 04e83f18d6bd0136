//! How the clients of each vendor are led to a model server: addresses, variables, and settings of programs.

use serde_json::{Value, json};

/// The variable in which clients of either OpenAI format look for their key; the settings below name it.
const OPENAI_KEY: &str = "OPENAI_API_KEY";

/// The addresses of one model server.
///
/// ```
/// # use inspan_model_server::Endpoints;
/// let endpoints = Endpoints::at("http://127.0.0.1:4321");
/// assert_eq!(endpoints.variables()[1], ("OPENAI_BASE_URL", "http://127.0.0.1:4321/v1".to_owned()));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoints {
    base: String,
}

impl Endpoints {
    /// Those of a server at this address, which has no slash at its end.
    #[must_use]
    pub fn at(base: impl Into<String>) -> Self {
        Self { base: base.into() }
    }

    /// For clients of the Anthropic format.
    #[must_use]
    pub fn anthropic(&self) -> String {
        self.base.clone()
    }

    /// For clients of both OpenAI formats.
    #[must_use]
    pub fn openai(&self) -> String {
        format!("{}/v1", self.base)
    }

    /// For clients of the Gemini API.
    #[must_use]
    pub fn gemini(&self) -> String {
        self.base.clone()
    }

    /// The variables in which clients look for an address, Claude Code among them. The keys are up to the caller: any
    /// will do.
    #[must_use]
    pub fn variables(&self) -> [(&'static str, String); 3] {
        [
            ("ANTHROPIC_BASE_URL", self.anthropic()),
            ("OPENAI_BASE_URL", self.openai()),
            ("GOOGLE_GEMINI_BASE_URL", self.gemini()),
        ]
    }

    /// The `settings.json` of Droid in `.factory` of the user's folder: one model of the user's own, asked in the
    /// Anthropic format. Its key is in the file.
    #[must_use]
    pub fn droid_settings(&self, key: &str) -> Value {
        json!({
            "customModels": [{
                "model": "scripted-model",
                "displayName": "Scripted",
                "provider": "anthropic",
                "baseUrl": self.anthropic(),
                "apiKey": key,
                "maxOutputTokens": 8192
            }],
            "model": "custom:scripted-model",
            "enableDroidShield": false,
            "cloudSessionSync": false
        })
    }

    /// The `settings.json` of Gemini CLI in `.gemini` of the user's folder: it makes one attempt, and reports no usage.
    #[must_use]
    pub fn gemini_settings() -> Value {
        json!({
            "general": { "maxAttempts": 1, "enableAutoUpdate": false },
            "privacy": { "usageStatisticsEnabled": false }
        })
    }

    /// The `settings.json` of Qwen Code in `.qwen` of the user's folder: it reports no usage.
    #[must_use]
    pub fn qwen_settings() -> Value {
        json!({
            "general": { "enableAutoUpdate": false },
            "privacy": { "usageStatisticsEnabled": false },
            "model": { "generationConfig": { "maxRetries": 0 } }
        })
    }

    /// The `config.toml` of Codex, which takes no variable for it. Its key comes from `OPENAI_API_KEY`. It does not
    /// retry by itself, and calls nothing else.
    #[must_use]
    pub fn codex_config(&self) -> String {
        format!(
            r#"model = "scripted-model"
model_provider = "scripted"
check_for_update_on_startup = false

[analytics]
enabled = false

[feedback]
enabled = false

[otel]
exporter = "none"

[features]
unbounded_connection_retries = false

[model_providers.scripted]
name = "scripted"
base_url = "{}"
env_key = "{OPENAI_KEY}"
wire_api = "responses"
requires_openai_auth = false
supports_websockets = false
request_max_retries = 0
stream_max_retries = 0
"#,
            self.openai()
        )
    }

    /// The settings of OpenCode: one provider with one model, asked in the Chat Completions format. Its key comes
    /// from `OPENAI_API_KEY`. Nothing is shared, updated, or compacted by another request to the model.
    #[must_use]
    pub fn opencode_config(&self) -> Value {
        let model = json!({
            "name": "Scripted",
            "limit": { "context": 200_000, "output": 8192 },
            "cost": { "input": 3, "output": 15 },
            "tool_call": true,
            "reasoning": true
        });
        json!({
            "model": "scripted/scripted-model",
            "small_model": "scripted/scripted-model",
            "autoupdate": false,
            "share": "disabled",
            "snapshot": false,
            "compaction": { "auto": false },
            "enabled_providers": ["scripted"],
            "provider": {
                "scripted": {
                    "npm": "@ai-sdk/openai-compatible",
                    "name": "scripted",
                    "options": { "baseURL": self.openai(), "apiKey": format!("{{env:{OPENAI_KEY}}}") },
                    "models": { "scripted-model": model }
                }
            }
        })
    }
}
