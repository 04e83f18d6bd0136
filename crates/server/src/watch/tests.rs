//! What viewers are sent after the store could not be read, or after the session had ended.

use std::sync::atomic::{AtomicBool, Ordering};

use futures::stream::BoxStream;
use inspan_engine::SystemClock;
use inspan_flow::{
    Batch, FlowSource, Lease, MemoryStore, NodeRegistry, Owner, PostedCommand, RunStore, Select,
    SessionEntry, Verdict, async_trait,
};
use inspan_protocol::{Command, EventContext, Timestamp};
use serde_json::json;

use super::{ticks::Viewer, *};

type Answer<T> = Result<T, StoreError>;

/// A store that cannot be read while it is lost.
struct Lossy {
    inner: MemoryStore,
    is_lost: AtomicBool,
}

#[async_trait]
impl RunStore for Lossy {
    async fn create(&self, record: &SessionRecord, owner: &Owner, now: Timestamp) -> Answer<Lease> {
        self.inner.create(record, owner, now).await
    }

    async fn acquire(&self, session: &SessionId, owner: &Owner, now: Timestamp) -> Answer<Lease> {
        self.inner.acquire(session, owner, now).await
    }

    async fn renew(&self, lease: &Lease, now: Timestamp) -> Answer<()> {
        self.inner.renew(lease, now).await
    }

    async fn release(&self, lease: &Lease) -> Answer<()> {
        self.inner.release(lease).await
    }

    async fn append(&self, lease: &Lease, batch: Batch<'_>) -> Answer<()> {
        self.inner.append(lease, batch).await
    }

    async fn read_some(
        &self,
        session: &SessionId,
        from: u64,
        select: Select,
        most: usize,
    ) -> Answer<Vec<Arc<Envelope>>> {
        if self.is_lost.load(Ordering::Relaxed) {
            return Err(StoreError::Full { path: "memory".into() });
        }
        self.inner.read_some(session, from, select, most).await
    }

    async fn record(&self, session: &SessionId) -> Answer<SessionRecord> {
        self.inner.record(session).await
    }

    async fn entry(&self, session: &SessionId) -> Answer<SessionEntry> {
        self.inner.entry(session).await
    }

    async fn entries(&self, prefix: &str, limit: usize) -> Answer<Vec<SessionEntry>> {
        self.inner.entries(prefix, limit).await
    }

    async fn post_once(
        &self,
        session: &SessionId,
        key: Option<&str>,
        command: &Command,
        now: Timestamp,
    ) -> Answer<u64> {
        self.inner.post_once(session, key, command, now).await
    }

    async fn posted_once(&self, session: &SessionId, key: &str) -> Answer<Option<PostedCommand>> {
        self.inner.posted_once(session, key).await
    }

    async fn unanswered(&self, session: &SessionId) -> Answer<Vec<PostedCommand>> {
        self.inner.unanswered(session).await
    }

    async fn answer(&self, session: &SessionId, number: u64) -> Answer<Option<Verdict>> {
        self.inner.answer(session, number).await
    }

    fn changes(&self) -> BoxStream<'static, ()> {
        self.inner.changes()
    }
}

fn at(seq: u64) -> Timestamp {
    Timestamp::from_millis(1_767_780_000_000 + seq as i64)
}

async fn append(store: &Lossy, lease: &Lease, seq: u64, event: Value) {
    let event = serde_json::from_value(event).unwrap();
    let envelope = Envelope::new(EventContext::session("s1".into()), seq, at(seq), event);
    store.append(lease, Batch { events: &[Arc::new(envelope)], answers: &[] }).await.unwrap();
}

async fn next(viewer: &mut Viewer) -> Result<Option<Text>, SessionError> {
    timeout(LINGER, viewer.next()).await.expect("it is followed")
}

#[tokio::test(start_paused = true)]
async fn a_session_is_followed_anew_once_its_store_can_be_read_and_once_it_goes_on_after_its_end() {
    let store = Arc::new(Lossy { inner: MemoryStore::new(), is_lost: AtomicBool::new(false) });
    let id = SessionId::from("s1");
    let text = "flow: { name: oxen }\nnodes:\n  - { id: load, type: echo, input: { text: oxen } }\n";
    let flow = FlowSource { name: "oxen".to_owned(), text: text.into(), ..Default::default() };
    let record = SessionRecord::new(id.clone(), flow, Map::new(), at(0));
    let lease = store.create(&record, &Owner::of_process(), at(0)).await.unwrap();
    let shared: Arc<dyn RunStore> = Arc::<Lossy>::clone(&store);
    let sessions = Sessions::new(shared, NodeRegistry::default(), Arc::new(SystemClock));
    let watches = Watches::default();
    let viewer = async || {
        let watch = watches.get(&sessions, &id).await.unwrap();
        watch.viewer("s1", BTreeSet::new()).0
    };
    let start = json!({ "type": "harness:start", "name": "oxen" });
    let end = json!({ "type": "harness:complete", "success": true, "outcome": "success", "durationMs": 1 });
    append(&store, &lease, 1, start.clone()).await;

    let mut first = viewer().await;
    store.is_lost.store(true, Ordering::Relaxed);
    assert!(next(&mut first).await.is_err());
    store.is_lost.store(false, Ordering::Relaxed);
    let mut second = viewer().await;
    append(&store, &lease, 2, end.clone()).await;
    store.release(&lease).await.unwrap();
    assert!(matches!(next(&mut second).await, Ok(Some(_))));
    while matches!(next(&mut second).await, Ok(Some(_))) {}

    let lease = store.acquire(&id, &Owner::of_process(), at(3)).await.unwrap();
    let mut third = viewer().await;
    append(&store, &lease, 3, start).await;
    assert!(matches!(next(&mut third).await, Ok(Some(_))));
}
