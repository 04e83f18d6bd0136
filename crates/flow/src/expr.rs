//! Templates and conditions of the author, parsed once and evaluated without side effects.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::graph::NodeIx;

/// The values that an expression may see.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    /// The newest output of each node, in the order of the graph's nodes.
    pub outputs: &'a [Option<Arc<Value>>],
    /// `flow`: an object with `input`, `name` and `sessionId`.
    pub flow: &'a Value,
    /// `state`: the flow's own state.
    pub state: &'a Value,
    /// The names of the frames: the item, and `loop`.
    pub locals: &'a Map<String, Value>,
}

/// A template: to be written by the compiler's author.
#[derive(Debug)]
pub struct Template(pub NodeIx);

/// A condition: to be written by the compiler's author.
#[derive(Debug)]
pub struct Condition(pub NodeIx);
