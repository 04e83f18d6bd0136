//! A compiled flow together with the node types that it was compiled with.

use std::{collections::BTreeMap, fmt, path::Path, sync::Arc};

use inspan_flow::{
    Diagnostics, FlowError, FlowRunResult, FlowRunner, FlowRunnerBuilder, Graph, Loaded, NodeRegistry,
    RunError, WhenWaiting, builtin_nodes, compile, load,
};
use serde_json::{Map, Value};

use crate::providers;

/// A flow that is ready to run. Clones are cheap.
#[derive(Clone)]
pub struct Flow {
    graph: Arc<Graph>,
    nodes: NodeRegistry,
    warnings: Diagnostics,
}

/// Why a flow cannot be compiled or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The flow file cannot be read.
    #[error(transparent)]
    Load(#[from] FlowError),
    /// The flow has errors.
    #[error(transparent)]
    Compile(#[from] Diagnostics),
    /// The input is not an object.
    #[error("the input of a flow is an object, not {0}")]
    Input(Value),
    /// The session cannot be run or stored. A flow that fails is a result, not an error.
    #[error(transparent)]
    Run(#[from] RunError),
}

impl Flow {
    /// Reads and compiles a flow file, with the built-in providers and node types.
    ///
    /// # Errors
    /// [`Error::Load`] and [`Error::Compile`].
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::load_with(path, builtin_nodes(&providers::builtin()))
    }

    /// As [`Flow::load`], with these node types.
    ///
    /// # Errors
    /// As [`Flow::load`].
    pub fn load_with(path: impl AsRef<Path>, nodes: NodeRegistry) -> Result<Self, Error> {
        Self::compile(&load(path.as_ref())?, nodes)
    }

    /// Compiles the text of a flow, with the built-in providers and node types. Diagnostics call it `name`.
    ///
    /// # Errors
    /// [`Error::Compile`].
    pub fn parse(name: &str, text: &str) -> Result<Self, Error> {
        Self::parse_with(name, text, builtin_nodes(&providers::builtin()))
    }

    /// As [`Flow::parse`], with these node types.
    ///
    /// # Errors
    /// As [`Flow::parse`].
    pub fn parse_with(name: &str, text: &str, nodes: NodeRegistry) -> Result<Self, Error> {
        Self::compile(&Loaded::from_text(name, text, BTreeMap::new()), nodes)
    }

    fn compile(loaded: &Loaded, nodes: NodeRegistry) -> Result<Self, Error> {
        let compiled = compile(loaded, &nodes)?;
        Ok(Self { graph: Arc::new(compiled.graph), nodes, warnings: compiled.warnings })
    }

    /// Warnings for the author; the flow runs in spite of them.
    pub fn warnings(&self) -> &Diagnostics {
        &self.warnings
    }

    /// A builder of one session: its store, environment, channels and more.
    pub fn runner(&self) -> FlowRunnerBuilder {
        FlowRunner::builder(Arc::clone(&self.graph), self.nodes.clone())
    }

    /// Runs the flow in a new session, which is not stored. Agents and commands see no environment variable; use
    /// [`Flow::runner`] to give them some. Nobody can answer a question: the session ends with the outcome `Waiting` where
    /// nothing but an answer is left to come.
    ///
    /// # Errors
    /// [`Error::Input`] and [`Error::Run`].
    pub async fn run(&self, input: impl Into<Value>) -> Result<FlowRunResult, Error> {
        let input = match input.into() {
            Value::Object(input) => input,
            Value::Null => Map::new(),
            other => return Err(Error::Input(other)),
        };
        let runner = self.runner().when_waiting(WhenWaiting::LeaveUnlessTimed).build();
        Ok(runner.run(input).await?)
    }
}

impl fmt::Debug for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flow").field("name", &self.graph.name).finish_non_exhaustive()
    }
}
