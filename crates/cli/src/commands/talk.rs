//! The commands that control a session from any shell: `send`, `reply`, `approve`, `reject`, `pause`, `stop`. Each posts
//! a command to the store; the process that runs the session applies or refuses it.

use std::time::Duration;

use futures::StreamExt;
use inspan_engine::{Clock, SystemClock};
use inspan_flow::{Liveness, Resume, RunStore, Select, SessionEntry, Verdict};
use inspan_protocol::{
    Command, Event, MessageMode, NodeId, NodePath, Prompt, PromptId, PromptKind, RunId, SessionId,
    SessionStatus,
};
use serde_json::{Value, json};

use super::resume::StoredSession;
use super::session;
use super::sessions;
use crate::{
    args::{CloseArgs, DecideArgs, ReplyArgs, RunModeArgs, SendArgs, StopArgs},
    exit::Exit,
    failure::Failure,
    invocation::{Invocation, OutputForm},
    store, terminal,
};
use inspan_view::Commands;

/// How long the process that runs the session may take to answer.
const ANSWER: Duration = Duration::from_secs(20);
/// How long may pass until it is looked again, should a change be missed.
const LOOK: Duration = Duration::from_millis(500);

pub(super) fn send(args: &SendArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let mode = if args.steer { MessageMode::Steer } else { MessageMode::FollowUp };
    let (session, content) = match args.words.as_slice() {
        [session, text] => (session.as_str(), text.clone()),
        words => (ONLY, words.concat()),
    };
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
    with_session(session, invocation, async |target| {
        target.must_be_driven(|id| {
            format!("`inspan resume {id} --message TEXT` resumes it with a message to its agents")
        })?;
        match (target.post_and_wait(&command).await?, &command) {
            (CommandResult::Accepted, _) => match target.receivers().await? {
                Some(1) => target.done("sent to 1 listener"),
                Some(receivers) => target.done(&format!("sent to {receivers} listeners")),
                None => target.done("sent"),
            },
            // A run does not come back; a node and a session do.
            (CommandResult::Open(_), Command::SendToRun { run, .. }) => {
                let id = &target.entry.session;
                Err(Failure::usage(format!("run `{run}` ended with its process; nothing was sent"))
                    .with_hint(format!(
                        "`inspan resume {id} --message TEXT` resumes it with a message to its agents"
                    )))
            }
            (CommandResult::Open(_), _) => target.done(
                "stored: no process runs the session; after `inspan resume` the next agent that takes \
                 messages gets it",
            ),
        }
    })?;
    Ok(Exit::Success)
}

pub(super) fn pause(args: &StopArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let command = Command::Pause { reason: args.reason.clone() };
    with_session(&args.session, invocation, async |target| {
        let id = target.entry.session.clone();
        if target.entry.digest.status == SessionStatus::Paused && !target.is_driven() {
            return target.done(&format!("already paused; continue with `inspan resume {id}`"));
        }
        target.must_be_driven(|id| format!("`inspan resume {id}` continues it"))?;
        target.post_and_wait(&command).await?;
        target.until(|entry| entry.owner.is_none() || entry.liveness == Liveness::Gone).await?;
        match target.entry.digest.status {
            SessionStatus::Paused => target.done(&format!("paused; continue with `inspan resume {id}`")),
            SessionStatus::Waiting if target.entry.owner.is_none() => {
                target.done("no longer running: it is waiting, see `inspan inbox`")
            }
            status if status.has_ended() => {
                Err(Failure::usage(format!("session `{id}` ended before it could be paused")))
            }
            _ => Err(Failure::new(
                Exit::Failed,
                format!("the process of session `{id}` ended before it paused"),
            )
            .with_hint(format!("`inspan resume {id}` continues with what is stored"))),
        }
    })?;
    Ok(Exit::Success)
}

