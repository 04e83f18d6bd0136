//! Power cuts under a store. What a program wrote to a file since the file was last synced may be on the disk in part, in
//! any order. So the calls of a program are traced, and played back up to a cut with a part of what was not synced by then.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    ops::Range,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, ensure};
use sha2::{Digest as _, Sha256};

/// The files of a store that a disk has, by the end of their names; the others are created again.
const FILES: [&str; 3] = ["", "-wal", MARKS];
const MARKS: &str = "-marks";
/// A disk writes these many bytes whole or not at all.
const SECTOR: usize = 512;
/// Bytes of a mark, and where in it the boot and the sum are; `docs/store.md` describes it.
const MARK: usize = 128;
const BOOT: Range<usize> = 52..60;
const CHECK: Range<usize> = 120..128;
const CALLS: &str = "trace=write,pwrite64,lseek,ftruncate,fsync,fdatasync,unlink";

/// A call of a traced program. A file of the store is named by its end.
pub enum DiskCall {
    /// Bytes for a file of the store.
    Write {
        /// The file.
        file: &'static str,
        /// From where on.
        at: usize,
        /// What is written.
        bytes: Vec<u8>,
    },
    /// A file of the store gets another length.
    Truncate {
        /// The file.
        file: &'static str,
        /// The length in bytes.
        length: usize,
    },
    /// A file of the store is synced.
    Sync {
        /// The file.
        file: &'static str,
    },
    /// A file of the store is removed.
    Remove {
        /// The file.
        file: &'static str,
    },
    /// Something is written to anything else.
    Print {
        /// The file or pipe.
        to: String,
        /// What is written.
        text: String,
    },
}

impl std::fmt::Debug for DiskCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Write { file, at, bytes } => write!(f, "write({file:?}, {} bytes at {at})", bytes.len()),
            Self::Truncate { file, length } => write!(f, "truncate({file:?}, {length})"),
            Self::Sync { file } => write!(f, "sync({file:?})"),
            Self::Remove { file } => write!(f, "remove({file:?})"),
            Self::Print { to, text } => write!(f, "print({to:?}, {text:?})"),
        }
    }
}

/// A command that traces the program of its further arguments to this file.
pub fn tracer(to: &Path) -> Command {
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-y", "-xx", "-s", "1000000", "-e", CALLS, "-o"]).arg(to);
    strace
}

/// Whether this machine has a tracer that may trace.
pub fn can_trace() -> bool {
    let mut strace = tracer(Path::new("/dev/null"));
    strace.arg("true").stdin(Stdio::null()).output().is_ok_and(|done| done.status.success())
}

/// The calls of a trace, for the store with this path.
pub fn disk_calls(trace: &Path, store: &Path) -> anyhow::Result<Vec<DiskCall>> {
    let mut reader =
        TraceReader { store, offsets: BTreeMap::new(), syncing: BTreeMap::new(), calls: Vec::new() };
    let text = fs::read_to_string(trace)?;
    text.lines().try_for_each(|line| reader.take(line).with_context(|| format!("{line:.200}")))?;
    Ok(reader.calls)
}

struct TraceReader<'a> {
    store: &'a Path,
    /// Where the next plain write to a file goes.
    offsets: BTreeMap<&'static str, usize>,
    /// The sync that a thread waits for.
    syncing: BTreeMap<String, &'static str>,
    calls: Vec<DiskCall>,
}

