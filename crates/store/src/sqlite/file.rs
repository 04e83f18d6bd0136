//! The store's file and the files beside it: how they are opened for writing and for reading, with which lock and
//! settings.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use rusqlite::{Connection, OpenFlags};

use super::{
    fault::{Fault, of_file},
    format::{self, Steps, StoreFileKind},
    loss,
    options::{Loss, PATIENCE, SqliteOptions},
    place,
    writer::Durability,
};
use crate::StoreError;

/// How many attempts are made while another process holds a lock.
pub(super) const TRIES: u32 = 3;
/// How long another process may take to create the store.
const CREATION: Duration = Duration::from_secs(15);
const PAUSE: Duration = Duration::from_millis(5);
/// Above this size the write-ahead log gives space back when it is emptied.
const JOURNAL_BYTES: i64 = 16 << 20;

/// The paths of a store.
#[derive(Clone, Debug)]
pub(super) struct Paths {
    pub(super) store: PathBuf,
    pub(super) marks: PathBuf,
    lock: PathBuf,
    /// SQLite's write-ahead log.
    pub(super) log: PathBuf,
}

impl Paths {
    /// By the file's resolved name, so that every process finds the same files beside it.
    fn of(store: &Path) -> Result<Self, StoreError> {
        let folder = match store.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let real = store.canonicalize().or_else(|_| {
            let name = store.file_name().unwrap_or_default();
            folder.canonicalize().map(|folder| folder.join(name))
        });
        let store = real.map_err(|error| of_file(store, &error))?;
        let [marks, lock, log] = ["-marks", "-lock", "-wal"].map(|end| beside(&store, end));
        Ok(Self { store, marks, lock, log })
    }

    fn folder(&self) -> &Path {
        self.store.parent().unwrap_or(Path::new("/"))
    }
}

pub(super) fn beside(store: &Path, end: &str) -> PathBuf {
    let mut name = store.as_os_str().to_owned();
    name.push(end);
    PathBuf::from(name)
}

/// The result of opening for writing.
pub(super) struct Opened {
    pub(super) connection: Connection,
    pub(super) paths: Paths,
    /// Whether the store was just created.
    pub(super) is_new: bool,
    /// Blocks other openers until the store is ready.
    pub(super) lock: File,
}

/// Opens the store for writing; creates and migrates it as needed, under a lock that only openers take: SQLite's own
/// locks do not cover the switch to a write-ahead log.
pub(super) fn open(path: &Path, options: &SqliteOptions, steps: &Steps) -> Result<Opened, StoreError> {
    if let Some(folder) = path.parent() {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(|error| of_file(path, &error))?;
    }
    let paths = Paths::of(path)?;
    let file = |error: std::io::Error| of_file(&paths.store, &error);
    place::check(&paths.store, paths.folder())?;
    check_kind(&paths.store)?;
    check_plain(&paths.lock).map_err(file)?;
    let lock = private().create(true).truncate(false).open(&paths.lock).map_err(file)?;
    wait(|| lock.try_lock()).map_err(file)?;
    let lost = match options.loss {
        Loss::Refuse => loss::of_all(&paths.marks).map_err(file)?,
        Loss::Accept => Vec::new(),
    };
    // A lost store is not replaced by a new one.
    let gone = || StoreError::Damaged { path: paths.store.clone(), what: loss::sentence(&lost) };
    if !lost.is_empty() && !paths.store.exists() {
        return Err(gone());
    }
    let made = make(&paths.store).map_err(file)?;
    let opened = patiently(|| {
        let connection = connect_to_write(&paths.store, options)?;
        let found = format::look(&connection, &paths.store, steps)?;
        if found == StoreFileKind::Empty && !lost.is_empty() {
            return Err(gone().into());
        }
        prepare(connection, found, &paths.store, options, steps).map(|connection| (connection, found))
    });
    let (connection, found) = opened.map_err(|fault| fault.at(&paths.store))?;
    Ok(Opened { connection, is_new: made || found == StoreFileKind::Empty, lock, paths })
}

