//! Why something could not be done with a session: a code that programs can rely on, a sentence and a hint. The command
//! line makes its exit codes of the codes, the HTTP API its problem documents.

use inspan_flow::StoreError;
use inspan_protocol::SessionId;
use inspan_view::Commands;
use serde_json::Value;

macro_rules! codes {
    ($( $variant:ident $word:literal $meaning:literal; )*) => {
        /// What kind of problem it is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum SessionErrorCode { $( #[doc = $meaning] $variant, )* }

        impl SessionErrorCode {
            /// Every code.
            pub const ALL: &'static [Self] = &[$( Self::$variant, )*];

            /// The code with this word.
            pub fn of_word(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|code| code.word() == word)
            }

            /// The word for it in JSON.
            pub const fn word(self) -> &'static str {
                match self { $( Self::$variant => $word, )* }
            }

            /// What it means, in a few words.
            pub const fn meaning(self) -> &'static str {
                match self { $( Self::$variant => $meaning, )* }
            }
        }
    };
}

codes! {
    UnknownSession "unknownSession" "no session has this id";
    AmbiguousSession "ambiguousSession" "the ID fits several sessions";
    SessionExists "sessionExists" "there is a session with this id already";
    SessionEnded "sessionEnded" "the session has ended and takes no commands";
    SessionContinued "sessionContinued" "another session continues it";
    SessionHeld "sessionHeld" "another process runs it";
    NotRunning "notRunning" "no process runs it, and the command needs one";
    FlowOfOtherVersion "flowOfOtherVersion" "this program cannot compile the flow of the session, which another version or another program started";
    UnknownNode "unknownNode" "the flow has no such node";
    UnknownPrompt "unknownPrompt" "no open question has this id";
    AmbiguousPrompt "ambiguousPrompt" "several questions are open";
    AlreadyAnswered "alreadyAnswered" "the question was answered before";
    QuestionExpired "questionExpired" "the question has expired";
    InvalidAnswer "invalidAnswer" "the answer does not fit the question";
    UnknownRun "unknownRun" "no agent run has this id";
    AmbiguousRun "ambiguousRun" "several agent runs are meant";
    CommandRefused "commandRefused" "the process that runs the session refused the command";
    NoResponse "noResponse" "the process that runs the session did not answer in time";
    KeyReused "keyReused" "the caller's key was used for something else before";
    UnknownFlow "unknownFlow" "no registered flow has this id, or no file is there";
    InvalidFlow "invalidFlow" "the flow has problems";
    InvalidInput "invalidInput" "the input does not fit the flow";
    InvalidRequest "invalidRequest" "the request is not valid";
    CannotStart "cannotStart" "this program cannot start sessions";
    Configuration "configuration" "a key, a login, a program or a setting is missing or wrong";
    StoreDamaged "storeDamaged" "the store is damaged";
    StoreUnavailable "storeUnavailable" "the store cannot be used at the moment: it is locked, full or read-only";
    Failed "failed" "anything else";
}

/// Why something could not be done with a session.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct SessionError {
    /// What kind of problem it is.
    pub code: SessionErrorCode,
    /// What went wrong: a fragment in lower case that names the file, node or key.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
    /// The problems of a flow, each as `inspan check --json` reports it.
    pub diagnostics: Vec<Value>,
}

impl SessionError {
    /// A problem without a hint.
    pub fn new(code: SessionErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: None, diagnostics: Vec::new() }
    }

    /// With what to do about it.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same error; the commands in its hint mean the sessions of these.
    #[must_use]
    pub fn naming(mut self, commands: &Commands) -> Self {
        self.hint = self.hint.map(|hint| commands.complete(&hint));
        self
    }
}

