//! Conversations of agents that a session takes over from the one whose work it reuses: that one may go on in them, or has
//! done so already.

use inspan_protocol::{AgentError, ErrorCode, Event, NodePath, ProviderSessionId};

use super::{
    Reusable, Run, StartNode,
    reusable_task::{ReusableTask, TurnInConversation},
};
use crate::graph::{NodeSession, SessionMode, TaskRef, can_continue};
use crate::state::Conversation;

impl Run {
    /// Why an agent cannot continue a conversation of the other session: that one may continue it too, and a branch is not to
    /// be had.
    pub(super) fn cannot_share(&self, at: TaskRef) -> Option<AgentError> {
        let reusable = self.reusable.as_ref().filter(|reusable| reusable.may_go_on)?;
        let node = self.facts.spec(&self.graph, at);
        let is_branched = |session: NodeSession| session.can_branch || session.mode == SessionMode::Fork;
        let source = self.facts.source(at, node.session.filter(|session| !is_branched(*session))?)?;
        self.facts.continued(&self.graph, at)?;
        let (path, source) = (self.facts.path(&self.graph, at), self.facts.path(&self.graph, source));
        let message = format!(
            "`{path}` cannot continue the conversation of `{source}`: session `{}` may continue it too, and `{}` cannot \
             branch it; fork at `{source}` or at a node before it",
            reusable.session, node.node_type
        );
        Some(AgentError::new(ErrorCode::ConfigInvalid, message))
    }

    /// The conversation that a task continues or branches. One that is also that of the other session is branched, so that
    /// the other stays as it is.
    pub(super) fn conversation_to_join(&self, at: TaskRef) -> Option<(SessionMode, Conversation)> {
        let (session, known) = self.facts.named_conversation(&self.graph, at)?;
        Some(match session.mode {
            SessionMode::Continue if session.can_branch && known.taken_over => {
                let until = self.until_last_taken_over(known);
                match self.is_shared(known, &until) {
                    true => (SessionMode::Fork, until),
                    false => (SessionMode::Continue, known.clone()),
                }
            }
            SessionMode::Continue => (SessionMode::Continue, known.clone()),
            SessionMode::Fork => {
                (SessionMode::Fork, self.until_own_turn(self.facts.source(at, session)?, known))
            }
        })
    }

    /// Whether a conversation is also that of the other session: it may go on in it, or it has had turns there that this
    /// session has not, or it was only taken over there, from one that may have had such; and it is known where these begin.
    fn is_shared(&self, known: &Conversation, until: &Conversation) -> bool {
        let may_go_on = || self.reusable.as_ref().is_some_and(|reusable| reusable.may_go_on);
        let has_others = || self.later_turns(known).is_some() || self.is_older(until);
        may_go_on() || (until.turn_id.is_some() && has_others())
    }

    /// Whether the other session had taken over a conversation and has had no turn in it.
    fn is_older(&self, known: &Conversation) -> bool {
        self.turns().filter(|turn| turn.conversation == known.session_id).all(|turn| turn.is_older)
    }

    /// A conversation up to the last of its turns that this session has taken over, whichever node's turn that was.
    fn until_last_taken_over(&self, known: &Conversation) -> Conversation {
        let mut turns = self.turns_in(known);
        match turns.rfind(|turn| self.is_taken_over(&turn.path)) {
            Some(turn) if turn.turn_id.is_some() => turn.until_here(known),
            // Nobody knows where that ends.
            Some(_) => Conversation { turn_id: None, ..known.clone() },
            None => known.clone(),
        }
    }

    /// The conversation of a node up to the end of its own last turn. If that is taken over, it is in a conversation of the other
    /// session, whatever branch goes on there since: a vendor may give the turns other names in that.
    fn until_own_turn(&self, of: TaskRef, known: &Conversation) -> Conversation {
        let path = self.facts.path(&self.graph, of);
        let is_end = |turn: &TurnInConversation| turn.turn_id.is_some() && turn.turn_id == known.turn_id;
        let is_own = |turn: &&TurnInConversation| {
            is_end(turn) && self.facts.place_taken_over(&turn.path).as_ref() == Some(&path)
        };
        let own = self.facts.node(of).is_reused().then(|| self.turns().rfind(is_own)).flatten();
        own.map_or_else(|| known.clone(), |turn| turn.until_here(known))
    }

