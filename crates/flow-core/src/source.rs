//! The source of a flow: its text, the files that it includes, and the changes made for one run.

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

/// The most bytes of all included files together.
const MAX_INCLUDED: usize = 64 * 1024 * 1024;

/// The complete source of a flow, as stored with a session.
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
    /// The included files, by their paths as written in the flow.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, String>,
    /// The changes made for this run, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<Change>,
}

/// A change made to a loaded flow, so that it can be made again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "change")]
#[non_exhaustive]
pub enum Change {
    /// The type of a node was set.
    Type {
        /// The node.
        node: NodeId,
        /// Its type.
        to: String,
    },
    /// A value in the input of a node was set.
    Input {
        /// The node.
        node: NodeId,
        /// The path of keys.
        keys: Vec<String>,
        /// The value.
        value: Value,
    },
    /// The limits of a budget were set.
    Budget {
        /// The node whose own budget it is; the flow's if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        node: Option<NodeId>,
        /// The limits.
        limits: BudgetLimits,
    },
}

/// A flow and the files that it includes, ready to compile.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub(crate) name: Arc<str>,
    pub(crate) folder: PathBuf,
    pub(crate) text: Arc<str>,
    pub(crate) document: Document,
    pub(crate) files: BTreeMap<String, IncludedFile>,
    pub(crate) changes: Vec<Change>,
}

/// A file that the flow includes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IncludedFile {
    /// Its text.
    Text(String),
    /// It does not exist.
    Missing,
    /// It is outside the folder of the flow file.
    Outside,
    /// It is too large, or all files together are.
    TooLarge,
    /// It exists but cannot be read.
    Unusable(String),
}

impl Loaded {
    /// A flow whose files are given; a file that is not given is missing.
    pub fn from_text(name: &str, text: &str, files: BTreeMap<String, String>) -> Self {
        let files = files.into_iter().map(|(path, text)| (path, IncludedFile::Text(text))).collect();
        let (folder, document) = (PathBuf::from("."), spec::parse(text, 0));
        Self { name: name.into(), folder, text: text.into(), document, files, changes: Vec::new() }
    }

    /// A flow whose files are read by `read`, each by its path as written in the flow. A path that leaves the folder by
    /// `..` or as an absolute path is not read.
    pub fn read(
        name: &str,
        folder: PathBuf,
        text: String,
        mut read: impl FnMut(&str) -> IncludedFile,
    ) -> Self {
        let document = spec::parse(&text, 0);
        let wanted = document.root.as_ref().map(spec::included_files).unwrap_or_default();
        let mut total = 0;
        let files = wanted.into_iter().map(|file| {
            let included = match leaves(Path::new(file)) {
                true => IncludedFile::Outside,
                false => read(file),
            };
            let included = match included {
                IncludedFile::Text(text) if total + text.len() > MAX_INCLUDED => IncludedFile::TooLarge,
                included => included,
            };
            total += if let IncludedFile::Text(text) = &included { text.len() } else { 0 };
            (file.to_owned(), included)
        });
        let files = files.collect();
        Self { name: name.into(), folder, text: text.into(), document, files, changes: Vec::new() }
    }

    /// A flow as stored with a session; the files on disk are not read.
    pub fn from_source(source: &FlowSource) -> Result<Self, OverrideError> {
        let mut loaded = Self::from_text(&source.file, &source.text, source.files.clone());
        loaded.folder.clone_from(&source.folder);
        source.changes.iter().try_for_each(|change| loaded.change(change))?;
        Ok(loaded)
    }

    /// The complete source, to be stored with a session. `name` and `hash` are those of the graph.
    pub(crate) fn source(&self, name: &str, hash: &str) -> FlowSource {
        let text = |(path, included): (&String, &IncludedFile)| match included {
            IncludedFile::Text(text) => Some((path.clone(), text.clone())),
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

    /// Whether this is exactly the stored source.
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

    /// The text of an included file, by its path as written in the flow.
    pub fn file(&self, path: &str) -> Option<&str> {
        match self.files.get(path) {
            Some(IncludedFile::Text(text)) => Some(text),
            _ => None,
        }
    }
}

/// Whether a path leaves the folder where it starts, by `..` or because it is absolute.
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
