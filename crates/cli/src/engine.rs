//! Where sessions run: on this machine, or on a cluster if the program was built with one.

use serde::Serialize;

#[cfg(feature = "temporal")]
mod temporal;

#[cfg(not(feature = "temporal"))]
pub(crate) use absent::Engine;
#[cfg(feature = "temporal")]
pub(crate) use temporal::Engine;

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
                    Err(Failure::usage(format!("this program was built without an engine for `{engine}`"))
                        .with_hint("build it with `cargo install --path crates/cli --features temporal`"))
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
