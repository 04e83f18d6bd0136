//! Checks a node's input beyond its schema: its provider, its prompt, and what the provider can do.

use inspan_protocol::ProviderCapabilities;
use serde_json::Value;

use super::schema::SchemaCheck;
use crate::{
    catalog::CompiledSchema,
    compile::resolve::{KnownType, ResolvedNode, check_schema, quoted},
    diagnostic::{Code, Problem, Sink, SourceSpan, did_you_mean},
    expr::has_segments,
    graph::{Budget, OnUnknown, SessionMode},
    node::NodeKind,
    spec::{Data, Yaml},
};

/// The keys of a node with frames that are read before the flow runs.
pub(super) const FIXED: [&str; 7] =
    ["as", "onItemError", "maxIterations", "onExhausted", "flow", "file", "maxDepth"];

/// A node whose type and input are known.
pub(super) struct NodeCheck<'c> {
    pub(super) node: &'c ResolvedNode<'c>,
    pub(super) node_type: &'c KnownType,
    pub(super) input: &'c Yaml,
    pub(super) schema: &'c CompiledSchema,
    /// The JSON pointers of the values that are known only when the node runs.
    pub(super) bound: &'c [String],
    pub(super) sink: &'c mut Sink,
}

impl NodeCheck<'_> {
    pub(super) fn run(&mut self) {
        // With an unknown provider the schema of the input is unknown too.
        if self.provider() {
            let owner = format!("`{}`", self.node_type.info().name);
            let input = SchemaCheck {
                input: self.input,
                json: &self.node.json,
                bound: self.bound,
                schema: self.schema,
                owner: &owner,
                id: self.node.spec.id.as_ref(),
                root: self.node.spec.key("input"),
            };
            input.check(self.sink);
            self.capabilities();
            if self.prompt() {
                input.report_all(self.node_type.describe.check_input(&self.node.json), self.sink);
            }
        }
        self.output_schema();
        self.fixed_values();
    }

    fn report(&mut self, problem: Problem, key: &str) {
        let spec = self.node.spec;
        self.sink.push(problem.node(spec.id.as_ref()).key(spec.key(key)));
    }

    /// Whether the provider that the input names is registered, or not known before the node runs.
    fn provider(&mut self) -> bool {
        let Some(names) = self.node_type.describe.providers() else { return true };
        let Some(value) = self.input.get("provider") else { return true };
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
        self.report(Problem::error(Code::UnknownProvider, value.span, message).help(help), "input.provider");
        false
    }

    /// Whether an agent has either a prompt or messages.
    fn prompt(&mut self) -> bool {
        let properties = self.schema.json.get("properties");
        let takes = |key: &str| properties.is_some_and(|properties| properties.get(key).is_some());
        if self.node_type.info().kind != NodeKind::Agent || !takes("prompt") {
            return true;
        }
        let given = |key: &str| self.input.get(key).filter(|value| !matches!(value.data, Data::Null));
        let problem = match (given("prompt"), given("messages").filter(|_| takes("messages"))) {
            (None, None) => {
                let span = self.node.spec.span;
                let message = format!("`{}` has no `prompt`", self.node_type.info().name);
                let help =
                    "set `input: { prompt: … }`, or name a file with `promptFile` beside `input`".to_owned();
                Problem::error(Code::MissingKey, SourceSpan { end: span.start, ..span }, message).help(help)
            }
            (Some(prompt), Some(_)) => {
                let message = "`prompt` and `messages` are both set; keep one";
                Problem::error(Code::InvalidValue, prompt.span, message)
            }
            (Some(prompt), None) if prompt.text().is_some_and(|text| text.trim().is_empty()) => {
                // A prompt file that could not be read was reported already.
                if self.node.spec.prompt_file().is_some() && prompt.span.source == self.node.spec.span.source
                {
                    return false;
                }
                Problem::error(Code::InvalidValue, prompt.span, "the prompt is empty")
            }
            _ => return true,
        };
        self.report(problem, "input.prompt");
        false
    }

    /// Reports what the node needs and its provider cannot do. Streaming and steering are not needed: without them the
    /// engine waits or interrupts.
    fn capabilities(&mut self) {
        if self.node_type.info().kind != NodeKind::Agent {
            return;
        }
        let Some(can) = self.node_type.describe.capabilities_for(&self.node.json) else { return };
        let missing = self.missing_capabilities(&can);
        let named_provider = self.node.json.get("provider").and_then(Value::as_str);
        let provider =
            named_provider.unwrap_or_else(|| self.node_type.info().name.trim_end_matches(".agent"));
        let node = quoted(self.node.spec.id.as_ref());
        for (span, key, does, what) in missing {
            let message = format!("{node} {does}, but the provider `{provider}` cannot {what}");
            self.report(Problem::error(Code::UnsupportedCapability, span, message), &key);
        }
    }

    /// The place and the key of each use of what the provider lacks, what the node does there, and what is lacking.
    fn missing_capabilities(
        &self,
        can: &ProviderCapabilities,
    ) -> Vec<(SourceSpan, String, String, &'static str)> {
        let needs = [
            ("outputSchema", can.structured_output, "return structured output"),
            ("tools", can.tools, "restrict its tools"),
            ("allowedTools", can.tools, "restrict its tools"),
            ("disallowedTools", can.tools, "restrict its tools"),
            ("permissionMode", can.permissions, "ask for permission"),
            ("thinking", can.thinking, "configure its thinking"),
            ("maxThinkingTokens", can.thinking, "configure its thinking"),
            ("maxBudgetUsd", can.cost, "report the cost of a turn"),
        ];
        let known = self.schema.json.pointer("/properties/options/properties");
        let mut missing = Vec::new();
        for (option, _, what) in needs.into_iter().filter(|(_, able, _)| !able) {
            let entry = self.input.get("options").and_then(|options| options.entry(option));
            // An option that the provider does not know was reported already.
            let entry = entry.filter(|_| known.is_none_or(|known| known.get(option).is_some()));
            if let Some(entry) = entry {
                missing.push((
                    entry.key_span,
                    format!("input.options.{option}"),
                    format!("sets `{option}`"),
                    what,
                ));
            }
        }
        if let Some(image) = self.input.get("messages").and_then(first_image).filter(|_| !can.images) {
            missing.push((
                image.span,
                "input.messages".to_owned(),
                "contains an image".to_owned(),
                "read images",
            ));
        }
        let spec = self.node.spec;
        if let Some(session) = spec.session().filter(|session| session.mode == SessionMode::Fork && !can.fork)
        {
            let does = "sets `fork`".to_owned();
            missing.push((session.fork_span, "session.fork".to_owned(), does, "branch a conversation"));
        }
        let stops = |budget: &Budget| budget.usd.is_some() && budget.on_unknown == OnUnknown::Stop;
        if !can.cost && spec.policy.as_ref().and_then(|policy| policy.budget.as_ref()).is_some_and(stops) {
            let does = "sets `onUnknown: stop`".to_owned();
            missing.push((spec.id_span, "policy.budget".to_owned(), does, "report the cost of a turn"));
        }
        missing
    }

    /// Checks a schema that is written in the flow; one from a file was checked when it was read.
    fn output_schema(&mut self) {
        let Some(value) = self.input.get("options").and_then(|options| options.get("outputSchema")) else {
            return;
        };
        if value.entries().is_empty() {
            return;
        }
        let spec = self.node.spec;
        let key = spec.key("input.options.outputSchema");
        let finish = |problem: Problem| problem.node(spec.id.as_ref()).key(&key);
        check_schema(&value.json(), |inside| value.span_at(inside), finish, self.sink);
    }

    /// Reports templates where a value is read before the flow runs.
    fn fixed_values(&mut self) {
        let keys: &[&str] = match self.node_type.info().kind {
            NodeKind::Merge => &["mode"],
            NodeKind::Frames if !self.node.is_of_pack() => &FIXED,
            _ => return,
        };
        for entry in self.input.entries().iter().filter(|entry| keys.contains(&entry.key.as_str())) {
            if entry.value.text().is_some_and(has_segments) {
                let key = &entry.key;
                let message = format!("`{key}` cannot be a template: it is read before the flow runs");
                let help = (key == "mode").then(|| "write `all` or `any`".to_owned());
                let problem = Problem::error(Code::InvalidValue, entry.value.span, message).help(help);
                self.report(problem, &format!("input.{key}"));
            }
        }
    }
}

fn first_image(messages: &Yaml) -> Option<&Yaml> {
    let contents = messages.items().iter().filter_map(|message| message.get("content"));
    let mut blocks = contents.flat_map(Yaml::items);
    blocks.find(|block| block.get("type").is_some_and(|kind| kind.json() == "image"))
}
