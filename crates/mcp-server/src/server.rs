//! The server as MCP sees it: which methods there are, and what each does.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use inspan_protocol::{PromptKind, SessionId};
use inspan_sessions::{
    SessionCommand, SessionError, SessionErrorCode, Sessions, StartOptions, answer_command,
};
use inspan_view::DisplayStatus;
use rmcp::ErrorData;
use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, CancelTaskParams, ContentBlock,
    CreateTaskResult, CustomRequest, CustomResult, ErrorCode, GetTaskParams, GetTaskResult, Implementation,
    InputRequiredResult, JsonObject, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult,
    PaginatedRequestParams, ProtocolVersion, ReadResourceRequestParams, ReadResourceResponse,
    ReadResourceResult, ServerCapabilities, ServerConfig, UpdateTaskParams,
};
use rmcp::service::{RequestContext, RoleServer};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::call::{Ask, CallOutcome, Waiting, watch};
use crate::questions::{came_second, commands_of, input_requests, note, shows_forms};
use crate::resources;
use crate::result::{ENDS_WITH_CALLER, question, refusal, result, with_refused, words};
use crate::tasks;
use crate::tools::{self, FlowTool, REPLY, SESSIONS, STATUS, STOP, WAIT, flow_tools};

/// The longest message that is read, in bytes.
pub(crate) const LONGEST_MESSAGE: usize = 4 * 1024 * 1024;
/// How long `session_wait` may be asked to wait.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(3600);
/// How long a call waits that is to wait until its session has ended.
const TO_THE_END: Duration = Duration::from_secs(365 * 24 * 3600);
/// The name of Inspan as a client and as a server.
const INSPAN: &str = "inspan";
/// How many sessions are listed unless the client says how many.
const LISTED: usize = 10;

/// How long the sessions that a server starts live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionLife {
    /// They outlive their client and the server.
    OutlivesServer,
    /// They are killed with the server when the node or agent ends that it belongs to.
    EndsWithCaller,
}

/// How a server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerOptions {
    /// How long a call waits for its session before it answers with the session's id.
    pub wait: Duration,
    /// How long its sessions live.
    pub life: SessionLife,
}

/// Flows as tools. Clones share the sessions.
#[derive(Clone)]
pub struct FlowServer {
    sessions: Arc<Sessions>,
    options: ServerOptions,
    /// Why answers were not taken that came by rounds or to tasks, until a result names them.
    refused: Arc<Mutex<HashMap<SessionId, Vec<SessionError>>>>,
}

impl FlowServer {
    /// A server of the flows that the launcher of `sessions` knows.
    pub fn new(sessions: Sessions, options: ServerOptions) -> Self {
        Self { sessions: Arc::new(sessions), options, refused: Arc::default() }
    }

    /// What the user should know before clients come: flows that are not tools, and names that were changed.
    pub async fn warnings(&self) -> Result<Vec<String>, SessionError> {
        flow_tools(&self.sessions).await.map(|(_, warnings)| warnings)
    }

