//! An e-mail. The id of the delivery is its `Message-ID`, so that mail programs show a repeated one once.

mod dialogue;

use std::{sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use lettre::message::{Mailbox, Mailboxes, header::ContentType};
use rustls::ClientConfig;
use rustls_platform_verifier::ConfigVerifierExt;
use tokio::time::timeout;

use super::{SendError, Sender};
use crate::{message::Message, settings::SmtpTls};
use dialogue::MailServer;

/// How long all of it may take.
const ALL: Duration = Duration::from_secs(60);

pub(super) struct Smtp {
    server: MailServer,
    from: Mailbox,
    to: Mailboxes,
}

impl Smtp {
    pub(super) fn new(
        host: &str,
        port: u16,
        tls: SmtpTls,
        from: &str,
        to: &[String],
        login: Option<(String, String)>,
    ) -> Result<Self, SendError> {
        // It fails only if the program has chosen one already, which is then the one to use.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let trust =
            ClientConfig::with_platform_verifier().map_err(|error| SendError::new(error.to_string()))?;
        let mailbox = |address: &str| {
            address.parse::<Mailbox>().map_err(|error| SendError::new(format!("`{address}`: {error}")))
        };
        let to = to.iter().map(|address| mailbox(address)).collect::<Result<Vec<_>, _>>()?;
        let server = MailServer { host: host.to_owned(), port, tls, trust: Arc::new(trust), login };
        Ok(Self { server, from: mailbox(from)?, to: to.into_iter().collect() })
    }
}

impl Sender for Smtp {
    fn send<'a>(&'a self, message: &'a Message) -> BoxFuture<'a, Result<(), SendError>> {
        async move {
            let mut mail = lettre::Message::builder()
                .from(self.from.clone())
                .message_id(Some(format!("<{}@inspan>", message.id)))
                // No out-of-office answers.
                .header(AutoSubmitted)
                .subject(message.title.replace(['\r', '\n'], " "))
                .header(ContentType::TEXT_PLAIN);
            for to in self.to.iter() {
                mail = mail.to(to.clone());
            }
            let mail = mail.body(message.text()).map_err(|error| SendError::new(error.to_string()))?;
            let mail = (mail.envelope().clone(), mail.formatted());
            let late = || SendError::new(format!("the mail server took longer than {} s", ALL.as_secs()));
            timeout(ALL, self.server.send(&mail.0, &mail.1)).await.unwrap_or_else(|_| Err(late()))
        }
        .boxed()
    }
}

/// The header that marks mail of programs.
#[derive(Clone)]
struct AutoSubmitted;

impl lettre::message::header::Header for AutoSubmitted {
    fn name() -> lettre::message::header::HeaderName {
        lettre::message::header::HeaderName::new_from_ascii_str("Auto-Submitted")
    }

    fn parse(_: &str) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        Ok(Self)
    }

    fn display(&self) -> lettre::message::header::HeaderValue {
        lettre::message::header::HeaderValue::new(Self::name(), "auto-generated".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write, net::TcpListener};

    use inspan_protocol::Timestamp;

    use super::*;

    #[tokio::test]
    async fn a_server_whose_answer_has_no_end_is_left_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            while stream.write_all(&b"220-hello\r\n".repeat(1_000)).is_ok() {}
        });
        let to = ["me@example.com".to_owned()];
        let smtp = Smtp::new("127.0.0.1", port, SmtpTls::None, "inspan@example.com", &to, None).unwrap();
        let sent = smtp.send(&Message::test("mail", Timestamp::default())).await;
        assert_eq!(sent, Err(SendError::new("the mail server's answer is longer than 100 lines")));
    }
}
