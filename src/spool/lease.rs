//! A claim: renewed by touching its file, ended by showing the result. It is the directory's only word on
//! who has a job, so a claim that is gone ends the job here.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::claims::{Spool, Wish};
use super::coordinator::Held;
use super::job_name;
use super::show::Show;
use crate::clock::{BootTime, Timing};
use crate::config::{Entry, ShowLogs};
use crate::forge::{Attended, Confirm, Contact, Due, Lease, Wanted};
use crate::forges::Ground;
use crate::jobdir::{JobDir, LeaseRecord, Phase};
use crate::model::{ForgeKind, Job, JobName, Outcome, VERSION, Verdict, Why};

pub(super) struct Claim {
    spool: Spool,
    data: Data,
    job: Option<Job>,
    timing: Timing,
    /// How long the job may run on with no manager.
    orphan: Duration,
    touch_at: Instant,
    wanted: Wanted,
    show: Option<Show>,
    held: Option<Held>,
}

/// `lease.json`: enough to go on without the entry.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Data {
    root: PathBuf,
    owner: String,
    name: String,
    /// Of the job file, so that its result is known again.
    hash: String,
    entry: String,
    cancel_within_ms: u64,
    show: ShowLogs,
}

/// `result.json`.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Ended {
    version: u32,
    name: String,
    state: Verdict,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<Why>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    message: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    survivors: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lost: Option<String>,
    /// The job file that this is the result of.
    pub(super) job: String,
}

impl Claim {
    pub(super) fn new(
        spool: Spool,
        entry: &Entry,
        ground: &Ground,
        name: &str,
        hash: u64,
        job: Job,
        held: Held,
    ) -> Claim {
        let data = Data {
            root: spool.root().to_owned(),
            owner: spool.owner().to_owned(),
            name: name.to_owned(),
            hash: format!("{hash:016x}"),
            entry: entry.key(),
            cancel_within_ms: u64::try_from(entry.cancel_timeout.as_millis()).unwrap_or(u64::MAX),
            show: entry.show_logs,
        };
        let mut claim = Claim::with(spool, data, Some(job), ground);
        claim.held = Some(held);
        claim
    }

    pub(super) fn adopt(dir: &JobDir, ground: &Ground) -> io::Result<Claim> {
        let data: Data = serde_json::from_value(dir.lease()?.data)?;
        let spool = Spool::reopen(data.root.clone(), data.owner.clone());
        Ok(Claim::with(spool, data, dir.job().ok(), ground))
    }

    fn with(spool: Spool, data: Data, job: Option<Job>, ground: &Ground) -> Claim {
        let show = (data.show != ShowLogs::No).then(|| Show::new(&data.name, data.show));
        let stale = ground.timing.spool_stale;
        // Others take the claim when it was not touched for `stale`; by then nothing of the job runs here.
        let orphan = (stale - stale / 6).min(ground.adoption_timeout.unwrap_or(Duration::MAX));
        Claim {
            spool,
            data,
            job,
            timing: ground.timing,
            orphan,
            touch_at: Instant::now(),
            wanted: Wanted::Run,
            show,
            held: None,
        }
    }

    /// Touch the claim when it is time to. `false` when it is ours no more.
    fn renew(&mut self, dir: &JobDir, now: Instant) -> io::Result<bool> {
        if now < self.touch_at {
            return Ok(true);
        }
        if !self.spool.touch(&self.data.name)? {
            return Ok(false);
        }
        self.touch_at = now + self.timing.spool_stale / 3;
        if let Err(e) = dir.set_orphan_until(BootTime::now().after(self.orphan)) {
            log::warn!("spool: {e}");
        }
        Ok(true)
    }

    fn wish(&mut self) {
        let wanted = match self.spool.wish(&self.data.name) {
            Wish::Run => Wanted::Run,
            Wish::Cancel => Wanted::Cancel { within: Duration::from_millis(self.data.cancel_within_ms) },
            Wish::Abort => Wanted::Abort(Why::Canceled),
        };
        self.wanted = self.wanted.max(wanted);
    }

    /// Every step can be done again, after a kill at any point (kill point 19).
    fn finish(&self, dir: &JobDir, outcome: &Outcome) -> io::Result<()> {
        let name = &self.data.name;
        if !self.spool.touch(name)? {
            if self.spool.result(name).is_none() {
                log::warn!("spool: {name:?} was taken by another manager meanwhile; its result here is dropped");
            }
            return Ok(());
        }
        let ended = Ended {
            version: VERSION,
            name: name.clone(),
            state: outcome.verdict,
            reason: outcome.why,
            exit_code: outcome.exit_code,
            message: outcome.message.clone(),
            survivors: outcome.survivors.clone(),
            lost: outcome.lost.clone(),
            job: self.data.hash.clone(),
        };
        let mut text = serde_json::to_vec_pretty(&ended)?;
        text.push(b'\n');
        self.spool.write_result(name, &dir.file("log"), &text)?;
        self.spool.show_result(name)?;
        self.spool.release(name)
    }
}

