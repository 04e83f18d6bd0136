//! Every rule of the guard against every kind of route, and against a service of another protocol. Without a rule its
//! rows pass the guard, and fail here.

use axum::{
    body::Body,
    http::{HeaderValue, Method, Request, header::HeaderName},
};

use super::*;
use crate::ServerOptions;
use crate::testing::{Answered, TOKEN, TestServer, authorized, request};

/// What holds sessions, the socket, the counts, a path that is nothing.
const READS: [&str; 7] = [
    "/api/v1/sessions",
    "/api/v1/sessions/s1/events?follow=0",
    "/api/v1/inbox",
    "/api/v1/openapi.json",
    "/metrics",
    "/ws",
    "/api/v1/none",
];
/// What holds nothing of a session.
const OPEN: [&str; 2] = ["/", "/healthz"];
/// What changes something.
const CHANGES: [&str; 5] = [
    "/api/v1/sessions",
    "/api/v1/sessions/s1/commands",
    "/api/v1/sessions/s1/fork",
    "/api/v1/login",
    "/api/v1/none",
];
/// The codes of the guard.
const GUARD: [&str; 5] = ["hostNotAllowed", "originNotAllowed", "crossSite", "tokenMissing", "notJson"];

type Change = fn(&mut Request<Body>);

fn set(request: &mut Request<Body>, name: &'static str, value: &'static str) {
    request.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
}

fn add(request: &mut Request<Body>, name: &'static str, value: &'static str) {
    request.headers_mut().append(HeaderName::from_static(name), HeaderValue::from_static(value));
}

/// What the guard answers to a request: its own code, or that the request passed.
fn verdict(answered: &Answered) -> String {
    match answered.code() {
        Some(code) if GUARD.contains(&code.as_str()) => code,
        Some(code) if code == "invalidRequest" && answered.text.contains("is unclear") => {
            "unclear".to_owned()
        }
        _ => "passed".to_owned(),
    }
}

/// The verdicts on the same change of a good request to each of these routes.
async fn verdicts(
    server: &TestServer,
    method: &Method,
    paths: &[&str],
    change: Change,
) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for path in paths {
        let mut request = authorized(method.clone(), path).body(Body::from("{\"token\":\"\"}")).unwrap();
        change(&mut request);
        let answered = server.send(request).await;
        // The login has its own refusal, which looks the same.
        let is_login = *path == LOGIN && answered.text.contains("not the token of this server");
        let verdict = if is_login { "passed".to_owned() } else { verdict(&answered) };
        found.push(((*path).to_owned(), verdict));
    }
    found
}

/// Each of these changes makes a good request one that every route refuses for the same reason.
async fn refused_on_every_route(changes: &[Change], code: &str) {
    let server = TestServer::new();
    for change in changes {
        for (method, paths) in [(Method::GET, &READS[..]), (Method::GET, &OPEN), (Method::POST, &CHANGES)] {
            assert_eq!(verdicts(&server, &method, paths, *change).await, all(paths, code));
        }
    }
}

fn all(paths: &[&str], verdict: &str) -> Vec<(String, String)> {
    paths.iter().map(|path| ((*path).to_owned(), verdict.to_owned())).collect()
}

#[tokio::test]
async fn a_request_that_keeps_the_rules_passes_on_every_route() {
    let server = TestServer::new();
    let good: [Change; 6] = [
        |_| {},
        |request| set(request, "origin", "http://localhost:4680"),
        |request| set(request, "sec-fetch-site", "same-origin"),
        |request| set(request, "sec-fetch-site", "none"),
        |request| set(request, "host", "127.0.0.1:4680"),
        |request| {
            set(request, "host", "Inspan.example.org");
            set(request, "origin", "https://inspan.example.org");
        },
    ];
    for change in good {
        assert_eq!(verdicts(&server, &Method::GET, &READS, change).await, all(&READS, "passed"));
        assert_eq!(verdicts(&server, &Method::GET, &OPEN, change).await, all(&OPEN, "passed"));
        assert_eq!(verdicts(&server, &Method::POST, &CHANGES, change).await, all(&CHANGES, "passed"));
    }
}

