//! The end of a delivery, against a channel whose program is slow.

use std::{fs, path::Path};

use inspan_engine::SystemClock;
use inspan_protocol::Command;
use inspan_protocol::{Envelope, EventContext};
use inspan_store::{Batch, FlowSource, Lease, MemoryStore, Parent, ParentKind, SessionRecord};
use serde_json::{Map, json};

use super::*;
use crate::ledger::CursorKey;

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

/// A session that asks a question.
async fn ask(store: &MemoryStore, id: &str) -> Lease {
    let moment = Timestamp::from_millis(1);
    let flow = FlowSource { name: "oxen".to_owned(), text: "name: oxen\n".into(), ..Default::default() };
    let record = SessionRecord::new(id.into(), flow, Map::new(), moment);
    let lease = store.create(&record, &Owner::of_process(), moment).await.unwrap();
    let event = json!({ "type": "session:prompt", "promptId": "p", "prompt": "Go?", "kind": "input", "deadline": moment });
    let event = serde_json::from_value(event).unwrap();
    let event = Arc::new(Envelope::new(EventContext::session(id.into()), 1, moment, event));
    store.append(&lease, Batch { events: &[event], ..Batch::default() }).await.unwrap();
    lease
}

/// Deliveries to a channel whose program is a script.
async fn delivery(store: MemoryStore, script: &str, folder: &Path) -> Delivery {
    let settings = json!({ "type": "command", "argv": ["sh", "-c", script] });
    let settings = ChannelSettings::read(settings.as_object().cloned().unwrap()).unwrap();
    let (name, origin) = ("slow".to_owned(), "inspan.toml".to_owned());
    let ledger = Ledger::at(&folder.join("notify"));
    ledger.since(&name, &origin, Timestamp::from_millis(0)).await.unwrap();
    Delivery {
        store: Arc::new(store),
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
    let script = format!("[ -e '{0}' ] || sleep 4; cat >> '{0}'", sent.display());
    let store = MemoryStore::new();
    ask(&store, "a").await;
    ask(&store, "b").await;
    let delivery = delivery(store, &script, folder.path()).await;
    let count = || fs::read_to_string(&sent).unwrap_or_default().matches("Go?").count();
    let left = deliver_once(delivery.clone(), Instant::now() + Duration::from_secs(3)).await;
    let named = Undelivered { channels: vec!["slow".to_owned()], ..Undelivered::default() };
    let after_one = count();
    assert_eq!((left, after_one > 0), (named, true));
    let left = deliver_once(delivery, Instant::now() + Duration::from_secs(60)).await;
    assert_eq!((left, count()), (Undelivered::default(), 2 * after_one));
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
    let delivery = delivery(store, &format!("cat >> '{}'", sent.display()), folder.path()).await;
    deliver_once(delivery, Instant::now() + Duration::from_secs(60)).await;
    let said = fs::read_to_string(&sent).unwrap();
    let has = ["inspan resume late", "its time was up at", "expires at", "inspan reply"];
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
    let mut delivery = delivery(store, &format!("cat >> '{}'", sent.display()), folder.path()).await;
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
