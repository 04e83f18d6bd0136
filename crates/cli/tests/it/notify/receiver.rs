//! An HTTP receiver that a test scripts: it records what comes, and answers as the script says:
//! with success, with an error, too late or not at all.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

use serde_json::Value;

/// How long a test waits for a request.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) path: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

impl Received {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

/// What a request gets.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// A status, more header lines and a body.
    Status(u16, &'static str, String),
    /// The connection is closed without a word.
    Broken,
    /// Nothing, for as long as the caller waits.
    Silence,
}

impl Answer {
    pub(crate) fn good() -> Self {
        Self::Status(200, "", String::new())
    }
}

type Answering = dyn Fn(usize, &Received) -> Answer + Send + Sync;

/// The receiver. It ends with the test.
pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    log: Arc<(Mutex<Vec<Received>>, Condvar)>,
    open: Arc<Mutex<bool>>,
}

impl Receiver {
    /// Answers each request by its number, counting from 0.
    pub(crate) fn start(answer: impl Fn(usize, &Received) -> Answer + Send + Sync + 'static) -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap(), answer)
    }

    /// The same at an address that had another receiver before.
    pub(crate) fn start_at(
        address: SocketAddr,
        answer: impl Fn(usize, &Received) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let log: Arc<(Mutex<Vec<Received>>, Condvar)> = Arc::default();
        let open = Arc::new(Mutex::new(true));
        let (seen, is_open) = (Arc::clone(&log), Arc::clone(&open));
        let answer: Arc<Answering> = Arc::new(answer);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if !*is_open.lock().unwrap() {
                    return;
                }
                let (seen, answer) = (Arc::clone(&seen), Arc::clone(&answer));
                std::thread::spawn(move || serve(stream.unwrap(), &seen, &*answer));
            }
        });
        Self { address, log, open }
    }

    /// The requests so far.
    pub(crate) fn seen(&self) -> Vec<Received> {
        self.log.0.lock().unwrap().clone()
    }

    /// Waits until so many requests have come.
    pub(crate) fn wait_for(&self, count: usize) -> Vec<Received> {
        self.wait_until(|seen| seen.len() >= count)
    }

    /// Waits until the requests are so.
    pub(crate) fn wait_until(&self, is_so: impl Fn(&[Received]) -> bool) -> Vec<Received> {
        let (seen, changed) = &*self.log;
        let waits = |seen: &mut Vec<Received>| !is_so(seen);
        let (seen, timeout) = changed.wait_timeout_while(seen.lock().unwrap(), PATIENCE, waits).unwrap();
        assert!(!timeout.timed_out(), "this is all that came: {seen:#?}");
        seen.clone()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        *self.open.lock().unwrap() = false;
        // It wakes the listener, which then ends.
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(stream: TcpStream, log: &(Mutex<Vec<Received>>, Condvar), answer: &Answering) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let Some(request) = read(&mut reader) else { return };
    let number = {
        let mut seen = log.0.lock().unwrap();
        seen.push(request.clone());
        seen.len() - 1
    };
    let said = answer(number, &request);
    log.1.notify_all();
    let mut stream = stream;
    match said {
        Answer::Status(status, headers, body) => {
            let head = format!(
                "HTTP/1.1 {status} x\r\n{headers}content-length: {}\r\nconnection: close\r\n\r\n",
                body.len()
            );
            // The caller may be killed meanwhile.
            let _ = stream.write_all((head + &body).as_bytes());
        }
        Answer::Broken => {}
        Answer::Silence => {
            // It ends when the caller gives up.
            let _ = reader.read(&mut [0]);
        }
    }
}

fn read(reader: &mut impl BufRead) -> Option<Received> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let path = line.split(' ').nth(1)?.to_owned();
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.insert(name.to_lowercase(), value.to_owned());
    }
    let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Received { path, headers, body: String::from_utf8(body).unwrap() })
}