    /// The turns that the other session has had in a conversation, also before it went on in a branch.
    fn turns_in<'a>(
        &'a self,
        known: &'a Conversation,
    ) -> impl DoubleEndedIterator<Item = &'a TurnInConversation> {
        let names = self.reusable.iter().flat_map(|reusable| reusable.names_of(&known.session_id));
        let names: Vec<_> = names.collect();
        self.turns().filter(move |turn| names.contains(&&turn.conversation))
    }

    /// The turns that the other session has had.
    fn turns(&self) -> impl DoubleEndedIterator<Item = &TurnInConversation> {
        self.reusable.iter().flat_map(|reusable| &reusable.turns)
    }

    /// A node that has had turns in a conversation in the other session which this one has not.
    fn later_turns(&self, known: &Conversation) -> Option<&NodePath> {
        let reusable = self.reusable.as_ref()?;
        let names: Vec<_> = reusable.names_of(&known.session_id).collect();
        let in_it =
            |task: &ReusableTask| task.conversation.as_ref().is_some_and(|in_it| names.contains(&in_it));
        let mut others =
            reusable.tasks.iter().filter(|(path, task)| in_it(task) && !self.is_taken_over(path));
        others.next().map(|(path, _)| path).or_else(|| reusable.went_on.get(&known.session_id))
    }

    /// What to say of an agent that goes on in a conversation as it is now, if the other session has had turns in it that
    /// this one has not.
    pub(super) fn warn_of_later_turns(&self, start: &StartNode) -> Option<String> {
        let branched = start.branches.as_ref().filter(|known| known.turn_id.is_none());
        let known = branched.or(start.conversation.as_ref());
        let known = known.filter(|known| known.taken_over && start.attempt == 1)?;
        let (later, reusable) = (self.later_turns(known)?, self.reusable.as_ref()?);
        Some(format!(
            "`{}` continues a conversation that has later turns, of `{later}` in session `{}`",
            start.path, reusable.session
        ))
    }

    /// What to say of an agent that begins its own conversation, because another provider's agent held the one that the node
    /// names.
    pub(super) fn warn_of_other_provider(&self, start: &StartNode) -> Option<String> {
        let begins = start.conversation.is_none() && start.branches.is_none() && start.interrupted.is_none();
        let node = self.facts.spec(&self.graph, start.node);
        let session = node.session.filter(|_| begins && self.facts.node(start.node).failures == 0)?;
        let source = self.facts.source(start.node, session)?;
        self.facts.node(source).conversation.as_ref()?;
        let other = self.facts.conversation_agent(&self.graph, source);
        (!can_continue(other.provider(), node.provider())).then(|| {
            format!(
                "`{}` begins its own conversation: a `{}` held that of `{}`",
                start.path,
                other.node_type,
                self.facts.path(&self.graph, source)
            )
        })
    }

    /// Whether a task of the other session was reused in this one.
    fn is_taken_over(&self, path: &NodePath) -> bool {
        self.facts.place_taken_over(path).is_some()
    }

    /// The conversation that a task continues or branches.
    pub(super) fn session_words(&self, at: TaskRef) -> Option<String> {
        let session = self.facts.spec(&self.graph, at).session?;
        let source = self.facts.source(at, session)?;
        Some(format!("{:?} {}", session.mode, self.facts.path(&self.graph, source).place()))
    }
}

impl Reusable {
    /// The name that a conversation has since the session went on in a branch of it.
    pub(super) fn newest<'a>(&'a self, known: &'a ProviderSessionId) -> &'a ProviderSessionId {
        self.branched.get(known).unwrap_or(known)
    }

    /// A conversation, and those of which it is the newest branch: it goes on where they were left.
    fn names_of<'a>(&'a self, known: &'a ProviderSessionId) -> impl Iterator<Item = &'a ProviderSessionId> {
        let older = self.branched.iter().filter(move |(_, newest)| *newest == known).map(|(older, _)| older);
        [known].into_iter().chain(older)
    }

    /// Notes that an agent continues a conversation of the session before on a branch.
    pub(super) fn note_branch(&mut self, run: &Run, path: &NodePath, event: &Event) {
        let Event::AgentSession { session_id, .. } = event else { return };
        let task = run.facts.find_any_pass(&run.graph, path);
        let continued = task.and_then(|task| run.facts.continued(&run.graph, task));
        if let Some(known) = continued.filter(|known| *known != session_id) {
            self.branched.insert(known.clone(), session_id.clone());
        }
    }

    /// Adds the turns that the session has taken over, or could still take over, from the one before, and what is known of the
    /// conversations of that one.
    pub(super) fn take_older_turns(&mut self, run: &Run) {
        let inherited = std::mem::take(&mut self.inherited);
        let older = run.turns().filter_map(|turn| {
            let path =
                run.facts.place_taken_over(&turn.path).or_else(|| inherited.get(&turn.path).cloned())?;
            Some(TurnInConversation { path, is_older: true, ..turn.clone() })
        });
        self.turns.splice(..0, older);
        for (known, branch) in run.reusable.iter().flat_map(|reusable| &reusable.branched) {
            let newest = self.newest(branch).clone();
            self.branched.entry(known.clone()).or_insert(newest);
        }
    }
}
