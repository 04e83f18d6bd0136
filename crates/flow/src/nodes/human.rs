//! How a question to a person is asked: the channels show it and bring the answer.

use inspan_flow_core::{HumanAnswer, HumanInput, HumanQuestion, read_input};
use inspan_protocol::AgentError;
use serde_json::Value;

use crate::node::{NodeContext, NodeType};

impl NodeType for HumanInput {
    async fn run(&self, mut context: NodeContext, input: Value) -> Result<Value, AgentError> {
        let question: HumanQuestion = read_input(input)?;
        let is_form = question.schema.is_some();
        if let Some(reply) = context.interrupted.as_ref().and_then(|cut| cut.reply.clone()) {
            // It was answered, and the process died before the answer was used.
            return HumanAnswer::of(is_form, reply);
        }
        let asked = context.interrupted.as_ref().and_then(|cut| cut.asked.as_ref());
        // A question that is asked again after a pause has the same id.
        let id = asked.map_or_else(|| context.hub.ids().prompt_id(), |asked| asked.prompt_id.clone());
        let prompt = question.prompt(id, context.since(), &context.redactor)?;
        let reply = context.ask(prompt).await?;
        HumanAnswer::of(is_form, reply)
    }
}
