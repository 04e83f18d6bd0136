//! Options that contradict each other, and edges and joins that the types of nodes rule out.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::{
    compile::resolve::{Link, Resolved, ResolvedNode, name},
    diagnostic::{Code, Problem, Sink, did_you_mean, quoted},
    expr::{is_equal, is_true},
    graph::{EdgeOn, NodeIx},
    node::NodeKind,
    schedule::MOST_ITEMS,
    spec::{Data, Key, Yaml},
};

/// Reports what contradicts itself in a body.
pub(super) fn check(body: &Resolved<'_>, sink: &mut Sink) {
    for node in &body.nodes {
        let Some((node_type, _)) = node.spec.node_type() else { continue };
        let mut options = NodeOptions { node, sink };
        match node_type {
            "human.input" => options.question(),
            "control.switch" => options.switch(),
            "control.foreach" => {
                options.matrix();
                options.exclude();
            }
            _ if node.kind() == Some(NodeKind::Agent) => options.tools(),
            _ => {}
        }
        options.policy(body);
    }
    for link in &body.links.links {
        after_the_end(link, body, sink);
    }
    for (node, at) in body.nodes.iter().zip(0_u32..) {
        if node.waits_for_all() {
            exclusive_branches(NodeIx(at), body, sink);
        }
    }
}

/// The options of one node.
struct NodeOptions<'o> {
    node: &'o ResolvedNode<'o>,
    sink: &'o mut Sink,
}

