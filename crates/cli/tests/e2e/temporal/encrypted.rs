//! A log that is encrypted: nothing in the shared folder shows what agents are asked, and programs do not see the key.

use std::{fs, path::Path};

use anyhow::{Context as _, ensure};
use inspan_testkit::Sandbox;
use serde_json::json;

use super::{super::checks::same, cluster::Cluster};

const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const OTHER: &str = "ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj8=";
/// What an agent is asked.
const PLANTED: &str = "planted-prompt-51c07be2";

/// How many files are below a folder; each is encrypted and shows nothing that was planted.
fn check(folder: &Path) -> anyhow::Result<usize> {
    let mut files = 0;
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            files += check(&path)?;
            continue;
        }
        let bytes = fs::read(&path)?;
        let shown = String::from_utf8_lossy(&bytes);
        ensure!(!shown.contains("planted"), "{} shows {shown}", path.display());
        files += usize::from(bytes.first() == Some(&1));
    }
    Ok(files)
}

pub(in super::super) fn encrypted(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    sandbox.set("THE_KEY", KEY);
    sandbox.set("ANOTHER_KEY", OTHER);
    let folder = sandbox.artefacts().join("shared");
    let options = |keys: &str| format!("sessions={}&key={keys}", folder.display());
    let cluster = Cluster::start_with(sandbox, &options("THE_KEY"))?;
    let worker = cluster.worker()?;
    let sandbox = cluster.sandbox;
    let flow = json!({ "name": "secret", "nodes": [
        { "id": "agent", "type": "echo.agent", "input": { "prompt": PLANTED } },
        { "id": "key", "type": "exec", "dependsOn": ["agent"],
          "input": { "argv": ["sh", "-c", "echo ${THE_KEY-it has no key}"] } },
    ] });
    let result = sandbox.run_flow(&flow, &["--session-id", "one"])?.expect(0)?.json()?;
    same("what the agent says", &result["outputs"]["agent"]["text"], &json!(PLANTED))?;
    same("what programs see", &result["outputs"]["key"]["stdout"], &json!("it has no key\n"))?;
    let files = check(&folder)?;
    ensure!(files > 5, "only {files} files are encrypted");
    let engine = sandbox.env().get("INSPAN_ENGINE").context("there is no engine")?;
    let with = |keys: &str| engine.replace("key=THE_KEY", keys);
    let show = |keys: &str| sandbox.run(&["show", "one", "--engine", &with(keys)]);
    show("key=ANOTHER_KEY,THE_KEY")?.expect_code(0)?;
    for (keys, why) in [
        ("key=ANOTHER_KEY", "was encrypted with a key that is not among those"),
        ("", "is encrypted: name its key in the engine's address, `key=NAME`"),
        (
            "key=NO_KEY",
            "the environment variable NO_KEY, which `key` in the engine's address names, is not set",
        ),
    ] {
        let refused = show(keys)?;
        ensure!(refused.code != 0 && refused.stderr.contains(why), "with `{keys}`: {refused}");
        ensure!(!refused.to_string().contains(KEY), "the key is shown: {refused}");
    }
    cluster.end(vec![worker])
}
