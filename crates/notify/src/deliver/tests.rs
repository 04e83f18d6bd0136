//! What is sent when, and the end of a delivery, against a channel whose program may be slow.

use std::{fs, path::Path};

use inspan_engine::SystemClock;
use inspan_protocol::{AgentError, Command, Envelope, ErrorCode, EventContext, NodePath};
use inspan_store::{Batch, FlowSource, Lease, MemoryStore, Parent, ParentKind, SessionRecord};
use serde_json::{Map, Value, json};

use super::*;
use crate::{ledger::CursorKey, message::Message};

/// One channel for all flows.
struct OneChannel(FolderChannel);

impl ChannelSource for OneChannel {
    fn channels(&self, _: &Path) -> Result<Vec<FolderChannel>, String> {
        Ok(vec![self.0.clone()])
    }

    fn open(&self, channel: &FolderChannel) -> Result<NotificationChannel, String> {
        let FolderChannel { name, origin, settings } = channel;
        let environment = [("PATH".to_owned(), "/usr/bin:/bin".to_owned())].into_iter().collect();
        NotificationChannel::new(name, origin, settings.clone(), &environment, None)
            .map_err(|error| error.to_string())
    }
}

/// A session that this process runs.
async fn begin(store: &MemoryStore, id: &str) -> Lease {
    let moment = Timestamp::from_millis(1);
    let flow = FlowSource { name: "oxen".to_owned(), text: "name: oxen\n".into(), ..Default::default() };
    let record = SessionRecord::new(id.into(), flow, Map::new(), moment);
    store.create(&record, &Owner::of_process(), moment).await.unwrap()
}

async fn append(store: &MemoryStore, lease: &Lease, seq: u64, at: Timestamp, node: &str, event: Value) {
    let context = EventContext::session(lease.session.clone()).with_task(NodePath::new(node));
    let event = Arc::new(Envelope::new(context, seq, at, serde_json::from_value(event).unwrap()));
    store.append(lease, Batch { events: &[event], ..Batch::default() }).await.unwrap();
}

/// A session that asks a question.
async fn ask(store: &MemoryStore, id: &str) -> Lease {
    let (lease, moment) = (begin(store, id).await, Timestamp::from_millis(1));
    let mut asks = question("p");
    asks["deadline"] = json!(moment);
    append(store, &lease, 1, moment, "gate", asks).await;
    lease
}

fn question(id: &str) -> Value {
    json!({ "type": "session:prompt", "promptId": id, "prompt": "Go?", "kind": "input" })
}

/// A clock that the test sets, in seconds.
#[derive(Default)]
struct SetClock(AtomicU64);

impl Clock for SetClock {
    fn now(&self) -> Timestamp {
        Timestamp::default() + Duration::from_secs(1_000_000 + self.0.load(Ordering::Relaxed))
    }
}

/// Deliveries to a channel whose program does this first, and then adds what it is sent to the file `sent` of a folder.
async fn delivery(store: Arc<MemoryStore>, folder: &Path, first: &str) -> Delivery {
    let on = ["question", "failure", "limit"];
    let script = format!("cd '{}' && {{ {first}; cat >> sent; }}", folder.display());
    let settings = json!({ "type": "command", "argv": ["sh", "-c", script], "on": on });
    let settings = ChannelSettings::read(settings.as_object().cloned().unwrap()).unwrap();
    let (name, origin) = ("slow".to_owned(), "inspan.toml".to_owned());
    let ledger = Ledger::at(&folder.join("notify"));
    ledger.since(&name, &origin, Timestamp::from_millis(0)).await.unwrap();
    Delivery {
        store,
        ledger,
        source: Arc::new(OneChannel(FolderChannel { name, origin, settings })),
        commands: Arc::default(),
        page: None,
        answers: None,
        clock: Arc::new(SystemClock),
        warn: Arc::new(|line| panic!("{line}")),
        warned: Arc::default(),
    }
}

#[tokio::test]
async fn what_is_being_sent_at_the_end_is_sent_and_what_is_left_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let sent = folder.path().join("sent");
    let store = MemoryStore::new();
    ask(&store, "a").await;
    ask(&store, "b").await;
    let delivery = delivery(store.into(), folder.path(), "[ -e sent ] || sleep 4").await;
    let count = || fs::read_to_string(&sent).unwrap_or_default().matches("Go?").count();
    let left = deliver_once(delivery.clone(), Instant::now() + Duration::from_secs(3)).await;
    let named = Undelivered { channels: vec!["slow".to_owned()], ..Undelivered::default() };
    let after_one = count();
    assert_eq!((left, after_one > 0), (named, true));
    let left = deliver_once(delivery, Instant::now() + Duration::from_secs(60)).await;
    assert_eq!((left, count()), (Undelivered::default(), 2 * after_one));
}

/// A channel that cannot be used yet; without one, settings that cannot be read.
struct NotYet(Option<FolderChannel>);