impl<'o> NodeOptions<'o> {
    fn input(&self, key: &str) -> Option<&'o Yaml> {
        self.node.input.as_ref()?.get(key)
    }

    fn warn(&mut self, at: &Yaml, key: &str, message: String, help: Option<String>) {
        self.push(Problem::warning(Code::Contradiction, at.span, message).help(help), key);
    }

    fn push(&mut self, problem: Problem, key: &str) {
        let spec = self.node.spec;
        self.sink.push_of_input(problem.node(spec.id.as_ref()).key(spec.key(key)));
    }

    /// A default that is no answer, and choices that are there twice.
    fn question(&mut self) {
        let Some(choices) = self.input("choices") else { return };
        let items = choices.items();
        let texts: Vec<&str> = items.iter().filter_map(literal).collect();
        for (at, choice) in items.iter().enumerate() {
            let is_before = |text: &&str| items[..at].iter().any(|known| literal(known) == Some(*text));
            if let Some(text) = literal(choice).filter(is_before) {
                self.warn(
                    choice,
                    &format!("input.choices[{at}]"),
                    format!("the choice `{text}` is there twice"),
                    None,
                );
            }
        }
        let Some(default) = self.input("default") else { return };
        let all_known = texts.len() == items.len() && !texts.is_empty();
        let takes_text = self.input("allowText").is_some_and(|allows| allows.json() != false);
        if let Some(text) = literal(default).filter(|text| all_known && !takes_text && !texts.contains(text))
        {
            let help = did_you_mean(text, texts.iter().copied())
                .or_else(|| Some(format!("the choices are {}", quoted(&texts))));
            // The question could never be asked.
            let message = format!("the default `{text}` is not one of the choices");
            let problem = Problem::error(Code::InvalidValue, default.span, message);
            self.push(problem.help(help), "input.default");
        }
    }

    /// A matrix with more combinations than can be run, also if the values that are templates are left out.
    fn matrix(&mut self) {
        let Some(matrix) = self.input("matrix") else { return };
        let sizes = matrix.entries().iter().map(|axis| axis.value.items().len().max(1));
        if sizes.fold(1, usize::saturating_mul) > MOST_ITEMS {
            let message = format!("the matrix has more than {MOST_ITEMS} combinations");
            self.push(Problem::error(Code::InvalidValue, matrix.span, message), "input.matrix");
        }
    }

    /// An `exclude` that leaves out nothing, or everything.
    fn exclude(&mut self) {
        let Some(rules) = self.input("exclude") else { return };
        let Some(matrix) = self.input("matrix") else {
            if !rules.items().is_empty() {
                let message =
                    "`exclude` leaves out nothing here: it is for a `matrix`, and `items` are all run";
                self.warn(rules, "input.exclude", message.to_owned(), None);
            }
            return;
        };
        for (at, rule) in rules.items().iter().enumerate() {
            if matches!(&rule.data, Data::Map(entries) if entries.is_empty()) {
                let message = "`exclude` leaves out everything here: `{}` fits each combination";
                self.warn(rule, &format!("input.exclude[{at}]"), message.to_owned(), None);
            }
        }
        // A matrix that is a template as a whole has no entries yet.
        if matrix.entries().is_empty() {
            return;
        }
        let named = rules.items().iter().enumerate();
        for (at, entry) in named.flat_map(|(at, rule)| rule.entries().iter().map(move |entry| (at, entry))) {
            let (axis, key) = (&entry.key, format!("input.exclude[{at}].{}", entry.key));
            let Some(own) = matrix.get(axis) else {
                let names = matrix.entries().iter().map(|entry| entry.key.as_str());
                let help = did_you_mean(axis, names.clone())
                    .or_else(|| Some(format!("the matrix has {}", quoted(names))));
                let message = format!("`exclude` names `{axis}`, which the matrix does not have");
                let problem = Problem::error(Code::UnknownKey, entry.key_span, message);
                self.push(problem.help(help), &key);
                continue;
            };
            // What has a brace may be a template, whose value is not known yet.
            let known = |value: &Yaml| Some(value.json()).filter(|value| !value.to_string().contains('{'));
            let (Some(value), Some(values)) =
                (known(&entry.value), own.items().iter().map(known).collect::<Option<Vec<_>>>())
            else {
                continue;
            };
            if !values.is_empty() && !values.iter().any(|own| is_equal(own, &value)) {
                let message = format!("`exclude` leaves out nothing here: no `{axis}` is `{value}`");
                let help = Some(format!("the matrix has {}", quoted(&values)));
                self.warn(&entry.value, &key, message, help);
            }
        }
    }

    /// A case that another one before it always decides.
    fn switch(&mut self) {
        let Some(cases) = self.input("cases") else { return };
        let mut seen: BTreeMap<String, u32> = BTreeMap::new();
        for (at, case) in cases.items().iter().enumerate() {
            let Some(when) = case.get("when") else { continue };
            let condition = without_braces(&when.json());
            if let Some(line) = seen.get(&condition) {
                let message =
                    format!("this case is never reached: the case on line {line} has the same condition");
                self.warn(when, &format!("input.cases[{at}].when"), message, None);
            } else {
                seen.insert(condition, when.span.start.line);
            }
        }
    }

    /// A tool that is allowed and denied.
    fn tools(&mut self) {
        let Some(options) = self.input("options") else { return };
        let Some(denied) = options.get("disallowedTools") else { return };
        for key in ["tools", "allowedTools"] {
            let allowed: Vec<&str> =
                options.get(key).into_iter().flat_map(Yaml::items).filter_map(literal).collect();
            for (at, tool) in denied.items().iter().enumerate() {
                if let Some(text) = literal(tool).filter(|text| allowed.contains(text)) {
                    let message =
                        format!("`{text}` is in `{key}` and in `disallowedTools`: it cannot be used");
                    let help = Some("keep it in one of the two".to_owned());
                    self.warn(tool, &format!("input.options.disallowedTools[{at}]"), message, help);
                }
            }
        }
    }

    /// A limit of the node that one of the flow makes useless.
    fn policy(&mut self, body: &Resolved<'_>) {
        let (spec, flow) = (self.node.spec, &body.flow.header.policy);
        let Some(policy) = &spec.policy else { return };
        let mut found = Vec::new();
        if let (Some(first), Some(longest)) = (policy.backoff, policy.max_backoff)
            && longest < first
        {
            found.push(("policy.retry.maxBackoff", "`maxBackoff` is shorter than `backoff`".to_owned()));
        }
        let says_more = policy.backoff.is_some()
            || policy.factor.is_some()
            || policy.max_backoff.is_some()
            || policy.on.is_some();
        // One of `defaults` is there for the nodes that say how often.
        let is_own = |retry: &&Yaml| {
            let policy = spec.policy_yaml.map_or(retry.span, |policy| policy.span);
            let [from, to, at] = [policy.start, policy.end, retry.span.start].map(|at| (at.line, at.column));
            policy.source == retry.span.source && (from..=to).contains(&at)
        };
        let retry = spec.policy_yaml.and_then(|policy| policy.get("retry")).filter(is_own);
        if says_more
            && retry.is_some_and(|retry| retry.get("maxAttempts").is_none())
            && self.node.kind().is_some_and(|kind| kind != NodeKind::Agent)
        {
            let message = "`retry` without `maxAttempts` does nothing: this node is tried once";
            found.push(("policy.retry", message.to_owned()));
        }
        if let (Some(own), Some(whole)) = (policy.timeout, flow.timeout)
            && own > whole
        {
            found.push((
                "policy.timeout",
                "the `timeout` of the node is longer than that of the flow".to_owned(),
            ));
        }
        let usd = |budget: &Option<crate::graph::Budget>| budget.as_ref().and_then(|budget| budget.usd);
        if let (Some(own), Some(whole)) = (usd(&policy.budget), usd(&flow.budget))
            && own > whole
        {
            found.push((
                "policy.budget.usd",
                "the `budget` of the node is larger than that of the flow".to_owned(),
            ));
        }
        for (key, message) in found {
            let mut names = key.split('.').skip(1);
            let value = spec.policy_yaml.and_then(|policy| names.try_fold(policy, |at, name| at.get(name)));
            let span = value.map_or(spec.id_span, |value| value.span);
            let problem = Problem::warning(Code::Contradiction, span, message);
            self.sink.push(problem.node(spec.id.as_ref()).key(spec.key(key)));
        }
    }
}

