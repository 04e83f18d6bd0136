//! Values that are too large for a log: which they are, what replaces them, and where they are stored.

use std::{collections::BTreeMap, ops::Range};

use async_trait::async_trait;
use inspan_protocol::SessionId;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use crate::StoreError;

/// A field of an event that takes more bytes of JSON than this is stored beside the log.
pub const LARGE_VALUE: usize = 64 * 1024;
/// The most bytes that an event may take as JSON, with all its values.
pub const MOST_EVENT_BYTES: usize = 256 << 20;

/// A value as JSON, under the hash of its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blob {
    hash: String,
    json: String,
}

impl Blob {
    /// The blob of a JSON text.
    pub fn new(json: impl Into<String>) -> Self {
        let json = json.into();
        Self { hash: hash(&json), json }
    }

    /// The SHA-256 of the JSON, in hexadecimal digits.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// The value as JSON.
    pub fn json(&self) -> &str {
        &self.json
    }

    /// What replaces it.
    pub fn reference(&self) -> BlobRef {
        BlobRef { hash: self.hash.clone(), bytes: self.json.len() as u64 }
    }
}

/// What replaces a large value: `{"$blob":"…","bytes":…}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlobRef {
    /// The SHA-256 of the value's JSON, in hexadecimal digits.
    #[serde(rename = "$blob")]
    pub hash: String,
    /// The length of the JSON.
    pub bytes: u64,
}

impl BlobRef {
    /// Whether this JSON is the value.
    pub fn is_of(&self, json: &str) -> bool {
        self.bytes == json.len() as u64 && self.hash == hash(json)
    }
}

/// Where large values are stored, each session's by themselves, so that they are deleted with it.
///
/// A value is stored before what refers to it, so a reference is never without its value; a value to which nothing refers
/// is removed by whatever cleans up the store. The hash is checked when a value is read.
#[async_trait]
pub trait BlobStore: Send + Sync {
    /// Stores a value; one that the session has already is not stored again.
    async fn put(&self, session: &SessionId, blob: &Blob) -> Result<(), StoreError>;

    /// A value; [`StoreError::NoBlob`] if it is not there or not what was stored.
    async fn get(&self, session: &SessionId, reference: &BlobRef) -> Result<Blob, StoreError>;
}

/// An event's JSON without its large values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    /// The envelope, with a reference in the place of each large value.
    pub(crate) body: String,
    /// The fields of the event that are references, as a JSON array of their names; none if there are none.
    pub(crate) large: Option<String>,
    pub(crate) blobs: Vec<Blob>,
}

/// Takes the large values out of an envelope's JSON.
pub(crate) fn split(body: String) -> Result<Split, serde_json::Error> {
    if body.len() <= LARGE_VALUE {
        return Ok(Split { body, large: None, blobs: Vec::new() });
    }
    let fields = fields(&body)?;
    let large: Vec<_> = fields.iter().filter(|(_, place)| place.len() > LARGE_VALUE).collect();
    let blobs: Vec<_> = large.iter().map(|(_, place)| Blob::new(&body[(*place).clone()])).collect();
    let references = blobs.iter().map(|blob| serde_json::to_string(&blob.reference()));
    let places = large.iter().map(|(_, place)| (*place).clone());
    let replaced = replaced(&body, places.zip(references.collect::<Result<Vec<_>, _>>()?).collect());
    let names: Vec<_> = large.iter().map(|(name, _)| name).collect();
    let large = if names.is_empty() { None } else { Some(serde_json::to_string(&names)?) };
    Ok(Split { body: replaced, large, blobs })
}

/// The references that an envelope's JSON holds; `large` names the fields of its event that are references.
pub(crate) fn references(body: &str, large: &str) -> Result<Vec<BlobRef>, serde_json::Error> {
    let places = referring(body, large)?.into_iter();
    places.map(|place| serde_json::from_str(&body[place])).collect()
}

/// Puts the values, in the order of [`references`], back into an envelope's JSON: the result is what [`split`] was given.
pub(crate) fn join(body: &str, large: &str, values: Vec<String>) -> Result<String, serde_json::Error> {
    Ok(replaced(body, referring(body, large)?.into_iter().zip(values).collect()))
}

fn referring(body: &str, large: &str) -> Result<Vec<Range<usize>>, serde_json::Error> {
    let names: Vec<String> = serde_json::from_str(large)?;
    let mut fields = fields(body)?;
    let missing = || serde::de::Error::custom("a field that refers to a large value is missing");
    names.iter().map(|name| fields.remove(name).ok_or_else(missing)).collect()
}

