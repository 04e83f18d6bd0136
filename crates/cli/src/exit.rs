//! The exit codes of the program and the word that each has in `--json`. The code that knows the
//! result of a session chooses its exit code.

use std::process::ExitCode;

use inspan_protocol::{ErrorCode, Outcome, WaitingOn};

macro_rules! exits {
    ($( $(#[$meta:meta])* $variant:ident $code:literal $word:literal $meaning:literal; )*) => {
        /// How the program ends.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Exit { $( $(#[$meta])* $variant, )* }

        impl Exit {
            /// Every code, its word and what it says, in the order of the codes.
            pub(crate) const ALL: &[(Self, u8, &str, &str)] = &[$( (Self::$variant, $code, $word, $meaning), )*];

            /// The number that the shell sees.
            pub(crate) const fn code(self) -> u8 {
                match self { $( Self::$variant => $code, )* }
            }

            /// The value of `outcome` in `--json`.
            pub(crate) const fn word(self) -> &'static str {
                match self { $( Self::$variant => $word, )* }
            }
        }
    };
}

exits! {
    /// All that was to be done was done.
    Success 0 "success" "success";
    /// The flow failed.
    Failed 1 "failed" "the flow failed";
    /// The command line or the flow is wrong; nothing was started.
    Invalid 2 "invalid" "wrong usage, or an invalid flow";
    /// A person has to answer first.
    Waiting 3 "waiting" "waiting for a person";
    /// A key, a login or a program is missing or refused.
    Configuration 4 "configuration" "configuration, authentication or a missing program";
    /// A budget was used up.
    Budget 5 "budgetExceeded" "budget exceeded";
    /// Something failed, and the rest was done.
    Partial 6 "partial" "partial: a node failed, others completed";
    /// The session is paused.
    Paused 7 "paused" "paused";
    /// A vendor's usage limit has to pass first.
    Limit 75 "limit" "waiting for a usage limit";
    /// The flow's time was up.
    TimedOut 124 "timedOut" "timed out";
    /// Stopped by Ctrl-C.
    Interrupted 130 "stopped" "stopped by SIGINT; the first one pauses a session";
    /// Stopped by SIGTERM.
    Terminated 143 "terminated" "stopped by SIGTERM; the first one pauses a session";
}

impl Exit {
    /// What a session earns, when no signal and no question ended it.
    pub(crate) fn of_session(outcome: Outcome, waits: Option<WaitingOn>, error: Option<ErrorCode>) -> Self {
        match outcome {
            Outcome::Paused => Self::Paused,
            Outcome::Waiting if waits == Some(WaitingOn::Limit) => Self::Limit,
            Outcome::Waiting => Self::Waiting,
            Outcome::Success => Self::Success,
            Outcome::Partial => Self::Partial,
            Outcome::BudgetExceeded => Self::Budget,
            Outcome::TimedOut => Self::TimedOut,
            Outcome::Stopped => Self::Interrupted,
            _ => error.map_or(Self::Failed, Self::of_error),
        }
    }

    /// What a failure earns by its code.
    pub(crate) fn of_error(code: ErrorCode) -> Self {
        match code {
            ErrorCode::ConfigMissing | ErrorCode::ConfigInvalid | ErrorCode::Auth => Self::Configuration,
            _ => Self::Failed,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_codes_are_those_of_the_manual() {
        let codes: Vec<u8> = Exit::ALL.iter().map(|(exit, ..)| exit.code()).collect();
        assert_eq!(codes, [0, 1, 2, 3, 4, 5, 6, 7, 75, 124, 130, 143]);
    }

    #[test]
    fn a_session_earns_its_code() {
        let rows = [
            (Outcome::Success, None, None),
            (Outcome::Partial, None, Some(ErrorCode::Auth)),
            (Outcome::Failed, None, None),
            (Outcome::Failed, None, Some(ErrorCode::Network)),
            (Outcome::Failed, None, Some(ErrorCode::ConfigMissing)),
            (Outcome::Failed, None, Some(ErrorCode::Auth)),
            (Outcome::Stopped, None, None),
            (Outcome::BudgetExceeded, None, None),
            (Outcome::TimedOut, None, Some(ErrorCode::Timeout)),
            (Outcome::Paused, None, None),
            (Outcome::Waiting, Some(WaitingOn::Input), None),
            (Outcome::Waiting, Some(WaitingOn::Limit), None),
        ];
        let codes = rows.map(|(outcome, waits, error)| Exit::of_session(outcome, waits, error).code());
        assert_eq!(codes, [0, 6, 1, 1, 4, 4, 130, 5, 124, 7, 3, 75]);
    }
}
