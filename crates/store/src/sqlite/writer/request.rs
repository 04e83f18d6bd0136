//! One request to the writer, and its answer.

use std::path::Path;

use tokio::sync::oneshot;

use super::Transaction;
use crate::{StoreError, sqlite::fault::Fault};

/// What the effect of a request survives from its answer on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::sqlite) enum Durability {
    /// The end of any process; after the next synced commit also a power cut.
    Written,
    /// A power cut too.
    Synced,
}

/// A request, whatever the type of its answer.
pub(super) trait Work: Send {
    /// What its effect must survive.
    fn durability(&self) -> Durability;
    /// How many events it writes.
    fn events(&self) -> usize;
    /// Does the work, and stores its result.
    fn run(&mut self, transaction: &mut Transaction<'_>) -> Result<(), Fault>;
    /// Its work was rolled back because of the request itself.
    fn refuse(&mut self, fault: Fault);
    /// Its work was rolled back because of the store.
    fn fail(&mut self, error: &StoreError);
    /// Sends the answer, if the caller still waits.
    fn answer(self: Box<Self>, store: &Path);
}

/// Work with the channel for its answer.
pub(super) struct WriteRequest<T, F> {
    durability: Durability,
    events: usize,
    work: F,
    done: Option<Result<T, Fault>>,
    answer: oneshot::Sender<Result<T, StoreError>>,
}

impl<T, F> WriteRequest<T, F> {
    pub(super) fn new(
        durability: Durability,
        events: usize,
        work: F,
        answer: oneshot::Sender<Result<T, StoreError>>,
    ) -> Self {
        Self { durability, events, work, done: None, answer }
    }
}

impl<T, F> Work for WriteRequest<T, F>
where
    T: Send,
    F: FnMut(&mut Transaction<'_>) -> Result<T, Fault> + Send,
{
    fn durability(&self) -> Durability {
        self.durability
    }

    fn events(&self) -> usize {
        self.events
    }

    fn run(&mut self, transaction: &mut Transaction<'_>) -> Result<(), Fault> {
        self.done = Some(Ok((self.work)(transaction)?));
        Ok(())
    }

    fn refuse(&mut self, fault: Fault) {
        self.done = Some(Err(fault));
    }

    fn fail(&mut self, error: &StoreError) {
        self.done = Some(Err(Fault::Refused(error.clone())));
    }

    fn answer(self: Box<Self>, store: &Path) {
        let nothing = || Err(Fault::Broken("its request was not carried out".to_owned()));
        let done = self.done.unwrap_or_else(nothing).map_err(|fault| fault.at(store));
        drop(self.answer.send(done));
    }
}
