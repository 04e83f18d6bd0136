//! The exporter against a collector of OTLP over HTTP: what it sends, what it does about each
//! answer, and that neither an answer nor a missing one delays a live export.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::{
    io::Read,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use flate2::read::GzDecoder;
use inspan_otel::{
    ExportError, ExportReceipt, ExportSettings, Exporter, LiveExport, LiveLimits, Patience, Span, Trace,
    TraceSettings,
};
use inspan_protocol::{Envelope, Environment};
use inspan_testkit::{fixture_dir, read_text};
use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
    },
    trace::v1::Span as WireSpan,
};
use prost::Message;
use tokio_util::sync::CancellationToken;
use wiremock::{
    Mock, MockServer, Request, ResponseTemplate,
    matchers::{header, method, path},
};

const PATIENCE: Patience =
    Patience { tries: 3, first_wait: Duration::from_millis(1), longest_wait: Duration::from_millis(20) };

fn spans() -> Vec<Span> {
    let log = read_text(fixture_dir().join("flows/retry/events.jsonl")).unwrap();
    let log: Vec<Envelope> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut trace = Trace::new(log[0].context.session_id.clone(), TraceSettings::default());
    log.iter().flat_map(|envelope| trace.apply(envelope)).collect()
}

fn exporter(url: &str, variables: &[(&str, &str)]) -> Exporter {
    let environment: Environment =
        variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Exporter::new(ExportSettings::to("--otlp", url, &environment).unwrap(), PATIENCE)
}

fn decoded(request: &Request) -> Vec<WireSpan> {
    let body = match request.headers.get("content-encoding") {
        None => request.body.clone(),
        Some(_) => {
            let mut body = Vec::new();
            GzDecoder::new(request.body.as_slice()).read_to_end(&mut body).unwrap();
            body
        }
    };
    let request = ExportTraceServiceRequest::decode(body.as_slice()).unwrap();
    request
        .resource_spans
        .into_iter()
        .flat_map(|resource| resource.scope_spans)
        .flat_map(|scope| scope.spans)
        .collect()
}

fn answer(rejected: i64, message: &str) -> ResponseTemplate {
    let partial = ExportTracePartialSuccess { rejected_spans: rejected, error_message: message.to_owned() };
    let answer = ExportTraceServiceResponse { partial_success: Some(partial) };
    ResponseTemplate::new(200).set_body_raw(answer.encode_to_vec(), "application/x-protobuf")
}

/// A collector that gives one answer after the other, and the last for good.
async fn collector(answers: Vec<ResponseTemplate>) -> MockServer {
    let server = MockServer::start().await;
    let next = AtomicUsize::new(0);
    Mock::given(method("POST"))
        .and(path("/v1/traces"))
        .and(header("content-type", "application/x-protobuf"))
        .respond_with(move |_: &Request| {
            let at = next.fetch_add(1, Ordering::Relaxed).min(answers.len() - 1);
            answers[at].clone()
        })
        .mount(&server)
        .await;
    server
}

async fn sent(answers: Vec<ResponseTemplate>) -> (Result<ExportReceipt, ExportError>, usize, String) {
    let server = collector(answers).await;
    let sent = exporter(&server.uri(), &[]).send(&spans(), &CancellationToken::new()).await;
    (sent, server.received_requests().await.unwrap().len(), format!("{}/v1/traces", server.uri()))
}

