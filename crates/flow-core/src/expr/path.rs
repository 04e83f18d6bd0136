//! Plain paths such as `plan.items[0].title`: parsed once, followed without converting a value.

use serde_json::Value;

use crate::{expr::Scope, ids::NodeIx};

/// Keywords: a path cannot start with one.
const WORDS: &[&str] =
    &["and", "or", "not", "in", "is", "if", "else", "true", "false", "none", "True", "False", "None", "self"];

/// Whether a name is a keyword or always defined, and so cannot be a node id.
pub(crate) fn is_reserved(name: &str) -> bool {
    WORDS.contains(&name) || matches!(name, "flow" | "state" | "loop")
}

/// The name under which a template finds the frame that it runs in.
pub(crate) const FRAME: &str = "frame";

static NOT_FAILED: Value = Value::Bool(false);

/// Where a path starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PathRoot {
    /// The output of a node.
    Node(NodeIx),
    /// The output of a node whose failure is handled: its `failed` is false if it is not set, even if the node has
    /// not run.
    MayFail(NodeIx),
    /// The output of a node of a body around this one.
    Outer {
        /// How many bodies further out; 1 is the body around this one.
        depth: u32,
        /// The node, in that body.
        node: NodeIx,
        /// Whether its failure is handled.
        may_fail: bool,
    },
    /// `flow`.
    Flow,
    /// `state`.
    State,
    /// A name of a frame.
    Local(String),
}

impl PathRoot {
    /// The value at the root, if there is one yet.
    pub(super) fn value<'a>(&self, scope: &Scope<'a>) -> Option<&'a Value> {
        match self {
            Self::Node(node) | Self::MayFail(node) => scope.output(0, *node),
            Self::Outer { depth, node, .. } => scope.output(*depth, *node),
            Self::Flow => Some(scope.flow),
            Self::State => Some(scope.state),
            Self::Local(name) => scope.local(name),
        }
    }

    /// The node that it is the output of, and how many bodies further out that is.
    pub(crate) fn node(&self) -> Option<(u32, NodeIx)> {
        match self {
            Self::Node(node) | Self::MayFail(node) => Some((0, *node)),
            Self::Outer { depth, node, .. } => Some((*depth, *node)),
            Self::Flow | Self::State | Self::Local(_) => None,
        }
    }

    pub(crate) fn may_fail(&self) -> bool {
        matches!(self, Self::MayFail(_) | Self::Outer { may_fail: true, .. })
    }
}

/// One step down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PathStep {
    /// Into an object.
    Key(String),
    /// Into a list; negative counts from its end.
    Index(i64),
}

impl PathStep {
    fn take<'a>(&self, value: &'a Value) -> Option<&'a Value> {
        match (self, value) {
            (Self::Key(key), object) => object.get(key),
            (Self::Index(index), Value::Array(list)) => {
                let index = if *index < 0 { index + i64::try_from(list.len()).ok()? } else { *index };
                list.get(usize::try_from(index).ok()?)
            }
            _ => None,
        }
    }
}

/// A path with its root resolved.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    pub(crate) root: PathRoot,
    pub(crate) steps: Vec<PathStep>,
    /// As the author wrote it.
    pub(crate) source: String,
    /// Where it starts in the text that was parsed, in bytes.
    pub(crate) offset: u32,
}

impl Path {
    pub(super) fn new(root: PathRoot, steps: Vec<PathStep>, source: &str, offset: usize) -> Self {
        Self { root, steps, source: source.into(), offset: u32::try_from(offset).unwrap_or(u32::MAX) }
    }

    /// The name that it starts with.
    pub(crate) fn name(&self) -> &str {
        self.source.split(['.', '[']).next().unwrap_or(&self.source).trim_end()
    }

    /// Its place in the text that was parsed: the offset of its first byte, and its length.
    pub(crate) fn range(&self) -> (usize, usize) {
        (self.offset as usize, self.source.len())
    }

