//! Channels that work and channels that fail.

use std::future::pending;

use futures::future::ready;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::*;
use crate::testing::{EventCollector, hub, log};

/// What a channel does when it is called.
#[derive(Clone, Copy)]
enum Mood {
    Well,
    Fails,
    Panics,
    PanicsAtOnce,
    Hangs,
    Slow(Duration),
}

impl Mood {
    fn act(self) -> BoxFuture<'static, Result<(), BoxError>> {
        match self {
            Self::Well => ready(Ok(())).boxed(),
            Self::Fails => ready(Err("on purpose".into())).boxed(),
            Self::Panics => async { panic!("on purpose") }.boxed(),
            Self::PanicsAtOnce => panic!("on purpose"),
            Self::Hangs => pending().boxed(),
            Self::Slow(duration) => sleep(duration).map(Ok).boxed(),
        }
    }
}

struct Probe {
    name: &'static str,
    start: Mood,
    event: Mood,
    complete: Mood,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Probe {
    fn new(name: &'static str) -> Self {
        Self { name, start: Mood::Well, event: Mood::Well, complete: Mood::Well, seen: Arc::default() }
    }
}

impl Channel for Probe {
    fn name(&self) -> &str {
        self.name
    }

    fn on_start(&self, hub: Hub) -> impl Future<Output = Result<(), BoxError>> + Send {
        self.seen.lock().push(format!("start at {}", hub.last_seq()));
        self.start.act()
    }

    fn on_event(&self, envelope: &Arc<Envelope>) -> impl Future<Output = Result<(), BoxError>> + Send {
        self.seen.lock().push(brief(&envelope.event));
        self.event.act()
    }

