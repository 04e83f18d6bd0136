//! `inspan schema`: JSON Schemas of what people and programs write for Inspan and read from it.

use inspan_flow::flow_schema;
use inspan_flow_test::test_file_schema;
use inspan_protocol::Envelope;
use serde_json::{Value, json};

use super::{all_nodes, all_providers, nodes};
use crate::{
    args::{SchemaArgs, SchemaOf},
    exit::Exit,
    failure::Failure,
    invocation::Invocation,
};

pub(super) fn run(args: &SchemaArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let schema: Value = match &args.of {
        None | Some(SchemaOf::Flow) => flow_schema(&all_nodes()),
        Some(SchemaOf::Test) => test_file_schema(),
        Some(SchemaOf::Events) => schemars::schema_for!(Envelope).to_value(),
        Some(SchemaOf::Provider { name }) => {
            let providers = all_providers();
            let Some(provider) = providers.get(name) else {
                return Err(Failure::unknown("provider", name, providers.names()));
            };
            json!({ "input": provider.input_schema(), "output": provider.output_schema() })
        }
        Some(SchemaOf::Node { name }) => {
            let info = nodes::find(name, &all_nodes())?;
            json!({ "input": info.input, "output": info.output })
        }
    };
    invocation.json(&schema);
    Ok(Exit::Success)
}
