//! The marks: a small file beside the store that records, for each session, how far its log was acknowledged. A bit
//! that flips in the write-ahead log makes SQLite drop everything after it, without an error; the marks detect that:
//! `log` and `loss` compare them with the log.
//!
//! A mark has two ends of the log: the one of the newest synced commit of this session, and the newest of all. A power
//! cut may take what comes between; so the second counts only until the machine boots again. Both are written after
//! their commit and before the acknowledgement, as one write of 128 bytes. It is never synced: after a power cut a mark
//! may be old or missing, which detects less. A torn or altered mark fails its own sum and counts as missing.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    path::Path,
    sync::LazyLock,
};

use super::{
    file,
    sum::{Sum, of_bytes},
    writer::Durability,
};
use crate::owner;

const SIZE: usize = 128;
const MAGIC: &[u8; 4] = b"ISM2";
/// The marks of programs that synced every commit: they have one end.
const MAGIC_1: &[u8; 4] = b"ISM1";
/// As much of an id as fits; the place in the file already says which session it is.
const ID: usize = 59;
const ID_1: usize = 90;
const CHECKED: usize = 120;
/// An end before every log: nothing is known to be synced.
const NOTHING: (i64, Sum) = (-1, [0; 16]);

/// An id of the machine's current boot; zeros if unknown.
type Boot = [u8; 8];

static BOOT: LazyLock<Boot> = LazyLock::new(|| match owner::boot() {
    boot if boot.is_empty() => Boot::default(),
    boot => first(&of_bytes(boot.as_bytes())),
});

/// How far a session's log was acknowledged, of what must still be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    /// The session, or what of its id fits.
    pub(super) session: String,
    /// Its newest acknowledged event; one less than the first while there is none.
    pub(super) seq: i64,
    /// That event's sum.
    pub(super) sum: Sum,
}

impl Mark {
    pub(super) fn new(session: &str, seq: i64, sum: Sum) -> Self {
        Self { session: shorten(session).to_owned(), seq, sum }
    }

    /// Whether it is about this session, and not about an earlier one that had its place.
    pub(super) fn is_of(&self, session: &str) -> bool {
        self.session == shorten(session)
    }
}

/// A mark as the file has it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MarkRow {
    session: String,
    /// The newest synced event, and its sum.
    synced: (i64, Sum),
    /// The newest event, and its sum; it counts in this boot only.
    written: (i64, Sum),
    boot: Boot,
}

impl MarkRow {
    fn synced(mark: &Mark) -> Self {
        let end = (mark.seq, mark.sum);
        Self { session: mark.session.clone(), synced: end, written: end, boot: *BOOT }
    }

    /// The row of a mark that is not synced, in the place of another.
    fn written(mark: &Mark, before: Option<Self>) -> Self {
        let before = before.filter(|before| before.session == mark.session);
        Self { synced: before.map_or(NOTHING, |before| before.synced), ..Self::synced(mark) }
    }

    /// What of it counts in this boot.
    fn mark(&self, boot: Boot) -> Mark {
        let is_same = self.boot == boot && boot != Boot::default();
        let (seq, sum) = if is_same { self.written } else { self.synced };
        Mark { session: self.session.clone(), seq, sum }
    }

    fn to_bytes(&self) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        let id = shorten(&self.session).as_bytes();
        bytes[..4].copy_from_slice(MAGIC);
        for (at, (seq, sum)) in [(4, &self.synced), (28, &self.written)] {
            bytes[at..at + 8].copy_from_slice(&seq.to_le_bytes());
            bytes[at + 8..at + 24].copy_from_slice(sum);
        }
        bytes[52..60].copy_from_slice(&self.boot);
        bytes[60] = id.len() as u8;
        bytes[61..61 + id.len()].copy_from_slice(id);
        let check = of_bytes(&bytes[..CHECKED]);
        bytes[CHECKED..].copy_from_slice(&check[..SIZE - CHECKED]);
        bytes
    }

    fn from_bytes(bytes: &[u8; SIZE]) -> Option<Self> {
        (bytes[CHECKED..] == of_bytes(&bytes[..CHECKED])[..SIZE - CHECKED]).then_some(())?;
        let id = |at: usize, most: usize| {
            let length = usize::from(bytes[at]);
            let id = std::str::from_utf8(bytes.get(at + 1..at + 1 + length)?).ok()?;
            (length <= most).then(|| shorten(id).to_owned())
        };
        let end = |at: usize| (i64::from_le_bytes(first(&bytes[at..])), first(&bytes[at + 8..]));
        if bytes.starts_with(MAGIC_1) {
            let end = end(4);
            return Some(Self { session: id(28, ID_1)?, synced: end, written: end, boot: Boot::default() });
        }
        let boot = first(&bytes[52..]);
        let row = Self { session: id(60, ID)?, synced: end(4), written: end(28), boot };
        bytes.starts_with(MAGIC).then_some(row)
    }
}

