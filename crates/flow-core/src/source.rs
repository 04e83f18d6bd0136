//! The source of a flow: its text, the files that it includes, and the changes made for one run.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use inspan_protocol::{BudgetLimits, NodePath};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    diagnostic::{Code, Problem, SourceSpan},
    overrides::OverrideError,
    spec::{self, Document, Text, Yaml},
};

/// The most bytes of all included files together.
const MAX_INCLUDED: usize = 64 * 1024 * 1024;

/// The most other flows that a flow may use.
const MAX_FLOWS: usize = 256;
/// The folder of the flows that a project gives names, from the folder of the project.
pub const NAMED_FLOWS: &str = ".inspan/flows";

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

impl FlowSource {
    /// The only nodes that are to run; none if all are.
    pub fn only(&self) -> Vec<NodePath> {
        let nodes = self.changes.iter().filter_map(|change| match change {
            Change::Only { nodes } => Some(nodes),
            _ => None,
        });
        nodes.flatten().cloned().collect()
    }

    /// The same for another machine: without the changes that do nothing in this flow, such as settings of the user that only
    /// another flow uses.
    #[must_use]
    pub fn used(mut self) -> Self {
        if let Ok(loaded) = Loaded::from_source(&self) {
            self.changes = loaded.used_changes().cloned().collect();
        }
        self
    }
}

/// A change made to a loaded flow, so that it can be made again.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "change")]
#[non_exhaustive]
pub enum Change {
    /// The type of a node was set. Nodes are named by their places, `review` or `scan/review`.
    Type {
        /// The node.
        node: NodePath,
        /// Its type.
        to: String,
    },
    /// A value in the input of a node was set.
    Input {
        /// The node.
        node: NodePath,
        /// The path of keys.
        keys: Vec<String>,
        /// The value.
        value: Value,
    },
    /// The provider of an agent node was set, or of all.
    Provider {
        /// The node; all of the flow and of those that it runs if absent.
        node: Option<NodePath>,
        /// The provider.
        to: String,
    },
    /// The model of an agent node was set, or of all.
    Model {
        /// The node; all of the flow and of those that it runs if absent.
        node: Option<NodePath>,
        /// The model.
        to: String,
    },
    /// Only these nodes are to run.
    Only {
        /// Their places.
        nodes: Vec<NodePath>,
    },
    /// An option was set for the agent nodes of a provider that do not set it.
    Option {
        /// The provider.
        provider: String,
        /// The option.
        name: String,
        /// Its value.
        value: Value,
    },
    /// An agent was declared that wins over one of the flow.
    Agent {
        /// Its name.
        name: String,
        /// Its settings.
        settings: Value,
    },
    /// The limits of a budget were set.
    Budget {
        /// The node whose own budget it is; the flow's if absent.
        node: Option<NodePath>,
        /// Whether it is that of the body of the node.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_of_body: bool,
        /// Whether the limits are those of the settings, which a limit in the flow replaces.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_default: bool,
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
    /// The flows among the files; problems in the first are in source 1, and so on.
    pub(crate) flows: Vec<FlowFile>,
    /// The folders of the packs that they name, from the folder of the flow.
    packs: Vec<String>,
    /// The agents of the user by name, which win over the flow's.
    pub(crate) agents: BTreeMap<String, Value>,
    /// The options of the user by provider, where nothing else sets them.
    pub(crate) options: BTreeMap<String, BTreeMap<String, Value>>,
    /// The providers that were set for one run, by node; for all nodes under no id.
    pub(crate) providers: BTreeMap<Option<NodePath>, String>,
    /// The models that were set for one run, in the same way.
    pub(crate) models: BTreeMap<Option<NodePath>, String>,
    /// The only nodes that are to run; empty if all are.
    pub(crate) only: Vec<NodePath>,
    pub(crate) changes: Vec<Change>,
    /// Which of the changes do nothing in this flow.
    pub(crate) unused: BTreeSet<usize>,
    /// How many of them a stored session had.
    stored: Option<usize>,
}

/// A flow that another one includes, settings that it includes, or the manifest of a pack.
#[derive(Clone, Debug)]
pub(crate) struct FlowFile {
    /// Its path, from the folder of the flow that was loaded.
    pub(crate) path: String,
    pub(crate) document: Document,
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
        let mut loaded = Self::read(name, PathBuf::from("."), text.to_owned(), |file| {
            files.get(file).map_or(IncludedFile::Missing, |text| IncludedFile::Text(text.clone()))
        });
        let files = files.into_iter().map(|(path, text)| (path, IncludedFile::Text(text)));
        loaded.files.extend(files);
        loaded
    }

