//! Makes a case of a session that really ran: what it was given, what agents, programs and people answered, and its
//! result. Secrets are taken out before anything is written.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use inspan_flow::{Graph, NodeRegistry, SessionRecord};
use inspan_protocol::{
    AgentError, Envelope, ErrorCode, ErrorKind, Event, NodePath, NodeStatus, Outcome, PromptKind, Redactor,
};
use serde_json::{Map, Value, json};

use crate::{
    answer::AnswerKind,
    cases,
    compare::DIFFERS,
    expect::word,
    file,
    pattern::{Pattern, ValuePath, place_in_file, without_pass, without_passes},
    trace::{AttemptEnd, NodeTrace, Trace},
    yaml,
};

/// The longest path that is expected of a case; a longer one would say nothing to its reader.
const LONGEST_PATH: usize = 40;

/// How long an attempt takes that was cancelled: longer than all that may happen meanwhile.
const LONG: &str = "10000h";

/// A case made of a session.
#[derive(Clone, Debug)]
pub struct MadeCase {
    /// Its keys and values, in the order in which they are written.
    parts: Vec<(&'static str, Value)>,
    name: String,
    /// The flow file of the session.
    pub flow: PathBuf,
}

/// Why a case could not be added to a test file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AddError {
    /// The file cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is not one to which a case can be added at the end.
    #[error("{path}: {why}")]
    Form {
        /// The file.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// With the case the file would be too large to be read.
    #[error(
        "{path}: with this case it would have {size} bytes, and a test file has at most {most}; nothing is written"
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// How many bytes it would have.
        size: u64,
        /// How many it may have.
        most: u64,
    },
}

impl MadeCase {
    /// The case of a session and its flow. `nodes` says what sort each node is of; the secrets that `redactor` knows are
    /// taken out.
    pub fn of(
        record: &SessionRecord,
        (graph, nodes): (&Graph, &NodeRegistry),
        events: &[Arc<Envelope>],
        name: &str,
        redactor: &Redactor,
    ) -> Self {
        let (events, reused) = with_reused(graph, events);
        let trace = Trace::of(&events);
        let mut answers = Map::new();
        let said = said_by_agents(graph);
        for (place, passes) in places(&trace) {
            answers.extend(answers_of(&passes, nodes, &said).map(|answer| (place.to_owned(), answer)));
        }
        let mut parts = vec![("name", json!(name))];
        let mut put = |key: &'static str, value: Value| {
            let is_empty = value.as_object().is_some_and(Map::is_empty) || value.is_null();
            if !is_empty {
                parts.push((key, redactor.value(value)));
            }
        };
        put("input", json!(record.input));
        put("clock", if has_moment(&trace) { json!(record.created_at) } else { Value::Null });
        put("answers", Value::Object(answers));
        put("replies", replies_of(&trace, &reused));
        put("messages", json!(by_place(trace.messages())));
        // What was reused is in no order that another run repeats, as is what ran at once.
        let any_order = !reused.is_empty() || trace.ran_at_once();
        put("expect", expected_of(&trace, nodes, record.session.as_str(), any_order));
        Self { parts, name: name.to_owned(), flow: record.flow.folder.join(file_name(&record.flow.file)) }
    }

    /// The case as an item of a list, indented by so many spaces.
    fn yaml(&self, indent: usize) -> String {
        let pad = " ".repeat(indent);
        let text: String = self
            .parts
            .iter()
            .map(|(key, value)| match value {
                Value::Object(_) => format!("{pad}  {key}:\n{}", yaml::document(value, indent + 4)),
                value => {
                    let part: Map<String, Value> = [((*key).to_owned(), value.clone())].into_iter().collect();
                    yaml::document(&Value::Object(part), indent + 2)
                }
            })
            .collect();
        format!("{pad}- {}", &text[(indent + 2).min(text.len())..])
    }

    fn rename(&mut self, name: &str) {
        name.clone_into(&mut self.name);
        if let Some((_, value)) = self.parts.first_mut() {
            *value = json!(name);
        }
    }

    /// The case's name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// The events of a session as if what it reused had run in it, as it does in a test; and the places of that.
