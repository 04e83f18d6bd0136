//! `inspan serve`: the API and the page for all sessions of the store, and `inspan run --web`: the same beside one run.

use std::{
    io::{self, Read},
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
};

use inspan_engine::{create_private_dir_all, write_private};
use inspan_notify::PageAddress;
use inspan_protocol::SessionId;
use inspan_server::{LoginCodes, ServerOptions, Token, serve};
use inspan_sessions::Sessions;
use serde_json::json;
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{
    notify::{LAST, Notifications},
    session::Signals,
};
use crate::{
    args::ServeArgs,
    exit::Exit,
    failure::Failure,
    invocation::{Invocation, OutputForm},
    launcher, store,
    terminal::{self, Interactivity},
};

/// The file of the token, beside the store.
const TOKEN: &str = "server-token";
/// More than a token has.
const LONGEST: u64 = 1024;

pub(super) fn run(args: &ServeArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let folders = args.flows.folders(invocation)?;
    super::session::runtime()?.block_on(async {
        let mut signals = Signals::listen();
        let server = Server::start(args.address(), args.allow_remote.clone(), folders, invocation).await?;
        server.announce(args, invocation);
        let resumes = resume_answered(&server.sessions, invocation);
        let notifications = server.notifications(invocation);
        signals.next().await;
        drop(resumes);
        if let Some(notifications) = notifications {
            notifications.finish(LAST, &mut signals).await;
        }
        server.stop().await
    })?;
    Ok(Exit::Success)
}

/// Begins to do what a process that was killed had taken on: to resume the sessions that wait with an answer from a server
/// or from Slack. Ends if it is dropped.
pub(super) fn resume_answered(sessions: &Sessions, invocation: &Invocation) -> Option<AbortOnDropHandle<()>> {
    let sessions = sessions.clone();
    // The machines of a cluster apply an answer when it comes.
    let is_here = invocation.engine.is_none();
    is_here.then(|| AbortOnDropHandle::new(tokio::spawn(async move { resume_all(&sessions).await })))
}

async fn resume_all(sessions: &Sessions) {
    let report = match sessions.resume_answered().await {
        Ok(resumed) => resumed
            .into_iter()
            .map(|(id, error)| match error {
                None => format!("{id}: resumed with an answer that was stored\n"),
                Some(error) => {
                    format!("warning: {id} waits with a stored answer, and cannot be resumed: {error}\n")
                }
            })
            .collect(),
        Err(error) => format!("warning: sessions that wait with a stored answer are not resumed: {error}\n"),
    };
    terminal::progress(&report);
}

/// A server of this process.
pub(super) struct Server {
    sessions: Sessions,
    /// Where this machine reaches it, and where others do.
    url: String,
    shared_url: String,
    token: Token,
    codes: LoginCodes,
    token_file: PathBuf,
    end: CancellationToken,
    task: JoinHandle<io::Result<()>>,
}

impl Server {
    /// Starts to serve on a port of the loopback for as long as a run lasts.
    pub(super) async fn for_run(invocation: &Invocation) -> Result<Self, Failure> {
        let folders = invocation.cwd.iter().cloned().collect();
        Self::start((Ipv4Addr::LOCALHOST, 0).into(), Vec::new(), folders, invocation).await
    }

    async fn start(
        address: SocketAddr,
        hosts: Vec<inspan_server::Host>,
        folders: Vec<PathBuf>,
        invocation: &Invocation,
    ) -> Result<Self, Failure> {
        let sessions = launcher::sessions(folders, invocation)?;
        let Listening { listener, options, token_file } =
            Listening::bind(address, hosts, sessions.clone(), invocation).await?;
        let (url, shared_url, end) = (options.url(), options.shared_url(), CancellationToken::new());
        let (token, codes) = (options.token.clone(), options.codes.clone());
        let task = tokio::spawn(serve(listener, options, end.clone()));
        Ok(Self { sessions, url, shared_url, token, codes, token_file, end, task })
    }

    /// The address of the page at a server's. It has the token, which a browser does not send to any server.
    fn with_token(&self, url: &str) -> String {
        format!("{url}/#token={}", self.token.reveal())
    }

    /// Prints where the page of a session is, and opens it if a person is at the terminal.
    pub(super) fn show_session(&self, id: &SessionId, invocation: &Invocation) {
        terminal::progress(&format!("page: {}&to=/s/{id}/graph\n", self.with_token(&self.url)));
        if invocation.terminal.interactivity != Interactivity::Interactive {
            return;
        }
        // Other users may read the arguments of a browser: what it gets there opens the page once.
        if let Ok(code) = self.codes.fresh() {
            let url = format!("{}/#token={}&to=/s/{id}/graph", self.url, code.reveal());
            open_browser(&url, invocation);
        }
    }

    /// Starts to send notifications of all sessions; each names the session's page, without the token.
    fn notifications(&self, invocation: &Invocation) -> Option<Notifications> {
        Notifications::for_server(&self.sessions, self.page(), invocation)
    }

    /// The address of a session's page as notifications name it: without the token, since others may read them.
    pub(super) fn page(&self) -> PageAddress {
        let url = self.shared_url.clone();
        Arc::new(move |id: &SessionId| format!("{url}/#/s/{id}/graph"))
    }

