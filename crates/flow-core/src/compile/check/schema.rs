//! The input of a node against the schema of its type. What is bound to a template is checked when the node runs.

use inspan_protocol::{InputProblem, NodeId};
use jsonschema::{
    ValidationError,
    error::{TypeKind, ValidationErrorKind as Kind},
};
use serde_json::Value;

use crate::{
    catalog::{CompiledSchema, DURATION},
    diagnostic::{Code, Problem, Sink, SourceSpan, did_you_mean},
    spec::{Yaml, either, pointer_parts, without_unit},
};

/// The input of one node, or that which a node gives to a flow, to be checked.
pub(in crate::compile) struct SchemaCheck<'v> {
    pub(in crate::compile) input: &'v Yaml,
    pub(in crate::compile) json: &'v Value,
    /// The JSON pointers of the values that are not known yet.
    pub(in crate::compile) bound: &'v [String],
    pub(in crate::compile) schema: &'v CompiledSchema,
    /// What takes the input, in words.
    pub(in crate::compile) owner: &'v str,
    pub(in crate::compile) id: Option<&'v NodeId>,
    /// The place of the input in the file: `nodes[2].input`.
    pub(in crate::compile) root: String,
}

impl SchemaCheck<'_> {
    /// Reports what does not match.
    pub(in crate::compile) fn check(&self, sink: &mut Sink) {
        let Some(validator) = self.schema.validator() else { return };
        for error in validator.errors(self.json) {
            self.report(&error, sink);
        }
    }

    /// Reports what the node type found, except where the value is not known yet.
    pub(super) fn report_all(&self, problems: Vec<InputProblem>, sink: &mut Sink) {
        for InputProblem { pointer, message } in problems {
            if self.bound.iter().any(|bound| within(&pointer, bound)) {
                continue;
            }
            let code = if pointer.is_empty() { Code::MissingKey } else { Code::InvalidInput };
            self.push(Problem::error(code, self.span(&pointer), message), self.key(&pointer), sink);
        }
    }

    fn report(&self, error: &ValidationError<'_>, sink: &mut Sink) {
        let path = error.instance_path().as_str();
        if self.bound.iter().any(|bound| within(path, bound)) {
            return;
        }
        let holds_bound = self.bound.iter().any(|bound| within(bound, path));
        let key = self.key(path);
        let last = key.rsplit('.').next().unwrap_or(&key);
        match error.kind() {
            Kind::AdditionalProperties { unexpected } | Kind::UnevaluatedProperties { unexpected } => {
                for name in unexpected {
                    self.unknown(name, path, error, sink);
                }
            }
            Kind::Required { property } => {
                let name = property.as_str().unwrap_or_default();
                let message = if path.is_empty() {
                    format!("{} requires `{name}` in its input", self.owner)
                } else {
                    format!("`{last}` requires `{name}`")
                };
                let help = self.schema_of(error)["properties"][name]["description"]
                    .as_str()
                    .and_then(|text| text.lines().next())
                    // A short one says no more than the name.
                    .filter(|text| text.split(' ').count() > 3)
                    .map(|text| format!("`{name}`: {text}"));
                let span = self.span(path);
                let problem =
                    Problem::error(Code::MissingKey, SourceSpan { end: span.start, ..span }, message)
                        .help(help);
                self.push(problem, format!("{key}.{name}"), sink);
            }
            Kind::Type { kind } => {
                if let Value::Number(number) = error.instance().as_ref()
                    && self.schema_of(error)[DURATION] == true
                {
                    let message = format!("`{last}` must be a duration");
                    let problem = Problem::error(Code::WrongType, self.span(path), message);
                    self.push(problem.help(without_unit(number)), key, sink);
                    return;
                }
                let message = format!("`{last}` must be {}, found {}", types(kind), self.kind(path));
                let words = error.instance().as_str().filter(|text| !text.contains('{'));
                let words: Vec<&str> = words.into_iter().flat_map(str::split_whitespace).collect();
                let help = (types(kind) == "a list" && !words.is_empty())
                    .then(|| format!("write a list: `[{}]`", words.join(", ")));
                let help = error.instance().as_str().and_then(as_template).or(help);
                self.push(Problem::error(Code::WrongType, self.span(path), message).help(help), key, sink);
            }
            Kind::AnyOf { context } | Kind::OneOfNotValid { context } if !holds_bound => {
                self.branches(context, path, key, sink);
            }
            Kind::Enum { options } if !holds_bound => {
                let options = options.as_array().into_iter().flatten();
                // `null` is not a useful suggestion.
                let words: Vec<String> = options.filter(|option| !option.is_null()).map(spell).collect();
                let problem = self.no_such_word(path, &spell(error.instance()), &words, last);
                self.push(problem, key, sink);
            }
            Kind::Pattern { .. } if !holds_bound => {
                let described = self.schema_of(error)["description"].as_str();
                let message = format!("`{}` is not a valid `{last}`", spell(error.instance()));
                let problem = Problem::error(Code::InvalidValue, self.span(path), message);
                self.push(problem.help(described.map(str::to_owned)), key, sink);
            }
            _ if holds_bound => {}
            _ => {
                let message = format!("`{last}`: {}", error.masked_with("the value"));
                self.push(Problem::error(Code::InvalidInput, self.span(path), message), key, sink);
            }
        }
    }

    /// That a value is none of the words that may be there.
    fn no_such_word(&self, path: &str, written: &str, words: &[String], last: &str) -> Problem {
        let help = did_you_mean(written, words.iter().map(String::as_str))
            .unwrap_or_else(|| format!("expected {}", either(words)));
        let message = format!("invalid value `{written}` for `{last}`");
        Problem::error(Code::InvalidValue, self.span(path), message).help(help)
    }

    /// No alternative matches. If only one has the right type, its errors are reported.
    fn branches(&self, context: &[Vec<ValidationError<'static>>], path: &str, key: String, sink: &mut Sink) {
        let meant: Vec<_> = context
            .iter()
            .filter(|errors| {
                !errors.iter().any(|error| {
                    error.instance_path().as_str() == path
                        && matches!(error.kind(), Kind::Type { .. } | Kind::Constant { .. })
                })
            })
            .collect();
        if let [one] = meant.as_slice() {
            for error in *one {
                self.report(error, sink);
            }
            return;
        }
        let last = key.rsplit('.').next().unwrap_or(&key).to_owned();
        if let (Some(words), Some(written)) = (constants(context), self.input.at(path).and_then(Yaml::text)) {
            self.push(self.no_such_word(path, written, &words, &last), key, sink);
            return;
        }
        let of_type = |error: &ValidationError<'_>| {
            error.instance_path().as_str() == path && matches!(error.kind(), Kind::Type { .. })
        };
        let only_types = context.iter().all(|errors| errors.iter().all(of_type));
        let mut needs: Vec<String> = Vec::new();
        for error in context.iter().filter_map(|errors| errors.first()) {
            let need = match error.kind() {
                Kind::Required { property } => format!("`{}`", property.as_str().unwrap_or_default()),
                Kind::Type { kind } => types(kind),
                Kind::Constant { expected_value } => format!("`{}`", spell(expected_value)),
                _ => error.masked_with("the value").to_string(),
            };
            // `null` is not a useful suggestion.
            if !(need.is_empty() || need == "null" || needs.contains(&need)) {
                needs.push(need);
            }
        }
        let all_required = context
            .iter()
            .all(|errors| errors.iter().all(|error| matches!(error.kind(), Kind::Required { .. })));
        let (code, verb) =
            if all_required { (Code::MissingKey, "requires") } else { (Code::InvalidInput, "must be") };
        let whose = if path.is_empty() { self.owner.to_owned() } else { format!("`{last}`") };
        let code = if only_types { Code::WrongType } else { code };
        let tail = if only_types { format!(", found {}", self.kind(path)) } else { String::new() };
        let message = format!("{whose} {verb} {}{tail}", either(&needs));
        let written = self.input.at(path).and_then(Yaml::text).filter(|_| only_types);
        let help = written.and_then(as_template);
        self.push(Problem::error(code, self.span(path), message).help(help), key, sink);
    }

    fn unknown(&self, name: &str, path: &str, error: &ValidationError<'_>, sink: &mut Sink) {
        let owner = self.input.at(path);
        let span = owner.and_then(|owner| owner.entry(name)).map_or(self.span(path), |entry| entry.key_span);
        let keys = &self.schema_of(error)["properties"];
        let known: Vec<&str> =
            keys.as_object().into_iter().flat_map(|map| map.keys().map(String::as_str)).collect();
        let holder = known.iter().find(|key| !keys[**key]["properties"][name].is_null());
        // Without the node that the message names.
        let without = self.root.rfind('.').map_or(0, |dot| dot + 1);
        let help = holder
            .map(|holder| format!("`{name}` belongs under `{}.{holder}`", &self.key(path)[without..]))
            .or_else(|| did_you_mean(name, known.iter().copied()))
            .or_else(|| (!known.is_empty()).then(|| format!("valid keys: {}", known.join(", "))));
        let message = format!("unknown option `{name}` for {}", self.owner);
        let key = format!("{}.{name}", self.key(path));
        self.push(Problem::error(Code::UnknownKey, span, message).help(help), key, sink);
    }

    /// The part of the schema whose keyword does not hold.
    fn schema_of(&self, error: &ValidationError<'_>) -> &Value {
        let path = error.schema_path().as_str();
        let owner = path.rsplit_once('/').map_or("", |(owner, _)| owner);
        self.schema.json.pointer(owner).unwrap_or(&Value::Null)
    }

    fn push(&self, problem: Problem, key: String, sink: &mut Sink) {
        sink.push_of_input(problem.node(self.id).key(key));
    }

    fn span(&self, path: &str) -> SourceSpan {
        self.input.span_at(path)
    }

    fn kind(&self, path: &str) -> &'static str {
        self.input.at(path).map_or("null", Yaml::kind)
    }

    /// `nodes[2].input.options.model` for `/options/model`.
    fn key(&self, path: &str) -> String {
        let mut key = self.root.clone();
        for segment in pointer_parts(path) {
            if segment.bytes().all(|b| b.is_ascii_digit()) {
                key.push_str(&format!("[{segment}]"));
            } else {
                key.push('.');
                key.push_str(&segment);
            }
        }
        key
    }
}

