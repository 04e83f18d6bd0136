//! What a case expects of its session, and how that differs from its result.

use std::{borrow::Cow, collections::BTreeMap, time::Duration};

use inspan_protocol::{NodePath, NodeStatus, Outcome};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, de};
use serde_json::{Value, json};

use crate::{
    answer::{Period, with_suggestion},
    matcher::{Matcher, difference},
    pattern::{Pattern, ValuePath, without_passes},
    trace::{NodeTrace, Trace},
};

/// The expected result of a case. What is not named is not checked, apart from the outcome.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Expect {
    /// How the session ends; `success` if absent.
    pub(crate) outcome: Option<Outcome>,
    /// The error that ends it.
    pub(crate) error: Option<Matcher>,
    /// The nodes that start, in their order; or some that must be among them, or must not.
    pub(crate) path: Option<PathExpect>,
    /// Where nodes stand at the end, by their paths.
    #[schemars(extend("minProperties" = 1))]
    pub(crate) statuses: BTreeMap<String, NodeStatus>,
    /// Outputs of nodes, or values in them: `review`, `review.text`, `plan.structuredOutput.steps[0]`; `flow`, or
    /// `flow.summary`, is what the flow gives.
    #[schemars(extend("minProperties" = 1))]
    pub(crate) outputs: BTreeMap<String, Matcher>,
    /// What agents are sent, by the paths of their nodes; `snapshot` compares all of it with the stored snapshot.
    pub(crate) prompts: Option<PromptExpect>,
    /// What people are asked, by the paths of the nodes that ask.
    #[schemars(extend("minProperties" = 1))]
    pub(crate) questions: BTreeMap<String, Matcher>,
    /// How often nodes are tried, over all passes, by their paths.
    #[schemars(extend("minProperties" = 1))]
    pub(crate) attempts: BTreeMap<String, u32>,
    /// What the session costs in US dollars.
    pub(crate) cost_usd: Option<NumberExpect>,
    /// How long the session takes, in the time of the test.
    pub(crate) duration: Option<DurationExpect>,
}

/// The nodes that start.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PathExpect {
    /// Exactly these, in this order.
    Exactly(Vec<String>),
    /// Some of them.
    Some(PathParts),
}

/// Nodes that must start, in this order, and nodes that must not.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[schemars(extend("minProperties" = 1))]
pub(crate) struct PathParts {
    /// These start, in this order; others may start between them.
    includes: Vec<String>,
    /// These start, in any order.
    any_order: Vec<String>,
    /// These never start.
    excludes: Vec<String>,
}

impl<'de> Deserialize<'de> for PathExpect {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let wrong = |error: serde_json::Error| de::Error::custom(with_suggestion(&error.to_string()));
        match Value::deserialize(deserializer)? {
            list @ Value::Array(_) => serde_json::from_value(list).map(Self::Exactly).map_err(wrong),
            parts => serde_json::from_value(parts).map(Self::Some).map_err(wrong),
        }
    }
}

impl JsonSchema for PathExpect {
    fn schema_name() -> Cow<'static, str> {
        "ExpectedPath".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let parts = generator.subschema_for::<PathParts>();
        json_schema!({ "anyOf": [{ "type": "array", "items": { "type": "string" } }, parts] })
    }
}

impl PathParts {
    fn check(&self, paths: &[&NodePath], started: &str, failures: &mut Vec<FailedExpectation>) {
        let mut at = 0;
        for key in &self.includes {
            let Ok(node) = Pattern::parse(key) else { continue };
            if let Some(found) = paths[at..].iter().position(|path| node.matches(path)) {
                at += found + 1;
                continue;
            }
            let order = if paths.iter().any(|path| node.matches(path)) { " in this order" } else { "" };
            let why = format!("`{key}` does not start{order}; started: {started}");
            failures.push(FailedExpectation::new("expect.path.includes", why));
        }
        for key in &self.any_order {
            let Ok(node) = Pattern::parse(key) else { continue };
            if !paths.iter().any(|path| node.matches(path)) {
                let why = format!("`{key}` does not start; started: {started}");
                failures.push(FailedExpectation::new("expect.path.anyOrder", why));
            }
        }
        for node in self.excludes.iter().filter_map(|key| Pattern::parse(key).ok()) {
            if let Some(path) = paths.iter().find(|path| node.matches(path)) {
                failures.push(FailedExpectation::new("expect.path.excludes", format!("`{path}` starts")));
            }
        }
    }
}

