//! A store that another program damaged: bits flip and ends are missing in the database, its write-ahead log and
//! its marks. What is not damaged is still read, and what is damaged is named.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use inspan_flow::{
    RunStore as _, Select, SqliteOptions, SqliteStore, StoreError, StoreProblem, VerifyReport,
};
use inspan_protocol::{Envelope, SessionId};

use super::place::{Dice, FaultSandbox, runtime};
use super::{Promise, Size};

pub(super) const ROW: Promise =
    Promise { bound: "what is read is what was written, or the damage is named: 0 in silence", prove };

const FLOW: &str = r#"
flow: { name: lane }
nodes:
  - { id: a, type: exec, input: { argv: [seq, "400"] } }
  - { id: b, type: echo, dependsOn: [a], input: { text: "{{ a.stdout }}" } }
  - { id: c, type: claude.agent, dependsOn: [b], input: { prompt: "key=c; Do it.", options: { executable: ./agent.sh } } }
  - { id: d, type: echo, dependsOn: [c], input: { text: "{{ c.text }} {{ b.text }}" } }
  - { id: e, type: exec, dependsOn: [d], input: { argv: [echo, done] } }
"#;

/// The files of a store that have what was written; the others are created again.
const FILES: [&str; 3] = ["", "-wal", "-marks"];

/// A store as it was on the disk, and its content.
struct Exhibit {
    files: BTreeMap<&'static str, Vec<u8>>,
    log: Vec<Arc<Envelope>>,
}

/// The result of one damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Sight {
    /// All is read as it was written.
    Unharmed,
    /// An event is named that is altered or missing.
    Event,
    /// The session is named.
    Session,
    /// The file is refused as a whole.
    File,
}

fn prove(size: Size) -> anyhow::Result<String> {
    let open = exhibit(size, Left::Killed)?;
    let closed = exhibit(size, Left::Closed)?;
    let mut dice = Dice::new(5);
    let mut figure = Vec::new();
    for (what, exhibit, end) in
        [("write-ahead log", &open, "-wal"), ("database", &closed, ""), ("marks", &closed, "-marks")]
    {
        let bytes = exhibit.files.get(end).filter(|bytes| !bytes.is_empty());
        let bytes = bytes.with_context(|| format!("there is no {what} to harm"))?;
        let flips = if end == "-marks" { size.count(20, 200) } else { size.count(90, 4_000) };
        let tears = size.count(12, 200);
        let mut seen: BTreeMap<Sight, usize> = BTreeMap::new();
        for at in 0..flips + tears {
            let mut harmed = bytes.clone();
            let place = usize::try_from(dice.below(bytes.len() as u64))?;
            let harm = if at < flips {
                harmed[place] ^= 1 << dice.below(8);
                format!("bit of byte {place}")
            } else {
                harmed.truncate(place);
                format!("all from byte {place}")
            };
            let sight = look(exhibit, end, &harmed).with_context(|| format!("{harm} of the {what}"))?;
            *seen.entry(sight).or_default() += 1;
        }
        let count = |sight| seen.get(&sight).copied().unwrap_or_default();
        figure.push(format!(
            "{what}, {} bytes: {flips} flips, {tears} tears: {} with an event named, {} with the session, {} refused, {} no harm",
            bytes.len(),
            count(Sight::Event),
            count(Sight::Session),
            count(Sight::File),
            count(Sight::Unharmed),
        ));
    }
    Ok(figure.join("\n"))
}

/// How the store was left.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    /// By a process that was killed: the write-ahead log is there.
    Killed,
    /// By one that ended: all is in the database.
    Closed,
}

