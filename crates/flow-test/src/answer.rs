//! What a test file answers for a node: for an agent, for a program, for any other node that reaches outside, and
//! errors in place of an answer.

use std::{borrow::Cow, collections::BTreeMap, time::Duration};

use inspan_flow::{closest, parse_time};
use inspan_protocol::{AgentError, ErrorCode, ErrorKind, StopReason, Timestamp, Usage, plain_words};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, de};
use serde_json::{Map, Value, json};

/// A length of time such as `10m`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Period(pub(crate) Duration);

impl<'de> Deserialize<'de> for Period {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_time(&text).map(Self).map_err(|why| de::Error::custom(format_args!("`{text}`: {why}")))
    }
}

impl JsonSchema for Period {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "pattern": "^\\s*([0-9]+\\s*[A-Za-z]+\\s*)+$",
            "examples": ["500ms", "30s", "5m", "1h30m"],
        })
    }
}

/// What sort of node is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerKind {
    /// An agent, whatever its provider.
    Agent,
    /// A program of `exec`.
    Exec,
    /// A request of `http.request`.
    Http,
    /// A tool of `mcp.call`.
    Mcp,
    /// Any other node that reaches outside: its output is given.
    Output,
}

impl AnswerKind {
    /// What sort of node a type is that runs, apart from agents.
    pub(crate) fn of_type(name: &str) -> Self {
        match name {
            "exec" => Self::Exec,
            "http.request" => Self::Http,
            "mcp.call" => Self::Mcp,
            _ => Self::Output,
        }
    }
}

/// What one attempt of a node gets.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum AttemptAnswer {
    /// The turns of an agent, in their order.
    Turns(Vec<AnsweredTurn>),
    /// The result of a program, a request or a tool, in the form in which it is recorded, and how long it takes.
    Call(Value, Period),
    /// The output.
    Output(Value),
    /// It fails.
    Error(ErrorAnswer),
}

/// One call of an agent's provider.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum AnsweredTurn {
    Answer(Box<AgentAnswer>),
    Error(ErrorAnswer),
}

/// What an agent answers in one turn.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct AgentAnswer {
    /// The text of the answer.
    pub(crate) text: Option<String>,
    /// The answer in the schema that the node asks for.
    pub(crate) structured_output: Option<Value>,
    /// The agent's conversation.
    pub(crate) session_id: Option<String>,
    /// The model that answers.
    pub(crate) model: Option<String>,
    /// Tokens of the turn.
    #[serde(deserialize_with = "usage")]
    pub(crate) usage: Option<Usage>,
    /// What the turn costs in US dollars.
    #[serde(deserialize_with = "price")]
    pub(crate) cost_usd: Option<f64>,
    /// Why the turn ends; `complete` if absent.
    pub(crate) stop_reason: Option<StopReason>,
    /// How many model turns it takes; 1 if absent.
    pub(crate) num_turns: Option<u32>,
    /// The tools that the agent calls before it answers.
    pub(crate) tools: Vec<ToolAnswer>,
    /// How long it takes, in the time of the test.
    pub(crate) takes: Period,
    /// More fields of the provider's output.
    pub(crate) output: Map<String, Value>,
}

/// The protocol accepts keys that it does not know; in a test file they are mistakes.
fn usage<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Usage>, D::Error> {
    let Some(written) = Option::<Value>::deserialize(deserializer)? else { return Ok(None) };
    let known = json!(Usage::default());
    let known: Vec<&str> = known.as_object().into_iter().flatten().map(|(key, _)| key.as_str()).collect();
    let wrong = |key: &&String| !known.contains(&key.as_str());
    if let Some(key) = written.as_object().and_then(|keys| keys.keys().find(wrong)) {
        return Err(de::Error::custom(unknown("unknown key of `usage`", key, &known)));
    }
    serde_json::from_value(written).map(Some).map_err(de::Error::custom)
}

fn price<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    match Option::<f64>::deserialize(deserializer)? {
        Some(usd) if usd < 0.0 => Err(de::Error::custom("`costUsd` cannot be negative")),
        usd => Ok(usd),
    }
}

