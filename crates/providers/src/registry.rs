//! The providers that are built in. Keeping them by name is left to the engine.

use std::sync::Arc;

use inspan_protocol::{DynProvider, Erased};

use crate::{
    AnthropicProvider, ClaudeProvider, CodexProvider, EchoProvider, OpenAiProvider, ScriptedProvider,
};

/// One of each provider. Nothing is started or looked up until one of them is called.
pub fn builtin() -> Vec<Arc<dyn DynProvider>> {
    vec![
        Arc::new(Erased(AnthropicProvider::new())),
        Arc::new(Erased(ClaudeProvider::new())),
        Arc::new(Erased(CodexProvider::new())),
        Arc::new(Erased(EchoProvider)),
        Arc::new(Erased(OpenAiProvider::new())),
        Arc::new(Erased(ScriptedProvider)),
    ]
}

#[cfg(test)]
mod tests {
    use inspan_protocol::ProviderSessionId;
    use serde_json::json;

    use super::*;

    #[test]
    fn each_is_there_under_its_name_and_describes_itself() {
        let names: Vec<String> =
            builtin().iter().map(|provider| provider.descriptor().provider_type).collect();
        assert_eq!(names, ["anthropic", "claude", "codex", "echo", "openai", "scripted"]);
        for provider in builtin() {
            let name = provider.descriptor().provider_type;
            for schema in [provider.input_schema(), provider.output_schema()] {
                assert!(jsonschema::validator_for(&schema).is_ok(), "{name}");
                assert_eq!(schema["type"], "object", "{name}");
            }
        }
    }

    #[test]
    fn each_goes_on_in_a_conversation_by_its_own_field() {
        let inputs = [
            json!({ "messages": [{ "role": "user", "content": "a" }], "options": { "maxTokens": 9 } }),
            json!({ "messages": [{ "role": "user", "content": "a" }], "options": { "model": "m" } }),
            json!({ "prompt": "a", "options": { "resume": "s-0", "model": "m" } }),
            json!({ "prompt": "a" }),
            json!({ "prompt": "a", "model": "m", "options": { "maxTokens": 9, "resume": "s-0" } }),
            json!({ "prompt": "a", "options": { "turns": [[{ "text": "b" }, "hang"]] } }),
        ];
        let session = ProviderSessionId::from("s-1");
        let next: Vec<_> = builtin()
            .iter()
            .zip(inputs)
            .map(|(provider, input)| provider.resume(input, &session, "more").unwrap())
            .collect();
        assert_eq!(
            next,
            [
                json!({ "prompt": "more", "options": { "maxTokens": 9, "resume": "s-1" } }),
                json!({ "prompt": "more", "options": { "model": "m", "resume": "s-1" } }),
                json!({ "prompt": "more", "sessionToken": "s-1", "options": { "model": "m" } }),
                json!({ "prompt": "more", "options": { "resume": "s-1" } }),
                json!({ "prompt": "more", "threadId": "s-1", "model": "m", "options": { "maxTokens": 9 } }),
                json!({ "prompt": "more", "options": { "turns": [[{ "text": "b" }, "hang"]], "resume": "s-1" } }),
            ]
        );
        let sessions: Vec<_> = builtin()
            .iter()
            .zip(&next)
            .map(|(provider, input)| provider.input_facts(input).unwrap().session)
            .collect();
        assert_eq!(sessions, vec![Some(session); builtin().len()]);
    }

    #[test]
    fn an_unknown_key_is_refused_by_name() {
        let inputs = [
            json!({ "prompt": "a", "options": { "tools": ["Read"] } }),
            json!({ "prompt": "a", "options": { "temperature": 1 } }),
            json!({ "prompt": "a", "options": { "allowedTools": ["Read"] } }),
            json!({ "prompt": "a", "option": {} }),
            json!({ "prompt": "a", "options": { "maxThinkingTokens": 1024 } }),
            json!({ "prompt": "a", "options": { "turns": [[{ "txt": "b" }]] } }),
        ];
        let seen: Vec<bool> = builtin()
            .iter()
            .zip(inputs)
            .zip(["tools", "temperature", "allowedTools", "option", "maxThinkingTokens", "txt"])
            .map(|((provider, input), key)| {
                let error = provider.input_facts(&input).unwrap_err();
                error.code == inspan_protocol::ErrorCode::ConfigInvalid && error.message.contains(key)
            })
            .collect();
        assert_eq!(seen, vec![true; builtin().len()]);
    }
}
