//! From the options of the SDK to the JSON that one provider takes, by the provider's own schema.

use inspan_protocol::{AgentError, Content, ContentBlock, DynProvider, ErrorCode, Message, Role};
use serde_json::{Value, json};

use super::options::{AgentOptions, Attachment};

/// What the SDK calls an option, and what providers may call it, most specific first.
const NAMES: &[(&str, &[&str])] = &[
    ("model", &["model"]),
    ("thinking", &["thinking", "reasoningEffort"]),
    ("systemPrompt", &["systemPrompt", "instructions"]),
    ("maxTokens", &["maxTokens", "maxOutputTokens"]),
    ("temperature", &["temperature"]),
    ("maxTurns", &["maxTurns"]),
    ("tools", &["tools"]),
    ("allowedTools", &["allowedTools"]),
    ("disabledTools", &["disallowedTools", "disabledTools"]),
    ("outputSchema", &["outputSchema"]),
];

/// The key under which a provider groups its options, if it does.
const OPTIONS: &str = "options";

/// What a provider's input looks like.
pub(super) struct InputForm {
    provider: String,
    takes_images: bool,
    takes_tools: bool,
    root: InputFields,
    options: Option<InputFields>,
}

/// The fields of one object.
#[derive(Default)]
struct InputFields {
    names: Vec<String>,
    /// Whether it takes fields that its schema does not name.
    is_open: bool,
}

impl InputFields {
    fn of(schema: &Value) -> Self {
        let properties = schema.get("properties").and_then(Value::as_object);
        let names = properties.map(|properties| properties.keys().cloned().collect()).unwrap_or_default();
        let is_open = properties.is_none() && schema.get("additionalProperties") != Some(&Value::Bool(false));
        Self { names, is_open }
    }

    fn has(&self, name: &str) -> bool {
        self.names.iter().any(|known| known == name)
    }
}

impl InputForm {
    pub(super) fn of(provider: &dyn DynProvider) -> Self {
        let descriptor = provider.descriptor();
        let schema = provider.input_schema();
        let options = schema.pointer("/properties/options").and_then(|options| object(options, &schema));
        Self {
            provider: descriptor.provider_type,
            takes_images: descriptor.capabilities.images,
            takes_tools: descriptor.capabilities.host_tools,
            root: InputFields::of(&schema),
            options: options.map(InputFields::of),
        }
    }

    /// Whether the provider knows an option of the SDK.
    pub(super) fn knows(&self, name: &str) -> bool {
        self.place(candidates(name)).is_some()
    }

    /// An input without a prompt.
    pub(super) fn base(&self, options: &AgentOptions) -> Result<Value, AgentError> {
        if !options.host.tools.is_empty() && !self.takes_tools {
            return Err(self.refused("hostTools", "it cannot call tools of a program"));
        }
        let mut input = json!({});
        for (name, value) in asked(options) {
            self.put(&mut input, candidates(name), name, value)?;
        }
        for (name, value) in &options.more {
            self.put(&mut input, &[name.as_str()], name, value.clone())?;
        }
        Ok(input)
    }

    /// The input with the message; its earlier prompt or messages are replaced.
    pub(super) fn say(
        &self,
        mut input: Value,
        text: &str,
        attachments: &[Attachment],
    ) -> Result<Value, AgentError> {
        if let Some(input) = input.as_object_mut() {
            input.remove("prompt");
            input.remove("messages");
        }
        let image = attachments.iter().any(|attachment| matches!(attachment, Attachment::Image { .. }));
        if image && !self.takes_images {
            return Err(self.refused("attachments", "it takes no pictures"));
        }
        let takes = |name| self.root.has(name) || self.root.is_open;
        if attachments.is_empty() && takes("prompt") {
            input["prompt"] = json!(text);
        } else if takes("messages") {
            input["messages"] = json!([message(text, attachments)]);
        } else if takes("prompt") {
            return Err(self.refused("attachments", "it takes text only"));
        } else {
            return Err(self.refused("prompt", "its input has neither `prompt` nor `messages`"));
        }
        Ok(input)
    }