/// Refuses anything but a plain file, before a wait for its lock.
fn check_kind(store: &Path) -> Result<(), StoreError> {
    match fs::metadata(store) {
        Ok(found) if !found.is_file() => {
            let what = if found.is_dir() { "it is a folder" } else { "it is a device, a pipe or a socket" };
            Err(StoreError::NotAStore { path: store.to_owned(), what: what.to_owned() })
        }
        _ => Ok(()),
    }
}

/// Refuses a link or a device in the place of a file of the store.
pub(super) fn check_plain(path: &Path) -> std::io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.is_file() => {
            Err(std::io::Error::other(format!("{} is not a plain file", path.display())))
        }
        _ => Ok(()),
    }
}

/// The identity of the file with this name; none if there is no file.
pub(super) fn identity(path: &Path) -> Option<(u64, u64)> {
    let found = fs::metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}

/// Retries while another process holds a lock, up to the limit.
pub(super) fn patiently<T>(mut work: impl FnMut() -> Result<T, Fault>) -> Result<T, Fault> {
    for _ in 1..TRIES {
        match work() {
            Err(fault) if fault.is_busy() => {}
            done => return done,
        }
    }
    work()
}

/// How a file is opened for writing that only its owner may read: conversations are private.
pub(super) fn private() -> OpenOptions {
    let mut options = File::options();
    options.write(true).mode(0o600);
    options
}

/// Creates the file if there is none. An existing file is never opened here, since closing it would drop the locks that SQLite holds on it in this process.
pub(super) fn make(store: &Path) -> std::io::Result<bool> {
    match private().create_new(true).open(store) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

fn prepare(
    mut connection: Connection,
    found: StoreFileKind,
    store: &Path,
    options: &SqliteOptions,
    steps: &Steps,
) -> Result<Connection, Fault> {
    if found == StoreFileKind::Empty {
        // These two can only be set before there is a table.
        connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
        let _: String = connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    }
    format::bring_up(&mut connection, store, found, steps)?;
    set_for_writing(&connection, options)?;
    Ok(connection)
}

/// Opens a store again that this process had open for writing.
pub(super) fn open_again(store: &Path, options: &SqliteOptions) -> Result<Connection, Fault> {
    let connection = connect_to_write(store, options)?;
    set_for_writing(&connection, options)?;
    Ok(connection)
}

/// A connection for reading; it creates nothing and blocks no writer. The store may have an older format.
pub(super) fn open_to_read(path: &Path, steps: &Steps) -> Result<(Connection, Paths), StoreError> {
    let paths = Paths::of(path).map_err(|error| match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() && !folder.exists() => {
            StoreError::Absent { path: path.to_owned() }
        }
        _ => error,
    })?;
    let refused = |fault: Fault| fault.at(&paths.store);
    place::check(&paths.store, paths.folder())?;
    check_kind(&paths.store)?;
    let mut found = patiently(|| look_to_read(&paths, steps));
    if !matches!(found, Ok((_, StoreFileKind::Store(_))))
        && let Ok(lock) = File::open(&paths.lock)
    {
        // Another process may be creating it.
        wait(|| lock.try_lock_shared()).map_err(|error| of_file(&paths.store, &error))?;
        found = patiently(|| look_to_read(&paths, steps));
    }
    match found.map_err(refused)? {
        (connection, StoreFileKind::Store(_)) => Ok((connection, paths)),
        (_, StoreFileKind::Empty) => Err(absent(&paths)),
    }
}

/// The store is empty.
fn absent(paths: &Paths) -> StoreError {
    let path = paths.store.clone();
    match loss::of_all(&paths.marks) {
        Ok(lost) if lost.is_empty() => StoreError::Absent { path },
        Ok(lost) => StoreError::Damaged { path, what: loss::sentence(&lost) },
        Err(error) => of_file(&path, &error),
    }
}

