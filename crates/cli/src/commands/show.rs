//! `inspan show [ID] [NODE]`: the state of a session, node by node, its questions, and what can be done next.

use std::{
    path::PathBuf,
    sync::{Arc, LazyLock},
};

use inspan_engine::{Clock, SystemClock};
use inspan_flow::{FACTS, Facts, Graph, Liveness, ParentKind, Select, SessionEntry, SessionRecord};
use inspan_protocol::{Envelope, NodeStatus, Timestamp};
use inspan_sessions::Question;
use serde_json::{Map, Value, json};

use super::inbox;
use crate::args::ShowArgs;
use crate::artifacts;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::invocation::OutputForm;
use crate::store;
use inspan_view::{
    Commands, DisplayStatus, EarlyEnd, FrameRow, Line, NodeRow, PageNode, SessionView, Tone, WARNING_EVENTS,
    entry, format, inside, look, safe::clean,
};

mod frame;
mod node;
mod tree;

/// The facts, and what tells of warnings.
static SHOWN: LazyLock<Vec<&str>> = LazyLock::new(|| [FACTS, &WARNING_EVENTS].concat());

/// A session with its log folded.
pub(super) struct View {
    pub(super) entry: SessionEntry,
    record: SessionRecord,
    pub(super) console: SessionView,
    /// The folder for what its nodes leave, if there is one.
    artifacts: Option<PathBuf>,
    commands: Commands,
}

pub(super) fn run(args: &ShowArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    if let Some(node) = &args.node {
        return match node.ends_with(']') {
            true => frame::run(&args.session, node, invocation),
            false => node::run(&args.session, node, invocation),
        };
    }
    let view = View::read(&args.session, invocation)?.0;
    match invocation.form {
        _ if args.snapshot => invocation.json(&view.console.run().snapshot(&view.record.input)),
        OutputForm::Json => invocation.json(&view.json()),
        OutputForm::Text => drop(invocation.print(view.lines())),
    }
    Ok(Exit::Success)
}

impl View {
    /// A session, and the facts of its log.
    pub(super) fn read(
        session: &str,
        invocation: &Invocation,
    ) -> Result<(Self, Vec<Arc<Envelope>>), Failure> {
        store::read(invocation, async |store| {
            let found = store::find(store.as_ref(), session).await?;
            let record = store.record(&found.session).await?;
            let graph = store::graph_of(&record)?;
            let mut log = store.read(&found.session, record.first_seq(), Select::Names(&SHOWN)).await?;
            let entry = store.entry(&found.session).await?;
            // What came meanwhile: a session whose entry says that it has ended has no node that runs.
            let next = log.last().map_or(record.first_seq(), |last| last.seq + 1);
            log.extend(store.read(&found.session, next, Select::Names(&SHOWN)).await?);
            let mut console = SessionView::of(record.run(&graph)).with_all_frames();
            log.iter().for_each(|envelope| console.apply(envelope));
            if entry.has_cut_turns() {
                console.lose_process();
            }
            let path = store::path(invocation).ok();
            let artifacts = path.map(|path| artifacts::of(&path, &found.session));
            let artifacts = artifacts.filter(|folder| folder.is_dir());
            Ok((Self { entry, record, console, artifacts, commands: invocation.commands() }, log))
        })
    }

    fn graph(&self) -> &Graph {
        self.console.run().graph()
    }

    fn state(&self) -> &Facts {
        self.console.run().state()
    }

    /// Why the flow ends before all of it has run, until it has ended.
    fn ending(&self) -> Option<&EarlyEnd> {
        self.console.ending.as_ref().filter(|_| self.state().outcome().is_none())
    }

    /// How long the session took, or has taken by now if a process runs it.
    pub(super) fn took(&self, now: Timestamp) -> Option<u64> {
        let digest = &self.entry.digest;
        if self.state().outcome().is_some() {
            return Some(self.state().duration_ms());
        }
        match self.entry.liveness {
            Liveness::Gone => digest.took_ms(),
            _ => u64::try_from(now.since(digest.started_at?).as_millis()).ok(),
        }
    }

    fn json(&self) -> Value {
        let mut value = entry::json(&self.entry);
        value["file"] = json!(self.record.flow.file);
        value["input"] = json!(self.record.input);
        value["artifacts"] = json!(self.artifacts);
        value["durationMs"] = json!(self.took(SystemClock.now()));
        value["parent"] = json!(self.record.parent);
        value["error"] = json!(self.state().failure());
        value["ending"] = json!(self.ending());
        let mut nodes = Map::new();
        self.add_nodes(&self.console.rows, "", &mut nodes);
        value["nodes"] = Value::Object(nodes);
        value["prompts"] = self.questions().iter().map(|question| question.json(&self.commands)).collect();
        value["next"] = self.commands.next(&self.entry).into_iter().map(|(command, _)| command).collect();
        entry::without_nulls(value)
    }

    fn questions(&self) -> Vec<Question> {
        inspan_sessions::questions(std::slice::from_ref(&self.entry), SystemClock.now())
    }

