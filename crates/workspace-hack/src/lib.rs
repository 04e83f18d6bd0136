//! Packages that are named for their features alone. Cargo builds a package again for each set of features, and what is
//! selected decides the set: the program, the tests, the tests with the Temporal SDK. With the features in the manifest of
//! this crate all of these share one build of what they have in common; one that is missing there costs CI minutes.

use crc32fast as _;
use flate2 as _;
use hyper as _;
use hyper_rustls as _;
use hyper_util as _;
use indexmap as _;
use memchr as _;
use object_store as _;
use once_cell as _;
use regex_automata as _;
use reqwest as _;
use ring as _;
use slab as _;
use tokio_stream as _;
use tower as _;
use tracing_core as _;
use tracing_subscriber as _;
