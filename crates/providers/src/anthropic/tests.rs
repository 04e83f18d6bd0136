//! Tests of the whole adapter: recorded streams, servers that misbehave, and conversations.

mod conversations;
mod faults;
mod harmed;
mod keys;
mod replay;
mod server;
mod tools;
