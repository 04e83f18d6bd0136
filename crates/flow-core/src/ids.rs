//! The positions of nodes and edges in a compiled flow and in a run, and lists that are indexed by them.

use std::{
    marker::PhantomData,
    ops::{Deref, DerefMut, Index, IndexMut},
};

use serde::{Deserialize, Serialize};

/// The position of a body in [`Graph::bodies`](crate::Graph::bodies).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BodyIx(pub u32);

/// A frame of a run, in the order in which frames began; the flow itself is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FrameIx(pub u32);

impl FrameIx {
    /// The frame of the flow's own nodes.
    pub const FLOW: Self = Self(0);
}

/// A node in one frame of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TaskRef {
    /// The frame.
    pub frame: FrameIx,
    /// The node, in the body that the frame runs.
    pub node: NodeIx,
}

impl TaskRef {
    /// One of the flow's own nodes.
    pub fn of_flow(node: NodeIx) -> Self {
        Self { frame: FrameIx::FLOW, node }
    }
}

/// The position of a node in [`Body::nodes`](crate::Body::nodes).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeIx(pub u32);

/// The position of an edge in [`Body::edges`](crate::Body::edges).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EdgeIx(pub u32);

/// The nodes, each after those that lead to it. `waits` says how many do so for each; nodes in a cycle are left out.
pub(crate) fn in_order<I: IntoIterator<Item = NodeIx>>(
    mut waits: Vec<usize>,
    targets: impl Fn(NodeIx) -> I,
) -> Vec<NodeIx> {
    let mut order: Vec<NodeIx> =
        (0..).map(NodeIx).zip(&waits).filter(|(_, waits)| **waits == 0).map(|(ix, _)| ix).collect();
    let mut next = 0;
    while let Some(&node) = order.get(next) {
        next += 1;
        for to in targets(node) {
            waits[to.0 as usize] -= 1;
            if waits[to.0 as usize] == 0 {
                order.push(to);
            }
        }
    }
    order
}

/// Something that counts up from 0.
pub(crate) trait Position: Copy {
    /// Its number.
    fn at(self) -> usize;
    /// The one of this number.
    fn of(at: usize) -> Self;
}

impl Position for NodeIx {
    fn at(self) -> usize {
        self.0 as usize
    }

    fn of(at: usize) -> Self {
        Self(at as u32)
    }
}

impl Position for EdgeIx {
    fn at(self) -> usize {
        self.0 as usize
    }

    fn of(at: usize) -> Self {
        Self(at as u32)
    }
}

/// One value for each node, or for each edge.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct IndexVec<I, T> {
    values: Vec<T>,
    #[serde(skip)]
    of: PhantomData<I>,
}

impl<I: Position, T> IndexVec<I, T> {
    /// The values with their places.
    pub(crate) fn entries(&self) -> impl DoubleEndedIterator<Item = (I, &T)> + ExactSizeIterator {
        self.values.iter().enumerate().map(|(at, value)| (I::of(at), value))
    }
}

impl<I, T> FromIterator<T> for IndexVec<I, T> {
    fn from_iter<V: IntoIterator<Item = T>>(values: V) -> Self {
        Self { values: values.into_iter().collect(), of: PhantomData }
    }
}

impl<I, T> Deref for IndexVec<I, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.values
    }
}

impl<I, T> DerefMut for IndexVec<I, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.values
    }
}

impl<I: Position, T> Index<I> for IndexVec<I, T> {
    type Output = T;

    fn index(&self, place: I) -> &T {
        &self.values[place.at()]
    }
}

impl<I: Position, T> IndexMut<I> for IndexVec<I, T> {
    fn index_mut(&mut self, place: I) -> &mut T {
        &mut self.values[place.at()]
    }
}
