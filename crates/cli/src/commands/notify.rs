//! Notifications: the channels of the settings, the delivery beside a session that runs, `inspan notify` and
//! `inspan digest`.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use inspan_engine::{Clock, SystemClock};
use inspan_flow::Graph;
use inspan_notify::{
    Answers, ChannelSource, Delivery, Digest, DigestForm, FolderChannel, Ledger, Message,
    NotificationChannel, PageAddress, RunningDelivery, Scope, Undelivered, Warn, deliver, deliver_all,
    deliver_once,
};
use inspan_protocol::{Environment, SessionId, Timestamp};
use inspan_sessions::Sessions;
use inspan_view::Commands;
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{
    serve::resume_answered,
    session::{Signals, runtime},
};
use crate::{
    args::{DigestArgs, NotifyCommand},
    exit::Exit,
    failure::Failure,
    invocation::{Invocation, OutputForm},
    launcher,
    settings::Settings,
    store, terminal,
};

/// How long a session that has ended waits for its notifications.
pub(super) const LAST: Duration = Duration::from_secs(3);
/// The same of one in the background, where nobody waits for its end and nobody else may be there to send them.
pub(super) const LAST_IN_BACKGROUND: Duration = Duration::from_secs(60);
/// How long `notify deliver --once` begins to send, and how long `notify deliver` takes to end at most.
const END: Duration = Duration::from_secs(30);
/// How long after a failure `notify deliver --once` and a run in the background try again.
const AGAIN: Duration = Duration::from_secs(1);
/// How often a message that was asked for is tried, and the longest wait between.
const TRIES: u32 = 4;
/// After this time it is not tried again: somebody waits for it.
const LONGEST_SEND: Duration = Duration::from_secs(30);
const LONGEST_WAIT: Duration = Duration::from_secs(20);

pub(super) fn run(command: &NotifyCommand, invocation: &Invocation) -> Result<Exit, Failure> {
    match command {
        NotifyCommand::Test { channel: name } => {
            let channel = channel(name, &Settings::of(None, invocation)?, invocation)?;
            send(&channel, &Message::test(name, SystemClock.now()), invocation)
        }
        NotifyCommand::Deliver { once } => deliver_stored(*once, invocation),
    }
}

/// `inspan digest`: what failed, what it cost, what waits for a person and what was done, from the events of all sessions.
pub(super) fn digest(args: &DigestArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let until = SystemClock.now();
    let since = before(until, args.since);
    let commands = invocation.commands();
    let digest =
        store::read(invocation, async |store| Ok(Digest::of(&*store, since, until, &commands).await?))?;
    if let Some(name) = &args.send {
        // It is about all sessions, so a project's file does not say where it goes.
        let settings = Settings::of_user(invocation)?;
        let channel = channel(name, &settings, invocation)?;
        return send(&channel, &digest.message(name), invocation);
    }
    match invocation.form {
        OutputForm::Json => invocation.json(&digest),
        OutputForm::Text => {
            let form = if args.markdown { DigestForm::Markdown } else { DigestForm::Text };
            terminal::data(&digest.text(form));
        }
    }
    Ok(Exit::Success)
}

fn before(moment: Timestamp, span: Duration) -> Timestamp {
    let millis = i64::try_from(span.as_millis()).unwrap_or(i64::MAX);
    Timestamp::from_millis(moment.as_millis().saturating_sub(millis))
}

/// The file that says how far each channel has come: beside the store.
pub(super) fn ledger_file(invocation: &Invocation) -> Result<PathBuf, Failure> {
    let mut file = store::path(invocation)?.into_os_string();
    file.push("-notifications");
    Ok(file.into())
}

/// The environment in which what any channel uses is a secret: what one uses is in no message of another.
pub(super) fn marked(env: Environment, settings: &Settings) -> Environment {
    env.mark(settings.channels().values().flat_map(|found| found.settings.variables()))
}

