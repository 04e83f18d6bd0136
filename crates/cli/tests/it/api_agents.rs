//! Flows whose agents ask a vendor's API, against the scripted model server: what the user sees, that a conversation
//! continues in another process, that the key is stored nowhere, and that the logs of all providers have one shape.

use std::{fs, path::Path, process::Command, time::Duration};

use inspan_conformance::{ModelAccess, THREE_NODES, TargetContext, shape, three_nodes};
use inspan_model_server::{ExchangeState, Matcher, ModelServer, RecordedRequest, Scenario, Turn, Usage};
use inspan_protocol::{Envelope, Environment};
use inspan_testkit::read_jsonl;
use serde_json::{Value, json};

use crate::{
    processes::{signal, until},
    program::{Ran, flow_folder, inspan, paths_below, program, ran},
};

/// What the checks have to know about one vendor.
struct Api {
    provider: &'static str,
    /// The variable of the key, and a key that may be stored nowhere.
    key: (&'static str, &'static str),
    /// The variable of the address, and what follows the server's own.
    address: (&'static str, &'static str),
    /// A model that thinks as the options say.
    model: &'static str,
    /// What a request calls all that was said.
    said: &'static str,
}

const ANTHROPIC: Api = Api {
    provider: "anthropic",
    key: ("ANTHROPIC_API_KEY", "sk-ant-planted-0123456789"),
    address: ("ANTHROPIC_BASE_URL", ""),
    model: "claude-sonnet-4-5",
    said: "messages",
};

const OPENAI: Api = Api {
    provider: "openai",
    key: ("OPENAI_API_KEY", "sk-proj-planted-0123456789"),
    address: ("OPENAI_BASE_URL", "/v1"),
    model: "gpt-5-mini",
    said: "input",
};

/// The result of the flow of three agents.
struct Reviewed {
    /// The outputs of its nodes.
    outputs: Value,
    /// The requests, in their order.
    requests: Vec<RecordedRequest>,
}

/// A server whose turns answer every request, also one without tools.
pub(crate) fn server(turns: impl IntoIterator<Item = Turn>) -> ModelServer {
    ModelServer::start(Scenario { aux_detect: false, ..Scenario::of(turns) }).unwrap()
}

/// Every file below a folder, read as text.
pub(crate) fn written(folder: &Path) -> String {
    let files = paths_below(folder).into_iter().filter(|path| path.is_file());
    files.map(|path| String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned()).collect()
}

fn answers() -> [Turn; 4] {
    [
        Turn::text("Oxen pull.").when(Matcher::last("write about")),
        Turn { times: Some(1), ..Turn::text("seven").when(Matcher::last("judge:")) },
        Turn { structured: Some(json!({ "score": 7 })), ..Turn::default() }
            .when(Matcher::last("does not fit")),
        Turn::text("Oxen pull well.").when(Matcher::last("the score is 7")),
    ]
}

impl Api {
    /// A call of the program that asks this server.
    fn command(&self, folder: &Path, server: &ModelServer, arguments: &[&str]) -> Command {
        let mut command = program(folder, arguments);
        let (variable, path) = self.address;
        command.env(self.key.0, self.key.1).env(variable, format!("{}{path}", server.base_url()));
        command
    }

    fn run(&self, folder: &Path, server: &ModelServer, arguments: &[&str]) -> Ran {
        ran(folder, &mut self.command(folder, server, arguments))
    }

    /// A run with a key, and with an address at which nothing listens.
    fn alone(&self, folder: &Path, arguments: &[&str]) -> Ran {
        let mut command = program(folder, arguments);
        ran(folder, command.env(self.key.0, self.key.1).env(self.address.0, "http://127.0.0.1:1"))
    }

    /// A flow whose first and last agent share a conversation, with a judge between them.
    fn review(&self) -> String {
        let Self { provider, model, .. } = self;
        format!(
            "
flow: {{ name: review, input: {{ topic: oxen }} }}
nodes:
  - id: write
    type: {provider}.agent
    input: {{ prompt: 'write about {{{{ flow.input.topic }}}}', options: {{ systemPrompt: 'You write.' }} }}
  - id: judge
    type: agent.run
    dependsOn: [write]
    input:
      provider: {provider}
      prompt: 'judge: {{{{ write.text }}}}'
      options:
        model: {model}
        thinking: minimal
        outputSchema: {{ type: object, required: [score], properties: {{ score: {{ type: integer, minimum: 1 }} }} }}
  - id: again
    type: {provider}.agent
    session: write
    dependsOn: [judge]
    input: {{ prompt: 'the score is {{{{ judge.structuredOutput.score }}}}' }}
"
        )
    }

