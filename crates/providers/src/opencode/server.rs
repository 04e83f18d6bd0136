//! What the server is asked: where it listens, its conversation, its events, a message, an answer, an abort.

use std::path::Path;
use std::time::Duration;

use inspan_protocol::{AgentError, Environment, ErrorCode, ErrorKind, TurnId, beginning};
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Method, Url};
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::agent::OpenCodeAgent;
use super::error::{explain_exit, refused};
use super::{request, wire};
use crate::decode::head;
use crate::error::{no_turn, not_found};
use crate::program::{Agent, exit, redacted};
use inspan_transport::{Answer, Broken, Clocks, Request, whole_pairs};

/// How much the program may print before it listens.
const START_OUTPUT: usize = 64 * 1024;
/// How long one request may take.
const CALL: Duration = Duration::from_secs(60);
/// The largest response to a request that is read.
const RESPONSE: usize = 64 * 1024 * 1024;
/// How long nothing may come where the turn watches the time.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// Where a conversation is moved to another folder.
const MOVE: &str = "experimental/control-plane/move-session";
/// The name that the server takes with its password.
const USER: &str = "opencode";

/// The address of a server, with the password; neither is printed.
pub(super) struct Base {
    password: String,
    url: Option<Url>,
}

impl Base {
    /// A server that does not listen yet.
    pub(super) fn new(password: String) -> Self {
        Self { password, url: None }
    }

    pub(super) fn password(&self) -> &str {
        &self.password
    }

    fn set(&mut self, mut url: Url) {
        // Only a loopback address comes here, which takes both.
        let _taken = url.set_username(USER).and_then(|()| url.set_password(Some(&self.password)));
        self.url = Some(url);
    }
}

impl OpenCodeAgent {
    /// Waits until the program says where it listens.
    pub(super) async fn listening(&mut self) -> Result<(), AgentError> {
        let mut printed = Vec::new();
        loop {
            let Some(bytes) = self.process.read().await else { return Err(self.died().await) };
            printed.extend_from_slice(&bytes);
            if let Some(address) = address(&String::from_utf8_lossy(&printed)) {
                self.base.set(address?);
                return Ok(());
            }
            if printed.len() > START_OUTPUT {
                let message = format!("the program printed {} bytes and not where it listens", printed.len());
                return Err(AgentError::new(ErrorCode::Protocol, message).with_kind(ErrorKind::Start));
            }
        }
    }

    /// Asks the program to read its settings again, as a new server would.
    pub(super) async fn reload(&self) -> Result<(), AgentError> {
        self.ask("read its settings again", Method::POST, "instance/dispose", None).await.map(drop)
    }

    /// Begins a conversation.
    pub(super) async fn create(&mut self, title: &str) -> Result<(), AgentError> {
        let body = request::session(&self.rules, title);
        let created = self.ask("begin a conversation", Method::POST, "session", Some(&body)).await?;
        self.directory = created["directory"].as_str().map(str::to_owned);
        self.session = named(&created, "began")?;
        Ok(())
    }

    /// Branches a conversation, which stays as it is, after its last turn or that which ends there.
    pub(super) async fn fork(&mut self, from: &str, at: Option<&TurnId>) -> Result<(), AgentError> {
        let before = match at {
            Some(at) => self.message_after(from, at).await?,
            None => None,
        };
        let path = format!("session/{from}/fork");
        let asked = before.map_or_else(|| json!({}), |id| json!({ "messageID": id }));
        let branch = self.ask_of(from, "branch the conversation", Method::POST, &path, Some(&asked)).await?;
        self.session = named(&branch, "branched")?;
        self.resume().await
    }

    /// The first message after a turn, if there is one.
    async fn message_after(&self, session: &str, turn: &TurnId) -> Result<Option<String>, AgentError> {
        let path = format!("session/{session}/message");
        let messages = self.ask_of(session, "list the conversation", Method::GET, &path, None).await?;
        let messages: Vec<wire::StoredMessage> = serde_json::from_value(messages).map_err(|_| {
            let message = "the program's server listed the conversation in a form that is not known";
            AgentError::new(ErrorCode::Protocol, message)
        })?;
        let ends = |message: &wire::StoredMessage| {
            let created = message.info.time.created.map(|created| (created as u64).to_string());
            message.info.role == "assistant" && created.as_deref() == Some(turn.as_str())
        };
        let last = messages.iter().rposition(ends).ok_or_else(|| no_turn(turn))?;
        Ok(messages.get(last + 1).map(|message| message.info.id.clone()))
    }

