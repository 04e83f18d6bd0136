//! Secrets given through every input and searched for in every artefact; who sees which key; who may read what is
//! written.

use std::{
    fs,
    io::ErrorKind,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use inspan_model_server::{Block, Turn};
use inspan_testkit::{MCP_SERVER, write_program};
use serde_json::{Value, json};

use crate::api_agents::server;
use crate::program::{Ran, flow_folder, folder_with, home, inspan, paths_below, program, ran, shell};
use crate::serving::client::Server;

/// A secret for each class of names, and the forms in which one is in a value.
const SECRETS: &[(&str, &str, &str)] = &[
    ("ANTHROPIC_CUSTOM_HEADERS", "x-api-key: hdr-secret-111111", "hdr-secret-111111"),
    ("API_KEY_PROD", "apikeyprod-666666", "apikeyprod-666666"),
    ("AUTH", "auth-aaaaaaaaa", "auth-aaaaaaaaa"),
    ("AWS_ACCESS_KEY_ID", "AKIAABCDEFGHIJKLMNOP", "AKIAABCDEFGHIJKLMNOP"),
    ("COOKIE", "cookie-88888888", "cookie-88888888"),
    ("DATABASE_URL", "postgres://user:hunter2hunter2@db/x", "hunter2hunter2"),
    ("DB_PASS", "dbpass-333333", "dbpass-333333"),
    ("DEPLOY", "blue-42-blue", "blue-42-blue"),
    ("GITHUB_PAT", "ghp_abcdefghijklmnopqrstuvwxyz0123456789", "ghp_abcdefghijklmnopqrstuvwxyz0123456789"),
    ("GOOGLE_CREDENTIALS", "cred-55555555", "cred-55555555"),
    ("MY_TOKEN", "ab\"cd\\ef/gh<i>&jklmno", "ab\"cd\\ef/gh<i>&jklmno"),
    ("OPENAI_API_KEY", "sk-proj-PLANTEDOAI987654321", "sk-proj-PLANTEDOAI987654321"),
    ("PGPASSWORD", "pg-pass-word-123", "pg-pass-word-123"),
    (
        "PEM_KEY",
        "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n-----END PRIVATE KEY-----",
        "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC",
    ),
    ("UNI_SECRET", "pässwörd-Ünïcode-🐂-12345", "pässwörd-Ünïcode-🐂-12345"),
];

const LEAKING: &str = "
flow:
  name: leaking
  secrets: [DEPLOY, OPENAI_API_KEY, ANTHROPIC_CUSTOM_HEADERS]
nodes:
  - { id: a, type: exec, input: { argv: [sh, -c, 'env; env >&2; printf %s \"$MY_TOKEN\" | base64 -w0'] } }
  - { id: b, type: exec, policy: { continueOnError: true }, input: { argv: [sh, -c, 'env >&2; env; exit 3'] } }
  - id: c
    type: exec
    input:
      argv: [sh, -c, 'printf %s \"$OWN_TOKEN\" | head -c 6; sleep 0.4; printf %s \"$OWN_TOKEN\" | tail -c +7']
      env: { OWN_TOKEN: '{{ flow.input.own }}' }
  - { id: d, type: human.input, dependsOn: [a], input: { prompt: '{{ a.stdout }}', default: x } }
  - { id: e, type: exec, input: { argv: [python3, -c, 'import os, json; print(json.dumps(dict(os.environ)))'], parse: json } }
  - { id: f, type: control.fail, dependsOn: [a, b, c, d, e], input: { message: '{{ a.stderr }}' } }
";

/// Everything below a folder but the flow.
fn artefacts(folder: &Path) -> Vec<PathBuf> {
    let mut found = paths_below(folder);
    found.retain(|path| !path.ends_with("flow.yaml"));
    found
}

/// Everything that calls printed and that the files below a folder hold, with the place of each.
fn texts(folder: &Path, calls: Vec<Ran>) -> Vec<(String, String)> {
    let artefacts = artefacts(folder);
    assert!(artefacts.iter().any(|path| path.ends_with("sessions.db")));
    let written = artefacts.iter().filter(|path| path.is_file()).map(|path| (path, fs::read(path).unwrap()));
    let mut texts: Vec<(String, String)> = written
        .map(|(path, bytes)| (path.display().to_string(), String::from_utf8_lossy(&bytes).into()))
        .collect();
    texts.extend(
        calls.into_iter().enumerate().map(|(at, ran)| (format!("call {at}"), ran.stdout + &ran.stderr)),
    );
    texts
}

/// What shows a session that has ended.
const LOOKS: &[&[&str]] = &[
    &["show", "s"],
    &["show", "s", "--json"],
    &["logs", "s"],
    &["logs", "s", "--json"],
    &["why", "s"],
    &["ps", "-a", "--json"],
    &["store", "export", "s"],
    &["export", "s", "--html", "page.html"],
];

/// The secret as it is, and as JSON escapes it, once and twice.
fn forms(secret: &str) -> [String; 3] {
    let inside = |text: &str| {
        let quoted = Value::from(text).to_string();
        quoted[1..quoted.len() - 1].to_owned()
    };
    [secret.to_owned(), inside(secret), inside(&inside(secret))]
}

/// A run that leaves every artefact: a session, a recording and a file of events.
const RUN: &[&str] =
    &["run", "flow.yaml", "--no-input", "--session-id", "s", "--record", "tapes", "--events", "events.jsonl"];

#[test]
fn a_secret_that_is_planted_in_any_way_reaches_no_artefact() {
    let folder = &flow_folder(LEAKING);
    let with_secrets = |arguments: &[&str]| -> Ran {
        let mut command = program(folder, arguments);
        command.envs(SECRETS.iter().map(|(name, value, _)| (name, value)));
        ran(folder, command.env("INSPAN_LOG", "trace"))
    };
    let mut seen = vec![with_secrets(&[RUN, &["-i", "own=own-secret-1234"]].concat())];
    assert_eq!(seen[0].code, Some(1), "{}", seen[0].stderr);
    assert!(!seen[0].stderr.contains("to be recognised"), "{}", seen[0].stderr);
    seen.extend(LOOKS.iter().map(|arguments| inspan(folder, arguments)));
    seen.extend([&["doctor"][..], &["doctor", "--json"]].map(with_secrets));
    seen.push(with_secrets(&[
        "run",
        "flow.yaml",
        "--no-input",
        "--json",
        "--no-store",
        "-i",
        "own=own-secret-1234",
    ]));
    let texts = texts(folder, seen);
    let own = [("OWN_TOKEN", "", "own-secret-1234"), ("OWN_TOKEN", "", "cret-1234")];
    let mut leaks = Vec::new();
    for (name, _, secret) in SECRETS.iter().chain(&own) {
        for (place, text) in &texts {
            // What is given as input is stored and shown as it is given: a session that is resumed needs it.
            let is_looked_at = *name != "OWN_TOKEN"
                || ["events.jsonl", "/tapes/", "call 0"].iter().any(|wanted| place.contains(wanted));
            if is_looked_at && forms(secret).iter().any(|form| text.contains(form.as_str())) {
                leaks.push(format!("{name} in {place}"));
            }
        }
    }
    assert_eq!(leaks, [""; 0]);
    let (_, events) = texts.iter().find(|(place, _)| place.ends_with("events.jsonl")).unwrap();
    for (name, ..) in SECRETS {
        assert!(events.contains(&format!("[redacted {name}]")), "{name} was not printed at all");
    }
}

/// An agent whose model and tools show it the secrets, and one whose vendor shows them in an error.
const TOLD: &str = "
flow: { name: told }
nodes:
  - { id: a, type: anthropic.agent, input: { prompt: go, options: { allowedTools: [mcp__herd__secret, mcp__herd__die] } } }
  - { id: b, type: human.input, dependsOn: [a], input: { prompt: '{{ a.text }}', default: x } }
  - { id: c, type: anthropic.agent, dependsOn: [b], input: { prompt: '{{ a.text }}' } }
";

#[test]
fn a_secret_that_an_agent_meets_reaches_no_artefact() {
    let (token, key, own) = ("told-token-4711-xyz", "sk-ant-told-0123456789", "config-token-0815-abc");
    let folder = &flow_folder(TOLD);
    fs::write(folder.join("herd.sh"), MCP_SERVER).unwrap();
    let settings = "[providers.anthropic.options.mcpServers.herd]\ncommand = 'sh'\nargs = ['herd.sh']\nenv = { HERD_TOKEN = '${HERD_PASS}' }\n";
    fs::write(folder.join("inspan.toml"), settings).unwrap();
    let words = format!("they are {token} and {key}");
    let calls = Turn {
        blocks: vec![
            Block::text(&words),
            Block::tool("mcp__herd__say", json!({ "text": words })),
            Block::tool("mcp__herd__secret", json!({ "why": words })),
            Block::tool("mcp__herd__die", json!({})),
        ],
        ..Turn::default()
    };
    let mut refused = Turn::error(400);
    refused.http_error.as_mut().unwrap().message = format!("no such {words}");
    let turns = [calls, Turn::text(&words), refused];
    let server = server(turns);
    let mut command = program(folder, RUN);
    command
        .env("ANTHROPIC_BASE_URL", server.base_url())
        .env("ANTHROPIC_API_KEY", key)
        .env("MY_TOKEN", token)
        .env("HERD_PASS", own);
    let mut seen = vec![ran(folder, command.env("INSPAN_LOG", "trace"))];
    assert_eq!((seen[0].code, server.requests().len()), (Some(1), 3), "{}", seen[0].stderr);
    seen.extend(LOOKS.iter().map(|arguments| inspan(folder, arguments)));
    // The vendor gets a conversation back word for word.
    let texts = texts(folder, seen).into_iter();
    let texts: Vec<(String, String)> =
        texts.filter(|(place, _)| !place.contains("/conversations/")).collect();
    let mut leaks = Vec::new();
    for (name, secret) in [("MY_TOKEN", token), ("ANTHROPIC_API_KEY", key), ("HERD_TOKEN", own)] {
        let leaking = texts.iter().filter(|(_, text)| text.contains(secret));
        leaks.extend(leaking.map(|(place, _)| format!("{name} in {place}")));
        let (_, events) = texts.iter().find(|(place, _)| place.ends_with("events.jsonl")).unwrap();
        assert!(events.contains(&format!("[redacted {name}]")), "{name} did not come by");
    }
    assert_eq!(leaks, [""; 0]);
}

#[test]
fn a_setting_that_holds_a_key_is_refused_and_not_shown() {
    let folder = &flow_folder("flow: { name: f }\nnodes: [{ id: a, type: echo, input: { text: x } }]\n");
    let key = "ghp_abcdefghijklmnopqrstuvwxyz0123456789";
    let rows = [
        (format!("[providers.claude]\nmodel = '{key}'\n"), 2, "`model`"),
        (format!("\nprovider = '{key}'\n"), 2, "`provider`"),
        (format!("[budget]\nusd = '{key}'\n"), 2, "`usd`"),
        (format!("[agents.rev]\ntype = '{key}'\n"), 2, "`type`"),
        (format!("[agents.rev]\ntype = 'claude'\nprompt = 'Use {key}.'\n"), 3, "`prompt`"),
        (format!("\n{key} = 1\n"), 2, "a name"),
        (format!("\n[providers.{key}]\nmodel = 'x'\n"), 2, "a name"),
    ];
    for (settings, line, name) in rows {
        fs::write(folder.join("inspan.toml"), &settings).unwrap();
        for command in [&["run", "flow.yaml"][..], &["config"]] {
            let ran = inspan(folder, command);
            assert_eq!(ran.code, Some(4), "{settings}\n{}", ran.stderr);
            let why = format!("inspan.toml:{line}: {name} looks like a secret");
            assert!(ran.stderr.contains(&why) && !(ran.stdout + &ran.stderr).contains(key), "{}", ran.stderr);
        }
    }
    fs::remove_file(folder.join("inspan.toml")).unwrap();
    for variable in ["INSPAN_PROVIDER", "INSPAN_BUDGET_USD", "INSPAN_CLAUDE_MODEL"] {
        let ran = ran(folder, program(folder, &["config"]).env(variable, key))
            .says(&format!("{variable}: it looks like a secret"));
        assert!(ran.code == Some(4) && !(ran.stdout + &ran.stderr).contains(key));
    }
}

#[test]
fn what_is_no_secret_is_never_changed() {
    let folder = &flow_folder(
        "flow: { name: harmless }
nodes:
  - { id: a, type: exec, input: { argv: [sh, -c, 'echo \"{\\\"timestamp\\\": 5, \\\"mode\\\": \\\"production\\\"}\"'], parse: json } }
  - { id: b, type: echo, dependsOn: [a], input: { text: '{{ a.value.timestamp }} {{ a.value.mode }}' } }
",
    );
    let mut command = program(folder, &["run", "flow.yaml"]);
    let ran = ran(folder, command.env("PARTITION_KEY", "timestamp").env("AUTH_MODE", "production"));
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "5 production\n"));
}

