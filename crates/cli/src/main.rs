//! The `inspan` program, which is a function of its library.

use std::process::ExitCode;

/// Large logs and flows are many small values: a fifth of the time to read one, and of its memory, is the allocator's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    inspan_cli::program()
}
