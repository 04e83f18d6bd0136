//! A worker of the suite: one model server, one home, one instance of the provider. It checks behaviours one after the
//! other, so that expensive things are started once; several workers run in parallel.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use inspan_model_server::{ModelServer, Scenario};
use inspan_protocol::{DynProvider, Environment, Supervisor};
use tempfile::TempDir;
use tokio::time::{Instant, sleep, timeout};

use crate::finding::{CheckResult, Difference, holds};
use crate::target::{ConformanceTarget, TargetContext};

/// The key in the environment of every call; nothing that a provider returns or stores may contain it.
pub const PLANTED: &str = "sk-ant-api03-planted-0f6b1c9e4d7a42d8-not-a-key";
/// How long a provider may take to shut down.
const SHUTDOWN: Duration = Duration::from_secs(15);
/// How long its processes may take to end after that.
const VANISH: Duration = Duration::from_secs(3);

/// One worker.
pub(crate) struct Worker {
    pub(crate) target: ConformanceTarget,
    pub(crate) server: ModelServer,
    pub(crate) env: Environment,
    pub(crate) supervisor: Option<Supervisor>,
    provider: Mutex<Arc<dyn DynProvider>>,
    folder: TempDir,
    mark: String,
    caller_env: Environment,
}

impl Worker {
    /// A worker with its own server and home.
    pub(crate) fn new(
        target: ConformanceTarget,
        caller_env: &Environment,
        supervisor: Option<Supervisor>,
    ) -> CheckResult<Self> {
        let cannot = |what: &str, why: String| {
            Difference::from(format!("{what} for the suite cannot be made")).with(why)
        };
        let server = ModelServer::start(Scenario::of([]))
            .map_err(|error| cannot("the model server", error.to_string()))?;
        let folder = tempfile::Builder::new()
            .prefix("inspan-conformance-")
            .tempdir()
            .map_err(|error| cannot("a folder", error.to_string()))?;
        for name in ["home", "tmp", "vendor", "stored", "work"] {
            std::fs::create_dir(folder.path().join(name))
                .map_err(|error| cannot("a folder", error.to_string()))?;
        }
        // No other folder has this name while this one is there.
        let mark = folder.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        let provider = Mutex::new((target.provider)());
        let mut worker = Self {
            target,
            server,
            env: Environment::default(),
            supervisor,
            provider,
            folder,
            mark,
            caller_env: caller_env.clone(),
        };
        worker.env = worker.environment(&worker.server.base_url());
        Ok(worker)
    }

    /// The environment of a call whose model server is at this address.
    pub(crate) fn environment(&self, server: &str) -> Environment {
        let text = |name: &str| self.folder.path().join(name).display().to_string();
        let usual = [
            ("PATH", self.caller_env.get("PATH").unwrap_or("/usr/local/bin:/usr/bin:/bin").to_owned()),
            ("HOME", text("home")),
            ("TMPDIR", text("tmp")),
            ("INSPAN_HOME", text("stored")),
            ("LANG", "C.UTF-8".to_owned()),
            (MARK, self.mark.clone()),
        ];
        let vendor = self.folder.path().join("vendor");
        let context = TargetContext { server, folder: &vendor, caller_env: &self.caller_env };
        let own = self.target.variables(&context);
        usual.into_iter().map(|(name, value)| (name.to_owned(), value)).chain(own).collect()
    }

