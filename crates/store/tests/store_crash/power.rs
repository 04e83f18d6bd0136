//! Power cuts. What a process wrote to a file since the file was last synced may be on the disk in part, in any order. So
//! the calls of a process are traced, and played back up to a cut with a part of what was not synced by then.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use inspan_protocol::Timestamp;
use inspan_store::{Batch, Owner, RunStore, Select, SqliteOptions, SqliteStore};
use sha2::{Digest, Sha256};

use crate::{Outcome, SESSION, can_trace, child, command, ensure, listen, place, traced};

/// The files of a store that a disk has; the others are made anew.
const FILES: [&str; 3] = ["", "-wal", "-marks"];
const EVENTS: u64 = 160;
const BYTES: usize = 12_000;
/// How many moments are tried, each with several parts of what was not synced.
const MOMENTS: usize = 120;
/// A disk writes these many bytes whole or not at all.
const SECTOR: usize = 512;
/// Bytes of a mark, and where in it the boot and the sum are.
const MARK: usize = 128;
const BOOT: std::ops::Range<usize> = 52..60;
const CHECK: std::ops::Range<usize> = 120..128;

pub(crate) fn cuts() -> Outcome {
    if !can_trace() {
        return Ok(());
    }
    let (_folder, path) = place()?;
    // The session begins, and its process ends.
    let begun = listen(command("append", &path)?.args(["--events", "3"]).spawn()?, |_| false)?;
    ensure(begun.done, || "the session was not begun".to_owned())?;
    let mut disk = Disk::of(&path)?;
    let calls = trace(&path)?;
    let checkpointed = calls.iter().any(|call| matches!(call, Call::Write { file: "", .. }));
    ensure(checkpointed, || "the write-ahead log was never copied into the file".to_owned())?;
    let (mut chance, mut acknowledged, mut seen) = (Chance(7), 3, Seen::default());
    let stride = (calls.len() / MOMENTS).max(1);
    for (number, call) in calls.iter().enumerate() {
        if let Call::Acknowledged(seq) = call {
            acknowledged = *seq;
        } else {
            disk.take(call);
        }
        if chance.below(stride) == 0 {
            for left in [Left::Nothing, Left::Something, Left::Something, Left::All] {
                let last = look(&disk, left, &mut chance, acknowledged)
                    .map_err(|error| format!("cut after call {number} {call:?}, {left:?} left: {error}"))?;
                seen.cuts += 1;
                seen.shortened += u64::from(last < acknowledged);
            }
        }
    }
    ensure(acknowledged == EVENTS, || format!("only {acknowledged} events were acknowledged"))?;
    ensure(seen.cuts > 200 && seen.shortened > 10, || format!("it is no test: {seen:?}"))
}

#[derive(Debug, Default)]
struct Seen {
    cuts: u64,
    /// Cuts that took acknowledged events, none of them a fact.
    shortened: u64,
}

/// Opens what a cut leaves, after the boot that follows it; the last event.
fn look(disk: &Disk, left: Left, chance: &mut Chance, acknowledged: u64) -> Outcome<u64> {
    let (_folder, path) = place()?;
    disk.lay_out(&path, left, chance)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let store = SqliteStore::open(&path, &SqliteOptions::default())?;
        let report = store.verify().await?;
        ensure(report.is_sound(), || format!("{:?}", report.findings))?;
        let log = store.read(&SESSION.into(), 0, Select::All).await?;
        for (event, seq) in log.iter().zip(1..) {
            let bytes = if seq <= 3 { 0 } else { BYTES };
            let same = **event == child::event(SESSION, seq, bytes)?;
            ensure(same, || format!("event {seq} is not what was written"))?;
        }
        let last = log.len() as u64;
        // The newest fact that was acknowledged, and with it all before it.
        let promised = match left {
            Left::All => acknowledged,
            Left::Nothing | Left::Something => acknowledged - acknowledged % child::FACTS,
        };
        ensure(last >= promised, || format!("{promised} events were promised, and {last} are left"))?;
        // The session goes on, and the numbers of lost events are given again.
        let now = Timestamp::from_millis(child::NOW.as_millis() + 3_600_000);
        let lease = store.acquire(&SESSION.into(), &Owner::of_process(), now).await?;
        let next = child::event(SESSION, last + 1, 1)?;
        store.append(&lease, Batch { events: &[next.into()], answers: &[] }).await?;
        let report = store.verify().await?;
        ensure(report.is_sound(), || format!("after one event more: {:?}", report.findings))?;
        Ok(last)
    })
}

