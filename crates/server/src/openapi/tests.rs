//! The document against what the router answers, in both directions.

use std::collections::BTreeSet;

use axum::{body::Body, http::Method};
use serde_json::Value;

use super::*;
use crate::testing::{TestServer, authorized};

/// The methods that a document can name.
const METHODS: [Method; 5] = [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];

#[tokio::test]
async fn the_router_answers_what_the_document_says_and_nothing_else() {
    let (server, document) = (TestServer::new(), document());
    for (path, operations) in document["paths"].as_object().unwrap() {
        for method in METHODS {
            let sent =
                authorized(method.clone(), &path.replace("{id}", "none")).body(Body::from("{}")).unwrap();
            let is_routed =
                !matches!(server.send(sent).await.code().as_deref(), Some("notFound" | "methodNotAllowed"));
            let is_described = operations.get(method.as_str().to_ascii_lowercase()).is_some();
            assert_eq!(is_routed, is_described, "{method} {path}");
        }
    }
    let described: BTreeSet<_> = document["paths"].as_object().unwrap().keys().cloned().collect();
    let routed: BTreeSet<_> = api::routes().iter().map(|route| route.path.to_owned()).collect();
    assert_eq!(described, routed);
}

#[test]
fn every_operation_has_a_name_of_its_own_and_every_reference_a_target() {
    let document = document();
    let operations: Vec<&Value> = document["paths"]
        .as_object()
        .unwrap()
        .values()
        .flat_map(|path| path.as_object().unwrap().values())
        .collect();
    let names: BTreeSet<_> =
        operations.iter().map(|operation| operation["operationId"].as_str().unwrap()).collect();
    assert_eq!(names.len(), operations.len());
    let mut missing = Vec::new();
    references(&document, &mut |path| {
        if document.pointer(path.trim_start_matches('#')).is_none() {
            missing.push(path.to_owned());
        }
    });
    assert_eq!(missing, Vec::<String>::new());
}

#[test]
fn a_type_that_is_asked_and_answered_is_the_same() {
    let DocumentParts { schemas, requests, .. } = parts();
    let differ: Vec<_> =
        requests.iter().filter(|(name, one)| schemas.get(*name).is_some_and(|two| two != *one)).collect();
    assert_eq!(differ, Vec::new());
}

#[test]
fn the_documentation_has_a_row_for_every_route_and_no_other() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/server.md")).unwrap();
    let row = |line: &str| {
        let route = line.strip_prefix("| `")?.split_once('`')?.0;
        route.contains(" /").then(|| route.to_owned())
    };
    let written: Vec<String> = text.lines().filter_map(row).collect();
    let routed: BTreeSet<String> =
        api::routes().iter().map(|route| format!("{} {}", route.method, route.path)).collect();
    assert_eq!(written.iter().cloned().collect::<BTreeSet<_>>(), routed);
    assert_eq!(written.len(), routed.len(), "each once");
}

fn references(value: &Value, found: &mut dyn FnMut(&str)) {
    match value {
        Value::Object(object) => {
            object.get("$ref").and_then(Value::as_str).into_iter().for_each(&mut *found);
            object.values().for_each(|value| references(value, found));
        }
        Value::Array(values) => values.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}
