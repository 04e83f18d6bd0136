//! The requests of a program that wait for an answer: opened, withdrawn, and answered in the order in which their
//! answers arrive.

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use inspan_protocol::PermissionDecision;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

/// The open requests, and the work on their answers.
pub(crate) struct OpenRequests<R, T> {
    pending: FuturesUnordered<BoxFuture<'static, Option<(u64, T)>>>,
    open: Vec<Open<R>>,
    count: u64,
}

struct Open<R> {
    key: u64,
    request: R,
    withdrawn: CancellationToken,
}

impl<R, T> Default for OpenRequests<R, T> {
    fn default() -> Self {
        Self { pending: FuturesUnordered::new(), open: Vec::new(), count: 0 }
    }
}

impl<R, T: Send + 'static> OpenRequests<R, T> {
    /// Opens a request that this will answer.
    pub(crate) fn open(&mut self, request: R, answer: impl Future<Output = T> + Send + 'static) {
        self.count += 1;
        let (key, withdrawn) = (self.count, CancellationToken::new());
        self.open.push(Open { key, request, withdrawn: withdrawn.clone() });
        self.pending.push(Box::pin(async move { Some((key, withdrawn.run_until_cancelled(answer).await?)) }));
    }

    /// Withdraws the first of these requests, and returns it. Programs also withdraw requests that were answered.
    pub(crate) fn withdraw(&mut self, which: impl Fn(&R) -> bool) -> Option<R> {
        let open = self.open.iter().position(|open| which(&open.request))?;
        let open = self.open.remove(open);
        open.withdrawn.cancel();
        Some(open.request)
    }

    /// Withdraws all requests.
    pub(crate) fn withdraw_all(&mut self) -> Vec<R> {
        let open = std::mem::take(&mut self.open).into_iter();
        open.map(|open| {
            open.withdrawn.cancel();
            open.request
        })
        .collect()
    }

    /// The open requests.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &R> {
        self.open.iter().map(|open| &open.request)
    }

    /// How many are open.
    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    /// Whether none is open.
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Whether there is anything to wait for.
    pub(super) fn are_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The next answer with its request, unless that was withdrawn meanwhile. Can be cancelled.
    pub(super) async fn next(&mut self) -> Option<(R, T)> {
        let (key, answer) = self.pending.next().await??;
        let open = self.open.iter().position(|open| open.key == key)?;
        Some((self.open.remove(open).request, answer))
    }
}

/// What a decision means for a program that can only run what it asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Consent {
    Given,
    Denied,
    /// Given for other arguments. The program would run its own, which was not allowed.
    Changed,
}

impl Consent {
    /// The consent to a tool with this input.
    pub(crate) fn of(decision: &PermissionDecision, input: &Value) -> Self {
        match decision {
            PermissionDecision::Allow { updated_input: Some(other) } if other != input => Self::Changed,
            PermissionDecision::Allow { .. } => Self::Given,
            PermissionDecision::Deny { .. } => Self::Denied,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_an_allowance_of_the_same_input_is_consent() {
        let input = json!({ "command": "ls" });
        let allow = |updated_input| PermissionDecision::Allow { updated_input };
        let rows = [
            (allow(None), Consent::Given),
            (allow(Some(input.clone())), Consent::Given),
            (allow(Some(json!({}))), Consent::Changed),
            (PermissionDecision::Deny { message: "no".to_owned() }, Consent::Denied),
        ];
        for (decision, consent) in rows {
            assert_eq!(Consent::of(&decision, &input), consent, "{decision:?}");
        }
    }

    #[tokio::test]
    async fn a_withdrawn_request_gets_no_answer() {
        let mut requests: OpenRequests<&str, u32> = OpenRequests::default();
        requests.open("a", std::future::ready(1));
        requests.open("b", std::future::ready(2));
        assert_eq!(
            (requests.withdraw(|name| *name == "a"), requests.withdraw(|name| *name == "a")),
            (Some("a"), None)
        );
        let mut answers = Vec::new();
        while requests.are_pending() {
            answers.extend(requests.next().await);
        }
        assert_eq!((answers, requests.is_empty()), (vec![("b", 2)], true));
    }
}
