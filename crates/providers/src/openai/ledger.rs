//! What a turn has come to: the conversation with all that was said and answered, the sums, and where it can be left.
//! Pure: asking the model and running tools are left to `exchange.rs`.

use inspan_protocol::{ContentBlock, ProviderSessionId, StopReason, Usage};
use serde_json::{Value, json};

use super::decode::Said;
use super::outcome;
use super::request::{Thread, block};
use super::schema::Form;
use crate::output::{PermissionDenial, TurnOutput};
use crate::tools::{Answer, Call};

/// The books of one turn.
#[derive(Debug)]
pub(super) struct Ledger {
    /// Who keeps the conversation, and its name for the next request.
    pub(super) thread: Thread,
    /// What was said, in the vendor's form; of a conversation of the vendor's, what was said in this turn.
    pub(super) items: Vec<Value>,
    /// How many of them the vendor has already.
    told: usize,
    /// How many stay when the turn fails. Those before it are as if it had never been; once a tool has run, what was
    /// done stays too.
    safe: usize,
    settled: Settled,
    /// The name to go on with: of a conversation of the vendor's, one in which no call waits for its answer.
    session: ProviderSessionId,
    /// Where the answers to the calls of the last message begin.
    answers: usize,
    /// The texts of the answers that are whole.
    texts: Vec<String>,
    usage: Usage,
    model: Option<String>,
    answered: u32,
    denials: Vec<PermissionDenial>,
}

/// Whether a tool has run, so that a failure takes nothing back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settled {
    No,
    Yes,
}

impl Ledger {
    /// The books of a turn that says this in a conversation.
    pub(super) fn begin(thread: Thread, mut items: Vec<Value>, said: Vec<Value>) -> Self {
        let safe = items.len();
        answer_open(&mut items);
        items.extend(said);
        Self {
            session: thread.session().clone(),
            thread,
            told: 0,
            safe,
            settled: Settled::No,
            answers: items.len(),
            items,
            texts: Vec::new(),
            usage: Usage::default(),
            model: None,
            answered: 0,
            denials: Vec::new(),
        }
    }

    /// What the next request has to say.
    pub(super) fn next(&self) -> &[Value] {
        match self.thread {
            Thread::Own(_) => &self.items,
            _ => &self.items[self.told..],
        }
    }

    /// The name to go on with.
    pub(super) fn session(&self) -> &ProviderSessionId {
        &self.session
    }

    /// Tokens of the turn, with those of the answer in progress.
    pub(super) fn with(&self, usage: Usage) -> Usage {
        let mut all = self.usage;
        all += usage;
        all
    }

    /// The model's answer, whole, with its calls. What answers them follows.
    pub(super) fn calls(&mut self, said: Said) -> Vec<Call> {
        self.count(&said);
        self.texts.push(outcome::text(&said, StopReason::MaxTurns));
        self.name(said.response);
        self.items.extend(said.items);
        self.told = self.items.len();
        self.answers = self.items.len();
        said.calls
    }

    /// The answers until now, in the order of the calls; they replace those of the last time.
    pub(super) fn answers<'a>(&mut self, answers: impl Iterator<Item = &'a Answer>) {
        self.items.truncate(self.answers);
        self.items.extend(answers.map(output_item));
    }

    /// All calls are answered: from here on a failure takes back nothing that was done.
    pub(super) fn settled(&mut self) {
        self.safe = self.items.len();
        self.settled = Settled::Yes;
    }

    /// Whether a tool has run.
    pub(super) fn has_settled(&self) -> Settled {
        self.settled
    }

    /// A call was not allowed.
    pub(super) fn denied(&mut self, denial: PermissionDenial) {
        self.denials.push(denial);
    }

    /// The turn ended with this answer, which may be a part of one.
    pub(super) fn end(&mut self, mut said: Said, stop_reason: StopReason, form: Option<&Form>) -> TurnOutput {
        // A call that nobody answers must not stand in the conversation.
        said.items.retain(|item| item["type"] != "function_call");
        while said.items.last().is_some_and(|item| item["type"] == "reasoning") {
            said.items.pop();
        }
        self.count(&said);
        if stop_reason != StopReason::Aborted && said.calls.is_empty() {
            self.name(said.response.take());
            self.session = self.thread.session().clone();
        }
        self.items.append(&mut said.items);
        self.output(&said, stop_reason, form)
    }

    /// The turn ended after an answer that is in the books.
    pub(super) fn stop(&mut self, stop_reason: StopReason) -> TurnOutput {
        self.output(&Said::default(), stop_reason, None)
    }

    /// What is left of a turn that failed: what can be gone on with.
    pub(super) fn failed(mut self) -> Vec<Value> {
        self.items.truncate(self.safe);
        self.items
    }

    /// Whether the vendor keeps a conversation in which calls wait for answers that it will not get.
    pub(super) fn leaves_calls(&self) -> bool {
        matches!(self.thread, Thread::Conversation(_)) && self.told > 0
    }

    /// The vendor names a conversation of one kind by its last answer.
    fn name(&mut self, response: Option<String>) {
        if let (Thread::Response(session), Some(response)) = (&mut self.thread, response) {
            *session = ProviderSessionId::from(response);
        }
    }

    fn output(&mut self, said: &Said, stop_reason: StopReason, form: Option<&Form>) -> TurnOutput {
        let mut text = outcome::text(said, stop_reason);
        if stop_reason != StopReason::Complete {
            self.texts.push(text);
            let texts: Vec<&str> =
                self.texts.iter().map(String::as_str).filter(|text| !text.trim().is_empty()).collect();
            text = texts.join("\n\n");
        }
        TurnOutput {
            usage: self.usage,
            model: self.model.take(),
            num_turns: self.answered,
            permission_denials: std::mem::take(&mut self.denials),
            ..outcome::output(text, stop_reason, form)
        }
    }

    fn count(&mut self, said: &Said) {
        self.usage += said.usage;
        self.answered +=
            u32::from(said.response.is_some() || said.model.is_some() || !said.messages.is_empty());
        self.model = said.model.clone().or(self.model.take());
    }
}

/// Answers the calls of a conversation that was left in the middle of a tool: by a crash, or by a process that was
/// killed. Nothing is run a second time; the model is told and decides.
fn answer_open(items: &mut Vec<Value>) {
    let id = |item: &Value| item["call_id"].as_str().unwrap_or_default().to_owned();
    let of = |kind: &str| -> Vec<(usize, String)> {
        let items = items.iter().enumerate().filter(|(_, item)| item["type"] == kind);
        items.map(|(at, item)| (at, id(item))).collect()
    };
    let answered = of("function_call_output");
    let calls = of("function_call");
    let Some((last, _)) = calls.last() else { return };
    // Answers stand right behind the calls of their message.
    let behind = items[last + 1..].iter().take_while(|item| item["type"] == "function_call_output").count();
    let place = last + 1 + behind;
    let open: Vec<Value> = calls
        .iter()
        .filter(|(_, id)| !answered.iter().any(|(_, known)| known == id))
        .map(|(_, id)| output_item(&Answer::interrupted(id.as_str())))
        .collect();
    items.splice(place..place, open);
}

/// An answer in the vendor's form: a text if it is that, else its parts. That a call failed is for its words to say.
fn output_item(answer: &Answer) -> Value {
    let output = match answer.content.as_slice() {
        [] => json!(""),
        [ContentBlock::Text { text }] => json!(text),
        blocks => Value::Array(blocks.iter().filter_map(|one| block(one).ok().flatten()).collect()),
    };
    json!({ "type": "function_call_output", "call_id": answer.id, "output": output })
}

#[cfg(test)]
mod tests;
