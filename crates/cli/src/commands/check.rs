//! `inspan check FILE…`: every problem of flows, without running anything.

use inspan_flow::{Diagnostics, compile};
use serde_json::json;

use super::{flow, registries};
use crate::{
    args::CheckArgs,
    diagnostics,
    exit::Exit,
    failure::Failure,
    invocation::{Form, Invocation},
    terminal,
};

pub(super) fn run(args: &CheckArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let nodes = registries::nodes(&registries::providers());
    let mut exit = Exit::Success;
    let mut reports = Vec::new();
    for path in &args.files {
        let name = path.display().to_string();
        let loaded = match flow::read_with_settings(path, invocation) {
            Ok(loaded) => loaded,
            Err(failure) => {
                exit = failure.exit;
                terminal::progress(&failure.text(invocation.terminal.stderr));
                reports.push(json!({ "file": name, "valid": false, "error": failure.json()["error"] }));
                continue;
            }
        };
        let (problems, about) = match compile(&loaded, &nodes) {
            Ok(compiled) => {
                let graph = &compiled.graph;
                let about = format!(
                    "flow `{}`, {}, {}",
                    graph.name,
                    flow::of(graph.flow().nodes.len(), "node"),
                    flow::of(graph.flow().edges.len(), "edge")
                );
                (compiled.warnings, Ok(about))
            }
            Err(problems) => (problems, Err(())),
        };
        if about.is_err() {
            exit = Exit::Invalid;
        }
        reports.push(json!({ "file": name, "valid": about.is_ok(), "diagnostics": problems }));
        if invocation.form == Form::Text {
            terminal::painted(&diagnostics::render(&problems, &loaded, invocation.terminal.stdout));
            terminal::painted_line(&format!("{name}: {}", verdict(&problems, about.ok().as_deref())));
        }
    }
    if invocation.form == Form::Json {
        invocation.json(&json!({ "outcome": exit.word(), "files": reports }));
    }
    Ok(exit)
}

fn verdict(problems: &Diagnostics, about: Option<&str>) -> String {
    match (about, problems.is_empty()) {
        (Some(about), true) => format!("ok ({about})"),
        (Some(about), false) => format!("ok with {} ({about})", flow::count(problems)),
        (None, _) => flow::count(problems),
    }
}
