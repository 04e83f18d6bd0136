//! Templates and conditions: parsed once, evaluated without side effects (no clock, no disk, no environment) and
//! within limits on time and memory.

mod condition;
mod eval;
mod filters;
mod limits;
mod names;
mod order;
mod path;
mod program;
mod segment;
mod template;
mod tree;
mod vocabulary;

use std::{cell::OnceCell, fmt, sync::Arc};

use inspan_protocol::{AgentError, ErrorCode};
use serde_json::Value;

use crate::ids::NodeIx;

pub use self::{
    condition::{Condition, is_equal},
    template::{StaticValue, Template},
};
pub(crate) use self::{
    condition::{Predicate, is_true, parse_condition, parse_variable},
    path::{FRAME, Path, PathRoot, PathStep, is_reserved, spell as spell_path},
    program::{CompiledExpr, NameUse, Resolver, Strictness},
    segment::{dollar, first_code, has_segments, shell_length},
    template::{Binding, Piece, TemplateValue, as_shell_length, parse_template, without_dollar},
    tree::{Args, AssignTarget, Expr, For, Function, Stmt, asks_for_kind},
};

/// The values that an expression may see.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    /// The newest output of each node, in the order of the graph's nodes.
    pub outputs: &'a [Option<Arc<Value>>],
    /// `flow`: an object with `input`, `name` and `sessionId`.
    pub flow: &'a Value,
    /// `state`: the flow's own state.
    pub state: &'a Value,
    /// The names of the frame: the item, `frame` and `previous`.
    pub locals: &'a Value,
    /// `passes`, if the frame is a pass of a loop.
    pub passes: Option<&'a Passes<'a>>,
    /// The scope of the body around this one, if it may be seen from here.
    pub outer: Option<&'a Scope<'a>>,
}

impl<'a> Scope<'a> {
    /// The scope of a body that is in no other and no pass of a loop.
    pub fn new(
        outputs: &'a [Option<Arc<Value>>],
        flow: &'a Value,
        state: &'a Value,
        locals: &'a Value,
    ) -> Self {
        Self { outputs, flow, state, locals, passes: None, outer: None }
    }

    /// A name of this frame or of one around it; `frame` is always that of this frame.
    fn local(&self, name: &str) -> Option<&'a Value> {
        let passes = self.passes.filter(|_| name == "passes");
        let found = self.locals.get(name).or_else(|| passes.map(Passes::list));
        // In its first pass a loop has no `previous`, and not that of a loop around it.
        let is_own = name == FRAME || name == "previous" && self.passes.is_some();
        if found.is_some() || is_own { found } else { self.outer?.local(name) }
    }

    /// The newest output of a node, so many bodies further out.
    fn output(&self, depth: u32, node: NodeIx) -> Option<&'a Value> {
        match depth {
            0 => self.outputs.get(node.0 as usize)?.as_deref(),
            _ => self.outer?.output(depth - 1, node),
        }
    }
}

/// What the earlier passes of a loop gave: a list that is made once an expression asks for it. Copied for each pass, it
/// would cost time with the square of the passes.
pub struct Passes<'a> {
    list: OnceCell<Value>,
    make: &'a dyn Fn() -> Value,
}

impl<'a> Passes<'a> {
    /// The list that a function makes.
    pub fn new(make: &'a dyn Fn() -> Value) -> Self {
        Self { list: OnceCell::new(), make }
    }

    fn list(&self) -> &Value {
        self.list.get_or_init(self.make)
    }
}

impl fmt::Debug for Passes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Passes")
    }
}

/// A template or a condition that could not be evaluated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: `{expression}`: {reason}")]
pub struct BindingError {
    /// The node or edge and the key: "node `review`, key `input.prompt`".
    pub place: Arc<str>,
    /// The expression as the author wrote it.
    pub expression: String,
    /// Why it could not be evaluated.
    pub reason: String,
}

impl From<BindingError> for AgentError {
    fn from(error: BindingError) -> Self {
        Self::new(ErrorCode::BindingFailed, error.to_string())
    }
}

/// A text that is not a valid template, path or condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SyntaxFault {
    /// What is wrong with it.
    pub(crate) reason: String,
    /// Where in the text, in bytes.
    pub(crate) offset: usize,
    /// What to do about it.
    pub(crate) help: Option<String>,
}

impl SyntaxFault {
    /// The same fault in a text with this many more bytes before it.
    fn after(self, bytes: usize) -> Self {
        Self { offset: self.offset + bytes, ..self }
    }
}

#[cfg(test)]
mod tests;
