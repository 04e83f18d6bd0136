//! The requests of an agent during a turn: permission to use a tool, files, commands. Each request gets one answer; when the
//! turn is stopped or over, those that are still open get it at once.

use std::future::ready;

use futures::FutureExt;
use futures::future::BoxFuture;
use inspan_protocol::{AgentError, PermissionDecision, PermissionRequest, ending};
use serde_json::{Value, json};

use super::agent::AcpAgent;
use super::decode::{AcpQuestion, WantedAction};
use super::files::{FAILED, Refusal, read, write};
use super::permission::{
    AskedFor, Choice, Ruled, SHOWN, about_command, about_file, about_reading, shown, texts_of_command,
};
use super::terminals::status;
use super::wire::{self, CreateTerminal, WriteFile};
use crate::json_rpc::{RemoteId, refuse, respond};
use crate::program::turn::ProgramTurn;

/// Requests of the agent that may wait for an answer at once.
const OPEN_LIMIT: usize = 64;
/// The protocol's code for a request that was cancelled.
const CANCELLED: i64 = -32800;

/// A request of the agent that is not answered yet.
#[derive(Debug)]
pub(super) struct PendingRequest {
    id: RemoteId,
    about: RequestSubject,
    /// The call as which it is in the log.
    call: Option<String>,
}

impl PendingRequest {
    fn new(id: RemoteId, about: RequestSubject) -> Self {
        Self { id, about, call: None }
    }
}

/// A command that is in the log as a call of its own.
pub(super) struct LoggedRun {
    terminal: String,
    call: String,
}

/// What an open request waits for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum RequestSubject {
    /// A person's answer to the agent's own question.
    Question,
    /// A person's answer, whether something may be done for the agent.
    Permission,
    /// Something that is being done for the agent.
    Work,
}

impl PendingRequest {
    /// Whether a person is asked.
    pub(super) fn waits_for_person(&self) -> bool {
        self.about != RequestSubject::Work
    }
}

/// The outcome of a request.
pub(super) enum RequestOutcome {
    /// The agent's own question was decided.
    Decided { question: Box<AcpQuestion>, ruled: Ruled, decision: PermissionDecision },
    /// It was decided whether something may be done for the agent.
    Permitted { task: Box<PermissionTask>, request: Box<PermissionRequest>, decision: PermissionDecision },
    /// Something was done for the agent, or could not be.
    Done(Result<Value, Refusal>),
}

/// Something that needs permission.
pub(super) enum PermissionTask {
    Write(WriteFile),
    Run(CreateTerminal),
}

type AcpTurn = ProgramTurn<AcpAgent>;

impl AcpAgent {
    /// The agent asks whether it may use a tool.
    pub(super) fn asked(
        &mut self,
        id: RemoteId,
        mut question: AcpQuestion,
        turn: &mut AcpTurn,
    ) -> Result<(), AgentError> {
        if !turn.is_running() || turn.requests.len() >= OPEN_LIMIT {
            return respond(&self.peer.stdin(), &id, wire::permission(None));
        }
        let ruled = self.policy.rule(&question.names, &question.titles);
        question.ask_person(self.launch.takes_answers);
        let decision = match (ruled, question.asked_for) {
            (Ruled::Denied, _) | (_, AskedFor::Permission) => decide(ruled, question.request.clone(), turn),
            // What an option allows is no answer.
            _ => turn.decision(question.request.clone()),
        };
        turn.requests.open(PendingRequest::new(id, RequestSubject::Question), async move {
            RequestOutcome::Decided { decision: decision.await, question: Box::new(question), ruled }
        });
        Ok(())
    }

