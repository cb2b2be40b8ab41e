//! `cache.json`: the keys of a distributed cache, on their way from the manager to the job process.
//!
//! **Invariant 9**: a script of the same user could read them here, so they are gone before the first
//! stage. From then on only the job process's memory has them.

use std::fs;
use std::io;

use super::{JobDir, to_json};
use crate::cloud::CacheSettings;

impl JobDir {
    pub(super) fn write_cache(&self, settings: &CacheSettings) -> io::Result<()> {
        match *settings == CacheSettings::default() {
            true => Ok(()),
            false => self.replace("cache.json", &to_json(settings)?),
        }
    }

    /// Once: the next one finds nothing, and its job's caches stay on this host.
    pub fn take_cache(&self) -> CacheSettings {
        let settings = self.read_json("cache.json").unwrap_or_default();
        let _ = fs::remove_file(self.file("cache.json"));
        settings
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ForgeKind, JobName};

    #[test]
    fn keys_can_be_taken_once() {
        let jobs = tempfile::tempdir().unwrap();
        let dir = JobDir::create(jobs.path(), &JobName::new(ForgeKind::Gitlab, "h", "1"), |_| Ok(())).unwrap();
        assert_eq!(dir.take_cache(), CacheSettings::default());
        dir.write_cache(&CacheSettings::default()).unwrap();
        assert!(!dir.file("cache.json").exists());
        let settings = CacheSettings { path: "p".into(), ..CacheSettings::default() };
        dir.write_cache(&settings).unwrap();
        assert_eq!(dir.take_cache(), settings);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "the lock alone is left");
        assert_eq!(dir.take_cache(), CacheSettings::default());
    }
}
