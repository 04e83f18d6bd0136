//! The `inspan` program: reads the command line, hands each verb to its command, and ends with its code.

mod args;
mod console;
mod drawing;
mod exit;
mod failure;
mod terminal;

fn main() {}
