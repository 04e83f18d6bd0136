//! `inspan doctor --conformance`: runs the conformance suite on providers, against its own model server.

use inspan_conformance::{ConformanceTarget, ProviderReport, SuiteSettings, conform};
use serde_json::json;

use crate::args::DoctorArgs;
use crate::commands::session::runtime;
use crate::exit::Exit;
use crate::failure::{Failure, with_end};
use crate::invocation::Invocation;
use crate::invocation::OutputForm;
use crate::terminal;
use inspan_view::safe::harmless;

pub(super) fn run(names: &[String], args: &DoctorArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let (targets, skipped) = chosen(names, invocation)?;
    let runtime = runtime()?;
    let settings = SuiteSettings {
        env: invocation.session_env(),
        supervisor: inspan_process::guard(),
        filter: args.behavior.clone(),
    };
    if !settings.chooses_any() {
        return Err(Failure::usage(format!("no behavior has `{}` in its name", settings.filter)));
    }
    if invocation.form == OutputForm::Text {
        for (name, why) in &skipped {
            terminal::data_line(&harmless(&format!("{name}: not checked, {why}")));
        }
    }
    let mut reports = Vec::new();
    for target in targets {
        // One after the other: each keeps the machine busy already.
        let report = runtime.block_on(conform(target, &settings));
        if invocation.form == OutputForm::Text {
            text(&report);
        }
        reports.push(report);
    }
    let failing = reports.iter().find(|report| !report.holds());
    let failure = failing.map(|report| {
        Failure::new(Exit::Failed, format!("provider `{}` fails the conformance suite", report.provider))
    });
    if invocation.form == OutputForm::Json {
        let skipped: Vec<_> =
            skipped.iter().map(|(name, why)| json!({ "provider": name, "reason": why })).collect();
        let found = json!({ "reports": reports, "skipped": skipped });
        invocation.json(&with_end(found, failure.as_ref()));
    }
    Ok(failure.map_or(Exit::Success, |failure| failure.exit))
}

type Chosen = (Vec<ConformanceTarget>, Vec<(String, String)>);

/// The targets of these names, or of all that can be run here, and why others cannot.
fn chosen(names: &[String], invocation: &Invocation) -> Result<Chosen, Failure> {
    let (mut targets, mut skipped) = (Vec::new(), Vec::new());
    if names.is_empty() {
        for target in inspan_conformance_targets::all() {
            match target.missing(&invocation.env) {
                None => targets.push(target),
                Some(why) => skipped.push((target.name(), why)),
            }
        }
    }
    for name in names {
        let found = inspan_conformance_targets::find(name);
        if found.is_empty() {
            let known: Vec<String> =
                inspan_conformance_targets::all().iter().map(|target| target.name()).collect();
            return Err(Failure::unknown("provider", name, known.iter().map(String::as_str)));
        }
        for target in found {
            if let Some(why) = target.missing(&invocation.env) {
                return Err(Failure::new(Exit::Configuration, format!("{}: {why}", target.name())));
            }
            targets.push(target);
        }
    }
    Ok((targets, skipped))
}

fn text(report: &ProviderReport) {
    for line in report.to_string().lines() {
        terminal::data_line(&harmless(line));
    }
}
