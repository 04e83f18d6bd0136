//! The beginning of a turn: the stream of events is there before the message is handed over, so that nothing of the
//! answer is missed. What follows is left to `turn.rs`.

use std::collections::VecDeque;
use std::time::Duration;

use inspan_protocol::{AgentError, ErrorCode, ExecutionContext, ProviderSessionId};
use serde_json::Value;
use tokio::time::Instant;

use super::super::decode::{Decoded, Decoder};
use super::super::server::{Server, State};
use super::consent::Questions;
use super::{Bounds, Phase, Step, Turn};
use crate::transport::http::{Answer as Events, Broken, Clocks};

/// How long the stream of events may take to begin.
const CONNECT: Duration = Duration::from_secs(15);

/// How the beginning of a turn ended without one.
pub(in super::super) enum NotBegun {
    /// Its caller cancelled it before the message was handed over.
    Cancelled,
    Failed(AgentError),
}

impl Turn {
    /// Listens to the server, then hands the message over.
    pub(in super::super) async fn begin(
        server: &mut Server,
        session: &ProviderSessionId,
        message: &Value,
        context: ExecutionContext,
        bounds: Bounds,
    ) -> Result<Self, NotBegun> {
        let now = Instant::now();
        let clocks = Clocks {
            cancel: context.cancel.clone(),
            began: now,
            deadline: Some(context.deadline.map_or(CONNECT, |deadline| deadline.min(CONNECT))),
            stall: CONNECT,
        };
        let not_begun = |broken| match broken {
            Broken::Cancelled => NotBegun::Cancelled,
            Broken::Failed(error) => NotBegun::Failed(error),
        };
        let mut decoder = Decoder::new(session.as_str(), server.prompt.clone());
        let mut events = server.events(clocks).await.map_err(not_begun)?;
        // What happens before the stream begins would not be on it.
        let next = loop {
            if let Some(rest) = Self::connected(&mut events, &mut decoder).await.map_err(not_begun)? {
                break rest;
            }
        };
        let mut turn = Self {
            context,
            session: session.clone(),
            bounds,
            began: now,
            last_word: now,
            phase: Phase::Running,
            events: events.watched_by(Server::unwatched()),
            decoder,
            steps: 0,
            next,
            questions: Questions::default(),
            denials: Vec::new(),
        };
        // What it printed since the last turn means nothing, but must not fill its pipe.
        while server.process.try_read().is_some() {}
        server.state = State::InTurn;
        if let Err(error) = server.prompt(session, message).await {
            // It is not known whether the message arrived.
            server.break_off().await;
            return Err(NotBegun::Failed(error));
        }
        turn.last_word = Instant::now();
        Ok(turn)
    }

    /// Reads once; when the stream has begun, what came with its beginning.
    async fn connected(events: &mut Events, decoder: &mut Decoder) -> Result<Option<VecDeque<Step>>, Broken> {
        let Some(bytes) = events.chunk().await? else {
            let message = "the program's server ended its events at once";
            return Err(Broken::Failed(AgentError::new(ErrorCode::Protocol, message)));
        };
        let mut decoded = decoder.push(bytes.as_ref()).into_iter();
        while let Some(first) = decoded.next() {
            match first {
                Decoded::Connected => return Ok(Some(decoded.map(Step::Decoded).collect())),
                Decoded::Fault(error) => return Err(Broken::Failed(error)),
                _ => {}
            }
        }
        Ok(None)
    }
}
