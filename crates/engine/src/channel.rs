//! Interfaces to a live session (a console, a socket): attached in order, each fed by its own task, and
//! unable to fail or stall the run.
//!
//! A channel that returns an error, panics, or takes longer than the limit for one call is detached: it gets
//! no more events, and `channel:error` says why. One that is only slow misses events, and `channel:error`
//! says how many. Nothing about a channel's own faults is delivered to it, and a fault in the delivery of a
//! `channel:error` makes no other, so that two broken channels do not feed each other.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use inspan_protocol::{BoxError, Envelope, Event};
use tokio::{sync::watch, task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::hub::{BoundedSubscription, Filter, Hub, Lagged};

/// An interface to a live session. An implementation writes its methods as `async fn`.
pub trait Channel: Send + Sync + 'static {
    /// Its name.
    fn name(&self) -> &str;

    /// Called once, before the first event. The hub takes commands, and events of the channel itself.
    fn on_start(&self, _hub: Hub) -> impl Future<Output = Result<(), BoxError>> + Send {
        async { Ok(()) }
    }

    /// Called with each event in order.
    fn on_event(&self, envelope: &Arc<Envelope>) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// Called once, after the last event.
    fn on_complete(&self) -> impl Future<Output = Result<(), BoxError>> + Send {
        async { Ok(()) }
    }
}

/// The erased form of a [`Channel`].
pub trait DynChannel: Send + Sync {
    /// As [`Channel::name`].
    fn name(&self) -> &str;
    /// As [`Channel::on_start`].
    fn on_start(&self, hub: Hub) -> BoxFuture<'_, Result<(), BoxError>>;
    /// As [`Channel::on_event`].
    fn on_event<'a>(&'a self, envelope: &'a Arc<Envelope>) -> BoxFuture<'a, Result<(), BoxError>>;
    /// As [`Channel::on_complete`].
    fn on_complete(&self) -> BoxFuture<'_, Result<(), BoxError>>;
}

impl<C: Channel> DynChannel for C {
    fn name(&self) -> &str {
        Channel::name(self)
    }

    fn on_start(&self, hub: Hub) -> BoxFuture<'_, Result<(), BoxError>> {
        Channel::on_start(self, hub).boxed()
    }

    fn on_event<'a>(&'a self, envelope: &'a Arc<Envelope>) -> BoxFuture<'a, Result<(), BoxError>> {
        Channel::on_event(self, envelope).boxed()
    }

    fn on_complete(&self) -> BoxFuture<'_, Result<(), BoxError>> {
        Channel::on_complete(self).boxed()
    }
}

/// How far a channel may fall behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelLimits {
    /// How many events may wait for it; of more, the oldest are dropped.
    pub queue: usize,
    /// How long one call may take, and how long all that waits at the end.
    pub call: Duration,
}

impl Default for ChannelLimits {
    fn default() -> Self {
        Self { queue: 65_536, call: Duration::from_secs(10) }
    }
}

/// The channels of a session. Dropped without [`Channels::finish`], they are detached at once.
pub struct Channels {
    hub: Hub,
    limits: ChannelLimits,
    attached: Vec<Attached>,
}

struct Attached {
    /// Tells the task that no more events come.
    end: CancellationToken,
    task: JoinHandle<()>,
    /// The `seq` of the newest event that the channel has taken.
    taken: watch::Receiver<u64>,
}

impl Channels {
    /// No channels yet.
    pub fn new(hub: Hub, limits: ChannelLimits) -> Self {
        Self { hub, limits, attached: Vec::new() }
    }

    /// Makes all channels known, then starts them one after the other in the given order.
    pub async fn start(&mut self, channels: impl IntoIterator<Item = Arc<dyn DynChannel>>) {
        let feeds: Vec<_> = channels.into_iter().map(|channel| self.register(channel)).collect();
        for feed in feeds {
            self.begin(feed).await;
        }
    }

    /// Makes one more channel known and starts it. It sees the events from here on.
    pub async fn attach(&mut self, channel: Arc<dyn DynChannel>) {
        let feed = self.register(channel);
        self.begin(feed).await;
    }

    fn register(&self, channel: Arc<dyn DynChannel>) -> Feed {
        let events = self.hub.subscribe_bounded(Filter::all(), self.limits.queue);
        self.hub.emit(Event::ChannelRegistered { name: channel.name().to_owned() });
        let taken = watch::Sender::new(0);
        Feed { hub: self.hub.clone(), limit: self.limits.call, channel, events, taken, missed: 0 }
    }

    async fn begin(&mut self, feed: Feed) {
        let hub = feed.hub.clone();
        if let Err(error) = feed.call(|| feed.channel.on_start(hub)).await {
            feed.fail(error);
            return;
        }
        feed.hub.emit(Event::ChannelStarted { name: feed.channel.name().to_owned() });
        let (end, taken) = (CancellationToken::new(), feed.taken.subscribe());
        let task = tokio::spawn(feed.run(end.clone()));
        self.attached.push(Attached { end, task, taken });
    }

    /// Waits until every channel has taken the events so far, or has been detached; no longer than one call may take.
    pub async fn caught_up(&mut self) {
        let newest = self.hub.last_seq();
        let all = async {
            for attached in &mut self.attached {
                // One that was detached takes nothing more.
                drop(attached.taken.wait_for(|taken| *taken >= newest).await);
            }
        };
        // One that is slower is not waited for.
        drop(timeout(self.limits.call, all).await);
    }

