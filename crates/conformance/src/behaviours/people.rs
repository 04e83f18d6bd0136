//! What is asked of people before a tool is used, and what comes of their answers.

use std::sync::{Arc, Mutex, PoisonError};

use futures::future::BoxFuture;
use inspan_protocol::{PermissionBroker, PermissionDecision, PermissionRequest, StopReason};

use super::answers::WORDS;
use super::tools::{ANSWER, MADE};
use crate::finding::{Deviation, Finding, Proof, check_stop_reason, same};
use crate::rig::Tool;
use crate::said::Said;
use crate::scene::{Ask, Scene};

/// Somebody who is asked, and remembers it.
pub(super) struct Person {
    answer: Answer,
    asked: Mutex<Vec<PermissionRequest>>,
}

/// What they say.
#[derive(Clone, Copy)]
pub(super) enum Answer {
    Allow,
    Deny,
    Never,
}

impl Person {
    pub(super) fn new(answer: Answer) -> Self {
        Self { answer, asked: Mutex::default() }
    }

    /// The questions until now.
    pub(super) fn asked(&self) -> Vec<PermissionRequest> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl PermissionBroker for Person {
    fn request(&self, request: PermissionRequest) -> BoxFuture<'static, PermissionDecision> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).push(request);
        match self.answer {
            Answer::Allow => Box::pin(async { PermissionDecision::Allow { updated_input: None } }),
            Answer::Deny => Box::pin(async { PermissionDecision::Deny { message: "not today".to_owned() } }),
            Answer::Never => Box::pin(futures::future::pending()),
        }
    }
}

pub(super) async fn allowed(scene: &Scene) -> Proof {
    let person = Arc::new(Person::new(Answer::Allow));
    let said = asked(scene, Some(Arc::clone(&person) as _)).await?;
    let used = said.used()?;
    same("the uses of the tool that failed", &used.iter().map(|one| one.failed).collect(), &vec![false])?;
    same("the questions", &person.asked().len(), &1)?;
    same("the tool that is asked about", &person.asked()[0].tool_name, &used[0].name)?;
    made(scene, true)
}

pub(super) async fn denied(scene: &Scene) -> Proof {
    let person = Arc::new(Person::new(Answer::Deny));
    let said = asked(scene, Some(Arc::clone(&person) as _)).await?;
    same("the questions", &person.asked().len(), &1)?;
    not_used(scene, &said)
}

pub(super) async fn nobody(scene: &Scene) -> Proof {
    let said = asked(scene, None).await?;
    not_used(scene, &said)
}

/// A turn in which the model calls the tool.
async fn asked(scene: &Scene, person: Option<Arc<dyn PermissionBroker>>) -> Proof<Said> {
    let call = scene.rig().call(Tool::MakeFile(MADE)).ok_or_else(|| Finding::from("there is no tool"))?;
    let ask = Ask::new(WORDS).options(call.options);
    let said = scene.turn(match person {
        Some(person) => ask.asking(person),
        None => ask,
    });
    said.await
}

fn not_used(scene: &Scene, said: &Said) -> Proof {
    made(scene, false)?;
    let failed = said.used()?.iter().map(|one| one.failed).collect();
    same("the uses of the tool that failed", &failed, &vec![true])?;
    let facts = said.facts()?;
    check_stop_reason(facts.stop_reason, StopReason::Complete)?;
    same("the text", &facts.text.trim(), &ANSWER).map_err(|finding| finding.deviation(Deviation::Text))?;
    let denials = said.output["permissionDenials"].as_array().map_or(0, Vec::len);
    same("the denials in the output", &denials, &1)
}

fn made(scene: &Scene, expected: bool) -> Proof {
    same("whether the file is made", &scene.work().join(MADE).exists(), &expected)
}
