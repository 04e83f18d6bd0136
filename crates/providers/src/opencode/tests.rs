//! Tests of the whole adapter: recorded streams, and servers and programs that misbehave.

mod faults;
mod replay;
