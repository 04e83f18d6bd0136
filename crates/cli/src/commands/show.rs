//! `inspan show [ID] [NODE]`: the state of a session, node by node, its questions, and what can be done next.

use std::path::PathBuf;

use inspan_engine::{Clock, SystemClock};
use inspan_flow::{
    FACTS, Facts, Graph, Liveness, NodeState, ParentKind, Select, SessionEntry, SessionRecord, TaskRef,
};
use inspan_protocol::{NodePath, NodeStatus, Timestamp};
use serde_json::{Map, Value, json};

use super::{
    inbox,
    sessions::{self, DisplayStatus, answer::Commands, list},
};
use crate::{
    args::ShowArgs,
    artifacts,
    console::{ConsoleState, Ending, Line, Row, Tone, clean, format, label, look},
    exit::Exit,
    failure::Failure,
    invocation::{Form, Invocation},
    store, terminal,
};

mod node;

/// A session with its log folded.
struct View {
    entry: SessionEntry,
    record: SessionRecord,
    console: ConsoleState,
    /// The folder for what its nodes leave, if there is one.
    artifacts: Option<PathBuf>,
    commands: Commands,
}

pub(super) fn run(args: &ShowArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    if let Some(node) = &args.node {
        return node::run(&args.session, node, invocation);
    }
    let view = sessions::block_on(async {
        let store = store::open_reader(invocation)?;
        let found = sessions::find(store.as_ref(), &args.session).await?;
        let record = store.record(&found.session).await?;
        let graph = sessions::graph(&record)?;
        // The entry is read after the log: what it says is at least as new.
        let log = store.read(&found.session, record.first_seq(), Select::Names(FACTS)).await?;
        let entry = store.entry(&found.session).await?;
        let mut console = ConsoleState::of(record.run(&graph));
        log.iter().for_each(|envelope| console.apply(envelope));
        let artifacts = artifacts::of(&store::path(invocation)?, &found.session);
        let artifacts = Some(artifacts).filter(|folder| folder.is_dir());
        Ok(View { entry, record, console, artifacts, commands: Commands::new(invocation) })
    })?;
    match invocation.form {
        _ if args.snapshot => invocation.json(&view.console.run().snapshot(&view.record.input)),
        Form::Json => invocation.json(&view.json()),
        Form::Text => {
            let text: Vec<String> =
                view.lines().iter().map(|line| line.render(invocation.terminal.stdout)).collect();
            terminal::painted_line(&text.join("\n"));
        }
    }
    Ok(Exit::Success)
}

impl View {
    fn graph(&self) -> &Graph {
        self.console.run().graph()
    }

    fn state(&self) -> &Facts {
        self.console.run().state()
    }

    /// Why the flow ends before all of it has run, until it has ended.
    fn ending(&self) -> Option<&Ending> {
        self.console.ending.as_ref().filter(|_| self.state().outcome().is_none())
    }

    /// Each node with where it stands as people see it.
    /// Those in frames stand below the node that runs them, while the frame is open.
    fn nodes(&self) -> impl Iterator<Item = (TaskRef, &NodeState, NodeStatus)> {
        let mut tasks: Vec<_> = self.state().tasks().collect();
        tasks.sort_by_cached_key(|(task, _)| self.console.run().order_of(&self.path(*task)));
        tasks.into_iter().map(|(task, node)| (task, node, self.shown(task, node)))
    }

    fn path(&self, task: TaskRef) -> NodePath {
        self.state().path(self.graph(), task)
    }

    /// What the console knows of one of the flow's own nodes.
    fn row(&self, task: TaskRef) -> Option<&Row> {
        let path = self.path(task);
        self.console.row(&path).filter(|_| !path.is_in_frame())
    }

    /// What a node is called: its id, in a frame its whole path; its pass is not part of it.
    fn label(&self, task: TaskRef) -> String {
        label(&self.path(task)).to_owned()
    }

