//! A server of a test, and clients of it: HTTP and server-sent events by hand, so that what is on the wire is what the
//! test says, and a WebSocket.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio_tungstenite::tungstenite::{
    self, Message, WebSocket, client::IntoClientRequest as _, http::header::AUTHORIZATION,
};

use crate::program::{home, program};

/// How long a client waits for a byte.
const PATIENCE: Duration = Duration::from_secs(60);

/// `inspan serve`, killed with the test.
pub(crate) struct Server {
    child: Child,
    address: String,
    token: String,
}

impl Server {
    /// A server on a free port, for the flows of a folder.
    pub(crate) fn start(folder: &Path) -> Self {
        Self::start_on(folder, "127.0.0.1:0")
    }

    /// A server on a port.
    pub(crate) fn start_on(folder: &Path, address: &str) -> Self {
        let port = address.rsplit(':').next().unwrap();
        Self::start_as(folder, &["serve", "--port", port, "--json"])
    }

    /// A server of these arguments, which ask for JSON.
    pub(crate) fn start_as(folder: &Path, arguments: &[&str]) -> Self {
        Self::of(folder, program(folder, arguments))
    }

    /// A server of this call of the program.
    pub(crate) fn of(folder: &Path, mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let mut announced = Vec::new();
        let mut out = BufReader::new(child.stdout.as_mut().unwrap());
        while !announced.ends_with(b"\n}\n") {
            let read = out.read_until(b'\n', &mut announced).unwrap();
            assert_ne!(read, 0, "the server ended: {}", String::from_utf8_lossy(&announced));
        }
        let announced: Value = serde_json::from_slice(&announced).unwrap();
        let address = announced["url"].as_str().unwrap().split('/').nth(2).unwrap().to_owned();
        let token = std::fs::read_to_string(home(folder).join("server-token")).unwrap().trim().to_owned();
        Self { child, address, token }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(&self.address, &self.token)
    }

    /// A client that does not have the token.
    pub(crate) fn stranger(&self) -> Client {
        Client::new(&self.address, "")
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ends it by SIGINT; the exit code.
    pub(crate) fn interrupt(&mut self) -> Option<i32> {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
        self.child.wait().unwrap().code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A run with a page.
pub(crate) struct Run(Child);

impl Run {
    pub(crate) fn start(folder: &Path, arguments: &[&str]) -> Self {
        Self(program(folder, arguments).stdout(Stdio::null()).spawn().unwrap())
    }

    /// The address of the page, from the line that says so.
    pub(crate) fn page(&mut self) -> String {
        let mut lines = BufReader::new(self.0.stderr.as_mut().unwrap()).lines().map(Result::unwrap);
        let line = lines.find(|line| line.starts_with("page: ")).expect("the address of the page");
        line["page: ".len()..].to_owned()
    }

    pub(crate) fn wait(mut self) -> Option<i32> {
        self.0.wait().unwrap().code()
    }
}

/// What a server answered.
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The lines of the head.
    pub(crate) head: String,
    pub(crate) text: String,
}

impl Answer {
    /// The same, if it has this status.
    #[track_caller]
    pub(crate) fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.text);
        self
    }

    /// The same, if it is a problem of this status and code.
    #[track_caller]
    pub(crate) fn refused(self, status: u16, code: &str) -> Self {
        let answer = self.expect(status);
        assert_eq!(answer.json()["code"], code, "{}", answer.text);
        answer
    }

    /// The value of a header, by its name in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.head.lines().filter_map(|line| line.split_once(": "));
        headers.find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }
}

/// A client with a token. Each request has its own connection; HTTP/1.0 has no chunks.
pub(crate) struct Client {
    address: String,
    token: String,
}

impl Client {
    pub(crate) fn new(address: &str, token: &str) -> Self {
        Self { address: address.to_owned(), token: token.to_owned() }
    }

