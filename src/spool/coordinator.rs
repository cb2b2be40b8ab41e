//! Looks for a job in the directory: own claims that a killed manager left, then what waits. Decides what
//! is stale by watching, never by comparing clocks. Runs nothing.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

use super::claims::{Claimed, LONGEST_NAME, Spool};
use super::lease::{Claim, Ended};
use super::{hash, job_file, job_name};
use crate::config::Entry;
use crate::forge::{Coordinator, HangUp, Lease, Refusal};
use crate::forges::Ground;

pub(super) struct Directory {
    entry: Arc<Entry>,
    ground: Ground,
    spool: Spool,
    /// Looking and claiming is one act: two workers must not take one claim.
    watch: Mutex<Watch>,
    held: Held,
    polls: AtomicUsize,
}

/// Names of jobs between their poll and the end of their lease in this process. The directory of a job
/// says the same, but only once it is made.
pub(super) type Held = Arc<Mutex<HashSet<String>>>;

/// Others' claims: since when they have not changed, on our own clock.
#[derive(Default)]
struct Watch {
    seen: HashMap<(String, String), (SystemTime, Instant)>,
}

impl Directory {
    pub(super) fn new(entry: Arc<Entry>, ground: Ground, spool: Spool) -> Directory {
        Directory { entry, ground, spool, watch: Mutex::default(), held: Held::default(), polls: AtomicUsize::new(0) }
    }

    fn look(&self, now: Instant) -> io::Result<Option<Box<dyn Lease>>> {
        let mut watch = self.watch.lock();
        let claims = self.spool.claims()?;
        for claim in watch.stale(&claims, self.spool.owner(), self.ground.timing.spool_stale, now) {
            if self.spool.give_back(claim)? {
                log::warn!("spool: {:?} goes back to pending, its manager {} is gone", claim.name, claim.owner);
            }
        }
        // A claim of ours with no directory: we were killed between the two (kill point 19).
        for claim in claims.iter().filter(|c| c.owner == self.spool.owner() && !self.has(&c.name)) {
            if let Some(lease) = self.take(&claim.name)? {
                return Ok(Some(lease));
            }
        }
        for name in self.spool.pending()? {
            if name.len() > LONGEST_NAME {
                let to = self.spool.refuse_long(&name)?;
                log::warn!("spool: {} cannot be run for the length of its name", to.display());
                continue;
            }
            // One at a time of a name: the next waits for the result of the first.
            if claims.iter().any(|c| c.name == name) || self.has(&name) || !self.spool.claim(&name)? {
                continue;
            }
            if let Some(lease) = self.take(&name)? {
                return Ok(Some(lease));
            }
        }
        Ok(None)
    }

    fn has(&self, name: &str) -> bool {
        let dir = self.ground.state_dir.join("jobs").join(job_name(&self.spool, name).as_str());
        self.held.lock().contains(name) || dir.symlink_metadata().is_ok()
    }

    /// A claim of ours becomes a lease, unless there is nothing to run in it.
    fn take(&self, name: &str) -> io::Result<Option<Box<dyn Lease>>> {
        let text = match self.spool.read(name) {
            Ok(Some(text)) => text,
            Ok(None) => return Ok(None),
            Err(e) => {
                self.refuse(name, &format!("it cannot be read: {e}"))?;
                return Ok(None);
            }
        };
        let hash = hash(&text);
        if let Some(result) = self.spool.result(name) {
            self.done_already(name, hash, &result)?;
            return Ok(None);
        }
        match job_file::read(&text, name, &self.entry) {
            Ok(job) => {
                self.held.lock().insert(name.to_owned());
                let held = Arc::clone(&self.held);
                Ok(Some(Box::new(Claim::new(self.spool.clone(), &self.entry, &self.ground, name, hash, job, held))))
            }
            Err(reason) => {
                self.refuse(name, &reason)?;
                Ok(None)
            }
        }
    }

    fn refuse(&self, name: &str, reason: &str) -> io::Result<()> {
        let to = self.spool.refuse(name, reason)?;
        log::warn!("spool: {} cannot be run: {reason}", to.display());
        Ok(())
    }

