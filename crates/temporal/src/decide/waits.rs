//! Waits that occupy no worker: of nodes that only wait, for a person, a time or an event, which a decision ends, and of attempts
//! that no worker has begun, whose time does not run yet.

use std::{collections::BTreeMap, time::Duration};

use inspan_engine::Filter;
use inspan_flow_core::{
    AttemptSpec, ControlWait, HumanAnswer, HumanQuestion, WaitFor, WaitInput, WaitOutput, read_input,
    write_output,
};
use inspan_protocol::{
    AgentError, Envelope, ErrorCode, Event, LogLevel, Prompt, PromptId, Redactor, Reply, Timestamp,
};
use serde_json::Value;

use crate::log::AttemptKey;

/// How often an event is looked for that no worker reports.
const LOOK: Duration = Duration::from_secs(5);

/// Whether attempts of this node type only wait.
pub(super) fn only_waits(node_type: &str) -> bool {
    matches!(node_type, "human.input" | ControlWait::NAME)
}

/// What an attempt waits for.
pub(super) struct AttemptWait {
    began: Timestamp,
    on: WaitsOn,
}

enum WaitsOn {
    /// An answer.
    Answer { prompt: Box<Prompt>, reply: Option<Reply> },
    /// A moment.
    Moment(Timestamp),
    /// An event, perhaps until a moment.
    Event {
        filter: Box<Filter>,
        until: String,
        deadline: Option<(Timestamp, Duration)>,
        found: Option<Value>,
    },
}

/// What is to be done for an attempt that waits.
pub(super) enum Due {
    /// It ends.
    End(Result<Value, AgentError>),
    /// Its question is answered with its default.
    Answer(Event),
}

impl AttemptWait {
    /// What an attempt waits for that begins now.
    pub(super) fn of(spec: &AttemptSpec, now: Timestamp, redactor: &Redactor) -> Result<Self, AgentError> {
        let before = spec.interrupted.as_deref();
        let began = before.and_then(|before| before.since).unwrap_or(now);
        let on = if &*spec.node_type == "human.input" {
            let question: HumanQuestion = read_input(spec.input.clone())?;
            let asked = before.and_then(|before| before.asked.as_ref());
            let id = asked.map_or_else(
                || PromptId::from(format!("{}.{}", spec.path, spec.attempt)),
                |asked| asked.prompt_id.clone(),
            );
            let prompt = Box::new(question.prompt(id, began, redactor)?);
            WaitsOn::Answer { prompt, reply: before.and_then(|before| before.reply.clone()) }
        } else {
            waits_on(&read_input(spec.input.clone())?, began)?
        };
        Ok(Self { began, on })
    }

    /// The question, if it waits for an answer that it does not have.
    pub(super) fn question(&self) -> Option<&Prompt> {
        match &self.on {
            WaitsOn::Answer { prompt, reply: None } => Some(prompt),
            _ => None,
        }
    }

    /// Takes an event of the session.
    pub(super) fn apply(&mut self, envelope: &Envelope) {
        match (&mut self.on, &envelope.event) {
            (WaitsOn::Answer { prompt, reply }, Event::SessionReply { prompt_id, content, choice, .. })
                if prompt.prompt_id == *prompt_id =>
            {
                *reply = Some(Reply { content: content.clone(), choice: choice.clone() });
            }
            (WaitsOn::Event { filter, found, .. }, event)
                if found.is_none() && filter.matches(envelope) && ControlWait::ends_by(event) =>
            {
                *found = write_output(event).ok();
            }
            _ => {}
        }
    }

    /// Whether it waits for a message to the session.
    pub(super) fn listens(&self) -> bool {
        matches!(&self.on, WaitsOn::Event { filter, found: None, .. } if filter.listens_for_messages())
    }

    /// What is to be done at this time, if anything is.
    pub(super) fn due(&self, now: Timestamp) -> Option<Due> {
        let timeout = |message: String| Due::End(Err(AgentError::new(ErrorCode::Timeout, message)));
        let waited = |event| {
            let waited_ms = now.since(self.began).as_millis() as u64;
            Due::End(write_output(&WaitOutput { waited_ms, event }))
        };
        match &self.on {
            WaitsOn::Answer { prompt, reply: Some(reply) } => {
                Some(Due::End(HumanAnswer::of(prompt.schema.is_some(), reply.clone())))
            }
            WaitsOn::Answer { prompt, reply: None } => {
                prompt.deadline.filter(|deadline| *deadline <= now)?;
                Some(match prompt.default_reply() {
                    None => timeout(HumanQuestion::UNANSWERED.to_owned()),
                    Some(Reply { content, choice }) => Due::Answer(Event::SessionReply {
                        prompt_id: prompt.prompt_id.clone(),
                        content,
                        choice,
                        is_default: true,
                    }),
                })
            }
            WaitsOn::Moment(moment) => (*moment <= now).then(|| waited(None)),
            WaitsOn::Event { found: Some(event), .. } => Some(waited(Some(event.clone()))),
            WaitsOn::Event { until, deadline, .. } => {
                let (_, limit) = deadline.filter(|(deadline, _)| *deadline <= now)?;
                Some(timeout(format!("no `{until}` came within {limit:?}")))
            }
        }
    }

