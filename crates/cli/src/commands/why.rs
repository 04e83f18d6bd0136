//! `inspan why ID [NODE]`: why a session or a node has its current state, with the events behind each statement.

use inspan_flow::{Explanation, Statement};

use crate::args::WhyArgs;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::invocation::OutputForm;
use crate::store;
use crate::terminal;
use inspan_view::{DisplayStatus, Line, Tone, entry, format, safe::clean};

pub(super) fn run(args: &WhyArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let (entry, explanation) = store::read(invocation, async |store| {
        let sessions = store::sessions(store);
        let entry = store::find(&**sessions.store(), &args.session).await?;
        let explanation = sessions.why(&entry.session, args.node.as_deref(), None).await?;
        Ok((entry, explanation))
    })?;
    match invocation.form {
        OutputForm::Json => invocation.json(&explanation),
        OutputForm::Text => {
            invocation.print(lines(&explanation));
            if let Some(worker) = entry::worker(&entry) {
                terminal::progress(&format!("the session waits for {worker}\n"));
            }
            if DisplayStatus::of(&entry) == DisplayStatus::Interrupted {
                let next = invocation.commands().command("resume", &entry.session, "");
                terminal::progress(&format!(
                    "the process that ran the session is gone; continue with `{next}`\n"
                ));
            }
        }
    }
    Ok(Exit::Success)
}

fn lines(explanation: &Explanation) -> Vec<Line> {
    let mut lines = vec![
        Line::new()
            .with(Tone::Strong, &clean(&explanation.standing.text))
            .with(Tone::Faint, &format!("  [{}]", explanation.standing.seq)),
    ];
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
    // A statement about the node itself names only the pass.
    let pass = said.task.as_ref().filter(|task| explanation.node.is_some() && task.pass() > 1);
    if let Some(task) = pass {
        line.push(Tone::Faint, &format!("{task}: "));
    }
    line.push(Tone::Plain, &clean(&said.text));
    line
}
