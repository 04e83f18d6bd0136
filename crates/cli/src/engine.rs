//! Where sessions run: on this machine, or on a cluster if the program was built with one.

#[cfg(not(feature = "temporal"))]
mod absent;
#[cfg(feature = "temporal")]
mod temporal;

#[cfg(not(feature = "temporal"))]
pub(crate) use absent::Engine;
#[cfg(feature = "temporal")]
pub(crate) use temporal::Engine;