    fn send(
        &self,
        line: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> std::io::Result<BufReader<TcpStream>> {
        let mut socket = TcpStream::connect(&self.address)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let mut head = format!("{line}\r\n");
        if !headers.iter().any(|(name, _)| *name == "host") {
            head.push_str(&format!("host: {}\r\n", self.address));
        }
        if !self.token.is_empty() {
            head.push_str(&format!("authorization: Bearer {}\r\n", self.token));
        }
        headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
        socket.write_all(format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes())?;
        Ok(BufReader::new(socket))
    }

    pub(crate) fn ask(&self, line: &str, headers: &[(&str, &str)], body: &str) -> std::io::Result<Answer> {
        let mut socket = self.send(line, headers, body)?;
        let (status, head) = head(&mut socket)?;
        let mut text = String::new();
        socket.read_to_string(&mut text)?;
        Ok(Answer { status, head, text })
    }

    pub(crate) fn try_get(&self, path: &str) -> std::io::Result<Answer> {
        self.ask(&format!("GET {path} HTTP/1.0"), &[], "")
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.try_get(path).unwrap()
    }

    pub(crate) fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.ask(&format!("GET {path} HTTP/1.0"), headers, "").unwrap()
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        let headers = [("content-type", "application/json")];
        self.ask(&format!("POST {path} HTTP/1.0"), &headers, &body.to_string()).unwrap()
    }

    /// A stream of server-sent events.
    pub(crate) fn stream(&self, path: &str, headers: &[(&str, &str)]) -> EventStream {
        self.stream_of(&format!("GET {path} HTTP/1.0"), headers, "")
    }

    /// A stream of server-sent events that answers this request.
    pub(crate) fn stream_of(&self, line: &str, headers: &[(&str, &str)], body: &str) -> EventStream {
        let mut socket = self.send(line, headers, body).unwrap();
        let (status, _) = head(&mut socket).unwrap();
        EventStream { socket, is_open: status == 200 }
    }
}

/// Reads the head of an answer.
fn head(socket: &mut BufReader<TcpStream>) -> std::io::Result<(u16, String)> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if socket.read_line(&mut head)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok((head.split(' ').nth(1).unwrap().parse().unwrap(), head))
}

/// One server-sent event.
#[derive(Debug, Default)]
pub(crate) struct ServerEvent {
    pub(crate) id: Option<u64>,
    pub(crate) name: String,
    pub(crate) data: String,
}

/// A stream of them.
pub(crate) struct EventStream {
    socket: BufReader<TcpStream>,
    is_open: bool,
}

impl EventStream {
    pub(crate) fn next(&mut self) -> Option<ServerEvent> {
        let mut event = ServerEvent::default();
        while self.is_open {
            let mut line = String::new();
            self.is_open = self.socket.read_line(&mut line).unwrap() > 0;
            let line = line.trim_end_matches('\n');
            match line.split_once(": ").unwrap_or((line, "")) {
                ("id", id) => event.id = id.parse().ok(),
                ("event", name) => event.name = name.to_owned(),
                ("data", data) => event.data.push_str(data),
                ("", _) if !event.name.is_empty() || !event.data.is_empty() => return Some(event),
                _ => {}
            }
        }
        None
    }
}

/// A WebSocket.
pub(crate) struct Socket(WebSocket<TcpStream>);

impl Socket {
    pub(crate) fn open(server: &Server) -> Self {
        let Client { address, token } = server.client();
        let stream = TcpStream::connect(&address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut request = format!("ws://{address}/ws").into_client_request().unwrap();
        request.headers_mut().insert(AUTHORIZATION, format!("Bearer {token}").parse().unwrap());
        Self(tungstenite::client(request, stream).unwrap().0)
    }

    pub(crate) fn send(&mut self, message: &Value) {
        self.0.send(Message::text(message.to_string())).unwrap();
    }

    /// The next message.
    pub(crate) fn next(&mut self) -> Value {
        loop {
            match self.0.read().unwrap() {
                Message::Text(text) => return serde_json::from_str(&text).unwrap(),
                Message::Close(_) => panic!("the socket was closed"),
                _ => {}
            }
        }
    }

    /// The first message that fits.
    pub(crate) fn until(&mut self, fits: impl Fn(&Value) -> bool) -> Value {
        loop {
            let message = self.next();
            if fits(&message) {
                return message;
            }
        }
    }
}
