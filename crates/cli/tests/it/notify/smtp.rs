//! Mail, against a replacement that speaks SMTP as a server does: it greets, takes a login, and defers the first mail.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    sync::{Arc, Mutex},
};

use serde_json::json;

use super::{GATE, call, folder};
use crate::program::{Ran, ran};

/// What clients said, line by line.
type Dialogue = Arc<Mutex<Vec<String>>>;

/// Serves clients until the test ends. The first mail is deferred.
fn server(log: Dialogue) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            // A client that goes away ends its dialogue.
            let _ = speak(stream.unwrap(), number == 0, &log);
        }
    });
    port
}

fn speak(mut stream: TcpStream, puts_off: bool, log: &Dialogue) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    stream.write_all(b"220 mail.test ESMTP\r\n")?;
    while let Some(line) = lines.next().transpose()? {
        log.lock().unwrap().push(line.clone());
        let verb = line.split([' ', ':']).next().unwrap_or_default().to_uppercase();
        let answer = match verb.as_str() {
            "EHLO" => "250-mail.test\r\n250 AUTH PLAIN",
            "AUTH" => "235 welcome",
            "MAIL" => "250 ok",
            "RCPT" if puts_off => "451 later, please",
            "RCPT" => "250 ok",
            "DATA" => "354 end with a dot",
            "QUIT" => "221 bye",
            "RSET" => "250 ok",
            _ => "500 what",
        };
        stream.write_all(format!("{answer}\r\n").as_bytes())?;
        match verb.as_str() {
            "DATA" => {
                while let Some(line) = lines.next().transpose()?.filter(|line| line != ".") {
                    log.lock().unwrap().push(line);
                }
                stream.write_all(b"250 queued\r\n")?;
            }
            "QUIT" => return Ok(()),
            _ => {}
        }
    }
    Ok(())
}

fn with_password(folder: &Path, arguments: &[&str]) -> Ran {
    ran(folder, call(folder, arguments).env("MAIL_PASSWORD", "mail-password-1"))
}

#[test]
fn a_mail_says_what_waits_and_has_one_id_however_often_it_is_sent() {
    let log = Dialogue::default();
    let port = server(Arc::clone(&log));
    let settings = format!(
        "[channels.mail]\ntype = \"smtp\"\nhost = \"127.0.0.1\"\nport = {port}\ntls = \"none\"\nfrom = \"Inspan <inspan@example.com>\"\nto = [\"me@example.com\", \"you@example.com\"]\nusername = \"inspan\"\npasswordEnv = \"MAIL_PASSWORD\"\n"
    );
    let folder = folder(GATE, &settings);
    let asked = with_password(folder.path(), &["run", "--no-input", "--session-id", "s"]);
    assert_eq!(asked.code, Some(3), "{}", asked.stderr);
    assert!(asked.stderr.contains("the channel `mail` failed"), "{}", asked.stderr);
    let delivered = with_password(folder.path(), &["notify", "deliver", "--once"]);
    assert_eq!(delivered.code, Some(0), "{}", delivered.stderr);
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
    let stored = fs::read(folder.path().join(".home/sessions.db-notifications")).unwrap();
    assert!(!String::from_utf8_lossy(&stored).contains("mail-password-1"));
}
