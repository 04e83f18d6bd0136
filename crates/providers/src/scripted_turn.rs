//! What the providers without a vendor share: waits that can be cancelled, a clock that counts scripted waits only, and
//! conversations that are identified by a number.

use std::time::Duration;

use inspan_protocol::{AgentError, ErrorCode, ErrorKind, ExecutionContext, ProviderSessionId};
use tokio::time::{Instant, sleep_until};

use crate::error::not_our_id;

/// The longest that anything waits.
const FOREVER: Duration = Duration::from_secs(24 * 60 * 60);

/// One turn of a provider without a vendor.
pub(crate) struct ScriptedTurn {
    context: ExecutionContext,
    began: Instant,
    waited: Duration,
}

/// Whether a wait came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitEnd {
    /// It did.
    Elapsed,
    /// The turn was cancelled.
    Cancelled,
}

impl ScriptedTurn {
    /// A turn that begins now.
    pub(crate) fn new(context: ExecutionContext) -> Self {
        Self { context, began: Instant::now(), waited: Duration::ZERO }
    }

    /// What surrounds the turn.
    pub(crate) fn context(&self) -> &ExecutionContext {
        &self.context
    }

    /// Waits, if there is anything to wait for. Beyond the turn's deadline it is `TIMEOUT`.
    pub(crate) async fn wait(&mut self, wait: Option<Duration>) -> Result<WaitEnd, AgentError> {
        if self.context.cancel.is_cancelled() {
            return Ok(WaitEnd::Cancelled);
        }
        let Some(wait) = wait.map(|wait| wait.min(FOREVER)) else { return Ok(WaitEnd::Elapsed) };
        let until = Instant::now() + wait;
        let deadline = self.context.deadline.and_then(|limit| self.began.checked_add(limit));
        let late = deadline.filter(|deadline| *deadline < until);
        if self.context.cancel.run_until_cancelled(sleep_until(late.unwrap_or(until))).await.is_none() {
            return Ok(WaitEnd::Cancelled);
        }
        if late.is_some() {
            let limit = self.context.deadline.unwrap_or_default().as_millis();
            let error = AgentError::new(ErrorCode::Timeout, format!("the turn took longer than {limit} ms"));
            return Err(error.with_kind(ErrorKind::Deadline));
        }
        self.waited += wait;
        Ok(WaitEnd::Elapsed)
    }

    /// Waits until the turn is cancelled or its deadline is over.
    pub(crate) async fn hang(&mut self) -> Result<WaitEnd, AgentError> {
        self.wait(Some(FOREVER)).await
    }

    /// The sum of the scripted waits so far, in milliseconds. It is the same in every run.
    pub(crate) fn waited_ms(&self) -> u64 {
        self.waited.as_millis().try_into().unwrap_or(u64::MAX)
    }
}

/// The number of the turn that comes after this conversation's last one; `echo-2` comes after `echo-1`.
pub(crate) fn turn_after(provider: &str, session: Option<&ProviderSessionId>) -> Result<u64, AgentError> {
    let Some(session) = session else { return Ok(1) };
    let last: Option<u64> =
        session.as_str().strip_prefix(provider).and_then(|rest| rest.strip_prefix('-')?.parse().ok());
    last.and_then(|last| last.checked_add(1)).ok_or_else(|| not_our_id(session))
}

/// The words of a text, each with the white space after it; put together they are the text.
pub(crate) fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let word = rest.find(|c: char| !c.is_whitespace()).unwrap_or(rest.len());
        let gap = rest[word..].find(char::is_whitespace).map_or(rest.len(), |end| word + end);
        let next = rest[gap..].find(|c: char| !c.is_whitespace()).map_or(rest.len(), |end| gap + end);
        let (head, tail) = rest.split_at(next);
        rest = tail;
        Some(head)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_put_together_are_the_text() {
        let rows: [(&str, &[&str]); 5] = [
            ("one two  three", &["one ", "two  ", "three"]),
            (" lead", &[" lead"]),
            ("trail \n", &["trail \n"]),
            ("", &[]),
            ("ä\u{3000}ö", &["ä\u{3000}", "ö"]),
        ];
        for (text, expected) in rows {
            assert_eq!(words(text).collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn a_conversation_is_recognised_by_its_number() {
        let after = |id: &str| turn_after("echo", Some(&id.into())).map_err(|error| error.code);
        assert_eq!(turn_after("echo", None), Ok(1));
        assert_eq!(after("echo-1"), Ok(2));
        for id in ["scripted-1", "echo", "echo-", "echo-x", "echo-18446744073709551615"] {
            assert_eq!(after(id), Err(ErrorCode::InvalidRequest), "{id}");
        }
    }
}
