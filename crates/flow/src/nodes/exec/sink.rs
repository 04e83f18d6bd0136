//! A file that takes what a program prints on one stream: without secrets as long as it is text, and bounded.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

use inspan_protocol::{AgentError, ErrorCode, Redactor, StreamRedactor};

use super::{TAIL, process::READ_SIZE, report::complete};

/// The largest file, in bytes.
const FILE_LIMIT: u64 = 1 << 30;
/// How much of its end is kept: what is shown, and what is before it, where a secret may begin if the stream is no text.
const END: usize = 2 * TAIL;

/// The file, and what is not in it yet.
pub(super) struct FileSink {
    path: PathBuf,
    file: BufWriter<File>,
    /// Takes the secrets out; nothing once the stream was seen to be no text.
    redactor: Option<StreamRedactor>,
    /// A character that is not complete.
    pending: Vec<u8>,
    written: u64,
    /// The end of what was written.
    end: Vec<u8>,
}

impl FileSink {
    /// Creates the file, replacing an old one, and the folders above it.
    pub(super) fn create(path: &Path, redactor: &Redactor) -> Result<Self, AgentError> {
        // Opening one waits for a reader, which nothing could end.
        if fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo()) {
            return Err(failed(path, &io::Error::other("it is a named pipe")));
        }
        let made = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| File::create(path));
        let file = made.map_err(|error| failed(path, &error))?;
        Ok(Self {
            path: path.to_owned(),
            file: BufWriter::new(file),
            redactor: Some(StreamRedactor::new(redactor.clone())),
            pending: Vec::new(),
            written: 0,
            end: Vec::new(),
        })
    }

    /// Whether two paths name one file.
    pub(super) fn is_same_file(&self, other: &Self) -> bool {
        let place = |sink: &Self| sink.file.get_ref().metadata().map(|about| (about.dev(), about.ino())).ok();
        place(self).is_some_and(|found| Some(found) == place(other))
    }

    /// Takes what was read.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<(), AgentError> {
        let Some(redactor) = &mut self.redactor else { return self.write(bytes) };
        self.pending.extend_from_slice(bytes);
        let rest = self.pending.split_off(complete(&self.pending));
        let whole = std::mem::replace(&mut self.pending, rest);
        match std::str::from_utf8(&whole) {
            Ok(text) => {
                let text = redactor.push(text);
                self.write(text.as_bytes())
            }
            Err(_) => {
                let held = redactor.finish();
                self.redactor = None;
                self.write(held.as_bytes())?;
                self.write(&whole)?;
                let rest = std::mem::take(&mut self.pending);
                self.write(&rest)
            }
        }
    }

    /// Writes the rest: the stream has ended. Gives the end of what was written.
    pub(super) fn finish(mut self) -> Result<Vec<u8>, AgentError> {
        if let Some(redactor) = &mut self.redactor {
            let held = redactor.finish();
            self.write(held.as_bytes())?;
            let rest = std::mem::take(&mut self.pending);
            self.write(&rest)?;
        }
        self.file.flush().map_err(|error| failed(&self.path, &error))?;
        self.end.drain(..self.end.len().saturating_sub(END));
        Ok(self.end)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), AgentError> {
        self.written += bytes.len() as u64;
        if self.written > FILE_LIMIT {
            let message =
                format!("the output for `{}` is over {} GiB", self.path.display(), FILE_LIMIT >> 30);
            return Err(AgentError::new(ErrorCode::Process, message));
        }
        if self.end.len() > READ_SIZE {
            self.end.drain(..self.end.len() - END);
        }
        self.end.extend_from_slice(&bytes[bytes.len().saturating_sub(READ_SIZE)..]);
        self.file.write_all(bytes).map_err(|error| failed(&self.path, &error))
    }
}

fn failed(path: &Path, error: &io::Error) -> AgentError {
    let code = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorCode::Process,
        _ => ErrorCode::ConfigInvalid,
    };
    AgentError::new(code, format!("`{}` cannot be written: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use inspan_protocol::Environment;

    use super::*;

    fn written(pieces: &[&[u8]]) -> Vec<u8> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/out");
        let env: Environment = [("MY_TOKEN".to_owned(), "planted-42-x".to_owned())].into_iter().collect();
        let mut sink = FileSink::create(&path, &Redactor::new(&env)).unwrap();
        pieces.iter().for_each(|piece| sink.push(piece).unwrap());
        sink.finish().unwrap();
        fs::read(path).unwrap()
    }

    #[test]
    fn a_named_pipe_without_a_reader_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let error = FileSink::create(&path, &Redactor::default()).err().unwrap();
        assert!(error.message.ends_with("cannot be written: it is a named pipe"), "{}", error.message);
    }

    #[test]
    fn texts_lose_their_secrets_and_other_bytes_stay() {
        let ox = "🐂".as_bytes();
        assert_eq!(
            written(&[b"a plan", b"ted-42-x ", &ox[..2], &ox[2..]]),
            "a [redacted MY_TOKEN] 🐂".as_bytes()
        );
        assert_eq!(written(&[b"ab", b"\xff\xfe\0", b"c"]), b"ab\xff\xfe\0c");
        assert_eq!(written(&[&ox[..3]]), &ox[..3]);
        assert_eq!(written(&[]), b"");
    }
}
