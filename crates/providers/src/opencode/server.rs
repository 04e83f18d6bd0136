//! A running OpenCode server that holds one conversation: started on loopback behind a password of its own, asked
//! over HTTP, and ended. Turns are left to `turn.rs`.

use std::time::Duration;

use inspan_protocol::{
    AgentError, Environment, ErrorCode, ErrorKind, ExecutionContext, ProviderSessionId, Redactor,
};
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Method, Url};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::error::{answered, died, unknown_session};
use super::launch::Launch;
use super::request;
use crate::pool::{Reuse, Session};
use crate::transport::http::{Answer, Broken, Clocks, Http, Request};
use crate::transport::process::{Exit, Process, Start};

/// How long the program may take until it listens.
const START: Duration = Duration::from_secs(60);
/// How much the program may say before it listens.
const START_WORDS: usize = 64 * 1024;
/// How long one request may take. The first of a server waits until the program has loaded all of itself.
const CALL: Duration = Duration::from_secs(60);
/// The largest answer to a request that is read.
const ANSWER: usize = 64 * 1024 * 1024;
/// How long a program whose connection broke may take to be seen as dead.
const LAST_BREATH: Duration = Duration::from_secs(1);
/// How long nothing may come where others watch the time.
const FAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// The name that the server takes with its password.
const USER: &str = "opencode";

/// A server and its conversation.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) process: Process,
    pub(super) redactor: Redactor,
    pub(super) state: State,
    /// The last message of the user that a turn here began with.
    pub(super) prompt: Option<String>,
    /// The directory of the conversation: that in which it was begun, wherever the server was started. The server
    /// keeps what belongs to one directory apart from all others.
    pub(super) directory: Option<String>,
    http: Http,
    /// With the password, which never shows: neither is it printed, nor do errors hold addresses.
    base: Base,
}

/// The address of a server.
struct Base(Url);

impl std::fmt::Debug for Base {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Base")
    }
}

/// Whether a turn is in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Idle,
    InTurn,
    /// The process was ended.
    Gone,
}

impl Server {
    /// Starts the program, and waits until it listens.
    pub(super) async fn start(launch: &Launch, context: &ExecutionContext) -> Result<Self, AgentError> {
        let password = crate::ids::fresh();
        let redactor = launch.redactor(&password);
        let mut environment = launch.environment.clone();
        environment.push(("OPENCODE_SERVER_PASSWORD".to_owned(), password.clone()));
        let mut process = Process::start(Start {
            program: launch.program.clone(),
            arguments: ["serve", "--hostname=127.0.0.1", "--port=0"].map(str::to_owned).to_vec(),
            environment,
            cwd: launch.cwd.clone(),
            supervisor: context.supervisor.clone(),
            redactor: redactor.clone(),
        })?;
        let limit = context.deadline.map_or(START, |deadline| deadline.min(START));
        let listening = timeout(limit, listening(&mut process)).await.unwrap_or_else(|_| {
            let message = format!("the program did not listen within {} ms of its start", limit.as_millis());
            Err(AgentError::new(ErrorCode::Timeout, message).with_kind(ErrorKind::Start))
        });
        match listening {
            Ok(mut base) => {
                // Only a loopback address comes here, which takes both.
                let _taken = base.set_username(USER).and_then(|()| base.set_password(Some(&password)));
                let http = Http::default();
                Ok(Self {
                    process,
                    redactor,
                    state: State::Idle,
                    prompt: None,
                    directory: None,
                    http,
                    base: Base(base),
                })
            }
            Err(error) => {
                process.stop().await;
                Err(error)
            }
        }
    }

    /// Begins a conversation.
    pub(super) async fn create(
        &mut self,
        launch: &Launch,
        title: &str,
    ) -> Result<ProviderSessionId, AgentError> {
        let body = request::session(&launch.rules, title);
        let said = self.ask("begin a conversation", Method::POST, "session", Some(&body)).await?;
        self.directory = said["directory"].as_str().map(str::to_owned);
        match said["id"].as_str() {
            Some(id) if is_id(id) => Ok(ProviderSessionId::from(id)),
            _ => Err(AgentError::new(
                ErrorCode::Protocol,
                "the program's server began a conversation without a name",
            )),
        }
    }

    /// Goes on with a conversation that this server has not held yet.
    pub(super) async fn resume(&mut self, id: &ProviderSessionId, launch: &Launch) -> Result<(), AgentError> {
        let path = format!("session/{id}");
        let (status, body) = self.call(Method::GET, &path, None, CALL).await?;
        if status == 404 {
            return Err(unknown_session(id.as_str()));
        }
        let known = self.judged("look for the conversation", status, &body)?;
        self.directory = known["directory"].as_str().map(str::to_owned);
        let ours = json!(launch.rules);
        let (Value::Array(ours), kept) = (&ours, known["permission"].as_array()) else { return Ok(()) };
        if kept.is_some_and(|kept| kept.ends_with(ours)) {
            return Ok(());
        }
        // What is sent is added to what is kept, and the last rule that fits decides.
        let body = json!({ "permission": ours });
        self.ask("take the rules of the call", Method::PATCH, &path, Some(&body)).await.map(drop)
    }

    /// The directory in which the conversation stays although the call asks for another one.
    pub(super) fn elsewhere(&self, launch: &Launch) -> Option<&str> {
        let directory = self.directory.as_deref()?;
        let real = |path: &std::path::Path| std::fs::canonicalize(path).ok();
        let asked = real(launch.cwd.as_deref()?)?;
        (real(directory.as_ref())? != asked).then_some(directory)
    }