/// A tool that an agent calls.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ToolAnswer {
    /// Its name.
    pub(crate) name: String,
    /// The arguments.
    #[serde(default)]
    pub(crate) input: Value,
    /// What it answers.
    #[serde(default)]
    pub(crate) result: Value,
    /// Whether it fails.
    #[serde(default)]
    pub(crate) is_error: bool,
    /// Whether the agent asks for permission first. The case's `replies` answer for the node with `allow`, `always` or
    /// `deny`; without one it is denied.
    #[serde(default)]
    pub(crate) ask: bool,
    /// Whether a fault of the case denies it.
    #[serde(skip)]
    pub(crate) denied: bool,
}

/// What a program does.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct ExecAnswer {
    /// What it prints.
    stdout: String,
    /// What it prints as errors.
    stderr: String,
    /// Its exit code; 0 if absent.
    exit_code: i32,
    /// The signal that ends it, instead of an exit code.
    signal: Option<String>,
    /// How long it takes, in the time of the test.
    pub(crate) takes: Period,
}

/// What a server responds.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct HttpAnswer {
    /// The status code; 200 if absent.
    status: Option<u16>,
    /// The headers, by their names in small letters.
    headers: BTreeMap<String, String>,
    /// The body as text.
    pub(crate) text: Option<String>,
    /// The body as JSON; the server then says that it is.
    json: Option<Value>,
    /// How long it takes, in the time of the test.
    pub(crate) takes: Period,
}

/// What a tool of an MCP server gives.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct McpAnswer {
    /// A text.
    pub(crate) text: Option<String>,
    /// Blocks of the Model Context Protocol, instead of a text.
    content: Option<Vec<Value>>,
    /// The same as a value.
    structured_content: Option<Value>,
    /// Whether the tool says that it failed.
    pub(crate) is_error: bool,
    /// How long it takes, in the time of the test.
    pub(crate) takes: Period,
}

impl ExecAnswer {
    fn recorded(self) -> AttemptAnswer {
        let mut end = json!({ "stdout": self.stdout, "stderr": self.stderr });
        match self.signal {
            Some(signal) => end["signal"] = json!(signal),
            None => end["exitCode"] = json!(self.exit_code),
        }
        AttemptAnswer::Call(end, self.takes)
    }
}

impl HttpAnswer {
    fn recorded(self) -> Result<AttemptAnswer, String> {
        let mut headers = self.headers;
        let text = match (self.text, self.json) {
            (Some(_), Some(_)) => return Err("a response has `text` or `json`, not both".to_owned()),
            (None, Some(json)) => {
                headers.entry("content-type".to_owned()).or_insert_with(|| "application/json".to_owned());
                json.to_string()
            }
            (text, None) => text.unwrap_or_default(),
        };
        let status = self.status.unwrap_or(200);
        Ok(AttemptAnswer::Call(json!({ "status": status, "headers": headers, "text": text }), self.takes))
    }
}

impl McpAnswer {
    fn recorded(self) -> Result<AttemptAnswer, String> {
        let content = match (self.text, self.content) {
            (Some(_), Some(_)) => return Err("a tool gives `text` or `content`, not both".to_owned()),
            (Some(text), None) => vec![json!({ "type": "text", "text": text })],
            (None, content) => content.unwrap_or_default(),
        };
        let mut called = json!({ "content": content, "isError": self.is_error });
        if let Some(structured) = self.structured_content {
            called["structuredContent"] = structured;
        }
        Ok(AttemptAnswer::Call(called, self.takes))
    }
}

/// An error instead of an answer.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ErrorAnswer {
    /// What goes wrong: `limit` (a usage limit, with `resetsIn` or `resetsAt`), `timeout`, `denied`, `overloaded`,
    /// `network`, `auth`, `process`, or any other error code such as `CONTEXT_LENGTH`.
    pub(crate) error: String,
    /// The message; there is one for each error.
    #[serde(default)]
    pub(crate) message: Option<String>,
    /// Which of the faults that share the code this is.
    #[serde(default)]
    pub(crate) kind: Option<String>,
    /// When a usage limit is lifted, counted from the error.
    #[serde(default)]
    pub(crate) resets_in: Option<Period>,
    /// When a usage limit is lifted.
    #[serde(default)]
    pub(crate) resets_at: Option<Timestamp>,
    /// How long the vendor asks to wait.
    #[serde(default)]
    pub(crate) retry_after: Option<Period>,
    /// How long it takes until the error, in the time of the test.
    #[serde(default)]
    pub(crate) takes: Period,
    /// More data for programs.
    #[serde(default)]
    pub(crate) detail: Option<Value>,
}

