//! The keys under `flow:`, or at the top level if there is no such key.

use serde_json::{Map, Value};

use crate::{
    diagnostic::{Code, Problem, Sink, SourceSpan, did_you_mean},
    graph::{Budget, FailFast, FlowPolicy, OnExceeded, OnUnknown},
    nodes::{SERVER_KEYS, SERVER_TYPES, SERVER_TYPES_OF_AGENTS},
    spec::{Data, Entry, Key, Text, Yaml, fields, fields::Fields},
};

/// What a flow declares about itself.
#[derive(Debug, Default)]
pub(crate) struct Header<'a> {
    pub(crate) name: String,
    pub(crate) version: Option<String>,
    pub(crate) description: Option<String>,
    pub(crate) phase: Option<String>,
    pub(crate) input: Map<String, Value>,
    /// The defaults with their places.
    pub(crate) input_yaml: Option<&'a Yaml>,
    pub(crate) input_schema: Option<&'a Yaml>,
    pub(crate) input_schema_file: Option<Text<'a>>,
    pub(crate) outputs: Option<&'a Yaml>,
    pub(crate) output_schema: Option<&'a Yaml>,
    pub(crate) output_schema_file: Option<Text<'a>>,
    pub(crate) packs: Option<Vec<Text<'a>>>,
    /// Names of environment variables.
    pub(crate) secrets: Vec<Text<'a>>,
    /// MCP servers by name, checked to be mappings.
    pub(crate) mcp_servers: Option<&'a Yaml>,
    pub(crate) state: Map<String, Value>,
    pub(crate) policy: FlowPolicy,
}

impl<'a> Header<'a> {
    /// The keys of the header.
    pub(crate) const KEYS: [&'static str; 19] = [
        "name",
        "version",
        "description",
        "phase",
        "input",
        "inputSchema",
        "inputSchemaFile",
        "outputs",
        "outputSchema",
        "outputSchemaFile",
        "mcpServers",
        "nodePacks",
        "policy",
        "secrets",
        "state",
        "agents",
        "defaults",
        "include",
        "packs",
    ];

    pub(super) fn read(fields: &mut Fields<'a, '_>, sink: &mut Sink) -> Self {
        // These were put into the nodes, or say which types there are.
        for key in ["agents", "defaults", "include", "packs"] {
            fields.get(key);
        }
        let name = fields.get("name");
        if name.is_none() {
            let span = SourceSpan { end: fields.span.start, ..fields.span };
            let problem = Problem::error(Code::MissingKey, span, "the flow is missing `name`");
            let help = "add one: `flow: { name: my_flow }`".to_owned();
            sink.push(problem.help(help).key(Key::Field(fields.key, "name")));
        }
        let name = name.and_then(|name| fields::text(name, &Key::Field(fields.key, "name"), sink));
        let phase = fields.text("phase", sink);
        for (key, found) in [("name", name), ("phase", phase)] {
            if let Some((_, span)) = found.filter(|(text, _)| text.trim().is_empty()) {
                let problem = Problem::error(Code::InvalidValue, span, format!("`{key}` is empty"));
                sink.push(problem.key(Key::Field(fields.key, key)));
            }
        }
        let version = fields.get("version").and_then(|version| match &version.data {
            Data::Number(number) => Some(number.to_string()),
            _ => {
                let key = Key::Field(fields.key, "version");
                fields::text(version, &key, sink).map(|(text, _)| text.to_owned())
            }
        });
        let owned = |text: Text<'_>| text.0.to_owned();
        Self {
            name: name.map(owned).unwrap_or_default(),
            version,
            description: fields.text("description", sink).map(owned),
            phase: phase.map(owned),
            input: fields.object("input", sink).unwrap_or_default(),
            input_yaml: fields.get("input"),
            input_schema: fields.get("inputSchema"),
            input_schema_file: fields.text("inputSchemaFile", sink),
            outputs: fields.get("outputs"),
            output_schema: fields.get("outputSchema"),
            output_schema_file: fields.text("outputSchemaFile", sink),
            packs: texts(fields, "nodePacks", sink),
            secrets: secrets(fields, sink),
            mcp_servers: mcp_servers(fields, sink),
            state: fields.object("state", sink).unwrap_or_default(),
            policy: policy(fields, PolicyOf::Flow, sink),
        }
    }
}