    /// Resumes a conversation that this server has not held yet.
    pub(super) async fn resume(&mut self) -> Result<(), AgentError> {
        let path = format!("session/{}", self.session);
        let known = self.ask_of(&self.session, "look for the conversation", Method::GET, &path, None).await?;
        self.directory = known["directory"].as_str().map(str::to_owned);
        self.move_to_cwd().await?;
        let ours = json!(self.rules);
        let (Value::Array(ours), stored) = (&ours, known["permission"].as_array()) else { return Ok(()) };
        if stored.is_some_and(|stored| stored.ends_with(ours)) {
            return Ok(());
        }
        // What is sent is added to what is stored, and the last rule that fits decides.
        let body = json!({ "permission": ours });
        self.ask("take the rules of the call", Method::PATCH, &path, Some(&body)).await.map(drop)
    }

    /// Moves the conversation to the folder of the call, where the program works in that of the conversation. It moves
    /// none to another project.
    async fn move_to_cwd(&mut self) -> Result<(), AgentError> {
        let (Some(directory), Some(cwd)) = (&self.directory, &self.cwd) else { return Ok(()) };
        let real = |path: &Path| std::fs::canonicalize(path).ok();
        let Some(asked) = real(cwd).filter(|asked| real(directory.as_ref()).as_ref() != Some(asked)) else {
            return Ok(());
        };
        let asked = asked.to_string_lossy().into_owned();
        let body = json!({ "sessionID": self.session, "destination": { "directory": asked } });
        let moved = self.ask("move the conversation", Method::POST, MOVE, Some(&body)).await;
        moved.map_err(|error| match error.code {
            ErrorCode::InvalidRequest | ErrorCode::Protocol => AgentError::new(
                ErrorCode::ConfigInvalid,
                format!(
                    "the conversation works in {directory} and cannot continue in {asked}: {}; begin one of its own \
                     there, or give the same `cwd`",
                    error.message
                ),
            ),
            _ => error,
        })?;
        self.directory = Some(asked);
        Ok(())
    }

    /// What there is to say of the MCP servers that did not start. A program that does not tell of them is not asked again.
    pub(super) async fn broken_mcp_servers(&self) -> Vec<String> {
        let listed = self.ask("list its MCP servers", Method::GET, "mcp", None).await;
        let Ok(Value::Object(servers)) = listed else { return Vec::new() };
        let said = |(name, server): (&String, &Value)| {
            let name = head(name);
            let why = match server["status"].as_str()? {
                "failed" | "needs_client_registration" => {
                    server["error"].as_str().unwrap_or("it gave no reason").to_owned()
                }
                "needs_auth" => format!("it wants a login: run `opencode mcp auth {name}`"),
                _ => return None,
            };
            let why = self.process.redactor().text(&why);
            Some(format!("the MCP server {name} did not start: {}", beginning(&why, 500)))
        };
        servers.iter().filter_map(said).collect()
    }

