//! What channels use, and what else is secret, is in no message and nowhere in the session.

use super::{
    ALL, KEY, by_event, call, folder,
    receiver::{Answer, Receiver},
    webhook,
};
use crate::program::{inspan, program, ran};

#[test]
fn no_secret_is_sent() {
    let receiver = Receiver::start(|_, _| Answer::good());
    let flow = "
flow: { name: leaking, secrets: [DEPLOY] }
nodes:
  - { id: a, type: exec, policy: { continueOnError: true }, input: { argv: [sh, -c, 'echo \"$MY_TOKEN $DEPLOY $OPS_KEY\" >&2; exit 3'] } }
  - { id: q, type: human.input, input: { prompt: 'is {{ flow.input.word }} right?' } }
";
    let folder = &folder(flow, &webhook(&receiver, ALL));
    let mut command = call(folder, &["run", "--no-input", "-i", "word=my-token-123456", "--session-id", "s"]);
    command.env("MY_TOKEN", "my-token-123456").env("DEPLOY", "blue-42-blue");
    ran(folder, &mut command).expect(3);
    let sent: String =
        receiver.seen().iter().map(|request| format!("{:?}{}", request.headers, request.body)).collect();
    assert_eq!(by_event(&receiver.seen()).len(), 2, "{sent}");
    let secrets = ["my-token-123456", "blue-42-blue", KEY, "signing-key-of-the-test"];
    assert_eq!(secrets.map(|secret| sent.contains(secret)), [false; 4], "{sent}");
}

#[test]
fn what_a_channel_uses_is_a_secret_in_the_session_too() {
    let settings = "[channels.ops]\ntype = \"webhook\"\nurlEnv = \"OPS_URL\"\nsecretEnv = \"OPS\"\n\n[channels.phone]\ntype = \"ntfy\"\n\
                    topicEnv = \"PHONE\"\ntokenEnv = \"TOK\"\n";
    let flow = "
name: leaking
nodes:
  - { id: q, type: human.input, input: { prompt: go?, choices: [yes, no] } }
  - { id: a, type: exec, dependsOn: [q], input: { argv: [sh, -c, 'echo $OPS_URL $OPS; echo $PHONE $TOK >&2; exit 3'] } }
";
    let folder = &folder(flow, settings);
    let values = [
        ("OPS_URL", "http://127.0.0.1:1/hook-of-mine"),
        ("OPS", "sign-88-sign"),
        ("PHONE", "topic-of-mine"),
        ("TOK", "tk_99_mine"),
    ];
    let with_values = |arguments: &[&str]| {
        let mut command = program(folder, arguments);
        ran(folder, command.envs(values))
    };
    let asked = with_values(&["run", "--no-input", "--session-id", "s"]).expect(3);
    let ended = with_values(&["reply", "s", "--choice", "yes"]);
    let log = inspan(folder, &["logs", "s", "--json"]).stdout;
    let page = inspan(folder, &["export", "s", "--html", "-"]).stdout;
    for text in [asked.stdout + &asked.stderr, ended.stdout + &ended.stderr, log.clone(), page] {
        let shown = values.map(|(_, value)| text.contains(value));
        assert_eq!(shown, [false; 4], "{text}");
    }
    let redacted = values.map(|(name, _)| log.contains(&format!("[redacted {name}]")));
    assert_eq!(redacted, [true; 4], "{log}");
}

#[test]
fn what_the_program_of_a_channel_prints_is_redacted_before_it_is_cut() {
    let settings = "[channels.pager]\ntype = \"command\"\nenv = [\"PAGER_CODE\"]\n\
                    argv = [\"sh\", \"-c\", \"printf '%0185d %s' 0 $PAGER_CODE >&2; exit 1\"]\n";
    let folder = &folder("name: f\nnodes: [{ id: a, type: echo, input: { text: x } }]\n", settings);
    let mut command = program(folder, &["notify", "test", "pager"]);
    let ended = ran(folder, command.env("PAGER_CODE", "R0uting9f8e7d6c5b4a3928"));
    let said = ended.stdout + &ended.stderr;
    assert!(said.contains("0 [redacted PAGER_CODE]") && !said.contains("R0uting"), "{said}");
}

#[test]
fn what_a_channel_uses_is_a_secret_for_agents_and_in_made_cases() {
    let settings = "[channels.phone]\ntype = \"ntfy\"\ntopicEnv = \"PHONE\"\n";
    let flow =
        "name: says\nnodes: [{ id: say, type: echo.agent, input: { prompt: 'to {{ flow.input.word }}' } }]\n";
    let folder = &folder(flow, settings);
    let typed = folder.join("typed");
    std::fs::write(&typed, "to topic-of-mine\n").unwrap();
    let rows: [&[&str]; 5] = [
        &["agent", "-", "-p", "echo"],
        &["agent", "-", "-p", "echo", "--json"],
        &["chat", "-p", "echo"],
        &["run", "--no-input", "-i", "word=topic-of-mine", "--session-id", "s"],
        &["test", "--from", "s"],
    ];
    for arguments in rows {
        let mut command = program(folder, arguments);
        command.env("PHONE", "topic-of-mine").stdin(std::fs::File::open(&typed).unwrap());
        let ended = ran(folder, &mut command).expect(0);
        let said = ended.stdout + &ended.stderr;
        assert!(!said.contains("topic-of-mine"), "{arguments:?} {said}");
    }
    let case = std::fs::read_to_string(folder.join("flow.test.yaml")).unwrap();
    assert!(case.contains("word: \"[redacted PHONE]\""), "{case}");
}