impl From<StoreError> for SessionError {
    fn from(error: StoreError) -> Self {
        let plain = Self::new(code(&error), error.to_string());
        match error {
            StoreError::UnknownSession(_) => plain.with_hint("`inspan ps --all` lists the sessions"),
            StoreError::SessionExists(id) => plain
                .with_hint(format!("`inspan resume {id}` continues it; a new session needs another ID")),
            StoreError::DescendsFromItself(_) => {
                plain.with_hint("a new session needs another ID than those that it descends from had")
            }
            StoreError::IdTaken { .. } => plain.with_hint(
                "a new session needs another ID, or an address with another namespace: sessions of one namespace share their ids",
            ),
            StoreError::Continued { session, by } => plain.with_hint(format!(
                "`inspan resume {by}` resumes that one; `inspan fork {session}` starts another from the same point"
            )),
            StoreError::Claimed { session, .. } => {
                plain.with_hint(format!("`inspan resume {session} --edited` starts it"))
            }
            StoreError::HasNewEvents(_) => plain.with_hint("repeat the command: it then knows what is finished"),
            StoreError::SessionEnded(id) => plain
                .with_hint(format!("`inspan resume {id}` starts a new session that reuses finished work")),
            StoreError::Held { session, .. } => plain.with_hint(format!(
                "watch it with `inspan logs {session} -f`, pause it with `inspan pause {session}`"
            )),
            StoreError::Unreachable(_) => plain.with_hint("`inspan doctor` says what it finds of the engine"),
            StoreError::NotNotified { session, .. } => plain
                .with_hint(format!("`inspan resume {session}` continues it when the engine answers again")),
            StoreError::Interrupted { session, .. } => {
                plain.with_hint(format!("`inspan resume {session}` continues with what is stored"))
            }
            StoreError::Needed { by, .. } => plain.with_hint(format!(
                "end it first: `inspan resume {by}` or `inspan stop {by}`"
            )),
            StoreError::Reopens { session, before } => {
                let all: Vec<&str> = before.iter().chain([&session]).map(SessionId::as_str).collect();
                plain.with_hint(format!("`inspan store gc {}` deletes them together", all.join(" ")))
            }
            StoreError::Damaged { .. } => plain.with_hint(
                "`inspan store verify` shows what is damaged, `inspan store accept-loss` accepts the store as it is",
            ),
            StoreError::Shared(_) => plain.with_hint(
                "`sessions` in the engine's address names their folder or bucket: it must be there, have space, and allow reading and writing",
            ),
            StoreError::DamagedObject { .. } => {
                plain.with_hint("put the object back from a copy of the folder or bucket; other sessions do not need it")
            }
            StoreError::OtherKey { .. } => {
                plain.with_hint("use the key with which it was stored, or none if it had none; for another key begin in a new folder")
            }
            StoreError::NotAStore { .. } | StoreError::NetworkFileSystem { .. } => {
                plain.with_hint("name another file with `--store FILE`, or another folder with INSPAN_HOME")
            }
            StoreError::ReadOnly { .. } => {
                plain.with_hint("allow writing there, or name another file with `--store FILE`")
            }
            StoreError::Unreadable { .. } => {
                plain.with_hint("allow reading there, or name another file with `--store FILE`")
            }
            _ => plain,
        }
    }
}

fn code(error: &StoreError) -> SessionErrorCode {
    match error {
        StoreError::UnknownSession(_) => SessionErrorCode::UnknownSession,
        StoreError::SessionExists(_) | StoreError::IdTaken { .. } => SessionErrorCode::SessionExists,
        StoreError::Continued { .. } | StoreError::Claimed { .. } => SessionErrorCode::SessionContinued,
        StoreError::SessionEnded(_) => SessionErrorCode::SessionEnded,
        StoreError::ReplyWaits { .. } => SessionErrorCode::AlreadyAnswered,
        StoreError::KeyReused { .. } => SessionErrorCode::KeyReused,
        StoreError::Held { .. } | StoreError::HasNewEvents(_) => SessionErrorCode::SessionHeld,
        StoreError::Interrupted { .. } => SessionErrorCode::NotRunning,
        StoreError::NotAStore { .. }
        | StoreError::ReadOnly { .. }
        | StoreError::Unreadable { .. }
        | StoreError::NewerFormat { .. }
        | StoreError::Unreachable(_)
        | StoreError::Shared(_)
        | StoreError::OtherKey { .. }
        | StoreError::NetworkFileSystem { .. } => SessionErrorCode::Configuration,
        StoreError::Damaged { .. } | StoreError::DamagedObject { .. } => SessionErrorCode::StoreDamaged,
        StoreError::Locked { .. } | StoreError::Full { .. } => SessionErrorCode::StoreUnavailable,
        _ => SessionErrorCode::Failed,
    }
}

/// What a wrong name may have meant.
pub fn meant(wrong: &str, known: &[&str]) -> String {
    near(wrong, known).unwrap_or_else(|| format!("available: {}", known.join(", ")))
}

/// The question whether a wrong name meant one that is like it, if there is one.
pub(crate) fn near(wrong: &str, known: &[&str]) -> Option<String> {
    let near = known
        .iter()
        .map(|name| (strsim::damerau_levenshtein(wrong, name), name))
        .filter(|(distance, name)| *distance <= (wrong.len() / 3).max(1) || name.contains(wrong))
        .filter(|_| !wrong.is_empty())
        .min();
    near.map(|(_, name)| format!("did you mean `{name}`?"))
}