#[tokio::test]
async fn a_request_has_everything_that_otlp_requires() {
    let server = collector(vec![answer(0, "")]).await;
    let exporter = exporter(
        &server.uri(),
        &[
            ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=k-1"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
            ("OTEL_SERVICE_NAME", "nightly"),
        ],
    );
    let spans = spans();
    let sent = exporter.send(&spans, &CancellationToken::new()).await.unwrap();
    assert_eq!(sent, ExportReceipt { accepted: spans.len(), rejected: 0, message: None });
    let requests = server.received_requests().await.unwrap();
    assert_eq!(requests.len(), 1);
    assert_eq!(requests[0].headers["api-key"], "k-1");
    let wire = decoded(&requests[0]);
    let shape = |span: &WireSpan| (span.trace_id.len(), span.span_id.len(), span.flags);
    assert_eq!(wire.iter().map(shape).collect::<Vec<_>>(), vec![(16, 8, 1); spans.len()]);
    let read: Vec<_> = wire
        .iter()
        .map(|span| (span.name.clone(), span.span_id.clone(), span.parent_span_id.clone(), span.kind))
        .collect();
    let expected: Vec<_> = spans
        .iter()
        .map(|span| {
            let parent = span.parent.map(|parent| parent.0.to_vec()).unwrap_or_default();
            (span.name.clone(), span.span_id.0.to_vec(), parent, 1)
        })
        .collect();
    assert_eq!(read, expected);
    let times = |span: &WireSpan| (span.start_time_unix_nano, span.end_time_unix_nano);
    let root = wire.iter().find(|span| span.parent_span_id.is_empty()).unwrap();
    assert_eq!(times(root), (1_767_225_600_000_000_000, 1_767_225_781_000_000_000));
}

#[tokio::test]
async fn what_may_help_is_tried_again_and_nothing_else_is() {
    let accepted = Ok(ExportReceipt { accepted: spans().len(), rejected: 0, message: None });
    let status = ResponseTemplate::new;
    let (took, requests, _) = sent(vec![status(503), status(429), status(200)]).await;
    assert_eq!((took, requests), (accepted.clone(), 3));
    let (took, requests, _) = sent(vec![status(429).insert_header("retry-after", "3600"), status(200)]).await;
    assert_eq!((took, requests), (accepted, 2), "a long wait is cut short");
    let refused = |url: String, status, message: &str| {
        Err(ExportError::Refused { url, status, message: message.to_owned() })
    };
    let (took, requests, url) = sent(vec![status(503)]).await;
    assert_eq!((took, requests), (refused(url, 503, ""), 3), "not without an end");
    let (took, requests, url) = sent(vec![status(401).set_body_string("no\nkey")]).await;
    assert_eq!((took, requests), (refused(url, 401, ": no key"), 1));
    let (took, requests, url) =
        sent(vec![status(307).insert_header("location", "http://127.0.0.1:1/")]).await;
    assert_eq!((took, requests), (refused(url, 307, ""), 1), "no redirect is followed");
}

#[tokio::test]
async fn what_a_collector_says_has_no_secrets() {
    let said = "no login Basic bG9naW46c2VjcmV0 of key-value-77 and pass-word-88";
    let status = ResponseTemplate::new;
    for given in [status(401).set_body_string(said), answer(1, said)] {
        let server = collector(vec![given]).await;
        let url = server.uri().replace("://", "://me:pass-word-88@");
        let headers =
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Basic%20bG9naW46c2VjcmV0,x-api-key=key-value-77");
        let sent = exporter(&url, &[headers]).send(&spans(), &CancellationToken::new()).await;
        let told = match sent {
            Ok(receipt) => receipt.message.unwrap(),
            Err(error) => error.to_string(),
        };
        let redacted = "[redacted OTEL_EXPORTER_OTLP_HEADERS]";
        assert!(told.ends_with(&format!("no login {redacted} of {redacted} and [redacted]")), "{told}");
    }
}

#[tokio::test]
async fn rejected_spans_are_counted_and_not_sent_again() {
    let count = spans().len();
    let (took, requests, _) = sent(vec![answer(2, "too\n old")]).await;
    let expected = ExportReceipt { accepted: count - 2, rejected: 2, message: Some("too old".to_owned()) };
    assert_eq!((took, requests), (Ok(expected), 1));
    let (took, _, _) = sent(vec![answer(i64::MAX, "")]).await;
    assert_eq!(took, Ok(ExportReceipt { accepted: 0, rejected: count, message: None }));
    let (took, _, _) =
        sent(vec![ResponseTemplate::new(200).set_body_raw(vec![0xff; 99], "application/x-protobuf")]).await;
    assert_eq!(
        took,
        Ok(ExportReceipt { accepted: count, rejected: 0, message: None }),
        "a body that is no answer"
    );
}

#[tokio::test]
async fn many_spans_are_several_requests() {
    let server = collector(vec![answer(0, "")]).await;
    let many: Vec<Span> = spans().into_iter().cycle().take(1200).collect();
    let sent = exporter(&server.uri(), &[]).send(&many, &CancellationToken::new()).await.unwrap();
    assert_eq!(sent.accepted, 1200);
    let sizes: Vec<_> =
        server.received_requests().await.unwrap().iter().map(|request| decoded(request).len()).collect();
    assert_eq!(sizes, [512, 512, 176]);
}