    /// The present instance of the provider.
    pub(crate) fn provider(&self) -> Arc<dyn DynProvider> {
        Arc::clone(&self.provider.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Ends the current instance and makes another, as a new Inspan process would.
    pub(crate) async fn renew(&self) -> CheckResult {
        let old = std::mem::replace(
            &mut *self.provider.lock().unwrap_or_else(PoisonError::into_inner),
            (self.target.provider)(),
        );
        let ended = timeout(SHUTDOWN, old.shutdown()).await;
        ended.map_err(|_| Difference::from("the provider does not shut down"))
    }

    /// The working directory of agents, emptied. All test cases share it: a program that is bound to its directory would
    /// have to be started for each.
    pub(crate) fn work(&self) -> CheckResult<PathBuf> {
        let path = self.folder.path().join("work");
        let emptied = std::fs::read_dir(&path).and_then(|entries| {
            entries.flatten().try_for_each(|entry| {
                let path = entry.path();
                if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }
            })
        });
        emptied.map_err(|error| Difference::from("the folder cannot be emptied").with(error.to_string()))?;
        Ok(path)
    }

    /// The folder of what outlives a call, such as recordings.
    pub(crate) fn stored(&self) -> PathBuf {
        self.folder.path().join("stored")
    }

    /// The command lines of its processes.
    pub(crate) fn running(&self) -> Vec<String> {
        marked(&self.mark)
    }

    /// Waits until no command line contains this.
    pub(crate) async fn until_gone(&self, part: &str) -> CheckResult {
        let until = Instant::now() + VANISH;
        loop {
            let left: Vec<String> = self.running().into_iter().filter(|line| line.contains(part)).collect();
            if left.is_empty() {
                return Ok(());
            }
            if Instant::now() > until {
                let more = left.iter().map(|line| line.chars().take(120).collect::<String>());
                let more = more.collect::<Vec<_>>().join("; ");
                return Err(Difference::from("a process is left behind").with(more));
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Ends the provider, and checks that no process and no file with the key is left.
    pub(crate) async fn close(&self) -> CheckResult {
        self.renew().await?;
        self.until_gone("").await?;
        no_key_below(&self.stored())?;
        let shown = format!("{:?}", self.env);
        holds(!shown.contains(PLANTED), || "the planted key shows in the environment".to_owned())
    }
}

/// The variable that carries the mark.
pub(crate) const MARK: &str = "INSPAN_CONFORMANCE";

/// Whether processes can be listed on this system.
pub(crate) fn can_be_listed() -> bool {
    std::path::Path::new("/proc/self/environ").exists()
}

/// The command lines of the living processes with this mark.
pub(crate) fn marked(mark: &str) -> Vec<String> {
    let wanted = format!("{MARK}={mark}");
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| {
        // A process that has ended and is not yet reaped has no environment, and counts as gone.
        let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
        environment.split(|byte| *byte == 0).find(|pair| *pair == wanted.as_bytes())?;
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        Some(String::from_utf8_lossy(&line).replace('\0', " ").trim().to_owned())
    })
    .collect()
}

/// As much of the planted key as a program might show.
fn planted_part() -> &'static str {
    &PLANTED[13..37]
}

/// Fails if the text shows the planted key.
pub(crate) fn no_key_in(what: &str, text: &str) -> CheckResult {
    holds(!text.contains(planted_part()), || format!("the planted key shows in {what}"))
}

/// Fails if a file below the folder shows the planted key.
pub(crate) fn no_key_below(folder: &Path) -> CheckResult {
    let unread = |error: std::io::Error| {
        Difference::from("the folder of stored files cannot be read").with(error.to_string())
    };
    let entries = std::fs::read_dir(folder).map_err(unread)?;
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            no_key_below(&path)?;
        } else if let Ok(bytes) = std::fs::read(&path) {
            let shows = bytes.windows(planted_part().len()).any(|window| window == planted_part().as_bytes());
            let name = path.extension().unwrap_or_default().to_string_lossy().into_owned();
            holds(!shows, || format!("the planted key shows in a file of the kind `{name}`"))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_planted_key_is_found_in_any_file() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("deep")).unwrap();
        std::fs::write(folder.path().join("deep/a.json"), "{}").unwrap();
        assert_eq!(no_key_below(folder.path()), Ok(()));
        std::fs::write(folder.path().join("deep/b.json"), format!("x{PLANTED}y")).unwrap();
        let found = no_key_below(folder.path()).unwrap_err().to_string();
        assert_eq!(found, "the planted key shows in a file of the kind `json`");
    }
}
