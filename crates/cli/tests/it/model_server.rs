//! `inspan model-server`: the example of its page from its first line to its last, how it ends, and what it refuses.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, ChildStdout},
};

use serde_json::Value;

use crate::{
    processes::signal,
    program::{flow_folder, folder_with, inspan, program, ran},
};

/// The first block of this language on the page.
fn block(language: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/model-server.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, rest) = page.split_once(&format!("```{language}\n")).unwrap();
    rest.split_once("```").unwrap().0.to_owned()
}

/// A server that is ended with the test.
struct Server {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Server {
    fn start(folder: &Path, arguments: &[&str]) -> Self {
        let arguments = [&["model-server", "--scenario", "model.json"], arguments].concat();
        let mut child = program(folder, &arguments).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self { child, stdout }
    }

    /// What it prints up to this line.
    fn said(&mut self, last: &str) -> String {
        let mut text = String::new();
        while !text.ends_with(last) {
            assert!(self.stdout.read_line(&mut text).unwrap() > 0, "it ended after: {text}");
        }
        text
    }

    /// Ends it by this signal; its code and all that it said on stderr.
    fn end(mut self, name: &str) -> (Option<i32>, String) {
        signal(&self.child, name);
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap().code(), said)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It has ended already unless the test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_example_of_the_page_runs_as_the_page_says() {
    let folder = &flow_folder(&block("yaml"));
    fs::write(folder.join("model.json"), block("json")).unwrap();
    let mut server = Server::start(folder, &["--json", "--requests", "requests.jsonl"]);
    let said: Value = serde_json::from_str(&server.said("\n}\n")).unwrap();

    let mut run = program(folder, &["run", "flow.yaml", "--json"]);
    for (name, value) in said["env"].as_object().unwrap() {
        run.env(name, value.as_str().unwrap());
    }
    let run = ran(folder, &mut run).expect(0);
    let result = run.json();
    assert_eq!(result["outputs"]["judge"]["structuredOutput"]["score"], 7);

    let (code, _) = server.end("INT");
    assert_eq!(code, Some(0));
    let requests = fs::read_to_string(folder.join("requests.jsonl")).unwrap();
    let requests: Vec<Value> = requests.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let turns: Vec<&Value> = requests.iter().map(|request| &request["turn"]["turn"]).collect();
    assert_eq!(turns, [0, 1, 2]);
    let key = said["env"]["ANTHROPIC_API_KEY"].as_str().unwrap();
    assert!(requests.iter().all(|request| request["headers"]["x-api-key"] != key));
}

#[test]
fn it_prints_how_clients_reach_it_and_why_no_turn_answered() {
    let folder = &folder_with(&[("model.json", &block("json").replace("false", "true"))]);
    let mut server = Server::start(folder, &[]);
    let said = server.said("'\n");
    let variable = |name: &str| {
        let start = format!("export {name}=");
        said.lines().find_map(|line| line.strip_prefix(&start)).unwrap().to_owned()
    };
    let base = variable("ANTHROPIC_BASE_URL");
    assert_eq!(variable("OPENAI_BASE_URL"), format!("{base}/v1"));
    let opencode: Value =
        serde_json::from_str(variable("OPENCODE_CONFIG_CONTENT").trim_matches('\'')).unwrap();
    assert_eq!(opencode["provider"]["scripted"]["options"]["baseURL"], format!("{base}/v1"));

    let mut ask = program(folder, &["agent", "Hello", "--provider", "anthropic", "--no-input"]);
    ran(folder, ask.env("ANTHROPIC_BASE_URL", &base).env("ANTHROPIC_API_KEY", "any")).expect(0);
    let (code, stderr) = server.end("TERM");
    assert_eq!(code, Some(0));
    for part in
        [&format!("base_url = \"{base}/v1\""), "Stopped after 1 request.", "1 of them offered no tools"]
    {
        assert!(stderr.contains(part), "{part} in {stderr}");
    }
}

#[test]
fn what_it_cannot_serve_is_refused_at_once() {
    let folder =
        &folder_with(&[("model.json", r#"{"turns": [{"times": 1}]}"#), ("good.json", &block("json"))]);
    let taken = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let rows: [(&[&str], &str); 4] = [
        (&["model.json"], "turn 0 of the scenario: `times` needs `when`"),
        (&["none.json"], "scenario none.json cannot be read: No such file or directory"),
        (&["good.json", "--port", &port], &format!("port {port} is in use")),
        (&["good.json", "--requests", "none/requests.jsonl"], "none/requests.jsonl cannot be written"),
    ];
    for (arguments, expected) in rows {
        let ran = inspan(folder, &[&["model-server", "--scenario"], arguments].concat()).expect(2);
        assert!(ran.stderr.contains(expected), "{expected} in {}", ran.stderr);
    }
}
