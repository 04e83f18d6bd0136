//! A running OpenCode: a server on loopback that has one conversation at a time, driven over HTTP, and its stream of events.

use std::path::PathBuf;
use std::time::Duration;

use inspan_protocol::{
    AgentError, ErrorCode, ExecutionContext, PermissionDecision, ProviderSessionId, Supervisor,
};
use serde_json::Value;
use tokio::time::Instant;

use super::consent::{CHANGED, OpenCodeQuestion};
use super::decode::{Follows, OpenCodeDecoded, OpenCodeDecoder, QuestionAnswer};
use super::error::{explain_exit, retrying};
use super::launch::OpenCodeLaunch;
use super::rules::Rule;
use super::server::{Base, is_id};
use crate::error::not_found;
use crate::moment::now;
use crate::program::pool::Limits;
use crate::program::requests::Consent;
use crate::program::session::NotReady;
use crate::program::turn::{GRACE, Handled, Interruption, ProgramTurn, Received};
use crate::program::{Agent, Call, Ending, ProcessConversation};
use inspan_process::{Exit, Process, Start};
use inspan_transport::{Answer, Broken, Clocks, Http};

/// How long a server stays after a turn. An idle one holds some 600 MB and saves the next turn, or the next conversation,
/// three seconds.
const WARM_FOR: Duration = Duration::from_secs(30);
/// Idle servers at once.
const WARM_LIMIT: usize = 2;
/// How long the stream of events may take to begin.
const CONNECT: Duration = Duration::from_secs(15);

/// How long is waited before a server that ended before it listened is started again.
const STARTS_AGAIN: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(2)];

/// The process, and what its server is asked with.
pub(super) struct OpenCodeAgent {
    pub(super) process: Process,
    supervisor: Option<Supervisor>,
    pub(super) http: Http,
    pub(super) base: Base,
    pub(super) session: String,
    /// The directory of the conversation, wherever the server was started. The server stores what belongs to one
    /// directory apart from all others.
    pub(super) directory: Option<String>,
    pub(super) rules: Vec<Rule>,
    pub(super) cwd: Option<PathBuf>,
    /// The last message of the user that a turn here began with.
    last_prompt: Option<String>,
    /// What the next turn of the conversation warns of: its MCP servers that did not start.
    warnings: Vec<String>,
    turn: Option<Current>,
}

/// The turn in progress.
struct Current {
    events: Answer,
    decoder: OpenCodeDecoder,
    messages: u32,
    max_turns: Option<u32>,
}

/// What one turn sends.
#[derive(Debug)]
pub(super) struct OpenCodePrompt {
    pub(super) message: Value,
    /// The title of a new conversation.
    pub(super) title: String,
    pub(super) max_turns: Option<u32>,
}

impl OpenCodeAgent {
    /// Connects to the stream of events. What happens before it begins would not be on it.
    async fn connect(&mut self, turn: &mut ProgramTurn<Self>) -> Result<Current, Broken> {
        let clocks = Clocks {
            cancel: turn.context.cancel.clone(),
            began: Instant::now(),
            deadline: Some(turn.time_left().map_or(CONNECT, |left| left.min(CONNECT))),
            stall: CONNECT,
        };
        let mut decoder = OpenCodeDecoder::new(&self.session, self.last_prompt.clone());
        let mut events = self.events(clocks).await?;
        loop {
            let Some(bytes) = events.chunk().await? else {
                let message = "the program's server ended its events at once";
                return Err(Broken::Failed(AgentError::new(ErrorCode::Protocol, message)));
            };
            let mut decoded = decoder.push(bytes.as_ref()).into_iter();
            while let Some(first) = decoded.next() {
                match first {
                    OpenCodeDecoded::Connected => {
                        turn.extend(decoded);
                        let events = events.watched_by(Self::unwatched());
                        return Ok(Current { events, decoder, messages: 0, max_turns: None });
                    }
                    OpenCodeDecoded::Fault(error) => return Err(Broken::Failed(error)),
                    _ => {}
                }
            }
        }
    }

    /// The model wrote a message.
    fn wrote(&mut self, follows: Follows, turn: &mut ProgramTurn<Self>) {
        let Some(current) = &mut self.turn else { return };
        current.messages += 1;
        let used_up = current.max_turns.is_some_and(|most| current.messages >= most);
        if used_up && follows == Follows::Another {
            turn.stop(Interruption::MaxTurns);
        }
    }
}

