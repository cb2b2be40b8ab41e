//! Whose turn it is to be polled: which entry, how patiently, and whose long poll must make room. A pure
//! state machine over `now`; it starts nothing and waits for nothing.
//!
//! **Invariant 1** starts here: a poll is only given while a slot is free for the job that it may bring,
//! and counts as that job until it was answered.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Names an entry for as long as the manager lives; a reload makes new ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId(pub u64);

/// Names one poll under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollId(u64);

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    Poll {
        entry: EntryId,
        patience: Patience,
    },
    /// End the longest parked long poll of this entry, for the sake of another.
    HangUp(EntryId, PollId),
    /// Nothing before then, unless something is reported.
    Wait(Option<Instant>),
}

/// Whether the server may keep the poll waiting (design §3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    Long,
    None,
}

/// How a poll ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Job,
    Nothing,
    /// Not to be asked again before then; `healthy` as in protocol §3.6.
    Again {
        after: Duration,
        healthy: bool,
    },
    /// The entry asks no more.
    Retire,
}

/// What the feeder needs to know of an entry.
#[derive(Clone, Debug)]
pub struct Fed {
    pub id: EntryId,
    /// Entries with the same key share their limit.
    pub key: String,
    /// 0: none.
    pub limit: usize,
    pub requests: usize,
}

#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// All entries at the same time.
    pub concurrent: usize,
    /// Every entry is due once in this time.
    pub interval: Duration,
    /// A long poll that has waited for so long may be cut.
    pub parked_after: Duration,
    /// How long an entry rests after three refusals.
    pub unhealthy_rest: Duration,
}

/// Refusals in a row before an entry rests.
const UNHEALTHY: u32 = 3;

#[derive(Debug)]
pub struct Feeder {
    pace: Pace,
    entries: Vec<Place>,
    jobs: BTreeMap<String, usize>,
    polls: Vec<Poll>,
    next_poll: u64,
}

#[derive(Debug)]
struct Place {
    fed: Fed,
    due: Instant,
    /// The server asked for a rest: nothing makes the entry due before then.
    rest_until: Option<Instant>,
    unhealthy: u32,
    retired: bool,
}

#[derive(Debug)]
struct Poll {
    id: PollId,
    entry: EntryId,
    key: String,
    since: Instant,
    patience: Patience,
    cut: bool,
}

impl Feeder {
    pub fn new(pace: Pace) -> Feeder {
        Feeder { pace, entries: Vec::new(), jobs: BTreeMap::new(), polls: Vec::new(), next_poll: 0 }
    }

    /// The entries of a (re)loaded configuration, in its order. Those that stay keep their turn, but not
    /// their refusals; jobs and polls of the others stay counted.
    pub fn set(&mut self, pace: Pace, entries: Vec<Fed>, now: Instant) {
        self.pace = pace;
        let spread = pace.interval / u32::try_from(entries.len()).unwrap_or(u32::MAX).max(1);
        let due_of = |places: &[Place], id| places.iter().find(|p: &&Place| p.fed.id == id).map(|p| p.due);
        let old = std::mem::take(&mut self.entries);
        self.entries = (0..)
            .zip(entries)
            .map(|(n, fed)| {
                let due = due_of(&old, fed.id).unwrap_or(now + spread * n);
                Place { fed, due, rest_until: None, unhealthy: 0, retired: false }
            })
            .collect();
    }

    /// Whose turn it is. Asking changes nothing.
    pub fn turn(&self, now: Instant) -> Turn {
        let able = || self.entries.iter().filter(|p| !p.retired && self.has_room(&p.fed));
        let Some(next) = able().min_by_key(|p| p.due_at()) else { return Turn::Wait(None) };
        if next.due_at() > now {
            return Turn::Wait(Some(next.due_at()));
        }
        let busy = self.jobs.values().sum::<usize>() + self.polls.len();
        let idle = self.pace.concurrent.saturating_sub(busy);
        if idle == 0 {
            return self.make_room(next.fed.id, now);
        }
        // A long poll holds its worker; so only while another is idle for whoever else may be due.
        let others = able().any(|p| p.fed.id != next.fed.id);
        let patience = if idle > 1 || !others { Patience::Long } else { Patience::None };
        Turn::Poll { entry: next.fed.id, patience }
    }

