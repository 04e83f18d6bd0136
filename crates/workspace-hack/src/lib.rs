//! Packages that are named for their features alone. Cargo builds a package again for each set of features, and what is
//! selected decides the set: the program, the tests, the tests with the Temporal SDK, a provider from outside. With the
//! features in this manifest all of these share one build of what they have in common, also `syn` and `syn_2` of the macros.
//! One that is missing costs minutes of CI. No program has a feature from here, because none of our crates uses this one.
#![cfg(not(target_family = "wasm"))]

use aho_corasick as _;
use anstyle as _;
use base64 as _;
use crc32fast as _;
use digest as _;
use digest_0_10 as _;
use flate2 as _;
use futures_executor as _;
use futures_io as _;
use getrandom_0_3 as _;
use hyper as _;
use hyper_rustls as _;
use hyper_util as _;
use idna as _;
use indexmap as _;
use jiff as _;
use memchr as _;
use object_store as _;
use once_cell as _;
use regex_automata as _;
use reqwest as _;
use ring as _;
use rmcp as _;
use rustix as _;
use rustls as _;
use serde_json as _;
use slab as _;
use tokio as _;
use tokio_rustls as _;
use tokio_stream as _;
use tokio_util as _;
use tower as _;
use tracing_core as _;
use tracing_subscriber as _;
