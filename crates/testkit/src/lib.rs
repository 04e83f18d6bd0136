//! What the tests of all crates share: sandboxes for the real program, agent CLIs, fixtures, golden files, split and
//! corrupted bytes. Only for tests.

mod agents;
mod corrupt;
mod fixtures;
mod golden;
mod power_cut;
mod processes;
mod sandbox;
mod split;
mod time;

pub use agents::{Agent, PageTool, PythonPackage};
pub use corrupt::{corrupt, fuzz};
pub use fixtures::{FixtureError, MCP_SERVER, case_folders, fixture_dir, read_json, read_jsonl, read_text};
pub use golden::{GoldenMode, check_golden, compare_golden};
pub use power_cut::{DiskCall, StoreDisk, Unsynced, can_trace, disk_calls, tracer};
pub use processes::{called, cargo, example, interruptible, is_running, running_servers, write_program};
pub use sandbox::{Finished, PLANTED_KEYS, RunningProcess, Sandbox};
pub use split::{Split, cut_in_two, one_byte_chunks, random_chunks, split_everywhere};
pub use time::{Deadline, Stopwatch, eventually, pause};
