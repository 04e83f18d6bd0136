//! The transcripts that the program writes of its sub-agents. They tell what each message took at its end, of which the
//! output tells only the beginning. They are a supplement: what cannot be read, or has another form, is left out.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use inspan_protocol::{ProviderSessionId, StreamEvent, Timestamp, Usage};
use inspan_transport::{Line, LineSplitter};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::wire;

/// How much of one transcript is read at a time, in bytes.
const READ_LIMIT: u64 = 8 * 1024 * 1024;
/// How long a turn waits for them.
const READ_TIME: Duration = Duration::from_secs(1);

/// The transcripts of the sub-agents of one turn.
#[derive(Debug)]
pub(super) struct Transcripts {
    /// Where the program stores its conversations; nothing is read without it.
    projects: Option<PathBuf>,
    agents: BTreeSet<String>,
    reader: Arc<Mutex<Reader>>,
    /// Whether they are read no more in this turn, since a disk did not answer in time.
    is_slow: bool,
    /// Whether that is to be said.
    is_to_warn: bool,
}

/// What reads them, on a thread that may block.
#[derive(Debug)]
struct Reader {
    /// What was written before is of earlier turns.
    since: Timestamp,
    folder: Option<PathBuf>,
    read: BTreeMap<String, ReadPart>,
    /// What was read and not taken yet.
    counts: Vec<(String, Usage)>,
}

/// How far a transcript was read.
#[derive(Debug, Default)]
struct ReadPart {
    bytes: u64,
    lines: LineSplitter,
}

impl Transcripts {
    pub(super) fn new(projects: Option<PathBuf>) -> Self {
        Self { projects, agents: BTreeSet::new(), reader: Reader::new(), is_slow: false, is_to_warn: false }
    }

    /// A turn begins.
    pub(super) fn begin_turn(&mut self) {
        *self = Self::new(self.projects.take());
    }

    /// Reads what is new in those of the turn's sub-agents, to which these belong now. Can be cancelled.
    pub(super) async fn read<'a>(
        &mut self,
        session: &ProviderSessionId,
        running: impl Iterator<Item = &'a str>,
    ) {
        let Some(projects) = &self.projects else { return };
        self.agents.extend(running.filter(|agent| is_file_name(agent)).map(str::to_owned));
        if self.is_slow || self.agents.is_empty() || !is_file_name(session.as_str()) {
            return;
        }
        let (projects, session, agents) = (projects.clone(), session.to_string(), self.agents.clone());
        let reader = Arc::clone(&self.reader);
        let reading = spawn_blocking(move || {
            let mut reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
            reader.read_all(&projects, &session, agents);
        });
        if timeout(READ_TIME, reading).await.is_err() {
            // This turn does not wait for such a disk again; the next one may find it faster.
            (self.is_slow, self.is_to_warn) = (true, true);
        }
    }

    /// That sub-agents are not counted any more while they work, if that is so since the last time.
    pub(super) fn take_warning(&mut self) -> Option<StreamEvent> {
        std::mem::take(&mut self.is_to_warn).then(|| StreamEvent::warning("subAgentsNotCounted", format!(
                "the transcripts of sub-agents could not be read within {} s: until the end of the turn a message of \
                 theirs counts at least a token for each four characters",
                READ_TIME.as_secs()
            )))
    }

    /// What messages took, by their ids, as far as it was read since the last time.
    pub(super) fn take_counts(&self) -> Vec<(String, Usage)> {
        // One that still reads gives them the next time.
        self.reader.try_lock().map(|mut reader| std::mem::take(&mut reader.counts)).unwrap_or_default()
    }
}

impl Reader {
    #[expect(
        clippy::disallowed_methods,
        reason = "the program names the times of its messages, by the system's clock"
    )]
    fn new() -> Arc<Mutex<Self>> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        Arc::new(Mutex::new(Self {
            since: Timestamp::from_millis(now.try_into().unwrap_or(i64::MAX)),
            folder: None,
            read: BTreeMap::new(),
            counts: Vec::new(),
        }))
    }

    fn read_all(&mut self, projects: &Path, session: &str, agents: BTreeSet<String>) {
        if self.folder.is_none() {
            let entries = fs::read_dir(projects).into_iter().flatten().flatten();
            let folders = entries.map(|entry| entry.path().join(session).join("subagents"));
            self.folder = folders.into_iter().find(|folder| folder.is_dir());
        }
        let Some(folder) = self.folder.clone() else { return };
        for agent in agents {
            let path = folder.join(format!("agent-{agent}.jsonl"));
            // It is there when the sub-agent has begun.
            let _supplement = self.read_one(agent, &path);
        }
    }

    fn read_one(&mut self, agent: String, path: &Path) -> io::Result<()> {
        // To open a pipe would block.
        if !path.metadata()?.is_file() {
            return Ok(());
        }
        let part = self.read.entry(agent).or_default();
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(part.bytes))?;
        let mut bytes = Vec::new();
        file.take(READ_LIMIT).read_to_end(&mut bytes)?;
        part.bytes += bytes.len() as u64;
        let (counts, since) = (&mut self.counts, self.since);
        part.lines.push(&bytes, |line| {
            if let Line::Text(line) = line
                && let Ok(line) = serde_json::from_str::<wire::TranscriptLine<'_>>(line)
            {
                counts.extend(line.count(since));
            }
        });
        Ok(())
    }
}

