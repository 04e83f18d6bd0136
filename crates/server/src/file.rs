//! A session as one file: the page with the answers that a server would give, for a pull request or a report. It needs no
//! server and no network, and the token is not in it.

use std::collections::{BTreeMap, BTreeSet};

use base64::{Engine, engine::general_purpose::STANDARD};
use inspan_flow::{About, FACTS, Select, explain};
use inspan_protocol::{Environment, NodePath, NodeStatus, SessionId};
use inspan_sessions::{SessionError, Sessions};
use inspan_view::{FramePage, FrameSelect, PageFold, PageSession};
use serde_json::{Map, Value, json};
use tokio::sync::OnceCell;

use crate::{api::service, asset, watch::Watch};

/// The moments of the past that the file can show; of longer sessions every so many events.
const MOMENTS: u64 = 400;
/// The newest items of each node.
const ITEMS: usize = 1_000;
/// Frames of each node, and rows of the timeline. Streams and reasons are there for as many nodes.
const ROWS: usize = 1_000;
/// What the frames of a node can be chosen by.
const STATUSES: [(&str, NodeStatus); 4] = [
    ("failed", NodeStatus::Failed),
    ("running", NodeStatus::Running),
    ("waiting", NodeStatus::Waiting),
    ("complete", NodeStatus::Complete),
];
/// How many facts may be read in all for the reasons of nodes.
const FACTS_READ: usize = 5_000_000;
/// Events that are read at once.
const PAGE: usize = 4_096;
/// The modules begin with this instead of a path: a file has no other files beside it.
const PREFIX: &str = "inspan";

/// What a document of this kind may do: run what is in it, and load nothing.
const POLICY: &str =
    "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data:";

/// How the page of a session as a file begins.
pub const SESSION_FILE: &str = "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
    <meta http-equiv=\"Content-Security-Policy\" content=\"";

/// The page of a session as an HTML document. Such a file is passed on, so what is in the log as it was given, such as an
/// input, is redacted here.
///
/// # Errors
/// The session cannot be read.
pub async fn session_file(
    sessions: &Sessions,
    id: &SessionId,
    version: &str,
    environment: &Environment,
) -> Result<String, SessionError> {
    let watch = Watch::open(sessions, id, &OnceCell::new(), Some(environment)).await?;
    let data = watch.flow.redactor(environment).value(data(&watch, sessions, id, version).await?);
    // Text of agents cannot end the element that it is in.
    let data = data.to_string().replace('<', "\\u003c");
    let style: String = stylesheets().collect();
    let title = escaped(id.as_str());
    Ok(format!(
        "{SESSION_FILE}{POLICY}\">\n<meta name=\"viewport\" content=\"width=device-width, \
         initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n\
         <style>\n{style}</style>\n<script type=\"importmap\">{modules}</script>\n</head>\n<body>\n<div id=\"app\"></div>\n<noscript>This file \
         needs JavaScript to show the session.</noscript>\n\
         <script type=\"application/json\" id=\"data\">{data}</script>\n<script type=\"module\">import \
         '{PREFIX}/js/main.js';</script>\n</body>\n</html>\n",
        modules = json!({ "imports": modules() }),
    ))
}

/// Everything that the page requests from a server.
async fn data(
    watch: &Watch,
    sessions: &Sessions,
    id: &SessionId,
    version: &str,
) -> Result<Value, SessionError> {
    let (start, patches) = watch.patches(watch.seq().div_ceil(MOMENTS).max(1)).await?;
    let nodes = watch.state(None, &BTreeSet::new()).await?.nodes;
    let timeline = watch.timeline(None, "", ROWS).await?;
    let rows = timeline.rows.iter().map(|row| row.path.as_str());
    let paths: BTreeSet<&str> = nodes.keys().map(String::as_str).chain(rows).take(ROWS).collect();
    let streams = watch.streams(paths.iter().copied(), ITEMS).await?;
    let mut frames = Map::new();
    for path in paths.iter().copied() {
        let node = NodePath::new(path);
        if let Some(pages) = watch.read(None, |fold, session| frame_pages(fold, session, &node, ROWS)).await?
        {
            frames.insert(path.to_owned(), json!(pages));
        }
    }
    let why = why(watch, sessions, id, paths.into_iter().filter(|path| nodes.contains_key(*path))).await?;
    let mut events = Vec::new();
    let mut from = 1;
    loop {
        let page = sessions.events(id, from, PAGE).await?;
        let Some(newest) = page.last() else { break };
        from = newest.seq + 1;
        events.extend(page.iter().map(|envelope| json!(envelope)));
    }
    let meta = json!({ "version": version, "statuses": service::node_statuses(), "sessionStatuses": service::session_statuses() });
    let all = json!({
        "session": id,
        "meta": meta,
        "start": start,
        "patches": patches,
        "graph": watch.drawing(None).await?,
        "timeline": timeline,
        "cost": watch.cost(None).await?,
        "events": events,
        "streams": streams,
        "frames": frames,
        "why": why,
    });
    Ok(all)
}

