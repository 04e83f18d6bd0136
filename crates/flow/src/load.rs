//! Reading a flow and the files that it draws in. This is the only file of this crate that touches the disk
//! on the author's behalf; what the texts mean is left to `spec` and `compile`.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read},
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use crate::{
    overrides::{Change, OverrideError},
    spec::{self, Document},
    store::FlowSource,
};

/// How large a flow file, and each file that it draws in, may be.
const MAX_BYTES: u64 = 8 * 1024 * 1024;
/// How large the files that a flow draws in may be together.
const MAX_DRAWN: usize = 64 * 1024 * 1024;

/// Why a flow file could not be read, or a flow's input is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FlowError {
    /// There is no such file.
    #[error("flow file {path} does not exist")]
    NotFound {
        /// The file as it was named.
        path: PathBuf,
    },
    /// It is a directory, a device or the like.
    #[error("flow file {path} is {what}, not a file")]
    NotAFile {
        /// The file as it was named.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// It is too large to be a flow.
    #[error("flow file {path} has {bytes} bytes, and a flow may have {limit}")]
    TooLarge {
        /// The file as it was named.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The largest size.
        limit: u64,
    },
    /// It is no text.
    #[error("flow file {path} is not UTF-8: byte {at} begins no character")]
    NotUtf8 {
        /// The file as it was named.
        path: PathBuf,
        /// The place of the first bad byte, counting from 0.
        at: usize,
    },
    /// The system refuses to give it.
    #[error("flow file {path} cannot be read: {source}")]
    Unreadable {
        /// The file as it was named.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The input that was given does not fit the flow.
    #[error("input of flow `{flow}` is refused: {}", problems.join("; "))]
    Input {
        /// The flow's name.
        flow: String,
        /// Each problem, in words.
        problems: Vec<String>,
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
pub(crate) enum Drawn {
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
        Self {
            name: name.into(),
            folder: PathBuf::from("."),
            text: text.into(),
            document: spec::parse(text, 0),
            files,
            changes: Vec::new(),
        }
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

/// Reads a flow file and the files that it draws in.
pub fn load(path: &Path) -> Result<Loaded, FlowError> {
    let named = || path.to_owned();
    let metadata = fs::metadata(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => FlowError::NotFound { path: named() },
        _ => FlowError::Unreadable { path: named(), source },
    })?;
    if !metadata.is_file() {
        let what = if metadata.is_dir() { "a directory" } else { "a device or a pipe" };
        return Err(FlowError::NotAFile { path: named(), what });
    }
    let too_large = |bytes| FlowError::TooLarge { path: named(), bytes, limit: MAX_BYTES };
    if metadata.len() > MAX_BYTES {
        return Err(too_large(metadata.len()));
    }
    let bytes = read(path).map_err(|source| FlowError::Unreadable { path: named(), source })?;
    let bytes = bytes.ok_or_else(|| too_large(MAX_BYTES + 1))?;
    let text = String::from_utf8(bytes)
        .map_err(|error| FlowError::NotUtf8 { path: named(), at: error.utf8_error().valid_up_to() })?;
    let text = Arc::from(text);
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    let root = folder.canonicalize().map_err(|source| FlowError::Unreadable { path: named(), source })?;
    let document = spec::parse(&text, 0);
    let wanted = document.root.as_ref().map(spec::drawn_files).unwrap_or_default();
    let mut total = 0;
    let files = wanted.into_iter().map(|file| {
        let drawn = match draw(&root, file) {
            Drawn::Text(text) if total + text.len() > MAX_DRAWN => Drawn::TooLarge,
            drawn => drawn,
        };
        total += if let Drawn::Text(text) = &drawn { text.len() } else { 0 };
        (file.to_owned(), drawn)
    });
    let files = files.collect();
    Ok(Loaded {
        name: path.display().to_string().into(),
        folder: root,
        text,
        document,
        files,
        changes: Vec::new(),
    })
}

/// Reads a file of the flow's folder. The real path counts: a link that leads out is outside.
fn draw(root: &Path, file: &str) -> Drawn {
    if leaves(Path::new(file)) {
        return Drawn::Outside;
    }
    let path = match root.join(file).canonicalize() {
        Ok(path) if path.starts_with(root) => path,
        Ok(_) => return Drawn::Outside,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Drawn::Missing,
        Err(error) => return Drawn::Unusable(error.to_string()),
    };
    match fs::metadata(&path) {
        Ok(metadata) if metadata.is_dir() => return Drawn::Unusable("it is a directory".to_owned()),
        Ok(metadata) if !metadata.is_file() => return Drawn::Unusable("it is not a plain file".to_owned()),
        Ok(metadata) if metadata.len() > MAX_BYTES => return Drawn::TooLarge,
        Ok(_) => {}
        Err(error) => return Drawn::Unusable(error.to_string()),
    }
    match read(&path) {
        Ok(None) => Drawn::TooLarge,
        Ok(Some(bytes)) => String::from_utf8(bytes)
            .map_or_else(|_| Drawn::Unusable("it is not UTF-8".to_owned()), Drawn::Text),
        Err(error) => Drawn::Unusable(error.to_string()),
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

/// The bytes of a file, or none if it has more than a file may have, even if it has grown meanwhile.
fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = File::open(path)?;
    let mut bytes = Vec::with_capacity(file.metadata()?.len().min(MAX_BYTES) as usize + 1);
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= MAX_BYTES).then_some(bytes))
}