#[tokio::test]
async fn a_strange_host_is_refused_on_every_route() {
    let strange: [Change; 7] = [
        |request| set(request, "host", "evil.example:4680"),
        |request| set(request, "host", "localhost"),
        |request| set(request, "host", "localhost:80"),
        |request| set(request, "host", "localhost:4680.evil.example"),
        |request| set(request, "host", "169.254.169.254:4680"),
        |request| {
            request.headers_mut().remove("host");
        },
        |request| {
            let path = request.uri().path_and_query().unwrap().to_string();
            *request.uri_mut() = format!("http://evil.example{path}").parse().unwrap();
        },
    ];
    refused_on_every_route(&strange, "hostNotAllowed").await;
}

#[tokio::test]
async fn a_page_of_another_origin_is_refused_on_every_route() {
    let strange: [Change; 6] = [
        |request| set(request, "origin", "http://evil.example"),
        |request| set(request, "origin", "null"),
        |request| set(request, "origin", "http://localhost:3000"),
        |request| set(request, "origin", "https://localhost:4680"),
        |request| set(request, "origin", "http://localhost"),
        |request| set(request, "origin", "http://LOCALHOST:4680"),
    ];
    refused_on_every_route(&strange, "originNotAllowed").await;
}

#[tokio::test]
async fn a_request_that_another_page_sends_is_refused_on_every_route() {
    let strange: [Change; 3] = [
        |request| set(request, "sec-fetch-site", "cross-site"),
        |request| set(request, "sec-fetch-site", "same-site"),
        |request| set(request, "sec-fetch-site", "anything"),
    ];
    refused_on_every_route(&strange, "crossSite").await;
}

#[tokio::test]
async fn without_the_token_nothing_of_a_session_is_read_or_changed() {
    let server = TestServer::new();
    let strange: [Change; 8] = [
        |request| {
            request.headers_mut().remove("authorization");
        },
        |request| set(request, "authorization", "Bearer "),
        |request| set(request, "authorization", "Bearer 0123456789abcdef"),
        |request| {
            set(
                request,
                "authorization",
                "Basic 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
            );
        },
        // One hexadecimal digit is another one.
        |request| {
            set(
                request,
                "authorization",
                "Bearer 1123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
            );
        },
        // The token itself is no cookie.
        |request| {
            request.headers_mut().remove("authorization");
            add(
                request,
                "cookie",
                "inspan-4680=0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
            );
        },
        |request| {
            request.headers_mut().remove("authorization");
            add(request, "cookie", "inspan-4680=");
        },
        |request| {
            let path = request.uri().path().to_owned();
            *request.uri_mut() = format!("{path}?token={TOKEN}").parse().unwrap();
            request.headers_mut().remove("authorization");
        },
    ];
    let guarded: Vec<&str> = CHANGES.into_iter().filter(|path| *path != LOGIN).collect();
    for change in strange {
        let reads = verdicts(
            &server,
            &Method::GET,
            &["/api/v1/sessions", "/api/v1/inbox", "/metrics", "/ws"],
            change,
        );
        assert_eq!(
            reads.await,
            all(&["/api/v1/sessions", "/api/v1/inbox", "/metrics", "/ws"], "tokenMissing")
        );
        assert_eq!(verdicts(&server, &Method::POST, &guarded, change).await, all(&guarded, "tokenMissing"));
        assert_eq!(verdicts(&server, &Method::GET, &OPEN, change).await, all(&OPEN, "passed"));
    }
}

#[tokio::test]
async fn every_read_of_the_table_needs_the_token() {
    let server = TestServer::new();
    let free = [HEALTH, LOGIN];
    for route in crate::api::routes().iter().filter(|route| !free.contains(&route.path)) {
        let sent = request(route.method.clone(), route.path).header("content-type", "application/json");
        let answered = server.send(sent.body(Body::from("{}")).unwrap()).await;
        assert_eq!((answered.status, verdict(&answered)), (401, "tokenMissing".to_owned()), "{}", route.path);
    }
}

