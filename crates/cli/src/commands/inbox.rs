//! `inspan inbox [ID]`: the questions that wait for a person, each with the commands that answer it.

use inspan_engine::{Clock, SystemClock};
use serde_json::Value;

use crate::args::InboxArgs;
use crate::console::fields;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::invocation::OutputForm;
use crate::store;
use crate::terminal;
use crate::terminal::TerminalReader;
use inspan_sessions::Question;
use inspan_view::{Commands, Line, Permission, Tone, format, safe::clean};

pub(super) fn run(args: &InboxArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let entries = store::read(invocation, async |store| match &args.session {
        Some(session) => Ok(vec![store::find(store.as_ref(), session).await?]),
        None => Ok(store.entries("", usize::MAX).await?),
    })?;
    for entry in &entries {
        if let Some(damage) = &entry.damage {
            let (session, damage) = (clean(entry.session.as_str()), clean(damage));
            terminal::progress(&format!(
                "warning: the questions of session `{session}` cannot be read: {damage}\n"
            ));
        }
    }
    let commands = invocation.commands();
    let questions = inspan_sessions::questions(&entries, SystemClock.now());
    match invocation.form {
        OutputForm::Json => {
            let all: Vec<Value> = questions.iter().map(|question| question.json(&commands)).collect();
            invocation.json(&all);
        }
        OutputForm::Text if questions.is_empty() => {
            terminal::progress("no questions are waiting\n");
        }
        OutputForm::Text => {
            for (at, question) in questions.iter().enumerate() {
                let break_before = (at > 0).then(Line::new);
                let lines = break_before.into_iter().chain(lines(question, &commands));
                if invocation.print(lines) == TerminalReader::Gone {
                    break;
                }
            }
        }
    }
    Ok(Exit::Success)
}

fn lines(asked: &Question, commands: &Commands) -> Vec<Line> {
    let Question { entry, prompt, .. } = asked;
    let mut head = Line::new();
    head.push(Tone::Strong, &clean(entry.session.as_str()))
        .push(Tone::Faint, &format!("  {}", clean(&entry.flow)));
    if let Some(task) = &prompt.task {
        head.push(Tone::Faint, &format!(" › {task}"));
    }
    head.push(Tone::Faint, &format!("  {}", prompt.prompt_id));
    let mut lines = vec![head];
    lines.extend(question(asked, commands));
    lines
}

/// The question; for a permission the tool and its whole arguments; what happens without an answer; and the commands.
pub(super) fn question(Question { entry, prompt, is_late }: &Question, commands: &Commands) -> Vec<Line> {
    let permission = Permission::of(prompt.kind, prompt.detail.as_ref(), &prompt.prompt);
    let mut asked = Line::new();
    asked.push(Tone::Warning, "  ? ");
    match &permission {
        Some(permission) => asked.push(Tone::Strong, &permission.title()),
        None => asked.push(Tone::Plain, &clean(&prompt.prompt)),
    };
    let mut lines = vec![asked];
    lines.extend(prompt.form().iter().flat_map(fields));
    lines.extend(permission.iter().flat_map(Permission::lines).map(|line| line.indented(4)));
    let otherwise = match (&prompt.default, prompt.deadline) {
        (default, Some(at)) if *is_late => {
            let then = match default {
                Some(default) => format!("takes `{}`", clean(default)),
                None => "lets the node fail".to_owned(),
            };
            let at = format::moment(at);
            Some(format!("expired at {at}: it takes no answer, and resuming the session {then}"))
        }
        (Some(default), Some(at)) => {
            Some(format!("without an answer by {}: `{}`", format::moment(at), clean(default)))
        }
        (Some(default), None) => Some(format!("default: `{}`", clean(default))),
        (None, Some(at)) => Some(format!("expires at {}, then the node fails", format::moment(at))),
        (None, None) => None,
    };
    lines.extend(otherwise.map(|otherwise| Line::new().with(Tone::Faint, &format!("    {otherwise}"))));
    let next = commands.for_question(entry, prompt, *is_late);
    lines
        .extend(next.iter().map(|command| Line::new().with(Tone::Plain, "    ").with(Tone::Accent, command)));
    lines
}
