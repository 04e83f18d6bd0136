//! The `inspan` program, which is a function of its library.

use std::process::ExitCode;

fn main() -> ExitCode {
    inspan_cli::program()
}
