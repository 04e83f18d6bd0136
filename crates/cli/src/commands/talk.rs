//! The commands that control a session from any shell: `send`, `reply`, `approve`, `reject`, `pause`, `stop`. Each posts
//! a command to the store; the process that runs the session applies or refuses it.

use std::sync::Arc;

use inspan_engine::SystemClock;
use inspan_flow::{Resume, RunStore, SessionEntry, Verdict};
use inspan_protocol::{Command, MessageMode, Prompt, PromptKind, RunId, SessionId, SessionStatus};
use inspan_sessions::{CommandResult, PersonAnswer, SessionErrorCode, SessionTarget, is_id, question_line};
use serde_json::{Value, json};

use super::flow;
use super::secrets;
use super::session::{self, Ask, detach};
use super::stored::StoredSession;
use crate::{
    args::{CloseArgs, DecideArgs, ReplyArgs, RunModeArgs, SendArgs, StopArgs},
    exit::Exit,
    failure::Failure,
    invocation::{Invocation, OutputForm},
    store, terminal,
};

pub(super) fn send(args: &SendArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let mode = if args.steer { MessageMode::Steer } else { MessageMode::FollowUp };
    let (session, content) = match args.words.as_slice() {
        [session, text] => (session.as_str(), text.clone()),
        words => {
            let word = words.concat();
            let with =
                |session: &SessionId, _: &[Prompt]| format!("send one with `inspan send {session} TEXT`");
            refuse_session_as_text(&word, "message", with, invocation)?;
            (ONLY, word)
        }
    };
    if args.steer && args.to.is_none() && args.run.is_none() {
        return Err(Failure::usage("`--steer` interrupts one agent: name it with `--to` or `--run`"));
    }
    with_session(session, invocation, async |target| {
        target.session.must_be_driven(|id| {
            format!("`inspan resume {id} --message TEXT` resumes it with a message to its agents")
        })?;
        let command = match (&args.to, &args.run) {
            (Some(to), _) => target.session.message_to_node(to, content, mode).await?,
            (None, Some(run)) => Command::SendToRun { run: RunId::from(run.as_str()), content, mode },
            (None, None) => Command::Send { content },
        };
        match (target.session.post_and_wait(&command).await?, &command) {
            (CommandResult::Accepted, _) => match target.session.receivers().await? {
                Some(1) => target.done("sent to 1 listener"),
                Some(receivers) => target.done(&format!("sent to {receivers} listeners")),
                None => target.done("sent"),
            },
            // A run does not come back; a node and a session do.
            (CommandResult::Stored(_), Command::SendToRun { run, .. }) => {
                let id = &target.session.entry.session;
                Err(Failure::usage(format!("run `{run}` ended with its process; nothing was sent"))
                    .with_hint(format!(
                        "`inspan resume {id} --message TEXT` resumes it with a message to its agents"
                    )))
            }
            (CommandResult::Stored(_), _) => target.done(
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
        let id = target.session.entry.session.clone();
        if target.session.entry.digest.status == SessionStatus::Paused && !target.session.is_driven() {
            return target.done(&format!("already paused; continue with `inspan resume {id}`"));
        }
        target.session.must_be_driven(|id| format!("`inspan resume {id}` continues it"))?;
        target.session.post_and_wait(&command).await?;
        let paused = target.session.paused().await;
        let entry = &target.session.entry;
        if entry.digest.status == SessionStatus::Waiting && entry.owner.is_none() {
            return target.done("no longer running: it is waiting, see `inspan inbox`");
        }
        paused?;
        target.done(&format!("paused; continue with `inspan resume {id}`"))
    })?;
    Ok(Exit::Success)
}

pub(super) fn close(args: &CloseArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    with_session(&args.session, invocation, async |target| {
        target
            .session
            .must_be_driven(|id| format!("it is not running; `inspan resume {id}` continues it"))?;
        let run = target.session.active_run(args.run.as_deref()).await?;
        match target.session.post_and_wait(&Command::Close { run: run.clone() }).await? {
            CommandResult::Accepted => target.done(&format!("closed run {run}")),
            CommandResult::Stored(_) => {
                Err(Failure::usage(format!("session `{}` stopped running", target.session.entry.session)))
            }
        }
    })?;
    Ok(Exit::Success)
}

pub(super) fn stop(args: &StopArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let command = Command::Abort { reason: args.reason.clone() };
    let open = with_session(&args.session, invocation, async |target| {
        let id = target.session.entry.session.clone();
        if target.session.is_driven()
            && let CommandResult::Stored(number) = target.session.post_and_wait(&command).await?
        {
            return Ok(Some((id, number)));
        }
        if !target.session.is_driven() {
            if !target.session.entry.digest.status.has_ended() {
                secrets::check_stop(&*target.store, &id, invocation).await?;
            }
            let number = target.session.post(&command).await?;
            return Ok(Some((id, number)));
        }
        target.stopped().await.map(|()| None)
    })?;
    let Some((id, number)) = open else { return Ok(Exit::Success) };
    // No process runs it: it is resumed here, and no node starts but what cleans up.
    let mode = RunModeArgs::default();
    let resumed = StoredSession::open(id.as_str(), invocation)
        .and_then(|kept| kept.resume(Resume::default(), &mode, Ask::Never, invocation));
    match resumed {
        Ok(Exit::Interrupted) => Ok(Exit::Success),
        // It may have been about to end.
        Ok(exit) => {
            with_session(id.as_str(), invocation, async |target| Ok(target.session.stopped().await?))?;
            Ok(exit)
        }
        // Another process may have resumed it first, and then that one stops it.
        Err(failure) => {
            with_session(id.as_str(), invocation, async |target| match target.session.wait(number).await {
                Ok(CommandResult::Accepted) => target.stopped().await,
                _ => Err(failure),
            })?;
            Ok(Exit::Success)
        }
    }
}

pub(super) fn reply(args: &ReplyArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    detach::check(&args.mode, &[], &[], invocation)?;
    let ReplyWords { session, prompt, text } = ReplyWords::of(args)?;
    let (session, prompt) = meant(session, prompt, invocation)?;
    let resume = |id: &SessionId| {
        let kept = StoredSession::open(id.as_str(), invocation)?;
        if matches!(kept.edited(), Ok(Some(_))) {
            terminal::progress(
                "note: the flow was edited; using the original flow; `inspan reply --no-resume` and then \
                 `inspan resume ID --edited` use the edited flow\n",
            );
        }
        kept.resume(Resume::default(), &args.mode, Ask::TerminalOrShells, invocation)
    };
    // The process in the background: the one that started it has posted the answer.
    if args.mode.detached {
        return resume(&SessionId::from(session));
    }
    if let (ONLY, None, Some(word)) = (session, prompt, text) {
        let with = |session: &SessionId, open: &[Prompt]| match open {
            [open] => format!("answer with {}", in_ticks(&invocation.commands().answers(session, open))),
            _ => format!("answer with `inspan reply {session} TEXT`; `inspan inbox` shows what is asked"),
        };
        refuse_session_as_text(word, "answer", with, invocation)?;
    }
    let stored = with_session(session, invocation, async |target| {
        let open = match prompt {
            Some(prompt) => target.session.prompt(prompt, |_| true).await?,
            None => target.only(|open| open.kind != PromptKind::Permission, "no question")?,
        };
        // Two words are a session and an answer: the question's id instead of the answer is no answer.
        if prompt.is_none() && text == Some(open.prompt_id.as_str()) {
            return Err(target.no_answer(&open));
        }
        let content = match args.set.as_slice() {
            [] => text.unwrap_or_default().to_owned(),
            fields => target.fill_in(&open, fields)?,
        };
        let answer = PersonAnswer { content, choice: args.choice.clone() };
        if !args.no_resume && !target.session.is_driven() {
            secrets::check_stored(&*target.store, target.session.id(), invocation).await?;
        }
        let Some(number) = target.answer(&open, &answer).await? else { return Ok(None) };
        let id = target.session.entry.session.clone();
        if args.no_resume {
            target.done(&format!("stored; `inspan resume {id}` continues with it"))?;
        }
        Ok(Some((id, number)))
    })?;
    let Some((id, number)) = stored.filter(|_| !args.no_resume) else { return Ok(Exit::Success) };
    let mut resumed = resume(&id);
    while let Err(failure) = &resumed {
        // Another process has resumed it first: it applies or refuses the answer, unless it is leaving.
        let is_applied = with_session(id.as_str(), invocation, async |target| {
            let result = target.session.wait(number).await?;
            (result == CommandResult::Accepted).then(|| target.done("answered")).transpose()
        })?;
        if is_applied.is_some() {
            return Ok(Exit::Success);
        }
        if failure.code != SessionErrorCode::SessionHeld {
            break;
        }
        resumed = resume(&id);
    }
    let exit = resumed?;
    // Another answer may have come first.
    if !args.mode.detach {
        with_session(id.as_str(), invocation, async |target| {
            match target.store.answer(&id, number).await? {
                Some(Verdict::Refused(why)) => Err(Failure::usage(why)),
                _ => Ok(()),
            }
        })?;
    }
    Ok(exit)
}

pub(super) fn decide(
    args: &DecideArgs,
    word: &str,
    reason: Option<&str>,
    invocation: &Invocation,
) -> Result<Exit, Failure> {
    let (session, prompt) = meant(&args.session, args.prompt.as_deref(), invocation)?;
    with_session(session, invocation, async |target| {
        let asks = |open: &Prompt| open.kind == PromptKind::Permission;
        let open = match prompt {
            Some(prompt) => target.session.prompt(prompt, asks).await?,
            None => target.only(asks, "no permission")?,
        };
        if !asks(&open) {
            return Err(target.no_permission(&open));
        }
        let allows = word != "deny";
        if allows && !is_id(prompt, &open) && target.session.is_unseen(&open).await? {
            let what = format!("the open question may be another than you mean: {}", question_line(&open));
            return Err(
                Failure::usage(what).with_hint(format!("name it by its ID: {}", target.answers(&open)))
            );
        }
        target.session.answer(&open, &PersonAnswer::decision(&open, word, reason)).await?;
        match allows {
            true => target.done(&format!("answered `{word}` to {}", question_line(&open))),
            false => target.done("answered"),
        }
    })?;
    Ok(Exit::Success)
}

/// The session that is meant if none is named: the only open one of the working folder.
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

/// The session and the question that are meant: where one word is given, it may name the question.
fn meant<'a>(
    session: &'a str,
    prompt: Option<&'a str>,
    invocation: &Invocation,
) -> Result<(&'a str, Option<&'a str>), Failure> {
    let is_question = prompt.is_none() && names_question(session, invocation)?;
    Ok(if is_question { (ONLY, Some(session)) } else { (session, prompt) })
}

/// Whether a word where the session may be left out names no session, but a question of the only open one.
fn names_question(word: &str, invocation: &Invocation) -> Result<bool, Failure> {
    let store = store::open_reader(invocation)?;
    store::block_on(async {
        let is_session = store::find(&*store, word).await;
        if is_session.map_or_else(|failure| failure.code != SessionErrorCode::UnknownSession, |_| true) {
            return Ok(false);
        }
        let Ok(only) = store::find(&*store, ONLY).await else { return Ok(false) };
        let named = SessionTarget::new(store, Arc::new(SystemClock), only).prompt(word, |_| true).await;
        Ok(named.map_or_else(|error| error.code != SessionErrorCode::UnknownPrompt, |_| true))
    })
}

/// A shorter beginning of an id may be meant as an answer.
const SHORTEST_PREFIX: usize = 6;

/// One word is the text for the only session; one that names a session has no text with it. `what` is what is missing,
/// `with` how to give it.
fn refuse_session_as_text(
    word: &str,
    what: &str,
    with: impl Fn(&SessionId, &[Prompt]) -> String,
    invocation: &Invocation,
) -> Result<(), Failure> {
    let store = store::open_reader(invocation)?;
    let entry = store::block_on(async {
        Ok(match word {
            "@last" | "@last-failed" | ONLY => store::find(&*store, word).await.ok(),
            _ if word.len() < SHORTEST_PREFIX => store.entry(&SessionId::from(word)).await.ok(),
            _ => store.entries(word, 1).await?.pop(),
        })
    })?;
    let Some(SessionEntry { session, digest, .. }) = entry else { return Ok(()) };
    let message = format!("`{word}` names the session `{session}`, and the {what} is missing");
    Err(Failure::usage(message).with_hint(with(&session, &digest.prompts)))
}

/// The session that a command is for, and where its result is reported.
struct ReportedTarget<'a> {
    store: Arc<dyn RunStore>,
    session: SessionTarget,
    invocation: &'a Invocation,
}

