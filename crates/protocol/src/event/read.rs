//! What is made of the list of events, and how they are read and written: events with unknown names are preserved as received, and broken known ones are refused.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{
        self, DeserializeSeed, IntoDeserializer, MapAccess, Visitor,
        value::{MapAccessDeserializer, MapDeserializer},
    },
};
use serde_json::{Map, Value};

use super::Event;
use crate::{RunId, Spending, TurnSpending, Usage};

const TYPE: &str = "type";

/// The enum of all events, with their names.
macro_rules! events {
    ($(
        $(#[$meta:meta])*
        $name:literal $variant:ident $payload:tt
    )*) => {
        /// One thing that happened, written as `{"type": NAME, …}`.
        #[serde_with::skip_serializing_none]
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        #[serde(tag = "type", remote = "Self")]
        pub enum Event {
            $( $(#[$meta])* #[serde(rename = $name, rename_all = "camelCase")]
            $variant $payload, )*
            /// An event whose name this version does not know; it is preserved as received.
            #[serde(skip)]
            Unknown(UnknownEvent),
        }

        #[derive(Clone, Copy)]
        enum Kind { $( $variant, )* Unknown }

        impl Event {
            /// Every known name, in the order of [`Event::kind`].
            pub const NAMES: &[&str] = &[$( $name, )*];

            /// The wire name.
            pub fn name(&self) -> &str {
                match self {
                    $( Self::$variant { .. } => $name, )*
                    Self::Unknown(event) => event.name(),
                }
            }

            /// The place of the name in [`Event::NAMES`]; all unknown names share the one after the last.
            pub const fn kind(&self) -> usize {
                match self {
                    $( Self::$variant { .. } => Kind::$variant as usize, )*
                    Self::Unknown(_) => Kind::Unknown as usize,
                }
            }
        }
    };
}

/// An event of another version or of an extension (whose names start with `_`).
#[derive(Clone, Debug, PartialEq)]
pub struct UnknownEvent {
    name: String,
    payload: Map<String, Value>,
}

impl UnknownEvent {
    /// An extension's event; `name` starts with `_` and the payload carries no `type`.
    pub fn extension(name: &str, mut payload: Map<String, Value>) -> Option<Self> {
        payload.remove("type");
        name.starts_with('_').then(|| Self { name: name.to_owned(), payload })
    }

    /// The wire name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Everything but the name.
    pub fn payload(&self) -> &Map<String, Value> {
        &self.payload
    }

    pub(crate) fn payload_mut(&mut self) -> &mut Map<String, Value> {
        &mut self.payload
    }
}

impl Event {
    /// Whether an event can have this name, or one that begins so if the text ends with `*`. Names that begin with `_`
    /// are those of extensions.
    pub fn can_match(pattern: &str) -> bool {
        let name = pattern.strip_suffix('*').unwrap_or(pattern);
        if name.starts_with('_') {
            return name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b':' | b'_' | b'-' | b'.'));
        }
        Self::NAMES.iter().any(|known| if name == pattern { *known == name } else { known.starts_with(name) })
    }

    /// What it says was spent by a turn of an agent, and has not been said before: the sum over a log counts everything
    /// once. The price of a turn is unknown only once the turn has ended without one.
    pub fn spent(&self) -> Option<(Usage, Spending)> {
        let (spent, unpriced, uncounted) = match self {
            Self::AgentSpent { usage, cost_usd, .. } => {
                (TurnSpending { usage: *usage, cost_usd: *cost_usd }, false, false)
            }
            Self::AgentUsage { usage, cost_usd, reported, uncounted, .. } => {
                let turn = TurnSpending { usage: *usage, cost_usd: *cost_usd };
                // A turn that is known to be free may have asked no model.
                let uncounted = *uncounted || usage.total() == 0 && *cost_usd != Some(0.0);
                (turn - reported.unwrap_or_default(), cost_usd.is_none(), uncounted)
            }
            _ => return None,
        };
        let cost_usd = spent.cost_usd.unwrap_or_default();
        Some((spent.usage, Spending { cost_usd, tokens: spent.usage.total(), unpriced, uncounted }))
    }

    /// The agent run that it names.
    pub fn run_id(&self) -> Option<&RunId> {
        match self {
            Self::AgentStart { run_id, .. }
            | Self::AgentListen { run_id, .. }
            | Self::AgentTurn { run_id, .. }
            | Self::AgentSteer { run_id, .. }
            | Self::AgentSession { run_id, .. }
            | Self::AgentText { run_id, .. }
            | Self::AgentThinking { run_id, .. }
            | Self::AgentRetract { run_id, .. }
            | Self::AgentToolStart { run_id, .. }
            | Self::AgentToolComplete { run_id, .. }
            | Self::AgentSpent { run_id, .. }
            | Self::AgentUsage { run_id, .. }
            | Self::AgentWarning { run_id, .. }
            | Self::AgentComplete { run_id, .. }
            | Self::SessionClose { run_id, .. } => Some(run_id),
            Self::SessionMessage { run_id, .. } => run_id.as_ref(),
            _ => None,
        }
    }

    /// Whether it says that work, a session or a part of it has ended: such an event is shown once it is stored.
    pub const fn is_end(&self) -> bool {
        matches!(
            self,
            Self::TaskComplete { .. }
                | Self::TaskFailed { .. }
                | Self::TaskReused { .. }
                | Self::FrameComplete { .. }
                | Self::FrameFailed { .. }
                | Self::PhaseComplete { .. }
                | Self::PhaseFailed { .. }
                | Self::FlowPaused { .. }
                | Self::HarnessComplete { .. }
        )
    }
}

