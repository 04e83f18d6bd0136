//! The least that a program with a tokio runtime can do: the reference for the start of `inspan`.
#![expect(clippy::print_stdout, reason = "its one word is what is waited for")]

fn main() -> std::io::Result<()> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async { println!("empty") });
    Ok(())
}
