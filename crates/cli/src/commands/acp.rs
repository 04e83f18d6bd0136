//! `inspan acp`: the flows of a folder as an agent for editors, over standard input and output.

use std::{path::Path, sync::Arc};

use inspan_acp_server::serve;
use inspan_engine::{IdSource, RandomIds};
use inspan_sessions::{SessionError, SessionErrorCode};

use crate::{args::AcpArgs, exit::Exit, failure::Failure, invocation::Invocation, launcher::sessions, store};

pub(super) fn run(args: &AcpArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let named = if args.flows.flows.is_empty() { None } else { Some(args.flows.folders(invocation)?) };
    // A store that cannot be used is reported at once, and not when the editor opens a conversation.
    store::open_writer(invocation)?;
    let invocation = invocation.clone();
    let open = move |cwd: &Path| {
        let folders = named.clone().unwrap_or_else(|| vec![cwd.to_owned()]);
        let invocation = Invocation { cwd: Some(cwd.to_owned()), ..invocation.clone() };
        sessions(folders, &invocation).map_err(|failure| SessionError {
            hint: failure.hint,
            ..SessionError::new(SessionErrorCode::StoreUnavailable, failure.message)
        })
    };
    store::block_on(async {
        let fresh_id = || RandomIds::new().session_id();
        serve(Arc::new(open), Arc::new(fresh_id), tokio::io::stdin(), tokio::io::stdout()).await;
        Ok(Exit::Success)
    })
}