/// Words for the most usual errors, beside the codes.
const WORDS: &[(&str, ErrorCode)] = &[
    ("limit", ErrorCode::RateLimited),
    ("denied", ErrorCode::ToolDenied),
    ("died", ErrorCode::Process),
    ("output", ErrorCode::OutputInvalid),
];

impl ErrorAnswer {
    /// The code that the word means.
    pub(crate) fn code(&self) -> Result<ErrorCode, String> {
        let plain = |text: &str| text.replace(['_', '-'], "").to_lowercase();
        let wanted = plain(&self.error);
        let word = WORDS.iter().find(|(word, _)| *word == wanted).map(|(_, code)| *code);
        let code = || ErrorCode::ALL.iter().copied().find(|code| plain(code.as_str()) == wanted);
        word.or_else(code).ok_or_else(|| {
            let names = WORDS.iter().map(|(word, _)| *word).chain(ErrorCode::ALL.iter().map(|code| code.as_str()));
            let hint = closest(&self.error, names).map_or_else(
                || "use `limit`, `timeout`, `denied`, `overloaded`, `network`, `auth`, `process` or an error code".into(),
                |name| format!("did you mean `{name}`?"),
            );
            format!("`{}` is not an error: {hint}", self.error)
        })
    }

    /// What the agent or the program fails with.
    pub(crate) fn error(&self, now: Timestamp) -> Result<AgentError, String> {
        let code = self.code()?;
        let is_limit = self.error == "limit";
        let message = self.message.clone().unwrap_or_else(|| match code {
            _ if is_limit => "the usage limit of the account is reached".to_owned(),
            ErrorCode::Timeout => "no answer in time".to_owned(),
            ErrorCode::ToolDenied => "a tool that it needs was denied".to_owned(),
            ErrorCode::Process => "the program exited before it answered".to_owned(),
            code => format!("the test answers with {code}"),
        });
        let mut error = AgentError::new(code, message);
        if let Some(detail) = &self.detail {
            error = error.with_detail(detail.clone());
        }
        let kind = self.kind.as_deref().map(ErrorKind::from);
        if let Some(kind) = kind.or_else(|| is_limit.then_some(ErrorKind::UsageLimit)) {
            error = error.with_kind(kind);
        }
        error.resets_at = self.resets_at.or_else(|| self.resets_in.map(|wait| now + wait.0));
        error.retry_after = self.retry_after.map(|wait| wait.0);
        Ok(error)
    }
}

impl AttemptAnswer {
    /// Reads the answer of one attempt, or says what is wrong with it.
    pub(crate) fn parse(value: &Value, kind: AnswerKind) -> Result<Self, String> {
        if value.get("error").is_some_and(Value::is_string) {
            return error(value).map(Self::Error);
        }
        match (kind, value) {
            (AnswerKind::Output, value) => Ok(Self::Output(value.clone())),
            (AnswerKind::Agent, Value::Object(fields)) if fields.contains_key("turns") => {
                if let Some(other) = fields.keys().find(|key| *key != "turns") {
                    return Err(format!("`{other}` stands beside `turns`: put it into one of the turns"));
                }
                let turns = fields["turns"].as_array().filter(|turns| !turns.is_empty());
                let turns = turns.ok_or("`turns` is a list with an answer for each turn")?;
                turns.iter().map(turn).collect::<Result<_, _>>().map(Self::Turns)
            }
            (AnswerKind::Agent, value) => Ok(Self::Turns(vec![turn(value)?])),
            (AnswerKind::Exec, value) => {
                let of_text = |stdout| ExecAnswer { stdout, ..ExecAnswer::default() };
                let forms = "a program's answer is a text or a mapping such as `{ stdout: …, exitCode: 0 }`";
                text_or_mapping(value, of_text, forms).map(ExecAnswer::recorded)
            }
            (AnswerKind::Http, value) => {
                let of_text = |text| HttpAnswer { text: Some(text), ..HttpAnswer::default() };
                let forms = "a response is a text or a mapping such as `{ status: 200, json: … }`";
                text_or_mapping(value, of_text, forms)?.recorded()
            }
            (AnswerKind::Mcp, value) => {
                let of_text = |text| McpAnswer { text: Some(text), ..McpAnswer::default() };
                let forms = "a tool's answer is a text or a mapping such as `{ structuredContent: … }`";
                text_or_mapping(value, of_text, forms)?.recorded()
            }
        }
    }
}

