//! One list of behaviours that every provider shows alike, and what holds a provider against it.
//!
//! It knows the contract, the engine and the scripted model server, and no vendor: what is a vendor's own stands in a
//! [`ConformanceTarget`], which whoever brings the provider brings along.

mod behaviour;
mod behaviours;
mod finding;
mod lane;
mod processes;
mod report;
mod rig;
mod run;
mod said;
mod scene;
mod secret;
mod shape;

pub use behaviour::{Behaviour, Need};
pub use behaviours::BEHAVIOURS;
pub use finding::Deviation;
pub use report::{Outcome, Report, Row};
pub use rig::{Call, ConformanceTarget, Exception, Kind, Place, Prompt, Reach, Tool};
pub use run::{Settings, conform};
pub use secret::PLANTED;
pub use shape::{THREE_NODES, shape, three_nodes};
