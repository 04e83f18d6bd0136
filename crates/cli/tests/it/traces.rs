//! Traces through the real program: after the fact and live, of sessions that end, fail and are
//! killed, and which variables a program in an attempt gets. The collector decodes what it gets as
//! OTLP defines it.

use std::{collections::BTreeMap, path::Path, process::Command, time::Duration};

use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{KeyValue, any_value::Value},
    trace::v1::{Span, status::StatusCode},
};
use prost::Message;
use serde_json::json;
use wiremock::{Mock, MockServer, ResponseTemplate, matchers::path};

use crate::{
    processes::{kill, until},
    program::{flow_folder, home, inspan, program, ran},
};

/// A collector for one test.
struct Collector {
    runtime: tokio::runtime::Runtime,
    server: MockServer,
}

impl Collector {
    fn new() -> Self {
        Self::answering(&ResponseTemplate::new(200))
    }

    fn answering(answer: &ResponseTemplate) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let server = runtime.block_on(async {
            let server = MockServer::start().await;
            Mock::given(path("/v1/traces")).respond_with(answer.clone()).mount(&server).await;
            server
        });
        Self { runtime, server }
    }

    fn url(&self) -> String {
        self.server.uri()
    }

    fn requests(&self) -> Vec<ExportTraceServiceRequest> {
        let requests = self.runtime.block_on(self.server.received_requests()).unwrap();
        requests
            .iter()
            .map(|request| ExportTraceServiceRequest::decode(request.body.as_slice()).unwrap())
            .collect()
    }

    /// Every span that arrived, as often as it did.
    fn spans(&self) -> Vec<Span> {
        self.requests()
            .into_iter()
            .flat_map(|request| request.resource_spans)
            .flat_map(|resource| resource.scope_spans)
            .flat_map(|scope| scope.spans)
            .collect()
    }

    /// Every span by its id; one that came several times was the same each time.
    fn trace(&self) -> BTreeMap<Vec<u8>, Span> {
        let mut trace = BTreeMap::new();
        for span in self.spans() {
            let known = trace.entry(span.span_id.clone()).or_insert_with(|| span.clone());
            assert_eq!(*known, span);
        }
        trace
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn text<'a>(attributes: &'a [KeyValue], key: &str) -> Option<&'a str> {
    let value = attributes.iter().find(|pair| pair.key == key)?.value.as_ref()?.value.as_ref()?;
    match value {
        Value::StringValue(text) => Some(text),
        _ => None,
    }
}

/// The tree of a trace: each span's name below that of its parent, in the order of their begin.
fn tree(trace: &BTreeMap<Vec<u8>, Span>) -> Vec<String> {
    fn below(trace: &BTreeMap<Vec<u8>, Span>, parent: &[u8], depth: usize, lines: &mut Vec<String>) {
        let mut inner: Vec<&Span> = trace.values().filter(|span| span.parent_span_id == parent).collect();
        inner.sort_by_key(|span| (span.start_time_unix_nano, span.end_time_unix_nano, span.name.clone()));
        for span in inner {
            lines.push(format!("{}{}", "  ".repeat(depth), span.name));
            below(trace, &span.span_id, depth + 1, lines);
        }
    }
    let mut lines = Vec::new();
    below(trace, &[], 0, &mut lines);
    assert_eq!(lines.len(), trace.len(), "every span has its parent in the trace");
    lines
}

fn live(folder: &Path, url: &str, arguments: &[&str]) -> Command {
    let mut command = program(folder, arguments);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", url);
    command
}

const TWO: &str = "
name: two
nodes:
  - { id: say, type: echo, input: { text: hello } }
  - { id: ask, type: echo.agent, dependsOn: [say], input: { prompt: 'What is it?' } }
  - { id: see, type: exec, dependsOn: [ask], input: { argv: [sh, -c, 'echo $TRACEPARENT $OTEL_TRACEPARENT'] } }
";

