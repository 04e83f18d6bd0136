//! The objects of the log: each is stored once and read whole.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use inspan_protocol::Redactor;
use object_store::{
    Error, GetOptions, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, path::Path,
};
use tokio::sync::OnceCell;

use super::{LogError, LogKeys, encryption};

/// The object that shows that objects are stored once.
const PROBE: &str = "stored-once";
/// What it holds.
const PROBE_TEXT: &str =
    "Inspan creates this object again and again. Its sessions are safe here as long as that is refused.\n";
/// How often an object is created that is refused and is not there.
const TRIES: u32 = 5;
/// How long to wait between the tries.
const PAUSE: Duration = Duration::from_millis(50);
/// The largest object that is read.
const LARGEST: u64 = 1 << 30;
/// What the errors of a folder begin with, which says nothing to people.
const LOCAL: &str = "Generic LocalFileSystem error: ";
/// How many characters of a server's message are shown.
const MESSAGE: usize = 300;

/// The objects of a folder or a bucket, below a folder of it.
#[derive(Clone)]
pub(super) struct Objects {
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) root: Path,
    /// Whether requests take long and cost money, and the server may ignore their conditions.
    pub(super) is_bucket: bool,
    /// What they are encrypted with.
    pub(super) keys: Option<LogKeys>,
    /// Whether this process has seen that objects are stored once.
    proof: Arc<OnceCell<()>>,
}

impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A store has credentials.
        f.debug_struct("Objects").field("root", &self.root).finish_non_exhaustive()
    }
}

impl Objects {
    pub(super) fn new(store: Arc<dyn ObjectStore>, root: Path, is_bucket: bool) -> Self {
        Self { store, root, is_bucket, keys: None, proof: Arc::default() }
    }

    pub(super) async fn get(&self, object: &Path) -> Result<Option<Bytes>, LogError> {
        let Some(stored) = self.stored(object).await? else { return Ok(None) };
        let name = self.name(object);
        let other_key =
            |what: &str| Err(LogError::OtherKey { object: name.to_owned(), what: what.to_owned() });
        match (&self.keys, stored.first()) {
            (_, None) => {
                Err(LogError::Damaged { object: object.to_string(), what: "it is empty".to_owned() })
            }
            (Some(keys), Some(&encryption::VERSION)) => {
                keys.open(name, &stored).map(|content| Some(content.into()))
            }
            (Some(_), _) => other_key("is not encrypted, and the engine's address has `key`"),
            (None, Some(&encryption::VERSION)) => {
                other_key("is encrypted: name its key in the engine's address, `key=NAME`")
            }
            (None, _) => Ok(Some(stored)),
        }
    }

