//! What `inspan serve` and a run with `--web` send, and the address of the page in it.

use std::fs;

use serde_json::{Value, json};

use super::{
    ALL, GATE, call, folder,
    receiver::{Answer, Received, Receiver},
    run, webhook,
};
use crate::{
    processes::{kill, until},
    program::{inspan, program},
    serving::client::Server,
};

const LIVES: &str = "
name: lives
nodes:
  - { id: gate, type: human.input, input: { prompt: 'Ship it?' } }
  - { id: lives, type: exec, input: { argv: [sh, -c, 'while [ ! -e finish ]; do sleep 0.05; done'] } }
";

#[test]
fn a_run_with_a_page_names_it() {
    let receiver = Receiver::start(|_, _| Answer::good());
    let folder = &folder(GATE, &webhook(&receiver, r#"["question"]"#));
    let asked = run(folder, &["run", "--no-input", "--web", "--session-id", "s"]).expect(3);
    let page = asked.stderr.lines().find_map(|line| line.strip_prefix("page: ")).unwrap();
    let (origin, _) = page.split_once("/#token=").unwrap();
    assert_eq!(receiver.wait_for(1)[0].json()["url"], json!(format!("{origin}/#/s/s/graph")));
}

#[test]
fn a_server_sends_for_a_killed_process_what_it_left_and_that_it_is_gone() {
    let receiver = Receiver::start(|_, _| Answer::good());
    let folder = &folder(LIVES, &webhook(&receiver, r#"["question", "failure"]"#));
    // The run itself does not have the key of the channel: all that is sent is sent by the server.
    let without_key = |arguments: &[&str], sign: &str| {
        let child = program(folder, arguments).spawn().unwrap();
        until(sign, || inspan(folder, &["logs", "s", "--json", "--type", sign]).stdout.contains(sign));
        kill(child);
    };
    let listen = ["--listen", "0.0.0.0", "--port", "0", "--allow-remote", "inspan.example.org"];
    let arguments = [&["serve", "--json"], &listen[..]].concat();
    let serve = || Server::of(folder, call(folder, &arguments));
    let titles = |seen: &[Received]| -> Vec<String> {
        let messages = seen.iter().map(Received::json);
        let notices = messages.flat_map(|message| message["notices"].as_array().cloned().unwrap());
        notices.map(|notice| notice["title"].as_str().unwrap().to_owned()).collect()
    };
    let [asks, gone] = ["`gate` asks a question", "the process that ran the session is gone"];
    // The channel is known from here on.
    run(folder, &["notify", "deliver", "--once"]);
    let mut server = serve();
    until("the server knows the channel", || {
        run(folder, &["run", "--no-input", "--session-id", "known", "--only", "gate"]).code == Some(3)
    });
    receiver.wait_until(|seen| !seen.is_empty());
    let known = receiver.seen().len();
    without_key(&["run", "--no-input", "--session-id", "s"], "session:prompt");
    let seen = receiver.wait_until(|seen| titles(&seen[known..]).contains(&gone.to_owned()));
    assert_eq!(titles(&seen[known..]), [asks, gone]);
    let loss = &seen.last().unwrap().json();
    assert_eq!(loss["notices"][0]["commands"], json!(["inspan resume s"]));
    assert_eq!(loss["url"], json!("https://inspan.example.org/#/s/s/graph"));
    assert_eq!(server.interrupt(), Some(0));
    // It is sent once, and again only if another process is lost.
    let mut server = serve();
    without_key(&["resume", "s", "--no-input"], "flow:resumed");
    let seen = receiver.wait_until(|seen| titles(&seen[known..]).len() >= 3);
    assert_eq!(titles(&seen[known..]), [asks, gone, gone]);
    assert_eq!(server.interrupt(), Some(0));
}

#[test]
fn a_server_sends_through_a_channel_as_it_is_configured_now() {
    let [before, after] = [(); 2].map(|()| Receiver::start(|_, _| Answer::good()));
    let folder = &folder(GATE, &webhook(&before, ALL));
    run(folder, &["notify", "deliver", "--once"]);
    let mut server = Server::of(folder, call(folder, &["serve", "--port", "0", "--json"]));
    // Without the key of the channel the run itself sends nothing.
    let asks = |session: &str| inspan(folder, &["run", "--no-input", "--session-id", session]).code;
    let sessions = |receiver: &Receiver| -> Vec<Value> {
        receiver
            .wait_until(|seen| !seen.is_empty())
            .iter()
            .map(|seen| seen.json()["session"].clone())
            .collect()
    };
    assert_eq!(asks("one"), Some(3));
    assert_eq!(sessions(&before), ["one"]);
    fs::write(folder.join("inspan.toml"), webhook(&after, ALL)).unwrap();
    assert_eq!(asks("two"), Some(3));
    assert_eq!(sessions(&after), ["two"]);
    assert_eq!(sessions(&before), ["one"]);
    assert_eq!(server.interrupt(), Some(0));
}
