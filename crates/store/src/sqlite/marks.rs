//! The marks: a small file beside the store that records, for each session, how far its log was acknowledged. A bit
//! that flips in the write-ahead log makes SQLite drop everything after it, without an error; the marks detect that:
//! `log` and `loss` compare them with the log.
//!
//! A mark is written after its commit and before the acknowledgement, as one write of its 128 bytes. It is never synced:
//! after a power cut a mark may be old or missing, which detects less, and the commit itself was synced. A torn or
//! altered mark fails its own sum and counts as missing.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    path::Path,
};

use super::{
    file,
    sum::{Sum, of_bytes},
};

const SIZE: usize = 128;
const MAGIC: &[u8; 4] = b"ISM1";
/// As much of an id as fits; the place in the file already says which session it is.
const ID: usize = 90;
const CHECKED: usize = 120;

/// How far a session's log was acknowledged.
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

    fn to_bytes(&self) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        let id = shorten(&self.session).as_bytes();
        bytes[..4].copy_from_slice(MAGIC);
        bytes[4..12].copy_from_slice(&self.seq.to_le_bytes());
        bytes[12..28].copy_from_slice(&self.sum);
        bytes[28] = id.len() as u8;
        bytes[29..29 + id.len()].copy_from_slice(id);
        let check = of_bytes(&bytes[..CHECKED]);
        bytes[CHECKED..].copy_from_slice(&check[..SIZE - CHECKED]);
        bytes
    }

    fn from_bytes(bytes: &[u8; SIZE]) -> Option<Self> {
        let whole = bytes.starts_with(MAGIC)
            && bytes[CHECKED..] == of_bytes(&bytes[..CHECKED])[..SIZE - CHECKED]
            && usize::from(bytes[28]) <= ID;
        let session = std::str::from_utf8(bytes.get(29..29 + usize::from(bytes[28]))?).ok()?;
        whole.then_some(())?;
        Some(Self {
            session: session.to_owned(),
            seq: i64::from_le_bytes(bytes[4..12].try_into().ok()?),
            sum: bytes[12..28].try_into().ok()?,
        })
    }
}

fn shorten(session: &str) -> &str {
    let mut end = session.len().min(ID);
    while !session.is_char_boundary(end) {
        end -= 1;
    }
    &session[..end]
}

/// The file, open for writing.
#[derive(Debug)]
pub(super) struct Marks(File);

impl Marks {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        file::check_plain(path)?;
        Ok(Self(options.open(path)?))
    }

    /// Whether nothing is marked yet.
    pub(super) fn is_empty(&self) -> io::Result<bool> {
        Ok(self.0.metadata()?.len() == 0)
    }

    /// Forgets everything.
    pub(super) fn clear_all(&mut self) -> io::Result<()> {
        self.0.set_len(0)
    }

    /// Writes the mark of the session with this number, or takes it away.
    pub(super) fn put(&mut self, number: i64, mark: Option<&Mark>) -> io::Result<()> {
        self.write(number, &mark.map_or([0; SIZE], Mark::to_bytes))
    }

    /// Writes all of them, neighbours in one write; of several for one session the last counts.
    pub(super) fn put_all(&mut self, marks: Vec<(i64, Mark)>) -> io::Result<()> {
        let last = marks.into_iter().collect::<BTreeMap<_, _>>();
        let last: Vec<_> = last.into_iter().collect();
        for run in last.chunk_by(|(before, _), (number, _)| number - before == 1) {
            let bytes: Vec<u8> = run.iter().flat_map(|(_, mark)| mark.to_bytes()).collect();
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
        one(&mut self.0, number)
    }
}

/// The mark of the session with this number, for readers.
pub(super) fn read(path: &Path, number: i64) -> io::Result<Option<Mark>> {
    match file::check_plain(path).and_then(|()| File::open(path)) {
        Ok(mut file) => one(&mut file, number),
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
    let mut marks: Vec<_> = used.map(|(number, bytes)| (number, Mark::from_bytes(bytes))).collect();
    if !rest.is_empty() {
        marks.push((places.len() as i64 + 1, None));
    }
    Ok(marks)
}

fn one(file: &mut File, number: i64) -> io::Result<Option<Mark>> {
    file.seek(SeekFrom::Start(offset(number)))?;
    let mut bytes = [0; SIZE];
    match file.read_exact(&mut bytes) {
        Ok(()) => Ok(Mark::from_bytes(&bytes)),
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
        let bytes = first.to_bytes();
        for place in 0..SIZE {
            let mut flipped = bytes;
            flipped[place] ^= 0x10;
            assert_eq!(Mark::from_bytes(&flipped), None, "byte {place}");
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
        marks.put_all(vec![mark(7, 1), mark(2, 1), mark(3, 1), mark(2, 2), mark(5, 1)]).unwrap();
        marks.put_all(vec![mark(3, 4)]).unwrap();
        marks.put_all(Vec::new()).unwrap();
        let written = [mark(2, 2), mark(3, 4), mark(5, 1), mark(7, 1)];
        assert_eq!(read_all(&path).unwrap(), written.map(|(number, mark)| (number, Some(mark))));
    }
}
