//! The entries of the configuration with their coordinators, and what was last said of each. Decides
//! nothing about turns: that is the feeder's.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::config::{Config, Entry};
use crate::forge::{Coordinator, HangUp, Refusal};
use crate::forges::{self, Ground};
use crate::worker::Poller;

use super::feeder::{EntryId, Fed};

#[derive(Debug, Default)]
pub(super) struct Entries {
    now: Vec<Arc<Poller>>,
    /// Gone from the file, with polls still under way.
    leaving: Vec<Arc<Poller>>,
    /// Why an entry had no answer, so that it is said once.
    said: BTreeMap<EntryId, String>,
    next: u64,
}

impl Entries {
    /// Those of a (re)loaded configuration. One that stayed the same keeps its coordinator; the others
    /// are cut as far as nothing is lost by it, and their jobs run on.
    pub(super) fn load(&mut self, config: &Config, ground: &Ground) -> Vec<Fed> {
        let mut old = std::mem::take(&mut self.now);
        self.said.clear();
        for entry in &config.entries {
            if let Some(why) = &entry.disabled {
                log::warn!(entry = entry.name.as_str(); "the entry takes no jobs: {why}");
                continue;
            }
            let kept = old.iter().position(|p| *p.entry == *entry).map(|n| old.remove(n));
            match self.poller(entry, kept.as_deref(), config.min_free_disk, ground) {
                Ok(poller) => self.now.push(Arc::new(poller)),
                Err(e) => log::error!(entry = entry.name.as_str(); "the entry takes no jobs: {e}"),
            }
        }
        for poller in old {
            poller.coordinator.hang_up(HangUp::All);
            self.leaving.push(poller);
        }
        self.now.iter().map(|p| fed(p)).collect()
    }

    fn poller(
        &mut self,
        entry: &Entry,
        kept: Option<&Poller>,
        min_free_disk: u64,
        ground: &Ground,
    ) -> std::io::Result<Poller> {
        let (id, entry, coordinator) = match kept {
            Some(p) => (p.id, Arc::clone(&p.entry), Arc::clone(&p.coordinator)),
            None => {
                let entry = Arc::new(entry.clone());
                let coordinator = forges::open(&entry, ground)?;
                self.next += 1;
                (EntryId(self.next), entry, coordinator)
            }
        };
        Ok(Poller { id, key: entry.key(), entry, min_free_disk, coordinator })
    }

    pub(super) fn get(&self, id: EntryId) -> Option<&Arc<Poller>> {
        self.now.iter().find(|p| p.id == id)
    }

    pub(super) fn names(&self) -> Vec<&str> {
        self.now.iter().map(|p| p.entry.name.as_str()).collect()
    }

    fn all(&self) -> impl Iterator<Item = &Arc<dyn Coordinator>> {
        self.now.iter().chain(&self.leaving).map(|p| &p.coordinator)
    }

    /// For the stop: nothing is asked from now on, and what is safe to cut is cut.
    pub(super) fn hang_up(&self) {
        self.all().for_each(|c| c.hang_up(HangUp::All));
    }

    pub(super) fn may_have_a_job(&self) -> bool {
        self.all().any(|c| c.may_have_a_job())
    }

    /// Those without a poll can go.
    pub(super) fn forget_left(&mut self, polls: impl Fn(EntryId) -> usize) {
        self.leaving.retain(|p| polls(p.id) > 0);
    }

    /// A job's own listener heard it.
    pub(super) fn refused(&mut self, key: &str, refusal: &Refusal) {
        let poller = self.now.iter().find(|p| p.key == key).cloned();
        if let Some(poller) = poller {
            self.answered(&poller, Some(refusal));
        }
    }

    /// Say why there was no answer, and that there is one again; each once.
    pub(super) fn answered(&mut self, poller: &Poller, refusal: Option<&Refusal>) {
        let name = poller.entry.name.as_str();
        match refusal {
            Some(Refusal::Retire { exit: 0, why }) => log::info!(entry = name; "the entry has ended: {why}"),
            Some(Refusal::Retire { why, .. }) => log::error!(entry = name; "the entry has ended: {why}"),
            Some(Refusal::Again { why, .. }) if self.said.get(&poller.id) == Some(why) => {
                log::debug!(entry = name; "{why}");
            }
            Some(Refusal::Again { why, .. }) => {
                log::warn!(entry = name; "{why}");
                self.said.insert(poller.id, why.clone());
            }
            None => {
                if self.said.remove(&poller.id).is_some() {
                    log::info!(entry = name; "the server answers again");
                }
            }
        }
    }
}

fn fed(poller: &Poller) -> Fed {
    let entry = &poller.entry;
    Fed { id: poller.id, key: poller.key.clone(), limit: entry.limit, requests: entry.request_concurrency }
}
