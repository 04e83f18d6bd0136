//! Which nodes a key of a test file is for: a path such as `review`, `review#2`, `scan[4]/review` or `scan[*]/review`,
//! and, where a value within an output is meant, the keys that lead to it.

use std::{fmt, sync::Arc};

use inspan_protocol::{NodePath, PathPart};
use serde_json::Value;

/// The longest key that is read.
const LONGEST: usize = 4_096;

/// A path of nodes in which a pass or an iteration may be left open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    text: Arc<str>,
    segments: Vec<NodePattern>,
}

/// One node of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NodePattern {
    /// Its id; `*` is any.
    node: String,
    /// Its pass; none is any.
    pass: Option<u32>,
    /// The iteration of the frame that it opens; none is any.
    index: Option<u32>,
    /// Whether `[…]` is there.
    is_frame: bool,
}

impl Pattern {
    /// Reads a pattern, or says what is wrong with it.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if text.len() > LONGEST {
            return Err(format!("a path has at most {LONGEST} characters"));
        }
        let segments: Result<Vec<_>, String> = text.split('/').map(NodePattern::parse).collect();
        let segments = segments.map_err(|why| format!("`{text}` is not a path of a node: {why}"))?;
        if segments.last().is_some_and(|last| last.is_frame) {
            return Err(format!("`{text}` ends with an iteration: add the node, as in `{text}/review`"));
        }
        Ok(Self { text: text.into(), segments })
    }

    /// Whether it means this place of a run.
    pub(crate) fn matches(&self, path: &NodePath) -> bool {
        let parts: Vec<&str> = path.as_str().split('/').collect();
        parts.len() == self.segments.len()
            && self.segments.iter().zip(&parts).all(|(segment, part)| segment.matches(part))
    }

    /// How much of it is fixed: of several patterns that match, the one with the most counts.
    pub(crate) fn weight(&self) -> usize {
        let fixed = |segment: &NodePattern| {
            usize::from(segment.node != "*")
                + usize::from(segment.pass.is_some())
                + usize::from(segment.index.is_some())
        };
        self.segments.iter().map(fixed).sum()
    }

    /// The pass of its last node that it names.
    pub(crate) fn pass(&self) -> Option<u32> {
        self.segments.last()?.pass
    }

    /// The passes that it names of the nodes around its last one, from the innermost outwards.
    pub(crate) fn passes_around(&self) -> impl Iterator<Item = Option<u32>> {
        self.segments.iter().rev().skip(1).map(|segment| segment.pass)
    }

    /// Whether it names a pass of its last node.
    pub(crate) fn has_pass(&self) -> bool {
        self.pass().is_some()
    }

    /// The nodes, by their places in the file, of which it names a pass after the first.
    pub(crate) fn later_passes(&self) -> Vec<String> {
        let ids: Vec<&str> = self.segments.iter().map(|segment| segment.node.as_str()).collect();
        let segments = self.segments.iter().enumerate();
        let later = segments.filter(|(_, segment)| segment.pass.is_some_and(|pass| pass > 1));
        later.map(|(at, _)| ids[..=at].join("/")).collect()
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl NodePattern {
    fn parse(text: &str) -> Result<Self, String> {
        let (rest, index, is_frame) = match text.strip_suffix(']').and_then(|text| text.split_once('[')) {
            Some((rest, "*")) => (rest, None, true),
            Some((rest, index)) => {
                let index = index.parse().map_err(|_| format!("`[{index}]` is not a number or `*`"))?;
                (rest, Some(index), true)
            }
            None => (text, None, false),
        };
        let (node, pass) = match rest.split_once('#') {
            Some((node, pass)) => match pass.parse::<u32>() {
                Ok(pass) if pass > 0 => (node, Some(pass)),
                _ => return Err(format!("`#{pass}` is not a pass, which counts from 1")),
            },
            None => (rest, None),
        };
        let is_id = node.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && node.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !is_id && node != "*" {
            return Err(format!("`{node}` is not a node id"));
        }
        Ok(Self { node: node.to_owned(), pass, index, is_frame })
    }

    fn matches(&self, part: &str) -> bool {
        let (rest, index) = match part.strip_suffix(']').and_then(|part| part.split_once('[')) {
            Some((rest, index)) => (rest, index.parse::<u32>().ok()),
            None => (part, None),
        };
        let (node, pass) = match rest.split_once('#') {
            Some((node, pass)) => (node, pass.parse().unwrap_or(1)),
            None => (rest, 1),
        };
        (self.node == "*" || self.node == node)
            && self.pass.is_none_or(|wanted| wanted == pass)
            && self.index.is_none_or(|wanted| index == Some(wanted))
    }
}

/// Of the values whose pattern matches, the one with the pattern that fixes the most, and its index; of equal ones
/// the first, as a case's own values stand before those of `defaults`.
pub(crate) fn best<'a, T>(values: &'a [(Pattern, T)], path: &NodePath) -> Option<(usize, &'a (Pattern, T))> {
    let matching = values.iter().enumerate().filter(|(_, (pattern, _))| pattern.matches(path));
    matching.rev().max_by_key(|(_, (pattern, _))| pattern.weight())
}

/// The place with its pass, so that it differs from the place of all passes.
pub(crate) fn in_pass(path: &NodePath) -> String {
    format!("{}#{}", without_pass(path), path.pass())
}

/// The same place without the pass of its last node.
pub(crate) fn without_pass(path: &NodePath) -> &str {
    let text = path.as_str();
    let last = text.rfind('/').map_or(0, |slash| slash + 1);
    text[last..].find('#').map_or(text, |hash| &text[..last + hash])
}