#[test]
fn a_session_is_exported_and_a_second_time_gives_the_same_spans() {
    let folder = &flow_folder(TWO);
    inspan(folder, &["run", "--session-id", "s-1"]).expect(0);
    let collector = Collector::new();
    let exported = inspan(folder, &["export", "s-1", "--otlp", &collector.url()]).expect(0);
    let first = collector.spans();
    let trace = hex(&first[0].trace_id);
    assert_eq!(
        exported.stderr,
        format!("s-1: 4 spans sent to {}/v1/traces, trace {trace}\n", collector.url())
    );
    let again = inspan(folder, &["export", "--otlp", &collector.url(), "--json"]).expect(0);
    assert_eq!(
        again.json(),
        json!({
            "sessionId": "s-1", "traceId": trace, "url": format!("{}/v1/traces", collector.url()),
            "spans": 4, "rejected": 0, "open": 0,
        })
    );
    assert_eq!(collector.spans(), [first.clone(), first.clone()].concat());
    assert_eq!(
        tree(&collector.trace()),
        ["invoke_workflow two", "  echo say", "  invoke_agent ask", "  exec see"]
    );
    let agent = first.iter().find(|span| span.name == "invoke_agent ask").unwrap();
    let keys = ["gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.agent.name", "inspan.node.path"];
    assert_eq!(
        keys.map(|key| text(&agent.attributes, key)),
        [Some("invoke_agent"), Some("echo"), Some("ask"), Some("ask")]
    );
    let resource = collector.requests()[0].resource_spans[0].resource.clone().unwrap();
    assert_eq!(text(&resource.attributes, "service.name"), Some("inspan"));
}

#[test]
fn a_program_in_an_attempt_gets_the_span_of_its_attempt() {
    let folder = &flow_folder(TWO);
    let collector = Collector::new();
    let mut command = live(folder, &collector.url(), &["run", "--json"]);
    let ran = ran(folder, command.env("TRACEPARENT", "00-outer")).expect(0);
    let result = ran.json();
    let spans = collector.spans();
    let exec = spans.iter().find(|span| span.name == "exec see").unwrap();
    let parent = format!("00-{}-{}-01", hex(&exec.trace_id), hex(&exec.span_id));
    assert_eq!(result["outputs"]["see"]["stdout"], json!(format!("{parent} {parent}\n")));
}

#[test]
fn without_tracing_a_program_keeps_the_variables_of_the_caller() {
    let folder = &flow_folder(TWO);
    let collector = Collector::new();
    let mut command = live(folder, &collector.url(), &["run", "--json"]);
    let ran = ran(folder, command.env("TRACEPARENT", "00-outer").env("OTEL_SDK_DISABLED", "true")).expect(0);
    let result = ran.json();
    assert_eq!(result["outputs"]["see"]["stdout"], json!("00-outer\n"));
    assert_eq!(collector.spans(), []);
}

