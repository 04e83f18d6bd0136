//! Spans as OTLP says them: protobuf types, and the bytes of a request.

use std::io::{self, Write};

use flate2::{Compression as Level, write::GzEncoder};
use inspan_protocol::Timestamp;
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{AnyValue, ArrayValue, InstrumentationScope, KeyValue, any_value::Value},
    resource::v1::Resource,
    trace::v1::{ResourceSpans, ScopeSpans, Span as WireSpan, Status, span, status::StatusCode},
};

use serde_json::Value as Attribute;

use crate::{
    names::{SCHEMA_URL, SCOPE},
    settings::Compression,
    span::{Attributes, Link, Span, SpanEvent, SpanKind, SpanStatus},
};

/// A request that sends these spans.
pub(crate) fn request(spans: &[Span], resource: &[(String, String)]) -> ExportTraceServiceRequest {
    let attributes =
        resource.iter().map(|(key, value)| pair(key, Value::StringValue(value.clone()))).collect();
    let scope = InstrumentationScope {
        name: SCOPE.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..Default::default()
    };
    let scope_spans = ScopeSpans {
        scope: Some(scope),
        spans: spans.iter().map(wire_span).collect(),
        schema_url: SCHEMA_URL.to_owned(),
    };
    ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(Resource { attributes, ..Default::default() }),
            scope_spans: vec![scope_spans],
            schema_url: SCHEMA_URL.to_owned(),
        }],
    }
}

/// The bytes of a body, packed as asked.
pub(crate) fn pack(body: Vec<u8>, compression: Compression) -> io::Result<Vec<u8>> {
    match compression {
        Compression::None => Ok(body),
        Compression::Gzip => {
            let mut packed = GzEncoder::new(Vec::new(), Level::fast());
            packed.write_all(&body)?;
            packed.finish()
        }
    }
}

fn wire_span(span: &Span) -> WireSpan {
    // Bits 0 to 7 are the trace flags, of which the lowest says that the trace is sampled.
    const SAMPLED: u32 = 1;
    let kind = match span.kind {
        SpanKind::Internal => span::SpanKind::Internal,
        SpanKind::Client => span::SpanKind::Client,
    };
    WireSpan {
        trace_id: span.trace_id.0.to_vec(),
        span_id: span.span_id.0.to_vec(),
        parent_span_id: span.parent.map(|parent| parent.0.to_vec()).unwrap_or_default(),
        flags: SAMPLED,
        name: span.name.clone(),
        kind: kind.into(),
        start_time_unix_nano: nanos(span.start),
        end_time_unix_nano: nanos(span.end),
        attributes: attributes(&span.attributes),
        events: span.events.iter().map(wire_event).collect(),
        dropped_events_count: span.dropped_events,
        links: span.links.iter().map(wire_link).collect(),
        status: Some(match &span.status {
            SpanStatus::Unset => Status::default(),
            SpanStatus::Error(message) => Status { message: message.clone(), code: StatusCode::Error.into() },
        }),
        ..Default::default()
    }
}

fn wire_event(event: &SpanEvent) -> span::Event {
    span::Event {
        time_unix_nano: nanos(event.at),
        name: event.name.to_owned(),
        attributes: attributes(&event.attributes),
        ..Default::default()
    }
}

fn wire_link(link: &Link) -> span::Link {
    span::Link {
        trace_id: link.trace_id.0.to_vec(),
        span_id: link.span_id.0.to_vec(),
        attributes: attributes(&link.attributes),
        ..Default::default()
    }
}

/// Nanoseconds since 1970; a moment before counts as 1970.
fn nanos(at: Timestamp) -> u64 {
    u64::try_from(at.as_millis()).unwrap_or(0).saturating_mul(1_000_000)
}

fn attributes(attributes: &Attributes) -> Vec<KeyValue> {
    attributes.iter().map(|(key, attribute)| pair(key, value(attribute))).collect()
}

fn pair(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..Default::default() }
}

fn value(attribute: &Attribute) -> Value {
    match attribute {
        Attribute::Number(number) if number.is_f64() => {
            Value::DoubleValue(number.as_f64().unwrap_or_default())
        }
        Attribute::Number(number) => Value::IntValue(number.as_i64().unwrap_or(i64::MAX)),
        Attribute::Bool(flag) => Value::BoolValue(*flag),
        Attribute::Array(all) => Value::ArrayValue(ArrayValue {
            values: all.iter().map(|one| AnyValue { value: Some(value(one)) }).collect(),
        }),
        Attribute::String(text) => Value::StringValue(text.clone()),
        other => Value::StringValue(other.to_string()),
    }
}