/// The valid names of variables.
fn secrets<'a>(fields: &mut Fields<'a, '_>, sink: &mut Sink) -> Vec<Text<'a>> {
    let mut names = texts(fields, "secrets", sink).unwrap_or_default();
    names.retain(|(name, span)| {
        let is_name = !name.starts_with(|c: char| c.is_ascii_digit())
            && !name.is_empty()
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !is_name {
            let problem =
                Problem::error(Code::InvalidValue, *span, "this is not a valid environment variable name");
            let help =
                "`secrets` lists names, such as `secrets: [DEPLOY_TOKEN]`; keep the values out of the file";
            sink.push(problem.help(help.to_owned()).key("secrets"));
        }
        is_name
    });
    names
}

/// MCP servers by name.
pub(super) fn mcp_servers<'a>(fields: &mut Fields<'a, '_>, sink: &mut Sink) -> Option<&'a Yaml> {
    let servers = fields.get("mcpServers")?;
    let key = Key::Field(fields.key, "mcpServers");
    if !matches!(servers.data, Data::Map(_)) {
        fields::wrong(servers, &key, "a mapping of servers by their names", sink);
        return None;
    }
    for entry in servers.entries() {
        let key = Key::Field(&key, &entry.key);
        match entry.value.data {
            Data::Map(_) => check_server(entry, &key, sink),
            _ => fields::wrong(&entry.value, &key, "a mapping", sink),
        }
    }
    Some(servers)
}

/// Reports what is wrong with a server, whoever uses it. Agents may have further keys, so only misspelt ones are.
fn check_server(server: &Entry, key: &Key<'_>, sink: &mut Sink) {
    let (name, value) = (&server.key, &server.value);
    let get = |key: &str| value.get(key).filter(|value| !matches!(value.data, Data::Null));
    for Entry { key: written, key_span, .. } in value.entries() {
        let help = did_you_mean(written, SERVER_KEYS).filter(|_| !SERVER_KEYS.contains(&written.as_str()));
        if help.is_some() {
            let message = format!("the MCP server `{name}` has the unknown key `{written}`");
            let problem = Problem::error(Code::UnknownKey, *key_span, message).help(help);
            sink.push(problem.key(Key::Field(key, written)));
        }
    }
    let kinds = || SERVER_TYPES.into_iter().chain(SERVER_TYPES_OF_AGENTS);
    if let Some((kind, span)) = value.get("type").and_then(Yaml::placed_text)
        && !kinds().any(|known| known == kind)
    {
        let help = did_you_mean(kind, kinds()).or_else(|| Some("available: stdio, http".to_owned()));
        let message = format!("the MCP server `{name}` has the unknown type `{kind}`");
        let problem = Problem::error(Code::InvalidValue, span, message).help(help);
        sink.push(problem.key(Key::Field(key, "type")));
    }
    if get("command").is_none() && get("url").is_none() {
        let message = format!("the MCP server `{name}` needs `command`, or `url`");
        sink.push(Problem::error(Code::MissingKey, server.key_span, message).key(key));
    }
    if let Some(args) = get("args") {
        let key = Key::Field(key, "args");
        for (at, item) in fields::list(args, &key, sink).iter().enumerate() {
            let _reported = fields::text(item, &Key::Index(&key, at), sink);
        }
    }
    for name in ["env", "headers"] {
        let (Some(texts), key) = (get(name), Key::Field(key, name)) else { continue };
        if !matches!(texts.data, Data::Map(_)) {
            fields::wrong(texts, &key, "a mapping of strings by their names", sink);
        }
        for Entry { key: written, value, .. } in texts.entries() {
            let _reported = fields::text(value, &Key::Field(&key, written), sink);
        }
    }
    if let Some(timeout) = get("timeout").filter(|timeout| timeout.json().as_u64().is_none()) {
        fields::wrong(timeout, &Key::Field(key, "timeout"), "a whole number of milliseconds", sink);
    }
}

fn texts<'a>(fields: &mut Fields<'a, '_>, name: &'static str, sink: &mut Sink) -> Option<Vec<Text<'a>>> {
    let list = fields.get(name)?;
    let key = Key::Field(fields.key, name);
    let items = fields::list(list, &key, sink).iter().enumerate();
    Some(items.filter_map(|(at, item)| fields::text(item, &Key::Index(&key, at), sink)).collect())
}

