//! A form that a person fills in: a JSON Schema of a mapping whose values are texts, numbers, true or false, or one of a
//! list. It is small enough to be asked field by field, and checked wherever an answer arrives.

use serde_json::{Map, Number, Value};

use crate::{InputProblem, oversized_number};

/// The fields of a form: those that are required first, in the order in which `required` lists them.
#[derive(Clone, Debug, PartialEq)]
pub struct Form {
    fields: Vec<FormField>,
}

/// One field.
#[derive(Clone, Debug, PartialEq)]
pub struct FormField {
    /// Its key in the answer.
    pub name: String,
    /// What it is called, if not by its name.
    pub title: Option<String>,
    /// What it is for.
    pub description: Option<String>,
    /// What it takes.
    pub kind: FieldKind,
    /// Whether an answer must have it, if it has no default.
    pub is_required: bool,
    /// The value that is taken if none is given.
    pub default: Option<Value>,
}

/// What a field takes.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum FieldKind {
    /// A text of so many characters.
    Text {
        /// At least.
        min: Option<u64>,
        /// At most.
        max: Option<u64>,
    },
    /// A number.
    Number {
        /// At least.
        min: Option<f64>,
        /// At most.
        max: Option<f64>,
        /// Whether it must be an integer.
        is_integer: bool,
    },
    /// True or false.
    Boolean,
    /// One of these values.
    OneOf(Vec<Value>),
}

/// The keywords of the schema of a form.
const FORM_KEYS: [&str; 7] =
    ["$schema", "type", "title", "description", "properties", "required", "additionalProperties"];
/// The keywords of the schema of a field.
const FIELD_KEYS: [&str; 9] =
    ["type", "title", "description", "default", "enum", "minimum", "maximum", "minLength", "maxLength"];
/// The most fields, and the most values of one.
const MOST: usize = 100;

impl Form {
    /// The form that a schema describes.
    ///
    /// # Errors
    /// The schema is not a form; the problem has the JSON pointer of the part that is not.
    pub fn of(schema: &Value) -> Result<Self, InputProblem> {
        let Some(schema) = schema.as_object() else {
            return Err(InputProblem::new("", "the schema of a form must be a mapping"));
        };
        known_keys(schema, &FORM_KEYS, "")?;
        if schema.get("type").is_some_and(|kind| kind != "object") {
            return Err(InputProblem::new("/type", "the `type` of a form is `object`"));
        }
        let properties = schema.get("properties").and_then(Value::as_object);
        let Some(properties) = properties.filter(|properties| (1..=MOST).contains(&properties.len())) else {
            let message = format!("a form needs `properties`: a mapping of 1 to {MOST} fields");
            return Err(InputProblem::new("/properties", message));
        };
        let required = required(schema)?;
        if let Some(name) = required.iter().find(|name| !properties.contains_key(**name)) {
            let message = format!("`required` names `{name}`, which is not a field of the form");
            return Err(InputProblem::new("/required", message));
        }
        let rest = properties.keys().map(String::as_str).filter(|name| !required.contains(name));
        let fields = required.iter().copied().chain(rest);
        let fields = fields.map(|name| FormField::of(name, &properties[name], required.contains(&name)));
        Ok(Self { fields: fields.collect::<Result<_, _>>()? })
    }

    /// The fields in the order in which they are asked.
    pub fn fields(&self) -> &[FormField] {
        &self.fields
    }

    /// The answer with its defaults.
    ///
    /// # Errors
    /// It does not fit; the text says which field and why.
    pub fn check(&self, answer: &Value) -> Result<Map<String, Value>, String> {
        self.check_except(answer, |_| false)
    }

    /// The same, except of the values that are not known yet.
    ///
    /// # Errors
    /// As [`Form::check`].
    pub fn check_except(
        &self,
        answer: &Value,
        is_unknown: impl Fn(&Value) -> bool,
    ) -> Result<Map<String, Value>, String> {
        let Some(given) = answer.as_object() else {
            return Err("the answer must be a JSON mapping of the fields".to_owned());
        };
        let names: Vec<&str> = self.fields.iter().map(|field| field.name.as_str()).collect();
        if let Some(unknown) = given.keys().find(|key| !names.contains(&key.as_str())) {
            return Err(format!("there is no field `{unknown}`; the fields are {}", names.join(", ")));
        }
        let mut filled = Map::new();
        for field in &self.fields {
            let given = given.get(&field.name).filter(|value| !value.is_null() || field.takes_null());
            match given.or(field.default.as_ref()) {
                Some(value) => {
                    if !is_unknown(value) {
                        field.fits(value).map_err(|why| format!("`{}` {why}", field.name))?;
                    }
                    filled.insert(field.name.clone(), value.clone());
                }
                None if field.is_required => return Err(format!("`{}` is missing", field.name)),
                None => {}
            }
        }
        Ok(filled)
    }