pub(super) fn close(args: &CloseArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    with_session(&args.session, invocation, async |target| {
        target.must_be_driven(|id| format!("it is not running; `inspan resume {id}` continues it"))?;
        let run = target.active_run(args.run.as_deref()).await?;
        match target.post_and_wait(&Command::Close { run: run.clone() }).await? {
            CommandResult::Accepted => target.done(&format!("closed run {run}")),
            CommandResult::Open(_) => {
                Err(Failure::usage(format!("session `{}` stopped running", target.entry.session)))
            }
        }
    })?;
    Ok(Exit::Success)
}

pub(super) fn stop(args: &StopArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let command = Command::Abort { reason: args.reason.clone() };
    let open = with_session(&args.session, invocation, async |target| {
        let id = target.entry.session.clone();
        if target.is_driven()
            && let CommandResult::Open(number) = target.post_and_wait(&command).await?
        {
            return Ok(Some((id, number)));
        }
        if !target.is_driven() {
            let number = target.store.post(&id, &command, SystemClock.now()).await?;
            return Ok(Some((id, number)));
        }
        target.stopped().await.map(|()| None)
    })?;
    let Some((id, number)) = open else { return Ok(Exit::Success) };
    // No process runs it: it is resumed here, and ends before any node starts.
    let going = RunModeArgs { no_input: true, ..RunModeArgs::default() };
    let resumed = StoredSession::open(id.as_str(), invocation)
        .and_then(|kept| kept.go_on(Resume::default(), &going, invocation));
    match resumed {
        Ok(Exit::Interrupted) => Ok(Exit::Success),
        Ok(exit) => Ok(exit),
        // Another process may have resumed it first, and then that one stops it.
        Err(failure) => {
            with_session(id.as_str(), invocation, async |target| match target.wait(number).await {
                Ok(CommandResult::Accepted) => target.stopped().await,
                _ => Err(failure),
            })?;
            Ok(Exit::Success)
        }
    }
}

pub(super) fn reply(args: &ReplyArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let ReplyWords { session, prompt, text } = ReplyWords::of(args)?;
    let resume = |id: &SessionId| {
        StoredSession::open(id.as_str(), invocation)?.go_on(Resume::default(), &args.going, invocation)
    };
    // The process in the background: the one that started it has posted the answer.
    if args.going.detached {
        return resume(&SessionId::from(session));
    }
    let stored = with_session(session, invocation, async |target| {
        let open = match prompt {
            Some(prompt) => target.prompt(prompt, |_| true).await?,
            None => target.only(|open| open.kind == PromptKind::Input, "no question")?,
        };
        // Two words are a session and an answer: the question's id in place of the answer is no answer.
        if prompt.is_none() && text == Some(open.prompt_id.as_str()) {
            return Err(target.no_answer(&open));
        }
        let content = match open.form() {
            Some(form) if !args.set.is_empty() => {
                let typed = args.set.iter().map(|(field, value)| (field.as_str(), value.as_str()));
                Value::Object(form.read(typed).map_err(Failure::usage)?).to_string()
            }
            None if !args.set.is_empty() => return Err(target.no_form(&open)),
            _ => text.unwrap_or_default().to_owned(),
        };
        let answer = PersonAnswer { content, choice: args.choice.clone() };
        let Some(number) = target.answer(&open, &answer).await? else { return Ok(None) };
        let id = target.entry.session.clone();
        if args.no_resume {
            target.done(&format!("stored; `inspan resume {id}` continues with it"))?;
        }
        Ok(Some((id, number)))
    })?;
    let Some((id, number)) = stored.filter(|_| !args.no_resume) else { return Ok(Exit::Success) };
    let exit = resume(&id)?;
    // Another answer may have come first.
    if !args.going.detach {
        with_session(id.as_str(), invocation, async |target| {
            match target.store.answer(&id, number).await? {
                Some(Verdict::Refused(why)) => Err(Failure::usage(why)),
                _ => Ok(()),
            }
        })?;
    }
    Ok(exit)
}

