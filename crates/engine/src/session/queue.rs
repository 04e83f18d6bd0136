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
//! A chat that finished continues with what waits, busy again, and is idle if nothing does; one that was interrupted
//! is idle, and what waits is for the next chat.

use std::collections::VecDeque;

use inspan_protocol::RunId;

use crate::run::{MAILBOX_CAPACITY, Mail};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum QueueStage {
    #[default]
    Idle,
    /// A chat is in progress, and no run of it takes messages.
    Busy,
    /// A run of the chat takes messages.
    Running(RunId),
    Closed,
}

#[derive(Clone, Debug)]
pub(crate) enum QueueInput {
    /// A chat wants to begin.
    Begin,
    /// A run of the chat takes messages from now on.
    Started(RunId),
    /// A message came.
    Message(Mail),
    /// A run gives back what it did not deliver, and takes nothing more.
    Returned(Vec<Mail>),
    /// The chat ended.
    Ended(QueueEnd),
    /// The caller wants the waiting messages back.
    Drain,
    Close,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueEnd {
    /// The agent has answered, and could get another message.
    Finished,
    /// It failed, was aborted or hit a limit.
    CutShort,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum QueueOutput {
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
    stage: QueueStage,
    waiting: VecDeque<Mail>,
}

impl Queue {
    /// A queue in which these messages wait.
    pub(crate) fn of(waiting: impl IntoIterator<Item = Mail>) -> Self {
        Self { stage: QueueStage::Idle, waiting: waiting.into_iter().collect() }
    }

    pub(crate) fn stage(&self) -> &QueueStage {
        &self.stage
    }

    pub(crate) fn waiting(&self) -> impl Iterator<Item = &Mail> {
        self.waiting.iter()
    }

    pub(crate) fn apply(&mut self, input: QueueInput) -> QueueOutput {
        match (&self.stage, input) {
            (QueueStage::Closed, QueueInput::Begin | QueueInput::Message(_)) => {
                QueueOutput::Refused(Refusal::Closed)
            }
            (QueueStage::Closed, _) => QueueOutput::Nothing,
            (_, QueueInput::Close) => {
                *self = Self { stage: QueueStage::Closed, waiting: VecDeque::new() };
                QueueOutput::Nothing
            }
            (_, QueueInput::Drain) => self.take(),
            (_, QueueInput::Returned(mail)) => {
                if let QueueStage::Running(_) = self.stage {
                    self.stage = QueueStage::Busy;
                }
                mail.into_iter().rev().for_each(|mail| self.waiting.push_front(mail));
                QueueOutput::Nothing
            }
            (QueueStage::Idle, QueueInput::Begin) => {
                self.stage = QueueStage::Busy;
                self.take()
            }
            (_, QueueInput::Begin) => QueueOutput::Refused(Refusal::Busy),
            (QueueStage::Busy | QueueStage::Running(_), QueueInput::Started(run)) => {
                self.stage = QueueStage::Running(run);
                self.take()
            }
            (QueueStage::Running(run), QueueInput::Message(mail)) => QueueOutput::HandOver(run.clone(), mail),
            (_, QueueInput::Message(_)) if self.waiting.len() >= MAILBOX_CAPACITY => {
                QueueOutput::Refused(Refusal::Full)
            }
            (_, QueueInput::Message(mail)) => {
                self.waiting.push_back(mail);
                QueueOutput::Nothing
            }
            (QueueStage::Busy | QueueStage::Running(_), QueueInput::Ended(QueueEnd::Finished))
                if !self.waiting.is_empty() =>
            {
                self.stage = QueueStage::Busy;
                self.take()
            }
            (QueueStage::Busy | QueueStage::Running(_), QueueInput::Ended(_)) => {
                self.stage = QueueStage::Idle;
                QueueOutput::Nothing
            }
            (QueueStage::Idle, QueueInput::Started(_) | QueueInput::Ended(_)) => QueueOutput::Nothing,
        }
    }

    fn take(&mut self) -> QueueOutput {
        QueueOutput::Take(self.waiting.drain(..).collect())
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
        let stages = [QueueStage::Idle, QueueStage::Busy, QueueStage::Running(run()), QueueStage::Closed];
        let inputs = [
            QueueInput::Begin,
            QueueInput::Started(run()),
            QueueInput::Message(mail("b")),
            QueueInput::Returned(vec![mail("x"), mail("y")]),
            QueueInput::Ended(QueueEnd::Finished),
            QueueInput::Ended(QueueEnd::CutShort),
            QueueInput::Drain,
            QueueInput::Close,
        ];
        let words = |output: &QueueOutput| match output {
            QueueOutput::Nothing => "-".to_owned(),
            QueueOutput::Take(mail) => format!("take {}", texts(mail.iter())),
            QueueOutput::HandOver(_, mail) => format!("hand {}", mail.content),
            QueueOutput::Refused(refusal) => format!("{refusal:?}"),
        };
        fn texts<'a>(mail: impl Iterator<Item = &'a Mail>) -> String {
            mail.map(|mail| mail.content.as_str()).collect::<Vec<_>>().join("")
        }
        let stage_word = |stage: &QueueStage| match stage {
            QueueStage::Running(_) => "Running".to_owned(),
            other => format!("{other:?}"),
        };
        let seen: Vec<Vec<String>> = stages
            .iter()
            .map(|stage| {
                let after = |input: &QueueInput| {
                    let mut queue = Queue { stage: stage.clone(), waiting: VecDeque::new() };
                    if *stage != QueueStage::Closed {
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
        assert_eq!(queue.apply(QueueInput::Begin), QueueOutput::Take(vec![]));
        assert_eq!(queue.apply(QueueInput::Ended(QueueEnd::Finished)), QueueOutput::Nothing);
        assert_eq!(queue.stage(), &QueueStage::Idle);
    }

    #[test]
    fn the_queue_has_a_bound() {
        let mut queue = Queue::of((0..MAILBOX_CAPACITY).map(|_| mail("m")));
        assert_eq!(queue.apply(QueueInput::Message(mail("m"))), QueueOutput::Refused(Refusal::Full));
    }
}
