//! The OpenAI formats over real connections: paths, headers, whole bodies and complaints.
//! Their streams are compared byte by byte in `scenarios.rs`.

use serde_json::{Value, json};

use super::client::{ClientResponse, PendingExchange, ask, ask_responses, post};
use super::start;
use crate::{ModelServer, SECRET_PRESENT, Scenario, Turn, TurnRef};

const BEARER: &str = "Authorization: Bearer planted\r\n";

fn call(server: &ModelServer, method: &str, path: &str, body: &Value) -> ClientResponse {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    PendingExchange::start(server, method, path, BEARER, &body).finish().expect("an answer")
}

fn json_of(answer: &ClientResponse) -> Value {
    serde_json::from_str(&answer.body).unwrap()
}

#[test]
fn responses_answers_on_both_paths_and_whole() {
    let server = start([Turn::text("a"), Turn::text("b")]);
    let mut body = ask_responses("x");
    body["stream"] = json!(false);
    for (path, id) in [("/v1/responses", "main_1"), ("/responses", "main_2")] {
        let answer = call(&server, "POST", path, &body);
        let response = json_of(&answer);
        let seen = (answer.status, &response["id"], &response["object"], &response["status"]);
        let expected = (200, &json!(format!("resp_{id}")), &json!("response"), &json!("completed"));
        assert_eq!(seen, expected);
        assert_eq!(answer.headers["x-request-id"], format!("req_{id}"));
    }
    let requests = server.requests();
    assert_eq!(
        requests.iter().map(|request| request.turn).collect::<Vec<_>>(),
        [0, 1].map(|n| Some(TurnRef::Turn(n)))
    );
    assert_eq!(requests[0].headers["authorization"], SECRET_PRESENT);
}

#[test]
fn complaints_models_and_wrong_paths_have_the_vendors_form() {
    let server = start([Turn::text("a")]);
    let error = |message: &str, code: &str| json!({"error": {"message": message, "type": "invalid_request_error", "param": null, "code": code}});
    let model =
        |id: &str| json!({"id": id, "object": "model", "created": 1_735_689_600, "owned_by": "inspan"});
    let unkept = json!({"model": "m", "input": "x", "previous_response_id": "resp_9"});
    let unknown = "Previous response with id 'resp_9' not found.";
    let missing = "Missing required parameter: 'model'.";
    let rows = [
        ("POST", "/v1/responses", json!({}), 400, error(missing, "missing_required_parameter")),
        ("POST", "/v1/responses", unkept, 400, error(unknown, "previous_response_not_found")),
        ("POST", "/v1/nothing", json!({}), 404, error("no POST /v1/nothing", "model_not_found")),
        ("GET", "/v1/models", Value::Null, 200, json!({"object": "list", "data": [model("scripted-model")]})),
        ("GET", "/v1/models/gpt-x", Value::Null, 200, model("gpt-x")),
    ];
    for (method, path, body, status, expected) in rows {
        let answer = call(&server, method, path, &body);
        assert_eq!((answer.status, json_of(&answer)), (status, expected), "{method} {path}");
    }
    assert_eq!(server.state().main, 0);
}

/// The scenario of `docs/model-server.md` with a tool of a group.
#[test]
fn a_tool_in_a_group_is_called_by_both_names_where_the_format_has_groups() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/model-server.md");
    let page = std::fs::read_to_string(page).unwrap();
    let block = page.split("```json\n").find(|block| block.contains("mcp__docs__search\"")).unwrap();
    let scenario = Scenario::from_json(block.split_once("```").unwrap().0).unwrap();
    let server = ModelServer::start(Scenario { after: crate::After::Cycle, ..scenario }).unwrap();
    let mut body = ask_responses("x");
    body["stream"] = json!(false);
    let group = |name: &str| json!({"type": "namespace", "name": name, "tools": [{"type": "function", "name": "search"}]});
    let rows = [
        (vec![], json!([null, "mcp__docs__search"])),
        (vec![group("mcp__docs")], json!(["mcp__docs", "search"])),
        (vec![group("mcp"), group("mcp__docs")], json!(["mcp__docs", "search"])),
        (vec![group("other")], json!([null, "mcp__docs__search"])),
    ];
    for (groups, expected) in rows {
        body["tools"] = Value::Array(groups);
        body["tools"].as_array_mut().unwrap().push(json!({"type": "function", "name": "exec_command"}));
        let called = json_of(&call(&server, "POST", "/v1/responses", &body))["output"][0].clone();
        assert_eq!(json!([called["namespace"], called["name"]]), expected, "{body}");
        assert_eq!(called["arguments"], r#"{"query":"oxen"}"#);
        // The text of the second turn.
        call(&server, "POST", "/v1/responses", &body);
    }
    let mut body = ask("x");
    body["stream"] = json!(false);
    assert_eq!(json_of(&post(&server, &body))["content"][0]["name"], "mcp__docs__search");
}
