//! `inspan store`: maintains the file of the sessions. Shared sessions have no such file.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use inspan_engine::{Clock, SystemClock, create_private};
use inspan_flow::{Deleted, Exported, Gc, Import, SqliteOptions, SqliteStore, StoreError, TransferError};
use inspan_protocol::{SessionId, Timestamp};
use serde_json::json;

use super::{flow, session};
use crate::{
    args::StoreCommand,
    artifacts,
    commands::{begins_with, check_replaces},
    exit::Exit,
    failure::Failure,
    invocation::{Invocation, OutputForm},
    store, terminal,
};

pub(super) fn run(command: &StoreCommand, invocation: &Invocation) -> Result<Exit, Failure> {
    // The store of this machine is not what the call means, and some of these commands delete.
    if invocation.engine.is_some() {
        return Err(Failure::usage("`inspan store` maintains the store of this machine, and the engine is a cluster").with_hint(
            "`--engine local` means the store of this machine; of a cluster's sessions `inspan ps --all` says which cannot be \
             read, and `inspan logs ID --json` prints the events",
        ));
    }
    let path = store::path(invocation)?;
    session::runtime()?.block_on(async {
        match command {
            StoreCommand::Verify => verify(&path, invocation).await,
            StoreCommand::Export { session, output } => {
                export(&path, session, output.as_deref(), invocation).await
            }
            StoreCommand::Import { file, part } => {
                let what = if *part { Import::Part } else { Import::Whole };
                import(&path, file, what, invocation).await
            }
            StoreCommand::Gc { sessions, dry_run, .. } if !sessions.is_empty() => {
                delete(&path, sessions, *dry_run, invocation).await
            }
            StoreCommand::Gc { older_than, dry_run, .. } => {
                let mode = if *dry_run { Gc::Look } else { Gc::Delete };
                let millis = i64::try_from(older_than.as_millis()).unwrap_or(i64::MAX);
                let now = SystemClock.now();
                let before = Timestamp::from_millis(now.as_millis().saturating_sub(millis));
                gc(&path, before, mode, now, invocation).await
            }
            StoreCommand::AcceptLoss => accept_loss(&path, invocation),
        }
    })
}

async fn verify(path: &Path, invocation: &Invocation) -> Result<Exit, Failure> {
    let store = SqliteStore::open_reader(path)?;
    let report = store.verify().await?;
    let found: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
    let sound = report.is_sound();
    match invocation.form {
        OutputForm::Json => invocation.json(&json!({
            "store": path, "sound": sound, "sessions": report.sessions, "events": report.events,
            "commands": report.commands, "findings": found, "more": report.more,
        })),
        OutputForm::Text => {
            for finding in &found {
                terminal::data_line(finding);
            }
            if report.more > 0 {
                terminal::data_line(&format!("and {} more", report.more));
            }
            let (sessions, events) = (report.sessions, report.events);
            let verdict = if sound { "sound" } else { "damaged" };
            terminal::data_line(&format!(
                "{}: {verdict}; {}, {}",
                path.display(),
                flow::of(sessions, "session"),
                flow::of(events, "event")
            ));
        }
    }
    Ok(if sound { Exit::Success } else { Exit::Failed })
}

