//! A newtype for every identifier, so that no two can be confused.

use std::{fmt, sync::Arc};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};
use sha2::{Digest, Sha256};
use uuid::Uuid;

macro_rules! string_id {
    ($($(#[$meta:meta])* $name:ident;)*) => {$(
        $(#[$meta])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Takes the text as it is.
            pub fn new(text: impl Into<Arc<str>>) -> Self {
                Self(text.into())
            }

            /// The text of the identifier.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        plain_text!($name);

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.into())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text.into())
            }
        }
    )*};
}

macro_rules! plain_text {
    ($name:ident) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({:?})", stringify!($name), &*self.0)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl PartialEq<str> for $name {
            fn eq(&self, other: &str) -> bool {
                &*self.0 == other
            }
        }

        impl PartialEq<&str> for $name {
            fn eq(&self, other: &&str) -> bool {
                &*self.0 == *other
            }
        }
    };
}

string_id! {
    /// One execution of a flow. Made by the runner, or chosen by the caller.
    SessionId;
    /// One agent invocation, fresh every time. Within a flow it is named after the attempt of the node.
    RunId;
    /// One question to a person. Within a flow it is named after the attempt of the node that asks.
    PromptId;
    /// The vendor's own conversation. Made by the vendor.
    ProviderSessionId;
    /// The end of one turn in the vendor's conversation: the place where a branch can begin. Made by the vendor.
    TurnId;
}

/// A text that cannot name a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a session id is 1 to 128 letters, digits, `-`, `_` or `.`")]
pub struct InvalidSessionId;

impl SessionId {
    /// Takes a text from outside: the id becomes part of file names and of what people type, so it begins with a
    /// letter, a digit or `_`.
    ///
    /// # Errors
    /// [`InvalidSessionId`] if it is another text.
    pub fn checked(text: &str) -> Result<Self, InvalidSessionId> {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if text.is_empty() || text.len() > 128 || !text.chars().all(fits) || text.starts_with(['-', '.']) {
            return Err(InvalidSessionId);
        }
        Ok(Self::from(text))
    }
}

/// A node of a flow, unique in its graph: `[A-Za-z_][A-Za-z0-9_]*`. Chosen by the author.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct NodeId(#[schemars(regex(pattern = r"^[A-Za-z_][A-Za-z0-9_]*$"))] Arc<str>);

/// A text that cannot be a [`NodeId`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a node id: a letter or `_`, then letters, digits and `_`")]
pub struct InvalidNodeId(
    /// The text that was refused.
    pub String,
);

impl NodeId {
    /// Checks the text against the pattern of a node id.
    pub fn new(text: &str) -> Result<Self, InvalidNodeId> {
        let mut bytes = text.bytes();
        let head = bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
        if head && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            Ok(Self(text.into()))
        } else {
            Err(InvalidNodeId(text.to_owned()))
        }
    }

    /// The text of the identifier.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

plain_text!(NodeId);

impl<'de> Deserialize<'de> for NodeId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Self::new(&text).map_err(de::Error::custom)
    }
}

/// The place of a node in a run: `review`, `review#3` on the third pass of a loop edge,
/// `scan[2]/review` inside the third iteration of the frame that `scan` opened.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct NodePath(Arc<str>);

impl NodePath {
    /// A path as people write it; whether the run has it is seen when it is looked up.
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// The first pass of a node in the flow's outermost frame.
    pub fn root(node: &NodeId) -> Self {
        Self(node.0.clone())
    }

    /// The same place on another pass of its loop; passes count from 1, and the first is not written.
    pub fn with_pass(&self, pass: u32) -> Self {
        let base = self.base();
        if pass <= 1 { Self(base.into()) } else { Self(format!("{base}#{pass}").into()) }
    }

    /// A node within iteration `index` of the frame that this node opened.
    pub fn within(&self, index: u32, node: &NodeId) -> Self {
        Self(format!("{}[{index}]/{node}", self.0).into())
    }

    /// A pass of a node in a frame; `prefix` is what the paths of that frame begin with, such as `scan[4]/`.
    pub fn in_frame(prefix: &str, node: &NodeId, pass: u32) -> Self {
        match (prefix, pass) {
            ("", 0 | 1) => Self(node.0.clone()),
            (_, 0 | 1) => Self(format!("{prefix}{node}").into()),
            _ => Self(format!("{prefix}{node}#{pass}").into()),
        }
    }

