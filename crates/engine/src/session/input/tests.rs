//! Options as inputs of providers with different schemas.

use std::sync::Arc;

use inspan_protocol::{ProviderCapabilities, ThinkingLevel};

use super::*;
use crate::testing::Idle;

fn idle(input_schema: Value, capabilities: ProviderCapabilities) -> Idle {
    Idle { name: "formed", input_schema, capabilities, ..Idle::default() }
}

fn form(schema: Value) -> InputForm {
    InputForm::of(&idle(schema, ProviderCapabilities { images: true, ..Default::default() }))
}

fn object(names: &[&str]) -> Value {
    let properties: serde_json::Map<_, _> =
        names.iter().map(|name| ((*name).to_owned(), json!({}))).collect();
    json!({ "type": "object", "properties": properties, "additionalProperties": false })
}

/// Like Claude's: options that may be absent.
fn nested(options: Value) -> Value {
    let mut schema = object(&["prompt", "messages"]);
    schema["properties"]["options"] = options;
    schema
}

fn all() -> AgentOptions {
    AgentOptions::new()
        .model("m")
        .thinking(ThinkingLevel::High)
        .system_prompt("be kind")
        .max_tokens(7)
        .temperature(0.5)
        .max_turns(3)
        .tools(["Read"])
        .allowed_tools(["Grep"])
        .disabled_tools(["Bash"])
        .output_schema(json!({ "type": "object" }))
}

#[test]
fn options_go_where_the_schema_has_them() {
    let names = [
        "model",
        "thinking",
        "systemPrompt",
        "maxTokens",
        "temperature",
        "maxTurns",
        "tools",
        "allowedTools",
        "disallowedTools",
        "outputSchema",
    ];
    let expected = json!({
        "model": "m", "thinking": "high", "systemPrompt": "be kind", "maxTokens": 7, "temperature": 0.5,
        "maxTurns": 3, "tools": ["Read"], "allowedTools": ["Grep"], "disallowedTools": ["Bash"], "outputSchema": { "type": "object" },
    });
    let optional = json!({ "anyOf": [object(&names), { "type": "null" }] });
    for options in [object(&names), optional] {
        assert_eq!(form(nested(options)).base(&all()).unwrap(), json!({ "options": expected }));
    }
    let mut referred = nested(json!({ "anyOf": [{ "$ref": "#/definitions/O" }, { "type": "null" }] }));
    referred["definitions"] = json!({ "O": object(&names) });
    assert_eq!(form(referred).base(&all()).unwrap(), json!({ "options": expected }));
    assert_eq!(form(object(&names)).base(&all()).unwrap(), expected);
}

#[test]
fn an_option_may_have_another_name() {
    let options = AgentOptions::new()
        .thinking(ThinkingLevel::Low)
        .system_prompt("s")
        .max_tokens(1)
        .disabled_tools(["Bash"]);
    let other = object(&["messages", "reasoningEffort", "instructions", "maxOutputTokens", "disabledTools"]);
    let expected = json!({
        "reasoningEffort": "low", "instructions": "s", "maxOutputTokens": 1,
        "disabledTools": ["Bash"],
    });
    assert_eq!(form(other).base(&options).unwrap(), expected);
}

#[test]
fn what_a_provider_does_not_have_is_refused_by_name() {
    let form = form(nested(object(&["model"])));
    let rows = [
        (AgentOptions::new().thinking(ThinkingLevel::Off), "thinking"),
        (AgentOptions::new().system_prompt("s"), "systemPrompt"),
        (AgentOptions::new().max_tokens(1), "maxTokens"),
        (AgentOptions::new().temperature(0.0), "temperature"),
        (AgentOptions::new().max_turns(1), "maxTurns"),
        (AgentOptions::new().tools(["Read"]), "tools"),
        (AgentOptions::new().allowed_tools(["Read"]), "allowedTools"),
        (AgentOptions::new().disabled_tools(["Read"]), "disabledTools"),
        (AgentOptions::new().output_schema(json!({})), "outputSchema"),
        (AgentOptions::new().option("sauce", 1), "sauce"),
    ];
    for (options, name) in rows {
        let error = form.base(&options).unwrap_err();
        let message = format!("provider `formed` does not take `{name}`: it has no such option");
        assert_eq!((error.code, error.message), (ErrorCode::ConfigInvalid, message));
    }
    assert_eq!(
        form.base(&AgentOptions::new().max_tokens(0).model("m")).unwrap(),
        json!({ "options": { "model": "m" } })
    );
}

#[test]
fn an_open_schema_takes_everything() {
    let open = form(json!({ "type": "object" }));
    let options = AgentOptions::new().model("m").option("sauce", "hot");
    assert_eq!(open.base(&options).unwrap(), json!({ "model": "m", "sauce": "hot" }));
    let nested = form(nested(json!({ "type": "object" })));
    assert_eq!(nested.base(&options).unwrap(), json!({ "options": { "model": "m", "sauce": "hot" } }));
}

#[test]
fn attachments_go_as_far_as_a_provider_takes_them() {
    let image = Attachment::Image { media_type: "image/png".to_owned(), data: "AA==".to_owned() };
    let text = Attachment::Text { name: "a.txt".to_owned(), content: "A".to_owned() };
    let both = form(object(&["prompt", "messages"]));
    let blocks = json!([
        { "type": "text", "text": "look" },
        { "type": "image", "media_type": "image/png", "data": "AA==" },
        { "type": "text", "text": "a.txt:\nA" },
    ]);
    let said = both.say(json!({ "prompt": "old" }), "look", &[image.clone(), text.clone()]).unwrap();
    assert_eq!(said, json!({ "messages": [{ "role": "user", "content": blocks }] }));
    assert_eq!(both.say(json!({ "messages": [] }), "hi", &[]).unwrap(), json!({ "prompt": "hi" }));
    let chat = form(object(&["messages"])).say(json!({}), "hi", &[]).unwrap();
    assert_eq!(chat, json!({ "messages": [{ "role": "user", "content": "hi" }] }));

    let blind = InputForm::of(&idle(object(&["prompt", "messages"]), ProviderCapabilities::default()));
    let refused = [
        blind.say(json!({}), "look", &[image]),
        form(object(&["prompt"])).say(json!({}), "look", &[text]),
        form(object(&["code"])).say(json!({}), "look", &[]),
    ]
    .map(|said| said.unwrap_err().message);
    assert_eq!(
        refused,
        [
            "provider `formed` does not take `attachments`: it takes no pictures",
            "provider `formed` does not take `attachments`: it takes text only",
            "provider `formed` does not take `prompt`: its input has neither `prompt` nor `messages`",
        ]
    );
}

#[test]
fn a_form_can_be_shared() {
    fn sharable<T: Send + Sync>(_: T) {}
    sharable(Arc::new(form(json!({}))));
}
