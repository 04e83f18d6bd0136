//! `inspan mcp --http` over real sockets: what clients without the token get, a client of each
//! version of the protocol, clients and servers that disconnect.

use std::path::Path;

use serde_json::{Value, json};

use crate::mcp_server::{GREET, client_info, meta};
use crate::processes::until;
use crate::program::{Folder, folder_with, inspan};
use crate::serving::client::{Answer, Client, EventStream, Server};

const POST: &str = "POST /mcp HTTP/1.0";
const JSON: (&str, &str) = ("content-type", "application/json");
const ACCEPT: (&str, &str) = ("accept", "application/json, text/event-stream");

fn folder() -> Folder {
    folder_with(&[("greet.yaml", GREET)])
}

fn serve(folder: &Path) -> Server {
    Server::start_as(folder, &["mcp", "--http", "127.0.0.1:0", "--json"])
}

fn request(id: u64, method: &str, params: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
}

fn greeting(capabilities: &Value) -> Value {
    request(1, "initialize", &client_info(capabilities))
}

/// The messages of an answer that is a stream; lines without a message only say when to connect again.
fn messages(answer: &Answer) -> Vec<Value> {
    let data = answer.text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.filter_map(|data| serde_json::from_str(data).ok()).collect()
}

/// The next message of a stream.
fn next(stream: &mut EventStream) -> Value {
    loop {
        let event = stream.next().expect("a message");
        if let Ok(message) = serde_json::from_str(&event.data) {
            return message;
        }
    }
}

/// A client of the protocol that has sessions.
struct McpClient {
    http: Client,
    session: String,
}

impl McpClient {
    fn open(server: &Server, capabilities: &Value) -> Self {
        let http = server.client();
        let answer = http.ask(POST, &[JSON, ACCEPT], &greeting(capabilities).to_string()).unwrap();
        assert_eq!(messages(&answer)[0]["result"]["serverInfo"]["name"], json!("inspan"), "{}", answer.text);
        let session = answer.header("mcp-session-id").unwrap().to_owned();
        let client = Self { http, session };
        let said = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        assert_eq!(client.post(&said).status, 202);
        client
    }

    fn headers(&self) -> [(&str, &str); 3] {
        [JSON, ACCEPT, ("mcp-session-id", &self.session)]
    }

    fn post(&self, message: &Value) -> Answer {
        self.http.ask(POST, &self.headers(), &message.to_string()).unwrap()
    }

    /// The result of a call.
    fn call(&self, name: &str, arguments: &Value) -> Value {
        let answer = self.post(&request(7, "tools/call", &json!({ "name": name, "arguments": arguments })));
        messages(&answer).pop().unwrap()["result"].clone()
    }
}

#[test]
fn strangers_are_refused_and_start_nothing() {
    let folder = &folder();
    let server = serve(folder);
    let call = request(1, "tools/call", &json!({ "name": "greet", "arguments": {} })).to_string();
    let refused = |client: &Client, headers: &[(&str, &str)]| {
        let answer = client.ask(POST, headers, &call).unwrap();
        (answer.status, answer.json()["code"].as_str().unwrap().to_owned())
    };
    let (stranger, friend) = (server.stranger(), server.client());
    let got = [
        refused(&stranger, &[JSON, ACCEPT]),
        refused(&friend, &[JSON, ACCEPT, ("host", "evil.example")]),
        refused(&friend, &[JSON, ACCEPT, ("origin", "http://evil.example")]),
        refused(&friend, &[JSON, ACCEPT, ("sec-fetch-site", "cross-site")]),
        refused(&friend, &[("content-type", "text/plain"), ACCEPT]),
    ];
    let expected = [
        (401, "tokenMissing"),
        (403, "hostNotAllowed"),
        (403, "originNotAllowed"),
        (403, "crossSite"),
        (415, "notJson"),
    ];
    assert_eq!(got, expected.map(|(status, code)| (status, code.to_owned())));
    assert_eq!(
        stranger.ask(POST, &[JSON, ACCEPT], &call).unwrap().header("www-authenticate"),
        Some("Bearer")
    );
    assert_eq!(stranger.get("/healthz").status, 200);
    assert_eq!(inspan(folder, &["ps", "--all", "--json"]).stdout.trim(), "[]");
}

