//! What is sent by HTTP, against a server that answers with bytes of the test's choice.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    sync::{Arc, Mutex},
};

use inspan_protocol::{AgentError, ErrorCode, Timestamp};
use serde_json::{Value, json};

use super::*;

/// The bodies of the requests that came.
type Seen = Arc<Mutex<Vec<String>>>;

/// A server that answers each request with what is made of its path. Its connections stay open.
fn server(answer: impl Fn(&str) -> String + Send + 'static) -> (String, Seen) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let seen = Seen::default();
    let bodies = Arc::clone(&seen);
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for stream in listener.incoming() {
            let mut reader = BufReader::new(stream.unwrap());
            let mut head = Vec::new();
            while head.last().is_none_or(|line: &String| !line.trim().is_empty()) {
                let mut line = String::new();
                if reader.read_line(&mut line).unwrap() == 0 {
                    break;
                }
                head.push(line);
            }
            let length = head.iter().find_map(|line| line.strip_prefix("content-length: "));
            let mut body = vec![0; length.map_or(0, |length| length.trim().parse().unwrap())];
            reader.read_exact(&mut body).unwrap();
            bodies.lock().unwrap().push(String::from_utf8(body).unwrap());
            let path = head[0].split(' ').nth(1).unwrap();
            let _ = reader.get_mut().write_all(answer(path).as_bytes());
            open.push(reader);
        }
    });
    (format!("http://{address}"), seen)
}

fn channel(settings: Value, variables: &[(&str, &str)]) -> NotificationChannel {
    let Value::Object(keys) = settings else { panic!("{settings}") };
    let settings = ChannelSettings::read(keys).unwrap();
    let environment =
        variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    NotificationChannel::new("c", "inspan.toml", settings, &environment, None).unwrap()
}

fn message(title: &str, text: &str) -> Message {
    let mut message = Message::test("c", Timestamp::default());
    title.clone_into(&mut message.title);
    text.clone_into(&mut message.notices[0].text);
    message
}

fn head(status: &str, length: usize) -> String {
    format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n")
}