fn with_reused(graph: &Graph, events: &[Arc<Envelope>]) -> (Vec<Arc<Envelope>>, Vec<NodePath>) {
    let mut types = BTreeMap::new();
    cases::each_body(graph, &mut |prefix, body| {
        types.extend(body.nodes.iter().map(|node| (format!("{prefix}{}", node.id), node.node_type.clone())));
    });
    let (mut all, mut reused) = (Vec::with_capacity(events.len()), Vec::new());
    for envelope in events {
        let (Event::TaskReused { task_id, result, error, .. }, Some(path)) =
            (&envelope.event, &envelope.context.task)
        else {
            all.push(envelope.clone());
            continue;
        };
        let node_type = types.get(&place_in_file(path.as_str())).cloned().unwrap_or_default();
        let (task_id, result) = (task_id.clone(), result.clone());
        let start = Event::TaskStart {
            task_id: task_id.clone(),
            node_type,
            attempt: 1,
            path: path.clone(),
            cleans_up: false,
            since: None,
            session_id: None,
            messages: Vec::new(),
        };
        let end = match error.clone() {
            Some(error) => Event::TaskFailed { task_id, error, will_retry: false },
            None => Event::TaskComplete { task_id, result, duration_ms: 0 },
        };
        all.extend([start, end].map(|event| Arc::new(Envelope { event, ..(**envelope).clone() })));
        reused.push(path.clone());
    }
    (all, reused)
}

fn file_name(file: &str) -> PathBuf {
    Path::new(file).file_name().map(PathBuf::from).unwrap_or_default()
}

/// The places of the run in the order in which they started, each with its passes.
fn places(trace: &Trace) -> Vec<(&str, Vec<&NodeTrace>)> {
    let mut all: Vec<(&str, Vec<&NodeTrace>)> = Vec::new();
    for path in trace.started() {
        let (place, node) = (without_pass(path), &trace.nodes[path]);
        match all.iter_mut().find(|(known, _)| *known == place) {
            Some((_, passes)) => passes.push(node),
            None => all.push((place, vec![node])),
        }
    }
    all
}

/// The fields of an agent's output that are its answer. The tokens of its turns are one if they may end something.
fn said_by_agents(graph: &Graph) -> Vec<&'static str> {
    let nodes = graph.bodies.iter().flat_map(|body| &body.nodes).map(|node| node.policy.budget);
    let mut budgets = graph.bodies.iter().map(|body| body.policy.budget).chain(nodes).flatten();
    let usage = budgets.any(|budget| budget.tokens.is_some()).then_some("usage");
    ["text", "structuredOutput", "costUsd", "model"].into_iter().chain(usage).collect()
}

/// What sort of answer nodes of a type take.
fn answer_kind(nodes: &NodeRegistry, node_type: &str) -> Option<AnswerKind> {
    cases::answer_kind(nodes, node_type, nodes.described(node_type)?.info.kind)
}

/// The answers of a node, one for each attempt that ended; a single one is not in a list.
fn answers_of(passes: &[&NodeTrace], nodes: &NodeRegistry, said: &[&str]) -> Option<Value> {
    let kind = answer_kind(nodes, &passes.first()?.node_type)?;
    let mut all = Vec::new();
    for pass in passes {
        all.extend(pass.ends.iter().map(|end| match end {
            AttemptEnd::Output(output, turns) => answered(output, turns, kind, said),
            AttemptEnd::Failure(error) => failed(error, kind),
            AttemptEnd::Limit(until) => json!({ "error": "limit", "resetsAt": until }),
            // Something else ends it, as it did in the session.
            AttemptEnd::Cancelled => json!({ "error": "aborted", "takes": LONG }),
        }));
    }
    if all.iter().all(|answer| Some(answer) == all.first()) {
        all.truncate(1);
    }
    match all.len() {
        0 => None,
        1 if !all[0].is_array() => all.pop(),
        _ => Some(Value::Array(all)),
    }
}

