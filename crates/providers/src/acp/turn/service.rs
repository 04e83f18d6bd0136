//! What an agent asks for during a turn: leave to use a tool, files, commands. Each request gets one answer; when the
//! turn is stopped or over, those that are still open get it at once.

use std::future::ready;

use futures::FutureExt;
use futures::future::BoxFuture;
use inspan_protocol::{AgentError, PermissionDecision, PermissionRequest};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::super::decode::{Question, Wanted};
use super::super::files::{FAILED, Refusal, read, write};
use super::super::link::Link;
use super::super::permission::{Choice, Ruled, about_command, about_file, choose};
use super::super::wire::{self, WriteFile};
use super::{About, Instant, Open, Phase, Turn};
use crate::output::PermissionDenial;
use crate::transport::json_rpc::{TheirId, refuse, respond};

/// Requests of the agent that may wait for an answer at once.
const OPEN_LIMIT: usize = 64;
/// The protocol's code for a request that was cancelled.
const CANCELLED: i64 = -32800;

/// What comes of a request.
pub(super) struct Reply {
    id: TheirId,
    outcome: Outcome,
}

enum Outcome {
    /// The agent's own question was decided.
    Decided { question: Box<Question>, ruled: Ruled, decision: PermissionDecision },
    /// It was decided whether something may be done for the agent.
    Leave { task: Box<Task>, request: Box<PermissionRequest>, decision: PermissionDecision },
    /// Something was done for the agent, or could not be.
    Done(Result<Value, Refusal>),
}

/// Something that needs leave.
enum Task {
    Write(WriteFile),
    Run(wire::CreateTerminal),
}

impl Turn {
    /// The agent asks whether it may use a tool.
    pub(super) fn asked(&mut self, id: TheirId, question: Question, link: &Link) -> Result<(), AgentError> {
        if self.phase != Phase::Running || self.open.len() >= OPEN_LIMIT {
            return respond(&link.peer.stdin(), &id, wire::permission(None));
        }
        let ruled = self.manner.policy.rule(&question.names, &question.request.tool_name);
        let decision = self.decide(ruled, question.request.clone());
        self.open(id, About::Question, async move {
            Outcome::Decided { decision: decision.await, question: Box::new(question), ruled }
        });
        Ok(())
    }

    /// The agent wants something done.
    pub(super) fn wanted(&mut self, id: TheirId, wanted: Wanted, link: &mut Link) -> Result<(), AgentError> {
        let stdin = link.peer.stdin();
        if self.open.len() >= OPEN_LIMIT {
            return refuse(&stdin, &id, FAILED, "too many requests wait for their answers");
        }
        if self.phase != Phase::Running && matches!(wanted, Wanted::WriteFile(_) | Wanted::CreateTerminal(_))
        {
            return refuse(&stdin, &id, CANCELLED, "the turn was cancelled");
        }
        let root = link.launch.root.clone();
        match wanted {
            Wanted::ReadFile(wanted) => {
                self.work(id, move || read(&root, &wanted).map(|content| json!({ "content": content })));
                Ok(())
            }
            Wanted::WriteFile(wanted) => {
                if self.granted.file(&wanted, &root) {
                    self.work(id, move || write(&root, &wanted).map(|()| json!({})));
                } else {
                    let (request, names) = about_file(&wanted);
                    self.leave(id, Task::Write(wanted), request, &names);
                }
                Ok(())
            }
            Wanted::CreateTerminal(wanted) => {
                if self.granted.command(&wanted) {
                    let created = link.create_terminal(&wanted);
                    return answer(link, &id, created);
                }
                let (request, names) = about_command(&wanted);
                self.leave(id, Task::Run(wanted), request, &names);
                Ok(())
            }
            Wanted::TerminalOutput(wanted) => answer(link, &id, link.terminals.output(&wanted.terminal_id)),
            Wanted::WaitForTerminal(wanted) => match link.terminals.wait(&wanted.terminal_id) {
                Ok(ended) => {
                    self.open(id, About::Work, ended.map(|status| Outcome::Done(Ok(status))));
                    Ok(())
                }
                Err(refusal) => answer(link, &id, Err(refusal)),
            },
            Wanted::KillTerminal(wanted) => answer(link, &id, link.terminals.kill(&wanted.terminal_id)),
            Wanted::ReleaseTerminal(wanted) => {
                let released = link.terminals.release(&wanted.terminal_id);
                answer(link, &id, released)
            }
        }
    }

