//! Problems of a flow, each with a stable code and its place in the file.

use std::{collections::BTreeSet, fmt, sync::Arc};

use inspan_protocol::NodeId;
use serde::{Serialize, Serializer};

macro_rules! codes {
    ($( $variant:ident $name:literal $what:literal; )*) => {
        /// The kind of a problem. The names are stable: scripts and editors may rely on them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Code { $( #[doc = $what] $variant, )* }

        impl Code {
            /// Every code.
            pub const ALL: &[Self] = &[$( Self::$variant, )*];

            /// Its stable name.
            pub const fn as_str(self) -> &'static str {
                match self { $( Self::$variant => $name, )* }
            }

            /// What it means, in one sentence.
            pub const fn meaning(self) -> &'static str {
                match self { $( Self::$variant => $what, )* }
            }
        }
    };
}

codes! {
    YamlSyntax "yaml-syntax" "The text is not valid YAML.";
    EmptyFile "empty-file" "The file has no content.";
    SeveralDocuments "several-documents" "The file has more than one YAML document.";
    TooLarge "too-large" "The document, or a file that it includes, is too large or too deeply nested.";
    DuplicateKey "duplicate-key" "A mapping has the same key twice.";
    UnknownKey "unknown-key" "The key is not known here.";
    MissingKey "missing-key" "A required key is missing.";
    WrongType "wrong-type" "The value has the wrong type.";
    InvalidValue "invalid-value" "The value has the right type, but it is not allowed here.";
    NotSupported "not-supported" "The key is not supported yet.";
    InvalidId "invalid-id" "The text is not a valid node id.";
    DuplicateId "duplicate-id" "Two nodes have the same id.";
    UnknownNodeType "unknown-node-type" "No node type with this name is registered.";
    DuplicateType "duplicate-type" "Two packs declare the same node type.";
    UnknownPack "unknown-pack" "No node pack with this name is registered.";
    PackNotListed "pack-not-listed" "The type of the node is in a pack that `nodePacks` does not list.";
    DanglingEdge "dangling-edge" "An edge or `dependsOn` names a node that does not exist.";
    DuplicateEdge "duplicate-edge" "Two edges connect the same nodes.";
    SelfEdge "self-edge" "An edge leads from a node to itself without a limit.";
    Cycle "cycle" "Edges form a cycle without a limit.";
    LoopWithoutCycle "loop-without-cycle" "An edge has `maxIterations` but does not close a cycle.";
    OverlappingLoops "overlapping-loops" "Two loops overlap so that nothing can wait for one of them to end.";
    EndlessLoop "endless-loop" "A loop can only end by failing at its limit.";
    UnreachableExit "unreachable-exit" "An edge out of a loop never fires: the loop always starts another pass first.";
    ShadowedName "shadowed-name" "A name of a body is also a name around it.";
    Recursion "recursion" "A flow runs itself without a limit.";
    NeverFires "never-fires" "An edge can never fire, because of how its source ends.";
    UnknownAgent "unknown-agent" "No agent with this name is declared.";
    UnknownNode "unknown-node" "`session` names a node that does not exist.";
    NotAnAgent "not-an-agent" "`session` is set on, or names, a node that does not run an agent.";
    InvalidInput "invalid-input" "The input does not match the schema of the node type.";
    InvalidSchema "invalid-schema" "A JSON Schema is not valid.";
    UnknownBinding "unknown-binding" "A template or condition uses a name or key that cannot exist.";
    TemplateSyntax "template-syntax" "A template cannot be parsed.";
    ConditionSyntax "condition-syntax" "A condition cannot be parsed.";
    FileMissing "file-missing" "A file that the flow includes does not exist or cannot be read.";
    FileOutsideFolder "file-outside-folder" "A file that the flow includes is outside the folder of the flow file.";
    FileConflict "file-conflict" "A value is set both in the flow and by a file.";
    UnknownProvider "unknown-provider" "No provider with this name is registered.";
    InputNotGiven "input-not-given" "A template uses an input without a default, so every run must pass it.";
    TemplateComment "template-comment" "A part of a shell script is taken as a comment of a template.";
    TemplateDollar "template-dollar" "A `$` before a template stays in the text.";
    ShellTemplate "shell-template" "A template is used inside a shell script.";
    SharedConversation "shared-conversation" "Two nodes that may run at the same time continue the same conversation.";
    OptionalValue "optional-value" "A template or condition uses a value that may be missing.";
    MaybeSkipped "maybe-skipped" "A template or condition uses the output of a node that may not have run.";
    Contradiction "contradiction" "Options contradict each other, or one makes another useless.";
    UnreachableNode "unreachable-node" "A node can never run.";
    ConstantCondition "constant-condition" "A comparison has the same result in every run.";
    UnsupportedCapability "unsupported-capability" "The node needs something that its provider cannot do.";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// How bad a problem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Severity {
    /// The flow cannot run.
    Error,
    /// The flow can run, but probably not as intended.
    Warning,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warning => "warning",
        })
    }
}

