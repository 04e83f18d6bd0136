//! How an agent's question for permission, or for an answer, becomes a prompt of the session, and the reply a decision.
//! The hub asks and waits.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures::{
    FutureExt,
    future::{BoxFuture, ready},
};
use inspan_protocol::{
    AgentQuestion, PermissionBroker, PermissionDecision, PermissionPolicy, PermissionRequest, Prompt,
    PromptKind, Redactor, Reply, Timestamp, flat,
};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use crate::hub::{Hub, PendingReply, Unanswered};

const ALLOW: &str = "allow";
/// The tool is not asked for again in this run.
const ALWAYS: &str = "always";
const DENY: &str = "deny";
/// The choice, and the default, of a question of an agent that nobody answers.
const NO_ANSWER: &str = "no answer";

/// The broker for an agent run, `None` for one that denies; `hub` carries the run's context. No question stays open for
/// longer than the run may take.
pub(super) fn broker(
    policy: PermissionPolicy,
    run_deadline: Option<Duration>,
    hub: &Hub,
    redactor: &Redactor,
    cancel: CancellationToken,
) -> Option<Arc<dyn PermissionBroker>> {
    match policy {
        PermissionPolicy::Deny => None,
        PermissionPolicy::Ask { deadline } => Some(Arc::new(HubBroker {
            hub: hub.clone(),
            deadline,
            run_ends: run_deadline.map(|deadline| hub.clock().now() + deadline),
            redactor: redactor.clone(),
            cancel,
            allowed: Arc::default(),
        })),
    }
}

#[derive(Clone)]
struct HubBroker {
    hub: Hub,
    deadline: Duration,
    run_ends: Option<Timestamp>,
    redactor: Redactor,
    /// Cancels the run. What the agent takes back before is answered by its default.
    cancel: CancellationToken,
    /// The tools that were allowed for the rest of the run.
    allowed: Arc<Mutex<BTreeSet<String>>>,
}

impl PermissionBroker for HubBroker {
    fn request(&self, request: PermissionRequest) -> BoxFuture<'static, PermissionDecision> {
        if !request.questions.is_empty() {
            return self.clone().answers(request.questions).boxed();
        }
        let tool = request.tool_name.clone();
        if !request.once_only && self.allowed.lock().contains(&tool) {
            return ready(PermissionDecision::Allow { updated_input: None }).boxed();
        }
        let question = format!("Allow `{}`?", request.tool_name);
        let mut detail = Map::new();
        detail.insert("toolName".to_owned(), Value::from(request.tool_name));
        detail.insert("input".to_owned(), flat(request.input));
        detail.extend(request.tool_use_id.map(|id| ("toolUseId".to_owned(), Value::from(id))));
        // The agent's own words about it are no part of the question.
        detail.extend(request.description.map(|said| ("description".to_owned(), Value::from(said))));
        let choices = if request.once_only { &[ALLOW, DENY][..] } else { &[ALLOW, ALWAYS, DENY] };
        let asked = self.ask(Prompt {
            choices: Some(choices.iter().map(|choice| (*choice).to_owned()).collect()),
            detail: Some(self.redactor.value(Value::Object(detail))),
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

impl HubBroker {
    /// Asks a question that is open as long as the agent waits for it and the run may take, and no longer than the policy says.
    fn ask(&self, prompt: Prompt) -> PendingReply {
        let deadline = self.hub.clock().now() + self.deadline;
        let deadline = self.run_ends.map_or(deadline, |ends| ends.min(deadline));
        self.hub.ask(Prompt { deadline: Some(deadline), ..prompt }).settled_unless(self.cancel.clone())
    }

    /// The answers to an agent's questions, which are asked one after another. One without an answer ends them.
    async fn answers(self, questions: Vec<AgentQuestion>) -> PermissionDecision {
        let mut answers = Vec::new();
        for question in questions {
            let labels = question.options.iter().map(|option| self.redactor.text(&option.label));
            let choices: Vec<String> = labels.chain([NO_ANSWER.to_owned()]).collect();
            let asked = self.ask(Prompt {
                choices: Some(choices),
                allow_text: Some(true),
                default: Some(NO_ANSWER.to_owned()),
                ..self.hub.new_prompt(PromptKind::Question, self.redactor.text(&text(&question)))
            });
            match asked.await {
                Ok(reply) if reply.choice.as_deref() != Some(NO_ANSWER) => {
                    answers.push(chosen(&question, reply));
                }
                Ok(Reply { content, .. }) => {
                    let is_said = content != NO_ANSWER;
                    let message = if is_said { content } else { "nobody answered".to_owned() };
                    return PermissionDecision::Deny { message };
                }
                Err(unanswered) => return PermissionDecision::Deny { message: unanswered.to_string() },
            }
        }
        PermissionDecision::Allow { updated_input: Some(json!({ "answers": answers })) }
    }
}

/// The question with what the answers mean.
fn text(question: &AgentQuestion) -> String {
    let mut text = question.question.clone();
    let described =
        question.options.iter().filter_map(|option| Some((&option.label, option.description.as_ref()?)));
    for (at, (label, description)) in described.enumerate() {
        text.push_str(if at == 0 { "\n\n" } else { "\n" });
        text.push_str(&format!("- {label}: {description}"));
    }
    if question.multiple {
        text.push_str("\n\nSeveral answers can be chosen: separate them by commas.");
    }
    text
}

/// The answers that a reply is: several if each of its parts is the label or the number of an option.
fn chosen(question: &AgentQuestion, reply: Reply) -> Vec<String> {
    let option = |part: &str| {
        let part = part.trim();
        let at = part.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
        let label = question.options.iter().find(|option| option.label.eq_ignore_ascii_case(part));
        label.or_else(|| question.options.get(at?)).map(|option| option.label.clone())
    };
    let several = || reply.content.split(',').map(option).collect::<Option<Vec<_>>>();
    match reply.choice {
        // A comment may come with a choice.
        Some(choice) if choice != reply.content => vec![choice, reply.content],
        None if question.multiple => several().unwrap_or_else(|| vec![reply.content.clone()]),
        _ => vec![reply.content],
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
