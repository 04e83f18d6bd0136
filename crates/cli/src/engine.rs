//! Where sessions run: on this machine, or on a cluster if the program was built with one.

use std::{fmt::Display, time::Duration};

use serde::Serialize;
use tokio::time::{Instant, sleep};

use crate::terminal;

#[cfg(feature = "temporal")]
mod temporal;

#[cfg(not(feature = "temporal"))]
pub(crate) use absent::Engine;
#[cfg(feature = "temporal")]
pub(crate) use temporal::Engine;

/// For how long a command tries to reach the folder or bucket of a session that it follows.
const PATIENCE: Duration = Duration::from_secs(600);
/// What worked for so long had reached it meanwhile: a request to a bucket is repeated for 75 seconds.
const WORKED: Duration = Duration::from_secs(120);
/// How long it waits before it tries again.
const PAUSE: Duration = Duration::from_secs(2);

/// The trouble of a command that follows a session which others run, on its own way to the session's folder or bucket.
#[derive(Default)]
pub(crate) struct Outage {
    since: Option<Instant>,
}

impl Outage {
    /// Whether to try again, after a pause, what has failed and was begun at this time.
    pub(crate) async fn survives(&mut self, began: Instant, why: &(dyn Display + Sync)) -> bool {
        let since = match self.since {
            Some(since) if began.elapsed() < WORKED => since,
            _ => {
                terminal::progress(&format!(
                    "warning: {why}; the session continues without this command, which tries to reach it for up to \
                     {PATIENCE:?}\n"
                ));
                Instant::now()
            }
        };
        self.since = Some(since);
        let is_patient = since.elapsed() < PATIENCE;
        if is_patient {
            sleep(PAUSE).await;
        }
        is_patient
    }
}

/// What was found of the place where sessions run.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EngineReport {
    pub(crate) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) version: Option<String>,
    /// The workers, each in words.
    pub(crate) workers: Vec<String>,
    /// Why no session can run there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) problem: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_command_tries_for_ten_minutes_to_reach_the_session_that_it_follows() {
        let (mut outage, first) = (Outage::default(), Instant::now());
        // Each try fails after a while.
        let mut fails = async |after: u64| {
            let began = Instant::now();
            tokio::time::advance(Duration::from_secs(after)).await;
            outage.survives(began, &"away").await
        };
        while fails(75).await {}
        assert!((600..=760).contains(&first.elapsed().as_secs()), "{:?}", first.elapsed());
        // It has worked for a long time.
        assert!(fails(3_600).await);
    }
}

/// The replacement for the cluster in a program that was built without one: every use of it is refused.
#[cfg(not(feature = "temporal"))]
mod absent {
    use std::{convert::Infallible, sync::Arc};

    use inspan_engine::Hub;
    use inspan_flow::{
        FlowRunResult, Graph, Resume, RunError, RunStore, SessionRecord, StoreError, Verdict, WhenWaiting,
    };
    use inspan_protocol::{Command, SessionId};
    use tokio_util::sync::CancellationToken;

    use super::EngineReport;
    use crate::{args::WorkerArgs, failure::Failure, invocation::Invocation};

    /// A cluster; there is none.
    #[derive(Clone)]
    pub(crate) struct Engine(Infallible);

    impl Engine {
        /// Refused if the call names a cluster.
        pub(crate) fn of(invocation: &Invocation) -> Result<Option<Self>, Failure> {
            match &invocation.engine {
                None => Ok(None),
                Some(engine) => {
                    let failure =
                        Failure::usage(format!("this program was built without an engine for `{engine}`"));
                    Err(match engine.starts_with("temporal") {
                        true => failure
                            .with_hint("build it with `cargo install --path crates/cli --features temporal`"),
                        false => failure
                            .with_hint("an engine is `local` or an address that begins with `temporal://`"),
                    })
                }
            }
        }

        pub(crate) fn key_variables(_: &str) -> Vec<String> {
            Vec::new()
        }

        pub(crate) fn run_store(&self) -> Arc<dyn RunStore> {
            match self.0 {}
        }

        pub(crate) async fn start(&self, _: &SessionRecord, _: &Graph) -> Result<(), RunError> {
            match self.0 {}
        }

        pub(crate) async fn claimed(&self, _: &SessionId) -> Result<Option<SessionId>, StoreError> {
            match self.0 {}
        }

        pub(crate) async fn resume(&self, _: &SessionId, _: Resume) -> Result<u64, StoreError> {
            match self.0 {}
        }

        pub(crate) async fn follow(
            &self,
            _: &SessionId,
            _: &Arc<Graph>,
            _: &Hub,
            _: &mut u64,
            _: WhenWaiting,
        ) -> Result<FlowRunResult, RunError> {
            match self.0 {}
        }

        pub(crate) async fn post(&self, _: &SessionId, _: &Command) -> Result<u64, StoreError> {
            match self.0 {}
        }

        pub(crate) async fn answered(&self, _: &SessionId, _: u64) -> Result<Option<Verdict>, StoreError> {
            match self.0 {}
        }

        pub(crate) async fn look(&self) -> EngineReport {
            match self.0 {}
        }

        pub(crate) fn name(&self) -> String {
            match self.0 {}
        }

        pub(crate) async fn work(
            &self,
            _: &Invocation,
            _: &WorkerArgs,
            _: CancellationToken,
        ) -> Result<(), Failure> {
            match self.0 {}
        }
    }
}
