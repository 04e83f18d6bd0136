//! The verbs that speak to a session from any shell: `send`, `reply`, `approve`, `reject`, `pause`, `stop`. They
//! leave a command in the store; whoever drives the session carries it out and answers.

use std::time::Duration;

use futures::StreamExt;
use inspan_engine::{Clock, SystemClock};
use inspan_flow::{Liveness, Resume, RunStore, Select, SessionEntry, Verdict};
use inspan_protocol::{
    Command, Event, MessageMode, NodeId, NodePath, PendingPrompt, PromptId, PromptKind, RunId, SessionId,
};
use serde_json::json;

use super::{resume::Kept, session, sessions};
use crate::{
    args::{CloseArgs, DecideArgs, GoingArgs, ReplyArgs, SendArgs, StopArgs},
    exit::Exit,
    failure::Failure,
    invocation::{Form, Invocation},
    store, terminal,
};

/// How long whoever drives the session may take to answer.
const ANSWER: Duration = Duration::from_secs(20);
/// How long may pass until it is looked again, should a change be missed.
const LOOK: Duration = Duration::from_millis(500);

pub(super) fn send(args: &SendArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let mode = if args.steer { MessageMode::Steer } else { MessageMode::FollowUp };
    let content = args.text.clone();
    let command = match (&args.to, &args.run) {
        (Some(node), _) => {
            let node = NodeId::new(node.as_str()).map_err(|error| Failure::usage(error.to_string()))?;
            Command::SendTo { node, content, mode }
        }
        (None, Some(run)) => Command::SendToRun { run: RunId::from(run.as_str()), content, mode },
        (None, None) if args.steer => {
            return Err(Failure::usage("`--steer` interrupts one agent: name it with `--to` or `--run`"));
        }
        (None, None) => Command::Send { content },
    };
    with_session(&args.session, invocation, async |desk| {
        desk.must_be_driven(|id| format!("`inspan resume {id} --message TEXT` tells its agents something"))?;
        match desk.say(&command).await? {
            Heard::Accepted => match desk.receivers().await? {
                Some(1) => desk.done("sent to 1 listener"),
                Some(receivers) => desk.done(&format!("sent to {receivers} listeners")),
                None => desk.done("sent"),
            },
            Heard::Left => desk.done("kept; the session came to rest, and is told when it goes on"),
        }
    })?;
    Ok(Exit::Success)
}

pub(super) fn pause(args: &StopArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let command = Command::Pause { reason: args.reason.clone() };
    with_session(&args.session, invocation, async |desk| {
        desk.must_be_driven(|id| format!("it rests already; `inspan resume {id}` goes on with it"))?;
        // Either way it rests.
        desk.say(&command).await?;
        desk.until(|entry| entry.owner.is_none() || entry.liveness == Liveness::Gone).await?;
        let id = &desk.entry.session;
        desk.done(&format!("paused; go on with `inspan resume {id}`"))
    })?;
    Ok(Exit::Success)
}

pub(super) fn close(args: &CloseArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    with_session(&args.session, invocation, async |desk| {
        desk.must_be_driven(|id| format!("it is not running; `inspan resume {id}` continues it"))?;
        let run = desk.active_run(args.run.as_deref()).await?;
        match desk.say(&Command::Close { run: run.clone() }).await? {
            Heard::Accepted => desk.done(&format!("closed run {run}")),
            Heard::Left => Err(Failure::usage(format!("session `{}` stopped running", desk.entry.session))),
        }
    })?;
    Ok(Exit::Success)
}

pub(super) fn stop(args: &StopArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let command = Command::Abort { reason: args.reason.clone() };
    let rests = with_session(&args.session, invocation, async |desk| {
        if desk.entry.digest.status.has_ended() {
            return Err(desk.ended());
        }
        if desk.is_driven() {
            if desk.say(&command).await? == Heard::Left {
                return Ok(Some(desk.entry.session.clone()));
            }
            desk.until(|entry| entry.digest.status.has_ended()).await?;
            desk.done("stopped")?;
            return Ok(None);
        }
        desk.store.post(&desk.entry.session, &command, SystemClock.now()).await?;
        Ok(Some(desk.entry.session.clone()))
    })?;
    let Some(id) = rests else { return Ok(Exit::Success) };
    // Nobody drives it: it is taken up here, and ends before anything of it begins.
    let going = GoingArgs { no_input: true, ..GoingArgs::default() };
    let exit = Kept::open(id.as_str(), invocation)?.go_on(Resume::default(), &going, invocation)?;
    Ok(if exit == Exit::Interrupted { Exit::Success } else { exit })
}

