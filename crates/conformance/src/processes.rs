//! What runs of one suite, found by a mark in its environment, which every program hands on to what it starts.

/// The variable that carries the mark.
pub(crate) const MARK: &str = "INSPAN_CONFORMANCE";

/// Whether processes can be looked for on this system.
pub(crate) fn can_be_listed() -> bool {
    std::path::Path::new("/proc/self/environ").exists()
}

/// The command lines of the living processes with this mark.
pub(crate) fn marked(mark: &str) -> Vec<String> {
    let wanted = format!("{MARK}={mark}");
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| {
        // A process that has ended and is not yet reaped has no environment, and counts as gone.
        let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
        environment.split(|byte| *byte == 0).find(|pair| *pair == wanted.as_bytes())?;
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        Some(String::from_utf8_lossy(&line).replace('\0', " ").trim().to_owned())
    })
    .collect()
}
