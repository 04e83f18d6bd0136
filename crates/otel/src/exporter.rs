//! Sends spans to a collector over OTLP (HTTP, protobuf): bounded requests, tried again where the answer says that this
//! may help, and never without an end.

use std::time::Duration;

use inspan_protocol::{AgentError, ErrorCode, Redactor};
use inspan_transport::{
    Answer, Broken, Clocks, HeaderMap, HeaderName, HeaderValue, Http, Method, Request, StatusCode,
    retry_after,
};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use prost::Message;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::{
    settings::{Compression, ExportSettings},
    span::Span,
    wire,
};

/// The most spans of one request.
pub(crate) const MOST_SPANS: usize = 512;
/// The most bytes of one request of several spans; collectors refuse large ones.
const MOST_BYTES: usize = 2 * 1024 * 1024;
/// The most that is read of an answer.
const MOST_ANSWER: usize = 64 * 1024;
/// The most characters of a collector's message. Secrets are taken out of all of it first.
const MOST_MESSAGE: usize = 300;

/// How often a request is tried, and how long is waited in between.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// How often in all.
    pub tries: u32,
    /// How long after the first; each wait is twice the one before.
    pub first_wait: Duration,
    /// The longest wait, also where the collector asks for a longer one.
    pub longest_wait: Duration,
}

impl Patience {
    /// For a person who waits for the result.
    pub const EXPORT: Self =
        Self { tries: 5, first_wait: Duration::from_secs(1), longest_wait: Duration::from_secs(30) };
    /// While a session runs.
    pub const LIVE: Self =
        Self { tries: 3, first_wait: Duration::from_millis(500), longest_wait: Duration::from_secs(5) };
}

/// What a collector took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExportReceipt {
    /// How many spans it accepted.
    pub accepted: usize,
    /// How many it rejected; they must not be sent again.
    pub rejected: usize,
    /// What it says about that.
    pub message: Option<String>,
}

/// Why spans could not be sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportError {
    /// The collector refused them.
    #[error("the collector at {url} answered with status {status}{message}")]
    Refused {
        /// Where it is.
        url: String,
        /// Its status.
        status: u16,
        /// What it says, after `: `; empty if nothing.
        message: String,
    },
    /// There was no answer.
    #[error("the collector at {url} cannot be reached: {message}")]
    Unreachable {
        /// Where it should be.
        url: String,
        /// What went wrong.
        message: String,
    },
}

/// One collector.
#[derive(Debug)]
pub struct Exporter {
    http: Http,
    settings: ExportSettings,
    patience: Patience,
    /// Knows what a collector may repeat of its headers and address.
    redactor: Redactor,
}

/// One request that did not succeed.
struct Failed {
    error: ExportError,
    /// Whether the same request may succeed later.
    is_retryable: bool,
    /// How long the collector asks to wait.
    wait: Option<Duration>,
}

impl Exporter {
    /// The collector that the settings name.
    pub fn new(settings: ExportSettings, patience: Patience) -> Self {
        let redactor = Redactor::new(&settings.environment).with_values(settings.secrets());
        Self { http: Http::default(), settings, patience, redactor }
    }

    /// Where it is, without a login.
    pub fn url(&self) -> String {
        self.settings.shown_url()
    }

    /// Sends all spans, in as many requests as they need.
    ///
    /// # Errors
    /// A request was refused, or failed as often as may be tried. Spans of the requests before it have arrived.
    pub async fn send(
        &self,
        spans: &[Span],
        cancel: &CancellationToken,
    ) -> Result<ExportReceipt, ExportError> {
        let mut sent = ExportReceipt::default();
        let mut pending: Vec<&[Span]> = spans.chunks(MOST_SPANS).rev().collect();
        while let Some(batch) = pending.pop() {
            let body = wire::request(batch, &self.settings.resource).encode_to_vec();
            if body.len() > MOST_BYTES && batch.len() > 1 {
                let (first, second) = batch.split_at(batch.len() / 2);
                pending.extend([second, first]);
                continue;
            }
            let answer = self.send_body(body, cancel).await?;
            let rejected = answer.partial_success.as_ref().map_or(0, |partial| partial.rejected_spans);
            let rejected = usize::try_from(rejected).unwrap_or(0).min(batch.len());
            sent.accepted += batch.len() - rejected;
            sent.rejected += rejected;
            let message = answer.partial_success.map(|partial| self.shown(&partial.error_message));
            sent.message = message.filter(|message| !message.is_empty()).or(sent.message);
        }
        Ok(sent)
    }