    fn announce(&self, args: &ServeArgs, invocation: &Invocation) {
        if invocation.form == OutputForm::Json {
            return invocation.json(&json!({
                "url": self.url,
                "tokenFile": self.token_file,
                "hosts": args.allow_remote.iter().map(ToString::to_string).collect::<Vec<_>>(),
            }));
        }
        terminal::data_line(&self.with_token(&self.url));
        if self.shared_url != self.url {
            terminal::progress(&format!("From other machines: {}\n", self.with_token(&self.shared_url)));
        }
        terminal::progress(&format!(
            "Open this address in a browser; anyone who has it can see and command all sessions.\nScripts find the token \
             in {}. Press Ctrl-C to stop the server; sessions run on.\n",
            self.token_file.display()
        ));
    }

    /// Stops to serve; what is under way may end.
    pub(super) async fn stop(self) -> Result<(), Failure> {
        self.end.cancel();
        match self.task.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(Failure::new(Exit::Failed, format!("the server failed: {error}"))),
            Err(panic) => {
                Err(Failure::new(Exit::Failed, format!("internal error: the server panicked: {panic}")))
            }
        }
    }
}

/// A port of this process, and what its guard checks.
pub(super) struct Listening {
    pub(super) listener: TcpListener,
    pub(super) options: ServerOptions,
    pub(super) token_file: PathBuf,
}

impl Listening {
    /// Listens on an address. Beyond the loopback it needs the name under which it is reached.
    pub(super) async fn bind(
        address: SocketAddr,
        hosts: Vec<inspan_server::Host>,
        sessions: Sessions,
        invocation: &Invocation,
    ) -> Result<Self, Failure> {
        if !address.ip().is_loopback() && hosts.is_empty() {
            let message = format!("{} can be reached from other machines", address.ip());
            return Err(Failure::usage(message).with_hint(
                "name the host under which the server is reached with `--allow-remote HOST`; put a TLS reverse \
                 proxy in front of it",
            ));
        }
        let token_file = token_file(invocation)?;
        let token = token(&token_file)?;
        let listener = TcpListener::bind(address).await.map_err(|error| refused(address, &error))?;
        let address = listener.local_addr().map_err(|error| refused(address, &error))?;
        let version = env!("CARGO_PKG_VERSION");
        let (codes, environment) = (LoginCodes::default(), invocation.env.clone());
        let options = ServerOptions { sessions, address, hosts, token, codes, version, environment };
        Ok(Self { listener, options, token_file })
    }
}

/// Opens an address in the browser of the desktop. Without one the address is on the terminal.
fn open_browser(url: &str, invocation: &Invocation) {
    let on_desktop = ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| invocation.env.get(name).is_some());
    let program = match invocation.env.get("BROWSER") {
        Some(program) => program.to_owned(),
        None if cfg!(target_os = "macos") => "open".to_owned(),
        None if on_desktop => "xdg-open".to_owned(),
        None => return,
    };
    let mut command = std::process::Command::new(program);
    command.arg(url).stdin(std::process::Stdio::null());
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    if let Ok(mut browser) = command.spawn() {
        // It may run as long as the browser; this thread reaps it and ends with the process.
        let _ = std::thread::Builder::new().name("browser".to_owned()).spawn(move || browser.wait());
    }
}

fn token_file(invocation: &Invocation) -> Result<PathBuf, Failure> {
    let store = store::path(invocation)?;
    let folder = store.parent().unwrap_or(Path::new("."));
    let absolute = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    Ok(absolute.join(TOKEN))
}

/// The token of this store's servers. It stays the same, so that a page works on when the server is started again.
fn token(file: &Path) -> Result<Token, Failure> {
    let cannot = |what: &str, error: &dyn std::fmt::Display| {
        Failure::new(
            Exit::Configuration,
            format!("the token in {} cannot be {what}: {error}", file.display()),
        )
    };
    let mut text = String::new();
    // Opening a pipe would wait for a writer.
    if std::fs::metadata(file).is_ok_and(|found| !found.is_file()) {
        return Err(cannot("read", &"it is not a regular file"));
    }
    match std::fs::File::open(file) {
        Ok(opened) => {
            check_private(&opened, file)?;
            opened.take(LONGEST).read_to_string(&mut text).map_err(|error| cannot("read", &error))?;
            text.trim().parse().map_err(|error| {
                cannot("read", &error).with_hint("remove the file; the next `inspan serve` makes a new token")
            })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let token = Token::fresh().map_err(|error| cannot("made", &error))?;
            let folder = file.parent().unwrap_or(Path::new("."));
            create_private_dir_all(folder)
                .and_then(|()| write_private(file, format!("{}\n", token.reveal()).as_bytes()))
                .map_err(|error| cannot("written", &error))?;
            Ok(token)
        }
        Err(error) => Err(cannot("read", &error)),
    }
}

/// A token that others can read is no secret.
fn check_private(opened: &std::fs::File, file: &Path) -> Result<(), Failure> {
    use std::os::unix::fs::MetadataExt;

    let mode = opened.metadata().map(|data| data.mode()).unwrap_or_default();
    if mode & 0o077 == 0 {
        return Ok(());
    }
    let message = format!("the token in {} can be read by other users", file.display());
    Err(Failure::new(Exit::Configuration, message)
        .with_hint("remove the file; the next `inspan serve` makes a new token that is yours alone"))
}

fn refused(address: SocketAddr, error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::AddrInUse => Failure::usage(format!("{address} is in use")).with_hint(
            "another server of Inspan may be running; choose another port, or port 0 for a free one",
        ),
        io::ErrorKind::PermissionDenied => {
            Failure::usage(format!("{address} is not allowed")).with_hint("choose a port above 1023")
        }
        _ => Failure::new(Exit::Failed, format!("failed to listen on {address}: {error}")),
    }
}