    /// A request was decided or done.
    pub(super) fn reply(&mut self, reply: Reply, link: &mut Link) -> Result<(), AgentError> {
        let Reply { id, outcome } = reply;
        let Some(open) = self.open.iter().position(|open| open.id == id) else { return Ok(()) };
        self.open.remove(open);
        // What the answer took is not the agent's silence.
        self.last_word = Instant::now();
        match outcome {
            Outcome::Done(result) => answer(link, &id, result),
            Outcome::Decided { question, ruled, decision } => {
                let choice = choose(&question.options, &question.request.input, ruled, &decision);
                let option = match choice {
                    Choice::Allow(option) => {
                        self.granted.add(&question, &link.launch.root);
                        Some(option)
                    }
                    Choice::Deny(option) => {
                        self.denied(&question.request);
                        option
                    }
                    Choice::Impossible(option, why) => {
                        self.denied(&question.request);
                        let message = format!("denied `{}`: {why}", question.request.tool_name);
                        self.warn("permissionNotPassedOn", message);
                        option
                    }
                };
                respond(&link.peer.stdin(), &id, wire::permission(option.as_deref()))
            }
            Outcome::Leave { task, request, decision } => match decision {
                PermissionDecision::Deny { message } => {
                    self.denied(&request);
                    refuse(&link.peer.stdin(), &id, FAILED, &format!("permission denied: {message}"))
                }
                PermissionDecision::Allow { updated_input: Some(changed) } if changed != request.input => {
                    self.denied(&request);
                    let why = "it was allowed with other arguments, which this protocol cannot pass on";
                    self.warn("permissionNotPassedOn", format!("denied `{}`: {why}", request.tool_name));
                    refuse(&link.peer.stdin(), &id, FAILED, &format!("permission denied: {why}"))
                }
                PermissionDecision::Allow { .. } => match *task {
                    Task::Write(wanted) => {
                        let root = link.launch.root.clone();
                        self.work(id, move || write(&root, &wanted).map(|()| json!({})));
                        Ok(())
                    }
                    Task::Run(wanted) => {
                        let created = link.create_terminal(&wanted);
                        answer(link, &id, created)
                    }
                },
            },
        }
    }

    /// Nobody wants the answers to open requests any more: each gets the one for that.
    pub(super) fn withdraw(&mut self, link: &Link) -> Result<(), AgentError> {
        let stdin = link.peer.stdin();
        for open in std::mem::take(&mut self.open) {
            open.withdrawn.cancel();
            match open.about {
                About::Question => respond(&stdin, &open.id, wire::permission(None))?,
                About::Leave | About::Work => refuse(&stdin, &open.id, CANCELLED, "the turn was cancelled")?,
            }
        }
        Ok(())
    }

    /// Asks whether something may be done for the agent.
    fn leave(&mut self, id: TheirId, task: Task, request: PermissionRequest, names: &[String]) {
        let ruled = self.manner.policy.rule(names, &request.tool_name);
        let decision = self.decide(ruled, request.clone());
        self.open(id, About::Leave, async move {
            Outcome::Leave { decision: decision.await, task: Box::new(task), request: Box::new(request) }
        });
    }

    fn decide(&self, ruled: Ruled, request: PermissionRequest) -> BoxFuture<'static, PermissionDecision> {
        let deny = |message: String| ready(PermissionDecision::Deny { message }).boxed();
        match (ruled, &self.context.permissions) {
            (Ruled::Denied, _) => deny(format!("{} is not allowed", request.tool_name)),
            (Ruled::Allowed, _) => ready(PermissionDecision::Allow { updated_input: None }).boxed(),
            (Ruled::Open, Some(broker)) => broker.request(request),
            (Ruled::Open, None) => deny(format!("nobody is there who could allow {}", request.tool_name)),
        }
    }

    /// Does something that blocks.
    fn work(&mut self, id: TheirId, work: impl FnOnce() -> Result<Value, Refusal> + Send + 'static) {
        self.open(id, About::Work, async move {
            let gone = |_| Err(Refusal::new(FAILED, "it could not be done"));
            Outcome::Done(tokio::task::spawn_blocking(work).await.unwrap_or_else(gone))
        });
    }

    fn open(&mut self, id: TheirId, about: About, outcome: impl Future<Output = Outcome> + Send + 'static) {
        let withdrawn = CancellationToken::new();
        self.open.push(Open { id: id.clone(), about, withdrawn: withdrawn.clone() });
        self.replies.push(Box::pin(async move {
            let outcome = withdrawn.run_until_cancelled(outcome).await?;
            Some(Reply { id, outcome })
        }));
    }

    fn denied(&mut self, request: &PermissionRequest) {
        self.denials.push(PermissionDenial {
            tool_name: request.tool_name.clone(),
            tool_use_id: request.tool_use_id.clone().unwrap_or_default(),
            tool_input: request.input.clone(),
        });
    }
}

fn answer(link: &Link, id: &TheirId, result: Result<Value, Refusal>) -> Result<(), AgentError> {
    let stdin = link.peer.stdin();
    match result {
        Ok(value) => respond(&stdin, id, value),
        Err(Refusal { code, message }) => refuse(&stdin, id, code, &message),
    }
}
