//! Conversations as files, one each, in the folder for what outlives a session.
//!
//! A conversation is `conversations/ID.json`, readable by its owner only and replaced whole; `ID.lock` beside it is
//! locked by the turn that uses it; the lock ends with its process. Nothing here removes old ones.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use inspan_protocol::{AgentError, Environment, ErrorCode, ErrorKind, ProviderSessionId};

use super::{Conversation, ConversationClaim, ConversationStore, VERSION};
use crate::error::{busy, not_found};

/// The largest conversation that is stored; vendors take no larger request.
const LIMIT: u64 = 32 * 1024 * 1024;

/// Keeps conversations in a folder: its own, or the one that the environment names: `conversations` in `INSPAN_HOME`,
/// else in `inspan` in `XDG_STATE_HOME`, else in `.local/state/inspan` in `HOME`.
#[derive(Clone, Debug, Default)]
pub struct FolderStore {
    folder: Option<PathBuf>,
}

impl FolderStore {
    /// Stores them in this folder, whatever the environment says.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: Some(folder.into()) }
    }

    pub(super) fn folder(&self, environment: &Environment) -> Result<PathBuf, AgentError> {
        let variable = |name: &str| environment.get(name).map(PathBuf::from);
        self.folder
            .clone()
            .or_else(|| Some(variable("INSPAN_HOME")?.join("conversations")))
            .or_else(|| Some(variable("XDG_STATE_HOME")?.join("inspan/conversations")))
            .or_else(|| Some(variable("HOME")?.join(".local/state/inspan/conversations")))
            .filter(|folder| folder.is_absolute())
            .ok_or_else(|| {
                let message = "there is no folder to store the conversation in; set INSPAN_HOME or HOME to an absolute path";
                AgentError::new(ErrorCode::ConfigMissing, message)
            })
    }
}

impl ConversationStore for FolderStore {
    fn claim(
        &self,
        session: &ProviderSessionId,
        environment: &Environment,
    ) -> Result<Box<dyn ConversationClaim>, AgentError> {
        let id = file_name(session)?;
        let folder = self.folder(environment)?;
        let claimed = claim(session, &folder, &id).map_err(|error| not_kept(session, &folder, &error))?;
        Ok(Box::new(claimed.ok_or_else(|| busy(session))?))
    }

    /// Files are replaced whole, so that no turn has to end first.
    fn read(
        &self,
        session: &ProviderSessionId,
        environment: &Environment,
    ) -> Result<Conversation, AgentError> {
        let (id, folder) = (file_name(session)?, self.folder(environment)?);
        Claimed { session: session.clone(), folder, id, lock: None }.read()
    }
}

/// The id becomes the name of a file, and comes from flows: only an id of our form may.
fn file_name(session: &ProviderSessionId) -> Result<String, AgentError> {
    let known = uuid::Uuid::try_parse(session.as_str()).ok().map(|id| id.to_string());
    known.filter(|id| id == session.as_str()).ok_or_else(|| not_found(session))
}

/// The files of one conversation.
struct Claimed {
    session: ProviderSessionId,
    folder: PathBuf,
    id: String,
    /// Absent if it is only read.
    lock: Option<File>,
}

impl Drop for Claimed {
    fn drop(&mut self) {
        // Closing it is not enough: a program that is being started at this moment has a copy of it for a while.
        let _unlocked = self.lock.as_ref().map(File::unlock);
    }
}

fn claim(session: &ProviderSessionId, folder: &Path, id: &str) -> io::Result<Option<Claimed>> {
    create_private(folder)?;
    let lock = private().create(true).truncate(false).write(true).open(folder.join(format!("{id}.lock")))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    Ok(Some(Claimed {
        session: session.clone(),
        folder: folder.to_owned(),
        id: id.to_owned(),
        lock: Some(lock),
    }))
}

/// Creates a folder that is its owner's only, unless it exists.
pub(super) fn create_private(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// A new file is its owner's only.
pub(super) fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

impl Claimed {
    fn path(&self) -> PathBuf {
        self.folder.join(format!("{}.json", self.id))
    }

    fn damaged(&self, what: &str) -> AgentError {
        let message =
            format!("the conversation {} is damaged: {} {what}", self.session, self.path().display());
        AgentError::new(ErrorCode::InvalidRequest, message).with_kind(ErrorKind::SessionDamaged)
    }

    fn replace(&self, bytes: &[u8]) -> io::Result<()> {
        // Only the holder of the lock writes, so one name is enough; what a crash left there is written over.
        let draft = self.folder.join(format!("{}.draft", self.id));
        let write = || {
            let mut file = private().create(true).truncate(true).write(true).open(&draft)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            fs::rename(&draft, self.path())
        };
        // A half of one takes the space that a full disk lacks.
        write().inspect_err(|_| drop(fs::remove_file(&draft)))
    }
}

impl ConversationClaim for Claimed {
    fn read(&mut self) -> Result<Conversation, AgentError> {
        let file = match File::open(self.path()) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(not_found(&self.session)),
            Err(error) => return Err(not_kept(&self.session, &self.folder, &error)),
        };
        let mut bytes = Vec::new();
        let read = file.take(LIMIT + 1).read_to_end(&mut bytes);
        read.map_err(|error| not_kept(&self.session, &self.folder, &error))?;
        if bytes.len() as u64 > LIMIT {
            return Err(self.damaged("is larger than 32 MiB"));
        }
        // The words of the parser may quote the conversation, so only the place is reported.
        let conversation: Conversation = serde_json::from_slice(&bytes).map_err(|error| {
            self.damaged(&format!("does not hold one (line {}, column {})", error.line(), error.column()))
        })?;
        if conversation.version != VERSION {
            return Err(self.damaged(&format!("has version {}, not {VERSION}", conversation.version)));
        }
        Ok(conversation)
    }

    fn write(&mut self, conversation: &Conversation) -> Result<(), AgentError> {
        let bytes = serde_json::to_vec(conversation)
            .map_err(|error| not_kept(&self.session, &self.folder, &error.into()))?;
        if bytes.len() as u64 > LIMIT {
            let message = format!("the conversation {} has grown beyond 32 MiB", self.session);
            return Err(AgentError::new(ErrorCode::ContextLength, message));
        }
        self.replace(&bytes).map_err(|error| not_kept(&self.session, &self.folder, &error))
    }
}

fn not_kept(session: &ProviderSessionId, folder: &Path, error: &io::Error) -> AgentError {
    let message = format!("cannot store the conversation {session} in {}: {error}", folder.display());
    // A full disk passes once somebody makes space.
    let code = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorCode::Process,
        _ => ErrorCode::ConfigInvalid,
    };
    AgentError::new(code, message).with_kind(ErrorKind::SessionNotStored)
}

#[cfg(test)]
mod tests;
