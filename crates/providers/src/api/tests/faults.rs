//! Servers that misbehave, and how the provider handles each; a key leaves the process in the head of the request and
//! nowhere else.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use inspan_model_server::{HttpError, Turn};
use inspan_protocol::{ErrorCode, ProviderOutput, StopReason, StreamEvent, Usage};
use inspan_testkit::pause;
use serde_json::{Value, json};
use wiremock::matchers::{header, method, path};
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::harness::{Harness, Vendor, reported, scripted};

/// The head of a stream that ends when the connection does.
const STREAM: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\r\n";

fn ask() -> Value {
    json!({ "prompt": "go" })
}

/// A turn against a server of raw bytes.
async fn against<R: Vendor>(serve: impl FnOnce(TcpStream) + Send + 'static) -> (ErrorCode, String, String) {
    reported(&Harness::<R>::new(&raw(serve)).turn(ask()).await)
}

/// A turn that waits for a short time only.
async fn impatient<R: Vendor>(serve: impl FnOnce(TcpStream) + Send + 'static) -> (ErrorCode, String, String) {
    let harness = Harness::<R>::new(&raw(serve));
    reported(&harness.turn(json!({ "prompt": "go", "options": { "stallTimeoutMs": 1000 } })).await)
}

fn named(code: ErrorCode, kind: &str, text: &str) -> (ErrorCode, String, String) {
    (code, kind.to_owned(), text.to_owned())
}

pub(crate) async fn streams_that_break<R: Vendor>() {
    let begun = |mut stream: TcpStream| {
        say(&mut stream, STREAM);
        say(&mut stream, R::BEGUN);
        stream
    };
    let cut = against::<R>(move |stream| drop(begun(stream))).await;
    assert_eq!(cut, named(ErrorCode::Network, "truncated", "so far"));
    let in_chunks = against::<R>(|mut stream| {
        say(
            &mut stream,
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
        );
        let begun = R::BEGUN;
        say(&mut stream, &format!("{:x}\r\n{begun}\r\n", begun.len()));
    });
    assert_eq!(in_chunks.await, named(ErrorCode::Network, "broken", "so far"));
    let stalled = impatient::<R>(move |stream| hold(begun(stream))).await;
    assert_eq!(stalled, named(ErrorCode::Timeout, "stall", "so far"));
    let silent = impatient::<R>(hold).await;
    assert_eq!(silent, named(ErrorCode::Timeout, "stall", ""));
    for sign in [R::SIGN, ": still here\n\n"] {
        let alive = impatient::<R>(move |stream| {
            let mut stream = begun(stream);
            // Not for ever, so that a fault here fails the test.
            for _ in 0..60 {
                say(&mut stream, sign);
                pause(Duration::from_millis(100));
            }
        });
        assert_eq!(alive.await, named(ErrorCode::Timeout, "stall", "so far"), "{sign}");
    }
    let garbage = against::<R>(move |stream| {
        let mut stream = begun(stream);
        say(&mut stream, R::GARBAGE);
    });
    assert_eq!(garbage.await, named(ErrorCode::Protocol, "", "so far"));
    let gigantic = against::<R>(move |stream| {
        let mut stream = begun(stream);
        let piece = "x".repeat(1024 * 1024);
        say(&mut stream, "data: ");
        (0..17).for_each(|_| say(&mut stream, &piece));
        hold(stream);
    });
    assert_eq!(gigantic.await, named(ErrorCode::Protocol, "", "so far"));
}

/// What the events of a turn against a server of raw bytes say that it took, if they do, and whether it took more.
async fn taken<R: Vendor>(serve: impl FnOnce(TcpStream) + Send + 'static) -> (Option<Usage>, bool) {
    let harness = Harness::<R>::new(&raw(serve));
    let options = json!({ "prompt": "go", "options": { "stallTimeoutMs": 1000 } });
    let (events, result) = harness.turn(options).await;
    assert!(result.is_err());
    let is_more = events.contains(&StreamEvent::Uncounted);
    let usages = events.into_iter().filter_map(|event| match event {
        StreamEvent::Usage { usage, .. } => Some(usage),
        _ => None,
    });
    (usages.last(), is_more)
}