    /// The parts of the path from the flow inwards: node, pass, and which of the node's frames the next part is in.
    /// A part that is not of this form ends the list.
    pub fn parts(&self) -> impl Iterator<Item = PathPart<'_>> {
        self.0.split('/').map_while(|part| {
            let (place, index) = match part.strip_suffix(']').and_then(|part| part.rsplit_once('[')) {
                Some((place, index)) => (place, Some(index.parse().ok()?)),
                None => (part, None),
            };
            let (node, pass) = match place.split_once('#') {
                Some((node, pass)) => (node, pass.parse().ok()?),
                None => (place, 1),
            };
            Some(PathPart { node, pass, index })
        })
    }

    /// The place of the node in the flow's file, without passes and iterations: `scan/review` of `scan#2[4]/review`.
    pub fn place(&self) -> Self {
        if !self.0.contains(['#', '[']) {
            return self.clone();
        }
        Self(self.parts().map(|part| part.node).collect::<Vec<_>>().join("/").into())
    }

    /// Whether this is the same place as another, or one in a body within it.
    pub fn is_within(&self, outer: &Self) -> bool {
        self.0.strip_prefix(&*outer.0).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// Whether the node is in a frame of another node.
    pub fn is_in_frame(&self) -> bool {
        self.0.contains('/')
    }

    /// The node in whose frame this one is, `scan#2` for `scan#2[4]/review`.
    pub fn owner(&self) -> Option<Self> {
        let (around, _) = self.0.rsplit_once('/')?;
        let frame = around.strip_suffix(']').and_then(|frame| frame.rsplit_once('['));
        Some(Self(frame.map_or(around, |(owner, _)| owner).into()))
    }

    /// The text of the path.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The node at the end of the path, as the author wrote its id.
    pub fn node(&self) -> &str {
        self.last().0
    }

    /// [`NodePath::node`] and [`NodePath::pass`] in one.
    pub fn node_and_pass(&self) -> (&str, u32) {
        let (node, pass) = self.last();
        (node, pass.and_then(|pass| pass.parse().ok()).unwrap_or(1))
    }

    /// Which pass of its loop this is, counting from 1.
    pub fn pass(&self) -> u32 {
        self.node_and_pass().1
    }

    /// The node at the end, and its pass as far as it is written. Every fact of a task is found by the two, so the
    /// text is walked once, from its end.
    fn last(&self) -> (&str, Option<&str>) {
        let bytes = self.0.as_bytes();
        let (mut start, mut hash) = (bytes.len(), None);
        while start > 0 && bytes[start - 1] != b'/' {
            start -= 1;
            if bytes[start] == b'#' {
                hash = Some(start);
            }
        }
        match hash {
            Some(hash) => (&self.0[start..hash], Some(&self.0[hash + 1..])),
            None => (&self.0[start..], None),
        }
    }

    fn base(&self) -> &str {
        let last = self.0.rfind('/').map_or(0, |slash| slash + 1);
        self.0[last..].find('#').map_or(&*self.0, |hash| &self.0[..last + hash])
    }
}

plain_text!(NodePath);

/// One part of a [`NodePath`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathPart<'a> {
    /// The node's id.
    pub node: &'a str,
    /// Its pass, counting from 1.
    pub pass: u32,
    /// Which of its frames the next part is in, counting from 0; absent at the end and in a subflow.
    pub index: Option<u32>,
}

/// One event: a UUID. It is made of the session and of the event's `seq`, so that the same log always has the same ids.
/// Logs of earlier versions have random ones, of version 7.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct EventId(pub Uuid);

impl EventId {
    /// The id of the event at this place of a session's log: a UUID of version 8, the beginning of the SHA-256 of the
    /// session's id, a zero byte, and `seq` as 8 bytes, the greatest first.
    pub fn of(session: &SessionId, seq: u64) -> Self {
        let hash =
            Sha256::new().chain_update(session.as_str()).chain_update([0]).chain_update(seq.to_be_bytes());
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash.finalize()[..16]);
        Self(uuid::Builder::from_custom_bytes(bytes).into_uuid())
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_ids_follow_the_pattern() {
        let accepted = ["a", "_", "plan_2", "A9"];
        let refused = ["", "9a", "a-b", "a.b", "ä", "a b"];
        assert_eq!(
            accepted.map(|text| NodeId::new(text).map(|id| id.to_string())),
            accepted.map(|t| Ok(t.to_owned()))
        );
        assert_eq!(refused.map(NodeId::new), refused.map(|text| Err(InvalidNodeId(text.to_owned()))));
    }

    #[test]
    fn the_id_of_an_event_is_made_of_its_session_and_its_place() {
        let id = |session: &str, seq| EventId::of(&session.into(), seq).to_string();
        // Computed by another program from the rule above.
        assert_eq!(id("flow-1", 1), "f01e9a18-71dc-84f3-9574-bbb337188856");
        assert_eq!(id("flow-1", 2), "d238a0a4-e47d-84f3-a59b-213dcce5ff73");
        assert_eq!(id("flow-2", 1), "6c117ad0-e9c2-88b2-a0c0-66b5e2bc864b");
        let made = EventId::of(&"flow-1".into(), 1).0;
        assert_eq!((made.get_version_num(), made.get_variant()), (8, uuid::Variant::RFC4122));
    }

    #[test]
    fn a_path_tells_its_node_and_pass() {
        let node = NodeId::new("review").unwrap();
        let root = NodePath::root(&node);
        let third = root.with_pass(3);
        let inner = NodePath::root(&NodeId::new("scan").unwrap()).with_pass(2).within(4, &node);
        let rows = [root, third.clone(), third.with_pass(1), inner.clone(), inner.with_pass(2)];
        let seen = rows.each_ref().map(|path| (path.as_str(), path.node(), path.pass()));
        assert_eq!(
            seen,
            [
                ("review", "review", 1),
                ("review#3", "review", 3),
                ("review", "review", 1),
                ("scan#2[4]/review", "review", 1),
                ("scan#2[4]/review#2", "review", 2),
            ]
        );
        let owners = rows.each_ref().map(NodePath::owner);
        let scan = NodePath::new("scan#2");
        assert_eq!(owners, [None, None, None, Some(scan.clone()), Some(scan)]);
        assert_eq!(NodePath::new("sub/each[1]/x").owner(), Some(NodePath::new("sub/each")));
        assert_eq!(NodePath::new("sub/x#2").owner(), Some(NodePath::new("sub")));
    }
}
