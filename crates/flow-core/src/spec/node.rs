//! One item of `nodes`.

use std::{fmt, sync::Arc, time::Duration};

use inspan_protocol::NodeId;

use crate::{
    diagnostic::{Code, Problem, Sink, SourceSpan},
    expr::is_reserved,
    graph::{Budget, EdgeOn, Effects, OnExceeded, OnFailure, OnLimit, RetryOn, SessionMode},
    spec::{
        AGENTS, BodySpec, Data, Key, Text, Yaml,
        edge::ENDS,
        fields,
        fields::{Fields, wrong},
        header::budget,
    },
};

/// A node as written.
#[derive(Debug)]
pub(crate) struct NodeSpec<'a> {
    /// Its position in the list.
    pub(crate) at: usize,
    /// What precedes its key, as [`BodySpec::prefix`].
    prefix: Arc<str>,
    pub(crate) span: SourceSpan,
    /// Its id, if it is valid.
    pub(crate) id: Option<NodeId>,
    pub(crate) id_span: SourceSpan,
    node_type: Option<&'a Yaml>,
    pub(crate) input: Option<&'a Yaml>,
    prompt_file: Option<&'a Yaml>,
    pub(crate) depends_on: Vec<Dependency<'a>>,
    pub(crate) when: Option<&'a Yaml>,
    session: Option<SessionSpec<'a>>,
    /// The expression that names the agent.
    pub(crate) choice: Option<&'a Yaml>,
    pub(crate) fallback: Vec<FallbackSpec<'a>>,
    /// The name of its own agent, if there are others.
    pub(crate) agent: Option<&'a str>,
    /// Whether that agent may work first.
    pub(crate) is_chosen: bool,
    /// The node as it is with each of the others.
    pub(crate) others: Vec<NodeSpec<'a>>,
    pub(crate) effects: Option<Effects>,
    /// The pool of machines that it runs on.
    pub(crate) pool: Option<Text<'a>>,
    /// Boxed, since a flow has many nodes and few policies.
    pub(crate) policy: Option<Box<PolicySpec>>,
    /// The policy as written, which has the places of its values.
    pub(crate) policy_yaml: Option<&'a Yaml>,
    pub(crate) body: Option<Box<BodySpec<'a>>>,
    /// The place of the key `body`.
    pub(crate) body_span: SourceSpan,
}

/// An entry of `dependsOn`.
#[derive(Debug)]
pub(crate) struct Dependency<'a> {
    /// Its position in the list.
    pub(crate) at: usize,
    pub(crate) node: Text<'a>,
    pub(crate) on: EdgeOn,
}

/// An entry of `fallback`.
#[derive(Debug)]
pub(crate) struct FallbackSpec<'a> {
    /// Its position in the list.
    pub(crate) at: usize,
    pub(crate) agent: Text<'a>,
    pub(crate) when: Option<&'a Yaml>,
}

/// The conversation that a node continues or branches, as written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionSpec<'a> {
    pub(crate) from: Text<'a>,
    pub(crate) mode: SessionMode,
    /// The place of `fork`.
    pub(crate) fork_span: SourceSpan,
}

/// A policy of a node as written; defaults depend on the type of the node.
#[derive(Debug, Default)]
pub(crate) struct PolicySpec {
    pub(crate) timeout: Option<Duration>,
    pub(crate) max_attempts: Option<u32>,
    pub(crate) backoff: Option<Duration>,
    pub(crate) factor: Option<f64>,
    pub(crate) max_backoff: Option<Duration>,
    pub(crate) on: Option<RetryOn>,
    pub(crate) on_failure: OnFailure,
    pub(crate) budget: Option<Budget>,
    pub(crate) on_limit: OnLimit,
}