    /// What was said until one request, with it.
    fn said<'a>(&self, request: &'a RecordedRequest) -> &'a [Value] {
        request.body[self.said].as_array().unwrap()
    }

    /// Runs the flow of three agents, and checks what is the same for each vendor.
    fn reviewed(&self) -> Reviewed {
        let server = server(answers());
        let folder = &flow_folder(&self.review());
        let arguments = ["run", "flow.yaml", "--json", "--events", "events.jsonl", "--record", "recordings"];
        let ran = self.run(folder, &server, &arguments).expect(0);
        let result = ran.json();
        assert_eq!(result["outputs"]["again"]["text"], "Oxen pull well.");
        let requests = server.requests();
        let said: Vec<usize> = requests.iter().map(|request| self.said(request).len()).collect();
        let first = &self.said(&requests[3])[0]["content"][0]["text"];
        assert_eq!((said, first), (vec![1, 1, 3, 3], &json!("write about oxen")));
        let written = format!("{}{}{}", ran.stdout, ran.stderr, written(folder));
        let named = format!("\"provider\":\"{}\"", self.provider);
        assert!(written.contains("Oxen pull well.") && written.contains(&named));
        assert!(!written.contains(self.key.1));

        // What was recorded answers without any server.
        let replayed = self.alone(folder, &["run", "flow.yaml", "--json", "--replay", "recordings"]);
        let replayed = replayed.json();
        assert_eq!(
            (&replayed["outputs"]["again"]["text"], server.requests().len()),
            (&json!("Oxen pull well."), 4)
        );
        Reviewed { outputs: result["outputs"].clone(), requests }
    }
}

#[test]
fn a_flow_of_three_agents_repairs_its_output_and_continues_a_conversation() {
    let reviewed = ANTHROPIC.reviewed();
    let asked = |request: usize| &reviewed.requests[request].body;
    assert_eq!(asked(3)["system"][0]["text"], "You write.");
    assert_eq!(asked(1)["thinking"], json!({ "type": "enabled", "budget_tokens": 1024 }));

    let reviewed = OPENAI.reviewed();
    let again = &reviewed.outputs["again"];
    assert_eq!((&again["text"], &again["content"]), (&json!("Oxen pull well."), &json!("Oxen pull well.")));
    assert_eq!(
        (&again["threadId"], &again["sessionId"]),
        (&reviewed.outputs["write"]["threadId"], &again["threadId"])
    );
    let asked = |request: usize| &reviewed.requests[request].body;
    assert_eq!(asked(3)["instructions"], "You write.");
    assert_eq!(asked(1)["reasoning"], json!({ "effort": "minimal", "summary": "auto" }));
}

#[test]
fn an_overloaded_server_is_asked_again_by_the_flow_and_by_nobody_else() {
    for api in [ANTHROPIC, OPENAI] {
        let provider = api.provider;
        let flow = format!(
            "
flow: {{ name: again }}
nodes:
  - {{ id: a, type: {provider}.agent, input: {{ prompt: hello }}, policy: {{ retry: {{ maxAttempts: 3, backoff: 10ms }} }} }}
"
        );
        let server = server([Turn::error(529), Turn::error(500), Turn::text("Here.")]);
        let folder = &flow_folder(&flow);
        let ran = api.run(folder, &server, &["run", "flow.yaml", "--json"]);
        assert_eq!(
            (ran.code, server.requests().len()),
            (Some(0), 3),
            "{provider}: {}{}",
            ran.stdout,
            ran.stderr
        );
        assert!(server.requests().iter().all(|request| api.said(request).len() == 1));
    }
}

#[test]
fn a_flow_that_was_interrupted_or_killed_continues_its_conversation() {
    for api in [ANTHROPIC, OPENAI] {
        let provider = api.provider;
        let flow = format!(
            "
flow: {{ name: long }}
nodes:
  - {{ id: a, type: {provider}.agent, input: {{ prompt: hello }} }}
"
        );
        let stalls = Turn { stall_after: Some(6), ..Turn::text("said before it was cancelled") };
        let roles: [(_, _, &[&str]); 2] =
            [("INT", Some(7), &["user", "assistant", "user"]), ("KILL", None, &["user", "user"])];
        for (name, code, expected) in roles {
            let server = server([stalls.clone(), Turn::text("Back.")]);
            let folder = &flow_folder(&flow);
            let arguments = ["run", "flow.yaml", "--session-id", "s"];
            let mut child = api.command(folder, &server, &arguments).spawn().unwrap();
            let soon = Duration::from_secs(30);
            let stalled = |ending: ExchangeState| {
                move |seen: &[RecordedRequest]| seen.first().is_some_and(|one| one.ending == ending)
            };
            server.wait_until(soon, stalled(ExchangeState::Stalled)).unwrap();
            // What the server has sent is not yet what the flow has received and stored.
            until("the flow has stored what it heard", || {
                inspan(folder, &["logs", "s", "--json"]).stdout.contains("agent:text")
            });
            signal(&child, name);
            assert_eq!(child.wait().unwrap().code(), code, "{provider} {name}");
            server.wait_until(soon, stalled(ExchangeState::ClientGone)).unwrap();
            let ran = api.run(folder, &server, &["resume", "s", "--json"]);
            assert_eq!(ran.code, Some(0), "{provider} {name}: {}{}", ran.stdout, ran.stderr);
            let request = &server.requests()[1];
            let roles: Vec<&str> =
                api.said(request).iter().map(|message| message["role"].as_str().unwrap()).collect();
            assert_eq!(roles, expected, "{provider} {name}: {}", request.body);
        }
    }
}