    /// Its stream of events.
    pub(super) async fn events(&self, clocks: Clocks) -> Result<Answer, Broken> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        let request = Request { method: Method::GET, url: self.url("event")?, headers, body: Vec::new() };
        let answer = self.http.send(request, &Environment::default(), clocks).await?;
        if !answer.status().is_success() {
            let status = answer.status().as_u16();
            let body = answer.error_body().await?;
            return Err(Broken::Failed(answered("tell its events", status, &body)));
        }
        Ok(answer.endless())
    }

    /// Clocks for a stream that others watch.
    pub(super) fn unwatched() -> Clocks {
        Clocks { cancel: CancellationToken::new(), began: Instant::now(), deadline: None, stall: FAR }
    }

    /// Hands the user's message over. The answer comes with the events.
    pub(super) async fn prompt(&self, id: &ProviderSessionId, body: &Value) -> Result<(), AgentError> {
        let path = format!("session/{id}/prompt_async");
        let (status, said) = self.call(Method::POST, &path, Some(body), CALL).await?;
        if status == 404 {
            return Err(unknown_session(id.as_str()));
        }
        self.judged("take the message", status, &said).map(drop)
    }

    /// Asks the program to end the turn in progress.
    pub(super) async fn abort(&self, id: &ProviderSessionId, limit: Duration) -> Result<(), AgentError> {
        let path = format!("session/{id}/abort");
        let (status, said) = self.call(Method::POST, &path, None, limit).await?;
        self.judged("end the turn", status, &said).map(drop)
    }

    /// Answers a question. One that is no longer open is none.
    pub(super) async fn answer(&self, path: &str, body: &Value) -> Result<(), AgentError> {
        let (status, said) = self.call(Method::POST, path, Some(body), CALL).await?;
        if status == 404 { Ok(()) } else { self.judged("take an answer", status, &said).map(drop) }
    }

    /// Ends the process at once, and everything that it started.
    pub(super) async fn break_off(&mut self) -> Exit {
        self.state = State::Gone;
        match self.process.exit() {
            Some(exit) => exit,
            None => self.process.kill().await,
        }
    }

    /// Why nothing can be asked of it any more: how it died, if it did.
    pub(super) async fn lost(&self, error: AgentError) -> AgentError {
        match self.process.wait(LAST_BREATH).await {
            Some(exit) => self.process.refused(exit).unwrap_or_else(|| died(exit, &self.process.stderr())),
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
        let (status, said) = self.call(method, path, body, CALL).await?;
        self.judged(what, status, &said)
    }

    fn judged(&self, what: &str, status: u16, said: &[u8]) -> Result<Value, AgentError> {
        if !(200..300).contains(&status) {
            let mut error = answered(what, status, said);
            error.message = self.redactor.text(&error.message);
            return Err(error);
        }
        if said.iter().all(u8::is_ascii_whitespace) {
            return Ok(Value::Null);
        }
        serde_json::from_slice(said).map_err(|_| {
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
            Ok((status, answer.body(ANSWER).await?))
        };
        match call.await.map_err(failed) {
            Ok(answered) => Ok(answered),
            Err(error) if error.code == ErrorCode::Network => Err(self.lost(error).await),
            Err(error) => Err(error),
        }
    }

    fn url(&self, path: &str) -> Result<Url, Broken> {
        let mut url = self.base.0.join(path).map_err(|_| {
            Broken::Failed(AgentError::new(ErrorCode::Protocol, "the program's server has no such address"))
        })?;
        if let Some(directory) = &self.directory {
            url.query_pairs_mut().append_pair("directory", directory);
        }
        Ok(url)
    }
}

impl Session for Server {
    type Launch = Launch;

    fn reuse(_: &Launch) -> Reuse {
        Reuse::Warm
    }

    fn is_ready(&self) -> bool {
        self.state == State::Idle && self.process.exit().is_none()
    }

    async fn end(&self) {
        match self.state {
            State::Idle => self.process.stop().await,
            // Asked to end, it would leave the shells of its tools behind.
            State::InTurn | State::Gone => self.process.kill().await,
        };
    }
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

/// Waits until the program says where it listens.
async fn listening(process: &mut Process) -> Result<Url, AgentError> {
    let mut said = Vec::new();
    loop {
        let Some(bytes) = process.read().await else {
            let exit = process.stop().await;
            let refused = process.refused(exit);
            return Err(refused.unwrap_or_else(|| died(exit, &process.stderr())));
        };
        said.extend_from_slice(&bytes);
        if let Some(address) = address(&String::from_utf8_lossy(&said)) {
            return address;
        }
        if said.len() > START_WORDS {
            let message = format!("the program said {} bytes and not where it listens", said.len());
            return Err(AgentError::new(ErrorCode::Protocol, message).with_kind(ErrorKind::Start));
        }
    }
}

/// The address in the line that says it, once that line is whole. The password must not go anywhere but to loopback.
fn address(said: &str) -> Option<Result<Url, AgentError>> {
    let (_, rest) = said.split_once("listening on ")?;
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
        for (said, expected) in rows {
            let seen = address(said).map(|url| url.map(|url| url.to_string()).map_err(|error| error.code));
            assert_eq!(seen, expected.map(|url| url.map(str::to_owned)), "{said}");
        }
    }

    #[test]
    fn a_name_is_no_address() {
        let rows = ["ses_1fAb", "ses_../x", "ses_a/b", "other", "ses_a?b", ""];
        assert_eq!(rows.map(is_id), [true, false, false, false, false, false]);
    }
}