async fn export(
    path: &Path,
    prefix: &str,
    output: Option<&Path>,
    invocation: &Invocation,
) -> Result<Exit, Failure> {
    if let Some(file) = output {
        check_replaces(file, "an exported session", |file| begins_with(file, "{\"format\":"))?;
    }
    let store = SqliteStore::open_reader(path)?;
    let id = store::find(&store, prefix).await?.session;
    let beside = output.and_then(Beside::of);
    if let Some(beside) = &beside {
        check_replaces(&beside.part, "an exported session", |file| begins_with(file, "{\"format\":"))?;
        // If it is a link, what it leads to stays as it is.
        let _ = fs::remove_file(&beside.part);
    }
    let target = beside.as_ref().map(|beside| beside.part.as_path()).or(output);
    let to: Box<dyn Write + Send> = match target {
        Some(file) => Box::new(create_private(file).map_err(|error| {
            Failure::usage(format!("file {} cannot be written: {error}", file.display()))
        })?),
        None => Box::new(io::stdout()),
    };
    let to = io::BufWriter::new(to);
    let exported = async {
        let (mut to, exported) = store.export(&id, to).await?;
        to.flush()?;
        Ok(exported)
    };
    let exported = match exported.await {
        Ok(exported) => exported,
        // Who reads the lines has read what it wanted.
        Err(TransferError::Io(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            return Ok(Exit::Success);
        }
        Err(error) => {
            if let Some(beside) = beside {
                // What was read of the session is less than what the file has.
                let _ = fs::remove_file(beside.part);
            }
            return Err(failed(&error));
        }
    };
    if let (Some(beside), None) = (&beside, &exported.damage) {
        // A machine that loses power must not have lost both.
        let stored = File::open(&beside.part).and_then(|part| part.sync_all());
        stored.and_then(|()| fs::rename(&beside.part, &beside.file)).map_err(|error| {
            Failure::new(Exit::Failed, format!("file {} cannot be replaced: {error}", beside.file.display()))
        })?;
    }
    if output.is_some() {
        report_done("exported", &exported, invocation);
    }
    let Some(damage) = exported.damage else { return Ok(Exit::Success) };
    let what =
        format!("session `{id}` is damaged, and only the events before the damage were exported: {damage}");
    let failure = Failure::new(Exit::Failed, what);
    Err(match beside {
        Some(Beside { file, part }) => failure.with_hint(format!(
            "they are in {}; {} is the earlier export, as it was",
            part.display(),
            file.display()
        )),
        None => failure,
    })
}

/// A file beside one that has an export already: that one is replaced only by a whole session.
struct Beside {
    file: PathBuf,
    part: PathBuf,
}

impl Beside {
    fn of(file: &Path) -> Option<Self> {
        if !file.metadata().is_ok_and(|found| found.is_file() && found.len() > 0) {
            return None;
        }
        // A link stays: the file that it leads to is replaced.
        let file = fs::canonicalize(file).ok()?;
        let mut part = file.clone().into_os_string();
        part.push(".part");
        Some(Self { file, part: part.into() })
    }
}

async fn import(path: &Path, file: &Path, what: Import, invocation: &Invocation) -> Result<Exit, Failure> {
    let store = SqliteStore::open(path, &SqliteOptions::default())?;
    let imported = if file == Path::new("-") {
        store.import(io::stdin(), what).await
    } else {
        let from = File::open(file)
            .map_err(|error| Failure::usage(format!("file {} cannot be read: {error}", file.display())))?;
        store.import(from, what).await
    };
    report_done("imported", &imported.map_err(|error| failed(&error))?, invocation);
    Ok(Exit::Success)
}

fn report_done(what: &str, exported: &Exported, invocation: &Invocation) {
    let Exported { session, events, commands, .. } = exported;
    match invocation.form {
        OutputForm::Json => invocation
            .json(&json!({ "sessionId": session, "done": what, "events": events, "commands": commands })),
        OutputForm::Text => {
            terminal::progress(&format!("{session}: {what}, {events} events and {commands} commands\n"));
        }
    }
}

/// A store in which nothing could be deleted.
fn not_deleted(error: StoreError) -> Failure {
    let is_full = matches!(error, StoreError::Full { .. });
    let failure = Failure::from(error);
    match is_full {
        true => failure.with_hint(
            "deleting needs some space for the store's journal: free a few MB elsewhere, then repeat the command",
        ),
        false => failure,
    }
}

/// Deletes sessions by their ids, also what cannot be read.
async fn delete(
    path: &Path,
    sessions: &[String],
    is_dry: bool,
    invocation: &Invocation,
) -> Result<Exit, Failure> {
    let store = SqliteStore::open(path, &SqliteOptions::default()).map_err(not_deleted)?;
    let sessions: Vec<_> = sessions.iter().map(|id| SessionId::from(id.as_str())).collect();
    let found = store.delete(&sessions, Gc::Look, SystemClock.now()).await.map_err(not_deleted)?;
    if is_dry {
        found.iter().for_each(|found| report_deleted("would be deleted", found, invocation));
        return Ok(Exit::Success);
    }
    sessions.iter().for_each(|id| artifacts::leave(path, id));
    for gone in store.delete(&sessions, Gc::Delete, SystemClock.now()).await.map_err(not_deleted)? {
        remove_artifacts(path, &store, &gone.session).await;
        report_deleted("deleted", &gone, invocation);
    }
    Ok(Exit::Success)
}

fn report_deleted(what: &str, Deleted { session, events, bytes }: &Deleted, invocation: &Invocation) {
    match invocation.form {
        OutputForm::Json => {
            invocation.json(&json!({ "sessionId": session, "done": what, "events": events, "bytes": bytes }));
        }
        OutputForm::Text => {
            terminal::progress(&format!("{session}: {what}, {events} events, {bytes} bytes\n"));
        }
    }
}

/// Removes what the nodes of a deleted session left; what cannot be removed is reported.
/// Whether the files of a session are removed. If not, it says why.
async fn remove_artifacts(path: &Path, store: &SqliteStore, session: &SessionId) -> bool {
    let removed = artifacts::remove(path, store, session).await;
    if let Err(error) = &removed {
        let folder = artifacts::of(path, session);
        terminal::progress(&format!("warning: {} cannot be removed: {error}\n", folder.display()));
    }
    removed.is_ok()
}

async fn gc(
    path: &Path,
    before: Timestamp,
    mode: Gc,
    now: Timestamp,
    invocation: &Invocation,
) -> Result<Exit, Failure> {
    let store = SqliteStore::open(path, &SqliteOptions::default()).map_err(not_deleted)?;
    let mut orphans = artifacts::orphans(path, &store, before).await;
    let report = store.gc(before, mode, now, |id| artifacts::leave(path, id)).await.map_err(not_deleted)?;
    if mode == Gc::Delete {
        for gone in &report.sessions {
            remove_artifacts(path, &store, &gone.session).await;
        }
        for id in std::mem::take(&mut orphans) {
            if remove_artifacts(path, &store, &id).await {
                orphans.push(id);
            }
        }
    }
    let freed = report.file_bytes_before.saturating_sub(report.file_bytes_after);
    if invocation.form == OutputForm::Json {
        let sessions: Vec<_> = report
            .sessions
            .iter()
            .map(|gone| json!({ "sessionId": gone.session, "events": gone.events, "bytes": gone.bytes }))
            .collect();
        invocation.json(&json!({
            "deleted": mode == Gc::Delete, "sessions": sessions, "unusedValues": report.unused_values,
            "artifactsOf": orphans, "fileBytesBefore": report.file_bytes_before,
            "fileBytesAfter": report.file_bytes_after,
        }));
        return Ok(Exit::Success);
    }
    for gone in &report.sessions {
        terminal::data_line(&format!("{}  {} events, {} bytes", gone.session, gone.events, gone.bytes));
    }
    let count = report.sessions.len();
    for id in &orphans {
        terminal::data_line(&format!("{id}  files of a session that is not stored"));
    }
    let unused = match report.unused_values {
        0 => String::new(),
        values => format!(" and {values} unused large values"),
    };
    let files = match orphans.len() {
        0 => String::new(),
        others => format!(" and the files of {others} that are not stored"),
    };
    terminal::progress(&match mode {
        Gc::Look => format!("{count} sessions that ended before {before}{files}{unused} would be deleted\n"),
        Gc::Delete => format!("{count} sessions{files}{unused} deleted, {freed} bytes freed\n"),
    });
    Ok(Exit::Success)
}

fn accept_loss(path: &Path, invocation: &Invocation) -> Result<Exit, Failure> {
    SqliteStore::open(path, &SqliteOptions::default().accept_loss())?;
    match invocation.form {
        OutputForm::Json => invocation.json(
            &json!({ "store": path, "done": "damage accepted; what is stored now counts as complete" }),
        ),
        OutputForm::Text => {
            terminal::progress(&format!(
                "{}: damage accepted; what is stored now counts as complete\n",
                path.display()
            ));
        }
    }
    Ok(Exit::Success)
}

fn failed(error: &TransferError) -> Failure {
    match error {
        // It cannot be imported under another ID.
        TransferError::Store(error @ StoreError::SessionExists(id)) => Failure::from(error.clone())
            .with_hint(format!("`inspan show {id}` shows it; `inspan store gc {id}` deletes it")),
        TransferError::Store(error) => error.clone().into(),
        TransferError::Incomplete { line: 2.., .. } => Failure::new(Exit::Failed, error.to_string())
            .with_hint("`inspan store import --part` imports what comes before"),
        error => Failure::new(Exit::Failed, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_says_what_helps_where_nothing_can_be_deleted() {
        let failure = not_deleted(StoreError::Full { path: "s.db".into() });
        let hint = failure.hint.unwrap_or_default();
        assert!(hint.starts_with("deleting needs some space"), "{hint}");
    }
}
