//! The one error that crosses every boundary: a code and a kind from closed tables, a message, and what a caller needs to
//! act on it.

use std::{fmt, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer, de};
use serde_json::{Map, Value};

use crate::{Timestamp, flat};

macro_rules! codes {
    ($( $(#[$meta:meta])* $tag:ident $variant:ident $wire:literal $retry:literal; )*) => {
        /// What went wrong. Whether trying again may help follows from it alone.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
        #[non_exhaustive]
        pub enum ErrorCode { $( $(#[$meta])* #[serde(rename = $wire)] $variant, )* }

        impl ErrorCode {
            /// Every code.
            pub const ALL: &[Self] = &[$( Self::$variant, )*];

            /// The word on the wire.
            pub const fn as_str(self) -> &'static str {
                match self { $( Self::$variant => $wire, )* }
            }

            /// The family of the code.
            pub const fn tag(self) -> ErrorTag {
                match self { $( Self::$variant => ErrorTag::$tag, )* }
            }

            /// Whether a turn that failed so can go on in its conversation: what failed is its vendor, the network, its
            /// program, or the login or account with which it asked, and not what was asked. An answer that breaks the protocol
            /// is a fault of a gateway or a vendor.
            pub const fn leaves_conversation(self) -> bool {
                use ErrorCode::{
                    Auth, Billing, ConfigMissing, ModelNotFound, Network, Overloaded, Process, Protocol,
                    RateLimited,
                };
                matches!(self, RateLimited | Overloaded | Network | Process | Protocol)
                    || matches!(self, Auth | Billing | ConfigMissing | ModelNotFound)
            }

            /// Whether the same call may succeed later.
            pub const fn is_retryable(self) -> bool {
                match self { $( Self::$variant => $retry, )* }
            }
        }
    };
}

codes! {
    /// Something needed is not set: a key, a program.
    ConfigError ConfigMissing "CONFIG_MISSING" false;
    /// Something is set to what cannot be.
    ConfigError ConfigInvalid "CONFIG_INVALID" false;
    /// The vendor does not accept the key or the login.
    ProviderError Auth "AUTH" false;
    /// Too many requests or tokens in a time.
    ProviderError RateLimited "RATE_LIMITED" true;
    /// The vendor is overloaded or broken on its side.
    ProviderError Overloaded "OVERLOADED" true;
    /// There is no such model, or not for this account.
    ProviderError ModelNotFound "MODEL_NOT_FOUND" false;
    /// The account cannot pay.
    ProviderError Billing "BILLING" false;
    /// The vendor refused the request as malformed.
    ProviderError InvalidRequest "INVALID_REQUEST" false;
    /// The model refused to answer.
    ProviderError Refused "REFUSED" false;
    /// A tool that the agent could not do without was denied.
    ProviderError ToolDenied "TOOL_DENIED" false;
    /// No answer in time.
    RequestError Timeout "TIMEOUT" true;
    /// The caller cancelled.
    RequestError Aborted "ABORTED" false;
    /// The conversation is too long for the model.
    RequestError ContextLength "CONTEXT_LENGTH" false;
    /// The connection failed or broke.
    RequestError Network "NETWORK" true;
    /// The other side broke its protocol.
    RequestError Protocol "PROTOCOL" false;
    /// A program could not be started, or died.
    RequestError Process "PROCESS" true;
    /// A caller's hook failed.
    HookError HookFailed "HOOK_FAILED" false;
    /// A node of the flow failed by its own rules.
    FlowError NodeFailed "NODE_FAILED" false;
    /// A template or an expression could not be evaluated.
    FlowError BindingFailed "BINDING_FAILED" false;
    /// An output does not fit its schema.
    FlowError OutputInvalid "OUTPUT_INVALID" false;
    /// A loop ran as often as it may and its condition still holds.
    FlowError LoopExhausted "LOOP_EXHAUSTED" false;
    /// A budget of the flow or the node is used up.
    FlowError BudgetExceeded "BUDGET_EXCEEDED" false;
}

/// The family of an [`ErrorCode`], written as `_tag`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub enum ErrorTag {
    /// The caller's set-up.
    ConfigError,
    /// The vendor's answer.
    ProviderError,
    /// The way to the vendor and back.
    RequestError,
    /// The caller's own hook.
    HookError,
    /// The flow's own rules.
    FlowError,
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

macro_rules! kinds {
    ($( $(#[$meta:meta])* $variant:ident $wire:literal; )*) => {
        /// Which of the faults that share an [`ErrorCode`] this is. A program may decide by it; on the wire it is the
        /// text `kind` in the error's detail.
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ErrorKind {
            $( $(#[$meta])* $variant, )*
            /// A kind that this version does not know.
            Other(String),
        }

        impl ErrorKind {
            /// The text on the wire.
            pub fn as_str(&self) -> &str {
                match self {
                    $( Self::$variant => $wire, )*
                    Self::Other(kind) => kind,
                }
            }
        }

        impl From<&str> for ErrorKind {
            fn from(kind: &str) -> Self {
                match kind {
                    $( $wire => Self::$variant, )*
                    other => Self::Other(other.to_owned()),
                }
            }
        }
    };
}

kinds! {
    /// The provider does not know the conversation that was to be continued; nothing was done in it.
    SessionNotFound "sessionNotFound";
    /// Another turn is running in the conversation.
    SessionBusy "sessionBusy";
    /// The stored conversation cannot be read.
    SessionDamaged "sessionDamaged";
    /// The conversation could not be stored.
    SessionNotStored "sessionNotKept";
    /// The program exited before the turn ended.
    ProcessDied "processDied";
    /// The guard of the program was killed, and the program with it.
    GuardLost "guardLost";
    /// The program did not get ready in time, or not at all.
    Start "start";
    /// Nothing arrived for too long.
    Stall "stall";
    /// The call took longer than it may.
    Deadline "deadline";
    /// The program or its configuration does not accept an option.
    OptionRefused "optionRefused";
    /// The agent does not offer what an option requests.
    NotOffered "notOffered";
    /// The program's own configuration is not valid.
    Configuration "configuration";
    /// The program has neither a login nor a key.
    NoLogin "noLogin";
    /// The budget of the call is used up.
    MaxBudget "maxBudget";
    /// The budget of the conversation is used up.
    SessionBudget "sessionBudget";
    /// A usage limit of the account is reached.
    UsageLimit "usageLimit";
    /// The agent's sandbox failed.
    Sandbox "sandbox";
    /// The agent could not produce output that fits its schema.
    StructuredOutput "structuredOutput";
    /// The model called a tool that it was not offered.
    UnexpectedTool "unexpectedTool";
    /// An MCP server cannot be used; its name is in the detail.
    McpServer "mcpServer";
    /// The configured address serves another API.
    Address "address";
    /// No connection to the server.
    Connect "connect";
    /// The connection was lost.
    Broken "broken";
    /// The stream ended before the response did.
    Truncated "truncated";
    /// The server does not speak HTTP.
    Http "http";
    /// The server's certificate is not trusted.
    Certificate "certificate";
    /// The server redirects to another address.
    Redirect "redirect";
    /// The response is not of the expected content type.
    ContentType "contentType";
    /// A `control.loop` has used up its passes.
    PassesUsedUp "passesUsedUp";
    /// A flow calls itself deeper than it may.
    SubflowTooDeep "subflowTooDeep";
    /// The folder for the files of a session's nodes cannot be made.
    ArtifactsFolder "artifactsFolder";
    /// The folder to work in does not exist.
    WorkingFolder "workingFolder";
    /// The disk of a machine is full.
    DiskFull "diskFull";
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The longest wait that is believed to be a vendor's: 31 days. Beyond it, a number was meant otherwise.
pub const LONGEST_WAIT: Duration = Duration::from_secs(31 * 86_400);

/// What went wrong, in a form that can be acted on, logged and sent. The code that creates one leaves keys, tokens and header
/// values out of it.
#[derive(Clone, Debug, PartialEq, JsonSchema)]
#[schemars(with = "Wire")]
pub struct AgentError {
    /// The kind of fault.
    pub code: ErrorCode,
    /// A lower-case fragment that completes "failed to …" or "failed because …".
    pub message: String,
    /// How long the vendor asks to wait.
    pub retry_after: Option<Duration>,
    /// When a usage limit is lifted.
    pub resets_at: Option<Timestamp>,
    /// The provider's type.
    pub provider: Option<String>,
    /// More data for programs.
    pub detail: Option<Box<Value>>,
}

impl AgentError {
    /// An error of a kind, with its message.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            retry_after: None,
            resets_at: None,
            provider: None,
            detail: None,
        }
    }

    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        self.code.is_retryable()
    }

    /// The same error with its provider, unless it names one.
    #[must_use]
    pub fn from_provider(mut self, provider: &str) -> Self {
        self.provider.get_or_insert_with(|| provider.to_owned());
        self
    }

    /// The same error with more details for a program.
    #[must_use]
    pub fn with_detail(mut self, detail: Value) -> Self {
        self.detail = Some(Box::new(detail));
        self
    }

    /// The same error without a wait or a reset that no vendor can mean: one that is more than [`LONGEST_WAIT`]
    /// ahead, and without details that are nested too deep to be read again. For errors that come from outside.
    #[must_use]
    pub fn believable(mut self, now: Timestamp) -> Self {
        self.retry_after = self.retry_after.filter(|wait| *wait <= LONGEST_WAIT);
        self.resets_at = self.resets_at.filter(|moment| *moment <= now + LONGEST_WAIT);
        self.detail = self.detail.map(|detail| Box::new(flat(*detail)));
        self
    }

    /// The same error with one more field in its detail, unless the value is null; a detail that is not an object is
    /// replaced.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        let value = value.into();
        if value.is_null() {
            return self;
        }
        let mut detail = match self.detail.take().map(|detail| *detail) {
            Some(Value::Object(fields)) => fields,
            _ => Map::new(),
        };
        detail.insert(key.to_owned(), value);
        self.with_detail(Value::Object(detail))
    }

    /// The same error with its kind.
    #[must_use]
    pub fn with_kind(self, kind: ErrorKind) -> Self {
        self.with("kind", kind.as_str())
    }

    /// Which of the faults that share the error's code this is.
    pub fn kind(&self) -> Option<ErrorKind> {
        self.detail.as_ref()?.get("kind")?.as_str().map(ErrorKind::from)
    }

    /// Whether the error is of this kind.
    pub fn is(&self, kind: ErrorKind) -> bool {
        self.kind() == Some(kind)
    }

    /// Whether the turn that failed so can go on in its conversation: by its code, or because nothing arrived any more, or it
    /// could not begin.
    pub fn leaves_conversation(&self) -> bool {
        use ErrorKind::{SessionBusy, Stall, WorkingFolder};
        self.code.leaves_conversation()
            || [Stall, SessionBusy, WorkingFolder].map(Some).contains(&self.kind())
    }

    /// The same error with the vendor's wish to wait.
    #[must_use]
    pub fn with_retry_after(mut self, retry_after: Option<Duration>) -> Self {
        self.retry_after = retry_after;
        self
    }
}

impl fmt::Display for AgentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(provider) = &self.provider {
            write!(f, "{provider}: ")?;
        }
        write!(f, "{} ({})", self.message, self.code)
    }
}

impl std::error::Error for AgentError {}

#[serde_with::skip_serializing_none]
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "AgentError")]
struct Wire {
    #[serde(rename = "_tag")]
    tag: ErrorTag,
    code: ErrorCode,
    message: String,
    retryable: bool,
    retry_after_ms: Option<u64>,
    resets_at: Option<Timestamp>,
    provider: Option<String>,
    detail: Option<Box<Value>>,
}

impl Serialize for AgentError {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Wire {
            tag: self.code.tag(),
            code: self.code,
            message: self.message.clone(),
            retryable: self.is_retryable(),
            retry_after_ms: self.retry_after.map(|wait| wait.as_millis().try_into().unwrap_or(u64::MAX)),
            resets_at: self.resets_at,
            provider: self.provider.clone(),
            detail: self.detail.clone(),
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for AgentError {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let wire = Wire::deserialize(deserializer)?;
        if wire.tag != wire.code.tag() || wire.retryable != wire.code.is_retryable() {
            return Err(de::Error::custom(format_args!(
                "`_tag` or `retryable` does not fit code {}",
                wire.code
            )));
        }
        Ok(Self {
            code: wire.code,
            message: wire.message,
            retry_after: wire.retry_after_ms.map(Duration::from_millis),
            resets_at: wire.resets_at,
            provider: wire.provider,
            detail: wire.detail,
        })
    }
}

/// An error with its causes, each once: some say their cause too.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| match cause.to_string() {
        cause if text.contains(&cause) => text,
        cause => format!("{text}: {cause}"),
    })
}

