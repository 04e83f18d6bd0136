//! Reading and writing events: events with unknown names are preserved as received, and broken known ones are refused.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::{Map, Value};

use super::Event;

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
}

impl Event {
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
        let mut map = Map::<String, Value>::deserialize(deserializer)?;
        let name = match map.get("type") {
            Some(Value::String(name)) => name.clone(),
            Some(_) => return Err(de::Error::custom("an event's `type` must be a string")),
            None => return Err(de::Error::missing_field("type")),
        };
        if Self::NAMES.contains(&name.as_str()) {
            Self::deserialize(Value::Object(map))
                .map_err(|error| de::Error::custom(format_args!("event `{name}`: {error}")))
        } else {
            map.remove("type");
            Ok(Self::Unknown(UnknownEvent { name, payload: map }))
        }
    }
}
