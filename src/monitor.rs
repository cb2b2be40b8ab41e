//! The jobs that this manager holds, with the numbers of their slots (protocol §6.3). Counts and names;
//! decides nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::model::JobName;

/// Every job that has a slot. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Registry(Arc<Mutex<Jobs>>);

#[derive(Debug, Default)]
struct Jobs {
    next: u64,
    slots: BTreeMap<u64, Held>,
    names: BTreeSet<JobName>,
}

#[derive(Debug)]
struct Held {
    entry: String,
    project: String,
    slot: u32,
    project_slot: u32,
}

/// A job's place; given back when dropped.
#[derive(Debug)]
pub struct Slot {
    registry: Registry,
    id: u64,
    /// Smallest number that no other job of the entry has.
    pub number: u32,
    /// The same among the jobs of the entry and the project.
    pub project_number: u32,
}

impl Registry {
    /// `entry` is the entry's key: two entries with one token share their numbers.
    pub fn claim(&self, entry: &str, project: &str) -> Slot {
        let jobs = self.0.lock();
        let of_entry = || jobs.slots.values().filter(|h| h.entry == entry);
        let number = smallest_free(of_entry().map(|h| h.slot));
        let project_number = smallest_free(of_entry().filter(|h| h.project == project).map(|h| h.project_slot));
        self.insert(jobs, entry, project, number, project_number)
    }

    /// An adopted job keeps the numbers that it was given.
    pub fn resume(&self, entry: &str, project: &str, number: u32, project_number: u32) -> Slot {
        self.insert(self.0.lock(), entry, project, number, project_number)
    }

    fn insert(
        &self,
        mut jobs: parking_lot::MutexGuard<'_, Jobs>,
        entry: &str,
        project: &str,
        number: u32,
        project_number: u32,
    ) -> Slot {
        let id = jobs.next;
        jobs.next += 1;
        let held =
            Held { entry: entry.to_owned(), project: project.to_owned(), slot: number, project_slot: project_number };
        jobs.slots.insert(id, held);
        Slot { registry: self.clone(), id, number, project_number }
    }
}

/// That a thread holds this job; over when dropped.
#[derive(Debug)]
pub struct Holding {
    registry: Registry,
    name: JobName,
}

impl Registry {
    pub fn hold(&self, name: &JobName) -> Holding {
        self.0.lock().names.insert(name.clone());
        Holding { registry: self.clone(), name: name.clone() }
    }

    pub fn is_held(&self, name: &JobName) -> bool {
        self.0.lock().names.contains(name)
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.registry.0.lock().names.remove(&self.name);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.registry.0.lock().slots.remove(&self.id);
    }
}

fn smallest_free(taken: impl Iterator<Item = u32>) -> u32 {
    let mut taken: Vec<u32> = taken.collect();
    taken.sort_unstable();
    taken.dedup();
    (0..).zip(&taken).find(|(n, t)| n != *t).map_or(u32::try_from(taken.len()).unwrap_or(u32::MAX), |(n, _)| n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_gets_the_smallest_number_of_its_entry_and_of_its_project() {
        let registry = Registry::default();
        let numbers = |s: &Slot| (s.number, s.project_number);
        let a = registry.claim("e", "p");
        let b = registry.claim("e", "q");
        let c = registry.claim("e", "p");
        let other = registry.claim("f", "p");
        assert_eq!([&a, &b, &c, &other].map(numbers), [(0, 0), (1, 0), (2, 1), (0, 0)]);
        drop(a);
        let d = registry.claim("e", "q");
        assert_eq!(numbers(&d), (0, 1));
    }

    #[test]
    fn an_adopted_job_keeps_its_numbers() {
        let registry = Registry::default();
        let _kept = registry.resume("e", "p", 1, 0);
        let next = [registry.claim("e", "p"), registry.claim("e", "p")];
        assert_eq!(next.each_ref().map(|s| (s.number, s.project_number)), [(0, 1), (2, 2)]);
    }
}