impl<'a> NodeSpec<'a> {
    pub(super) fn read(
        value: &'a Yaml,
        at: usize,
        prefix: &Arc<str>,
        key: &Key<'_>,
        sink: &mut Sink,
    ) -> Option<Self> {
        let mut fields = Fields::open(value, key, sink)?;
        let written = fields.get("id");
        if written.is_none() {
            fields.missing("id", "the node", sink);
        }
        let text = written.and_then(|id| fields::text(id, &Key::Field(key, "id"), sink));
        let id = text.and_then(|text| id(text, key, sink));
        let node_type = fields.get("type");
        // An agent that says the type was put into the node, unless there is none of that name.
        let agent = fields.get("agent");
        if agent.is_none() && node_type.is_none() {
            let whose = id.as_ref().map_or_else(|| "the node".to_owned(), |id| format!("node `{id}`"));
            fields.missing("type", &whose, sink);
        }
        let node_type =
            node_type.filter(|value| fields::text(value, &Key::Field(key, "type"), sink).is_some());
        // Names and descriptions are for people; nothing depends on them.
        fields.text("name", sink);
        fields.text("description", sink);
        let effects =
            [("none", Effects::None), ("workspace", Effects::Workspace), ("external", Effects::External)];
        let effects = fields.word("effects", &effects, sink);
        let pool = fields.text_value("pool", sink).and_then(Yaml::placed_text);
        let named = fields.take(AGENTS);
        let others = named.map(Yaml::items).unwrap_or_default().iter().skip(1);
        let others = others.filter(|other| matches!(other.data, Data::Map(_)));
        let others = others.filter_map(|other| Self::read(other, at, prefix, key, sink));
        let others: Vec<_> = others.collect();
        let spec = Self {
            at,
            prefix: prefix.clone(),
            span: value.span,
            id_span: text.map_or(value.span, |(_, span)| span),
            id,
            node_type,
            input: fields.get("input"),
            prompt_file: fields.text_value("promptFile", sink),
            depends_on: depends_on(&mut fields, sink),
            when: fields.get("when"),
            session: session(&mut fields, sink),
            choice: agent.filter(|_| node_type.is_some()),
            fallback: fallback(&mut fields, sink),
            agent: named.and_then(|agents| agents.items().first()).and_then(Yaml::text),
            is_chosen: named.and_then(|agents| agents.items().get(1)).is_some_and(|flag| flag.json() == true),
            others,
            effects,
            pool: pool.filter(|pool| is_pool(*pool, key, sink)),
            policy: policy(&mut fields, sink),
            policy_yaml: fields.get("policy"),
            body_span: fields.key_span("body"),
            body: fields
                .get("body")
                .and_then(|body| BodySpec::read(body, &Key::Field(key, "body"), sink))
                .map(Box::new),
        };
        fields.finish_with(sink, advice);
        Some(spec)
    }

    /// Warns of `onLimit: fallback` that the node itself says, and that no other agent follows.
    pub(super) fn check_limit(&self, node: &Yaml, sink: &mut Sink) {
        let written = node.get("policy").and_then(|policy| policy.entry("onLimit"));
        let (Some(written), Some(policy)) = (written, &self.policy) else { return };
        let (whole, span) = (self.span, written.key_span);
        let is_own = (whole.source, whole.start) <= (span.source, span.start)
            && (span.source, span.end) <= (whole.source, whole.end);
        if is_own && policy.on_limit == OnLimit::Fallback && node.get("fallback").is_none() {
            let message =
                "`onLimit: fallback` lets the next agent take over, and this node has no `fallback`";
            let help = "name the next agents: `fallback: [{ agent: NAME }]`".to_owned();
            let problem = Problem::warning(Code::Contradiction, span, message).help(help);
            sink.push(problem.node(self.id.as_ref()).key(self.key("policy.onLimit")));
        }
    }

    /// A key of the node with its place in the file: `nodes[2].input` for `input`.
    pub(crate) fn key(&self, key: impl fmt::Display) -> String {
        format!("{}nodes[{}].{key}", self.prefix, self.at)
    }

    pub(crate) fn node_type(&self) -> Option<Text<'a>> {
        self.node_type.and_then(Yaml::placed_text)
    }

    pub(crate) fn prompt_file(&self) -> Option<Text<'a>> {
        self.prompt_file.and_then(Yaml::placed_text)
    }

    pub(crate) fn session(&self) -> Option<SessionSpec<'a>> {
        self.session
    }
}