#[test]
fn an_answer_that_was_counted_before_a_crash_is_counted_once() {
    for api in [ANTHROPIC, OPENAI] {
        let flow = "flow: { name: f }\nnodes:\n  - { id: a, type: API.agent, input: { prompt: hello } }\n";
        let folder = &flow_folder(&flow.replace("API", api.provider));
        let usage = Usage { input_tokens: 1000, output_tokens: 50, ..Usage::default() };
        let server = server([Turn { usage, ..Turn::text("Hi.") }]);
        api.run(folder, &server, &["run", "flow.yaml", "--session-id", "s"]).expect(0);
        // As if the process had died before the node was complete.
        let log = inspan(folder, &["store", "export", "s"]).expect(0).stdout;
        let counted = log.find(r#""agent:usage""#).unwrap();
        let cut = &log[..counted + log[counted..].find('\n').unwrap() + 1];
        fs::write(folder.join("cut.jsonl"), cut).unwrap();
        let there =
            |arguments: &[&str]| api.run(folder, &server, &[arguments, &["--store", "cut.db"]].concat());
        there(&["store", "import", "--part", "cut.jsonl"]).expect(0);
        there(&["resume", "s"]).expect(0);
        let spent = &there(&["show", "s", "--json"]).json()["usage"];
        let tokens = (&spent["inputTokens"], &spent["outputTokens"]);
        assert_eq!((server.requests().len(), tokens), (1, (&json!(1000), &json!(50))), "{}", api.provider);
    }
}

#[test]
fn what_is_missing_or_not_offered_is_said_before_anything_starts() {
    for api in [ANTHROPIC, OPENAI] {
        let provider = api.provider;
        let server = server([Turn::text("never")]);
        let folder = &flow_folder(&api.review());
        let ran_without = ran(folder, &mut program(folder, &["run", "flow.yaml"])).expect(4);
        let (key, planted) = api.key;
        assert!(ran_without.stderr.contains("no API key"), "{}", ran_without.stderr);
        assert!(ran_without.stderr.contains(&format!("set {key}")), "{}", ran_without.stderr);
        let odd = format!(
            "
flow: {{ name: odd }}
nodes:
  - {{ id: a, type: {provider}.agent, input: {{ prompt: hello, options: {{ permissionMode: plan }} }} }}
"
        );
        fs::write(folder.join("odd.yaml"), odd).unwrap();
        let refused = api.run(folder, &server, &["run", "odd.yaml"]);
        assert_eq!((refused.code, server.requests().len()), (Some(2), 0));
        let message = format!("unknown option `permissionMode` for `{provider}.agent`");
        assert!(refused.stderr.contains(&message), "{}", refused.stderr);
        let doctor = api.run(folder, &server, &["doctor"]).prints(&format!("127.0.0.1, with {key}"));
        assert!(!format!("{}{}", doctor.stdout, doctor.stderr).contains(planted));
    }
}

#[test]
fn three_nodes_leave_a_log_of_the_same_shape_for_every_agent() {
    let targets = inspan_conformance_targets::services();
    let services: Vec<_> =
        targets.iter().filter(|target| target.model_access == ModelAccess::Server).collect();
    assert!(!services.is_empty());
    for target in services {
        let provider = (target.provider)().descriptor().provider_type;
        let (flow, scenario) = three_nodes(&provider, &(target.options)());
        let server = ModelServer::start(target.scenario(scenario)).unwrap();
        let folder = &flow_folder(&flow.to_string());
        let mut command = program(folder, &["run", "flow.yaml", "--json", "--events", "events.jsonl"]);
        let caller_env = Environment::default();
        let context = TargetContext { server: &server.base_url(), folder, caller_env: &caller_env };
        let ran = ran(folder, command.envs(target.variables(&context)));
        assert_eq!(ran.code, Some(0), "{provider}: {}{}", ran.stdout, ran.stderr);
        let log: Vec<Envelope> = read_jsonl(folder.join("events.jsonl")).unwrap();
        assert_eq!(shape(&log), THREE_NODES, "{provider}");
        assert_eq!(server.requests().len(), 3, "{provider}");
    }
}
