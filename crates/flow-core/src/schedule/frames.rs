//! Frames: how many a node runs, when each begins, what it gives, and how the node ends.

use std::sync::Arc;

use inspan_protocol::{
    AgentError, BoundedValidator, ErrorCode, ErrorKind, Event, NodeId, NodePath, NodeStatus, Outcome,
    Timestamp,
};
use serde_json::{Map, Value, json};

use super::{Action, AttemptEnd, CancelCause, Run, foreach::kind_of};
use crate::{
    compile::subflow_input,
    expr::{Passes, Scope},
    graph::{Body, FrameIx, Frames, FramesKind, OnExhausted, TaskRef},
    pilot::misfit,
    state::{FrameEnd, FrameSet, FramesStep},
};

/// How deep a flow may call itself if it does not say.
const DEFAULT_DEPTH: u32 = 16;

/// What comes after the frames that have ended.
pub(super) enum AfterFrames {
    /// This frame, with this input.
    Frame(u32, Option<Arc<Value>>),
    /// The end of the node.
    End(Result<Value, AgentError>),
    /// Something else has to happen first.
    Wait,
}

impl Run {
    /// Closes frames in which nothing can happen any more, and decides what comes after closed ones.
    pub(super) fn step_frames(&mut self, now: Timestamp, actions: &mut Vec<Action>) {
        if let Some(frame) = self.agenda.idle_frame() {
            return self.conclude_frame(frame, now, actions);
        }
        let task = self.agenda.steps(FramesStep::Decide).next();
        if let Some(task) = task {
            self.decide_frames(task, now, actions);
        }
    }

    /// Begins another frame of a foreach, if its work would find a place.
    pub(super) fn open_next_frame(&mut self, now: Timestamp, actions: &mut Vec<Action>) {
        if self.facts.slots() >= self.max_concurrency {
            return;
        }
        let task = self.agenda.steps(FramesStep::Open).next();
        let Some(task) = task else { return };
        let Some(set) = self.facts.node(task).frames.as_deref() else { return };
        if self.is_overdue(task, now) {
            // What cleans up in the others may take longer.
            if set.open.is_empty() {
                let error = self.timed_out(task);
                self.end_frames_node(task, Err(error), now, actions);
            }
            return;
        }
        self.begin_frame(task, set.next, None, actions);
    }

    fn is_overdue(&self, task: TaskRef, now: Timestamp) -> bool {
        self.facts.node(task).time_is_up_at().is_some_and(|deadline| deadline <= now)
    }

    /// Ends the open frames of a node whose own time is up, and frames whose time is up.
    pub(super) fn end_overdue_frames(&self, now: Timestamp, actions: &mut Vec<Action>) {
        for task in self.agenda.due(now) {
            let node = self.facts.node(task);
            if let Some(set) = node.frames.as_deref().filter(|_| node.status == NodeStatus::Running) {
                let error = self.timed_out(task);
                set.open.values().for_each(|frame| actions.extend(self.end_frame(*frame, error.clone())));
            }
        }
        for frame in self.agenda.due_frames(now) {
            let limit = self.facts.body(&self.graph, frame).policy.timeout.unwrap_or_default();
            let message = format!(
                "{} did not end within its timeout of {limit:?}",
                self.facts.frame_name(&self.graph, frame)
            );
            actions.extend(self.end_frame(frame, AgentError::new(ErrorCode::Timeout, message)));
        }
    }

    /// Requests the end of a frame, unless that was requested before.
    pub(super) fn end_frame(&self, frame: FrameIx, error: AgentError) -> Option<Action> {
        let state = self.facts.frames.get(frame).filter(|frame| frame.ending.is_none())?;
        let (task_id, path) = self.owner(frame)?;
        Some(Action::Emit {
            task: Some(path),
            event: Event::FrameEnding { task_id, index: state.index, error },
        })
    }

