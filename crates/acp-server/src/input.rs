//! What a person types: a command with its input, or a text.

use std::path::Path;

use inspan_sessions::{OpenSession, RegisteredFlow};
use serde_json::{Map, Value, json};

use crate::rpc::RpcError;
use crate::wire::PromptBlock;

/// The longest prompt, in bytes.
const LONGEST: usize = 1024 * 1024;

/// The text of a prompt: what was typed, and the files that were named or put in.
pub(crate) fn text_of(blocks: &[PromptBlock]) -> Result<String, RpcError> {
    let mut text = String::new();
    for block in blocks {
        let part = match block {
            PromptBlock::Text { text } => text.clone(),
            PromptBlock::ResourceLink { uri } => format!("\n{uri}\n"),
            PromptBlock::Resource { resource } => match &resource.text {
                Some(content) => format!("\n{}\n{content}\n", resource.uri),
                None => format!("\n{}\n", resource.uri),
            },
            PromptBlock::Other => {
                return Err(RpcError::params("a prompt may hold text and files, no images or sound"));
            }
        };
        text.push_str(&part);
        if text.len() > LONGEST {
            return Err(RpcError::params(format!("a prompt may have {LONGEST} bytes")));
        }
    }
    match text.trim() {
        "" => Err(RpcError::params("the prompt is empty")),
        text => Ok(text.to_owned()),
    }
}

/// The command of a text, `/name rest`.
pub(crate) fn command(text: &str) -> Option<(&str, &str)> {
    let rest = text.strip_prefix('/')?;
    Some(rest.split_once(char::is_whitespace).map_or((rest, ""), |(name, rest)| (name, rest.trim())))
}

/// The flow that a text starts, and what is written after its command. Any other text is none, also if it begins with `/`.
pub(crate) fn flow_command<'a>(
    flows: &'a [RegisteredFlow],
    text: &'a str,
) -> Option<(&'a RegisteredFlow, &'a str)> {
    let (name, rest) = command(text)?;
    Some((flows.iter().find(|flow| flow.id == name)?, rest))
}

/// The command of a session: the id of its flow, as far as there still is such a flow, else its name.
pub(crate) fn command_of<'a>(flows: &'a [RegisteredFlow], session: &'a OpenSession) -> &'a str {
    let file = Path::new(&session.record.flow.file).file_name();
    let named = || flows.iter().filter(|flow| flow.name == session.graph.name);
    // Two flows may have one name.
    let of_file = named().find(|flow| flow.file.file_name() == file);
    of_file.or_else(|| named().next()).map_or(&session.graph.name, |flow| &flow.id)
}

/// What editors offer: each flow as a command.
pub(crate) fn commands(flows: &[RegisteredFlow]) -> Value {
    let command = |flow: &RegisteredFlow| {
        let description = flow.description.clone().unwrap_or_else(|| format!("Runs the flow {}", flow.name));
        let names: Vec<String> = fields(&flow.input).map(|(name, _)| name.clone()).collect();
        let hint = match (text_field(&flow.input), names.as_slice()) {
            (_, []) => None,
            (Some(field), _) => Some(format!("{field}, or a JSON object")),
            (None, names) => Some(format!("a JSON object: {}", names.join(", "))),
        };
        let mut command = json!({ "name": flow.id, "description": description });
        if let Some(hint) = hint {
            command["input"] = json!({ "hint": hint });
        }
        command
    };
    let runnable = flows.iter().filter(|flow| flow.graph.is_some());
    json!({ "sessionUpdate": "available_commands_update", "availableCommands": runnable.map(command).collect::<Vec<_>>() })
}