/// A channel of the settings, ready to send.
pub(super) fn channel(
    name: &str,
    settings: &Settings,
    invocation: &Invocation,
) -> Result<NotificationChannel, Failure> {
    let Some(found) = settings.channels().get(name) else {
        let failure = Failure::unknown("channel", name, settings.channels().keys().map(String::as_str));
        return Err(match settings.channels().is_empty() {
            true => failure.with_hint("no channel is set up; docs/notifications.md shows how"),
            false => failure,
        });
    };
    let origin = found.file.display().to_string();
    let env = marked(invocation.env.clone(), settings);
    NotificationChannel::new(name, &origin, found.settings.clone(), &env, inspan_process::guard())
        .map_err(|error| Failure::new(Exit::Configuration, format!("channel `{name}`: {error}")))
}

/// Sends a message that was asked for, and reports how that went.
pub(super) fn send(
    channel: &NotificationChannel,
    message: &Message,
    invocation: &Invocation,
) -> Result<Exit, Failure> {
    let sent = runtime()?.block_on(async {
        let began = Instant::now();
        for attempt in 1.. {
            match channel.send(message).await {
                Ok(()) => break,
                Err(error) if attempt == TRIES || error.is_refusal || began.elapsed() > LONGEST_SEND => {
                    return Err(error);
                }
                Err(error) => {
                    let wait =
                        error.retry_after.unwrap_or_default().max(Duration::from_millis(500) * attempt);
                    sleep(wait.min(LONGEST_WAIT)).await;
                }
            }
        }
        Ok(())
    });
    if let Err(error) = sent {
        let part = if error.is_partial { "sent only in part: " } else { "" };
        return Err(Failure::new(Exit::Failed, format!("channel `{}`: {part}{error}", channel.name)));
    }
    match invocation.form {
        OutputForm::Json => invocation.json(&json!({ "channel": channel.name, "id": message.id })),
        OutputForm::Text => {
            terminal::progress(&format!("sent through `{}`\n", channel.name));
        }
    }
    Ok(Exit::Success)
}

/// The channels that flows of a folder have in the settings.
struct SettingsChannels {
    invocation: Invocation,
    /// With the secrets of the flow marked, and of all channels that were read.
    env: Mutex<Environment>,
}

impl ChannelSource for SettingsChannels {
    fn channels(&self, folder: &Path) -> Result<Vec<FolderChannel>, String> {
        let settings = Settings::of(Some(folder), &self.invocation).map_err(|failure| failure.message)?;
        let mut env = self.env.lock().unwrap_or_else(PoisonError::into_inner);
        *env = marked(env.clone(), &settings);
        let channels = settings.channels().iter().map(|(name, found)| FolderChannel {
            name: name.clone(),
            origin: found.file.display().to_string(),
            settings: found.settings.clone(),
        });
        Ok(channels.collect())
    }

    fn open(&self, channel: &FolderChannel) -> Result<NotificationChannel, String> {
        let FolderChannel { name, origin, settings } = channel;
        let env = self.env.lock().unwrap_or_else(PoisonError::into_inner).clone();
        NotificationChannel::new(name, origin, settings.clone(), &env, inspan_process::guard())
            .map_err(|error| error.to_string())
    }
}

/// What delivers, for this call of the program.
fn delivery(
    sessions: &Sessions,
    page: Option<PageAddress>,
    env: Environment,
    warn: Warn,
    invocation: &Invocation,
) -> Result<Delivery, Failure> {
    let source: Arc<dyn ChannelSource> =
        Arc::new(SettingsChannels { invocation: invocation.clone(), env: Mutex::new(env) });
    Ok(Delivery {
        store: Arc::clone(sessions.store()),
        ledger: Ledger::at(&ledger_file(invocation)?),
        answers: Some(Arc::new(Answers::new(sessions.clone(), Arc::clone(&source)))),
        source,
        commands: Arc::new(invocation.commands_anywhere()),
        page,
        clock: Arc::new(SystemClock),
        warn,
        warned: Arc::default(),
    })
}

/// The delivery beside a session that this process runs, or beside a server.
pub(super) struct Notifications {
    /// Nothing before it has begun.
    running: Option<RunningDelivery>,
    delivery: Delivery,
    scope: Scope,
}

/// Where warnings go: to the console as long as there is one.
#[derive(Default)]
pub(super) struct Notices(Mutex<Option<Warn>>);

