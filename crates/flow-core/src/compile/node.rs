//! One node: its type, input, policy, session and what its provider can do.

use std::sync::Arc;

use inspan_protocol::NodeId;
use serde_json::Value;

use super::{
    World, command, condition, files, input,
    names::{User, Whose},
    types::{Known, named},
    validate::Subject,
};
use crate::{
    diagnostic::{Code, Problem, Sink, Span, did_you_mean},
    expr::{Draft, Template},
    graph::{Budget, Join, Node, NodeIx, NodePolicy, Occupies, OnUnknown, Retry, RetryOn},
    node::NodeKind,
    spec::{Data, NodeSpec, PolicySpec, Yaml},
};

/// Compiles a node. What is returned is only good if no error was found.
pub(super) fn compile(spec: &NodeSpec<'_>, world: &mut World<'_>, sink: &mut Sink) -> Node {
    let known = world.types.find(spec, sink);
    let ix = u32::try_from(spec.at).ok().map(NodeIx);
    let node = ix.filter(|_| spec.id.is_some());
    let user = User { node, whose: Whose::Node(spec.id.as_ref(), spec.at), after: false };
    let when = spec.when.and_then(|when| condition::compile(when, &user, world, sink));
    let effective = input::effective(spec, world, sink);
    let effective = effective.as_ref();
    let json = effective.map_or(Value::Null, Yaml::json);
    let template = match (&known, effective) {
        (Some(known), Some(input)) => checked(spec, known, input, &json, &user, world, sink),
        (None, Some(input)) => input::parse(input, None, None, &user, world, sink).draft,
        (_, None) => Draft::Literal(Value::Null),
    };
    let kind = known.as_ref().map_or(NodeKind::Plain, |known| known.info().kind);
    Node {
        id: spec.id.clone().unwrap_or_else(placeholder),
        node_type: known.as_ref().map_or_else(|| "".into(), |known| known.info().name.clone()),
        input: Template::new(spec.id.clone(), template),
        when,
        policy: policy(spec, kind, &mut world.unsaid),
        effects: spec.effects,
        session: session(spec, kind, world, sink),
        kind,
        join: if kind == NodeKind::Merge { join(&json) } else { Join::Resolved },
        occupies: known.as_ref().map_or(Occupies::Slot, |known| known.info().occupies),
        incoming: Vec::new(),
        outgoing: Vec::new(),
        loops: Vec::new(),
        body: Arc::default(),
    }
}

/// Stands in for an id that was refused, in a graph that is refused too.
fn placeholder() -> NodeId {
    static PLACEHOLDER: std::sync::LazyLock<Option<NodeId>> =
        std::sync::LazyLock::new(|| NodeId::new("_").ok());
    PLACEHOLDER.clone().unwrap_or_else(placeholder)
}

fn checked(
    spec: &NodeSpec<'_>,
    known: &Arc<Known>,
    effective: &Yaml,
    json: &Value,
    user: &User<'_>,
    world: &mut World<'_>,
    sink: &mut Sink,
) -> Draft {
    let provider_known = check_provider(spec, known, effective, sink);
    let schema = world.types.schema(known, json);
    let parsed = input::parse(effective, schema.marked(), Some(schema.json()), user, world, sink);
    if provider_known {
        let subject = Subject {
            input: effective,
            json,
            bound: &parsed.bound,
            schema: &schema,
            node_type: &known.info().name,
            id: spec.id.as_ref(),
            at: spec.at,
        };
        subject.check(sink);
        check_capabilities(spec, known, effective, json, schema.json(), sink);
        if !check_prompt(spec, known, effective, schema.json(), sink) {
            subject.refuse(known.node_type.check_input(json), sink);
        }
    }
    if &*known.info().name == "exec" {
        command::check(spec, effective, world, sink);
    }
    check_output_schema(spec, effective, sink);
    if known.info().kind == NodeKind::Merge && parsed.bound.iter().any(|bound| bound == "/mode") {
        let message = "`mode` cannot be a template: it is read before the flow runs";
        let span = effective.get("mode").map_or(effective.span, |mode| mode.span);
        let problem =
            Problem::error(Code::InvalidValue, span, message).help("write `all` or `any`".to_owned());
        sink.push(problem.node(spec.id.as_ref()).key(format!("nodes[{}].input.mode", spec.at)));
    }
    parsed.draft
}