/// What agents are sent.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PromptExpect {
    /// As stored.
    Snapshot,
    /// By the paths of the nodes.
    Of(BTreeMap<String, Matcher>),
}

impl<'de> Deserialize<'de> for PromptExpect {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(word) if word == "snapshot" => Ok(Self::Snapshot),
            map @ Value::Object(_) => serde_json::from_value(map).map(Self::Of).map_err(de::Error::custom),
            _ => {
                Err(de::Error::custom("`prompts` is `snapshot`, or a mapping from nodes to what is expected"))
            }
        }
    }
}

impl JsonSchema for PromptExpect {
    fn schema_name() -> Cow<'static, str> {
        "ExpectedPrompts".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let matcher = generator.subschema_for::<Matcher>();
        json_schema!({ "anyOf": [{ "const": "snapshot" }, {
            "type": "object", "additionalProperties": matcher, "minProperties": 1,
        }] })
    }
}

/// A number, or its bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct NumberExpect {
    min: f64,
    max: f64,
}

impl<'de> Deserialize<'de> for NumberExpect {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Bounds {
            min: Option<f64>,
            max: Option<f64>,
        }
        let value = Value::deserialize(deserializer)?;
        if let Some(number) = value.as_f64() {
            // As near as sums of amounts of money come.
            return Ok(Self { min: number - 1e-9, max: number + 1e-9 });
        }
        let bounds: Bounds = serde_json::from_value(value)
            .map_err(|error| de::Error::custom(with_suggestion(&error.to_string())))?;
        if (bounds.min, bounds.max) == (None, None) {
            return Err(de::Error::custom("nothing is expected: use a number, or `min` or `max`"));
        }
        Ok(Self { min: bounds.min.unwrap_or(f64::MIN), max: bounds.max.unwrap_or(f64::MAX) })
    }
}

impl JsonSchema for NumberExpect {
    fn schema_name() -> Cow<'static, str> {
        "ExpectedNumber".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let number = json!({ "type": "number" });
        json_schema!({ "anyOf": [number, {
            "type": "object", "properties": { "min": number, "max": number }, "additionalProperties": false,
            "minProperties": 1,
        }] })
    }
}

/// Bounds of a length of time, of which one is given at least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[schemars(extend("minProperties" = 1))]
pub(crate) struct DurationExpect {
    /// At least so long.
    min: Option<Period>,
    /// At most so long.
    max: Option<Period>,
}

/// One expectation that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FailedExpectation {
    /// The key of the expectation, such as `expect.outputs.review.text`; `answers.review` for a missing answer.
    pub key: String,
    /// How the result of the case differs.
    pub message: String,
}

impl FailedExpectation {
    pub(crate) fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self { key: key.into(), message: message.into() }
    }
}

impl Expect {
    /// The same, with what only the other expects.
    pub(crate) fn over(self, base: Self) -> Self {
        fn merge<T>(own: BTreeMap<String, T>, mut base: BTreeMap<String, T>) -> BTreeMap<String, T> {
            base.extend(own);
            base
        }
        Self {
            outcome: self.outcome.or(base.outcome),
            error: self.error.or(base.error),
            path: self.path.or(base.path),
            statuses: merge(self.statuses, base.statuses),
            outputs: merge(self.outputs, base.outputs),
            prompts: self.prompts.or(base.prompts),
            questions: merge(self.questions, base.questions),
            attempts: merge(self.attempts, base.attempts),
            cost_usd: self.cost_usd.or(base.cost_usd),
            duration: self.duration.or(base.duration),
        }
    }

    pub(crate) fn wants_snapshot(&self) -> bool {
        self.prompts == Some(PromptExpect::Snapshot)
    }