#[test]
fn a_session_of_a_cluster_needs_no_secret_on_the_machine_of_its_caller() {
    let header = "flow: { name: f, secrets: [DEPLOY_TOKEN] }";
    let folder =
        &flow_folder(&format!("{header}\nnodes: [{{ id: a, type: exec, input: {{ argv: ['true'] }} }}]\n"));
    let run = |engine: &str| inspan(folder, &["run", "flow.yaml", "--engine", engine]);
    run("local").expect(4).says("DEPLOY_TOKEN");
    // Nobody is there.
    let there = run(&format!("temporal://127.0.0.1:9/default?sessions={}", folder.display()));
    assert!(there.code != Some(0) && !there.stderr.contains("DEPLOY_TOKEN"), "{}", there.stderr);
}

#[test]
fn a_program_sees_a_vendors_key_only_if_the_flow_names_it() {
    let script = "echo $ANTHROPIC_API_KEY/$ANTHROPIC_BASE_URL/$DEPLOY | tr a-z b-za";
    let node = format!("nodes: [{{ id: a, type: exec, input: {{ argv: [sh, -c, '{script}'] }} }}]\n");
    let run = |header: &str| {
        let folder = &flow_folder(&format!("{header}\n{node}"));
        let mut command = program(folder, &["run", "flow.yaml"]);
        command
            .env("ANTHROPIC_API_KEY", "sk-ant-key-0123")
            .env("ANTHROPIC_BASE_URL", "u")
            .env("DEPLOY", "green");
        ran(folder, &mut command).stdout
    };
    assert_eq!(run("flow: { name: f }"), "/v/hsffo\n");
    assert_eq!(run("flow: { name: f, secrets: [ANTHROPIC_API_KEY] }"), "tl-bou-lfz-0123/v/hsffo\n");
    // Each file names those of its own programs.
    let [with, without] = ["secrets: [ANTHROPIC_API_KEY]", "version: 1.0.0"]
        .map(|header| format!("flow: {{ name: f, {header} }}\n{node}"));
    let outputs = "outputs: { own: '{{ a.stdout }}', sub: '{{ s.outputs.a.stdout }}' }, name: f";
    let sub = |own: &str, other: &str| {
        let files = [
            (
                "flow.yaml",
                own.replace("name: f", outputs).replace(
                    "nodes: [",
                    "nodes: [{ id: s, type: control.subflow, input: { file: sub.yaml } }, ",
                ),
            ),
            ("sub.yaml", other.to_owned()),
        ];
        let folder = &folder_with(&files.each_ref().map(|(name, text)| (*name, text.as_str())));
        let mut command = program(folder, &["run", "flow.yaml"]);
        let ran = ran(folder, command.env("ANTHROPIC_API_KEY", "sk-ant-key-0123"));
        let sees = |output: &str| ran.stdout.contains(&format!("{output}: tl-bou"));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        [sees("own"), sees("sub")]
    };
    assert_eq!([sub(&with, &without), sub(&without, &with)], [[true, false], [false, true]]);
    let folder = &flow_folder(&format!("flow: {{ name: f, secrets: [NOT_SET] }}\n{node}"));
    let said = "the environment variable NOT_SET, which the `secrets` of the flow name, is not set";
    inspan(folder, &["run", "flow.yaml"]).expect(4).says(said);
}

