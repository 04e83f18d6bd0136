//! The envelope that the hub puts around each event: order, identity, time and place.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};

use crate::{ENVELOPE_VERSION, Event, EventContext, EventId, Timestamp};

/// One event of one session, live or recorded: the two are the same type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Envelope {
    /// The version of this format.
    #[serde(deserialize_with = "known_version")]
    pub v: u16,
    /// The identity of the event.
    pub id: EventId,
    /// The place in the session's order, dense from 1; nothing else sorts events.
    pub seq: u64,
    /// When the hub took the event.
    pub timestamp: Timestamp,
    /// Where the event comes from.
    pub context: Arc<EventContext>,
    /// What happened.
    pub event: Event,
}

fn known_version<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u16, D::Error> {
    let v = u16::deserialize(deserializer)?;
    if v == 0 || v > ENVELOPE_VERSION {
        return Err(de::Error::custom(format_args!(
            "the envelope has format version {v}, and this program reads up to {ENVELOPE_VERSION}"
        )));
    }
    Ok(v)
}