impl TraceReader<'_> {
    /// A line is a thread, a name, and arguments; a call that others came between is on two lines. What is written counts
    /// from the beginning of a call, and a sync from its end.
    fn take(&mut self, line: &str) -> anyhow::Result<()> {
        let (thread, rest) = line.split_once(' ').context("a line without a thread")?;
        let rest = rest.trim_start();
        if let Some(resumed) = rest.strip_prefix("<... ") {
            if let Some(file) = self.syncing.remove(thread) {
                ensure!(resumed.ends_with("= 0"), "a sync failed");
                self.calls.push(DiskCall::Sync { file });
            }
            return Ok(());
        }
        let Some((name, arguments)) = rest.split_once('(') else { return Ok(()) };
        let arguments: Vec<&str> = arguments.split(", ").collect();
        if name == "unlink" {
            if let Some(file) = self.file(&unescaped(quoted(arguments[0]))) {
                self.calls.push(DiskCall::Remove { file });
            }
            return Ok(());
        }
        // A file that is closed by then has no name.
        let Some((_, named)) = arguments[0].split_once('<') else { return Ok(()) };
        let named = unescaped(named.split('>').next().unwrap_or_default());
        let Some(file) = self.file(&named) else {
            if name == "write" {
                let [to, text] = [named, unescaped(quoted(arguments[1]))]
                    .map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
                self.calls.push(DiskCall::Print { to, text });
            }
            return Ok(());
        };
        let number = |at: usize| -> anyhow::Result<usize> {
            let digits: String = arguments[at].chars().take_while(char::is_ascii_digit).collect();
            Ok(digits.parse()?)
        };
        match name {
            "lseek" => drop(self.offsets.insert(file, number(1)?)),
            "write" | "pwrite64" => {
                let bytes = unescaped(quoted(arguments[1]));
                ensure!(bytes.len() == number(2)?, "a write is not whole in the trace");
                let next = self.offsets.entry(file).or_default();
                let at = if name == "write" { *next } else { number(3)? };
                *next = at + bytes.len();
                self.calls.push(DiskCall::Write { file, at, bytes });
            }
            "ftruncate" => self.calls.push(DiskCall::Truncate { file, length: number(1)? }),
            _ if rest.contains("<unfinished") => drop(self.syncing.insert(thread.to_owned(), file)),
            _ => self.calls.push(DiskCall::Sync { file }),
        }
        Ok(())
    }

    /// Which of the store's files this is.
    fn file(&self, name: &[u8]) -> Option<&'static str> {
        FILES.into_iter().find(|end| beside(self.store, end).as_os_str().as_encoded_bytes() == name)
    }
}

fn beside(store: &Path, end: &str) -> PathBuf {
    let mut name = OsString::from(store);
    name.push(end);
    PathBuf::from(name)
}

fn quoted(argument: &str) -> &str {
    argument.split('"').nth(1).unwrap_or_default()
}

/// The bytes that a tracer shows as `\x2f\x74`, and anything else as it is.
fn unescaped(text: &str) -> Vec<u8> {
    if !text.starts_with("\\x") {
        return text.as_bytes().to_vec();
    }
    text.split("\\x").skip(1).filter_map(|digits| u8::from_str_radix(digits.get(..2)?, 16).ok()).collect()
}

/// How much is on the disk of what was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsynced {
    /// Nothing but the marks, which is the worst for them.
    Lost,
    /// Some sectors.
    Torn,
    /// All.
    Written,
}

/// What a disk has for sure of a store, and what it may have.
pub struct StoreDisk(BTreeMap<&'static str, DiskFile>);

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

impl StoreDisk {
    /// A store that no process has open, all of it synced.
    pub fn of(store: &Path) -> Self {
        let file = |end| DiskFile { synced: fs::read(beside(store, end)).ok(), pending: Vec::new() };
        Self(FILES.into_iter().map(|end| (end, file(end))).collect())
    }

    /// Plays back a call.
    pub fn take(&mut self, call: &DiskCall) {
        let (file, change) = match call {
            DiskCall::Write { file, at, bytes } => (file, Change::Write(*at, bytes.clone())),
            DiskCall::Truncate { file, length } => (file, Change::Truncate(*length)),
            DiskCall::Remove { file } => (file, Change::Remove),
            DiskCall::Sync { file } => {
                let file = self.0.entry(file).or_default();
                file.pending.drain(..).for_each(|change| change.apply(&mut file.synced));
                return;
            }
            DiskCall::Print { .. } => return,
        };
        self.0.entry(file).or_default().pending.push(change);
    }

    /// Writes the files of the store as they are after a cut and the next boot. `below` gives a number below another.
    pub fn lay_out(
        &self,
        store: &Path,
        unsynced: Unsynced,
        below: &mut dyn FnMut(u64) -> u64,
    ) -> std::io::Result<()> {
        for (end, file) in &self.0 {
            let mut content = file.synced.clone();
            // How likely a part of this file is there: it may be one of them, or most.
            let likely = below(101);
            for part in file.pending.iter().flat_map(Change::sectors) {
                let is_there = match unsynced {
                    Unsynced::Written => true,
                    Unsynced::Lost => *end == MARKS,
                    Unsynced::Torn => below(100) < likely,
                };
                if is_there {
                    part.apply(&mut content);
                }
            }
            if *end == MARKS {
                content.iter_mut().for_each(|marks| of_another_boot(marks));
            }
            match content {
                Some(content) => fs::write(beside(store, end), content)?,
                None if beside(store, end).exists() => fs::remove_file(beside(store, end))?,
                None => {}
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