/// Ends an answer of these words.
fn answers(words: &'static str) -> impl FnOnce(TcpStream) + Send + 'static {
    move |mut stream| say(&mut stream, words)
}

pub(crate) async fn the_price_of_a_prompt_that_was_sent_and_not_answered_is_unknown<R: Vendor>() {
    let unknown = (Some(Usage::default()), false);
    assert_eq!(taken::<R>(hold).await, unknown, "silence");
    let headed = |mut stream: TcpStream| {
        say(&mut stream, STREAM);
        stream
    };
    assert_eq!(taken::<R>(move |stream| hold(headed(stream))).await, unknown, "silence after the head");
    assert_eq!(taken::<R>(move |stream| drop(headed(stream))).await, unknown, "an end after the head");
    let refused = answers("HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n");
    assert_eq!(taken::<R>(refused).await, (None, false), "a refusal");
    let gateway = answers("HTTP/1.1 504 Gateway Timeout\r\ncontent-length: 0\r\n\r\n");
    assert_eq!(taken::<R>(gateway).await, unknown, "a gateway that waits no longer");
    let whole = answers(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 14\r\n\r\n{\"content\": 1}",
    );
    assert_eq!(taken::<R>(whole).await, unknown, "no stream");
    // What came of the answer is paid, and the vendor may say no tokens before its end.
    let broken = taken::<R>(move |stream| {
        let mut stream = headed(stream);
        say(&mut stream, R::BEGUN);
        say(&mut stream, R::GARBAGE);
    });
    let (known, is_more) = broken.await;
    assert!(known.is_some() && is_more, "{known:?}");
}

pub(crate) async fn servers_that_do_not_speak_http<R: Vendor>() {
    let no_http = against::<R>(|mut stream| say(&mut stream, "SSH-2.0-OpenSSH_9.6\r\n")).await;
    assert_eq!(no_http, named(ErrorCode::Protocol, "http", ""));
    let closed = against::<R>(drop).await;
    assert_eq!(closed, named(ErrorCode::Network, "broken", ""));
    let long_head = against::<R>(|mut stream| {
        say(&mut stream, "HTTP/1.1 200 OK\r\nx: ");
        say(&mut stream, &"x".repeat(2 * 1024 * 1024));
        hold(stream);
    });
    assert_eq!(long_head.await, named(ErrorCode::Protocol, "http", ""));
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let harness = Harness::<R>::new(&format!("http://{nobody}"));
    assert_eq!(reported(&harness.turn(ask()).await), named(ErrorCode::Network, "connect", ""));
    let harness = Harness::<R>::new("http://inspan.invalid");
    assert_eq!(reported(&harness.turn(ask()).await), named(ErrorCode::Network, "connect", ""));
}

pub(crate) async fn responses_that_are_not_streams<R: Vendor>() {
    let rows = [
        (
            ResponseTemplate::new(200).set_body_raw("{}", "application/json"),
            ErrorCode::Protocol,
            "contentType",
        ),
        (
            ResponseTemplate::new(200).set_body_json(
                json!({ "type": "error", "error": { "type": "overloaded_error", "message": "busy" } }),
            ),
            ErrorCode::Overloaded,
            "",
        ),
        (ResponseTemplate::new(504), ErrorCode::Overloaded, ""),
        (ResponseTemplate::new(204), ErrorCode::Protocol, "contentType"),
        (
            ResponseTemplate::new(307).insert_header("location", "http://127.0.0.1:1/elsewhere"),
            ErrorCode::Protocol,
            "redirect",
        ),
        (ResponseTemplate::new(429).insert_header("retry-after", "3"), ErrorCode::RateLimited, ""),
        (ResponseTemplate::new(500).set_body_string("x".repeat(1024 * 1024)), ErrorCode::Overloaded, ""),
    ];
    for (answer, code, kind) in rows {
        let server = MockServer::start().await;
        let key = format!("{}{}", R::HEADER.1, R::KEY.1);
        // Once: nothing is tried again here, and nothing follows a redirect.
        let asked = Mock::given(method("POST")).and(path(R::PATH)).and(header(R::HEADER.0, key.as_str()));
        asked.respond_with(answer).expect(1).mount(&server).await;
        let turn = Harness::<R>::new(&server.uri()).turn(ask()).await;
        assert_eq!(reported(&turn), named(code, kind, ""));
        let error = turn.1.unwrap_err();
        assert!(error.message.len() < 1000, "{}", error.message.len());
        let asked_to_wait = (code == ErrorCode::RateLimited).then_some(Duration::from_secs(3));
        assert_eq!((error.retry_after, error.resets_at), (asked_to_wait, None));
    }
}

pub(crate) async fn invalid_inputs_are_refused_before_anything_is_stored<R: Vendor>() {
    let rows = [
        json!({}),
        json!({ "prompt": " " }),
        json!({ "messages": [] }),
        json!({ "prompt": "a", "messages": [{ "role": "user", "content": "b" }] }),
        json!({ "messages": [{ "role": "assistant", "content": "b" }] }),
        json!({ "messages": [{ "role": "user", "content": [{ "type": "tool_use", "id": "1", "name": "a", "input": {} }] }] }),
    ];
    let harness = Harness::<R>::new("http://127.0.0.1:1");
    for input in rows.into_iter().chain(R::unaskable()) {
        let turn = harness.turn(input.clone()).await;
        assert_eq!(reported(&turn), named(ErrorCode::ConfigInvalid, "", ""), "{input}");
    }
    assert_eq!(harness.stored(), "");
    let unknown = R::resumed("a", "00000000-0000-4000-8000-000000000001");
    assert_eq!(
        reported(&harness.turn(unknown).await),
        named(ErrorCode::InvalidRequest, "sessionNotFound", "")
    );
}

pub(crate) async fn a_call_that_is_cancelled_before_it_begins_sends_no_request<R: Vendor>() {
    let harness = Harness::<R>::new("http://127.0.0.1:1");
    let context = harness.context();
    context.cancel.cancel();
    let (events, output) = harness.turn_in(ask(), context, |_, _| {}).await;
    let output = output.unwrap();
    let (_, session) = R::returned(&output);
    assert_eq!((events, output.facts().stop_reason, session), (vec![], StopReason::Aborted, None));
}

fn repeats_the_key<R: Vendor>() -> Vec<Turn> {
    let (_, planted) = R::KEY;
    let words = format!("{} {planted}, Bearer {planted}", R::REPEATS);
    let error =
        |status| Turn::error(status).http_error.map(|error| HttpError { message: words.clone(), ..error });
    let page = |status| error(status).map(|error| HttpError { body: Some(json!(words)), ..error });
    [error(401), error(400), error(529), page(502)]
        .map(|error| Turn { http_error: error, ..Turn::default() })
        .into()
}

pub(crate) async fn no_output_holds_the_key<R: Vendor>() {
    let (_, planted) = R::KEY;
    for turn in repeats_the_key::<R>() {
        let server = scripted([turn]);
        let harness = Harness::<R>::new(&server.base_url());
        let context = harness.context();
        let turn = harness.turn(json!({ "prompt": "go" })).await;
        let artefacts = format!("{:?}{:?}{}{context:?}", turn, harness.provider, harness.stored());
        assert!(artefacts.contains("redacted") && !artefacts.contains(planted), "{artefacts}");
        assert!(!serde_json::to_string(&turn.1.unwrap_err()).unwrap().contains(planted));
        let request = &server.requests()[0];
        assert_eq!(request.headers[R::HEADER.0], inspan_model_server::SECRET_PRESENT);
        assert!(!request.body.to_string().contains(planted));
    }
}

pub(crate) async fn an_address_with_a_password_is_not_shown<R: Vendor>() {
    let address = raw(|mut stream| say(&mut stream, "nonsense\r\n\r\n"))
        .replace("http://", "http://user:planted-pass@");
    let turn = Harness::<R>::new(&address).turn(json!({ "prompt": "go" })).await;
    assert!(!format!("{turn:?}").contains("planted-pass"), "{turn:?}");
    assert_eq!(turn.1.unwrap_err().code, ErrorCode::Protocol);
}

/// A server on loopback that reads the head and body of one request, and then serves as given; its address.
fn raw(serve: impl FnOnce(TcpStream) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let Ok((mut stream, _)) = listener.accept() else { return };
        drop(listener);
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut seen = Vec::new();
        let mut buffer = [0; 4096];
        while !whole(&seen) {
            match stream.read(&mut buffer) {
                Ok(length @ 1..) => seen.extend_from_slice(&buffer[..length]),
                _ => return,
            }
        }
        serve(stream);
    });
    address
}

fn whole(seen: &[u8]) -> bool {
    let text = String::from_utf8_lossy(seen).to_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
    body.len() >= length.unwrap_or(0)
}

/// Writes, as far as the client still listens.
fn say(stream: &mut TcpStream, text: &str) {
    let _ = stream.write_all(text.as_bytes());
    let _ = stream.flush();
}

/// Holds the connection open until the client closes it.
fn hold(mut stream: TcpStream) {
    let mut buffer = [0; 64];
    while matches!(stream.read(&mut buffer), Ok(1..)) {}
}