    /// The place of one of its steps.
    pub(crate) fn step_range(&self, step: usize) -> (usize, usize) {
        let source = self.source.as_str();
        let word = |c: char| c == '_' || c.is_alphanumeric();
        let mut at = source.find(|c: char| !word(c)).unwrap_or(source.len());
        for nth in 0..=step {
            let rest = &source[at..];
            let lead = rest.len() - rest.trim_start().len();
            let rest = &rest[lead..];
            let (from, len) = match rest.strip_prefix('.') {
                Some(after) => {
                    let gap = after.len() - after.trim_start().len();
                    let name = after.trim_start();
                    (at + lead + 1 + gap, name.find(|c: char| !word(c)).unwrap_or(name.len()))
                }
                None => (at + lead, rest.find(']').map_or(rest.len(), |end| end + 1)),
            };
            if nth == step {
                return (self.offset as usize + from, len);
            }
            at = (from + len).min(source.len());
        }
        self.range()
    }

    /// The value, or why there is none.
    pub(super) fn get<'a>(&self, scope: &Scope<'a>) -> Result<&'a Value, String> {
        let found = self.find(scope);
        match self.steps.as_slice() {
            [PathStep::Key(key)] if key == "failed" && self.root.may_fail() => {
                Ok(found.unwrap_or(&NOT_FAILED))
            }
            _ => found,
        }
    }

    fn find<'a>(&self, scope: &Scope<'a>) -> Result<&'a Value, String> {
        let name = self.name();
        let Some(mut value) = self.root.value(scope) else {
            return Err(match self.root {
                PathRoot::Node(_) | PathRoot::MayFail(_) | PathRoot::Outer { .. } => {
                    format!("`{name}` has no output: the node has not completed")
                }
                _ => format!("`{name}` is not defined here"),
            });
        };
        for (depth, step) in self.steps.iter().enumerate() {
            value = step.take(value).ok_or_else(|| {
                let base = spell(name, &self.steps[..depth]);
                match step {
                    PathStep::Key(key) => format!("`{base}` has no `{key}`"),
                    PathStep::Index(index) => format!("`{base}` has no item {index}"),
                }
            })?;
        }
        Ok(value)
    }
}

/// A path in one form, however it was written: `plan.items[0].title`.
pub(crate) fn spell(name: &str, steps: &[PathStep]) -> String {
    let mut text = name.to_owned();
    for step in steps {
        match step {
            PathStep::Key(key) => {
                text.push('.');
                text.push_str(key);
            }
            PathStep::Index(index) => text.push_str(&format!("[{index}]")),
        }
    }
    text
}

/// Parses a plain path into its first name and its steps; none if the text is anything else.
pub(crate) fn plain_path(text: &str) -> Option<(&str, Vec<PathStep>)> {
    let text = text.trim();
    let (name, mut rest) = identifier(text)?;
    if WORDS.contains(&name) {
        return None;
    }
    let mut steps = Vec::new();
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('.') {
            let (key, after) = identifier(after)?;
            steps.push(PathStep::Key(key.into()));
            rest = after;
        } else {
            let (inner, after) = bracket(rest.strip_prefix('[')?)?;
            steps.push(inner);
            rest = after;
        }
    }
    Some((name, steps))
}

fn bracket(text: &str) -> Option<(PathStep, &str)> {
    for quote in ['"', '\''] {
        if let Some(inner) = text.strip_prefix(quote) {
            let (key, after) = inner.split_once(quote)?;
            let after = after.strip_prefix(']')?;
            return (!key.contains('\\')).then(|| (PathStep::Key(key.into()), after));
        }
    }
    let (index, after) = text.split_once(']')?;
    let digits = index.strip_prefix('-').unwrap_or(index);
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    if plain { Some((PathStep::Index(index.parse().ok()?), after)) } else { None }
}

/// Whether a byte may be part of a name.
pub(super) fn is_word(b: u8) -> bool {
    b == b'_' || b.is_ascii_alphanumeric()
}

fn identifier(text: &str) -> Option<(&str, &str)> {
    let end = text
        .bytes()
        .enumerate()
        .position(|(at, b)| !(b == b'_' || b.is_ascii_alphabetic() || (at > 0 && b.is_ascii_digit())))
        .unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}
