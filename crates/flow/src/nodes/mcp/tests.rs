//! Calls of a real MCP server over its pipes, through the whole runtime.

use std::time::Duration;

use inspan_engine::{NodeCalls, Recorder, Replayer};
use inspan_protocol::{AgentError, ErrorCode, Outcome};
use inspan_testkit::{MCP_SERVER, running_servers};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::{FlowRunnerBuilder, testing::runner};

const PLANTED: &str = "planted-secret-0123456789";

/// A folder with the server, and the flow that uses it.
struct World {
    folder: TempDir,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("herd.sh"), MCP_SERVER).unwrap();
        Self { folder }
    }

    fn builder(&self, input: Value, policy: Value) -> FlowRunnerBuilder {
        let herd = json!({ "command": "sh", "args": ["herd.sh"], "env": { "HERD_TOKEN": "${HERD_TOKEN}" } });
        let flow = json!({
            "name": "mcp",
            "mcpServers": { "herd": herd, "gone": { "command": "no-such-program" } },
            "nodes": [{ "id": "a", "type": "mcp.call", "input": input, "policy": policy }],
        });
        let env = [("PATH", "/usr/local/bin:/usr/bin:/bin"), ("HERD_TOKEN", PLANTED)];
        runner(&flow, env).cwd(self.folder.path()).with_events()
    }

    async fn call(&self, input: Value, policy: Value) -> Result<Value, AgentError> {
        let result = self.builder(input, policy).build().run(Map::new()).await.unwrap();
        assert!(!serde_json::to_string(&result.events).unwrap().contains(PLANTED));
        result.outputs.get("a").cloned().ok_or_else(|| result.nodes.get("a").unwrap().error.unwrap())
    }

    /// Waits until no process of a server is left; there was one at least.
    async fn nobody_left(&self) {
        for _ in 0..100 {
            if running_servers(self.folder.path()).is_empty() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("the process {:?} is left", running_servers(self.folder.path()));
    }
}

#[tokio::test]
async fn a_tool_is_called_and_its_server_is_gone_after() {
    let world = World::new();
    let call = async |tool: &str, arguments: Value| {
        world.call(json!({ "server": "herd", "tool": tool, "arguments": arguments }), json!({})).await
    };
    let moo = json!({ "content": [{ "type": "text", "text": "moo" }], "text": "moo", "isError": false });
    assert_eq!(call("say", json!({ "text": "moo" })).await, Ok(moo));
    let count = call("count", json!({})).await.unwrap();
    assert_eq!((&count["text"], &count["structuredContent"]), (&json!("1 oxen"), &json!({ "oxen": 1 })));
    let failed = call("fail", json!({})).await.unwrap();
    assert_eq!((&failed["text"], &failed["isError"]), (&json!("the ox ran away"), &json!(true)));
    // The server has the secret that its entry names, and the secret is taken out of its answer.
    assert_eq!(call("secret", json!({})).await.unwrap()["text"], "token [redacted HERD_TOKEN], key none");
    world.nobody_left().await;
}

#[tokio::test]
async fn what_cannot_be_called_is_an_error_that_names_the_server() {
    let world = World::new();
    let rows = [
        ("herd", "error", ErrorCode::InvalidRequest, "no such ox"),
        ("herd", "die", ErrorCode::Process, "the MCP server `herd` "),
        (
            "herd",
            "sai",
            ErrorCode::ConfigInvalid,
            "the MCP server `herd` has no tool `sai`; it has count, die",
        ),
        ("gone", "any", ErrorCode::ConfigMissing, "the MCP server `gone` cannot be started: "),
    ];
    for (server, tool, code, start) in rows {
        let error = world.call(json!({ "server": server, "tool": tool }), json!({})).await.unwrap_err();
        assert_eq!(error.code, code, "{error:?}");
        assert!(error.message.starts_with(start), "{}", error.message);
    }
    world.nobody_left().await;
}

#[tokio::test]
async fn a_tool_that_hangs_ends_with_its_time() {
    let world = World::new();
    let input = json!({ "server": "herd", "tool": "hang" });
    let error = world.call(input, json!({ "timeout": "2s" })).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::Timeout);
    world.nobody_left().await;
}

#[tokio::test]
async fn a_recording_answers_without_a_server() {
    let world = World::new();
    let tapes = tempfile::tempdir().unwrap();
    let input = json!({ "server": "herd", "tool": "say", "arguments": { "text": "moo" } });
    let recorder = Recorder::new(tapes.path()).unwrap();
    let live = world.builder(input.clone(), json!({})).node_calls(NodeCalls::Record(recorder)).build();
    let live = live.run(Map::new()).await.unwrap();
    assert_eq!(live.outcome, Outcome::Success);
    std::fs::remove_file(world.folder.path().join("herd.sh")).unwrap();
    let replayer = Replayer::load(tapes.path()).unwrap();
    let again = world.builder(input, json!({})).node_calls(NodeCalls::Replay(replayer)).build();
    assert_eq!(again.run(Map::new()).await.unwrap().outputs.get("a"), live.outputs.get("a"));
}
