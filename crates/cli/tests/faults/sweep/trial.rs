//! One session that is killed, as often as a plan says, and resumed until it ends.

use inspan_testkit::{Finished, pause};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use inspan_engine::{Clock as _, SystemClock};
use inspan_protocol::Envelope;
use serde_json::Value;

use super::super::Size;
use super::super::place::{Dice, FaultSandbox};
use super::flow;

/// The session's id in every trial.
pub(in super::super) const SESSION: &str = "fifty";
/// What a person says at the gate.
const ANSWER: &str = "go";
/// So many calls bring any session to its end.
const CALLS: usize = 60;
/// A session that is killed at random moments is left alone after so many kills.
const KILLS: usize = 8;

/// When the session is killed.
#[derive(Clone, Copy, Debug)]
pub(super) enum KillPlan {
    /// Never.
    Never,
    /// By itself at this point of the store's work, counted over all processes, and again so many points later.
    At(usize, Option<usize>),
    /// From outside, at moments that this seed chooses.
    AnyTime(u64),
}

/// Its result.
pub(super) struct Trial {
    pub(super) place: FaultSandbox,
    pub(super) plan: KillPlan,
    pub(super) kills: usize,
    /// The names of the points at which it killed itself.
    pub(super) killed_at: Vec<String>,
    /// How many points were reached in all.
    pub(super) points: usize,
    /// The logs as they were after each kill.
    pub(super) logs: Vec<Vec<Envelope>>,
    /// From the start of a process that resumes to its first event.
    pub(super) resumes: Vec<Duration>,
    /// The questions that were answered by a call that said so.
    pub(super) answered: Vec<(String, String)>,
    /// The messages that were sent by a call that said so.
    pub(super) sent: Vec<String>,
    /// Single nodes that a person said had been done.
    pub(super) waived: Vec<String>,
    /// What the last call printed.
    pub(super) result: Value,
}

/// What is called next.
enum NextCall {
    Start,
    Resume,
    /// One reply after the other, none of which continues the session.
    Reply,
}

impl Trial {
    /// Drives a session to its end.
    pub(super) fn run(size: Size, plan: KillPlan) -> anyhow::Result<Self> {
        let place = size.place("sweep-")?;
        place.write("flow.yaml", &flow::text())?;
        let mut trial = Self {
            place,
            plan,
            kills: 0,
            killed_at: Vec::new(),
            points: 0,
            logs: Vec::new(),
            resumes: Vec::new(),
            answered: Vec::new(),
            sent: Vec::new(),
            waived: Vec::new(),
            result: Value::Null,
        };
        trial.go().with_context(|| format!("killed {plan:?}"))?;
        Ok(trial)
    }

    fn go(&mut self) -> anyhow::Result<()> {
        let mut dice = Dice::new(match self.plan {
            KillPlan::AnyTime(seed) => seed,
            KillPlan::Never | KillPlan::At(..) => 1,
        });
        let mut next = NextCall::Start;
        for _ in 0..CALLS {
            let ended = match next {
                NextCall::Start => self.call(
                    &["run", "flow.yaml", "--session-id", SESSION, "--no-input", "--no-wait", "--json"],
                    &mut dice,
                )?,
                NextCall::Resume => {
                    self.call(&["resume", SESSION, "--no-input", "--no-wait", "--json"], &mut dice)?
                }
                NextCall::Reply => self.reply(&mut dice)?,
            };
            self.points = self.reached().len();
            let replied = matches!(next, NextCall::Reply);
            next = match ended.code {
                137 => {
                    self.after_kill()?;
                    match self.place.look(SESSION)? {
                        None => NextCall::Start,
                        // In half of the cases a question is answered while no process runs the session.
                        Some(look) if !look.entry.digest.prompts.is_empty() && self.kills % 2 == 1 => {
                            NextCall::Reply
                        }
                        Some(_) => NextCall::Resume,
                    }
                }
                0 | 2 if replied => NextCall::Resume,
                0 => {
                    self.result = ended.json()?;
                    return Ok(());
                }
                3 => NextCall::Reply,
                code => bail!("it ended with {code}:\n{}\n{}", ended.stdout, ended.stderr),
            };
        }
        bail!("it did not end within {CALLS} calls")
    }

