//! What is asked of a session, each request once.

use std::collections::BTreeMap;

use inspan_protocol::{SessionStatus, Timestamp};
use inspan_store::StoreError;

use super::Live;
use crate::log::{
    CommandOutcome, LogError, LogPosition, PostedRequest, ResumeRequest, Segment, SessionRequest, SharedLog,
};

/// The requests with a key, as far as they were read.
#[derive(Default)]
pub(super) struct KeyedRequests {
    /// The first one of each key, with its number.
    first: BTreeMap<String, (u64, SessionRequest)>,
    /// The newest that was read.
    read: u64,
}

impl KeyedRequests {
    /// Reads the requests before this number.
    async fn read_before(&mut self, log: &SharedLog, live: &Live, number: u64) -> Result<(), LogError> {
        for earlier in self.read + 1..number {
            if let Some(PostedRequest { key: Some(key), request, .. }) =
                log.request(&live.record.session, earlier).await?
            {
                self.first.entry(key).or_insert((earlier, request));
            }
            self.read = earlier;
        }
        Ok(())
    }
}

impl Live {
    /// Answers the requests that are new.
    pub(in super::super) async fn take_requests(
        &mut self,
        log: &SharedLog,
        step: &mut Segment,
        now: Timestamp,
    ) -> Result<(), LogError> {
        let mut number = self.answered;
        // The first decision begins the session; only then can anything be asked of it.
        if self.position == LogPosition::default() {
            return Ok(());
        }
        loop {
            number += 1;
            let Some(posted) = log.request(&self.record.session, number).await? else { return Ok(()) };
            let answer = match self.answer_before(log, number, &posted, step).await? {
                Some(answer) => answer,
                None => match posted.request {
                    SessionRequest::Command(command) => self.command(command, posted.at, step, now),
                    SessionRequest::Resume(resume) => match self.check_resume(log, &resume).await? {
                        Ok(()) => {
                            self.resume(&resume, step, now);
                            CommandOutcome::Accepted
                        }
                        Err(why) => CommandOutcome::Refused(why),
                    },
                },
            };
            step.header.answers.push((number, answer));
        }
    }

    /// The answer to an earlier request with the same key, if there is one: a caller may repeat a request to another
    /// server before the first one has stored it.
    async fn answer_before(
        &mut self,
        log: &SharedLog,
        number: u64,
        posted: &PostedRequest,
        step: &Segment,
    ) -> Result<Option<CommandOutcome>, LogError> {
        let Some(key) = &posted.key else { return Ok(None) };
        let mut keyed = std::mem::take(&mut self.keyed);
        let read = keyed.read_before(log, self, number).await;
        self.keyed = keyed;
        read?;
        let Some((first, request)) = self.keyed.first.get(key) else { return Ok(None) };
        if *request != posted.request {
            let reused = StoreError::KeyReused { session: self.record.session.clone(), key: key.clone() };
            return Ok(Some(CommandOutcome::Refused(reused.to_string())));
        }
        let stored = self.read.iter().flat_map(|segment| &segment.header.answers);
        let mut answers = stored.chain(&step.header.answers);
        Ok(answers.find(|(number, _)| number == first).map(|(_, answer)| answer.clone()))
    }

    /// Why the session is not resumed.
    async fn check_resume(
        &self,
        log: &SharedLog,
        resume: &ResumeRequest,
    ) -> Result<Result<(), String>, LogError> {
        let run = self.pilot.run();
        if run.state().status() != SessionStatus::Paused {
            if !resume.is_lost {
                return Ok(Err("the session is not paused".to_owned()));
            }
            // What runs since then is not lost.
            if resume.seen.is_some_and(|seen| seen < self.resumed) {
                return Ok(Err("the session was resumed in the meantime".to_owned()));
            }
        } else if let Some(by) = log.claimed(&self.record.session).await? {
            // Another one continues it, or is about to: its work must not be done twice.
            return Ok(Err(format!(
                "the session is continued by session `{by}`; if there is none, `inspan resume {} --edited` starts it",
                self.record.session
            )));
        }
        let messages = run.check_messages(resume.message.as_deref(), &resume.messages);
        if let Err(error) = messages {
            return Ok(Err(error.to_string()));
        }
        Ok(run.check_raise(&resume.budget).map_err(|error| error.to_string()))
    }

    fn resume(&mut self, resume: &ResumeRequest, step: &mut Segment, now: Timestamp) {
        let ResumeRequest { message, messages, budget, .. } = resume;
        self.waits.clear();
        let todo = self.pilot.resume(message.as_deref(), messages, budget, Some(self.last_at));
        self.execute(todo, step, now);
    }
}
