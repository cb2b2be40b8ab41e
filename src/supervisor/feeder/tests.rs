//! Turns by the tick: 100 ms each, an interval of 3 s.

use super::*;

struct Clock {
    feeder: Feeder,
    start: Instant,
    now: Instant,
}

const A: EntryId = EntryId(0);
const B: EntryId = EntryId(1);

fn fed(id: EntryId, limit: usize, requests: usize) -> Fed {
    Fed { id, key: format!("key-{}", id.0), limit, requests }
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn pace(concurrent: usize) -> Pace {
    Pace { concurrent, interval: ms(3000), parked_after: ms(2000), unhealthy_rest: ms(3_600_000) }
}

fn clock(concurrent: usize, entries: Vec<Fed>) -> Clock {
    let now = Instant::now();
    let mut feeder = Feeder::new(pace(concurrent));
    feeder.set(pace(concurrent), entries, now);
    Clock { feeder, start: now, now }
}

impl Clock {
    fn at(&mut self, n: u64) -> &mut Clock {
        self.now = self.start + ms(n);
        self
    }

    /// Take the poll that must be due, of this entry and this patience.
    #[track_caller]
    fn poll(&mut self, entry: EntryId, patience: Patience) -> PollId {
        assert_eq!(self.feeder.turn(self.now), Turn::Poll { entry, patience });
        let id = self.feeder.next_poll();
        self.feeder.polling(entry, patience, self.now);
        id
    }

    fn answer(&mut self, poll: PollId, answer: Answer) {
        self.feeder.answered(poll, answer, self.now);
    }

    #[track_caller]
    fn waits(&self, until: Option<u64>) {
        assert_eq!(self.feeder.turn(self.now), Turn::Wait(until.map(|n| self.start + ms(n))));
    }
}

#[test]
fn entries_are_due_in_turn_within_the_interval() {
    let mut c = clock(4, vec![fed(A, 0, 1), fed(B, 0, 1)]);
    let a = c.poll(A, Patience::Long);
    c.answer(a, Answer::Nothing);
    c.waits(Some(1500));
    let b = c.at(1500).poll(B, Patience::Long);
    c.answer(b, Answer::Nothing);
    c.waits(Some(3000));
    c.at(3000).poll(A, Patience::Long);
}

#[test]
fn a_poll_that_came_back_late_is_due_at_once() {
    let mut c = clock(1, vec![fed(A, 0, 1)]);
    let a = c.poll(A, Patience::Long);
    c.at(50_000).waits(None);
    c.answer(a, Answer::Nothing);
    c.poll(A, Patience::Long);
}

#[test]
fn a_burst_ramps_up_at_once_to_the_slots_there_are() {
    let mut c = clock(3, vec![fed(A, 0, 1)]);
    for _ in 0..3 {
        let poll = c.poll(A, Patience::Long);
        c.answer(poll, Answer::Job);
    }
    c.waits(None);
    c.feeder.ended("key-0", c.now);
    let poll = c.poll(A, Patience::Long);
    c.answer(poll, Answer::Nothing);
    c.waits(Some(3000));
}

#[test]
fn a_limit_counts_polls_as_well_as_jobs() {
    let mut c = clock(4, vec![fed(A, 2, 4)]);
    let first = c.poll(A, Patience::Long);
    c.at(3000).poll(A, Patience::Long);
    c.at(6000).waits(None);
    c.answer(first, Answer::Job);
    c.waits(None);
    c.feeder.ended("key-0", c.now);
    c.poll(A, Patience::Long);
}

#[test]
fn entries_with_one_token_share_their_limit() {
    let twin = Fed { key: "key-0".into(), ..fed(B, 1, 1) };
    let mut c = clock(4, vec![fed(A, 1, 1), twin]);
    c.poll(A, Patience::Long);
    c.at(9000).waits(None);
}

#[test]
fn the_requests_of_an_entry_are_bounded() {
    let mut c = clock(4, vec![fed(A, 0, 2)]);
    c.poll(A, Patience::Long);
    c.at(3000).poll(A, Patience::Long);
    c.at(6000).waits(None);
}

#[test]
fn the_last_idle_worker_asks_without_patience_while_another_entry_may_be_due() {
    let mut c = clock(1, vec![fed(A, 0, 1), fed(B, 0, 1)]);
    let a = c.poll(A, Patience::None);
    c.answer(a, Answer::Nothing);
    c.at(1500).poll(B, Patience::None);
    // Two workers: A's long poll takes no more requests, so B may be patient too.
    let mut c = clock(2, vec![fed(A, 0, 1), fed(B, 0, 1)]);
    c.poll(A, Patience::Long);
    c.at(1500).poll(B, Patience::Long);
}

#[test]
fn the_longest_parked_poll_makes_room_for_another_entry() {
    let mut c = clock(2, vec![fed(A, 0, 1), fed(B, 0, 1)]);
    let a = c.poll(A, Patience::Long);
    let b = c.at(1500).poll(B, Patience::Long);
    c.at(1600).answer(b, Answer::Job);
    c.waits(Some(2000));
    c.at(2000);
    assert_eq!(c.feeder.turn(c.now), Turn::HangUp(A, a));
    c.feeder.cut(a);
    c.waits(None);
    c.answer(a, Answer::Nothing);
    c.poll(B, Patience::None);
}

#[test]
fn an_entry_never_cuts_its_own_poll() {
    let mut c = clock(1, vec![fed(A, 0, 2)]);
    c.poll(A, Patience::Long);
    c.at(10_000).waits(None);
}

#[test]
fn more_adopted_jobs_than_slots_mean_no_poll() {
    let mut c = clock(2, vec![fed(A, 0, 1)]);
    for key in ["key-0", "gone", "gone"] {
        c.feeder.took(key);
    }
    c.waits(None);
    c.feeder.ended("gone", c.now);
    c.waits(None);
    c.feeder.ended("gone", c.now);
    c.poll(A, Patience::Long);
}

#[test]
fn a_refusal_is_a_rest_that_nothing_shortens() {
    let mut c = clock(2, vec![fed(A, 0, 1)]);
    c.feeder.took("key-0");
    let a = c.poll(A, Patience::Long);
    c.answer(a, Answer::Again { after: ms(20_000), healthy: true });
    c.feeder.ended("key-0", c.now);
    c.waits(Some(20_000));
}

#[test]
fn three_unhealthy_answers_are_an_hour_and_a_reload_ends_it() {
    let mut c = clock(1, vec![fed(A, 0, 1)]);
    for n in 0..3 {
        let a = c.at(n * 3000).poll(A, Patience::Long);
        c.answer(a, Answer::Again { after: ms(0), healthy: false });
    }
    c.waits(Some(6000 + 3_600_000));
    c.at(9000);
    let now = c.now;
    c.feeder.set(pace(1), vec![fed(A, 0, 1)], now);
    c.poll(A, Patience::Long);
}

#[test]
fn the_others_go_on_when_one_retires() {
    let mut c = clock(1, vec![fed(A, 0, 1), fed(B, 0, 1)]);
    let a = c.poll(A, Patience::None);
    c.answer(a, Answer::Retire);
    assert!(!c.feeder.all_retired());
    let b = c.at(1500).poll(B, Patience::Long);
    c.answer(b, Answer::Retire);
    assert!(c.feeder.all_retired());
}
