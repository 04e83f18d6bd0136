//! The folders for the files of the nodes of sessions: one for each session, beside the file of the sessions.

use std::{
    fmt::Display,
    fs::{self, File, Permissions, TryLockError},
    io,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use inspan_engine::create_private_dir_all;
use inspan_flow::{Parent, ParentKind, RunStore, SqliteStore, StoreError};
use inspan_protocol::{SessionId, Timestamp};
use inspan_view::safe::clean;
use tempfile::TempDir;

/// The most files that are counted.
const COUNTED: usize = 10_000;

/// The folder with the folders of all sessions of a file. No two files share one: what one of them does not know belongs to
/// no other.
pub(crate) fn all(file: &Path) -> PathBuf {
    if file.extension().is_some_and(|extension| extension == "db") {
        return file.with_extension("artifacts");
    }
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push("-artifacts");
    file.with_file_name(name)
}

/// The folder of what processes in the background are given and write.
pub(crate) fn background(file: &Path) -> PathBuf {
    file.parent().unwrap_or(Path::new(".")).join("background")
}

/// What the process in the background of a session writes.
pub(crate) fn background_log(file: &Path, session: &SessionId) -> PathBuf {
    background(file).join(format!("{session}.log"))
}

/// A folder of its own for a session that is not stored and can have none beside the sessions. None if nothing can be written
/// anywhere.
pub(crate) fn temporary() -> Option<TempDir> {
    tempfile::Builder::new().prefix("inspan-artifacts-").tempdir().ok()
}

/// A session that is not stored, or not yet. Its mark is locked meanwhile, and then says that nobody needs its files.
pub(crate) struct Unstored {
    folder: PathBuf,
    mark: PathBuf,
    _locked: File,
}

impl Unstored {
    /// Makes way for a new session: one with its id that was deleted or not stored can have left files, or a link to those of
    /// another. None if the folder may belong to another session: one that runs or begins, one in the store, or one that only
    /// another store knows.
    pub(crate) async fn begin(
        file: &Path,
        session: &SessionId,
        store: &dyn RunStore,
    ) -> io::Result<Option<Self>> {
        let (folder, mark) = (of(file, session), beside(file, session, "unstored"));
        // It says that nobody needs the files.
        let is_marked = mark.exists();
        if !is_marked && !folder.is_symlink() && below(&folder).next().is_some() {
            return Ok(None);
        }
        create_private_dir_all(&all(file))?;
        let Some(locked) = locked(&mark)? else { return Ok(None) };
        // Who has the mark is the only one who may store it now.
        match store.entry(session).await {
            Err(StoreError::UnknownSession(_)) => {}
            known => {
                if !is_marked {
                    let _gone = fs::remove_file(&mark);
                }
                return known.map(|_| None).map_err(io::Error::other);
            }
        }
        remove_files(&folder, store).await?;
        // It may be a link now, or was one.
        remove_folder(&folder)?;
        Ok(Some(Self { folder, mark, _locked: locked }))
    }
}

/// Locks the mark of a session; none if another process has it.
fn locked(mark: &Path) -> io::Result<Option<File>> {
    loop {
        let file = File::create(mark)?;
        if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
            return Ok(None);
        }
        // The file may have been removed since it was opened. Then its lock keeps nobody from the next one.
        let (own, now) = (file.metadata()?, fs::metadata(mark));
        if now.is_ok_and(|now| now.ino() == own.ino()) {
            return Ok(Some(file));
        }
    }
}

impl Drop for Unstored {
    fn drop(&mut self) {
        if !self.folder.exists() {
            let _gone = fs::remove_file(&self.mark);
        }
    }
}

/// The folder of a session.
pub(crate) fn of(file: &Path, session: &SessionId) -> PathBuf {
    all(file).join(session.as_str())
}