pub(super) fn reply(args: &ReplyArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let answer = Answer { content: args.text.clone().unwrap_or_default(), choice: args.choice.clone() };
    let rests = with_session(&args.session, invocation, async |desk| {
        let open = desk.prompt(&args.prompt, |_| true)?;
        desk.answer(&open, &answer).await
    })?;
    match rests {
        Some(id) if !args.no_resume => {
            Kept::open(id.as_str(), invocation)?.go_on(Resume::default(), &args.going, invocation)
        }
        _ => Ok(Exit::Success),
    }
}

pub(super) fn decide(args: &DecideArgs, word: &str, invocation: &Invocation) -> Result<Exit, Failure> {
    with_session(&args.session, invocation, async |desk| {
        let asks = |open: &PendingPrompt| open.kind == PromptKind::Permission;
        let open = match &args.prompt {
            Some(prompt) => desk.prompt(prompt, asks)?,
            None => desk.only(asks)?,
        };
        let choice = open.choices.iter().flatten().find(|choice| *choice == word).cloned();
        let answer = Answer { content: word.to_owned(), choice };
        desk.answer(&open, &answer).await.map(|_| ())
    })?;
    Ok(Exit::Success)
}

/// What a person says to a question.
struct Answer {
    content: String,
    choice: Option<String>,
}

/// What became of a command that was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heard {
    /// It took effect.
    Accepted,
    /// Whoever drove the session left before hearing it; it is kept.
    Left,
}

/// One session, from outside.
struct Desk<'a> {
    store: std::sync::Arc<dyn RunStore>,
    entry: SessionEntry,
    invocation: &'a Invocation,
}

fn with_session<'a, T: Default>(
    prefix: &str,
    invocation: &'a Invocation,
    work: impl AsyncFnOnce(&mut Desk<'a>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let store = store::open_writer(invocation)?;
    session::runtime()?.block_on(async {
        let entry = sessions::find(&*store, prefix).await?;
        work(&mut Desk { store, entry, invocation }).await
    })
}

