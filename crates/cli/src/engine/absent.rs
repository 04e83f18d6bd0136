//! The replacement for the cluster in a program that was built without one: every use of it is refused.

use std::{convert::Infallible, sync::Arc};

use inspan_engine::Hub;
use inspan_flow::{FlowRunResult, Graph, Resume, RunError, RunStore, SessionRecord, WhenWaiting};
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

    pub(crate) async fn resume(&self, _: &SessionId, _: Resume) -> Result<(), RunError> {
        match self.0 {}
    }

    pub(crate) async fn follow(
        &self,
        _: &SessionId,
        _: &Arc<Graph>,
        _: &Hub,
        _: u64,
        _: WhenWaiting,
    ) -> Result<FlowRunResult, RunError> {
        match self.0 {}
    }

    pub(crate) fn post(&self, _: &SessionId, _: Command) {
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
