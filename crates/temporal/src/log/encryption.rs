//! Encryption of objects with keys that workers and callers have, and that are not in the folder or bucket:
//! AES-256-GCM.
//!
//! | Bytes | Are |
//! |---|---|
//! | 1 | the version of this form, 1; no JSON begins with it |
//! | 8 | which key it is: the beginning of a hash of it |
//! | 12 | random, for this object alone |
//! | the others | the content and a tag of 16 bytes; they are valid for this key and the object's name only |

use std::{fmt, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use ring::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    digest::{SHA256, digest},
    rand::{SecureRandom as _, SystemRandom},
};

use super::LogError;

/// The version of the form.
pub(super) const VERSION: u8 = 1;
/// How many bytes say which key it is.
const ID: usize = 8;
/// Where the content begins.
const CONTENT: usize = 1 + ID + NONCE_LEN;

/// The keys of a log: what is stored is encrypted with the first one, and any of them reads.
#[derive(Clone)]
pub struct LogKeys(Arc<[EncryptionKey]>);

struct EncryptionKey {
    id: [u8; ID],
    key: LessSafeKey,
}

impl fmt::Debug for LogKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LogKeys").field(&self.0.len()).finish()
    }
}

impl LogKeys {
    /// The keys, each of 32 bytes in base64. An error is the index of the one that is not valid, from 0.
    pub fn of<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, usize> {
        let keys = texts.into_iter().enumerate().map(|(number, text)| EncryptionKey::of(text).ok_or(number));
        Ok(Self(keys.collect::<Result<_, _>>()?))
    }

    /// Encrypts the content of an object.
    pub(super) fn seal(&self, object: &str, mut content: Vec<u8>) -> Result<Vec<u8>, LogError> {
        let failed = |what: &str| LogError::Unusable(format!("{object} cannot be encrypted: {what}"));
        let EncryptionKey { id, key } = self.0.first().ok_or_else(|| failed("there is no key"))?;
        let mut nonce = [0; NONCE_LEN];
        SystemRandom::new().fill(&mut nonce).map_err(|_| failed("this machine has no random numbers"))?;
        let mut sealed = Vec::with_capacity(CONTENT + content.len() + AES_256_GCM.tag_len());
        sealed.push(VERSION);
        sealed.extend(id);
        sealed.extend(nonce);
        key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(object), &mut content)
            .map_err(|_| failed("it is too large"))?;
        sealed.append(&mut content);
        Ok(sealed)
    }

    /// The content of an encrypted object.
    pub(super) fn open(&self, object: &str, sealed: &[u8]) -> Result<Vec<u8>, LogError> {
        let damaged = |what: &str| LogError::Damaged { object: object.to_owned(), what: what.to_owned() };
        let short = || damaged("it is shorter than an encrypted object can be");
        let (id, rest) = sealed.get(1..).and_then(|rest| rest.split_first_chunk::<ID>()).ok_or_else(short)?;
        let (nonce, content) = rest.split_first_chunk::<NONCE_LEN>().ok_or_else(short)?;
        let key = self.0.iter().find(|key| key.id == *id).ok_or_else(|| {
            let what =
                "was encrypted with a key that is not among those that `key` in the engine's address names";
            LogError::OtherKey { object: object.to_owned(), what: what.to_owned() }
        })?;
        let mut content = content.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let length = match key.key.open_in_place(nonce, Aad::from(object), &mut content) {
            Ok(content) => content.len(),
            Err(_) => return Err(damaged("it was changed, or it is another object's content")),
        };
        content.truncate(length);
        Ok(content)
    }
}

impl EncryptionKey {
    fn of(text: &str) -> Option<Self> {
        let bytes = STANDARD.decode(text.trim()).ok()?;
        let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &bytes).ok()?);
        let hash = digest(&SHA256, &[b"inspan log key ", &bytes[..]].concat());
        let id = hash.as_ref().first_chunk::<ID>().copied()?;
        Some(Self { id, key })
    }
}