    fn shown(&self, ix: TaskRef, node: &NodeState) -> NodeStatus {
        let asks = self.state().asked_by(self.graph(), ix).is_some();
        match node.status {
            NodeStatus::Running | NodeStatus::Pending if asks => NodeStatus::Waiting,
            NodeStatus::Running
                if matches!(
                    DisplayStatus::of(&self.entry),
                    DisplayStatus::Interrupted | DisplayStatus::Paused
                ) =>
            {
                NodeStatus::Paused
            }
            NodeStatus::Pending if node.is_in_doubt() => NodeStatus::Waiting,
            NodeStatus::Pending if node.is_interrupted() => NodeStatus::Paused,
            status => status,
        }
    }

    /// How long the session took, or has taken by now if somebody drives it.
    fn took(&self, now: Timestamp) -> Option<u64> {
        let digest = &self.entry.digest;
        if self.state().outcome().is_some() {
            return Some(self.state().duration_ms());
        }
        let end = match self.entry.liveness {
            Liveness::Gone => digest.updated_at?,
            _ => now,
        };
        u64::try_from(end.since(digest.started_at?).as_millis()).ok()
    }

    fn json(&self) -> Value {
        let mut value = list::json(&self.entry);
        value["file"] = json!(self.record.flow.file);
        value["input"] = json!(self.record.input);
        if let Some(folder) = &self.artifacts {
            value["artifacts"] = json!(folder);
        }
        if let Some(ms) = self.took(SystemClock.now()) {
            value["durationMs"] = json!(ms);
        }
        if let Some(parent) = &self.record.parent {
            value["parent"] = json!(parent);
        }
        if let Some(error) = self.state().failure() {
            value["error"] = json!(error);
        }
        if let Some(ending) = self.ending() {
            value["ending"] = json!(ending);
        }
        let nodes = self.nodes().map(|(ix, node, status)| {
            let mut report = json!({
                "status": status,
                "attempts": node.attempts,
                "pass": node.pass,
                "reused": node.status == NodeStatus::Reused,
            });
            let row = self.row(ix);
            if let Some(row) = row.filter(|row| row.interrupted > 0) {
                report["interrupted"] = json!(row.interrupted);
            }
            if let Some(frames) = self.state().progress_of(ix) {
                report["frames"] = json!(frames);
            }
            if node.failed_passes > 0 {
                report["failedPasses"] = json!(node.failed_passes);
            }
            if let Some(ms) = node.duration_ms {
                report["durationMs"] = json!(ms);
            }
            if let Some(error) = &node.error {
                report["error"] = json!(error);
            }
            if let Some(known) = row.map(|row| row.spent) {
                report["tokens"] = json!(known.tokens);
                if let Some(usd) = known.known_usd() {
                    report["costUsd"] = json!(usd);
                }
            }
            (self.label(ix), report)
        });
        value["nodes"] = Value::Object(nodes.collect::<Map<_, _>>());
        let prompts = list::open_questions(&self.entry).map(|prompt| {
            let mut item = json!(prompt);
            item["commands"] = json!(self.commands.answers(&self.entry.session, prompt));
            item
        });
        value["prompts"] = prompts.collect();
        value["next"] = self.commands.next(&self.entry).into_iter().map(|(command, _)| command).collect();
        value
    }