/// The texts that alternatives allow, if each allows one or is for null.
fn constants(context: &[Vec<ValidationError<'static>>]) -> Option<Vec<String>> {
    let mut words = Vec::new();
    for errors in context {
        match errors.first()?.kind() {
            Kind::Constant { expected_value } => words.push(expected_value.as_str()?.to_owned()),
            Kind::Enum { options } => {
                let options = options.as_array()?.iter().filter(|option| !option.is_null());
                words.extend(
                    options.map(|option| option.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>()?,
                );
            }
            Kind::OneOfNotValid { context } | Kind::AnyOf { context } => words.extend(constants(context)?),
            Kind::Type { kind } if types(kind) == "null" => {}
            _ => return None,
        }
    }
    (!words.is_empty()).then_some(words)
}

/// Whether a JSON pointer is at or below another.
pub(super) fn within(path: &str, above: &str) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The kinds of values that a schema takes, in words.
pub(super) fn types(kind: &TypeKind) -> String {
    let names: Vec<&str> = match kind {
        TypeKind::Single(one) => vec![words(&one.to_string())],
        TypeKind::Multiple(set) => {
            set.iter().map(|one| words(&one.to_string())).filter(|w| *w != "null").collect()
        }
    };
    names.join(" or ")
}

fn words(json_type: &str) -> &'static str {
    match json_type {
        "string" => "a string",
        "integer" => "an integer",
        "number" => "a number",
        "boolean" => "true or false",
        "array" => "a list",
        "object" => "a mapping",
        _ => "null",
    }
}

/// How the value is inserted that a text seems to name, such as `flow.input.files`. `files.txt` is more often a file than
/// the output of a node.
fn as_template(text: &str) -> Option<String> {
    let is_name = |part: &str| {
        part.starts_with(|c: char| c == '_' || c.is_ascii_alphabetic())
            && part.chars().all(|c| c == '_' || c.is_ascii_alphanumeric())
    };
    text.strip_prefix("flow.")?
        .split('.')
        .all(is_name)
        .then(|| format!("to insert a value, write `\"{{{{ {text} }}}}\"`"))
}

fn spell(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
