//! Drives the real agent CLIs through their adapters against the scripted model server on loopback.
//! The programs are named by `INSPAN_E2E_CLAUDE`, `INSPAN_E2E_CLAUDE_ACP`, `INSPAN_E2E_CODEX` and
//! `INSPAN_E2E_OPENCODE`; without them these tests fail rather than pass unseen.

#[cfg(test)]
mod acp;
#[cfg(test)]
mod cases;
#[cfg(test)]
mod claude;
#[cfg(test)]
mod codex;
#[cfg(test)]
mod opencode;
#[cfg(test)]
mod turns;
#[cfg(test)]
mod world;