#[tokio::test]
async fn what_changes_something_is_json() {
    let server = TestServer::new();
    let strange: [Change; 5] = [
        |request| set(request, "content-type", "text/plain"),
        |request| set(request, "content-type", "application/x-www-form-urlencoded"),
        |request| set(request, "content-type", "multipart/form-data; boundary=x"),
        |request| set(request, "content-type", "text/plain; application/json"),
        |request| {
            request.headers_mut().remove("content-type");
        },
    ];
    for change in strange {
        for method in [Method::POST, Method::PUT, Method::PATCH, Method::OPTIONS] {
            assert_eq!(verdicts(&server, &method, &CHANGES, change).await, all(&CHANGES, "notJson"));
        }
    }
    // No page can send a DELETE to another origin unasked, so it needs no content; if it has some, that is JSON.
    let [text, .., none] = strange;
    assert_eq!(verdicts(&server, &Method::DELETE, &CHANGES, text).await, all(&CHANGES, "notJson"));
    assert_eq!(verdicts(&server, &Method::DELETE, &CHANGES, none).await, all(&CHANGES, "passed"));
    let json: Change = |request| set(request, "content-type", "Application/JSON; charset=utf-8");
    assert_eq!(verdicts(&server, &Method::POST, &CHANGES, json).await, all(&CHANGES, "passed"));
}

#[tokio::test]
async fn a_header_that_comes_twice_is_refused() {
    let server = TestServer::new();
    let twice: [Change; 4] = [
        |request| add(request, "host", "evil.example"),
        |request| {
            add(request, "origin", "http://localhost:4680");
            add(request, "origin", "http://evil.example");
        },
        |request| {
            add(request, "sec-fetch-site", "same-origin");
            add(request, "sec-fetch-site", "cross-site");
        },
        |request| add(request, "authorization", "Bearer x"),
    ];
    for change in twice {
        let paths = ["/api/v1/sessions", "/ws"];
        assert_eq!(verdicts(&server, &Method::GET, &paths, change).await, all(&paths, "unclear"));
    }
}

#[tokio::test]
async fn the_token_is_exchanged_for_a_cookie_that_scripts_cannot_read() {
    let server = TestServer::new();
    let login = async |token: &str, origin: &'static str| {
        let sent = request(Method::POST, LOGIN)
            .header("content-type", "application/json")
            .header("origin", origin)
            .header(
                "host",
                if origin.starts_with("https") { "inspan.example.org" } else { "localhost:4680" },
            );
        let mut sent = sent.body(Body::from(format!("{{\"token\":\"{token}\"}}"))).unwrap();
        let host = sent.headers().get_all("host").iter().next_back().cloned().unwrap();
        sent.headers_mut().insert("host", host);
        server.send(sent).await
    };
    let good = login(TOKEN, "http://localhost:4680").await;
    let cookie = good.headers["set-cookie"].to_str().unwrap().to_owned();
    let value = server.app.guard.token.cookie();
    assert_eq!(
        (good.status, cookie),
        (204, format!("inspan-4680={value}; Path=/; HttpOnly; SameSite=Strict"))
    );
    assert!(!value.contains(TOKEN));
    let secure = login(TOKEN, "https://inspan.example.org").await;
    assert!(secure.headers["set-cookie"].to_str().unwrap().ends_with("; Secure"));
    let bad = login("0", "http://localhost:4680").await;
    assert_eq!((bad.status, bad.headers.get("set-cookie")), (401, None));
    // A code opens the page once.
    let code = server.app.guard.codes.fresh().unwrap().reveal();
    let opened = [login(&code, "http://localhost:4680").await, login(&code, "http://localhost:4680").await];
    assert_eq!(opened.map(|answer| answer.status), [204, 401]);
    assert!(server.app.guard.codes.fresh().unwrap().reveal() != code);
    // Everybody may send one, so little of it is read.
    let long = login(&"0".repeat(limits::LOGIN), "http://localhost:4680").await;
    assert_eq!(long.status, 413);

    let with_cookie =
        request(Method::GET, "/api/v1/sessions").header("cookie", format!("a=b; inspan-4680={value}"));
    assert_eq!(server.send(with_cookie.body(Body::empty()).unwrap()).await.status, 200);
}

