//! A notification of this machine's desktop: by `notify-send`, on macOS by `osascript`.

use std::time::Duration;

use futures::{FutureExt, future::BoxFuture};
use inspan_protocol::{Environment, Supervisor};

use super::{SendError, Sender, command::run, escaped};
use crate::{message::Message, notice::NoticeKind};
use inspan_view::format::cut;

/// The program.
pub(super) const PROGRAM: &str = if cfg!(target_os = "macos") { "osascript" } else { "notify-send" };
/// How long the program may take.
const LIMIT: Duration = Duration::from_secs(10);
/// What a notification shows at most, in characters.
const TEXT: usize = 400;
/// The variables that lead to the desktop.
const DESKTOP: [&str; 7] = [
    "PATH",
    "HOME",
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "XDG_RUNTIME_DIR",
    "DBUS_SESSION_BUS_ADDRESS",
    "XAUTHORITY",
];
/// Texts are arguments, so that nothing in them is a program.
const SCRIPT: &str =
    "on run argv\ndisplay notification (item 2 of argv) with title (item 1 of argv)\nend run";

pub(super) struct Desktop {
    environment: Vec<(String, String)>,
    supervisor: Option<Supervisor>,
}

impl Desktop {
    pub(super) fn new(environment: &Environment, supervisor: Option<Supervisor>) -> Self {
        let known =
            DESKTOP.iter().filter_map(|name| Some(((*name).to_owned(), environment.get(name)?.to_owned())));
        Self { environment: known.collect(), supervisor }
    }
}

impl Sender for Desktop {
    fn send<'a>(&'a self, message: &'a Message) -> BoxFuture<'a, Result<(), SendError>> {
        async move {
            let (title, text) = (cut(&message.title, 120), cut(&message.text(), TEXT));
            let argv = match cfg!(target_os = "macos") {
                true => [PROGRAM, "-e", SCRIPT, "--"]
                    .map(str::to_owned)
                    .into_iter()
                    .chain([title, text])
                    .collect(),
                false => {
                    let urgent = message.notices.iter().any(|notice| {
                        matches!(notice.kind, NoticeKind::Question | NoticeKind::Failure | NoticeKind::Budget)
                    });
                    let urgency = if urgent { "--urgency=critical" } else { "--urgency=normal" };
                    // The body of a notification is markup.
                    let fixed = [PROGRAM, "--app-name=inspan", urgency, "--"].map(str::to_owned);
                    fixed.into_iter().chain([title, escaped(&text)]).collect::<Vec<_>>()
                }
            };
            run(&argv, self.environment.clone(), Vec::new(), LIMIT, self.supervisor.clone()).await
        }
        .boxed()
    }
}
