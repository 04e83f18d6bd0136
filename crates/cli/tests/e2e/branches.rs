//! Conversations that two nodes branch at the same time, and a session that is forked: the model sees what was said before
//! in each branch, and the original conversation does not change.

use anyhow::{Context as _, ensure};
use inspan_testkit::Sandbox;
use serde_json::{Value, json};

use super::checks::{ended, flow, main_requests, same, says, serve};
use super::resume::SESSION;

/// Answers the prompt of one role, whenever it comes.
fn answers(role: &str, text: &str) -> Value {
    let mut turn = says(text);
    turn["when"] = json!({ "lastMessageContains": format!("role={role}.") });
    turn
}

/// Where a branch begins in the conversation of another session.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Begins {
    /// After the turn of the node whose conversation it is.
    AfterTheTurn,
    /// Where the conversation is now: the vendor can name no place in it.
    Now,
}

/// Proves it of the agent of this node type, whose output names its conversation by `session`.
pub(super) fn proved(
    sandbox: &mut Sandbox,
    node_type: &str,
    options: &Value,
    session: &str,
    begins: Begins,
) -> anyhow::Result<()> {
    let turns = [
        ("begin", "Begun."),
        ("left", "Left it is."),
        ("right", "Right it is."),
        ("last", "The end."),
        ("last", "Another end."),
    ];
    let server = serve(sandbox, &turns.map(|(role, text)| answers(role, text)))?;
    let node = |id: &str, after: &[&str], uses: Value| {
        json!({
            "id": id, "type": node_type, "dependsOn": after, "session": uses,
            "input": { "prompt": format!("role={id}. Go on."), "options": options },
        })
    };
    let branch = || json!({ "from": "begin", "fork": true });
    let mut begin = node("begin", &[], Value::Null);
    begin.as_object_mut().context("a node")?.remove("session");
    let nodes = [
        begin,
        node("left", &["begin"], branch()),
        node("right", &["begin"], branch()),
        node("last", &["left", "right"], json!("begin")),
    ];
    let run = sandbox.run_flow(&flow(&nodes), &["--session-id", SESSION])?;
    let summary = ended(&run, 0, "success")?;
    let of = |id: &str| summary["outputs"][id][session].as_str().unwrap_or_default().to_owned();
    let (begun, left, right) = (of("begin"), of("left"), of("right"));
    ensure!(
        begun != left && begun != right && left != right,
        "a branch has no conversation of its own: {run}"
    );
    same("the conversation that was branched", &of("last"), &begun)?;
    let requests = main_requests(&server);
    for (role, knows, does_not_know) in [
        ("left", vec!["role=begin.", "Begun."], vec!["role=right.", "role=last."]),
        ("right", vec!["role=begin.", "Begun."], vec!["role=left.", "role=last."]),
        ("last", vec!["role=begin.", "Begun."], vec!["role=left.", "role=right."]),
    ] {
        let asks = |body: &String| body.contains(&format!("role={role}."));
        let bodies = requests.iter().map(|request| request.body.to_string());
        let body = bodies.into_iter().find(asks).with_context(|| format!("nothing was asked by `{role}`"))?;
        for word in knows {
            ensure!(body.contains(word), "`{role}` does not know `{word}`: {body}");
        }
        for word in does_not_know {
            ensure!(!body.contains(word), "`{role}` knows `{word}`: {body}");
        }
    }
    let forked = sandbox.start_session(&["fork", SESSION, "--at", "last"])?.finish()?;
    let summary = ended(&forked, 0, "success")?;
    let last = summary["outputs"]["last"][session].as_str().unwrap_or_default();
    ensure!(
        last != begun && !last.is_empty(),
        "the fork goes on in the conversation of the original: {forked}"
    );
    let asked = main_requests(&server);
    let body = asked.last().context("the fork asked nothing")?.body.to_string();
    let knows = ["role=begin.", "Begun.", "role=last."].map(|word| body.contains(word));
    let later = body.contains("The end.");
    same("what the fork knows", &(knows, later), &([true; 3], begins == Begins::Now)).context(body)
}