    /// What is wrong with the expectations themselves, by their keys.
    pub(crate) fn problems(&self) -> Vec<(String, String)> {
        let wrong = self.parsed().into_iter().filter_map(|(key, node)| Some((key, node.err()?)));
        let mut problems: Vec<_> = wrong.collect();
        let matchers = self.error.iter().map(|matcher| ("error".to_owned(), matcher));
        let named = |of: &'static str| move |(key, matcher)| (format!("{of}.{key}"), matcher);
        let matchers = matchers
            .chain(self.outputs.iter().map(named("outputs")))
            .chain(self.questions.iter().map(named("questions")));
        let prompts = match &self.prompts {
            Some(PromptExpect::Of(of)) => of.iter().map(named("prompts")).collect(),
            _ => Vec::new(),
        };
        let matchers = matchers.chain(prompts);
        problems.extend(matchers.filter_map(|(key, matcher)| Some((key, matcher.validators().err()?))));
        if self.duration == Some(DurationExpect::default()) {
            problems.push(("duration".to_owned(), "nothing is expected: use `min` or `max`".to_owned()));
        }
        if self.path == Some(PathExpect::Some(PathParts::default())) {
            let why = "nothing is expected: name nodes in `includes`, `anyOrder` or `excludes`";
            problems.push(("path".to_owned(), why.to_owned()));
        }
        problems
    }

    /// The nodes that are named, with the keys of the expectations.
    pub(crate) fn nodes(&self) -> Vec<(String, Pattern)> {
        self.parsed().into_iter().filter_map(|(key, node)| Some((key, node.ok()?))).collect()
    }

    fn parsed(&self) -> Vec<(String, Result<Pattern, String>)> {
        let mut all = Vec::new();
        let mut put = |of: &str, key: &str, node| all.push((format!("{of}.{key}"), node));
        let paths: Vec<&String> = match &self.path {
            None => Vec::new(),
            Some(PathExpect::Exactly(path)) => path.iter().collect(),
            Some(PathExpect::Some(parts)) => {
                parts.includes.iter().chain(&parts.any_order).chain(&parts.excludes).collect()
            }
        };
        paths.into_iter().for_each(|key| put("path", key, Pattern::parse(key)));
        self.statuses.keys().for_each(|key| put("statuses", key, Pattern::parse(key)));
        self.outputs.keys().for_each(|key| match ValuePath::parse(key) {
            Ok(at) if at.is_of_flow() => {}
            at => put("outputs", key, at.map(|at| at.node)),
        });
        self.questions.keys().for_each(|key| put("questions", key, Pattern::parse(key)));
        self.attempts.keys().for_each(|key| put("attempts", key, Pattern::parse(key)));
        if let Some(PromptExpect::Of(prompts)) = &self.prompts {
            prompts.keys().for_each(|key| put("prompts", key, Pattern::parse(key)));
        }
        all
    }

    /// Every expectation that does not hold. `sent` is what agents were sent.
    pub(crate) fn check(&self, trace: &Trace, sent: &[(NodePath, Value)]) -> Vec<FailedExpectation> {
        let mut failures = Vec::new();
        self.check_end(trace, &mut failures);
        self.check_path(trace, &mut failures);
        for (key, status) in &self.statuses {
            let seen = Pattern::parse(key).map(|node| trace.statuses(&node)).unwrap_or_default();
            each(&mut failures, &format!("expect.statuses.{key}"), seen, |seen| {
                (seen != status).then(|| format!("it is {}, not {}", word(seen), word(status)))
            });
        }
        for (key, matcher) in &self.outputs {
            self.check_output(key, matcher, trace, &mut failures);
        }
        for (key, matcher) in &self.questions {
            let Ok(node) = Pattern::parse(key) else { continue };
            let asked = trace.questions().filter(|(path, _)| node.matches(path));
            let asked = asked.map(|(path, prompt)| (path.clone(), json!(prompt.prompt))).collect();
            texts(&mut failures, &format!("expect.questions.{key}"), asked, matcher, "asked nothing");
        }
        if let Some(PromptExpect::Of(prompts)) = &self.prompts {
            for (key, matcher) in prompts {
                let Ok(node) = Pattern::parse(key) else { continue };
                let seen: Vec<_> = sent.iter().filter(|(path, _)| node.matches(path)).cloned().collect();
                texts(&mut failures, &format!("expect.prompts.{key}"), seen, matcher, "was sent nothing");
            }
        }
        for (key, attempts) in &self.attempts {
            let seen = Pattern::parse(key).map(|node| trace.attempts(&node)).unwrap_or_default();
            each(&mut failures, &format!("expect.attempts.{key}"), seen, |seen| {
                (seen != attempts).then(|| format!("it is tried {seen} times, not {attempts} times"))
            });
        }
        failures
    }

