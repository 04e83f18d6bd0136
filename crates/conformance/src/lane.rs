//! A place in which behaviours are looked at one after the other: one model server, one home, one instance of the
//! provider, so that what is dear to start is started once. Several lanes run side by side.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use inspan_model_server::{ModelServer, Scenario};
use inspan_protocol::{DynProvider, Environment, Supervisor};
use tempfile::TempDir;
use tokio::time::{Instant, sleep, timeout};

use crate::finding::{Finding, Proof, holds};
use crate::processes::{MARK, marked};
use crate::rig::{ConformanceTarget, Place};
use crate::secret;

/// How long a provider may take to let go of everything.
const SHUTDOWN: Duration = Duration::from_secs(15);
/// How long what it has let go of may take to be gone.
const LINGER: Duration = Duration::from_secs(3);

/// One place.
pub(crate) struct Lane {
    pub(crate) rig: Arc<dyn ConformanceTarget>,
    pub(crate) server: ModelServer,
    pub(crate) env: Environment,
    pub(crate) supervisor: Option<Supervisor>,
    provider: Mutex<Arc<dyn DynProvider>>,
    folder: TempDir,
    mark: String,
    outer: Environment,
}

impl Lane {
    /// A lane with a server and a home of its own.
    pub(crate) fn new(
        rig: Arc<dyn ConformanceTarget>,
        outer: &Environment,
        supervisor: Option<Supervisor>,
    ) -> Proof<Self> {
        let cannot =
            |what: &str, why: String| Finding::from(format!("{what} for the suite cannot be made")).with(why);
        let server = ModelServer::start(Scenario::of([]))
            .map_err(|error| cannot("the model server", error.to_string()))?;
        let folder = tempfile::Builder::new()
            .prefix("inspan-conformance-")
            .tempdir()
            .map_err(|error| cannot("a folder", error.to_string()))?;
        for name in ["home", "tmp", "vendor", "kept", "work"] {
            std::fs::create_dir(folder.path().join(name))
                .map_err(|error| cannot("a folder", error.to_string()))?;
        }
        // No other folder has this name while this one is there.
        let mark = folder.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        let provider = Mutex::new(rig.provider());
        let mut lane = Self {
            rig,
            server,
            env: Environment::default(),
            supervisor,
            provider,
            folder,
            mark,
            outer: outer.clone(),
        };
        lane.env = lane.environment(&lane.server.base_url());
        Ok(lane)
    }

    /// The environment of a call whose model server is at this address.
    pub(crate) fn environment(&self, server: &str) -> Environment {
        let text = |name: &str| self.folder.path().join(name).display().to_string();
        let usual = [
            ("PATH", self.outer.get("PATH").unwrap_or("/usr/local/bin:/usr/bin:/bin").to_owned()),
            ("HOME", text("home")),
            ("TMPDIR", text("tmp")),
            ("INSPAN_HOME", text("kept")),
            ("LANG", "C.UTF-8".to_owned()),
            (MARK, self.mark.clone()),
        ];
        let vendor = self.folder.path().join("vendor");
        let place = Place { server, folder: &vendor, outer: &self.outer };
        let own = self.rig.environment(&place);
        usual.into_iter().map(|(name, value)| (name.to_owned(), value)).chain(own).collect()
    }

    /// The present instance of the provider.
    pub(crate) fn provider(&self) -> Arc<dyn DynProvider> {
        Arc::clone(&self.provider.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Ends the present instance and makes another, as a new process of ours would.
    pub(crate) async fn renew(&self) -> Proof {
        let old = std::mem::replace(
            &mut *self.provider.lock().unwrap_or_else(PoisonError::into_inner),
            self.rig.provider(),
        );
        let ended = timeout(SHUTDOWN, old.shutdown()).await;
        ended.map_err(|_| Finding::from("the provider does not let go of what it keeps"))
    }

    /// The folder for agents to work in, empty again. It is the same for all, since a program that is bound to its
    /// folder would have to be started for each.
    pub(crate) fn work(&self) -> Proof<PathBuf> {
        let path = self.folder.path().join("work");
        let emptied = std::fs::read_dir(&path).and_then(|entries| {
            entries.flatten().try_for_each(|entry| {
                let path = entry.path();
                if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }
            })
        });
        emptied.map_err(|error| Finding::from("the folder cannot be emptied").with(error.to_string()))?;
        Ok(path)
    }

    /// The folder of what the user gets to keep.
    pub(crate) fn kept(&self) -> PathBuf {
        self.folder.path().join("kept")
    }

    /// The command lines of what runs here.
    pub(crate) fn running(&self) -> Vec<String> {
        marked(&self.mark)
    }

    /// Waits until no command line has this in it.
    pub(crate) async fn until_gone(&self, part: &str) -> Proof {
        let until = Instant::now() + LINGER;
        loop {
            let left: Vec<String> = self.running().into_iter().filter(|line| line.contains(part)).collect();
            if left.is_empty() {
                return Ok(());
            }
            if Instant::now() > until {
                let more = left.iter().map(|line| line.chars().take(120).collect::<String>());
                let more = more.collect::<Vec<_>>().join("; ");
                return Err(Finding::from("a process is left behind").with(more));
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Ends the provider and looks at what is left: no process, and no file with the key.
    pub(crate) async fn close(&self) -> Proof {
        self.renew().await?;
        self.until_gone("").await?;
        secret::none_below(&self.kept())?;
        let shown = format!("{:?}", self.env);
        holds(!shown.contains(secret::PLANTED), || "the planted key shows in the environment".to_owned())
    }
}
