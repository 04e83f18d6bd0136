//! What else is derived from the events of a session on request: the timeline, the cost, the
//! questions, the streams of nodes. Each is cached, and reads only the events since its last
//! request.

use std::collections::{BTreeMap, BTreeSet};

use inspan_flow::{Forecast, NotRun, Run, forecast};
use inspan_protocol::{Envelope, NodePath, Prompt, Redactor};
use inspan_sessions::{SessionError, history};
use inspan_view::{
    Cost, CostFold, DisplayStatus, QuestionFold, Report, StreamFold, StreamPage, StreamSelect, Timeline,
    TimelineFold, label,
};
use tokio::sync::{Mutex, OnceCell};

use super::Watch;

/// How many streams are cached at once.
const STREAMS: usize = 8;

pub(super) struct Derived {
    timeline: Mutex<FoldedUntil<TimelineFold>>,
    cost: Mutex<FoldedUntil<CostFold>>,
    /// The newest last.
    streams: Mutex<Vec<(NodePath, FoldedUntil<NodeStream>)>>,
    forecast: OnceCell<Option<Forecast>>,
    first: u64,
}

/// A fold with the newest event that is in it.
#[derive(Clone)]
struct FoldedUntil<F> {
    fold: F,
    seq: u64,
}

/// The stream of a node, with the run that knows the input of its attempts.
#[derive(Clone)]
struct NodeStream {
    run: Run,
    stream: StreamFold,
    node: NodePath,
}

impl NodeStream {
    fn apply(&mut self, envelope: &Envelope) {
        self.run.apply(envelope);
        let path = envelope.context.task.as_ref().filter(|_| self.stream.begins(envelope));
        let input = path.and_then(|path| self.run.input_of(path));
        self.stream.apply(envelope, input);
    }
}

/// The streams of many nodes.
struct NodeStreams {
    run: Run,
    streams: BTreeMap<String, StreamFold>,
}

impl NodeStreams {
    fn apply(&mut self, envelope: &Envelope) {
        self.run.apply(envelope);
        let path = match (&envelope.event, &envelope.context.task) {
            (event, Some(path)) if !StreamFold::is_for_many(event) => path,
            _ => return self.streams.values_mut().for_each(|stream| stream.apply(envelope, None)),
        };
        for name in BTreeSet::from([path.as_str(), label(path)]) {
            if let Some(stream) = self.streams.get_mut(name) {
                let input = stream.begins(envelope).then(|| self.run.input_of(path)).flatten();
                stream.apply(envelope, input);
            }
        }
    }
}

impl Derived {
    /// `first` is the first event of the session in the store.
    pub(super) fn new(first: u64) -> Self {
        let seq = first.saturating_sub(1);
        Self {
            timeline: Mutex::new(FoldedUntil { fold: TimelineFold::default(), seq }),
            cost: Mutex::new(FoldedUntil { fold: CostFold::default(), seq }),
            streams: Mutex::default(),
            forecast: OnceCell::new(),
            first: seq,
        }
    }

    /// A fold without events.
    fn fresh<F>(&self, fold: F) -> FoldedUntil<F> {
        FoldedUntil { fold, seq: self.first }
    }
}

impl Watch {
    /// Takes into a fold what is missing up to an event.
    async fn bring<F: Send>(
        &self,
        kept: &mut FoldedUntil<F>,
        until: u64,
        apply: fn(&mut F, &Envelope),
    ) -> Result<(), SessionError> {
        let fold = &mut kept.fold;
        let mut seq = kept.seq;
        let mut take = |envelope: &Envelope| {
            apply(fold, envelope);
            seq = envelope.seq;
        };
        let result = self.events(kept.seq, until, &mut take).await;
        kept.seq = seq;
        result
    }

    /// The timeline at an event, or now.
    pub(crate) async fn timeline(
        &self,
        at: Option<u64>,
        within: &str,
        most: usize,
    ) -> Result<Timeline, SessionError> {
        let until = at.unwrap_or(u64::MAX).min(self.seq());
        let (status, open) = self.status_at(until);
        let read = |fold: &TimelineFold| fold.timeline(within, most).when_idle(status, &open);
        self.folded(&self.derived.timeline, until, TimelineFold::apply, read).await
    }

    /// The status of the session at an event, and its open questions now. A process ran it while events followed.
    fn status_at(&self, seq: u64) -> (DisplayStatus, Vec<Prompt>) {
        let now = self.lock();
        let entry = now.fold.entry(&now.session);
        match seq < now.fold.seq() {
            true => (DisplayStatus::Running, Vec::new()),
            false => (DisplayStatus::of(&entry), entry.digest.prompts),
        }
    }