/// The input that a text means: an object as JSON, or the flow's one text.
pub(crate) fn flow_input(flow: &RegisteredFlow, text: &str) -> Result<Map<String, Value>, String> {
    if text.is_empty() {
        return Ok(Map::new());
    }
    if text.starts_with('{') {
        return match serde_json::from_str(text) {
            Ok(Value::Object(input)) => Ok(input),
            Ok(_) => Err("the input must be a JSON object".to_owned()),
            Err(error) => Err(format!("the input is not JSON: {error}")),
        };
    }
    match text_field(&flow.input) {
        Some(field) => Ok([(field.to_owned(), Value::from(text))].into_iter().collect()),
        None => {
            let names: Vec<String> = fields(&flow.input).map(|(name, _)| format!("`{name}`")).collect();
            let takes = if names.is_empty() {
                "no input".to_owned()
            } else {
                format!("a JSON object with {}", names.join(", "))
            };
            Err(format!("flow `{}` takes {takes}", flow.id))
        }
    }
}

fn fields(schema: &Value) -> impl Iterator<Item = (&String, &Value)> {
    schema["properties"].as_object().into_iter().flatten()
}

/// The field that a plain text is for: the only required text, else the only field that can be one.
fn text_field(schema: &Value) -> Option<&str> {
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let texts: Vec<&str> = fields(schema)
        .filter(|(_, field)| field.get("type").is_none_or(|kind| kind == "string"))
        .map(|(name, _)| name.as_str())
        .collect();
    let needed: Vec<&str> = texts.iter().copied().filter(|name| required.contains(name)).collect();
    match (needed.as_slice(), texts.as_slice()) {
        ([one], _) | ([], [one]) => Some(one),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(input: Value) -> RegisteredFlow {
        RegisteredFlow {
            id: "fix".to_owned(),
            name: "fix".to_owned(),
            description: None,
            file: "fix.yaml".into(),
            input,
            graph: None,
            diagnostics: Vec::new(),
        }
    }

    #[test]
    fn a_text_is_the_one_text_of_the_input() {
        let text = json!({ "type": "string" });
        let one = flow(json!({ "properties": { "topic": text, "count": { "type": "integer" } } }));
        let needed = flow(json!({ "properties": { "topic": text, "tone": text }, "required": ["topic"] }));
        let two = flow(json!({ "properties": { "topic": text, "tone": text } }));
        let any = flow(json!({ "properties": { "topic": {} } }));
        let oxen = json!({ "topic": "oxen" });
        for flow in [&one, &needed, &any] {
            assert_eq!(flow_input(flow, "oxen").map(Value::Object), Ok(oxen.clone()));
        }
        assert_eq!(
            flow_input(&two, "oxen"),
            Err("flow `fix` takes a JSON object with `tone`, `topic`".to_owned())
        );
        assert_eq!(flow_input(&flow(json!({})), "oxen"), Err("flow `fix` takes no input".to_owned()));
        assert_eq!(flow_input(&two, r#"{"topic":"oxen"}"#).map(Value::Object), Ok(oxen));
        assert_eq!(flow_input(&two, ""), Ok(Map::new()));
        let broken = "the input is not JSON: EOF while parsing an object at line 1 column 1";
        assert_eq!(flow_input(&two, "{"), Err(broken.to_owned()));
    }

    #[test]
    fn a_command_begins_with_a_slash() {
        assert_eq!(command("/fix  the\nbug"), Some(("fix", "the\nbug")));
        assert_eq!(command("/fix"), Some(("fix", "")));
        assert_eq!(command("fix /it"), None);
    }

    #[test]
    fn a_prompt_is_its_text_and_its_files() {
        let blocks: Vec<PromptBlock> = serde_json::from_value(json!([
            { "type": "text", "text": "look at " },
            { "type": "resource_link", "uri": "file:///a.rs", "name": "a.rs" },
            { "type": "resource", "resource": { "uri": "file:///b.rs", "text": "fn b() {}" } },
        ]))
        .unwrap();
        assert_eq!(text_of(&blocks), Ok("look at \nfile:///a.rs\n\nfile:///b.rs\nfn b() {}".to_owned()));
        let image: Vec<PromptBlock> =
            serde_json::from_value(json!([{ "type": "image", "data": "" }])).unwrap();
        let refused = RpcError::params("a prompt may hold text and files, no images or sound");
        assert_eq!(
            [text_of(&image), text_of(&[])],
            [Err(refused), Err(RpcError::params("the prompt is empty"))]
        );
    }
}
