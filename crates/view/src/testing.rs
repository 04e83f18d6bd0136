//! What the tests of this crate share: recorded sessions with their flows, and values as lines.

use std::{collections::BTreeMap, fs, path::Path, sync::Arc};

use inspan_flow_core::{
    DescribeNode, Graph, IncludedFile, Loaded, NodeKind, NodeTypeInfo, SessionFacts, SessionRecord,
    builtin_catalog, compile,
};
use inspan_protocol::{Envelope, EventContext, NodePath, ProviderCapabilities, SessionId, Timestamp};
use inspan_store::{Liveness, SessionEntry};
use inspan_testkit::{fixture_dir, read_jsonl};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::{Commands, PageSession};

/// The log of a flow fixture.
pub(crate) fn flow_log(name: &str) -> Vec<Envelope> {
    read_jsonl(fixture_dir().join("flows").join(name).join("events.jsonl")).unwrap()
}

/// The record and the log of a session that an older version stored: `crashed`, `failed`, `finished` or `waiting`.
pub(crate) fn stored(name: &str) -> (SessionRecord, Vec<Envelope>) {
    let path = fixture_dir().join("stores/format-2/exports").join(format!("{name}.jsonl"));
    let mut lines: Vec<Value> = read_jsonl(path).unwrap();
    let record = serde_json::from_value(lines[0]["record"].take()).unwrap();
    let events = lines.into_iter().filter(|line| line.get("seq").is_some());
    (record, events.map(|line| serde_json::from_value(line).unwrap()).collect())
}

/// The log of such a session.
pub(crate) fn stored_log(name: &str) -> Vec<Envelope> {
    stored(name).1
}

/// An agent that is only described.
struct ScriptedAgent;

impl DescribeNode for ScriptedAgent {
    fn describe(&self) -> NodeTypeInfo {
        NodeTypeInfo::with_open_schemas("scripted.agent", "agents", NodeKind::Agent)
    }

    fn capabilities_for(&self, _: &Value) -> Option<ProviderCapabilities> {
        Some(ProviderCapabilities { streaming: true, cost: true, fork: true, ..Default::default() })
    }
}

/// A recorded session with what is known of it beside its events.
pub(crate) struct Recorded {
    pub(crate) name: String,
    pub(crate) session: PageSession,
    pub(crate) graph: Arc<Graph>,
    pub(crate) log: Vec<Envelope>,
}

impl Recorded {
    fn of(name: &str, record: SessionRecord, graph: Graph, log: Vec<Envelope>) -> Self {
        let mut digest = SessionFacts::default();
        log.iter().for_each(|envelope| digest.apply(envelope));
        let entry = SessionEntry {
            session: record.session.clone(),
            flow: record.flow.name.clone(),
            created_at: record.created_at,
            digest,
            owner: None,
            liveness: Liveness::Gone,
            unanswered: 0,
            answered: Vec::new(),
            continued_by: None,
            is_replay: record.is_replay(),
            waiting_for_worker: Vec::new(),
            waiting_for_machine: BTreeMap::new(),
            undecided_since: None,
            is_unknown: false,
            damage: None,
        };
        let commands = Commands::default();
        let session = PageSession { record: Arc::new(record), entry, artifacts: None, commands };
        Self { name: name.to_owned(), session, graph: Arc::new(graph), log }
    }

    /// A flow fixture.
    pub(crate) fn flow(name: &str) -> Self {
        let graph = compiled(&fixture_dir().join("flows").join(name));
        let (flow, input) = ((*graph.source).clone(), graph.input.clone());
        let record = SessionRecord::new(SessionId::from("flow-1"), flow, input, Timestamp::from_millis(0));
        Self::of(name, record, graph, flow_log(name))
    }

    /// A session that an older version stored.
    pub(crate) fn stored(name: &str) -> Self {
        let (record, log) = stored(name);
        let loaded = Loaded::from_source(&record.flow).unwrap();
        let graph = compile(&loaded, &builtin_catalog(inspan_providers::builtin())).unwrap().graph;
        Self::of(&format!("stored_{name}"), record, graph, log)
    }

    /// All flow fixtures and stored sessions.
    pub(crate) fn all() -> Vec<Self> {
        let folders = fs::read_dir(fixture_dir().join("flows")).unwrap();
        let mut names: Vec<String> =
            folders.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort_unstable();
        let flows = names.iter().map(|name| Self::flow(name));
        flows.chain(["crashed", "failed", "finished", "waiting"].map(Self::stored)).collect()
    }
}

fn compiled(folder: &Path) -> Graph {
    let text = fs::read_to_string(folder.join("flow.yaml")).unwrap();
    let loaded = Loaded::read("flow.yaml", folder.to_owned(), text, |file| {
        let path = folder.join(file);
        match fs::read_to_string(&path) {
            _ if path.is_dir() => IncludedFile::Unusable("it is a directory".to_owned()),
            Ok(text) => IncludedFile::Text(text),
            Err(_) => IncludedFile::Missing,
        }
    });
    let mut catalog = builtin_catalog(inspan_providers::builtin());
    catalog.register(ScriptedAgent);
    compile(&loaded, &catalog).unwrap_or_else(|found| panic!("{}: {found}", folder.display())).graph
}

/// The envelope of an event; `task` is the node's path, and empty where it is not of a node.
pub(crate) fn envelope(seq: u64, at: Timestamp, task: &str, event: &Value) -> Envelope {
    let session = EventContext::session("s".into());
    let context = match task {
        "" => session,
        task => session.with_task(NodePath::new(task)),
    };
    Envelope::new(context, seq, at, serde_json::from_value(event.clone()).unwrap())
}

/// A value with one line for each entry of its lists and mappings, so that a difference is seen.
pub(crate) fn lines(value: &impl Serialize) -> String {
    let value = json!(value);
    let empty = Map::new();
    let mut lines = Vec::new();
    for (key, field) in value.as_object().unwrap_or(&empty) {
        match field {
            Value::Array(entries) => lines.extend(entries.iter().map(|entry| format!("{key}: {entry}"))),
            Value::Object(fields) if key == "nodes" => {
                lines.extend(fields.values().map(|field| format!("{key}: {field}")));
            }
            other => lines.push(format!("{key}: {other}")),
        }
    }
    lines.join("\n")
}
