//! Reads a flow file and the files that it includes from the disk.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use inspan_flow_core::{IncludedFile, Loaded, NAMED_FLOWS, PROJECT_PACKS};

/// How large a flow file, and each file that it includes, may be.
const MAX_BYTES: u64 = 8 * 1024 * 1024;

/// Why a flow file could not be read.
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
    #[error("flow file {path} is too large: {bytes} bytes, and the limit is {limit}")]
    TooLarge {
        /// The file as it was named.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The largest size.
        limit: u64,
    },
    /// It is no text.
    #[error("flow file {path} is not valid UTF-8 at byte {at}")]
    NotUtf8 {
        /// The file as it was named.
        path: PathBuf,
        /// The place of the first bad byte, counting from 0.
        at: usize,
    },
    /// The system refuses to read it.
    #[error("cannot read flow file {path}: {source}")]
    Unreadable {
        /// The file as it was named.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

/// Reads a flow file and the files that it includes.
pub fn load(path: &Path) -> Result<Loaded, FlowError> {
    let text = text(path)?;
    loaded(path, text)
}

/// Reads the manifest of a pack, and the files of the pack, as a flow would that names it.
pub fn load_pack(path: &Path) -> Result<Loaded, FlowError> {
    text(path)?;
    loaded(&path.with_extension("flow"), "flow: { name: pack, packs: [.] }\nnodes: []\n".to_owned())
}

/// The text of a flow file.
fn text(path: &Path) -> Result<String, FlowError> {
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
    String::from_utf8(bytes)
        .map_err(|error| FlowError::NotUtf8 { path: named(), at: error.utf8_error().valid_up_to() })
}

/// A flow with the files that it includes.
fn loaded(path: &Path, text: String) -> Result<Loaded, FlowError> {
    let named = || path.to_owned();
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    let root = folder.canonicalize().map_err(|source| FlowError::Unreadable { path: named(), source })?;
    let shared = [NAMED_FLOWS, PROJECT_PACKS].map(|name| (name, of_project(&root, name)));
    Ok(Loaded::read(&path.display().to_string(), root.clone(), text, |file| {
        let file = Path::new(file);
        let of_project = shared
            .iter()
            .find_map(|(name, folder)| Some((folder.as_deref()?, file.strip_prefix(name).ok()?)));
        match of_project {
            Some((folder, file)) => draw(folder, file),
            None => draw(&root, file),
        }
    }))
}

/// A folder that a project shares among its flows: the nearest one, upwards from a folder.
fn of_project(folder: &Path, name: &str) -> Option<PathBuf> {
    folder.ancestors().find_map(|folder| folder.join(name).canonicalize().ok())
}

/// Reads a file of the flow's folder. The real path counts: a link that leads out is outside, also one that leads out of
/// a pack.
fn draw(root: &Path, file: &Path) -> IncludedFile {
    let mut folders: Vec<PathBuf> = file.ancestors().skip(1).map(|folder| root.join(folder)).collect();
    folders.retain(|folder| folder.join("pack.yaml").is_file());
    let pack = folders.first().and_then(|pack| pack.canonicalize().ok());
    let inner = pack.as_deref().unwrap_or(root);
    let path = match root.join(file).canonicalize() {
        Ok(path) if path.starts_with(root) && path.starts_with(inner) => path,
        Ok(_) => return IncludedFile::Outside,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return IncludedFile::Missing,
        Err(error) => return IncludedFile::Unusable(error.to_string()),
    };
    match fs::metadata(&path) {
        Ok(metadata) if metadata.is_dir() => return IncludedFile::Unusable("it is a directory".to_owned()),
        Ok(metadata) if !metadata.is_file() => {
            return IncludedFile::Unusable("it is not a plain file".to_owned());
        }
        Ok(metadata) if metadata.len() > MAX_BYTES => return IncludedFile::TooLarge,
        Ok(_) => {}
        Err(error) => return IncludedFile::Unusable(error.to_string()),
    }
    match read(&path) {
        Ok(None) => IncludedFile::TooLarge,
        Ok(Some(bytes)) => String::from_utf8(bytes)
            .map_or_else(|_| IncludedFile::Unusable("it is not UTF-8".to_owned()), IncludedFile::Text),
        Err(error) => IncludedFile::Unusable(error.to_string()),
    }
}

/// The bytes of a file, or none if it has more than a file may have, even if it has grown meanwhile.
fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = File::open(path)?;
    let mut bytes = Vec::with_capacity(file.metadata()?.len().min(MAX_BYTES) as usize + 1);
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= MAX_BYTES).then_some(bytes))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{FlowError, load};
    use crate::{Loaded, compile, testing::TalkProvider};

    #[test]
    fn what_is_no_flow_file_is_refused_by_its_kind() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("latin.yaml"), b"name: caf\xe9\n").unwrap();
        // Sparse: refused by its size before a byte of it is read.
        fs::File::create(path("huge.yaml")).unwrap().set_len(100 * 1024 * 1024).unwrap();
        let kinds: Vec<_> = ["none.yaml", "latin.yaml", "huge.yaml", ""]
            .into_iter()
            .map(|name| match load(&path(name)) {
                Err(FlowError::NotFound { .. }) => "not found".to_owned(),
                Err(FlowError::NotUtf8 { at, .. }) => format!("not UTF-8 at {at}"),
                Err(FlowError::TooLarge { bytes, limit, .. }) => format!("{bytes} of {limit} bytes"),
                Err(FlowError::NotAFile { what, .. }) => what.to_owned(),
                other => format!("{other:?}"),
            })
            .collect();
        assert_eq!(kinds, ["not found", "not UTF-8 at 9", "104857600 of 8388608 bytes", "a directory"]);
    }

    /// Flows of other files are part of the source: a stored session needs no files.
    #[test]
    fn flows_that_a_flow_runs_are_found_from_their_own_folders() {
        let project = tempfile::tempdir().unwrap();
        let path = |name: &str| project.path().join(name);
        for folder in ["flows/sub/prompts", ".inspan/flows/parts"] {
            fs::create_dir_all(path(folder)).unwrap();
        }
        let call = |input: &str| {
            format!("name: x\nnodes: [{{ id: call, type: control.subflow, input: {{ {input} }} }}]\n")
        };
        let ask =
            |file: &str| format!("name: x\nnodes: [{{ id: ask, type: talk.agent, promptFile: {file} }}]\n");
        let files = [
            ("flows/main.yaml", call("file: ./sub/one.yaml")),
            ("flows/sub/one.yaml", call("flow: shared")),
            (".inspan/flows/shared.yaml", call("file: parts/two.yaml")),
            (".inspan/flows/parts/two.yaml", ask("ask.md")),
            (".inspan/flows/parts/ask.md", "Hello".to_owned()),
        ];
        for (name, text) in &files {
            fs::write(path(name), text).unwrap();
        }
        let nodes = TalkProvider::new(|_, _| Vec::new()).nodes();
        let graph = compile(&load(&path("flows/main.yaml")).unwrap(), &nodes).unwrap().graph;
        let names: Vec<&str> = graph.source.files.keys().map(String::as_str).collect();
        let expected = [
            ".inspan/flows/parts/ask.md",
            ".inspan/flows/parts/two.yaml",
            ".inspan/flows/shared.yaml",
            "sub/one.yaml",
        ];
        assert_eq!((names.as_slice(), graph.bodies.len()), (expected.as_slice(), 4));

        let source = graph.source.clone();
        project.close().unwrap();
        let again = compile(&Loaded::from_source(&source).unwrap(), &nodes).unwrap().graph;
        assert_eq!((again.hash, again.bodies.len()), (graph.hash, 4));
    }

    /// Packs are part of the source too: those of the flow's folder, and those that the project shares.
    #[test]
    fn packs_are_read_whole_and_nothing_outside_of_them() {
        let project = tempfile::tempdir().unwrap();
        let path = |name: &str| project.path().join(name);
        for folder in ["flows/own", ".inspan/packs/shared"] {
            fs::create_dir_all(path(folder)).unwrap();
        }
        let ask = "name: x\nnodes: [{ id: ask, type: talk.agent, promptFile: ask.md }]\n";
        let files = [
            ("flows/own/pack.yaml", "name: own\nnodes: { ask: { flow: ask.yaml } }\n"),
            ("flows/own/ask.yaml", ask),
            ("flows/secret.md", "secret"),
            (".inspan/packs/shared/pack.yaml", "name: shared\nnodes: { ask: { flow: ask.yaml } }\n"),
            (".inspan/packs/shared/ask.yaml", ask),
            (".inspan/packs/shared/ask.md", "Hello"),
        ];
        for (name, text) in files {
            fs::write(path(name), text).unwrap();
        }
        std::os::unix::fs::symlink(path("flows/secret.md"), path("flows/own/ask.md")).unwrap();
        let nodes = TalkProvider::new(|_, _| Vec::new()).nodes();
        let flow = |packs: &str, node_type: &str| {
            let text =
                format!("name: x\npacks: {packs}\nnodes: [{{ id: a, type: {node_type}, input: {{}} }}]\n");
            fs::write(path("flows/main.yaml"), text).unwrap();
            compile(&load(&path("flows/main.yaml")).unwrap(), &nodes)
        };
        let problems = flow("[./own]", "own.ask").unwrap_err().to_string();
        assert_eq!(
            problems,
            "own/ask.yaml:2:50: error[file-outside-folder]: `ask.md` is outside the folder of the flow file"
        );
        let graph = flow("[shared, ./own]", "shared.ask").unwrap().graph;
        let source = graph.source.clone();
        let names: Vec<&str> = source.files.keys().map(String::as_str).collect();
        let shared = ["ask.md", "ask.yaml", "pack.yaml"].map(|name| format!(".inspan/packs/shared/{name}"));
        let own = ["own/ask.yaml", "own/pack.yaml"].map(str::to_owned);
        assert_eq!(names, shared.iter().chain(&own).collect::<Vec<_>>());
        project.close().unwrap();
        let again = compile(&Loaded::from_source(&source).unwrap(), &nodes).unwrap().graph;
        assert_eq!((again.hash, again.bodies.len()), (graph.hash, 2));
    }

    #[test]
    fn links_and_large_files_do_not_slip_in() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("secret.md"), "secret").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::os::unix::fs::symlink(outside.path().join("secret.md"), path("link.md")).unwrap();
        std::os::unix::fs::symlink(outside.path(), path("linked")).unwrap();
        std::os::unix::fs::symlink(path("real.md"), path("alias.md")).unwrap();
        fs::write(path("real.md"), "Hello").unwrap();
        fs::write(path("bad.md"), b"\xff").unwrap();
        fs::File::create(path("huge.md")).unwrap().set_len(9 * 1024 * 1024).unwrap();
        let names =
            ["link.md", "linked/secret.md", "alias.md", "./sub/../real.md", "bad.md", "huge.md", "real.md/x"];
        fs::create_dir(path("sub")).unwrap();
        let nodes = names
            .iter()
            .enumerate()
            .map(|(at, name)| format!("  - {{ id: n{at}, type: talk.agent, promptFile: {name} }}\n"));
        fs::write(path("flow.yaml"), format!("name: x\nnodes:\n{}", nodes.collect::<String>())).unwrap();
        let loaded = load(&path("flow.yaml")).unwrap();
        let problems = compile(&loaded, &TalkProvider::new(|_, _| Vec::new()).nodes()).unwrap_err();
        let said: Vec<_> =
            problems.iter().map(|problem| (problem.start.line, problem.code.as_str())).collect();
        assert_eq!(
            said,
            [
                (3, "file-outside-folder"),
                (4, "file-outside-folder"),
                (7, "file-missing"),
                (8, "too-large"),
                (9, "file-missing"),
            ]
        );
        assert_eq!((loaded.file("alias.md"), loaded.file("link.md")), (Some("Hello"), None));
    }
}
