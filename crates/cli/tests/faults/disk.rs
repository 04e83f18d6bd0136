//! A disk without space, and one that does not write: the session stops with an error that names it, everything that
//! was there stays, and it continues when there is space.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};
use inspan_engine::check_order;
use inspan_protocol::Event;

use super::place::{FaultSandbox, until};
use super::{Promise, Size};

pub(super) const FULL: Promise = Promise {
    bound: "an error that says so; all that was kept stays readable; it goes on when there is space, nothing twice",
    prove: full,
};

pub(super) const ERRORS: Promise =
    Promise { bound: "a typed error each time, nothing lost, and the session goes on after", prove: errors };

/// A separate small file system.
pub(super) struct Mount(PathBuf);

impl Mount {
    /// Mounts one of this size in a new folder; only root may.
    pub(super) fn at(folder: &Path, size: &str) -> anyhow::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let size = format!("size={size},mode=700");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "inspan-faults"]).arg(folder).output()?;
        ensure!(mounted.status.success(), "{}", String::from_utf8_lossy(&mounted.stderr));
        Ok(Self(folder.to_owned()))
    }

    pub(super) fn read_only(&self) -> anyhow::Result<()> {
        let done = Command::new("mount").args(["-o", "remount,ro"]).arg(&self.0).status()?;
        ensure!(done.success(), "the file system cannot be made read-only");
        Ok(())
    }

    /// Takes all the space that is left.
    fn fill(&self) -> anyhow::Result<PathBuf> {
        let path = self.0.join("filler");
        let mut file = File::create(&path)?;
        // It ends when there is no more.
        while file.write_all(&[0; 4096]).is_ok() {}
        Ok(path)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // A folder that is still in use is unmounted once it no longer is.
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// Steps that each leave a line, the second after it was released.
const STEPS: &str = r#"
flow: { name: steps }
nodes:
  - { id: a, type: exec, input: { argv: [sh, -c, "echo a >> effects"] } }
  - { id: b, type: exec, dependsOn: [a], input: { argv: [sh, -c, "echo b >> effects; while [ ! -e go ]; do sleep 0.02; done"] } }
  - { id: c, type: exec, dependsOn: [b], input: { argv: [sh, -c, "echo c >> effects; seq 20000"] } }
  - { id: d, type: exec, dependsOn: [c], input: { argv: [sh, -c, "echo d >> effects"] } }
"#;

/// Fails unless the session has ended well, with every finished node run once.
fn is_whole(place: &FaultSandbox) -> anyhow::Result<()> {
    place.sound()?;
    let log = place.look("s")?.context("the session is gone")?.log;
    check_order(&log).map_err(anyhow::Error::msg)?;
    let finished = log.iter().filter(|envelope| matches!(envelope.event, Event::TaskComplete { .. })).count();
    ensure!(finished == 4, "{finished} of 4 steps have finished");
    Ok(())
}

fn full(size: Size) -> anyhow::Result<String> {
    let place = size.place("full-")?;
    place.write("flow.yaml", STEPS)?;
    let mount = match Mount::at(&place.home(), "4m") {
        Ok(mount) => mount,
        Err(why) => return Ok(format!("left out: a small file system cannot be mounted here ({why:#})")),
    };
    let run = place.start(place.command(&["run", "flow.yaml", "--session-id", "s"]))?;
    until("the second step runs", || Ok(place.effects().len() == 2))?;
    let filler = mount.fill()?;
    place.write("go", "")?;
    let says_so = || Ok(std::fs::read_to_string(&run.stderr)?.contains("the disk is full"));
    until("it says that it waits for space", says_so)?;
    let interrupted = Command::new("kill").args(["-INT", &run.child.id().to_string()]).status()?;
    ensure!(interrupted.success(), "it cannot be interrupted");
    let ended = run.finish()?.expect(7)?;
    let errors =
        ended.stderr.lines().find(|line| line.contains("the disk is full")).context(ended.stderr.clone())?;
    let errors = errors.replace(&place.home().display().to_string(), "~");
    let kept = place.look("s")?.context("the session cannot be read")?.log.len();
    place.run(&["store", "export", "s"])?.expect(0)?;
    let again = place.run(&["resume", "s", "--no-input"])?;
    ensure!(again.code != 0 && again.stderr.contains("the disk is full"), "{}", again.stderr);
    std::fs::remove_file(filler)?;
    place.run(&["resume", "s", "--no-input"])?.expect(0)?;
    is_whole(&place)?;
    let effects = place.effects();
    let twice = effects.iter().filter(|effect| *effect != "b").count();
    ensure!(
        twice <= 4 && effects.starts_with(&["a".to_owned(), "b".to_owned()]),
        "the effects are {effects:?}"
    );
    Ok(format!("{kept} events readable meanwhile; effects {}\n{errors}", effects.join(" ")))
}

/// Writes beyond a size fail: each size is another write that does.
fn errors(size: Size) -> anyhow::Result<String> {
    let (mut failed, mut whole, mut messages) = (0, 0, std::collections::BTreeSet::new());
    let sizes = size.count(12, 60);
    for step in 1..=sizes {
        let place = size.place("errors-")?;
        place.write("flow.yaml", STEPS)?;
        place.write("go", "")?;
        // In blocks of 512 bytes; the signal that comes with the error is ignored, as in a service.
        let blocks = step * 1_200 / sizes + 24;
        let mut command = Command::new("bash");
        // The limit is for the store, and not for the file that what it prints goes to.
        let line = format!(
            "trap '' XFSZ; set -o pipefail; (ulimit -f {blocks}; exec \"$0\" \"$@\") 2>&1 | tail -n 40 >&2"
        );
        command.args(["-c", &line]).arg(env!("CARGO_BIN_EXE_inspan")).args([
            "run",
            "flow.yaml",
            "--session-id",
            "s",
        ]);
        place.enclose(&mut command);
        let ended = place.start(command)?.finish()?;
        let before = place.effects();
        match ended.code {
            0 => whole += 1,
            // Before the session began, or afterwards.
            1 | 7 => {
                failed += 1;
                let said = ended.stderr.lines().rfind(|line| line.starts_with("error: ")).unwrap_or_default();
                ensure!(!said.is_empty(), "no error was told: {}", ended.stderr);
                messages.insert(said.replace(&place.home().display().to_string(), "~"));
            }
            code => anyhow::bail!("with {blocks} blocks it ended with {code}: {}", ended.stderr),
        }
        let finished = place.look("s")?.map_or(0, |look| {
            look.log.iter().filter(|envelope| matches!(envelope.event, Event::TaskComplete { .. })).count()
        });
        if ended.code != 0 {
            let next: &[&str] = match place.look("s")? {
                Some(_) => &["resume", "s", "--no-input"],
                None => &["run", "flow.yaml", "--session-id", "s"],
            };
            place.run(next)?.expect(0).with_context(|| format!("after {blocks} blocks"))?;
        }
        is_whole(&place).with_context(|| format!("with {blocks} blocks"))?;
        let twice = place.effects().len().saturating_sub(4);
        ensure!(twice <= 1, "{twice} steps ran again; before {before:?}, {finished} had finished");
    }
    ensure!(failed > 0, "no write failed");
    let messages: Vec<_> = messages.into_iter().collect();
    Ok(format!(
        "{sizes} limits: {failed} sessions were stopped and went on, {whole} were not touched\n{}",
        messages.join("\n")
    ))
}