impl Notices {
    /// Shows warnings by this from now on.
    pub(super) fn show_by(&self, show: Option<Warn>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = show;
    }

    fn warn(&self, line: &str) {
        // The lock is held meanwhile: a console that has stopped would lose the line.
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(show) => show(line),
            None => {
                terminal::progress(&format!("warning: {line}\n"));
            }
        }
    }
}

impl Notifications {
    /// Those of a session, if the settings have channels. A fault here is a warning: the session runs without.
    pub(super) fn of_session(
        session: &SessionId,
        sessions: &Sessions,
        graph: &Graph,
        settings: &Settings,
        notices: &Arc<Notices>,
        page: Option<PageAddress>,
        invocation: &Invocation,
    ) -> Option<Self> {
        if settings.channels().is_empty() {
            return None;
        }
        let begun = || {
            let notices = Arc::clone(notices);
            let env = invocation.env.clone().mark(&graph.secrets);
            let warn = Arc::new(move |line: &str| notices.warn(line));
            // An answer for a session that no process runs resumes it.
            let sessions = launcher::with_launcher(sessions.clone(), invocation)?;
            delivery(&sessions, page, env, warn, invocation)
        };
        Self::of(begun(), Scope::Session(session.clone()))
    }

    /// Starts to deliver for all sessions beside a server. A fault here is a warning: the server serves without.
    pub(super) fn for_server(
        sessions: &Sessions,
        page: PageAddress,
        invocation: &Invocation,
    ) -> Option<Self> {
        let mut all = Self::of(for_all(sessions, Some(page), invocation), Scope::All)?;
        all.begin();
        Some(all)
    }

    fn of(delivery: Result<Delivery, Failure>, scope: Scope) -> Option<Self> {
        match delivery {
            Ok(delivery) => Some(Self { running: None, delivery, scope }),
            Err(failure) => {
                terminal::progress(&format!("warning: no notifications: {}\n", failure.message));
                None
            }
        }
    }

    /// Starts to deliver.
    pub(super) fn begin(&mut self) {
        self.running = Some(deliver(self.delivery.clone(), self.scope.clone()));
    }

    /// Delivers what is there by now, until this time or a signal, and reports what is left. What fails is tried again
    /// meanwhile, if there is time for that.
    pub(super) async fn finish(self, limit: Duration, signals: &mut Signals) {
        let Some(running) = self.running else { return };
        let until = Instant::now() + limit;
        // Each try would open connections for answers, and close them at once.
        let delivery = Delivery { answers: None, ..self.delivery };
        let mut left = cut();
        let work = async {
            left = running.finish(limit).await;
            while limit > LAST && !left.channels.is_empty() && Instant::now() + AGAIN < until {
                sleep(AGAIN).await;
                let again = deliver(delivery.clone(), self.scope.clone());
                left = again.finish(until.saturating_duration_since(Instant::now())).await;
            }
        };
        tokio::select! {
            () = work => {}
            _ = signals.next() => {}
        }
        report(&named(left, false), ONCE, &delivery.commands);
    }
}

/// What to do about notifications that are left.
const ONCE: &str = "`inspan notify deliver --once` delivers them";

fn report(undelivered: &Undelivered, help: &str, commands: &Commands) {
    let help = commands.complete(help);
    let which = match (undelivered.is_cut, undelivered.channels.as_slice()) {
        (false, []) => return,
        (true, _) => "some notifications are".to_owned(),
        (false, channels) => format!("notifications of {} are", channels.join(", ")),
    };
    terminal::progress(&format!("warning: {which} not delivered yet\n  help: {help}\n"));
}

/// What delivers for all sessions. The page is the one of a server of this process.
fn for_all(
    sessions: &Sessions,
    page: Option<PageAddress>,
    invocation: &Invocation,
) -> Result<Delivery, Failure> {
    let warn = |line: &str| {
        terminal::progress(&format!("warning: {line}\n"));
    };
    delivery(sessions, page, invocation.env.clone(), Arc::new(warn), invocation)
}