/// The first of these bytes, of which there are enough.
fn first<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.first_chunk().copied().unwrap_or([0; N])
}

fn shorten(session: &str) -> &str {
    &session[..session.floor_char_boundary(ID)]
}

/// The file, open for writing.
#[derive(Debug)]
pub(super) struct Marks(File);

impl Marks {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        file::check_plain(path)?;
        Ok(Self(file::private().read(true).create(true).truncate(false).open(path)?))
    }

    /// Whether nothing is marked yet.
    pub(super) fn is_empty(&self) -> io::Result<bool> {
        Ok(self.0.metadata()?.len() == 0)
    }

    /// Forgets everything.
    pub(super) fn clear_all(&mut self) -> io::Result<()> {
        self.0.set_len(0)
    }

    /// Writes the mark of the session with this number as synced, or removes it.
    pub(super) fn put(&mut self, number: i64, mark: Option<&Mark>) -> io::Result<()> {
        self.write(number, &mark.map_or([0; SIZE], |mark| MarkRow::synced(mark).to_bytes()))
    }

    /// Writes all of them, neighbours in one write; of several for one session the last counts. `durability` is that of
    /// their commit.
    pub(super) fn put_all(&mut self, marks: Vec<(i64, Mark)>, durability: Durability) -> io::Result<()> {
        let last = marks.into_iter().collect::<BTreeMap<_, _>>();
        let mut rows = Vec::with_capacity(last.len());
        for (number, mark) in last {
            let row = match durability {
                Durability::Synced => MarkRow::synced(&mark),
                Durability::Written => MarkRow::written(&mark, one(&mut self.0, number)?),
            };
            rows.push((number, row));
        }
        for run in rows.chunk_by(|(before, _), (number, _)| number - before == 1) {
            let bytes: Vec<u8> = run.iter().flat_map(|(_, row)| row.to_bytes()).collect();
            self.write(run[0].0, &bytes)?;
        }
        Ok(())
    }

    /// Writes from the place of the session with this number on.
    fn write(&mut self, number: i64, bytes: &[u8]) -> io::Result<()> {
        self.0.seek(SeekFrom::Start(offset(number)))?;
        self.0.write_all(bytes)
    }

    /// The mark of the session with this number, if there is a sound one.
    pub(super) fn get(&mut self, number: i64) -> io::Result<Option<Mark>> {
        Ok(one(&mut self.0, number)?.map(|row| row.mark(*BOOT)))
    }
}

