//! The lease of a session, held for as long as anybody here works under it.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use futures::FutureExt;
use inspan_store::{Lease, RunStore, StoreError};
use tokio::{runtime::Handle, task};

/// A lease. Its writer and each running attempt share it; the last that is dropped releases it, so that no other owner
/// begins while something of this one still runs.
pub(super) struct HeldLease {
    pub(super) store: Arc<dyn RunStore>,
    pub(super) lease: Lease,
    is_released: AtomicBool,
}

impl HeldLease {
    pub(super) fn new(store: Arc<dyn RunStore>, lease: Lease) -> Arc<Self> {
        Arc::new(Self { store, lease, is_released: AtomicBool::new(false) })
    }

    pub(super) async fn release(&self) -> Result<(), StoreError> {
        self.store.release(&self.lease).await?;
        self.is_released.store(true, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for HeldLease {
    fn drop(&mut self) {
        if *self.is_released.get_mut() {
            return;
        }
        let (store, lease) = (self.store.clone(), self.lease.clone());
        // It is asked for here and now, whatever the budget of the task: who opens the session next finds it free.
        let mut release = task::unconstrained(async move { store.release(&lease).await }).boxed();
        if (&mut release).now_or_never().is_none()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(release);
        }
    }
}