    fn check_end(&self, trace: &Trace, failures: &mut Vec<FailedExpectation>) {
        let wanted = self.outcome.unwrap_or(Outcome::Success);
        let seen = trace.outcome;
        if seen != wanted {
            let mut message = format!("the outcome is {}, not {}", word(&seen), word(&wanted));
            if let Some(error) = &trace.error {
                message.push_str(&format!("\n{error}"));
            }
            for (path, prompt) in trace.open_questions() {
                message.push_str(&format!(
                    "\n`{path}` waits for an answer: {}\nadd `replies: {{ {path}: … }}`",
                    prompt.prompt
                ));
            }
            failures.push(FailedExpectation::new("expect.outcome", message));
        }
        if let Some(matcher) = &self.error {
            let error = trace.error.as_ref().map(|error| json!(error.to_string()));
            if let Some(why) = matcher.differs(error.as_ref()) {
                failures.push(FailedExpectation::new("expect.error", why));
            }
        }
        if let Some(wanted) = self.cost_usd {
            let why = match trace.cost_usd() {
                None => Some("the cost is unknown: give each answer of an agent a `costUsd`".to_owned()),
                Some(cost) if cost < wanted.min || cost > wanted.max => {
                    Some(format!("it costs {cost} US dollars, not {wanted}"))
                }
                Some(_) => None,
            };
            failures.extend(why.map(|why| FailedExpectation::new("expect.costUsd", why)));
        }
        if let Some(wanted) = self.duration {
            let took = trace.duration();
            let early = wanted.min.filter(|min| took < min.0).map(|min| ("less", min.0));
            let late = wanted.max.filter(|max| took > max.0).map(|max| ("more", max.0));
            if let Some((how, bound)) = early.or(late) {
                let why = format!("it takes {}, which is {how} than {}", time(took), time(bound));
                failures.push(FailedExpectation::new("expect.duration", why));
            }
        }
    }

    fn check_path(&self, trace: &Trace, failures: &mut Vec<FailedExpectation>) {
        let paths: Vec<&NodePath> = trace.started().collect();
        let started: Vec<String> = paths.iter().map(|path| path.to_string()).collect();
        match &self.path {
            Some(PathExpect::Exactly(wanted)) if *wanted != started => {
                let lines = |path: &[String]| path.join("\n") + "\n";
                let diff = difference("expected", &lines(wanted), "started", &lines(&started));
                let why = format!("other nodes start, or in another order:\n{diff}");
                failures.push(FailedExpectation::new("expect.path", why));
            }
            Some(PathExpect::Some(parts)) => parts.check(&paths, &started.join(", "), failures),
            _ => {}
        }
    }

    fn check_output(
        &self,
        key: &str,
        matcher: &Matcher,
        trace: &Trace,
        failures: &mut Vec<FailedExpectation>,
    ) {
        let Ok(address) = ValuePath::parse(key) else { return };
        let key = format!("expect.outputs.{key}");
        if address.is_of_flow() {
            let outputs = trace.flow_outputs.as_deref();
            let why = match outputs {
                None if !matcher.wants_none() => {
                    Some("the flow gives nothing: it declares no `outputs`, or has not ended".to_owned())
                }
                _ => matcher.differs(outputs.and_then(|outputs| address.of(outputs))),
            };
            failures.extend(why.map(|why| FailedExpectation::new(&key, why)));
            return;
        }
        let found = trace.outputs(&address.node);
        let (nothing, never) = (NodeTrace::default(), trace.never_began(&address.node));
        if found.is_empty() {
            if !matcher.wants_none() {
                failures.push(FailedExpectation::new(&key, "there is no output: it has not started"));
            }
            return;
        }
        let never = never.iter().map(|path| (path, &nothing));
        let found = found.into_iter().chain(never).map(|(path, node)| (path.clone(), (path, node))).collect();
        each(failures, &key, found, |(path, node)| match &node.output {
            Some(output) => matcher.differs(address.of(output)),
            None if matcher.wants_none() => None,
            None => Some(format!("there is no output: it is {}", word(&trace.status(path, node)))),
        });
    }
}

