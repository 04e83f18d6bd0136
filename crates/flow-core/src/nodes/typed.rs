//! Conversion of JSON to a node's own types and back, and the schemas of those types.

use inspan_protocol::{AgentError, ErrorCode, read_json, schema_of};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    catalog::SAME,
    node::{NodeKind, NodeTypeInfo, Occupies},
};

/// The description of a node type with typed input and output.
pub(super) fn describe<I: JsonSchema, O: JsonSchema>(
    name: &'static str,
    pack: &'static str,
    help: &str,
) -> NodeTypeInfo {
    NodeTypeInfo {
        name: name.into(),
        pack: pack.into(),
        help: help.to_owned(),
        input: schema_of::<I>(),
        output: schema_of::<O>(),
        kind: NodeKind::Plain,
        occupies: Occupies::Slot,
    }
}

/// The description of a node type whose output is its input.
pub(super) fn describe_same<T: JsonSchema>(
    name: &'static str,
    pack: &'static str,
    help: &str,
) -> NodeTypeInfo {
    let mut info = describe::<T, T>(name, pack, help);
    let properties = info.output.get_mut("properties").and_then(Value::as_object_mut);
    for (key, schema) in properties.into_iter().flatten() {
        // A field of any type may have the schema `true`.
        if !schema.is_object() {
            *schema = Value::Object(serde_json::Map::new());
        }
        schema[SAME] = Value::String(format!("/{key}"));
    }
    info
}

/// Reads a node's input; one that does not fit names the key.
pub fn read_input<I: DeserializeOwned>(input: Value) -> Result<I, AgentError> {
    read_json(input).map_err(|error| {
        AgentError::new(ErrorCode::ConfigInvalid, format!("the input does not fit: {error}"))
    })
}

/// A name as a part of a JSON pointer.
pub fn pointer_part(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// Writes a node's output.
pub fn write_output<O: Serialize>(output: &O) -> Result<Value, AgentError> {
    serde_json::to_value(output).map_err(|error| {
        AgentError::new(ErrorCode::OutputInvalid, format!("the output is not JSON: {error}"))
    })
}

/// Computes the output of an input.
pub(super) fn compute<I: DeserializeOwned, O: Serialize>(
    input: Value,
    compute: impl FnOnce(I) -> Result<O, AgentError>,
) -> Result<Value, AgentError> {
    read_input(input).and_then(compute).and_then(|output| write_output(&output))
}

/// Which codes are no failure: those of a list, or any.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Allowed<T> {
    /// All of them.
    Any(AnyWord),
    /// Those of the list.
    These(Vec<T>),
}

/// The word for all codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the comments would change the form of the generated schema")]
pub enum AnyWord {
    Any,
}

impl<T> Default for Allowed<T> {
    fn default() -> Self {
        Self::These(Vec::new())
    }
}

impl<T: PartialEq> Allowed<T> {
    /// Whether a code is no failure.
    pub fn has(&self, code: &T) -> bool {
        match self {
            Self::Any(_) => true,
            Self::These(codes) => codes.contains(code),
        }
    }
}

/// A node that computes its output at once; `check` gives what is wrong with an input that is written in the flow.
macro_rules! pure_node {
    ($(#[$meta:meta])* $type:ident: $name:literal in $pack:literal, $help:literal, $input:ty => $output:ty, $compute:expr $(, check: $check:expr)?) => {
        crate::nodes::typed::node_at_once!($(#[$meta])* $type: $name in $pack, $help, describe::<$input, $output>, |input| {
            let compute: fn($input) -> Result<$output, inspan_protocol::AgentError> = $compute;
            crate::nodes::typed::compute(input, compute)
        } $(, check: $check)?);
    };
}

/// A node whose output is its input, which fits the schema.
macro_rules! same_node {
    ($type:ident: $name:literal in $pack:literal, $help:literal, $input:ty) => {
        crate::nodes::typed::node_at_once!($type: $name in $pack, $help, describe_same::<$input>, Ok);
    };
}

/// A node that makes an output of an input, both JSON, without waiting.
macro_rules! node_at_once {
    ($(#[$meta:meta])* $type:ident: $name:literal in $pack:literal, $help:literal, $describe:ident::<$($part:ty),*>, $make:expr $(, check: $check:expr)?) => {
        $(#[$meta])*
        pub(super) struct $type;

        impl crate::node::DescribeNode for $type {
            fn describe(&self) -> crate::node::NodeTypeInfo {
                crate::nodes::typed::$describe::<$($part),*>($name, $pack, $help)
            }

            fn name(&self) -> std::sync::Arc<str> {
                $name.into()
            }

            $(fn check_input(&self, input: &serde_json::Value) -> Vec<inspan_protocol::InputProblem> {
                let check: fn(&serde_json::Value) -> Option<inspan_protocol::InputProblem> = $check;
                check(input).into_iter().collect()
            })?

            fn compute(&self, input: serde_json::Value) -> crate::node::Computed {
                let make: fn(serde_json::Value) -> Result<serde_json::Value, inspan_protocol::AgentError> =
                    $make;
                crate::node::Computed::Done(make(input))
            }
        }
    };
}
pub(super) use {node_at_once, pure_node, same_node};

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_whole_number_is_read_however_it_is_written() {
        let read = |input| read_input::<Vec<u64>>(input).map_err(|error| error.message);
        assert_eq!(read(json!([1e3, 5.0, 7])), Ok(vec![1_000, 5, 7]));
        for wrong in [json!([1.5]), json!([-1.0]), json!([1e17]), json!(["1"])] {
            let error = read(wrong.clone()).unwrap_err();
            assert!(error.starts_with("the input does not fit: invalid"), "{wrong}: {error}");
        }
    }
}