/// Delivers for all sessions: what is there now, or until it is stopped.
fn deliver_stored(once: bool, invocation: &Invocation) -> Result<Exit, Failure> {
    let sessions = launcher::sessions(Vec::new(), invocation)?;
    let delivery = for_all(&sessions, None, invocation)?;
    let undelivered = runtime()?.block_on(async {
        let mut signals = Signals::listen();
        // Without the record nothing is sent, and nothing would be left to report.
        delivery.ledger.channels().await.map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
        Ok::<_, Failure>(match once {
            true => deliver_now(delivery, &mut signals).await,
            false => {
                let _resumes = resume_answered(&sessions, invocation);
                deliver_on(delivery, &mut signals).await
            }
        })
    })?;
    let help = match once {
        true => "`inspan doctor` shows why; `inspan serve` and `inspan notify deliver` keep trying",
        false => ONCE,
    };
    // Who goes on leaves to another process what that one has.
    let undelivered = named(undelivered, once);
    report(&undelivered, help, &invocation.commands());
    let Undelivered { channels, refused, is_cut, .. } = undelivered;
    // Who goes on has warned of each refusal when it was given up.
    let is_delivered = channels.is_empty() && !is_cut && (refused.is_empty() || !once);
    if once && invocation.form == OutputForm::Json {
        let left = json!({ "isDelivered": is_delivered, "undelivered": channels, "refused": refused });
        invocation.json(&left);
    }
    Ok(if is_delivered { Exit::Success } else { Exit::Failed })
}

/// The same with all channels that have something left, perhaps also what another process has and has not delivered yet.
fn named(mut undelivered: Undelivered, with_held: bool) -> Undelivered {
    undelivered.channels.append(&mut undelivered.closed);
    if with_held {
        undelivered.channels.append(&mut undelivered.held);
    }
    undelivered.channels.sort();
    undelivered.channels.dedup();
    undelivered
}

/// What could not be delivered because the time was up.
fn cut() -> Undelivered {
    Undelivered { is_cut: true, ..Undelivered::default() }
}

/// Delivers what is there now. What fails is tried again for a while, and each warning is given once.
async fn deliver_now(delivery: Delivery, signals: &mut Signals) -> Undelivered {
    let (given, warn) = (Mutex::new(BTreeSet::new()), delivery.warn);
    let once = move |line: &str| {
        let mut given = given.lock().unwrap_or_else(PoisonError::into_inner);
        if given.insert(line.to_owned()) {
            warn(line);
        }
    };
    // Each round would open connections for answers, and close them at once.
    let delivery = Delivery { warn: Arc::new(once), answers: None, ..delivery };
    let until = Instant::now() + END;
    // What the last round that came to its end left, and who refused something in any round.
    let mut left = cut();
    let mut refused = BTreeSet::new();
    let (mut said_again, mut said_held) = (false, false);
    loop {
        tokio::select! {
            undelivered = deliver_once(delivery.clone(), until) => left = undelivered,
            _ = signals.next() => break,
        }
        refused.extend(std::mem::take(&mut left.refused));
        let has_more = left.is_cut || !left.channels.is_empty() || !left.held.is_empty();
        if !has_more || Instant::now() + AGAIN > until {
            break;
        }
        if !left.channels.is_empty() && !said_again {
            said_again = true;
            terminal::progress(&format!("what fails is tried again for {} s\n", END.as_secs()));
        }
        if !left.held.is_empty() && !said_held {
            said_held = true;
            let channels = left.held.join(", ");
            terminal::progress(&format!(
                "another process delivers notifications of {channels}, and tries again later: waiting for it for {} s\n",
                END.as_secs()
            ));
        }
        tokio::select! {
            () = sleep(AGAIN) => {}
            _ = signals.next() => break,
        }
    }
    Undelivered { refused: refused.into_iter().collect(), ..left }
}

/// Delivers until it is stopped.
async fn deliver_on(delivery: Delivery, signals: &mut Signals) -> Undelivered {
    let shutdown = CancellationToken::new();
    let work = deliver_all(delivery, shutdown.clone());
    tokio::pin!(work);
    tokio::select! {
        undelivered = &mut work => return undelivered,
        _ = signals.next() => shutdown.cancel(),
    }
    tokio::select! {
        undelivered = timeout(END, work) => undelivered.unwrap_or_else(|_| cut()),
        _ = signals.next() => cut(),
    }
}
