//! The picture of the console in the README: what a real run of the example prints, drawn as SVG. What is
//! printed is the command line's affair.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

/// Where the picture stands.
const PICTURE: &str = "docs/console.svg";
/// The run that is shown.
const RUN: &[&str] = &["run", "examples/review-loop/flow.yaml", "--replay"];

/// Runs the example and draws what it shows.
pub(crate) fn draw(root: &Path) -> anyhow::Result<&'static str> {
    let output = Command::new("cargo")
        .args(["run", "--quiet", "--package", "inspan-cli", "--"])
        .args(RUN)
        .args(["--color", "always"])
        .env("COLUMNS", "100")
        .current_dir(root)
        .output()
        .context("failed to start the command line")?;
    let progress = String::from_utf8(output.stderr).context("the console printed what is no text")?;
    if !output.status.success() {
        bail!("the example ended with {}:\n{progress}", output.status);
    }
    let prompt = format!("\u{1b}[1m$ inspan {}\u{1b}[0m\n", RUN.join(" "));
    let svg = anstyle_svg::Term::new().render_svg(&(prompt + &progress));
    std::fs::write(root.join(PICTURE), svg).with_context(|| format!("failed to write {PICTURE}"))?;
    Ok(PICTURE)
}
