//! The supervisor between the runtime and a program that it starts, so that nothing of the program outlives the runtime.

use std::{ffi::OsString, io, path::PathBuf};

/// A program that starts another one and answers for it.
///
/// It starts the program with its own streams, environment and folder, in a new process group, and ends as the
/// program ends: with its exit code, or by its signal. By then everything that the program started is gone, however
/// far it ran; and if the runtime goes first, all of it goes at once. It hands SIGTERM, SIGINT and SIGHUP to the
/// program's group, and on SIGUSR1 it kills the program and all its descendants. SIGKILL takes the supervisor alone,
/// so it is never the way to end a supervised program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Supervisor {
    program: PathBuf,
    arguments: Vec<OsString>,
}

/// How what a supervisor says begins if it cannot start the program; the system's own words follow.
const REFUSED: &str = "inspan: cannot start ";

impl Supervisor {
    /// What it calls itself wherever processes are listed. `inspan` is no part of it: `pkill -9 inspan` must leave it, so that
    /// it ends what the runtime started.
    pub const NAME: &str = "process-guard";
    /// The exit code of a supervisor that cannot start the program.
    pub const REFUSED: u8 = 127;

    /// This program, which supervises when it is called with these arguments.
    pub fn new(
        program: impl Into<PathBuf>,
        arguments: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Self {
        Self { program: program.into(), arguments: arguments.into_iter().map(Into::into).collect() }
    }

    /// What to start instead of a program: the supervisor, and the arguments that come before the program's own.
    /// `runtime` is the number of the process that starts it, and whose end it watches for.
    pub fn before(&self, runtime: u32, program: impl Into<OsString>) -> (PathBuf, Vec<OsString>) {
        let mut arguments = self.arguments.clone();
        arguments.extend([OsString::from(runtime.to_string()), program.into()]);
        (self.program.clone(), arguments)
    }

    /// What a supervisor says when it cannot start the program.
    pub fn refusal(program: &str, error: &io::Error) -> String {
        format!("{REFUSED}{program}: {error}\n")
    }

    /// Why the program was not started, from the exit and the output of a supervisor.
    pub fn refused(code: Option<i32>, stderr: &str) -> Option<io::Error> {
        let message = stderr.strip_prefix(REFUSED).filter(|_| code == Some(Self::REFUSED.into()))?;
        let (_, number) = message.trim_end().strip_suffix(')')?.rsplit_once("(os error ")?;
        Some(io::Error::from_raw_os_error(number.parse().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stands_before_the_program_and_its_arguments() {
        let supervisor = Supervisor::new("/bin/inspan", ["supervise"]);
        let expected = ["supervise", "7", "cat"].map(OsString::from).to_vec();
        assert_eq!(supervisor.before(7, "cat"), (PathBuf::from("/bin/inspan"), expected));
    }

    #[test]
    fn a_refusal_is_distinguished_from_a_program_that_ended_badly() {
        let returned = Supervisor::refusal("a:b", &io::Error::from_raw_os_error(2));
        let kind = |code, returned: &str| Supervisor::refused(code, returned).map(|error| error.kind());
        assert_eq!(kind(Some(127), &returned), Some(io::ErrorKind::NotFound));
        assert_eq!(kind(Some(1), &returned), None);
        assert_eq!(kind(None, &returned), None);
        assert_eq!(kind(Some(127), "sh: nope: not found\n"), None);
        assert_eq!(kind(Some(127), "inspan: cannot start a: \n"), None);
    }
}
