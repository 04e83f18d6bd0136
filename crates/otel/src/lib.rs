//! OpenTelemetry traces, derived from the events of a session: no instrumentation, no clock, so a session that crashed,
//! was resumed or ended last year gives the same trace as one that is watched.
//!
//! [`Trace`] folds events to [`Span`]s, [`Exporter`] sends spans over OTLP, [`LiveExport`] does so while a session runs,
//! and [`ExportSettings`] reads the variables that the OpenTelemetry specification names.

mod exporter;
mod fold;
mod live;
mod names;
mod settings;
mod span;
mod wire;

pub use exporter::{ExportError, ExportReceipt, Exporter, Patience};
pub use fold::{Trace, TraceSettings, Vendor};
pub use live::{LiveExport, LiveLimits};
pub use names::GENAI_CONVENTIONS;
pub use settings::{Content, ExportSettings, SettingsError};
pub use span::{Attributes, Link, Span, SpanEvent, SpanKind, SpanStatus};
