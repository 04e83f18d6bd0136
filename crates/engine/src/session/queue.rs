//! The messages that wait for an agent session, and whether a chat is in progress: pure, and the only place that decides
//! where a message goes.
//!
//! | Stage | begin | started | message | returned | ended | drain | close |
//! |---|---|---|---|---|---|---|---|
//! | idle | what waits → busy | - | waits | waits, before the others | - | what waits | → closed |
//! | busy | refused | what waits → running | waits | waits, before the others | as below | what waits | → closed |
//! | running | refused | what waits → running | for the run | waits, before the others | as below | what waits | → closed |
//! | closed | refused | - | refused | - | - | - | - |
//!
//! A chat that finished continues with what waits, busy again, and is idle if nothing does; one that was cut short is
//! idle, and what waits is for the next chat.

use std::collections::VecDeque;

use inspan_protocol::RunId;

use crate::run::{MAILBOX_CAPACITY, Mail};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    #[default]
    Idle,
    /// A chat is in progress, and no run of it takes messages.
    Busy,
    /// A run of the chat takes messages.
    Running(RunId),
    Closed,
}

#[derive(Clone, Debug)]
pub(crate) enum Input {
    /// A chat wants to begin.
    Begin,
    /// A run of the chat takes messages from now on.
    Started(RunId),
    /// A message came.
    Message(Mail),
    /// A run gives back what it did not deliver, and takes nothing more.
    Returned(Vec<Mail>),
    /// The chat ended.
    Ended(End),
    /// The caller wants the waiting messages back.
    Drain,
    Close,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The agent has answered, and could be told more.
    Finished,
    /// It failed, was aborted or hit a limit.
    CutShort,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    Nothing,
    /// These messages leave the queue.
    Take(Vec<Mail>),
    /// The message is for this run; if the run does not take it, it is returned.
    HandOver(RunId, Mail),
    Refused(Refusal),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Busy,
    Full,
    Closed,
}

/// The queue of one session.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    stage: Stage,
    waiting: VecDeque<Mail>,
}

impl Queue {
    /// A queue in which these messages wait.
    pub(crate) fn of(waiting: impl IntoIterator<Item = Mail>) -> Self {
        Self { stage: Stage::Idle, waiting: waiting.into_iter().collect() }
    }

    pub(crate) fn stage(&self) -> &Stage {
        &self.stage
    }

    pub(crate) fn waiting(&self) -> impl Iterator<Item = &Mail> {
        self.waiting.iter()
    }

    pub(crate) fn apply(&mut self, input: Input) -> Output {
        match (&self.stage, input) {
            (Stage::Closed, Input::Begin | Input::Message(_)) => Output::Refused(Refusal::Closed),
            (Stage::Closed, _) => Output::Nothing,
            (_, Input::Close) => {
                *self = Self { stage: Stage::Closed, waiting: VecDeque::new() };
                Output::Nothing
            }
            (_, Input::Drain) => self.take(),
            (_, Input::Returned(mail)) => {
                if let Stage::Running(_) = self.stage {
                    self.stage = Stage::Busy;
                }
                mail.into_iter().rev().for_each(|mail| self.waiting.push_front(mail));
                Output::Nothing
            }
            (Stage::Idle, Input::Begin) => {
                self.stage = Stage::Busy;
                self.take()
            }
            (_, Input::Begin) => Output::Refused(Refusal::Busy),
            (Stage::Busy | Stage::Running(_), Input::Started(run)) => {
                self.stage = Stage::Running(run);
                self.take()
            }
            (Stage::Running(run), Input::Message(mail)) => Output::HandOver(run.clone(), mail),
            (_, Input::Message(_)) if self.waiting.len() >= MAILBOX_CAPACITY => {
                Output::Refused(Refusal::Full)
            }
            (_, Input::Message(mail)) => {
                self.waiting.push_back(mail);
                Output::Nothing
            }
            (Stage::Busy | Stage::Running(_), Input::Ended(End::Finished)) if !self.waiting.is_empty() => {
                self.stage = Stage::Busy;
                self.take()
            }
            (Stage::Busy | Stage::Running(_), Input::Ended(_)) => {
                self.stage = Stage::Idle;
                Output::Nothing
            }
            (Stage::Idle, Input::Started(_) | Input::Ended(_)) => Output::Nothing,
        }
    }