#[tokio::test]
async fn a_status_of_success_is_a_delivery_whatever_follows_it() {
    let bodies = [
        ("large", head("200 OK", 600 * 1024) + &"x".repeat(600 * 1024)),
        ("cut short or slow", head("204 No Content", 100) + "x"),
        ("no body at all", head("200 OK", 1_000)),
        ("no HTTP any more", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nwhat\r\n".to_owned()),
    ];
    for (which, answer) in bodies {
        let (url, _) = server(move |_| answer.clone());
        let hook = json!({ "type": "webhook", "url": url, "secretEnv": "KEY" });
        let phone = json!({ "type": "ntfy", "server": url, "topic": "oxen" });
        for settings in [hook, phone] {
            let channel = channel(settings, &[("KEY", "signing-key-1")]);
            assert_eq!(channel.send(&message("a", "b")).await, Ok(()), "{which}");
        }
    }
}

#[tokio::test]
async fn the_path_of_a_secret_address_is_in_no_error() {
    let secret = "/services/T0AB12CD/B9/SECRETPATH?key=k3y-0f-mine";
    let parts =
        [secret, "/services/T0AB12CD/B9/SECRETPATH", "T0AB12CD/B9/SECRETPATH", "SECRETPATH", "k3y-0f-mine"];
    for part in parts {
        let (url, _) = server(move |_| {
            let said = format!("Cannot POST {part} of services");
            head("400 Bad Request", said.len()) + &said
        });
        let settings = json!({ "type": "webhook", "urlEnv": "HURL", "secretEnv": "KEY" });
        let channel = channel(settings, &[("HURL", &format!("{url}{secret}")), ("KEY", "signing-key-1")]);
        let why = channel.send(&message("a", "b")).await.unwrap_err().message;
        assert_eq!(why, "the server answered 400 Bad Request: Cannot POST [redacted] of services", "{part}");
    }
}

#[tokio::test]
async fn what_looks_like_a_key_in_an_address_of_a_file_is_in_no_error() {
    let said = "no /hooks/inspan/T0AB12CD/notifications?key=k3y-0f-mine&for=everyone";
    let (url, _) = server(move |_| head("400 Bad Request", said.len()) + said);
    let path = "/hooks/inspan/T0AB12CD/notifications?key=k3y-0f-mine&for=everyone";
    let settings = json!({ "type": "webhook", "url": format!("{url}{path}"), "secretEnv": "KEY" });
    let channel = channel(settings, &[("KEY", "signing-key-1")]);
    let why = channel.send(&message("a", "b")).await.unwrap_err().message;
    let shown = "no /hooks/inspan/[redacted]/notifications?key=[redacted]&for=everyone";
    assert_eq!(why, format!("the server answered 400 Bad Request: {shown}"));
}

#[tokio::test]
async fn ntfy_gets_no_more_bytes_than_it_takes() {
    let (url, seen) = server(|_| head("200 OK", 0));
    let channel = channel(json!({ "type": "ntfy", "server": url, "topic": "oxen" }), &[]);
    for text in ["牛".repeat(2_000), "é\"\\\n".repeat(1_000), "🐂".repeat(1_999) + "…", "\u{1}".repeat(2_000)]
    {
        let mut long = message(&"題".repeat(200), &text);
        long.notices[0].commands = vec!["inspan reply s gate.1 --choice yes".to_owned()];
        long.url = Some("http://127.0.0.1:1/#/s/s".to_owned());
        channel.send(&long).await.unwrap();
        let body = seen.lock().unwrap().pop().unwrap();
        let sent: Value = serde_json::from_str(&body).unwrap();
        let sent = sent["message"].as_str().unwrap();
        assert!(body.len() <= 8_192 && sent.len() <= 4_096, "{} {}", body.len(), sent.len());
        // Most of the text is there, and what to do about it.
        assert!(sent.len() > 1_000, "{sent}");
        assert!(sent.contains("…\n    inspan reply s gate.1 --choice yes"), "{sent}");
    }
}

#[tokio::test]
async fn slack_reads_no_markup_in_what_is_sent() {
    let ok = json!({ "ok": true, "ts": "1.2" }).to_string();
    let (url, seen) = server(move |_| head("200 OK", ok.len()) + &ok);
    let settings = json!({ "type": "slack", "api": url, "channel": "C1", "tokenEnv": "BOT" });
    let channel = channel(settings, &[("BOT", "xoxb-bot-token-12345")]);
    channel.send(&message("<!channel> & <@U1>", "x")).await.unwrap();
    let body: Value = serde_json::from_str(&seen.lock().unwrap()[0]).unwrap();
    assert_eq!(body["text"], "&lt;!channel&gt; &amp; &lt;@U1&gt;");
    // Slack reads none in these.
    let title = json!({ "type": "plain_text", "text": "<!channel> & <@U1>", "emoji": false });
    assert_eq!(body["blocks"][0]["text"], title);
}

#[test]
fn a_fault_is_said_without_the_names_of_the_code() {
    let said = |kind, message: &str| {
        failed(Broken::Failed(AgentError::new(ErrorCode::Network, message).with_kind(kind))).message
    };
    let certificate = "not trusted: Other(OtherError(CaUsedAsEndEntity))";
    let rows = [
        said(ErrorKind::Stall, "the server sent nothing for 15000 ms"),
        said(ErrorKind::Deadline, "the turn took longer than 30000 ms"),
        said(ErrorKind::Certificate, certificate),
        said(ErrorKind::Connect, "refused"),
    ];
    let expected = [
        "the server sent nothing for 15 s",
        "the server took longer than 30 s",
        "not trusted: it belongs to an authority, and not to a server",
        "refused",
    ];
    assert_eq!(rows, expected);
}