#[tokio::test]
async fn large_spans_are_split_further() {
    let server = collector(vec![answer(0, "")]).await;
    let mut large = spans()[0].clone();
    large.name = "x".repeat(900_000);
    let large = vec![large; 4];
    let sent = exporter(&server.uri(), &[]).send(&large, &CancellationToken::new()).await.unwrap();
    assert_eq!(sent.accepted, 4);
    let sizes: Vec<_> =
        server.received_requests().await.unwrap().iter().map(|request| decoded(request).len()).collect();
    assert_eq!(sizes, [2, 2]);
}

/// Nobody listens there.
const NOBODY: &str = "http://127.0.0.1:1";

#[tokio::test]
async fn a_collector_that_is_down_is_reported_once_and_slows_nobody() {
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let collected = Arc::clone(&warnings);
    let warn = Arc::new(move |line: &str| collected.lock().unwrap().push(line.to_owned()));
    let limits = LiveLimits { queue: 4, gather: Duration::from_millis(1), rest: Duration::from_secs(3600) };
    let live = LiveExport::begin(exporter(NOBODY, &[]), limits, warn);
    let spans = spans();
    let count = spans.len();
    assert!(count > limits.queue);
    live.take(spans.clone());
    let before = live.finish(Duration::from_secs(30)).await;
    assert_eq!(before, count as u64, "none is counted as sent");
    let warnings = std::mem::take(&mut *warnings.lock().unwrap());
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].starts_with("the collector at http://127.0.0.1:1/v1/traces cannot be reached: "));
}

#[tokio::test]
async fn a_collector_that_never_answers_is_left_at_the_end() {
    let server = collector(vec![ResponseTemplate::new(200).set_delay(Duration::from_secs(3600))]).await;
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let collected = Arc::clone(&warnings);
    let warn = Arc::new(move |line: &str| collected.lock().unwrap().push(line.to_owned()));
    let limits = LiveLimits { gather: Duration::from_millis(1), ..LiveLimits::default() };
    let live = LiveExport::begin(exporter(&server.uri(), &[]), limits, warn);
    let spans = spans();
    let count = spans.len() as u64;
    live.take(spans);
    assert_eq!(live.finish(Duration::from_millis(500)).await, count);
    let why = "cannot be reached: it had not answered when the session ended";
    let expected = format!("the collector at {}/v1/traces {why}", server.uri());
    assert_eq!(*warnings.lock().unwrap(), [expected]);
}

#[tokio::test]
async fn spans_that_find_no_room_are_reported() {
    let server = collector(vec![answer(0, "")]).await;
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let collected = Arc::clone(&warnings);
    let warn = Arc::new(move |line: &str| collected.lock().unwrap().push(line.to_owned()));
    let limits = LiveLimits { queue: 1, ..LiveLimits::default() };
    let live = LiveExport::begin(exporter(&server.uri(), &[]), limits, warn);
    live.take(spans());
    let lost = live.finish(Duration::from_secs(30)).await;
    let expected =
        format!("the collector at {}/v1/traces is too slow: no room was left for {lost} spans", server.uri());
    assert!(lost > 0);
    assert_eq!(*warnings.lock().unwrap(), [expected]);
}

#[tokio::test]
async fn a_live_export_sends_all_that_it_was_given() {
    let server = collector(vec![answer(0, "")]).await;
    let live = LiveExport::begin(exporter(&server.uri(), &[]), LiveLimits::default(), Arc::new(|_: &str| {}));
    let spans = spans();
    let (first, rest) = spans.split_at(3);
    live.take(first.to_vec());
    live.take_all(rest.to_vec()).await;
    assert_eq!(live.finish(Duration::from_secs(30)).await, 0);
    let requests = server.received_requests().await.unwrap();
    let received: Vec<_> = requests.iter().flat_map(decoded).map(|span| span.span_id).collect();
    assert_eq!(received, spans.iter().map(|span| span.span_id.0.to_vec()).collect::<Vec<_>>());
}