fn answered(output: &Value, turns: &[String], kind: AnswerKind, said: &[&str]) -> Value {
    let text = |key: &str| output[key].as_str().unwrap_or_default().to_owned();
    match kind {
        AnswerKind::Output => output.clone(),
        AnswerKind::Http | AnswerKind::Mcp => {
            let mut answer = output.clone();
            let says_it_again = kind == AnswerKind::Mcp || answer.get("json").is_some();
            // A body that a server wrote in another way than this one is kept as it was.
            let own_text = output["json"].to_string();
            let as_text = kind == AnswerKind::Http && text("text") != own_text;
            if let Some(fields) = answer.as_object_mut().filter(|_| says_it_again) {
                fields.remove(if as_text { "json" } else { "text" });
            }
            answer
        }
        AnswerKind::Exec => {
            let code = output["exitCode"].as_i64().unwrap_or_default();
            if code == 0 && text("stderr").is_empty() {
                return json!(text("stdout"));
            }
            json!({ "stdout": text("stdout"), "stderr": text("stderr"), "exitCode": code })
        }
        AnswerKind::Agent => {
            let mut answer = Map::new();
            for key in said {
                let mut value = output[*key].clone();
                let mut says_nothing = value.is_null() || value == json!("") || value == json!(0.0);
                if let Some(tokens) = value.as_object_mut().filter(|_| *key == "usage") {
                    tokens.retain(|_, count| *count != json!(0));
                    says_nothing = tokens.is_empty();
                }
                if !says_nothing {
                    answer.insert((*key).to_owned(), value);
                }
            }
            let denied = output["permissionDenials"].as_array().into_iter().flatten();
            let denied: Vec<Value> = denied
                .filter_map(|tool| Some((tool["toolName"].as_str()?, &tool["toolInput"])))
                .map(|(name, input)| json!({ "name": name, "input": input, "ask": true }))
                .collect();
            if !denied.is_empty() {
                answer.insert("tools".to_owned(), json!(denied));
            }
            if output["stopReason"] != json!("complete") && !output["stopReason"].is_null() {
                answer.insert("stopReason".to_owned(), output["stopReason"].clone());
            }
            let last = match answer.len() {
                0 => json!(""),
                1 if answer.contains_key("text") => answer["text"].clone(),
                _ => Value::Object(answer),
            };
            match turns.split_last() {
                Some((_, before)) if !before.is_empty() => {
                    let turns = before.iter().map(|text| json!(text)).chain([last]);
                    json!({ "turns": turns.collect::<Vec<_>>() })
                }
                _ => last,
            }
        }
    }
}

fn failed(error: &AgentError, kind: AnswerKind) -> Value {
    let detail = error.detail.as_deref();
    if let (AnswerKind::Exec, ErrorCode::Process, Some(code)) =
        (kind, error.code, detail.and_then(|detail| detail["exitCode"].as_i64()))
    {
        let text = |key: &str| detail.map(|detail| detail[key].clone()).unwrap_or_default();
        return json!({ "stdout": text("stdout"), "stderr": text("stderr"), "exitCode": code });
    }
    let is_limit = error.code == ErrorCode::RateLimited
        && (error.is(ErrorKind::UsageLimit) || error.resets_at.is_some());
    let word = if is_limit { "limit".to_owned() } else { camel(error.code.as_str()) };
    let mut answer = json!({ "error": word, "message": error.message });
    if let Some(kind) = error.kind().filter(|_| !is_limit) {
        answer["kind"] = json!(kind.as_str());
    }
    // The kind is a part of it, and has its own key.
    let more = detail.cloned().map(|mut detail| {
        detail.as_object_mut().map(|fields| fields.remove("kind"));
        detail
    });
    if let Some(detail) = more.filter(|detail| !detail.is_null() && *detail != json!({})) {
        answer["detail"] = detail;
    }
    if let Some(at) = error.resets_at {
        answer["resetsAt"] = json!(at);
    }
    if let Some(wait) = error.retry_after {
        answer["retryAfter"] = json!(format!("{}ms", wait.as_millis()));
    }
    answer
}

/// `rateLimited` of `RATE_LIMITED`.
fn camel(code: &str) -> String {
    let mut words = code.split('_').map(str::to_lowercase);
    let first = words.next().unwrap_or_default();
    words.fold(first, |all, word| all + &word[..1].to_uppercase() + &word[1..])
}