/// Starts the server, which listens a while later.
async fn serve(
    launch: &OpenCodeLaunch,
    password: &str,
    supervisor: &Option<Supervisor>,
) -> Result<Process, AgentError> {
    let mut environment = launch.environment.to_vec();
    environment.push(("OPENCODE_SERVER_PASSWORD".to_owned(), password.to_owned()));
    let start = Start {
        program: launch.program.clone(),
        arguments: ["serve", "--hostname=127.0.0.1", "--port=0"].map(str::to_owned).to_vec(),
        environment,
        cwd: launch.cwd.clone(),
        supervisor: supervisor.clone(),
    };
    Process::start(start, launch.redactor(password)).await
}

impl Agent for OpenCodeAgent {
    type Launch = OpenCodeLaunch;
    type Prompt = OpenCodePrompt;
    type Frame = Vec<u8>;
    type Decoder = OpenCodeDecoder;
    type Request = OpenCodeQuestion;
    type Answer = PermissionDecision;

    /// The first request waits until the program has loaded all of itself.
    const OPENING: Duration = Duration::from_secs(120);
    const MANY_CONVERSATIONS: bool = true;
    const LIMITS: Limits = Limits { warm_for: WARM_FOR, warm: WARM_LIMIT, ..Limits::DEFAULT };

    fn check_id(id: &ProviderSessionId) -> Result<(), AgentError> {
        if is_id(id.as_str()) { Ok(()) } else { Err(not_found(id)) }
    }

    async fn start(
        launch: &OpenCodeLaunch,
        conversation: &ProcessConversation,
        context: &ExecutionContext,
    ) -> Result<Self, AgentError> {
        let password = crate::conversation::fresh_id();
        let supervisor = context.host.supervisor.clone();
        let process = serve(launch, &password, &supervisor).await?;
        Ok(Self {
            process,
            supervisor,
            http: Http::default(),
            base: Base::new(password),
            session: conversation.id().to_string(),
            directory: None,
            rules: launch.rules.clone(),
            cwd: launch.cwd.clone(),
            last_prompt: None,
            warnings: Vec::new(),
            turn: None,
        })
    }

    /// Of several that begin at once where none has run yet, some end at once: each makes the same database.
    async fn greet(&mut self, launch: &OpenCodeLaunch) -> Result<(), AgentError> {
        for pause in STARTS_AGAIN {
            match self.listening().await {
                Err(error) if error.code == ErrorCode::Process => tokio::time::sleep(pause).await,
                listening => return listening,
            }
            self.process = serve(launch, self.base.password(), &self.supervisor).await?;
        }
        self.listening().await
    }

    async fn leave(&mut self, next: &ProcessConversation) -> Result<(), AgentError> {
        self.session = next.id().to_string();
        self.directory = None;
        self.last_prompt = None;
        self.reload().await
    }

    async fn open(
        &mut self,
        call: &Call<Self>,
        conversation: &ProcessConversation,
    ) -> Result<ProviderSessionId, AgentError> {
        match conversation {
            ProcessConversation::New(_) => self.create(&call.prompt.title).await?,
            ProcessConversation::Resumed(_) => self.resume().await?,
            ProcessConversation::Forked { from, at, .. } => {
                self.fork(from.as_str(), at.as_ref()).await?;
            }
        }
        self.warnings = self.broken_mcp_servers().await;
        Ok(ProviderSessionId::from(self.session.as_str()))
    }

    /// What it printed means nothing, but must not fill its pipe.
    fn catch_up(&mut self) -> Result<(), AgentError> {
        while self.process.try_read().is_some() {}
        Ok(())
    }

    async fn begin(&mut self, prompt: OpenCodePrompt, turn: &mut ProgramTurn<Self>) -> Result<(), NotReady> {
        for message in self.warnings.drain(..) {
            turn.warn("mcpServer", message);
        }
        let current = self.connect(turn).await.map_err(|broken| match broken {
            Broken::Cancelled => NotReady::Cancelled,
            Broken::Failed(error) => NotReady::Failed(error),
        })?;
        self.turn = Some(Current { max_turns: prompt.max_turns, ..current });
        if let Err(error) = self.send(&prompt.message).await {
            // It is not known whether the message arrived.
            self.end(Ending::Kill).await;
            return Err(error.into());
        }
        Ok(())
    }