/// Reports an edge that waits for the success of a node that never succeeds, or that ends everything around it.
fn after_the_end(link: &Link<'_>, body: &Resolved<'_>, sink: &mut Sink) {
    let from = name(body.spec, link.from);
    let node = body.nodes[link.from.0 as usize].spec;
    let handled =
        node.policy.as_ref().is_some_and(|policy| policy.on_failure == crate::graph::OnFailure::Continue);
    let (why, help) = match node.node_type() {
        Some(("control.fail", _)) if link.on == EdgeOn::Success && !handled => {
            (format!("{from} always fails"), "write `on: failure` to run after it".to_owned())
        }
        Some(("control.end", _)) if link.on == EdgeOn::Success => {
            (format!("{from} ends its frame or the flow"), "put what comes next before it".to_owned())
        }
        _ => return,
    };
    let problem =
        Problem::warning(Code::NeverFires, link.span, format!("this edge never fires: {why}")).help(help);
    sink.push(match link.spec {
        Some(edge) => problem.key(&edge.key),
        None => problem.node(body.nodes[link.to.0 as usize].spec.id.as_ref()),
    });
}

/// Reports a join that waits for two branches of which only one can run.
fn exclusive_branches(join: NodeIx, body: &Resolved<'_>, sink: &mut Sink) {
    // For each node that branches: the branches that lead to the join, and when each is taken.
    let mut taken: BTreeMap<(NodeIx, String), (NodeIx, Claim)> = BTreeMap::new();
    for link in body.links.leading_to(join).filter(|link| link.on == EdgeOn::Success) {
        let mut before = body.links.leading_to(link.from);
        let (Some(branch), None) = (before.next(), before.next()) else { continue };
        // A loop edge begins another pass of a node that has run already.
        if branch.is_loop() {
            continue;
        }
        let Some((subject, claim)) = branch.spec.and_then(|edge| claim(&edge.when?.json())) else { continue };
        let other = taken.get(&(branch.from, subject.clone())).filter(|(_, other)| other.excludes(&claim));
        if let Some((other, _)) = other {
            let spec = body.nodes[join.0 as usize].spec;
            let names = [join, *other, link.from].map(|node| name(body.spec, node));
            let [id, one, two] = names;
            let message = format!("{id} waits for {one} and {two}, and only one of them runs");
            let help = "set `mode: any`".to_owned();
            let problem = Problem::error(Code::UnreachableNode, spec.id_span, message).help(help);
            sink.push(problem.node(spec.id.as_ref()).key(spec.key(Key::Field(&Key::Root, "input.mode"))));
            return;
        }
        taken.insert((branch.from, subject), (link.from, claim));
    }
}

