//! The JSON Schemas under `schema/`, written from the types, with the types of the API for TypeScript, and the check that
//! they are fresh.

use std::path::Path;

use anyhow::Context as _;
use inspan_protocol::{
    AgentError, Command, Envelope, Message, ProviderDescriptor, RunSnapshot, SessionState, StreamEvent,
};
use schemars::{JsonSchema, schema_for};
use serde_json::{Value, json};

use crate::tidy::TidyFinding;
use crate::typescript;
use crate::workspace::Workspace;

/// The folder that holds nothing but generated schemas.
const FOLDER: &str = "schema";

/// A file in `schema/` and what writes its text.
pub(crate) type Schema = (&'static str, fn() -> String);

/// Every schema that is published.
pub(crate) const SCHEMAS: &[Schema] = &[
    ("api.d.ts", api),
    ("command.json", text_of::<Command>),
    ("envelope.json", text_of::<Envelope>),
    ("error.json", text_of::<AgentError>),
    ("event.json", event),
    ("forecast.json", text_of::<inspan_flow::Forecast>),
    ("message.json", text_of::<Message>),
    ("openapi.json", || render(&inspan_server::openapi_document())),
    ("provider.json", text_of::<ProviderDescriptor>),
    ("run-snapshot.json", text_of::<RunSnapshot>),
    ("session-state.json", text_of::<SessionState>),
    ("stream-event.json", text_of::<StreamEvent>),
    ("test-file.json", || render(&inspan_flow_test::test_file_schema())),
];

/// The schema of one type.
pub(crate) fn of<T: JsonSchema>() -> Value {
    schema_for!(T).to_value()
}

fn text_of<T: JsonSchema>() -> String {
    render(&of::<T>())
}

/// A part of the envelope's schema, which is in the same folder.
fn event() -> String {
    render(&json!({
        "$schema": of::<Envelope>()["$schema"],
        "title": "Event",
        "$ref": "envelope.json#/$defs/Event",
    }))
}

/// What the API answers and takes, as types of TypeScript.
fn api() -> String {
    let document = inspan_server::openapi_document();
    let types = document.pointer("/components/schemas").and_then(Value::as_object);
    let about =
        "What the HTTP API takes and answers: written by `cargo xtask schema` from the OpenAPI document.";
    types.map(|types| typescript::namespace("Api", about, types)).unwrap_or_default()
}

/// Finds every schema that differs from its type, is missing, or has no type any more.
pub(crate) fn check(schemas: &[Schema], workspace: &Workspace) -> Vec<TidyFinding> {
    let mut findings = Vec::new();
    for (name, make) in schemas {
        let path = format!("{FOLDER}/{name}");
        let sentence = match workspace.text(&path) {
            None => "the schema is missing: run `cargo xtask schema`",
            Some(text) if text != make() => "the schema is stale: run `cargo xtask schema`",
            Some(_) => continue,
        };
        findings.push(TidyFinding::broken(path, sentence));
    }
    for file in &workspace.files {
        let name = file.path.strip_prefix(FOLDER).and_then(|rest| rest.strip_prefix('/'));
        if name.is_some_and(|name| schemas.iter().all(|(known, _)| *known != name)) {
            let sentence = "no type writes this file: run `cargo xtask schema` to remove it";
            findings.push(TidyFinding::broken(&file.path, sentence));
        }
    }
    findings
}

/// Writes every schema, removes what no type writes, and returns the paths that changed.
pub(crate) fn write(schemas: &[Schema], root: &Path) -> anyhow::Result<Vec<String>> {
    let workspace = Workspace::read(root)?;
    let mut changed = Vec::new();
    for finding in check(schemas, &workspace) {
        let path = root.join(&finding.place);
        let schema = schemas.iter().find(|(name, _)| finding.place == format!("{FOLDER}/{name}"));
        match schema {
            Some((_, make)) => {
                let folder = path.parent().unwrap_or(root);
                std::fs::create_dir_all(folder)
                    .with_context(|| format!("failed to make {}", folder.display()))?;
                std::fs::write(&path, make())
            }
            None => std::fs::remove_file(&path),
        }
        .with_context(|| format!("failed to write {}", finding.place))?;
        changed.push(finding.place);
    }
    Ok(changed)
}

/// The file's text. The keys of a `Value` are sorted, so the same type always gives the same bytes.
fn render(schema: &Value) -> String {
    format!("{schema:#}\n")
}

#[cfg(test)]
mod tests {
    use inspan_protocol::{Envelope, Event};
    use serde_json::{Value, json};

    use super::{Schema, check, event, of, render, write};
    use crate::workspace::Workspace;

    const SCHEMAS: &[Schema] =
        &[("a.json", || render(&json!({"b": 1, "a": [2]}))), ("b.json", || render(&json!(true)))];

    /// A validator that loads both files from one folder takes the events that the whole schema takes.
    #[test]
    fn the_schema_of_events_is_found_in_that_of_envelopes() {
        let envelope = of::<Envelope>();
        assert_eq!(envelope["$defs"]["Event"]["oneOf"], of::<Event>()["oneOf"]);
        let folder = jsonschema::Registry::new().add("file:///schema/envelope.json", &envelope).unwrap();
        let folder = folder.prepare().unwrap();
        let options = jsonschema::options().with_base_uri("file:///schema/event.json");
        let schema = serde_json::from_str(&event()).unwrap();
        let loaded = options.with_registry(&folder).build(&schema).unwrap();
        for line in include_str!("../../fixtures/flows/agents_by_name/events.jsonl").lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            assert!(loaded.is_valid(&line["event"]), "{line}");
        }
        assert!(!loaded.is_valid(&json!({ "type": "task:start" })));
    }

    #[test]
    fn writes_once_and_is_then_fresh() {
        let root = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(root.path().join("schema")).expect("a folder");
        std::fs::write(root.path().join("schema/a.json"), "{}").expect("a file");
        std::fs::write(root.path().join("schema/old.json"), "{}").expect("a file");
        let sentences = || {
            let tree = Workspace::read(root.path()).expect("the tree");
            check(SCHEMAS, &tree).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let expected = [
            "schema/a.json: the schema is stale: run `cargo xtask schema`",
            "schema/b.json: the schema is missing: run `cargo xtask schema`",
            "schema/old.json: no type writes this file: run `cargo xtask schema` to remove it",
        ];
        assert_eq!(sentences(), expected);
        let changed = write(SCHEMAS, root.path()).expect("written");
        assert_eq!(changed, ["schema/a.json", "schema/b.json", "schema/old.json"]);
        assert_eq!(sentences(), [""; 0]);
        let text = std::fs::read_to_string(root.path().join("schema/a.json")).expect("a file");
        assert_eq!(text, "{\n  \"a\": [\n    2\n  ],\n  \"b\": 1\n}\n");
        assert_eq!(write(SCHEMAS, root.path()).expect("nothing to do"), [""; 0]);
    }
}
