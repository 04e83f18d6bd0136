//! How an agent's question for permission becomes a prompt of the session, and the reply a decision.
//! The hub asks and waits.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures::{
    FutureExt,
    future::{BoxFuture, ready},
};
use inspan_protocol::{
    PermissionBroker, PermissionDecision, PermissionPolicy, PermissionRequest, Prompt, PromptKind, Redactor,
    Reply, Timestamp, flat,
};
use parking_lot::Mutex;
use serde_json::{Map, Value};

use crate::hub::{Hub, Unanswered};

const ALLOW: &str = "allow";
/// The tool is not asked for again in this run.
const ALWAYS: &str = "always";
const DENY: &str = "deny";

/// The broker for an agent run, `None` for one that denies; `hub` carries the run's context. No question stays open for
/// longer than the run may take.
pub(super) fn broker(
    policy: PermissionPolicy,
    run_deadline: Option<Duration>,
    hub: &Hub,
    redactor: &Redactor,
) -> Option<Arc<dyn PermissionBroker>> {
    match policy {
        PermissionPolicy::Deny => None,
        PermissionPolicy::Ask { deadline } => Some(Arc::new(HubBroker {
            hub: hub.clone(),
            deadline,
            run_ends: run_deadline.map(|deadline| hub.clock().now() + deadline),
            redactor: redactor.clone(),
            allowed: Arc::default(),
        })),
    }
}

struct HubBroker {
    hub: Hub,
    deadline: Duration,
    run_ends: Option<Timestamp>,
    redactor: Redactor,
    /// The tools that were allowed for the rest of the run.
    allowed: Arc<Mutex<BTreeSet<String>>>,
}

impl PermissionBroker for HubBroker {
    fn request(&self, request: PermissionRequest) -> BoxFuture<'static, PermissionDecision> {
        let tool = request.tool_name.clone();
        if self.allowed.lock().contains(&tool) {
            return ready(PermissionDecision::Allow { updated_input: None }).boxed();
        }
        let question = format!("Allow `{}`?", request.tool_name);
        let mut detail = Map::new();
        detail.insert("toolName".to_owned(), Value::from(request.tool_name));
        detail.insert("input".to_owned(), flat(request.input));
        detail.extend(request.tool_use_id.map(|id| ("toolUseId".to_owned(), Value::from(id))));
        // The agent's own words about it are no part of the question.
        detail.extend(request.description.map(|said| ("description".to_owned(), Value::from(said))));
        let deadline = self.hub.clock().now() + self.deadline;
        let asked = self.hub.ask(Prompt {
            choices: Some(vec![ALLOW.to_owned(), ALWAYS.to_owned(), DENY.to_owned()]),
            detail: Some(self.redactor.value(Value::Object(detail))),
            deadline: Some(self.run_ends.map_or(deadline, |ends| ends.min(deadline))),
            default: Some(DENY.to_owned()),
            ..self.hub.new_prompt(PromptKind::Permission, self.redactor.text(&question))
        });
        let allowed = Arc::clone(&self.allowed);
        let answered = move |answer: Result<Reply, Unanswered>| {
            if matches!(&answer, Ok(Reply { choice: Some(choice), .. }) if choice == ALWAYS) {
                allowed.lock().insert(tool);
            }
            decide(answer)
        };
        asked.map(answered).boxed()
    }
}

/// Only the choices `ALLOW` and `ALWAYS` allow; any other answer is a denial.
fn decide(answer: Result<Reply, Unanswered>) -> PermissionDecision {
    match answer {
        Ok(Reply { choice: Some(choice), .. }) if choice == ALLOW || choice == ALWAYS => {
            PermissionDecision::Allow { updated_input: None }
        }
        Ok(Reply { content, .. }) if content != DENY && !content.is_empty() => {
            PermissionDecision::Deny { message: content }
        }
        Ok(_) => PermissionDecision::Deny { message: "permission was denied".to_owned() },
        Err(unanswered) => PermissionDecision::Deny { message: unanswered.to_string() },
    }
}