/// Whether the case has a point in time, so that its clock matters.
fn has_moment(trace: &Trace) -> bool {
    let moment = |node: &NodeTrace| {
        let resets = node.failures.iter().any(|(error, _)| error.resets_at.is_some());
        resets || !node.limits.is_empty() || &*node.node_type == "control.wait"
    };
    trace.nodes.values().any(moment)
}

/// The replies at each place, those to questions that were not asked again first: one alone is not in a list.
fn replies_of(trace: &Trace, reused: &[NodePath]) -> Value {
    let asked = reused.iter().filter_map(|path| Some((path, trace.nodes.get(path)?)));
    let asked = asked.filter(|(_, node)| &*node.node_type == "human.input");
    let given = asked.filter_map(|(path, node)| {
        let output = node.output.as_deref()?;
        Some((path, output["choice"].as_str().or(output["content"].as_str())?))
    });
    // Only tools that were denied are asked for again, and nobody's reply denies them.
    let replies = trace
        .replies()
        .filter(|(_, prompt, _)| prompt.kind != PromptKind::Permission)
        .map(|(path, _, reply)| (path, reply.choice.as_ref().unwrap_or(&reply.content).as_str()));
    let values = by_place(given.chain(replies)).into_iter().map(|(place, texts)| {
        let value = if let [only] = texts[..] { json!(only) } else { json!(texts) };
        (place.to_owned(), value)
    });
    Value::Object(values.collect())
}

/// The texts of each place, in their order.
fn by_place<'a>(texts: impl Iterator<Item = (&'a NodePath, &'a str)>) -> BTreeMap<&'a str, Vec<&'a str>> {
    let mut places: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (path, text) in texts {
        places.entry(without_pass(path)).or_default().push(text);
    }
    places
}

fn expected_of(trace: &Trace, nodes: &NodeRegistry, session: &str, any_order: bool) -> Value {
    let mut expect = Map::new();
    if trace.outcome != Outcome::Success {
        expect.insert("outcome".to_owned(), json!(trace.outcome));
    }
    let path: Vec<String> = trace.started().map(|path| path.to_string()).collect();
    if path.len() <= LONGEST_PATH {
        // None or one start in one order.
        let expected = if any_order && path.len() > 1 { json!({ "anyOrder": path }) } else { json!(path) };
        expect.insert("path".to_owned(), expected);
    }
    let unusual = |(path, node): (&NodePath, &NodeTrace)| {
        let status = trace.status(path, node);
        let later =
            |other: &NodePath| without_pass(other) == without_pass(path) && other.pass() > path.pass();
        let place = without_passes(path);
        let is_newest = status != NodeStatus::Complete
            && Pattern::parse(&place).is_ok_and(|any| trace.is_in_newest_frames(path, &any))
            && !trace.nodes.keys().any(later);
        is_newest.then(|| (place, json!(word(&status))))
    };
    let statuses: Map<String, Value> = trace.nodes.iter().filter_map(unusual).collect();
    if !statuses.is_empty() {
        expect.insert("statuses".to_owned(), Value::Object(statuses));
    }
    let mut outputs = results(trace, nodes, session);
    let given = trace.flow_outputs.as_deref().and_then(Value::as_object);
    for (key, value) in given.into_iter().flatten().filter(|(key, _)| !key.contains(['.', '['])) {
        expect_same(&format!("flow.{key}"), value, session, &mut outputs);
    }
    if !outputs.is_empty() {
        expect.insert("outputs".to_owned(), Value::Object(outputs));
    }
    Value::Object(expect)
}

/// The outputs of the nodes from which no edge fired: what the flow was for.
fn results(trace: &Trace, nodes: &NodeRegistry, session: &str) -> Map<String, Value> {
    let mut outputs = Map::new();
    for (place, passes) in places(trace) {
        let leads_on = trace.fired.iter().any(|(from, _)| from == place);
        let Some(last) = passes.last().filter(|_| !leads_on && !place.contains('/')) else { continue };
        let Some(output) = last.output.as_deref() else { continue };
        let keys: &[&str] = match answer_kind(nodes, &last.node_type) {
            Some(AnswerKind::Agent) => &["text", "structuredOutput"],
            Some(AnswerKind::Exec) => &["stdout"],
            Some(AnswerKind::Http) => &["status", "json"],
            Some(AnswerKind::Mcp) => &["text", "structuredContent"],
            _ if output.get("values").or_else(|| output.get("outputs")).is_some() => {
                of_frames(place, output, session, &mut outputs);
                continue;
            }
            // It was measured.
            _ if output.get("waitedMs").is_some() => continue,
            _ if output.is_object() => &[],
            _ => continue,
        };
        expect_parts(place, output, keys, session, &mut outputs);
    }
    outputs
}

