//! Where the rows work: the program under test, folders of their own, calls that end, and what a store holds.

use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use inspan_flow::{RunStore as _, Select, SessionEntry, SqliteStore};
use inspan_protocol::{Envelope, SessionId};
use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::{Size, agent};
use crate::e2e::{Deadline, MARK, end_all, none_left, pause};

/// How long one call may take before it counts as one that hangs.
const CALL: Duration = Duration::from_secs(60);

/// What all rows share.
pub(super) struct Lab {
    folder: TempDir,
    pub(super) inspan: PathBuf,
    pub(super) size: Size,
}

impl Lab {
    /// Takes a copy of the program, which the next build would replace.
    pub(super) fn new(inspan: &Path, size: Size) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("inspan-faults-").tempdir()?;
        let copy = folder.path().join("inspan");
        std::fs::copy(inspan, &copy).context("failed to copy the program")?;
        Ok(Self { folder, inspan: copy, size })
    }

    /// A fresh place to run flows in.
    pub(super) fn place(&self, name: &str) -> anyhow::Result<Place> {
        let folder = tempfile::Builder::new().prefix(name).tempdir_in(self.folder.path())?;
        let mark = folder.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        let place = Place {
            home: folder.path().join("home"),
            folder,
            inspan: self.inspan.clone(),
            mark: format!("faults-{}-{mark}", std::process::id()),
            calls: Cell::new(0),
        };
        std::fs::create_dir(place.path("talks"))?;
        place.write("effects", "")?;
        place.program(agent::FILE, agent::TEXT)?;
        Ok(place)
    }

    /// So many in a sample, so many in full.
    pub(super) fn count(&self, sample: usize, full: usize) -> usize {
        match self.size {
            Size::Sample => sample,
            Size::Full => full,
        }
    }
}

/// A folder with a store of its own, and the program in it.
pub(super) struct Place {
    folder: TempDir,
    /// Where the program keeps its store.
    pub(super) home: PathBuf,
    inspan: PathBuf,
    mark: String,
    calls: Cell<u32>,
}

/// A call that goes on.
pub(super) struct Running {
    pub(super) child: Child,
    stdout: PathBuf,
    pub(super) stderr: PathBuf,
}

/// A call that has ended.
#[derive(Debug)]
pub(super) struct Ended {
    /// The exit code, or 128 and the signal.
    pub(super) code: i32,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

impl Ended {
    pub(super) fn json(&self) -> anyhow::Result<Value> {
        serde_json::from_str(&self.stdout)
            .with_context(|| format!("it printed no JSON: {}\n{}", self.stdout, self.stderr))
    }

    /// Fails unless it ended so.
    pub(super) fn expect(self, code: i32) -> anyhow::Result<Self> {
        ensure!(
            self.code == code,
            "it ended with {} and not {code}:\n{}\n{}",
            self.code,
            self.stdout,
            self.stderr
        );
        Ok(self)
    }
}

impl Running {
    pub(super) fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill().context("failed to kill it")
    }

    pub(super) fn has_ended(&mut self) -> anyhow::Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Waits for its end; one that does not come is an error.
    pub(super) fn finish(mut self) -> anyhow::Result<Ended> {
        let deadline = Deadline::after(CALL);
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if deadline.is_over() {
                self.child.kill()?;
                self.child.wait()?;
                bail!("it did not end within {CALL:?}: {}", text(&self.stderr));
            }
            pause(Duration::from_millis(1));
        };
        let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
        Ok(Ended { code, stdout: text(&self.stdout), stderr: text(&self.stderr) })
    }
}

fn text(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}

impl Place {
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(super) fn write(&self, name: &str, text: &str) -> anyhow::Result<()> {
        std::fs::write(self.path(name), text).with_context(|| format!("failed to write {name}"))
    }

    /// Writes a program. A process of its own does: a file that is open for writing cannot be run, and what another
    /// thread starts meanwhile would hold ours open.
    pub(super) fn program(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let written = Command::new("/bin/sh")
            .args(["-c", "printf %s \"$1\" > \"$0\""])
            .arg(self.path(name))
            .arg(text)
            .status()?;
        ensure!(written.success(), "failed to write {name}");
        std::fs::set_permissions(self.path(name), std::fs::Permissions::from_mode(0o755))?;
        Ok(())
    }

