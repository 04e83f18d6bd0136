//! Where sessions run: on this machine, or on a cluster if the program was built with one.

use serde::Serialize;

#[cfg(not(feature = "temporal"))]
mod absent;
#[cfg(feature = "temporal")]
mod temporal;

#[cfg(not(feature = "temporal"))]
pub(crate) use absent::Engine;
#[cfg(feature = "temporal")]
pub(crate) use temporal::Engine;

/// What was found of the place where sessions run.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EngineReport {
    pub(crate) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) version: Option<String>,
    /// The workers, each in words.
    pub(crate) workers: Vec<String>,
    /// Why no session can run there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) problem: Option<String>,
}
