//! Mail, against a replacement that speaks SMTP as a server does: it greets, takes a login, and defers the first mail; in
//! plain text and by TLS.

use std::{
    fs,
    io::{self, BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    sync::{Arc, Mutex},
};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::{ServerConfig, ServerConnection, StreamOwned, pki_types::PrivateKeyDer};
use serde_json::json;

use super::{GATE, call, folder};
use crate::program::{Ran, ran};

/// What clients said, line by line.
type Dialogue = Arc<Mutex<Vec<String>>>;

/// How a server meets its clients.
#[derive(Clone)]
enum Security {
    Plain,
    /// By TLS from the start.
    Tls(Arc<ServerConfig>),
    /// By TLS when the client asks for it.
    StartTls(Arc<ServerConfig>),
}

/// Serves clients until the test ends. Of a plain server the first mail is deferred.
fn server(security: Security, log: Dialogue) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            // A client that goes away ends its dialogue.
            let _ = meet(stream.unwrap(), &security, number == 0, &log);
        }
    });
    port
}

fn meet(mut stream: TcpStream, security: &Security, is_first: bool, log: &Dialogue) -> io::Result<()> {
    const GREETING: &[u8] = b"220 mail.test ESMTP\r\n";
    const LOGIN: &str = "250-mail.test\r\n250 AUTH PLAIN";
    let secured = |stream, config: &Arc<ServerConfig>| {
        StreamOwned::new(ServerConnection::new(Arc::clone(config)).unwrap(), stream)
    };
    match security {
        Security::Plain => {
            stream.write_all(GREETING)?;
            speak(&mut BufReader::new(stream), LOGIN, is_first, log).map(drop)
        }
        Security::Tls(config) => {
            let mut stream = secured(stream, config);
            stream.write_all(GREETING)?;
            speak(&mut BufReader::new(stream), LOGIN, false, log).map(drop)
        }
        Security::StartTls(config) => {
            stream.write_all(GREETING)?;
            let mut plain = BufReader::new(stream);
            if speak(&mut plain, "250-mail.test\r\n250 STARTTLS", false, log)? == "STARTTLS" {
                speak(&mut BufReader::new(secured(plain.into_inner(), config)), LOGIN, false, log)?;
            }
            Ok(())
        }
    }
}

/// Answers a client up to the word that ends the dialogue, which is returned.
fn speak<S: Read + Write>(
    stream: &mut BufReader<S>,
    hello: &str,
    puts_off: bool,
    log: &Dialogue,
) -> io::Result<String> {
    let next = |stream: &mut BufReader<S>| -> io::Result<Option<String>> {
        let mut line = String::new();
        let length = stream.read_line(&mut line)?;
        let line = line.trim_end().to_owned();
        log.lock().unwrap().push(line.clone());
        Ok((length > 0).then_some(line))
    };
    while let Some(line) = next(stream)? {
        let verb = line.split([' ', ':']).next().unwrap_or_default().to_uppercase();
        let answer = match verb.as_str() {
            "EHLO" => hello,
            "STARTTLS" => "220 go ahead",
            "AUTH" => "235 welcome",
            "MAIL" => "250 ok",
            "RCPT" if puts_off => "451 later, please",
            "RCPT" if line.contains("gone@") => "550 no such user",
            "RCPT" => "250 ok",
            "DATA" => "354 end with a dot",
            "QUIT" => "221 bye",
            "RSET" => "250 ok",
            _ => "500 what",
        };
        stream.get_mut().write_all(format!("{answer}\r\n").as_bytes())?;
        match verb.as_str() {
            "DATA" => {
                while next(stream)?.is_some_and(|line| line != ".") {}
                stream.get_mut().write_all(b"250 queued\r\n")?;
            }
            "QUIT" | "STARTTLS" => return Ok(verb),
            _ => {}
        }
    }
    Ok(String::new())
}

/// The settings of a channel.
fn channel(host: &str, port: u16, tls: &str) -> String {
    format!(
        "[channels.mail]\ntype = \"smtp\"\nhost = \"{host}\"\nport = {port}\ntls = \"{tls}\"\nfrom = \"Inspan <inspan@example.com>\"\nto = [\"me@example.com\", \"you@example.com\"]\nusername = \"inspan\"\npasswordEnv = \"MAIL_PASSWORD\"\n"
    )
}

fn with_password(folder: &Path, arguments: &[&str]) -> Ran {
    ran(folder, call(folder, arguments).env("MAIL_PASSWORD", "mail-password-1"))
}

#[test]
fn a_mail_says_what_waits_and_has_one_id_however_often_it_is_sent() {
    let log = Dialogue::default();
    let port = server(Security::Plain, Arc::clone(&log));
    let settings = channel("127.0.0.1", port, "none");
    let folder = &folder(GATE, &settings);
    with_password(folder, &["run", "--no-input", "--session-id", "s"])
        .expect(3)
        .says("the channel `mail` failed");
    with_password(folder, &["notify", "deliver", "--once"]).expect(0);
    let said = log.lock().unwrap().clone();
    let of = |start: &str| -> Vec<&String> { said.iter().filter(|line| line.starts_with(start)).collect() };
    assert_eq!(
        of("RCPT TO:"),
        ["RCPT TO:<me@example.com>", "RCPT TO:<me@example.com>", "RCPT TO:<you@example.com>"]
    );
    assert_eq!(of("Subject: "), ["Subject: oxen: `gate` asks a question"]);
    assert_eq!(of("Auto-Submitted: "), ["Auto-Submitted: auto-generated"]);
    let [id] = of("Message-ID: ").try_into().unwrap_or_else(|ids| panic!("{ids:?}"));
    assert!(id.starts_with("Message-ID: <ntf-") && id.ends_with("@inspan>"), "{id}");
    let text = said.join("\n");
    assert!(text.contains("Ship it?\n    inspan reply s gate.1 --choice yes\n"), "{text}");
    // The password is in the login and nowhere else.
    assert_eq!(json!(text.matches("mail-password-1").count()), json!(0));
    let stored = fs::read(folder.join(".home/sessions.db-notifications")).unwrap();
    assert!(!String::from_utf8_lossy(&stored).contains("mail-password-1"));
}

