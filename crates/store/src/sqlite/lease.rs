//! A lease on its way to who asked for it: if nobody waits for it any more, it is given back.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

use super::{
    fault::Fault,
    session,
    writer::{Durability, Transaction, Writer},
};
use crate::{Lease, StoreError};

/// Runs a request that takes a lease. If this is dropped before the caller has the lease, it is given back.
pub(super) async fn take<F>(writer: &Writer, mut take: F) -> Result<Lease, StoreError>
where
    F: FnMut(&mut Transaction<'_>) -> Result<Lease, Fault> + Send + 'static,
{
    let taken = Arc::new(Mutex::new(None));
    let slot = taken.clone();
    let work = move |transaction: &mut Transaction<'_>| {
        let lease = take(transaction);
        *slot.lock().unwrap_or_else(PoisonError::into_inner) = lease.as_ref().ok().cloned();
        lease
    };
    let answered = writer.send(Durability::Synced, 1, work).await?;
    let mut request = Request { writer, taken, answered: Some(answered) };
    let answer = match &mut request.answered {
        Some(answered) => answered.await.ok(),
        None => None,
    };
    request.answered = None;
    answer.ok_or_else(|| writer.gone())?
}

/// Releases a lease, unless another owner has taken it.
pub(super) fn release(transaction: &mut Transaction<'_>, lease: &Lease) -> Result<(), Fault> {
    let session = session::find(transaction.connection, &lease.session)?;
    match session.fence(lease) {
        Ok(()) => session.clear_owner(transaction.connection),
        Err(_) => Ok(()),
    }
}

/// A request that the writer has.
struct Request<'a> {
    writer: &'a Writer,
    /// What its work took last; another try of the transaction, or its failure, may have undone that.
    taken: Arc<Mutex<Option<Lease>>>,
    /// Its answer; none once the caller has it.
    answered: Option<oneshot::Receiver<Result<Lease, StoreError>>>,
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        let Some(mut answered) = self.answered.take() else { return };
        let taken = self.taken.clone();
        self.writer.tell(move |transaction| {
            let mut taken = taken.lock().unwrap_or_else(PoisonError::into_inner);
            // Without an answer the request is part of this transaction.
            if let Ok(answer) = answered.try_recv() {
                *taken = answer.ok();
            }
            taken.as_ref().map_or(Ok(()), |lease| release(transaction, lease))
        });
    }
}
