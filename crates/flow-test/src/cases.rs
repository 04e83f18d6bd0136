//! The cases of a test file checked against its flow: every path leads to a node, every answer fits its node.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use inspan_flow::{Body, BodyIx, Graph, NodeKind, NodeRegistry, closest};
use inspan_protocol::Timestamp;
use serde_json::{Map, Value};
use serde_saphyr::{Location, Spanned};

use crate::{
    answer::{AnswerKind, AttemptAnswer, ErrorAnswer},
    expect::Expect,
    file::{CaseSpec, FaultSpec, FileProblem, Replies, TestFile},
    pattern::{Pattern, place_in_file},
};

/// A case with everything found and checked.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    /// Its place in the file.
    pub(crate) line: u64,
    pub(crate) input: Map<String, Value>,
    pub(crate) recordings: Option<PathBuf>,
    pub(crate) answers: Arc<Vec<(Pattern, Value)>>,
    /// How many of them are its own; the others are those of `defaults`.
    pub(crate) own_answers: usize,
    pub(crate) replies: Vec<(Pattern, Replies)>,
    /// How many of them are its own.
    pub(crate) own_replies: usize,
    pub(crate) messages: Vec<(Pattern, Vec<String>)>,
    pub(crate) clock: Timestamp,
    pub(crate) faults: Vec<Fault>,
    pub(crate) expect: Expect,
}

/// When a session starts unless its case says otherwise: 2026-01-01T00:00:00Z.
const START: Timestamp = Timestamp::from_millis(1_767_225_600_000);

/// A fault, ready.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Fault {
    Error {
        node: Pattern,
        attempt: u32,
        error: ErrorAnswer,
    },
    Deny {
        node: Pattern,
        attempt: u32,
        tool: String,
    },
    /// None: after each node.
    Crash(Option<Pattern>),
}

impl FaultSpec {
    fn read(&self) -> Result<Fault, String> {
        let kinds = [self.error.is_some(), self.deny.is_some(), self.crash_after.is_some()];
        if kinds.iter().filter(|kind| **kind).count() != 1 {
            return Err("a fault has exactly one of `error`, `deny` and `crashAfter`".to_owned());
        }
        if let Some(node) = &self.crash_after {
            if self.node.is_some() || self.attempt.is_some() {
                return Err("`crashAfter` names its node itself: remove `node` and `attempt`".to_owned());
            }
            return match node.as_str() {
                "each" => Ok(Fault::Crash(None)),
                node => Pattern::parse(node).map(|node| Fault::Crash(Some(node))),
            };
        }
        let node = Pattern::parse(self.node.as_deref().ok_or("`node` is missing: the node that it meets")?)?;
        let attempt = self.attempt.unwrap_or(1);
        if attempt == 0 {
            return Err("`attempt` counts from 1".to_owned());
        }
        if let Some(tool) = &self.deny {
            return Ok(Fault::Deny { node, attempt, tool: tool.clone() });
        }
        let error = ErrorAnswer {
            error: self.error.clone().unwrap_or_default(),
            message: self.message.clone(),
            resets_in: self.resets_in,
            resets_at: self.resets_at,
            retry_after: self.retry_after,
            ..ErrorAnswer::default()
        };
        error.code()?;
        Ok(Fault::Error { node, attempt, error })
    }
}

/// Checks the cases of a file against its flow: every problem, or the cases.
pub(crate) fn cases(
    path: &Path,
    file: &TestFile,
    graph: &Graph,
    nodes: &NodeRegistry,
) -> Result<Vec<Case>, Vec<FileProblem>> {
    let places = places(graph, nodes);
    let recursive = calls_itself(graph);
    let special = SpecialPlaces::of(graph);
    let mut check = Check { path, places: &places, special: &special, file, recursive, problems: Vec::new() };
    let base = file.defaults.as_ref();
    if let Some(base) = base {
        check.defaults(base);
    }
    if file.cases.is_empty() {
        check.problem(None, "cases", "the file has no cases");
    }
    let mut names: BTreeMap<&str, u64> = BTreeMap::new();
    let mut cases = Vec::new();
    for (index, case) in file.cases.iter().enumerate() {
        let key = format!("cases[{index}]");
        match case.value.name.as_deref() {
            None | Some("") => {
                check.problem(Some(case.referenced), &format!("{key}.name"), "a case needs a name")
            }
            Some(name) => {
                let line = case.referenced.line();
                if let Some(first) = names.insert(name, line) {
                    let message = format!("the name `{name}` is taken by the case in line {first}");
                    check.problem(Some(case.referenced), &format!("{key}.name"), message);
                }
            }
        }
        cases.push(check.case(&key, case, base.map(|base| &base.value)));
    }
    if check.problems.is_empty() { Ok(cases) } else { Err(check.problems) }
}

