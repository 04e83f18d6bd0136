//! Entries of `mcpServers`: what they become, what is refused and with which message.

use serde_json::json;

use super::*;

const PLANTED: &str = "planted-secret-0123456789";
const HOOK: &str = "hk7Q2w9e8r7t6y5u";

fn read(name: &str, entry: Value) -> Result<McpServer, AgentError> {
    let pairs = [("TOKEN", PLANTED), ("PORT", "81"), ("HOOK", HOOK)];
    let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let servers = BTreeMap::from([(name.to_owned(), entry)]);
    McpServer::read_all(&servers, &pairs.into_iter().collect()).map(|mut servers| servers.remove(0))
}

#[test]
fn entries_have_the_form_of_claude_code() {
    let program = json!({
        "command": "herd", "args": ["--port", "${PORT}", "${OTHER:-none}"], "env": { "API_KEY": "${TOKEN}" }, "timeout": 5,
    });
    let server = read("my herd", program).unwrap();
    let Transport::Stdio { command, arguments, environment } = &server.transport else {
        panic!("no program")
    };
    assert_eq!((command.as_str(), server.call_limit), ("herd", Some(Duration::from_millis(5))));
    assert_eq!(arguments, &["--port", "81", "none"]);
    assert_eq!(environment["API_KEY"], PLANTED);
    assert_eq!(server.redactor.known(&format!("a {PLANTED} b")), "a [redacted API_KEY] b");

    let remote = json!({
        "type": "http", "url": "http://127.0.0.1:${PORT}/s/${HOOK}/mcp?token=planted-query", "headers": { "X-Any": "Bearer ${TOKEN}" },
    });
    let server = read("far", remote).unwrap();
    let Transport::Http { url, headers } = &server.transport else { panic!("no address") };
    assert_eq!((url.port(), headers.len()), (Some(81), 1));
    assert!(!format!("{headers:?}").contains(PLANTED));
    let reported = format!("Bearer {PLANTED}; {PLANTED}; planted-query; /s/{HOOK}/mcp");
    assert_eq!(server.redactor.known(&reported), "[redacted]; [redacted]; [redacted]; /s/[redacted]/mcp");
    assert!(matches!(
        read("a", json!({ "url": "https://x.invalid" })).unwrap().transport,
        Transport::Http { .. }
    ));
}

#[test]
fn what_cannot_be_is_refused_by_name_and_without_values() {
    let rows = [
        (json!({}), "has no `command`"),
        (json!("herd"), "does not have the form"),
        (json!({ "command": "herd", "env": { "A": 1 } }), "does not have the form"),
        (json!({ "command": "herd", "port": PLANTED }), "has the key `port`, which is not known"),
        (json!({ "command": "herd", "url": "http://x" , "type": "stdio" }), "is a program and has `url`"),
        (json!({ "type": "http", "command": "herd" }), "is reached over HTTP and has `command`"),
        (json!({ "type": "http" }), "has no `url`"),
        (json!({ "type": "sse", "url": "http://x" }), "is of type `sse`"),
        (json!({ "type": "sdk", "name": "x" }), "has the key `name`"),
        (json!({ "url": format!("ftp://{PLANTED}") }), "has a `url` that begins with neither"),
        (json!({ "url": "http://x", "headers": { "Accept": PLANTED } }), "has the header `Accept`"),
        (json!({ "url": "http://x", "headers": { "A": "${TOKEN}\n" } }), "has a value for `A`"),
        (
            json!({ "command": "herd", "args": ["${NOWHERE}"] }),
            "needs the variable NOWHERE, which is not set",
        ),
    ];
    for (written, expected) in rows {
        let error = read("herd", written.clone()).err().unwrap_or_else(|| panic!("{written} is taken"));
        assert!(error.message.starts_with("the MCP server `herd` "), "{}", error.message);
        assert!(error.message.contains(expected), "{expected}: {}", error.message);
        assert!(!format!("{error:?}").contains(PLANTED), "{error:?}");
        assert_eq!(error.detail.unwrap()["server"], "herd");
    }
    for name in ["", " ", "a__b", "a._b", "t_", "_t", "t.", "a/b", "ä"] {
        assert!(read(name, json!({ "command": "herd" })).is_err(), "{name}");
    }
}

#[test]
fn a_dollar_that_names_nothing_stays() {
    let none = Environment::default();
    assert_eq!(none.fill("a $B ${C"), Ok("a $B ${C".to_owned()));
    assert_eq!(none.fill("${A:-x}${A}"), Err("A".to_owned()));
}