impl Serialize for Event {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Unknown(event) => {
                let mut map = event.payload.clone();
                map.insert("type".to_owned(), Value::String(event.name.clone()));
                map.serialize(serializer)
            }
            known => Self::serialize(known, serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Event {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EventVisitor)
    }
}

struct EventVisitor;

impl<'de> Visitor<'de> for EventVisitor {
    type Value = Event;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an event")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Event, A::Error> {
        let first = map.next_entry::<String, Value>()?;
        // The events that we write begin with their type: they need no value in between.
        if let Some((TYPE, Value::String(name))) = first.as_ref().map(|(key, value)| (key.as_str(), value))
            && let Some(name) = known(name)
        {
            return read(name, map);
        }
        let mut payload: Map<String, Value> = first.into_iter().collect();
        while let Some((key, value)) = map.next_entry()? {
            payload.insert(key, value);
        }
        let name = match payload.remove(TYPE) {
            Some(Value::String(name)) => name,
            Some(_) => return Err(de::Error::custom("an event's `type` must be a string")),
            None => return Err(de::Error::missing_field(TYPE)),
        };
        match known(&name) {
            Some(name) => read::<MapDeserializer<'_, _, serde_json::Error>>(
                name,
                MapDeserializer::new(payload.into_iter()),
            )
            .map_err(de::Error::custom),
            None => Ok(Event::Unknown(UnknownEvent { name, payload })),
        }
    }
}

/// The name, if this version knows it.
fn known(name: &str) -> Option<&'static str> {
    Event::NAMES.iter().copied().find(|known| *known == name)
}

/// The event of this name with these fields.
fn read<'de, M: MapAccess<'de>>(name: &'static str, fields: M) -> Result<Event, M::Error> {
    Event::deserialize(MapAccessDeserializer::new(Tagged { name: Some(name), fields }))
        .map_err(|error| de::Error::custom(format_args!("event `{name}`: {error}")))
}

/// The fields of an event with its type before them.
struct Tagged<M> {
    /// The type, until it was read.
    name: Option<&'static str>,
    fields: M,
}

impl<'de, M: MapAccess<'de>> MapAccess<'de> for Tagged<M> {
    type Error = M::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, M::Error> {
        match self.name {
            Some(_) => seed.deserialize(TYPE.into_deserializer()).map(Some),
            None => self.fields.next_key_seed(seed),
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, M::Error> {
        match self.name.take() {
            Some(name) => seed.deserialize(name.into_deserializer()),
            None => self.fields.next_value_seed(seed),
        }
    }
}