    fn put(&self, input: &mut Value, names: &[&str], asked: &str, value: Value) -> Result<(), AgentError> {
        match self.place(names) {
            Some((true, name)) => input[OPTIONS][name] = value,
            Some((false, name)) => input[name] = value,
            None => return Err(self.refused(asked, "it has no such option")),
        }
        Ok(())
    }

    /// Where the first of these names belongs: among the options, or beside the prompt.
    fn place<'a>(&self, names: &[&'a str]) -> Option<(bool, &'a str)> {
        let options = self.options.as_ref();
        let named = names.iter().find_map(|name| match options {
            Some(options) if options.has(name) => Some((true, *name)),
            _ if self.root.has(name) => Some((false, *name)),
            _ => None,
        });
        let first = *names.first()?;
        named
            .or_else(|| options.filter(|options| options.is_open).map(|_| (true, first)))
            .or_else(|| self.root.is_open.then_some((false, first)))
    }

    fn refused(&self, option: &str, why: &str) -> AgentError {
        let message = format!("provider `{}` does not take `{option}`: {why}", self.provider);
        AgentError::new(ErrorCode::ConfigInvalid, message).from_provider(&self.provider)
    }
}

/// Text and attachments as one message.
pub(super) fn message(text: &str, attachments: &[Attachment]) -> Message {
    if attachments.is_empty() {
        return Message::user(text);
    }
    let text = Some(text).filter(|text| !text.is_empty());
    let text = text.map(|text| ContentBlock::Text { text: text.to_owned() });
    let blocks = text.into_iter().chain(attachments.iter().map(Attachment::block)).collect();
    Message { role: Role::User, content: Content::Blocks(blocks) }
}

fn candidates(name: &str) -> &'static [&'static str] {
    NAMES.iter().find(|(asked, _)| *asked == name).map_or(&[], |(_, names)| names)
}

fn asked(options: &AgentOptions) -> Vec<(&'static str, Value)> {
    let all = [
        ("model", options.model.as_ref().map(|model| json!(model))),
        ("thinking", options.thinking.map(|thinking| json!(thinking))),
        ("systemPrompt", options.system_prompt.as_ref().map(|prompt| json!(prompt))),
        ("maxTokens", options.max_tokens.map(|tokens| json!(tokens))),
        ("temperature", options.temperature.map(|temperature| json!(temperature))),
        ("maxTurns", options.max_turns.map(|turns| json!(turns))),
        ("tools", options.tools.as_ref().map(|tools| json!(tools))),
        ("allowedTools", options.allowed_tools.as_ref().map(|tools| json!(tools))),
        ("disabledTools", options.disabled_tools.as_ref().map(|tools| json!(tools))),
        ("outputSchema", options.output_schema.clone()),
    ];
    all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// The object among what a schema allows, such as that of an optional object.
fn object<'a>(schema: &'a Value, root: &'a Value) -> Option<&'a Value> {
    if schema.get("properties").is_some() {
        return Some(schema);
    }
    if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
        // A reference to itself would be no schema of an object anyway.
        let target = root.pointer(reference.strip_prefix('#')?)?;
        return target.get("properties").map(|_| target);
    }
    let choices = ["anyOf", "oneOf", "allOf"].iter().filter_map(|key| schema.get(*key)?.as_array()).flatten();
    let mut choices = choices.filter_map(|choice| {
        choice.get("properties").map(|_| choice).or_else(|| {
            let target = root.pointer(choice.get("$ref")?.as_str()?.strip_prefix('#')?)?;
            target.get("properties").map(|_| target)
        })
    });
    choices.next().or_else(|| {
        let is_object = schema.get("type").is_some_and(|kind| kind == "object");
        (is_object || schema == &Value::Bool(true)).then_some(schema)
    })
}

#[cfg(test)]
mod tests;
