//! Values of the command line: how each is written, and within which bounds.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use inspan_protocol::{
    BudgetLimits, BudgetRaise, DEEPEST, NodeId, NodePath, SessionId, is_too_deep, oversized_number,
};
use serde_json::Value;

/// The largest file of an input or a message, in bytes.
const LARGEST_FILE: u64 = 16 * 1024 * 1024;

/// `KEY=VALUE` or `KEY=@FILE`: one value of the flow's input.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct InputValue {
    pub(crate) key: String,
    pub(crate) value: Value,
    /// The value as it was written, or what is in the file.
    pub(crate) text: String,
    /// The file that it is in.
    pub(crate) file: Option<PathBuf>,
}

/// `NODE.KEY=VALUE`: one value of a node's input, the key reaching inwards by dots.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NodeSetting {
    pub(crate) node: NodePath,
    pub(crate) keys: Vec<String>,
    pub(crate) value: Value,
}

/// `TYPE` or `NODE=TYPE`: the provider of all agent nodes, or of one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NodeProvider {
    pub(crate) node: Option<NodePath>,
    pub(crate) provider: String,
}

/// `MODEL` or `NODE=MODEL`: the model of all agent nodes, or of one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NodeModel {
    pub(crate) node: Option<NodePath>,
    pub(crate) model: String,
}

/// `[NODE.]usd=N` or `[NODE.]tokens=N`: one limit of a budget, of the flow or of a node; `NODE/.usd=N` of each frame
/// that the node runs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BudgetChange {
    pub(crate) node: Option<NodePath>,
    /// Whether it is the budget of what the node runs, and not of the node.
    pub(crate) is_of_body: bool,
    pub(crate) limits: BudgetLimits,
}

impl NodeSetting {
    /// What is set, as it is written.
    pub(crate) fn name(&self) -> String {
        format!("{}.{}", self.node, self.keys.join("."))
    }
}

impl BudgetChange {
    /// The limit, as it is written.
    pub(crate) fn name(&self) -> String {
        let limit = if self.limits.usd.is_some() { "usd" } else { "tokens" };
        match &self.node {
            None => limit.to_owned(),
            Some(node) if self.is_of_body => format!("{node}/.{limit}"),
            Some(node) => format!("{node}.{limit}"),
        }
    }

    /// All of them as one.
    pub(crate) fn all(changes: &[Self]) -> BudgetRaise {
        let mut all = BudgetRaise::default();
        for Self { node, is_of_body, limits } in changes {
            let of_node = node.iter().map(|node| (node.clone(), *limits)).collect();
            let (nodes, bodies) =
                if *is_of_body { (BTreeMap::new(), of_node) } else { (of_node, BTreeMap::new()) };
            all.merge(&BudgetRaise { flow: node.is_none().then_some(*limits), nodes, bodies });
        }
        all
    }
}

impl FromStr for BudgetChange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (path, value) = pair(text, "usd=N")?;
        let (node, limit) = path.rsplit_once('.').map_or((None, path), |(node, limit)| (Some(node), limit));
        let body = node.and_then(|node| node.strip_suffix('/'));
        let (node, is_of_body) = (body.or(node).map(node_place).transpose()?, body.is_some());
        let limits = match limit {
            "usd" => {
                let usd = value.parse().ok().filter(|usd: &f64| usd.is_finite() && *usd > 0.0);
                let usd = usd.ok_or_else(|| format!("`{value}` is not an amount of US dollars above 0"))?;
                BudgetLimits { usd: Some(usd), tokens: None }
            }
            "tokens" => {
                let tokens = value.parse().ok().filter(|tokens| *tokens > 0);
                let tokens = tokens.ok_or_else(|| format!("`{value}` is not a number of tokens above 0"))?;
                BudgetLimits { usd: None, tokens: Some(tokens) }
            }
            other => {
                return Err(format!("a budget has no limit `{other}`; write `usd=5` or `tokens=2000000`"));
            }
        };
        Ok(Self { node, is_of_body, limits })
    }
}

impl FromStr for InputValue {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, text) = pair(text, "KEY=VALUE")?;
        let key = key.to_owned();
        match text.strip_prefix('@') {
            Some(file) if !file.starts_with('@') => {
                let text = text_of(Path::new(file)).map_err(|why| {
                    format!("file {file} {why}; a text that begins with `@` is written `{key}=@@...`")
                })?;
                let value = input_value(&key, &text).map_err(|why| format!("file {file}: {why}"))?;
                Ok(Self { key, value, text, file: Some(file.into()) })
            }
            literal => {
                let text = literal.unwrap_or(text).to_owned();
                Ok(Self { value: input_value(&key, &text)?, key, text, file: None })
            }
        }
    }
}

impl FromStr for NodeSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (path, value) = pair(text, "NODE.KEY=VALUE")?;
        let mut parts = path.split('.');
        let node = node_place(parts.next().unwrap_or_default())?;
        let keys: Vec<String> = parts.map(str::to_owned).collect();
        if keys.is_empty() || keys.iter().any(String::is_empty) {
            return Err(format!("`{path}` has no key; write `{node}.KEY=VALUE`"));
        }
        Ok(Self { node, keys, value: json_or_text(path, value)? })
    }
}

