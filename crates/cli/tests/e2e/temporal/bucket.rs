//! Sessions in a bucket of a real S3 server: the same as in a folder.
#![expect(clippy::print_stdout, reason = "figures are printed")]

use std::{fs, net::TcpStream, process::Command, time::Duration};

use anyhow::ensure;
use inspan_testkit::{PythonPackage, RunningProcess, Sandbox, eventually, pause};
use serde_json::json;

use super::{
    super::checks::same,
    cluster::{Cluster, kill},
    commands::{SOON, begun},
};

/// The name of the bucket.
const BUCKET: &str = "sessions-of-a-test";
/// For how long requests of a session are counted in which nothing happens.
const QUIET: Duration = Duration::from_secs(3);

/// Works on one request after the other, so that a condition and what depends on it are one step, as in S3 itself.
const SERVER: &str = "
import sys, threading
from werkzeug.serving import run_simple
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
moto, one = DomainDispatcherApplication(create_backend_app), threading.Lock()
def app(environ, start_response):
    with one:
        return list(moto(environ, start_response))
run_simple('127.0.0.1', int(sys.argv[1]), app, threaded=True)
";
const MAKE: &str = "
import sys, urllib.request
urllib.request.urlopen(urllib.request.Request(sys.argv[1], method='PUT', data=b''), timeout=10)
";

/// An S3 server with one bucket.
struct Bucket {
    server: RunningProcess,
}

impl Bucket {
    /// Starts the server; every later command in the sandbox finds the bucket there.
    fn start(sandbox: &mut Sandbox) -> anyhow::Result<Self> {
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut command = Command::new("python3");
        command.args(["-c", SERVER, &port.to_string()]);
        sandbox.enclose(&mut command);
        command.env("PYTHONPATH", PythonPackage::Moto.installed()?);
        let mut server = sandbox.start(command)?;
        let listens = || {
            ensure!(!server.has_ended()?, "the server has ended: {}", fs::read_to_string(&server.stderr)?);
            Ok(TcpStream::connect(("127.0.0.1", port)).is_ok())
        };
        eventually(SOON, "the S3 server listens", listens)?;
        let endpoint = format!("http://127.0.0.1:{port}");
        let made = Command::new("python3").args(["-c", MAKE, &format!("{endpoint}/{BUCKET}")]).output()?;
        ensure!(made.status.success(), "no bucket: {}", String::from_utf8_lossy(&made.stderr));
        for (name, value) in [
            ("AWS_ENDPOINT_URL", endpoint.as_str()),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_ACCESS_KEY_ID", "test"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
        ] {
            sandbox.set(name, value);
        }
        Ok(Self { server })
    }

    /// How many requests it has answered: those that store, and the others.
    fn requests(&self) -> anyhow::Result<[usize; 2]> {
        let log = fs::read_to_string(&self.server.stderr)?;
        // A color may be before the name.
        let stores = |line: &&str| line.contains("PUT /");
        let others = |line: &&str| line.contains("GET /");
        Ok([log.lines().filter(stores).count(), log.lines().filter(others).count()])
    }
}

/// A session that asks, whose worker is killed while it works, that is paused and resumed. Gives its facts.
fn facts(
    cluster: &Cluster<'_>,
    session: &str,
    during_work: impl Fn() -> anyhow::Result<()>,
) -> anyhow::Result<Vec<String>> {
    let sandbox = cluster.sandbox;
    let _before = fs::remove_file(sandbox.path("begun"));
    let worker = cluster.worker()?;
    // The third attempt ends at once.
    let script = "echo work >> begun; [ $(wc -l < begun) -ge 3 ] || exec sleep 60";
    let flow = json!({ "name": "asks", "nodes": [
        { "id": "who", "type": "human.input", "input": { "prompt": "Who are you?" } },
        { "id": "work", "type": "exec", "dependsOn": ["who"], "input": { "argv": ["sh", "-c", script] } },
        { "id": "greet", "type": "exec", "dependsOn": ["work"],
          "input": { "argv": ["printf", "%s", "{{ who.content }}"] } },
    ] });
    sandbox.run_flow(&flow, &["--session-id", session])?.expect_code(3)?;
    sandbox.run(&["reply", session, "Ada"])?.expect_code(0)?;
    begun(sandbox, 1)?;
    kill(worker)?;
    let worker = cluster.worker()?;
    begun(sandbox, 2)?;
    during_work()?;
    sandbox.run(&["pause", session])?.expect_code(0)?;
    cluster.wait_for(session, "paused", SOON)?;
    let resumed = sandbox.resume(session, &[])?.expect(0)?.json()?;
    same("the outcome", &resumed["outcome"], &json!("success"))?;
    let greet = sandbox.run(&["show", session, "greet", "--json"])?.expect(0)?.json()?;
    same("the answer", &greet["attempts"][0]["output"]["stdout"], &json!("Ada"))?;
    kill(worker)?;
    let of_session = |name: &str| {
        ["task:", "flow:", "session:", "edge:", "harness:"].iter().any(|kind| name.starts_with(kind))
    };
    let log = cluster.log(session)?;
    let facts = log.iter().filter(|event| of_session(event.event.name()));
    Ok(facts
        .map(|event| match &event.context.task {
            Some(task) => format!("{} {task}", event.event.name()),
            None => event.event.name().to_owned(),
        })
        .collect())
}

pub(in super::super) fn same_in_a_bucket(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let bucket = Bucket::start(sandbox)?;
    let cluster = Cluster::start(sandbox)?;
    let in_folder = facts(&cluster, "in-folder", || Ok(()))?;
    cluster.end(Vec::new())?;
    let cluster = Cluster::start_with(sandbox, &format!("sessions=s3://{BUCKET}/of/a/team"))?;
    let in_bucket = facts(&cluster, "in-bucket", || {
        let before = bucket.requests()?;
        pause(QUIET);
        let after = bucket.requests()?;
        let [stored, read] = [after[0] - before[0], after[1] - before[1]];
        println!("    an attempt that runs for {QUIET:?}: {stored} stored, {read} read");
        ensure!((1..=6).contains(&read), "{read} requests in {QUIET:?} in which nothing happened");
        Ok(())
    })?;
    same("the facts", &in_bucket, &in_folder)?;
    println!("    the whole session: {:?} stored and read", bucket.requests()?);
    let listed = cluster.sandbox.run(&["ps", "--all", "--json"])?.expect(0)?.json()?;
    same("what is listed", &listed.as_array().map(Vec::len), &Some(1))?;
    kill(bucket.server)?;
    cluster.end(Vec::new())
}