/// Where the fields of an envelope's event are in its JSON.
fn fields(body: &str) -> Result<BTreeMap<String, Range<usize>>, serde_json::Error> {
    #[derive(Deserialize)]
    struct BlobLine<'a> {
        #[serde(borrow)]
        event: BTreeMap<String, &'a RawValue>,
    }
    let place = |value: &RawValue| {
        // The value is a part of the text that it was read from.
        let start = value.get().as_ptr().addr() - body.as_ptr().addr();
        start..start + value.get().len()
    };
    let line: BlobLine<'_> = serde_json::from_str(body)?;
    Ok(line.event.into_iter().map(|(name, value)| (name, place(value))).collect())
}

/// The text with other words in these places, which do not overlap.
fn replaced(text: &str, mut places: Vec<(Range<usize>, String)>) -> String {
    places.sort_by_key(|(place, _)| place.start);
    let mut result = String::with_capacity(text.len());
    let mut from = 0;
    for (place, words) in places {
        result.push_str(&text[from..place.start]);
        result.push_str(&words);
        from = place.end;
    }
    result.push_str(&text[from..]);
    result
}

fn hash(json: &str) -> String {
    Sha256::digest(json).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn envelope(fields: &str) -> String {
        format!(r#"{{"v":1,"context":{{"task":"a"}},"event":{{"type":"x",{fields}}}}}"#)
    }

    #[test]
    fn a_large_field_gives_its_place_to_a_reference() {
        let text = format!("\"{}\"", "ä".repeat(LARGE_VALUE / 2));
        let result = format!(r#"{{ "text": {text} }}"#);
        let body = envelope(&format!(r#""result":{result},"small":[1],"twice":{result}"#));
        let Split { body: stored, large, blobs } = split(body.clone()).unwrap();
        assert_eq!(large.as_deref(), Some(r#"["result","twice"]"#));
        assert_eq!(blobs, [Blob::new(result.clone()), Blob::new(result.clone())]);
        let reference = serde_json::to_string(&blobs[0].reference()).unwrap();
        assert_eq!(stored, envelope(&format!(r#""result":{reference},"small":[1],"twice":{reference}"#)));
        let large = large.unwrap();
        let found = references(&stored, &large).unwrap();
        assert_eq!(found, [blobs[0].reference(), blobs[1].reference()]);
        assert!(found[0].is_of(&result));
        assert!(!found[0].is_of(&result.replace('ä', "ö")));
        assert_eq!(join(&stored, &large, vec![result.clone(), result]).unwrap(), body);
    }

    #[test]
    fn what_only_looks_like_a_reference_is_a_value() {
        let body =
            envelope(&format!(r#""result":{{"$blob":"00","bytes":3}},"text":"{}""#, "a".repeat(LARGE_VALUE)));
        let split = split(body.clone()).unwrap();
        assert_eq!(split.large.as_deref(), Some(r#"["text"]"#));
        let values = vec![split.blobs[0].json().to_owned()];
        assert_eq!(join(&split.body, r#"["text"]"#, values).unwrap(), body);
        assert!(references(&split.body, r#"["nothing"]"#).is_err());
        assert!(references(&split.body, r#"["type"]"#).is_err());
    }

    #[test]
    fn what_is_just_not_large_stays() {
        let text = "a".repeat(LARGE_VALUE - 2);
        let body = envelope(&format!(r#""text":"{text}""#));
        assert_eq!(split(body.clone()).unwrap(), Split { body, large: None, blobs: Vec::new() });
    }

    proptest! {
        #[test]
        fn what_is_split_is_joined_to_the_same(lengths in prop::collection::vec(0..3_usize, 1..5), text in "\\PC{1,4}") {
            let mut event = serde_json::Map::new();
            for (number, length) in lengths.iter().enumerate() {
                event.insert(format!("{text}{number}"), text.repeat(length * LARGE_VALUE / 2).into());
            }
            let body = serde_json::json!({ "v": 1, "event": event }).to_string();
            let Split { body: stored, large, blobs } = split(body.clone()).unwrap();
            prop_assert!(stored.len() <= lengths.len() * (LARGE_VALUE + 64) + 64);
            let joined = match large {
                Some(large) => {
                    let values = blobs.iter().map(|blob| blob.json().to_owned()).collect();
                    join(&stored, &large, values).unwrap()
                }
                None => stored,
            };
            prop_assert_eq!(joined, body);
        }
    }
}