    /// The answer whose fields were typed as texts.
    ///
    /// # Errors
    /// As [`Form::check`], and if a text cannot be read.
    pub fn read<'a>(
        &self,
        typed: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Map<String, Value>, String> {
        let mut given = Map::new();
        for (name, text) in typed {
            // An unknown field is found by the check.
            let value = match self.fields.iter().find(|field| field.name == name) {
                Some(field) => field.read(text).map_err(|why| format!("`{name}` {why}"))?,
                None => Some(Value::from(text)),
            };
            given.extend(value.map(|value| (name.to_owned(), value)));
        }
        self.check(&Value::Object(given))
    }
}

impl FormField {
    fn of(name: &str, schema: &Value, is_required: bool) -> Result<Self, InputProblem> {
        let pointer = format!("/properties/{}", name.replace('~', "~0").replace('/', "~1"));
        let wrong = |at: &str, message: String| Err(InputProblem::new(format!("{pointer}{at}"), message));
        let Some(schema) = schema.as_object() else {
            return wrong("", format!("the field `{name}` must be a mapping"));
        };
        known_keys(schema, &FIELD_KEYS, &pointer)?;
        let text = |key: &str| schema.get(key).and_then(Value::as_str).map(str::to_owned);
        let kind = match (schema.get("enum"), schema.get("type").and_then(Value::as_str)) {
            (Some(Value::Array(values)), _) if (1..=MOST).contains(&values.len()) => {
                FieldKind::OneOf(values.clone())
            }
            (Some(_), _) => return wrong("/enum", format!("`enum` must list 1 to {MOST} values")),
            (None, Some("string")) => FieldKind::Text {
                min: schema.get("minLength").and_then(Value::as_u64),
                max: schema.get("maxLength").and_then(Value::as_u64),
            },
            (None, Some(kind @ ("number" | "integer"))) => FieldKind::Number {
                min: schema.get("minimum").and_then(Value::as_f64),
                max: schema.get("maximum").and_then(Value::as_f64),
                is_integer: kind == "integer",
            },
            (None, Some("boolean")) => FieldKind::Boolean,
            (None, _) if !schema.contains_key("type") => {
                let message = format!(
                    "the field `{name}` needs a `type`: `string`, `number`, `integer` or `boolean`; or an `enum`"
                );
                // There is no `type` to point at.
                return wrong("", message);
            }
            (None, _) => {
                let message = format!(
                    "the `type` of the field `{name}` is `string`, `number`, `integer` or `boolean`, or it has an `enum`"
                );
                return wrong("/type", message);
            }
        };
        let (title, description) = (text("title"), text("description"));
        let mut field = Self { name: name.to_owned(), title, description, kind, is_required, default: None };
        field.default = schema.get("default").filter(|value| !value.is_null() || field.takes_null()).cloned();
        match field.default.as_ref().and_then(|default| field.fits(default).err()) {
            Some(why) => wrong("/default", format!("the default of `{name}` {why}")),
            None => Ok(field),
        }
    }

    /// Whether null is one of its values. In every other field it is not a value.
    fn takes_null(&self) -> bool {
        matches!(&self.kind, FieldKind::OneOf(values) if values.contains(&Value::Null))
    }

