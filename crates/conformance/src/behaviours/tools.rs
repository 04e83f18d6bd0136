//! A tool that the model calls, from its start to its end.

use std::sync::Arc;

use inspan_model_server::Turn;
use inspan_protocol::{StopReason, StreamEvent};

use super::answers::WORDS;
use super::people::{Answer, Person};
use crate::finding::{Finding, Proof, check_requests, check_stop_reason, holds, same};
use crate::rig::{Call, ConformanceTarget, Tool};
use crate::scene::{Ask, Scene};

pub(super) const MADE: &str = "made";
pub(super) const ANSWER: &str = "That is all.";

/// A turn in which the model calls this.
pub(super) fn called(call: Option<Call>) -> Turn {
    Turn { blocks: call.map(|call| call.block).into_iter().collect(), ..Turn::default() }
}

/// One call, and what the model says then.
pub(super) fn one(rig: &dyn ConformanceTarget) -> Vec<Turn> {
    let call = rig.call(Tool::MakeFile(MADE));
    vec![called(call), Turn::text(ANSWER)]
}

pub(super) async fn used(scene: &Scene) -> Proof {
    let call = scene.rig().call(Tool::MakeFile(MADE)).ok_or_else(|| Finding::from("there is no tool"))?;
    let ask = Ask::new(WORDS).options(call.options).asking(Arc::new(Person::new(Answer::Allow)));
    let said = scene.turn(ask).await?;
    let used = said.used()?;
    same("the uses of tools", &used.len(), &1)?;
    holds(!used[0].failed, || "the tool fails".to_owned())?;
    holds(!used[0].input.is_null(), || "the tool's arguments are not told".to_owned())?;
    holds(scene.work().join(MADE).exists(), || "the file is not made".to_owned())?;
    let facts = said.facts()?;
    check_stop_reason(facts.stop_reason, StopReason::Complete)?;
    same("the text", &facts.text.trim(), &ANSWER)?;
    let tool = said.events.iter().position(|event| matches!(event, StreamEvent::ToolComplete { .. }));
    let text = said.events.iter().position(|event| matches!(event, StreamEvent::Text { .. }));
    holds(tool < text, || "the text that follows the tool comes before its end".to_owned())?;
    check_requests(scene.requests().len(), 2)
}