#[test]
fn a_live_trace_is_the_one_that_is_exported_later() {
    let folder = &flow_folder("
name: fails
nodes:
  - id: each
    type: control.foreach
    input: { items: [1, 2] }
    body: { nodes: [{ id: work, type: exec, input: { argv: [test, \"{{ item }}\", '=', '1'] }, policy: { retry: { maxAttempts: 2, backoff: 10ms } } }] }
  - { id: after, type: echo, dependsOn: [each], input: { text: done } }
");
    let (watched, later) = (Collector::new(), Collector::new());
    ran(
        folder,
        live(folder, &watched.url(), &["run", "--session-id", "s-1"]).env("OTEL_SERVICE_NAME", "nightly"),
    )
    .expect(1);
    inspan(folder, &["export", "s-1", "--otlp", &later.url()]);
    assert_eq!(watched.trace(), later.trace());
    assert_eq!(watched.spans().len(), watched.trace().len(), "each span is sent once");
    let resource = watched.requests()[0].resource_spans[0].resource.clone().unwrap();
    assert_eq!(text(&resource.attributes, "service.name"), Some("nightly"));
    let mut failed: Vec<_> = later
        .spans()
        .into_iter()
        .filter(|span| span.status.as_ref().is_some_and(|status| status.code == i32::from(StatusCode::Error)))
        .map(|span| (span.name, text(&span.attributes, "error.type").unwrap_or_default().to_owned()))
        .collect();
    failed.sort();
    let expected = [
        ("control.foreach each", "PROCESS"),
        ("exec work", "PROCESS"),
        ("exec work", "PROCESS"),
        ("frame each", "PROCESS"),
        ("invoke_workflow fails", "failed"),
    ];
    assert_eq!(failed, expected.map(|(name, error)| (name.to_owned(), error.to_owned())));
}

#[test]
fn a_session_that_is_killed_and_resumed_is_one_trace() {
    let folder = &flow_folder("
name: killed
nodes:
  - { id: first, type: echo, input: { text: hello } }
  - { id: long, type: exec, dependsOn: [first], input: { argv: [sh, -c, 'test -e began || { touch began; sleep 60; }'] } }
");
    let (watched, later) = (Collector::new(), Collector::new());
    let child = live(folder, &watched.url(), &["run", "--session-id", "s-1"]).spawn().unwrap();
    until("the second node runs", || folder.join("began").exists());
    kill(child);
    ran(folder, &mut live(folder, &watched.url(), &["resume", "s-1"])).expect(0);
    inspan(folder, &["export", "s-1", "--otlp", &later.url()]).expect(0);
    assert_eq!(watched.trace(), later.trace(), "nothing is missing, and what came twice was the same");
    assert_eq!(
        tree(&later.trace()),
        ["invoke_workflow killed", "  echo first", "  exec long", "  wait for process", "  exec long"]
    );
}

#[test]
fn a_collector_that_is_down_changes_nothing_and_is_reported_once() {
    let folder = &flow_folder(TWO);
    let ran = ran(folder, &mut live(folder, "http://127.0.0.1:1", &["run", "--session-id", "s-1"])).expect(0);
    let warnings = ran.stderr.matches("traces are not sent").count();
    assert_eq!(warnings, 1, "{}", ran.report());
    assert!(ran.stderr.contains("`inspan export s-1 --otlp URL` sends them later"), "{}", ran.report());
    let collector = Collector::new();
    inspan(folder, &["export", "s-1", "--otlp", &collector.url()]).expect(0);
    assert_eq!(collector.spans().len(), 4);
}

#[test]
fn a_collector_that_never_takes_the_spans_is_reported() {
    let folder = &flow_folder(TWO);
    let busy = Collector::answering(&ResponseTemplate::new(503).insert_header("Retry-After", "100000"));
    let why = format!(
        "warning: traces are not sent: the collector at {}/v1/traces answered with status 503
  help: `inspan export s-1 --otlp URL` sends them later
",
        busy.url()
    );
    ran(folder, &mut live(folder, &busy.url(), &["run", "--session-id", "s-1"])).expect(0).says(&why);
    let slow = Collector::answering(&ResponseTemplate::new(200).set_delay(Duration::from_secs(3)));
    let exported = inspan(folder, &["export", "s-1", "--otlp", &slow.url()]).expect(0);
    let waits = format!(
        "still waiting for the collector at {}/v1/traces
",
        slow.url()
    );
    assert!(exported.stderr.starts_with(&waits), "{}", exported.report());
}

#[test]
fn settings_that_cannot_be_used_are_named() {
    let folder = &flow_folder(TWO);
    let mut command = live(folder, "http://127.0.0.1:1", &["run"]);
    let why = "warning: traces are not sent: OTEL_EXPORTER_OTLP_PROTOCOL: `grpc` is not supported; traces are sent as \
               `http/protobuf`\n";
    ran(folder, command.env("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")).expect(0).says(why);
    inspan(folder, &["export", "--otlp", "localhost:4318"])
        .expect(2)
        .says("--otlp: is not an address such as `http://127.0.0.1:4318`");
}

#[test]
fn an_export_that_the_collector_refuses_fails() {
    let folder = &flow_folder(TWO);
    inspan(folder, &["run", "--session-id", "s-1"]).expect(0);
    let collector = Collector::answering(&ResponseTemplate::new(401).set_body_string("no key"));
    let why = format!("the collector at {}/v1/traces answered with status 401: no key", collector.url());
    inspan(folder, &["export", "s-1", "--otlp", &collector.url()]).expect(1).says(&why);
}

#[test]
fn a_fork_links_to_its_parent() {
    let folder = &flow_folder(TWO);
    inspan(folder, &["run", "--session-id", "s-1"]).expect(0);
    let collector = Collector::new();
    let fork = &["fork", "s-1", "--at", "see", "--session-id", "s-2"];
    ran(folder, &mut live(folder, &collector.url(), fork)).expect(0);
    inspan(folder, &["export", "s-1", "--otlp", &collector.url()]).expect(0);
    let root = |session: &str| {
        let root = |span: &Span| {
            span.parent_span_id.is_empty() && text(&span.attributes, "inspan.session.id") == Some(session)
        };
        collector.spans().into_iter().find(root).unwrap()
    };
    let (first, second) = (root("s-1"), root("s-2"));
    assert_ne!(first.trace_id, second.trace_id);
    let links: Vec<_> = second
        .links
        .iter()
        .map(|link| (link.trace_id.clone(), link.span_id.clone(), text(&link.attributes, "inspan.link")))
        .collect();
    assert_eq!(links, [(first.trace_id, first.span_id, Some("fork"))]);
    assert!(home(folder).exists());
}
