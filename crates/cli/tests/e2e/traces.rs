//! Traces with programs that are not ours: a real collector takes what `inspan` sends, and the real agent CLIs, their own
//! telemetry switched on, join the trace of their attempt, as `docs/traces.md` says.

use std::{
    collections::BTreeMap,
    fs,
    io::Read as _,
    net::TcpListener,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use flate2::read::GzDecoder;
use inspan_testkit::{Agent, PythonPackage, Sandbox, eventually};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use prost::Message;
use serde_json::{Value, json};
use wiremock::{Mock, MockServer, Request, ResponseTemplate, matchers::any};

use super::checks::same;
use super::programs::{has_the_shape, serve_three_nodes};

/// A collector that remembers the spans it gets, in protobuf or in JSON, and accepts everything else.
struct Collector {
    runtime: tokio::runtime::Runtime,
    server: MockServer,
}

/// One span, as far as these cases look at it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Seen {
    trace: String,
    id: String,
    parent: String,
    name: String,
    service: String,
}

impl Collector {
    fn new() -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let server = runtime.block_on(async {
            let server = MockServer::start().await;
            Mock::given(any()).respond_with(ResponseTemplate::new(200)).mount(&server).await;
            server
        });
        Ok(Self { runtime, server })
    }

    fn spans(&self) -> anyhow::Result<Vec<Seen>> {
        let requests = self.runtime.block_on(self.server.received_requests()).unwrap_or_default();
        let traces = requests.iter().filter(|request| request.url.path().ends_with("/v1/traces"));
        Ok(traces.map(read).collect::<anyhow::Result<Vec<_>>>()?.concat())
    }
}

fn read(request: &Request) -> anyhow::Result<Vec<Seen>> {
    let kind = request.headers.get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if kind.starts_with("application/json") {
        let body: Value = serde_json::from_slice(&request.body)?;
        return Ok(body["resourceSpans"].as_array().into_iter().flatten().flat_map(of_json).collect());
    }
    let mut body = request.body.clone();
    if request.headers.contains_key("content-encoding") {
        body.clear();
        GzDecoder::new(request.body.as_slice()).read_to_end(&mut body)?;
    }
    let body = ExportTraceServiceRequest::decode(body.as_slice())
        .with_context(|| format!("what was sent as {kind} is no OTLP"))?;
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut seen = Vec::new();
    for resource in body.resource_spans {
        let attributes = resource.resource.unwrap_or_default().attributes;
        let service = attributes.into_iter().find(|pair| pair.key == "service.name");
        let service = service.map(|pair| format!("{:?}", pair.value)).unwrap_or_default();
        seen.extend(resource.scope_spans.into_iter().flat_map(|scope| scope.spans).map(|span| Seen {
            trace: hex(&span.trace_id),
            id: hex(&span.span_id),
            parent: hex(&span.parent_span_id),
            name: span.name,
            service: service.clone(),
        }));
    }
    Ok(seen)
}

fn of_json(resource: &Value) -> Vec<Seen> {
    let text = |span: &Value, key: &str| span[key].as_str().unwrap_or_default().to_owned();
    let spans = resource["scopeSpans"].as_array().into_iter().flatten();
    spans
        .flat_map(|scope| scope["spans"].as_array().cloned().unwrap_or_default())
        .map(|span| Seen {
            trace: text(&span, "traceId"),
            id: text(&span, "spanId"),
            parent: text(&span, "parentSpanId"),
            name: text(&span, "name"),
            service: resource["resource"].to_string(),
        })
        .collect()
}

/// The trace that only `OTEL_TRACEPARENT` names, so that it shows which of the two variables a program reads.
const OTHER: &str = "eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee";

/// What the spans of a program are part of.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Joined {
    /// The span of the attempt that `TRACEPARENT` names.
    Attempt,
    /// A separate trace.
    OwnTrace,
    /// It sends none.
    NoSpans,
}