struct Check<'a> {
    path: &'a Path,
    places: &'a [(String, Option<AnswerKind>)],
    special: &'a SpecialPlaces,
    file: &'a TestFile,
    /// Whether places may be nested deeper than those.
    recursive: bool,
    problems: Vec<FileProblem>,
}

impl Check<'_> {
    fn problem(&mut self, at: Option<Location>, key: &str, message: impl Into<String>) {
        self.problems.push(FileProblem::new(self.path, at, Some(key.to_owned()), message.into()));
    }

    fn defaults(&mut self, base: &Spanned<CaseSpec>) {
        if base.value.name.is_some() {
            self.problem(Some(base.referenced), "defaults.name", "`defaults` has no name: it is not a case");
        }
        self.case("defaults", base, None);
    }

    fn case(&mut self, key: &str, spec: &Spanned<CaseSpec>, base: Option<&CaseSpec>) -> Case {
        let own = &spec.value;
        let answers = self.answers(key, &own.answers);
        let replies = self.replies(key, &own.replies);
        let messages = self.by_path(key, "messages", &own.messages);
        let faults = own.faults.iter().flatten().enumerate();
        let faults: Vec<Fault> = faults.filter_map(|(at, fault)| self.fault(key, at, fault)).collect();
        let (of_case, file) = (format!("{key}.expect."), self.file);
        let at = |key: &str| file.positions.get(key).copied().or(Some(spec.referenced));
        let mut problems = own.expect.problems();
        for empty in file.empty.iter().filter_map(|empty| empty.strip_prefix(&of_case)) {
            if problems.iter().all(|(entry, _)| entry != empty) {
                let why = "nothing is expected: say what, or leave the key out";
                problems.push((empty.to_owned(), why.to_owned()));
            }
        }
        for (entry, why) in problems {
            let key = of_case.clone() + &entry;
            self.problem(at(&key), &key, why);
        }
        for (entry, node) in own.expect.nodes() {
            let key = of_case.clone() + &entry;
            self.known(at(&key), &key, &node);
            self.has_passes(at(&key), &key, &node);
        }
        let mut quiet = Check { problems: Vec::new(), ..*self };
        let inherited = base.map(|base| {
            let base = Spanned { value: base.clone(), referenced: spec.referenced, defined: spec.defined };
            quiet.case("defaults", &base, None)
        });
        let mut case = Case {
            name: own.name.clone().unwrap_or_default(),
            line: spec.referenced.line(),
            input: own.input.clone(),
            recordings: own.recordings.as_ref().map(|dir| self.path.with_file_name("").join(dir)),
            answers: Arc::default(),
            own_answers: answers.len(),
            own_replies: replies.len(),
            replies,
            messages,
            clock: own.clock.unwrap_or(START),
            faults,
            expect: own.expect.clone(),
        };
        let mut answers = answers;
        if let Some(base) = inherited {
            let mut input = base.input;
            input.extend(case.input);
            case.input = input;
            case.recordings = case.recordings.or(base.recordings);
            case.clock = own.clock.unwrap_or(base.clock);
            // Recordings of a case are there to answer, and not to be covered by what others answer.
            if own.recordings.is_none() {
                add(&mut answers, base.answers.iter().cloned());
            }
            add(&mut case.replies, base.replies);
            add(&mut case.messages, base.messages);
            if own.faults.is_none() {
                case.faults = base.faults;
            }
            case.expect = case.expect.over(base.expect);
        }
        case.answers = Arc::new(answers);
        case
    }

    fn answers(&mut self, key: &str, answers: &BTreeMap<String, Spanned<Value>>) -> Vec<(Pattern, Value)> {
        let found = self.by_path(key, "answers", answers);
        for (pattern, value) in &found {
            let at = answers.get(pattern.as_str()).map(|value| value.referenced);
            let key = format!("{key}.answers.{pattern}");
            let Some((_, kind)) = self.place(pattern) else { continue };
            let Some(kind) = *kind else {
                self.problem(
                    at,
                    &key,
                    "this node is not answered: it only computes, or asks a person (see `replies`)",
                );
                continue;
            };
            let items = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
            if items.is_empty() {
                self.problem(at, &key, "the list is empty");
            }
            for why in items.iter().filter_map(|item| AttemptAnswer::parse(item, kind).err()) {
                self.problem(at, &key, why);
            }
        }
        found
    }

    fn replies(
        &mut self,
        key: &str,
        replies: &BTreeMap<String, Spanned<Replies>>,
    ) -> Vec<(Pattern, Replies)> {
        let found = self.by_path(key, "replies", replies);
        for (pattern, _) in &found {
            // A program can be asked about too, when it was cut short.
            if let Some((place, None)) = self.place(pattern)
                && !self.special.asking.contains(place)
            {
                let at = replies.get(pattern.as_str()).map(|value| value.referenced);
                let why = "this node asks nothing: it only computes, or waits";
                self.problem(at, &format!("{key}.replies.{pattern}"), why);
            }
        }
        found
    }

    fn by_path<T: Clone>(
        &mut self,
        key: &str,
        of: &str,
        map: &BTreeMap<String, Spanned<T>>,
    ) -> Vec<(Pattern, T)> {
        let mut found = Vec::new();
        for (path, value) in map {
            let key = format!("{key}.{of}.{path}");
            match Pattern::parse(path) {
                Ok(pattern) => {
                    self.known(Some(value.referenced), &key, &pattern);
                    self.has_passes(Some(value.referenced), &key, &pattern);
                    found.push((pattern, value.value.clone()));
                }
                Err(why) => self.problem(Some(value.referenced), &key, why),
            }
        }
        found
    }

    fn fault(&mut self, key: &str, at: usize, fault: &Spanned<FaultSpec>) -> Option<Fault> {
        let key = format!("{key}.faults[{at}]");
        match fault.value.read() {
            Ok(read) => {
                let node = match &read {
                    Fault::Error { node, .. } | Fault::Deny { node, .. } => Some(node),
                    Fault::Crash(node) => node.as_ref(),
                };
                if let Some(node) = node {
                    self.known(Some(fault.referenced), &key, node);
                }
                let kind = node.and_then(|node| self.place(node)).map(|(_, kind)| *kind);
                match (&read, kind) {
                    (Fault::Error { .. } | Fault::Deny { .. }, Some(None)) => {
                        let why = "no fault meets this node: it only computes, waits, or asks a person";
                        self.problem(Some(fault.referenced), &key, why);
                    }
                    (Fault::Deny { .. }, Some(Some(kind))) if kind != AnswerKind::Agent => {
                        self.problem(Some(fault.referenced), &key, "only an agent is denied a tool");
                    }
                    _ => {}
                }
                Some(read)
            }
            Err(why) => {
                self.problem(Some(fault.referenced), &key, why);
                None
            }
        }
    }

    /// Reports a path that leads to no node of the flow.
    fn known(&mut self, at: Option<Location>, key: &str, pattern: &Pattern) {
        let nodes = self.places;
        let place = place_in_file(pattern.as_str());
        // `*` is any node.
        let is_meant = |known: &str| {
            let (parts, known): (Vec<_>, Vec<_>) = (place.split('/').collect(), known.split('/').collect());
            parts.len() == known.len()
                && parts.iter().zip(&known).all(|(part, known)| *part == "*" || part == known)
        };
        if (self.recursive && place.contains('/')) || nodes.iter().any(|(known, _)| is_meant(known)) {
            return;
        }
        // Of `again/*` the part that can be mistyped.
        let place = place.trim_end_matches("/*");
        if nodes.iter().any(|(known, _)| known == place) {
            return self.problem(at, key, format!("`{place}` runs no other nodes"));
        }
        let hint = match closest(place, nodes.iter().map(|(known, _)| known.as_str())) {
            Some(name) => format!("did you mean `{name}`?"),
            None => {
                let names: Vec<&str> = nodes.iter().map(|(known, _)| known.as_str()).take(12).collect();
                format!("available: {}", names.join(", "))
            }
        };
        self.problem(at, key, format!("unknown node `{place}`: {hint}"));
    }

    /// Reports a pass after the first of a node to which no edge leads back: nothing would ever take what is for it.
    fn has_passes(&mut self, at: Option<Location>, key: &str, pattern: &Pattern) {
        let nodes = self.places;
        let special = self.special;
        for place in pattern.later_passes() {
            // That a place is unknown is reported before.
            if special.repeated.contains(&place) || nodes.iter().all(|(known, _)| *known != place) {
                continue;
            }
            let around = place.rsplit_once('/').filter(|(around, _)| special.loops.contains(*around));
            let hint = around.map_or_else(String::new, |(around, node)| {
                format!("; a pass of `{around}` is an item, counted from 0: `{around}[1]/{node}`")
            });
            self.problem(at, key, format!("`{place}` has one pass, as no edge leads back to it{hint}"));
        }
    }

    /// The node that a path leads to, as far as it is known, and what sort of answer it takes.
    fn place(&self, pattern: &Pattern) -> Option<&(String, Option<AnswerKind>)> {
        let place = place_in_file(pattern.as_str());
        self.places.iter().find(|(known, _)| *known == place)
    }
}