fn with_session<'a, T: Default>(
    prefix: &str,
    invocation: &'a Invocation,
    work: impl AsyncFnOnce(&mut ReportedTarget<'a>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let store = store::open_writer(invocation)?;
    session::runtime()?.block_on(async {
        let entry = store::find(&*store, prefix).await?;
        let session = SessionTarget::new(Arc::clone(&store), Arc::new(SystemClock), entry);
        work(&mut ReportedTarget { store, session, invocation }).await
    })
}

impl ReportedTarget<'_> {
    /// Waits until a session that is being stopped has ended.
    async fn stopped(&mut self) -> Result<(), Failure> {
        self.session.stopped().await?;
        self.done("stopped")
    }

    /// The only open question of a kind; `none` is the message if there is none.
    fn only(&self, fits: impl Fn(&Prompt) -> bool, none: &str) -> Result<Prompt, Failure> {
        let prompts = &self.session.entry.digest.prompts;
        let open: Vec<_> = prompts.iter().filter(|open| fits(open)).collect();
        let id = &self.session.entry.session;
        match (open.as_slice(), prompts.as_slice()) {
            ([one], _) => Ok((*one).clone()),
            // A question of the other kind is answered by the other command.
            ([], [other]) if other.kind != PromptKind::Permission => Err(self.no_permission(other)),
            ([], [other]) => {
                let answers = self.invocation.commands().answers(id, other);
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
        Failure::usage(format!("`{}` is a question, not a permission", open.prompt_id))
            .with_hint(format!("answer it with {}", self.answers(open)))
    }

    /// The answer to a form whose fields are filled in as they were typed.
    fn fill_in(&self, open: &Prompt, fields: &[(String, String)]) -> Result<String, Failure> {
        let Some(form) = open.form() else {
            let what = format!("`{}` is not a form and takes no `--set`", open.prompt_id);
            return Err(Failure::usage(what).with_hint(format!("answer it with {}", self.answers(open))));
        };
        flow::each_once("set", fields.iter().map(|(field, _)| field))?;
        let typed = fields.iter().map(|(field, value)| (field.as_str(), value.as_str()));
        Ok(Value::Object(form.read(typed).map_err(Failure::usage)?).to_string())
    }

    /// The answer is missing.
    fn no_answer(&self, open: &Prompt) -> Failure {
        Failure::usage("the answer is missing").with_hint(format!("answer with {}", self.answers(open)))
    }

    /// The commands that answer a question.
    fn answers(&self, open: &Prompt) -> String {
        in_ticks(&self.invocation.commands().answers(&self.session.entry.session, open))
    }

    /// Answers a question. Gives the command's number if no process drives the session and the answer waits for one.
    async fn answer(&self, open: &Prompt, answer: &PersonAnswer) -> Result<Option<u64>, Failure> {
        match self.session.answer(open, answer).await? {
            CommandResult::Accepted => self.done("answered").map(|()| None),
            CommandResult::Stored(number) => Ok(Some(number)),
        }
    }

    fn done(&self, what: &str) -> Result<(), Failure> {
        match self.invocation.form {
            OutputForm::Json => {
                self.invocation.json(&json!({ "sessionId": self.session.entry.session, "done": what }))
            }
            OutputForm::Text => {
                let what = self.invocation.commands().complete(what);
                terminal::progress(&format!("{}: {what}\n", self.session.entry.session));
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
