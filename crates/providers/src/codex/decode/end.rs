//! A turn from its name to its end, and what it used.

use inspan_protocol::{StreamEvent, TurnId, Usage};

use super::super::wire;
use super::{
    Called, CodexDecoded, CodexDecoder, CodexPhase, CodexTurnEnd, Ended, Status, THREAD_LIMIT, read,
};
use crate::output::{TurnOutput, context_use};

impl CodexDecoder {
    pub(super) fn turn_started(
        &mut self,
        params: &str,
        out: &mut Vec<CodexDecoded>,
    ) -> Result<(), serde_json::Error> {
        let place: wire::NotificationPlace<'_> = read(params)?;
        let turn_id = read::<wire::TurnLine<'_>>(params)?.turn.id.into_owned();
        if !self.is_our_thread(&place) {
            self.at_work.insert(place.thread_id.unwrap_or_default().into_owned(), Some(turn_id));
            out.extend(self.turn.ended.as_ref().map(|_| CodexDecoded::BackgroundLeft));
        } else if self.turn.phase == CodexPhase::Begun && self.turn.id.is_none() {
            self.turn.id = Some(turn_id.clone());
            out.push(CodexDecoded::TurnStarted { turn_id });
        }
        Ok(())
    }

    pub(super) fn turn_completed(
        &mut self,
        params: &str,
        out: &mut Vec<CodexDecoded>,
    ) -> Result<(), serde_json::Error> {
        let place: wire::NotificationPlace<'_> = read(params)?;
        let line: wire::TurnLine<'_> = read(params)?;
        if !self.is_our_thread(&place) {
            self.at_work.remove(&*place.thread_id.unwrap_or_default());
            self.settle(out);
            return Ok(());
        }
        let turn = line.turn;
        let ours = self.turn.id.as_deref().is_none_or(|id| *id == *turn.id);
        if self.turn.phase != CodexPhase::Begun || !ours {
            return Ok(());
        }
        let status = match &*turn.status {
            "completed" => Status::Completed,
            "interrupted" => Status::Interrupted,
            _ => Status::Failed,
        };
        for item in turn.items {
            let item: wire::Item<'_> = read(item.get())?;
            if let (true, Some(text)) = (item.kind == "agentMessage", item.text) {
                self.turn.answer = text.into_owned();
            }
        }
        if status != Status::Interrupted {
            self.leave_commands(out);
            self.not_started(out);
        }
        self.close_tools(out);
        if status == Status::Failed {
            self.retract(out);
        }
        let duration_ms = turn.duration_ms.unwrap_or_default();
        self.turn.ended = Some(Ended { status, error: turn.error, duration_ms });
        if !self.at_work.is_empty() || !self.commands.is_empty() {
            out.push(CodexDecoded::BackgroundLeft);
        }
        self.settle(out);
        Ok(())
    }

    /// Ends a turn that the program has ended, once no sub-agent works.
    fn settle(&mut self, out: &mut Vec<CodexDecoded>) {
        if self.at_work.is_empty()
            && let Some(ended) = self.turn.ended.take()
        {
            self.close_tools(out);
            out.push(CodexDecoded::TurnEnd(Box::new(self.end(ended))));
        }
    }

    pub(super) fn end(&mut self, ended: Ended) -> CodexTurnEnd {
        let Ended { status, error, duration_ms } = ended;
        let turn = std::mem::take(&mut self.turn);
        CodexTurnEnd {
            status,
            error,
            unanswered: turn.answer.is_empty() && turn.open_message.is_some(),
            output: TurnOutput {
                text: turn.answer,
                session_id: self.session.clone(),
                turn_id: turn.id.map(TurnId::from),
                model: self.model.clone(),
                num_turns: turn.requests,
                duration_ms: duration_ms.max(0.0) as u64,
                usage: turn.usage,
                ..TurnOutput::default()
            },
            full_text: turn.text.into_text(),
            answer: turn.form,
            resets_at: self.resets_at,
        }
    }

    pub(super) fn token_usage(
        &mut self,
        params: &str,
        out: &mut Vec<CodexDecoded>,
    ) -> Result<(), serde_json::Error> {
        let place: wire::NotificationPlace<'_> = read(params)?;
        let line: wire::UsageLine = read(params)?;
        // The program repeats the same counters after a resumption and around a summary of the context.
        let thread = place.thread_id.as_deref().unwrap_or_default();
        let total = line.token_usage.total;
        let known = self.totals.len() < THREAD_LIMIT || self.totals.contains_key(thread);
        let before = if known { self.totals.insert(thread.to_owned(), total) } else { None };
        if before == Some(total) {
            return Ok(());
        }
        if self.turn.phase != CodexPhase::Begun {
            return Ok(());
        }
        let counted = line.token_usage;
        let is_ours = self.is_our_thread(&place);
        if is_ours {
            // After a resumption the program repeats that of the turn before.
            if self.turn.id.is_none() || !self.is_our_turn(&place) {
                return Ok(());
            }
            self.turn.requests += 1;
            self.turn.called = Called { now: 0, by_last: self.turn.called.now };
        }
        // Of an answer that was cut at the limit of tokens the program tells the totals alone.
        let last = match counted.last {
            wire::Tokens { input_tokens: 0, output_tokens: 0, .. } if known => {
                total.since(before.unwrap_or_default())
            }
            last => last,
        };
        self.turn.usage += Usage::from(last);
        out.push(CodexDecoded::Event(StreamEvent::Usage { usage: self.turn.usage, cost_usd: None }));
        if is_ours {
            let context = context_use(counted.last.total_tokens, counted.model_context_window);
            out.extend(context.map(CodexDecoded::Event));
        }
        Ok(())
    }
}

impl From<wire::Tokens> for Usage {
    fn from(tokens: wire::Tokens) -> Self {
        let cached = tokens.cached_input_tokens.saturating_add(tokens.cache_write_input_tokens);
        Self {
            input_tokens: tokens.input_tokens.saturating_sub(cached),
            output_tokens: tokens.output_tokens,
            cache_read_tokens: tokens.cached_input_tokens,
            cache_creation_tokens: tokens.cache_write_input_tokens,
            reasoning_tokens: tokens.reasoning_output_tokens,
        }
    }
}