/// A call of the traced process.
enum Call {
    Write { file: &'static str, at: usize, bytes: Vec<u8> },
    Truncate { file: &'static str, length: usize },
    Sync { file: &'static str },
    Remove { file: &'static str },
    Acknowledged(u64),
}

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Write { file, at, bytes } => write!(f, "write({file:?}, {} bytes at {at})", bytes.len()),
            Self::Truncate { file, length } => write!(f, "truncate({file:?}, {length})"),
            Self::Sync { file } => write!(f, "sync({file:?})"),
            Self::Remove { file } => write!(f, "remove({file:?})"),
            Self::Acknowledged(seq) => write!(f, "acknowledged({seq})"),
        }
    }
}

/// Runs the process that appends, and reads what it did.
fn trace(path: &Path) -> Outcome<Vec<Call>> {
    let to = path.with_file_name("trace");
    let mut strace = traced(&to);
    strace.args(["-y", "-xx", "-s", "1000000", "-e"]);
    strace.arg("trace=write,pwrite64,lseek,ftruncate,fsync,fdatasync,unlink");
    strace.arg(std::env::current_exe()?).args(["child", "append"]).arg(path);
    strace.args(["--events", &EVENTS.to_string(), "--bytes", &BYTES.to_string()]);
    let said = listen(strace.stdout(Stdio::piped()).spawn()?, |_| false)?;
    ensure(said.done && said.failed.is_empty(), || format!("the traced process failed: {:?}", said.failed))?;
    let mut reader = Reader { path, offsets: BTreeMap::new(), syncing: BTreeMap::new(), calls: Vec::new() };
    fs::read_to_string(to)?.lines().try_for_each(|line| reader.take(line))?;
    Ok(reader.calls)
}

struct Reader<'a> {
    path: &'a Path,
    /// Where the next plain write to a file goes.
    offsets: BTreeMap<&'static str, usize>,
    /// The sync that a thread waits for.
    syncing: BTreeMap<String, &'static str>,
    calls: Vec<Call>,
}

impl Reader<'_> {
    /// A line is a thread, a name, and arguments; a call that others came between is on two lines. What is written counts
    /// from the beginning of a call, and a sync from its end.
    fn take(&mut self, line: &str) -> Outcome {
        let (thread, rest) = line.split_once(' ').ok_or("a line without a thread")?;
        let rest = rest.trim_start();
        if let Some(resumed) = rest.strip_prefix("<... ") {
            if let Some(file) = self.syncing.remove(thread) {
                ensure(resumed.ends_with("= 0"), || format!("a sync failed: {line}"))?;
                self.calls.push(Call::Sync { file });
            }
            return Ok(());
        }
        let Some((name, arguments)) = rest.split_once('(') else { return Ok(()) };
        let arguments: Vec<&str> = arguments.split(", ").collect();
        if name == "unlink" {
            if let Some(file) = self.file(&unescaped(quoted(arguments[0]))) {
                self.calls.push(Call::Remove { file });
            }
            return Ok(());
        }
        let (number, named) = arguments[0].split_once('<').ok_or_else(|| format!("no file: {line}"))?;
        let named = named.split('>').next().unwrap_or_default();
        if (name, number) == ("write", "1") {
            let said = String::from_utf8(unescaped(quoted(arguments[1])))?;
            for seq in said.lines().filter_map(|line| line.strip_prefix("acknowledged ")) {
                self.calls.push(Call::Acknowledged(seq.parse()?));
            }
            return Ok(());
        }
        let Some(file) = self.file(&unescaped(named)) else { return Ok(()) };
        let number = |at: usize| -> Outcome<usize> {
            let digits: String = arguments[at].chars().take_while(char::is_ascii_digit).collect();
            Ok(digits.parse()?)
        };
        match name {
            "lseek" => drop(self.offsets.insert(file, number(1)?)),
            "write" | "pwrite64" => {
                let bytes = unescaped(quoted(arguments[1]));
                ensure(bytes.len() == number(2)?, || "a write is not whole in the trace".to_owned())?;
                let next = self.offsets.entry(file).or_default();
                let at = if name == "write" { *next } else { number(3)? };
                *next = at + bytes.len();
                self.calls.push(Call::Write { file, at, bytes });
            }
            "ftruncate" => self.calls.push(Call::Truncate { file, length: number(1)? }),
            _ if rest.contains("<unfinished") => drop(self.syncing.insert(thread.to_owned(), file)),
            _ => self.calls.push(Call::Sync { file }),
        }
        Ok(())
    }

    /// Which of the store's files this is.
    fn file(&self, name: &[u8]) -> Option<&'static str> {
        FILES.into_iter().find(|end| beside(self.path, end).as_os_str().as_encoded_bytes() == name)
    }
}