/// A place in a text; both count from 1, columns in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Position {
    /// The line.
    pub line: u32,
    /// The character in the line.
    pub column: u32,
}

/// One problem.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Diagnostic {
    /// Its kind.
    pub code: Code,
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong, in one sentence.
    pub message: String,
    /// How to fix it.
    pub help: Option<String>,
    /// The flow file, or a file that it includes.
    pub path: Arc<str>,
    /// Where it starts.
    #[serde(flatten)]
    pub start: Position,
    /// The place after its end, if known.
    pub end: Option<Position>,
    /// The node that it belongs to.
    pub node: Option<NodeId>,
    /// The key, as `nodes[2].input.options.model`.
    pub key: Option<String>,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Position { line, column } = self.start;
        write!(f, "{}:{line}:{column}: {}[{}]: {}", self.path, self.severity, self.code, self.message)?;
        self.help.as_ref().map_or(Ok(()), |help| write!(f, " (help: {help})"))
    }
}

/// Problems in the order of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Diagnostics(Vec<Diagnostic>);

impl Diagnostics {
    /// All except those with this code.
    pub fn without(mut self, code: Code) -> Self {
        self.0.retain(|diagnostic| diagnostic.code != code);
        self
    }

    /// The node types that are not registered.
    pub fn unknown_node_types(&self) -> BTreeSet<&str> {
        let unknown = self.0.iter().filter(|diagnostic| diagnostic.code == Code::UnknownNodeType);
        unknown
            .filter_map(|diagnostic| diagnostic.message.strip_prefix(UNKNOWN_TYPE)?.strip_suffix('`'))
            .collect()
    }

    /// Whether one of them is an error.
    pub fn has_errors(&self) -> bool {
        self.0.iter().any(|diagnostic| diagnostic.severity == Severity::Error)
    }
}

impl std::ops::Deref for Diagnostics {
    type Target = [Diagnostic];

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl IntoIterator for Diagnostics {
    type Item = Diagnostic;
    type IntoIter = std::vec::IntoIter<Diagnostic>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, diagnostic) in self.0.iter().enumerate() {
            write!(f, "{}{diagnostic}", if at == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostics {}

/// A range of a source: 0 is the flow file, others are files that it includes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SourceSpan {
    pub(crate) source: u16,
    pub(crate) start: Position,
    pub(crate) end: Position,
}

impl SourceSpan {
    /// The place of what is not placed yet.
    pub(crate) const NOWHERE: Self =
        Self { source: 0, start: Position { line: 1, column: 1 }, end: Position { line: 1, column: 1 } };

    /// A single position.
    pub(crate) fn at(source: u16, line: u32, column: u32) -> Self {
        let start = Position { line, column };
        Self { source, start, end: start }
    }
}

/// How the message about an unknown node type begins, before its name.
const UNKNOWN_TYPE: &str = "unknown node type `";

/// A problem before its file is named.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    pub(crate) code: Code,
    severity: Severity,
    pub(crate) span: SourceSpan,
    pub(crate) message: String,
    help: Option<String>,
    node: Option<NodeId>,
    key: Option<String>,
}

impl Problem {
    pub(crate) fn new(severity: Severity, code: Code, span: SourceSpan, message: impl Into<String>) -> Self {
        Self { code, severity, span, message: message.into(), help: None, node: None, key: None }
    }

