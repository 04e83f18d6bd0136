//! Outbound channels: what needs a person is sent where people are; and the digest.
//!
//! Notifications are derived from the stored events of a session, and a [`Ledger`] beside the store says which events
//! each channel has sent. So a restart loses none, and a notification that may be sent twice has the same id both
//! times.

mod answers;
mod deliver;
mod digest;
mod ledger;
mod message;
mod notice;
mod send;
mod settings;

pub use answers::Answers;
pub use deliver::{
    ChannelSource, Delivery, FolderChannel, PageAddress, RunningDelivery, Scope, Undelivered, Warn, deliver,
    deliver_all, deliver_once,
};
pub use digest::{Digest, DigestForm, DigestSession, FailedNode, FlowMoney, Money, WaitingItem};
pub use ledger::{ChannelState, Ledger, LedgerError};
pub use message::Message;
pub use notice::{Notice, NoticeKind};
pub use send::{NotificationChannel, SendError, check};
pub use settings::{Address, ChannelSettings, ChannelTarget, Named, SettingsError, SmtpTls};