fn beside(path: &Path, end: &str) -> PathBuf {
    PathBuf::from(format!("{}{end}", path.display()))
}

fn quoted(argument: &str) -> &str {
    argument.split('"').nth(1).unwrap_or_default()
}

/// The bytes that a tracer shows as `\x2f\x74`.
fn unescaped(text: &str) -> Vec<u8> {
    text.split("\\x").skip(1).filter_map(|digits| u8::from_str_radix(digits, 16).ok()).collect()
}

/// How much is on the disk of what was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Nothing,
    Something,
    All,
}

/// What a disk has for sure, and what it may have.
struct Disk(BTreeMap<&'static str, DiskFile>);

#[derive(Default)]
struct DiskFile {
    synced: Option<Vec<u8>>,
    pending: Vec<Change>,
}

#[derive(Clone)]
enum Change {
    Write(usize, Vec<u8>),
    Truncate(usize),
    Remove,
}

impl Change {
    fn apply(&self, content: &mut Option<Vec<u8>>) {
        match self {
            Self::Write(at, bytes) => {
                let content = content.get_or_insert_default();
                content.resize(content.len().max(at + bytes.len()), 0);
                content[*at..at + bytes.len()].copy_from_slice(bytes);
            }
            Self::Truncate(length) => content.get_or_insert_default().resize(*length, 0),
            Self::Remove => *content = None,
        }
    }

    /// Parts that reach a disk each by itself.
    fn sectors(&self) -> Vec<Self> {
        let Self::Write(at, bytes) = self else { return vec![self.clone()] };
        let mut rest = &bytes[..];
        let (mut at, mut parts) = (*at, Vec::new());
        while !rest.is_empty() {
            let (part, after) = rest.split_at(rest.len().min(SECTOR - at % SECTOR));
            parts.push(Self::Write(at, part.to_owned()));
            (at, rest) = (at + part.len(), after);
        }
        parts
    }
}

impl Disk {
    fn of(path: &Path) -> Outcome<Self> {
        let mut disk = BTreeMap::new();
        for end in FILES {
            let synced = fs::read(beside(path, end)).ok();
            disk.insert(end, DiskFile { synced, pending: Vec::new() });
        }
        Ok(Self(disk))
    }

    fn take(&mut self, call: &Call) {
        let (file, change) = match call {
            Call::Write { file, at, bytes } => (file, Change::Write(*at, bytes.clone())),
            Call::Truncate { file, length } => (file, Change::Truncate(*length)),
            Call::Remove { file } => (file, Change::Remove),
            Call::Sync { file } => {
                let file = self.0.entry(file).or_default();
                file.pending.drain(..).for_each(|change| change.apply(&mut file.synced));
                return;
            }
            Call::Acknowledged(_) => return,
        };
        self.0.entry(file).or_default().pending.push(change);
    }

    /// Writes the files as they are after a cut and the next boot.
    fn lay_out(&self, path: &Path, left: Left, chance: &mut Chance) -> Outcome {
        for (end, file) in &self.0 {
            let mut content = file.synced.clone();
            // How likely a part of this file is there: it may be one of them, or most.
            let likely = chance.below(101);
            for part in file.pending.iter().flat_map(Change::sectors) {
                // Marks are there even if nothing of the log is: that is the worst for them.
                let is_there = match left {
                    Left::All => true,
                    Left::Nothing => *end == "-marks",
                    Left::Something => chance.below(100) < likely,
                };
                if is_there {
                    part.apply(&mut content);
                }
            }
            if *end == "-marks" {
                content.iter_mut().for_each(|marks| of_another_boot(marks));
            }
            if let Some(content) = content {
                fs::write(beside(path, end), content)?;
            }
        }
        Ok(())
    }
}

/// Makes every mark one that was written before the machine booted.
fn of_another_boot(marks: &mut [u8]) {
    for mark in marks.chunks_exact_mut(MARK) {
        let sum = |mark: &[u8]| Sha256::digest(&mark[..CHECK.start])[..CHECK.len()].to_vec();
        // A torn one stays so.
        if mark[CHECK] == sum(mark) {
            mark[BOOT].fill(9);
            let sum = sum(mark);
            mark[CHECK].copy_from_slice(&sum);
        }
    }
}

/// Numbers that look like chance and are the same on every run.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit.max(1)
    }
}