/// What is beside the folder of a session: the `part` of a copy, or the mark `unstored`.
fn beside(file: &Path, session: &SessionId, what: &str) -> PathBuf {
    all(file).join(format!(".{session}.{what}"))
}

/// What is in a folder at any depth.
fn below(folder: &Path) -> impl Iterator<Item = fs::DirEntry> {
    let (mut open, mut now) = (vec![folder.to_owned()], None::<fs::ReadDir>);
    std::iter::from_fn(move || {
        loop {
            if let Some(entry) = now.as_mut().and_then(|now| now.flatten().next()) {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    open.push(entry.path());
                }
                return Some(entry);
            }
            now = fs::read_dir(open.pop()?).ok();
        }
    })
}

/// What is in a folder, for a person; nothing if no file is.
pub(crate) fn contents(folder: &Path) -> Option<String> {
    let (mut files, mut bytes) = (0_usize, 0_u64);
    for entry in below(folder).filter(|entry| entry.file_type().is_ok_and(|kind| !kind.is_dir())) {
        files += 1;
        bytes += entry.metadata().map_or(0, |about| about.len());
        if files > COUNTED {
            return Some(format!("{}, more than {COUNTED} files", clean(&folder.to_string_lossy())));
        }
    }
    let plural = if files == 1 { "" } else { "s" };
    (files > 0).then(|| format!("{}, {files} file{plural}, {bytes} bytes", clean(&folder.to_string_lossy())))
}

/// Gives a session what the one has left whose work it reuses: all of it if it replaces that session, else a copy. One that
/// has files already keeps them. Gives the git worktrees that were not copied.
pub(crate) fn take_over(file: &Path, parent: &Parent, to: &SessionId) -> io::Result<Vec<PathBuf>> {
    let (from, draft, to) = (of(file, &parent.session), beside(file, to, "part"), of(file, to));
    if to.exists() || (parent.kind == ParentKind::Resume && moved(&from, &to)) {
        return Ok(Vec::new());
    }
    // A copy that was cut short is begun anew.
    remove_folder(&draft)?;
    let copied =
        copy(&from, &draft).and_then(|left_out| unless_missing(fs::rename(&draft, to)).map(|()| left_out));
    if copied.is_err() {
        // On a full disk it would keep the space that it lacks.
        let _gone = remove_folder(&draft);
    }
    copied
}

/// Held while files are taken over, if there are any: several attempts of a session may begin at the same time.
#[cfg(feature = "temporal")]
pub(crate) fn lock(file: &Path, parent: &Parent) -> Option<File> {
    of(file, &parent.session).exists().then_some(())?;
    let lock = File::create(all(file).join(".taking")).ok()?;
    lock.lock().ok().map(|()| lock)
}

/// Moves the folder of a session that is replaced, and leaves a link to where it is now. Gives whether that was possible.
fn moved(from: &Path, to: &Path) -> bool {
    // A link is left by a session that never began: nothing else continues this one.
    let Ok(real) = from.canonicalize() else { return false };
    let all = to.parent().and_then(|all| all.canonicalize().ok());
    if real.parent() != all.as_deref() || rename(&real, to).is_err() {
        return false;
    }
    let _linked = symlink(to, &real);
    true
}

/// Renames the folder of a session. Git and the sessions with links to it know the new place.
fn rename(folder: &Path, to: &Path) -> io::Result<()> {
    let real = folder.canonicalize()?;
    let real_to = real.with_file_name(to.file_name().unwrap_or_default());
    // Git is told first: whoever goes on after a crash renames the folder, and would not tell git again.
    let worktrees = worktrees(&real);
    let tell = |from: &Path, to: &Path| worktrees.iter().for_each(|one| drop(tell_git(one, from, to)));
    tell(&real, &real_to);
    if let Err(error) = fs::rename(&real, to) {
        tell(&real_to, &real);
        return Err(error);
    }
    for link in links_to(&real) {
        let _moved = fs::remove_file(&link).and_then(|()| symlink(to, &link));
    }
    Ok(())
}