/// Advice for a key that does not belong on a node.
fn advice(key: &str) -> Option<String> {
    let under = |place: &str| Some(format!("`{key}` belongs under `{place}`"));
    match key {
        "model" | "cwd" | "tools" | "permissionMode" | "maxTurns" | "systemPrompt" | "outputSchema"
        | "outputSchemaFile" | "options" => match key {
            "options" => under("input"),
            _ => under("input.options"),
        },
        "prompt" | "messages" | "argv" | "stdin" | "env" | "text" | "value" | "choices" | "message" => {
            under("input")
        }
        "timeout" | "retry" | "budget" | "continueOnError" | "onLimit" => under("policy"),
        "run" | "command" | "script" | "cmd" => {
            Some("a node of type `exec` runs a program: `input: { argv: [cargo, test] }`".to_owned())
        }
        "needs" | "depends" | "after" | "requires" => Some("write `dependsOn`".to_owned()),
        "if" | "condition" => Some("write `when`".to_owned()),
        "next" | "to" => Some("connect nodes under `edges`: `{ from: …, to: … }`".to_owned()),
        "forEach" | "foreach" | "matrix" | "with_items" => {
            Some("a node of type `control.foreach` runs its `body` for each item".to_owned())
        }
        "loop" | "repeat" => Some("a node of type `control.loop` repeats its `body`".to_owned()),
        _ => None,
    }
}

/// `session: NODE`, or `session: { from: NODE, fork: true }`.
fn session<'a>(fields: &mut Fields<'a, '_>, sink: &mut Sink) -> Option<SessionSpec<'a>> {
    let value = fields.get("session")?;
    let key = Key::Field(fields.key, "session");
    if !matches!(value.data, Data::Map(_)) {
        let from = fields::text(value, &key, sink)?;
        return Some(SessionSpec { from, mode: SessionMode::Continue, fork_span: value.span });
    }
    let mut fields = Fields::open(value, &key, sink)?;
    let from = fields.required("from", "the session", sink);
    let mode = match fields.bool("fork", sink) {
        Some(false) => SessionMode::Continue,
        None if fields.get("fork").is_none() => SessionMode::Continue,
        // Anything else was reported.
        _ => SessionMode::Fork,
    };
    let fork_span = fields.key_span("fork");
    fields.finish(sink);
    Some(SessionSpec { from: from?, mode, fork_span })
}

/// The entries of `fallback`. Whether their agents are declared is checked where these are put into the node.
fn fallback<'a>(fields: &mut Fields<'a, '_>, sink: &mut Sink) -> Vec<FallbackSpec<'a>> {
    let Some(value) = fields.get("fallback") else { return Vec::new() };
    let key = Key::Field(fields.key, "fallback");
    let items = fields::list(value, &key, sink).iter().enumerate();
    let read = items.filter_map(|(at, item)| {
        let key = Key::Index(&key, at);
        let mut fields = Fields::open(item, &key, sink)?;
        let agent = fields.required("agent", "the entry of `fallback`", sink);
        let when = fields.get("when");
        fields.finish(sink);
        Some(FallbackSpec { at, agent: agent?, when })
    });
    read.collect()
}

/// Advice for a policy key of other tools.
fn policy_advice(key: &str) -> Option<String> {
    match key {
        "onError" | "on_error" | "onFailure" | "ignoreErrors" | "allowFailure" => {
            Some("write `continueOnError: true` to continue after a failure".to_owned())
        }
        "retries" | "attempts" | "maxAttempts" | "maxRetries" => {
            Some("write `retry: { maxAttempts: 3 }`, the first attempt included".to_owned())
        }
        "backoff" | "factor" | "maxBackoff" => Some(format!("`{key}` belongs under `retry`")),
        _ => None,
    }
}

fn id((text, span): Text<'_>, key: &Key<'_>, sink: &mut Sink) -> Option<NodeId> {
    let refuse = |message: String| Problem::error(Code::InvalidId, span, message).key(Key::Field(key, "id"));
    if is_reserved(text) {
        sink.push(refuse(format!("`{text}` is reserved in templates and cannot be a node id")));
        sink.refused(text);
        return None;
    }
    match NodeId::new(text) {
        Ok(id) => Some(id),
        Err(error) => {
            let fixed: String =
                text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
            // An id that keeps nothing of what was written would say nothing.
            let is_of_use = fixed.contains(|c| c != '_') && NodeId::new(&fixed).is_ok();
            let help = is_of_use.then(|| format!("try `{fixed}`"));
            sink.push(refuse(error.to_string()).help(help));
            sink.refused(text);
            None
        }
    }
}

/// How long the name of a pool may be.
const MAX_POOL: usize = 64;

