//! `inspan export ID`: a session in a form that other programs show.

use std::{collections::BTreeMap, path::Path, pin::pin, time::Duration};

use inspan_engine::write_private;
use inspan_flow::{Parent, ParentKind};
use inspan_otel::{Content, ExportSettings, Exporter, Patience, Trace, TraceSettings, Vendor};
use inspan_protocol::{Environment, Setup};
use inspan_server::{SESSION_FILE, session_file};
use serde_json::json;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{all_providers, secrets};
use crate::{
    args::ExportArgs,
    commands::{begins_with, check_replaces},
    exit::Exit,
    failure::Failure,
    invocation::{Invocation, OutputForm},
    launcher, store, terminal,
};

/// How many events are read at once.
pub(super) const PAGE: usize = 4096;

/// After so long a person is told what is waited for.
const QUIET: Duration = Duration::from_secs(2);

pub(super) fn run(args: &ExportArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    if let Some(file) = &args.html {
        return html(&args.session, file, invocation);
    }
    let Some(url) = &args.otlp else {
        return Err(Failure::usage("`inspan export` needs to know where to: `--otlp URL` or `--html FILE`"));
    };
    let settings = ExportSettings::to("--otlp", url, &invocation.env)
        .map_err(|error| Failure::usage(error.to_string()))?;
    store::read(invocation, async |store| {
        let id = store::find(&*store, &args.session).await?.session;
        let record = store.record(&id).await?;
        let mut trace = Trace::new(id.clone(), trace_settings(record.parent.as_ref(), &invocation.env));
        let exporter = Exporter::new(settings, Patience::EXPORT);
        let cancel = CancellationToken::new();
        let (mut spans, mut rejected) = (0, 0);
        let mut from = record.first_seq();
        loop {
            let events = store.read_next(&id, from, PAGE).await?;
            let Some(last) = events.last() else { break };
            from = last.seq + 1;
            let ended: Vec<_> = events.iter().flat_map(|envelope| trace.apply(envelope)).collect();
            let mut sending = pin!(exporter.send(&ended, &cancel));
            let sent = match timeout(QUIET, &mut sending).await {
                Ok(sent) => sent,
                Err(_) => {
                    let waiting = format!("still waiting for the collector at {}\n", exporter.url());
                    terminal::progress(&waiting);
                    sending.await
                }
            };
            let sent = sent.map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
            spans += sent.accepted;
            rejected += sent.rejected;
            if let Some(message) = sent.message {
                terminal::progress(&format!("warning: {}: {message}\n", exporter.url()));
            }
        }
        let open = trace.open_spans();
        match invocation.form {
            OutputForm::Json => invocation.json(&json!({
                "sessionId": id, "traceId": trace.id().to_string(), "url": exporter.url(),
                "spans": spans, "rejected": rejected, "open": open,
            })),
            OutputForm::Text => {
                let (to, trace) = (exporter.url(), trace.id());
                terminal::progress(&format!("{id}: {spans} spans sent to {to}, trace {trace}\n"));
                if open > 0 {
                    terminal::progress(&format!(
                        "the session has not ended: {open} spans of it are open and were not sent\n"
                    ));
                }
            }
        }
        if rejected > 0 {
            let message = format!("the collector rejected {rejected} of {} spans", spans + rejected);
            return Err(Failure::new(Exit::Failed, message));
        }
        Ok(Exit::Success)
    })
}

/// Writes the page of a session as one file.
fn html(session: &str, file: &Path, invocation: &Invocation) -> Result<Exit, Failure> {
    if file != "-" {
        check_replaces(file, "a session page", |file| begins_with(file, SESSION_FILE))?;
    }
    let (id, text) = store::block_on(async {
        // The file is passed on: it names the store as it was named here.
        let sessions = launcher::reader(invocation)?.with_commands(invocation.commands());
        let id = store::find(&**sessions.store(), session).await?.session;
        // A secret that is not set here would not be found in what the page shows.
        let record = sessions.store().record(&id).await?;
        let graph = store::graph_of(&record)?;
        secrets::check(&graph, invocation)?;
        let text = session_file(&sessions, &id, env!("CARGO_PKG_VERSION"), &invocation.env).await;
        Ok((id, text.map_err(|error| Failure::new(Exit::Failed, error.to_string()))?))
    })?;
    if file == "-" {
        terminal::data(&text);
        return Ok(Exit::Success);
    }
    write_private(file, text.as_bytes()).map_err(|error| {
        Failure::new(Exit::Failed, format!("failed to write {}: {error}", file.display()))
    })?;
    match invocation.form {
        OutputForm::Json => {
            invocation.json(&json!({ "sessionId": id, "file": file, "bytes": text.len() }));
        }
        OutputForm::Text => {
            terminal::progress(&format!("{id}: written to {}, {} bytes\n", file.display(), text.len()));
        }
    }
    Ok(Exit::Success)
}

/// What the trace of a session shows; `parent` is the session that it was made of.
pub(super) fn trace_settings(parent: Option<&Parent>, environment: &Environment) -> TraceSettings {
    let parent = parent.map(|parent| {
        let how = match parent.kind {
            ParentKind::Fork => "fork",
            ParentKind::Resume => "resume",
        };
        (parent.session.clone(), how)
    });
    TraceSettings { content: Content::of(environment), parent, vendors: vendors() }
}

/// What the conventions call the vendors of the providers. Those whose vendor depends on their configuration are called
/// by their own names.
fn vendors() -> BTreeMap<String, Vendor> {
    let providers = all_providers();
    let named = providers.iter().filter_map(|(provider, it)| {
        let setup = it.setup();
        let vendor = Vendor { name: setup.vendor()?, is_api: matches!(setup, Setup::Service { .. }) };
        Some((provider.to_owned(), vendor))
    });
    named.collect()
}