    /// The node that runs a frame, and its path.
    fn owner(&self, frame: FrameIx) -> Option<(NodeId, NodePath)> {
        let owner = self.facts.frames.get(frame)?.owner?;
        Some((self.facts.spec(&self.graph, owner).id.clone(), self.facts.path(&self.graph, owner)))
    }

    /// Cancels what runs in frames that are to end, and runs what cleans up in those where nothing else runs any more.
    pub(super) fn wind_down_frames(&mut self, actions: &mut Vec<Action>) {
        for frame in self.facts.ending_frames.clone() {
            let ends = |task: &TaskRef| {
                let node = self.facts.node(*task);
                node.status == NodeStatus::Running && node.frames.is_none() && self.facts.must_end(*task)
            };
            let within = self.facts.tasks_within(frame);
            let running: Vec<TaskRef> = within.into_iter().filter(ends).collect();
            if running.is_empty() {
                self.clean_up(frame, false, actions);
            }
            running.into_iter().for_each(|task| self.cancel(task, CancelCause::Ending, actions));
        }
    }

    fn conclude_frame(&self, frame: FrameIx, now: Timestamp, actions: &mut Vec<Action>) {
        let state = &self.facts.frames[frame];
        let Some((task_id, path)) = self.owner(frame) else { return };
        let index = state.index;
        if self.facts.is_ending(frame) {
            self.clean_up(frame, true, actions);
            if !actions.is_empty() {
                return;
            }
        }
        let around = state.owner.is_some_and(|owner| self.facts.must_end(owner));
        let ending = state.ending.as_ref().map(|ending| (ending.outcome, ending.error.clone()));
        let end = match ending {
            _ if around => None,
            // A snapshot does not keep the reason.
            Some((Outcome::Stopped, error))
                if error.as_ref().is_none_or(|error| error.code == ErrorCode::Aborted) =>
            {
                None
            }
            Some((Outcome::Success, _)) => Some(self.frame_outputs(frame)),
            Some((_, Some(error))) => Some(Err(self.named_failure(frame, &error))),
            _ => Some(self.frame_end(frame)),
        };
        let event = match end {
            None => Event::FrameCancelled { task_id, index },
            Some(Ok((outputs, ends_loop))) => {
                let duration_ms = now.since(state.started_at).as_millis() as u64;
                Event::FrameComplete { task_id, index, outputs: Arc::new(outputs), duration_ms, ends_loop }
            }
            Some(Err(error)) => Event::FrameFailed { task_id, index, error },
        };
        actions.push(Action::Emit { task: Some(path), event });
    }

    /// How a frame ends in which nothing can happen any more.
    fn frame_end(&self, frame: FrameIx) -> Result<(Value, bool), AgentError> {
        let state = &self.facts.frames[frame];
        if let Some(error) = self.never_ready(frame) {
            return Err(error);
        }
        match &state.failure {
            Some(error) => Err(self.named_failure(frame, error)),
            None => self.frame_outputs(frame),
        }
    }

    /// The failure of a frame, with the node in it that failed so.
    fn named_failure(&self, frame: FrameIx, error: &AgentError) -> AgentError {
        let state = &self.facts.frames[frame];
        let failed = state.tasks().find(|(_, node)| node.error.as_deref() == Some(error));
        let mut error = error.clone();
        let spec = failed.map(|(task, _)| self.facts.spec(&self.graph, task));
        // One that runs frames itself has named its own.
        if let Some(spec) = spec.filter(|spec| spec.frames.is_none()) {
            let name = format!("`{}`", spec.id);
            if !error.message.contains(&name) {
                error.message = format!("{name}: {}", error.message);
            }
        }
        error
    }

