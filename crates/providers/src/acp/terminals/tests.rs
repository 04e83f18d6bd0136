//! Commands that are run for an agent: what they print, how they end, and that none of them stays.

use inspan_testkit::is_running;
use serde_json::json;

use super::*;
use crate::acp::wire::Variable;

struct Place {
    folder: tempfile::TempDir,
    terminals: Terminals,
    redactor: Redactor,
}

impl Place {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            terminals: Terminals::default(),
            redactor: Redactor::default(),
        }
    }

    fn root(&self) -> PathBuf {
        self.folder.path().canonicalize().unwrap()
    }

    fn create(&mut self, wanted: &CreateTerminal) -> Result<String, Refusal> {
        let root = self.root();
        let environment = [("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".to_owned())];
        let surroundings = CommandContext {
            root: &root,
            environment: &environment,
            supervisor: None,
            redactor: &self.redactor,
        };
        let created = self.terminals.create(wanted, &surroundings)?;
        Ok(created["terminalId"].as_str().unwrap().to_owned())
    }

    async fn ended(&self, id: &str) -> Value {
        timeout(Duration::from_secs(20), self.terminals.wait(id).unwrap()).await.unwrap()
    }
}

fn command(command: &str, args: &[&str]) -> CreateTerminal {
    CreateTerminal {
        command: command.to_owned(),
        args: args.iter().map(|&word| word.to_owned()).collect(),
        env: Vec::new(),
        cwd: None,
        output_byte_limit: None,
    }
}

#[tokio::test]
async fn the_output_of_a_command_is_in_order_and_its_end_is_reported() {
    let mut place = Place::new();
    std::fs::create_dir(place.root().join("sub")).unwrap();
    let rows = [
        (
            command("echo one; echo two >&2; cat; exit 3", &[]),
            "one\ntwo\n",
            json!({ "exitCode": 3, "signal": null }),
        ),
        (command("printf", &["%s|", "a b", "$HOME"]), "a b|$HOME|", json!({ "exitCode": 0, "signal": null })),
        (command("kill -9 $$", &[]), "", json!({ "exitCode": null, "signal": "9" })),
        (
            CreateTerminal {
                env: vec![Variable { name: "A".to_owned(), value: "b".to_owned() }],
                cwd: Some(place.root().join("sub").display().to_string()),
                ..command("echo $A; basename $PWD", &[])
            },
            "b\nsub\n",
            json!({ "exitCode": 0, "signal": null }),
        ),
        (
            CreateTerminal {
                output_byte_limit: Some(3), ..command("printf 'ää12345'; printf 'ä78'", &[])
            },
            "78",
            json!({ "exitCode": 0, "signal": null }),
        ),
    ];
    for (wanted, returned, exit) in rows {
        let id = place.create(&wanted).unwrap();
        assert_eq!(place.ended(&id).await, exit, "{wanted:?}");
        let output = place.terminals.output(&id).unwrap();
        let cut = wanted.output_byte_limit.is_some();
        let expected = json!({ "output": returned, "truncated": cut, "exitStatus": exit });
        assert_eq!(output, expected, "{wanted:?}");
        place.terminals.release(&id).unwrap();
        assert_eq!(place.terminals.output(&id).unwrap_err().code, INVALID);
    }
}

#[tokio::test]
async fn what_is_said_without_an_end_stays_within_its_bound() {
    let mut place = Place::new();
    let id = place.create(&command("yes", &["0123456789"])).unwrap();
    let until = tokio::time::Instant::now() + Duration::from_secs(20);
    while place.terminals.output(&id).unwrap()["truncated"] == false {
        assert!(tokio::time::Instant::now() < until);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(place.terminals.output(&id).unwrap()["output"].as_str().unwrap().len(), OUTPUT_LIMIT);
    place.terminals.kill(&id).unwrap();
    assert_eq!(place.ended(&id).await["signal"], "9");
    assert!(place.terminals.output(&id).unwrap()["output"].as_str().unwrap().len() <= OUTPUT_LIMIT);
}

#[tokio::test]
async fn no_command_outlives_its_session_and_there_are_never_too_many() {
    let mut place = Place::new();
    let wanted = command("echo $$ >> pids; sleep 300 & echo $! >> pids; wait", &[]);
    for _ in 0..COUNT_LIMIT {
        place.create(&wanted).unwrap();
    }
    assert_eq!(place.create(&wanted).unwrap_err().code, FAILED);
    let pids = || -> Vec<u32> {
        let text = std::fs::read_to_string(place.folder.path().join("pids")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    };
    let until = tokio::time::Instant::now() + Duration::from_secs(20);
    while pids().len() < 2 * COUNT_LIMIT {
        assert!(tokio::time::Instant::now() < until, "{:?}", pids());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let pids = pids();
    place.terminals.end().await;
    // What a killed shell leaves is killed as well, and goes as soon as the system comes to it.
    let until = tokio::time::Instant::now() + Duration::from_secs(5);
    while pids.iter().any(|pid| is_running(*pid)) {
        assert!(tokio::time::Instant::now() < until, "{pids:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_command_runs_within_the_working_directory() {
    let mut place = Place::new();
    for cwd in ["/", "/tmp", "relative", "/nowhere/at/all"] {
        let wanted = CreateTerminal { cwd: Some(cwd.to_owned()), ..command("pwd", &[]) };
        assert_eq!(place.create(&wanted).unwrap_err().code, INVALID, "{cwd}");
    }
    let missing = place.root().join("missing").display().to_string();
    let wanted = CreateTerminal { cwd: Some(missing), ..command("pwd", &[]) };
    assert_eq!(place.create(&wanted).unwrap_err().code, INVALID);
}