/// Expects a value without what differs from run to run. A key that an expectation cannot name is left out.
fn expect_same(place: &str, value: &Value, session: &str, outputs: &mut Map<String, Value>) {
    if !differs(value, session) {
        if ValuePath::parse(place).is_ok() {
            outputs.insert(place.to_owned(), exactly(value.clone()));
        }
        return;
    }
    for (at, item) in value.as_array().into_iter().flatten().enumerate() {
        expect_same(&format!("{place}[{at}]"), item, session, outputs);
    }
    for (key, value) in value.as_object().into_iter().flatten() {
        if !DIFFERS.contains(&key.as_str()) && !key.contains(['.', '[']) {
            expect_same(&format!("{place}.{key}"), value, session, outputs);
        }
    }
}

/// Whether something in it differs from run to run: what was measured, the session's own id and folder. An id may be as
/// short as a letter, so it is looked for as a word.
fn differs(value: &Value, session: &str) -> bool {
    match value {
        Value::String(text) => text.match_indices(session).any(|(at, _)| {
            let is_part_of_word = text[..at].ends_with(char::is_alphanumeric)
                || text[at + session.len()..].starts_with(char::is_alphanumeric);
            !is_part_of_word
        }),
        Value::Array(items) => items.iter().any(|item| differs(item, session)),
        Value::Object(fields) => {
            fields.iter().any(|(key, value)| DIFFERS.contains(&key.as_str()) || differs(value, session))
        }
        _ => false,
    }
}

/// Expects these parts of an output, which are answers of the case, or all of it if none are named.
fn expect_parts(place: &str, output: &Value, keys: &[&str], session: &str, outputs: &mut Map<String, Value>) {
    for key in keys.iter().filter(|key| !output[**key].is_null()) {
        outputs.insert(format!("{place}.{key}"), exactly(output[*key].clone()));
    }
    if keys.is_empty() {
        expect_same(place, output, session, outputs);
    }
}

/// What the frames of a node gave, without what differs from run to run: sessions, usage and times of agents.
fn of_frames(place: &str, output: &Value, session: &str, outputs: &mut Map<String, Value>) {
    let of_list = output["values"].as_array().into_iter().flatten().enumerate();
    let frames = of_list.map(|(at, frame)| (format!("{place}.values[{at}]"), frame));
    let only = output.get("outputs").map(|frame| (format!("{place}.outputs"), frame));
    for (place, frame) in frames.chain(only) {
        for (id, given) in frame.as_object().into_iter().flatten() {
            let place = format!("{place}.{id}");
            if given.get("values").or_else(|| given.get("outputs")).is_some() {
                of_frames(&place, given, session, outputs);
                continue;
            }
            let keys: &[&str] = match () {
                () if given.get("stopReason").is_some() => &["text", "structuredOutput"],
                () if given.get("exitCode").is_some() => &["stdout"],
                () if given.get("waitedMs").is_some() => continue,
                () => &[],
            };
            expect_parts(&place, given, keys, session, outputs);
        }
    }
}

/// The expectation of exactly this value.
fn exactly(value: Value) -> Value {
    if value.is_object() { json!({ "value": value }) } else { value }
}