    /// The failure of a frame with nodes that never became ready: it would be wrong to call this a success.
    pub(super) fn never_ready(&self, frame: FrameIx) -> Option<AgentError> {
        let state = &self.facts.frames[frame];
        let body = self.facts.body(&self.graph, frame);
        let open: Vec<_> =
            state.nodes.iter().zip(&body.nodes).filter(|(node, _)| !node.has_ended()).collect();
        if open.is_empty() {
            return None;
        }
        let names: Vec<_> = open.iter().take(5).map(|(_, node)| format!("`{}`", node.id)).collect();
        let message = format!("nothing can run, and {} never became ready", names.join(", "));
        Some(AgentError::new(ErrorCode::NodeFailed, message))
    }

    /// What a frame gives, and whether the loop that it is a pass of ends with it.
    fn frame_outputs(&self, frame: FrameIx) -> Result<(Value, bool), AgentError> {
        let outputs = self.outputs_of(frame)?;
        let body = self.facts.body(&self.graph, frame);
        let schema = body.subflow.as_ref().and_then(|flow| flow.output_schema.as_ref());
        if let Some(schema) = schema.filter(|_| !self.is_partial(frame)) {
            check_value(schema, &outputs).map_err(|why| {
                let message = format!(
                    "the outputs of {} do not fit the schema: {why}",
                    self.facts.frame_name(&self.graph, frame)
                );
                AgentError::new(ErrorCode::OutputInvalid, message)
            })?;
        }
        let owner = self.facts.frames[frame].owner.map(|owner| self.facts.spec(&self.graph, owner));
        let until = match owner.and_then(|owner| owner.frames.as_deref()).map(|frames| &frames.kind) {
            Some(FramesKind::Loop { .. }) if self.is_partial(frame) => true,
            Some(FramesKind::Loop { until: Some(until), .. }) => {
                self.scoped(frame, &self.facts.frames[frame].locals, |scope| until.holds(scope))?
            }
            _ => false,
        };
        Ok((outputs, until))
    }

    /// What a frame, or the flow, gives: what a `control.end` says, what `outputs` says, or every output by its id.
    pub(crate) fn outputs_of(&self, frame: FrameIx) -> Result<Value, AgentError> {
        let state = &self.facts.frames[frame];
        if let Some(outputs) = &state.outputs_at_end {
            return Ok((**outputs).clone());
        }
        let body = self.facts.body(&self.graph, frame);
        if let Some(outputs) = body.outputs.as_ref().filter(|_| !self.is_partial(frame)) {
            let rendered = self.scoped(frame, &state.locals, |scope| outputs.resolve(scope));
            return rendered.map_err(AgentError::from);
        }
        let all = body.nodes.iter().zip(state.outputs.iter());
        let all = all.filter_map(|(node, output)| Some((node.id.to_string(), (**output.as_ref()?).clone())));
        Ok(Value::Object(all.collect()))
    }

    /// Decides what comes next for a node that runs frames.
    fn decide_frames(&mut self, task: TaskRef, now: Timestamp, actions: &mut Vec<Action>) {
        let graph = self.graph.clone();
        let Some(frames) = self.facts.spec(&graph, task).frames.as_deref() else { return };
        let node = self.facts.node(task);
        let Some(set) = node.frames.as_deref() else { return };
        if self.facts.must_end(task) {
            let (reason, cause) = self.facts.why_cancelled(task.frame);
            let task_id = self.facts.spec(&self.graph, task).id.clone();
            let (reason, never_began) = (Some(reason), false);
            let event = Event::TaskCancelled {
                task_id,
                session_id: None,
                reason,
                cause,
                never_began,
                permission_denials: Vec::new(),
            };
            return actions.push(Action::Emit { task: Some(self.facts.path(&self.graph, task)), event });
        }
        if set.open.is_empty() && self.is_overdue(task, now) {
            let error = self.timed_out(task);
            return self.end_frames_node(task, Err(error), now, actions);
        }
        let next = match &frames.kind {
            FramesKind::Foreach { .. } if set.items.is_none() => match self.plan_items(task, frames) {
                Ok(event) => {
                    let path = self.facts.path(&self.graph, task);
                    return actions.push(Action::Emit { task: Some(path), event });
                }
                Err(error) => AfterFrames::End(Err(error)),
            },
            FramesKind::Foreach { on_item_error, .. } => self.after_items(task, set, *on_item_error, actions),
            FramesKind::Loop { .. } => self.after_pass(task, frames, set),
            FramesKind::Subflow { .. } | FramesKind::Pack => self.after_subflow(task, frames, set),
        };
        match next {
            AfterFrames::Frame(index, input) => self.begin_frame(task, index, input, actions),
            AfterFrames::End(end) => self.end_frames_node(task, end, now, actions),
            AfterFrames::Wait => {}
        }
    }

