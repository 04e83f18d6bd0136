//! Every example runs offline and prints what it printed the last time.
#![expect(clippy::unwrap_used, reason = "a test that cannot continue panics")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The programs of the folder `examples`, in the order of their names.
fn examples() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let mut names: Vec<String> =
        files.map(|file| file.file_stem().unwrap().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Cargo puts the examples beside the folder of this test.
fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().and_then(Path::parent).unwrap().join("examples").join(name)
}

#[test]
fn every_example_runs() {
    let mut all = String::new();
    for name in examples() {
        let program = program(&name);
        assert!(program.exists(), "`cargo test -p inspan` builds the examples, `--test` alone does not");
        let output = Command::new(&program).env_clear().output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let errors = text(output.stderr);
        assert!(output.status.success() && errors.is_empty(), "{name}: {errors}");
        all.push_str(&format!("── {name}\n{}", text(output.stdout)));
    }
    insta::with_settings!({ omit_expression => true, prepend_module_to_snapshot => false }, {
        insta::assert_snapshot!("examples", all);
    });
}