    pub(crate) fn error(code: Code, span: SourceSpan, message: impl Into<String>) -> Self {
        Self::new(Severity::Error, code, span, message)
    }

    pub(crate) fn unknown_node_type(span: SourceSpan, name: &str) -> Self {
        Self::error(Code::UnknownNodeType, span, format!("{UNKNOWN_TYPE}{name}`"))
    }

    pub(crate) fn warning(code: Code, span: SourceSpan, message: impl Into<String>) -> Self {
        Self::new(Severity::Warning, code, span, message)
    }

    pub(crate) fn at(mut self, span: SourceSpan) -> Self {
        self.span = span;
        self
    }

    pub(crate) fn help(mut self, help: impl Into<Option<String>>) -> Self {
        self.help = help.into();
        self
    }

    pub(crate) fn node(mut self, node: Option<&NodeId>) -> Self {
        self.node = node.cloned();
        self
    }

    pub(crate) fn key(mut self, key: impl fmt::Display) -> Self {
        self.key = Some(key.to_string());
        self
    }
}

/// Collects problems.
#[derive(Debug)]
pub(crate) struct Sink {
    sources: Vec<Arc<str>>,
    problems: Vec<Problem>,
    /// Invalid ids: a reference to such a node is not reported again.
    refused: Vec<String>,
    /// Whether an input that no run can take is no problem.
    pub(crate) passes_inputs: bool,
}

impl Sink {
    pub(crate) fn new(flow: Arc<str>) -> Self {
        Self { sources: vec![flow], problems: Vec::new(), refused: Vec::new(), passes_inputs: false }
    }

    /// Adds a file that problems may be in.
    pub(crate) fn source(&mut self, path: &str) -> u16 {
        if let Some(at) = self.sources.iter().position(|known| **known == *path) {
            return u16::try_from(at).unwrap_or(0);
        }
        let Ok(at) = u16::try_from(self.sources.len()) else { return 0 };
        self.sources.push(path.into());
        at
    }

    /// The name of the file that a place is in.
    pub(crate) fn name(&self, span: SourceSpan) -> &str {
        &self.sources[usize::from(span.source)]
    }

    /// Adds a file under the next number.
    pub(crate) fn add_source(&mut self, path: &str) {
        self.sources.push(path.into());
    }

    pub(crate) fn push(&mut self, problem: Problem) {
        self.problems.push(problem);
    }

    /// Adds a problem that the node has when it runs.
    pub(crate) fn push_of_input(&mut self, problem: Problem) {
        if !self.passes_inputs {
            self.push(problem);
        }
    }

    /// How many problems were found so far.
    pub(crate) fn len(&self) -> usize {
        self.problems.len()
    }

    /// Adds to the problems since then the agent of the node with which they are found, unless they were found before.
    pub(crate) fn label(&mut self, since: usize, agent: &str) {
        let found = self.problems.split_off(since);
        for mut problem in found {
            let is_same = |known: &Problem| {
                (known.code, known.span, &known.message) == (problem.code, problem.span, &problem.message)
            };
            if !self.problems.iter().any(is_same) {
                problem.message = format!("with the agent `{agent}`: {}", problem.message);
                self.problems.push(problem);
            }
        }
    }

    /// Records an invalid id.
    pub(crate) fn refused(&mut self, id: &str) {
        self.refused.push(format!("`{id}`"));
    }