    /// Calls the program; the plan may kill it.
    fn call(&mut self, arguments: &[&str], dice: &mut Dice) -> anyhow::Result<Finished> {
        let before =
            self.place.look(SESSION)?.and_then(|look| look.log.last().map(|last| last.seq)).unwrap_or(0);
        let mut command = self.place.command(arguments);
        self.arm(&mut command);
        let began = SystemClock.now();
        let mut running = self.place.start(command)?;
        if matches!(self.plan, KillPlan::AnyTime(_)) && self.kills < KILLS {
            pause(Duration::from_millis(dice.below(350)));
            if dice.below(2) == 0 && !running.has_ended()? {
                let text = format!("note {}", self.sent.len() + 1);
                let sent = self.place.run(&["send", SESSION, &text, "--json"])?;
                // Without a listener it is refused, and if the process has just ended it is stored for later.
                let is_sent =
                    |done: &serde_json::Value| done.as_str().is_some_and(|done| done.starts_with("sent"));
                if sent.code == 0 && is_sent(&sent.json()?["done"]) {
                    self.sent.push(text);
                }
            }
            pause(Duration::from_millis(dice.below(150)));
            running.kill()?;
        }
        let ended = running.finish()?;
        if arguments.first() == Some(&"resume") {
            let look = self.place.look(SESSION)?;
            let first = look.iter().flat_map(|look| &look.log).find(|envelope| envelope.seq > before);
            self.resumes.extend(first.map(|first| first.timestamp.since(began)));
        }
        Ok(ended)
    }

    fn arm(&self, command: &mut Command) {
        command.env("INSPAN_CRASH_LOG", self.place.path("points"));
        if let KillPlan::At(first, again) = self.plan {
            let points = [Some(first), again.map(|again| first + 1 + again)];
            let reached = self.reached().len();
            if let Some(left) = points.into_iter().flatten().find_map(|point| point.checked_sub(reached)) {
                command.env("INSPAN_CRASH_AT", left.to_string());
            }
        }
    }

    fn reached(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.place.path("points")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn after_kill(&mut self) -> anyhow::Result<()> {
        self.kills += 1;
        if let (KillPlan::At(..), Some(last)) = (self.plan, self.reached().last()) {
            self.killed_at.push(last.clone());
        }
        // What the dead process had started may still be writing, for as long as it may run.
        self.place.none_left()?;
        if self.place.store().exists() && self.place.look(SESSION)?.is_some() {
            self.place.sound()?;
        }
        self.logs.push(self.place.look(SESSION)?.map(|look| look.log).unwrap_or_default());
        Ok(())
    }

    /// Answers what is asked, without resuming the session.
    fn reply(&mut self, dice: &mut Dice) -> anyhow::Result<Finished> {
        let look = self.place.look(SESSION)?.context("the session is gone")?;
        let open = look.entry.digest.prompts;
        ensure!(!open.is_empty(), "it waits, and asks nothing");
        let mut last = None;
        for prompt in open {
            let node = prompt.task.as_ref().map(|task| task.node().to_owned()).unwrap_or_default();
            let is_done = self.place.effects().contains(&format!("once {node}"));
            let choice = match (node.as_str(), is_done) {
                ("gate", _) => ANSWER,
                (_, true) => "it is done",
                (_, false) => "run it again",
            };
            // Also if the reply is interrupted: it may have been stored by then.
            if is_done && node != "gate" {
                self.waived.push(node);
            }
            let id = prompt.prompt_id.as_str();
            let ended = self.call(&["reply", SESSION, id, "--choice", choice, "--no-resume"], dice)?;
            match ended.code {
                0 => self.answered.push((id.to_owned(), choice.to_owned())),
                137 => return Ok(ended),
                // A reply that was interrupted was stored.
                2 if ended.stderr.contains("is already answered") => {}
                code => bail!("a reply ended with {code}: {}", ended.stderr),
            }
            last = Some(ended);
        }
        last.context("it asks nothing")
    }
}
