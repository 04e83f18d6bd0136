//! Programs that use the crate: every example runs offline and prints what it printed the last time, and a provider of
//! a separate crate that depends on `inspan` alone, as `CONTRIBUTING.md` describes it, runs in a flow.
#![expect(clippy::unwrap_used, reason = "a test that cannot continue panics")]

use std::{fs, os::unix::fs::symlink, path::Path, process::Command};

use inspan_testkit::example;

/// The dependencies of the separate crate. The lock of the workspace decides their versions.
const DEPENDENCIES: &str = r#"
futures = { version = "0.3", default-features = false }
schemars = "1"
serde = { version = "1", features = ["derive"] }
serde_json = "1"
tokio = { version = "1", features = ["macros", "rt-multi-thread"] }
"#;

/// The programs of the folder `examples`, in the order of their names.
fn examples() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let mut names: Vec<String> =
        files.map(|file| file.file_stem().unwrap().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn what_an_error_holds_can_be_named() {
    let missing = inspan::Flow::load("none.yaml").unwrap_err();
    assert!(matches!(missing, inspan::Error::Load(inspan::FlowError::NotFound { .. })), "{missing}");
}

#[test]
fn every_example_runs() {
    let mut all = String::new();
    for name in examples() {
        let program = example(&name).unwrap();
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

#[test]
fn a_provider_of_another_crate_runs_in_a_flow() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    // The folder in which this test was built. In a workspace of the same form nothing is built a second time.
    let test = std::env::current_exe().unwrap();
    let target = test.ancestors().nth(3).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let workspace = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let members = r#"members = ["crates/*", "xtask"]"#;
    assert!(workspace.contains(members), "the workspace has other members");
    let workspace = workspace.replace(members, r#"members = ["crates/*", "parrot"]"#);
    fs::write(folder.path().join("Cargo.toml"), workspace).unwrap();
    fs::copy(root.join("Cargo.lock"), folder.path().join("Cargo.lock")).unwrap();
    for shared in ["crates", ".cargo"] {
        symlink(root.join(shared), folder.path().join(shared)).unwrap();
    }
    // With the features of the workspace the packages from outside need not be built again either.
    let manifest = format!(
        "[package]\nname = \"parrot\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[dependencies]\ninspan.path = \"../crates/inspan\"\nworkspace-hack.path = \"../crates/workspace-hack\"{DEPENDENCIES}"
    );
    fs::create_dir_all(folder.path().join("parrot/src")).unwrap();
    fs::write(folder.path().join("parrot/Cargo.toml"), manifest).unwrap();
    fs::write(folder.path().join("parrot/src/main.rs"), include_str!("outside/parrot.rs")).unwrap();
    let mut cargo = inspan_testkit::cargo(folder.path());
    let output = cargo
        .args(["run", "--quiet", "--offline", "-p", "parrot"])
        .env("CARGO_TARGET_DIR", target)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let (stdout, errors) = (text(output.stdout), text(output.stderr));
    assert_eq!(stdout, "answer: \"hello, hello!, hello, hello!!\"\ngreet: \"hello, hello!\"\n", "{errors}");
}