#[test]
fn a_form_is_shown_on_the_stream_of_its_call() {
    let folder = &folder();
    let mut server = serve(folder);
    let client = McpClient::open(&server, &json!({ "elicitation": {} }));
    let listed = messages(&client.post(&request(2, "tools/list", &json!({}))));
    assert_eq!(listed[0]["result"]["tools"][0]["name"], json!("greet"));
    let call = request(3, "tools/call", &json!({ "name": "greet", "arguments": { "who": "oxen" } }));
    let mut stream = client.http.stream_of(POST, &client.headers(), &call.to_string());
    let asked = next(&mut stream);
    assert_eq!(asked["method"], json!("elicitation/create"));
    let answer = json!({ "action": "accept", "content": { "choice": "hello" } });
    let answered = client.post(&json!({ "jsonrpc": "2.0", "id": asked["id"], "result": answer }));
    assert_eq!(answered.status, 202);
    let done = next(&mut stream);
    assert_eq!(done["result"]["structuredContent"]["outputs"], json!({ "greeting": "hello oxen\n" }));
    let left = client.http.ask("DELETE /mcp HTTP/1.0", &[("mcp-session-id", &client.session)], "").unwrap();
    let gone = client.post(&request(4, "tools/list", &json!({})));
    assert_eq!((left.status, gone.status), (202, 404));
    assert_eq!(server.interrupt(), Some(0));
}

#[test]
fn a_client_of_the_newest_version_needs_no_session() {
    let folder = &folder();
    let server = serve(folder);
    let headers = [
        JSON,
        ACCEPT,
        ("mcp-protocol-version", "2026-07-28"),
        ("mcp-method", "tools/call"),
        ("mcp-name", "greet"),
    ];
    let call = |params: &Value| {
        let answer =
            server.client().ask(POST, &headers, &request(1, "tools/call", params).to_string()).unwrap();
        messages(&answer).pop().unwrap_or_else(|| panic!("{}", answer.text))["result"].clone()
    };
    let mut params =
        json!({ "name": "greet", "arguments": {}, "_meta": meta(&json!({ "elicitation": { "form": {} } })) });
    let asked = call(&params);
    assert_eq!(asked["inputRequests"]["how.1"]["method"], json!("elicitation/create"), "{asked}");
    params["requestState"] = asked["requestState"].clone();
    params["inputResponses"] = json!({ "how.1": { "action": "accept", "content": { "choice": "bye" } } });
    assert_eq!(call(&params)["structuredContent"]["outputs"], json!({ "greeting": "bye world\n" }));
}

#[test]
fn a_session_outlives_its_client_and_the_server() {
    let folder = &folder();
    let mut server = serve(folder);
    let client = McpClient::open(&server, &json!({}));
    let asked = client.call("greet", &json!({}));
    let id = asked["structuredContent"]["sessionId"].as_str().unwrap().to_owned();
    assert_eq!(asked["structuredContent"]["status"], json!("waiting"));
    let mut waits = client.http.stream_of(
        POST,
        &client.headers(),
        &request(5, "tools/call", &json!({ "name": "session_wait", "arguments": { "session": id } }))
            .to_string(),
    );
    server.kill();
    while waits.next().is_some() {}
    let server = serve(folder);
    let unknown = Client::new(server.address(), "").ask(POST, &[JSON, ACCEPT], "{}").unwrap();
    assert_eq!(unknown.status, 401);
    let old = server.client().ask(POST, &client.headers(), &request(6, "tools/list", &json!({})).to_string());
    assert_eq!(old.unwrap().status, 404);
    let client = McpClient::open(&server, &json!({}));
    client.call("session_reply", &json!({ "session": id, "choice": "hello" }));
    until("the session ends", || {
        client.call("session_status", &json!({ "session": id }))["structuredContent"]["status"]
            == json!("success")
    });
}

#[test]
fn beyond_the_loopback_it_needs_a_name() {
    let folder = &folder();
    inspan(folder, &["mcp", "--http", "0.0.0.0:0"]).refused("0.0.0.0 can be reached from other machines");
    let arguments = ["mcp", "--http", "0.0.0.0:0", "--allow-remote", "x.example", "--json"];
    let server = Server::start_as(folder, &arguments);
    assert_eq!(server.stranger().get("/healthz").status, 200);
    inspan(folder, &["mcp", "--allow-remote", "x.example"]).expect(2).says("required arguments");
}