/// The words of a library, and what they mean.
const WORDS: &[(&str, &str)] = &[
    ("expected sequence start", "expected a list"),
    ("expected mapping start", "expected a mapping"),
    ("a sequence", "a list"),
    ("a map", "a mapping"),
    ("invalid digit found in string", "not a whole number"),
    ("cannot parse integer from empty string", "a number is missing"),
    ("number would be zero for non-zero type", "must be at least 1"),
    ("number too large to fit in target type", "the number is too large"),
    ("invalid float literal", "not a number"),
    ("expected f64", "expected a number"),
    ("expected u64", "expected a whole number"),
    ("expected u32", "expected a whole number"),
    ("expected i32", "expected a whole number"),
    ("expected string scalar", "expected a text"),
    ("expected usize", "expected a whole number"),
    ("Other(OtherError(CaUsedAsEndEntity))", "it belongs to an authority, and not to a server"),
    ("OtherError(CaUsedAsEndEntity)", "it belongs to an authority, and not to a server"),
    ("relative URL without a base", "it must begin with `https://` or another scheme"),
];

/// A message in which the words of libraries are replaced.
pub fn plain_words(message: &str) -> String {
    // The name of a type of ours says nothing to others.
    let message = match message.split_once("expected struct ") {
        Some((before, named)) => {
            let after = named.trim_start_matches(char::is_alphanumeric);
            format!("{before}expected a mapping{after}")
        }
        None => message.to_owned(),
    };
    WORDS.iter().fold(message, |message, (theirs, ours)| {
        let ends = |at: usize| !message[at + theirs.len()..].starts_with(char::is_alphanumeric);
        match message.find(theirs).filter(|at| ends(*at)) {
            Some(at) => format!("{}{ours}{}", &message[..at], &message[at + theirs.len()..]),
            None => message,
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_these_codes_are_retryable() {
        let retryable: Vec<_> =
            ErrorCode::ALL.iter().filter(|code| code.is_retryable()).map(|c| c.as_str()).collect();
        assert_eq!(retryable, ["RATE_LIMITED", "OVERLOADED", "TIMEOUT", "NETWORK", "PROCESS"]);
    }

    #[test]
    fn the_wire_form_carries_what_the_code_implies() {
        let error = AgentError::new(ErrorCode::RateLimited, "too many requests")
            .with_retry_after(Some(Duration::from_secs(3)))
            .from_provider("claude");
        let wire = json!({
            "_tag": "ProviderError", "code": "RATE_LIMITED", "message": "too many requests", "retryable": true,
            "retryAfterMs": 3000, "provider": "claude",
        });
        assert_eq!(serde_json::to_value(&error).unwrap(), wire);
        assert_eq!(serde_json::from_value::<AgentError>(wire).unwrap(), error);
    }

    #[test]
    fn a_kind_is_a_text_in_the_detail() {
        let error = AgentError::new(ErrorCode::InvalidRequest, "no such conversation");
        assert_eq!((error.kind(), error.is(ErrorKind::SessionNotFound)), (None, false));
        let error =
            error.with("status", 404).with("word", None::<&str>).with_kind(ErrorKind::SessionNotFound);
        assert!(error.is(ErrorKind::SessionNotFound));
        assert_eq!(*error.detail.unwrap(), json!({ "kind": "sessionNotFound", "status": 404 }));
        let rows = [
            (json!({ "kind": "stall" }), Some(ErrorKind::Stall)),
            (json!({ "kind": "newKind" }), Some(ErrorKind::Other("newKind".to_owned()))),
            (json!({ "kind": 1 }), None),
            (json!("kind"), None),
        ];
        for (detail, expected) in rows {
            let error = AgentError::new(ErrorCode::Timeout, "late").with_detail(detail);
            assert_eq!(error.leaves_conversation(), expected == Some(ErrorKind::Stall));
            assert_eq!(error.kind(), expected);
        }
    }

    #[test]
    fn waits_of_more_than_31_days_are_not_believed() {
        let now = Timestamp::from_millis(1_767_780_000_000);
        let day = Duration::from_secs(86_400);
        let limited = |wait: Duration| {
            let mut error = AgentError::new(ErrorCode::RateLimited, "slow down").with_retry_after(Some(wait));
            error.resets_at = Some(now + wait);
            error.believable(now)
        };
        let valid = limited(31 * day);
        assert_eq!((valid.retry_after, valid.resets_at), (Some(31 * day), Some(now + 31 * day)));
        for wait in
            [31 * day + Duration::from_millis(1), Duration::from_secs(1_000_000_000_000), Duration::MAX]
        {
            assert_eq!(limited(wait), AgentError::new(ErrorCode::RateLimited, "slow down"), "{wait:?}");
        }
    }

    #[test]
    fn a_wire_form_that_contradicts_its_code_is_refused() {
        let wire = json!({ "_tag": "ProviderError", "code": "AUTH", "message": "no", "retryable": true });
        let refused = serde_json::from_value::<AgentError>(wire).unwrap_err().to_string();
        assert_eq!(refused, "`_tag` or `retryable` does not fit code AUTH");
    }

    #[test]
    fn causes_are_said_once() {
        #[derive(Debug)]
        struct Layer(&'static str, Option<Box<Layer>>);
        impl fmt::Display for Layer {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.0)
            }
        }
        impl std::error::Error for Layer {
            fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
                self.1.as_deref().map(|cause| cause as _)
            }
        }
        let error =
            Layer("outer: inner", Some(Box::new(Layer("inner", Some(Box::new(Layer("root", None)))))));
        assert_eq!(with_causes(&error), "outer: inner: root");
    }

    #[test]
    fn the_words_of_libraries_are_replaced_and_others_stay() {
        let rows = [
            ("limit: invalid digit found in string", "limit: not a whole number"),
            ("invalid type: string \"x\", expected f64", "invalid type: string \"x\", expected a number"),
            ("invalid type: a map, expected a mapping", "invalid type: a mapping, expected a mapping"),
            (
                "invalid type: integer `5`, expected struct Budget",
                "invalid type: integer `5`, expected a mapping",
            ),
            ("no such file", "no such file"),
        ];
        for (theirs, ours) in rows {
            assert_eq!(plain_words(theirs), ours);
        }
    }
}
