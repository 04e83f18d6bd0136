//! A command's failure: its message, its exit code, and their form for people
//! and for programs.

use std::fmt::Display;

use inspan_flow::{NotRaised, OverrideError};
use inspan_protocol::SessionId;
use inspan_sessions::{SessionError, SessionErrorCode, meant};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{args::REASON, exit::Exit};
use inspan_view::{Colour, Commands, Line, Tone, entry::without_nulls};

/// A command's failure.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Failure {
    /// How the program ends.
    pub(crate) exit: Exit,
    /// What kind of failure it is, as the API says it too.
    pub(crate) code: SessionErrorCode,
    /// What went wrong: a fragment in lower case that names the file, node or key.
    pub(crate) message: String,
    /// What to do about it.
    pub(crate) hint: Option<String>,
    /// The option that it is about. Callers of the API know it by another name.
    pub(crate) option: Option<RefusedOption>,
    /// The session that is stored, and outlives the command.
    pub(crate) session: Option<SessionId>,
    /// Whether it has been shown already, in its own form.
    pub(crate) shown: Shown,
}

/// An option whose value is refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RefusedOption {
    /// Its name without the dashes.
    pub(crate) name: String,
    pub(crate) reason: String,
}

/// Whether a failure still has to be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    NotYet,
    Already,
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        let code = match exit {
            Exit::Invalid => SessionErrorCode::InvalidRequest,
            Exit::Configuration => SessionErrorCode::Configuration,
            _ => SessionErrorCode::Failed,
        };
        Self {
            exit,
            code,
            message: message.into(),
            hint: None,
            option: None,
            session: None,
            shown: Shown::NotYet,
        }
    }

    /// Wrong usage.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Invalid, message)
    }

    /// `--json` beside another format.
    pub(crate) fn two_formats() -> Self {
        Self::usage("`--json` and `--format` name two formats: use one of them")
    }

    /// An option whose value does not fit.
    pub(crate) fn of_option(name: &str, reason: impl Display) -> Self {
        let option = RefusedOption { name: name.to_owned(), reason: reason.to_string() };
        Self { option: Some(option), ..Self::usage(format!("--{name}: {reason}")) }
    }

    /// A change of the flow that an option asks for and that cannot be made.
    pub(crate) fn of_change(option: &str, error: OverrideError) -> Self {
        match error {
            OverrideError::UnknownNode { node, help } => {
                Self::of_option(option, format!("unknown node `{node}`")).with_hint(help)
            }
            error => Self::of_option(option, error),
        }
    }

    /// A name that nothing has, with the one that may be meant.
    pub(crate) fn unknown<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a str>) -> Self {
        let known: Vec<&str> = known.collect();
        Self::usage(format!("unknown {what} `{name}`")).with_hint(meant(name, &known))
    }

    /// The same failure, of the value of an option.
    pub(crate) fn in_option(self, name: &str) -> Self {
        Self { hint: self.hint, ..Self::of_option(name, self.message) }
    }

    /// A command line that cannot be read, as [`crate::args::meant`] leaves it.
    pub(crate) fn of_command_line(error: &clap::Error) -> Self {
        use clap::error::{ContextKind, ContextValue, ErrorKind};

        // The text of these is a list of all commands.
        if let ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand =
            error.kind()
        {
            return Self::usage("the command is missing").with_hint("`inspan help` lists the commands");
        }
        let text = error.render().to_string();
        let mut parts = text.split("\n\n").map(|part| part.split_whitespace().collect::<Vec<_>>().join(" "));
        let first = parts.next().unwrap_or_default();
        let mut failure = Self::usage(first.strip_prefix("error: ").unwrap_or(&first));
        // An option is named as in `--budget <LIMIT=N>`.
        if let (Some(ContextValue::String(option)), Some(ContextValue::String(reason))) =
            (error.get(ContextKind::InvalidArg), error.get(REASON))
            && let Some(name) = option.split(' ').next().and_then(|word| word.strip_prefix("--"))
        {
            failure.option = Some(RefusedOption { name: name.to_owned(), reason: reason.clone() });
        }
        let hints = parts.filter(|part| !part.is_empty() && !part.starts_with("For more information"));
        let hints =
            hints.map(|hint| hint.strip_prefix("tip: ").unwrap_or(&hint).to_owned()).collect::<Vec<_>>();
        if hints.is_empty() { failure } else { failure.with_hint(hints.join("; ")) }
    }

    /// With commands in its hint that mean the same sessions as the call that failed.
    pub(crate) fn naming(&self, commands: &Commands) -> Self {
        Self { hint: self.hint.as_deref().map(|hint| commands.complete(hint)), ..self.clone() }
    }

    #[must_use]
    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// With the session that is stored, and outlives the command.
    #[must_use]
    pub(crate) fn of_session(mut self, session: &SessionId) -> Self {
        self.session = Some(session.clone());
        self
    }

    /// With what kind of failure it is, if its exit code does not say that.
    #[must_use]
    pub(crate) fn with_code(mut self, code: SessionErrorCode) -> Self {
        self.code = code;
        self
    }

    /// The form for people.
    pub(crate) fn text(&self, colour: Colour) -> String {
        let mut text = String::new();
        let mut part = |tone, name: &str, said: &str| {
            for (at, said) in said.lines().enumerate() {
                let mut line = Line::new();
                if at == 0 {
                    line.push(tone, name).push(Tone::Strong, ": ");
                }
                line.push(Tone::Plain, said);
                text.push_str(&line.render(colour));
                text.push('\n');
            }
        };
        part(Tone::Bad, "error", &self.message);
        if let Some(hint) = &self.hint {
            part(Tone::Accent, "  help", hint);
        }
        text
    }

    /// The form for programs.
    pub(crate) fn json(&self) -> Value {
        let (hint, option) = (&self.hint, &self.option);
        let error =
            json!({ "code": self.code.word(), "message": self.message, "hint": hint, "option": option });
        let (outcome, code) = (self.exit.word(), self.exit.code());
        without_nulls(json!({
            "outcome": outcome, "exitCode": code, "error": without_nulls(error), "sessionId": self.session,
        }))
    }
}

/// A result for programs, with how the command ends and, if that is a failure, why.
pub(crate) fn with_end(mut result: Value, failure: Option<&Failure>) -> Value {
    let end = match failure {
        Some(failure) => failure.json(),
        None => json!({ "outcome": Exit::Success.word(), "exitCode": Exit::Success.code() }),
    };
    if let (Value::Object(result), Value::Object(end)) = (&mut result, end) {
        result.extend(end);
    }
    result
}

impl From<SessionError> for Failure {
    fn from(error: SessionError) -> Self {
        let failure = Self::new(Exit::of_session_error(error.code), error.message).with_code(error.code);
        match error.hint {
            Some(hint) => failure.with_hint(hint),
            None => failure,
        }
    }
}

impl From<NotRaised> for Failure {
    fn from(error: NotRaised) -> Self {
        Self::usage(error.to_string())
            .with_hint("a new limit must exceed the current one and, if that is used up, the amount spent")
    }
}

impl Exit {
    /// What a program earns that could not do something with a session.
    fn of_session_error(code: SessionErrorCode) -> Self {
        match code {
            SessionErrorCode::Configuration => Self::Configuration,
            SessionErrorCode::FlowOfOtherVersion
            | SessionErrorCode::NoResponse
            | SessionErrorCode::CannotStart
            | SessionErrorCode::StoreDamaged
            | SessionErrorCode::StoreUnavailable
            | SessionErrorCode::Failed => Self::Failed,
            _ => Self::Invalid,
        }
    }
}