#[test]
fn a_refused_recipient_keeps_the_mail_from_no_other() {
    let log = Dialogue::default();
    let port = server(Security::Plain, Arc::clone(&log));
    let settings = channel("127.0.0.1", port, "none");
    let settings = settings.replace("\"me@example.com\"", "\"me@example.com\", \"gone@example.com\"");
    let folder = &folder(GATE, &settings);
    with_password(folder, &["run", "--no-input", "--session-id", "s"]).expect(3);
    let sent = with_password(folder, &["notify", "deliver", "--once", "--json"]).expect(1);
    let expected = json!({ "isDelivered": false, "undelivered": [], "refused": ["mail"] });
    assert_eq!(sent.json(), expected);
    let why = "`gone@example.com` gets no mail: the mail server answered 550 no such user";
    let warning =
        format!("warning: the channel `mail` sent a notification of session `s` only in part: {why}\n");
    assert!(sent.stderr.ends_with(&warning), "{}", sent.stderr);
    let doctor = with_password(folder, &["doctor", "--offline", "--json"]).json();
    let row = &doctor["channels"][0];
    let facts = [&row["givenUp"], &row["givenUpError"], &row["pending"], &row["failed"]];
    assert_eq!(facts, [&json!(1), &json!(why), &json!(0), &json!(null)]);
    // The others have it, so it is not sent again.
    with_password(folder, &["notify", "deliver", "--once"]).expect(0);
    let said = log.lock().unwrap().clone();
    let of = |start: &str| said.iter().filter(|line| line.starts_with(start)).count();
    assert_eq!((of("Subject: "), of("RCPT TO:<you@example.com>")), (1, 1));
    let tested = with_password(folder, &["notify", "test", "mail"]);
    let expected = format!("error: channel `mail`: sent only in part: {why}\n");
    assert_eq!((tested.code, tested.stderr), (Some(1), expected));
}

/// A server's identity for the name `localhost`, and the certificate of the authority that vouches for it.
fn identity() -> (Arc<ServerConfig>, String) {
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let certificate = authority.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(authority, key);
    let key = KeyPair::generate().unwrap();
    let own = CertificateParams::new(vec!["localhost".to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = config.with_no_client_auth().with_single_cert(vec![own.der().clone()], key).unwrap();
    (Arc::new(config), certificate)
}

#[test]
fn a_mail_and_its_password_go_only_to_a_server_that_proves_its_name() {
    let (config, authority) = identity();
    let (tls, start, plain) = (Security::Tls(config.clone()), Security::StartTls(config), Security::Plain);
    let cases = [
        ("tls", &tls, "localhost", true, Ok(())),
        ("starttls", &start, "localhost", true, Ok(())),
        ("tls", &tls, "localhost", false, Err("UnknownIssuer")),
        ("tls", &tls, "127.0.0.1", true, Err("not valid for name \"127.0.0.1\"")),
        ("starttls", &plain, "localhost", true, Err("STARTTLS is not supported")),
    ];
    // Each failure is tried again for a while, so they are met at the same time.
    std::thread::scope(|scope| {
        for (word, security, host, is_trusted, expected) in cases {
            let authority = is_trusted.then_some(&*authority);
            scope.spawn(move || send_test(word, security, host, authority, expected));
        }
    });
}

fn send_test(
    word: &str,
    security: &Security,
    host: &str,
    authority: Option<&str>,
    expected: Result<(), &str>,
) {
    let log = Dialogue::default();
    let port = server(security.clone(), Arc::clone(&log));
    let folder = &folder(GATE, &channel(host, port, word));
    let mut test = call(folder, &["notify", "test", "mail"]);
    test.env("MAIL_PASSWORD", "mail-password-1");
    if let Some(authority) = authority {
        let trusted = folder.join("authority.pem");
        fs::write(&trusted, authority).unwrap();
        test.env("SSL_CERT_FILE", &trusted);
    }
    let sent = ran(folder, &mut test);
    let said = log.lock().unwrap().join("\n");
    match expected {
        Ok(()) => {
            assert_eq!(sent.code, Some(0), "{word}: {}", sent.stderr);
            assert!(said.contains("AUTH PLAIN") && said.contains("Subject: "), "{word}: {said}");
        }
        Err(why) => {
            assert_eq!(sent.code, Some(1), "{word} {host}: {}", sent.stderr);
            assert_eq!(sent.stderr.matches(why).count(), 1, "{word} {host}: {}", sent.stderr);
            assert!(!said.contains("AUTH") && !said.contains("Subject: "), "{word} {host}: {said}");
        }
    }
}
