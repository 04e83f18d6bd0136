//! The check of one behaviour: calls the provider, or lets the engine run it, and collects what it returns.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use inspan_engine::{AgentRun, Filter, Hub, RandomIds, RunEnd, SystemClock, check_order};
use inspan_model_server::{RecordedRequest, RequestKind, Scenario};
use inspan_protocol::{
    AgentError, DynProvider, Envelope, Environment, ExecutionContext, FnTool, Host, HostTools,
    PermissionBroker, ProviderItem, ProviderSessionId, ProviderStream, StreamEvent,
};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::finding::{CheckResult, Deviation, Difference};
use crate::target::{ConformanceTarget, MAKE_FILE, Prompt};
use crate::turn::TurnLog;
use crate::worker::{Worker, no_key_in};

/// How long a turn may take, the start of a program on a busy machine included.
pub(crate) const PATIENCE: Duration = Duration::from_secs(40);
/// How long a stream may take to close after its end.
const CLOSE: Duration = Duration::from_secs(5);

/// The check of one behaviour.
pub(crate) struct TestCase {
    worker: Arc<Worker>,
    scenario: Scenario,
    work: PathBuf,
    /// The number of the last request before.
    before: u64,
}

/// One turn to run.
#[derive(Default)]
pub(crate) struct TurnRequest {
    pub(crate) text: String,
    pub(crate) options: Map<String, Value>,
    pub(crate) resume: Option<ProviderSessionId>,
    pub(crate) cancel: CancellationToken,
    pub(crate) permissions: Option<Arc<dyn PermissionBroker>>,
    /// A limit for the whole turn.
    pub(crate) deadline: Option<Duration>,
    pub(crate) env: Option<Environment>,
}

impl TurnRequest {
    /// A prompt.
    pub(crate) fn new(text: &str) -> Self {
        Self { text: text.to_owned(), ..Self::default() }
    }

    /// The same in an earlier conversation.
    pub(crate) fn resume(self, session: ProviderSessionId) -> Self {
        Self { resume: Some(session), ..self }
    }

    /// The same with an option.
    pub(crate) fn option(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.options.insert(name.to_owned(), value.into());
        self
    }

    /// The same with these options.
    pub(crate) fn options(mut self, options: Map<String, Value>) -> Self {
        self.options.extend(options);
        self
    }

    /// The same with a permission broker.
    pub(crate) fn permissions(self, broker: Arc<dyn PermissionBroker>) -> Self {
        Self { permissions: Some(broker), ..self }
    }
}

/// A run of the engine that has ended.
pub(crate) struct RunLog {
    pub(crate) end: Result<RunEnd, AgentError>,
    pub(crate) log: Vec<Envelope>,
}

impl TestCase {
    /// A test case in which the model answers by this scenario.
    pub(crate) fn new(worker: Arc<Worker>, scenario: Scenario) -> CheckResult<Self> {
        let work = worker.work()?;
        let scenario = worker.target.scenario(scenario);
        let before = worker.server.state().requests;
        worker
            .server
            .replace(scenario.clone())
            .map_err(|error| Difference::from("the scenario is not valid").with(error.to_string()))?;
        Ok(Self { worker, scenario, work, before })
    }

    pub(crate) fn target(&self) -> &ConformanceTarget {
        &self.worker.target
    }

    pub(crate) fn worker(&self) -> &Worker {
        &self.worker
    }

    /// The folder the agent works in.
    pub(crate) fn work(&self) -> &Path {
        &self.work
    }

    /// The input of a turn.
    fn input(&self, request: &TurnRequest) -> CheckResult<Value> {
        let mut options = (self.target().options)();
        options.extend(request.options.clone());
        let prompt = Prompt { text: &request.text, options: &options, scenario: &self.scenario };
        let input = (self.target().input)(&prompt);
        match &request.resume {
            None => Ok(input),
            Some(session) => self.worker.provider().resume(input, session, &request.text).map_err(|error| {
                Difference::from("it does not accept its own input to resume").with(error.message)
            }),
        }
    }

    fn host(&self, env: Option<Environment>) -> Host {
        Host {
            env: env.unwrap_or_else(|| self.worker.env.clone()),
            cwd: Some(self.work.clone()),
            supervisor: self.worker.supervisor.clone(),
            ..Host::default()
        }
    }

    /// Begins a turn; the caller reads its stream.
    pub(crate) fn begin(&self, request: TurnRequest) -> CheckResult<ProviderStream<Value>> {
        let input = self.input(&request)?;
        let context = ExecutionContext {
            cancel: request.cancel,
            permissions: request.permissions,
            deadline: request.deadline,
            ..ExecutionContext::new(Host { tools: self.tools(), ..self.host(request.env) })
        };
        no_key_in("the context", &format!("{context:?}"))?;
        Ok(self.worker.provider().execute(input, context))
    }

    /// Runs a turn to its end.
    pub(crate) async fn turn(&self, request: TurnRequest) -> CheckResult<TurnLog> {
        self.watched(request, |_| {}).await
    }

