//! A store of your own: it passes all on to another one, and shows what of a run must be on the disk before it goes on.
//! `cargo run -p inspan --example own_store`
#![expect(clippy::print_stdout, reason = "an example shows what it got")]

use std::{error::Error, sync::Arc};

use futures::{future::BoxFuture, stream::BoxStream};
use inspan::store::{
    Batch, Lease, MemoryStore, Owner, PostedCommand, RunStore, Select, SessionEntry, SessionRecord,
    StoreError, Verdict,
};
use inspan::{Command, Envelope, Flow, SessionId, Timestamp};
use serde_json::Map;

type Answer<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

struct Shown(MemoryStore);

impl RunStore for Shown {
    fn append<'a>(&'a self, lease: &'a Lease, batch: Batch<'a>) -> Answer<'a, ()> {
        for envelope in batch.events {
            println!("{} {}", envelope.seq, envelope.event.name());
        }
        self.0.append(lease, batch)
    }

    fn create<'a>(
        &'a self,
        record: &'a SessionRecord,
        owner: &'a Owner,
        now: Timestamp,
    ) -> Answer<'a, Lease> {
        self.0.create(record, owner, now)
    }

    fn acquire<'a>(&'a self, session: &'a SessionId, owner: &'a Owner, now: Timestamp) -> Answer<'a, Lease> {
        self.0.acquire(session, owner, now)
    }

    fn renew<'a>(&'a self, lease: &'a Lease, now: Timestamp) -> Answer<'a, ()> {
        self.0.renew(lease, now)
    }

    fn release<'a>(&'a self, lease: &'a Lease) -> Answer<'a, ()> {
        self.0.release(lease)
    }

    fn read_some<'a>(
        &'a self,
        session: &'a SessionId,
        from: u64,
        select: Select,
        most: usize,
    ) -> Answer<'a, Vec<Arc<Envelope>>> {
        self.0.read_some(session, from, select, most)
    }

    fn record<'a>(&'a self, session: &'a SessionId) -> Answer<'a, SessionRecord> {
        self.0.record(session)
    }

    fn entry<'a>(&'a self, session: &'a SessionId) -> Answer<'a, SessionEntry> {
        self.0.entry(session)
    }

    fn entries<'a>(&'a self, prefix: &'a str, limit: usize) -> Answer<'a, Vec<SessionEntry>> {
        self.0.entries(prefix, limit)
    }

    fn post<'a>(&'a self, session: &'a SessionId, command: &'a Command, now: Timestamp) -> Answer<'a, u64> {
        self.0.post(session, command, now)
    }

    fn post_once<'a>(
        &'a self,
        session: &'a SessionId,
        key: &'a str,
        command: &'a Command,
        now: Timestamp,
    ) -> Answer<'a, u64> {
        self.0.post_once(session, key, command, now)
    }

    fn posted_once<'a>(&'a self, session: &'a SessionId, key: &'a str) -> Answer<'a, Option<PostedCommand>> {
        self.0.posted_once(session, key)
    }

    fn unanswered<'a>(&'a self, session: &'a SessionId) -> Answer<'a, Vec<PostedCommand>> {
        self.0.unanswered(session)
    }

    fn answer<'a>(&'a self, session: &'a SessionId, number: u64) -> Answer<'a, Option<Verdict>> {
        self.0.answer(session, number)
    }

    fn changes(&self) -> BoxStream<'static, ()> {
        self.0.changes()
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let flow = Flow::parse(
        "ferry.yaml",
        "flow: { name: ferry }\nnodes:\n  - { id: load, type: echo, input: { text: oxen } }\n",
    )?;
    let runner = flow.runner().store(Arc::new(Shown(MemoryStore::new()))).build();
    println!("{:?}", runner.run(Map::new()).await?.outcome);
    Ok(())
}
