//! Names that people type: those of events, and suggestions for a wrong name.

use inspan_engine::Filter;
use inspan_protocol::Event;

use crate::{SessionError, SessionErrorCode};

const HINT: &str = "as in `agent:*,task:failed`; docs/events.md lists the names";

/// Reads the events that are wanted, as in `agent:*,task:failed`; a name that no event has is a mistake.
pub fn event_filter(text: &str) -> Result<Filter, SessionError> {
    let wrong = |message: String| SessionError::new(SessionErrorCode::InvalidRequest, message);
    let filter = Filter::parse(text).map_err(|error| wrong(error.to_string()).with_hint(HINT))?;
    match text.split(',').map(str::trim).find(|part| !Event::can_match(part)) {
        None => Ok(filter),
        Some(unknown) => {
            let closest = Event::NAMES.iter().min_by_key(|name| strsim::damerau_levenshtein(unknown, name));
            let near = closest.filter(|name| strsim::damerau_levenshtein(unknown, name) <= unknown.len() / 3);
            let hint = near.map_or_else(|| HINT.to_owned(), |name| format!("did you mean `{name}`?"));
            Err(wrong(format!("no event is called `{unknown}`")).with_hint(hint))
        }
    }
}

/// What a wrong name may have meant.
pub fn meant(wrong: &str, known: &[&str]) -> String {
    let near = known
        .iter()
        .map(|name| (strsim::damerau_levenshtein(wrong, name), name))
        .filter(|(distance, name)| *distance <= (wrong.len() / 3).max(1) || name.contains(wrong))
        .min();
    match near {
        Some((_, name)) => format!("did you mean `{name}`?"),
        None => format!("known names: {}", known.join(", ")),
    }
}