    async fn send_body(
        &self,
        body: Vec<u8>,
        cancel: &CancellationToken,
    ) -> Result<ExportTraceServiceResponse, ExportError> {
        let body = wire::pack(body, self.settings.compression)
            .map_err(|error| self.unreachable(&format!("the request cannot be packed: {error}")))?;
        let mut wait = self.patience.first_wait;
        let mut tries = 1;
        loop {
            let failed = match self.try_once(body.clone(), cancel).await {
                Ok(answer) => return Ok(answer),
                Err(failed) => failed,
            };
            if !failed.is_retryable || tries >= self.patience.tries || cancel.is_cancelled() {
                return Err(failed.error);
            }
            let pause = failed.wait.unwrap_or(wait).min(self.patience.longest_wait);
            tokio::select! {
                () = sleep(pause) => {}
                () = cancel.cancelled() => return Err(failed.error),
            }
            wait = wait.saturating_mul(2);
            tries += 1;
        }
    }

    async fn try_once(
        &self,
        body: Vec<u8>,
        cancel: &CancellationToken,
    ) -> Result<ExportTraceServiceResponse, Failed> {
        let limit = self.settings.timeout;
        let clocks =
            Clocks { cancel: cancel.clone(), began: Instant::now(), deadline: Some(limit), stall: limit };
        let request =
            Request { method: Method::POST, url: self.settings.url.clone(), headers: self.headers(), body };
        let answer = self.http.send(request, &self.settings.environment, clocks).await;
        let answer = answer.map_err(|broken| self.broken(broken))?;
        let status = answer.status();
        if !status.is_success() {
            return Err(self.refused(status, answer).await);
        }
        let is_protobuf = answer
            .headers()
            .get("content-type")
            .and_then(|kind| kind.to_str().ok())
            .is_some_and(|kind| kind.starts_with("application/x-protobuf"));
        // A collector that has accepted the spans has them, whatever else its answer says.
        let body = answer.body(MOST_ANSWER).await.unwrap_or_default();
        let read = is_protobuf.then(|| ExportTraceServiceResponse::decode(body.as_slice()).ok()).flatten();
        Ok(read.unwrap_or_default())
    }

    fn headers(&self) -> HeaderMap {
        let mut headers = self.settings.headers.clone();
        let fixed = |text: &'static str| HeaderValue::from_static(text);
        headers.insert(HeaderName::from_static("content-type"), fixed("application/x-protobuf"));
        if self.settings.compression == Compression::Gzip {
            headers.insert(HeaderName::from_static("content-encoding"), fixed("gzip"));
        }
        headers
    }

    fn unreachable(&self, message: &str) -> ExportError {
        ExportError::Unreachable { url: self.url(), message: self.redactor.text(message) }
    }

    fn broken(&self, broken: Broken) -> Failed {
        let error = match broken {
            Broken::Failed(error) => error,
            Broken::Cancelled => {
                AgentError::new(ErrorCode::Aborted, "it had not answered when the session ended")
            }
        };
        let message = match error.code {
            ErrorCode::Timeout => format!("no answer within {} ms", self.settings.timeout.as_millis()),
            _ => error.message,
        };
        let is_retryable = error.code.is_retryable();
        Failed { error: self.unreachable(&message), is_retryable, wait: None }
    }

    async fn refused(&self, status: StatusCode, answer: Answer) -> Failed {
        // What the specification names; everything else would be refused again.
        let is_retryable = matches!(status.as_u16(), 429 | 502 | 503 | 504);
        let headers = answer.headers().clone();
        let wait = retry_after(&|name| headers.get(name).and_then(|value| value.to_str().ok()));
        let body = answer.error_body().await.unwrap_or_default();
        let message = match self.shown(&message(&headers, &body)) {
            text if text.is_empty() => text,
            text => format!(": {text}"),
        };
        let error = ExportError::Refused { url: self.url(), status: status.as_u16(), message };
        Failed { error, is_retryable, wait }
    }

    /// A text from outside without secrets on one line, cut where it is long.
    fn shown(&self, text: &str) -> String {
        let text = self.redactor.text(text);
        let words = text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
        words.collect::<Vec<_>>().join(" ").chars().take(MOST_MESSAGE).collect()
    }
}

/// `google.rpc.Status`, as far as it is read.
#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(string, tag = "2")]
    message: String,
}

/// What a collector says in the body of a refusal.
fn message(headers: &HeaderMap, body: &[u8]) -> String {
    let kind = headers.get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    match kind.split(';').next().unwrap_or_default().trim() {
        "application/x-protobuf" => RpcStatus::decode(body).map(|status| status.message).unwrap_or_default(),
        "text/plain" | "application/json" => String::from_utf8_lossy(body).into_owned(),
        _ => String::new(),
    }
}
