//! Flows whose agents ask the Messages API, against the scripted model server.

use serde_json::json;

use crate::api_agents::Api;

const API: Api = Api {
    provider: "anthropic",
    key: ("ANTHROPIC_API_KEY", "sk-ant-planted-0123456789"),
    address: ("ANTHROPIC_BASE_URL", ""),
    model: "claude-sonnet-4-5",
    said: "messages",
};

#[test]
fn a_flow_of_three_agents_mends_its_output_and_goes_on_in_a_conversation() {
    let reviewed = API.a_flow_of_three_agents_mends_its_output_and_goes_on_in_a_conversation();
    let asked = |request: usize| &reviewed.requests[request].body;
    assert_eq!(asked(3)["system"][0]["text"], "You write.");
    assert_eq!(asked(1)["thinking"], json!({ "type": "enabled", "budget_tokens": 1024 }));
}

#[test]
fn an_overloaded_server_is_asked_again_by_the_flow_and_by_nobody_else() {
    API.an_overloaded_server_is_asked_again_by_the_flow_and_by_nobody_else();
}

#[test]
fn a_flow_that_was_interrupted_or_killed_goes_on_in_its_conversation() {
    API.a_flow_that_was_interrupted_or_killed_goes_on_in_its_conversation();
}

#[test]
fn what_is_missing_or_not_offered_is_said_before_anything_starts() {
    API.what_is_missing_or_not_offered_is_said_before_anything_starts();
}
