//! Identifiers of traces, made of a session's facts alone: the same log always gives the same trace, and a program that
//! runs within an attempt can know its parent span before that span is sent anywhere.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::{Environment, NodePath, SessionId};

macro_rules! trace_ids {
    ($($(#[$meta:meta])* $name:ident $bytes:literal;)*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub [u8; $bytes]);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }

        impl $name {
            /// The beginning of the SHA-256 of the texts, each followed by a zero byte.
            fn of(texts: &[&str]) -> Self {
                let hash = texts.iter().fold(Sha256::new(), |hash, text| hash.chain_update(text).chain_update([0]));
                let mut bytes = [0; $bytes];
                bytes.copy_from_slice(&hash.finalize()[..$bytes]);
                // All zeros are not a valid identifier.
                bytes[$bytes - 1] |= u8::from(bytes == [0; $bytes]);
                Self(bytes)
            }
        }
    )*};
}

trace_ids! {
    /// The trace of one session: 16 bytes, shown as 32 hexadecimal digits.
    TraceId 16;
    /// One span of a trace: 8 bytes, shown as 16 hexadecimal digits.
    SpanId 8;
}

impl TraceId {
    /// The trace of a session.
    pub fn of_session(session: &SessionId) -> Self {
        Self::of(&["trace", session.as_str()])
    }
}

impl SpanId {
    /// The span of the whole session, which has no parent.
    pub fn of_session(session: &SessionId) -> Self {
        Self::of(&["session", session.as_str()])
    }

    /// The span of one attempt of a node.
    pub fn of_attempt(session: &SessionId, path: &NodePath, attempt: u32) -> Self {
        Self::of(&["attempt", session.as_str(), path.as_str(), &attempt.to_string()])
    }

    /// The span of what began with an event, by the event's `seq`.
    pub fn of_event(session: &SessionId, seq: u64) -> Self {
        Self::of(&["event", session.as_str(), &seq.to_string()])
    }
}

/// The names of [`trace_variables`].
pub const TRACE_VARIABLES: [&str; 2] = ["TRACEPARENT", "OTEL_TRACEPARENT"];

/// The variables by which a program within an attempt joins the session's trace: `TRACEPARENT`, which most programs read,
/// and `OTEL_TRACEPARENT`, in the form of W3C Trace Context. None if the environment sets `OTEL_SDK_DISABLED` to `true`.
pub fn trace_variables(
    environment: &Environment,
    session: &SessionId,
    path: &NodePath,
    attempt: u32,
) -> Option<[(&'static str, String); 2]> {
    if environment.get("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return None;
    }
    let span = SpanId::of_attempt(session, path, attempt);
    let parent = format!("00-{}-{span}-01", TraceId::of_session(session));
    Some(TRACE_VARIABLES.map(|name| (name, parent.clone())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_made_of_the_session_the_place_and_the_attempt() {
        let session = SessionId::from("flow-1");
        let path = NodePath::new("scan[2]/review#3");
        // Computed by another program from the rule above.
        assert_eq!(TraceId::of_session(&session).to_string(), "92a3bc36a040c44a22fe774f5568cc85");
        assert_eq!(SpanId::of_session(&session).to_string(), "8c69d2c93d7065e2");
        assert_eq!(SpanId::of_attempt(&session, &path, 2).to_string(), "26ff838f578d6c6b");
        assert_eq!(SpanId::of_event(&session, 7).to_string(), "456e0700873ed404");
    }

    #[test]
    fn a_program_gets_its_parent_unless_tracing_is_off() {
        let (session, path) = (SessionId::from("flow-1"), NodePath::new("scan[2]/review#3"));
        let parent = "00-92a3bc36a040c44a22fe774f5568cc85-26ff838f578d6c6b-01".to_owned();
        let of = |value: &str| {
            trace_variables(&Environment::default().with("OTEL_SDK_DISABLED", value), &session, &path, 2)
        };
        let set = Some([("TRACEPARENT", parent.clone()), ("OTEL_TRACEPARENT", parent)]);
        assert_eq!([of(""), of("false"), of("TRUE")], [set.clone(), set, None]);
    }
}