/// Adds what has no entry for the same path yet.
fn add<T>(own: &mut Vec<(Pattern, T)>, base: impl IntoIterator<Item = (Pattern, T)>) {
    for (pattern, value) in base {
        if own.iter().all(|(known, _)| *known != pattern) {
            own.push((pattern, value));
        }
    }
}

/// The places of nodes that a check must tell from others.
struct SpecialPlaces {
    /// Those in loops of edges, which may have several passes.
    repeated: BTreeSet<String>,
    /// Those of `control.loop`.
    loops: BTreeSet<String>,
    /// Those of `human.input`.
    asking: BTreeSet<String>,
}

impl SpecialPlaces {
    fn of(graph: &Graph) -> Self {
        let mut places = Self { repeated: BTreeSet::new(), loops: BTreeSet::new(), asking: BTreeSet::new() };
        each_body(graph, &mut |prefix, body| {
            let cycles = body.edges.iter().filter_map(|edge| edge.cycle.as_ref());
            let again = cycles.flat_map(|cycle| cycle.body.iter());
            places.repeated.extend(again.map(|node| format!("{prefix}{}", body.node(*node).id)));
            let of_type = |name: &str| {
                let nodes = body.nodes.iter().filter(move |node| &*node.node_type == name);
                nodes.map(|node| format!("{prefix}{}", node.id)).collect::<Vec<_>>()
            };
            places.loops.extend(of_type("control.loop"));
            places.asking.extend(of_type("human.input"));
        });
        places
    }
}

