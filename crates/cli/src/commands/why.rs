//! `inspan why ID [NODE]`: why a session or a node has its current state, with the events behind each statement.

use inspan_flow::{About, Explanation, FACTS, Graph, Select, Statement, explain};
use inspan_protocol::NodePath;

use super::{nodes, sessions};
use crate::args::WhyArgs;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::invocation::OutputForm;
use crate::store;
use crate::terminal;
use inspan_view::{Commands, DisplayStatus, Line, Tone, format, safe::clean};

pub(super) fn run(args: &WhyArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let (entry, explanation) = sessions::block_on(async {
        let store = store::open_reader(invocation)?;
        let entry = sessions::find(store.as_ref(), &args.session).await?;
        let record = store.record(&entry.session).await?;
        let graph = sessions::graph(&record)?;
        let about = match &args.node {
            Some(node) => About::Node(find(&graph, node)?),
            None => About::Session,
        };
        let log = store.read(&entry.session, record.first_seq(), Select::Names(FACTS)).await?;
        Ok((entry, explain(&graph, &record, &log, about)))
    })?;
    match invocation.form {
        OutputForm::Json => invocation.json(&explanation),
        OutputForm::Text => {
            let mut text = String::new();
            for line in lines(&explanation) {
                text.push_str(&line.render(invocation.terminal.stdout));
                text.push('\n');
            }
            terminal::painted(&text);
            if DisplayStatus::of(&entry) == DisplayStatus::Interrupted {
                let next = Commands::new(invocation.store.as_deref()).command("resume", &entry.session, "");
                terminal::progress(&format!(
                    "the process that ran the session is gone; continue with `{next}`\n"
                ));
            }
        }
    }
    Ok(Exit::Success)
}

/// The path of a node as it was typed, if all nodes that it names are in the flow. The pass at its end may be left out.
pub(super) fn find(graph: &Graph, node: &str) -> Result<NodePath, Failure> {
    let path = NodePath::new(node);
    let mut body = Some(graph.flow());
    for part in path.parts() {
        let Some(around) = body else { break };
        let Some(ix) = around.find(part.node) else {
            let known: Vec<&str> = around.nodes.iter().map(|node| node.id.as_str()).collect();
            return Err(Failure::usage(format!("the flow `{}` has no node `{node}`", graph.name))
                .with_hint(nodes::meant(part.node, &known)));
        };
        body = around.node(ix).frames.as_ref().map(|frames| graph.body(frames.body));
    }
    Ok(path)
}

fn lines(explanation: &Explanation) -> Vec<Line> {
    let mut head = Line::new();
    head.push(Tone::Strong, &clean(&explanation.standing.text));
    head.push(Tone::Faint, &format!("  [{}]", explanation.standing.seq));
    let mut lines = vec![head];
    let because = &explanation.because;
    let width = because.last().map_or(1, |said| said.seq.to_string().len());
    lines.extend(because.iter().map(|said| line(said, width, explanation)));
    lines
}

fn line(said: &Statement, width: usize, explanation: &Explanation) -> Line {
    let mut line = Line::new();
    line.push(Tone::Faint, &format!("  {:>width$}", said.seq));
    let clock = said.at.map_or_else(|| " ".repeat(8), format::clock);
    line.push(Tone::Faint, &format!("  {clock}  "));
    // What is about the node itself need not name it, but for the pass.
    let pass = said.task.as_ref().filter(|task| explanation.node.is_some() && task.pass() > 1);
    if let Some(task) = pass {
        line.push(Tone::Faint, &format!("{task}: "));
    }
    line.push(Tone::Plain, &clean(&said.text));
    line
}