fn turn(value: &Value) -> Result<AnsweredTurn, String> {
    if value.get("error").is_some_and(Value::is_string) {
        return error(value).map(AnsweredTurn::Error);
    }
    let of_text = |text| AgentAnswer { text: Some(text), ..AgentAnswer::default() };
    let forms =
        "an agent's answer is a text, or a mapping such as `{ structuredOutput: … }` or `{ error: … }`";
    text_or_mapping(value, of_text, forms).map(|answer| AnsweredTurn::Answer(Box::new(answer)))
}

/// Reads an answer that is a text alone or a mapping; `forms` says so where it is neither.
fn text_or_mapping<T: de::DeserializeOwned>(
    value: &Value,
    of_text: impl FnOnce(String) -> T,
    forms: &str,
) -> Result<T, String> {
    match value {
        Value::String(text) => Ok(of_text(text.clone())),
        Value::Object(_) => typed(value),
        _ => Err(forms.to_owned()),
    }
}

fn error(value: &Value) -> Result<ErrorAnswer, String> {
    let error: ErrorAnswer = typed(value)?;
    error.code()?;
    Ok(error)
}

fn typed<T: de::DeserializeOwned>(value: &Value) -> Result<T, String> {
    serde_json::from_value(value.clone()).map_err(|error| with_suggestion(&error.to_string()))
}

/// A message of serde's with the name that an unknown one may have meant.
pub(crate) fn with_suggestion(message: &str) -> String {
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    match quoted.split_first() {
        Some((wrong, known)) if message.starts_with("unknown field") => unknown("unknown key", wrong, known),
        Some((wrong, known)) if message.starts_with("unknown variant") => {
            unknown("unknown word", wrong, known)
        }
        _ => plain_words(message),
    }
}

/// That a name is unknown, and which one may have been meant.
pub(crate) fn unknown(what: &str, wrong: &str, known: &[&str]) -> String {
    match closest(wrong, known.iter().copied()) {
        Some(name) => format!("{what} `{wrong}`: did you mean `{name}`?"),
        None => format!("{what} `{wrong}`: valid are {}", known.join(", ")),
    }
}

/// The answers of a node: one for every attempt, or a list with one for each.
pub(crate) struct Answers;

