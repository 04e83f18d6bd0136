//! Amounts that are not exactly known, and how to calculate with them.

use std::{
    iter::Sum,
    ops::{Add, Mul},
};

use schemars::JsonSchema;
use serde::Serialize;

/// An amount that is not exactly known.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Estimate {
    /// The least.
    pub low: f64,
    /// What is to be expected, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<f64>,
    /// The most, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high: Option<f64>,
}

impl Estimate {
    pub(super) const ZERO: Self = Self::exactly(0.0);
    pub(super) const ONE: Self = Self::exactly(1.0);
    pub(super) const UNKNOWN: Self = Self { low: 0.0, expected: None, high: None };

    pub(super) const fn exactly(amount: f64) -> Self {
        Self { low: amount, expected: Some(amount), high: Some(amount) }
    }

    /// The least, the mean and the most of some amounts.
    pub(super) fn of(amounts: impl Iterator<Item = f64> + Clone) -> Option<Self> {
        let count = amounts.clone().count();
        (count > 0).then(|| Self {
            low: amounts.clone().fold(f64::INFINITY, f64::min),
            expected: Some(amounts.clone().sum::<f64>() / count as f64),
            high: Some(amounts.fold(0.0, f64::max)),
        })
    }

    /// Whether it is exactly known to be nothing.
    pub(super) fn is_zero(&self) -> bool {
        self.high == Some(0.0)
    }

    pub(super) fn each(self, f: impl Fn(f64) -> f64) -> Self {
        Self { low: f(self.low), expected: self.expected.map(&f), high: self.high.map(&f) }
    }

    pub(super) fn with(self, other: Self, f: impl Fn(f64, f64) -> f64) -> Self {
        let both = |one: Option<f64>, other: Option<f64>| one.zip(other).map(|(one, other)| f(one, other));
        Self {
            low: f(self.low, other.low),
            expected: both(self.expected, other.expected),
            high: both(self.high, other.high),
        }
    }
}

impl Add for Estimate {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        self.with(other, |one, other| one + other)
    }
}

impl Mul for Estimate {
    type Output = Self;

    fn mul(self, other: Self) -> Self {
        // Nothing of an unknown amount is nothing.
        match self.is_zero() || other.is_zero() {
            true => Self::ZERO,
            false => self.with(other, |one, other| one * other),
        }
    }
}

impl Sum for Estimate {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::ZERO, Add::add)
    }
}