impl ChannelSource for NotYet {
    fn channels(&self, _: &Path) -> Result<Vec<FolderChannel>, String> {
        self.0.clone().map(|channel| vec![channel]).ok_or_else(|| "its settings are broken".to_owned())
    }

    fn open(&self, _: &FolderChannel) -> Result<NotificationChannel, String> {
        Err("its variable is not set".to_owned())
    }
}

#[tokio::test]
async fn what_happens_before_a_channel_can_be_opened_is_named_and_sent_once_it_can() {
    let folder = tempfile::tempdir().unwrap();
    let sent = folder.path().join("sent");
    let store = Arc::new(MemoryStore::new());
    let ready = delivery(Arc::clone(&store), folder.path(), "true").await;
    let clock = Arc::new(SetClock::default());
    // Nobody has used the channel before.
    let ready = Delivery {
        ledger: Ledger::at(&folder.path().join("new")),
        clock: Arc::clone(&clock) as Arc<dyn Clock>,
        warn: Arc::new(|_| {}),
        ..ready
    };
    let channel = ready.source.channels(Path::new("")).unwrap().remove(0);
    let not_yet = Delivery { source: Arc::new(NotYet(Some(channel))), ..ready.clone() };
    let unread = Delivery { source: Arc::new(NotYet(None)), ..ready.clone() };
    let lease = begin(&store, "s").await;
    append(&store, &lease, 1, clock.now(), "before", question("b")).await;
    clock.0.store(10, Ordering::Relaxed);
    let end = || Instant::now() + Duration::from_secs(60);
    let slow = || vec!["slow".to_owned()];
    let closed = Undelivered { closed: slow(), ..Undelivered::default() };
    let missed = Undelivered { channels: slow(), ..Undelivered::default() };
    assert_eq!(deliver_once(not_yet.clone(), end()).await, Undelivered::default());
    clock.0.store(20, Ordering::Relaxed);
    append(&store, &lease, 2, clock.now(), "after", question("a")).await;
    clock.0.store(30, Ordering::Relaxed);
    for (delivery, left) in [(not_yet, closed), (unread, missed)] {
        assert_eq!(deliver_once(delivery, end()).await, left);
    }
    assert_eq!(deliver_once(ready, end()).await, Undelivered::default());
    let said = fs::read_to_string(&sent).unwrap_or_default();
    assert_eq!(["`after` asks", "`before` asks"].map(|text| said.contains(text)), [true, false], "{said}");
}

/// The time of the question is up; an answer is stored in one session, and another continues one: nobody runs them.
#[tokio::test]
async fn a_question_is_announced_as_it_can_be_answered() {
    let folder = tempfile::tempdir().unwrap();
    let sent = folder.path().join("sent");
    let store = MemoryStore::new();
    for id in ["answered", "continued", "late"] {
        let lease = ask(&store, id).await;
        store.release(&lease).await.unwrap();
    }
    let mut next = store.record(&"answered".into()).await.unwrap();
    next.session = "next".into();
    next.parent = Some(Parent::new("continued".into(), 1, ParentKind::Resume));
    store.create(&next, &Owner::of_process(), Timestamp::from_millis(1)).await.unwrap();
    let reply = Command::Reply { prompt: "p".into(), content: "so".to_owned(), choice: None };
    store.post(&"answered".into(), &reply, Timestamp::from_millis(1)).await.unwrap();
    let delivery = delivery(store.into(), folder.path(), "true").await;
    deliver_once(delivery, Instant::now() + Duration::from_secs(60)).await;
    let said = fs::read_to_string(&sent).unwrap();
    let has = ["inspan resume late", "expired at", "expires at", "inspan reply"];
    assert_eq!(has.map(|text| said.contains(text)), [true, true, false, false], "{said}");
    assert_eq!(said.matches("asks a question\",\"notices\"").count(), 1, "{said}");
}

/// A receiver that cannot take one message may take others.
#[tokio::test]
async fn others_do_not_wait_for_a_delivery_that_fails_again_and_again() {
    let folder = tempfile::tempdir().unwrap();
    let sent = folder.path().join("sent");
    let store = MemoryStore::new();
    for id in ["a", "b"] {
        ask(&store, id).await;
    }
    let mut delivery = delivery(store.into(), folder.path(), "true").await;
    delivery.warn = Arc::new(|_| {});
    let key =
        CursorKey { channel: "slow".to_owned(), session: "a".into(), created_at: Timestamp::from_millis(1) };
    let (holder, now) = (Holder { owner: Owner::of_process(), number: 99 }, SystemClock.now());
    delivery.ledger.claim(&key, &holder, now).await.unwrap();
    let later = now + Duration::from_secs(600);
    let names = || {
        let sent = fs::read_to_string(&sent).unwrap_or_default();
        ["a", "b"].map(|id| sent.contains(&format!("\"session\":\"{id}\"")))
    };
    for attempts in 1..=5 {
        let failed = delivery.ledger.failed(&key, later, false).await.unwrap();
        assert_eq!((failed.attempts, failed.refusals), (attempts, 0));
        if attempts == 4 {
            delivery.ledger.release(&key, &holder).await.unwrap();
            deliver_once(delivery.clone(), Instant::now() + Duration::from_secs(1)).await;
            assert_eq!(names(), [false, false]);
        }
    }
    deliver_once(delivery.clone(), Instant::now() + Duration::from_secs(1)).await;
    assert_eq!(names(), [false, true]);
    // One refusal does not give up what failed otherwise before.
    let refused = delivery.ledger.failed(&key, later, true).await.unwrap();
    assert_eq!((refused.attempts, refused.refusals), (6, 1));
}