    /// `done/NAME` is there: of this very job, when a killed manager had shown the result and not yet
    /// deleted the claim; or of another, whose result is not to be lost.
    fn done_already(&self, name: &str, hash: u64, result: &[u8]) -> io::Result<()> {
        let done = self.spool.done_dir(name);
        if serde_json::from_slice::<Ended>(result).is_ok_and(|r| r.job == format!("{hash:016x}")) {
            log::warn!("spool: {name:?} has its result in {} already; remove it to run the job again", done.display());
            return self.spool.release(name);
        }
        let reason =
            format!("{} is the result of another job; remove it, or give this job another name", done.display());
        self.refuse(name, &reason)
    }

    /// Nothing waits, and nothing that others hold may come back.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.spool.pending()?.is_empty() && self.spool.claims()?.iter().all(|c| c.owner == self.spool.owner()))
    }
}

impl Coordinator for Directory {
    fn poll(&self, _patience: Duration) -> Result<Option<Box<dyn Lease>>, Refusal> {
        self.polls.fetch_add(1, Ordering::SeqCst);
        let found = self.look(Instant::now());
        let found = match found {
            Ok(None) if self.entry.exit_when_empty => match self.is_empty() {
                Ok(true) => {
                    let why = "the spool is empty, and exit_when_empty is set".to_owned();
                    Err(Refusal::Retire { exit: 0, why })
                }
                Ok(false) => Ok(None),
                Err(e) => Err(self.refusal(&e)),
            },
            other => other.map_err(|e| self.refusal(&e)),
        };
        self.polls.fetch_sub(1, Ordering::SeqCst);
        found
    }

    /// A poll here ends by itself, at once.
    fn hang_up(&self, _which: HangUp) {}

    fn may_have_a_job(&self) -> bool {
        self.polls.load(Ordering::SeqCst) > 0
    }
}

impl Directory {
    fn refusal(&self, e: &io::Error) -> Refusal {
        // The directory may have been removed under us: make it anew, so that the next look works.
        let _ = Spool::open(self.spool.root(), self.spool.owner());
        Refusal::Again { after: self.ground.timing.backoff_min, healthy: false, why: format!("spool: {e}") }
    }
}

impl Watch {
    /// Claims of others that did not change while we watched them for `limit`. Ours never go stale: we
    /// know by the job's directory what became of it.
    fn stale<'c>(&mut self, claims: &'c [Claimed], own: &str, limit: Duration, now: Instant) -> Vec<&'c Claimed> {
        let key = |c: &Claimed| (c.name.clone(), c.owner.clone());
        let others: Vec<&Claimed> = claims.iter().filter(|c| c.owner != own).collect();
        self.seen.retain(|k, _| others.iter().any(|c| key(c) == *k));
        let mut stale = Vec::new();
        for claim in others {
            let (touched, since) = self.seen.entry(key(claim)).or_insert((claim.touched, now));
            if *touched != claim.touched {
                (*touched, *since) = (claim.touched, now);
            } else if now.saturating_duration_since(*since) >= limit {
                stale.push(claim);
            }
        }
        stale
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_stale_when_it_was_not_touched_while_we_watched() {
        let start = Instant::now();
        let limit = Duration::from_secs(60);
        let claim = |owner: &str, touched: u64| Claimed {
            name: "x".to_owned(),
            owner: owner.to_owned(),
            touched: SystemTime::UNIX_EPOCH + Duration::from_secs(touched),
        };
        let mut watch = Watch::default();
        let mut check = |second: u64, claim: Claimed, want: bool| {
            let now = start + Duration::from_secs(second);
            assert_eq!(!watch.stale(&[claim], "me", limit, now).is_empty(), want, "after {second} s");
        };
        check(0, claim("a", 5), false);
        check(59, claim("a", 5), false);
        check(59, claim("a", 6), false);
        check(118, claim("a", 6), false);
        check(119, claim("a", 6), true);
        check(120, claim("b", 6), false);
        check(500, claim("me", 6), false);
        check(501, claim("b", 6), false);
    }
}