    fn make_room(&self, due: EntryId, now: Instant) -> Turn {
        let parked = |p: &&Poll| p.patience == Patience::Long && p.entry != due && !p.cut;
        match self.polls.iter().filter(parked).min_by_key(|p| p.since) {
            Some(poll) if poll.since + self.pace.parked_after <= now => Turn::HangUp(poll.entry, poll.id),
            Some(poll) => Turn::Wait(Some(poll.since + self.pace.parked_after)),
            None => Turn::Wait(None),
        }
    }

    fn has_room(&self, fed: &Fed) -> bool {
        let requests = self.polls.iter().filter(|p| p.entry == fed.id).count();
        let polls = self.polls.iter().filter(|p| p.key == fed.key).count();
        let jobs = self.jobs.get(&fed.key).copied().unwrap_or_default();
        requests < fed.requests.max(1) && (fed.limit == 0 || polls + jobs < fed.limit)
    }

    /// A worker took the poll.
    pub fn polling(&mut self, entry: EntryId, patience: Patience, now: Instant) {
        let id = self.next_poll();
        self.next_poll += 1;
        let Some(place) = self.entries.iter_mut().find(|p| p.fed.id == entry) else { return };
        place.due = now + self.pace.interval;
        let key = place.fed.key.clone();
        self.polls.push(Poll { id, entry, key, since: now, patience, cut: false });
    }

    /// The name that the next poll will have.
    pub fn next_poll(&self) -> PollId {
        PollId(self.next_poll)
    }

    /// The entry was told to hang up on this poll.
    pub fn cut(&mut self, poll: PollId) {
        if let Some(poll) = self.polls.iter_mut().find(|p| p.id == poll) {
            poll.cut = true;
        }
    }

    pub fn answered(&mut self, poll: PollId, answer: Answer, now: Instant) {
        let Some(at) = self.polls.iter().position(|p| p.id == poll) else { return };
        let poll = self.polls.swap_remove(at);
        if answer == Answer::Job {
            self.took(&poll.key);
        }
        let rest = self.pace.unhealthy_rest;
        let Some(place) = self.entries.iter_mut().find(|p| p.fed.id == poll.entry) else { return };
        match answer {
            Answer::Job => {
                // Where one job was there may be more: a burst ramps up at once.
                place.due = now;
                place.unhealthy = 0;
            }
            Answer::Nothing => place.unhealthy = 0,
            Answer::Again { after, healthy } => {
                place.unhealthy = if healthy { 0 } else { place.unhealthy + 1 };
                let after = if place.unhealthy >= UNHEALTHY { after.max(rest) } else { after };
                place.rest_until = Some(now + after);
            }
            Answer::Retire => place.retired = true,
        }
    }

    /// A job of this entry has a slot: one that was polled for, or an adopted one.
    pub fn took(&mut self, key: &str) {
        *self.jobs.entry(key.to_owned()).or_default() += 1;
    }

    /// Its slot is free again, so the entry is due at once.
    pub fn ended(&mut self, key: &str, now: Instant) {
        if let Some(n) = self.jobs.get_mut(key) {
            *n -= 1;
            if *n == 0 {
                self.jobs.remove(key);
            }
        }
        for place in self.entries.iter_mut().filter(|p| p.fed.key == key) {
            place.due = place.due.min(now);
        }
    }

    /// Entries with this key ask no more.
    pub fn retire(&mut self, key: &str) {
        self.entries.iter_mut().filter(|p| p.fed.key == key).for_each(|p| p.retired = true);
    }

    pub fn jobs(&self) -> usize {
        self.jobs.values().sum()
    }

    pub fn polls(&self) -> usize {
        self.polls.len()
    }

    pub fn polls_of(&self, entry: EntryId) -> usize {
        self.polls.iter().filter(|p| p.entry == entry).count()
    }

    /// There were entries, and each has retired.
    pub fn all_retired(&self) -> bool {
        !self.entries.is_empty() && self.entries.iter().all(|p| p.retired)
    }
}

impl Place {
    fn due_at(&self) -> Instant {
        self.rest_until.map_or(self.due, |rest| self.due.max(rest))
    }
}

#[cfg(test)]
mod tests;