pub(super) fn decide(args: &DecideArgs, word: &str, invocation: &Invocation) -> Result<Exit, Failure> {
    with_session(&args.session, invocation, async |target| {
        let asks = |open: &Prompt| open.kind == PromptKind::Permission;
        let open = match &args.prompt {
            Some(prompt) => target.prompt(prompt, asks).await?,
            None => target.only(asks, "no permission")?,
        };
        if !asks(&open) {
            return Err(target.no_permission(&open));
        }
        let choice = open.choices.iter().flatten().find(|choice| *choice == word).cloned();
        let answer = PersonAnswer { content: word.to_owned(), choice };
        match target.answer(&open, &answer).await? {
            None => Ok(()),
            Some(_) => {
                let id = &target.entry.session;
                target.done(&format!("stored; `inspan resume {id}` continues with it"))
            }
        }
    })?;
    Ok(Exit::Success)
}

/// What stands for a session that is not named: the only open one of the working folder.
const ONLY: &str = "@only";

/// The words of `reply`: the session, if not the only open one; the question, if several are open; the answer.
struct ReplyWords<'a> {
    session: &'a str,
    prompt: Option<&'a str>,
    text: Option<&'a str>,
}

impl<'a> ReplyWords<'a> {
    fn of(args: &'a ReplyArgs) -> Result<Self, Failure> {
        let words: Vec<&str> = args.words.iter().map(String::as_str).collect();
        // With a choice or fields the words are only the names of the session and the question.
        let answered = args.choice.as_ref().or(args.set.first().map(|(field, _)| field));
        let (session, prompt, text) = match (words.as_slice(), answered) {
            ([], None) => {
                return Err(Failure::usage(
                    "give the answer: `inspan reply TEXT` or `inspan reply --choice CHOICE`",
                ));
            }
            ([], Some(_)) => (ONLY, None, None),
            ([session], Some(_)) => (*session, None, None),
            ([session, prompt], Some(_)) => (*session, Some(*prompt), None),
            ([text], None) => (ONLY, None, Some(*text)),
            ([session, text], None) => (*session, None, Some(*text)),
            ([session, prompt, text, ..], _) => (*session, Some(*prompt), Some(*text)),
        };
        Ok(Self { session, prompt, text })
    }
}

/// What a person says to a question.
struct PersonAnswer {
    content: String,
    choice: Option<String>,
}

/// The result of a posted command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CommandResult {
    /// It was applied.
    Accepted,
    /// The process that ran the session has exited, and the command of this number is still open.
    Open(u64),
}

/// The session that a command is for.
struct SessionTarget<'a> {
    store: std::sync::Arc<dyn RunStore>,
    entry: SessionEntry,
    invocation: &'a Invocation,
}

fn with_session<'a, T: Default>(
    prefix: &str,
    invocation: &'a Invocation,
    work: impl AsyncFnOnce(&mut SessionTarget<'a>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let store = store::open_writer(invocation)?;
    session::runtime()?.block_on(async {
        let entry = sessions::find(&*store, prefix).await?;
        work(&mut SessionTarget { store, entry, invocation }).await
    })
}