    /// Delivers what still waits, completes every channel and detaches it. Takes a little longer than the
    /// limit at most, whatever the channels do.
    pub async fn finish(mut self) {
        for attached in &self.attached {
            attached.end.cancel();
        }
        for attached in &mut self.attached {
            // The task has limits itself; a join error would be a panic that it already caught.
            drop((&mut attached.task).await);
        }
    }
}

impl Drop for Channels {
    fn drop(&mut self) {
        for attached in &self.attached {
            attached.task.abort();
        }
    }
}

struct Feed {
    hub: Hub,
    limit: Duration,
    channel: Arc<dyn DynChannel>,
    events: BoundedSubscription,
    taken: watch::Sender<u64>,
    missed: u64,
}

enum ChannelFault {
    /// The channel failed: it is detached.
    Failed(String),
    /// It failed on another's `channel:error`: it is detached without another such event.
    FailedSilently(String),
}

impl Feed {
    async fn run(mut self, end: CancellationToken) {
        let fed = self.feed(&end).await;
        let done = match fed {
            Ok(()) => self.call(|| self.channel.on_complete()).await.map_err(ChannelFault::Failed),
            Err(fault) => Err(fault),
        };
        match done {
            Ok(()) => {
                let name = self.channel.name();
                self.hub.emit(Event::ChannelStopped { name: name.to_owned() });
                self.hub.emit(Event::ChannelUnregistered { name: name.to_owned() });
            }
            Err(ChannelFault::Failed(error)) => self.fail(error),
            Err(ChannelFault::FailedSilently(error)) => {
                let name = self.channel.name();
                tracing::warn!(channel = name, error, "a channel failed on an error of another");
                self.hub.emit(Event::ChannelUnregistered { name: name.to_owned() });
            }
        }
    }

    async fn feed(&mut self, end: &CancellationToken) -> Result<(), ChannelFault> {
        while !end.is_cancelled() {
            let next = match self.events.try_next() {
                Some(item) => Some(item),
                None => {
                    self.tell_missed();
                    tokio::select! {
                        biased;
                        next = self.events.next() => next,
                        () = end.cancelled() => break,
                    }
                }
            };
            let Some(item) = next else { return Ok(()) };
            if !self.may_show(&item, end).await {
                return Ok(());
            }
            self.deliver(item).await?;
        }
        let limit = self.limit;
        let rest = async {
            while let Some(item) = self.events.try_next() {
                if !self.may_show(&item, end).await {
                    break;
                }
                self.deliver(item).await?;
            }
            Ok(())
        };
        match timeout(limit, rest).await {
            Ok(fed) => fed?,
            Err(_) => {
                return Err(ChannelFault::Failed(format!(
                    "it did not take the last events within {limit:?}"
                )));
            }
        }
        self.tell_missed();
        Ok(())
    }

    /// Waits until the event may be shown. At the end, what is not stored by then is not shown, nor what follows it.
    async fn may_show(&self, item: &Result<Arc<Envelope>, Lagged>, end: &CancellationToken) -> bool {
        let Ok(envelope) = item else { return true };
        tokio::select! {
            biased;
            () = self.hub.until_shown(envelope) => true,
            () = end.cancelled() => false,
        }
    }

    async fn deliver(&mut self, item: Result<Arc<Envelope>, Lagged>) -> Result<(), ChannelFault> {
        let envelope = match item {
            Ok(envelope) => envelope,
            Err(lagged) => {
                self.missed += lagged.missed;
                return Ok(());
            }
        };
        let taken = match &envelope.event {
            Event::ChannelFailed { name, .. } if name == self.channel.name() => Ok(()),
            Event::ChannelFailed { .. } => {
                self.call(|| self.channel.on_event(&envelope)).await.map_err(ChannelFault::FailedSilently)
            }
            _ => self.call(|| self.channel.on_event(&envelope)).await.map_err(ChannelFault::Failed),
        };
        self.taken.send_replace(envelope.seq);
        taken
    }

    /// Reported only once the channel has caught up: reported earlier, it would add to what the channel misses.
    fn tell_missed(&mut self) {
        let missed = std::mem::take(&mut self.missed);
        if missed > 0 {
            self.report(Lagged { missed }.to_string());
        }
    }

    async fn call<'a>(
        &'a self,
        call: impl FnOnce() -> BoxFuture<'a, Result<(), BoxError>>,
    ) -> Result<(), String> {
        let call = AssertUnwindSafe(async { call().await });
        match timeout(self.limit, call.catch_unwind()).await {
            Ok(Ok(result)) => result.map_err(|error| error.to_string()),
            Ok(Err(_)) => Err("it panicked".to_owned()),
            Err(_) => Err(format!("it did not answer within {:?}", self.limit)),
        }
    }

    fn report(&self, error: String) {
        self.hub.emit(Event::ChannelFailed { name: self.channel.name().to_owned(), error });
    }

    fn fail(&self, error: String) {
        self.report(error);
        self.hub.emit(Event::ChannelUnregistered { name: self.channel.name().to_owned() });
    }
}

#[cfg(test)]
mod tests;