/// One failure for each place where the check says why.
fn each<T>(
    failures: &mut Vec<FailedExpectation>,
    key: &str,
    seen: Vec<(NodePath, T)>,
    check: impl Fn(&T) -> Option<String>,
) {
    let several = seen.len() > 1;
    if seen.is_empty() && !key.starts_with("expect.outputs") {
        failures.push(FailedExpectation::new(key, "no node of the session is meant"));
    }
    for (path, value) in seen {
        if let Some(why) = check(&value) {
            let why = if several { format!("{path}: {why}") } else { why };
            failures.push(FailedExpectation::new(key, why));
        }
    }
}

/// A failure for each text that has what it must not have, and for each place that has no text as expected in any pass.
fn texts(
    failures: &mut Vec<FailedExpectation>,
    key: &str,
    seen: Vec<(NodePath, Value)>,
    matcher: &Matcher,
    none: &str,
) {
    if seen.is_empty() {
        if !matcher.wants_none() {
            failures.push(FailedExpectation::new(key, format!("the node {none}")));
        }
        return;
    }
    let excluded: Vec<_> =
        seen.iter().filter_map(|(path, text)| Some((path.clone(), matcher.finds_excluded(text)?))).collect();
    if !excluded.is_empty() {
        for (path, why) in excluded {
            failures.push(FailedExpectation::new(key, format!("{path}: {why}")));
        }
        return;
    }
    // The newest text of each place, and how it differs unless one of all its passes is as expected.
    let mut places: BTreeMap<String, (NodePath, Option<String>)> = BTreeMap::new();
    for (path, text) in seen {
        let why = matcher.differs(Some(&text));
        let place = places.entry(without_passes(&path)).or_insert_with(|| (path.clone(), why.clone()));
        if place.1.is_some() {
            *place = (path, why);
        }
    }
    each(failures, key, places.into_values().collect(), Clone::clone);
}

impl std::fmt::Display for NumberExpect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (min, max) = (self.min, self.max);
        match (min == f64::MIN, max == f64::MAX) {
            _ if max - min < 1e-6 => write!(f, "{}", ((min + max) / 2.0 * 1e9).round() / 1e9),
            (true, _) => write!(f, "at most {max}"),
            (_, true) => write!(f, "at least {min}"),
            _ => write!(f, "between {min} and {max}"),
        }
    }
}

/// The word on the wire.
pub(crate) fn word(value: &impl serde::Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|word| word.as_str().map(str::to_owned)).unwrap_or_default()
}

/// A length of time for people.
pub(crate) fn time(time: Duration) -> String {
    let ms = time.as_millis();
    let (seconds, ms) = (ms / 1000, ms % 1000);
    let (minutes, seconds) = (seconds / 60, seconds % 60);
    let (hours, minutes) = (minutes / 60, minutes % 60);
    let parts = [(hours, "h"), (minutes, "m"), (seconds, "s"), (ms, "ms")];
    let shown: Vec<String> =
        parts.iter().filter(|(count, _)| *count > 0).map(|(count, unit)| format!("{count}{unit}")).collect();
    if shown.is_empty() { "0ms".to_owned() } else { shown.join("") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_bounds_are_written_for_people() {
        assert_eq!(time(Duration::from_millis(5_403_007)), "1h30m3s7ms");
        assert_eq!(time(Duration::ZERO), "0ms");
        let number = |value: Value| serde_json::from_value::<NumberExpect>(value).unwrap().to_string();
        let rows = [json!(0.5), json!({ "max": 2 }), json!({ "min": 1 }), json!({ "min": 1, "max": 2 })];
        assert_eq!(rows.map(number), ["0.5", "at most 2", "at least 1", "between 1 and 2"]);
    }
}