#[test]
fn a_secret_that_is_not_set_is_reported_with_whose_it_is() {
    let files = [
        ("flow.yaml", "flow: { name: f, packs: [./p] }\nnodes: [{ id: a, type: pk.one }]\n"),
        ("p/pack.yaml", "name: pk\nsecrets: [NOT_SET]\nnodes: { one: { exec: { argv: [echo] } } }\n"),
        (
            "outer.yaml",
            "flow: { name: o }\nnodes: [{ id: a, type: control.subflow, input: { file: sub.yaml } }]\n",
        ),
        (
            "sub.yaml",
            "flow: { name: sub, secrets: [NOT_SET] }\nnodes: [{ id: a, type: echo, input: { text: x } }]\n",
        ),
    ];
    let folder = &folder_with(&files);
    for (file, owner) in [("flow.yaml", "the pack `pk`"), ("outer.yaml", "the flow `sub`")] {
        let said =
            format!("the environment variable NOT_SET, which the `secrets` of {owner} name, is not set");
        inspan(folder, &["run", file]).expect(4).says(&said);
    }
}

#[test]
fn a_session_goes_on_only_where_the_secrets_of_its_flow_are_set() {
    let flow = "\
flow: { name: f, secrets: [DEPLOY_TOKEN] }
nodes:
  - { id: ask, type: human.input, input: { prompt: Go on? } }
  - { id: tell, type: exec, dependsOn: [ask], input: { argv: [sh, -c, 'echo $DEPLOY_TOKEN'] } }
";
    let folder = &flow_folder(flow);
    let with = |arguments: &[&str]| {
        let mut command = program(folder, arguments);
        ran(folder, command.env("DEPLOY_TOKEN", "tl-bou-lfz-0123"))
    };
    for session in ["s", "t"] {
        assert_eq!(with(&["run", "flow.yaml", "--session-id", session, "--no-input"]).code, Some(3));
    }
    let said = "the environment variable DEPLOY_TOKEN, which the `secrets` of the flow name, is not set";
    for arguments in [
        &["resume", "s", "--no-input"][..],
        &["resume", "s", "--detach"],
        &["reply", "s", "no"],
        &["reply", "s", "no", "--detach"],
        &["fork", "s", "--session-id", "u"],
        // What these write is passed on.
        &["test", "--from", "s"],
        &["export", "s", "--html", "s.html"],
    ] {
        inspan(folder, arguments).expect(4).says(said);
    }
    assert!(!folder.join("s.html").exists() && !folder.join("flow.test.yaml").exists());
    inspan(folder, &["resume", "s", "--plan"]).expect(0);
    let server = Server::start(folder);
    let client = server.client();
    for command in [json!({ "type": "reply", "content": "no" }), json!({ "type": "resume" })] {
        let refused = client.post("/api/v1/sessions/s/commands", &json!({ "command": command }));
        assert_eq!((refused.status, refused.text.contains(said)), (500, true), "{}", refused.text);
    }
    // What was refused is not stored: the next answer is the first.
    let answered = with(&["reply", "s", "yes"]);
    assert_eq!(answered.code, Some(0), "{}", answered.stderr);
    inspan(folder, &["logs", "s", "--json", "--type", "session:reply"]).prints(r#""content":"yes""#);
    // A program that only stores an answer or stops a session starts nothing.
    inspan(folder, &["reply", "t", "yes", "--no-resume"]).expect(0);
    inspan(folder, &["stop", "t"]).expect(0);
}

#[test]
fn a_session_is_stopped_only_where_the_secrets_of_what_cleans_up_are_set() {
    let flow = "\
flow: { name: f, secrets: [DEPLOY_TOKEN] }
nodes:
  - { id: ask, type: human.input, input: { prompt: Go on? } }
  - { id: clean, type: exec, dependsOn: [{ node: ask, on: any }], input: { argv: [sh, -c, 'echo cleaned >> did'] } }
";
    let folder = &flow_folder(flow);
    let with = |arguments: &[&str]| {
        let mut command = program(folder, arguments);
        ran(folder, command.env("DEPLOY_TOKEN", "tl-bou-lfz-0123"))
    };
    assert_eq!(with(&["run", "flow.yaml", "--session-id", "s", "--no-input"]).code, Some(3));
    let said = "the environment variable DEPLOY_TOKEN, which the `secrets` of the flow name, is not set";
    inspan(folder, &["stop", "s"]).expect(4).says(said);
    let server = Server::start(folder);
    let command = json!({ "command": { "type": "stop" } });
    let refused = server.client().post("/api/v1/sessions/s/commands", &command);
    assert_eq!((refused.status, refused.text.contains(said)), (500, true), "{}", refused.text);
    // What was refused is not stored, and the session waits as before.
    let log = inspan(folder, &["logs", "s", "--json", "--type", "session:abort"]).stdout;
    assert!(!log.contains("session:abort"), "{log}");
    assert!(!folder.join("did").exists());
    let stopped = with(&["stop", "s"]);
    assert_eq!(stopped.code, Some(0), "{}", stopped.stderr);
    assert_eq!(fs::read_to_string(folder.join("did")).unwrap(), "cleaned\n");
    // One that has ended needs none.
    inspan(folder, &["stop", "s"]).says("ended");
}

#[test]
fn a_page_or_a_report_that_is_passed_on_shows_no_key_that_an_input_or_the_flow_holds() {
    let key = "sk-ant-api03-planted-in-the-input-0123456789";
    let flow = format!(
        "flow: {{ name: f, input: {{ own: none }} }}\nnodes:\n  - {{ id: a, type: exec, input: {{ argv: [echo, '{key}', '{{{{ flow.input.own }}}}'] }} }}\n"
    );
    let folder = &flow_folder(&flow);
    let run = ["run", "flow.yaml", "--session-id", "s", "-i", &format!("own={key}")];
    inspan(folder, &run).expect(0);
    inspan(folder, &["export", "s", "--html", "page.html"]).expect(0);
    let page = fs::read_to_string(folder.join("page.html")).unwrap();
    assert_eq!(inspan(folder, &["export", "s", "--html", "-"]).stdout, page);
    let report = Server::start(folder).client().get("/api/v1/sessions/s/report").text;
    for text in [page, report] {
        assert!(text.contains("[redacted]") && !text.contains(key), "{text}");
    }
}

#[test]
fn what_is_written_is_its_owners_alone_whatever_the_umask() {
    let folder = &flow_folder(
        "flow: { name: f }\nnodes: [{ id: a, type: exec, input: { argv: [sh, -c, 'umask'] } }]\n",
    );
    fs::write(folder.join("old.jsonl"), "").unwrap();
    fs::set_permissions(folder.join("old.jsonl"), fs::Permissions::from_mode(0o666)).unwrap();
    let script = "umask 000; \"$0\" run flow.yaml --session-id s --record tapes/deep --events events.jsonl \
                  && \"$0\" run flow.yaml --events old.jsonl --no-store && \"$0\" run flow.yaml --detach --session-id d \
                  && \"$0\" logs d --follow >/dev/null && \"$0\" store export s -o exported.jsonl \
                  && \"$0\" export s --html exported.html";
    let ran = ran(folder, &mut shell(folder, script)).expect(0);
    assert!(ran.stdout.starts_with("0000\n"), "a program keeps the umask: {}", ran.stdout);
    let open: Vec<(String, PathBuf)> = artefacts(folder)
        .into_iter()
        .filter_map(|path| {
            let mode = match fs::metadata(&path) {
                Err(error) if error.kind() == ErrorKind::NotFound => return None,
                found => found.unwrap().permissions().mode() & 0o777,
            };
            (mode & 0o077 != 0).then(|| (format!("{mode:o}"), path))
        })
        .collect();
    assert_eq!(open, []);
    assert!(home(folder).join("background/d.log").is_file());
}

#[test]
fn a_flow_with_programs_replays_whole_and_runs_none() {
    let flow = "
flow: { name: whole, input: { word: ox } }
nodes:
  - id: test
    type: exec
    input: { argv: [sh, -c, 'echo ran >> did; date +%s%N; echo {{ flow.input.word }} >&2; exit 3'], allowExit: [3] }
  - { id: say, type: scripted.agent, dependsOn: [test], input: { prompt: 'about {{ test.stdout }}', options: { turns: [[{ text: words }]] } } }
  - { id: commit, type: exec, dependsOn: [say], policy: { continueOnError: true }, input: { argv: [sh, -c, 'echo ran >> did; echo no; exit 1'], stdin: '{{ say.text }}' } }
";
    let folder = &flow_folder(flow);
    let run = |arguments: &[&str]| {
        inspan(
            folder,
            &[&["run", "flow.yaml", "--json", "--no-store", "--session-id", "s"], arguments].concat(),
        )
    };
    let outputs = |ran: &Ran| ran.json()["outputs"].clone();
    let recorded = run(&["--record", "tapes"]);
    let replayed = run(&["--replay=tapes"]);
    assert_eq!((recorded.code, replayed.code), (Some(0), Some(0)), "{}", replayed.stderr);
    assert_eq!(outputs(&replayed), outputs(&recorded));
    assert_eq!(fs::read_to_string(folder.join("did")).unwrap(), "ran\nran\n");

    run(&["--replay=tapes", "-i", "word=mule"])
        .expect(4)
        .says("this request of `exec`")
        .says("echo ox")
        .says("echo mule");
    assert_eq!(fs::read_to_string(folder.join("did")).unwrap(), "ran\nran\n");
}

#[test]
fn recordings_from_before_programs_were_recorded_are_played_and_programs_run() {
    let flow = "
flow: { name: old }
nodes:
  - { id: a, type: exec, input: { argv: [sh, -c, 'echo ran >> did; echo oxen'] } }
  - { id: b, type: scripted.agent, dependsOn: [a], input: { prompt: 'about {{ a.stdout }}', options: { turns: [[{ text: words }]] } } }
";
    let folder = &flow_folder(flow);
    inspan(folder, &["run", "flow.yaml", "--no-store", "--record", "tapes"]).expect(0);
    for path in paths_below(&folder.join("tapes")) {
        let mut recording: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        if recording["provider"] == "exec" {
            fs::remove_file(&path).unwrap();
        } else {
            recording["version"] = json!(1);
            fs::write(&path, recording.to_string()).unwrap();
        }
    }
    let replayed = inspan(folder, &["run", "flow.yaml", "--no-store", "--replay=tapes"]);
    assert_eq!((replayed.code, replayed.stdout.as_str()), (Some(0), "words\n"), "{}", replayed.stderr);
    assert_eq!(fs::read_to_string(folder.join("did")).unwrap(), "ran\nran\n");
}

#[test]
fn what_a_failing_program_printed_is_seen_by_people_and_by_the_next_node() {
    let folder = &flow_folder(
        "flow: { name: so }
nodes:
  - { id: t, type: exec, policy: { continueOnError: true }, input: { argv: [sh, -c, \"echo 'test foo ... FAILED'; echo 'left == right'; exit 1\"] } }
  - { id: fix, type: echo, dependsOn: [t], input: { text: '{{ t.error.detail.stdout }}' } }
",
    );
    let ran = inspan(folder, &["run", "flow.yaml"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "test foo ... FAILED\nleft == right\n"));
    assert!(ran.stderr.contains("│ test foo ... FAILED"), "{}", ran.stderr);
    assert!(ran.stderr.contains("`sh` exited with code 1: left == right"), "{}", ran.stderr);
}

#[test]
fn an_input_that_holds_a_secret_is_warned_of() {
    let folder = &flow_folder(
        "flow: { name: f }\nnodes: [{ id: a, type: echo, input: { text: '{{ flow.input.key }}' } }]\n",
    );
    let stored = "warning: the input `key` contains a secret and is stored with the session unchanged";
    let rows: [(&[&str], &[&str]); 2] = [(&[], &[stored]), (&["--no-store"], &[])];
    for (arguments, expected) in rows {
        let arguments =
            [&["run", "flow.yaml", "-i", "key=planted-42-x", "-i", "other=x"], arguments].concat();
        let ran = ran(folder, program(folder, &arguments).env("MY_TOKEN", "planted-42-x"));
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "[redacted MY_TOKEN]\n"));
        let warned: Vec<&str> = ran.stderr.lines().filter(|line| line.starts_with("warning")).collect();
        assert_eq!(warned, expected);
    }
}

#[test]
fn a_secret_that_cannot_be_recognised_is_warned_of() {
    let folder = &flow_folder(
        "flow: { name: f, secrets: [PIN, CODE] }\nnodes: [{ id: a, type: exec, input: { argv: [sh, -c, 'echo $PIN $CODE'] } }]\n",
    );
    let mut command = program(folder, &["run", "flow.yaml", "--no-store"]);
    let ran = ran(folder, command.env("PIN", "123").env("CODE", "4711"));
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "123 [redacted CODE]\n"));
    let warned: Vec<&str> = ran.stderr.lines().filter(|line| line.starts_with("warning")).collect();
    let expected = "warning: the secret PIN is too short or too common to be recognised: it is shown and stored wherever it occurs";
    assert_eq!(warned, [expected]);
}