/// The same item without any pass, `scan[4]/review` of `scan#2[4]/review#3`.
pub(crate) fn without_passes(path: &NodePath) -> String {
    let strip = |part: PathPart<'_>| match part.index {
        Some(index) => format!("{}[{index}]", part.node),
        None => part.node.to_owned(),
    };
    path.parts().map(strip).collect::<Vec<_>>().join("/")
}

/// The same place without passes and iterations: the node's place in the file.
pub(crate) fn place_in_file(path: &str) -> String {
    let strip = |part: &str| part.split(['#', '[']).next().unwrap_or_default().to_owned();
    path.split('/').map(strip).collect::<Vec<_>>().join("/")
}

/// A pattern and the keys that lead to a value within the node's output: `plan.structuredOutput.steps[0].title`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ValuePath {
    pub(crate) node: Pattern,
    steps: Vec<PatternStep>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum PatternStep {
    Key(String),
    Index(usize),
}

impl ValuePath {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (node, keys) = text.split_once('.').unwrap_or((text, ""));
        let node = Pattern::parse(node)?;
        let mut steps = Vec::new();
        for key in keys.split('.').filter(|_| !keys.is_empty()) {
            let (name, indexes) = key.split_once('[').map_or((key, None), |(name, rest)| (name, Some(rest)));
            if name.is_empty() && indexes.is_none() {
                return Err(format!("`{text}` has an empty key"));
            }
            if !name.is_empty() {
                steps.push(PatternStep::Key(name.to_owned()));
            }
            for index in indexes.into_iter().flat_map(|indexes| indexes.split('[')) {
                let number = index.strip_suffix(']').and_then(|index| index.parse().ok());
                steps.push(PatternStep::Index(
                    number.ok_or_else(|| format!("`[{index}` in `{text}` is not an index"))?,
                ));
            }
        }
        Ok(Self { node, steps })
    }

    /// Whether it is about what the flow gives. No node has this id.
    pub(crate) fn is_of_flow(&self) -> bool {
        self.node.as_str() == "flow"
    }

    /// The value that it leads to.
    pub(crate) fn of<'a>(&self, output: &'a Value) -> Option<&'a Value> {
        self.steps.iter().try_fold(output, |value, step| match step {
            PatternStep::Key(key) => value.get(key),
            PatternStep::Index(index) => value.get(index),
        })
    }
}

#[cfg(test)]
mod tests {
    use inspan_protocol::NodeId;
    use serde_json::json;

    use super::*;

    fn path(text: &str) -> NodePath {
        serde_json::from_value(json!(text)).unwrap()
    }

    #[test]
    fn patterns_match_by_node_pass_and_iteration() {
        let rows = [
            ("review", "review", true),
            ("review", "review#3", true),
            ("review#1", "review", true),
            ("review#1", "review#2", false),
            ("review", "scan[4]/review", false),
            ("scan[*]/review", "scan[4]/review#2", true),
            ("scan/review", "scan#2[4]/review", true),
            ("scan[4]/review", "scan[5]/review", false),
            ("scan#2[4]/review", "scan[4]/review", false),
            ("scan[4]/*", "scan[4]/fix", true),
            ("*", "scan[4]/fix", false),
        ];
        let seen = rows.map(|(pattern, place, _)| Pattern::parse(pattern).unwrap().matches(&path(place)));
        assert_eq!(seen, rows.map(|(.., expected)| expected));
    }

    #[test]
    fn what_is_no_path_is_refused_with_the_reason() {
        let rows = [
            ("", "`` is not a path of a node: `` is not a node id"),
            ("a-b", "`a-b` is not a path of a node: `a-b` is not a node id"),
            ("a#0", "`a#0` is not a path of a node: `#0` is not a pass, which counts from 1"),
            ("a[x]/b", "`a[x]/b` is not a path of a node: `[x]` is not a number or `*`"),
            ("a[1]", "`a[1]` ends with an iteration: add the node, as in `a[1]/review`"),
        ];
        assert_eq!(
            rows.map(|(text, _)| Pattern::parse(text).unwrap_err()),
            rows.map(|(_, why)| why.to_owned())
        );
    }

    #[test]
    fn the_more_is_fixed_the_more_a_pattern_weighs() {
        let weights = ["*", "review", "review#2", "scan[*]/review", "scan[1]/review", "scan[1]/review#2"]
            .map(|text| Pattern::parse(text).unwrap().weight());
        assert_eq!(weights, [0, 1, 2, 2, 3, 4]);
    }

    #[test]
    fn an_address_leads_into_an_output() {
        let output = json!({ "structuredOutput": { "steps": [{ "title": "x" }], "grid": [[1, 2]] } });
        let rows = [
            ("plan", Some(output.clone())),
            ("plan.structuredOutput.steps[0].title", Some(json!("x"))),
            ("plan.structuredOutput.grid[0][1]", Some(json!(2))),
            ("plan.structuredOutput.steps[1]", None),
        ];
        for (text, expected) in rows {
            assert_eq!(ValuePath::parse(text).unwrap().of(&output), expected.as_ref(), "{text}");
        }
        assert_eq!(ValuePath::parse("plan.a..b").unwrap_err(), "`plan.a..b` has an empty key");
        assert_eq!(ValuePath::parse("plan.a[b]").unwrap_err(), "`[b]` in `plan.a[b]` is not an index");
    }

    #[test]
    fn a_place_loses_its_passes() {
        let root = NodePath::root(&NodeId::new("scan").unwrap()).with_pass(2);
        let inner = root.within(4, &NodeId::new("review").unwrap()).with_pass(3);
        assert_eq!((without_pass(&inner), without_pass(&root)), ("scan#2[4]/review", "scan"));
        assert_eq!(place_in_file(inner.as_str()), "scan/review");
    }
}