/// Adds a case at the end of a test file, which is made if there is none; a name that is taken gets a number. Returns
/// the case's name.
///
/// # Errors
/// The file cannot be read or written, or a case cannot be added to it.
pub fn add_case(path: &Path, case: &MadeCase) -> Result<String, AddError> {
    let failed = |source| AddError::Io { path: path.to_owned(), source };
    let form = |why: String| AddError::Form { path: path.to_owned(), why };
    let fits = |text: String| match text.len() as u64 {
        size if size > file::MAX_BYTES => {
            Err(AddError::TooLarge { path: path.to_owned(), size, most: file::MAX_BYTES })
        }
        _ => Ok(text),
    };
    let mut case = case.clone();
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(failed(error)),
    };
    let text = if text.trim().is_empty() {
        let flow = relative(path, &case.flow);
        let flow = flow.map(|flow| yaml::document(&json!({ "flow": flow }), 0)).unwrap_or_default();
        fits(format!("{flow}cases:\n{}", case.yaml(2)))?
    } else {
        let before = file::read(path, &text).map_err(|problem| form(problem.message))?;
        let taken = |name: &str| before.cases.iter().any(|known| known.value.name.as_deref() == Some(name));
        let name = case.name.clone();
        let mut number = 2;
        while taken(&case.name) {
            case.rename(&format!("{name} ({number})"));
            number += 1;
        }
        let indent = indent_of_cases(&text).ok_or_else(|| {
            form("`cases` is not a list with an item in each line, so that no case can be added".to_owned())
        })?;
        let text = if text.ends_with('\n') { text } else { text + "\n" };
        // An empty line between two cases, unless it would be one more of a text that keeps those at its end.
        let read = |text: &str| serde_saphyr::from_str::<Value>(text).ok();
        let spaced = format!("{text}\n");
        let has_space = text.ends_with("\n\n") || read(&spaced) != read(&text);
        let text = fits(if has_space { text } else { spaced } + &case.yaml(indent))?;
        let after = file::read(path, &text).ok().filter(|after| after.cases.len() == before.cases.len() + 1);
        if after.is_none() {
            return Err(form(
                "`cases` is not the last key of the file, so that no case can be added".to_owned(),
            ));
        }
        text
    };
    fs::write(path, text).map_err(failed)?;
    Ok(case.name)
}

/// The flow as the test file has to name it; none where it is found by its name.
fn relative(path: &Path, flow: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let stem = name.split(".test.").next()?;
    let own = flow.file_stem()?.to_str()?;
    let folder = path.parent().and_then(|folder| {
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        folder.canonicalize().ok()
    });
    let of_flow = flow.parent().and_then(|folder| folder.canonicalize().ok());
    let file = flow.file_name()?.to_str()?;
    match (folder, of_flow) {
        (Some(folder), Some(of_flow)) if folder == of_flow => (stem != own).then(|| file.to_owned()),
        (Some(folder), Some(of_flow)) if folder.parent() == Some(&of_flow) => {
            (stem != own).then(|| format!("../{file}"))
        }
        _ => Some(flow.display().to_string()),
    }
}

/// By how many spaces the items of `cases` are indented.
fn indent_of_cases(text: &str) -> Option<usize> {
    let mut lines = text.lines().skip_while(|line| !line.starts_with("cases:"));
    lines.next().filter(|line| line.trim_end() == "cases:" || line.starts_with("cases: #"))?;
    let first = lines.find(|line| line.trim_start().starts_with("- "))?;
    Some(first.len() - first.trim_start().len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_keeps_the_text_of_a_body_and_the_detail_of_an_error() {
        let http = |text: &str| {
            let output = json!({ "status": 200, "headers": {}, "text": text, "json": { "n": 1 } });
            answered(&output, &[], AnswerKind::Http, &[])
        };
        let rows = [
            (r#"{"n":1}"#, json!({ "json": { "n": 1 } })),
            ("{ \"n\": 1.0 }\n", json!({ "text": "{ \"n\": 1.0 }\n" })),
        ];
        for (text, kept) in rows {
            let mut seen = http(text);
            seen.as_object_mut().unwrap().retain(|key, _| key == "text" || key == "json");
            assert_eq!(seen, kept);
        }
        let error = AgentError::new(ErrorCode::Network, "gone").with_detail(json!({ "host": "x" }));
        let plain = json!({ "error": "network", "message": "gone", "detail": { "host": "x" } });
        assert_eq!(failed(&error, AnswerKind::Agent), plain);
        let of_kind = AgentError::new(ErrorCode::RateLimited, "full").with_kind(ErrorKind::UsageLimit);
        assert_eq!(failed(&of_kind, AnswerKind::Agent), json!({ "error": "limit", "message": "full" }));
    }
}