    /// Whether a value fits; why not, as words that follow its name.
    fn fits(&self, value: &Value) -> Result<(), String> {
        match (&self.kind, value) {
            (FieldKind::OneOf(values), value) if values.contains(value) => Ok(()),
            (FieldKind::OneOf(values), _) => {
                Err(format!("must be one of {}", values.iter().map(plain).collect::<Vec<_>>().join(", ")))
            }
            (FieldKind::Boolean, Value::Bool(_)) => Ok(()),
            (FieldKind::Boolean, _) => Err("must be true or false".to_owned()),
            (FieldKind::Text { min, max }, Value::String(text)) => {
                let length = text.chars().count() as u64;
                match (min.filter(|min| length < *min), max.filter(|max| length > *max)) {
                    (Some(min), _) => Err(format!("must have at least {min} characters")),
                    (None, Some(max)) => Err(format!("must have at most {max} characters")),
                    (None, None) => Ok(()),
                }
            }
            (FieldKind::Text { .. }, _) => Err("must be a text".to_owned()),
            (FieldKind::Number { min, max, is_integer }, Value::Number(number)) => {
                let number = number.as_f64().unwrap_or(f64::NAN);
                match (min.filter(|min| number < *min), max.filter(|max| number > *max)) {
                    _ if *is_integer && number.fract() != 0.0 => Err("must be an integer".to_owned()),
                    (Some(min), _) => Err(format!("must be at least {min}")),
                    (None, Some(max)) => Err(format!("must be at most {max}")),
                    (None, None) => Ok(()),
                }
            }
            (FieldKind::Number { is_integer: true, .. }, _) => Err("must be an integer".to_owned()),
            (FieldKind::Number { .. }, _) => Err("must be a number".to_owned()),
        }
    }

    /// What a text means as the value of the field; an empty one is its default, or no value.
    ///
    /// # Errors
    /// It means none that fits; the words follow the name of the field.
    pub fn read(&self, text: &str) -> Result<Option<Value>, String> {
        let text = text.trim();
        if text.is_empty() {
            return match &self.default {
                Some(default) => Ok(Some(default.clone())),
                None if self.is_required => Err("needs an answer".to_owned()),
                None => Ok(None),
            };
        }
        let value = match &self.kind {
            FieldKind::Text { .. } => Value::from(text),
            FieldKind::Boolean => yes_or_no(text).map(Value::Bool).ok_or("must be yes or no")?,
            FieldKind::Number { .. } if oversized_number(text).is_some() => {
                return Err("does not fit into 64 bits, and would lose digits".to_owned());
            }
            FieldKind::Number { .. } => {
                text.parse::<Number>().map_or_else(|_| Value::from(text), Value::Number)
            }
            FieldKind::OneOf(values) => {
                let spelled = values.iter().find(|value| plain(value) == text);
                spelled.cloned().unwrap_or_else(|| Value::from(text))
            }
        };
        self.fits(&value).map(|()| Some(value))
    }
}

/// What a person means who answers a question for true or false: `yes`, `y`, `true`, `no`, `n` or `false`, in any letters;
/// none if it is something else.
pub fn yes_or_no(text: &str) -> Option<bool> {
    match text.trim().to_lowercase().as_str() {
        "true" | "yes" | "y" => Some(true),
        "false" | "no" | "n" => Some(false),
        _ => None,
    }
}

/// A value as a person writes it.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn known_keys(schema: &Map<String, Value>, known: &[&str], pointer: &str) -> Result<(), InputProblem> {
    match schema.keys().find(|key| !known.contains(&key.as_str())) {
        Some(key) => {
            let message = format!("a form cannot have `{key}`; it can have {}", known.join(", "));
            Err(InputProblem::new(format!("{pointer}/{key}"), message))
        }
        None => Ok(()),
    }
}