/// Whose policy it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PolicyOf {
    Flow,
    Body,
}

/// The policy of a flow, or of the frames of a body.
pub(super) fn policy(fields: &mut Fields<'_, '_>, of: PolicyOf, sink: &mut Sink) -> FlowPolicy {
    let key = Key::Field(fields.key, "policy");
    let Some(mut policy) = fields.get("policy").and_then(|value| Fields::open(value, &key, sink)) else {
        return FlowPolicy::default();
    };
    let read = FlowPolicy {
        fail_fast: match policy.bool("failFast", sink) {
            Some(false) => FailFast::Off,
            _ => FailFast::On,
        },
        max_concurrency: policy.count("maxConcurrency", sink),
        timeout: policy.timeout(sink),
        budget: budget(&mut policy, OnExceeded::Pause, sink),
        confirm_above: match of {
            PolicyOf::Flow => confirm_above(&mut policy, sink),
            PolicyOf::Body => None,
        },
    };
    policy.finish_with(sink, |name| {
        (name == "confirmAbove")
            .then(|| "only the flow has `confirmAbove`: a run is confirmed as a whole".to_owned())
    });
    read
}

/// The budget under a policy, if there is one. `default_on_exceeded` is its `onExceeded` if that is not set.
pub(super) fn budget(
    policy: &mut Fields<'_, '_>,
    default_on_exceeded: OnExceeded,
    sink: &mut Sink,
) -> Option<Budget> {
    let key = Key::Field(policy.key, "budget");
    let value = policy.get("budget")?;
    let mut fields = Fields::open(value, &key, sink)?;
    let on_unknown = [("warn", OnUnknown::Warn), ("stop", OnUnknown::Stop)];
    let on_exceeded = [("pause", OnExceeded::Pause), ("fail", OnExceeded::Fail)];
    let budget = Budget {
        usd: money(&mut fields, sink),
        tokens: fields.count("tokens", sink).map(u64::from),
        on_unknown: fields.word("onUnknown", &on_unknown, sink).unwrap_or_default(),
        on_exceeded: fields.word("onExceeded", &on_exceeded, sink).unwrap_or(default_on_exceeded),
    };
    fields.finish(sink);
    if value.get("usd").is_none() && value.get("tokens").is_none() {
        let problem = Problem::error(Code::MissingKey, value.span, "a budget needs `usd`, `tokens` or both");
        sink.push(problem.key(key));
    }
    (budget.usd.is_some() || budget.tokens.is_some()).then_some(budget)
}

/// The `confirmAbove` under the policy of a flow, in US dollars.
fn confirm_above(policy: &mut Fields<'_, '_>, sink: &mut Sink) -> Option<f64> {
    let key = Key::Field(policy.key, "confirmAbove");
    let value = policy.get("confirmAbove")?;
    let mut fields = Fields::open(value, &key, sink)?;
    let usd = money(&mut fields, sink);
    fields.finish(sink);
    if value.get("usd").is_none() {
        let problem = Problem::error(Code::MissingKey, value.span, "`confirmAbove` needs `usd`");
        sink.push(problem.help("write `confirmAbove: { usd: 5 }`".to_owned()).key(key));
    }
    usd
}

fn money(fields: &mut Fields<'_, '_>, sink: &mut Sink) -> Option<f64> {
    fields.number("usd", ["an amount in US dollars", "greater than 0"], |usd| usd > 0.0, sink)
}

/// Advice for a key of other tools.
pub(super) fn advice(key: &str) -> Option<String> {
    match key {
        "vars" | "variables" | "params" | "parameters" | "inputs" | "env" => {
            Some("declare the input of the flow under `flow.input`".to_owned())
        }
        "includes" | "import" | "imports" | "extends" => Some(
            "`include` takes `agents` and `defaults` of other files, `control.subflow` runs another flow"
                .to_owned(),
        ),
        "steps" | "tasks" | "jobs" | "stages" => Some("write `nodes`".to_owned()),
        "timeout" | "budget" | "failFast" | "maxConcurrency" | "confirmAbove" => {
            Some(format!("`{key}` belongs under `flow.policy`"))
        }
        "on" | "triggers" | "schedule" => Some("a flow is started by `inspan run`".to_owned()),
        _ => None,
    }
}
