//! What the author of a flow wrote, and what was changed for one run of it.

use std::{
    collections::BTreeMap,
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use inspan_protocol::{BudgetLimits, NodeId};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    overrides::OverrideError,
    spec::{self, Document},
};

/// How large the files that a flow draws in may be together.
const MAX_DRAWN: usize = 64 * 1024 * 1024;

/// All that the author wrote, and what was changed for this run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowSource {
    /// The flow's name.
    pub name: String,
    /// The hash of the compiled graph.
    pub hash: String,
    /// The file as it was named.
    pub file: String,
    /// The folder of the file.
    pub folder: PathBuf,
    /// The flow's text.
    pub text: Arc<str>,
    /// The texts that it draws in, by their paths as the flow writes them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, String>,
    /// Changes made to the flow for this run, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<Change>,
}

/// One change that was made to a loaded flow, so that it can be made again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "change")]
#[non_exhaustive]
pub enum Change {
    /// A node got another type.
    Type {
        /// The node.
        node: NodeId,
        /// Its type.
        to: String,
    },
    /// A value in a node's input was put in place.
    Input {
        /// The node.
        node: NodeId,
        /// The keys that lead inwards.
        keys: Vec<String>,
        /// The value.
        value: Value,
    },
    /// The limits of a budget were put in place.
    Budget {
        /// The node whose own budget it is; the flow's if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        node: Option<NodeId>,
        /// The limits.
        limits: BudgetLimits,
    },
}

/// A flow's text and the texts that it draws in.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub(crate) name: Arc<str>,
    pub(crate) folder: PathBuf,
    pub(crate) text: Arc<str>,
    pub(crate) document: Document,
    pub(crate) files: BTreeMap<String, Drawn>,
    pub(crate) changes: Vec<Change>,
}

/// A file that the flow draws in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Drawn {
    /// Its text.
    Text(String),
    /// It is not there.
    Missing,
    /// It lies outside of the flow's folder.
    Outside,
    /// It is larger than a file may be, or the files together are.
    TooLarge,
    /// It is there and cannot be used.
    Unusable(String),
}

impl Loaded {
    /// A flow whose files are given instead of read; what is not given is missing.
    pub fn from_text(name: &str, text: &str, files: BTreeMap<String, String>) -> Self {
        let files = files.into_iter().map(|(path, text)| (path, Drawn::Text(text))).collect();
        let (folder, document) = (PathBuf::from("."), spec::parse(text, 0));
        Self { name: name.into(), folder, text: text.into(), document, files, changes: Vec::new() }
    }

    /// A flow whose files are read by `read`, each by its path as the flow writes it. A path that climbs out of the
    /// folder by its words alone is not read.
    pub fn read(name: &str, folder: PathBuf, text: String, mut read: impl FnMut(&str) -> Drawn) -> Self {
        let document = spec::parse(&text, 0);
        let wanted = document.root.as_ref().map(spec::drawn_files).unwrap_or_default();
        let mut total = 0;
        let files = wanted.into_iter().map(|file| {
            let drawn = match leaves(Path::new(file)) {
                true => Drawn::Outside,
                false => read(file),
            };
            let drawn = match drawn {
                Drawn::Text(text) if total + text.len() > MAX_DRAWN => Drawn::TooLarge,
                drawn => drawn,
            };
            total += if let Drawn::Text(text) = &drawn { text.len() } else { 0 };
            (file.to_owned(), drawn)
        });
        let files = files.collect();
        Self { name: name.into(), folder, text: text.into(), document, files, changes: Vec::new() }
    }

    /// A flow as it was kept with a session; the author's files are not looked at.
    pub fn from_source(source: &FlowSource) -> Result<Self, OverrideError> {
        let mut loaded = Self::from_text(&source.file, &source.text, source.files.clone());
        loaded.folder.clone_from(&source.folder);
        source.changes.iter().try_for_each(|change| loaded.change(change))?;
        Ok(loaded)
    }

    /// All that the author wrote, to be kept with a session. `name` and `hash` are the graph's.
    pub(crate) fn source(&self, name: &str, hash: &str) -> FlowSource {
        let text = |(path, drawn): (&String, &Drawn)| match drawn {
            Drawn::Text(text) => Some((path.clone(), text.clone())),
            _ => None,
        };
        FlowSource {
            name: name.to_owned(),
            hash: hash.to_owned(),
            file: self.name.to_string(),
            folder: self.folder.clone(),
            text: self.text.clone(),
            files: self.files.iter().filter_map(text).collect(),
            changes: self.changes.clone(),
        }
    }

    /// Whether this is what was kept, word for word.
    pub fn is_as_in(&self, source: &FlowSource) -> bool {
        let own = self.source(&source.name, &source.hash);
        own.text == source.text && own.files == source.files && own.changes == source.changes
    }

    /// What was changed since the flow was read, in order.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// The flow's own text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The text of a file that the flow draws in, by its path as the flow writes it.
    pub fn file(&self, path: &str) -> Option<&str> {
        match self.files.get(path) {
            Some(Drawn::Text(text)) => Some(text),
            _ => None,
        }
    }
}

/// Whether a path, by its words alone, climbs above where it starts.
fn leaves(path: &Path) -> bool {
    let mut depth = 0_i32;
    for component in path.components() {
        match component {
            Component::Normal(_) => depth += 1,
            Component::CurDir => {}
            Component::ParentDir => depth -= 1,
            Component::RootDir | Component::Prefix(_) => return true,
        }
        if depth < 0 {
            return true;
        }
    }
    false
}
