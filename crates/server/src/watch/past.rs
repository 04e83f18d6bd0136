//! Folds of earlier moments, copied while a question about the past is answered. Their number is bounded, and they
//! are evenly spaced: when there is one too many, every second one is dropped and the distance doubles. A long log
//! begins with the distance that it needs, because a copy of many nodes takes milliseconds. The fold of the last
//! question is cached too, because the next is often right after it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use inspan_view::PageFold;

/// Copies at once.
const COPIES: usize = 16;
/// Events between two copies, to begin with.
const DISTANCE: u64 = 512;

pub(super) struct Past(Mutex<Copies>);

struct Copies {
    /// In the order of their events; the first is from before all events.
    folds: Vec<Arc<PageFold>>,
    distance: u64,
    /// The fold of the last question.
    cursor: Option<PageFold>,
}

impl Past {
    /// `fold` has no event yet; `expected` is how many are to come at least.
    pub(super) fn new(fold: PageFold, expected: u64) -> Self {
        let distance = DISTANCE.max(expected.div_ceil(COPIES as u64));
        Self(Mutex::new(Copies { folds: vec![Arc::new(fold)], distance, cursor: None }))
    }

    fn lock(&self) -> MutexGuard<'_, Copies> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the fold after each event, and copies it if it is time.
    pub(super) fn note(&self, fold: &PageFold) {
        let mut copies = self.lock();
        let last = copies.folds.last().map_or(0, |last| last.seq());
        if fold.seq() < last + copies.distance {
            return;
        }
        copies.folds.push(Arc::new(fold.clone()));
        if copies.folds.len() > COPIES {
            let mut place = 0;
            copies.folds.retain(|_| {
                place += 1;
                place % 2 == 1
            });
            copies.distance *= 2;
        }
    }

    /// The newest copy that has no event after this one.
    pub(super) fn nearest(&self, seq: u64) -> PageFold {
        let mut copies = self.lock();
        let place = copies.folds.partition_point(|fold| fold.seq() <= seq).saturating_sub(1);
        let copy = Arc::clone(&copies.folds[place]);
        match copies.cursor.take_if(|cursor| cursor.seq() <= seq && cursor.seq() >= copy.seq()) {
            Some(cursor) => cursor,
            None => {
                drop(copies);
                PageFold::clone(&copy)
            }
        }
    }

    /// Keeps the fold of a question for the next.
    pub(super) fn keep(&self, fold: PageFold) {
        self.lock().cursor = Some(fold);
    }
}