impl JsonSchema for Answers {
    fn schema_name() -> Cow<'static, str> {
        "Answers".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let agent = generator.subschema_for::<AgentAnswer>();
        let exec = generator.subschema_for::<ExecAnswer>();
        let http = generator.subschema_for::<HttpAnswer>();
        let mcp = generator.subschema_for::<McpAnswer>();
        let error = generator.subschema_for::<ErrorAnswer>();
        let turns = json!({
            "type": "object",
            "properties": { "turns": { "type": "array", "minItems": 1, "items": { "anyOf": [
                { "type": "string" }, agent, error,
            ] } } },
            "required": ["turns"],
            "additionalProperties": false,
            "description": "An agent's answers in several turns: to messages, or after an output that did not fit.",
        });
        let one = json!([
            { "type": "string", "description": "The text of an agent's answer, or what a program prints." },
            agent, exec, http, mcp, error, turns,
            { "description": "The output of any other node." },
        ]);
        json_schema!({
            "description": "One answer for every attempt, or a list with one for each attempt.",
            "anyOf": [{ "anyOf": one.clone() }, { "type": "array", "items": { "anyOf": one } }],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_by_the_sort_of_their_node() {
        let text = |text: &str| AgentAnswer { text: Some(text.to_owned()), ..AgentAnswer::default() };
        let turns = AttemptAnswer::parse(
            &json!({ "turns": ["a", { "text": "b" }, { "error": "timeout" }] }),
            AnswerKind::Agent,
        );
        let timeout = ErrorAnswer { error: "timeout".to_owned(), ..ErrorAnswer::default() };
        let expected = [
            AnsweredTurn::Answer(Box::new(text("a"))),
            AnsweredTurn::Answer(Box::new(text("b"))),
            AnsweredTurn::Error(timeout),
        ];
        assert_eq!(turns, Ok(AttemptAnswer::Turns(expected.into())));
        let exec = AttemptAnswer::parse(&json!({ "stdout": "x", "exitCode": 3 }), AnswerKind::Exec);
        let expected = json!({ "stdout": "x", "stderr": "", "exitCode": 3 });
        assert_eq!(exec, Ok(AttemptAnswer::Call(expected, Period::default())));
        let http =
            AttemptAnswer::parse(&json!({ "status": 404, "json": [1], "takes": "1s" }), AnswerKind::Http);
        let expected =
            json!({ "status": 404, "headers": { "content-type": "application/json" }, "text": "[1]" });
        assert_eq!(http, Ok(AttemptAnswer::Call(expected, Period(Duration::from_secs(1)))));
        let mcp = AttemptAnswer::parse(&json!("found"), AnswerKind::Mcp);
        let expected = json!({ "content": [{ "type": "text", "text": "found" }], "isError": false });
        assert_eq!(mcp, Ok(AttemptAnswer::Call(expected, Period::default())));
        let output = json!({ "status": 200 });
        assert_eq!(AttemptAnswer::parse(&output, AnswerKind::Output), Ok(AttemptAnswer::Output(output)));
    }

    #[test]
    fn a_wrong_answer_says_what_is_wrong() {
        let rows = [
            (
                json!({ "structuredoutput": 1 }),
                AnswerKind::Agent,
                "unknown key `structuredoutput`: did you mean `structuredOutput`?",
            ),
            (json!({ "error": "limt" }), AnswerKind::Agent, "`limt` is not an error: did you mean `limit`?"),
            (
                json!({ "turns": ["a"], "text": "b" }),
                AnswerKind::Agent,
                "`text` stands beside `turns`: put it into one of the turns",
            ),
            (
                json!(1),
                AnswerKind::Agent,
                "an agent's answer is a text, or a mapping such as `{ structuredOutput: … }` or `{ error: … }`",
            ),
            (
                json!({ "usage": { "inputTokes": 1 } }),
                AnswerKind::Agent,
                "unknown key of `usage` `inputTokes`: did you mean `inputTokens`?",
            ),
            (json!({ "costUsd": -1 }), AnswerKind::Agent, "`costUsd` cannot be negative"),
            (
                json!(1),
                AnswerKind::Exec,
                "a program's answer is a text or a mapping such as `{ stdout: …, exitCode: 0 }`",
            ),
        ];
        for (value, kind, why) in rows {
            assert_eq!(AttemptAnswer::parse(&value, kind), Err(why.to_owned()));
        }
    }

    #[test]
    fn words_and_codes_become_errors() {
        let now = Timestamp::from_millis(1_000);
        let error = |value: Value| match AttemptAnswer::parse(&value, AnswerKind::Exec) {
            Ok(AttemptAnswer::Error(error)) => error.error(now).unwrap(),
            other => panic!("{other:?}"),
        };
        let limit = error(json!({ "error": "limit", "resetsIn": "2h" }));
        assert_eq!((limit.code, limit.kind()), (ErrorCode::RateLimited, Some(ErrorKind::UsageLimit)));
        assert_eq!(limit.resets_at, Some(Timestamp::from_millis(7_201_000)));
        let codes = ["timeout", "denied", "contextLength", "CONTEXT_LENGTH", "died"];
        let expected = [
            ErrorCode::Timeout,
            ErrorCode::ToolDenied,
            ErrorCode::ContextLength,
            ErrorCode::ContextLength,
            ErrorCode::Process,
        ];
        assert_eq!(codes.map(|word| error(json!({ "error": word })).code), expected);
    }
}
