//! What a turn has come to, in the form of the Responses API: the items, those of them that the vendor has already, and
//! the answers to calls. Pure: asking the model and running functions are left to the exchange.

use inspan_protocol::{ContentBlock, ProviderSessionId, StopReason, StreamEvent};
use serde_json::{Value, json};

use super::decode::Said;
use super::outcome;
use super::request::{Thread, block};
use super::schema::Form;
use crate::exchange::{self, Answered, Books};
use crate::output::TurnOutput;
use crate::tools::{Answer, Call};

/// What is told of calls that the vendor keeps open.
const UNANSWERED: &str = "the conversation that the vendor keeps has calls of tools without answers; it may not be \
                          gone on with";

/// The ledger of one turn.
#[derive(Debug)]
pub(super) struct Ledger {
    /// Its messages are the items. Of a conversation of the vendor's, its session is the name of one in which no call
    /// waits for its answer.
    pub(super) books: Books,
    /// Who keeps the conversation, and its name for the next request.
    pub(super) thread: Thread,
    /// What the answer is to be, if not words.
    pub(super) form: Option<Form>,
    /// How many of the items the vendor has already.
    told: usize,
    /// Where the answers to the calls of the last message begin.
    answers: usize,
}

impl Ledger {
    /// The ledger of a turn that says this in a conversation.
    pub(super) fn begin(thread: Thread, items: Vec<Value>, said: Vec<Value>, form: Option<Form>) -> Self {
        let books = Books::begin(thread.session().clone(), items, answer_open, said);
        Self { thread, form, told: 0, answers: books.messages.len(), books }
    }

    /// What the next request has to say.
    pub(super) fn next(&self) -> &[Value] {
        match self.thread {
            Thread::Own(_) => &self.books.messages,
            _ => &self.books.messages[self.told..],
        }
    }

    /// The vendor names a conversation of one kind by its last answer.
    fn name(&mut self, response: Option<String>) {
        if let (Thread::Response(session), Some(response)) = (&mut self.thread, response) {
            *session = ProviderSessionId::from(response);
        }
    }

    fn count(&mut self, said: &Said) {
        let answered = said.response.is_some() || said.model.is_some() || !said.messages.is_empty();
        let answered = if answered { Answered::Yes } else { Answered::No };
        self.books.count(said.usage, said.model.as_ref(), answered);
    }
}

impl exchange::Ledger for Ledger {
    type Said = Said;

    fn books(&mut self) -> &mut Books {
        &mut self.books
    }

    fn goes_on(&mut self, said: Said) -> Vec<Call> {
        self.count(&said);
        self.books.texts.push(outcome::text(&said, StopReason::MaxTurns));
        self.name(said.response);
        self.books.messages.extend(said.items);
        self.told = self.books.messages.len();
        self.answers = self.told;
        said.calls
    }

    fn answers<'a>(&mut self, answers: impl Iterator<Item = &'a Answer>) {
        self.books.messages.truncate(self.answers);
        self.books.messages.extend(answers.map(output_item));
    }

    fn end(&mut self, mut said: Said, stop_reason: StopReason) -> TurnOutput {
        // A call that nobody answers must not stand in the conversation.
        said.items.retain(|item| item["type"] != "function_call");
        while said.items.last().is_some_and(|item| item["type"] == "reasoning") {
            said.items.pop();
        }
        self.count(&said);
        if stop_reason != StopReason::Aborted && said.calls.is_empty() {
            self.name(said.response.take());
            self.books.session = self.thread.session().clone();
        }
        self.books.messages.append(&mut said.items);
        let form = self.form.as_ref();
        self.books.output(outcome::text(&said, stop_reason), stop_reason, |text| form?.answer(text))
    }

    fn stop(&mut self, stop_reason: StopReason) -> TurnOutput {
        self.books.output(String::new(), stop_reason, |_| None)
    }

    fn left_open(&self) -> Option<StreamEvent> {
        let open = matches!(self.thread, Thread::Conversation(_)) && self.told > 0;
        let (code, message) = ("callsUnanswered".to_owned(), UNANSWERED.to_owned());
        open.then_some(StreamEvent::Warning { code, message })
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