    /// The nodes as JSON by their paths: those of the flow, of frames that are open and of frames that failed.
    fn add_nodes(&self, rows: &[NodeRow], prefix: &str, nodes: &mut Map<String, Value>) {
        for row in rows {
            let path = format!("{prefix}{}", row.label);
            let node = PageNode::of(row, path.clone(), DisplayStatus::of(&self.entry));
            // Only facts were read, which do not say what an agent does now or what a program writes.
            let node = PageNode { agent: None, output: String::new(), ..node };
            nodes.insert(path.clone(), json!(node));
            let shown = |frame: &FrameRow| matches!(frame.status, NodeStatus::Running | NodeStatus::Failed);
            for (key, frame) in row.frames.iter().filter(|(_, frame)| shown(frame)) {
                self.add_nodes(&frame.rows, &inside(&path, *key, frame), nodes);
            }
        }
    }

    fn lines(&self) -> Vec<Line> {
        let mut lines = self.head();
        lines.push(Line::new());
        lines.extend(self.tree(&self.console.rows, ""));
        let questions = self.questions();
        if !questions.is_empty() {
            lines.push(Line::new());
        }
        lines.extend(questions.iter().flat_map(|question| inbox::question(question, &self.commands)));
        let next = self.commands.next(&self.entry);
        if !next.is_empty() {
            lines.push(Line::new());
        }
        lines.extend(next.iter().map(|(command, what)| {
            Line::new().with(Tone::Accent, command).with(Tone::Faint, &format!("  {what}"))
        }));
        lines
    }

    fn head(&self) -> Vec<Line> {
        let (entry, standing) = (&self.entry, DisplayStatus::of(&self.entry));
        let now = SystemClock.now();
        let mut title = Line::new();
        title
            .push(Tone::Strong, &clean(&entry.flow))
            .push(Tone::Faint, &format!("  {}  ", clean(entry.session.as_str())));
        title.push(standing.tone(), standing.word());
        if entry.is_replay {
            title.push(Tone::Plain, " (replay)");
        }
        if let Some(waits) = entry::waits_for(entry).filter(|_| standing == DisplayStatus::Waiting) {
            title.push(Tone::Plain, &format!(" for {waits}")).push(Tone::Plain, "");
        }
        let mut lines = vec![title];
        let mut fact = |name: &str, text: String| {
            let mut line = Line::new();
            line.push(Tone::Faint, &format!("  {name}")).pad_to(12).push(Tone::Plain, &text);
            lines.push(line);
        };
        fact("file", clean(&self.record.flow.file));
        let began = entry.digest.started_at.unwrap_or(entry.created_at);
        fact("started", format!("{}, {} ago", format::moment(began), format::age(now.since(began))));
        if let Some(ms) = self.took(now) {
            let since = entry.digest.updated_at.filter(|_| !standing.has_ended());
            let since = since.filter(|_| entry.liveness == Liveness::Gone);
            let idle = since.map(|since| format!(", idle since {}", format::moment(since)));
            let rested = format::idle_part(self.state().idle_time());
            fact("took", format!("{}{rested}{}", format::millis(ms), idle.unwrap_or_default()));
        }
        if let Some(recording) = self.record.settings.get("replay").and_then(Value::as_str) {
            fact("replay", format!("of the recording in {}", clean(recording)));
        }
        if let Some(spent) = self.console.spent().text() {
            let of_replay = if entry.is_replay { "nothing; what was recorded cost " } else { "" };
            fact("spent", format!("{of_replay}{spent}"));
        }
        if let Some(EarlyEnd { outcome, error }) = self.ending() {
            let mut why = Line::new();
            look::ending(&mut why, *outcome, error.as_ref());
            fact("ending", why.text());
        }
        let error = self.state().failure().filter(|error| !self.console.is_of_node(error));
        if let Some(error) = error.filter(|_| self.ending().is_none()) {
            let mut why = Line::new();
            look::error(&mut why, error);
            fact("error", why.text());
        }
        for (owner, limit) in self.state().used_up_budgets(self.graph()) {
            fact("budget", format!("that of {owner} is used up: {limit}"));
        }
        if let Some(left) = self.artifacts.as_deref().and_then(artifacts::contents) {
            fact("artifacts", left);
        }
        if let Some(parent) = &self.record.parent {
            let from = clean(parent.session.as_str());
            match parent.kind {
                ParentKind::Fork => fact("forked", format!("from {from} at event {}", parent.seq)),
                ParentKind::Resume => fact("continues", from),
            }
        }
        if let Some(by) = &self.entry.continued_by {
            fact("continued", format!("by {}", clean(by.as_str())));
        }
        match (&entry.owner, entry.liveness) {
            (Some(owner), Liveness::Alive) => fact("run by", clean(&owner.to_string())),
            (Some(owner), Liveness::Elsewhere) => {
                fact("run by", format!("{} (on another machine)", clean(&owner.to_string())));
            }
            (Some(owner), Liveness::Gone) if !standing.has_ended() => {
                fact("run by", format!("no process: {} is gone", clean(&owner.to_string())));
            }
            _ if !standing.has_ended() => fact("run by", "no process".to_owned()),
            _ => {}
        }
        if let Some(worker) = entry::worker(entry) {
            fact("waits for", worker);
        }
        if entry.unanswered > 0 && !standing.has_ended() {
            fact("commands", format!("{} stored, not applied yet", entry.unanswered));
        }
        lines
    }
}
