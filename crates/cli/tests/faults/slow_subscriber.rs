//! Readers: one that never reads slows nobody, and is notified of what it missed; one that holds the store open
//! does not prevent writes.

use inspan_testkit::pause;
use std::io::Read as _;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use inspan_protocol::Event;

use super::place::{FaultSandbox, PROGRAM, memory, until};
use super::{Promise, Size};

pub(super) const DEAD: Promise = Promise {
    bound: "the session takes at most 30 % longer by the best of its runs (5 % with --full), and the process at most 32 MB \
            more",
    prove: dead,
};

pub(super) const READER: Promise = Promise {
    bound: "sessions run and are kept meanwhile; the reader gets the whole of what it began to read",
    prove: reader,
};

/// The best of so many runs is compared; while it is too bad more are made, since a busy machine only makes it worse.
const LEAST: usize = 2;
const MOST: usize = 25;

/// How many times as long a session may take. A sample has sessions so short that 5 % is less than what a busy machine adds.
fn slower_at_most(size: Size) -> f64 {
    match size {
        Size::Sample => 1.3,
        Size::Full => 1.05,
    }
}

/// Megabytes.
const MORE: u64 = 32;

/// So many texts fill whatever is between a process and one that does not read.
const BEFORE: usize = 1_500;
/// The rest is sent in so many bursts.
const BURSTS: usize = 40;
/// What is sent when all readers that can get stuck have got stuck.
const GO: &str = "GO";

/// Says so many short texts, waits until it may go on, and says many more at the pace of an agent that is in a hurry.
const CHATTY: &str = r#"
word=$(text 'one of very many words ')
yes "$word" | head -n BEFORE
while [ ! -e go ]; do sleep 0.02; done
text 'GO'
for burst in $(seq 40); do yes "$word" | head -n COUNT; sleep 0.02; done
done_
cat >/dev/null
"#;

const FLOW: &str = "flow: { name: chatty }\nnodes:\n  - { id: a, type: claude.agent, input: { prompt: go, options: { executable: ./chatty.sh } } }\n";

/// Who looks on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Onlooker {
    Nobody,
    /// A reader that has the other end of `--events -` and reads nothing.
    Pipe,
    /// `inspan logs -f`, whose lines nobody reads.
    Logs,
}

const ALL: [Onlooker; 3] = [Onlooker::Nobody, Onlooker::Pipe, Onlooker::Logs];

/// What one run took.
#[derive(Clone, Copy)]
struct Took {
    session: Duration,
    /// The most memory that the process had which drives the session.
    peak: u64,
    /// The most that the follower had.
    follower: u64,
}

fn texts(size: Size) -> usize {
    size.count(4_000, 100_000)
}

fn place(size: Size, before: usize) -> anyhow::Result<FaultSandbox> {
    let place = size.place("follower-")?;
    let script = format!("{PROGRAM}{CHATTY}");
    let count = (texts(size) / BURSTS).to_string();
    place.script("chatty.sh", &script.replace("BEFORE", &before.to_string()).replace("COUNT", &count))?;
    place.write("flow.yaml", FLOW)?;
    Ok(place)
}

fn run(size: Size, onlooker: Onlooker) -> anyhow::Result<Took> {
    let place = place(size, BEFORE)?;
    let mut command = place.command(&["run", "flow.yaml", "--session-id", "s"]);
    if onlooker == Onlooker::Pipe {
        command.args(["--events", "-"]);
    }
    let out = if onlooker == Onlooker::Pipe { Stdio::piped() } else { Stdio::null() };
    let mut child = command.stdout(out).stderr(Stdio::null()).spawn()?;
    let mut logs: Option<Child> = None;
    let (mut most, mut follower) = (0, 0);
    until("all that can get stuck is stuck", || {
        let entry = place.entry("s")?;
        pause(Duration::from_millis(10));
        Ok(entry.is_some_and(|entry| entry.digest.last_seq > BEFORE as u64))
    })?;
    if onlooker == Onlooker::Logs {
        let mut command = place.command(&["logs", "s", "-f", "--json"]);
        logs = Some(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?);
    }
    // All have started by then; it is the same for all of them.
    pause(Duration::from_millis(250));
    place.write("go", "")?;
    until("the session has ended", || {
        most = most.max(memory(child.id()));
        let Some(entry) = place.entry("s")? else { return Ok(false) };
        follower = follower.max(logs.as_ref().map_or(0, |logs| memory(logs.id())));
        // Often enough to be exact, and too seldom to disturb the measurement.
        pause(Duration::from_millis(10));
        Ok(entry.digest.outcome.is_some())
    })?;
    most = most.max(memory(child.id()));
    // Now they read after all, and have missed nothing: the events that they have not read fit their queue, or are
    // in the store.
    let late = match &mut logs {
        Some(logs) => Some(read(logs)?),
        None if onlooker == Onlooker::Pipe => Some(read(&mut child)?),
        None => None,
    };
    ensure!(child.wait()?.success(), "it failed");
    let log = place.look("s")?.context("the session is gone")?.log;
    // The last events are sent after the followers are released.
    if let Some(lines) = late {
        ensure!(lines + 8 >= log.len(), "{lines} of {} events were read at last", log.len());
    }
    let at = |is: &dyn Fn(&Event) -> bool| {
        log.iter()
            .find(|envelope| is(&envelope.event))
            .map(|found| found.timestamp)
            .context("it has not ended")
    };
    let went = at(&|event| matches!(event, Event::AgentText { content, .. } if content == GO))?;
    let ended = at(&|event| matches!(event, Event::HarnessComplete { .. }))?;
    Ok(Took { session: ended.since(went), peak: most, follower })
}

