//! A lock on a node of a session, on one machine: two workers of a machine never run it at the same time, even if the
//! server has given the attempt of a worker that does not answer to another one.

use std::{
    fmt::Write as _,
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read as _, Write as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use inspan_engine::create_private_dir_all;
use inspan_protocol::{NodePath, SessionId};
use sha2::{Digest as _, Sha256};

/// How much is read of what a holder says about itself.
const LONGEST_HOLDER: u64 = 1_000;

/// The right to run a node, until it is dropped or the process ends.
#[derive(Debug)]
pub(crate) struct AttemptLock {
    path: PathBuf,
    _file: File,
}

/// The result of taking a lock.
#[derive(Debug)]
pub(crate) enum Locked {
    Taken(AttemptLock),
    /// Another process has it: what it says about itself.
    Held(String),
}

impl AttemptLock {
    /// Takes the lock of a node, if no other process has it.
    pub(crate) fn take(folder: &Path, session: &SessionId, node: &NodePath) -> io::Result<Locked> {
        create_private_dir_all(folder)?;
        let path = folder.join(name(session, node));
        loop {
            let mut file =
                OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let mut holder = String::new();
                    file.take(LONGEST_HOLDER).read_to_string(&mut holder)?;
                    return Ok(Locked::Held(holder.trim_end().to_owned()));
                }
                Err(TryLockError::Error(error)) => return Err(error),
            }
            // Its holder may have removed it since it was opened.
            if is_at(&file, &path)? {
                file.set_len(0)?;
                writeln!(file, "process {} runs {node} of session {session}", std::process::id())?;
                return Ok(Locked::Taken(Self { path, _file: file }));
            }
        }
    }
}

impl Drop for AttemptLock {
    fn drop(&mut self) {
        // It is removed while it is locked, so that it is not the lock of another process. If that fails, it stays as an
        // unlocked file.
        let _left = fs::remove_file(&self.path);
    }
}

/// The name of the file; ids and places may be longer than a name may be.
fn name(session: &SessionId, node: &NodePath) -> String {
    let hash = Sha256::new().chain_update(session.as_str()).chain_update([0]).chain_update(node.to_string());
    let mut name = hash.finalize()[..16].iter().fold(String::new(), |mut name, byte| {
        let _written = write!(name, "{byte:02x}");
        name
    });
    name.push_str(".lock");
    name
}

/// Whether an open file is the one at a path.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    match fs::metadata(path) {
        Ok(at) => {
            let open = file.metadata()?;
            Ok((open.dev(), open.ino()) == (at.dev(), at.ino()))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use inspan_protocol::NodeId;

    use super::*;

    #[test]
    fn a_node_is_locked_once_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let node = |id: &str| NodePath::root(&NodeId::new(id).unwrap());
        let session = SessionId::from("s");
        let take = |id: &str| AttemptLock::take(folder.path(), &session, &node(id)).unwrap();
        let Locked::Taken(first) = take("a") else { panic!("nobody has it") };
        let Locked::Held(holder) = take("a") else { panic!("it was taken twice") };
        assert_eq!(holder, format!("process {} runs a of session s", std::process::id()));
        let Locked::Taken(other) = take("b") else { panic!("another node is not locked") };
        drop((first, other));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(matches!(take("a"), Locked::Taken(_)));
    }

    /// A process that waits for the lock has opened the file that its holder removes.
    #[test]
    fn the_lock_of_a_removed_file_counts_for_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.lock");
        let file = File::create(&path).unwrap();
        assert!(is_at(&file, &path).unwrap());
        fs::remove_file(&path).unwrap();
        assert!(!is_at(&file, &path).unwrap());
        let _new = File::create(&path).unwrap();
        assert!(!is_at(&file, &path).unwrap());
    }
}
