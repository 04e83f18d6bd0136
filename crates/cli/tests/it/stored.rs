//! A user's store, filled with sessions of the flow fixtures: whole or cut off, driven, left or lost.

use std::{cell::Cell, collections::BTreeMap, fs, path::Path, sync::Arc, time::Duration};

use inspan_engine::{Clock, SystemClock};
use inspan_flow::{Batch, FlowSource, Lease, Owner, RunStore, SessionRecord, SqliteOptions, SqliteStore};
use inspan_protocol::{Command, Envelope, EventContext, SessionId, Timestamp};
use serde_json::{Map, json};

use crate::program::home;

/// Who drives a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driven {
    /// This process, which is alive.
    ByUs,
    /// A process that is gone.
    ByNobody,
    /// It was left on purpose.
    Left,
}

/// The store of a test, open for writing.
pub(crate) struct Stored {
    store: SqliteStore,
    runtime: tokio::runtime::Runtime,
    /// When the next session is made.
    now: Cell<Timestamp>,
}

impl Stored {
    pub(crate) fn new(folder: &Path) -> Self {
        fs::create_dir_all(home(folder)).unwrap();
        let store = SqliteStore::open(home(folder).join("sessions.db"), &SqliteOptions::default()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { store, runtime, now: Cell::new(SystemClock.now()) }
    }

    /// Keeps the first events of a fixture's session, or all of them.
    pub(crate) fn session(
        &self,
        id: &str,
        fixture: &str,
        events: Option<usize>,
        driven: Driven,
    ) -> LeasedSession<'_> {
        self.changed_session(id, fixture, events, driven, str::to_owned)
    }

    /// As [`Stored::session`], with another text of the flow.
    pub(crate) fn changed_session(
        &self,
        id: &str,
        fixture: &str,
        events: Option<usize>,
        driven: Driven,
        change: impl Fn(&str) -> String,
    ) -> LeasedSession<'_> {
        let now = self.now.get();
        self.now.set(now + Duration::from_millis(1));
        let mut record = record(fixture, id, now);
        record.flow.text = change(&record.flow.text).into();
        let mut owner = Owner::of_process();
        if driven == Driven::ByNobody {
            owner.began += 1;
        }
        let lease = self.runtime.block_on(self.store.create(&record, &owner, now)).unwrap();
        let session = LeasedSession { stored: self, lease };
        let log = log(fixture, id);
        session.append(&log[..events.unwrap_or(log.len())]);
        if driven == Driven::Left {
            session.release();
        }
        session
    }
}

/// A session whose lease is held here.
pub(crate) struct LeasedSession<'a> {
    stored: &'a Stored,
    lease: Lease,
}

impl LeasedSession<'_> {
    pub(crate) fn append(&self, log: &[Arc<Envelope>]) {
        let batch = Batch { events: log, answers: &[] };
        self.stored.runtime.block_on(self.stored.store.append(&self.lease, batch)).unwrap();
    }

    /// Stores an answer for the process that continues the session.
    pub(crate) fn reply(&self, prompt: &str, choice: &str) {
        let command = Command::Reply {
            prompt: prompt.into(),
            content: choice.to_owned(),
            choice: Some(choice.to_owned()),
        };
        let posted = self.stored.store.post(&self.lease.session, &command, SystemClock.now());
        self.stored.runtime.block_on(posted).unwrap();
    }

    pub(crate) fn release(&self) {
        self.stored.runtime.block_on(self.stored.store.release(&self.lease)).unwrap();
    }
}

fn folder(fixture: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/flows").join(fixture)
}

/// A fixture's events as those of another session.
pub(crate) fn log(fixture: &str, id: &str) -> Vec<Arc<Envelope>> {
    let text = fs::read_to_string(folder(fixture).join("events.jsonl")).unwrap();
    let envelope = |line: &str| {
        let envelope: Envelope = serde_json::from_str(line).unwrap();
        let context = EventContext { session_id: SessionId::from(id), ..(*envelope.context).clone() };
        Arc::new(Envelope { context: Arc::new(context), ..envelope })
    };
    text.lines().map(envelope).collect()
}

fn record(fixture: &str, id: &str, created_at: Timestamp) -> SessionRecord {
    let folder = &folder(fixture);
    let schema = "schemas/review.json";
    let drawn = fs::read_to_string(folder.join(schema)).map(|text| (schema.to_owned(), text));
    let flow = FlowSource {
        name: fixture.replace('_', "-"),
        hash: "0".repeat(64),
        file: format!("flows/{fixture}.yaml"),
        folder: "/nowhere".into(),
        text: fs::read_to_string(folder.join("flow.yaml")).unwrap().into(),
        files: drawn.into_iter().collect::<BTreeMap<_, _>>(),
        changes: Vec::new(),
    };
    let input = Map::from_iter([("size".to_owned(), json!(7))]);
    SessionRecord::new(SessionId::from(id), flow, input, created_at)
}
