//! Servers that misbehave, and what the provider makes of each.

use super::server::Rig;
use crate::exchange::tests::checks;

checks! { Rig, faults:
    streams_that_break,
    servers_that_are_none,
    answers_that_are_no_stream,
    a_deadline_ends_the_turn,
    what_cannot_be_asked_is_refused_before_anything_is_kept,
    a_call_that_is_cancelled_before_it_begins_asks_nobody,
}