/// The mark of the session with this number, for readers.
pub(super) fn read(path: &Path, number: i64) -> io::Result<Option<Mark>> {
    match file::check_plain(path).and_then(|()| File::open(path)) {
        Ok(mut file) => Ok(one(&mut file, number)?.map(|row| row.mark(*BOOT))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Every place of the file that is in use: the session's number, and its mark if that is sound.
pub(super) fn read_all(path: &Path) -> io::Result<Vec<(i64, Option<Mark>)>> {
    let mut bytes = Vec::new();
    match file::check_plain(path).and_then(|()| File::open(path)) {
        Ok(mut file) => file.read_to_end(&mut bytes)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(error),
    };
    let (places, rest) = bytes.as_chunks::<SIZE>();
    let used = (1..).zip(places).filter(|(_, bytes)| **bytes != [0; SIZE]);
    let mark = |bytes| MarkRow::from_bytes(bytes).map(|row| row.mark(*BOOT));
    let mut marks: Vec<_> = used.map(|(number, bytes)| (number, mark(bytes))).collect();
    if !rest.is_empty() {
        marks.push((places.len() as i64 + 1, None));
    }
    Ok(marks)
}

fn one(file: &mut File, number: i64) -> io::Result<Option<MarkRow>> {
    file.seek(SeekFrom::Start(offset(number)))?;
    let mut bytes = [0; SIZE];
    match file.read_exact(&mut bytes) {
        Ok(()) => Ok(MarkRow::from_bytes(&bytes)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

/// Numbers count from 1.
fn offset(number: i64) -> u64 {
    u64::try_from(number - 1).unwrap_or(0) * SIZE as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_that_is_not_whole_counts_as_missing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("marks");
        let mut marks = Marks::open(&path).unwrap();
        let long = "ä".repeat(80);
        let first = Mark::new("run-1", 7, [3; 16]);
        let third = Mark::new(&long, i64::MAX, [9; 16]);
        marks.put(1, Some(&first)).unwrap();
        marks.put(3, Some(&third)).unwrap();
        assert_eq!(read_all(&path).unwrap(), [(1, Some(first.clone())), (3, Some(third.clone()))]);
        assert!(third.is_of(&long));
        let bytes = MarkRow::synced(&first).to_bytes();
        for place in 0..SIZE {
            let mut flipped = bytes;
            flipped[place] ^= 0x10;
            assert_eq!(MarkRow::from_bytes(&flipped), None, "byte {place}");
        }
        marks.put(3, None).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(SIZE as u64 * 3 - 1).unwrap();
        assert_eq!(read_all(&path).unwrap(), [(1, Some(first)), (3, None)]);
        assert_eq!(read(&path, 3).unwrap(), None);
    }

    #[test]
    fn many_marks_go_each_to_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("marks");
        let mut marks = Marks::open(&path).unwrap();
        let mark = |number: i64, seq| (number, Mark::new(&format!("run-{number}"), seq, [seq as u8; 16]));
        let all = vec![mark(7, 1), mark(2, 1), mark(3, 1), mark(2, 2), mark(5, 1)];
        marks.put_all(all, Durability::Synced).unwrap();
        marks.put_all(vec![mark(3, 4)], Durability::Written).unwrap();
        marks.put_all(Vec::new(), Durability::Synced).unwrap();
        let written = [mark(2, 2), mark(3, 4), mark(5, 1), mark(7, 1)];
        assert_eq!(read_all(&path).unwrap(), written.map(|(number, mark)| (number, Some(mark))));
    }

    #[test]
    fn after_a_boot_only_what_was_synced_counts() {
        let folder = tempfile::tempdir().unwrap();
        let mut marks = Marks::open(&folder.path().join("marks")).unwrap();
        let mark = |seq: i64| Mark::new("run-1", seq, [seq as u8; 16]);
        let mut seen = Vec::new();
        let steps = [(2, Durability::Synced), (3, Durability::Written), (5, Durability::Written)];
        for (seq, durability) in steps.into_iter().chain([(6, Durability::Synced)]) {
            marks.put_all(vec![(1, mark(seq))], durability).unwrap();
            let row = one(&mut marks.0, 1).unwrap().unwrap();
            let [here, later, unknown] = [*BOOT, [7; 8], Boot::default()].map(|boot| row.mark(boot).seq);
            seen.push((here, later, unknown));
        }
        assert_eq!(seen, [(2, 2, 2), (3, 2, 2), (5, 2, 2), (6, 6, 6)]);
        // Nothing of an earlier session in this place is reused.
        let other = Mark::new("run-2", 4, [4; 16]);
        marks.put_all(vec![(1, other.clone())], Durability::Written).unwrap();
        let row = one(&mut marks.0, 1).unwrap().unwrap();
        assert_eq!((row.mark(*BOOT), row.synced), (other, NOTHING));
    }

    #[test]
    fn a_mark_of_the_first_form_is_synced() {
        let mut bytes = [0; SIZE];
        bytes[..4].copy_from_slice(MAGIC_1);
        bytes[4..12].copy_from_slice(&7_i64.to_le_bytes());
        bytes[12..28].copy_from_slice(&[3; 16]);
        let long = "a".repeat(ID_1);
        bytes[28] = ID_1 as u8;
        bytes[29..29 + ID_1].copy_from_slice(long.as_bytes());
        let check = of_bytes(&bytes[..CHECKED]);
        bytes[CHECKED..].copy_from_slice(&check[..SIZE - CHECKED]);
        let mark = MarkRow::from_bytes(&bytes).unwrap().mark(*BOOT);
        assert_eq!((mark.is_of(&long), mark.seq, mark.sum), (true, 7, [3; 16]));
    }
}