impl FromStr for NodeProvider {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (node, provider) = of_node(text)?;
        let provider = provider.strip_suffix(".agent").unwrap_or(provider);
        if provider.is_empty() {
            return Err(format!("`{text}` names no provider; write TYPE or NODE=TYPE"));
        }
        Ok(Self { node, provider: provider.to_owned() })
    }
}

impl FromStr for NodeModel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (node, model) = of_node(text)?;
        if model.is_empty() {
            return Err(format!("`{text}` names no model; write MODEL or NODE=MODEL"));
        }
        Ok(Self { node, model: model.to_owned() })
    }
}

/// `NODE=TEXT`, or a text for all nodes.
fn of_node(text: &str) -> Result<(Option<NodePath>, &str), String> {
    match text.split_once('=') {
        Some((node, text)) => Ok((Some(node_place(node)?), text)),
        None => Ok((None, text)),
    }
}

/// A node by its id, or by its path if it is in a body.
pub(super) fn node_place(text: &str) -> Result<NodePath, String> {
    match text.split('/').find_map(|part| NodeId::new(part).err()) {
        None => Ok(NodePath::new(text)),
        Some(error) if text.contains(['[', '#']) => Err(format!(
            "{error}; a node is named by its place in the file, without passes and items, for example `each/review`"
        )),
        Some(error) => Err(error.to_string()),
    }
}

/// `NODE=TEXT`: what one node's agent is told.
pub(super) fn node_message(text: &str) -> Result<(String, String), String> {
    pair(text, "NODE=TEXT").map(|(node, text)| (node.to_owned(), text.to_owned()))
}

/// The longest time that the command line takes.
const LONGEST: Duration = Duration::from_secs(3_650 * 86_400);

/// A length of time, as in `30d`.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let milliseconds = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        "w" => 7 * 86_400_000,
        _ => return Err("expected a time such as `90s`, `15m`, `12h`, `30d` or `4w`".to_owned()),
    };
    let number: u64 = number.parse().map_err(|_| format!("`{text}` does not start with a number"))?;
    let time = number.checked_mul(milliseconds).map(Duration::from_millis).filter(|time| *time <= LONGEST);
    time.ok_or_else(|| format!("`{text}` is longer than ten years (`3650d`)"))
}

/// A session's id.
pub(super) fn session_id(text: &str) -> Result<String, String> {
    SessionId::checked(text).map(|id| id.to_string()).map_err(|error| error.to_string())
}

/// A field of a form and its value.
pub(super) fn field(text: &str) -> Result<(String, String), String> {
    pair(text, "FIELD=VALUE").map(|(field, value)| (field.to_owned(), value.to_owned()))
}

/// Why a number is refused.
pub(crate) fn loses_digits(number: &str) -> String {
    format!("the number `{number}` does not fit into 64 bits, and would lose digits")
}

/// How a text that is JSON too is given as a text, for a shell.
pub(crate) fn as_string(key: &str, text: &str) -> String {
    format!("'{key}={}'", Value::from(text))
}

fn pair<'a>(text: &'a str, form: &str) -> Result<(&'a str, &'a str), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key, value)),
        _ => Err(format!("expected {form}")),
    }
}

/// The whole text of a file; `-` is stdin. A byte order mark, which some editors write, is no part of it. The error says
/// what is wrong with the file.
pub(crate) fn text_of(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let read = match path == Path::new("-") {
        true => io::stdin().take(LARGEST_FILE + 1).read_to_string(&mut text),
        false => File::open(path).and_then(|file| file.take(LARGEST_FILE + 1).read_to_string(&mut text)),
    };
    read.map_err(|error| format!("cannot be read: {error}"))?;
    if text.len() as u64 > LARGEST_FILE {
        return Err(format!("has more than {LARGEST_FILE} bytes"));
    }
    if text.starts_with('\u{feff}') {
        text.remove(0);
    }
    Ok(text)
}

/// As `json_or_text`, but a number with too many digits is taken: only the flow says whether it is meant as a text.
fn input_value(key: &str, text: &str) -> Result<Value, String> {
    json_or_text(key, text).or_else(|why| serde_json::from_str(text).map(Value::Number).map_err(|_| why))
}

/// An option of an agent, which no schema says more of.
pub(super) fn agent_option(text: &str) -> Result<InputValue, String> {
    let given: InputValue = text.parse()?;
    Ok(InputValue { value: json_or_text(&given.key, &given.text)?, ..given })
}