    fn lines(&self) -> Vec<Line> {
        let mut lines = self.head();
        lines.push(Line::new());
        let width = self.nodes().map(|(task, ..)| self.label(task).len()).max().unwrap_or(0);
        lines.extend(self.nodes().map(|(ix, node, status)| self.node(ix, node, status, width)));
        let mut questions = list::open_questions(&self.entry)
            .filter(|_| !DisplayStatus::of(&self.entry).has_ended())
            .peekable();
        if questions.peek().is_some() {
            lines.push(Line::new());
        }
        for prompt in questions {
            lines.extend(inbox::question(prompt));
            for command in self.commands.answers(&self.entry.session, prompt) {
                let mut line = Line::new();
                line.push(Tone::Plain, "    ").push(Tone::Accent, &command);
                lines.push(line);
            }
        }
        let next = self.commands.next(&self.entry);
        if !next.is_empty() {
            lines.push(Line::new());
        }
        lines.extend(next.iter().map(|(command, what)| {
            let mut line = Line::new();
            line.push(Tone::Accent, command).push(Tone::Faint, &format!("  {what}"));
            line
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
        if let Some(waits) = list::waits_for(entry).filter(|_| standing == DisplayStatus::Waiting) {
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
            fact("took", format::millis(ms));
        }
        if let Some(spent) = self.console.spent().text() {
            fact("spent", spent);
        }
        if let Some(Ending { outcome, error }) = self.ending() {
            let mut why = Line::new();
            look::ending(&mut why, *outcome, error.as_ref());
            fact("ending", why.text());
        }
        for (node, limit) in self.state().used_up_budgets(self.graph()) {
            let whose = node.map_or("the flow".to_owned(), |ix| format!("`{}`", self.label(ix)));
            fact("budget", format!("used up for {whose}: {limit}"));
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
        if entry.unanswered > 0 && !standing.has_ended() {
            fact("commands", format!("{} stored, not applied yet", entry.unanswered));
        }
        lines
    }

    fn node(&self, ix: TaskRef, node: &NodeState, status: NodeStatus, width: usize) -> Line {
        let label = self.label(ix);
        let (tone, sign) = look::sign(status);
        let mut line = Line::new();
        line.push(tone, sign).push(Tone::Plain, " ").push(Tone::Strong, &label).pad_to(width + 4);
        line.push(tone, word(status)).pad_to(width + 4 + 11);
        let mut parts = Vec::new();
        if node.pass > 1 {
            parts.push(format!("pass {}", node.pass));
        }
        match node.failed_passes {
            0 => {}
            1 => parts.push("1 earlier pass failed".to_owned()),
            failed => parts.push(format!("{failed} earlier passes failed")),
        }
        if let Some(progress) = self.state().progress_of(ix) {
            parts.push(format::frames(progress));
        }
        if node.attempts > 1 {
            parts.push(format!("{} attempts", node.attempts));
        }
        let row = self.row(ix);
        if let Some(row) = row.filter(|row| row.interrupted > 0) {
            parts.push(format!("{} interrupted", row.interrupted));
        }
        if let Some(ms) = node.duration_ms.filter(|_| status != NodeStatus::Skipped) {
            parts.push(format::millis(ms));
        }
        parts.extend(row.and_then(|row| row.spent.text()));
        line.push(Tone::Faint, &parts.join(" · "));
        if let Some(row) = row {
            if let Some(until) = self.console.listens_until(row).filter(|_| status == NodeStatus::Running) {
                let send = self.commands.command("send", &self.entry.session, "TEXT");
                line.push(Tone::Accent, &format!("  listening until {}; `{send}`", format::clock(until)));
            }
            match row.failed_passes.len() {
                0 => {}
                1 => drop(line.push(Tone::Warning, "  1 pass failed")),
                many => drop(line.push(Tone::Warning, &format!("  {many} passes failed"))),
            }
            if !row.denied.is_empty() {
                let denied = format!("  ⚠ denied: {}", row.denied.join("; "));
                line.push(Tone::Warning, &denied);
            }
        }
        if let Some(error) = &node.error {
            line.push(Tone::Plain, if parts.is_empty() { "" } else { "  " });
            look::error(&mut line, error);
            if let Some(due) = node.retry_at.filter(|_| status == NodeStatus::Pending) {
                line.push(Tone::Faint, &format!(", again at {}", format::moment(due)));
            }
        } else if let Some(reason) = row.and_then(|row| row.skipped).filter(|_| status == NodeStatus::Skipped)
        {
            line.push(Tone::Faint, look::skipped(reason));
        } else if let Some(due) = node.retry_at {
            line.push(Tone::Faint, &format!("  until {}", format::moment(due)));
        }
        line
    }
}

fn word(status: NodeStatus) -> &'static str {
    match status {
        NodeStatus::Running => "running",
        NodeStatus::Complete => "complete",
        NodeStatus::Failed => "failed",
        NodeStatus::Skipped => "skipped",
        NodeStatus::Reused => "reused",
        NodeStatus::Cancelled => "cancelled",
        NodeStatus::Paused => "paused",
        NodeStatus::Waiting => "waiting",
        _ => "pending",
    }
}
