//! Tools of a program that embeds us, which an agent may call: what one is, what it takes, what it gives.

use std::{fmt, future::Future, sync::Arc};

use futures::future::BoxFuture;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::ContentBlock;

/// What a model gets to know about a tool.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolSpec {
    /// Its name: letters, digits, `_` and `-`, at most 64 of them.
    pub name: String,
    /// What it does and when to use it.
    pub description: String,
    /// The JSON Schema of its arguments, which are an object.
    pub input_schema: Value,
}

/// A tool of the program. An implementation writes `call` as `async fn`.
pub trait HostTool: Send + Sync {
    /// The description for the model. It must not change while the tool is in use.
    fn spec(&self) -> ToolSpec;

    /// Runs it once. The model chose the arguments, so checking them is the tool's own affair. The future is dropped
    /// soon after `cancel`, and its effects until then stay.
    fn call(
        &self,
        input: Value,
        cancel: CancellationToken,
    ) -> impl Future<Output = Result<ToolOutput, ToolError>> + Send;
}

/// The erased form of a [`HostTool`].
pub trait DynHostTool: Send + Sync {
    /// As [`HostTool::spec`].
    fn spec(&self) -> ToolSpec;
    /// As [`HostTool::call`].
    fn call(&self, input: Value, cancel: CancellationToken) -> BoxFuture<'_, Result<ToolOutput, ToolError>>;
}

impl<T: HostTool> DynHostTool for T {
    fn spec(&self) -> ToolSpec {
        HostTool::spec(self)
    }

    fn call(&self, input: Value, cancel: CancellationToken) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        Box::pin(HostTool::call(self, input, cancel))
    }
}

/// What a tool gives.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolOutput {
    /// Texts, pictures and documents for the model, in order.
    pub content: Vec<ContentBlock>,
    /// The same as JSON, for a model that reads JSON better than prose.
    pub structured: Option<Value>,
}

impl ToolOutput {
    /// One text.
    pub fn text(text: impl Into<String>) -> Self {
        Self { content: vec![ContentBlock::Text { text: text.into() }], structured: None }
    }

    /// One JSON value.
    pub fn json(value: impl Into<Value>) -> Self {
        Self { content: Vec::new(), structured: Some(value.into()) }
    }
}

impl From<String> for ToolOutput {
    fn from(text: String) -> Self {
        Self::text(text)
    }
}

impl From<&str> for ToolOutput {
    fn from(text: &str) -> Self {
        Self::text(text)
    }
}

impl From<Value> for ToolOutput {
    fn from(value: Value) -> Self {
        Self::json(value)
    }
}

/// Why a tool returns nothing. The model gets the reason, and continues.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ToolError {
    /// The reason for the model.
    pub message: String,
}

impl From<String> for ToolError {
    fn from(message: String) -> Self {
        Self { message }
    }
}

impl From<&str> for ToolError {
    fn from(message: &str) -> Self {
        Self::from(message.to_owned())
    }
}

/// The tools that a program gives to an agent, in the order in which they are offered.
#[derive(Clone, Default)]
pub struct HostTools(Vec<Arc<dyn DynHostTool>>);

impl HostTools {
    /// One more tool.
    #[must_use]
    pub fn with(mut self, tool: impl HostTool + 'static) -> Self {
        self.0.push(Arc::new(tool));
        self
    }

    /// Each tool in its order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<dyn DynHostTool>> {
        self.0.iter()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<Arc<dyn DynHostTool>> for HostTools {
    fn from_iter<I: IntoIterator<Item = Arc<dyn DynHostTool>>>(tools: I) -> Self {
        Self(tools.into_iter().collect())
    }
}

impl fmt::Debug for HostTools {
    /// The names alone: a tool may hold anything.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(|tool| tool.spec().name)).finish()
    }
}

/// A tool made of a function.
pub struct FnTool<F> {
    spec: ToolSpec,
    function: F,
}

impl<F, R> FnTool<F>
where
    F: Fn(Value, CancellationToken) -> R + Send + Sync,
    R: Future<Output = Result<ToolOutput, ToolError>> + Send + 'static,
{
    /// A tool of this name, which calls the function with the arguments of the model.
    pub fn new(
        name: impl Into<String>,
        description: impl Into<String>,
        input_schema: Value,
        function: F,
    ) -> Self {
        let spec = ToolSpec { name: name.into(), description: description.into(), input_schema };
        Self { spec, function }
    }
}

impl<F, R> HostTool for FnTool<F>
where
    F: Fn(Value, CancellationToken) -> R + Send + Sync,
    R: Future<Output = Result<ToolOutput, ToolError>> + Send + 'static,
{
    fn spec(&self) -> ToolSpec {
        self.spec.clone()
    }

    async fn call(&self, input: Value, cancel: CancellationToken) -> Result<ToolOutput, ToolError> {
        (self.function)(input, cancel).await
    }
}
