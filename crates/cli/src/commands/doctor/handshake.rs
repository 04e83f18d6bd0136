//! One free handshake with each provider: a program is started and greeted, a service is asked whether it accepts the key.

use std::time::Duration;

use futures::future::join_all;
use inspan_protocol::{ExecutionContext, Handshake, Host};
use serde::Serialize;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::{commands::all_providers, invocation::Invocation};

/// How long a vendor may take to answer.
const LIMIT: Duration = Duration::from_secs(10);
/// How long it may take to stop after that.
const END: Duration = Duration::from_secs(6);

/// The result of one handshake.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct HandshakeResult {
    #[serde(skip)]
    pub(super) provider: String,
    /// How long it took, in milliseconds.
    pub(super) took_ms: u64,
    /// Why it did not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) problem: Option<String>,
}

/// Greets these providers at the same time.
pub(super) async fn greet(names: &[String], invocation: &Invocation) -> Vec<HandshakeResult> {
    let registry = all_providers();
    let greetings = names.iter().map(async |name| {
        let provider = registry.get(name)?;
        let cancel = CancellationToken::new();
        let host =
            Host { env: invocation.session_env(), supervisor: inspan_process::guard(), ..Host::default() };
        let context = ExecutionContext { cancel: cancel.clone(), ..ExecutionContext::new(host) };
        let began = Instant::now();
        let mut greeting = provider.handshake(context);
        let answered = match timeout(LIMIT, &mut greeting).await {
            Ok(answered) => answered.map_err(|error| error.message),
            Err(_) => {
                cancel.cancel();
                drop(timeout(END, greeting).await);
                Err(format!("it did not answer within {} s", LIMIT.as_secs()))
            }
        };
        if answered == Ok(Handshake::Nobody) {
            return None;
        }
        Some(HandshakeResult {
            provider: name.clone(),
            took_ms: began.elapsed().as_millis().try_into().unwrap_or(u64::MAX),
            problem: answered.err(),
        })
    });
    let greeted = join_all(greetings).await.into_iter().flatten().collect();
    registry.shutdown().await;
    greeted
}