/// An agent CLI with its telemetry switched on runs the flow that every provider runs; `expected` is where its spans are.
pub(super) fn joins(
    sandbox: &mut Sandbox,
    agent: Agent,
    target: &str,
    expected: &Joined,
) -> anyhow::Result<()> {
    let collector = Collector::new()?;
    let (flow, _server) = serve_three_nodes(sandbox, target)?;
    switch_on(sandbox, agent, &collector.server.uri())?;
    let run = sandbox.run_flow(&flow, &["--session-id", "joined"])?;
    has_the_shape(&run)?;
    let sorted = |collector: &Collector| -> anyhow::Result<(Vec<Seen>, Vec<Seen>)> {
        Ok(collector.spans()?.into_iter().partition(|span| span.service.contains("\"inspan\"")))
    };
    let (ours, _) = sorted(&collector)?;
    let trace = ours.first().context("our own spans have not arrived")?.trace.clone();
    let attempts: Vec<_> =
        ours.iter().filter(|span| span.name.starts_with("invoke_agent")).map(|span| &span.id).collect();
    let (_, theirs) = sorted(&collector)?;
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    for span in &theirs {
        let place = match span.trace.as_str() {
            one if one == trace && attempts.contains(&&span.parent) => "attempt",
            one if one == trace => "inner",
            OTHER => "other",
            _ => "own",
        };
        *places.entry(place.to_owned()).or_default() += 1;
    }
    let count = |place: &str| places.get(place).copied().unwrap_or_default();
    let joined = match (count("attempt"), theirs.len()) {
        (0, 0) => Joined::NoSpans,
        (0, _) => Joined::OwnTrace,
        _ => Joined::Attempt,
    };
    same("where its spans are", &joined, expected)?;
    same("what read OTEL_TRACEPARENT", &count("other"), &0)?;
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/traces.md");
    let document = fs::read_to_string(document)?;
    let begin = format!("| `{}` {} |", agent.command(), agent.version());
    let row =
        document.lines().find(|line| line.starts_with(&begin)).with_context(|| format!("no row {begin}"))?;
    let said = row.trim_end_matches('|').rsplit('|').next().unwrap_or_default().trim();
    ensure!(said.starts_with(joined.word()), "the document says `{said}`: {row}");
    Ok(())
}

impl Joined {
    /// What the document says.
    fn word(&self) -> &'static str {
        match self {
            Self::Attempt => "part of the attempt",
            Self::OwnTrace => "a trace of their own",
            Self::NoSpans => "none",
        }
    }
}

/// Switches on what the program has of telemetry, and lets `OTEL_TRACEPARENT` name another trace than `TRACEPARENT`.
fn switch_on(sandbox: &mut Sandbox, agent: Agent, url: &str) -> anyhow::Result<()> {
    let common = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", url),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
        ("OTEL_TRACES_EXPORTER", "otlp"),
        ("OTEL_TRACES_EXPORT_INTERVAL", "100"),
        ("OTEL_BSP_SCHEDULE_DELAY", "100"),
    ];
    let own: &[(&str, &str)] = match agent {
        Agent::Claude => &[
            ("CLAUDE_CODE_ENABLE_TELEMETRY", "1"),
            ("CLAUDE_CODE_ENHANCED_TELEMETRY_BETA", "1"),
            ("DISABLE_TELEMETRY", ""),
            ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", ""),
        ],
        Agent::Gemini => &[
            ("GEMINI_TELEMETRY_ENABLED", "true"),
            ("GEMINI_TELEMETRY_TRACES_ENABLED", "true"),
            ("GEMINI_TELEMETRY_TARGET", "local"),
            ("GEMINI_TELEMETRY_OTLP_ENDPOINT", url),
            ("GEMINI_TELEMETRY_OTLP_PROTOCOL", "http"),
        ],
        Agent::Qwen => &[
            ("QWEN_TELEMETRY_ENABLED", "true"),
            ("QWEN_TELEMETRY_TARGET", "local"),
            ("QWEN_TELEMETRY_OTLP_ENDPOINT", url),
            ("QWEN_TELEMETRY_OTLP_PROTOCOL", "http"),
        ],
        Agent::Droid => &[("OTEL_TELEMETRY_ENDPOINT", url)],
        _ => &[],
    };
    for (name, value) in common.iter().chain(own) {
        sandbox.set(name, value);
    }
    if agent == Agent::Codex {
        let home = sandbox.env().get("CODEX_HOME").context("CODEX_HOME is not set")?;
        let file = Path::new(home).join("config.toml");
        let text = fs::read_to_string(&file)?;
        let (before, after) = text.split_once("[otel]\n").context("the settings have no telemetry")?;
        let sent = format!(
            "trace_exporter = {{ otlp-http = {{ endpoint = \"{url}/v1/traces\", protocol = \"binary\" }} }}"
        );
        fs::write(&file, format!("{before}[otel]\n{sent}\n{after}"))?;
    }
    let bin = sandbox.env()["PATH"].split(':').next().map(PathBuf::from).context("the path is empty")?;
    let program = bin.join(agent.command());
    fs::remove_file(&program)?;
    let real = agent.installed()?;
    sandbox.script(
        "other-trace",
        &format!(
            "#!/bin/sh\nexport OTEL_TRACEPARENT=00-{OTHER}-eeeeeeeeeeeeeeee-01\nexec '{}' \"$@\"\n",
            real.display()
        ),
    )?;
    std::os::unix::fs::symlink(sandbox.path("other-trace"), program)?;
    Ok(())
}

