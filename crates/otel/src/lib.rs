//! OpenTelemetry traces, derived from the events of a session.
