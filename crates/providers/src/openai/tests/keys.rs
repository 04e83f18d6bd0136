//! A planted key leaves the process in the head of the request and nowhere else, whatever happens.

use super::server::Rig;
use crate::exchange::tests::checks;

checks! { Rig, keys:
    no_artefact_holds_the_key,
    an_address_with_a_password_is_not_shown,
}
