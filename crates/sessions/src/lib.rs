//! What programs do with stored sessions: find, read, follow, command, start, resume and fork them.