    /// The agent wants something done.
    pub(super) fn wanted(
        &mut self,
        id: RemoteId,
        wanted: WantedAction,
        turn: &mut AcpTurn,
    ) -> Result<(), AgentError> {
        let stdin = self.peer.stdin();
        if turn.requests.len() >= OPEN_LIMIT {
            return refuse(&stdin, &id, FAILED, "too many requests wait for their answers");
        }
        if !turn.is_running()
            && matches!(wanted, WantedAction::WriteFile(_) | WantedAction::CreateTerminal(_))
        {
            return refuse(&stdin, &id, CANCELLED, "the turn was cancelled");
        }
        let root = self.launch.root.clone();
        match wanted {
            WantedAction::ReadFile(wanted) => {
                let (request, names) = about_reading(&wanted);
                // Nobody is asked about reading, but it can be denied.
                if self.policy.rule(&names, &[]) == Ruled::Denied {
                    turn.deny(&request);
                    let message = format!("permission denied: {} is not allowed", request.tool_name);
                    return refuse(&stdin, &id, FAILED, &message);
                }
                let call = self.begin_own(&request, std::slice::from_ref(&wanted.path), turn);
                let content = move || read(&root, &wanted).map(|content| json!({ "content": content }));
                work(id, call, turn, content);
                Ok(())
            }
            WantedAction::WriteFile(wanted) => {
                let (request, names) = about_file(&wanted);
                if self.granted.file(&wanted, &root) && self.policy.rule(&names, &[]) != Ruled::Denied {
                    self.write(id, wanted, &request, turn);
                } else {
                    self.permit(id, PermissionTask::Write(wanted), request, &names, turn);
                }
                Ok(())
            }
            WantedAction::CreateTerminal(wanted) => {
                let (request, names) = about_command(&wanted, self.peer.process().redactor());
                if self.policy.rule(&names, &[]) != Ruled::Denied && self.granted.command(&wanted, &root) {
                    return self.run(&id, &wanted, &request, turn);
                }
                self.permit(id, PermissionTask::Run(wanted), request, &names, turn);
                Ok(())
            }
            WantedAction::TerminalOutput(wanted) => {
                self.answer_with(&id, self.terminals.output(&wanted.terminal_id))
            }
            WantedAction::WaitForTerminal(wanted) => match self.terminals.wait(&wanted.terminal_id) {
                Ok(ended) => {
                    let run = self.runs.iter().find(|run| run.terminal == wanted.terminal_id);
                    let call = run.map(|run| run.call.clone());
                    turn.requests.open(
                        PendingRequest { id, about: RequestSubject::Work, call },
                        ended.map(|status| RequestOutcome::Done(Ok(status))),
                    );
                    Ok(())
                }
                Err(refusal) => self.answer_with(&id, Err(refusal)),
            },
            WantedAction::KillTerminal(wanted) => {
                self.answer_with(&id, self.terminals.kill(&wanted.terminal_id))
            }
            WantedAction::ReleaseTerminal(wanted) => {
                self.end_run(|run| run.terminal == wanted.terminal_id, turn);
                let released = self.terminals.release(&wanted.terminal_id);
                self.answer_with(&id, released)
            }
        }
    }

    /// A request was decided or done.
    pub(super) fn reply(
        &mut self,
        open: &PendingRequest,
        outcome: RequestOutcome,
        turn: &mut AcpTurn,
    ) -> Result<(), AgentError> {
        let id = &open.id;
        match outcome {
            RequestOutcome::Done(result) => {
                match &open.call {
                    Some(call) if self.end_run(|run| run.call == *call, turn) => {}
                    call => self.end_own(call.clone(), &result, turn),
                }
                self.answer_with(id, result)
            }
            RequestOutcome::Decided { question, ruled, decision } => {
                if let PermissionDecision::Deny { message } = &decision {
                    self.decoder.denied(message.clone());
                }
                let option = match question.choose(ruled, &decision) {
                    Choice::Allow(option) => {
                        self.granted.add(&question, &self.launch.root);
                        Some(option)
                    }
                    Choice::Answer(option, answers) => {
                        let response = wire::answered(&option, &answers);
                        return respond(&self.peer.stdin(), id, response);
                    }
                    Choice::Deny(option) => {
                        turn.deny(&question.request);
                        option
                    }
                    Choice::Impossible(option, why) => {
                        turn.deny(&question.request);
                        self.decoder.denied(why.to_owned());
                        let message = format!("denied `{}`: {why}", question.request.tool_name);
                        turn.warn("permissionNotPassedOn", message);
                        option
                    }
                };
                respond(&self.peer.stdin(), id, wire::permission(option.as_deref()))
            }
            RequestOutcome::Permitted { task, request, decision } => match decision {
                PermissionDecision::Deny { message } => {
                    turn.deny(&request);
                    refuse(&self.peer.stdin(), id, FAILED, &format!("permission denied: {message}"))
                }
                PermissionDecision::Allow { updated_input: Some(changed) } if changed != request.input => {
                    turn.deny(&request);
                    let why = "it was allowed with other arguments, which this protocol cannot pass on";
                    turn.warn("permissionNotPassedOn", format!("denied `{}`: {why}", request.tool_name));
                    refuse(&self.peer.stdin(), id, FAILED, &format!("permission denied: {why}"))
                }
                PermissionDecision::Allow { .. } => match *task {
                    PermissionTask::Write(wanted) => {
                        self.write(id.clone(), wanted, &request, turn);
                        Ok(())
                    }
                    PermissionTask::Run(wanted) => self.run(id, &wanted, &request, turn),
                },
            },
        }
    }

    /// Answers the open requests of a turn that is over or stopped.
    pub(super) fn withdraw(&mut self, turn: &mut AcpTurn) -> Result<(), AgentError> {
        let stdin = self.peer.stdin();
        for open in turn.requests.withdraw_all() {
            match open.about {
                RequestSubject::Question => respond(&stdin, &open.id, wire::permission(None))?,
                RequestSubject::Permission | RequestSubject::Work => {
                    refuse(&stdin, &open.id, CANCELLED, "the turn was cancelled")?;
                }
            }
        }
        Ok(())
    }

    fn write(&mut self, id: RemoteId, wanted: WriteFile, request: &PermissionRequest, turn: &mut AcpTurn) {
        let call = self.begin_own(request, std::slice::from_ref(&wanted.path), turn);
        let root = self.launch.root.clone();
        work(id, call, turn, move || write(&root, &wanted).map(|()| json!({})));
    }