/// Says to the repository of a worktree where the worktree is now, as `git worktree repair` does.
fn tell_git(worktree: &Path, from: &Path, to: &Path) -> io::Result<()> {
    let link = fs::read_to_string(worktree.join(".git"))?;
    let known = Path::new(link.trim_start_matches("gitdir:").trim()).join("gitdir");
    let before = fs::read_to_string(&known)?;
    match Path::new(before.trim_end()).strip_prefix(from) {
        Ok(place) => fs::write(known, format!("{}\n", to.join(place).display())),
        Err(_) => Ok(()),
    }
}

/// The git worktrees in a folder; those in one another are not looked for.
fn worktrees(folder: &Path) -> Vec<PathBuf> {
    let (mut found, mut open, mut seen) = (Vec::new(), vec![folder.to_owned()], 0);
    while let Some(next) = open.pop().filter(|_| seen < COUNTED) {
        if is_worktree(&next) {
            found.push(next);
            continue;
        }
        let entries: Vec<_> = fs::read_dir(next).into_iter().flatten().flatten().collect();
        seen += entries.len();
        open.extend(
            entries
                .iter()
                .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
                .map(fs::DirEntry::path),
        );
    }
    found
}

/// An error with what it is about.
pub(crate) fn about(what: impl Display, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// Copies a folder, without what goes away meanwhile. A git worktree is left out: two folders would be one worktree to git,
/// and change each other. A repository that is copied does not know it either, and can make it anew.
fn copy(from: &Path, to: &Path) -> io::Result<Vec<PathBuf>> {
    let (mut left_out, mut open) = (Vec::new(), vec![PathBuf::new()]);
    let names = names(from);
    while let Some(folder) = open.pop() {
        let at = |path: &Path, error: &io::Error| about(path.display(), error);
        let entries = match fs::read_dir(from.join(&folder)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            entries => entries.map_err(|error| at(&from.join(&folder), &error))?,
        };
        if is_worktree(&from.join(&folder)) {
            left_out.push(from.join(&folder));
            continue;
        }
        if is_entry_of_worktree(&from.join(&folder)) {
            continue;
        }
        let copied = to.join(&folder);
        create_private_dir_all(&copied).map_err(|error| at(&copied, &error))?;
        for entry in entries {
            let entry = entry.map_err(|error| at(&from.join(&folder), &error))?;
            let name = folder.join(entry.file_name());
            let mut copy_entry = || {
                let kind = entry.file_type()?;
                if kind.is_dir() {
                    open.push(name.clone());
                } else if kind.is_symlink() {
                    symlink(within(&names, &folder, fs::read_link(entry.path())?), to.join(&name))?;
                } else if kind.is_file() {
                    fs::copy(entry.path(), to.join(&name))?;
                }
                Ok::<_, io::Error>(())
            };
            match copy_entry() {
                // Another process works in the folder, unless it is the copy that is gone.
                Err(error) if error.kind() == io::ErrorKind::NotFound && copied.is_dir() => {}
                done => done.map_err(|error| at(&entry.path(), &error))?,
            }
        }
    }
    Ok(left_out)
}

/// The paths that lead to a session's folder, with those of the sessions that it continues.
fn names(folder: &Path) -> Vec<PathBuf> {
    let real = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    let own = folder.with_file_name(real.file_name().unwrap_or_default());
    links_to(&own).into_iter().chain([folder.to_owned(), own, real]).collect()
}

/// Where a link in a folder leads to that has these `names`. One into the folder itself leads into the copy, wherever that is
/// moved.
fn within(names: &[PathBuf], folder: &Path, leads_to: PathBuf) -> PathBuf {
    match names.iter().find_map(|name| leads_to.strip_prefix(name).ok()) {
        Some(inner) => folder.iter().map(|_| "..").collect::<PathBuf>().join(inner),
        None => leads_to,
    }
}

/// Whether git knows a folder as one of the worktrees of a repository: it has a file that says where that is.
fn is_worktree(folder: &Path) -> bool {
    let link = folder.join(".git");
    fs::symlink_metadata(&link).is_ok_and(|about| about.is_file() && about.len() < 64 * 1024)
        && fs::read_to_string(link)
            .is_ok_and(|text| text.starts_with("gitdir:") && text.contains("/worktrees/"))
}

/// Whether a folder is what a repository knows of one of its worktrees: `NAME` in `.git/worktrees`.
fn is_entry_of_worktree(folder: &Path) -> bool {
    folder.parent().is_some_and(|all| all.ends_with("worktrees"))
        && ["gitdir", "commondir", "HEAD"].iter().all(|file| folder.join(file).is_file())
}

/// The links of sessions to the folder of the one that continues them.
fn links_to(folder: &Path) -> Vec<PathBuf> {
    let entries = folder.parent().map(fs::read_dir).into_iter().flatten().flatten().flatten();
    let links = entries.map(|entry| entry.path());
    links.filter(|link| fs::read_link(link).is_ok_and(|to| to.file_name() == folder.file_name())).collect()
}

/// Says of a session that is about to be deleted that nobody needs its files then: if this process ends before it has removed
/// them, [`orphans`] finds them.
pub(crate) fn leave(file: &Path, session: &SessionId) {
    if SessionId::checked(session.as_str()).is_ok() {
        // Without a folder there are no files.
        let _marked = File::create(beside(file, session, "unstored"));
    }
}

/// Removes the folder of a session that was deleted, and what its process in the background wrote. Sessions that it
/// continues have their files in the folder: one of them, and with it the others, keeps them.
///
/// What the files name by a link goes on to be found: git and virtual environments, say, write down where a folder was when
/// they came to know it. So a link stays as long as the files, also that of a deleted session.
pub(crate) async fn remove(file: &Path, store: &SqliteStore, session: &SessionId) -> io::Result<()> {
    // An id that can be no name of a file has no folder.
    if SessionId::checked(session.as_str()).is_err() {
        return Ok(());
    }
    unless_missing(fs::remove_file(background_log(file, session)))?;
    remove_folder(&beside(file, session, "part"))?;
    remove_files(&of(file, session), store).await?;
    unless_missing(fs::remove_file(beside(file, session, "unstored")))
}

async fn remove_files(folder: &Path, store: &dyn RunStore) -> io::Result<()> {
    if is_link_to_files(folder) {
        return Ok(());
    }
    let links = links_to(folder);
    for heir in links.iter().filter(|_| folder.exists()) {
        let Some(id) = heir.file_name().and_then(|name| name.to_str()) else { continue };
        if is_known(store, &id.into()).await {
            fs::remove_file(heir)?;
            rename(folder, heir)?;
            return symlink(heir, folder);
        }
    }
    remove_folder(folder)?;
    links.iter().try_for_each(fs::remove_file)
}

/// Whether this is the link of a session to the folder of the one that continues it.
fn is_link_to_files(folder: &Path) -> bool {
    folder.is_symlink() && folder.exists()
}

/// Whether the store has a session, as far as it can tell.
pub(crate) async fn is_known(store: &dyn RunStore, session: &SessionId) -> bool {
    !matches!(store.entry(session).await, Err(StoreError::UnknownSession(_)))
}

/// Removes a folder, if there is one, also with folders in it that nobody may write to, as the caches of some programs are.
fn remove_folder(folder: &Path) -> io::Result<()> {
    match unless_missing(fs::remove_dir_all(folder)) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            allow_changes(folder);
            unless_missing(fs::remove_dir_all(folder))
        }
        removed => removed,
    }
}