/// Whether a word of the program can be a part of a path.
fn is_file_name(word: &str) -> bool {
    !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn message(id: &str, stop: Option<&str>, tokens: u64, at: &str) -> String {
        let usage = json!({ "input_tokens": 100, "output_tokens": tokens });
        let message = json!({ "id": id, "role": "assistant", "stop_reason": stop, "usage": usage });
        json!({ "type": "assistant", "timestamp": at, "message": message }).to_string() + "\n"
    }

    #[tokio::test]
    async fn what_messages_took_is_read_as_it_is_written() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("-work/s-1/subagents");
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join("agent-a1.jsonl");
        let session = ProviderSessionId::from("s-1");
        let mut transcripts = Transcripts::new(Some(home.path().to_path_buf()));
        let (now, end) = ("2999-01-01T00:00:00.000Z", Some("tool_use"));
        let mut written = String::new();
        let other = json!({ "type": "user", "timestamp": now, "message": { "content": "go" } });
        let next = message("next", end, 9, now);
        let rows: [(&str, Vec<&str>); 6] = [
            (&message("first", end, 5000, now), vec!["first"]),
            (&message("earlier", end, 1, "2000-01-01T00:00:00.000Z"), vec![]),
            (&message("not finished", None, 1, now), vec![]),
            (&format!("{other}\n[]\nnonsense\n"), vec![]),
            (&next[..20], vec![]),
            (&next[20..], vec!["next"]),
        ];
        transcripts.read(&session, ["a1"].into_iter()).await;
        assert_eq!(transcripts.take_counts(), [], "there is no file yet");
        for (more, expected) in rows {
            written += more;
            fs::write(&file, &written).unwrap();
            transcripts.read(&session, ["..", "a1"].into_iter()).await;
            let read = transcripts.take_counts();
            assert_eq!(read.iter().map(|(id, _)| id.as_str()).collect::<Vec<_>>(), expected, "{more}");
            assert!(read.iter().all(|(_, usage)| usage.input_tokens == 100));
        }
        // It is read to its end after the sub-agent has ended, and not for the turns that follow.
        fs::write(&file, written + &message("last", end, 7, now)).unwrap();
        transcripts.read(&session, [].into_iter()).await;
        let last = Usage { input_tokens: 100, output_tokens: 7, ..Usage::default() };
        assert_eq!(transcripts.take_counts(), [("last".to_owned(), last)]);
        transcripts.begin_turn();
        transcripts.read(&session, [].into_iter()).await;
        assert_eq!(transcripts.take_counts(), []);
    }

    #[tokio::test]
    async fn what_is_no_file_blocks_nothing() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("-work/s-1/subagents");
        fs::create_dir_all(&folder).unwrap();
        let pipe = folder.join("agent-a1.jsonl");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let mut transcripts = Transcripts::new(Some(home.path().to_path_buf()));
        transcripts.read(&ProviderSessionId::from("s-1"), ["a1"].into_iter()).await;
        assert_eq!(transcripts.take_counts(), []);
        assert_eq!(transcripts.take_warning(), None);
    }

    #[tokio::test]
    async fn a_disk_that_does_not_answer_is_asked_again_in_the_next_turn() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("-work/s-1/subagents");
        fs::create_dir_all(&folder).unwrap();
        let line = message("first", Some("end_turn"), 7, "2999-01-01T00:00:00.000Z");
        fs::write(folder.join("agent-a1.jsonl"), line).unwrap();
        let session = ProviderSessionId::from("s-1");
        let mut transcripts = Transcripts::new(Some(home.path().to_path_buf()));
        let reader = Arc::clone(&transcripts.reader);
        let (holds, held) = std::sync::mpsc::channel();
        let (ends, ended) = std::sync::mpsc::channel::<()>();
        let disk = std::thread::spawn(move || {
            let _held = reader.lock().unwrap();
            holds.send(()).unwrap();
            ended.recv().unwrap_err();
        });
        held.recv().unwrap();
        for is_first in [true, false] {
            transcripts.read(&session, ["a1"].into_iter()).await;
            assert_eq!(transcripts.take_warning().is_some(), is_first);
        }
        assert_eq!(transcripts.take_counts(), []);
        drop(ends);
        disk.join().unwrap();
        transcripts.begin_turn();
        transcripts.read(&session, ["a1"].into_iter()).await;
        assert_eq!((transcripts.take_counts().len(), transcripts.take_warning()), (1, None));
    }
}