    /// A flow whose files are read by `read`, each by its path from the folder of the flow; the files of a flow that
    /// it includes too. A path that leaves the folder by `..` or as an absolute path is not read, nor is a file that a
    /// pack names outside its own folder. A path under [`NAMED_FLOWS`] or `.inspan/packs` is one of the project's.
    pub fn read(
        name: &str,
        folder: PathBuf,
        text: String,
        mut read: impl FnMut(&str) -> IncludedFile,
    ) -> Self {
        let document = spec::parse(&text, 0);
        let mut files = BTreeMap::new();
        let mut flows: Vec<FlowFile> = Vec::new();
        let mut packs: Vec<String> = Vec::new();
        let mut total = 0;
        let mut wanted: Vec<(String, WantedFile)> =
            document.root.as_ref().map(|root| named(root, "", WantedFile::Flow)).unwrap_or_default();
        let own_name = Path::new(name).file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let mut seen = BTreeSet::new();
        let mut next = 0;
        while next < wanted.len() {
            let (path, what) = wanted[next].clone();
            next += 1;
            let is_read = what == WantedFile::File && files.contains_key(&path);
            if is_read || !seen.insert((path.clone(), what)) {
                continue;
            }
            let included = match files.get(&path).cloned() {
                Some(known) => known,
                None if path == own_name => IncludedFile::Text(text.clone()),
                None if leaves(Path::new(&path)) => IncludedFile::Outside,
                None if what != WantedFile::File && flows.len() == MAX_FLOWS => {
                    IncludedFile::Unusable(format!("a flow can use at most {MAX_FLOWS} other flows"))
                }
                None => read(&path),
            };
            let included = match included {
                IncludedFile::Text(text) if total + text.len() > MAX_INCLUDED => IncludedFile::TooLarge,
                included => included,
            };
            if let IncludedFile::Text(text) = &included {
                if !files.contains_key(&path) {
                    total += text.len();
                }
                if what != WantedFile::File {
                    if what == WantedFile::Pack {
                        packs.push(folder_of(&path).to_owned());
                    }
                    // Problems of a flow that runs itself are reported once.
                    let source =
                        if path == own_name { 0 } else { u16::try_from(flows.len() + 1).unwrap_or(u16::MAX) };
                    let document = spec::parse(text, source);
                    let more = document.root.iter().flat_map(|root| named(root, folder_of(&path), what));
                    let pack = pack_of(&packs, &path);
                    wanted.extend(more.filter(|(file, _)| pack.is_none_or(|pack| is_within(file, pack))));
                    if flows.iter().all(|flow| flow.path != path) {
                        flows.push(FlowFile { path: path.clone(), document });
                    }
                }
            }
            files.insert(path, included);
        }
        Self {
            name: name.into(),
            folder,
            text: text.into(),
            document,
            files,
            flows,
            packs,
            agents: BTreeMap::new(),
            options: BTreeMap::new(),
            providers: BTreeMap::new(),
            models: BTreeMap::new(),
            only: Vec::new(),
            changes: Vec::new(),
            unused: BTreeSet::new(),
            stored: None,
        }
    }

    /// The flow that is included from a path, if it could be read.
    pub(crate) fn flow(&self, path: &str) -> Option<&Document> {
        self.flows.iter().find(|flow| flow.path == path).map(|flow| &flow.document)
    }

    /// Whether the flow at a path belongs to a pack, whose files are all in its folder.
    pub(crate) fn is_of_pack(&self, flow: &str) -> bool {
        pack_of(&self.packs, flow).is_some()
    }

    /// Why the flow at a path cannot use a file, which it names as written, if that is so.
    pub(crate) fn refusal(&self, flow: &str, path: &str, (written, span): Text<'_>) -> Option<Problem> {
        if let Some(pack) = pack_of(&self.packs, flow).filter(|pack| !is_within(path, pack)) {
            let named = if pack.is_empty() { String::new() } else { format!(" `{pack}`") };
            let message = format!("`{written}` is outside the folder of the pack{named}");
            return Some(Problem::error(Code::FileOutsideFolder, span, message));
        }
        match self.files.get(path) {
            Some(IncludedFile::Text(_)) => None,
            included => Some(unreadable(included, written, span)),
        }
    }