    /// Runs a turn to its end, and shows each event as it comes.
    pub(crate) async fn watched(
        &self,
        request: TurnRequest,
        watch: impl FnMut(&StreamEvent),
    ) -> CheckResult<TurnLog> {
        let stream = self.begin(request)?;
        self.rest(stream, Vec::new(), watch).await
    }

    /// Runs the rest of a turn, after these events.
    pub(crate) async fn rest(
        &self,
        mut stream: ProviderStream<Value>,
        mut events: Vec<StreamEvent>,
        mut watch: impl FnMut(&StreamEvent),
    ) -> CheckResult<TurnLog> {
        let began = Instant::now();
        let last = loop {
            let item = timeout(PATIENCE.saturating_sub(began.elapsed()), stream.next()).await;
            match item.map_err(|_| Difference::from("the turn does not end").deviation(Deviation::NoEnd))? {
                Some(Ok(ProviderItem::Event(event))) => {
                    watch(&event);
                    events.push(event);
                }
                Some(last) => break last,
                None => return Err("the stream ends without an output or an error".into()),
            }
        };
        let took = began.elapsed();
        match timeout(CLOSE, stream.next()).await {
            Ok(None) => {}
            Ok(Some(_)) => return Err("something follows the end of the turn".into()),
            Err(_) => return Err("the stream stays open after its end".into()),
        }
        let provider = self.worker.provider();
        let turn = match last {
            Ok(ProviderItem::Output(output)) => {
                let facts = provider.output_facts(&output).map_err(|error| {
                    Difference::from("its output is not of its schema").with(error.message)
                })?;
                TurnLog { events, end: Ok(facts), output, took }
            }
            Ok(ProviderItem::Event(_)) => return Err("the turn ends with an event".into()),
            Err(error) => TurnLog { events, end: Err(error), output: Value::Null, took },
        };
        turn.check(&provider.descriptor().provider_type)?;
        Ok(turn)
    }

    /// The suite's own tool, for a provider that takes tools of its program.
    fn tools(&self) -> HostTools {
        if !self.worker.provider().descriptor().capabilities.host_tools {
            return HostTools::default();
        }
        let (work, schema) = (
            self.work.clone(),
            json!({
                "type": "object", "properties": { "name": { "type": "string" } }, "required": ["name"],
            }),
        );
        HostTools::default().with(FnTool::new(MAKE_FILE, "Makes an empty file.", schema, move |input, _| {
            let path = input["name"].as_str().map(|name| work.join(name));
            let made = path
                .ok_or("there is no name")
                .and_then(|path| std::fs::write(path, "").map_err(|_| "the file cannot be made"));
            std::future::ready(made.map(|()| "made".into()).map_err(Into::into))
        }))
    }

    /// A hub for a run of the engine.
    pub(crate) fn hub(&self) -> Hub {
        let hub = Hub::new("conformance".into(), Arc::new(SystemClock), Arc::new(RandomIds::new()));
        hub.start_session();
        hub
    }

    /// Lets the engine run the provider, over as many turns as it takes.
    pub(crate) async fn run(
        &self,
        hub: &Hub,
        request: TurnRequest,
        provider: Arc<dyn DynProvider>,
    ) -> CheckResult<RunLog> {
        let mut seen = hub.subscribe(Filter::all());
        let run = AgentRun::new(hub.clone(), "agent", provider, self.input(&request)?)
            .host(self.host(request.env.clone()))
            .cancel(request.cancel.clone());
        let end = timeout(2 * PATIENCE, run.execute()).await;
        let end = end.map_err(|_| Difference::from("the run does not end"))?;
        let log: Vec<Envelope> =
            std::iter::from_fn(|| seen.try_next()).map(|envelope| (*envelope).clone()).collect();
        check_order(&log)
            .map_err(|why| Difference::from("the log of the run is out of order").with(why.to_string()))?;
        no_key_in("the log", &format!("{log:?} {}", serde_json::to_string(&log).unwrap_or_default()))?;
        no_key_in("the end of the run", &format!("{end:?}"))?;
        Ok(RunLog { end, log })
    }

    /// The model's requests in this case.
    pub(crate) fn requests(&self) -> Vec<RecordedRequest> {
        let all = self.worker.server.requests().into_iter();
        all.filter(|request| request.number > self.before && request.kind == RequestKind::Main).collect()
    }

    /// Waits until the model's requests in this case fit.
    pub(crate) async fn until(
        &self,
        within: Duration,
        mut fits: impl FnMut(&[RecordedRequest]) -> bool,
    ) -> bool {
        let seen = self.worker.server.until(within, |_| fits(&self.requests()));
        seen.await.is_ok()
    }
}

/// Every text of a request, at any depth.
pub(crate) fn texts(request: &RecordedRequest) -> Vec<&str> {
    fn walk<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
        match value {
            Value::String(text) => found.push(text),
            Value::Array(items) => items.iter().for_each(|item| walk(item, found)),
            Value::Object(fields) => fields.values().for_each(|field| walk(field, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    walk(&request.body, &mut found);
    found
}

/// Whether a text of the request contains this.
pub(crate) fn mentions(request: &RecordedRequest, part: &str) -> bool {
    texts(request).iter().any(|text| text.contains(part))
}
