//! The OpenAPI document, made of the rows that the router is made of.

use schemars::{Schema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use crate::{
    api,
    problem::{PROBLEM_JSON, Problem, problem_codes},
    route::Route,
};

/// The OpenAPI document of the API.
pub fn document() -> Value {
    let DocumentParts { paths, problem, mut schemas, requests } = parts();
    schemas.extend(requests);
    if let Some(code) = schemas.get_mut("Problem").and_then(|schema| schema.pointer_mut("/properties/code")) {
        code["enum"] = problem_codes().iter().map(|(word, ..)| json!(word)).collect();
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Inspan",
            "version": "1",
            "description": "The sessions of a store: what they are, what happens in them, and what can be asked of them.",
        },
        "security": [{ "token": [] }, { "cookie": [] }],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": {
                "problem": {
                    "description": "Why the request was not answered.",
                    "content": { PROBLEM_JSON: { "schema": problem } },
                },
            },
            "securitySchemes": {
                "token": { "type": "http", "scheme": "bearer" },
                "cookie": { "type": "apiKey", "in": "cookie", "name": "inspan-PORT" },
            },
        },
    })
}

/// What the document is made of.
struct DocumentParts {
    paths: Map<String, Value>,
    problem: Schema,
    /// The types of answers by their names.
    schemas: Map<String, Value>,
    /// The types of what is asked.
    requests: Map<String, Value>,
}

fn parts() -> DocumentParts {
    let settings = SchemaSettings::draft2020_12()
        .with(|settings| settings.definitions_path = "/components/schemas".into());
    // What is answered and what is asked differ in which fields there must be.
    let mut answers = settings.clone().for_serialize().into_generator();
    let mut requests = settings.into_generator();
    let problem = answers.subschema_for::<Problem>();
    let mut paths = Map::new();
    for route in api::routes() {
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method.as_str().to_ascii_lowercase()] = operation(&route, &mut requests, &mut answers);
    }
    DocumentParts {
        paths,
        problem,
        schemas: answers.take_definitions(true),
        requests: requests.take_definitions(true),
    }
}

fn operation(route: &Route, requests: &mut SchemaGenerator, answers: &mut SchemaGenerator) -> Value {
    let mut parameters: Vec<Value> = route
        .path
        .split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
        .map(|name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }))
        .collect();
    if let Some(make) = route.query {
        parameters.extend(query(make(requests).to_value(), requests));
    }
    let mut content = Map::new();
    let schema = route.answer.schema.map(|make| make(answers).to_value()).unwrap_or_else(|| json!({}));
    for media in route.answer.media {
        content.insert((*media).to_owned(), json!({ "schema": schema }));
    }
    let mut good = json!({ "description": route.about });
    if !content.is_empty() {
        good["content"] = content.into();
    }
    let mut operation = json!({
        "operationId": route.name,
        "summary": route.about,
        "responses": {
            (route.answer.status.to_string()): good,
            "default": { "$ref": "#/components/responses/problem" },
        },
    });
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    if let Some(make) = route.body {
        let schema = make(requests).to_value();
        operation["requestBody"] =
            json!({ "required": true, "content": { "application/json": { "schema": schema } } });
    }
    operation
}

/// The keys of a query's type as parameters.
fn query(schema: Value, generator: &SchemaGenerator) -> Vec<Value> {
    let name = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()).unwrap_or_default();
    let Some(object) = generator.definitions().get(name) else { return Vec::new() };
    let Some(properties) = object["properties"].as_object() else { return Vec::new() };
    let required: Vec<&str> =
        object["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let parameter = |(name, schema): (&String, &Value)| {
        let mut schema = schema.clone();
        let about = schema.as_object_mut().and_then(|schema| schema.remove("description"));
        json!({
            "name": name,
            "in": "query",
            "required": required.contains(&name.as_str()),
            "description": about.unwrap_or_default(),
            "schema": schema,
        })
    };
    properties.iter().map(parameter).collect()
}

#[cfg(test)]
mod tests;
