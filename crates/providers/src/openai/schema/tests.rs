//! Schemas in the vendor's form, and answers on their way back.

use serde_json::json;

use super::*;

fn optional(part: Value) -> Value {
    json!({ "anyOf": [part, { "type": "null" }] })
}

fn closed(properties: Value) -> Value {
    let required: Vec<&String> = properties.as_object().unwrap().keys().collect();
    json!({ "type": "object", "required": required, "properties": properties, "additionalProperties": false })
}

#[test]
fn objects_take_the_vendors_form() {
    let rows = [
        (
            json!({ "$schema": "x", "type": "object", "required": ["a"], "additionalProperties": true, "properties": {
                "a": { "type": "integer", "minimum": 1, "description": "how many" },
                "b": { "type": "string", "minLength": 2, "description": "a name" },
                "c": { "type": ["string", "null"] },
            } }),
            closed(json!({
                "a": { "type": "integer", "minimum": 1, "description": "how many" },
                "b": optional(json!({ "type": "string", "description": "a name\n\n{minLength: 2}" })),
                "c": { "type": ["string", "null"] },
            })),
        ),
        (
            json!({ "properties": { "a": { "items": { "type": "string" }, "maxItems": 3, "uniqueItems": true } }, "required": ["a"] }),
            closed(json!({ "a": {
                "type": "array", "items": { "type": "string" }, "maxItems": 3, "description": "{uniqueItems: true}",
            } })),
        ),
        (
            json!({ "type": "object", "required": ["a", "b", "c", "d"], "properties": {
                "a": { "enum": ["x", "y"] }, "b": { "const": 1 }, "c": { "enum": ["x", null] }, "d": { "enum": [1, 1.5] },
            } }),
            closed(json!({
                "a": { "type": "string", "enum": ["x", "y"] }, "b": { "type": "integer", "enum": [1] },
                "c": { "type": ["null", "string"], "enum": ["x", null] },
                "d": { "type": ["integer", "number"], "enum": [1, 1.5] },
            })),
        ),
        (
            json!({ "type": "object", "required": ["a", "b", "c"], "properties": {
                "a": { "type": "string", "format": "uuid", "pattern": "^a" },
                "b": { "type": "string", "format": "color", "pattern": "(?=a)" },
                "c": { "oneOf": [{ "type": "string" }, { "type": "null" }], "default": "x" },
            } }),
            closed(json!({
                "a": { "type": "string", "format": "uuid", "pattern": "^a" },
                "b": { "type": "string", "description": "{format: \"color\", pattern: \"(?=a)\"}" },
                "c": { "anyOf": [{ "type": "string" }, { "type": "null" }], "description": "{default: \"x\"}" },
            })),
        ),
        (
            json!({ "type": "object", "required": ["a", "b"], "$defs": { "n": { "type": "object", "properties": { "next": { "$ref": "#/$defs/n" } } } },
                "properties": { "a": { "$ref": "#/$defs/n" }, "b": { "$ref": "#", "description": "again" }, "c": { "allOf": [{ "$ref": "#/$defs/n" }] } } }),
            {
                let mut whole = closed(json!({
                    "a": { "$ref": "#/$defs/n" },
                    "b": { "anyOf": [{ "$ref": "#" }], "description": "again" },
                    "c": optional(json!({ "$ref": "#/$defs/n" })),
                }));
                whole["$defs"] =
                    json!({ "n": closed(json!({ "next": optional(json!({ "$ref": "#/$defs/n" })) })) });
                whole
            },
        ),
        (json!({ "type": "object", "additionalProperties": false }), closed(json!({}))),
    ];
    for (schema, expected) in rows {
        let form = VendorSchema::of(&schema);
        assert_eq!((form.is_strict(), &form.schema, form.root), (true, &expected, Root::Output), "{schema}");
        assert!(jsonschema::validator_for(&form.schema).is_ok());
    }
}

#[test]
fn what_is_no_object_is_wrapped_in_one() {
    let node = closed(json!({ "left": optional(json!({ "$ref": "#/properties/value" })) }));
    let rows = [
        (
            json!({ "type": "array", "items": { "type": "integer" } }),
            json!({ "type": "array", "items": { "type": "integer" } }),
        ),
        (json!({ "enum": ["a"] }), json!({ "type": "string", "enum": ["a"] })),
        (
            json!({ "anyOf": [{ "type": "object", "properties": { "left": { "$ref": "#" } } }] }),
            json!({ "anyOf": [node] }),
        ),
    ];
    for (schema, inner) in rows {
        let form = VendorSchema::of(&schema);
        assert_eq!((form.schema, form.root), (closed(json!({ "value": inner })), Root::Wrapped), "{schema}");
    }
    let form = VendorSchema::of(&json!({ "$ref": "#/$defs/a", "$defs": { "a": { "type": "string" } } }));
    let mut expected = closed(json!({ "value": { "$ref": "#/$defs/a" } }));
    expected["$defs"] = json!({ "a": { "type": "string" } });
    assert_eq!((form.schema, form.loose), (expected, None));
}