#[test]
fn what_a_flow_computes_of_an_input_with_a_secret_has_none() {
    let folder = &flow_folder(
        "
flow: { name: f, input: { key: '' }, outputs: { used: '{{ flow.input.key }}', all: '{{ each }}' } }
nodes:
  - id: each
    type: control.foreach
    input: { items: ['{{ flow.input.key }}'], onItemError: continue }
    body:
      nodes:
        - { id: e, type: echo, input: { text: '{{ item }}' } }
        - { id: f, type: exec, dependsOn: [e], input: { argv: [sh, -c, 'test {{ item }} != planted-42-x'] } }
",
    );
    let run = |arguments: &[&str]| ran(folder, program(folder, arguments).env("MY_TOKEN", "planted-42-x"));
    let done = run(&["run", "flow.yaml", "-i", "key=planted-42-x", "--session-id", "s"]);
    // What a frame is given is input, as it was given; here a program got it and failed.
    assert!(done.stderr.contains("`sh` exited with code 1"), "{}", done.stderr);
    assert!(done.stdout.contains("used: [redacted MY_TOKEN]"), "{}", done.stdout);
    assert!(!done.stdout.contains("planted-42-x"), "{}", done.stdout);
    let ends =
        ["task:complete", "task:failed", "frame:complete", "frame:failed", "harness:complete"].join(",");
    let events = run(&["logs", "s", "--json", "--type", &ends]);
    assert!(
        events.stdout.contains("harness:complete") && !events.stdout.contains("planted-42-x"),
        "{}",
        events.stdout
    );
}

