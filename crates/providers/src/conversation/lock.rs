//! One turn at a time in a conversation that a program stores, among processes too. Programs allow two, and then lose what
//! one of them did, or ask the model without end.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use inspan_protocol::{AgentError, Environment, ProviderSessionId};
use tokio::time::{Instant, sleep};

use super::folder::{FolderStore, create_private, private};
use crate::error::busy;

/// How long until a lock that another process holds is tried again.
const PAUSE: Duration = Duration::from_millis(50);

/// A conversation that is locked for one turn. The lock ends with this value, and with the process.
///
/// Each holder makes a new file in place of the one before. So a process that keeps the file after its turn sees
/// whether another process has had the conversation since.
#[derive(Debug)]
pub(crate) struct ConversationLock(File, PathBuf);

impl ConversationLock {
    /// Waits until no other process uses the conversation. Nothing is locked where no file can be written, where one was left
    /// that cannot be opened, and for an id that cannot be the name of a file.
    ///
    /// # Errors
    /// It is in use until then (`INVALID_REQUEST`, kind `sessionBusy`).
    pub(crate) async fn take(
        session: &ProviderSessionId,
        environment: &Environment,
        until: Instant,
    ) -> Result<Option<Self>, AgentError> {
        let Some(path) = path(session, environment) else { return Ok(None) };
        loop {
            match try_lock(&path) {
                Ok(file) => return Ok(Some(Self(file, path))),
                Err(TryLockError::Error(error)) => {
                    tracing::warn!(%error, path = %path.display(), "the conversation cannot be locked");
                    return Ok(None);
                }
                Err(TryLockError::WouldBlock) if Instant::now() >= until => return Err(busy(session)),
                Err(TryLockError::WouldBlock) => sleep(PAUSE).await,
            }
        }
    }

    /// Lets other processes have the conversation.
    pub(crate) fn release(&self) {
        // Closing it is not enough: a program that is being started at this moment has a copy of it for a while.
        let _unlocked = self.0.unlock();
    }

    /// Locks the conversation again after a release. Says whether no other process has had it, or has it, since then.
    pub(crate) fn take_again(&self) -> bool {
        self.0.try_lock().is_ok() && is_at(&self.0, &self.1).unwrap_or(false)
    }
}

impl Drop for ConversationLock {
    fn drop(&mut self) {
        // The file of another process is not deleted.
        if self.take_again() {
            let _deleted = fs::remove_file(&self.1);
        }
        self.release();
    }
}

fn path(session: &ProviderSessionId, environment: &Environment) -> Option<PathBuf> {
    let id = session.as_str();
    let is_name =
        id.len() <= 128 && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    let folder = FolderStore::default().folder(environment).ok().filter(|_| is_name)?;
    Some(folder.join(format!("program-{id}.lock")))
}

fn try_lock(path: &Path) -> Result<File, TryLockError> {
    path.parent().map_or(Ok(()), create_private).map_err(TryLockError::Error)?;
    match File::options().write(true).open(path) {
        Ok(left) => {
            // A process that is idle, or gone, has left it.
            left.try_lock()?;
            if is_at(&left, path).map_err(TryLockError::Error)? {
                let _another_process_was_first = fs::remove_file(path);
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(TryLockError::Error(error)),
    }
    let file = match private().create_new(true).write(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(TryLockError::WouldBlock),
        file => file.map_err(TryLockError::Error)?,
    };
    file.try_lock()?;
    // Another process may have taken it for one that was left. Then a third process does not see this lock.
    if is_at(&file, path).map_err(TryLockError::Error)? { Ok(file) } else { Err(TryLockError::WouldBlock) }
}

fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let opened = file.metadata()?;
    match fs::metadata(path) {
        Ok(there) => Ok((there.dev(), there.ino()) == (opened.dev(), opened.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_that_cannot_be_opened_locks_nothing_and_one_that_was_left_is_replaced() {
        let home = tempfile::tempdir().unwrap();
        let environment =
            [("INSPAN_HOME".to_owned(), home.path().display().to_string())].into_iter().collect();
        let session = ProviderSessionId::from("s");
        let path = path(&session, &environment).unwrap();
        let take = || ConversationLock::take(&session, &environment, Instant::now());
        create_private(path.parent().unwrap()).unwrap();
        fs::write(&path, "").unwrap();
        let lock = take().await.unwrap().unwrap();
        assert_eq!(
            take().await.unwrap_err().code,
            inspan_protocol::ErrorCode::InvalidRequest,
            "it is in use"
        );
        drop(lock);
        // Not even the administrator, as whom tests may run, can open a folder to write.
        fs::create_dir(&path).unwrap();
        assert!(take().await.unwrap().is_none());
        assert!(path.is_dir());
    }
}