impl Lease for Claim {
    fn name(&self) -> JobName {
        job_name(&self.spool, &self.data.name)
    }

    fn record(&self) -> LeaseRecord {
        LeaseRecord {
            version: VERSION,
            forge: ForgeKind::Spool,
            entry: self.data.entry.clone(),
            phase: Phase::Taken,
            data: serde_json::to_value(&self.data).expect("plain data becomes JSON"),
        }
    }

    fn job(&self) -> Option<&Job> {
        self.job.as_ref()
    }

    fn confirm(&mut self, dir: &JobDir, now: Instant) -> Confirm {
        match self.renew(dir, now) {
            Ok(true) => match self.spool.wish(&self.data.name) {
                Wish::Run => Confirm::Run,
                Wish::Cancel | Wish::Abort => Confirm::Ended { why: Why::Canceled },
            },
            Ok(false) => Confirm::Gone { why: "another manager has the claim".to_owned() },
            Err(e) => {
                log::warn!("spool: {e}");
                Confirm::Again { at: now + self.timing.backoff_min }
            }
        }
    }

    fn attend(&mut self, dir: &JobDir, ended: Option<&Outcome>, now: Instant) -> Attended {
        if let Some(show) = &mut self.show {
            show.more(dir);
        }
        let retry = Due { soonest: now + self.timing.backoff_min, at: now + self.timing.backoff_min };
        if let Some(outcome) = ended {
            return match self.finish(dir, outcome) {
                Ok(()) => {
                    if let Some(show) = &mut self.show {
                        show.end(dir, outcome, &self.spool.done_dir(&self.data.name));
                    }
                    Attended::Settled
                }
                Err(e) => {
                    log::warn!("spool: the result of {:?} cannot be shown yet: {e}", self.data.name);
                    Attended::Held { wanted: self.wanted, due: retry, contact: Contact::Failing }
                }
            };
        }
        let mut contact = Contact::Fine;
        match self.renew(dir, now) {
            Ok(true) => self.wish(),
            Ok(false) => self.wanted = self.wanted.max(Wanted::Abort(Why::Aborted)),
            Err(e) => {
                log::warn!("spool: {e}");
                self.touch_at = now + self.timing.backoff_min;
                contact = Contact::Failing;
            }
        }
        let at = (now + self.timing.spool_look).min(self.touch_at);
        let soonest = if self.show.is_some() { now } else { at };
        Attended::Held { wanted: self.wanted, due: Due { soonest, at }, contact }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(held) = &self.held {
            held.lock().remove(&self.data.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::forge::{Coordinator, Refusal};
    use crate::spool::job_file::tests::entry;
    use crate::spool::{adopt, open};

    struct Host {
        ground: Ground,
        coordinator: Arc<dyn Coordinator>,
        _state: tempfile::TempDir,
    }

    fn host(root: &Path, more: &str) -> Host {
        let state = tempfile::tempdir().unwrap();
        fs::create_dir(state.path().join("jobs")).unwrap();
        let timing = Timing { spool_stale: Duration::ZERO, ..Timing::default() };
        let ground = Ground::new(timing, state.path().to_owned(), None);
        let text = format!("state_dir = '/nowhere'\n[[runners]]\nurl = 'file://{}'\n{more}", root.display());
        let coordinator = open(&Arc::new(entry(&text)), &ground).unwrap();
        Host { ground, coordinator, _state: state }
    }

    impl Host {
        fn poll(&self) -> Option<Box<dyn Lease>> {
            self.coordinator.poll(Duration::ZERO).unwrap()
        }

        fn dir(&self, lease: &dyn Lease) -> JobDir {
            JobDir::create(&self.ground.state_dir.join("jobs"), &lease.name(), |dir| {
                dir.write_lease(&lease.record())?;
                dir.write_job(lease.job().unwrap())
            })
            .unwrap()
        }

        fn finish(&self, mut lease: Box<dyn Lease>) {
            let dir = self.dir(&*lease);
            assert!(matches!(lease.confirm(&dir, Instant::now()), Confirm::Run));
            assert!(matches!(lease.attend(&dir, Some(&Outcome::success()), Instant::now()), Attended::Settled));
            dir.remove().unwrap();
        }
    }

    fn put(root: &Path, name: &str) {
        fs::write(root.join(format!("pending/{name}.json")), r#"{"script":["echo hi"]}"#).unwrap();
    }

    #[test]
    fn a_job_is_claimed_confirmed_renewed_and_ended() {
        let spool = tempfile::tempdir().unwrap();
        let host = host(spool.path(), "exit_when_empty = true");
        put(spool.path(), "x");
        let mut lease = host.poll().unwrap();
        assert!(matches!(host.coordinator.poll(Duration::ZERO), Err(Refusal::Retire { exit: 0, .. })));
        let dir = host.dir(&*lease);
        assert!(matches!(lease.confirm(&dir, Instant::now()), Confirm::Run));
        assert!(dir.orphan_until().is_some());
        let Attended::Held { wanted: Wanted::Run, .. } = lease.attend(&dir, None, Instant::now()) else { panic!() };
        fs::write(spool.path().join("running/x.cancel"), "").unwrap();
        let Attended::Held { wanted: Wanted::Cancel { .. }, .. } = lease.attend(&dir, None, Instant::now()) else {
            panic!()
        };
        let outcome = Outcome { exit_code: Some(3), ..Outcome::failed(Why::Script, "exit 3") };
        assert!(matches!(lease.attend(&dir, Some(&outcome), Instant::now()), Attended::Settled));
        let result: serde_json::Value =
            serde_json::from_slice(&fs::read(spool.path().join("done/x/result.json")).unwrap()).unwrap();
        assert_eq!((&result["state"], &result["exit_code"]), (&"failed".into(), &3.into()));
        assert_eq!(fs::read_dir(spool.path().join("running")).unwrap().count(), 0);
    }

    #[test]
    fn a_claim_without_a_directory_is_offered_again() {
        let spool = tempfile::tempdir().unwrap();
        let host = host(spool.path(), "");
        put(spool.path(), "x");
        let lease = host.poll().unwrap();
        assert!(host.poll().is_none());
        drop(lease);
        let lease = host.poll().unwrap();
        let dir = host.dir(&*lease);
        drop(lease);
        assert!(host.poll().is_none());
        let lease = adopt(&dir, &host.ground).unwrap();
        assert_eq!((lease.name(), lease.job().unwrap().name.as_str()), (dir.name().clone(), "x"));
    }

    #[test]
    fn a_stale_claim_runs_elsewhere_and_counts_once() {
        let spool = tempfile::tempdir().unwrap();
        let (a, b) = (host(spool.path(), ""), host(spool.path(), ""));
        put(spool.path(), "x");
        let mut slow = a.poll().unwrap();
        let dir = a.dir(&*slow);
        assert!(matches!(slow.confirm(&dir, Instant::now()), Confirm::Run));
        assert!(b.poll().is_none(), "given back, claimed at the next look");
        b.finish(b.poll().unwrap());
        let Attended::Held { wanted: Wanted::Abort(Why::Aborted), .. } = slow.attend(&dir, None, Instant::now()) else {
            panic!()
        };
        assert!(matches!(slow.attend(&dir, Some(&Outcome::success()), Instant::now()), Attended::Settled));
        assert_eq!(fs::read_dir(spool.path().join("done")).unwrap().count(), 1);
    }

    #[test]
    fn a_result_that_is_there_already_is_not_made_again() {
        let spool = tempfile::tempdir().unwrap();
        let host = host(spool.path(), "");
        put(spool.path(), "x");
        host.finish(host.poll().unwrap());
        put(spool.path(), "x");
        assert!(host.poll().is_none());
        assert_eq!(fs::read_dir(spool.path().join("pending")).unwrap().count(), 0);
        fs::write(spool.path().join("pending/x.json"), r#"{"script":["echo another"]}"#).unwrap();
        assert!(host.poll().is_none());
        assert!(fs::read_to_string(spool.path().join("failed/x.reason")).unwrap().contains("another job"));
    }

    #[test]
    fn a_malformed_file_stops_nothing() {
        let spool = tempfile::tempdir().unwrap();
        let host = host(spool.path(), "");
        fs::write(spool.path().join("pending/a.json"), "{").unwrap();
        put(spool.path(), "b");
        assert_eq!(host.poll().unwrap().job().unwrap().name, "b");
        assert!(fs::read_to_string(spool.path().join("failed/a.reason")).unwrap().starts_with("this is not JSON"));
        assert!(spool.path().join("failed/a.json").exists());
    }
}