/// Whether a text can be the name of a pool; a queue is named after it.
fn is_pool((text, span): Text<'_>, key: &Key<'_>, sink: &mut Sink) -> bool {
    let checked = check_pool_name(text);
    let is_name = checked.is_ok();
    if let Err(message) = checked {
        sink.push(Problem::error(Code::InvalidValue, span, message).key(Key::Field(key, "pool")));
    }
    is_name
}

/// Checks whether a text can be the name of a pool of machines: 1 to 64 ASCII letters, digits, `_` and `-`. The error says
/// so.
pub fn check_pool_name(text: &str) -> Result<(), String> {
    let is_name = (1..=MAX_POOL).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
    match is_name {
        true => Ok(()),
        false => Err(format!(
            "`{text}` cannot be the name of a pool: it takes 1 to {MAX_POOL} of the characters a-z, A-Z, 0-9, `_` and `-`"
        )),
    }
}

fn depends_on<'a>(fields: &mut Fields<'a, '_>, sink: &mut Sink) -> Vec<Dependency<'a>> {
    let Some(value) = fields.get("dependsOn") else { return Vec::new() };
    let key = Key::Field(fields.key, "dependsOn");
    let items = match &value.data {
        Data::Text(_) | Data::Map(_) => std::slice::from_ref(value),
        Data::List(items) => items,
        _ => {
            wrong(value, &key, "a list of node ids", sink);
            return Vec::new();
        }
    };
    let read = items.iter().enumerate().filter_map(|(at, item)| {
        let key = Key::Index(&key, at);
        if !matches!(item.data, Data::Map(_)) {
            let node = fields::text(item, &key, sink)?;
            return Some(Dependency { at, node, on: EdgeOn::Success });
        }
        let mut fields = Fields::open(item, &key, sink)?;
        let node = fields.required("node", "the dependency", sink);
        let on = fields.word("on", &ENDS, sink);
        fields.finish(sink);
        Some(Dependency { at, node: node?, on: on.unwrap_or_default() })
    });
    read.collect()
}

fn policy(fields: &mut Fields<'_, '_>, sink: &mut Sink) -> Option<Box<PolicySpec>> {
    let key = Key::Field(fields.key, "policy");
    let mut policy = fields.get("policy").and_then(|value| Fields::open(value, &key, sink))?;
    let mut read = PolicySpec {
        timeout: policy.timeout(sink),
        on_failure: match policy.bool("continueOnError", sink) {
            Some(true) => OnFailure::Continue,
            _ => OnFailure::Fail,
        },
        ..PolicySpec::default()
    };
    // If the failure of a node is handled, so is its used-up budget.
    let default_on_exceeded = match read.on_failure {
        OnFailure::Continue => OnExceeded::Fail,
        OnFailure::Fail => OnExceeded::Pause,
    };
    read.budget = budget(&mut policy, default_on_exceeded, sink);
    let words = [("wait", OnLimit::Wait), ("fail", OnLimit::Fail), ("fallback", OnLimit::Fallback)];
    read.on_limit = policy.word("onLimit", &words, sink).unwrap_or_default();
    let retry_key = Key::Field(&key, "retry");
    let retry_times = policy.get("retry").and_then(|value| match &value.data {
        Data::Number(number) => Some((value.span, number.clone())),
        _ => None,
    });
    if let Some((span, number)) = retry_times {
        let help = format!("write `retry: {{ maxAttempts: {number} }}`, the first attempt included");
        let problem = Problem::error(Code::WrongType, span, "`retry` must be a mapping, found a number");
        sink.push(problem.help(help).key(retry_key));
    } else if let Some(mut retry) =
        policy.get("retry").and_then(|value| Fields::open(value, &retry_key, sink))
    {
        read.max_attempts = retry.count("maxAttempts", sink);
        read.backoff = retry.duration("backoff", sink);
        let least = "a number of at least 1";
        read.factor = retry.number("factor", [least, least], |factor| factor >= 1.0, sink);
        read.max_backoff = retry.duration("maxBackoff", sink);
        let words = [("retryable", RetryOn::Retryable), ("any", RetryOn::Any)];
        read.on = retry.word("on", &words, sink);
        retry.finish(sink);
    }
    policy.finish_with(sink, policy_advice);
    Some(Box::new(read))
}
