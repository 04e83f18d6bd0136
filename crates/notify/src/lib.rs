//! Outbound channels: what needs a person is sent where people are; and the digest.
