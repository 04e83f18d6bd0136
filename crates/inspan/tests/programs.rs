//! Programs that use the crate: every example runs offline and prints what it printed the last time, and a provider of
//! a separate crate that depends on `inspan` alone, as `CONTRIBUTING.md` describes it, runs in a flow.
#![expect(clippy::unwrap_used, reason = "a test that cannot continue panics")]

use std::{fs, path::Path, process::Command};

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

/// The profiles of the workspace: with others everything would be built again.
fn profiles(manifest: &str) -> String {
    let mut lines = String::new();
    let mut in_profile = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            in_profile = line.starts_with("[profile");
        }
        if in_profile {
            lines.push_str(line);
            lines.push('\n');
        }
    }
    lines
}

#[test]
fn a_provider_of_another_crate_runs_in_a_flow() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    // The folder in which this test was built, so that nothing is built a second time that need not be.
    let test = std::env::current_exe().unwrap();
    let target = test.ancestors().nth(3).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let inspan = env!("CARGO_MANIFEST_DIR");
    // With it the packages from outside have the features that they have here; with others they would be built again.
    let features = root.join("crates/workspace-hack");
    let manifest = format!(
        "[package]\nname = \"parrot\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[dependencies]\ninspan = {{ path = {inspan:?} }}\nworkspace-hack = {{ path = {features:?} }}{DEPENDENCIES}\n{}",
        profiles(&fs::read_to_string(root.join("Cargo.toml")).unwrap()),
    );
    fs::create_dir(folder.path().join("src")).unwrap();
    fs::write(folder.path().join("Cargo.toml"), manifest).unwrap();
    fs::write(folder.path().join("src/main.rs"), include_str!("outside/parrot.rs")).unwrap();
    fs::copy(root.join("Cargo.lock"), folder.path().join("Cargo.lock")).unwrap();
    let mut cargo = inspan_testkit::cargo(folder.path());
    let output =
        cargo.args(["run", "--quiet", "--offline"]).env("CARGO_TARGET_DIR", target).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let (stdout, errors) = (text(output.stdout), text(output.stderr));
    assert_eq!(stdout, "answer: \"hello, hello!, hello, hello!!\"\ngreet: \"hello, hello!\"\n", "{errors}");
}