/// The text as JSON; one that is not JSON is itself the value.
fn json_or_text(key: &str, text: &str) -> Result<Value, String> {
    let Ok(value) = serde_json::from_str(text) else { return Ok(Value::from(text)) };
    if is_too_deep(&value) {
        return Err(format!("it is nested more than {DEEPEST} levels deep"));
    }
    match oversized_number(text) {
        None => Ok(value),
        Some((_, number)) if value.is_number() => {
            Err(format!("{}: write `{}`", loses_digits(number), as_string(key, number)))
        }
        Some((_, number)) => Err(format!("{}: write it in double quotes", loses_digits(number))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_input_is_read_from_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let at = |text: &str| {
            let file = folder.path().join("value");
            std::fs::write(&file, text).unwrap();
            format!("a=@{}", file.display()).parse::<InputValue>().map(|input| (input.value, input.text))
        };
        assert_eq!(at("an ox\n"), Ok((json!("an ox\n"), "an ox\n".to_owned())));
        assert_eq!(at("\u{feff}[1]"), Ok((json!([1]), "[1]".to_owned())));
        let too_deep = at(&"[".repeat(300)).unwrap();
        assert!(too_deep.0.is_string(), "{too_deep:?}");
        let missing = "a=@nothing/here".parse::<InputValue>().unwrap_err();
        assert!(missing.starts_with("file nothing/here cannot be read: "), "{missing}");
        assert!(missing.ends_with("; a text that begins with `@` is written `a=@@...`"), "{missing}");
        let literal = "a=@@ox".parse::<InputValue>().unwrap();
        assert_eq!((literal.value, literal.file), (json!("@ox"), None));
    }

    #[test]
    fn an_input_is_json_if_it_parses_else_text() {
        let rows = ["a=1", "a=true", "a=[1,2]", "a=rust", "a=\"1\"", "a=", "a=b=c", "a={\"x\":null}"];
        let values = rows.map(|row| row.parse::<InputValue>().map(|input| input.value));
        let expected = [
            json!(1),
            json!(true),
            json!([1, 2]),
            json!("rust"),
            json!("1"),
            json!(""),
            json!("b=c"),
            json!({ "x": null }),
        ];
        assert_eq!(values, expected.map(Ok));
        let deep = format!("a={}1{}", "[".repeat(DEEPEST + 1), "]".repeat(DEEPEST + 1));
        assert_eq!(deep.parse::<InputValue>(), Err("it is nested more than 100 levels deep".to_owned()));
        let long = ["a=18446744073709551616", "a=[1, 18446744073709551616]", r#"a="18446744073709551616""#];
        let taken = long.map(|row| row.parse::<InputValue>().map(|input| input.value));
        assert_eq!(taken[0], Ok(json!(18446744073709551616.0)));
        let long = long.map(|row| agent_option(row).map(|input| input.value));
        assert_eq!(taken[1..], long[1..]);
        let why = "the number `18446744073709551616` does not fit into 64 bits, and would lose digits: write";
        let expected = [
            Err(format!(r#"{why} `'a="18446744073709551616"'`"#)),
            Err(format!("{why} it in double quotes")),
            Ok(json!("18446744073709551616")),
        ];
        assert_eq!(long, expected);
        assert_eq!("=1".parse::<InputValue>(), Err("expected KEY=VALUE".to_owned()));
    }

    #[test]
    fn a_time_has_a_unit_and_may_be_short() {
        let times = ["500ms", "90s", "2w"].map(|text| time(text).unwrap().as_millis());
        assert_eq!(times, [500, 90_000, 1_209_600_000]);
        assert!(time("5").is_err() && time("4000d").is_err());
    }

    #[test]
    fn a_setting_names_a_node_and_a_way_inwards() {
        let setting: NodeSetting = "plan.options.maxTurns=3".parse().unwrap();
        let node = NodePath::new("plan");
        let keys = vec!["options".to_owned(), "maxTurns".to_owned()];
        assert_eq!(setting, NodeSetting { node: node.clone(), keys, value: json!(3) });
        assert_eq!(
            "plan=3".parse::<NodeSetting>(),
            Err("`plan` has no key; write `plan.KEY=VALUE`".to_owned())
        );
        let all = NodeProvider { node: None, provider: "echo".to_owned() };
        assert_eq!(("echo".parse(), "plan=".parse::<NodeProvider>().is_err()), (Ok(all), true));
        let provider = NodeProvider { node: Some(node), provider: "echo".to_owned() };
        assert_eq!("plan=echo".parse(), Ok(provider.clone()));
        assert_eq!("plan=echo.agent".parse(), Ok(provider));
        let inner = NodePath::new("each/review");
        let setting: NodeSetting = "each/review.options.model=\"a.b\"".parse().unwrap();
        assert_eq!((setting.node, setting.value), (inner.clone(), json!("a.b")));
        let model = NodeModel { node: Some(inner.clone()), model: "vendor/large".to_owned() };
        assert_eq!("each/review=vendor/large".parse(), Ok(model));
        let budget = |text: &str| text.parse::<BudgetChange>().map(|change| (change.node, change.is_of_body));
        assert_eq!(budget("each/review.usd=2"), Ok((Some(inner.clone()), false)));
        assert_eq!(budget("each/review/.usd=2"), Ok((Some(inner), true)));
        assert!(budget("/.usd=2").is_err());
        let refused = "each[2]/review=echo".parse::<NodeProvider>().unwrap_err();
        assert!(refused.contains("without passes and items"), "{refused}");
    }
}