/// Lets the owner change a folder, and those in it. Links are not followed.
fn allow_changes(folder: &Path) {
    let _ = fs::set_permissions(folder, Permissions::from_mode(0o700));
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|found| found.is_dir()) {
            allow_changes(&entry.path());
        }
    }
}

/// What is not there needs no change.
fn unless_missing(changed: io::Result<()>) -> io::Result<()> {
    match changed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The sessions that have no use for their files, which were not changed since a moment: those that were not stored and have
/// ended, and deleted ones whose files were left or whose copy was cut short. No other folder is certain to be nobody's.
pub(crate) async fn orphans(file: &Path, store: &SqliteStore, before: Timestamp) -> Vec<SessionId> {
    let mut found = Vec::new();
    for entry in fs::read_dir(all(file)).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let parts = name.to_str().and_then(|name| name.strip_prefix('.')?.rsplit_once('.'));
        let Some((id, what @ ("unstored" | "part"))) = parts else { continue };
        let Ok(id) = SessionId::checked(id) else { continue };
        let files = if what == "part" { entry.path() } else { of(file, &id) };
        let is_live =
            || what == "unstored" && File::open(entry.path()).is_ok_and(|mark| mark.try_lock().is_err());
        if last_change(&files) < before && !is_live() && !is_known(store, &id).await {
            found.push(id);
        }
    }
    found
}

