//! Files of conversations: written whole, private, locked by one turn, and named when they cannot be read.

use serde_json::json;

use super::*;

const ID: &str = "00000000-0000-4000-8000-000000000001";

fn environment(pairs: &[(&str, &Path)]) -> Environment {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), value.display().to_string())).collect()
}

fn take(store: &FolderStore) -> Result<Box<dyn ConversationClaim>, AgentError> {
    store.claim(&ID.into(), &Environment::default())
}

fn reported(error: &AgentError) -> (ErrorCode, String) {
    let kind = error.detail.as_ref().map_or("", |detail| detail["kind"].as_str().unwrap_or_default());
    assert!(error.message.contains(ID) || error.code == ErrorCode::ConfigMissing, "{error}");
    (error.code, kind.to_owned())
}

#[test]
fn what_is_written_is_read_by_the_next_turn() {
    let folder = tempfile::tempdir().unwrap();
    let store = FolderStore::at(folder.path().join("deep/er"));
    let conversation = Conversation {
        settings: json!({ "model": "m" }),
        messages: vec![json!({ "role": "user" })],
        ..Conversation::new("anthropic")
    };
    take(&store).unwrap().write(&conversation).unwrap();
    assert_eq!(take(&store).unwrap().read(), Ok(conversation));
    let mut names: Vec<_> = fs::read_dir(folder.path().join("deep/er"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, [format!("{ID}.json"), format!("{ID}.lock")].map(std::ffi::OsString::from));
}

#[test]
fn nobody_else_may_read_it() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("conversations");
    take(&FolderStore::at(&place)).unwrap().write(&Conversation::new("anthropic")).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&place), mode(&place.join(format!("{ID}.json")))), (0o700, 0o600));
}

#[test]
fn one_turn_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = FolderStore::at(folder.path());
    let held = take(&store).unwrap();
    let refused = take(&store).err().map(|error| reported(&error));
    assert_eq!(refused, Some((ErrorCode::InvalidRequest, "sessionBusy".to_owned())));
    drop(held);
    assert!(take(&store).is_ok());
}

#[test]
fn what_cannot_be_read_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let store = FolderStore::at(folder.path());
    let read = || reported(&take(&store).unwrap().read().unwrap_err());
    let damaged_as = |kind: &str| (ErrorCode::InvalidRequest, kind.to_owned());
    assert_eq!(read(), damaged_as("sessionNotFound"));
    let path = folder.path().join(format!("{ID}.json"));
    let whole = serde_json::to_string(&Conversation::new("anthropic")).unwrap();
    for bytes in [
        "".to_owned(),
        "planted words".to_owned(),
        whole[..whole.len() - 1].to_owned(),
        whole.replace("\"version\":1", "\"version\":2"),
        format!("{whole}\n{whole}"),
    ] {
        fs::write(&path, &bytes).unwrap();
        assert_eq!(read(), damaged_as("sessionDamaged"), "{bytes}");
        let error = take(&store).unwrap().read().unwrap_err();
        assert!(!error.message.contains("planted words"), "{error}");
    }
    fs::write(&path, vec![b' '; usize::try_from(LIMIT).unwrap() + 1]).unwrap();
    assert_eq!(read(), damaged_as("sessionDamaged"));
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert_eq!(read(), (ErrorCode::ConfigInvalid, "sessionNotKept".to_owned()));
}

#[test]
fn no_id_but_ours_becomes_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let store = FolderStore::at(folder.path().join("in"));
    let ids = [
        "",
        "..",
        "../x",
        "a/b",
        "echo-1",
        "00000000000040008000000000000001",
        "ABCDEF00-0000-4000-8000-000000000001",
        "/etc/x",
    ];
    for id in ids {
        let error = store.claim(&id.into(), &Environment::default()).err().unwrap();
        assert_eq!(error.message, format!("no such conversation: {id}"));
    }
    assert!(!folder.path().join("in").exists());
}

#[test]
fn one_too_large_is_refused_and_the_old_one_stays() {
    let folder = tempfile::tempdir().unwrap();
    let store = FolderStore::at(folder.path());
    let mut held = take(&store).unwrap();
    let small = Conversation::new("anthropic");
    held.write(&small).unwrap();
    let text = "x".repeat(usize::try_from(LIMIT).unwrap());
    let large = Conversation { messages: vec![json!(text)], ..small.clone() };
    assert_eq!(held.write(&large).map_err(|error| reported(&error).0), Err(ErrorCode::ContextLength));
    assert_eq!(held.read(), Ok(small));
}

#[test]
fn the_folder_is_the_one_the_environment_names() {
    let [a, b, c] = ["/a", "/b", "/c"].map(Path::new);
    let folder = |pairs: &[(&str, &Path)]| FolderStore::default().folder(&environment(pairs)).ok();
    let seen = [
        folder(&[("INSPAN_HOME", a), ("XDG_STATE_HOME", b), ("HOME", c)]),
        folder(&[("XDG_STATE_HOME", b), ("HOME", c)]),
        folder(&[("HOME", c)]),
        folder(&[]),
        folder(&[("HOME", Path::new("relative"))]),
    ];
    let expected = ["/a/conversations", "/b/inspan/conversations", "/c/.local/state/inspan/conversations"];
    assert_eq!(
        seen,
        [Some(expected[0].into()), Some(expected[1].into()), Some(expected[2].into()), None, None]
    );
}

#[test]
fn a_full_disk_is_a_fault_that_may_pass() {
    let code = |error: io::ErrorKind| not_kept(&ID.into(), Path::new("/conversations"), &error.into()).code;
    let kinds = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded, io::ErrorKind::ReadOnlyFilesystem];
    assert_eq!(kinds.map(code), [ErrorCode::Process, ErrorCode::Process, ErrorCode::ConfigInvalid]);
}
