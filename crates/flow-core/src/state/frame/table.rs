//! The open frames of a run, by their numbers.

use std::ops::{Index, IndexMut};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::FrameState;
use crate::graph::FrameIx;

/// All frames of a run that are open, by their numbers.
#[derive(Clone, Debug, PartialEq, Default)]
pub(crate) struct FrameTable(Vec<Option<Box<FrameState>>>);

impl FrameTable {
    /// The number of the next frame.
    pub(in crate::state) fn next(&self) -> FrameIx {
        FrameIx(self.0.len() as u32)
    }

    pub(in crate::state) fn push(&mut self, frame: FrameState) {
        self.0.push(Some(Box::new(frame)));
    }

    pub(in crate::state) fn close(&mut self, frame: FrameIx) -> Option<Box<FrameState>> {
        self.0.get_mut(frame.0 as usize)?.take()
    }

    pub(crate) fn get(&self, frame: FrameIx) -> Option<&FrameState> {
        self.0.get(frame.0 as usize)?.as_deref()
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &FrameState> {
        self.0.iter().flatten().map(|frame| &**frame)
    }

    pub(in crate::state) fn iter_mut(&mut self) -> impl Iterator<Item = &mut FrameState> {
        self.0.iter_mut().flatten().map(|frame| &mut **frame)
    }
}

impl Index<FrameIx> for FrameTable {
    type Output = FrameState;

    fn index(&self, frame: FrameIx) -> &FrameState {
        self.0[frame.0 as usize].as_deref().expect("tasks are forgotten when their frame is closed")
    }
}

impl IndexMut<FrameIx> for FrameTable {
    fn index_mut(&mut self, frame: FrameIx) -> &mut FrameState {
        self.0[frame.0 as usize].as_deref_mut().expect("tasks are forgotten when their frame is closed")
    }
}

/// Written as how many frames there were, and those that are open.
impl Serialize for FrameTable {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (self.0.len(), self.iter().collect::<Vec<_>>()).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for FrameTable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (count, open) = <(usize, Vec<Box<FrameState>>)>::deserialize(deserializer)?;
        let mut table = Self(Vec::new());
        table.0.resize_with(count, || None);
        for frame in open {
            let place = table.0.get_mut(frame.id.0 as usize);
            *place.ok_or_else(|| serde::de::Error::custom("a frame has a number that is too large"))? =
                Some(frame);
        }
        Ok(table)
    }
}