#[tokio::test]
async fn every_answer_tells_browsers_what_its_page_may_do() {
    let server = TestServer::new();
    for sent in [
        request(Method::GET, "/"),
        request(Method::GET, "/healthz"),
        request(Method::GET, "/api/v1/sessions"),
        authorized(Method::GET, "/api/v1/sessions"),
        authorized(Method::GET, "/none"),
        authorized(Method::DELETE, "/api/v1/sessions"),
        request(Method::GET, "/").header("host", "evil.example"),
    ] {
        let headers = server.send(sent.body(Body::empty()).unwrap()).await.headers;
        let value = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let policy = value("content-security-policy");
        assert!(policy.starts_with("default-src 'self';") && !policy.contains("unsafe"), "{policy}");
        let values =
            ["x-content-type-options", "x-frame-options", "referrer-policy", "cross-origin-opener-policy"]
                .map(value);
        assert_eq!(values, ["nosniff", "DENY", "no-referrer", "same-origin"]);
        assert_eq!(headers.get("access-control-allow-origin"), None);
    }
}

#[tokio::test]
async fn a_body_beyond_the_bound_is_refused() {
    let server = TestServer::new();
    let body = format!("{{\"flow\":\"{}\"}}", "x".repeat(limits::BODY));
    let sent = authorized(Method::POST, "/api/v1/sessions").body(Body::from(body)).unwrap();
    let answered = server.send(sent).await;
    assert_eq!((answered.status, answered.code().as_deref()), (413, Some("tooLarge")));
}

/// Every rule of the guard, each with a request that breaks only this one.
const RULES: [(&str, Change); 8] = [
    ("hostNotAllowed", |request| set(request, "host", "evil.example:4680")),
    ("hostNotAllowed", |request| *request.uri_mut() = "http://evil.example/mcp".parse().unwrap()),
    ("originNotAllowed", |request| set(request, "origin", "http://localhost:3000")),
    ("crossSite", |request| set(request, "sec-fetch-site", "same-site")),
    ("notJson", |request| set(request, "content-type", "text/plain")),
    ("tokenMissing", |request| set(request, "authorization", "Bearer 0")),
    ("tokenMissing", |request| {
        request.headers_mut().remove("authorization");
    }),
    ("unclear", |request| add(request, "host", "localhost:4680")),
];

#[tokio::test]
async fn a_service_of_another_protocol_is_behind_every_rule() {
    let server = TestServer::mounted("/mcp");
    let verdict_on = async |method: &Method, change: Change| {
        let mut sent = authorized(method.clone(), "/mcp").body(Body::empty()).unwrap();
        change(&mut sent);
        verdict(&server.send(sent).await)
    };
    for method in [Method::POST, Method::DELETE, Method::GET] {
        assert_eq!(verdict_on(&method, |_| {}).await, "passed", "{method}");
        // What only reads has no content that could be of another type.
        let rules = RULES.iter().filter(|(rule, _)| method != Method::GET || *rule != "notJson");
        for (rule, change) in rules {
            assert_eq!(verdict_on(&method, *change).await, *rule, "{method}");
        }
    }
}

#[tokio::test]
async fn besides_the_service_there_is_only_the_health_check() {
    let server = TestServer::mounted("/mcp");
    let answer = async |method: Method, path: &str, body: String| {
        let answered = server.send(authorized(method, path).body(Body::from(body)).unwrap()).await;
        (answered.status, answered.code().unwrap_or(answered.text))
    };
    let got = [
        answer(Method::POST, "/mcp", "{}".to_owned()).await,
        answer(Method::GET, HEALTH, String::new()).await,
        answer(Method::GET, "/", String::new()).await,
        answer(Method::GET, "/api/v1/sessions", String::new()).await,
        answer(Method::POST, LOGIN, "{}".to_owned()).await,
        answer(Method::POST, "/mcp", "x".repeat(limits::BODY + 1)).await,
    ];
    let expected = [
        (200, "reached {}"),
        (200, "ok\n"),
        (404, "notFound"),
        (404, "notFound"),
        (404, "notFound"),
        (413, "tooLarge"),
    ];
    assert_eq!(got, expected.map(|(status, text)| (status, text.to_owned())));
}

