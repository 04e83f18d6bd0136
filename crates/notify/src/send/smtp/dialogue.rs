//! The dialogue with a mail server, from its greeting to the end of one mail. What the server says is bounded in bytes, in
//! lines and in time, whatever it is: a server is no reason for a run to wait.

use std::{sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use inspan_protocol::{plain_words, with_causes};
use lettre::address::{Address, Envelope};
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsConnector;

use super::super::SendError;
use crate::settings::SmtpTls;

/// How long one step may take.
const STEP: Duration = Duration::from_secs(20);
/// What one answer may have: lines, and bytes of a line. RFC 5321 has lines of 512 bytes, and servers say a few of them.
const LINES: usize = 100;
const LINE: usize = 2_048;
/// How this side introduces itself: it has no name that others know.
const HELLO: &str = "EHLO [127.0.0.1]";

/// A mail server.
pub(super) struct MailServer {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) tls: SmtpTls,
    pub(super) trust: Arc<ClientConfig>,
    /// The name and the password.
    pub(super) login: Option<(String, String)>,
}

trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

/// A connection on which both sides take turns.
struct Dialogue {
    stream: BufReader<Box<dyn Connection>>,
}

/// What a server can do, as it says after the greeting.
struct Offers(Vec<String>);

impl MailServer {
    /// Gives the server one mail.
    pub(super) async fn send(&self, envelope: &Envelope, mail: &[u8]) -> Result<(), SendError> {
        let stream = self.connect().await?;
        let mut dialogue = match self.tls {
            SmtpTls::Tls => Dialogue::new(self.secured(Box::new(stream)).await?),
            SmtpTls::StartTls | SmtpTls::None => Dialogue::new(Box::new(stream)),
        };
        dialogue.answer(2).await?;
        let mut offers = dialogue.hello().await?;
        if self.tls == SmtpTls::StartTls {
            if offers.of("STARTTLS").is_none() {
                return Err(SendError::new("STARTTLS is not supported by this server"));
            }
            dialogue.say("STARTTLS", 2).await?;
            // What was said before, and what came unencrypted after it, counts no more.
            dialogue = Dialogue::new(self.secured(dialogue.stream.into_inner()).await?);
            offers = dialogue.hello().await?;
        }
        if let Some((name, password)) = &self.login {
            dialogue.log_in(&offers, name, password).await?;
        }
        let mailed = dialogue.mail(&offers, envelope, mail).await;
        if mailed.as_ref().err().is_none_or(|error| error.is_partial) {
            // The mail is delivered, whatever the server says to this.
            let _ = dialogue.write(b"QUIT\r\n").await;
        }
        mailed
    }

    async fn connect(&self) -> Result<TcpStream, SendError> {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        let failed =
            |error: std::io::Error| SendError::new(format!("no connection to the mail server: {error}"));
        in_time(async { TcpStream::connect((host, self.port)).await.map_err(failed) }).await
    }

    async fn secured(&self, stream: Box<dyn Connection>) -> Result<Box<dyn Connection>, SendError> {
        let host = self.host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host).map_err(|error| SendError::new(error.to_string()))?;
        let connecting = TlsConnector::from(Arc::clone(&self.trust)).connect(name, stream);
        let failed = |error: std::io::Error| {
            let causes = plain_words(&with_causes(&error));
            SendError::new(format!("no encrypted connection to the mail server: {causes}"))
        };
        let stream = in_time(async { connecting.await.map_err(failed) }).await?;
        Ok(Box::new(stream))
    }
}

impl Dialogue {
    fn new(stream: Box<dyn Connection>) -> Self {
        Self { stream: BufReader::new(stream) }
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), SendError> {
        let written = async {
            self.stream.get_mut().write_all(bytes).await.map_err(|error| broken(&error))?;
            self.stream.get_mut().flush().await.map_err(|error| broken(&error))
        };
        in_time(written).await
    }

    /// Says one line, to which an answer of this class must follow.
    async fn say(&mut self, line: &str, class: u16) -> Result<Vec<String>, SendError> {
        self.write(format!("{line}\r\n").as_bytes()).await?;
        self.answer(class).await
    }

    /// The lines of an answer whose code is of this class.
    async fn answer(&mut self, class: u16) -> Result<Vec<String>, SendError> {
        let (code, lines) = in_time(self.read()).await?;
        if code / 100 == class {
            return Ok(lines);
        }
        let message = format!("the mail server answered {code} {}", lines.join(" "));
        Err(if code / 100 == 5 { SendError::refusal(message) } else { SendError::new(message) })
    }

    async fn read(&mut self) -> Result<(u16, Vec<String>), SendError> {
        let mut lines = Vec::new();
        while lines.len() < LINES {
            let mut line = Vec::new();
            let mut bounded = (&mut self.stream).take(LINE as u64);
            bounded.read_until(b'\n', &mut line).await.map_err(|error| broken(&error))?;
            if !line.ends_with(b"\n") {
                let is_long = line.len() >= LINE;
                let why = if is_long { "sent a line without an end" } else { "closed the connection" };
                return Err(SendError::new(format!("the mail server {why}")));
            }
            let line = String::from_utf8_lossy(&line);
            let parts = line.trim_end().split_at_checked(3);
            let code = parts.and_then(|(code, rest)| Some((code.parse::<u16>().ok()?, rest)));
            let Some((code @ 200..600, rest)) = code else {
                return Err(SendError::new("the server does not speak as a mail server"));
            };
            lines.push(rest.get(1..).unwrap_or_default().to_owned());
            if !rest.starts_with('-') {
                return Ok((code, lines));
            }
        }
        Err(SendError::new(format!("the mail server's answer is longer than {LINES} lines")))
    }