    /// What a fold reads at an event. One that is kept is of use unless it is already beyond that event.
    async fn folded<F: Default + Send, T>(
        &self,
        kept: &Mutex<FoldedUntil<F>>,
        until: u64,
        apply: fn(&mut F, &Envelope),
        read: impl Fn(&F) -> T,
    ) -> Result<T, SessionError> {
        let mut kept = kept.lock().await;
        if kept.seq <= until {
            self.bring(&mut kept, until, apply).await?;
            return Ok(read(&kept.fold));
        }
        drop(kept);
        let mut past = self.derived.fresh(F::default());
        self.bring(&mut past, until, apply).await?;
        Ok(read(&past.fold))
    }

    /// The cost at an event, or now.
    pub(crate) async fn cost(&self, at: Option<u64>) -> Result<Cost, SessionError> {
        let until = at.unwrap_or(u64::MAX).min(self.seq());
        let fold = self.folded(&self.derived.cost, until, CostFold::apply, CostFold::clone).await?;
        let forecast = self.forecast().await;
        self.read(at, |page, session| {
            let is_cut = page.entry(session).has_cut_turns();
            fold.cost(&self.flow.graph, page.view().run().state(), forecast, is_cut)
        })
        .await
    }

    /// What is expected from earlier sessions of the flow; `None` without any.
    async fn forecast(&self) -> Option<&Forecast> {
        let work = || async {
            let graph = &self.flow.graph;
            let history = history(&**self.sessions.store(), graph, Some(&self.id)).await.unwrap_or_default();
            let input = self.record();
            (history.sessions > 0).then(|| forecast(graph, &input.input, &history, &NotRun::default()))
        };
        self.derived.forecast.get_or_init(work).await.as_ref()
    }

    /// Items of the stream of a node at an event, or now.
    pub(crate) async fn stream(
        &self,
        at: Option<u64>,
        node: &NodePath,
        select: StreamSelect,
    ) -> Result<StreamPage, SessionError> {
        let until = at.unwrap_or(u64::MAX).min(self.seq());
        let mut streams = self.derived.streams.lock().await;
        let place = streams.iter().position(|(path, kept)| path == node && kept.seq <= until);
        let mut kept = match place {
            Some(place) => streams.remove(place).1,
            None => {
                let record = self.record();
                let run = record.run(&self.flow.graph);
                self.derived.fresh(NodeStream { run, stream: StreamFold::new(node), node: node.clone() })
            }
        };
        // Another question need not wait until this one's log is read.
        drop(streams);
        self.bring(&mut kept, until, NodeStream::apply).await?;
        let page = kept.fold.stream.page(select);
        let mut streams = self.derived.streams.lock().await;
        streams.retain(|(path, other)| path != node || other.seq > kept.seq);
        if !streams.iter().any(|(path, _)| path == node) {
            streams.push((kept.fold.node.clone(), kept));
        }
        let many = streams.len().saturating_sub(STREAMS);
        streams.drain(..many);
        Ok(page)
    }

    /// The newest items of many nodes, from one reading of the log; `most` of each.
    pub(crate) async fn streams<'a>(
        &self,
        nodes: impl Iterator<Item = &'a str> + Send,
        most: usize,
    ) -> Result<BTreeMap<String, StreamPage>, SessionError> {
        let until = self.seq();
        let record = self.record();
        let streams = nodes.map(|node| (node.to_owned(), StreamFold::new(&NodePath::new(node)))).collect();
        let mut kept = self.derived.fresh(NodeStreams { run: record.run(&self.flow.graph), streams });
        self.bring(&mut kept, until, NodeStreams::apply).await?;
        let page = |stream: StreamFold| {
            let select = StreamSelect { limit: most, ..StreamSelect::default() };
            StreamPage { seq: until, ..stream.page(select) }
        };
        Ok(kept.fold.streams.into_iter().map(|(node, stream)| (node, page(stream))).collect())
    }

    /// The report of the session as it is now.
    pub(crate) async fn report(&self, redactor: &Redactor) -> Result<Report, SessionError> {
        let until = self.seq();
        let mut questions = self.derived.fresh(QuestionFold::default());
        self.bring(&mut questions, until, QuestionFold::apply).await?;
        let cost = self.cost(Some(until)).await?;
        self.read(Some(until), |fold, session| Report::of(fold, session, &cost, &questions.fold, redactor))
            .await
    }
}
