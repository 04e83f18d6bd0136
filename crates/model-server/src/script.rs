//! Chooses which turn answers a request, and counts; pure, one call per request.

use serde::{Deserialize, Serialize};

use crate::record::{RequestKind, TurnRef};
use crate::scenario::{After, HttpError, Matcher, Scenario, Turn};
use crate::wire::RequestView;

/// How far the script has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ServerState {
    /// Sequence turns requested since the scenario was set, those beyond its end included.
    pub turn: usize,
    /// Main requests since the server started.
    pub main: u64,
    /// Auxiliary requests since the server started.
    pub aux: u64,
    /// HTTP requests of every kind since the server started.
    pub requests: u64,
}

/// The scenario and how much of it is used up.
#[derive(Debug)]
pub(crate) struct Script {
    scenario: Scenario,
    /// How often each turn answered, by its index in the scenario.
    used: Vec<u32>,
    next: usize,
    main: u64,
    aux: u64,
}

/// The turn that answers, and the words its ids are made of.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PickedTurn {
    pub(crate) turn: Turn,
    pub(crate) place: TurnRef,
    pub(crate) kind: RequestKind,
    /// `main_3` or `aux_1`: counted per kind, so that a stray auxiliary request moves no id of the main line.
    pub(crate) stem: String,
}

impl Script {
    pub(crate) fn new(scenario: Scenario) -> Self {
        let used = vec![0; scenario.turns.len()];
        Self { scenario, used, next: 0, main: 0, aux: 0 }
    }

    /// Starts another scenario from its first turn. Ids continue counting, so that no client sees one twice.
    pub(crate) fn replace(&mut self, scenario: Scenario) {
        *self = Self { main: self.main, aux: self.aux, ..Self::new(scenario) };
    }

    pub(crate) fn scenario(&self) -> &Scenario {
        &self.scenario
    }

    pub(crate) fn state(&self, requests: u64) -> ServerState {
        ServerState { turn: self.next, main: self.main, aux: self.aux, requests }
    }

    pub(crate) fn choose(&mut self, request: &RequestView) -> PickedTurn {
        if self.scenario.aux_detect && request.tools.is_empty() {
            self.aux += 1;
            return PickedTurn {
                turn: self.scenario.aux.clone(),
                place: TurnRef::Aux,
                kind: RequestKind::Aux,
                stem: format!("aux_{}", self.aux),
            };
        }
        self.main += 1;
        let (turn, place) = match self.rule(request).or_else(|| self.following()) {
            Some(index) => {
                self.used[index] += 1;
                (self.scenario.turns[index].clone(), TurnRef::Turn(index))
            }
            None => (exhausted(), TurnRef::Exhausted),
        };
        PickedTurn { turn, place, kind: RequestKind::Main, stem: format!("main_{}", self.main) }
    }

    fn rule(&self, request: &RequestView) -> Option<usize> {
        self.scenario.turns.iter().zip(&self.used).position(|(turn, used)| {
            let left = turn.times.is_none_or(|times| *used < times);
            left && turn.when.as_ref().is_some_and(|matcher| matcher.fits(request))
        })
    }

    fn following(&mut self) -> Option<usize> {
        let turns = self.scenario.turns.iter().enumerate();
        let sequence: Vec<usize> =
            turns.filter(|(_, turn)| turn.when.is_none()).map(|(index, _)| index).collect();
        let position = self.next;
        self.next += 1;
        sequence.get(position).copied().or_else(|| match self.scenario.after {
            After::Last => sequence.last().copied(),
            After::Cycle => sequence.get(position.checked_rem(sequence.len())?).copied(),
            After::Error => None,
        })
    }
}

fn exhausted() -> Turn {
    let error = Turn::error(500);
    let http_error =
        error.http_error.map(|error| HttpError { message: "script exhausted".to_owned(), ..error });
    Turn { http_error, ..Turn::default() }
}

