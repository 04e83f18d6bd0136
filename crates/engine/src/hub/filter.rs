//! Which events a subscriber wants, by name and by context, and their text form.

use std::{fmt, str::FromStr};

use inspan_protocol::{Envelope, Event, NodeId, NodePath, RunId};

/// Which events a subscriber wants. In text a list of names separated by commas, where `*` means all
/// and `agent:*` all with this prefix; a name that starts with `_` is an extension's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    patterns: Vec<Pattern>,
    run: Option<RunId>,
    task: Option<NodePath>,
    node: Option<NodeId>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Pattern {
    Exact(String),
    Prefix(String),
}

/// A text that is no [`Filter`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an event name, nor the beginning of one with `*` at its end")]
pub struct InvalidFilter(
    /// The part that was refused.
    pub String,
);

impl Filter {
    /// Every event.
    pub fn all() -> Self {
        Self::of(Pattern::Prefix(String::new()))
    }

    /// The events of one name.
    pub fn name(name: impl Into<String>) -> Self {
        Self::of(Pattern::Exact(name.into()))
    }

    /// The events whose names have this prefix: `agent:` is what `agent:*` means in text.
    pub fn prefix(prefix: impl Into<String>) -> Self {
        Self::of(Pattern::Prefix(prefix.into()))
    }

    /// The events of any of the names.
    pub fn names<N: Into<String>>(names: impl IntoIterator<Item = N>) -> Self {
        let patterns = names.into_iter().map(|name| Pattern::Exact(name.into())).collect();
        Self { patterns, run: None, task: None, node: None }
    }

    /// Reads the text form.
    pub fn parse(text: &str) -> Result<Self, InvalidFilter> {
        let patterns = text.split(',').map(pattern).collect::<Result<_, _>>()?;
        Ok(Self { patterns, run: None, task: None, node: None })
    }

    /// Only events of this agent run: emitted in its context, or naming it, and messages to all runs.
    #[must_use]
    pub fn of_run(self, run: RunId) -> Self {
        Self { run: Some(run), ..self }
    }

    /// Only events emitted at this place of the flow.
    #[must_use]
    pub fn of_task(self, task: NodePath) -> Self {
        Self { task: Some(task), ..self }
    }

    /// Only events emitted by this node, whatever its frame and pass.
    #[must_use]
    pub fn of_node(self, node: NodeId) -> Self {
        Self { node: Some(node), ..self }
    }

    /// Whether the event is wanted.
    pub fn matches(&self, envelope: &Envelope) -> bool {
        self.matches_name(envelope.event.name()) && self.matches_context(envelope)
    }

    pub(crate) fn matches_name(&self, name: &str) -> bool {
        self.patterns.iter().any(|pattern| match pattern {
            Pattern::Exact(exact) => exact == name,
            Pattern::Prefix(prefix) => name.starts_with(prefix.as_str()),
        })
    }

    /// Whether the subscriber waits for messages: it asks for `session:message`, and only for `session:` events.
    /// A subscriber that also asks for other events only watches. Messages carry no task.
    pub fn listens_for_messages(&self) -> bool {
        let session = |pattern: &Pattern| match pattern {
            Pattern::Exact(name) | Pattern::Prefix(name) => name.starts_with("session:"),
        };
        self.matches_name("session:message")
            && self.patterns.iter().all(session)
            && self.task.is_none()
            && self.node.is_none()
    }

    /// The only run that is asked for, if any.
    pub(crate) fn run(&self) -> Option<&RunId> {
        self.run.as_ref()
    }

    pub(crate) fn matches_context(&self, envelope: &Envelope) -> bool {
        let context = &envelope.context;
        let to_all = matches!(envelope.event, Event::SessionMessage { run_id: None, .. });
        let run = |run: &RunId| {
            to_all || context.agent.as_ref() == Some(run) || envelope.event.run_id() == Some(run)
        };
        let task = context.task.as_ref();
        self.run.as_ref().is_none_or(run)
            && self.task.as_ref().is_none_or(|wanted| task == Some(wanted))
            && self.node.as_ref().is_none_or(|wanted| task.is_some_and(|task| task.node() == wanted.as_str()))
    }

    fn of(pattern: Pattern) -> Self {
        Self { patterns: vec![pattern], run: None, task: None, node: None }
    }
}

fn pattern(part: &str) -> Result<Pattern, InvalidFilter> {
    let part = part.trim();
    let (name, prefix) = part.strip_suffix('*').map_or((part, false), |name| (name, true));
    let letters = name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b':' | b'_' | b'-' | b'.'));
    match prefix {
        _ if !letters => Err(InvalidFilter(part.to_owned())),
        true => Ok(Pattern::Prefix(name.to_owned())),
        false if name.is_empty() => Err(InvalidFilter(part.to_owned())),
        false => Ok(Pattern::Exact(name.to_owned())),
    }
}

impl FromStr for Filter {
    type Err = InvalidFilter;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

/// The names in text form; the context is not part of it.
impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, pattern) in self.patterns.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            match pattern {
                Pattern::Exact(name) => write!(f, "{comma}{name}")?,
                Pattern::Prefix(prefix) => write!(f, "{comma}{prefix}*")?,
            }
        }
        Ok(())
    }
}