fn required(schema: &Map<String, Value>) -> Result<Vec<&str>, InputProblem> {
    let Some(required) = schema.get("required") else { return Ok(Vec::new()) };
    let names = required.as_array().map(|names| names.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
    names.flatten().ok_or_else(|| InputProblem::new("/required", "`required` must be a list of fields"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn form() -> Form {
        Form::of(&json!({
            "type": "object",
            "required": ["title", "count"],
            "properties": {
                "count": { "type": "integer", "minimum": 1, "maximum": 9 },
                "draft": { "type": "boolean", "default": true },
                "level": { "enum": ["low", "high", 3], "title": "Level" },
                "price": { "type": "number" },
                "title": { "type": "string", "minLength": 2, "maxLength": 5 },
            },
        }))
        .unwrap()
    }

    #[test]
    fn an_answer_is_checked_and_filled_with_defaults() {
        let checked = |answer: Value| form().check(&answer).map(Value::Object);
        let whole = json!({ "title": "ox", "count": 2, "draft": true });
        assert_eq!(checked(json!({ "title": "ox", "count": 2, "price": null })), Ok(whole));
        let rows = [
            (json!({ "count": 2 }), "`title` is missing"),
            (json!({ "title": "o", "count": 2 }), "`title` must have at least 2 characters"),
            (json!({ "title": "oxenoxen", "count": 2 }), "`title` must have at most 5 characters"),
            (json!({ "title": 1, "count": 2 }), "`title` must be a text"),
            (json!({ "title": "ox", "count": 0 }), "`count` must be at least 1"),
            (json!({ "title": "ox", "count": 10 }), "`count` must be at most 9"),
            (json!({ "title": "ox", "count": 1.5 }), "`count` must be an integer"),
            (json!({ "title": "ox", "count": 1, "price": "x" }), "`price` must be a number"),
            (json!({ "title": "ox", "count": 1, "draft": "yes" }), "`draft` must be true or false"),
            (json!({ "title": "ox", "count": 1, "level": "mid" }), "`level` must be one of low, high, 3"),
            (
                json!({ "titel": "ox" }),
                "there is no field `titel`; the fields are title, count, draft, level, price",
            ),
            (json!("ox"), "the answer must be a JSON mapping of the fields"),
        ];
        for (answer, why) in rows {
            assert_eq!(checked(answer), Err(why.to_owned()));
        }
    }

    #[test]
    fn typed_texts_become_values() {
        let typed = [("title", " ox "), ("count", "3"), ("draft", "no"), ("level", "high"), ("price", "1.5")];
        let read = form().read(typed).map(Value::Object);
        let whole = json!({ "title": "ox", "count": 3, "draft": false, "level": "high", "price": 1.5 });
        assert_eq!(read, Ok(whole));
        let form = form();
        let [title, _, _, level, _] = form.fields() else { panic!("five fields") };
        assert_eq!(
            ["3", "low", "", "mid"].map(|text| level.read(text)),
            [
                Ok(Some(json!(3))),
                Ok(Some(json!("low"))),
                Ok(None),
                Err("must be one of low, high, 3".to_owned()),
            ]
        );
        // A script that writes a number means the value, and sees no list with positions.
        assert_eq!(level.read("1"), Err("must be one of low, high, 3".to_owned()));
        assert_eq!(title.read(" "), Err("needs an answer".to_owned()));
        assert_eq!(form.read([("count", "x")]), Err("`count` must be an integer".to_owned()));
        assert_eq!(form.read([("draft", "maybe")]), Err("`draft` must be yes or no".to_owned()));
        let long = form.read([("price", "18446744073709551616")]);
        assert_eq!(long, Err("`price` does not fit into 64 bits, and would lose digits".to_owned()));
    }

    #[test]
    fn null_is_an_answer_where_it_is_one_of_the_values() {
        let form = |field: Value| {
            Form::of(&json!({ "required": ["level"], "properties": { "level": field } })).unwrap()
        };
        let read = |form: &Form, text: &str| form.read([("level", text)]).map(Value::Object);
        let plain = form(json!({ "enum": ["low", null] }));
        assert_eq!(read(&plain, "null"), Ok(json!({ "level": null })));
        assert_eq!(plain.check(&json!({})), Err("`level` is missing".to_owned()));
        let with_default = form(json!({ "enum": ["low", null], "default": null }));
        assert_eq!(read(&with_default, ""), Ok(json!({ "level": null })));
        let filled = form(json!({ "enum": ["low", null], "default": "low" }));
        assert_eq!(read(&filled, "null"), Ok(json!({ "level": null })));
    }

    #[test]
    fn what_is_no_form_is_refused_with_its_place() {
        let field = |schema: Value| json!({ "properties": { "a": schema } });
        let rows = [
            (json!(true), ""),
            (json!({ "type": "array" }), "/type"),
            (json!({ "type": "object" }), "/properties"),
            (json!({ "properties": { "a": { "type": "string" } }, "required": ["b"] }), "/required"),
            (json!({ "properties": { "a": { "type": "string" } }, "required": "a" }), "/required"),
            (json!({ "properties": { "a": { "type": "string" } }, "oneOf": [] }), "/oneOf"),
            (field(json!({ "type": "array" })), "/properties/a/type"),
            (field(json!({ "type": "string", "pattern": "^a" })), "/properties/a/pattern"),
            (field(json!({ "enum": [] })), "/properties/a/enum"),
            (field(json!({ "type": "integer", "default": "1" })), "/properties/a/default"),
        ];
        for (schema, pointer) in rows {
            assert_eq!(
                Form::of(&schema).map_err(|problem| problem.pointer),
                Err(pointer.to_owned()),
                "{schema}"
            );
        }
    }
}
