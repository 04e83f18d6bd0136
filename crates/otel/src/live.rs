//! Sends spans while their session runs, from a bounded queue: a collector that is slow or down never slows the session,
//! and is reported once.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::mpsc::{self, Receiver, Sender, error::TrySendError},
    task::JoinHandle,
    time::{Instant, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;

use crate::{
    exporter::{Exporter, MOST_SPANS},
    span::Span,
};

/// How long a request that is cut may take to say why it had not succeeded.
const CUT: Duration = Duration::from_millis(200);

/// The bounds of a live export.
#[derive(Clone, Copy, Debug)]
pub struct LiveLimits {
    /// How many spans may wait to be sent; of more, the newest are lost.
    pub queue: usize,
    /// How long a span waits for others to be sent with it.
    pub gather: Duration,
    /// How long nothing is sent after a collector could not be reached.
    pub rest: Duration,
}

impl Default for LiveLimits {
    fn default() -> Self {
        Self { queue: 8192, gather: Duration::from_secs(1), rest: Duration::from_secs(30) }
    }
}

/// A function that shows a line to a person.
type Warn = Arc<dyn Fn(&str) + Send + Sync>;

/// A live export. Dropped without [`LiveExport::finish`], what waits is lost.
pub struct LiveExport {
    queue: Sender<Span>,
    lost: Arc<AtomicU64>,
    cancel: CancellationToken,
    task: JoinHandle<()>,
}

impl LiveExport {
    /// Begins to send to a collector; `warn` is called once at most.
    pub fn begin(exporter: Exporter, limits: LiveLimits, warn: Warn) -> Self {
        let (queue, spans) = mpsc::channel(limits.queue.max(1));
        let (lost, cancel) = (Arc::new(AtomicU64::new(0)), CancellationToken::new());
        let sending = Sending {
            exporter,
            limits,
            warn: Some(warn),
            lost: Arc::clone(&lost),
            cancel: cancel.clone(),
            rests_until: None,
        };
        Self { queue, lost, cancel, task: tokio::spawn(sending.run(spans)) }
    }

    /// Takes spans to be sent. Never waits: what finds no room is lost.
    pub fn take(&self, spans: Vec<Span>) {
        for span in spans {
            if let Err(TrySendError::Full(_) | TrySendError::Closed(_)) = self.queue.try_send(span) {
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Takes spans to be sent, and waits for room.
    pub async fn take_all(&self, spans: Vec<Span>) {
        for span in spans {
            if self.queue.send(span).await.is_err() {
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Sends what still waits, for no longer than `limit`; gives how many spans were lost in all.
    pub async fn finish(self, limit: Duration) -> u64 {
        let Self { queue, lost, cancel, mut task } = self;
        let waiting = queue.max_capacity() - queue.capacity();
        drop(queue);
        if timeout(limit, &mut task).await.is_err() {
            // What is being sent is reported as lost, and all that waits is lost with it.
            cancel.cancel();
            if timeout(CUT, &mut task).await.is_err() {
                lost.fetch_add(waiting as u64, Ordering::Relaxed);
                task.abort();
            }
        }
        lost.load(Ordering::Relaxed)
    }
}

struct Sending {
    exporter: Exporter,
    limits: LiveLimits,
    /// Gone once it was called.
    warn: Option<Warn>,
    lost: Arc<AtomicU64>,
    cancel: CancellationToken,
    rests_until: Option<Instant>,
}

impl Sending {
    async fn run(mut self, mut spans: Receiver<Span>) {
        while let Some(first) = spans.recv().await {
            let batch = self.gather(first, &mut spans).await;
            self.send(&batch).await;
        }
        let lost = self.lost.load(Ordering::Relaxed);
        if lost > 0 {
            let url = self.exporter.url();
            self.warn(&format!("the collector at {url} is too slow: no room was left for {lost} spans"));
        }
    }

    /// A span and those that come soon after it.
    async fn gather(&self, first: Span, spans: &mut Receiver<Span>) -> Vec<Span> {
        let mut batch = vec![first];
        let until = Instant::now() + self.limits.gather;
        while batch.len() < MOST_SPANS {
            match timeout_at(until, spans.recv()).await {
                Ok(Some(span)) => batch.push(span),
                Ok(None) | Err(_) => break,
            }
        }
        batch
    }

    async fn send(&mut self, batch: &[Span]) {
        if self.rests_until.is_some_and(|until| Instant::now() < until) {
            self.lose(batch.len());
            return;
        }
        self.rests_until = None;
        match self.exporter.send(batch, &self.cancel).await {
            Ok(sent) if sent.rejected > 0 => {
                let said = sent.message.map(|message| format!(": {message}")).unwrap_or_default();
                self.lose(sent.rejected);
                self.warn(&format!("the collector at {} rejected spans{said}", self.exporter.url()));
            }
            Ok(_) => {}
            Err(error) => {
                self.lose(batch.len());
                self.rests_until = Some(Instant::now() + self.limits.rest);
                self.warn(&error.to_string());
            }
        }
    }

    fn lose(&self, spans: usize) {
        self.lost.fetch_add(spans as u64, Ordering::Relaxed);
    }

    fn warn(&mut self, what: &str) {
        if let Some(warn) = self.warn.take() {
            warn(what);
        }
    }
}
