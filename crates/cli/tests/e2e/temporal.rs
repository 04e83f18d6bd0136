//! Sessions on a real Temporal server with real workers: the same outcome as on one machine, the same commands, and nothing
//! lost or done twice when workers and the server are killed.

mod agents;
mod bucket;
mod cluster;
mod commands;
mod encrypted;
mod figures;
mod histories;
mod kills;
mod pools;
mod same;
mod stops;

pub(super) use agents::{agents_killed, agents_limit, agents_resumed};
pub(super) use bucket::same_in_a_bucket;
pub(super) use commands::{large_output, paused_and_resumed, person_outlives_workers, stopped};
pub(super) use encrypted::encrypted;
pub(super) use figures::figures;
pub(super) use histories::histories;
pub(super) use kills::{kills_limit, server_killed, workers_killed};
pub(super) use pools::pools;
pub(super) use same::same_as_here;
pub(super) use stops::{frozen_worker, long_outage, worker_stops};