    /// A prompt that is set in the wrong place is not reported as missing too.
    fn without_consequences(&mut self) {
        let unknown = self.problems.iter().filter(|problem| problem.code == Code::UnknownKey);
        let misplaced: Vec<String> = unknown
            .filter_map(|problem| {
                let (node, key) = problem.key.as_ref()?.rsplit_once('.')?;
                let is_node = node.starts_with("nodes[") && node.ends_with(']');
                let holds_prompt = ["prompt", "inputs", "messages", "promptFile"].contains(&key)
                    || problem.help.as_deref().is_some_and(|help| help.contains("`input`"));
                (is_node && holds_prompt).then(|| format!("{node}.input.prompt"))
            })
            .collect();
        self.problems.retain(|problem| {
            let is_prompt = problem.code == Code::MissingKey && problem.key.is_some();
            !(is_prompt && misplaced.iter().any(|key| problem.key.as_ref() == Some(key)))
        });
    }

    pub(crate) fn finish(mut self) -> Diagnostics {
        let names_refused = |message: &str| self.refused.iter().any(|id| message.contains(id.as_str()));
        self.problems.retain(|problem| {
            !(matches!(problem.code, Code::DanglingEdge | Code::UnknownNode)
                && names_refused(&problem.message))
        });
        self.without_consequences();
        self.problems.sort_by(|a, b| {
            let place = |p: &Problem| (p.span.source, p.span.start, p.severity, p.code);
            place(a).cmp(&place(b)).then_with(|| a.message.cmp(&b.message))
        });
        let sources = self.sources;
        let named = self.problems.into_iter().map(|problem| Diagnostic {
            code: problem.code,
            severity: problem.severity,
            message: problem.message,
            help: problem.help,
            path: sources[usize::from(problem.span.source)].clone(),
            start: problem.span.start,
            end: (problem.span.end > problem.span.start).then_some(problem.span.end),
            node: problem.node,
            key: problem.key,
        });
        let mut named: Vec<_> = named.collect();
        // Settings that several nodes share are reported once.
        named.dedup_by(|b, a| {
            let key = |found: &Diagnostic| (found.code, found.path.clone(), found.start, found.end);
            key(a) == key(b) && a.message == b.message
        });
        Diagnostics(named)
    }
}

/// Names in backquotes, with commas between them.
pub(crate) fn quoted<T: fmt::Display>(names: impl IntoIterator<Item = T>) -> String {
    names.into_iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// "did you mean …", if a name is similar.
pub(crate) fn did_you_mean<'a>(wrong: &str, names: impl IntoIterator<Item = &'a str>) -> Option<String> {
    closest(wrong, names).map(|name| format!("did you mean `{name}`?"))
}

/// The longest name that is compared with others.
const LONGEST_NAME: usize = 100;

/// The name that was probably meant: the one that differs least, if any differs little enough.
pub fn closest<'a>(wrong: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let folded = wrong.to_lowercase();
    let length = wrong.chars().count();
    let allowed = match length {
        0..=2 => 0,
        3..=5 => 1,
        LONGEST_NAME.. => return None,
        length => length / 3,
    };
    names
        .into_iter()
        .filter(|name| *name != wrong && name.chars().count().abs_diff(length) <= allowed)
        .map(|name| (strsim::osa_distance(&folded, &name.to_lowercase()), name))
        .filter(|(distance, _)| *distance <= allowed)
        .min()
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closest_name_is_one_that_may_have_been_meant() {
        let long = "x".repeat(20_000);
        let almost = format!("{long}y");
        let rows = [
            ("modle", "model", Some("model")),
            ("Modle", "model", Some("model")),
            ("md", "me", None),
            ("model", "model", None),
            ("mod", "model", None),
            // Two long texts are not compared: no one would read them.
            (&almost, &long, None),
        ];
        let found = rows.map(|(wrong, name, _)| closest(wrong, [name]));
        assert_eq!(found, rows.map(|(.., meant)| meant));
    }
}