    fn begin_frame(&self, task: TaskRef, index: u32, input: Option<Arc<Value>>, actions: &mut Vec<Action>) {
        let task_id = self.facts.spec(&self.graph, task).id.clone();
        let carried = self.spent_before(task, index).map(Box::new);
        let event = Event::FrameStart { task_id, index, input, carried };
        actions.push(Action::Emit { task: Some(self.facts.path(&self.graph, task)), event });
    }

    fn end_frames_node(
        &mut self,
        task: TaskRef,
        end: Result<Value, AgentError>,
        now: Timestamp,
        actions: &mut Vec<Action>,
    ) {
        let attempt = self.facts.node(task).attempt;
        if let Some((path, event)) = self.conclude(task, attempt, AttemptEnd::from(end), now) {
            actions.push(Action::Emit { task: Some(path), event });
        }
    }

    /// The input of a node that runs frames.
    pub(super) fn frames_input(&self, task: TaskRef) -> Result<Value, AgentError> {
        let input = &self.facts.spec(&self.graph, task).input;
        Ok(self.scoped(task.frame, &self.locals(task), |scope| input.resolve(scope))?)
    }

    /// Evaluates in the scope that a frame of this task would have, before it has one.
    pub(super) fn scoped_within<R>(
        &self,
        task: TaskRef,
        frames: &Frames,
        set: &FrameSet,
        index: u32,
        evaluate: impl FnOnce(&Scope<'_>) -> R,
    ) -> R {
        let locals = set.locals(frames, index, &self.locals(task));
        self.scoped(task.frame, &self.locals(task), |outer| {
            let make = || set.passes_before(index);
            let own = Passes::new(&make);
            let passes = matches!(frames.kind, FramesKind::Loop { .. }).then_some(&own);
            evaluate(&Scope { outputs: &[], locals: &locals, passes, outer: Some(outer), ..*outer })
        })
    }

    fn after_pass(&self, task: TaskRef, frames: &Frames, set: &FrameSet) -> AfterFrames {
        let FramesKind::Loop { while_holds, max_iterations, on_exhausted, .. } = &frames.kind else {
            return AfterFrames::Wait;
        };
        let passes =
            set.ended.iter().take_while(|end| matches!(end, Some(FrameEnd::Complete(_)))).count() as u32;
        match set.end(passes) {
            Some(FrameEnd::Failed(error, _)) => {
                return AfterFrames::End(Err(self.of_frame(task, passes, error)));
            }
            Some(FrameEnd::Again(_)) => return AfterFrames::Frame(passes, None),
            _ => {}
        }
        let finished = || {
            let outputs = set.values().next_back().cloned().unwrap_or_else(|| Value::Object(Map::new()));
            AfterFrames::End(Ok(json!({ "passes": passes, "outputs": outputs })))
        };
        if set.done {
            return finished();
        }
        if let Some(condition) = while_holds {
            match self.scoped_within(task, frames, set, passes, |scope| condition.holds(scope)) {
                Ok(true) => {}
                Ok(false) => return finished(),
                Err(error) => return AfterFrames::End(Err(error.into())),
            }
        }
        if passes < *max_iterations {
            return AfterFrames::Frame(passes, None);
        }
        match on_exhausted {
            OnExhausted::Continue => finished(),
            OnExhausted::Fail => {
                let path = self.facts.path(&self.graph, task);
                let message = format!(
                    "loop `{path}` would begin another pass, and its `maxIterations` of {max_iterations} is used up"
                );
                let error = AgentError::new(ErrorCode::LoopExhausted, message);
                AfterFrames::End(Err(error.with_kind(ErrorKind::PassesUsedUp)))
            }
        }
    }

    fn after_subflow(&self, task: TaskRef, frames: &Frames, set: &FrameSet) -> AfterFrames {
        match set.end(0) {
            Some(FrameEnd::Complete(outputs)) if matches!(frames.kind, FramesKind::Pack) => {
                return AfterFrames::End(Ok((**outputs).clone()));
            }
            Some(FrameEnd::Complete(outputs)) => return AfterFrames::End(Ok(json!({ "outputs": outputs }))),
            Some(FrameEnd::Failed(error, _)) => {
                let mut error = (**error).clone();
                error.message = format!("`{}`: {}", self.facts.path(&self.graph, task), error.message);
                return AfterFrames::End(Err(error));
            }
            _ => {}
        }
        match self.subflow_input(task, frames) {
            Ok(input) => AfterFrames::Frame(0, Some(Arc::new(input))),
            Err(error) => AfterFrames::End(Err(error)),
        }
    }

    fn subflow_input(&self, task: TaskRef, frames: &Frames) -> Result<Value, AgentError> {
        let path = self.facts.path(&self.graph, task);
        let depth = self.facts.around(task.frame).filter(|frame| frame.body == frames.body).count() as u32;
        let most = match frames.kind {
            FramesKind::Subflow { max_depth: Some(most) } => most,
            _ => DEFAULT_DEPTH,
        };
        if depth >= most {
            let message =
                format!("`{path}`: the flow calls itself {depth} levels deep, and `maxDepth` is {most}");
            let error = AgentError::new(ErrorCode::LoopExhausted, message);
            return Err(error.with_kind(ErrorKind::SubflowTooDeep));
        }
        let mut given = self.frames_input(task)?;
        let given = match frames.kind {
            FramesKind::Pack => Some(given),
            _ => given.get_mut("input").map(Value::take),
        };
        let body: &Body = self.graph.body(frames.body);
        let Some(subflow) = &body.subflow else { return Ok(given.unwrap_or_default()) };
        let given = match given {
            Some(Value::Object(given)) => given,
            None | Some(Value::Null) => Map::new(),
            Some(other) => {
                let message = format!("`{path}`: `input` must be an object, found {}", kind_of(&other));
                return Err(AgentError::new(ErrorCode::ConfigInvalid, message));
            }
        };
        let wrong = |why: String| {
            let message = format!("`{path}`: the input of flow `{}` does not fit {why}", subflow.name);
            AgentError::new(ErrorCode::ConfigInvalid, message)
        };
        let input = subflow_input(subflow, given).map_err(|why| wrong(format!("its defaults: {why}")))?;
        if let Some(schema) = &subflow.input_schema {
            check_value(schema, &input).map_err(|why| wrong(format!("the schema: {why}")))?;
        }
        Ok(input)
    }

    /// The failure of a frame as that of its node.
    pub(super) fn of_frame(&self, task: TaskRef, index: u32, error: &AgentError) -> AgentError {
        // What was denied is told where it happened.
        let mut error = error.clone().with_denials(&[]);
        let frame = self.facts.frame_name_of(&self.graph, task, index);
        error.message = format!("{frame}: {}", error.message);
        error
    }
}

/// Whether a value fits a schema, and else how it does not.
pub(super) fn check_value(schema: &Value, value: &Value) -> Result<(), String> {
    let Ok(validator) = BoundedValidator::new(schema) else { return Ok(()) };
    misfit(&validator, value).map_or(Ok(()), Err)
}