    /// When to look again.
    pub(super) fn wake_at(&self, now: Timestamp) -> Option<Timestamp> {
        match &self.on {
            WaitsOn::Answer { prompt, .. } => prompt.deadline,
            WaitsOn::Moment(moment) => Some(*moment),
            WaitsOn::Event { deadline, .. } => {
                let look = now + LOOK;
                Some(deadline.map_or(look, |(deadline, _)| deadline.min(look)))
            }
        }
    }
}

fn waits_on(wait: &WaitInput, began: Timestamp) -> Result<WaitsOn, AgentError> {
    Ok(match wait.waits_for()? {
        WaitFor::Time(time) => WaitsOn::Moment(began + time),
        WaitFor::Moment(moment) => WaitsOn::Moment(moment),
        WaitFor::Event { names, limit } => WaitsOn::Event {
            filter: Box::new(
                Filter::parse(&names)
                    .map_err(|error| AgentError::new(ErrorCode::ConfigInvalid, error.to_string()))?,
            ),
            until: names,
            deadline: limit.map(|limit| (began + limit, limit)),
            found: None,
        },
    })
}

/// After how long without a worker the log says what an attempt waits for that one machine alone can run.
const TOLD_AFTER: Duration = Duration::from_secs(10);
/// The field of such an event that names the machine.
const MACHINE: &str = "machine";

/// Attempts that one machine alone can run, and that none of its workers has begun, each with its machine and since when it
/// waits. Those of which the log says so are not among them.
#[derive(Default)]
pub(super) struct UnclaimedAttempts(BTreeMap<AttemptKey, (String, Timestamp)>);

impl UnclaimedAttempts {
    /// An attempt is given to the workers of a machine.
    pub(super) fn put(&mut self, key: AttemptKey, machine: String, since: Timestamp) {
        self.0.insert(key, (machine, since));
    }

    /// A worker has begun an attempt.
    pub(super) fn begun(&mut self, key: &AttemptKey) {
        self.0.remove(key);
    }

    /// Takes an event of the log, which may say that an attempt waits.
    pub(super) fn apply(&mut self, envelope: &Envelope) {
        if let (Event::Log { fields, .. }, Some(place)) = (&envelope.event, &envelope.context.task)
            && fields.contains_key(MACHINE)
        {
            self.0.retain(|key, _| key.path != *place);
        }
    }

    /// What the log is to say now.
    pub(super) fn due(&self, now: Timestamp) -> Vec<(AttemptKey, Event)> {
        let due = self.0.iter().filter(|(_, (_, since))| *since + TOLD_AFTER <= now);
        due.map(|(key, (machine, _))| (key.clone(), waits_for_machine(key, machine))).collect()
    }

    /// When to look again.
    pub(super) fn wake_at(&self) -> Option<Timestamp> {
        self.0.values().map(|(_, since)| *since + TOLD_AFTER).min()
    }

    /// Forgets all others.
    pub(super) fn retain(&mut self, waits: impl Fn(&AttemptKey) -> bool) {
        self.0.retain(|key, _| waits(key));
    }

    pub(super) fn has(&self, key: &AttemptKey) -> bool {
        self.0.contains_key(key)
    }
}

/// Says that an attempt waits for a machine.
pub(super) fn waits_for_machine(key: &AttemptKey, machine: &str) -> Event {
    let message = format!(
        "attempt {} waits for a worker of the machine `{machine}`, where its agent's conversation is: all slots there are \
         taken, or no worker is there",
        key.attempt
    );
    let fields = [(MACHINE.to_owned(), machine.into())].into_iter().collect();
    Event::Log { level: LogLevel::Warn, message, fields }
}

/// An attempt that has waited this many times as long as it is put off next is looked at rarely enough.
const RARELY: u32 = 8;

/// Attempts with a timeout that were given to the workers, and that none has said to have begun.
#[derive(Default)]
pub(super) struct UnstartedAttempts(BTreeMap<AttemptKey, UnstartedAttempt>);

struct UnstartedAttempt {
    timeout: Duration,
    /// When it was given to the workers.
    since: Timestamp,
    /// The end of its time as the run has it.
    deadline: Timestamp,
}

impl UnstartedAttempts {
    /// An attempt is given to the workers, whose time would be up at `deadline`.
    pub(super) fn put(&mut self, key: AttemptKey, timeout: Duration, since: Timestamp, deadline: Timestamp) {
        self.0.insert(key, UnstartedAttempt { timeout, since, deadline });
    }

    /// A worker has begun an attempt. Gives when its time is up.
    pub(super) fn began(&mut self, key: &AttemptKey, at: Timestamp) -> Option<Timestamp> {
        self.0.remove(key).map(|known| at + known.timeout)
    }

    /// Puts off what would be due, and gives the new ends. One that begins later has its time from then on, so that none
    /// is put off too far. A worker that begins one late has this decided again: so a long wait needs few looks.
    pub(super) fn put_off(&mut self, now: Timestamp) -> Vec<(AttemptKey, Timestamp)> {
        let due = self.0.iter_mut().filter(|(_, known)| known.deadline <= now);
        due.map(|(key, known)| {
            known.deadline = now + known.timeout.max(now.since(known.since) / RARELY);
            (key.clone(), known.deadline)
        })
        .collect()
    }

    /// Forgets all others.
    pub(super) fn retain(&mut self, runs: impl Fn(&AttemptKey) -> bool) {
        self.0.retain(|key, _| runs(key));
    }
}
