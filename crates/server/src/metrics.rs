//! Counts of the server for `/metrics`, as OpenMetrics text. What is counted of sessions is read from the store.

use std::{
    fmt::Write as _,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
};

use axum::http::StatusCode;

/// The media type of OpenMetrics.
pub(crate) const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Counts of one server.
#[derive(Default)]
pub(crate) struct Metrics {
    /// Answers by the first digit of their status.
    answers: [AtomicU64; 6],
    connections: Arc<AtomicI64>,
    streams: Arc<AtomicI64>,
}

/// One item that is counted until this is dropped.
pub(crate) struct Counted(Arc<AtomicI64>);

impl Counted {
    fn new(count: &Arc<AtomicI64>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Metrics {
    /// Counts an answer.
    pub(crate) fn answered(&self, status: StatusCode) {
        let class = usize::from(status.as_u16() / 100);
        if let Some(count) = self.answers.get(class) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a connection until the result is dropped.
    pub(crate) fn connected(&self) -> Counted {
        Counted::new(&self.connections)
    }

    /// Counts an event stream or socket until the result is dropped.
    pub(crate) fn streaming(&self) -> Counted {
        Counted::new(&self.streams)
    }

    /// The text: these counts, the sessions by their state, and the open questions.
    pub(crate) fn text(&self, version: &str, sessions: &[(&str, usize)], questions: usize) -> String {
        let mut text = String::new();
        let mut family = |name: &str, kind: &str, help: &str, samples: &[(String, String)]| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "# TYPE {name} {kind}\n# HELP {name} {help}");
            for (labels, value) in samples {
                let suffix = match kind {
                    "counter" => "_total",
                    "info" => "_info",
                    _ => "",
                };
                let _ = writeln!(text, "{name}{suffix}{labels} {value}");
            }
        };
        let one = |value: i64| [(String::new(), value.to_string())];
        family(
            "inspan",
            "info",
            "The version of the program.",
            &[(format!("{{version=\"{version}\"}}"), "1".to_owned())],
        );
        let by_state: Vec<_> = sessions
            .iter()
            .map(|(state, count)| (format!("{{state=\"{state}\"}}"), count.to_string()))
            .collect();
        family("inspan_sessions", "gauge", "Stored sessions by their state.", &by_state);
        let questions = i64::try_from(questions).unwrap_or(i64::MAX);
        family("inspan_open_questions", "gauge", "Questions that wait for a person.", &one(questions));
        let answers: Vec<_> = (1..self.answers.len())
            .map(|class| {
                let count = self.answers[class].load(Ordering::Relaxed);
                (format!("{{class=\"{class}xx\"}}"), count.to_string())
            })
            .collect();
        family("inspan_http_responses", "counter", "Answers by the class of their status.", &answers);
        let connections = self.connections.load(Ordering::Relaxed);
        family("inspan_connections", "gauge", "Connections that are open.", &one(connections));
        let streams = self.streams.load(Ordering::Relaxed);
        family("inspan_streams", "gauge", "Event streams and sockets that are open.", &one(streams));
        text.push_str("# EOF\n");
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_text_that_a_scraper_reads() {
        let metrics = Metrics::default();
        let connection = metrics.connected();
        drop(metrics.connected());
        metrics.answered(StatusCode::OK);
        metrics.answered(StatusCode::NOT_FOUND);
        let text = metrics.text("0.1.0", &[("running", 2), ("failed", 1)], 3);
        let expected = "\
# TYPE inspan info
# HELP inspan The version of the program.
inspan_info{version=\"0.1.0\"} 1
# TYPE inspan_sessions gauge
# HELP inspan_sessions Stored sessions by their state.
inspan_sessions{state=\"running\"} 2
inspan_sessions{state=\"failed\"} 1
# TYPE inspan_open_questions gauge
# HELP inspan_open_questions Questions that wait for a person.
inspan_open_questions 3
# TYPE inspan_http_responses counter
# HELP inspan_http_responses Answers by the class of their status.
inspan_http_responses_total{class=\"1xx\"} 0
inspan_http_responses_total{class=\"2xx\"} 1
inspan_http_responses_total{class=\"3xx\"} 0
inspan_http_responses_total{class=\"4xx\"} 1
inspan_http_responses_total{class=\"5xx\"} 0
# TYPE inspan_connections gauge
# HELP inspan_connections Connections that are open.
inspan_connections 1
# TYPE inspan_streams gauge
# HELP inspan_streams Event streams and sockets that are open.
inspan_streams 0
# EOF
";
        assert_eq!(text, expected);
        drop(connection);
    }
}
