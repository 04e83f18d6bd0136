//! A raw client of JSON-RPC over the standard input and output of the program: it sends what a test says, valid or not.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};

use crate::program::program;

/// How long a message may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// A client.
pub(crate) struct RpcClient {
    pub(crate) child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<Value>,
    next: u64,
}

impl RpcClient {
    /// Starts the program with these arguments.
    pub(crate) fn start(folder: &Path, arguments: &[&str]) -> Self {
        let mut child = program(folder, arguments).stdin(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take(), child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                let Ok(line) = line else { break };
                let message = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
                if sender.send(message).is_err() {
                    break;
                }
            }
        });
        Self { child, input, lines, next: 0 }
    }

    /// Sends one line as it is.
    pub(crate) fn line(&mut self, line: &str) {
        let input = self.input.as_mut().unwrap();
        input.write_all(line.as_bytes()).unwrap();
        input.write_all(b"\n").unwrap();
        input.flush().unwrap();
    }

    /// Sends a message.
    pub(crate) fn send(&mut self, mut message: Value) {
        message["jsonrpc"] = json!("2.0");
        self.line(&message.to_string());
    }

    /// Sends a notification.
    pub(crate) fn notify(&mut self, method: &str, params: &Value) {
        self.send(json!({ "method": method, "params": params }));
    }

    /// Sends a request; its id.
    pub(crate) fn request(&mut self, method: &str, params: &Value) -> u64 {
        self.next += 1;
        self.send(json!({ "id": self.next, "method": method, "params": params }));
        self.next
    }

    /// The next message.
    pub(crate) fn next(&mut self) -> Value {
        self.lines.recv_timeout(PATIENCE).unwrap_or_else(|error| panic!("no message came: {error}"))
    }

    /// The answer to a request, and the messages before it.
    pub(crate) fn answer(&mut self, id: u64) -> (Value, Vec<Value>) {
        let mut before = Vec::new();
        loop {
            let message = self.next();
            if message["id"] == json!(id) && message.get("method").is_none() {
                return (message, before);
            }
            before.push(message);
        }
    }

    /// Makes a request; its result, and the messages before it.
    pub(crate) fn call(&mut self, method: &str, params: &Value) -> (Value, Vec<Value>) {
        let id = self.request(method, params);
        let (mut answer, before) = self.answer(id);
        assert!(answer.get("error").is_none(), "{method} was refused: {answer}");
        (answer["result"].take(), before)
    }

    /// Makes a request that must be refused; code and message.
    pub(crate) fn refused(&mut self, method: &str, params: &Value) -> (i64, String) {
        let id = self.request(method, params);
        let (answer, _) = self.answer(id);
        let error = answer.get("error").unwrap_or_else(|| panic!("{method} was not refused: {answer}"));
        (error["code"].as_i64().unwrap(), error["message"].as_str().unwrap().to_owned())
    }

    /// Closes the input, which ends the program; its exit code.
    pub(crate) fn close(mut self) -> Option<i32> {
        self.input = None;
        self.child.wait().unwrap().code()
    }

    /// Kills the program at once.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}