/// The messages that a channel was sent: the title of each, and how many notices it lists.
fn titles(sent: &Path) -> Vec<(String, usize)> {
    let sent = fs::read_to_string(sent).unwrap_or_default();
    let messages = serde_json::Deserializer::from_str(&sent).into_iter::<Message>().map_while(Result::ok);
    messages.map(|message| (message.title, message.notices.len())).collect()
}

async fn wait_for(sent: &Path, messages: usize) {
    let is_there = async {
        while titles(sent).len() < messages {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(30), is_there).await.unwrap();
}

#[tokio::test]
async fn failures_that_follow_the_first_are_gathered_until_their_time_a_question_or_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let sent = folder.path().join("sent");
    let store = Arc::new(MemoryStore::new());
    let lease = begin(&store, "s").await;
    let mut delivery = delivery(Arc::clone(&store), folder.path(), "true").await;
    let clock = Arc::new(SetClock::default());
    delivery.clock = Arc::clone(&clock) as Arc<dyn Clock>;
    let fails = async |seq, at| {
        clock.0.store(at, Ordering::Relaxed);
        let error = AgentError::new(ErrorCode::Process, "it broke");
        let event = json!({ "type": "task:failed", "taskId": "work", "error": error, "willRetry": false });
        append(&store, &lease, seq, clock.now(), &format!("tickets[{seq}]/work"), event).await;
    };
    fails(1, 0).await;
    let running = deliver(delivery.clone(), Scope::Session("s".into()));
    wait_for(&sent, 1).await;
    let left = async || deliver_once(delivery.clone(), Instant::now() + Duration::from_secs(60)).await;
    // Its program has written, and has not ended yet.
    while left().await != Undelivered::default() {
        sleep(Duration::from_millis(20)).await;
    }
    fails(2, 50).await;
    fails(3, 55).await;
    // What another process gathers is not left.
    assert_eq!((left().await, titles(&sent).len()), (Undelivered::default(), 1));
    clock.0.store(60, Ordering::Relaxed);
    wait_for(&sent, 2).await;
    fails(4, 70).await;
    append(&store, &lease, 5, clock.now(), "gate", question("p")).await;
    wait_for(&sent, 3).await;
    for seq in 6..9 {
        fails(seq, 80).await;
    }
    assert_eq!(running.finish(Duration::from_secs(30)).await, Undelivered::default());
    let expected = [
        ("oxen: `tickets[1]/work` failed", 1),
        ("oxen: 2 more failures in `tickets`", 2),
        ("oxen: `gate` asks a question and 1 more", 2),
        ("oxen: 3 more failures in `tickets`", 3),
    ];
    assert_eq!(titles(&sent), expected.map(|(title, listed)| (title.to_owned(), listed)));
}

#[tokio::test]
async fn a_limit_is_told_once_for_a_session_and_each_question_is_listed() {
    let folder = tempfile::tempdir().unwrap();
    let sent = folder.path().join("sent");
    let store = Arc::new(MemoryStore::new());
    let lease = begin(&store, "s").await;
    let delivery = delivery(Arc::clone(&store), folder.path(), "true").await;
    let now = SystemClock.now();
    let meets = async |seq, lifted| {
        let until = now + Duration::from_secs(lifted);
        let event = json!({ "type": "limit:wait", "provider": "claude", "until": until });
        append(&store, &lease, seq, now, "work", event).await;
    };
    let listed = async || {
        deliver_once(delivery.clone(), Instant::now() + Duration::from_secs(60)).await;
        titles(&sent).into_iter().map(|(_, listed)| listed).collect::<Vec<_>>()
    };
    for seq in 1..9 {
        meets(seq, 7_200 + seq).await;
    }
    assert_eq!(listed().await, [1]);
    // It is met again, and then another one.
    meets(9, 7_000).await;
    assert_eq!(listed().await, [1]);
    meets(10, 18_000).await;
    assert_eq!(listed().await, [1, 1]);
    for seq in 11..23 {
        append(&store, &lease, seq, now, "gate", question(&format!("p{seq}"))).await;
    }
    assert_eq!(listed().await, [1, 1, 5, 5, 2]);
}