    /// A flow as stored with a session; the files on disk are not read.
    pub fn from_source(source: &FlowSource) -> Result<Self, OverrideError> {
        let mut loaded = Self::from_text(&source.file, &source.text, source.files.clone());
        loaded.folder.clone_from(&source.folder);
        for change in &source.changes {
            match loaded.change(change) {
                // The flow was edited, and goes on without it.
                Err(OverrideError::UnknownNode { .. }) => {}
                made => made?,
            }
        }
        loaded.stored = Some(loaded.changes.len());
        Ok(loaded)
    }

    /// Whether a session began with exactly this, maybe by other rules for the inputs of nodes. An input that is refused now is so
    /// when its node runs: the session can be shown, and goes on.
    pub(crate) fn is_stored(&self) -> bool {
        self.stored == Some(self.changes.len())
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

    /// What was changed since the flow was read, in order, also what does nothing in this flow.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// The path of the flow, as it was named.
    pub fn name(&self) -> &str {
        &self.name
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

/// Why a file cannot be read.
fn unreadable(included: Option<&IncludedFile>, path: &str, span: SourceSpan) -> Problem {
    let (code, message) = match included {
        Some(IncludedFile::Outside) => {
            (Code::FileOutsideFolder, format!("`{path}` is outside the folder of the flow file"))
        }
        Some(IncludedFile::TooLarge) => (
            Code::TooLarge,
            format!(
                "`{path}` is larger than 8 MiB, or the files of the flow are larger than 64 MiB together"
            ),
        ),
        Some(IncludedFile::Unusable(reason)) => {
            (Code::FileMissing, format!("cannot read `{path}`: {reason}"))
        }
        Some(IncludedFile::Missing | IncludedFile::Text(_)) | None => {
            (Code::FileMissing, format!("file `{path}` not found"))
        }
    };
    let help = matches!(code, Code::FileMissing).then(|| match path.contains("{{") || path.contains("{%") {
        true => "a file name cannot be a template: files are read before the flow runs".to_owned(),
        false => "paths are relative to the folder of the flow file".to_owned(),
    });
    Problem::error(code, span, message).help(help)
}

/// What a flow names a file for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum WantedFile {
    /// Its text.
    File,
    /// A flow, or settings.
    Flow,
    /// The manifest of a pack.
    Pack,
}

/// The files that a flow or a manifest in a folder names, by their paths from the folder of the flow that was loaded.
fn named(root: &Yaml, folder: &str, what: WantedFile) -> Vec<(String, WantedFile)> {
    if what == WantedFile::Pack {
        let (files, flows) = spec::files_of_pack(root);
        let files = files.into_iter().map(|file| (joined(folder, file), WantedFile::File));
        let flows = flows.into_iter().map(|flow| (normalized(folder, flow), WantedFile::Flow));
        return files.chain(flows).collect();
    }
    let packs = spec::included_packs(root, folder).into_iter().map(|path| (path, WantedFile::Pack));
    let files = spec::included_files(root).into_iter().map(|file| (joined(folder, file), WantedFile::File));
    let documents = spec::included_documents(root, folder).into_iter();
    packs.chain(files).chain(documents.map(|path| (path, WantedFile::Flow))).collect()
}

/// The innermost of these folders of packs that a flow is in.
fn pack_of<'p>(packs: &'p [String], flow: &str) -> Option<&'p str> {
    let around = packs.iter().filter(|pack| is_within(flow, pack) && !flow.is_empty());
    around.map(String::as_str).max_by_key(|pack| pack.len())
}

/// Whether a path is one of a file in a folder. What the project shares is in no other folder.
fn is_within(path: &str, folder: &str) -> bool {
    folder.is_empty() && !path.starts_with(".inspan/")
        || path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
}

/// The folder of a path; empty if it has none.
pub(crate) fn folder_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// A path from a folder; one from the flow that was loaded stays as it is written.
pub(crate) fn joined(folder: &str, file: &str) -> String {
    if folder.is_empty() { file.to_owned() } else { normalized(folder, file) }
}

/// A path from a folder without `.` and, as far as possible, without `..`.
pub(crate) fn normalized(folder: &str, file: &str) -> String {
    if Path::new(file).has_root() {
        return file.to_owned();
    }
    let mut parts: Vec<&str> = Vec::new();
    for part in folder.split('/').chain(file.split('/')) {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
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
