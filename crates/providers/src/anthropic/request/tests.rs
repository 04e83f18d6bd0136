//! Requests as the vendor reads them: how much the model may think, messages, pictures and marks for the cache.

use super::*;

fn request(options: Value, messages: &[Value]) -> Result<Value, String> {
    let options: AnthropicOptions = serde_json::from_value(options).unwrap();
    let body = body(&ConversationSettings::default().with(&options), &options, &[], messages)
        .map_err(|error| error.to_string())?;
    Ok(serde_json::from_slice(&body).unwrap())
}

#[test]
fn models_think_by_effort_or_by_a_budget() {
    let old = [
        "claude-3-7-sonnet-20250219",
        "claude-3-haiku-20240307",
        "claude-opus-4-20250514",
        "claude-sonnet-4-0",
        "claude-opus-4-1",
        "claude-opus-4-1-20250805",
        "claude-sonnet-4-5",
        "claude-haiku-4-5-20251001",
        "us.anthropic.claude-sonnet-4-5-20250929-v1:0",
        "anthropic/claude-sonnet-4.5",
    ];
    let new = [
        "claude-opus-4-6",
        "claude-opus-4-8",
        "claude-sonnet-5",
        "claude-sonnet-5-5",
        "claude-mythos-preview",
        "other",
    ];
    assert_eq!(old.map(ThinksBy::of), [ThinksBy::Budget; 10]);
    assert_eq!(new.map(ThinksBy::of), [ThinksBy::Effort; 6]);
}

#[test]
fn levels_become_what_the_model_takes() {
    let ask = |options: Value| {
        let body = request(options, &[])?;
        Ok::<_, String>(json!([body["thinking"], body["output_config"], body["max_tokens"]]))
    };
    let budget = |tokens: u32| json!({ "type": "enabled", "budget_tokens": tokens });
    let adaptive = json!({ "type": "adaptive", "display": "summarized" });
    let (old, new) = ("claude-sonnet-4-5", "claude-sonnet-5");
    let rows = [
        (json!({ "model": old }), json!([null, null, 8192])),
        (json!({ "model": old, "thinking": "off" }), json!([{ "type": "disabled" }, null, 8192])),
        (json!({ "model": old, "thinking": "minimal" }), json!([budget(1024), null, 9216])),
        (json!({ "model": old, "thinking": "medium" }), json!([budget(8192), null, 16384])),
        (
            json!({ "model": old, "thinking": "high", "maxTokens": 20000 }),
            json!([budget(16384), null, 20000]),
        ),
        (json!({ "model": old, "thinking": "xhigh" }), json!([budget(23552), null, 31744])),
        (json!({ "model": new }), json!([null, null, 32000])),
        (json!({ "model": new, "maxTokens": 0 }), json!([null, null, 32000])),
        (json!({ "model": new, "thinking": "minimal" }), json!([adaptive, { "effort": "low" }, 32000])),
        (
            json!({ "model": new, "thinking": "high", "maxTokens": 9 }),
            json!([adaptive, { "effort": "high" }, 9]),
        ),
        (json!({ "model": new, "maxThinkingTokens": 2000 }), json!([budget(2000), null, 34000])),
    ];
    for (options, expected) in rows {
        assert_eq!(ask(options.clone()), Ok(expected), "{options}");
    }
    let refused = ask(json!({ "model": old, "thinking": "high", "maxTokens": 16384 }));
    let words = "the model would think for 16384 tokens, which has to be 1024 at least and less than `maxTokens`, 16384 \
                 (CONFIG_INVALID)";
    assert_eq!(refused, Err(words.to_owned()));
}

#[test]
fn what_a_call_gives_anew_goes_before_what_a_conversation_keeps() {
    let options = |value: Value| serde_json::from_value::<AnthropicOptions>(value).unwrap();
    let stored = ConversationSettings::default()
        .with(&options(json!({ "model": "a", "thinking": "low", "systemPrompt": "s" })));
    let seen = [
        json!(stored.clone().with(&options(json!({})))),
        json!(
            stored
                .clone()
                .with(&options(json!({ "model": "b", "maxThinkingTokens": 5000, "systemPrompt": "" })))
        ),
    ];
    assert_eq!(
        seen,
        [
            json!({ "model": "a", "thinking": "low", "systemPrompt": "s" }),
            json!({ "model": "b", "maxThinkingTokens": 5000, "systemPrompt": "" }),
        ]
    );
}

#[test]
fn the_cache_is_marked_at_the_system_prompt_and_the_last_block() {
    let returned = [
        json!({ "role": "user", "content": [{ "type": "text", "text": "a" }] }),
        json!({ "role": "assistant", "content": [{ "type": "text", "text": "b" }] }),
        json!({ "role": "user", "content": [{ "type": "text", "text": "c" }, { "type": "text", "text": "d" }] }),
    ];
    let marks = |cache: Option<&str>| {
        let mut options = json!({ "systemPrompt": "s" });
        if let Some(cache) = cache {
            options["promptCache"] = json!(cache);
        }
        let body = request(options, &returned).unwrap();
        let mark = |pointer: &str| body.pointer(pointer).map(|block| block["cache_control"].clone());
        let blocks = ["/system/0", "/messages/0/content/0", "/messages/2/content/0", "/messages/2/content/1"];
        json!(blocks.map(|block| mark(block).unwrap()))
    };
    let (five, hour) = (json!({ "type": "ephemeral" }), json!({ "type": "ephemeral", "ttl": "1h" }));
    assert_eq!(marks(None), json!([five, null, null, five]));
    assert_eq!(marks(Some("5m")), json!([five, null, null, five]));
    assert_eq!(marks(Some("1h")), json!([hour, null, null, hour]));
    assert_eq!(marks(Some("off")), json!([null, null, null, null]));
}

#[test]
fn messages_and_pictures_take_the_vendors_form() {
    let image = json!({ "type": "image", "media_type": "image/png", "data": "aGk=" });
    let returned = |value: Value| {
        let input: AnthropicInput = serde_json::from_value(value).unwrap();
        messages(&input).map(Value::Array).map_err(|error| error.message)
    };
    let user = |content: Value| json!({ "role": "user", "content": content });
    let answer = |content: Value| json!({ "role": "assistant", "content": content });
    let text = |text: &str| json!([{ "type": "text", "text": text }]);
    let source = json!({ "type": "base64", "media_type": "image/png", "data": "aGk=" });
    let rows = [
        (json!({ "prompt": " a " }), Ok(json!([user(text(" a "))]))),
        (
            json!({ "messages": [user(json!("a")), answer(json!("b")), user(json!([image, { "type": "text", "text": "c" }, { "type": "text", "text": "\n" }]))] }),
            Ok(json!([
                user(text("a")),
                answer(text("b")),
                user(json!([{ "type": "image", "source": source }, { "type": "text", "text": "c" }])),
            ])),
        ),
        (
            json!({ "messages": [answer(json!([image])), user(json!("a"))] }),
            Err("a message of the assistant may hold no picture and no document".to_owned()),
        ),
        (
            json!({ "messages": [user(json!("a")), answer(json!("b"))] }),
            Err("the last of `messages` has to be the user's".to_owned()),
        ),
        (json!({ "messages": [] }), Err("`messages` is empty".to_owned())),
    ];
    for (input, expected) in rows {
        assert_eq!(returned(input.clone()), expected, "{input}");
    }
}