    /// The stream of events.
    pub(super) async fn events(&self, clocks: Clocks) -> Result<Answer, Broken> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        let request = Request { method: Method::GET, url: self.url("event")?, headers, body: Vec::new() };
        let response = self.http.send(request, &Environment::default(), clocks).await?;
        if !response.status().is_success() {
            let status = response.status().as_u16();
            let body = response.error_body().await?;
            return Err(Broken::Failed(refused("tell its events", status, &body)));
        }
        Ok(response.endless())
    }

    /// Clocks for a stream that the turn watches.
    pub(super) fn unwatched() -> Clocks {
        Clocks { cancel: CancellationToken::new(), began: Instant::now(), deadline: None, stall: FOREVER }
    }

    /// Sends the user's message. The response comes with the events.
    pub(super) async fn send(&self, message: &Value) -> Result<(), AgentError> {
        let path = format!("session/{}/prompt_async", self.session);
        self.ask_of(&self.session, "take the message", Method::POST, &path, Some(message)).await.map(drop)
    }

    /// Asks the program to end the turn in progress.
    pub(super) async fn abort(&self, limit: Duration) -> Result<(), AgentError> {
        let path = format!("session/{}/abort", self.session);
        let (status, body) = self.call(Method::POST, &path, None, limit).await?;
        self.judged("end the turn", status, &body).map(drop)
    }

    /// Answers a question; one that is no longer open needs no answer.
    pub(super) async fn respond(&self, path: &str, body: &Value) -> Result<(), AgentError> {
        let (status, response) = self.call(Method::POST, path, Some(body), CALL).await?;
        if status == 404 { Ok(()) } else { self.judged("take an answer", status, &response).map(drop) }
    }

    /// Why nothing can be asked of the server any more: the program's exit, if it exited.
    async fn exited_or(&self, error: AgentError) -> AgentError {
        match self.process.wait(exit::EXIT_AFTER_BREAK).await {
            Some(exit) => exit::died(&self.process, exit, |_, stderr| explain_exit(stderr)),
            None => error,
        }
    }

    async fn ask(
        &self,
        what: &str,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, AgentError> {
        let (status, response) = self.call(method, path, body, CALL).await?;
        self.judged(what, status, &response)
    }

    /// As [`Self::ask`], of a conversation that the server may not know.
    async fn ask_of(
        &self,
        session: &str,
        what: &str,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, AgentError> {
        let (status, response) = self.call(method, path, body, CALL).await?;
        if status == 404 {
            return Err(not_found(session));
        }
        self.judged(what, status, &response)
    }

    fn judged(&self, what: &str, status: u16, response: &[u8]) -> Result<Value, AgentError> {
        if !(200..300).contains(&status) {
            let error = refused(what, status, response);
            return Err(redacted(error, self.process.redactor()));
        }
        if response.iter().all(u8::is_ascii_whitespace) {
            return Ok(Value::Null);
        }
        serde_json::from_str(&whole_pairs(&String::from_utf8_lossy(response))).map_err(|_| {
            let message = format!("the program's server was to {what} and answered with no JSON");
            AgentError::new(ErrorCode::Protocol, message)
        })
    }

    /// One request and its whole answer, whatever its status is.
    async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        limit: Duration,
    ) -> Result<(u16, Vec<u8>), AgentError> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let clocks = Clocks { stall: limit, ..Self::unwatched() };
        let url = self.url(path).map_err(failed)?;
        let body = body.map_or(Vec::new(), |body| body.to_string().into_bytes());
        let request = Request { method, url, headers, body };
        let call = async {
            let answer = self.http.send(request, &Environment::default(), clocks).await?;
            let status = answer.status().as_u16();
            Ok((status, answer.body(RESPONSE).await?))
        };
        match call.await.map_err(failed) {
            Ok(answered) => Ok(answered),
            Err(error) if error.code == ErrorCode::Network => Err(self.exited_or(error).await),
            Err(error) => Err(error),
        }
    }

    fn url(&self, path: &str) -> Result<Url, Broken> {
        let missing = || {
            Broken::Failed(AgentError::new(ErrorCode::Protocol, "the program's server has no such address"))
        };
        let base = self.base.url.as_ref().ok_or_else(missing)?;
        let mut url = base.join(path).map_err(|_| missing())?;
        if let Some(directory) = &self.directory {
            url.query_pairs_mut().append_pair("directory", directory);
        }
        Ok(url)
    }
}

/// The name of a conversation that the server began or branched.
fn named(conversation: &Value, did: &str) -> Result<String, AgentError> {
    let id = conversation["id"].as_str().filter(|id| is_id(id)).map(str::to_owned);
    id.ok_or_else(|| {
        let message = format!("the program's server {did} a conversation without a name");
        AgentError::new(ErrorCode::Protocol, message)
    })
}

/// Whether a text can be the name of a conversation; any other might be taken for an address.
pub(super) fn is_id(text: &str) -> bool {
    text.starts_with("ses")
        && text.len() < 100
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Nothing that is asked here can be cancelled, so that a request either failed or was answered.
fn failed(broken: Broken) -> AgentError {
    match broken {
        Broken::Failed(error) => error,
        Broken::Cancelled => AgentError::new(ErrorCode::Aborted, "the request was cancelled"),
    }
}

/// The address in the line that says it, once that line is whole. The password must not go anywhere but to loopback.
fn address(returned: &str) -> Option<Result<Url, AgentError>> {
    let (_, rest) = returned.split_once("listening on ")?;
    let (line, _) = rest.split_once('\n')?;
    let url = Url::parse(line.trim()).ok();
    let url = url.filter(|url| url.scheme() == "http" && url.host_str() == Some("127.0.0.1"));
    Some(url.ok_or_else(|| {
        AgentError::new(
            ErrorCode::Protocol,
            "the program does not listen on the loopback address it was given",
        )
        .with_kind(ErrorKind::Start)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_says_where_it_listens() {
        let rows = [
            ("opencode server listening on http://127.0.0.1:4096\n", Some(Ok("http://127.0.0.1:4096/"))),
            ("Warning: x\nlistening on http://127.0.0.1:1\r\nmore", Some(Ok("http://127.0.0.1:1/"))),
            ("listening on http://127.0.0.1:40", None),
            ("listening on http://192.168.1.1:4096\n", Some(Err(ErrorCode::Protocol))),
            ("listening on nothing\n", Some(Err(ErrorCode::Protocol))),
            ("", None),
        ];
        for (returned, expected) in rows {
            let seen =
                address(returned).map(|url| url.map(|url| url.to_string()).map_err(|error| error.code));
            assert_eq!(seen, expected.map(|url| url.map(str::to_owned)), "{returned}");
        }
    }

    #[test]
    fn a_name_is_no_address() {
        let rows = ["ses_1fAb", "ses_../x", "ses_a/b", "other", "ses_a?b", ""];
        assert_eq!(rows.map(is_id), [true, false, false, false, false, false]);
    }
}
