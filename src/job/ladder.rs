//! Where a stage that was told to end stands on its ladder of signals. Sends none itself.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::BootTime;
use crate::forge::{Ladder, Signal};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Signal(Signal),
    /// The ladder is used up.
    GiveUp,
}

#[derive(Debug)]
pub(super) struct Climb {
    rungs: VecDeque<(Signal, Duration)>,
    /// When the next rung is due.
    at: BootTime,
    /// KILL comes no later than this; `None` once it was sent.
    kill_by: Option<BootTime>,
    killed: bool,
    /// How long a KILL that no rung holds may take.
    kill_wait: Duration,
}

impl Climb {
    /// Its first signal is due at once.
    pub(super) fn new(ladder: &Ladder, kill_wait: Duration, now: BootTime) -> Climb {
        Climb { rungs: ladder.0.iter().copied().collect(), at: now, kill_by: None, killed: false, kill_wait }
    }

    /// What is left is cut short, never made longer.
    pub(super) fn hurry(&mut self, kill_by: BootTime) {
        if !self.killed {
            self.kill_by = Some(self.kill_by.map_or(kill_by, |k| k.min(kill_by)));
        }
    }

    /// What is due now; asked again until it says `None`.
    pub(super) fn due(&mut self, now: BootTime) -> Option<Step> {
        if self.kill_by.is_some_and(|by| by <= now) {
            self.rungs.retain(|(signal, _)| *signal == Signal::Kill);
            if self.rungs.is_empty() {
                self.rungs.push_back((Signal::Kill, self.kill_wait));
            }
            self.at = now;
        }
        if self.at > now {
            return None;
        }
        let Some((signal, wait)) = self.rungs.pop_front() else { return Some(Step::GiveUp) };
        self.at = now.after(wait);
        if signal == Signal::Kill {
            (self.killed, self.kill_by) = (true, None);
        }
        Some(Step::Signal(signal))
    }

    pub(super) fn next(&self) -> BootTime {
        self.kill_by.map_or(self.at, |by| by.min(self.at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Signal::{Int, Kill, Term};

    const SEC: Duration = Duration::from_secs(1);

    /// `hurry`: at this second the ladder is told to kill by that one. What is sent at which second.
    fn check(what: &str, ladder: &[(Signal, u32)], hurry: &[(u64, u64)], want: &[(u64, Step)]) {
        let start = BootTime::now();
        let at = |s: u64| start.after(SEC * s as u32);
        let ladder = Ladder(ladder.iter().map(|(s, wait)| (*s, SEC * *wait)).collect());
        let mut climb = Climb::new(&ladder, SEC * 7, start);
        let mut got = Vec::new();
        for second in 0..100 {
            for (_, by) in hurry.iter().filter(|(when, _)| *when == second) {
                climb.hurry(at(*by));
            }
            while let Some(step) = climb.due(at(second)) {
                got.push((second, step));
                if step == Step::GiveUp {
                    assert_eq!(got, want, "{what}");
                    return;
                }
            }
            assert!(climb.next() > at(second), "{what}: it would be asked for ever");
        }
        panic!("{what}: no end: {got:?}");
    }

    #[test]
    fn a_ladder_is_climbed_to_its_end_and_can_only_be_cut_short() {
        let (int, term, kill) = (Step::Signal(Int), Step::Signal(Term), Step::Signal(Kill));
        let up = Step::GiveUp;
        check("as it is", &[(Term, 10), (Kill, 5)], &[], &[(0, term), (10, kill), (15, up)]);
        check("hurried", &[(Term, 60), (Kill, 5)], &[(3, 8)], &[(0, term), (8, kill), (13, up)]);
        check(
            "the earliest hurry wins",
            &[(Term, 60), (Kill, 5)],
            &[(1, 9), (2, 6), (3, 20)],
            &[(0, term), (6, kill), (11, up)],
        );
        check("a hurry later than the ladder", &[(Term, 4), (Kill, 5)], &[(1, 50)], &[(0, term), (4, kill), (9, up)]);
        check("a hurry after the KILL", &[(Term, 4), (Kill, 9)], &[(6, 7)], &[(0, term), (4, kill), (13, up)]);
        check("a hurry at once", &[(Int, 7), (Term, 3), (Kill, 5)], &[(0, 0)], &[(0, kill), (5, up)]);
        check("without a KILL", &[(Int, 7), (Term, 3)], &[], &[(0, int), (7, term), (10, up)]);
        check("hurried without a KILL", &[(Int, 7), (Term, 3)], &[(8, 9)], &[(0, int), (7, term), (9, kill), (16, up)]);
        check("nothing on it", &[], &[], &[(0, up)]);
    }
}
