//! The places of nodes and edges in a compiled flow, and lists that are indexed by them.

use std::{
    marker::PhantomData,
    ops::{Deref, DerefMut, Index, IndexMut},
};

use serde::{Deserialize, Serialize};

/// The place of a node in [`Graph::nodes`](crate::Graph::nodes).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeIx(pub u32);

/// The place of an edge in [`Graph::edges`](crate::Graph::edges).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EdgeIx(pub u32);

/// Something that counts up from 0.
pub(crate) trait Place: Copy {
    /// Its number.
    fn at(self) -> usize;
    /// The one of this number.
    fn of(at: usize) -> Self;
}

impl Place for NodeIx {
    fn at(self) -> usize {
        self.0 as usize
    }

    fn of(at: usize) -> Self {
        Self(at as u32)
    }
}

impl Place for EdgeIx {
    fn at(self) -> usize {
        self.0 as usize
    }

    fn of(at: usize) -> Self {
        Self(at as u32)
    }
}

/// One value for each node, or for each edge.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct IndexVec<I, T> {
    values: Vec<T>,
    #[serde(skip)]
    of: PhantomData<I>,
}

impl<I: Place, T> IndexVec<I, T> {
    /// The values with their places.
    pub(crate) fn entries(&self) -> impl DoubleEndedIterator<Item = (I, &T)> + ExactSizeIterator {
        self.values.iter().enumerate().map(|(at, value)| (I::of(at), value))
    }

    /// All places.
    pub(crate) fn places(&self) -> impl DoubleEndedIterator<Item = I> + use<I, T> {
        (0..self.values.len()).map(I::of)
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

impl<I: Place, T> Index<I> for IndexVec<I, T> {
    type Output = T;

    fn index(&self, place: I) -> &T {
        &self.values[place.at()]
    }
}

impl<I: Place, T> IndexMut<I> for IndexVec<I, T> {
    fn index_mut(&mut self, place: I) -> &mut T {
        &mut self.values[place.at()]
    }
}
