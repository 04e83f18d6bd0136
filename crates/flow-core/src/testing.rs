//! What the tests of this crate share: flows compiled from texts and fixtures.

use std::{collections::BTreeMap, fs, path::Path, sync::Arc};

use inspan_protocol::ProviderCapabilities;
use serde_json::Value;

use crate::{
    Compiled, DescribeNode, Diagnostics, Graph, IncludedFile, Loaded, NodeKind, NodeTypeInfo, compile,
    nodes::builtin_catalog,
};

/// An agent's node that is only described.
struct TalkAgent(&'static str);

impl DescribeNode for TalkAgent {
    fn describe(&self) -> NodeTypeInfo {
        NodeTypeInfo::with_open_schemas(self.0, "agents", NodeKind::Agent)
    }

    fn capabilities_for(&self, _: &Value) -> Option<ProviderCapabilities> {
        Some(ProviderCapabilities {
            streaming: true,
            cost: true,
            fork: self.0 == "talk.agent",
            ..Default::default()
        })
    }

    fn program_for(&self, input: &Value) -> Option<String> {
        input["options"]["command"].as_str().map(str::to_owned)
    }
}

/// A flow in one file, read.
pub(crate) fn loaded(text: &str) -> Loaded {
    Loaded::from_text("flow.yaml", text, BTreeMap::new())
}

/// A flow that is read, compiled.
pub(crate) fn compiled(flow: &Loaded) -> Result<Compiled, Diagnostics> {
    let mut catalog = builtin_catalog([]);
    catalog.register(TalkAgent("talk.agent"));
    catalog.register(TalkAgent("chat.agent"));
    compile(flow, &catalog)
}

/// A flow, compiled.
pub(crate) fn graph(text: &str) -> Arc<Graph> {
    Arc::new(compiled(&loaded(text)).unwrap_or_else(|found| panic!("{text}\n{found}")).graph)
}

/// A flow that runs another one as a part of it, compiled; the file of that is `sub.yaml`.
pub(crate) fn graph_with_subflow(text: &str, subflow: &str) -> Arc<Graph> {
    let files = BTreeMap::from([("sub.yaml".to_owned(), subflow.to_owned())]);
    let found = compiled(&Loaded::from_text("flow.yaml", text, files));
    Arc::new(found.unwrap_or_else(|found| panic!("{text}\n{found}")).graph)
}

/// What the compiler finds wrong with a flow.
pub(crate) fn problems(text: &str) -> String {
    compiled(&loaded(text)).err().map(|found| found.to_string()).unwrap_or_default()
}

/// Whether the compiler refuses a flow because a node of it can never run.
pub(crate) fn has_unreachable(text: &str) -> bool {
    problems(text).contains("unreachable-node")
}

/// This flow, with the files of a folder.
pub(crate) fn load(folder: &Path, text: String) -> Loaded {
    Loaded::read("flow.yaml", folder.to_owned(), text, |file| {
        let path = folder.join(file);
        match fs::read_to_string(&path) {
            _ if path.is_dir() => IncludedFile::Unusable("it is a directory".to_owned()),
            Ok(text) => IncludedFile::Text(text),
            Err(_) => IncludedFile::Missing,
        }
    })
}