    fn on_complete(&self) -> impl Future<Output = Result<(), BoxError>> + Send {
        self.seen.lock().push("end".to_owned());
        self.complete.act()
    }
}

fn brief(event: &Event) -> String {
    match event {
        Event::ChannelFailed { name, error } => format!("error {name}: {error}"),
        Event::ChannelRegistered { name }
        | Event::ChannelStarted { name }
        | Event::ChannelStopped { name }
        | Event::ChannelUnregistered { name } => {
            format!("{} {name}", event.name().trim_start_matches("channel:"))
        }
        Event::Log { message, .. } => message.clone(),
        other => other.name().to_owned(),
    }
}

fn reported(watch: &mut EventCollector) -> Vec<String> {
    watch.events().iter().map(brief).collect()
}

#[tokio::test(start_paused = true)]
async fn channels_start_in_order_see_all_and_stop() {
    let hub = hub();
    let mut watch = EventCollector::new(&hub);
    let [a, b, late] = ["a", "b", "late"].map(Probe::new);
    let seen = [&a, &b, &late].map(|probe| probe.seen.clone());
    let mut channels = Channels::new(hub.clone(), ChannelLimits::default());
    channels.start([Arc::new(a) as Arc<dyn DynChannel>, Arc::new(b)]).await;
    hub.emit(log("one"));
    channels.attach(Arc::new(late)).await;
    hub.emit(log("two"));
    channels.finish().await;
    assert_eq!(
        reported(&mut watch),
        [
            "registered a",
            "registered b",
            "started a",
            "started b",
            "one",
            "registered late",
            "started late",
            "two",
            "stopped a",
            "unregistered a",
            "stopped b",
            "unregistered b",
            "stopped late",
            "unregistered late",
        ]
    );
    let [a, b, late] = seen.map(|seen| seen.lock().clone());
    let run = ["started a", "started b", "one", "registered late", "started late", "two"];
    assert_eq!(a, [&["start at 2", "registered a", "registered b"], &run[..], &["end"]].concat());
    // Channels that end later still see how the others end, until they end themselves.
    assert_eq!(b[..8], [&["start at 3", "registered b"], &run[..]].concat());
    assert_eq!(late[..4], ["start at 6", "registered late", "started late", "two"]);
    assert_eq!([b.last().unwrap(), late.last().unwrap()], ["end", "end"]);
}

#[tokio::test(start_paused = true)]
async fn a_channel_that_fails_is_removed_and_the_run_continues() {
    let well = || Probe::new("bad");
    let rows = [
        (Probe { start: Mood::Fails, ..well() }, "on purpose", 1, 0),
        (Probe { start: Mood::Panics, ..well() }, "it panicked", 1, 0),
        (Probe { start: Mood::PanicsAtOnce, ..well() }, "it panicked", 1, 0),
        (Probe { start: Mood::Hangs, ..well() }, "it did not answer within 10s", 1, 10),
        (Probe { event: Mood::Fails, ..well() }, "on purpose", 2, 0),
        (Probe { event: Mood::PanicsAtOnce, ..well() }, "it panicked", 2, 0),
        (Probe { event: Mood::Hangs, ..well() }, "it did not answer within 10s", 2, 10),
        (Probe { complete: Mood::Fails, ..well() }, "on purpose", 0, 0),
        (Probe { complete: Mood::Hangs, ..well() }, "it did not answer within 10s", 0, 10),
    ];
    for (bad, fault, calls, seconds) in rows {
        let hub = hub();
        let mut watch = EventCollector::new(&hub);
        let good = Probe::new("good");
        let seen = [&bad, &good].map(|probe| probe.seen.clone());
        let mut channels = Channels::new(hub.clone(), ChannelLimits::default());
        let began = Instant::now();
        channels.start([Arc::new(bad) as Arc<dyn DynChannel>, Arc::new(good)]).await;
        hub.emit(log("one"));
        hub.emit(log("two"));
        channels.finish().await;
        assert_eq!(began.elapsed().as_secs(), seconds);
        let reported = reported(&mut watch);
        let of_bad: Vec<_> = reported.iter().filter(|line| line.contains(" bad")).cloned().collect();
        let failed = [format!("error bad: {fault}"), "unregistered bad".to_owned()];
        let begun = if calls == 1 { vec![] } else { vec!["started bad".to_owned()] };
        assert_eq!(of_bad, [vec!["registered bad".to_owned()], begun, failed.to_vec()].concat());
        let [bad, good] = seen.map(|seen| seen.lock().clone());
        if calls > 0 {
            assert_eq!(bad.len(), calls, "{bad:?}");
        }
        for line in ["one", "two", "end"] {
            assert_eq!(good.iter().filter(|seen| *seen == line).count(), 1);
        }
        for line in ["stopped good", "unregistered good"] {
            assert_eq!(reported.iter().filter(|seen| *seen == line).count(), 1);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_channel_misses_events_and_is_reported() {
    let hub = hub();
    let mut watch = EventCollector::new(&hub);
    let slow = Probe { event: Mood::Slow(Duration::from_millis(100)), ..Probe::new("slow") };
    let seen = slow.seen.clone();
    let limits = ChannelLimits { queue: 4, ..ChannelLimits::default() };
    let mut channels = Channels::new(hub.clone(), limits);
    channels.attach(Arc::new(slow)).await;
    sleep(Duration::from_secs(1)).await;
    for number in 1..=9 {
        hub.emit(log(&number.to_string()));
    }
    // It catches up; that it missed something is reported to all others.
    sleep(Duration::from_secs(1)).await;
    hub.emit(log("10"));
    channels.finish().await;
    let expected = ["start at 1", "registered slow", "started slow", "6", "7", "8", "9", "10", "end"];
    assert_eq!(*seen.lock(), expected);
    let fault = "error slow: 5 events were missed by a reader that was too slow";
    assert_eq!(
        reported(&mut watch)[11..],
        [fault, "10", "stopped slow", "unregistered slow"].map(str::to_owned)
    );
}

#[tokio::test(start_paused = true)]
async fn what_waits_at_the_end_has_one_limit_in_all() {
    let hub = hub();
    let slow = Probe { event: Mood::Slow(Duration::from_secs(3)), ..Probe::new("slow") };
    let mut channels = Channels::new(hub.clone(), ChannelLimits::default());
    channels.attach(Arc::new(slow)).await;
    for number in 1..=100 {
        hub.emit(log(&number.to_string()));
    }
    let mut watch = EventCollector::new(&hub);
    sleep(Duration::from_secs(1)).await;
    let began = Instant::now();
    channels.finish().await;
    // The rest of the call in progress, and ten seconds for all others.
    assert_eq!(began.elapsed().as_secs(), 2 + 10);
    let fault = "error slow: it did not take the last events within 10s";
    assert_eq!(reported(&mut watch), [fault, "unregistered slow"].map(str::to_owned));
}

#[tokio::test(start_paused = true)]
async fn two_broken_channels_do_not_feed_each_other() {
    struct Grumpy(&'static str);
    impl Channel for Grumpy {
        fn name(&self) -> &str {
            self.0
        }
        fn on_event(&self, envelope: &Arc<Envelope>) -> impl Future<Output = Result<(), BoxError>> + Send {
            match &envelope.event {
                Event::ChannelFailed { name, .. } if name == self.0 => panic!("its own fault came back"),
                Event::ChannelFailed { .. } => Mood::Fails.act(),
                Event::Log { message, .. } if message == self.0 => Mood::Fails.act(),
                _ => Mood::Well.act(),
            }
        }
    }
    let hub = hub();
    let mut watch = EventCollector::new(&hub);
    let mut channels = Channels::new(hub.clone(), ChannelLimits::default());
    channels.start([Arc::new(Grumpy("a")) as Arc<dyn DynChannel>, Arc::new(Grumpy("b"))]).await;
    hub.emit(log("a"));
    channels.finish().await;
    assert_eq!(
        reported(&mut watch)[5..],
        ["error a: on purpose", "unregistered a", "unregistered b"].map(str::to_owned)
    );
}

#[tokio::test(start_paused = true)]
async fn dropped_channels_are_let_go_at_once() {
    let hub = hub();
    let probe = Arc::new(Probe { event: Mood::Hangs, ..Probe::new("a") });
    let mut channels = Channels::new(hub.clone(), ChannelLimits::default());
    channels.attach(probe.clone()).await;
    drop(channels);
    tokio::task::yield_now().await;
    assert_eq!(Arc::strong_count(&probe), 1);
}

#[tokio::test(start_paused = true)]
async fn who_lets_channels_catch_up_waits_for_the_slow_and_not_for_the_hung() {
    let hub = hub();
    let slow = Probe { event: Mood::Slow(Duration::from_millis(50)), ..Probe::new("slow") };
    let seen = slow.seen.clone();
    let mut channels = Channels::new(hub.clone(), ChannelLimits::default());
    channels.start([Arc::new(slow) as Arc<dyn DynChannel>]).await;
    hub.emit(log("one"));
    hub.emit(log("two"));
    channels.caught_up().await;
    assert_eq!(*seen.lock(), ["start at 1", "registered slow", "started slow", "one", "two"]);
    channels.attach(Arc::new(Probe { event: Mood::Hangs, ..Probe::new("hung") })).await;
    let began = Instant::now();
    channels.caught_up().await;
    assert_eq!(began.elapsed().as_secs(), ChannelLimits::default().call.as_secs());
}