fn look_to_read(paths: &Paths, steps: &Steps) -> Result<(Connection, StoreFileKind), Fault> {
    let open = || {
        let connection = connect(&paths.store, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        let found = format::look(&connection, &paths.store, steps)?;
        Ok((connection, found))
    };
    match open() {
        Err(Fault::Sqlite(_)) if !paths.store.exists() => Err(absent(paths).into()),
        // A journal without content: the process that created the store died before it wrote anything.
        Err(Fault::Sqlite(_)) if beside(&paths.store, "-journal").exists() => Err(absent(paths).into()),
        Err(Fault::Sqlite(_)) if is_still(paths) => {
            // A folder that cannot be written has no place for the memory that readers share with writers. Without a log
            // of a writer none is needed.
            let connection = connect_still(&paths.store)?;
            let found = format::look(&connection, &paths.store, steps)?;
            Ok((connection, found))
        }
        done => done,
    }
}

/// Whether the store is in a folder that this process cannot write, and its write-ahead log is empty.
fn is_still(paths: &Paths) -> bool {
    let has_log = fs::metadata(&paths.log).is_ok_and(|log| log.len() > 0);
    !has_log && rustix::fs::access(paths.folder(), rustix::fs::Access::WRITE_OK).is_err()
}

fn connect_still(store: &Path) -> Result<Connection, Fault> {
    let mut uri = "file:".to_owned();
    for byte in store.as_os_str().as_encoded_bytes() {
        match byte {
            b'/' | b'-' | b'.' | b'_' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => {
                uri.push(char::from(*byte))
            }
            byte => uri.push_str(&format!("%{byte:02x}")),
        }
    }
    uri.push_str("?immutable=1");
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
    settle(Connection::open_with_flags(uri, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)?)
}

/// SQLite itself would accept a file that it can only read.
fn connect_to_write(store: &Path, options: &SqliteOptions) -> Result<Connection, Fault> {
    let connection = connect(store, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    connection.busy_timeout(options.patience() / TRIES)?;
    if connection.is_readonly(rusqlite::MAIN_DB)? {
        return Err(StoreError::ReadOnly { path: store.to_owned() }.into());
    }
    Ok(connection)
}

fn connect(store: &Path, flags: OpenFlags) -> Result<Connection, Fault> {
    settle(Connection::open_with_flags(store, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)?)
}

fn settle(connection: Connection) -> Result<Connection, Fault> {
    connection.busy_timeout(PATIENCE / TRIES)?;
    connection.set_prepared_statement_cache_capacity(64);
    // The system caches the file's pages as well; 2 MB more here made no measurable difference.
    connection.pragma_update(None, "cache_size", -512)?;
    // Damage must be reported as an error, and nothing in the file may be executed.
    connection.pragma_update(None, "cell_size_check", true)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    Ok(connection)
}

fn set_for_writing(connection: &Connection, options: &SqliteOptions) -> Result<(), Fault> {
    let mode: String = connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    if mode != "wal" {
        return Err(Fault::Broken(format!("its journal is `{mode}`, and cannot be made a write-ahead log")));
    }
    set_durability(connection, Durability::Synced)?;
    connection.pragma_update(None, "fullfsync", true)?;
    let _: i64 =
        connection.pragma_update_and_check(None, "journal_size_limit", JOURNAL_BYTES, |row| row.get(0))?;
    if let Some(bytes) = options.max_bytes {
        let page: i64 = connection.pragma_query_value(None, "page_size", |row| row.get(0))?;
        let pages = i64::try_from(bytes).unwrap_or(i64::MAX) / page;
        let _: i64 =
            connection.pragma_update_and_check(None, "max_page_count", pages.max(1), |row| row.get(0))?;
    }
    Ok(())
}

/// Sets what the next commits survive. The write-ahead log is synced before it is copied into the file in either case.
pub(super) fn set_durability(connection: &Connection, durability: Durability) -> Result<(), Fault> {
    let level = match durability {
        Durability::Written => "NORMAL",
        Durability::Synced => "FULL",
    };
    Ok(connection.pragma_update(None, "synchronous", level)?)
}

/// Takes a lock of the file system, or gives up after a time.
fn wait(mut take: impl FnMut() -> Result<(), TryLockError>) -> std::io::Result<()> {
    for _ in 0..CREATION.as_millis() / PAUSE.as_millis() {
        match take() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) => pause(),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Err(std::io::Error::other("another process has been opening it for too long"))
}

#[expect(
    clippy::disallowed_methods,
    reason = "opening blocks its thread, within a bound, before anything runs"
)]
fn pause() {
    std::thread::sleep(PAUSE);
}