#[tokio::test(start_paused = true)]
async fn a_body_that_comes_too_slowly_is_not_waited_for() {
    let server = TestServer::mounted("/mcp");
    let slow = Body::from_stream(futures::stream::pending::<Result<String, std::io::Error>>());
    let began = tokio::time::Instant::now();
    let answered = server.send(authorized(Method::POST, "/mcp").body(slow).unwrap()).await;
    assert_eq!((answered.status, answered.code().as_deref()), (504, Some("timeout")));
    assert_eq!(began.elapsed(), limits::ANSWER);
}

#[test]
fn the_port_of_a_scheme_may_be_left_out() {
    let named = ["a.example:80", "b.example:443"].map(|name| name.parse().unwrap());
    let guard = |port| {
        Guard::new(
            ([127, 0, 0, 1], port).into(),
            named.to_vec(),
            TOKEN.parse().unwrap(),
            LoginCodes::default(),
        )
    };
    let has = |all: &[String], name: &str| all.iter().any(|known| known == name);
    let on_80 = guard(80);
    for host in ["localhost", "127.0.0.1:80", "[::1]", "a.example", "b.example", "b.example:443"] {
        assert!(has(&on_80.hosts, host), "{host}");
    }
    for origin in ["http://localhost", "http://a.example", "https://b.example"] {
        assert!(has(&on_80.origins, origin), "{origin}");
    }
    let on_443 = guard(443);
    assert!(!has(&on_443.hosts, "localhost") && !has(&on_443.origins, "https://localhost"));
}

#[test]
fn a_name_of_a_host_is_checked() {
    let read = |text: &str| text.parse::<Host>().map(|host| host.to_string()).ok();
    let good = ["Inspan.example.org", "10.0.0.1:8443", "[2001:db8::1]:80"].map(read);
    assert_eq!(
        good,
        ["inspan.example.org", "10.0.0.1:8443", "[2001:db8::1]:80"].map(|name| Some(name.to_owned()))
    );
    let bad = ["", "*", "a b", "http://a", "u@a", "a/b", "a:", "a:0", "a:99999", "a:http", "[::1]:99999"];
    assert_eq!(bad.map(read), [(); 11].map(|()| None));
}

#[test]
fn a_server_names_addresses_that_its_guard_lets_in() {
    let rows = [
        ("127.0.0.1:4680", &[][..], "http://127.0.0.1:4680", "http://127.0.0.1:4680"),
        ("127.0.0.2:4680", &[], "http://127.0.0.2:4680", "http://127.0.0.2:4680"),
        ("[::1]:4680", &["x.example"], "http://[::1]:4680", "https://x.example"),
        ("0.0.0.0:4680", &["x.example", "y.example"], "http://127.0.0.1:4680", "https://x.example"),
        ("[::]:4680", &["x.example:4680"], "http://[::1]:4680", "http://x.example:4680"),
        ("192.0.2.7:4680", &["x.example:8443"], "https://x.example:8443", "https://x.example:8443"),
    ];
    for (address, hosts, url, shared_url) in rows {
        let address: SocketAddr = address.parse().unwrap();
        let hosts: Vec<Host> = hosts.iter().map(|host| host.parse().unwrap()).collect();
        let options = ServerOptions { address, hosts: hosts.clone(), ..TestServer::options() };
        assert_eq!((options.url().as_str(), options.shared_url().as_str()), (url, shared_url));
        let guard = Guard::new(address, hosts, TOKEN.parse().unwrap(), LoginCodes::default());
        for url in [url, shared_url] {
            assert!(guard.origins.iter().any(|origin| origin == url), "{url}");
        }
    }
}