/// A session is sent live to a real collector, which sends it on as it understood it.
pub(super) fn real_collector(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let collector = Collector::new()?;
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let (http, onward) = (format!("127.0.0.1:{port}"), collector.server.uri());
    let pid_file = sandbox.path("collector.pid").display().to_string();
    let mut command = Command::new(PythonPackage::Rotel.installed()?);
    command.args(["start", "--otlp-http-endpoint", &http, "--otlp-grpc-endpoint", "127.0.0.1:0"]);
    command.args(["--exporter", "otlp", "--otlp-exporter-endpoint", &onward]);
    command.args(["--otlp-exporter-protocol", "http", "--batch-timeout", "50ms", "--pid-file", &pid_file]);
    sandbox.enclose(&mut command);
    let mut running = sandbox.start(command)?;
    let is_there = || Ok(std::net::TcpStream::connect(&http).is_ok());
    eventually(Duration::from_secs(30), "the collector listens", is_there)?;
    sandbox.set("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://{http}"));
    sandbox.set("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip");
    let flow = json!({ "name": "collected", "nodes": [
        { "id": "ask", "type": "echo.agent", "input": { "prompt": "What is it?" } },
        { "id": "fail", "type": "exec", "dependsOn": ["ask"], "input": { "argv": ["false"] },
          "policy": { "continueOnError": true } },
    ] });
    let run = sandbox.run_flow(&flow, &["--session-id", "collected"])?;
    run.expect_code(0)?;
    let arrived = || Ok(collector.spans()?.len() >= 3);
    eventually(Duration::from_secs(30), "the collector has sent on all spans", arrived)?;
    let mut live = collector.spans()?;
    live.sort();
    let names: Vec<_> = live.iter().map(|span| span.name.as_str()).collect();
    let root = live.iter().find(|span| span.parent.is_empty()).context("there is no root")?;
    same("the root", &root.name.as_str(), &"invoke_workflow collected")?;
    ensure!(
        live.iter()
            .all(|span| span.trace == root.trace && (span.parent.is_empty() || span.parent == root.id)),
        "the trace is no tree: {live:?}"
    );
    same("the number of spans", &names.len(), &3)?;
    sandbox.run(&["export", "collected", "--otlp", &format!("http://{http}")])?.expect_code(0)?;
    let arrived = || Ok(collector.spans()?.len() >= 6);
    eventually(Duration::from_secs(30), "the collector has sent on the export too", arrived)?;
    let mut all = collector.spans()?;
    all.sort();
    all.dedup();
    same("what arrived twice", &all, &live)?;
    running.kill()?;
    running.finish().map(drop)
}