    async fn hello(&mut self) -> Result<Offers, SendError> {
        self.say(HELLO, 2).await.map(Offers)
    }

    async fn log_in(&mut self, offers: &Offers, name: &str, password: &str) -> Result<(), SendError> {
        let offered = offers.of("AUTH").unwrap_or_default();
        let can = |method: &str| offered.split([' ', '=']).any(|other| other.eq_ignore_ascii_case(method));
        if can("PLAIN") {
            let login = STANDARD.encode(format!("\0{name}\0{password}"));
            self.say(&format!("AUTH PLAIN {login}"), 2).await?;
        } else if can("LOGIN") {
            self.say("AUTH LOGIN", 3).await?;
            self.say(&STANDARD.encode(name), 3).await?;
            self.say(&STANDARD.encode(password), 2).await?;
        } else {
            return Err(SendError::new("the mail server takes no login by a password"));
        }
        Ok(())
    }

    async fn mail(&mut self, offers: &Offers, envelope: &Envelope, mail: &[u8]) -> Result<(), SendError> {
        let is_ascii = |address: &Address| AsRef::<str>::as_ref(address).is_ascii();
        let international = if envelope.to().iter().chain(envelope.from()).all(is_ascii) {
            ""
        } else if offers.of("SMTPUTF8").is_some() {
            " SMTPUTF8"
        } else {
            return Err(SendError::refusal("the mail server takes only addresses of ASCII characters"));
        };
        let from = envelope.from().map(ToString::to_string).unwrap_or_default();
        self.say(&format!("MAIL FROM:<{from}>{international}"), 2).await?;
        let mut refused = Vec::new();
        for to in envelope.to() {
            match self.say(&format!("RCPT TO:<{to}>"), 2).await {
                // For the others the mail is sent.
                Err(error) if error.is_refusal => refused.push(format!("`{to}` gets no mail: {error}")),
                answered => drop(answered?),
            }
        }
        let refusal = SendError::refusal(refused.join("; "));
        if refused.len() == envelope.to().len() {
            return Err(refusal);
        }
        self.say("DATA", 3).await?;
        self.write(&stuffed(mail)).await?;
        self.answer(2).await?;
        match refused.is_empty() {
            true => Ok(()),
            false => Err(SendError { is_partial: true, ..refusal }),
        }
    }
}

impl Offers {
    /// What follows the word for an ability, if the server has it.
    fn of(&self, ability: &str) -> Option<&str> {
        self.0.iter().find_map(|line| {
            let (word, rest) = line.split_at_checked(ability.len())?;
            let is_it =
                word.eq_ignore_ascii_case(ability) && (rest.is_empty() || rest.starts_with([' ', '=']));
            is_it.then_some(rest)
        })
    }
}

/// Waits for one step.
async fn in_time<T>(step: impl Future<Output = Result<T, SendError>>) -> Result<T, SendError> {
    let late = || SendError::new(format!("the mail server took longer than {} s", STEP.as_secs()));
    timeout(STEP, step).await.unwrap_or_else(|_| Err(late()))
}

fn broken(error: &std::io::Error) -> SendError {
    SendError::new(format!("the connection to the mail server broke: {error}"))
}

/// The mail as it is sent: a line with a dot alone ends it, so a dot that begins a line of it is doubled.
fn stuffed(mail: &[u8]) -> Vec<u8> {
    let mut data = Vec::with_capacity(mail.len() + 8);
    for line in mail.split_inclusive(|byte| *byte == b'\n') {
        if line.starts_with(b".") {
            data.push(b'.');
        }
        data.extend_from_slice(line);
    }
    if !data.ends_with(b"\r\n") {
        data.extend_from_slice(b"\r\n");
    }
    data.extend_from_slice(b".\r\n");
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is read of a server that says this.
    async fn read(said: &str) -> Result<(u16, Vec<String>), String> {
        let mut dialogue = Dialogue::new(Box::new(tokio::io::join(
            std::io::Cursor::new(said.as_bytes().to_vec()),
            tokio::io::sink(),
        )));
        dialogue.read().await.map_err(|error| error.message)
    }

    #[tokio::test]
    async fn an_answer_is_read_up_to_its_last_line_and_has_an_end() {
        let lines = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect();
        assert_eq!(read("250-a\r\n250 b\r\n250 c\r\n").await, Ok((250, lines(&["a", "b"]))));
        assert_eq!(read("354\r\n").await, Ok((354, lines(&[""]))));
        let rows = [
            ("220-hello\r\n".repeat(100_000), "the mail server's answer is longer than 100 lines"),
            (format!("220 {}", "x".repeat(1_000_000)), "the mail server sent a line without an end"),
            ("HTTP/1.1 400 Bad\r\n".to_owned(), "the server does not speak as a mail server"),
            ("22é x\r\n".to_owned(), "the server does not speak as a mail server"),
            ("220-a\r\n220".to_owned(), "the mail server closed the connection"),
        ];
        for (said, why) in rows {
            assert_eq!(read(&said).await, Err(why.to_owned()));
        }
    }

    #[test]
    fn no_line_of_a_mail_ends_it() {
        let rows = [("a\r\n.\r\n.b\r\n", "a\r\n..\r\n..b\r\n.\r\n"), (".", "..\r\n.\r\n")];
        for (mail, sent) in rows {
            assert_eq!(String::from_utf8(stuffed(mail.as_bytes())).unwrap(), sent);
        }
    }
}
