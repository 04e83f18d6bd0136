//! `inspan graph FILE|ID`: a flow, or a session of it, as a picture.

use std::path::Path;

use inspan_engine::{Clock, SystemClock};

use super::{all_nodes, flow, show::View};
use crate::{
    args::{GraphArgs, GraphFormat},
    exit::Exit,
    failure::Failure,
    invocation::{Invocation, OutputForm},
    terminal,
};
use inspan_view::{DisplayStatus, Drawing, SessionResults, Spending, dot, mermaid, shown, svg, text};

pub(super) fn run(args: &GraphArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let drawing =
        if is_session(&args.of) { of_session(&args.of, invocation)? } else { of_flow(&args.of, invocation)? };
    if invocation.form == OutputForm::Json {
        if args.format.is_some() {
            return Err(Failure::two_formats());
        }
        invocation.json(&drawing);
        return Ok(Exit::Success);
    }
    let default = if terminal::stdout_is_terminal() { GraphFormat::Text } else { GraphFormat::Mermaid };
    match args.format.unwrap_or(default) {
        GraphFormat::Text => invocation.print(text(&drawing)),
        GraphFormat::Mermaid => terminal::data(&mermaid(&drawing)),
        GraphFormat::Dot => terminal::data(&dot(&drawing)),
        GraphFormat::Svg => terminal::data(&svg(&drawing)),
    };
    Ok(Exit::Success)
}

/// A file wins over a session, and what looks like a file is one, so that a misspelt path is reported as a path.
fn is_session(of: &Path) -> bool {
    let text = of.to_string_lossy();
    let is_file = text.contains(['/', '\\']) || text.ends_with(".yaml") || text.ends_with(".yml");
    text.starts_with('@') || !(of.exists() || is_file)
}

fn of_flow(file: &Path, invocation: &Invocation) -> Result<Drawing, Failure> {
    let nodes = all_nodes();
    let loaded = flow::read_with_settings(file, invocation)?;
    let compiled = flow::ready(&loaded, &nodes, None, invocation)?;
    Ok(Drawing::from(&compiled.graph))
}

fn of_session(session: &Path, invocation: &Invocation) -> Result<Drawing, Failure> {
    let (view, _) = View::read(&session.to_string_lossy(), invocation)?;
    let mut drawing = Drawing::from(&**view.console.run().graph());
    let results = SessionResults {
        session_id: view.entry.session.to_string(),
        status: DisplayStatus::of(&view.entry).word().to_owned(),
        duration_ms: view.took(SystemClock.now()),
        spent: Spending::of(view.console.spent()),
    };
    drawing.add_session(results, &view.console, &|row| shown(row, DisplayStatus::of(&view.entry)));
    Ok(drawing)
}