    async fn next(&mut self) -> Received<Vec<u8>> {
        let ended = |message| Received::Ended(Some(AgentError::new(ErrorCode::Protocol, message)));
        let Some(current) = &mut self.turn else { return Received::Ended(None) };
        loop {
            return tokio::select! {
                biased;
                bytes = current.events.chunk() => match bytes {
                    Ok(Some(bytes)) => Received::Frame(bytes.as_ref().to_vec()),
                    Ok(None) | Err(Broken::Cancelled) => {
                        ended("the program's server ended its events before the turn did")
                    }
                    Err(Broken::Failed(error)) => Received::Ended(Some(error)),
                },
                printed = self.process.read() => match printed {
                    Some(_) => continue,
                    None => Received::Ended(None),
                },
            };
        }
    }

    fn try_next(&mut self) -> Option<Vec<u8>> {
        None
    }

    fn receive(&mut self, bytes: Vec<u8>, turn: &mut ProgramTurn<Self>) -> Result<(), AgentError> {
        let Some(current) = &mut self.turn else { return Ok(()) };
        let before = current.decoder.events_of_turn();
        turn.extend(current.decoder.push(&bytes));
        if current.decoder.events_of_turn() != before {
            turn.received();
        }
        Ok(())
    }

    async fn handle(
        &mut self,
        decoded: OpenCodeDecoded,
        turn: &mut ProgramTurn<Self>,
    ) -> Result<Handled<Self>, AgentError> {
        match decoded {
            OpenCodeDecoded::Event(event) => return Ok(Handled::Event(event)),
            OpenCodeDecoded::Connected => {}
            OpenCodeDecoded::Requested { request_id, kind, request } => {
                if turn.is_running() {
                    let decision = turn.decision(request.clone());
                    turn.requests.open(OpenCodeQuestion { id: request_id, kind, request }, decision);
                }
            }
            // There is an answer. A denial denies everything that the program asks at the time.
            OpenCodeDecoded::Answered { request_id, answer } => {
                if let Some(question) = turn.requests.withdraw(|question| question.id == request_id) {
                    turn.received();
                    if answer == QuestionAnswer::Denied {
                        turn.deny(&question.request);
                    }
                }
            }
            OpenCodeDecoded::Step { follows } => self.wrote(follows, turn),
            OpenCodeDecoded::Retry { attempt, message, reason, next } => {
                let error = retrying(&message, reason.as_deref(), next, now()).with("attempt", attempt);
                turn.stop(Interruption::Failed(error));
            }
            OpenCodeDecoded::Hopeless(error) => turn.stop(Interruption::Failed(error)),
            OpenCodeDecoded::Closing => turn.close(),
            OpenCodeDecoded::TurnEnd(end) => {
                let current = self.turn.take();
                self.last_prompt = current.and_then(|current| current.decoder.prompt().map(str::to_owned));
                return Ok(Handled::End(end));
            }
            OpenCodeDecoded::Fault(error) => return Ok(Handled::Fault(error)),
        }
        Ok(Handled::Nothing)
    }

    async fn answer(
        &mut self,
        question: OpenCodeQuestion,
        decision: PermissionDecision,
        turn: &mut ProgramTurn<Self>,
    ) -> Result<(), AgentError> {
        let consent = question.consent(&decision);
        if consent == Consent::Changed {
            // The program runs what it asked about, and nothing else.
            turn.warn("inputNotChanged", CHANGED.to_owned());
        }
        if consent != Consent::Given {
            turn.deny(&question.request);
        }
        let (path, body) = question.response(consent, &decision);
        self.respond(&path, &body).await
    }

    /// The shells of its tools end with an abort, and with nothing less.
    async fn interrupt(&mut self, turn: &mut ProgramTurn<Self>) -> Result<(), AgentError> {
        turn.requests.withdraw_all();
        self.abort(GRACE).await
    }

    fn decoder(&mut self) -> Option<&mut OpenCodeDecoder> {
        self.turn.as_mut().map(|current| &mut current.decoder)
    }

    fn process(&self) -> &Process {
        &self.process
    }

    async fn end(&mut self, how: Ending) -> Exit {
        match (self.process.exit(), how) {
            (Some(exit), _) => exit,
            // It does not end with its input.
            (None, Ending::Close) => self.process.stop().await,
            // Asked to end, it would leave the shells of its tools behind.
            (None, Ending::Kill) => self.process.kill().await,
        }
    }

    fn explain_exit(_: Exit, stderr: &str) -> Option<AgentError> {
        explain_exit(stderr)
    }
}
