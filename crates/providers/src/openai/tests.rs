//! Tests of the whole adapter: recorded streams, servers that misbehave, and conversations.
