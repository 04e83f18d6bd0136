//! Requests as the vendor reads them: who stores the conversation, how much the model may think, messages and pictures.

use super::*;

fn request(options: Value, thread: &str) -> Value {
    let options: OpenAiOptions = serde_json::from_value(options).unwrap();
    let form = options.output_schema.as_ref().map(VendorSchema::of);
    let thread = Thread::of(ProviderSessionId::from(thread));
    let body =
        body(&ConversationSettings::default().with(&options), &thread, form.as_ref(), &[], &[json!("said")])
            .unwrap();
    serde_json::from_slice(&body).unwrap()
}

#[test]
fn the_request_says_who_stores_the_conversation() {
    let sealed = json!(["reasoning.encrypted_content"]);
    let usual = |more: Value| {
        let mut body = json!({ "model": DEFAULT_MODEL, "stream": true, "input": ["said"] });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let rows = [
        ("t-1", usual(json!({ "store": false, "include": sealed, "prompt_cache_key": "t-1" }))),
        ("conv_1", usual(json!({ "conversation": "conv_1" }))),
        ("resp_1", usual(json!({ "store": true, "previous_response_id": "resp_1" }))),
    ];
    for (thread, expected) in rows {
        assert_eq!(request(json!({}), thread), expected, "{thread}");
    }
}

#[test]
fn only_models_that_think_are_asked_about_their_thoughts() {
    let yes = [
        "gpt-5.6-sol",
        "gpt-5",
        "gpt-5-mini-2025-08-07",
        "o3",
        "o4-mini",
        "openai/gpt-5.4",
        "gpt-5.1-codex",
        "gpt-oss-120b",
        "other",
    ];
    let no = [
        "gpt-4.1",
        "gpt-4o-2024-11-20",
        "gpt-3.5-turbo",
        "chatgpt-4o-latest",
        "gpt-5-chat-latest",
        "ft:gpt-4o-mini:org::id",
        "openai/gpt-4.1-mini",
    ];
    assert_eq!(yes.map(Thinks::of), [Thinks::Yes; 9]);
    assert_eq!(no.map(Thinks::of), [Thinks::No; 7]);
    let body = request(json!({ "model": "gpt-4.1" }), "t-1");
    assert_eq!((&body["include"], &body["reasoning"]), (&Value::Null, &Value::Null));
}

#[test]
fn levels_become_what_the_model_takes() {
    let auto = |effort: &str| json!({ "effort": effort, "summary": "auto" });
    let rows = [
        (json!({}), json!(null)),
        (json!({ "thinking": "off" }), json!({ "effort": "none" })),
        (json!({ "thinking": "off", "model": "gpt-4.1" }), json!(null)),
        (json!({ "thinking": "minimal" }), auto("low")),
        (json!({ "thinking": "minimal", "model": "gpt-5-mini" }), auto("minimal")),
        (json!({ "thinking": "low" }), auto("low")),
        (json!({ "thinking": "medium" }), auto("medium")),
        (json!({ "thinking": "high", "thinkingSummary": "off" }), json!({ "effort": "high" })),
        (
            json!({ "thinking": "xhigh", "thinkingSummary": "detailed" }),
            json!({ "effort": "xhigh", "summary": "detailed" }),
        ),
        (json!({ "thinkingSummary": "concise" }), json!({ "summary": "concise" })),
    ];
    for (options, expected) in rows {
        assert_eq!(request(options.clone(), "t-1")["reasoning"], expected, "{options}");
    }
}

#[test]
fn what_is_given_is_said_and_nothing_else() {
    let schema = json!({ "type": "array", "items": { "type": "string" } });
    let options = json!({ "systemPrompt": "s", "maxTokens": 9, "temperature": 0.5, "outputSchema": schema });
    let body = request(options, "t-1");
    let returned = ["instructions", "max_output_tokens", "temperature"].map(|key| body[key].clone());
    assert_eq!(returned, [json!("s"), json!(9), json!(0.5)]);
    let format = json!({ "type": "json_schema", "name": "output", "strict": true, "schema": {
        "type": "object", "required": ["value"], "properties": { "value": schema }, "additionalProperties": false,
    } });
    assert_eq!(body["text"], json!({ "format": format }));
    let body =
        request(json!({ "systemPrompt": " ", "maxTokens": 0, "outputSchema": { "type": "object" } }), "t-1");
    let returned = ["instructions", "max_output_tokens", "temperature"].map(|key| body[key].clone());
    assert_eq!(
        (returned, &body["text"]["format"]["strict"]),
        ([json!(null), json!(null), json!(null)], &json!(false))
    );
}

#[test]
fn what_a_call_gives_anew_goes_before_what_a_conversation_keeps() {
    let options = |value: Value| serde_json::from_value::<OpenAiOptions>(value).unwrap();
    let stored = ConversationSettings::default()
        .with(&options(json!({ "model": "a", "thinking": "low", "systemPrompt": "s" })));
    let seen = [
        json!(stored.clone().with(&options(json!({})))),
        json!(
            stored
                .clone()
                .with(&options(json!({ "model": "b", "thinkingSummary": "off", "systemPrompt": "" })))
        ),
    ];
    assert_eq!(
        seen,
        [
            json!({ "model": "a", "thinking": "low", "systemPrompt": "s" }),
            json!({ "model": "b", "thinking": "low", "thinkingSummary": "off", "systemPrompt": "" }),
        ]
    );
}

#[test]
fn messages_and_pictures_take_the_vendors_form() {
    let image = json!({ "type": "image", "media_type": "image/png", "data": "aGk=" });
    let returned = |value: Value| {
        let input: OpenAiInput = serde_json::from_value(value).unwrap();
        messages(&input).map(Value::Array).map_err(|error| error.message)
    };
    let user = |content: Value| json!({ "role": "user", "content": content });
    let answer = |content: Value| json!({ "role": "assistant", "content": content });
    let text = |text: &str| json!({ "type": "input_text", "text": text });
    let item = |role: &str, content: Value| json!({ "type": "message", "role": role, "content": content });
    let picture =
        json!({ "type": "input_image", "image_url": "data:image/png;base64,aGk=", "detail": "auto" });
    let rows = [
        (json!({ "prompt": " a " }), Ok(json!([item("user", json!([text(" a ")]))]))),
        (
            json!({ "messages": [user(json!("a")), answer(json!([{ "type": "text", "text": "b" }])), user(json!([image, { "type": "text", "text": "c" }, { "type": "text", "text": "\n" }]))] }),
            Ok(json!([
                item("user", json!([text("a")])),
                item("assistant", json!([{ "type": "output_text", "text": "b" }])),
                item("user", json!([picture, text("c")])),
            ])),
        ),
        (
            json!({ "messages": [user(json!([
                { "type": "document", "media_type": "application/pdf", "data": "JVBE", "title": "a.pdf" },
                { "type": "document", "media_type": "text/plain", "data": "words", "title": "notes" },
            ]))] }),
            Ok(json!([item(
                "user",
                json!([
                    { "type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBE" },
                    text("notes\n\nwords"),
                ])
            )])),
        ),
        (
            json!({ "messages": [user(json!([{ "type": "document", "media_type": "text/html", "data": "" }]))] }),
            Err("a document in `messages` has to be `application/pdf` or `text/plain`".to_owned()),
        ),
        (
            json!({ "messages": [answer(json!([image])), user(json!("a"))] }),
            Err("a message of the assistant may hold texts only".to_owned()),
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