impl Desk<'_> {
    fn is_driven(&self) -> bool {
        self.entry.owner.is_some() && self.entry.liveness != Liveness::Gone
    }

    fn ended(&self) -> Failure {
        let id = &self.entry.session;
        Failure::usage(format!("session `{id}` has ended"))
            .with_hint(format!("`inspan resume {id}` begins a new session that reuses what was done"))
    }

    fn must_be_driven(&self, hint: impl Fn(&SessionId) -> String) -> Result<(), Failure> {
        let id = &self.entry.session;
        if self.entry.digest.status.has_ended() {
            return Err(self.ended());
        }
        if !self.is_driven() {
            return Err(Failure::usage(format!("no process drives session `{id}`")).with_hint(hint(id)));
        }
        Ok(())
    }

    /// Leaves a command and waits for its answer.
    async fn say(&self, command: &Command) -> Result<Heard, Failure> {
        let id = &self.entry.session;
        let mut changes = self.store.changes();
        let number = self.store.post(id, command, SystemClock.now()).await?;
        let answered = async {
            loop {
                // Whoever drives it may leave just now: looked at first, so that no answer is missed.
                let entry = self.store.entry(id).await?;
                let has_left = entry.owner.is_none() || entry.liveness == Liveness::Gone;
                match self.store.answer(id, number).await? {
                    Some(Verdict::Accepted) => return Ok(Heard::Accepted),
                    Some(Verdict::Refused(why)) => return Err(Failure::usage(why)),
                    None if has_left => return Ok(Heard::Left),
                    None => {
                        // Whether it changed or it is time to look again comes to the same.
                        let _ = tokio::time::timeout(LOOK, changes.next()).await;
                    }
                }
            }
        };
        tokio::time::timeout(ANSWER, answered).await.unwrap_or_else(|_| {
            let owner = self.entry.owner.as_ref().map(ToString::to_string).unwrap_or_default();
            Err(Failure::new(Exit::Failed, format!("{owner} did not answer within {ANSWER:?}"))
                .with_hint("the command is kept, and is carried out when the session goes on"))
        })
    }

    /// The agent run of this id or node; the only one if none is named.
    async fn active_run(&self, named: Option<&str>) -> Result<RunId, Failure> {
        let log = self
            .store
            .read(&self.entry.session, 1, Select::Names(&["agent:start", "agent:complete"]))
            .await?;
        let mut active: Vec<(&RunId, &str)> = Vec::new();
        for envelope in &log {
            match &envelope.event {
                Event::AgentStart { run_id, .. } => {
                    active.push((run_id, envelope.context.task.as_ref().map_or("", NodePath::node)));
                }
                Event::AgentComplete { run_id, .. } => active.retain(|(run, _)| *run != run_id),
                _ => {}
            }
        }
        let listed = || {
            let runs: Vec<_> = active.iter().map(|(run, node)| format!("{run} ({node})")).collect();
            if runs.is_empty() {
                "no agent runs now".to_owned()
            } else {
                format!("running now: {}", runs.join(", "))
            }
        };
        let is_meant = |run: &RunId, node: &str| {
            named.is_none_or(|name| name == node || !name.is_empty() && run.as_str().starts_with(name))
        };
        match active.iter().filter(|(run, node)| is_meant(run, node)).collect::<Vec<_>>().as_slice() {
            [(run, _)] => Ok((*run).clone()),
            [] => Err(Failure::usage(match named {
                Some(name) => format!("session `{}` has no active run `{name}`", self.entry.session),
                None => format!("session `{}` has no active run", self.entry.session),
            })
            .with_hint(listed())),
            _ => {
                Err(Failure::usage("more than one agent runs: name the run or its node").with_hint(listed()))
            }
        }
    }

    /// How many received the message that was sent last.
    async fn receivers(&self) -> Result<Option<u32>, Failure> {
        let log = self.store.read(&self.entry.session, 1, Select::Names(&["session:message"])).await?;
        Ok(log.last().and_then(|envelope| match envelope.event {
            Event::SessionMessage { receivers, .. } => receivers,
            _ => None,
        }))
    }

    /// Waits until the session stands so.
    async fn until(&mut self, stands: impl Fn(&SessionEntry) -> bool) -> Result<(), Failure> {
        let mut changes = self.store.changes();
        let came = async {
            loop {
                self.entry = self.store.entry(&self.entry.session).await?;
                if stands(&self.entry) {
                    return Ok(());
                }
                let _ = tokio::time::timeout(LOOK, changes.next()).await;
            }
        };
        tokio::time::timeout(ANSWER, came).await.unwrap_or_else(|_| {
            Err(Failure::new(Exit::Failed, format!("it was accepted, and is not done after {ANSWER:?}")))
        })
    }

    /// The open question whose id begins so.
    fn prompt(&self, prefix: &str, fits: impl Fn(&PendingPrompt) -> bool) -> Result<PendingPrompt, Failure> {
        let open = &self.entry.digest.prompts;
        if let Some(whole) = open.iter().find(|open| open.prompt_id.as_str() == prefix) {
            return Ok(whole.clone());
        }
        let begin: Vec<_> =
            open.iter().filter(|open| fits(open) && open.prompt_id.as_str().starts_with(prefix)).collect();
        match begin.as_slice() {
            [one] => Ok((*one).clone()),
            [] => {
                Err(Failure::usage(format!("session `{}` asks no question `{prefix}`", self.entry.session))
                    .with_hint("`inspan inbox` lists the questions that wait"))
            }
            many => Err(Failure::usage(format!("`{prefix}` may be any of {}", listed(many)))),
        }
    }

    /// The only open question of a kind.
    fn only(&self, fits: impl Fn(&PendingPrompt) -> bool) -> Result<PendingPrompt, Failure> {
        let open: Vec<_> = self.entry.digest.prompts.iter().filter(|open| fits(open)).collect();
        match open.as_slice() {
            [one] => Ok((*one).clone()),
            [] => Err(Failure::usage(format!("session `{}` asks for no permission", self.entry.session))
                .with_hint("`inspan inbox` lists the questions that wait")),
            many => Err(Failure::usage(format!("it asks for more than one: {}", listed(many)))),
        }
    }

    /// Answers a question; the session if nobody drives it, so that the answer waits for whoever goes on.
    async fn answer(&self, open: &PendingPrompt, answer: &Answer) -> Result<Option<SessionId>, Failure> {
        let Answer { content, choice } = answer;
        if let Err(why) = inspan_engine::check_reply(open, content, choice.as_deref()) {
            return Err(Failure::usage(why.to_string()));
        }
        let prompt = PromptId::clone(&open.prompt_id);
        let command = Command::Reply { prompt, content: content.clone(), choice: choice.clone() };
        let id = &self.entry.session;
        if self.is_driven() {
            return match self.say(&command).await? {
                Heard::Accepted => self.done("answered").map(|()| None),
                // It came to rest before it heard of the answer, which is kept.
                Heard::Left => Ok(Some(id.clone())),
            };
        }
        self.store.post(id, &command, SystemClock.now()).await?;
        self.done("kept; nobody drives the session")?;
        Ok(Some(id.clone()))
    }

    fn done(&self, what: &str) -> Result<(), Failure> {
        match self.invocation.form {
            Form::Json => self.invocation.json(&json!({ "sessionId": self.entry.session, "done": what })),
            Form::Text => {
                terminal::progress(&format!("{}: {what}\n", self.entry.session));
            }
        }
        Ok(())
    }
}

fn listed(prompts: &[&PendingPrompt]) -> String {
    prompts.iter().map(|open| open.prompt_id.as_str()).collect::<Vec<_>>().join(", ")
}
