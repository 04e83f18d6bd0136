//! Sessions on a log in memory, driven without a server: each decision is made, and each attempt that it names
//! is run, by another worker.

mod cluster;
mod encryption;
mod sessions;