fn exhibit(size: Size, left: Left) -> anyhow::Result<Exhibit> {
    let place = size.place("damage-")?;
    place.write("flow.yaml", FLOW)?;
    let points = {
        let count = size.place("damage-")?;
        count.write("flow.yaml", FLOW)?;
        run(&count, None)?;
        std::fs::read_to_string(count.path("points"))?.lines().count()
    };
    // How the writer groups what waits for it differs from run to run, and with it the number of points.
    run(&place, (left == Left::Killed).then_some(points * 3 / 4))?;
    let files = FILES
        .into_iter()
        .filter_map(|end| Some((end, std::fs::read(format!("{}{end}", place.store().display())).ok()?)))
        .collect();
    let log = runtime()?.block_on(async {
        let store = SqliteStore::open_reader(place.store())?;
        store.read(&SessionId::from("s"), 1, Select::All).await
    })?;
    ensure!(log.len() > 15, "only {} events were kept", log.len());
    Ok(Exhibit { files, log })
}

fn run(place: &FaultSandbox, crash_at: Option<usize>) -> anyhow::Result<()> {
    let mut command = place.command(&["run", "flow.yaml", "--session-id", "s"]);
    command.env("INSPAN_CRASH_LOG", place.path("points"));
    if let Some(at) = crash_at {
        command.env("INSPAN_CRASH_AT", at.to_string());
    }
    let expected = if crash_at.is_some() { 137 } else { 0 };
    place.start(command)?.finish()?.expect(expected)?;
    place.none_left()
}

/// Writes the damaged store to a folder and opens it as a reader, as a verifier and as a writer would.
fn look(exhibit: &Exhibit, end: &str, harmed: &[u8]) -> anyhow::Result<Sight> {
    let folder = tempfile::tempdir()?;
    let store = folder.path().join("sessions.db");
    for (name, bytes) in &exhibit.files {
        let bytes = if *name == end { harmed } else { bytes };
        std::fs::write(format!("{}{name}", store.display()), bytes)?;
    }
    let session = SessionId::from("s");
    let (read, report) = runtime()?.block_on(async {
        let reader = match SqliteStore::open_reader(&store) {
            Ok(reader) => reader,
            Err(error) => return Ok((Err(error), None)),
        };
        let report = reader.verify().await;
        let read = reader.read(&session, 1, Select::All).await;
        match (read, report) {
            (read, Ok(report)) => anyhow::Ok((read, Some(report))),
            (read, Err(error)) => Ok((read.and(Err(error)), None)),
        }
    })?;
    let opened = SqliteStore::open(&store, &SqliteOptions::default()).map(drop);
    judge(exhibit, read, report.as_ref(), opened, &store)
}

fn judge(
    exhibit: &Exhibit,
    read: Result<Vec<Arc<Envelope>>, StoreError>,
    report: Option<&VerifyReport>,
    opened: Result<(), StoreError>,
    store: &Path,
) -> anyhow::Result<Sight> {
    if read.as_ref().is_ok_and(|log| *log == exhibit.log) {
        return Ok(Sight::Unharmed);
    }
    if let Ok(log) = &read {
        anyhow::bail!("{} events of {} were read, and nothing was said", log.len(), exhibit.log.len());
    }
    let findings = report.map(|report| report.findings.as_slice()).unwrap_or_default();
    let names_event = findings.iter().any(|finding| {
        matches!(
            finding.problem,
            StoreProblem::Altered(_)
                | StoreProblem::Missing(..)
                | StoreProblem::Unreadable(..)
                | StoreProblem::MissingSession(_)
        )
    });
    let messages: Vec<String> =
        [read.err(), opened.err()].into_iter().flatten().map(|error| error.to_string()).collect();
    let names_session = findings.iter().any(|finding| finding.session.is_some())
        || messages.iter().any(|message| message.contains("session `s`"));
    let names_file = messages.iter().all(|message| message.contains(&store.display().to_string()));
    match (names_event, names_session) {
        (true, _) => Ok(Sight::Event),
        (false, true) => Ok(Sight::Session),
        (false, false) if names_file => Ok(Sight::File),
        (false, false) => anyhow::bail!("the damage is not named: {messages:?}"),
    }
}
