//! Fresh identifiers that a vendor or the system must not have seen before.

/// A random UUID. A vendor keeps conversations under it forever and on other machines too, so a counted one
/// will not do, and nothing that a test compares depends on it.
#[expect(clippy::disallowed_methods, reason = "the vendor's names must be unique beyond this program")]
pub(crate) fn fresh() -> String {
    uuid::Uuid::new_v4().to_string()
}