/// The first frames of a node as `all`. Of more than `most` also the first of each status, by its name: a frame that failed
/// may be far down.
fn frame_pages(
    fold: &PageFold,
    session: &PageSession,
    node: &NodePath,
    most: usize,
) -> Option<BTreeMap<&'static str, FramePage>> {
    let page = |status| fold.frames(session, node, FrameSelect { status, from: 0, limit: most });
    let all = page(None)?;
    let wanted: &[_] = if all.total <= most { &[] } else { &STATUSES };
    let some = wanted.iter().filter_map(|(name, status)| Some((*name, page(Some(*status))?)));
    Some(some.chain([("all", all)]).collect())
}

/// Why the session and some of its nodes are where they are. Each reason is found in the whole log, so of a long one there
/// are fewer.
async fn why<'a>(
    watch: &Watch,
    sessions: &Sessions,
    id: &SessionId,
    nodes: impl Iterator<Item = &'a str>,
) -> Result<Map<String, Value>, SessionError> {
    let (record, graph) = (watch.record(), watch.graph());
    let log = sessions.store().read(id, record.first_seq(), Select::Names(FACTS)).await?;
    let is_lost = sessions.entry(id).await?.is_lost();
    let reason = |about| json!(explain(graph, &record, &log, about, is_lost));
    let nodes = nodes.take(FACTS_READ / log.len().max(1));
    let reasons = nodes.map(|node| (node.to_owned(), reason(About::Node(NodePath::new(node)))));
    Ok(std::iter::once((String::new(), reason(About::Session))).chain(reasons).collect())
}

/// The modules of the page, each as an address that holds it.
fn modules() -> Map<String, Value> {
    let files = crate::page::names().filter(|name| name.ends_with(".js"));
    let module = |name: String| {
        let text = String::from_utf8(asset(&name)?.bytes.into_owned()).ok()?;
        let address = format!("data:text/javascript;base64,{}", STANDARD.encode(linked(&name, &text)));
        Some((format!("{PREFIX}/{name}"), address.into()))
    };
    files.filter_map(module).collect()
}

fn stylesheets() -> impl Iterator<Item = String> {
    let names = crate::page::names().filter(|name| name.ends_with(".css"));
    names.filter_map(|name| String::from_utf8(asset(&name)?.bytes.into_owned()).ok())
}

/// A module whose imports name other modules as the import map does.
fn linked(name: &str, text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    // Modules name each other by relative paths, unlike words of a sentence.
    while let Some((at, quote)) = next_import(rest, ".") {
        let (head, tail) = rest.split_at(at);
        out.push_str(head);
        let end = tail.find(quote).unwrap_or(tail.len());
        out.push_str(&format!("{PREFIX}{}", resolved(name, &tail[..end])));
        rest = &tail[end..];
    }
    out + rest
}

/// Where the next name of a module with this beginning is, and the quote that ends it.
fn next_import(text: &str, begins: &str) -> Option<(usize, char)> {
    const BEFORE: [(&str, char); 5] =
        [("from '", '\''), ("from\"", '"'), ("from'", '\''), ("\nimport '", '\''), ("import\"", '"')];
    let found = |(before, quote): &(&str, char)| {
        Some((text.find(&format!("{before}{begins}"))? + before.len(), *quote))
    };
    BEFORE.iter().filter_map(found).min()
}

/// A path that a file of the page refers to, as a browser resolves it.
pub(crate) fn resolved(from: &str, to: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in to.split('/') {
        match part {
            "" => parts.clear(),
            "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_import_leads_to_a_module_of_the_file() {
        let modules = modules();
        let (mut missing, mut found) = (Vec::new(), 0);
        for (name, address) in &modules {
            let data = address.as_str().unwrap().split(',').nth(1).unwrap();
            let text = String::from_utf8(STANDARD.decode(data).unwrap()).unwrap();
            let mut rest = text.as_str();
            while let Some((at, quote)) = next_import(rest, PREFIX) {
                let end = rest[at..].find(quote).unwrap();
                let named = &rest[at..at + end];
                if !modules.contains_key(named) {
                    missing.push(format!("{name}: {named}"));
                }
                found += 1;
                rest = &rest[at + end..];
            }
        }
        assert_eq!(missing, Vec::<String>::new());
        assert!(found > modules.len(), "{found} imports of {} modules", modules.len());
        assert!(modules.contains_key("inspan/js/main.js"));
    }

    #[test]
    fn imports_are_written_as_the_map_has_them() {
        let text = "// a\nimport { h } from '../vendor/preact.js';\nimport './b.js';\nconst from = 'x';\n";
        assert_eq!(
            linked("js/a.js", text),
            "// a\nimport { h } from 'inspan/vendor/preact.js';\nimport 'inspan/js/b.js';\nconst from = 'x';\n"
        );
    }
}