/// Whether the provider that the input names is registered, or cannot be told yet.
fn check_provider(spec: &NodeSpec<'_>, known: &Known, input: &Yaml, sink: &mut Sink) -> bool {
    let Some(names) = known.node_type.providers() else { return true };
    let Some(value) = input.get("provider") else { return true };
    let written = value.json();
    let Some(name) = written.as_str().filter(|name| !name.contains("{{") && !name.contains("{%")) else {
        return true;
    };
    if names.iter().any(|known| known == name) {
        return true;
    }
    let help =
        did_you_mean(name, names.iter().map(String::as_str)).unwrap_or_else(|| match names.as_slice() {
            [] => "no provider is registered".to_owned(),
            names => format!("available: {}", names.join(", ")),
        });
    let message = format!("unknown provider `{name}`");
    let problem = Problem::error(Code::UnknownProvider, value.span, message).help(help);
    sink.push(problem.node(spec.id.as_ref()).key(format!("nodes[{}].input.provider", spec.at)));
    false
}

/// Refuses an agent that is told nothing; says whether it did.
fn check_prompt(spec: &NodeSpec<'_>, known: &Known, input: &Yaml, schema: &Value, sink: &mut Sink) -> bool {
    let takes = |key: &str| schema.get("properties").is_some_and(|properties| properties.get(key).is_some());
    if known.info().kind != NodeKind::Agent || !takes("prompt") {
        return false;
    }
    let given = |key: &str| input.get(key).filter(|value| !matches!(value.data, Data::Null));
    let mut refused = false;
    let mut refuse = |code, span, message: String, help: Option<&str>| {
        refused = true;
        let problem = Problem::error(code, span, message).help(help.map(str::to_owned));
        sink.push(problem.node(spec.id.as_ref()).key(format!("nodes[{}].input.prompt", spec.at)));
    };
    match (given("prompt"), given("messages").filter(|_| takes("messages"))) {
        (None, None) => {
            let message = format!("`{}` has no `prompt`", known.info().name);
            let help = "set `input: { prompt: … }`, or name a file with `promptFile`";
            refuse(Code::MissingKey, Span { end: spec.span.start, ..spec.span }, message, Some(help));
        }
        (Some(prompt), Some(_)) => {
            let message = "`prompt` and `messages` are both set; keep one".to_owned();
            refuse(Code::InvalidValue, prompt.span, message, None);
        }
        (Some(prompt), None) if prompt.text().is_some_and(|text| text.trim().is_empty()) => {
            // A file that is not there was reported already.
            if spec.prompt_file().is_none_or(|_| prompt.span.source != 0) {
                refuse(Code::InvalidValue, prompt.span, "the prompt is empty".to_owned(), None);
            } else {
                refused = true;
            }
        }
        _ => {}
    }
    refused
}

/// Refuses what the node asks for and its provider cannot do. Streaming and native steering are asked for by nobody: a
/// provider without them is waited for, and interrupted.
fn check_capabilities(
    spec: &NodeSpec<'_>,
    known: &Known,
    input: &Yaml,
    json: &Value,
    schema: &Value,
    sink: &mut Sink,
) {
    if known.info().kind != NodeKind::Agent {
        return;
    }
    let Some(can) = known.node_type.capabilities_for(json) else { return };
    let named_provider = json.get("provider").and_then(Value::as_str);
    let provider = named_provider.unwrap_or_else(|| known.info().name.trim_end_matches(".agent"));
    let mut refuse = |span, key: &str, does: &str, what: &str| {
        let message =
            format!("{} {does}, but the provider `{provider}` cannot {what}", named(spec.id.as_ref()));
        let problem = Problem::error(Code::UnsupportedCapability, span, message);
        sink.push(problem.node(spec.id.as_ref()).key(format!("nodes[{}].{key}", spec.at)));
    };
    let asks = [
        ("outputSchema", can.structured_output, "return structured output"),
        ("tools", can.tools, "restrict its tools"),
        ("allowedTools", can.tools, "restrict its tools"),
        ("disallowedTools", can.tools, "restrict its tools"),
        ("permissionMode", can.permissions, "ask for permission"),
        ("thinking", can.thinking, "configure its thinking"),
        ("maxThinkingTokens", can.thinking, "configure its thinking"),
        ("maxBudgetUsd", can.cost, "report the cost of a turn"),
    ];
    for (option, able, what) in asks {
        let entry = input.get("options").and_then(|options| options.entry(option));
        // An option that the provider does not have at all was reported already.
        let options = schema.pointer("/properties/options/properties");
        let is_known = options.is_none_or(|options| options.get(option).is_some());
        if let Some(entry) = entry.filter(|_| !able && is_known) {
            refuse(entry.key_span, &format!("input.options.{option}"), &format!("sets `{option}`"), what);
        }
    }
    if let Some(picture) = input.get("messages").and_then(picture).filter(|_| !can.images) {
        refuse(picture.span, "input.messages", "contains an image", "read images");
    }
    let stops = |budget: &Budget| budget.usd.is_some() && budget.on_unknown == OnUnknown::Stop;
    if spec.policy.as_ref().and_then(|policy| policy.budget.as_ref()).is_some_and(stops) && !can.cost {
        refuse(spec.id_span, "policy.budget", "sets `onUnknown: stop`", "report the cost of a turn");
    }
}