impl SessionTarget<'_> {
    fn is_driven(&self) -> bool {
        self.entry.owner.is_some() && self.entry.liveness != Liveness::Gone
    }

    fn must_be_driven(&self, hint: impl Fn(&SessionId) -> String) -> Result<(), Failure> {
        let id = &self.entry.session;
        if self.entry.digest.status.has_ended() {
            return Err(inspan_flow::StoreError::SessionEnded(id.clone()).into());
        }
        if !self.is_driven() {
            return Err(Failure::usage(format!("no process runs session `{id}`")).with_hint(hint(id)));
        }
        Ok(())
    }

    /// Posts a command and waits for its answer.
    async fn post_and_wait(&self, command: &Command) -> Result<CommandResult, Failure> {
        let number = self.store.post(&self.entry.session, command, SystemClock.now()).await?;
        self.wait(number).await
    }

    /// Waits for the answer to a command.
    async fn wait(&self, number: u64) -> Result<CommandResult, Failure> {
        let id = &self.entry.session;
        let mut changes = self.store.changes();
        let answered = async {
            loop {
                // The process may leave just now: looked at first, so that no answer is missed.
                let entry = self.store.entry(id).await?;
                let has_left = entry.owner.is_none() || entry.liveness == Liveness::Gone;
                match self.store.answer(id, number).await? {
                    Some(Verdict::Accepted) => return Ok(CommandResult::Accepted),
                    Some(Verdict::Refused(why)) => return Err(Failure::usage(why)),
                    None if has_left => return Ok(CommandResult::Open(number)),
                    None => {
                        // Whether it changed or it is time to look again comes to the same.
                        let _ = tokio::time::timeout(LOOK, changes.next()).await;
                    }
                }
            }
        };
        tokio::time::timeout(ANSWER, answered).await.unwrap_or_else(|_| {
            let owner = self.entry.owner.as_ref().map(ToString::to_string).unwrap_or_default();
            Err(Failure::new(Exit::Failed, format!("{owner} did not respond within {ANSWER:?}"))
                .with_hint("the command is stored; the process applies or refuses it when it continues"))
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
        let of_node = |name: &str| active.iter().any(|(_, node)| *node == name);
        let is_meant = |run: &RunId, node: &str| match named {
            None => true,
            // The id of a run begins with the place of its node, which may begin with the name of another.
            Some(name) if of_node(name) => name == node,
            Some(name) => !name.is_empty() && run.as_str().starts_with(name),
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

    /// Waits until a session that is being stopped has ended.
    async fn stopped(&mut self) -> Result<(), Failure> {
        self.until(|entry| entry.digest.status.has_ended()).await?;
        self.done("stopped")
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
            Err(Failure::new(
                Exit::Failed,
                format!("the command was accepted but is not done after {ANSWER:?}"),
            ))
        })
    }

    /// The open question with this id, or of this node, or whose id begins so.
    async fn prompt(&self, prefix: &str, fits: impl Fn(&Prompt) -> bool) -> Result<Prompt, Failure> {
        let open = &self.entry.digest.prompts;
        if let Some(whole) = open.iter().find(|open| open.prompt_id.as_str() == prefix) {
            return Ok(whole.clone());
        }
        let of_node = |open: &Prompt| open.task.as_ref().is_some_and(|task| task.node() == prefix);
        let mut found: Vec<_> = open.iter().filter(|open| fits(open) && of_node(open)).collect();
        if found.is_empty() {
            let begins = |open: &Prompt| open.prompt_id.as_str().starts_with(prefix);
            found = open.iter().filter(|open| fits(open) && begins(open)).collect();
        }
        match found.as_slice() {
            [one] => Ok((*one).clone()),
            [] => Err(self.unknown(prefix).await?),
            many => Err(Failure::usage(format!("`{prefix}` is not unique: {}", listed(many)))),
        }
    }

    /// Why there is no open question whose id begins so: it was answered already, or never asked.
    async fn unknown(&self, prefix: &str) -> Result<Failure, Failure> {
        let id = &self.entry.session;
        let log = self.store.read(id, 1, Select::Names(&["session:reply"])).await?;
        let answered = log.iter().rev().find_map(|envelope| match &envelope.event {
            Event::SessionReply { prompt_id, content, choice } if prompt_id.as_str().starts_with(prefix) => {
                Some((prompt_id, choice.as_ref().unwrap_or(content)))
            }
            _ => None,
        });
        Ok(match answered {
            Some((prompt, answer)) => {
                Failure::usage(format!("question `{prompt}` is already answered: {answer}"))
            }
            None => Failure::usage(format!("session `{id}` has no open question `{prefix}`"))
                .with_hint("`inspan inbox` lists the open questions"),
        })
    }

    /// The only open question of a kind; `none` is the message if there is none.
    fn only(&self, fits: impl Fn(&Prompt) -> bool, none: &str) -> Result<Prompt, Failure> {
        let prompts = &self.entry.digest.prompts;
        let open: Vec<_> = prompts.iter().filter(|open| fits(open)).collect();
        let id = &self.entry.session;
        match (open.as_slice(), prompts.as_slice()) {
            ([one], _) => Ok((*one).clone()),
            // A question of the other kind is answered by the other command.
            ([], [other]) if other.kind == PromptKind::Input => Err(self.no_permission(other)),
            ([], [other]) => {
                let answers = Commands::new(self.invocation.store.as_deref()).answers(id, other);
                Err(Failure::usage(format!("session `{id}` asks for permission, not for an answer"))
                    .with_hint(format!("answer with {}", in_ticks(&answers))))
            }
            ([], _) => Err(Failure::usage(format!("session `{id}` is waiting for {none}"))
                .with_hint("`inspan inbox` lists the open questions")),
            (many, _) => Err(Failure::usage(format!("several questions are open: {}", listed(many)))
                .with_hint("name one of them; `inspan inbox` shows what they ask")),
        }
    }

    /// The question of a flow is no permission: it is answered by `reply`.
    fn no_permission(&self, open: &Prompt) -> Failure {
        let answers = Commands::new(self.invocation.store.as_deref()).answers(&self.entry.session, open);
        Failure::usage(format!("`{}` is a question of the flow, not a permission", open.prompt_id))
            .with_hint(format!("answer it with {}", in_ticks(&answers)))
    }

    /// The question has no fields to fill in.
    fn no_form(&self, open: &Prompt) -> Failure {
        let answers = Commands::new(self.invocation.store.as_deref()).answers(&self.entry.session, open);
        Failure::usage(format!("`{}` is not a form and takes no `--set`", open.prompt_id))
            .with_hint(format!("answer it with {}", in_ticks(&answers)))
    }

    /// The answer is missing.
    fn no_answer(&self, open: &Prompt) -> Failure {
        let answers = Commands::new(self.invocation.store.as_deref()).answers(&self.entry.session, open);
        Failure::usage("the answer is missing").with_hint(format!("answer with {}", in_ticks(&answers)))
    }

    /// Answers a question. Gives the command's number if no process drives the session and the answer waits for one.
    async fn answer(&self, open: &Prompt, answer: &PersonAnswer) -> Result<Option<u64>, Failure> {
        let PersonAnswer { content, choice } = answer;
        if let Err(why) = open.check(content.to_owned(), choice.clone()) {
            return Err(Failure::usage(why.to_string()));
        }
        let prompt = PromptId::clone(&open.prompt_id);
        let command = Command::Reply { prompt, content: content.clone(), choice: choice.clone() };
        let id = &self.entry.session;
        if self.is_driven() {
            match self.post_and_wait(&command).await? {
                CommandResult::Accepted => return self.done("answered").map(|()| None),
                CommandResult::Open(number) if open.kind == PromptKind::Input => return Ok(Some(number)),
                CommandResult::Open(_) => {}
            }
        } else if open.kind == PromptKind::Input {
            return Ok(Some(self.store.post(id, &command, SystemClock.now()).await?));
        }
        // The agent that asked is gone with its process, and what it asks next may be something else.
        Err(Failure::usage(format!("no process runs session `{id}`, and the agent that asked has ended"))
            .with_hint(format!("`inspan resume {id}` continues; the agent asks again if it still needs to")))
    }

    fn done(&self, what: &str) -> Result<(), Failure> {
        match self.invocation.form {
            OutputForm::Json => {
                self.invocation.json(&json!({ "sessionId": self.entry.session, "done": what }))
            }
            OutputForm::Text => {
                terminal::progress(&format!("{}: {what}\n", self.entry.session));
            }
        }
        Ok(())
    }
}

/// Commands as people are offered them: "`a` or `b`".
fn in_ticks(commands: &[String]) -> String {
    commands.iter().map(|command| format!("`{command}`")).collect::<Vec<_>>().join(" or ")
}

fn listed(prompts: &[&Prompt]) -> String {
    prompts.iter().map(|open| open.prompt_id.as_str()).collect::<Vec<_>>().join(", ")
}
