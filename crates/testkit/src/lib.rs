//! What the tests of all crates share: fixtures, golden files, split and corrupted bytes. Only for tests.

mod corrupt;
mod fixtures;
mod golden;
mod split;

pub use corrupt::corrupt;
pub use fixtures::{FixtureError, MCP_SERVER, case_folders, fixture_dir, read_json, read_jsonl, read_text};
pub use golden::{GoldenMode, check_golden, compare_golden};
pub use split::{Split, cut_in_two, one_byte_chunks, random_chunks, split_everywhere};