#[test]
fn a_secret_that_a_person_says_is_in_no_event_and_no_export() {
    let flow = "
flow: { name: said }
nodes:
  - { id: ask, type: human.input, input: { prompt: Which? } }
  - { id: use, type: exec, dependsOn: [ask], input: { argv: [echo, 'got {{ ask.content }}'] } }
";
    let folder = &flow_folder(flow);
    let token = "told-token-4711-xyz";
    let run = |arguments: &[&str]| {
        let mut command = program(folder, arguments);
        ran(folder, command.env("MY_TOKEN", token))
    };
    let mut seen = vec![run(&["run", "flow.yaml", "--no-input", "--session-id", "s"])];
    seen.push(run(&["resume", "s", "--no-input", "-m", &format!("use {token} now")]));
    seen.push(run(&["reply", "s", token]));
    let codes: Vec<_> = seen.iter().map(|ran| ran.code).collect();
    assert_eq!(codes, [Some(3), Some(3), Some(0)], "{}", seen[2].stderr);
    let events = run(&["logs", "s", "--json"]);
    let clean = "[redacted MY_TOKEN]";
    for said in [format!("\"message\":\"use {clean} now\""), format!("\"content\":\"{clean}\"")] {
        assert!(events.stdout.contains(&said), "{said} is not in {}", events.stdout);
    }
    assert!(events.stdout.contains(&format!("got {clean}")), "{}", events.stdout);
    seen.extend([events, run(&["logs", "s"]), run(&["show", "s", "--json"]), run(&["why", "s"])]);
    let exported = run(&["store", "export", "s"]).prints(r#""command":{"command":"reply""#);
    seen.push(exported);
    let leaks: Vec<_> =
        seen.iter().filter(|ran| ran.stdout.contains(token) || ran.stderr.contains(token)).collect();
    assert!(leaks.is_empty(), "{}", leaks[0].stdout);
}

#[test]
fn doctor_gives_no_agent_the_key_of_a_cluster() {
    let folder = &flow_folder("name: none\nnodes: []\n");
    let seen = folder.join("seen");
    for name in ["claude", "codex", "opencode"] {
        let script = format!("#!/bin/sh\n/usr/bin/env >> '{}'\nexit 1\n", seen.display());
        write_program(&folder.join(name), &script).unwrap();
    }
    for arguments in [&["doctor"][..], &["doctor", "--offline"]] {
        let mut doctor = program(folder, arguments);
        doctor.env("PATH", folder).env("TEMPORAL_API_KEY", "cluster-key-123");
        ran(folder, &mut doctor);
    }
    let seen = fs::read_to_string(&seen).unwrap();
    assert!(seen.contains("HOME=") && !seen.contains("cluster-key-123"), "{seen}");
}