    fn run(
        &mut self,
        id: &RemoteId,
        wanted: &CreateTerminal,
        request: &PermissionRequest,
        turn: &mut AcpTurn,
    ) -> Result<(), AgentError> {
        let call = self.begin_own(request, &texts_of_command(wanted), turn);
        let created = self.create_terminal(wanted);
        match (&created, call) {
            (Ok(terminal), Some(call)) => {
                let terminal = terminal["terminalId"].as_str().unwrap_or_default().to_owned();
                self.runs.push(LoggedRun { terminal, call });
            }
            (_, call) => self.end_own(call, &created, turn),
        }
        self.answer_with(id, created)
    }

    /// What is done for the agent is in the log, unless an open tool of its own names the file or the command.
    fn begin_own(
        &mut self,
        request: &PermissionRequest,
        texts: &[String],
        turn: &mut AcpTurn,
    ) -> Option<String> {
        let root = format!("{}/", self.launch.root.display());
        let inside = texts.iter().filter_map(|text| text.strip_prefix(&root));
        let texts: Vec<&str> = texts.iter().map(String::as_str).chain(inside).collect();
        let input = self.peer.process().redactor().value(request.input.clone());
        let (call, start) = self.decoder.begin_own(&request.tool_name, bounded(input), &texts)?;
        turn.extend([start]);
        Some(call)
    }

    /// How it ended, without the content of a file that was read.
    fn end_own(&mut self, call: Option<String>, result: &Result<Value, Refusal>, turn: &mut AcpTurn) {
        let Some(call) = call else { return };
        let is_error = result.is_err();
        let result = match result {
            Ok(value) => match value["content"].as_str() {
                Some(content) => json!({ "bytes": content.len() }),
                None => value.clone(),
            },
            Err(refusal) => json!(self.peer.process().redactor().text(&refusal.message)),
        };
        turn.extend([self.decoder.end_own(call, result, is_error)]);
    }

    /// The agent has waited for a command, or released it: what it printed, and how it ended if it has. Says whether it is in
    /// the log.
    fn end_run(&mut self, which: impl Fn(&LoggedRun) -> bool, turn: &mut AcpTurn) -> bool {
        let Some(run) = self.runs.iter().position(which) else { return false };
        let LoggedRun { terminal, call } = self.runs.remove(run);
        let printed = self.terminals.printed(&terminal).unwrap_or_default();
        let output = ending(&printed, SHOWN);
        let exit = self.terminals.ended(&terminal);
        let mut result = json!({ "output": output, "exitStatus": exit.map(status) });
        if output.len() < printed.len() {
            result["bytesNotShown"] = json!(printed.len() - output.len());
        }
        let is_error = exit.is_some_and(|exit| exit.code != Some(0));
        turn.extend([self.decoder.end_own(call, result, is_error)]);
        true
    }

    /// Asks whether something may be done for the agent.
    fn permit(
        &mut self,
        id: RemoteId,
        task: PermissionTask,
        request: PermissionRequest,
        names: &[String],
        turn: &mut AcpTurn,
    ) {
        let ruled = self.policy.rule(names, &[]);
        let decision = decide(ruled, request.clone(), turn);
        turn.requests.open(PendingRequest::new(id, RequestSubject::Permission), async move {
            RequestOutcome::Permitted {
                decision: decision.await,
                task: Box::new(task),
                request: Box::new(request),
            }
        });
    }

    fn answer_with(&self, id: &RemoteId, result: Result<Value, Refusal>) -> Result<(), AgentError> {
        let stdin = self.peer.stdin();
        match result {
            Ok(value) => respond(&stdin, id, value),
            Err(Refusal { code, message }) => refuse(&stdin, id, code, &message),
        }
    }
}

/// The decision on a request: by the options of the call, else by the broker.
fn decide(
    ruled: Ruled,
    request: PermissionRequest,
    turn: &AcpTurn,
) -> BoxFuture<'static, PermissionDecision> {
    match ruled {
        Ruled::Denied => {
            let message = format!("{} is not allowed", request.tool_name);
            ready(PermissionDecision::Deny { message }).boxed()
        }
        Ruled::Allowed => ready(PermissionDecision::Allow { updated_input: None }).boxed(),
        Ruled::Open => turn.decision(request),
    }
}

/// The arguments, or the beginning of them: a question shows all of them, and the log need not.
fn bounded(input: Value) -> Value {
    let text = input.to_string();
    if text.len() <= 5 * SHOWN {
        return input;
    }
    let beginning = shown(&text);
    json!({ "beginning": beginning, "bytesNotShown": text.len() - beginning.len() })
}

/// Does something that blocks.
fn work(
    id: RemoteId,
    call: Option<String>,
    turn: &mut AcpTurn,
    work: impl FnOnce() -> Result<Value, Refusal> + Send + 'static,
) {
    turn.requests.open(PendingRequest { id, about: RequestSubject::Work, call }, async move {
        let gone = |_| Err(Refusal::new(FAILED, "it could not be done"));
        RequestOutcome::Done(tokio::task::spawn_blocking(work).await.unwrap_or_else(gone))
    });
}