/// What a condition says of a value.
enum Claim {
    Equals(Value),
    Differs(Value),
    /// It counts as true, or as false: a text that is not empty counts as true.
    Truth(bool),
}

impl Claim {
    fn negated(self) -> Self {
        match self {
            Self::Equals(value) => Self::Differs(value),
            Self::Differs(value) => Self::Equals(value),
            Self::Truth(holds) => Self::Truth(!holds),
        }
    }

    /// Whether no value fits both claims.
    fn excludes(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Equals(one), Self::Equals(other)) => !is_equal(one, other),
            (Self::Equals(one), Self::Differs(other)) | (Self::Differs(other), Self::Equals(one)) => {
                is_equal(one, other)
            }
            (Self::Equals(value), Self::Truth(holds)) | (Self::Truth(holds), Self::Equals(value)) => {
                is_true(value) != *holds
            }
            (Self::Truth(one), Self::Truth(other)) => one != other,
            (Self::Differs(_), Self::Differs(_) | Self::Truth(_)) | (Self::Truth(_), Self::Differs(_)) => {
                false
            }
        }
    }
}

/// The value that a condition is about, and what it says of it: `a == 'x'`, `not a` or `{equals: …}`.
fn claim(when: &Value) -> Option<(String, Claim)> {
    if let Some(equals) = when.get("equals") {
        let value = Claim::Equals(equals.get("value")?.clone());
        return Some((equals.get("var")?.as_str()?.trim().to_owned(), value));
    }
    if let Some(not) = when.get("not") {
        let (subject, claim) = claim(not)?;
        return Some((subject, claim.negated()));
    }
    let text = without_braces(when);
    let is_path = |text: &str| text.bytes().all(|b| b == b'_' || b == b'.' || b.is_ascii_alphanumeric());
    if let Some((subject, value)) = text.split_once("==") {
        let (subject, value) = (subject.trim(), value.trim());
        let inner = value.strip_prefix(['\'', '"']).and_then(|value| value.strip_suffix(['\'', '"']));
        let value = match inner {
            Some(inner) if !inner.contains(['\'', '"']) => Value::from(inner),
            Some(_) => return None,
            None => serde_json::from_str(value).ok().filter(|value: &Value| !value.is_string())?,
        };
        return is_path(subject).then(|| (subject.to_owned(), Claim::Equals(value)));
    }
    let (subject, holds) = match text.strip_prefix("not ") {
        Some(subject) => (subject.trim(), false),
        None => (text.as_str(), true),
    };
    (is_path(subject) && !subject.is_empty()).then(|| (subject.to_owned(), Claim::Truth(holds)))
}

/// A condition without the braces that may be around it.
pub(super) fn without_braces(when: &Value) -> String {
    let Some(text) = when.as_str() else { return when.to_string() };
    let text = text.trim();
    let inner = text.strip_prefix("{{").and_then(|text| text.strip_suffix("}}"));
    inner.unwrap_or(text).trim().to_owned()
}

/// The text of a value that is not a template.
pub(super) fn literal(value: &Yaml) -> Option<&str> {
    value.text().filter(|text| !text.contains("{{") && !text.contains("{%"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn conditions_exclude_each_other_only_if_no_value_fits_both() {
        let equals = |value: Value| json!({ "equals": { "var": "a", "value": value } });
        let rows = [
            (json!("a == 1"), json!("a == 2"), true),
            (json!("a == 1"), json!("{{ a == 1.0 }}"), false),
            (json!("a"), json!("not a"), true),
            (json!("a"), json!("a == 'x'"), false),
            (json!("a"), json!("a == 0"), true),
            (json!("not a"), json!("a == 0"), false),
            (json!({ "not": equals(json!(true)) }), equals(json!(true)), true),
            (json!({ "not": equals(json!(true)) }), json!("a == 5"), false),
            (json!({ "not": equals(json!(true)) }), json!("a"), false),
        ];
        let seen = rows.each_ref().map(|(one, other, _)| {
            let ((_, one), (_, other)) = (claim(one).unwrap(), claim(other).unwrap());
            (one.excludes(&other), other.excludes(&one))
        });
        assert_eq!(seen, rows.map(|(.., excludes)| (excludes, excludes)));
    }
}