    pub(super) async fn has(&self, object: &Path) -> Result<bool, LogError> {
        match self.store.head(object).await {
            Ok(_) => Ok(true),
            Err(Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// The name of an object below the folder of the log, which may be moved as a whole.
    fn name<'a>(&self, object: &'a Path) -> &'a str {
        let object = object.as_ref();
        object.strip_prefix(self.root.as_ref()).map_or(object, |name| name.trim_start_matches('/'))
    }

    /// What is stored for a content.
    fn sealed(&self, object: &Path, content: Vec<u8>) -> Result<Bytes, LogError> {
        Ok(match &self.keys {
            Some(keys) => keys.seal(self.name(object), content)?.into(),
            None => content.into(),
        })
    }

    async fn stored(&self, object: &Path) -> Result<Option<Bytes>, LogError> {
        match self.store.get_opts(object, GetOptions::default()).await {
            Ok(found) if found.meta.size > LARGEST => Err(LogError::Damaged {
                object: object.to_string(),
                what: format!("it has {} bytes, and {LARGEST} are the most", found.meta.size),
            }),
            Ok(found) => Ok(Some(found.bytes().await?)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Stores an object, replacing an older one.
    pub(super) async fn put(&self, object: &Path, content: Vec<u8>) -> Result<(), LogError> {
        let bytes = self.sealed(object, content)?;
        self.store.put(object, PutPayload::from_bytes(bytes)).await?;
        Ok(())
    }

    /// Stores an object, unless another one has its name.
    pub(super) async fn put_new(&self, object: &Path, content: Vec<u8>) -> Result<bool, LogError> {
        if self.is_bucket {
            self.check().await?;
        }
        let bytes = self.sealed(object, content)?;
        for _ in 0..TRIES {
            match self.create(object, bytes.clone()).await {
                Ok(()) => return Ok(true),
                // A request whose response was lost has stored it anyway, and is repeated by the client.
                Err(Error::AlreadyExists { .. }) => match self.stored(object).await? {
                    Some(stored) => return Ok(stored == bytes),
                    // A bucket may refuse two that come at the same time.
                    None => tokio::time::sleep(PAUSE).await,
                },
                Err(error) => match self.stored(object).await {
                    Ok(Some(stored)) => return Ok(stored == bytes),
                    _ => return Err(error.into()),
                },
            }
        }
        Err(LogError::Unusable(format!("it refuses to create {object}, which it does not have")))
    }

    /// Whether objects are stored once, which a bucket may claim and not do. This process checks it once.
    pub(super) async fn check(&self) -> Result<(), LogError> {
        let probe = self.root.clone().join(PROBE);
        let asked = self.proof.get_or_try_init(|| async {
            for _ in 0..2 {
                match self.create(&probe, Bytes::from_static(PROBE_TEXT.as_bytes())).await {
                    Ok(()) => {}
                    Err(Error::AlreadyExists { .. }) => return Ok(()),
                    Err(error) => return Err(error.into()),
                }
            }
            Err(LogError::Unusable(format!(
                "it replaced {probe} although the request forbids that (`If-None-Match: *`): workers would overwrite \
                 what others have stored"
            )))
        });
        asked.await.map(drop)
    }

    async fn create(&self, object: &Path, bytes: Bytes) -> object_store::Result<()> {
        let once = PutOptions::from(PutMode::Create);
        self.store.put_opts(object, PutPayload::from_bytes(bytes), once).await.map(drop)
    }
}

/// What a store says, without the passwords of URLs in it.
pub(super) fn plain(error: &Error) -> String {
    Redactor::default().text(&without_answer(error))
}

/// What a store says, without what a server has sent: that may repeat the request, with its token.
fn without_answer(error: &Error) -> String {
    let text = error.to_string();
    let text = text.strip_prefix(LOCAL).unwrap_or(&text).to_owned();
    for marker in ["status code: ", "error response: "] {
        let Some((before, answer)) = text.split_once(marker) else { continue };
        let (status, body) = match marker {
            "status code: " => answer.split_once(": ").unwrap_or((answer, "")),
            _ => ("an error", answer),
        };
        let tags = ["Code", "Message"].map(|name| tag(body, name));
        let says: Vec<_> = [Some(status)].into_iter().chain(tags).flatten().collect();
        let before = before.split_once(" - ").map_or(before, |(before, _)| before);
        return format!("{before}: {}", says.join(": "));
    }
    // The first cause says what happened: a name that is not known, a refused connection.
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    match cause.to_string() {
        known if text.contains(&known) => text,
        cause => format!("{text}: {cause}"),
    }
}

/// The text of an element.
fn tag<'a>(body: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = body.split_once(&format!("<{name}>"))?;
    let (text, _) = rest.split_once("</")?;
    let end = text.char_indices().nth(MESSAGE).map_or(text.len(), |(end, _)| end);
    Some(&text[..end])
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn what_a_server_sends_is_not_repeated() {
        let body = "<?xml?><Error><Code>SignatureDoesNotMatch</Code><Message>Check your key.</Message>\
                    <CanonicalRequest>x-amz-security-token:planted-token</CanonicalRequest></Error>";
        let source = format!(
            "Error performing PUT http://h/b in 1ms - Server returned non-2xx status code: 403 Forbidden: {body}"
        );
        let error = object_store::Error::Generic { store: "S3", source: source.into() };
        assert_eq!(
            plain(&error),
            "Generic S3 error: Error performing PUT http://h/b in 1ms: 403 Forbidden: SignatureDoesNotMatch: Check your key."
        );
        let json = "Server returned non-2xx status code: 400 Bad Request: {\"token\":\"planted-token\"}";
        let error = object_store::Error::Generic { store: "S3", source: json.into() };
        assert_eq!(plain(&error), "Generic S3 error: Server returned non-2xx : 400 Bad Request");
    }

    #[test]
    fn the_password_of_an_endpoint_is_not_shown() {
        for (answer, shown) in [
            (" - HTTP error: error sending request", " - HTTP error: error sending request"),
            (" - Server returned non-2xx status code: 403 Forbidden: no", ": 403 Forbidden"),
        ] {
            let source = format!("Error performing GET http://me:planted-word@h:1/b in 1ms{answer}");
            let error = object_store::Error::Generic { store: "S3", source: source.into() };
            let expected = "Generic S3 error: Error performing GET http://me:[redacted]@h:1/b in 1ms";
            assert_eq!(plain(&error), format!("{expected}{shown}"));
        }
    }
}