#[test]
fn what_would_lose_answers_is_only_asked_for() {
    let of = |part: Value| json!({ "type": "object", "properties": { "a": part } });
    let rows = [
        (of(json!({})), "/properties/a"),
        (of(json!(true)), "/properties/a"),
        (of(json!({ "type": "object" })), "/properties/a"),
        (of(json!({ "type": "object", "additionalProperties": { "type": "string" } })), "/properties/a"),
        (of(json!({ "type": "array" })), "/properties/a"),
        (of(json!({ "type": "array", "items": true })), "/properties/a/items"),
        (of(json!({ "type": "array", "items": { "type": "string" }, "prefixItems": [] })), "/properties/a"),
        (of(json!({ "enum": [{ "b": 1 }] })), "/properties/a"),
        (of(json!({ "$ref": "other.json" })), "/properties/a"),
        (of(json!({ "allOf": [{ "type": "string" }, { "minLength": 1 }] })), "/properties/a"),
        (of(json!({ "anyOf": [{ "type": "string" }, {}] })), "/properties/a/anyOf/1"),
        (json!({ "type": "object", "required": ["b"], "properties": { "a": { "type": "string" } } }), ""),
    ];
    for (schema, place) in rows {
        let form = VendorSchema::of(&schema);
        assert_eq!((form.loose.as_deref(), &form.schema), (Some(place), &schema), "{schema}");
        assert!(form.warning().is_some());
    }
    let form = VendorSchema::of(&json!(true));
    assert_eq!(
        (form.schema, form.loose.as_deref()),
        (
            json!({ "type": "object", "required": ["value"],
        "properties": { "value": true }, "additionalProperties": false }),
            Some("/properties/value")
        )
    );
}

#[test]
fn answers_come_back_as_the_author_wants_them() {
    let list = json!({ "type": "array", "items": { "type": "object", "properties": {
        "name": { "type": "string" }, "note": { "type": "string" }, "old": { "type": ["string", "null"] },
    }, "required": ["name"] } });
    let choice = json!({ "type": "object", "required": ["a"], "properties": { "a": { "anyOf": [
        { "type": "object", "required": ["kind"], "properties": { "kind": { "const": "x" }, "n": { "type": "integer" } } },
        { "type": "object", "required": ["kind", "n"], "properties": { "kind": { "const": "y" }, "n": { "type": "null" } } },
    ] } } });
    let chain = json!({ "type": "object", "properties": { "next": { "$ref": "#" } } });
    let rows = [
        (
            &list,
            r#"{"value":[{"name":"a","note":null,"old":null},{"name":"b","note":"c","old":"d"}]}"#,
            Some(json!([{ "name": "a", "old": null }, { "name": "b", "note": "c", "old": "d" }])),
        ),
        (&list, r#"[1]"#, None),
        (&list, "no JSON", None),
        (&choice, r#"{"a":{"kind":"x","n":null}}"#, Some(json!({ "a": { "kind": "x" } }))),
        (&choice, r#"{"a":{"kind":"y","n":null}}"#, Some(json!({ "a": { "kind": "y", "n": null } }))),
        (&chain, r#"{"next":{"next":null}}"#, Some(json!({ "next": {} }))),
    ];
    for (schema, text, expected) in rows {
        let form = VendorSchema::of(schema);
        assert!(form.is_strict());
        let answer = form.structured(text);
        assert_eq!(answer, expected, "{text}");
        // Whatever the vendor's form takes, the author's takes on its way back.
        if let Some(answer) = answer {
            assert!(
                jsonschema::validator_for(&form.schema)
                    .unwrap()
                    .is_valid(&serde_json::from_str(text).unwrap())
            );
            assert!(jsonschema::validator_for(schema).unwrap().is_valid(&answer), "{answer}");
        }
    }
    // One that is only requested means its nulls.
    let open = json!({ "type": "object", "properties": { "a": {}, "b": { "type": "string" } } });
    assert_eq!(VendorSchema::of(&open).structured(r#"{"b":null}"#), Some(json!({ "b": null })));
}
