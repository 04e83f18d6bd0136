//! From a started program to an open thread: the greeting, the login and the thread.

use inspan_protocol::{AgentError, ErrorCode, ErrorKind, ProviderSessionId};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::PROGRAM;
use super::agent::CodexAgent;
use super::error::refused;
use super::launch::{CodexLaunch, EnvironmentKey, Retries, Store};
use crate::json_rpc::{Incoming, METHOD_NOT_FOUND, refuse};
use crate::program::{Agent, ProcessConversation};

/// Providers of models that are built in. The program takes no configuration for them.
const BUILT_IN: &[&str] = &["openai", "amazon-bedrock", "ollama", "lmstudio"];

/// What the program says about its login.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Account {
    account: Option<Value>,
    #[serde(default)]
    requires_openai_auth: bool,
}

#[derive(Deserialize)]
struct OpenedThread {
    thread: ThreadId,
    model: Option<String>,
}

#[derive(Deserialize)]
struct ThreadId {
    id: ProviderSessionId,
}

/// Whether the program has the login or key that it needs.
enum Login {
    Done,
    /// It has to be started again with its login stored there: it would write a key to where the user's login is, or
    /// lacks a key that it was not to see.
    Elsewhere(Store),
}

impl CodexAgent {
    /// Greets the program, and makes sure that it has a login or key, if the provider of its model needs one.
    pub(super) async fn log_in(&mut self, launch: &CodexLaunch) -> Result<(), AgentError> {
        self.initialize().await?;
        if let Login::Elsewhere(store) = self.check_login(launch).await? {
            self.restart(launch, store).await?;
            self.initialize().await?;
            self.check_login(launch).await?;
        }
        Ok(())
    }

    async fn initialize(&mut self) -> Result<(), AgentError> {
        let client = json!({ "name": "inspan", "title": "Inspan", "version": env!("CARGO_PKG_VERSION") });
        // Ending the commands that an interrupt leaves behind is an experimental method.
        let params = json!({ "clientInfo": client, "capabilities": { "experimentalApi": true } });
        let _greeting: Value = self.call("initialize", params).await?;
        self.peer.notify("initialized", json!({}))
    }

    async fn check_login(&mut self, launch: &CodexLaunch) -> Result<Login, AgentError> {
        let account: Account = self.call("account/read", json!({})).await?;
        if !account.requires_openai_auth {
            // Another provider of models takes its key from the environment, which has to be whole then.
            let memory = self.store == Store::Memory;
            return Ok(if memory { Login::Elsewhere(Store::Own) } else { Login::Done });
        }
        if account.account.is_some() {
            return Ok(Login::Done);
        }
        match (&launch.key, self.store) {
            (EnvironmentKey::First(key) | EnvironmentKey::Else(key), Store::Memory) => {
                let params = json!({ "type": "apiKey", "apiKey": key });
                let _done: Value = self.call("account/login/start", params).await?;
                Ok(Login::Done)
            }
            (EnvironmentKey::First(_) | EnvironmentKey::Else(_), Store::Own) => {
                Ok(Login::Elsewhere(Store::Memory))
            }
            (EnvironmentKey::None, _) => {
                let log_in = PROGRAM.log_in.unwrap_or_default();
                let message = format!("the program has no login and no key; {log_in}");
                Err(AgentError::new(ErrorCode::Auth, message).with_kind(ErrorKind::NoLogin))
            }
        }
    }

    /// Opens a new thread, an earlier one, or a branch of that.
    pub(super) async fn open_thread(
        &mut self,
        launch: &CodexLaunch,
        conversation: &ProcessConversation,
    ) -> Result<ProviderSessionId, AgentError> {
        let mut params = launch.thread.clone();
        for (key, value) in self.retries(launch).await? {
            let config = params.entry("config").or_insert_with(|| json!({}));
            config[key] = value;
        }
        let opened: OpenedThread = match conversation {
            ProcessConversation::Resumed(id) | ProcessConversation::Forked { from: id, .. } => {
                params.insert("threadId".to_owned(), json!(id));
                params.insert("excludeTurns".to_owned(), json!(true));
                if let ProcessConversation::Forked { at: Some(at), .. } = conversation {
                    params.insert("lastTurnId".to_owned(), json!(at));
                }
                let forks = matches!(conversation, ProcessConversation::Forked { .. });
                self.call(if forks { "thread/fork" } else { "thread/resume" }, params).await?
            }
            ProcessConversation::New(_) => self.call("thread/start", params).await?,
        };
        self.session = opened.thread.id.clone();
        self.decoder.open(opened.thread.id.clone(), opened.model);
        Ok(opened.thread.id)
    }

    /// The overrides that keep the program from retrying by itself. Their keys name the provider of the model, which
    /// only the program's own configuration knows.
    async fn retries(&mut self, launch: &CodexLaunch) -> Result<Vec<(String, Value)>, AgentError> {
        if launch.retries == Retries::Chosen {
            return Ok(Vec::new());
        }
        let mut answer: Value = self.call("config/read", json!({})).await?;
        let config = answer["config"].take();
        let Some(provider) = config["model_provider"].as_str().filter(|id| !BUILT_IN.contains(id)) else {
            return Ok(Vec::new());
        };
        let unset = |key: &&str| config["model_providers"][provider][*key].is_null();
        let keys = ["request_max_retries", "stream_max_retries"].into_iter().filter(unset);
        Ok(keys.map(|key| (format!("model_providers.{provider}.{key}"), json!(0))).collect())
    }

    /// Makes a request outside of a turn.
    async fn call<T: DeserializeOwned>(
        &mut self,
        method: &str,
        params: impl serde::Serialize,
    ) -> Result<T, AgentError> {
        let each = |stdin: &_, message| match message {
            Incoming::Request { id, .. } => {
                // If this cannot be written, the program has ended, which shows next.
                let _sent = refuse(stdin, &id, METHOD_NOT_FOUND, "nothing is offered outside of a turn");
                None
            }
            message => Some(message),
        };
        match self.peer.call(method, params, Self::OPENING, each).await {
            Ok(answer) => Ok(answer),
            Err(error) => Err(match error.into_error(method, |error| refused(method, error)) {
                Some(error) => error,
                None => self.died().await,
            }),
        }
    }
}
