//! The requests of an agent during a turn: permission to use a tool, files, commands. Each request gets one answer; when the
//! turn is stopped or over, those that are still open get it at once.

use std::future::ready;

use futures::FutureExt;
use futures::future::BoxFuture;
use inspan_protocol::{AgentError, PermissionDecision, PermissionRequest};
use serde_json::{Value, json};

use super::agent::AcpAgent;
use super::decode::{AcpQuestion, WantedAction};
use super::files::{FAILED, Refusal, read, write};
use super::permission::{AskedFor, Choice, Ruled, about_command, about_file, about_reading};
use super::wire::{self, WriteFile};
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
    Run(wire::CreateTerminal),
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
            (Ruled::Denied, _) | (_, AskedFor::Leave) => decide(ruled, question.request.clone(), turn),
            // What an option allows is no answer.
            _ => turn.decision(question.request.clone()),
        };
        turn.requests.open(PendingRequest { id, about: RequestSubject::Question }, async move {
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
                work(id, turn, move || read(&root, &wanted).map(|content| json!({ "content": content })));
                Ok(())
            }
            WantedAction::WriteFile(wanted) => {
                let (request, names) = about_file(&wanted);
                if self.granted.file(&wanted, &root) && self.policy.rule(&names, &[]) != Ruled::Denied {
                    work(id, turn, move || write(&root, &wanted).map(|()| json!({})));
                } else {
                    self.permit(id, PermissionTask::Write(wanted), request, &names, turn);
                }
                Ok(())
            }
            WantedAction::CreateTerminal(wanted) => {
                let (request, names) = about_command(&wanted, self.peer.process().redactor());
                if self.policy.rule(&names, &[]) != Ruled::Denied && self.granted.command(&wanted, &root) {
                    let created = self.create_terminal(&wanted);
                    return self.answer_with(&id, created);
                }
                self.permit(id, PermissionTask::Run(wanted), request, &names, turn);
                Ok(())
            }
            WantedAction::TerminalOutput(wanted) => {
                self.answer_with(&id, self.terminals.output(&wanted.terminal_id))
            }
            WantedAction::WaitForTerminal(wanted) => match self.terminals.wait(&wanted.terminal_id) {
                Ok(ended) => {
                    turn.requests.open(
                        PendingRequest { id, about: RequestSubject::Work },
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
            RequestOutcome::Done(result) => self.answer_with(id, result),
            RequestOutcome::Decided { question, ruled, decision } => {
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
                        let root = self.launch.root.clone();
                        work(id.clone(), turn, move || write(&root, &wanted).map(|()| json!({})));
                        Ok(())
                    }
                    PermissionTask::Run(wanted) => {
                        let created = self.create_terminal(&wanted);
                        self.answer_with(id, created)
                    }
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
        turn.requests.open(PendingRequest { id, about: RequestSubject::Permission }, async move {
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

/// Does something that blocks.
fn work(id: RemoteId, turn: &mut AcpTurn, work: impl FnOnce() -> Result<Value, Refusal> + Send + 'static) {
    turn.requests.open(PendingRequest { id, about: RequestSubject::Work }, async move {
        let gone = |_| Err(Refusal::new(FAILED, "it could not be done"));
        RequestOutcome::Done(tokio::task::spawn_blocking(work).await.unwrap_or_else(gone))
    });
}
