//! The first moments of a store: many open it at once, a process dies while it is made, a newer program made it, the
//! file is something else, or must not be written.

use inspan_testkit::{Finished, RunningProcess, pause};
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use anyhow::ensure;

use super::disk::Mount;
use super::place::{Dice, FaultSandbox};
use super::{Promise, Size};

pub(super) const RACE: Promise = Promise { bound: "all succeed, all sessions are kept", prove: race };

pub(super) const MAKING: Promise = Promise { bound: "the next run makes it and succeeds", prove: making };

pub(super) const FOREIGN: Promise = Promise {
    bound: "each is refused in one clear sentence, with code 4 where another program or place is needed and 1 for damage, and not a byte of it changes",
    prove: foreign,
};

const ECHO: &str = "flow: { name: one }\nnodes:\n  - { id: a, type: echo, input: { text: hello } }\n";

fn race(size: Size) -> anyhow::Result<String> {
    let (rounds, at_once) = (size.count(3, 20), 8);
    for _ in 0..rounds {
        let place = size.place("race-")?;
        place.write("flow.yaml", ECHO)?;
        let running: Vec<RunningProcess> = (0..at_once)
            .map(|at| place.start(place.command(&["run", "flow.yaml", "--session-id", &format!("s{at}")])))
            .collect::<Result<_, _>>()?;
        for running in running {
            running.finish()?.expect(0)?;
        }
        for at in 0..at_once {
            let look = place.look(&format!("s{at}"))?;
            ensure!(
                look.is_some_and(|look| look.entry.digest.outcome.is_some()),
                "session s{at} is not whole"
            );
        }
        place.sound()?;
    }
    Ok(format!("{rounds} new stores, {at_once} processes each"))
}

fn making(size: Size) -> anyhow::Result<String> {
    let mut dice = Dice::new(7);
    let (rounds, mut before, mut within) = (size.count(25, 200), 0, 0);
    for _ in 0..rounds {
        let place = size.place("making-")?;
        place.write("flow.yaml", ECHO)?;
        let mut running = place.start(place.command(&["run", "flow.yaml", "--session-id", "killed"]))?;
        // The moment the folder is there, the store is about to be made.
        while !place.home().exists() && !running.has_ended()? {
            pause(Duration::from_micros(50));
        }
        pause(Duration::from_micros(dice.below(80_000)));
        running.kill()?;
        running.finish()?;
        match place.look("killed")? {
            None => before += 1,
            Some(_) => within += 1,
        }
        place.run(&["run", "flow.yaml", "--session-id", "next"])?.expect(0)?;
        place.sound()?;
    }
    Ok(format!(
        "{rounds} kills: {before} before the session was kept, {within} after; a format's own steps are in the store's tests"
    ))
}

/// A closed store with one session, and its bytes.
fn closed(place: &FaultSandbox) -> anyhow::Result<Vec<u8>> {
    place.write("flow.yaml", ECHO)?;
    place.run(&["run", "flow.yaml", "--session-id", "s"])?.expect(0)?;
    Ok(std::fs::read(place.store())?)
}

const VERBS: [&[&str]; 6] =
    [&["run", "flow.yaml"], &["resume", "s"], &["stop", "s"], &["ps"], &["logs", "s"], &["store", "verify"]];

/// What each verb says of a store that was made so; its bytes must stay as they are.
fn refusals(place: &FaultSandbox, bytes: &[u8], says: &str) -> anyhow::Result<usize> {
    std::fs::write(place.store(), bytes)?;
    refused(place, bytes, says, &VERBS)
}

fn refused(place: &FaultSandbox, bytes: &[u8], says: &str, verbs: &[&[&str]]) -> anyhow::Result<usize> {
    let expected = if says == "damaged" { 1 } else { 4 };
    for verb in verbs {
        let Finished { code, stdout, stderr, .. } = place.run(verb)?;
        ensure!(code == expected && stderr.contains(says), "{verb:?} ended with {code}: {stdout}{stderr}");
        ensure!(std::fs::read(place.store())? == bytes, "{verb:?} has changed the store");
    }
    Ok(verbs.len())
}

fn foreign(size: Size) -> anyhow::Result<String> {
    let place = size.place("foreign-")?;
    let sound = closed(&place)?;
    let mut calls = 0;
    // Where SQLite keeps the format of its user.
    let mut newer = sound.clone();
    newer[60..64].copy_from_slice(&99_u32.to_be_bytes());
    calls += refusals(&place, &newer, "has format 99, and this program knows up to 3")?;
    let mut other = sound.clone();
    other[68..72].copy_from_slice(&7_u32.to_be_bytes());
    calls += refusals(&place, &other, "is not a store of inspan")?;
    calls += refusals(
        &place,
        b"These are my notes, and no database at all.\n".repeat(40).as_slice(),
        "is not a store of inspan",
    )?;
    let mut broken = sound.clone();
    let from = broken.len() / 4;
    broken[from..].fill(0xa5);
    std::fs::write(place.store(), &broken)?;
    let verified = place.run(&["store", "verify"])?;
    ensure!(
        verified.code == 1 && (verified.stdout.contains("damaged") || verified.stderr.contains("damaged")),
        "{verified:?}"
    );
    calls += refused(&place, &broken, "damaged", &[&["resume", "s"]])?;
    std::fs::write(place.store(), &sound)?;
    place.run(&["run", "flow.yaml", "--session-id", "t"])?.expect(0)?;
    calls += read_only(size)?;
    Ok(format!("{calls} calls, each refused; the sound store was usable after"))
}

/// A store that can be read and not written.
fn read_only(size: Size) -> anyhow::Result<usize> {
    let place = size.place("read-only-")?;
    let Ok(mount) = Mount::at(&place.home(), "8m") else {
        // Without the right to mount we have no more than the file's own permissions.
        let sound = closed(&place)?;
        let set = |mode| std::fs::set_permissions(place.store(), std::fs::Permissions::from_mode(mode));
        set(0o400)?;
        let calls = refused(&place, &sound, "is read-only", &[&["run", "flow.yaml"]])?;
        place.run(&["store", "verify"])?.expect(0)?;
        return Ok(calls);
    };
    let sound = closed(&place)?;
    mount.read_only()?;
    let calls = refused(&place, &sound, "read-only", &[&["run", "flow.yaml"], &["resume", "s"]])?;
    place.run(&["store", "verify"])?.expect(0)?;
    Ok(calls)
}
