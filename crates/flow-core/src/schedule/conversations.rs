//! Conversations of agents that a session takes over from the one whose work it reuses: that one may go on in them, or has
//! done so already.

use inspan_protocol::{AgentError, ErrorCode, NodePath};

use super::{
    Run, StartNode,
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
            SessionMode::Continue if session.can_branch && self.is_shared(known) => {
                (SessionMode::Fork, self.taken_over(known))
            }
            mode => (mode, known.clone()),
        })
    }

    /// Whether a conversation is also that of the other session: it may go on in it, or it has had turns there that this
    /// session has not, or it was only taken over there, from one that may have had such; and it is known where these begin.
    fn is_shared(&self, known: &Conversation) -> bool {
        let may_go_on = || self.reusable.as_ref().is_some_and(|reusable| reusable.may_go_on);
        let has_others = || self.later_turns(known).is_some() || self.is_older(known);
        known.taken_over && (may_go_on() || (known.turn_id.is_some() && has_others()))
    }

    /// Whether the other session had taken over a conversation and has had no turn in it.
    fn is_older(&self, known: &Conversation) -> bool {
        self.turns_in(known).all(|turn| turn.is_older)
    }

    /// A conversation up to the last of its turns that this session has taken over, whichever node's turn that was.
    fn taken_over(&self, known: &Conversation) -> Conversation {
        let last = self.turns_in(known).rev().find(|turn| self.is_taken_over(&turn.path));
        let turn_id = last.map_or_else(|| known.turn_id.clone(), |turn| turn.turn_id.clone());
        Conversation { turn_id, ..known.clone() }
    }

    /// The turns that the other session has had in a conversation.
    fn turns_in<'a>(
        &'a self,
        known: &'a Conversation,
    ) -> impl DoubleEndedIterator<Item = &'a TurnInConversation> {
        self.turns().filter(|turn| turn.conversation == known.session_id)
    }

    /// The turns that the other session has had.
    fn turns(&self) -> impl DoubleEndedIterator<Item = &TurnInConversation> {
        self.reusable.iter().flat_map(|reusable| &reusable.turns)
    }

    /// What a session that reuses this one's work has of the turns that this one has taken over.
    pub(super) fn older_turns(&self) -> impl Iterator<Item = TurnInConversation> {
        let older = self.turns().filter(|turn| self.is_taken_over(&turn.path));
        older.map(|turn| TurnInConversation { is_older: true, ..turn.clone() })
    }

    /// A node that has had turns in a conversation in the other session which this one has not.
    fn later_turns(&self, known: &Conversation) -> Option<&NodePath> {
        let reusable = self.reusable.as_ref()?;
        let in_it = |task: &ReusableTask| task.conversation.as_ref() == Some(&known.session_id);
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
            "`{}` goes on in a conversation as it is now, with the turns of `{later}` in session `{}`",
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
        let other = self.facts.speaker(&self.graph, source);
        (!can_continue(other.provider(), node.provider())).then(|| {
            format!(
                "`{}` begins its own conversation: a `{}` held that of `{}`",
                start.path,
                other.node_type,
                self.facts.path(&self.graph, source)
            )
        })
    }

    /// Whether a task of the other session was reused in this one; one in a frame that has ended was, if nothing ran there.
    fn is_taken_over(&self, path: &NodePath) -> bool {
        match self.facts.find_any_pass(&self.graph, path) {
            Some(task) => {
                let node = self.facts.node(task);
                node.is_reused() || node.pass > path.pass()
            }
            None => path.owner().is_some_and(|owner| match self.facts.find_any_pass(&self.graph, &owner) {
                Some(owner) => !self.facts.node(owner).worked,
                None => self.is_taken_over(&owner),
            }),
        }
    }

    /// The conversation that a task continues or branches.
    pub(super) fn session_words(&self, at: TaskRef) -> Option<String> {
        let session = self.facts.spec(&self.graph, at).session?;
        let source = self.facts.source(at, session)?;
        Some(format!("{:?} {}", session.mode, self.facts.path(&self.graph, source).place()))
    }
}