/// Types that are run and reach nothing outside: they wait for the clock or ask a person.
pub(crate) const RUN_AS_THEY_ARE: &[&str] = &["control.wait", "human.input"];

/// Every node of a flow by its place in the file, those of its bodies included, with the sort of answer that it takes.
/// Of a flow that calls itself the first call.
pub(crate) fn places(graph: &Graph, nodes: &NodeRegistry) -> Vec<(String, Option<AnswerKind>)> {
    let mut all = Vec::new();
    each_body(graph, &mut |prefix, body| {
        let inside = body.nodes.iter();
        all.extend(
            inside
                .map(|node| (format!("{prefix}{}", node.id), answer_kind(nodes, &node.node_type, node.kind))),
        );
    });
    all
}

/// Calls back with each body of a flow, and the place of the node that runs it.
pub(crate) fn each_body(graph: &Graph, found: &mut impl FnMut(&str, &Body)) {
    fn walk(graph: &Graph, prefix: &str, at: BodyIx, above: &[BodyIx], found: &mut impl FnMut(&str, &Body)) {
        let body = graph.body(at);
        found(prefix, body);
        let above = [above, &[at]].concat();
        for node in &body.nodes {
            if let Some(frames) = node.frames.as_ref().filter(|frames| !above.contains(&frames.body)) {
                walk(graph, &format!("{prefix}{}/", node.id), frames.body, &above, found);
            }
        }
    }
    walk(graph, "", BodyIx(0), &[], found);
}

/// Whether a flow calls itself, so that places may be deeper than those of [`places`].
fn calls_itself(graph: &Graph) -> bool {
    let mut seen = Vec::new();
    let mut again = false;
    each_body(graph, &mut |_, body| {
        for node in &body.nodes {
            again |= node.frames.as_ref().is_some_and(|frames| seen.contains(&frames.body));
            seen.extend(node.frames.as_ref().map(|frames| frames.body));
        }
    });
    again
}

/// The sort of answer that nodes of a type take; none if they only compute or wait.
pub(crate) fn answer_kind(nodes: &NodeRegistry, node_type: &str, kind: NodeKind) -> Option<AnswerKind> {
    match node_type {
        _ if kind == NodeKind::Agent => Some(AnswerKind::Agent),
        name if RUN_AS_THEY_ARE.contains(&name) || nodes.runner(name).is_none() => None,
        name => Some(AnswerKind::of_type(name)),
    }
}
