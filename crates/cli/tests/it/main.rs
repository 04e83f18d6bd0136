//! The program from outside: its verbs, its sessions, its examples.

mod commands;
mod examples;
mod program;
mod sessions;
