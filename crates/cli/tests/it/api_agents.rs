//! Flows whose agents ask a vendor's API, against the scripted model server: what the user sees, that a conversation
//! continues in another process, and that the key is stored nowhere.

use std::{fs, path::Path, process::Command, time::Duration};

use inspan_model_server::{ExchangeState, Matcher, ModelServer, RecordedRequest, Scenario, Turn};
use serde_json::{Value, json};

use crate::{
    processes::{signal, until},
    program::{Ran, program, ran},
};

/// What the checks have to know about one vendor.
pub(crate) struct Api {
    pub(crate) provider: &'static str,
    /// The variable of the key, and a key that may be stored nowhere.
    pub(crate) key: (&'static str, &'static str),
    /// The variable of the address, and what follows the server's own.
    pub(crate) address: (&'static str, &'static str),
    /// A model that thinks as the options say.
    pub(crate) model: &'static str,
    /// What a request calls all that was said.
    pub(crate) said: &'static str,
}

/// The result of the flow of three agents.
pub(crate) struct Reviewed {
    /// The outputs of its nodes.
    pub(crate) outputs: Value,
    /// The requests, in their order.
    pub(crate) requests: Vec<RecordedRequest>,
}

pub(crate) fn server(turns: impl IntoIterator<Item = Turn>) -> ModelServer {
    ModelServer::start(Scenario { aux_detect: false, ..Scenario::of(turns) }).unwrap()
}

pub(crate) fn folder(flow: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("flow.yaml"), flow).unwrap();
    folder
}

/// Every file below a folder, read as text.
pub(crate) fn files(folder: &Path, text: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, text);
        } else {
            text.push_str(&String::from_utf8_lossy(&fs::read(&path).unwrap()));
        }
    }
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
    pub(crate) fn command(&self, folder: &Path, server: &ModelServer, arguments: &[&str]) -> Command {
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

    pub(crate) fn a_flow_of_three_agents_mends_its_output_and_goes_on_in_a_conversation(&self) -> Reviewed {
        let server = server(answers());
        let folder = folder(&self.review());
        let arguments = ["run", "flow.yaml", "--json", "--events", "events.jsonl", "--record", "recordings"];
        let ran = self.run(folder.path(), &server, &arguments);
        assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
        let result: Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!(result["outputs"]["again"]["text"], "Oxen pull well.");
        let requests = server.requests();
        let said: Vec<usize> = requests.iter().map(|request| self.said(request).len()).collect();
        let first = &self.said(&requests[3])[0]["content"][0]["text"];
        assert_eq!((said, first), (vec![1, 1, 3, 3], &json!("write about oxen")));
        let mut kept = format!("{}{}", ran.stdout, ran.stderr);
        files(folder.path(), &mut kept);
        let named = format!("\"provider\":\"{}\"", self.provider);
        assert!(kept.contains("Oxen pull well.") && kept.contains(&named));
        assert!(!kept.contains(self.key.1));

        // What was recorded answers without any server.
        let replayed = self.alone(folder.path(), &["run", "flow.yaml", "--json", "--replay", "recordings"]);
        let replayed: Value = serde_json::from_str(&replayed.stdout).unwrap();
        assert_eq!(
            (&replayed["outputs"]["again"]["text"], server.requests().len()),
            (&json!("Oxen pull well."), 4)
        );
        Reviewed { outputs: result["outputs"].clone(), requests }
    }

    pub(crate) fn an_overloaded_server_is_asked_again_by_the_flow_and_by_nobody_else(&self) {
        let flow = format!(
            "
flow: {{ name: again }}
nodes:
  - {{ id: a, type: {}.agent, input: {{ prompt: hello }}, policy: {{ retry: {{ maxAttempts: 3, backoff: 10ms }} }} }}
",
            self.provider
        );
        let server = server([Turn::error(529), Turn::error(500), Turn::text("Here.")]);
        let folder = folder(&flow);
        let ran = self.run(folder.path(), &server, &["run", "flow.yaml", "--json"]);
        assert_eq!((ran.code, server.requests().len()), (Some(0), 3), "{}{}", ran.stdout, ran.stderr);
        assert!(server.requests().iter().all(|request| self.said(request).len() == 1));
    }

    pub(crate) fn a_flow_that_was_interrupted_or_killed_goes_on_in_its_conversation(&self) {
        let flow = format!(
            "
flow: {{ name: long }}
nodes:
  - {{ id: a, type: {}.agent, input: {{ prompt: hello }} }}
",
            self.provider
        );
        let stalls = Turn { stall_after: Some(6), ..Turn::text("said before it was cancelled") };
        let roles: [(_, _, &[&str]); 2] =
            [("INT", Some(7), &["user", "assistant", "user"]), ("KILL", None, &["user", "user"])];
        for (name, code, expected) in roles {
            let server = server([stalls.clone(), Turn::text("Back.")]);
            let folder = folder(&flow);
            let arguments = ["run", "flow.yaml", "--session-id", "s", "--events", "events.jsonl"];
            let mut child = self.command(folder.path(), &server, &arguments).spawn().unwrap();
            let soon = Duration::from_secs(30);
            let stalled = |ending: ExchangeState| {
                move |seen: &[RecordedRequest]| seen.first().is_some_and(|one| one.ending == ending)
            };
            server.wait_until(soon, stalled(ExchangeState::Stalled)).unwrap();
            // What the server has sent is not yet what the flow has received.
            until("the flow heard something", || {
                fs::read_to_string(folder.path().join("events.jsonl"))
                    .is_ok_and(|events| events.contains("agent:text"))
            });
            signal(&child, name);
            assert_eq!(child.wait().unwrap().code(), code, "{name}");
            server.wait_until(soon, stalled(ExchangeState::ClientGone)).unwrap();
            let ran = self.run(folder.path(), &server, &["resume", "s", "--json"]);
            assert_eq!(ran.code, Some(0), "{name}: {}{}", ran.stdout, ran.stderr);
            let request = &server.requests()[1];
            let roles: Vec<&str> =
                self.said(request).iter().map(|message| message["role"].as_str().unwrap()).collect();
            assert_eq!(roles, expected, "{name}: {}", request.body);
        }
    }

    pub(crate) fn what_is_missing_or_not_offered_is_said_before_anything_starts(&self) {
        let server = server([Turn::text("never")]);
        let folder = folder(&self.review());
        let ran_without = ran(folder.path(), &mut program(folder.path(), &["run", "flow.yaml"]));
        assert_eq!(ran_without.code, Some(4));
        let (key, planted) = self.key;
        assert!(ran_without.stderr.contains("there is no key"), "{}", ran_without.stderr);
        assert!(ran_without.stderr.contains(&format!("set {key}")), "{}", ran_without.stderr);
        let odd = format!(
            "
flow: {{ name: odd }}
nodes:
  - {{ id: a, type: {}.agent, input: {{ prompt: hello, options: {{ permissionMode: plan }} }} }}
",
            self.provider
        );
        fs::write(folder.path().join("odd.yaml"), odd).unwrap();
        let refused = self.run(folder.path(), &server, &["run", "odd.yaml"]);
        assert_eq!((refused.code, server.requests().len()), (Some(2), 0));
        let told = format!("unknown option `permissionMode` for `{}.agent`", self.provider);
        assert!(refused.stderr.contains(&told), "{}", refused.stderr);
        let doctor = self.run(folder.path(), &server, &["doctor"]);
        assert!(doctor.stdout.contains(&format!("127.0.0.1, with {key}")), "{}", doctor.stdout);
        assert!(!format!("{}{}", doctor.stdout, doctor.stderr).contains(planted));
    }
}
