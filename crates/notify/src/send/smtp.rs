//! An e-mail. The id of the delivery is its `Message-ID`, so that mail programs show a repeated one once.

use std::time::Duration;

use futures::{FutureExt, future::BoxFuture};
use inspan_protocol::with_causes;
use lettre::{
    AsyncSmtpTransport, AsyncTransport, Tokio1Executor,
    message::{Mailbox, Mailboxes, header::ContentType},
    transport::smtp::{
        authentication::Credentials,
        client::{Tls, TlsParameters},
    },
};

use super::{SendError, Sender};
use crate::{message::Message, settings::SmtpTls};

/// How long one step of the dialogue may take.
const STEP: Duration = Duration::from_secs(20);
/// How long all of it may take.
const ALL: Duration = Duration::from_secs(60);

pub(super) struct Smtp {
    transport: AsyncSmtpTransport<Tokio1Executor>,
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
        let parameters =
            || TlsParameters::new(host.to_owned()).map_err(|error| SendError::new(error.to_string()));
        let tls = match tls {
            SmtpTls::Tls => Tls::Wrapper(parameters()?),
            SmtpTls::StartTls => Tls::Required(parameters()?),
            SmtpTls::None => Tls::None,
        };
        let mut builder = AsyncSmtpTransport::<Tokio1Executor>::builder_dangerous(host)
            .port(port)
            .tls(tls)
            .timeout(Some(STEP));
        if let Some((name, password)) = login {
            builder = builder.credentials(Credentials::new(name, password));
        }
        let mailbox = |address: &str| {
            address.parse::<Mailbox>().map_err(|error| SendError::new(format!("`{address}`: {error}")))
        };
        let to = to.iter().map(|address| mailbox(address)).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { transport: builder.build(), from: mailbox(from)?, to: to.into_iter().collect() })
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
            let sent = tokio::time::timeout(ALL, self.transport.send(mail)).await;
            match sent {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(error)) if error.is_permanent() => Err(SendError::refusal(with_causes(&error))),
                Ok(Err(error)) => Err(SendError::new(with_causes(&error))),
                Err(_) => {
                    Err(SendError::new(format!("the mail server took longer than {} s", ALL.as_secs())))
                }
            }
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