    fn take(&mut self) -> Output {
        Output::Take(self.waiting.drain(..).collect())
    }
}

#[cfg(test)]
mod tests {
    use inspan_protocol::MessageMode;

    use super::*;

    fn mail(content: &str) -> Mail {
        Mail { content: content.to_owned(), mode: MessageMode::FollowUp }
    }

    fn run() -> RunId {
        RunId::from("run-1")
    }

    /// Every stage with one message waiting, and every input: what comes out, the stage after it, what waits then.
    #[test]
    fn the_table() {
        let stages = [Stage::Idle, Stage::Busy, Stage::Running(run()), Stage::Closed];
        let inputs = [
            Input::Begin,
            Input::Started(run()),
            Input::Message(mail("b")),
            Input::Returned(vec![mail("x"), mail("y")]),
            Input::Ended(End::Finished),
            Input::Ended(End::CutShort),
            Input::Drain,
            Input::Close,
        ];
        let words = |output: &Output| match output {
            Output::Nothing => "-".to_owned(),
            Output::Take(mail) => format!("take {}", texts(mail.iter())),
            Output::HandOver(_, mail) => format!("hand {}", mail.content),
            Output::Refused(refusal) => format!("{refusal:?}"),
        };
        fn texts<'a>(mail: impl Iterator<Item = &'a Mail>) -> String {
            mail.map(|mail| mail.content.as_str()).collect::<Vec<_>>().join("")
        }
        let stage_word = |stage: &Stage| match stage {
            Stage::Running(_) => "Running".to_owned(),
            other => format!("{other:?}"),
        };
        let seen: Vec<Vec<String>> = stages
            .iter()
            .map(|stage| {
                let after = |input: &Input| {
                    let mut queue = Queue { stage: stage.clone(), waiting: VecDeque::new() };
                    if *stage != Stage::Closed {
                        queue.waiting.push_back(mail("a"));
                    }
                    let output = words(&queue.apply(input.clone()));
                    format!("{output} → {} {}", stage_word(queue.stage()), texts(queue.waiting()))
                };
                inputs.iter().map(after).collect()
            })
            .collect();
        let expected = [
            [
                "take a → Busy ",
                "- → Idle a",
                "- → Idle ab",
                "- → Idle xya",
                "- → Idle a",
                "- → Idle a",
                "take a → Idle ",
                "- → Closed ",
            ],
            [
                "Busy → Busy a",
                "take a → Running ",
                "- → Busy ab",
                "- → Busy xya",
                "take a → Busy ",
                "- → Idle a",
                "take a → Busy ",
                "- → Closed ",
            ],
            [
                "Busy → Running a",
                "take a → Running ",
                "hand b → Running a",
                "- → Busy xya",
                "take a → Busy ",
                "- → Idle a",
                "take a → Running ",
                "- → Closed ",
            ],
            [
                "Closed → Closed ",
                "- → Closed ",
                "Closed → Closed ",
                "- → Closed ",
                "- → Closed ",
                "- → Closed ",
                "- → Closed ",
                "- → Closed ",
            ],
        ];
        assert_eq!(seen, expected.map(|row| row.map(str::to_owned).to_vec()));
    }

    #[test]
    fn a_chat_that_ended_well_with_nothing_waiting_is_over() {
        let mut queue = Queue::default();
        assert_eq!(queue.apply(Input::Begin), Output::Take(vec![]));
        assert_eq!(queue.apply(Input::Ended(End::Finished)), Output::Nothing);
        assert_eq!(queue.stage(), &Stage::Idle);
    }

    #[test]
    fn the_queue_has_a_bound() {
        let mut queue = Queue::of((0..MAILBOX_CAPACITY).map(|_| mail("m")));
        assert_eq!(queue.apply(Input::Message(mail("m"))), Output::Refused(Refusal::Full));
    }
}