    /// The lines that nodes and agents left of what they did.
    pub(super) fn effects(&self) -> Vec<String> {
        text(&self.path("effects")).lines().map(str::to_owned).collect()
    }

    pub(super) fn store(&self) -> PathBuf {
        self.home.join("sessions.db")
    }

    /// The program with these arguments, and nothing of our own environment.
    pub(super) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.inspan);
        self.settle(&mut command);
        command.args(arguments);
        command
    }

    /// Gives a command this place, and nothing of our own environment.
    pub(super) fn settle(&self, command: &mut Command) {
        command
            .current_dir(self.folder.path())
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", self.folder.path())
            .env("INSPAN_HOME", &self.home)
            .env(MARK, &self.mark)
            .stdin(Stdio::null());
    }

    pub(super) fn start(&self, mut command: Command) -> anyhow::Result<Running> {
        let number = self.calls.get();
        self.calls.set(number + 1);
        let (stdout, stderr) = (self.path(&format!("out-{number}")), self.path(&format!("err-{number}")));
        let child = command
            .stdout(File::create(&stdout)?)
            .stderr(File::create(&stderr)?)
            .spawn()
            .context("failed to start the program")?;
        Ok(Running { child, stdout, stderr })
    }

    /// Calls the program and waits for its end.
    pub(super) fn call(&self, arguments: &[&str]) -> anyhow::Result<Ended> {
        self.start(self.command(arguments))?.finish().with_context(|| arguments.join(" "))
    }

    /// Fails if a process of this place is still there a second after now.
    pub(super) fn none_left(&self) -> anyhow::Result<()> {
        none_left(&self.mark)
    }

    /// What is in the store, read beside whoever writes it; nothing if there is no such session yet.
    pub(super) fn look(&self, session: &str) -> anyhow::Result<Option<Look>> {
        if !self.store().exists() {
            return Ok(None);
        }
        runtime()?.block_on(async {
            let Ok(store) = SqliteStore::open_reader(self.store()) else { return Ok(None) };
            let id = SessionId::from(session);
            let Ok(entry) = store.entry(&id).await else { return Ok(None) };
            let log = store.read(&id, 1, Select::All).await.context("the log cannot be read")?;
            let log = log.iter().map(|envelope| Envelope::clone(envelope)).collect();
            Ok(Some(Look { entry, log }))
        })
    }

    /// Where a session stands; nothing if there is none yet.
    pub(super) fn entry(&self, session: &str) -> anyhow::Result<Option<SessionEntry>> {
        if !self.store().exists() {
            return Ok(None);
        }
        runtime()?.block_on(async {
            let Ok(store) = SqliteStore::open_reader(self.store()) else { return Ok(None) };
            Ok(store.entry(&SessionId::from(session)).await.ok())
        })
    }

    /// Fails unless all of the store is what was written.
    pub(super) fn sound(&self) -> anyhow::Result<()> {
        runtime()?.block_on(async {
            let report = SqliteStore::open_reader(self.store())?.verify().await?;
            let found: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
            ensure!(report.is_sound(), "the store is not sound: {}", found.join("; "));
            Ok(())
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // What a failed row has left must not trouble the next.
        end_all(&self.mark);
    }
}

/// A session as its store has it.
pub(super) struct Look {
    pub(super) entry: SessionEntry,
    pub(super) log: Vec<Envelope>,
}

/// A runtime for one look.
pub(super) fn runtime() -> anyhow::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("failed to start a runtime")
}

/// Waits until something holds.
pub(super) fn until(what: &str, mut holds: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let deadline = Deadline::after(Duration::from_secs(20));
    while !holds()? {
        ensure!(!deadline.is_over(), "waited in vain until {what}");
        pause(Duration::from_millis(2));
    }
    Ok(())
}

/// The most memory that a process has had, in bytes; 0 once it is gone.
pub(super) fn peak(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    kilobytes(&status, "VmHWM:") << 10
}

/// The memory that this process has, in bytes.
pub(super) fn resident() -> u64 {
    kilobytes(&std::fs::read_to_string("/proc/self/status").unwrap_or_default(), "VmRSS:") << 10
}

fn kilobytes(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse().unwrap_or_default()
}

/// Numbers that look like chance and are the same on every run.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1))
    }

    /// A number below `limit`.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % limit.max(1)
    }
}