    async fn call(
        &self,
        request: CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, SessionError> {
        let arguments = request.arguments.clone().unwrap_or_default();
        match &*request.name {
            SESSIONS => self.list(read(arguments)?).await.map(Into::into),
            STATUS => {
                let OfSession { session } = read(arguments)?;
                let session = self.sessions.find(&session).await?.session;
                Ok(data(resources::status(&self.sessions, &session, self.options.life).await?).into())
            }
            WAIT => {
                let WaitArguments { session, seconds } = read(arguments)?;
                let session = self.sessions.find(&session).await?.session;
                let most = match seconds {
                    None => self.options.wait,
                    Some(seconds) => Duration::try_from_secs_f64(seconds)
                        .ok()
                        .filter(|most| *most <= LONGEST_WAIT)
                        .ok_or_else(|| {
                            invalid(format!("`seconds` must be from 0 to {}", LONGEST_WAIT.as_secs()))
                        })?,
                };
                self.wait_for(&session, most, &request, context).await
            }
            REPLY => self.reply(read(arguments)?).await.map(Into::into),
            STOP => {
                let StopArguments { session, reason } = read(arguments)?;
                let session = self.sessions.find(&session).await?.session;
                self.sessions.apply(&session, &SessionCommand::Stop { reason }, None).await?;
                let mut stopped = result(&self.sessions.output(&session).await?, self.options.life);
                // That it was stopped is what was asked for.
                stopped.is_error = Some(false);
                Ok(stopped.into())
            }
            name => {
                let (flows, _) = flow_tools(&self.sessions).await?;
                let Some(tool) = flows.into_iter().find(|tool| tool.name == name) else {
                    let message = format!("there is no tool `{name}`");
                    let hint =
                        "tools/list names the tools; flows of which the file was changed may be missing";
                    return Err(SessionError::new(SessionErrorCode::UnknownFlow, message).with_hint(hint));
                };
                self.run(&tool, arguments, &request, context).await
            }
        }
    }

    /// Starts a session, or continues to wait for the one that an earlier round of this call has started.
    async fn run(
        &self,
        tool: &FlowTool,
        input: JsonObject,
        request: &CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, SessionError> {
        let session = match &request.request_state {
            Some(state) => {
                let entry = self.sessions.entry(&SessionId::from(state.as_str())).await?;
                if entry.flow != tool.flow.name {
                    return Err(invalid(format!("session `{state}` is not of the flow `{}`", tool.flow.id)));
                }
                entry.session
            }
            None => {
                let options = StartOptions::default();
                self.sessions.launcher().start(&tool.flow.id, &input, &options).await?
            }
        };
        let takes_tasks = context.client_capabilities().is_some_and(|client| client.supports_tasks());
        if takes_tasks {
            let task = tasks::begun(&self.sessions, &session).await?;
            return Ok(CreateTaskResult::new(task).into());
        }
        // The node `mcp.call` ends with the answer, and the session with the node.
        let is_ours = || context.peer.peer_info().is_some_and(|client| client.client_info.name == INSPAN);
        let most = match self.options.life {
            SessionLife::EndsWithCaller if is_ours() => TO_THE_END,
            _ => self.options.wait,
        };
        self.wait_for(&session, most, request, context).await
    }

    async fn wait_for(
        &self,
        session: &SessionId,
        most: Duration,
        request: &CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, SessionError> {
        let shows_forms = shows_forms(context.client_capabilities().as_ref());
        let has_rounds =
            context.protocol_version().is_some_and(|version| version >= ProtocolVersion::V_2026_07_28);
        let ask = match (shows_forms, has_rounds) {
            (false, _) => Ask::Never,
            (true, true) => Ask::Return,
            (true, false) => Ask::Elicit(context.peer.clone()),
        };
        let (mut known, mut answers, mut refused) = (HashSet::new(), Vec::new(), Vec::new());
        // Only who is asked by rounds answers so: another client may have nobody to ask.
        if let (Some(given), Ask::Return) = (&request.input_responses, &ask) {
            answers = commands_of(&self.sessions.asked(session).await?, given);
            refused = self.refused.lock().await.remove(session).unwrap_or_default();
        } else if matches!(ask, Ask::Never) && *request.name == *WAIT {
            // A client that waits once more knows what was asked.
            let open = self.sessions.output(session).await?.questions;
            known.extend(open.into_iter().map(|prompt| prompt.prompt_id));
        }
        let progress = context.meta.get_progress_token().map(|token| (context.peer.clone(), token));
        let waiting = Waiting { most, ask, progress, cancelled: context.ct.clone(), known, answers, refused };
        Ok(match watch(&self.sessions, session, waiting).await? {
            CallOutcome::Output(output, refused) => {
                with_refused(result(&output, self.options.life), &refused).into()
            }
            CallOutcome::Questions(questions, refused) => {
                self.note_refused(session, refused).await;
                let requests = input_requests(&questions);
                InputRequiredResult::new(Some(requests), Some(session.to_string())).into()
            }
        })
    }

    /// Notes answers that were not taken: the result of the call or task names them.
    async fn note_refused(&self, session: &SessionId, refused: Vec<SessionError>) {
        if !refused.is_empty() {
            note(self.refused.lock().await.entry(session.clone()).or_default(), refused);
        }
    }

    async fn list(&self, arguments: ListArguments) -> Result<CallToolResult, SessionError> {
        let most = arguments.limit.unwrap_or(LISTED);
        if !(1..=50).contains(&most) {
            return Err(invalid("`limit` must be from 1 to 50".to_owned()));
        }
        let only_open = arguments.open.unwrap_or(false);
        let entries = self.sessions.list(if only_open { usize::MAX } else { most }).await?;
        let wanted = entries.iter().filter(|entry| !only_open || !DisplayStatus::of(entry).has_ended());
        let listed: Vec<Value> = wanted
            .take(most)
            .map(|entry| {
                let open = self.sessions.questions(std::slice::from_ref(entry)).into_iter();
                let asks: Vec<Value> =
                    open.filter(|open| !open.is_late).map(|open| question(&open.prompt)).collect();
                json!({
                    "sessionId": entry.session, "flow": entry.flow, "status": DisplayStatus::of(entry).word(),
                    "createdAt": entry.created_at, "questions": asks,
                })
            })
            .collect();
        Ok(data(json!({ "sessions": listed })))
    }

    async fn reply(&self, arguments: ReplyArguments) -> Result<CallToolResult, SessionError> {
        let session = self.sessions.find(&arguments.session).await?.session;
        let target = self.sessions.target(&session).await?;
        let prompt = match (&arguments.question, target.entry.digest.prompts.as_slice()) {
            (Some(question), _) => target.prompt(question, |_| true).await?,
            (None, [one]) => one.clone(),
            (None, []) => {
                let message = format!("session `{session}` has no open question");
                return Err(SessionError::new(SessionErrorCode::UnknownPrompt, message));
            }
            (None, _) => {
                let message =
                    format!("several questions of session `{session}` are open: name one as `question`");
                return Err(SessionError::new(SessionErrorCode::AmbiguousPrompt, message));
            }
        };
        let command = if prompt.kind == PromptKind::Permission {
            let (word, reason) = match arguments.choice {
                Some(choice) => (Some(choice), arguments.answer),
                None => (arguments.answer, None),
            };
            if word.as_deref() != Some("deny") {
                let message = format!(
                    "only a person can allow what the agent of question `{}` asks for",
                    prompt.prompt_id
                );
                return Err(SessionError::new(SessionErrorCode::CommandRefused, message).with_hint(format!(
                    "the user runs `inspan approve {session} {}`; `choice: deny` denies it",
                    prompt.prompt_id
                )));
            }
            SessionCommand::Reject { prompt: Some(prompt.prompt_id.to_string()), reason }
        } else {
            let filled = match (arguments.fields, arguments.choice, arguments.answer) {
                (Some(fields), None, None) => Value::Object(fields),
                (None, choice, answer) => json!({ "choice": choice, "answer": answer }),
                _ => return Err(invalid("give `fields`, or `choice` and `answer`, not both".to_owned())),
            };
            let filled =
                match (prompt.choices.iter().flatten().find(|choice| filled["answer"] == **choice), filled) {
                    (Some(choice), filled) if filled["choice"].is_null() => json!({ "choice": choice }),
                    (_, filled) => filled,
                };
            answer_command(&prompt, &filled)
                .map_err(|why| SessionError::new(SessionErrorCode::InvalidAnswer, why))?
        };
        let receipt = self.sessions.apply(&session, &command, None).await?;
        let mut answered = data(json!({
            "answered": prompt.prompt_id, "sessionId": receipt.session_id,
            "message": format!("answered; call `{WAIT}` to wait for the result"),
        }));
        answered.is_error = Some(false);
        Ok(answered)
    }
}

/// Data as an answer, and the same as text for clients that read no data.
fn data(value: Value) -> CallToolResult {
    let mut result = CallToolResult::success(vec![ContentBlock::text(words(&value))]);
    result.structured_content = Some(value);
    result
}

fn invalid(message: String) -> SessionError {
    SessionError::new(SessionErrorCode::InvalidRequest, message)
}

fn read<T: DeserializeOwned>(arguments: JsonObject) -> Result<T, SessionError> {
    serde_json::from_value(Value::Object(arguments))
        .map_err(|error| invalid(format!("the arguments are wrong: {error}")))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListArguments {
    open: Option<bool>,
    limit: Option<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfSession {
    session: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WaitArguments {
    session: String,
    seconds: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReplyArguments {
    session: String,
    question: Option<String>,
    choice: Option<String>,
    answer: Option<String>,
    fields: Option<JsonObject>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StopArguments {
    session: String,
    reason: Option<String>,
}

/// What a method of the protocol reports that is not a tool.
fn protocol_error(error: &SessionError) -> ErrorData {
    let message = match &error.hint {
        Some(hint) => format!("{} ({hint})", error.message),
        None => error.message.clone(),
    };
    match error.code {
        SessionErrorCode::UnknownSession
        | SessionErrorCode::AmbiguousSession
        | SessionErrorCode::InvalidRequest => ErrorData::invalid_params(message, None),
        _ => ErrorData::internal_error(message, None),
    }
}

/// Why the parameters of a request are not those of its method.
fn misfit<P: DeserializeOwned>(request: &CustomRequest) -> ErrorData {
    let why = match request.params_as::<P>() {
        Err(error) => error.to_string(),
        Ok(_) => "they are missing".to_owned(),
    };
    ErrorData::invalid_params(format!("the parameters of `{}` are wrong: {why}", request.method), None)
}

impl ServerHandler for FlowServer {
    fn get_info(&self) -> ServerConfig {
        let capabilities =
            ServerCapabilities::builder().enable_tools().enable_resources().enable_tasks().build();
        let life = match self.options.life {
            SessionLife::OutlivesServer => " A session runs by itself and outlives this server.",
            SessionLife::EndsWithCaller => ENDS_WITH_CALLER,
        };
        let mut config = ServerConfig::new(capabilities).with_instructions(format!(
            "Each flow is a tool that starts a session.{life} If a call \
             answers before the session has ended, call `{WAIT}` with the session's id. If a session asks a question, \
             ask the user and pass the answer on with `{REPLY}`; never make up an answer."
        ));
        config.server_info = Implementation::new(INSPAN, env!("CARGO_PKG_VERSION")).with_title("Inspan");
        config
    }

    async fn list_tools(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let (flows, _) = flow_tools(&self.sessions).await.map_err(|error| protocol_error(&error))?;
        Ok(ListToolsResult::with_all_items(tools::listed(&flows, self.options.life)))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        Ok(self
            .call(request, &context)
            .await
            .unwrap_or_else(|error| refusal(&error.naming(self.sessions.commands())).into()))
    }

    async fn list_resources(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let listed = resources::listed(&self.sessions).await.map_err(|error| protocol_error(&error))?;
        Ok(ListResourcesResult::with_all_items(listed))
    }

    async fn list_resource_templates(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(ListResourceTemplatesResult::with_all_items(resources::templates()))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let unknown =
            |why: Cow<'static, str>| ErrorData::resource_not_found(why, Some(json!({ "uri": request.uri })));
        match resources::read(&self.sessions, &request.uri, self.options.life).await {
            None => Err(unknown("there is no such resource".into())),
            Some(Err(error)) if error.code == SessionErrorCode::UnknownSession => {
                Err(unknown(error.message.into()))
            }
            Some(Err(error)) => Err(protocol_error(&error)),
            Some(Ok(contents)) => Ok(ReadResourceResult::new(vec![contents]).into()),
        }
    }

    /// A request whose method or parameters the protocol does not know.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        Err(match &*request.method {
            "tools/call" => misfit::<CallToolRequestParams>(&request),
            "resources/read" => misfit::<ReadResourceRequestParams>(&request),
            "tasks/get" => misfit::<GetTaskParams>(&request),
            "tasks/update" => misfit::<UpdateTaskParams>(&request),
            "tasks/cancel" => misfit::<CancelTaskParams>(&request),
            "tools/list" | "resources/list" | "resources/templates/list" => {
                misfit::<PaginatedRequestParams>(&request)
            }
            method => ErrorData::new(ErrorCode::METHOD_NOT_FOUND, method.to_owned(), None),
        })
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        let shows_forms = shows_forms(context.client_capabilities().as_ref());
        let refused = self.refused.lock().await.get(request.task_id.as_str()).cloned().unwrap_or_default();
        let task =
            tasks::get(&self.sessions, &request.task_id, shows_forms, self.options.life, &refused).await;
        task.map(GetTaskResult::new).map_err(|error| protocol_error(&error))
    }

    async fn update_task(
        &self,
        request: UpdateTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        if !shows_forms(context.client_capabilities().as_ref()) {
            let why = format!(
                "only a client that shows forms answers with `tasks/update`; `{REPLY}` passes on what the user said"
            );
            return Err(ErrorData::invalid_params(why, None));
        }
        let updated = tasks::update(&self.sessions, &request.task_id, &request.input_responses).await;
        let (session, refused) = updated.map_err(|error| protocol_error(&error))?;
        // What came second is ignored, as the protocol wants it, and named by the result.
        let (second, failed): (Vec<_>, Vec<_>) = refused.into_iter().partition(came_second);
        self.note_refused(&session, second).await;
        failed.first().map_or(Ok(()), |error| Err(protocol_error(error)))
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        tasks::cancel(&self.sessions, &request.task_id).await.map_err(|error| protocol_error(&error))
    }
}