/// The first block of the messages that is a picture.
fn picture(messages: &Yaml) -> Option<&Yaml> {
    let messages = messages.items().iter().filter_map(|message| message.get("content"));
    let mut blocks = messages.flat_map(|content| content.items().iter());
    blocks.find(|block| block.get("type").is_some_and(|kind| kind.json() == "image"))
}

/// A schema written in the flow; one from a file was checked when it was drawn in.
fn check_output_schema(spec: &NodeSpec<'_>, input: &Yaml, sink: &mut Sink) {
    let Some(value) = input.get("options").and_then(|options| options.get("outputSchema")) else { return };
    if value.entries().is_empty() {
        return;
    }
    let finish = |problem: Problem| {
        problem.node(spec.id.as_ref()).key(format!("nodes[{}].input.options.outputSchema", spec.at))
    };
    files::check_schema(&value.json(), value.span, finish, sink);
}

/// The policy of a node; those that say nothing share one for each kind of default.
fn policy(spec: &NodeSpec<'_>, kind: NodeKind, unsaid: &mut Unsaid) -> Arc<NodePolicy> {
    match &spec.policy {
        Some(written) => Arc::new(complete(written, kind)),
        None => {
            let shared = if kind == NodeKind::Agent { &mut unsaid.agent } else { &mut unsaid.plain };
            shared.get_or_insert_with(|| Arc::new(complete(&PolicySpec::default(), kind))).clone()
        }
    }
}

/// The policies of nodes that say nothing of it.
#[derive(Default)]
pub(super) struct Unsaid {
    agent: Option<Arc<NodePolicy>>,
    plain: Option<Arc<NodePolicy>>,
}

fn complete(written: &PolicySpec, kind: NodeKind) -> NodePolicy {
    let default = Retry::default();
    let on = if kind == NodeKind::Agent { RetryOn::Retryable } else { RetryOn::Any };
    NodePolicy {
        timeout: written.timeout,
        retry: Retry {
            max_attempts: written.max_attempts.unwrap_or(default.max_attempts),
            backoff: written.backoff.unwrap_or(default.backoff),
            factor: written.factor.unwrap_or(default.factor),
            max_backoff: written.max_backoff,
            on: written.on.unwrap_or(on),
        },
        on_failure: written.on_failure,
        budget: written.budget,
        on_limit: written.on_limit,
    }
}

fn join(input: &Value) -> Join {
    match input.get("mode").and_then(Value::as_str) {
        Some("any") => Join::Any,
        _ => Join::All,
    }
}

fn session(spec: &NodeSpec<'_>, kind: NodeKind, world: &mut World<'_>, sink: &mut Sink) -> Option<NodeIx> {
    let (name, span) = spec.session()?;
    let mut refuse = |code, message: String, help: Option<String>| {
        let problem = Problem::error(code, span, message).help(help);
        sink.push(problem.node(spec.id.as_ref()).key(format!("nodes[{}].session", spec.at)));
    };
    if kind != NodeKind::Agent && spec.node_type().is_some_and(|(name, _)| world.types.get(name).is_some()) {
        refuse(
            Code::NotAnAgent,
            format!("{} is not an agent node and cannot have a `session`", named(spec.id.as_ref())),
            None,
        );
        return None;
    }
    let Some(target) = world.index.get(name).copied() else {
        let mut names: Vec<&str> = world.index.keys().map(NodeId::as_str).collect();
        names.sort_unstable();
        let help = did_you_mean(name, names);
        refuse(Code::UnknownNode, format!("`session` names unknown node `{name}`"), help);
        return None;
    };
    let other = &world.spec.nodes[target.0 as usize];
    if world.types.kind_of(other).is_some_and(|kind| kind != NodeKind::Agent) {
        refuse(Code::NotAnAgent, format!("`session` names `{name}`, which is not an agent node"), None);
        return None;
    }
    Some(target)
}
