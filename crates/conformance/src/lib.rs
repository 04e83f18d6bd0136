//! One list of behaviours that every provider has in common, and the suite that checks a provider against it.
//!
//! It knows the contract, the engine and the scripted model server, and no vendor: a [`ConformanceTarget`] describes each
//! provider.

mod behaviour;
mod behaviours;
mod finding;
mod report;
mod run;
mod shape;
mod target;
mod test_case;
mod turn;
mod worker;

pub use behaviour::{Behaviour, Need};
pub use behaviours::BEHAVIOURS;
pub use finding::Deviation;
pub use report::{BehaviourOutcome, BehaviourRow, ProviderReport};
pub use run::{SuiteSettings, conform};
pub use shape::{THREE_NODES, shape, three_nodes};
pub use target::{
    ConformanceTarget, Exception, ExceptionKind, ModelAccess, ModelCall, Prompt, TargetContext, Tool,
};
pub use worker::PLANTED;
