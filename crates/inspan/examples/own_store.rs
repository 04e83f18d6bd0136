//! A store of your own: it passes all on to another one, and shows what of a run must be on the disk before it goes on.
//! `cargo run -p inspan --example own_store`
#![expect(clippy::print_stdout, reason = "an example shows what it got")]

use std::{error::Error, sync::Arc};

use futures::stream::BoxStream;
use inspan::store::{
    Batch, Lease, MemoryStore, Owner, PostedCommand, RunStore, Select, SessionEntry, SessionRecord,
    StoreError, Verdict, async_trait,
};
use inspan::{Command, Envelope, Flow, SessionId, Timestamp};
use serde_json::Map;

type Answer<T> = Result<T, StoreError>;

struct Shown(MemoryStore);

#[async_trait]
impl RunStore for Shown {
    async fn append(&self, lease: &Lease, batch: Batch<'_>) -> Answer<()> {
        for envelope in batch.events {
            println!("{} {}", envelope.seq, envelope.event.name());
        }
        self.0.append(lease, batch).await
    }

    async fn create(&self, record: &SessionRecord, owner: &Owner, now: Timestamp) -> Answer<Lease> {
        self.0.create(record, owner, now).await
    }

    async fn acquire(&self, session: &SessionId, owner: &Owner, now: Timestamp) -> Answer<Lease> {
        self.0.acquire(session, owner, now).await
    }

    async fn renew(&self, lease: &Lease, now: Timestamp) -> Answer<()> {
        self.0.renew(lease, now).await
    }

    async fn release(&self, lease: &Lease) -> Answer<()> {
        self.0.release(lease).await
    }

    async fn read_some(
        &self,
        session: &SessionId,
        from: u64,
        select: Select,
        most: usize,
    ) -> Answer<Vec<Arc<Envelope>>> {
        self.0.read_some(session, from, select, most).await
    }

    async fn record(&self, session: &SessionId) -> Answer<SessionRecord> {
        self.0.record(session).await
    }

    async fn entry(&self, session: &SessionId) -> Answer<SessionEntry> {
        self.0.entry(session).await
    }

    async fn entries(&self, prefix: &str, limit: usize) -> Answer<Vec<SessionEntry>> {
        self.0.entries(prefix, limit).await
    }

    async fn post_once(
        &self,
        session: &SessionId,
        key: Option<&str>,
        command: &Command,
        now: Timestamp,
    ) -> Answer<u64> {
        self.0.post_once(session, key, command, now).await
    }

    async fn posted_once(&self, session: &SessionId, key: &str) -> Answer<Option<PostedCommand>> {
        self.0.posted_once(session, key).await
    }

    async fn unanswered(&self, session: &SessionId) -> Answer<Vec<PostedCommand>> {
        self.0.unanswered(session).await
    }

    async fn answer(&self, session: &SessionId, number: u64) -> Answer<Option<Verdict>> {
        self.0.answer(session, number).await
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