impl Matcher {
    /// Whether every key given fits the request.
    pub(crate) fn fits(&self, request: &RequestView) -> bool {
        let within = |part: &Option<String>, text: Option<&str>| {
            part.as_ref().is_none_or(|part| text.is_some_and(|text| text.contains(part.as_str())))
        };
        within(&self.last_message_contains, request.user_messages.last().map(String::as_str))
            && within(&self.system_contains, Some(&request.system))
            && self.model.as_ref().is_none_or(|model| *model == request.model)
            && self
                .any_message_contains
                .as_ref()
                .is_none_or(|part| request.user_messages.iter().any(|text| text.contains(part.as_str())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Matcher;
    use crate::wire::Delivery;

    fn request(message: &str) -> RequestView {
        RequestView {
            model: "m".to_owned(),
            delivery: Delivery::Stream,
            tools: vec!["Bash".to_owned()],
            system: "be brief".to_owned(),
            user_messages: vec!["first".to_owned(), message.to_owned()],
            ..RequestView::default()
        }
    }

    fn places(script: &mut Script, messages: &[&str]) -> Vec<TurnRef> {
        messages.iter().map(|message| script.choose(&request(message)).place).collect()
    }

    #[test]
    fn rules_come_before_the_sequence_and_wear_out() {
        let scenario = Scenario::of([
            Turn::text("a"),
            Turn { times: Some(1), ..Turn::text("b").when(Matcher::last("ping")) },
            Turn::text("c").when(Matcher { model: Some("other".to_owned()), ..Matcher::any("ping") }),
            Turn::text("d"),
        ]);
        let mut script = Script::new(scenario);
        let found = places(&mut script, &["ping", "ping", "x", "ping me"]);
        assert_eq!(found, [1, 0, 3, 3].map(TurnRef::Turn));
        assert_eq!(script.state(9), ServerState { turn: 3, main: 4, aux: 0, requests: 9 });
    }

    #[test]
    fn after_the_last_turn_the_scenario_decides() {
        let run = |after| {
            let mut script =
                Script::new(Scenario { after, ..Scenario::of([Turn::text("a"), Turn::text("b")]) });
            places(&mut script, &["1", "2", "3", "4"])
        };
        use TurnRef::{Exhausted, Turn as At};
        assert_eq!(run(After::Last), [At(0), At(1), At(1), At(1)]);
        assert_eq!(run(After::Cycle), [At(0), At(1), At(0), At(1)]);
        assert_eq!(run(After::Error), [At(0), At(1), Exhausted, Exhausted]);
    }

    #[test]
    fn an_empty_sequence_is_exhausted_whatever_comes_after() {
        for after in [After::Last, After::Cycle, After::Error] {
            let mut script = Script::new(Scenario { after, ..Scenario::of([]) });
            assert_eq!(places(&mut script, &["x"]), [TurnRef::Exhausted]);
        }
    }

    #[test]
    fn requests_without_tools_use_up_no_turn() {
        let bare = RequestView { tools: vec![], ..request("x") };
        let scenario = Scenario::of([Turn::text("a")]);
        let mut script = Script::new(scenario.clone());
        let choice = script.choose(&bare);
        assert_eq!((choice.place, choice.stem.as_str()), (TurnRef::Aux, "aux_1"));
        assert_eq!(script.state(1), ServerState { turn: 0, main: 0, aux: 1, requests: 1 });

        script.replace(Scenario { aux_detect: false, ..scenario });
        let choice = script.choose(&bare);
        assert_eq!((choice.place, choice.stem.as_str()), (TurnRef::Turn(0), "main_1"));
        assert_eq!(script.state(2), ServerState { turn: 1, main: 1, aux: 1, requests: 2 });
    }

    #[test]
    fn every_key_of_a_matcher_must_fit() {
        let full = Matcher {
            last_message_contains: Some("pin".to_owned()),
            any_message_contains: Some("irs".to_owned()),
            system_contains: Some("brief".to_owned()),
            model: Some("m".to_owned()),
        };
        assert!(full.fits(&request("ping")));
        let other = || Some("zzz".to_owned());
        let misfits = [
            Matcher { last_message_contains: other(), ..full.clone() },
            Matcher { any_message_contains: other(), ..full.clone() },
            Matcher { system_contains: other(), ..full.clone() },
            Matcher { model: other(), ..full },
        ];
        assert_eq!(misfits.map(|matcher| matcher.fits(&request("ping"))), [false; 4]);
        let silent = RequestView { user_messages: vec![], ..request("") };
        assert!(!Matcher::last("").fits(&silent), "no message contains nothing");
    }
}