/// When something in a folder was last changed; long ago if it is not there.
fn last_change(folder: &Path) -> Timestamp {
    let entries = below(folder).take(COUNTED).filter_map(|entry| entry.metadata().ok());
    let changed = entries.chain(folder.metadata()).filter_map(|about| about.modified().ok());
    let since = changed.max().unwrap_or(UNIX_EPOCH).duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicBool, Ordering},
        thread,
    };

    use super::*;

    #[test]
    fn what_goes_away_while_a_folder_is_copied_is_left_out() {
        let all = tempfile::tempdir().unwrap();
        let (from, is_over) = (all.path().join("s"), AtomicBool::new(false));
        fs::create_dir(&from).unwrap();
        fs::write(from.join("stays"), "").unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    (0..100).for_each(|lock| drop(File::create(from.join(format!("{lock}.lock"))).unwrap()));
                    (0..100).for_each(|lock| fs::remove_file(from.join(format!("{lock}.lock"))).unwrap());
                }
            });
            let copies: Vec<_> = (0..20).map(|to| copy(&from, &all.path().join(to.to_string()))).collect();
            is_over.store(true, Ordering::Relaxed);
            assert!(copies.iter().all(Result::is_ok), "{copies:?}");
        });
        assert!(all.path().join("19/stays").exists());
    }

    #[test]
    fn a_mark_that_is_removed_while_it_is_locked_has_one_holder_at_a_time() {
        let all = tempfile::tempdir().unwrap();
        let (mark, is_held) = (all.path().join("mark"), AtomicBool::new(false));
        let hold = || {
            for _ in 0..2_000 {
                let Some(_locked) = locked(&mark).unwrap() else { continue };
                assert!(!is_held.swap(true, Ordering::Relaxed));
                thread::yield_now();
                is_held.store(false, Ordering::Relaxed);
                fs::remove_file(&mark).unwrap();
            }
        };
        thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(hold))));
    }

    #[test]
    fn folders_that_nobody_may_write_to_are_removed() {
        let all = tempfile::tempdir().unwrap();
        let folder = all.path().join("s");
        let within = folder.join("module/v1");
        fs::create_dir_all(&within).unwrap();
        fs::write(within.join("file"), "").unwrap();
        for folder in [&within, within.parent().unwrap(), &folder] {
            fs::set_permissions(folder, Permissions::from_mode(0o500)).unwrap();
        }
        // For the superuser it makes no difference.
        allow_changes(&folder);
        assert_eq!(fs::metadata(&within).unwrap().permissions().mode() & 0o777, 0o700);
        remove_folder(&folder).unwrap();
        assert!(!folder.exists());
    }
}