/// The lines of all that a process has to say.
fn read(child: &mut Child) -> anyhow::Result<usize> {
    let mut text = String::new();
    child.stdout.take().context("it has no output")?.read_to_string(&mut text)?;
    ensure!(child.wait()?.success(), "a follower failed");
    Ok(text.lines().count())
}

fn dead(size: Size) -> anyhow::Result<String> {
    let mut runs: [Vec<Took>; 3] = Default::default();
    let best = |runs: &[Took]| runs.iter().map(|took| took.session).min().unwrap_or_default().as_secs_f64();
    let at_most = slower_at_most(size);
    let slower = |runs: &[Vec<Took>; 3]| [1, 2].map(|at: usize| best(&runs[at]) / best(&runs[0]));
    for round in 0..MOST {
        if round >= LEAST && slower(&runs).iter().all(|times| *times <= at_most) {
            break;
        }
        // In turns, so that a busy moment does not hit one of them alone.
        for (onlooker, runs) in ALL.into_iter().zip(&mut runs) {
            runs.push(run(size, onlooker).with_context(|| format!("with {onlooker:?}"))?);
        }
    }
    let most = |runs: &[Took]| runs.iter().map(|took| took.peak).max().unwrap_or_default() >> 20;
    let [pipe, logs] = slower(&runs);
    let follower = runs[2].iter().map(|took| took.follower).max().unwrap_or_default() >> 20;
    let figure = format!(
        "{} runs each of {} texts: {:.0} ms and {} MB with nobody there; × {pipe:.2} and {} MB with `--events -` unread; \
         × {logs:.2} and {} MB with `logs -f` unread, which took {follower} MB itself",
        runs[0].len(),
        texts(size),
        best(&runs[0]) * 1_000.0,
        most(&runs[0]),
        most(&runs[1]),
        most(&runs[2]),
    );
    ensure!(pipe <= at_most && logs <= at_most, "it is slowed down\n{figure}");
    let more = most(&runs[1]).max(most(&runs[2])).saturating_sub(most(&runs[0]));
    ensure!(more <= MORE && follower <= most(&runs[0]) + MORE, "it takes too much memory\n{figure}");
    Ok(figure)
}

fn reader(size: Size) -> anyhow::Result<String> {
    let place = place(size, 1)?;
    place.write("go", "")?;
    place.run(&["run", "flow.yaml", "--session-id", "s"])?.expect(0)?;
    let events = place.look("s")?.context("the session is gone")?.log.len();
    // A pipe takes 64 KB; the reader then waits within its transaction for as long as nobody reads.
    let mut command = place.command(&["store", "export", "s"]);
    let mut holder = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    pause(Duration::from_millis(300));
    ensure!(holder.try_wait()?.is_none(), "the reader has ended already");
    let runs = size.count(3, 50);
    for at in 0..runs {
        place.run(&["run", "flow.yaml", "--session-id", &format!("t{at}")])?.expect(0)?;
    }
    ensure!(holder.try_wait()?.is_none(), "the reader has ended already");
    let mut text = String::new();
    let mut stdout = holder.stdout.take().context("it has no output")?;
    stdout.read_to_string(&mut text)?;
    ensure!(holder.wait()?.success(), "the reader failed");
    ensure!(text.lines().count() >= events + 2, "{} lines of {events} events", text.lines().count());
    place.sound()?;
    let said = |look: &super::place::Look| {
        look.log.iter().filter(|envelope| matches!(envelope.event, Event::AgentText { .. })).count()
    };
    let last = place.look(&format!("t{}", runs - 1))?.context("the last session is gone")?;
    let first = place.look("s")?.context("the session is gone")?;
    ensure!(said(&last) == said(&first), "{} texts are kept of {}", said(&last), said(&first));
    Ok(format!("{runs} sessions of {events} events written beside it; it read {events} events at last"))
}
